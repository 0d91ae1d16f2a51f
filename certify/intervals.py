"""Confidence intervals: the result type, and the exact interval of a proportion used throughout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from scipy import special

Alternative = Literal["two-sided", "less", "greater"]
_ALTERNATIVES = ("two-sided", "less", "greater")


@dataclass(frozen=True)
class ConfidenceInterval:
    """An interval with all that is needed to read it: estimate, level, method, size, unit and assumptions.

    ``P(low <= truth <= high) >= confidence`` over the sample, under ``assumptions``.  An infinite limit says
    that the data give no limit on that side; ``estimate`` is None where no point estimate exists.

    Parameters
    ----------
    estimate : float or None
        Point estimate, never clamped; it may lie outside the interval (unbiased estimates can be negative).
    low, high : float
        Limits; ``-inf`` or ``inf`` where there is none.
    confidence : float
        Level in (0, 1).
    method : str
        How the interval was made, e.g. ``"clopper-pearson"``.
    n : int
        Number of independent units behind it.
    unit : str
        What one unit is, e.g. ``"example"``.
    assumptions : tuple of str
        What must hold for the stated confidence.
    alternative : {"two-sided", "less", "greater"}
        ``"less"`` is a one-sided upper limit, ``"greater"`` a one-sided lower limit (scipy's names).

    Raises
    ------
    ValueError
        If a number is NaN, ``low > high`` or the confidence is outside (0, 1).

    Examples
    --------
    >>> ConfidenceInterval(0.5, 0.4, 0.6, 0.95, "example", 100, "example", ("iid",)).width
    0.2
    """

    estimate: float | None
    low: float
    high: float
    confidence: float
    method: str
    n: int
    unit: str
    assumptions: tuple[str, ...] = ()
    alternative: str = "two-sided"

    def __post_init__(self) -> None:
        for name in ("estimate", "low", "high", "confidence"):
            value = getattr(self, name)
            if value is not None and math.isnan(value):
                raise ValueError(
                    f"{name}={value}: expected a number; use None or an infinite limit where none exists"
                )
        if self.low > self.high:
            raise ValueError(f"low={self.low}, high={self.high}: expected low <= high")
        check_confidence(self.confidence)
        check_alternative(self.alternative)

    @property
    def width(self) -> float:
        """``high - low``, rounded to 12 significant digits."""
        width = self.high - self.low
        return width if math.isinf(width) else float(f"{width:.12g}")

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        estimate = "no estimate" if self.estimate is None else f"{self.estimate:.4g}"
        level = f"{100 * self.confidence:.6g} %"
        if self.alternative == "less":
            return f"{estimate}, at most {self.high:.4g} ({level}, {self.method}, n={self.n})"
        if self.alternative == "greater":
            return f"{estimate}, at least {self.low:.4g} ({level}, {self.method}, n={self.n})"
        return f"{estimate} [{self.low:.4g}, {self.high:.4g}] ({level}, {self.method}, n={self.n})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: None where there is no limit on that side.

        A limit that is infinite towards the other side (d_par is infinite where Sigma = 0) becomes "inf".

        >>> ConfidenceInterval(None, 1.0, float("inf"), 0.9, "x", 5, "example").to_dict()["high"] is None
        True
        """
        return {
            "estimate": None if self.estimate is None else _encoded(self.estimate, math.nan),
            "low": _encoded(self.low, -math.inf),
            "high": _encoded(self.high, math.inf),
            "confidence": self.confidence,
            "method": self.method,
            "n": self.n,
            "unit": self.unit,
            "assumptions": list(self.assumptions),
            "alternative": self.alternative,
        }

    @classmethod
    def from_dict(cls, payload: dict[str, Any]) -> ConfidenceInterval:
        """Inverse of :meth:`to_dict`."""
        values = dict(payload)
        values["estimate"] = None if values["estimate"] is None else float(values["estimate"])
        values["low"] = -math.inf if values["low"] is None else float(values["low"])
        values["high"] = math.inf if values["high"] is None else float(values["high"])
        values["assumptions"] = tuple(values["assumptions"])
        return cls(**values)


def _encoded(limit: float, nothing: float) -> float | str | None:
    if limit == nothing:
        return None
    return str(limit) if math.isinf(limit) else limit


def check_confidence(confidence: float) -> float:
    """Return ``confidence`` if it lies strictly between 0 and 1, else raise ValueError."""
    number = isinstance(confidence, Real) and not isinstance(confidence, bool)
    if not (number and 0 < confidence < 1):
        raise ValueError(f"confidence={confidence!r}: expected a number in (0, 1), e.g. 0.95 for 95 %")
    return float(confidence)


def check_probability(name: str, value: Any, top: float = 1.0) -> float:
    """Return ``value`` as a float if it lies strictly between 0 and ``top``, else raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < top:
        raise ValueError(f"{name}={value!r}: expected a probability in (0, {top:g})")
    return float(value)


def check_alternative(alternative: str) -> str:
    """Return ``alternative`` if it is one of scipy's three names, else raise ValueError."""
    if alternative not in _ALTERNATIVES:
        raise ValueError(
            f"alternative={alternative!r}: expected one of {', '.join(map(repr, _ALTERNATIVES))}"
        )
    return alternative


def check_count(name: str, value: object, *, least: int = 1) -> int:
    """Return ``value`` as an int if it is a whole number of at least ``least``, else raise."""
    try:
        whole = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name}={value!r}: expected a whole number of at least {least}") from None
    if isinstance(value, bool) or whole != value:
        raise TypeError(f"{name}={value!r}: expected a whole number of at least {least}")
    if whole < least:
        raise ValueError(f"{name}={value!r}: expected a whole number of at least {least}")
    return whole


def _log_choose(n: int, k: int) -> float:
    return float(special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1))


def _lower_limit(events: int, trials: int, alpha: float) -> float:
    """p with P(X >= events; p) = alpha: the exact lower limit."""
    if events == 0:
        return 0.0
    if events == trials:
        return math.exp(math.log(alpha) / trials)
    p = float(special.betaincinv(events, trials - events + 1, alpha))
    # P(X >= k) <= C(n, k) p^k: its root is a rigorous, slightly smaller limit for levels at which the
    # library's inversion fails (it returns NaN or a wrong value near alpha = 1e-300).
    safe = math.exp((math.log(alpha) - _log_choose(trials, events)) / events)
    if not (0.0 < p < 1.0):
        return safe
    return p if special.betainc(events, trials - events + 1, p) <= alpha * (1 + 1e-6) else min(safe, p)


def _upper_limit(events: int, trials: int, alpha: float) -> float:
    """p with P(X <= events; p) = alpha: the exact upper limit."""
    if events == trials:
        return 1.0
    if events == 0:
        return -math.expm1(math.log(alpha) / trials)
    p = float(special.betainccinv(events + 1, trials - events, alpha))
    safe = -math.expm1((math.log(alpha) - _log_choose(trials, events)) / (trials - events))
    if not (0.0 < p <= 1.0):
        return safe
    # An exact 1.0 is valid (vacuous): the true limit is closer to 1 than floating point resolves.
    return p if special.betaincc(events + 1, trials - events, p) <= alpha * (1 + 1e-6) else max(safe, p)


def clopper_pearson(
    events: int,
    trials: int,
    confidence: float = 0.95,
    alternative: Alternative = "two-sided",
    *,
    alpha: float | None = None,
    unit: str = "trial",
) -> ConfidenceInterval:
    """Exact (Clopper-Pearson) interval of a proportion: ``events`` out of ``trials`` independent trials.

    ``P(X >= events; low) = P(X <= events; high) = alpha/2``, closed forms at the ends: with no event the
    upper limit is ``1 - (alpha/2)^(1/trials)``, with only events the lower limit is ``(alpha/2)^(1/trials)``.

    Plain integers in, plain floats out.

    Parameters
    ----------
    events, trials : int
        ``0 <= events <= trials`` and ``trials >= 1``.
    confidence : float
        Level; the coverage is at least this for every true proportion.
    alternative : {"two-sided", "less", "greater"}
        ``"less"`` gives the one-sided upper limit ``[0, high]``, ``"greater"`` the lower limit ``[low, 1]``.
    alpha : float, optional
        ``1 - confidence`` given directly; levels such as 1e-20 cannot be written as a confidence in float64.
    unit : str
        What one trial is, recorded in the result.

    Raises
    ------
    ValueError
        If ``trials`` is 0 (a proportion of nothing has no interval), ``events`` is out of range, or the level
        is outside (0, 1).
    TypeError
        If a count is not a whole number.

    Notes
    -----
    Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial",
    Biometrika 26 (1934).

    Examples
    --------
    >>> print(clopper_pearson(0, 100, alternative="less"))
    0, at most 0.02951 (95 %, clopper-pearson, n=100)
    >>> clopper_pearson(0, 0)
    Traceback (most recent call last):
    ...
    ValueError: trials=0: expected at least one trial; an empty sample has no interval
    """
    events = check_count("events", events, least=0)
    trials = check_count("trials", trials, least=0)
    if trials == 0:
        raise ValueError("trials=0: expected at least one trial; an empty sample has no interval")
    if events > trials:
        raise ValueError(f"events={events}, trials={trials}: expected events <= trials")
    if alpha is None:
        confidence = check_confidence(confidence)
        alpha = 1.0 - confidence
    elif not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha={alpha!r}: expected a number in (0, 1), e.g. 0.05")
    else:
        confidence = min(1.0 - alpha, math.nextafter(1.0, 0.0))
    check_alternative(alternative)
    tail = alpha / 2 if alternative == "two-sided" else alpha
    low = 0.0 if alternative == "less" else _lower_limit(events, trials, tail)
    high = 1.0 if alternative == "greater" else _upper_limit(events, trials, tail)
    return ConfidenceInterval(
        events / trials,
        low,
        high,
        confidence,
        "clopper-pearson",
        trials,
        unit,
        ("independent trials with one probability",),
        alternative,
    )


def estimate_intervals(
    moments: Any, estimate: Any, confidence: float = 0.95
) -> dict[str, ConfidenceInterval]:
    r"""Two-sided large-sample intervals for the numbers of an :class:`certify.Estimate`.

    m2, a = mu^T Sigma mu and t = tr Sigma^2 by the jackknife (a and t on the log scale where all deletions
    are positive); m2^2 as the signed square of the limits of m2; the dimensions from separate limits of
    numerator and denominator (see ``certify.asymptotic.separate``), infinite where m2 may be 0.

    Parameters
    ----------
    moments : GradientMoments
        What the estimate was made from.
    estimate : Estimate
        Supplies the point values.
    confidence : float
        Level of each interval by itself.

    Raises
    ------
    ValueError
        If n < 6 or too few groups of units are held.

    Examples
    --------
    >>> import numpy as np
    >>> from certify.estimators import estimate
    >>> e = estimate(1 + np.random.default_rng(0).standard_normal((300, 4)), confidence=0.95)
    >>> 4.0 in e.intervals["m2"], 4.0 in e.intervals["d_par"], e.detected
    (True, True, True)
    """
    from certify import asymptotic
    from certify.estimators import rescale
    from certify.replication import replicated

    r = replicated(moments)
    alpha = 1 - check_confidence(confidence)
    unit = estimate.unit or "example"
    method = f"jackknife, {r.groups} deletions"
    assumptions = ("iid units", "finite fourth moment", "large n")

    def make(name: str, low: float, high: float) -> ConfidenceInterval:
        return ConfidenceInterval(
            getattr(estimate, name), low, high, confidence, method, estimate.n, unit, assumptions
        )

    e = estimate.exponent
    m2 = asymptotic.signal_limits(r, alpha / 2)
    found = {
        "m2": make("m2", *(rescale(v, 2 * e) for v in m2)),
        "m2_squared": make("m2_squared", *(rescale(v * abs(v), 4 * e) for v in m2)),
    }
    for name, dimension, k in (
        ("mu_sigma_mu", "d_par", asymptotic.PARALLEL),
        ("tr_sigma2", "d_2", asymptotic.TRACE),
    ):
        _, low, high = asymptotic.numerator_limits(r, k, alpha / 2)
        found[name] = make(name, rescale(low, 4 * e), rescale(high, 4 * e))
        small, large = asymptotic.separate(r, k, alpha / 2)
        found[dimension] = make(dimension, asymptotic.inverse(large), asymptotic.inverse(small))
    small, large = asymptotic.smaller_dimension(r, alpha / 2)
    found["d_align"] = make("d_align", small, large)
    return found
