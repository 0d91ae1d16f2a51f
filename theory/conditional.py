"""Bounds that know more than (m2, a, t): a given training mean, a radius, a variance proxy, moments of T.

With two moments nothing can decay faster than 1/n; these can decay exponentially, or like 1/n^2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from theory.arithmetic import convert, exp, kind_of, ratio
from theory.assumptions import Assumption
from theory.formula import Bound
from theory.moment_records import ConditionalMoments, GaussianInput, StatisticMoments, SubGaussianMoments


def if_positive(mean: Any, value: Any) -> Any:
    """``value`` where mean > 0 and the vacuous 1 elsewhere: one-sided bounds need a mean on the right side.

    Examples
    --------
    >>> if_positive(1.0, 0.25), if_positive(-1.0, 0.25)
    (0.25, 1.0)
    """
    kind = kind_of((mean, value))
    if kind == "array":
        mean, value = convert((mean, value), kind)
        xp = array_namespace(mean)
        return xp.where(mean > 0, value, xp.ones_like(value))
    if kind == "opaque":  # an expression for the domain mean > 0
        return value
    return value if mean > 0 else type(value)(1)


_GIVEN = frozenset({Assumption.GIVEN_TRAIN_MEAN, Assumption.IID, Assumption.INDEPENDENT_SAMPLES})
_POSITIVE = "E[T | mu_M] = mu_M^T mu > 0; 1 (vacuous) otherwise.  M is not used: mu_M is given"


def _conditional_cantelli(x: ConditionalMoments, M: Any, K: Any) -> Any:
    return if_positive(x.mean, ratio(x.variance, x.variance + K * x.mean * x.mean, at_zero=1))


def _conditional_bernstein(x: ConditionalMoments, M: Any, K: Any) -> Any:
    below = x.mean + x.radius  # an almost sure limit on mean - X
    rate = ratio(3 * K * x.mean * x.mean, 6 * x.variance + 2 * below * x.mean, at_zero=0)
    return if_positive(x.mean, exp(-rate))


def _conditional_hoeffding(x: ConditionalMoments, M: Any, K: Any) -> Any:
    rate = ratio(K * x.mean * x.mean, 2 * x.radius * x.radius, at_zero=0)
    return if_positive(x.mean, exp(-rate))


B_conditional_cantelli = Bound(
    name="B_conditional_cantelli",
    formula=_conditional_cantelli,
    assumptions=_GIVEN | {Assumption.FINITE_SECOND_MOMENT},
    tightness="attained at K = 1 by every {0, c} law of v^T q",
    source="Cantelli 1928 for the mean of K independent values of v^T q, v = mu_M",
    domain=_POSITIVE,
    status="proved",
    inputs=ConditionalMoments,
)
"""P(T <= 0 | mu_M) <= variance/(variance + K mean^2)."""

B_conditional_bernstein = Bound(
    name="B_conditional_bernstein",
    formula=_conditional_bernstein,
    assumptions=_GIVEN | {Assumption.BOUNDED},
    tightness="exponential in K; best when the variance is small beside radius * mean",
    source="Bernstein 1946; Boucheron, Lugosi, Massart, Concentration Inequalities, corollary 2.11",
    domain=_POSITIVE,
    status="proved",
    inputs=ConditionalMoments,
)
"""P(T <= 0 | mu_M) <= exp(-K mean^2 / (2 variance + (2/3)(mean + radius) mean))."""

B_conditional_hoeffding = Bound(
    name="B_conditional_hoeffding",
    formula=_conditional_hoeffding,
    assumptions=_GIVEN | {Assumption.BOUNDED},
    tightness="exponential in K; blind to the variance, so it wins only when the variance is near radius^2",
    source="Hoeffding 1963, theorem 2",
    domain=_POSITIVE,
    status="proved",
    inputs=ConditionalMoments,
)
"""P(T <= 0 | mu_M) <= exp(-K mean^2 / (2 radius^2))."""


_ROUNDING = 1e-14


def _fourth(x: StatisticMoments, M: Any, K: Any) -> Any:
    s, V, c3, c4 = x.mean, x.variance, x.third, x.fourth
    kind = kind_of((s, V, c3, c4))
    gap = V * c4 - c3 * c3 - V * V * V
    lift = s * s * V + s * c3 - V * V
    if kind == "exact":
        gap, lift = max(gap, 0 * gap), max(lift, 0 * lift)
    elif kind in ("float", "array"):
        # For a law on {0, c} both are 0, and rounding must not turn Cantelli's value into 0: round outwards.
        gap = gap + _ROUNDING * (V * c4 + c3 * c3 + V * V * V)
        lift = lift - _ROUNDING * (s * s * V + abs(s * c3) + V * V)
        gap, lift = (gap + abs(gap)) / 2, (lift + abs(lift)) / 2
    cantelli = ratio(V, V + s * s, at_zero=1)
    sharper = ratio(V * gap, gap * (V + s * s) + lift * lift, at_zero=0)
    if kind == "array":
        xp = array_namespace(s)
        sharper = xp.where(lift > 0, sharper, cantelli)
    elif kind != "opaque" and not lift > 0:
        sharper = cantelli
    return if_positive(s, sharper)


B_fourth = Bound(
    name="B_fourth",
    formula=_fourth,
    assumptions=frozenset(
        {Assumption.IID, Assumption.INDEPENDENT_SAMPLES, Assumption.FINITE_SECOND_MOMENT}
        | {Assumption.FINITE_FOURTH_MOMENT}
    ),
    tightness="never above Cantelli; 0 for two-point laws of T that are positive; decays like 1/n^2",
    source="Bhattacharyya 1987, one-sided Chebyshev inequality when the first four moments are known",
    domain="E T > 0; it is Cantelli's bound where mean^2 V + mean third <= V^2; the moments of T carry M, K",
    status="proved",
    inputs=StatisticMoments,
)
"""V D / (D (V + s^2) + (s^2 V + s c3 - V^2)^2), D = V c4 - c3^2 - V^3; c3, c4: central moments."""


_TILTS = np.linspace(0.0, 1.0, 512, endpoint=False)


def _subgaussian(x: SubGaussianMoments, M: Any, K: Any) -> Any:
    kind = kind_of((x.m2, M, K))
    as_array = kind == "array"
    values: list[Any] = list(convert((x.m2, x.proxy, x.dimension, M, K), "array" if as_array else "float"))
    if as_array:
        xp = array_namespace(*values)
        m2, proxy, d, M, K = (xp.expand_dims(value, axis=-1) for value in values)
        u = xp.asarray(_TILTS, device=device(values[0]))
    else:
        m2, proxy, d, M, K = (np.float64(value) for value in values)
        xp, u = np, _TILTS
    exponent = m2 / proxy * u * (u * (M + K) - 2 * xp.sqrt(M * K)) / (2 * (1 - u * u))
    exponent = exponent - d / 2 * xp.log1p(-u * u)
    best = xp.exp(xp.min(exponent, axis=-1))
    return best if as_array else float(best)


def _subgaussian_expression() -> Any:
    import sympy

    s = B_subgaussian.symbols
    u, M, K = sympy.Symbol("u", positive=True), s["M"], s["K"]
    first = s["m2"] / s["proxy"] * u * (u * (M + K) - 2 * sympy.sqrt(M * K)) / (2 * (1 - u**2))
    return (1 - u**2) ** (-s["dimension"] / 2) * sympy.exp(first)


B_subgaussian = Bound(
    name="B_subgaussian",
    formula=_subgaussian,
    assumptions=frozenset({Assumption.IID, Assumption.INDEPENDENT_SAMPLES, Assumption.SUBGAUSSIAN}),
    tightness="the Chernoff bound of T for N(mu, proxy I), the best of its kind for sub-Gaussian laws",
    source="Chernoff's method with the quadratic-form argument of Hsu, Kakade, Zhang 2012",
    domain="proxy > 0; the smallest value over 512 tilts u in [0, 1), each of them valid",
    status="proved",
    inputs=SubGaussianMoments,
    symbolic=_subgaussian_expression,
)
"""min over u in [0, 1) of (1 - u^2)^(-d/2) exp((m2/proxy) u (u (M+K) - 2 sqrt(MK)) / (2 (1 - u^2)))."""


def _gaussian(x: GaussianInput, M: Any, K: Any) -> float:
    from theory.exact import gaussian_log_probability

    return float(np.exp(gaussian_log_probability(x.mu, x.Sigma, M, K)))


P_gaussian = Bound(
    name="P_gaussian",
    formula=_gaussian,
    assumptions=frozenset({Assumption.IID, Assumption.INDEPENDENT_SAMPLES, Assumption.GAUSSIAN}),
    tightness="exact",
    source="theory.exact.gaussian_log_probability",
    domain="Gaussian units; M and K single integers",
    direction="equal",
    status="reference",
    inputs=GaussianInput,
)
"""P(T <= 0) itself for Gaussian units: what a bound is compared with, not a bound."""
