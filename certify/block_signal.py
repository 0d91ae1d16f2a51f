"""The first-order signal of an inserted block: per-unit gradients of its zero parameters, at zero.

Dot products between units need no outer product of gradients and activations:
<q phi^T, q' phi'^T> = (q.q')(phi.phi').
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from certify.block_factors import (
    Array,
    Factors,
    by_pairs,
    explicit,
    gram_of_outer_products,
)
from certify.block_sweep import stream_of_pieces, unit_rows, zero_parameters_of
from certify.gram import gram_coordinates
from certify.intervals import check_count
from certify.moments import GradientMoments, MomentAccumulator
from certify.sweep import (
    SWEEP_BUDGET,
    Loss,
    Progress,
    Unit,
    _total,
    _unit_name,
)

__all__ = ["block_gradients", "block_moments", "block_moments_pair"]

Route = Literal["gram", "rows"]


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
    stream = stream_of_pieces(model, loss, loader, at, block, unit, max_units, checks, progress, device)
    grouped = not isinstance(unit, str)
    rows = np.concatenate(list(unit_rows(stream, grouped)))
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
        "parameters": str(sum(p.numel() for p in zero_parameters_of(block).values())),
        "unit": _unit_name(unit),
    }
    stores, results = [_Store() for _ in loaders], []
    with contextlib.ExitStack() as stack:
        streams = [
            stack.enter_context(
                contextlib.closing(
                    stream_of_pieces(
                        model, loss, loader, at, block, unit, max_units, checks, progress, device
                    )
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
            for rows in unit_rows(itertools.chain(store.batches, stream), grouped):
                if accumulator is None:
                    each = budget // len(loaders)
                    accumulator = MomentAccumulator(rows.shape[1], memory_budget=each, metadata=metadata)
                accumulator.update(rows)
            assert accumulator is not None
            results.append(accumulator.result())
    return results
