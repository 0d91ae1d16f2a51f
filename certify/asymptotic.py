"""Large-sample limits of V/m2^2, a/m2^2 and t/m2^2 from the jackknife or the bootstrap.

All three are odds: V/m2^2 = B_exact/(1 - B_exact), a/m2^2 = 1/d_par, t/m2^2 = 1/d_2.  Near m2 = 0 a ratio of
estimates means nothing, so no limit here uses one: the denominator enters through the limits of m2 itself,
and where its interval covers 0 the upper limit of the odds is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from certify.estimators import jackknife

Float = NDArray[np.float64]
Method = Literal["separate", "mover", "fieller", "bootstrap"]
METHODS: tuple[str, ...] = ("separate", "mover", "fieller", "bootstrap")


class Combination(NamedTuple):
    """The numerator ``a_weight * a + t_weight * t`` of an odds."""

    a: float
    t: float

    @classmethod
    def variance(cls, M: int, K: int) -> Combination:
        """V = (1/M + 1/K) a + t/(MK)."""
        return cls(1 / M + 1 / K, 1 / M / K)


PARALLEL = Combination(1.0, 0.0)
TRACE = Combination(0.0, 1.0)


@dataclass(frozen=True, eq=False)
class Replicated:
    """Estimates (m2, m2^2, a, t) of a sample and of the sample without each unit (or each group of units).

    With two samples, the deletions from one follow those from the other and their variances add. Where the
    estimates come from sketches, the same hashes serve all deletions, so the variance of the hashes is taken
    from independent sketches and added.

    Parameters
    ----------
    point : array (4,)
        Estimates from all units, in any common scale.
    without : array (groups, 4)
        Estimates without group j.
    sizes : array (groups,)
        Units in group j; all ones for the ordinary jackknife.
    exponent : int
        The estimates belong to gradients times 2^-exponent.
    split : int
        Number of deletions from the first of two samples; 0 for one sample.
    sketches : array (sketches, 4), optional
        Estimates of the whole sample, one row for each independent sketch; `point` is their mean.
    """

    point: Float
    without: Float
    sizes: Float
    exponent: int = 0
    split: int = 0
    sketches: Float | None = None
    _known: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    @property
    def groups(self) -> int:
        """Number of deletions."""
        return int(self.without.shape[0])

    @property
    def all(self) -> Float:
        """Estimates of all deletions and sketches, one row each."""
        return self.without if self.sketches is None else np.concatenate([self.without, self.sketches])

    def spread(self, f: Callable[[Float], Float], name: str | None = None) -> float:
        """Delete-group jackknife standard error of ``f``, a function of rows of estimates.

        With a ``name`` it is computed once: limits at many levels ask for the same few errors.
        """
        if name is None:
            return self._spread(f)
        if name not in self._known:
            self._known[name] = self._spread(f)
        return self._known[name]

    def _spread(self, f: Callable[[Float], Float]) -> float:
        whole, variance = float(f(self.point[None, :])[0]), 0.0
        for part in self._samples:
            sizes = self.sizes[part]
            units = int(sizes.sum())
            _, error = jackknife(whole, f(self.without[part]), units - sizes, units)
            variance += math.inf if error is None else error**2
        if self.sketches is not None:
            variance += float(np.var(f(self.sketches), ddof=1)) / len(self.sketches)
        return math.sqrt(variance)

    def lowest(self, name: str, f: Callable[[Float], Float]) -> float:
        """Smallest value of ``f`` over all deletions and sketches, kept under ``name``; NaN if one is NaN."""
        key = f"lowest {name}"
        if key not in self._known:
            self._known[key] = float(f(self.all).min())
        return self._known[key]

    @property
    def _samples(self) -> tuple[slice, ...]:
        return (slice(0, self.split), slice(self.split, None)) if self.split else (slice(None),)

    @property
    def units(self) -> int:
        """Units in all groups together."""
        return int(self.sizes.sum())

    def quantile(self, alpha: float) -> float:
        """Upper alpha quantile of Student's t; degrees of freedom of the scarcest source of spread."""
        least = min(len(self.sizes[part]) for part in self._samples)
        if self.sketches is not None:
            least = min(least, len(self.sketches))
        return -float(special.stdtrit(least - 1, alpha))


def signal_limits(r: Replicated, alpha: float) -> tuple[float, float]:
    """Lower and upper limit of m2, each one-sided at level alpha."""
    half = r.quantile(alpha) * r.spread(lambda x: x[:, 0], "m2")
    return float(r.point[0]) - half, float(r.point[0]) + half


def _numerator(r: Replicated, k: Combination) -> tuple[float, Callable[[Float], Float]]:
    def value(x: Float) -> Float:
        return k.a * x[:, 2] + k.t * x[:, 3]

    return float(value(r.point[None, :])[0]), value


def numerator_limits(r: Replicated, k: Combination, alpha: float) -> tuple[float, float, float]:
    """Estimate and limits of the numerator, on the log scale wherever all estimates are positive."""
    v, value = _numerator(r, k)
    t = r.quantile(alpha)
    if v > 0 and r.lowest(f"{k}", value) > 0:
        half = t * r.spread(lambda x: np.log(value(x)), f"log {k}")
        return v, v * math.exp(-min(half, 700.0)), v * math.exp(min(half, 700.0))
    half = t * r.spread(value, f"{k}")
    return v, v - half, v + half


def separate(r: Replicated, k: Combination, alpha: float) -> tuple[float, float]:
    """Lower and upper limit of numerator/m2^2, each at level alpha, from limits of both at alpha/2.

    Numerator below its upper limit and m2 above its lower limit imply the limit of the ratio, whatever their
    dependence (Bonferroni).
    """
    _, v_low, v_high = numerator_limits(r, k, alpha / 2)
    e_low, e_high = signal_limits(r, alpha / 2)
    high = math.inf if e_low <= 0 or v_high < 0 else v_high / e_low**2
    return (max(v_low, 0.0) / e_high**2 if e_high > 0 else 0.0), high


def mover(r: Replicated, k: Combination, alpha: float) -> tuple[float, float]:
    r"""Lower and upper limit of numerator/m2^2, each at level alpha, recovered from separate limits.

    With x = sqrt(numerator) and e = m2, limits x_L, x_U, e_L, e_U of each alone, the upper limit solves
    :math:`(x - \rho e)^2 = (x_U - x)^2 + \rho^2 (e - e_L)^2` and is squared.  The correlation of x and e is
    taken as 0: it is positive on gradient-like laws (a few heavy units carry both), where this is the
    cautious choice.

    Notes
    -----
    Newcombe, "MOVER-R confidence intervals for ratios and products of two independently estimated
    quantities", Statistical Methods in Medical Research 25 (2016).
    """
    v, v_low, v_high = numerator_limits(r, k, alpha)
    e = float(r.point[0])
    e_low, e_high = signal_limits(r, alpha)
    x = math.sqrt(max(v, 0.0))  # only the centre of the formula: a negative estimate keeps its limits
    x_low, x_high = math.sqrt(max(v_low, 0.0)), math.sqrt(max(v_high, 0.0))
    if e_low <= 0 or v_high < 0:
        return 0.0, math.inf
    p, q = x_high * (2 * x - x_high), e_low * (2 * e - e_low)
    high = (x * e + math.sqrt(max((x * e) ** 2 - p * q, 0.0))) / q
    p, q = x_low * (2 * x - x_low), e_high * (2 * e - e_high)
    root = x * e + math.sqrt(max((x * e) ** 2 - p * q, 0.0))
    low = p / root if root > 0 else 0.0
    return min(max(low, 0.0), high) ** 2, high**2  # equal up to rounding where e is known well


def fieller(r: Replicated, k: Combination, alpha: float) -> tuple[float, float]:
    r"""Lower and upper limit of numerator/m2^2 by inverting the test of "numerator - c m2^2 = 0" for each c.

    The statistic is linear in the unbiased estimates, so no ratio is formed; where m2^2 itself is not
    significantly positive no c is excluded from above and the limit is infinite.

    Notes
    -----
    Fieller, "Some problems in interval estimation", JRSS-B 16 (1954).
    """
    v, value = _numerator(r, k)
    s, t = float(r.point[1]), r.quantile(alpha)
    vv = r.spread(value, f"{k}") ** 2
    ss = r.spread(lambda x: x[:, 1], "m2^2") ** 2
    vs = (r.spread(lambda x: value(x) + x[:, 1], f"{k} + m2^2") ** 2 - vv - ss) / 2
    A, B, C = s * s - t * t * ss, v * s - t * t * vs, v * v - t * t * vv
    if s <= 0 or A <= 0:
        return 0.0, math.inf
    root = math.sqrt(max(B * B - A * C, 0.0))
    high = (B + root) / A
    return max((B - root) / A, 0.0), (high if high >= 0 else math.inf)


def inverse(odds: float) -> float:
    """1/c with 1/0 = inf and 1/inf = 0: the dimension that belongs to odds.

    Examples
    --------
    >>> inverse(0.0), inverse(math.inf)
    (inf, 0.0)
    """
    if odds == 0:
        return math.inf
    return 0.0 if math.isinf(odds) else 1.0 / odds


def smaller_dimension(r: Replicated, alpha: float) -> tuple[float, float]:
    """Lower and upper limit of d_align = min(d_par, d_2), each at level alpha.

    The lower limit needs no correction: "d_align <= c" is refuted by refuting both dimensions. The upper one
    shares its error between them.
    """
    low = min(inverse(separate(r, k, alpha)[1]) for k in (PARALLEL, TRACE))
    high = min(inverse(separate(r, k, alpha / 2)[0]) for k in (PARALLEL, TRACE))
    return low, high


def percentile(samples: Float, k: Combination, alpha: float) -> tuple[float, float]:
    """Lower and upper limit of numerator/m2^2 as bootstrap percentiles; samples (B, 4) of (m2, m2^2, a, t).

    Resamples without signal count as infinite odds.

    Notes
    -----
    Efron, "Better bootstrap confidence intervals", JASA 82 (1987), the plain percentile interval.
    """
    v, e = k.a * samples[:, 2] + k.t * samples[:, 3], samples[:, 0]
    odds = np.full(v.shape, np.inf)
    np.divide(v, e * e, out=odds, where=e > 0)
    odds.sort()
    tail = math.floor(alpha * (odds.size + 1)) - 1
    if tail < 0:
        raise ValueError(
            f"resamples={odds.size}: expected at least {math.ceil(1 / alpha)} for this confidence"
        )
    return max(float(odds[tail]), 0.0), float(odds[-1 - tail])
