"""Unbiased estimates from gradient moments, and the alignment dimensions built from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from certify.moments import GradientMoments
from certify.ustatistics import Statistics, require_units, statistics_from_sums


@dataclass(frozen=True)
class Estimate:
    """Estimates of one gradient law from n independent units of length d."""

    n: int
    d: int
    m2: float
    m2_squared: float
    mu_sigma_mu: float
    tr_sigma2: float
    tr_sigma: float
    tr_sigma_squared: float
    mean_q2: float
    mean_q4: float
    d_par: float | None
    d_2: float | None
    d_align: float | None
    b_star: float | None
    kurtosis_ratio: float | None
    gradient_noise_scale: float | None
    gsnr: float | None
    participation_ratio: float | None
    scaled: Statistics = field(repr=False, compare=False)
    exponent: int = field(repr=False, compare=False)
    intervals: dict[str, Any] | None = None


def ratio(numerator: float, denominator: float) -> float | None:
    """numerator / denominator as estimated, or None where the denominator is not positive."""
    if not denominator > 0:
        return None
    value = numerator / denominator
    return value if math.isfinite(value) else None


def estimate(moments: Any) -> Estimate:
    """Unbiased estimates and alignment dimensions from moments or from an array (n, d)."""
    if not isinstance(moments, GradientMoments):
        moments = GradientMoments.from_array(moments)
    require_units(moments.n)
    sums, e = moments.sums()
    x = Statistics(*(sum(v) / len(sums) for v in zip(*map(statistics_from_sums, sums), strict=True)))
    return from_statistics(moments.n, moments.d, x, e)


def from_statistics(n: int, d: int, x: Statistics, e: int) -> Estimate:
    """Estimate from scaled statistics; ratios are formed before scaling back, so that none overflows."""
    d_par, d_2 = ratio(x.m2_squared, x.mu_sigma_mu), ratio(x.m2_squared, x.tr_sigma2)
    return Estimate(
        n=n,
        d=d,
        m2=rescale(x.m2, 2 * e),
        m2_squared=rescale(x.m2_squared, 4 * e),
        mu_sigma_mu=rescale(x.mu_sigma_mu, 4 * e),
        tr_sigma2=rescale(x.tr_sigma2, 4 * e),
        tr_sigma=rescale(x.tr_sigma, 2 * e),
        tr_sigma_squared=rescale(x.tr_sigma_squared, 4 * e),
        mean_q2=rescale(x.mean_q2, 2 * e),
        mean_q4=rescale(x.mean_q4, 4 * e),
        d_par=d_par,
        d_2=d_2,
        d_align=None if d_par is None or d_2 is None else min(d_par, d_2),
        b_star=ratio(x.tr_sigma2, x.mu_sigma_mu),
        kurtosis_ratio=ratio(x.mean_q4, x.mean_q2**2),
        gradient_noise_scale=ratio(x.tr_sigma, x.m2),
        gsnr=ratio(x.m2, x.tr_sigma),
        participation_ratio=ratio(x.tr_sigma_squared, x.tr_sigma2),
        scaled=x,
        exponent=e,
    )


def rescale(value: float, exponent: int) -> float:
    """value 2^exponent, infinite when it does not fit a float."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(math.inf, value)
