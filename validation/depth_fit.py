"""Decay of the signal with depth: power law, exponential or constant, fitted to unbiased estimates.

Estimates of ``|mu|^2`` can be negative, so logarithms are never taken of them: the curve is positive, the
estimates scatter around it with their known standard errors and a relative spread between networks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import optimize, stats

from validation.claims import CONFIDENCE
from validation.results import Measured

Model = Literal["power", "exponential", "constant"]
MODELS: tuple[Model, ...] = ("power", "exponential", "constant")
DECISIVE = 6.0
"""Difference of AICc from which one model is preferred: an evidence ratio of exp(3), about 20."""


@dataclass(frozen=True)
class Fit:
    """One model fitted by maximum likelihood.

    ``rate`` is p of ``s = c l^-p`` or r of ``s = c exp(-r l)`` with ``|mu|^2 = s^2``; None for the constant.
    ``spread`` is the relative standard deviation between networks that the estimates' own errors leave.
    """

    model: Model
    rate: Measured | None
    scale: float
    spread: float
    log_likelihood: float
    aicc: float


def _axis(model: Model, blocks: np.ndarray) -> np.ndarray:
    if model == "power":
        return np.log(blocks) - np.log(blocks).mean()
    return blocks - blocks.mean() if model == "exponential" else np.zeros_like(blocks)


def fit(
    blocks: Sequence[float],
    m2: Sequence[float],
    errors: Sequence[float],
    model: Model,
    confidence: float = CONFIDENCE,
) -> Fit:
    r"""Maximum likelihood of :math:`\hat m_2 \sim N(f, e^2 + \tau^2 f^2)`, with f the squared signal.

    .. math::
        f(l) = C\, l^{-2p} \quad\text{or}\quad C\, e^{-2 r l} \quad\text{or}\quad C

    The interval of the rate is from the profile likelihood, with the quantile of F(1, n - 3) in place of the
    chi-square's because the points are few.

    Parameters
    ----------
    blocks : number of residual blocks of each network, at least 5 networks at 3 depths for an interval.
    m2, errors : unbiased estimates, possibly negative, and their standard errors, positive.

    Raises
    ------
    ValueError
        If the lists differ in length, or an error is not positive.
    """
    x = np.asarray(blocks, dtype=float)
    scale = float(np.max(np.abs(m2), initial=0.0)) or 1.0
    y, e = np.asarray(m2, dtype=float) / scale, np.asarray(errors, dtype=float) / scale
    if not len(x) == len(y) == len(e):
        raise ValueError(f"len(blocks)={len(x)}, len(m2)={len(y)}, len(errors)={len(e)}: expected one each")
    if not (e > 0).all():
        raise ValueError(f"min(errors)={e.min() * scale}: expected positive standard errors")
    axis = _axis(model, x)

    def cost(log_c: float, rate: float, log_tau: float) -> float:
        f = np.exp(np.clip(log_c - 2 * rate * axis, -60.0, 60.0))
        variance = e * e + (math.exp(min(log_tau, 3.0)) * f) ** 2
        return float(0.5 * np.sum((y - f) ** 2 / variance + np.log(2 * np.pi * variance)))

    start = math.log(max(float(np.mean(y)), 1e-3))
    free = model != "constant"
    tolerance = {"maxiter": 600, "xatol": 1e-4, "fatol": 1e-5}

    def best() -> tuple[float, np.ndarray]:
        found: tuple[float, np.ndarray] = (math.inf, np.zeros(3))
        for r0 in (-0.3, 0.0, 0.5) if free else (0.0,):
            first = [start, -0.7, r0] if free else [start, -0.7]
            r = optimize.minimize(
                lambda v: cost(v[0], v[2] if free else 0.0, v[1]),
                first,
                method="Nelder-Mead",
                options=tolerance,
            )
            if r.fun < found[0]:
                found = (float(r.fun), np.array([r.x[0], r.x[2] if free else 0.0, r.x[1]]))
        return found

    def at_rate(rate: float, near: np.ndarray) -> float:
        """Lowest cost at a given rate, from the optimum shifted along the axis."""
        r = optimize.minimize(
            lambda v: cost(v[0], rate, v[1]), near[[0, 2]], method="Nelder-Mead", options=tolerance
        )
        return float(r.fun)

    lowest, point = best()
    k = 2 if model == "constant" else 3
    n = len(x)
    aicc = 2 * k + 2 * lowest + (2 * k * (k + 1) / (n - k - 1) if n > k + 1 else math.inf)
    rate = None
    if model != "constant":
        rate = _profile(
            lambda r: at_rate(r, point), lowest, float(point[1]), n, len(set(blocks)), axis, confidence
        )
    return Fit(
        model, rate, float(np.exp(point[0])) * scale, math.exp(min(float(point[2]), 3.0)), -lowest, aicc
    )


def _profile(
    cost: object, lowest: float, rate: float, n: int, depths: int, axis: np.ndarray, confidence: float
) -> Measured:
    if n < 5 or depths < 3:
        return Measured(rate, None, None, confidence, f"{n} networks at {depths} depths: no interval")
    rise = 0.5 * float(stats.f.ppf(confidence, 1, n - 3))
    limits: list[float | None] = []
    for sign in (-1.0, 1.0):
        step, edge = 0.05 / max(float(np.ptp(axis)), 1e-9), rate
        found: float | None = None
        for _ in range(14):
            further = edge + sign * step
            if cost(further) - lowest > rise:  # type: ignore[operator]
                found = float(
                    optimize.brentq(lambda r: cost(r) - lowest - rise, edge, further, xtol=1e-3 * step)  # type: ignore[operator]
                )
                break
            edge, step = further, 1.6 * step
        limits.append(found)
    return Measured(rate, limits[0], limits[1], confidence, "profile likelihood, F quantile")


@dataclass(frozen=True)
class Comparison:
    """All models on the same points; ``weights`` are Akaike weights by AICc."""

    fits: dict[Model, Fit]

    @property
    def too_few(self) -> bool:
        """Whether AICc does not exist for some model: none must win by having fewer parameters."""
        return not all(math.isfinite(f.aicc) for f in self.fits.values())

    @property
    def weights(self) -> dict[Model, float]:
        """exp(-AICc/2), normalised; all equal where there are too few points for one of them."""
        values = {m: f.aicc for m, f in self.fits.items()}
        least = min(values.values())
        if self.too_few:
            return dict.fromkeys(values, 1 / len(values))
        raw = {m: math.exp(-(v - least) / 2) for m, v in values.items()}
        return {m: v / sum(raw.values()) for m, v in raw.items()}

    @property
    def preferred(self) -> Model | None:
        """The model that beats both others by :data:`DECISIVE`, or None."""
        ordered = sorted(self.fits.values(), key=lambda f: f.aicc)
        if self.too_few:
            return None
        return ordered[0].model if ordered[1].aicc - ordered[0].aicc >= DECISIVE else None


def compare(blocks: Sequence[float], m2: Sequence[float], errors: Sequence[float]) -> Comparison:
    """Power law, exponential and constant on the same points."""
    return Comparison({m: fit(blocks, m2, errors, m) for m in MODELS})
