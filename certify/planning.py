"""Planning: sample sizes M and K for a target bound, and how many units their estimate itself needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from certify.asymptotic import PARALLEL, TRACE, Combination, Replicated, inverse, separate
from certify.estimators import estimate
from certify.intervals import check_confidence, check_count, check_probability
from certify.moments import GradientMoments
from certify.replication import replicated

BoundName = Literal["exact", "align", "gaussian"]
BOUNDS: tuple[str, ...] = ("exact", "align", "gaussian")
LARGEST = 10**12
_SEARCH = 200_000


@dataclass(frozen=True)
class Sizes:
    """A choice of M and K, what it costs and what the chosen criterion gives there."""

    M: int
    K: int
    cost: float
    value: float

    def __str__(self) -> str:
        return f"M = {self.M}, K = {self.K} (cost {self.cost:.6g}, criterion {self.value:.4g})"


@dataclass(frozen=True)
class Plan:
    """Sizes for a target, from a pilot; ``cautious`` uses the unfavourable limits of the pilot.

    ``sizes`` is None where the pilot detects no signal; ``cautious`` is None where its limits are infinite.
    The three ``units_*`` scale the pilot's spread by 1/sqrt(n): orders of magnitude, not guarantees.
    """

    target: float
    bound: str
    cost_ratio: float
    confidence: float
    relative: float
    n: int
    d: int
    unit: str
    d_par: float | None
    d_2: float | None
    d_align: float | None
    b_star: float | None
    detected: bool
    sizes: Sizes | None
    cautious: Sizes | None
    units_to_detect: int | None
    """Units for the interval of m2 to leave 0."""
    units_for_precision: int | None
    """Units for a relative standard error ``relative`` of the odds V/m2^2 at ``sizes``."""
    units_for_certificate: int | None
    """Units for an upper limit of the bound at most ``target`` at the ``cautious`` sizes."""

    def __str__(self) -> str:
        what = {
            "exact": "B_exact",
            "align": "B_align",
            "gaussian": "the normal approximation of P(T <= 0), not a bound,",
        }[self.bound]
        lines = [f"Target: {what} at most {self.target:g}, pilot of n = {self.n} {self.unit}s (d = {self.d})"]
        if not self.detected:
            lines.append("  no signal detected in the pilot: no M and K can be named")
        else:
            numbers = {"d_par": self.d_par, "d_2": self.d_2, "b*": self.b_star}
            lines.append("  " + ", ".join(f"{k} = {v:.4g}" for k, v in numbers.items() if v is not None))
        if self.sizes is not None:
            lines.append(f"  at the estimates:  {self.sizes}")
        if self.cautious is not None:
            lines.append(f"  at the {100 * self.confidence:g} % limits: {self.cautious}")
        elif self.detected:
            lines.append(f"  at the {100 * self.confidence:g} % limits: no finite sizes; enlarge the pilot")
        if self.sizes is not None:
            lines.append(f"  a train unit costs {self.cost_ratio:g} test units")
        for label, value in (
            ("to detect the signal", self.units_to_detect),
            (f"for V/m2^2 within {100 * self.relative:g} %", self.units_for_precision),
            ("to certify the target at the cautious sizes", self.units_for_certificate),
        ):
            if value is not None:
                lines.append(f"  units {label}: about {value}")
        return "\n".join(lines)


def criterion_odds(target: float, bound: str) -> float:
    """V/m2^2 (or its counterpart) at which the criterion equals ``target``.

    ``target/(1 - target)`` for the two bounds, ``1/z^2`` with Phi(-z) = target for the normal approximation.

    Examples
    --------
    >>> criterion_odds(0.5, "exact")
    1.0
    >>> round(criterion_odds(0.05, "gaussian"), 4)
    0.3696
    """
    if bound not in BOUNDS:
        raise ValueError(f"bound={bound!r}: expected one of {', '.join(BOUNDS)}")
    top = 0.5 if bound == "gaussian" else 1.0
    check_probability(f"bound={bound!r}, target", target, top)
    return float(special.ndtri(target) ** -2) if bound == "gaussian" else target / (1 - target)


def sizes_for(
    target: float,
    *,
    d_par: float,
    d_2: float,
    bound: BoundName = "exact",
    cost_ratio: float = 1.0,
    M: int | None = None,
    K: int | None = None,
) -> Sizes:
    r"""Cheapest M and K that bring the criterion to the target, for given dimensions.

    .. math::
        \min\ \kappa M + K \quad\text{with}\quad
        (1/M + 1/K) / d_\parallel + 1 / (M K d_2) \le c

    where c = target/(1 - target); for ``align`` both dimensions are replaced by the smaller one, for
    ``gaussian`` c = 1/z^2.  The minimum over whole numbers is exact.

    Parameters
    ----------
    target : float
        Value to be reached.
    d_par, d_2 : float
        Positive; may be infinite.
    bound : {"exact", "align", "gaussian"}
        ``gaussian`` is the normal approximation of P(T <= 0): sharper, but not a bound.
    cost_ratio : float
        Cost kappa of a train unit in test units.
    M, K : int, optional
        Fix one of the two.

    Raises
    ------
    ValueError
        If an argument is out of range, both sizes are fixed, or the fixed one is too small for the target.

    Notes
    -----
    Paper 1, alignment theorem, solved for the sizes.

    Examples
    --------
    >>> print(sizes_for(0.1, d_par=0.05, d_2=1e-4))
    M = 530, K = 530 (cost 1060, criterion 0.09997)
    >>> print(sizes_for(0.1, d_par=0.05, d_2=1e-4, K=200))
    M = 6300, K = 200 (cost 6500, criterion 0.1)
    """
    c = criterion_odds(target, bound)
    for name, value in (("d_par", d_par), ("d_2", d_2), ("cost_ratio", cost_ratio)):
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not (number and value > 0) or (name == "cost_ratio" and math.isinf(value)):
            raise ValueError(
                f"{name}={value!r}: expected a positive number; no plan without a detected signal"
            )
    if M is not None and K is not None:
        raise ValueError(f"M={M}, K={K}: expected at most one of the two to be fixed")
    if bound == "align":
        d_par = d_2 = min(d_par, d_2)
    x, y = 1 / d_par, 1 / d_2
    if M is not None:
        M = check_count("M", M)
        best = (M, _partner(M, x, y, c, "M"))
    elif K is not None:
        K = check_count("K", K)
        best = (_partner(K, x, y, c, "K"), K)
    else:
        best = _cheapest(x, y, c, cost_ratio)
    odds = _odds(*best, x, y)
    value = float(special.ndtr(-(odds**-0.5))) if bound == "gaussian" and odds > 0 else odds / (1 + odds)
    return Sizes(*best, cost_ratio * best[0] + best[1], value)


def gaussian_sizes(mu: Any, Sigma: Any, *, target: float, cost_ratio: float = 1.0) -> Sizes:
    """Smallest sizes, in the cheapest ratio of the normal approximation, with P(T <= 0) <= target exactly.

    For a known Gaussian law: the probability itself is inverted numerically, not a bound.

    Parameters
    ----------
    mu : array (d,)
        Mean, in the eigenbasis if ``Sigma`` holds eigenvalues.
    Sigma : array (d, d) or (d,)
        Covariance or its eigenvalues.
    target, cost_ratio : float
        As in :func:`sizes_for`.

    Raises
    ------
    ValueError
        If mu is 0 or an argument is out of range.

    Notes
    -----
    ``theory.exact.gaussian_log_probability``.

    Examples
    --------
    >>> gaussian_sizes([1.0, 0.0], [1.0, 1.0], target=0.01).M
    8
    """
    from theory.exact import gaussian_log_probability
    from theory.laws import GaussianLaw
    from theory.moments import Moments

    law = GaussianLaw(np.asarray(mu, dtype=np.float64), np.asarray(Sigma, dtype=np.float64))
    m2, a, t = law.scalars()
    if m2 == 0:
        raise ValueError("mu=0: expected a nonzero mean; without signal no sizes reach a target below 1/2")
    m = Moments(m2, a, t)
    guess = sizes_for(target, d_par=float(m.d_par), d_2=float(m.d_2), bound="gaussian", cost_ratio=cost_ratio)
    share = guess.M / (guess.M + guess.K)

    def at(total: int) -> tuple[int, int, float]:
        M = min(max(1, round(share * total)), total - 1)
        return M, total - M, float(gaussian_log_probability(law.mu, law.Sigma, M, total - M))

    low, high, wanted = 1, 2, math.log(target)
    while at(high)[2] > wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle)[2] <= wanted else (middle, high)
    M, K, value = at(high)
    return Sizes(M, K, cost_ratio * M + K, math.exp(value))


def _odds(M: int, K: int, x: float, y: float) -> float:
    return x / M + x / K + y / M / K


def _partner(M: int, x: float, y: float, c: float, name: str) -> int:
    """Smallest K for a given M (the condition is symmetric in both)."""
    room = c - x / M
    if room <= 0:
        least = math.floor(x / c) + 1
        raise ValueError(
            f"{name}={M}: expected at least {least}; below it no size of the other mean is enough"
        )
    K = max(1, math.ceil((x + y / M) / room))
    if K > LARGEST:
        raise ValueError(f"{name}={M}: the other size would exceed {LARGEST:.0e}; choose a larger {name}")
    # Rounding can move the ceiling by one.
    while K > 1 and _odds(M, K - 1, x, y) <= c:
        K -= 1
    while _odds(M, K, x, y) > c:
        K += 1
    return K


def _cheapest(x: float, y: float, c: float, ratio: float) -> tuple[int, int]:
    """Exact minimum of ratio M + K over whole numbers."""
    # With real sizes, u = c M - x solves u = sqrt((x^2 + c y)/ratio) at the minimum.
    middle = (x + math.sqrt((x * x + c * y) / ratio)) / c
    if middle > LARGEST or ratio * middle > LARGEST:
        raise ValueError(
            f"target odds {c:.3g}: more than {LARGEST:.0e} units would be needed; relax the target"
        )
    least = max(1, math.floor(x / c) + 1)
    start = max(least, round(middle))
    best = (start, _partner(start, x, y, c, "M"))
    price = ratio * best[0] + best[1]
    # No M outside the real-valued level set of this price can be cheaper, and that set is an interval.
    low = max(least, math.floor(middle - _SEARCH / 2))
    grid: NDArray[np.float64] = np.arange(low, low + _SEARCH, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        real = (x + y / grid) / (c - x / grid)
    real[c * grid - x <= 0] = np.inf
    for M in grid[ratio * grid + np.maximum(real, 1.0) <= price * (1 + 1e-12)]:
        whole = int(M)
        K = max(1, math.ceil((x + y / whole) / (c - x / whole) - 1e-9))
        if ratio * whole + K < price:
            K = _partner(whole, x, y, c, "M")
            if ratio * whole + K < price:
                best, price = (whole, K), ratio * whole + K
    return best


def plan(
    pilot: Any,
    *,
    target: float,
    bound: BoundName = "exact",
    cost_ratio: float = 1.0,
    M: int | None = None,
    K: int | None = None,
    confidence: float = 0.95,
    relative: float = 0.2,
) -> Plan:
    """Sizes M and K for a target bound, the cheapest split, and the units that the estimate itself needs.

    ``pilot``: :class:`GradientMoments` or an array (n, d), n >= 6.

    Parameters
    ----------
    pilot : GradientMoments or array (n, d)
        A first sample of independent units.
    target, bound, cost_ratio, M, K
        As in :func:`sizes_for`.
    confidence : float
        Level of the limits behind the cautious sizes (d_par and d_2 share the error).
    relative : float
        Wanted relative standard error of V/m2^2.

    Raises
    ------
    ValueError
        If the pilot is too small or an argument is out of range.

    Notes
    -----
    Paper 1, alignment theorem, solved for the sizes; limits as in ``certify.asymptotic``.

    Examples
    --------
    >>> Q = 1 + np.random.default_rng(0).standard_normal((400, 3))
    >>> p = plan(Q, target=0.01)
    >>> p.sizes.M == p.sizes.K, p.cautious.M > p.sizes.M
    (True, True)
    """
    given = pilot if isinstance(pilot, GradientMoments) else GradientMoments.from_array(pilot)
    c = criterion_odds(target, bound)
    check_confidence(confidence)
    if not 0 < relative < math.inf:
        raise ValueError(f"relative={relative!r}: expected a positive number, e.g. 0.2")
    found = estimate(given, correct=False)
    r = replicated(given)
    alpha = 1 - confidence
    m2, error = float(r.point[0]), r.spread(lambda v: v[:, 0])
    t = r.quantile(alpha / 2)
    detected = m2 - t * error > 0 and float(r.point[1]) > 0
    fixed = {"bound": bound, "cost_ratio": cost_ratio, "M": M, "K": K}
    sizes = cautious = None
    if detected:
        if found.d_par is not None and found.d_2 is not None:
            sizes = sizes_for(target, d_par=found.d_par, d_2=found.d_2, **fixed)  # type: ignore[arg-type]
        low_par, low_2 = (inverse(separate(r, k, alpha / 2)[1]) for k in (PARALLEL, TRACE))
        if low_par > 0 and low_2 > 0:
            cautious = sizes_for(target, d_par=low_par, d_2=low_2, **fixed)  # type: ignore[arg-type]
    return Plan(
        target,
        bound,
        cost_ratio,
        confidence,
        relative,
        given.n,
        given.d,
        given.metadata.get("unit", "example"),
        found.d_par,
        found.d_2,
        found.d_align,
        found.b_star,
        detected,
        sizes,
        cautious,
        _scaled(given.n, t * error / m2) if m2 > 0 else None,
        None if sizes is None else _scaled(given.n, _spread(r, sizes) / relative),
        # No certificate is issued for a normal approximation.
        None
        if cautious is None or bound == "gaussian"
        else _units_to_certify(given.n, r, cautious, c, alpha),
    )


def _spread(r: Replicated, at: Sizes) -> float:
    """Relative standard error of V/m2^2 at the given sizes, to first order."""
    k = Combination.variance(at.M, at.K)
    v = k.a * float(r.point[2]) + k.t * float(r.point[3])
    e = float(r.point[0])
    if v <= 0:
        return math.inf if v < 0 else 0.0
    return r.spread(lambda x: (k.a * x[:, 2] + k.t * x[:, 3]) / v - 2 * x[:, 0] / e)


def _units_to_certify(n: int, r: Replicated, at: Sizes, c: float, alpha: float) -> int | None:
    """n at which the upper limit of the odds (see ``separate``) reaches c, to first order in the spreads."""
    k = Combination.variance(at.M, at.K)
    v, e = k.a * float(r.point[2]) + k.t * float(r.point[3]), float(r.point[0])
    if v <= 0:
        return n
    if v / e**2 >= c:
        return None
    relative = r.spread(lambda x: k.a * x[:, 2] + k.t * x[:, 3]) / v + 2 * r.spread(lambda x: x[:, 0]) / e
    return _scaled(n, r.quantile(alpha / 2) * relative / math.log(c * e**2 / v))


def _scaled(n: int, times: float) -> int | None:
    """n times^2, at least 6; None beyond any sense."""
    needed = n * times * times
    return max(6, math.ceil(needed)) if needed < LARGEST else None
