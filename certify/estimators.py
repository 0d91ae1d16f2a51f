"""Unbiased estimates from gradient moments, and the alignment dimensions built from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from certify.intervals import check_count
from certify.moments import GradientMoments
from certify.resampling import (
    Resampled,
    averaged,
    leave_group_out,
    leave_one_out,
    numbers,
    weighted_statistics,
)
from certify.ustatistics import Statistics, Sums, require_units, statistics_from_sums, u_statistics

__all__ = [
    "Estimate",
    "PlugIn",
    "Resampled",
    "alignment_bound",
    "estimate",
    "exact_bound",
    "leave_group_out",
    "leave_one_out",
    "plug_in",
    "u_statistics",
    "weighted_statistics",
]

# A spread below this many rounding steps of the length is rounding, not variance: all units are equal.
NO_SPREAD = (64 * np.finfo(np.float64).eps) ** 2


@dataclass(frozen=True)
class Estimate:
    r"""Estimates of one gradient law from n independent units of length d.

    .. math::
        d_\parallel = \widehat{m_2^2} / \widehat{\mu^\top\Sigma\mu},\qquad
        d_2 = \widehat{m_2^2} / \widehat{\operatorname{tr}\Sigma^2},\qquad
        d_\mathrm{align} = \min(d_\parallel, d_2)

    The first eight numbers are unbiased and may be negative. The dimensions are *ratios* of unbiased parts
    and hence not unbiased; the `_corrected` ones subtract the jackknife estimate of the bias, of order 1/n.
    Nothing is clamped: a dimension is None where its denominator is not positive, infinite where all units
    are equal.

    Attributes
    ----------
    n, d : number of units and of coordinates.
    m2, m2_squared, mu_sigma_mu, tr_sigma2, tr_sigma : unbiased for \|mu\|^2, \|mu\|^4, mu^T Sigma mu,
        tr Sigma^2 and tr Sigma, in powers of the gradient's own unit.
    tr_sigma_squared : unbiased for (tr Sigma)^2.
    mean_q2, mean_q4 : means of \|q\|^2 and \|q\|^4.
    d_par, d_2, d_align : the dimensions, pure numbers.
    d_par_corrected, d_2_corrected, d_align_corrected : the same with the bias removed to first order.
    b_star : d_par / d_2, the group size at which B_align equals B_exact; None unless both parts are positive.
    kurtosis_ratio : mean_q4 / mean_q2^2, at least 1; far above 1 few units carry the gradient.
    gradient_noise_scale : tr Sigma / m2, the "simple" critical batch size of McCandlish et al. (2018).
    gsnr : m2 / tr Sigma, the gradient signal-to-noise ratio over all coordinates together.
    participation_ratio : (tr Sigma)^2 / tr Sigma^2 from two unbiased parts, the dimension of the noise.
    standard_errors : jackknife standard errors by name.
    correction : how the bias was estimated, or None.
    sketch_errors : for sketches, the standard deviation that the sketch adds to each estimate.
    detected : False when the estimate of m2 or m2^2 is not positive ("signal not detected"); an interval that
        covers 0 means the same and is decided with the interval; None while undecided.
    unit, positions : from the metadata, to be printed beside every number.
    """

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
    d_par_corrected: float | None
    d_2_corrected: float | None
    d_align_corrected: float | None
    b_star: float | None
    kurtosis_ratio: float | None
    gradient_noise_scale: float | None
    gsnr: float | None
    participation_ratio: float | None
    detected: bool | None
    correction: str | None
    standard_errors: Mapping[str, float] = field(repr=False)
    sketch_errors: Mapping[str, float] | None = field(repr=False)
    representation: str
    unit: str | None
    positions: str | None
    scaled: Statistics = field(repr=False, compare=False)
    exponent: int = field(repr=False, compare=False)
    intervals: Mapping[str, Any] | None = field(default=None, repr=False)

    def variance(self, M: int, K: int) -> float:
        """Unbiased estimate of Var T = (1/M + 1/K) mu^T Sigma mu + tr(Sigma^2) / (MK); may be negative."""
        require_sizes(M, K)
        return (1 / M + 1 / K) * self.mu_sigma_mu + self.tr_sigma2 / (M * K)

    def B_exact(self, M: int, K: int) -> float | None:
        """V / (V + m2^2) from unbiased parts, or None where signal or variance are not positive."""
        x = self.scaled
        return exact_bound(_signal(x), x.mu_sigma_mu, x.tr_sigma2, M, K)

    def B_align(self, M: int, K: int) -> float | None:
        """1 / (1 + n_eff d_align) from unbiased parts, or None where it is not defined."""
        x = self.scaled
        return alignment_bound(_signal(x), x.mu_sigma_mu, x.tr_sigma2, M, K)

    def B_regrouped(self, M: int, K: int, b: float | None = None) -> float | None:
        """B_align when units are averaged in groups of b; the default b = b_star gives B_exact itself.

        1 / (1 + MK / (M + K + b) min(d_par, b d_2)), with M and K still counted in single units.
        """
        require_sizes(M, K)
        if b is None:
            b = self.b_star
        if b is None or self.d_par is None or self.d_2 is None or _signal(self.scaled) <= 0:
            return None
        if not b > 0:
            raise ValueError(f"b={b}: expected a positive group size")
        if math.isinf(self.d_par):
            return 0.0
        return 1 / (1 + M * K / (M + K + b) * min(self.d_par, b * self.d_2))


def estimate(moments: Any, *, correct: bool = True, confidence: float | None = None) -> Estimate:
    r"""Unbiased estimates and alignment dimensions of a gradient law.

    .. math::
        \widehat{\mu^\top\Sigma\mu} = T_3 - T_4,\qquad \widehat{\operatorname{tr}\Sigma^2} = T_2 - 2T_3 + T_4

    computed about the sample mean, so that no digits are lost when \|mean\| is a million times the spread.

    Parameters
    ----------
    moments : GradientMoments, or an array (n, d) with one row per independent unit.
    correct : also estimate biases and standard errors: by leave-one-out when the rows are kept, in O(n^2)
        given the Gram matrix or O(n d^2); by leave-group-out otherwise. False saves that time.
    confidence : level for `intervals`, for example 0.95; None for no intervals.

    Returns
    -------
    Estimate

    Raises
    ------
    ValueError
        If n < 4, or an array is not (n, d) or not finite.

    Notes
    -----
    Paper 1 defines the dimensions; U-statistics: Hoeffding (1948); jackknife: Quenouille (1956).

    Examples
    --------
    >>> import numpy as np
    >>> Q = np.random.default_rng(0).normal(0.5, 1.0, size=(200, 20))
    >>> e = estimate(Q)
    >>> round(e.m2), round(e.tr_sigma)  # the truth is 5 and 20
    (5, 20)
    >>> e.d_align == min(e.d_par, e.d_2)
    True
    """
    if not isinstance(moments, GradientMoments):
        moments = GradientMoments.from_array(moments)
    require_units(moments.n)
    resampled = _resampled(moments) if correct else None
    sketch_errors = None
    if resampled is not None and moments.representation != "sketch":
        statistics, e = resampled.full, resampled.exponent
    else:
        sums, e = moments.sums()
        statistics = numbers(averaged(sums))
        if moments.representation == "sketch":
            sketch_errors = _spread([statistics_from_sums(item) for item in sums], e)
    if statistics.tr_sigma <= NO_SPREAD * statistics.mean_q2:
        zero = {"mu_sigma_mu": 0.0, "tr_sigma2": 0.0, "tr_sigma": 0.0, "tr_sigma_squared": 0.0}
        statistics, resampled = statistics._replace(**zero), None
    out = _from_statistics(moments, statistics, e, resampled, sketch_errors)
    if confidence is not None:
        # The intervals build on this module, so they are looked up only when asked for.
        intervals = import_module("certify.intervals")
        found = intervals.estimate_intervals(moments, out, confidence)
        signal = found.get("m2_squared")
        detected = out.detected if signal is None else bool(signal.low is not None and signal.low > 0)
        out = replace(out, intervals=MappingProxyType(dict(found)), detected=detected)
    return out


def _signal(x: Statistics) -> float:
    """The estimate of m2^2, or 0 where that of m2 is negative: its square is no signal."""
    return float(x.m2_squared) if x.m2 > 0 else 0.0


def ratio(numerator: float, denominator: float) -> float | None:
    """numerator / denominator; None where the denominator is negative or 0/0, infinite where only it is 0."""
    if denominator < 0 or (denominator == 0 and not numerator > 0):
        return None
    return math.inf if denominator == 0 else numerator / denominator


def exact_bound(m2_squared: float, a: float, t: float, M: int, K: int) -> float | None:
    """V / (V + m2^2) with V = (1/M + 1/K) a + t/(MK), or None unless m2^2 > 0 and V >= 0."""
    require_sizes(M, K)
    v = (1 / M + 1 / K) * a + t / (M * K)
    return v / (v + m2_squared) if m2_squared > 0 and v >= 0 else None


def alignment_bound(m2_squared: float, a: float, t: float, M: int, K: int) -> float | None:
    """w / (w + n_eff m2^2) with w = max(a, t), or None unless m2^2 > 0, a >= 0 and t >= 0."""
    require_sizes(M, K)
    w = max(a, t)
    defined = m2_squared > 0 and a >= 0 and t >= 0
    return w / (w + M * K / (M + K + 1) * m2_squared) if defined else None


def require_sizes(M: int, K: int) -> None:
    """Refuse sample sizes that are not whole numbers of at least 1."""
    check_count("M", M)
    check_count("K", K)


def jackknife(
    full: float, parts: NDArray[np.float64], sizes: NDArray[Any], n: int
) -> tuple[float | None, float | None]:
    """Bias-corrected value and standard error from deletions of single units or of groups of unequal size.

    With m_g deleted units and h_g = n / m_g: G theta - sum (1 - 1/h_g) theta_(g), and the spread of the
    pseudo-values h_g theta - (h_g - 1) theta_(g). Source: Busing, Meijer and van der Leeden (1999).
    None where a part is not finite.
    """
    if not (math.isfinite(full) and np.isfinite(parts).all()):
        return None, None
    h = n / (n - np.asarray(sizes, dtype=np.float64))
    pseudo = h * full - (h - 1) * parts
    corrected = float(np.sum(pseudo / h))
    return corrected, math.sqrt(float(np.mean((pseudo - corrected) ** 2 / (h - 1))))


def _resampled(moments: GradientMoments) -> Resampled | None:
    if moments.rows is not None:
        return leave_one_out(moments) if moments.n >= 5 else None
    blocks = [block.n for block in moments.blocks if block.n]
    return leave_group_out(moments) if len(blocks) > 1 and moments.n - max(blocks) >= 4 else None


def _spread(replicates: list[Statistics], e: int) -> Mapping[str, float]:
    """Standard deviation of the mean over independent sketch replicates."""
    out = {}
    for name, power, values in zip(Statistics._fields, _POWERS, zip(*replicates, strict=True), strict=True):
        out[name] = rescale(float(np.std(values, ddof=1)) / math.sqrt(len(values)), power * e)
    return MappingProxyType(out)


_POWERS = (2, 4, 4, 4, 2, 4, 2, 4)


def _from_statistics(
    moments: GradientMoments,
    x: Statistics,
    e: int,
    resampled: Resampled | None,
    sketch_errors: Mapping[str, float] | None,
) -> Estimate:
    # Ratios are formed from scaled numbers, so that tiny or huge gradients neither under- nor overflow.
    ratios = {
        "d_par": ratio(x.m2_squared, x.mu_sigma_mu),
        "d_2": ratio(x.m2_squared, x.tr_sigma2),
    }
    corrected: dict[str, float | None] = {"d_par": None, "d_2": None}
    errors: dict[str, float] = {}
    if resampled is not None:
        parts, full = resampled.parts, resampled.full
        for name, power in zip(Statistics._fields, _POWERS, strict=True):
            _, se = jackknife(getattr(full, name), getattr(parts, name), resampled.sizes, resampled.n)
            if se is not None:
                errors[name] = rescale(se, power * resampled.exponent)
        for name, below in (("d_par", "mu_sigma_mu"), ("d_2", "tr_sigma2")):
            bottom = getattr(parts, below)
            if ratios[name] is None or not (bottom > 0).all():
                continue
            whole = full.m2_squared / getattr(full, below)
            corrected[name], se = jackknife(whole, parts.m2_squared / bottom, resampled.sizes, resampled.n)
            if se is not None:
                errors[name] = se
    elif x.tr_sigma == 0:
        corrected = dict(ratios)
    scaled_back: dict[str, Any] = {
        name: rescale(value, power * e)
        for name, value, power in zip(Statistics._fields, x, _POWERS, strict=True)
    }
    return Estimate(
        n=moments.n,
        d=moments.d,
        **scaled_back,
        d_par=ratios["d_par"],
        d_2=ratios["d_2"],
        d_align=_smaller(ratios),
        d_par_corrected=corrected["d_par"],
        d_2_corrected=corrected["d_2"],
        d_align_corrected=_smaller(corrected),
        b_star=x.tr_sigma2 / x.mu_sigma_mu if x.tr_sigma2 > 0 and x.mu_sigma_mu > 0 else None,
        kurtosis_ratio=ratio(x.mean_q4, x.mean_q2**2),
        gradient_noise_scale=ratio(x.tr_sigma, x.m2),
        gsnr=ratio(x.m2, x.tr_sigma),
        participation_ratio=ratio(x.tr_sigma_squared, x.tr_sigma2),
        detected=False if _signal(x) <= 0 else None,
        correction=None if resampled is None else f"jackknife, {resampled.kind}",
        standard_errors=MappingProxyType(errors),
        sketch_errors=sketch_errors,
        representation=moments.representation,
        unit=moments.metadata.get("unit"),
        positions=moments.metadata.get("positions"),
        scaled=x,
        exponent=e,
    )


def _smaller(values: Mapping[str, float | None]) -> float | None:
    d_par, d_2 = values["d_par"], values["d_2"]
    return None if d_par is None or d_2 is None else min(d_par, d_2)


def rescale(value: float, exponent: int) -> float:
    """value 2^exponent, infinite when it does not fit a float."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(math.inf, value)


@dataclass(frozen=True)
class PlugIn:
    """Plug-in numbers: the sample's own mean and covariance put into the formulas.

    With divisor n they are the *population* numbers of drawing with replacement from the sample. As estimates
    of the law behind it they are biased: m2 by tr(Sigma)/n and tr Sigma^2 by about (tr Sigma)^2/n upwards.
    """

    n: int
    d: int
    m2: float
    mu_sigma_mu: float
    tr_sigma2: float
    tr_sigma: float
    d_par: float | None
    d_2: float | None
    d_align: float | None

    def B_exact(self, M: int, K: int) -> float | None:
        """V / (V + m2^2), exactly valid for draws with replacement from the sample."""
        return exact_bound(self.m2**2, self.mu_sigma_mu, self.tr_sigma2, M, K)

    def B_align(self, M: int, K: int) -> float | None:
        """1 / (1 + n_eff d_align) for draws with replacement from the sample."""
        return alignment_bound(self.m2**2, self.mu_sigma_mu, self.tr_sigma2, M, K)


def plug_in(moments: Any, *, divisor: Literal["n", "n-1"] = "n") -> PlugIn:
    r"""Plug-in numbers of a sample, for comparison and for resampling experiments; biased as estimates.

    .. math::
        \|\bar q\|^2,\quad \bar q^\top S \bar q,\quad \operatorname{tr} S^2,\qquad
        S = \tfrac1n \sum (q_i - \bar q)(q_i - \bar q)^\top

    Parameters
    ----------
    moments : GradientMoments, or an array (n, d).
    divisor : "n" for the population of draws with replacement; "n-1" for the usual sample covariance, with
        which 1/d_par is n theta^2 of the inner-product test.

    Raises
    ------
    ValueError
        If there are no units, or one unit and divisor "n-1", or the divisor is something else.

    Notes
    -----
    Papers 1 and 2 use these numbers.

    Examples
    --------
    >>> plug_in([[0.0], [1.0]]).d_par
    1.0
    """
    if not isinstance(moments, GradientMoments):
        moments = GradientMoments.from_array(moments)
    if divisor not in ("n", "n-1"):
        raise ValueError(f"divisor={divisor!r}: expected 'n' or 'n-1'")
    require_units(moments.n, 1 if divisor == "n" else 2)
    sums, e = moments.sums()
    x = Sums(*(sum(column) / len(sums) for column in zip(*sums, strict=True)))
    n = moments.n
    # In terms of the reference c and s = sum x: |s|^2, c^T C s and s^T C s from the off-diagonal sums.
    ss, ccs, scs = x.S + x.P2, x.HR + x.HP, x.R2 + 2 * x.PR + x.P4
    m2 = x.cc + 2 * x.H1 / n + ss / n**2
    a = (x.H2 + 2 * ccs / n + scs / n**2 - (x.H1 + ss / n) ** 2 / n) / n
    t = (x.F2 + x.P4 - 2 * scs / n + ss * ss / n**2) / n**2
    trace = (x.P2 - ss / n) / n
    if divisor == "n-1":
        up = n / (n - 1)
        a, t, trace = up * a, up * up * t, up * trace
    if trace <= NO_SPREAD * m2:
        a = t = trace = 0.0
    d_par, d_2 = ratio(m2**2, a), ratio(m2**2, t)
    return PlugIn(
        n,
        moments.d,
        rescale(m2, 2 * e),
        rescale(a, 4 * e),
        rescale(t, 4 * e),
        rescale(trace, 2 * e),
        d_par,
        d_2,
        _smaller({"d_par": d_par, "d_2": d_2}),
    )
