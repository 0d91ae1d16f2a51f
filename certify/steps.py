"""What a step along the training gradient of a block does to held-out loss: predicted and observed."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from certify.block_sweep import stream_of_pieces, unit_rows, zero_parameters_of
from certify.certification import COPIES
from certify.hooks import _frozen, _plain_execution
from certify.intervals import ConfidenceInterval, check_confidence
from certify.intervention import insert
from certify.nested import map_tensors
from certify.sites import unwrap
from certify.sweep import Loss, Progress, Unit, _device_of, _device_with, _keys, _unit_name

__all__ = ["StepEffect", "StepEffects", "fieller", "step_effects"]

Float = NDArray[np.float64]

FRACTIONS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
"""Default steps: the change predicted on the training units, as a fraction of their mean loss."""

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


@dataclass(frozen=True)
class StepEffects:
    """Predicted and observed effects of steps along -mu_M on fresh units, all step sizes on the same units.

    Attributes
    ----------
    module, block, parameters : where, which block, number of its zero parameters.
    M, K, unit : training and held-out units, and what one is.
    T : mu_M . g_K, with a t interval over the held-out units (mu_M is given).
    mu_norm : length of mu_M.
    curvature : mu_M^T H mu_M, H the Hessian of mean held-out loss by the zero parameters at zero; or None.
    loss_before : mean held-out loss before the step.
    steps : one `StepEffect` per step size.
    confidence, assumptions : level of each interval, and of all `upper` together.
    """

    module: str
    block: str
    parameters: int
    M: int
    K: int
    unit: str
    T: ConfidenceInterval
    mu_norm: float
    curvature: float | None
    loss_before: float
    steps: tuple[StepEffect, ...]
    confidence: float
    assumptions: tuple[str, ...] = ASSUMPTIONS

    @property
    def alphas(self) -> tuple[float, ...]:
        """The step sizes."""
        return tuple(step.alpha for step in self.steps)

    @property
    def largest_certain_alpha(self) -> float | None:
        """Largest step size whose improvement is certain; None if no step's is."""
        return max((step.alpha for step in self.steps if step.certain), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a limit that does not exist is None."""
        out = {k: v for k, v in self.__dict__.items() if k not in ("T", "steps", "assumptions")}
        steps = [
            {**s.__dict__, "observed": s.observed.to_dict(), "ratio": s.ratio.to_dict()} for s in self.steps
        ]
        return {
            **out,
            "T": self.T.to_dict(),
            "steps": steps,
            "largest_certain_alpha": self.largest_certain_alpha,
            "assumptions": list(self.assumptions),
        }

    def __str__(self) -> str:
        largest = self.largest_certain_alpha
        lines = [
            f"{self.block} at {self.module!r}: T = {self.T.estimate:.4g} "
            f"[{self.T.low:.4g}, {self.T.high:.4g}], M = {self.M}, K = {self.K}, unit: {self.unit}",
            f"{'alpha':>10} {'predicted':>11} {'2nd order':>11} {'observed':>11} "
            f"{'observed / predicted':>26}  certain",
        ]
        for s in self.steps:
            second = "-" if s.second_order is None else f"{s.second_order:.4g}"
            ratio = f"{s.ratio.estimate:.3f} [{s.ratio.low:.3f}, {s.ratio.high:.3f}]"
            lines.append(
                f"{s.alpha:>10.4g} {s.predicted:>11.4g} {second:>11} {s.observed.estimate:>11.4g} "
                f"{ratio:>26}  {'yes' if s.certain else 'no'}"
            )
        lines.append(
            f"largest alpha whose improvement is certain: {'none' if largest is None else f'{largest:.4g}'} "
            f"({100 * self.confidence:g} %, all step sizes together)"
        )
        return "\n".join(lines)


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


def _mean_limits(x: Float, confidence: float) -> tuple[float, float, float]:
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


def _mean_and_keys(rows: Iterable[Float]) -> tuple[Float, int, list[bytes]]:
    """Mean of the rows, their number, and a key for each that is not zero, alike for exact copies."""
    total: Any = 0.0
    n = 0
    keys: list[bytes] = []
    for part in rows:
        total = total + part.sum(axis=0)
        n += len(part)
        keys += [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in part if row.any()]
    return total / n, n, keys


def step_effects(
    model: nn.Module,
    loss: Loss,
    train: Iterable[Any],
    test: Iterable[Any],
    *,
    at: str,
    block: nn.Module,
    alphas: Sequence[float] | None = None,
    confidence: float = 0.95,
    unit: Unit = "example",
    max_train_units: int | None = None,
    max_test_units: int | None = None,
    checks: bool = True,
    progress: Progress | None = None,
    device: torch.device | str | None = None,
) -> StepEffects:
    r"""Step the zero parameters of a block along the training gradient and see what held-out loss does.

    .. math::
        \theta = -\alpha \mu_M,\qquad
        \Delta L = -\alpha\, \mu_M\cdot g_K + \tfrac{\alpha^2}{2}\, \mu_M^\top H \mu_M + O(\alpha^3)

    mu_M is the mean gradient of M training units, g_K that of the K held-out units on which the change is
    observed.  The observed change is paired: the same units before and after, so that their spread in loss
    cancels.  Ratios have Fieller limits; "certain" is a one-sided t limit below zero at level
    (1 - confidence) / number of step sizes, so that all such statements hold together.

    Parameters
    ----------
    model, loss, unit, checks, progress, device
        As in `certify.collect`.
    train, test
        Loaders with different units.  The batches of `test` are kept, as they are used once per step size.
    at, block
        As in `certify.insert`; the block is back at zero afterwards.
    alphas
        Step sizes, positive.  Default: those for which ``-alpha |mu_M|^2``, the change predicted on the
        training units themselves, is 0.1, 0.3, 1, 3, 10 and 30 % of their mean loss.
    confidence
        Level of each interval, and of all statements `certain` together.
    max_train_units, max_test_units
        Stop after this many units.

    Raises
    ------
    ValueError, TypeError, CertifyError
        As in `certify.block_moments`; also if `train` is `test` or their gradients are copies of each other,
        if a step size is not positive, or if there are fewer than two held-out units.

    Notes
    -----
    Source: paper 1, direct residual interventions.

    Examples
    --------
    >>> from certify.blocks import LinearMap
    >>> from certify.losses import regression
    >>> g = torch.Generator().manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).eval()
    >>> data = [(torch.randn(32, 3, generator=g), torch.ones(32, 1)) for _ in range(8)]
    >>> effects = step_effects(model, regression, data[:4], data[4:], at="1", block=LinearMap(4))
    >>> effects.M, effects.K, len(effects.steps), all(s.same_sign for s in effects.steps[:3])
    (128, 128, 6, True)
    """
    confidence = check_confidence(confidence)
    if train is test:
        raise ValueError("train is test: expected different units; the change must be seen on fresh ones")
    sizes = None if alphas is None else [float(a) for a in alphas]
    if sizes is not None and (not sizes or not all(0 < a < math.inf for a in sizes)):
        raise ValueError(f"alphas={list(sizes)}: expected at least one step size, all positive and finite")
    zero = zero_parameters_of(block)
    parameters = list(zero.values())
    inner, grouped = unwrap(model), not isinstance(unit, str)
    spent: list[float] = []

    def noted(m: nn.Module, batch: Any) -> Tensor:
        losses = loss(m, batch)
        if isinstance(losses, Tensor) and losses.ndim == 1 and len(losses):
            spent.append(float(losses.detach().mean()))
        return losses

    def rows(loader: Iterable[Any], with_loss: Callable[..., Tensor], limit: int | None) -> Iterator[Float]:
        stream = stream_of_pieces(model, with_loss, loader, at, block, unit, limit, checks, progress, device)
        with contextlib.closing(stream):
            yield from unit_rows(stream, grouped)

    mu, M, seen = _mean_and_keys(rows(train, noted if sizes is None else loss, max_train_units))
    known = set(seen)
    norm = float(np.linalg.norm(mu))
    if norm == 0:
        raise ValueError(
            f"the mean gradient of the block at {at!r} is zero on the training units: no direction"
        )
    if sizes is None:
        sizes = [f * float(np.mean(spent)) / norm**2 for f in FRACTIONS]
    batches = list(test)
    x_parts, repeated = [], 0
    for part in rows(batches, loss, max_test_units):
        x_parts.append(part @ mu)
        repeated += sum(key in known for key in _mean_and_keys([part])[2])
    x = np.concatenate(x_parts)
    K = len(x)
    if K < 2:
        raise ValueError(f"K={K}: expected at least two held-out units")
    if len(mu) >= 8 and repeated > COPIES * K:
        raise ValueError(
            f"{repeated} of {K} held-out units have the gradient of a training unit: expected disjoint units"
        )
    target = _device_of(inner) if device is None else _device_with(inner, device)
    if target is not None:
        batches = [map_tensors(lambda t: t.to(target), batch) for batch in batches]
    held_out = _HeldOut(inner, loss, batches, unit, max_test_units)
    pieces = torch.from_numpy(mu).split([p.numel() for p in parameters])
    direction = [m.view(p.shape).to(p) for m, p in zip(pieces, parameters, strict=True)]
    steps: list[StepEffect] = []
    with insert(inner, at, block), _plain_execution(inner), _frozen(inner), _restored(block, parameters):
        for p in parameters:
            p.requires_grad_(True)
        before, counts = held_out.losses()
        curvature = held_out.curvature(direction, parameters, counts)
        for alpha in sizes:
            with torch.no_grad():
                for p, m in zip(parameters, direction, strict=True):
                    p.copy_(-alpha * m)
            change = held_out.losses()[0] - before
            steps.append(_effect(alpha, norm, x, change, curvature, confidence, len(sizes), _unit_name(unit)))
    return StepEffects(
        module=at,
        block=type(block).__name__,
        parameters=len(mu),
        M=M,
        K=K,
        unit=_unit_name(unit),
        T=ConfidenceInterval(
            *_mean_limits(x, confidence), confidence, "t, mu_M given", K, _unit_name(unit), ASSUMPTIONS
        ),
        mu_norm=norm,
        curvature=curvature,
        loss_before=float(before.mean()),
        steps=tuple(steps),
        confidence=confidence,
    )


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
    mean, low, high = _mean_limits(change, confidence)
    # one-sided, shared among the step sizes (Bonferroni)
    upper = _mean_limits(change, 1 - 2 * (1 - confidence) / number)[2]
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
