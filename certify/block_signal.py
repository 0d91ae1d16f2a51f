"""The first-order signal of an inserted block: per-unit gradients of its zero parameters, at zero.

Dot products between units need no outer product of gradients and activations:
<q phi^T, q' phi'^T> = (q.q')(phi.phi').
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from certify import checks as _checks
from certify.block_factors import (
    Array,
    Factors,
    by_pairs,
    explicit,
    gram_of_outer_products,
    parts_of,
    pieces_of,
    taken,
)
from certify.gram import gram_coordinates
from certify.intervals import check_count
from certify.intervention import insert
from certify.moments import GradientMoments, MomentAccumulator
from certify.nested import can_take_examples, take_examples
from certify.sites import unwrap
from certify.sweep import (
    SWEEP_BUDGET,
    Loss,
    Progress,
    Unit,
    _batches,
    _check_arguments,
    _Counts,
    _keys,
    _total,
    _unit_name,
)

__all__ = ["block_gradients", "block_moments", "block_moments_pair"]

Route = Literal["gram", "rows"]


class _Joint(nn.Module):
    """Model and block under one roof, so that one capture can name modules of both."""

    def __init__(self, model: nn.Module, block: nn.Module) -> None:
        super().__init__()
        self.model, self.block = model, block


def _zero_parameters(block: nn.Module) -> dict[str, nn.Parameter]:
    named = getattr(block, "zero_parameters", None)
    if named is None:
        raise TypeError(
            f"block is a {type(block).__name__} without zero_parameters(); use a block of certify.blocks, or "
            "give yours a method that returns its zero parameters by name"
        )
    zero: dict[str, nn.Parameter] = named()
    if not zero:
        raise ValueError(
            f"{type(block).__name__}.zero_parameters() is empty: expected at least one parameter"
        )
    if moved := [name for name, p in zero.items() if bool(p.detach().any())]:
        raise ValueError(
            f"{moved[0]!r} of the block is not zero any more; the first-order signal is that of a fresh block"
        )
    return zero


@dataclass
class _Seen:
    """Inputs and output shapes at the owners, one dictionary per call of the loss since the last batch."""

    calls: list[dict[str, tuple[Tensor, torch.Size]]] = field(default_factory=list)

    def hook(self, site: str) -> Callable[[nn.Module, Any, Any], None]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            if self.calls:
                self.calls[-1][site] = (args[0].detach(), output.shape)

        return keep

    def take(self) -> dict[str, tuple[Tensor, torch.Size]]:
        """Of the pass over the batch itself: the first, as the probe's passes follow it."""
        first, self.calls = self.calls[0], []
        return first


def _sweep(
    model: nn.Module,
    loss: Loss,
    loader: Iterable[Any],
    at: str,
    block: nn.Module,
    checks: bool,
    progress: Progress | None,
    device: torch.device | str | None,
    counts: _Counts,
) -> Generator[tuple[Any, Tensor, list[Factors | Tensor]], None, None]:
    """Yield (batch, which examples count, pieces of the zero parameters) with the block in place."""
    zero = _zero_parameters(block)
    parts = parts_of(block, zero)
    inner, seen = unwrap(model), _Seen()
    joint = _Joint(inner, block)
    sites = ["block"] if parts is None else [part.site for part in parts]

    def run(_: nn.Module, batch: Any) -> Tensor:
        seen.calls.append({})
        losses = loss(inner, batch)
        if isinstance(losses, Tensor) and losses.ndim == 1 and len(losses) == 0:
            seen.calls.pop()
        return losses

    with contextlib.ExitStack() as stack:
        stack.enter_context(insert(model, at, block))
        for part in parts or ():
            stack.callback(part.owner.register_forward_hook(seen.hook(part.site)).remove)
        batches = _batches(
            joint,
            run,
            loader,
            sites,
            "sum" if parts is None else "flatten",
            None,
            checks,
            progress,
            device,
            counts,
        )
        stack.enter_context(contextlib.closing(batches))
        for batch, kept, rows in batches:
            if parts is None:
                yield batch, kept, [_by_autograd(inner, loss, batch, kept, zero)]
                seen.calls = []
                continue
            found = seen.take()
            yield batch, kept, [pieces_of(p, rows[p.site], *found[p.site]) for p in parts]


def _by_autograd(
    model: nn.Module, loss: Loss, batch: Any, kept: Tensor, zero: dict[str, nn.Parameter]
) -> Tensor:
    """Gradients example by example: slow, for parameters that do not belong to a known layer."""
    size = len(kept)
    if not can_take_examples(batch, size):
        raise ValueError(
            f"a batch of type {type(batch).__name__} cannot be cut into examples; use tensors, mappings or "
            "pairs of them"
        )
    parameters = list(zero.values())
    rows = torch.zeros(size, sum(p.numel() for p in parameters), dtype=torch.float64)
    for p in parameters:
        p.requires_grad_(True)
    try:
        for i in kept.nonzero()[:, 0].tolist():
            value = loss(model, take_examples(batch, [i], size)).as_subclass(Tensor).sum()
            found = torch.autograd.grad(value, parameters, allow_unused=True)
            rows[i] = torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g).detach().double().cpu().flatten()
                    for g, p in zip(found, parameters, strict=True)
                ]
            )
    finally:
        for p in parameters:
            p.requires_grad_(False)
    return rows


def _stream(
    model: nn.Module,
    loss: Loss,
    loader: Iterable[Any],
    at: str,
    block: nn.Module,
    unit: Unit,
    max_units: int | None,
    checks: bool,
    progress: Progress | None,
    device: torch.device | str | None,
) -> Generator[tuple[list[Factors | Tensor], list[int]], None, None]:
    """Yield (pieces of the examples that count, the unit that each belongs to), batch by batch."""
    limit = _check_arguments(model, loss, loader, unit, max_units)
    if checks:
        _checks.refuse_repeating_sampler(loader)
    index: dict[Any, int] = {}
    counts = _Counts()
    with contextlib.closing(
        _sweep(model, loss, loader, at, block, checks, progress, device, counts)
    ) as sweep:
        for batch, kept, pieces in sweep:
            keys: Sequence[Any] = [(counts.batches, example) for example in range(len(kept))]
            if not isinstance(unit, str):
                with _checks.users_code("unit function", f"on batch {counts.batches - 1}"):
                    keys = _keys(unit, batch, kept)
            chosen, slots = [], []
            for example, (key, counted) in enumerate(zip(keys, kept.tolist(), strict=True)):
                if counted and (key in index or limit is None or len(index) < limit):
                    chosen.append(example)
                    slots.append(index.setdefault(key, len(index)))
            if chosen:
                yield [taken(piece, chosen) for piece in pieces], slots
            if isinstance(unit, str) and len(index) == limit:
                break
    if not index:
        raise ValueError(
            f"the loader gave {counts.batches} batches and no example that counts; expected a batch with "
            "something to predict (an iterator can be used up only once)"
        )


def _unit_rows(stream: Iterable[tuple[list[Factors | Tensor], list[int]]], grouped: bool) -> Iterator[Array]:
    """Explicit rows of units, averaged over each unit's examples; with groups at the end."""
    sums: list[Tensor] = []
    counts: list[int] = []
    for pieces, slots in stream:
        rows = explicit(pieces)
        if not grouped:
            yield rows.numpy()
            continue
        for row, slot in zip(rows, slots, strict=True):
            if slot == len(sums):
                sums.append(torch.zeros_like(row))
                counts.append(0)
            sums[slot] += row
            counts[slot] += 1
    for total, count in zip(sums, counts, strict=True):
        yield (total / count)[None].numpy()


class _Store:
    """Pieces of all examples of one loader."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[Factors | Tensor], list[int]]] = []
        self.bytes = self.examples = self.units = 0

    def add(self, pieces: list[Factors | Tensor], slots: list[int]) -> None:
        self.batches.append((pieces, slots))
        self.examples += len(slots)
        self.units = max(self.units, max(slots) + 1)
        for piece in pieces:
            tensors = (piece.q, piece.phi) if isinstance(piece, Factors) else (piece,)
            self.bytes += sum(t.nbytes for t in tensors)


def _gram(stores: Sequence[_Store]) -> Array:
    """Dot products between the units of all loaders, (n, n), float64."""
    batches = [pieces for store in stores for pieces, _ in store.batches]
    offsets = np.cumsum([0, *(store.units for store in stores)])
    slots = np.concatenate(
        [np.asarray(s) + offsets[k] for k, store in enumerate(stores) for _, s in store.batches]
    )
    total = np.zeros((len(slots), len(slots)))
    for k in range(len(batches[0])):
        pieces = [found[k] for found in batches]
        factors = [p for p in pieces if isinstance(p, Factors)]
        if factors and by_pairs(factors[0], len(slots)):
            q, phi = (
                [v for f in factors for v in values(f).double().numpy()]
                for values in (lambda f: f.q, lambda f: f.phi)
            )
            total += gram_of_outer_products(q, phi)
        else:
            X = torch.cat([explicit([piece]) for piece in pieces]).numpy()
            total += X @ X.T
    if offsets[-1] == len(slots):
        return total  # one example per unit, in order
    weights = np.zeros((offsets[-1], len(slots)))
    weights[slots, np.arange(len(slots))] = 1.0
    weights /= weights.sum(axis=1, keepdims=True)
    return weights @ total @ weights.T


def explicit_column(pieces: Sequence[Factors | Tensor]) -> Array:
    return torch.cat([p.rows() if isinstance(p, Factors) else p for p in pieces]).numpy()


def block_gradients(
    model: nn.Module,
    loss: Loss,
    loader: Iterable[Any],
    *,
    at: str,
    block: nn.Module,
    unit: Unit = "example",
    max_units: int | None = None,
    checks: bool = True,
    progress: Progress | None = None,
    device: torch.device | str | None = None,
) -> NDArray[Any]:
    r"""Gradients of a block's zero parameters at zero, one row per unit.

    .. math::
        Q_u = \operatorname{mean}_{i \in u} \nabla_\theta\, \ell_i(\theta)\big|_{\theta = 0}

    Shape (n, p), columns in the order of `block.zero_parameters()`, each flattened; float64 for float64
    models and grouped units, else float32.

    Parameters
    ----------
    model, loss, loader, unit, max_units, checks, progress, device
        As in `certify.collect`.
    at, block
        As in `certify.insert`; the block is in place while this runs and stays as it is.

    Raises
    ------
    ValueError, TypeError, CertifyError
        As in `certify.collect` and `certify.insert`; also if the block's zero parameters have moved.

    Notes
    -----
    Source: paper 1, gradient at a zero-initialised residual parameter.

    Examples
    --------
    >>> from certify.blocks import LinearMap
    >>> from certify.losses import regression
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).eval()
    >>> data = [(torch.randn(8, 3), torch.zeros(8, 1)) for _ in range(4)]
    >>> block_gradients(model, regression, data, at="1", block=LinearMap(4)).shape
    (32, 16)
    """
    stream = _stream(model, loss, loader, at, block, unit, max_units, checks, progress, device)
    grouped = not isinstance(unit, str)
    rows = np.concatenate(list(_unit_rows(stream, grouped)))
    double = grouped or any(p.dtype == torch.float64 for p in model.parameters())
    return rows if double else rows.astype(np.float32)


def block_moments(
    model: nn.Module,
    loss: Loss,
    loader: Iterable[Any],
    *,
    at: str,
    block: nn.Module,
    unit: Unit = "example",
    route: Route | None = None,
    memory_budget: int = SWEEP_BUDGET,
    max_units: int | None = None,
    checks: bool = True,
    progress: Progress | None = None,
    device: torch.device | str | None = None,
) -> GradientMoments:
    r"""Gradient moments of a block's zero parameters: what `estimate` and `certificate` take.

    .. math::
        Q_i\cdot Q_j = \sum_{p,p'} (q_{ip}\cdot q_{jp'})\,(\phi_{ip}\cdot\phi_{jp'})

    Two routes, chosen by the number of operations; both in float64, equal up to rounding:

    * "gram": dot products between units without any outer product.  The moments then hold coordinates of the
      span of the units (at most n), in which every dot product is that of the gradients; moments of two such
      sweeps have different coordinates and must not be merged or compared: use `block_moments_pair`.
    * "rows": explicit gradients, straight into moments (rows, covariance or sketch, as the budget allows).
      Also taken when the factors of all examples exceed the budget.

    The metadata say which ("route") and how many parameters there are ("parameters").

    Parameters
    ----------
    model, loss, loader, at, block, unit, max_units, checks, progress, device
        As in `block_gradients`.
    route
        "gram" or "rows" to force one; None lets the operations decide.
    memory_budget
        Bytes for the factors or the moments.

    Raises
    ------
    ValueError, TypeError, CertifyError
        As in `block_gradients`; with route="gram" also when the budget is too small.

    Notes
    -----
    Source: paper 1, section on the effective alignment dimension, for block parameters in place of shifts.

    Examples
    --------
    >>> from certify.blocks import LinearMap
    >>> from certify.losses import regression
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).eval()
    >>> data = [(torch.randn(8, 3), torch.zeros(8, 1)) for _ in range(4)]
    >>> moments = block_moments(model, regression, data, at="1", block=LinearMap(4))
    >>> moments.n, moments.metadata["parameters"], moments.metadata["route"]
    (32, '16', 'gram')
    """
    (moments,) = _moments(
        model, loss, [loader], at, block, unit, route, memory_budget, max_units, checks, progress, device
    )
    return moments


def block_moments_pair(
    model: nn.Module,
    loss: Loss,
    train: Iterable[Any],
    test: Iterable[Any],
    *,
    at: str,
    block: nn.Module,
    unit: Unit = "example",
    route: Route | None = None,
    memory_budget: int = SWEEP_BUDGET,
    max_units: int | None = None,
    checks: bool = True,
    progress: Progress | None = None,
    device: torch.device | str | None = None,
) -> tuple[GradientMoments, GradientMoments]:
    r"""Moments of two samples in common coordinates: for `estimate_two_laws` and certificates for two laws.

    .. math::
        Q_i\cdot Q'_j = \sum_{p,p'} (q_{ip}\cdot q'_{jp'})\,(\phi_{ip}\cdot\phi'_{jp'})

    Parameters
    ----------
    train, test
        Two loaders with different units; group keys count within each.
    model, loss, at, block, unit, route, memory_budget, max_units, checks, progress, device
        As in `block_moments`; `max_units` holds for each sample.

    Raises
    ------
    ValueError, TypeError, CertifyError
        As in `block_moments`.

    Notes
    -----
    Source: paper 1; the cross Gram matrix of two samples.

    Examples
    --------
    >>> from certify.blocks import LinearMap
    >>> from certify.losses import regression
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).eval()
    >>> data = [(torch.randn(8, 3), torch.zeros(8, 1)) for _ in range(4)]
    >>> one, two = block_moments_pair(model, regression, data[:2], data[2:], at="1", block=LinearMap(4))
    >>> one.d == two.d
    True
    """
    one, two = _moments(
        model, loss, [train, test], at, block, unit, route, memory_budget, max_units, checks, progress, device
    )
    return one, two


def _moments(
    model: nn.Module,
    loss: Loss,
    loaders: list[Iterable[Any]],
    at: str,
    block: nn.Module,
    unit: Unit,
    route: Route | None,
    memory_budget: int,
    max_units: int | None,
    checks: bool,
    progress: Progress | None,
    device: torch.device | str | None,
) -> list[GradientMoments]:
    if route not in (None, "gram", "rows"):
        raise ValueError(f"route={route!r}: expected 'gram', 'rows' or None to let the operations decide")
    budget, forced = check_count("memory_budget", memory_budget), route == "gram"
    grouped = not isinstance(unit, str)
    metadata = {
        "module": at,
        "block": type(block).__name__,
        "parameters": str(sum(p.numel() for p in _zero_parameters(block).values())),
        "unit": _unit_name(unit),
    }
    stores, results = [_Store() for _ in loaders], []
    with contextlib.ExitStack() as stack:
        streams = [
            stack.enter_context(
                contextlib.closing(
                    _stream(model, loss, loader, at, block, unit, max_units, checks, progress, device)
                )
            )
            for loader in loaders
        ]
        # A stream has the block in place from its first item to its last: they run one after the other.
        for loader, store, stream in zip(loaders, stores, streams, strict=True):
            if route == "rows":
                break
            for item in stream:
                store.add(*item)
                if route is None:
                    expected = len(loaders) * min(_total(loader) or 1024, max_units or 1 << 30)
                    cheap = any(isinstance(p, Factors) and by_pairs(p, expected) for p in item[0])
                    route = "gram" if cheap else "rows"
                used = sum(s.bytes for s in stores) + 16 * sum(s.examples for s in stores) ** 2
                if used > budget:
                    if forced:
                        number = sum(s.examples for s in stores)
                        raise ValueError(
                            f"memory_budget={budget}: the factors of {number} examples take {used} bytes; "
                            "raise it, or use route='rows'"
                        )
                    route = "rows"
                if route == "rows":
                    break
        if route == "gram":
            X, metadata["route"] = gram_coordinates(_gram(stores)), "gram"
            for store in stores:
                results.append(
                    GradientMoments.from_array(
                        X[: store.units], memory_budget=max(budget, X.nbytes), metadata=metadata
                    )
                )
                X = X[store.units :]
            return results
        metadata["route"] = "rows"
        for store, stream in zip(stores, streams, strict=True):
            accumulator: MomentAccumulator | None = None
            for rows in _unit_rows(itertools.chain(store.batches, stream), grouped):
                if accumulator is None:
                    each = budget // len(loaders)
                    accumulator = MomentAccumulator(rows.shape[1], memory_budget=each, metadata=metadata)
                accumulator.update(rows)
            assert accumulator is not None
            results.append(accumulator.result())
    return results
