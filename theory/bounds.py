"""Published bounds on P(T <= 0), T = mu_M^T g_K, as constants.

Two-moment bounds (paper 1 and its relatives) live here; those that need more are in ``theory.conditional``
and are re-exported, so that ``from theory.bounds import ...`` finds every one.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

from theory.arithmetic import Count, convert, exp, kind_of, log, maximum, minimum, ratio, sample_size, sqrt
from theory.assumptions import Assumption
from theory.conditional import (
    B_conditional_bernstein,
    B_conditional_cantelli,
    B_conditional_hoeffding,
    B_fourth,
    B_subgaussian,
    P_gaussian,
    if_positive,
)
from theory.formula import Bound, bound
from theory.moment_records import (
    ConditionalMoments,
    GaussianInput,
    StatisticMoments,
    SubGaussianMoments,
    TwoLawMoments,
)
from theory.moments import Moments
from theory.sizes import Sizes

_SECOND = frozenset({Assumption.IID, Assumption.INDEPENDENT_SAMPLES, Assumption.FINITE_SECOND_MOMENT})
_LAWS = "every law with finite second moments; m2 = 0 gives the vacuous value 1"


def n_eff(M: Any, K: Any) -> Any:
    r"""Effective sample size.

    .. math:: n_{\mathrm{eff}} = \frac{MK}{M+K+1}.

    Parameters
    ----------
    M, K
        Numbers of units in the two means: integers (result a ``Fraction``), arrays, or symbols.

    Raises
    ------
    ValueError
        If M or K is not a positive integer.

    Notes
    -----
    Source: paper 1, alignment theorem.

    Examples
    --------
    >>> n_eff(1, 1), float(n_eff(300, 300))
    (Fraction(1, 3), 149.7504159733777)
    """
    M, K = sample_size(M, "M"), sample_size(K, "K")
    kind = kind_of((M, K))
    if kind == "exact":
        M, K = Count(M), Count(K)
    else:
        M, K = convert((M, K), kind)
    return M / (M + K + 1) * K  # in this order nothing overflows


def _weighted(m: Moments, M: Any, K: Any, b: Any) -> Any:
    """w/(w + MK/(M+K+b) m2^2) with w = max(a, t/b): free of the 0/0 that d_par and d_2 would bring."""
    kind = kind_of((m.m2, m.a, m.t))
    m2, a, t = m.rescaled()
    if kind in ("exact", "opaque"):
        w = maximum(a, t / b)
        return ratio(w * (M + K + b), w * (M + K + b) + M * K * m2 * m2, at_zero=1)
    w = maximum(a, t / float(b)) * (1 / M + 1 / K + float(b) / M / K)
    return ratio(w, w + m2 * m2, at_zero=1)


def _cantelli(m: Moments, M: Any, K: Any) -> Any:
    m2, a, t = m.rescaled()
    if kind_of((m2, a, t)) in ("exact", "opaque"):
        V = (M + K) * a + t
        return ratio(V, V + M * K * m2 * m2, at_zero=1)
    V = a / M + a / K + t / M / K
    return ratio(V, V + m2 * m2, at_zero=1)


B_exact = Bound(
    name="B_exact",
    formula=_cantelli,
    assumptions=_SECOND,
    tightness="attained at M = K = 1 by every {0, c} law; no constant c < 1 works for any M = K",
    source="paper 1, alignment theorem, exact form; Cantelli 1928",
    domain=_LAWS,
    status="proved",
)
"""Cantelli's inequality for T: V/(V + m2^2), V = Var T = (1/M + 1/K) a + t/(MK)."""

B_align = Bound(
    name="B_align",
    formula=lambda m, M, K: _weighted(m, M, K, 1),
    assumptions=_SECOND,
    tightness="equals B_exact iff d_par = d_2; attained by the fair coin {0, 1} at M = K = 1",
    source="paper 1, alignment theorem",
    domain=_LAWS,
    status="proved",
)
"""The one-number summary 1/(1 + n_eff d_align), n_eff = MK/(M+K+1); never below ``B_exact``."""


def B_regrouped(b: Any) -> Bound:
    r"""B_align when units are averaged in groups of b before they are counted.

    .. math:: \Bigl(1 + \frac{MK}{M+K+b} \min(d_\parallel,\ b\, d_2)\Bigr)^{-1}.

    Never below ``B_exact``, and equal to it at b = d_par/d_2 = t/a: the loss in ``B_align`` is the choice of
    unit.

    Parameters
    ----------
    b
        Group size > 0; any positive number gives a valid bound (int, Fraction or float).

    Raises
    ------
    ValueError
        If b <= 0.

    Notes
    -----
    Source: regrouping identity, docs page "Bounds".

    Examples
    --------
    >>> m = Moments(m2=1, a=2, t=8)
    >>> B_regrouped(4)(m, 3, 5) == B_exact(m, 3, 5) < B_align(m, 3, 5)
    True
    """
    if isinstance(b, bool) or not isinstance(b, numbers.Real) or not 0 < float(b) < math.inf:
        raise ValueError(f"b={b!r}: expected a finite group size > 0; the best one is m.t / m.a")
    return Bound(
        name=f"B_regrouped({b})",
        formula=lambda m, M, K: _weighted(m, M, K, b),
        assumptions=_SECOND,
        tightness="equals B_exact iff b = d_par/d_2",
        source="docs page 'Bounds', regrouping identity",
        domain=_LAWS,
        status="proved",
    )


def _chebyshev(m: Moments, M: Any, K: Any) -> Any:
    m2, a, t = m.rescaled()
    return ratio(a / M + a / K + t / M / K, m2 * m2, at_zero=1)


B_chebyshev = Bound(
    name="B_chebyshev",
    formula=_chebyshev,
    assumptions=_SECOND,
    tightness="never below B_exact; above 1 (vacuous) as soon as V > m2^2",
    source="Chebyshev 1867; for comparison",
    domain="every law with finite second moments; infinite when m2 = 0 < V",
    status="proved",
)
"""The two-sided bound V/m2^2, which also counts T >= 2 m2."""


def _two_laws(m: TwoLawMoments, M: Any, K: Any) -> Any:
    V = m.a_train / M + m.a_test / K + m.t / M / K
    return if_positive(m.mean, ratio(V, V + m.mean * m.mean, at_zero=1))


B_two_laws = Bound(
    name="B_two_laws",
    formula=_two_laws,
    assumptions=frozenset({Assumption.INDEPENDENT_SAMPLES, Assumption.FINITE_SECOND_MOMENT}),
    tightness="attained at M = K = 1, for instance by a {0, c} law against a point mass",
    source="Cantelli 1928 with the two-law variance; see theory.derivations",
    domain="E T = mu_1^T mu_2 > 0; 1 (vacuous) otherwise",
    status="proved",
    inputs=TwoLawMoments,
)
"""Cantelli for two laws: V/(V + mean^2), V = a_train/M + a_test/K + t/(MK)."""

PUBLISHED: tuple[Bound, ...] = (
    B_exact,
    B_align,
    B_chebyshev,
    B_two_laws,
    B_fourth,
    B_conditional_cantelli,
    B_conditional_bernstein,
    B_conditional_hoeffding,
    B_subgaussian,
)
"""Every published upper bound (``B_regrouped(b)`` is a family; ``P_gaussian`` is a reference value)."""

__all__ = [
    "PUBLISHED",
    "Assumption",
    "B_align",
    "B_chebyshev",
    "B_conditional_bernstein",
    "B_conditional_cantelli",
    "B_conditional_hoeffding",
    "B_exact",
    "B_fourth",
    "B_regrouped",
    "B_subgaussian",
    "B_two_laws",
    "Bound",
    "ConditionalMoments",
    "GaussianInput",
    "Moments",
    "P_gaussian",
    "Sizes",
    "StatisticMoments",
    "SubGaussianMoments",
    "TwoLawMoments",
    "bound",
    "exp",
    "log",
    "maximum",
    "minimum",
    "n_eff",
    "sqrt",
]
