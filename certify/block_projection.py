"""Steps of blocks at many places at once, in one sweep: mean gradients, and projections of single units.

With h the output of a module, g the gradient of an example's loss by it and J the derivative of block(h) by
its zero parameters, the block's gradient is J^T g, and its inner product with a step D is g . (J D): neither
needs a further pass through the network, nor the gradients of single units side by side.
"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from certify import blocks as _blocks
from certify import sweep as _sweep
from certify.nested import can_take_examples, primary_tensor, take_examples
from certify.sites import resolve

__all__ = ["BLOCKS", "BlockFactory", "Place", "Side", "run_side"]

BLOCKS = ("shift", "full", "linear", "lowrank", "mlp", "copy")
_LINEAR = (
    _blocks.ChannelShift,
    _blocks.FullShift,
    _blocks.LinearMap,
    _blocks.LowRankMap,
    _blocks.MLPBlock,
)
MOMENT_LIMIT = 2048  # channels above which the scores of other methods are not computed


@dataclass(frozen=True)
class Place:
    """What a block factory is told: where the block shall stand and what it will meet there."""

    name: str
    module: nn.Module
    shape: tuple[int, ...]
    """Shape of one example's activation."""
    channels: int
    channel_axis: int
    dtype: torch.dtype
    device: torch.device


BlockFactory = Callable[[Place], nn.Module]


@dataclass
class _Seen:
    """Activations and call of the forward pass whose gradients are wanted."""

    h: Tensor | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


class _Watched:
    """The caller's loader, saying when a new batch begins."""

    def __init__(self, loader: Any, begin: Callable[[], None]) -> None:
        self._loader, self._begin = loader, begin
        for name in ("dataset", "sampler"):
            if hasattr(loader, name):
                setattr(self, name, getattr(loader, name))

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            self._begin()
            yield batch


@dataclass
class Side:
    """What one sweep gives: by place, sums over units or projections; and the units' identities."""

    units: int = 0
    examples: int = 0
    dtypes: Mapping[str, str] = field(default_factory=dict)
    means: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    projections: dict[str, np.ndarray] = field(default_factory=dict)
    relative: dict[str, float] = field(default_factory=dict)
    """Root mean square of the step's change of the activation over that of the activation."""
    moments: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """Sums over examples of h h^T and of g h^T, positions summed."""
    contents: set[bytes] | None = field(default_factory=set)
    """Digests of the examples; None where batches cannot be cut into examples."""
    blocks: dict[str, nn.Module] = field(default_factory=dict)


def make_block(block: str | BlockFactory, place: Place, index: int, seed: int, rank: int) -> nn.Module:
    """The block asked for, on the device and in the precision of the gradients there."""
    options: dict[str, Any] = {"dtype": place.dtype, "device": place.device}
    axis = {"channel_axis": place.channel_axis, **options}
    generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
    if callable(block):
        made = block(place)
    elif block == "shift":
        made = _blocks.ChannelShift(place.channels, **axis)
    elif block == "full":
        made = _blocks.FullShift(place.shape, **options)
    elif block == "linear":
        made = _blocks.LinearMap(place.channels, **axis)
    elif block == "lowrank":
        made = _blocks.LowRankMap(place.channels, min(rank, place.channels), generator=generator, **axis)
    elif block == "mlp":
        made = _blocks.MLPBlock(place.channels, place.channels, generator=generator, **axis)
    elif block == "copy":
        made = _blocks.BlockCopy(place.module)
    else:
        raise ValueError(
            f"block={block!r}: expected one of {', '.join(BLOCKS)}, or a callable(place) -> block"
        )
    zero = getattr(made, "zero_parameters", None)
    if not isinstance(made, nn.Module) or zero is None or not zero():
        raise TypeError(
            f"block gave a {type(made).__name__} at {place.name!r}; expected a torch.nn.Module with "
            "zero_parameters(), see certify.blocks"
        )
    if any(bool(p.detach().any()) for p in zero().values()):
        raise ValueError(f"block at {place.name!r}: its zero_parameters() are not zero")
    return made


def run_side(
    model: nn.Module,
    loss: Callable[..., Tensor],
    loader: Iterable[Any],
    names: tuple[str, ...],
    *,
    block: str | BlockFactory,
    steps: Mapping[str, Mapping[str, Tensor]] | None = None,
    made: Mapping[str, nn.Module] | None = None,
    unit: Any = "example",
    max_units: int | None = None,
    channel_axis: int | None = None,
    seed: int = 0,
    rank: int = 4,
    moments: bool = True,
    checks: bool = True,
    progress: Any = None,
    device: Any = None,
) -> Side:
    """One sweep: mean gradients of the blocks without ``steps``, projections of units on the steps with."""
    max_units = _sweep._check_arguments(model, loss, loader, unit, max_units)
    sites = resolve(model, names)
    seen = {name: _Seen() for name in names}
    calls = dict.fromkeys(names, -1)
    side = Side(blocks=dict(made or {}))
    counts = _sweep._Counts()

    def begin() -> None:
        for name in names:
            calls[name] = -1

    def hook(name: str, wanted: int, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls[name] += 1
        if calls[name] == wanted and seen[name].h is None:
            h = primary_tensor(output)[0]
            seen[name] = _Seen(h.detach(), args, kwargs)

    if checks:
        _sweep._checks.refuse_repeating_sampler(loader)
    keys_of: dict[Hashable, int] = {}
    sizes: list[int] = []
    sums: dict[str, list[Any]] = {name: [] for name in names}
    squares = {name: [0.0, 0.0] for name in names}
    with contextlib.ExitStack() as stack:
        for site in sites:

            def forward_hook(
                m: Any, a: Any, k: Any, o: Any, n: str = site.name, c: int = site.call or 0
            ) -> None:
                hook(n, c, m, a, k, o)

            handle = site.module.register_forward_hook(forward_hook, with_kwargs=True)
            stack.callback(handle.remove)
        batches = _sweep._batches(
            model,
            loss,
            _Watched(loader, begin),
            list(names),
            "flatten",
            None,
            checks,
            progress,
            device,
            counts,
        )
        stack.enter_context(contextlib.closing(batches))
        for batch, kept, rows in batches:
            keys = _unit_keys(unit, batch, kept, side.examples, counts.batches)
            slots = _slots(keys, kept, keys_of, sizes, max_units)
            chosen = torch.tensor([s is not None for s in slots])
            side.examples += int(chosen.sum())
            _remember(side, batch, chosen)
            for index, name in enumerate(names):
                h = seen[name].h
                assert h is not None
                g = rows[name].to(h.device).reshape(h.shape)
                g = g * chosen.to(g.device).view(-1, *[1] * (g.ndim - 1)).to(g.dtype)
                axis = channel_axis if channel_axis is not None else (1 if h.ndim >= 4 else h.ndim - 1)
                if name not in side.blocks:
                    place = Place(
                        name, sites[index].module, tuple(h.shape[1:]), h.shape[axis], axis, g.dtype, h.device
                    )
                    side.blocks[name] = make_block(block, place, index, seed, rank)
                if moments:
                    _add_moments(side.moments, name, h, g, axis, chosen)
                if steps is None:
                    _add_gradients(sums[name], side.blocks[name], seen[name], g, slots, unit)
                elif steps[name]:
                    delta = _change(side.blocks[name], seen[name], g.dtype, steps[name])
                    values = (g.double() * delta.double()).flatten(1).sum(1).cpu().tolist()
                    for value, slot in zip(values, slots, strict=True):
                        if slot is not None:
                            _into(sums[name], slot, value)
                    some = chosen.to(h.device)
                    squares[name][0] += float((delta[some].double() ** 2).sum())
                    squares[name][1] += float((h[some].double() ** 2).sum())
                seen[name] = _Seen()
            if max_units is not None and isinstance(unit, str) and len(sizes) >= max_units:
                break
    if not sizes:
        raise ValueError(
            f"the loader gave {counts.batches} batches and no example with something to predict; expected "
            "some (an iterator can be used up only once)"
        )
    side.units, side.dtypes = len(sizes), dict(counts.dtypes or {})
    weight = np.array(sizes, dtype=np.float64)
    for name in names:
        if steps is None:
            side.means[name] = _mean(sums[name], weight, isinstance(unit, str), side.examples)
        elif steps[name]:
            side.projections[name] = np.array(sums[name]) / weight
            changed, before = squares[name]
            side.relative[name] = (changed / before) ** 0.5 if before > 0 else float("inf")
    return side


def _unit_keys(unit: Any, batch: Any, kept: Tensor, start: int, number: int) -> list[Hashable]:
    if isinstance(unit, str):
        return [(number, i) for i in range(len(kept))]
    with _sweep._checks.users_code("unit function", f"on batch {number - 1}"):
        return _sweep._keys(unit, batch, kept)


def _slots(
    keys: list[Hashable], kept: Tensor, known: dict[Hashable, int], sizes: list[int], limit: int | None
) -> list[int | None]:
    """Number of each example's unit, None for examples that do not count."""
    found: list[int | None] = []
    for key, counts in zip(keys, kept.tolist(), strict=True):
        if not counts or (key not in known and len(sizes) == limit):
            found.append(None)
            continue
        slot = known.setdefault(key, len(sizes))
        if slot == len(sizes):
            sizes.append(0)
        sizes[slot] += 1
        found.append(slot)
    return found


def _into(values: list[Any], slot: int, value: Any) -> None:
    if slot == len(values):
        values.append(value)
    else:
        values[slot] = values[slot] + value


def _input(
    block: nn.Module, seen: _Seen, dtype: torch.dtype
) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
    h = seen.h
    assert h is not None
    if getattr(block, "wants_call", False):
        # An activation passed by keyword is the one that h takes the place of.
        kwargs = dict(list(seen.kwargs.items())[0 if seen.args else 1 :])
        return h, tuple(seen.args[1:]), kwargs
    return h.to(dtype), (), {}


def _add_gradients(
    into: list[Any], block: nn.Module, seen: _Seen, g: Tensor, slots: list[int | None], unit: Any
) -> None:
    """Add the block's gradients: one sum for all examples, or one for each unit of several examples."""
    zero = block.zero_parameters()  # type: ignore[operator]
    h, args, kwargs = _input(block, seen, g.dtype)
    with torch.enable_grad():
        out = block(h, *args, **kwargs)
    if isinstance(unit, str):
        cuts: list[tuple[int, Tensor]] = [(0, g)]
    else:
        cuts = []
        for slot in dict.fromkeys(s for s in slots if s is not None):
            own = torch.tensor([s == slot for s in slots], device=g.device)
            cuts.append((slot, g * own.view(-1, *[1] * (g.ndim - 1)).to(g.dtype)))
    for number, (slot, cotangent) in enumerate(cuts):
        grads = torch.autograd.grad(
            out,
            list(zero.values()),
            cotangent.to(out.dtype),
            retain_graph=number + 1 < len(cuts),
            allow_unused=True,
        )
        flat = {
            name: (torch.zeros_like(p) if d is None else d).detach().double().cpu()
            for (name, p), d in zip(zero.items(), grads, strict=True)
        }
        if slot < len(into):
            into[slot] = {name: into[slot][name] + d for name, d in flat.items()}
        else:
            into.append(flat)


def _mean(sums: list[dict[str, Tensor]], sizes: np.ndarray, single: bool, n: int) -> dict[str, Tensor]:
    if single:
        return {name: value / n for name, value in sums[0].items()}
    return {
        name: torch.stack([s[name] / float(k) for s, k in zip(sums, sizes, strict=True)]).mean(0)
        for name in sums[0]
    }


def _change(block: nn.Module, seen: _Seen, dtype: torch.dtype, step: Mapping[str, Tensor]) -> Tensor:
    """J D: first-order change of block(h) for the step D of its zero parameters."""
    zero = block.zero_parameters()  # type: ignore[operator]
    tangents = {name: step[name].to(p.device, p.dtype) for name, p in zero.items()}
    h, args, kwargs = _input(block, seen, dtype)

    def at(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(block, values, (h, *args), kwargs)

    if type(block) in _LINEAR:
        with torch.no_grad():
            return at(tangents)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    # Fused attention kernels have no forward-mode derivative.
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own decompositions use torch.jit
        primal = {name: p.detach() for name, p in zero.items()}
        change: Tensor = torch.func.jvp(at, (primal,), (tangents,))[1]
    return change


def _add_moments(
    into: dict[str, tuple[np.ndarray, np.ndarray]], name: str, h: Tensor, g: Tensor, axis: int, chosen: Tensor
) -> None:
    channels = h.shape[axis]
    if channels > MOMENT_LIMIT:
        return
    some = chosen.to(h.device)
    x = h[some].movedim(axis, -1).reshape(-1, channels).double()
    y = g[some].movedim(axis, -1).reshape(-1, channels).double()
    S, G = (x.T @ x).cpu().numpy(), (y.T @ x).cpu().numpy()
    old = into.get(name)
    into[name] = (S, G) if old is None else (old[0] + S, old[1] + G)


def _remember(side: Side, batch: Any, chosen: Tensor) -> None:
    """Digests of the examples, so that a unit used on both sides can be seen."""
    size = len(chosen)
    if side.contents is None or not can_take_examples(batch, size):
        side.contents = None
        return
    for index in torch.nonzero(chosen).flatten().tolist():
        digest = hashlib.blake2b(digest_size=16)
        _digest(take_examples(batch, [index], size), digest)
        side.contents.add(digest.digest())


def _digest(value: Any, into: Any) -> None:
    if isinstance(value, Tensor):
        # NumPy knows no bfloat16; float32 holds it without loss.
        plain = value.detach().cpu()
        into.update(
            (plain.float() if plain.dtype == torch.bfloat16 else plain).contiguous().numpy().tobytes()
        )
    elif isinstance(value, np.ndarray):
        into.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        for v in value.values():
            _digest(v, into)
    elif isinstance(value, (tuple, list)):
        for v in value:
            _digest(v, into)
    elif isinstance(value, (str, int, float)):
        into.update(repr(value).encode())
