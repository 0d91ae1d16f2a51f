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
from torch import Tensor, nn

from certify.block_sweep import stream_of_pieces, unit_rows, zero_parameters_of
from certify.certification import COPIES
from certify.intervals import ConfidenceInterval, check_confidence
from certify.nested import map_tensors
from certify.sites import unwrap
from certify.step_core import ASSUMPTIONS, Float, StepEffect, fieller, follow, mean_limits
from certify.sweep import Loss, Progress, Unit, _device_of, _device_with, _unit_name

__all__ = ["StepEffect", "StepEffects", "fieller", "follow", "step_effects"]

FRACTIONS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
"""Default steps: the change predicted on the training units, as a fraction of their mean loss."""


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
    zero_parameters_of(block)
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
    before, curvature, steps = follow(
        inner,
        loss,
        batches,
        at=at,
        block=block,
        mu=mu,
        slopes=x,
        alphas=sizes,
        confidence=confidence,
        unit=unit,
        max_units=max_test_units,
    )
    return StepEffects(
        module=at,
        block=type(block).__name__,
        parameters=len(mu),
        M=M,
        K=K,
        unit=_unit_name(unit),
        T=ConfidenceInterval(
            *mean_limits(x, confidence), confidence, "t, mu_M given", K, _unit_name(unit), ASSUMPTIONS
        ),
        mu_norm=norm,
        curvature=curvature,
        loss_before=before,
        steps=steps,
        confidence=confidence,
    )
