"""Loss of given units along a given direction in a block's zero parameters: predicted and observed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from certify.block_sweep import zero_parameters_of
from certify.hooks import _frozen, _plain_execution
from certify.intervals import ConfidenceInterval
from certify.intervention import insert
from certify.sweep import Loss, Unit, _keys, _unit_name

Float = NDArray[np.float64]

ASSUMPTIONS = (
    "units independent of each other",
    "held-out units disjoint from the training units",
    "model trained on neither",
    "large K (t limits for a mean)",
)


@dataclass(frozen=True)
class StepEffect:
    """One step: theta = -alpha mu_M.

    Attributes
    ----------
    alpha, step_norm : step size, and ``alpha |mu_M|``, the length of the step in parameter space.
    predicted : -alpha T, the first-order change of mean held-out loss.
    second_order : predicted + alpha^2/2 mu_M^T H mu_M; None where the model has no second derivative.
    observed : loss after minus before, paired over the held-out units, two-sided.
    upper : upper confidence limit of the change, simultaneous over all step sizes.
    ratio : observed over predicted (Fieller); infinite limits where T may be zero.
    same_sign : whether observed and predicted have the same sign.
    certain : whether `upper` is below zero.
    """

    alpha: float
    step_norm: float
    predicted: float
    second_order: float | None
    observed: ConfidenceInterval
    upper: float
    ratio: ConfidenceInterval
    same_sign: bool
    certain: bool


def fieller(y: Float, x: Float, confidence: float) -> tuple[float, float, float]:
    r"""Ratio of the means of paired values with Fieller's limits: (estimate, low, high).

    .. math::
        \{\rho : (\bar y - \rho \bar x)^2 \le t^2 \widehat{\operatorname{Var}}(\bar y - \rho \bar x)\}

    Exact for normal means, honest where the denominator may be zero: then there are no limits, where the
    delta method would give finite, wrong ones.

    Parameters
    ----------
    y, x : paired values, (n,), float64.
    confidence : two-sided level.

    Raises
    ------
    ValueError
        If there are fewer than two pairs.

    Notes
    -----
    Source: Fieller, "Some problems in interval estimation", JRSS B 16 (1954).

    Examples
    --------
    >>> fieller(np.array([2.0, 4.0, 6.0]), np.array([1.0, 2.0, 3.0]), 0.95)
    (2.0, -inf, inf)
    >>> [round(v, 3) for v in fieller(np.array([2.0, 2.1, 1.9, 2.0]), np.ones(4), 0.95)]
    [2.0, 1.87, 2.13]
    """
    n = len(y)
    if n < 2:
        raise ValueError(f"n={n}: expected at least two units for an interval")
    my, mx = float(y.mean()), float(x.mean())
    if mx == 0:
        return math.inf, -math.inf, math.inf
    # in units of the means, so that tiny changes do not underflow when squared
    sy = float(np.abs(y).max()) or 1.0
    sx = float(np.abs(x).max())
    (vx, vxy), (_, vy) = np.cov(x / sx, y / sy) / n
    q = float(stats.t.ppf(0.5 + confidence / 2, n - 1)) ** 2
    a, b, c = (mx / sx) ** 2 - q * vx, mx / sx * my / sy - q * vxy, (my / sy) ** 2 - q * vy
    if a <= 0:
        return my / mx, -math.inf, math.inf
    root = math.sqrt(max(b * b - a * c, 0.0))
    low, high = (b - root) / a * sy / sx, (b + root) / a * sy / sx
    return my / mx, float(low), float(high)


def mean_limits(x: Float, confidence: float) -> tuple[float, float, float]:
    half = float(stats.t.ppf(0.5 + confidence / 2, len(x) - 1)) * float(x.std(ddof=1)) / math.sqrt(len(x))
    mean = float(x.mean())
    return mean, mean - half, mean + half


class _HeldOut:
    """The held-out batches, kept so that every pass sees the same units in the same order."""

    def __init__(
        self, model: nn.Module, loss: Loss, batches: list[Any], unit: Unit, limit: int | None
    ) -> None:
        self.model, self.loss, self.batches, self.unit, self.limit = model, loss, batches, unit, limit

    def passes(self) -> Iterator[tuple[Tensor, list[int], list[int]]]:
        """Yield (losses, examples that count, the unit of each), batch by batch."""
        index: dict[Any, int] = {}
        for number, batch in enumerate(self.batches):
            losses = self.loss(self.model, batch)
            if losses.ndim == 1 and len(losses) == 0:
                continue
            keep = getattr(losses, "keep", None)
            kept = torch.ones(len(losses), dtype=torch.bool) if keep is None else keep.detach().cpu()
            keys: Sequence[Any] = [(number, i) for i in range(len(kept))]
            if not isinstance(self.unit, str):
                keys = _keys(self.unit, batch, kept)
            chosen, slots = [], []
            for example, (key, counted) in enumerate(zip(keys, kept.tolist(), strict=True)):
                if counted and (key in index or self.limit is None or len(index) < self.limit):
                    chosen.append(example)
                    slots.append(index.setdefault(key, len(index)))
            if chosen:
                yield losses.as_subclass(Tensor), chosen, slots
            if isinstance(self.unit, str) and len(index) == self.limit:
                return

    @torch.no_grad()
    def losses(self) -> tuple[Float, NDArray[np.int64]]:
        """Mean loss of each unit, and how many examples it has."""
        values: list[float] = []
        units: list[int] = []
        for losses, chosen, slots in self.passes():
            values += losses.double().cpu()[chosen].tolist()
            units += slots
        counts = np.bincount(units)
        return np.bincount(units, weights=values) / counts, counts

    def curvature(
        self, mu: list[Tensor], parameters: list[nn.Parameter], counts: NDArray[Any]
    ) -> float | None:
        """mu^T H mu by one Hessian-vector product per batch; None where there is no second derivative."""
        total = 0.0
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            for losses, chosen, slots in self.passes():
                weights = torch.zeros_like(losses)
                weights[chosen] = torch.tensor(
                    1 / (len(counts) * counts[slots]), dtype=losses.dtype, device=losses.device
                )
                first = torch.autograd.grad(
                    losses @ weights, parameters, create_graph=True, allow_unused=True
                )
                slope = [
                    (g * m).sum() for g, m in zip(first, mu, strict=True) if g is not None and g.requires_grad
                ]
                if not slope:
                    continue  # linear in the parameters
                try:
                    second = torch.autograd.grad(sum(slope[1:], slope[0]), parameters, allow_unused=True)
                except (RuntimeError, NotImplementedError) as error:
                    if "not implemented" in str(error) or "derivative" in str(error):
                        return None
                    raise
                total += sum(
                    float((g.double() * m.double()).sum())
                    for g, m in zip(second, mu, strict=True)
                    if g is not None
                )
        return total


def follow(
    model: nn.Module,
    loss: Loss,
    batches: Sequence[Any],
    *,
    at: str,
    block: nn.Module,
    mu: Float,
    slopes: Float,
    alphas: Sequence[float],
    confidence: float = 0.95,
    unit: Unit = "example",
    max_units: int | None = None,
) -> tuple[float, float | None, tuple[StepEffect, ...]]:
    r"""Predicted, second-order and observed changes of the mean loss of given units along a given direction.

    .. math::
        \theta = -\alpha \mu,\qquad \Delta L = -\alpha\, \mu\cdot g_K
        + \tfrac{\alpha^2}{2}\, \mu^\top H \mu + O(\alpha^3)

    Returns the mean loss before, mu^T H mu (None without a second derivative) and one `StepEffect` per step
    size.  What `step_effects` does once it has its direction; the units may here be those that gave it.

    Parameters
    ----------
    model, loss, unit
        As in `certify.collect`; the batches are on the model's device.
    batches, max_units
        The K units observed, and stop after this many.
    at, block
        As in `certify.insert`; the block is back at zero afterwards.
    mu
        Direction, (p,), in the order of the columns of `certify.block_gradients`.
    slopes
        Gradient of each unit times mu, (K,), in the order in which units appear.
    alphas
        Step sizes, positive.
    confidence
        Level of each interval, and of all statements `certain` together.

    Raises
    ------
    ValueError
        If the units of `slopes` are not those of the batches, or their number is below two.

    Notes
    -----
    Source: paper 1, direct residual interventions.

    Examples
    --------
    >>> from certify.block_signal import block_gradients
    >>> from certify.blocks import ChannelShift
    >>> from certify.losses import regression
    >>> g = torch.Generator().manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)).double().eval()
    >>> units = [(torch.randn(32, 3, generator=g).double(), torch.ones(32, 1).double())]
    >>> block = ChannelShift(4, dtype=torch.float64)
    >>> Q = block_gradients(model, regression, units, at="0", block=block)
    >>> mu = Q.mean(axis=0)
    >>> _, _, (step,) = follow(
    ...     model, regression, units, at="0", block=block, mu=mu, slopes=Q @ mu, alphas=[1.0]
    ... )
    >>> abs(step.observed.estimate - step.second_order) < 1e-9  # quadratic in the shift
    True
    """
    if len(slopes) < 2:
        raise ValueError(f"K={len(slopes)}: expected at least two held-out units")
    parameters = list(zero_parameters_of(block).values())
    held_out = _HeldOut(model, loss, list(batches), unit, max_units)
    pieces = torch.from_numpy(mu).split([p.numel() for p in parameters])
    direction = [m.view(p.shape).to(p) for m, p in zip(pieces, parameters, strict=True)]
    norm, steps = float(np.linalg.norm(mu)), []
    with insert(model, at, block), _plain_execution(model), _frozen(model), _restored(block, parameters):
        for p in parameters:
            p.requires_grad_(True)
        before, counts = held_out.losses()
        if len(before) != len(slopes):
            raise ValueError(
                f"slopes of {len(slopes)} units: expected one for each of the {len(before)} units"
            )
        curvature = held_out.curvature(direction, parameters, counts)
        for alpha in alphas:
            with torch.no_grad():
                for p, m in zip(parameters, direction, strict=True):
                    p.copy_(-alpha * m)
            change = held_out.losses()[0] - before
            steps.append(
                _effect(alpha, norm, slopes, change, curvature, confidence, len(alphas), _unit_name(unit))
            )
    return float(before.mean()), curvature, tuple(steps)


@contextlib.contextmanager
def _restored(block: nn.Module, parameters: list[nn.Parameter]) -> Iterator[None]:
    """Zero parameters back at zero and modes of all the block's parameters as they were."""
    wanted = [(p, p.requires_grad) for p in block.parameters()]
    for p, _ in wanted:
        p.requires_grad_(False)
    try:
        yield
    finally:
        with torch.no_grad():
            for p in parameters:
                p.zero_()
        for p, flag in wanted:
            p.requires_grad_(flag)


def _effect(
    alpha: float,
    norm: float,
    x: Float,
    change: Float,
    curvature: float | None,
    confidence: float,
    number: int,
    unit: str,
) -> StepEffect:
    K = len(change)
    predicted = -alpha * float(x.mean())
    mean, low, high = mean_limits(change, confidence)
    # one-sided, shared among the step sizes (Bonferroni)
    upper = mean_limits(change, 1 - 2 * (1 - confidence) / number)[2]
    ratio, least, most = fieller(change, -alpha * x, confidence)
    return StepEffect(
        alpha=alpha,
        step_norm=alpha * norm,
        predicted=predicted,
        second_order=None if curvature is None else predicted + alpha**2 / 2 * curvature,
        observed=ConfidenceInterval(mean, low, high, confidence, "paired t", K, unit, ASSUMPTIONS),
        upper=upper,
        ratio=ConfidenceInterval(ratio, least, most, confidence, "fieller", K, unit, ASSUMPTIONS),
        same_sign=mean * predicted > 0,
        certain=upper < 0,
    )
