"""The jumpboard model, built for real, the training of the block, and losses of both unit by unit."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from certify import checks
from certify.errors import CaptureError, NonFiniteError
from certify.losses import PerExample
from certify.nested import map_tensors
from certify.sweep import Loss, Unit, _device_of, _keys

Float = NDArray[np.float64]
State = list[Tensor]
Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
COPIES = 0.05
"""Share of equal examples in two samples above which they count as the same data."""


def clipped(loss: Loss, clip: float) -> Loss:
    """min(loss, clip): losses that start at 0 then lie in [0, clip], and everything is about that loss.

    Examples
    --------
    >>> import torch
    >>> from certify.losses import regression
    >>> bounded = clipped(regression, 1.0)
    >>> bounded(torch.nn.Identity(), (torch.tensor([[0.5], [3.0]]), torch.zeros(2, 1))).tolist()
    [0.25, 1.0]
    """

    def bounded(model: nn.Module, batch: Any) -> Tensor:
        values = loss(model, batch)
        if not isinstance(values, Tensor):
            return values
        low = torch.clamp(values, max=clip)
        if isinstance(values, PerExample):
            return PerExample(low, keep=values.keep, positions=values.positions)
        return low

    bounded.__name__ = f"{getattr(loss, '__name__', type(loss).__name__)} clipped at {clip:g}"
    return bounded


@dataclass(frozen=True)
class Losses:
    """Losses of several states of one block, averaged within units: ``values`` (states, units), float64."""

    values: Float
    examples: Mapping[Hashable, int]
    prints: frozenset[bytes]

    @property
    def n(self) -> int:
        """Units."""
        return int(self.values.shape[1])


@dataclass(frozen=True)
class Site:
    """A model with the block standing in it, and how its losses are read."""

    model: nn.Module
    loss: Loss
    block: nn.Module
    unit: Unit

    @property
    def zero(self) -> list[nn.Parameter]:
        """Parameters of the block that start at zero."""
        return list(self.block.zero_parameters().values())  # type: ignore[operator]

    @property
    def trained(self) -> list[nn.Parameter]:
        """Parameters of the block that training moves."""
        return [p for p in self.block.parameters() if p.requires_grad]

    def state(self) -> State:
        """Copy of the block's parameters."""
        return [p.detach().clone() for p in self.block.parameters()]

    def put(self, state: State) -> None:
        """Give the block these parameters."""
        with torch.no_grad():
            for p, value in zip(self.block.parameters(), state, strict=True):
                p.copy_(value)

    def moved(self, start: State, gradient: list[Tensor], step: float) -> State:
        """``start`` with the zero parameters at -step times the gradient."""
        places = {id(p): i for i, p in enumerate(self.block.parameters())}
        state = [value.clone() for value in start]
        for p, g in zip(self.zero, gradient, strict=True):
            state[places[id(p)]] -= (step * g).to(p.dtype)
        return state

    def batches(self, loader: Iterable[Any], sample: str) -> Iterator[tuple[str, Any]]:
        """Batches on the model's device, with words for messages."""
        device = _device_of(self.model)
        stream: Iterator[Any] | None = None
        number = 0
        while True:
            where = f"on batch {number} of {sample}"
            with checks.users_code("data", where):
                stream = iter(loader) if stream is None else stream
                batch = next(stream, None)
            if batch is None:
                return
            yield where, batch if device is None else map_tensors(lambda t: t.to(device), batch)
            number += 1

    def values(self, batch: Any, where: str) -> Tensor:
        """One loss per example, finite where it counts."""
        with checks.users_code("model (or loss)", where, self.model):
            losses = self.loss(self.model, batch)
        if not isinstance(losses, Tensor) or losses.ndim != 1:
            found = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
            raise ValueError(f"the loss gave {found} {where}; {checks.CONTRACT}")
        kept = _kept(losses)
        if not bool(torch.isfinite(losses.detach()[kept]).all()):
            raise NonFiniteError(f"a loss is NaN or infinite {where}; drop the example or mend the model")
        return losses

    def losses(self, states: Sequence[State], loader: Iterable[Any], sample: str) -> Losses:
        """Losses of each state of the block on the same units, in one pass over the loader."""
        rows: list[Float] = []
        keys: list[Hashable] = []
        prints: list[bytes] = []
        for where, batch in self.batches(loader, sample):
            columns: list[Float] = []
            kept = torch.empty(0, dtype=torch.bool)
            with torch.no_grad():
                for state in states:
                    self.put(state)
                    values = self.values(batch, where)
                    kept = _kept(values)
                    columns.append(values.detach()[kept].double().cpu().numpy())
            rows.append(np.stack(columns))
            size = len(kept)
            chosen = kept.nonzero().flatten().tolist()
            if isinstance(self.unit, str):
                keys += range(len(keys), len(keys) + len(chosen))
            else:
                with checks.users_code("unit function", where):
                    named = _keys(self.unit, batch, kept.cpu())
                keys += [named[i] for i in chosen]
            prints += _prints(batch, size, chosen)
        found = np.concatenate(rows, axis=1) if rows else np.empty((len(states), 0))
        index: dict[Hashable, int] = {}
        slots = np.array([index.setdefault(key, len(index)) for key in keys], dtype=np.int64)
        if len(index) < 2:
            raise ValueError(
                f"{sample} has {len(index)} units: expected at least 2 (an iterator can be used up only once)"
            )
        counts = np.bincount(slots, minlength=len(index))
        sums = np.stack([np.bincount(slots, weights=row, minlength=len(index)) for row in found])
        examples = {key: int(counts[i]) for key, i in index.items()}
        return Losses(sums / counts, examples, frozenset(prints))

    def gradient(self, start: State, loader: Iterable[Any], sample: str, seen: Losses) -> list[Tensor]:
        """Gradient of the mean over units of the loss, in the zero parameters, at ``start``; float64."""
        self.put(start)
        total = [torch.zeros(p.shape, dtype=torch.float64, device=p.device) for p in self.zero]
        for where, batch in self.batches(loader, sample):
            with torch.enable_grad():
                losses = self.values(batch, where)
                kept = _kept(losses)
                if not bool(kept.any()):
                    continue
                objective = (losses[kept] * self._weights(batch, kept, seen).to(losses)).sum()
                found = torch.autograd.grad(objective, self.zero, allow_unused=True)
            for t, g in zip(total, found, strict=True):
                if g is not None:
                    t += g.double()
        if not all(bool(torch.isfinite(t).all()) for t in total):
            raise NonFiniteError(f"the gradient of the block's parameters on {sample} is NaN or infinite")
        return total

    def _weights(self, batch: Any, kept: Tensor, seen: Losses) -> Tensor:
        count = int(kept.sum())
        if isinstance(self.unit, str):
            return torch.full((count,), 1 / seen.n, dtype=torch.float64)
        named = _keys(self.unit, batch, kept.cpu())
        chosen = kept.nonzero().flatten().tolist()
        return torch.tensor([1 / (seen.n * seen.examples[named[i]]) for i in chosen], dtype=torch.float64)


def _kept(losses: Tensor) -> Tensor:
    keep = getattr(losses, "keep", None)
    return torch.ones(len(losses), dtype=torch.bool, device=losses.device) if keep is None else keep


def _prints(batch: Any, size: int, chosen: Sequence[int]) -> list[bytes]:
    """One hash per example of all tensors of the batch that have one entry per example."""
    parts: list[Any] = []

    def add(t: Tensor) -> Tensor:
        if t.ndim and len(t) == size:
            parts.append(
                t.detach().cpu().contiguous().flatten(1).view(torch.uint8).numpy()
                if t.ndim > 1
                else t.detach().cpu().contiguous().unsqueeze(1).view(torch.uint8).numpy()
            )
        return t

    map_tensors(add, batch)
    if not parts:
        return []
    return [hashlib.blake2b(b"".join(p[i].tobytes() for p in parts), digest_size=16).digest() for i in chosen]


def refuse_shared(samples: Mapping[str, Losses]) -> tuple[str, ...]:
    """Notes on examples that two samples have in common.

    Raises
    ------
    ValueError
        If more than one in twenty of the smaller sample lie in the other one too.
    """
    notes = []
    names = list(samples)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            one, two = samples[a].prints, samples[b].prints
            common, least = len(one & two), min(len(one), len(two))
            if least and common > COPIES * least:
                raise ValueError(
                    f"{a} and {b} have {common} examples in common: expected three disjoint samples; what is "
                    "measured on examples that chose the model says nothing about new ones"
                )
            if common:
                notes.append(f"{common} examples of {a} occur in {b} too")
    return tuple(notes)


@dataclass(frozen=True)
class Step:
    """The step along minus the train gradient that makes the jumpboard."""

    size: float
    chosen: str
    risk_old: float
    risk_new: float
    slope: float
    """|g|^2, minus the derivative of the train risk by the step."""

    @property
    def curvature(self) -> float | None:
        """2 (L(s) - L(0) + s |g|^2)/(s |g|)^2: mean second derivative of the train risk along the step."""
        if self.size == 0 or self.slope == 0:
            return None
        return 2 * (self.risk_new - self.risk_old + self.size * self.slope) / (self.size**2 * self.slope)


_FACTORS = tuple(4.0**k for k in range(-3, 4))


def find_step(
    site: Site, start: State, gradient: list[Tensor], train: Iterable[Any], risk: float, given: float | None
) -> Step:
    """The given step, or the one of a geometric grid (and of a parabola through it) with least train risk.

    Training units only.  The middle of the grid promises one per cent of the risk to first order.
    """
    slope = float(sum((g * g).sum() for g in gradient))

    def risks(steps: Sequence[float]) -> list[float]:
        states = [site.moved(start, gradient, s) for s in steps]
        return [float(row.mean()) for row in site.losses(states, train, "train").values]

    if given is not None:
        return Step(given, "given", risk, risks([given])[0] if given else risk, slope)
    if slope == 0 or risk == 0:
        return Step(0.0, "no first-order signal on train", risk, risk, slope)
    middle = 0.01 * abs(risk) / slope
    tried = {
        s: r
        for s, r in zip((f * middle for f in _FACTORS), risks([f * middle for f in _FACTORS]), strict=True)
    }
    best = min(tried, key=tried.__getitem__)
    bend = 2 * (tried[best] - risk + best * slope) / best**2
    if bend > 0 and math.isfinite(slope / bend):
        tried |= {slope / bend: risks([slope / bend])[0]}
        best = min(tried, key=tried.__getitem__)
    if tried[best] >= risk:
        return Step(0.0, "no step tried lowers the train risk", risk, risk, slope)
    return Step(best, "line search on train", risk, tried[best], slope)


def train_block(
    site: Site,
    start: State,
    centre: State,
    train: Iterable[Any],
    *,
    steps: int,
    optimizer: Optimizer,
    radius: float,
    generator: torch.Generator,
) -> State:
    """Train the block alone, the old model frozen, inside the ball around its initial parameters."""
    site.put(start)
    parameters = site.trained
    middle = [c for p, c in zip(site.block.parameters(), centre, strict=True) if p.requires_grad]
    rule = optimizer(parameters)
    stream = _stream(site, train, generator)
    for _ in range(steps):
        where, batch = next(stream)
        with torch.enable_grad():
            losses = site.values(batch, where)
            kept = _kept(losses)
            if not bool(kept.any()):
                continue
            found = torch.autograd.grad(losses[kept].mean(), parameters, allow_unused=True)
        for p, g in zip(parameters, found, strict=True):
            p.grad = torch.zeros_like(p) if g is None else g
        rule.step()
        with torch.no_grad():
            norm = distance(parameters, middle)
            if norm > radius:
                for p, c in zip(parameters, middle, strict=True):
                    p.copy_(c + (p - c) * (radius * (1 - 1e-6) / norm))
    for p in parameters:
        p.grad = None
    if not all(bool(torch.isfinite(p).all()) for p in parameters):
        raise NonFiniteError(
            f"the block's parameters are NaN or infinite after {steps} steps; lower learning_rate"
        )
    return site.state()


def distance(one: Sequence[Tensor], two: Sequence[Tensor]) -> float:
    """Euclidean distance of two lists of tensors."""
    return math.sqrt(
        sum(
            float((a.detach().double() - b.detach().double()).square().sum())
            for a, b in zip(one, two, strict=True)
        )
    )


def _stream(site: Site, loader: Iterable[Any], generator: torch.Generator) -> Iterator[tuple[str, Any]]:
    """Batches without end: of a list in random order, else in the loader's own."""
    while True:
        source = loader
        if isinstance(loader, Sequence):
            source = [loader[i] for i in torch.randperm(len(loader), generator=generator).tolist()]
        empty = True
        for item in site.batches(source, "train"):
            empty = False
            yield item
        if empty:
            raise ValueError("train gave no batches the second time; give a list or a DataLoader")


@contextlib.contextmanager
def standing(model: nn.Module, at: str, block: nn.Module) -> Iterator[None]:
    """The block inserted into the model, for the length of the block of code."""
    from certify.intervention import insert

    if not hasattr(block, "zero_parameters"):
        raise TypeError(
            f"block is a {type(block).__name__}; expected a block of certify.blocks, or a module with "
            "zero_parameters()"
        )
    zero = block.zero_parameters()  # type: ignore[operator]
    if moved := [name for name, p in zero.items() if bool(p.detach().any())]:
        raise ValueError(
            f"block: {moved[0]} is not zero, so the block does not start at the old model; give a new block"
        )
    if not zero:
        raise CaptureError("block.zero_parameters() is empty: no parameter could make a first-order change")
    with insert(model, at, block):
        yield
