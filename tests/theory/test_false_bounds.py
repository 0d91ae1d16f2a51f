"""A catalogue of plausible bounds: the false ones must be refuted, the true ones must survive."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from theory.bounds import (
    B_align,
    B_chebyshev,
    B_exact,
    B_regrouped,
    Bound,
    bound,
    exp,
    n_eff,
    sqrt,
)
from theory.exact import finite_support_probability
from theory.worst_case import Proved, Refuted, Unrefuted, falsify


def variance(m, M, K):
    return (1 / M + 1 / K) * m.a + m.t / (M * K)


def normal_tail(x):
    return math.erfc(float(x) / math.sqrt(2)) / 2


FALSE: dict[str, Bound] = {
    # A slip in the effective sample size.
    "n_eff without the one": bound(lambda m, M, K: 1 / (1 + M * K / (M + K) * m.d_align)),
    "n_eff without the one, M, K >= 2": bound(
        lambda m, M, K: 1 / (1 + M * K / (M + K) * m.d_align), M=">=2", K=">=2"
    ),
    "n_eff without the one, M, K >= 4": bound(
        lambda m, M, K: 1 / (1 + M * K / (M + K) * m.d_align), M=">=4", K=">=4"
    ),
    "n_eff = half the smaller sample, M, K >= 5": bound(
        lambda m, M, K: 1 / (1 + min(M, K) / 2 * m.d_align), M=">=5", K=">=5"
    ),
    "n_eff = half the mean sample": bound(lambda m, M, K: 1 / (1 + (M + K) / 4 * m.d_align)),
    "n_eff = half the geometric mean": bound(lambda m, M, K: 1 / (1 + sqrt(M * K) / 2 * m.d_align)),
    # A slip in the dimension.
    "max for min": bound(lambda m, M, K: 1 / (1 + M * K / (M + K + 1) * max(m.d_par, m.d_2))),
    "d_par alone": bound(lambda m, M, K: 1 / (1 + M * K / (M + K + 1) * m.d_par)),
    "d_2 alone": bound(lambda m, M, K: 1 / (1 + M * K / (M + K + 1) * m.d_2)),
    "geometric mean of the dimensions": bound(
        lambda m, M, K: 1 / (1 + M * K / (M + K + 1) * sqrt(m.d_par * m.d_2)), assumes="nonzero mean"
    ),
    "regrouped on one side only": bound(lambda m, M, K: 1 / (1 + n_eff(M, K) * min(m.d_par, 4 * m.d_2))),
    # A slip in the variance.
    "noise along the mean only": bound(
        lambda m, M, K: (M + K) * m.a / ((M + K) * m.a + M * K * m.m2**2), assumes="nonzero mean"
    ),
    "noise pairs only": bound(lambda m, M, K: m.t / (m.t + M * K * m.m2**2), assumes="nonzero mean"),
    "variance of one mean only": bound(
        lambda m, M, K: m.a / (m.a + min(M, K) * m.m2**2), assumes="nonzero mean"
    ),
    # A better inequality than there is.
    "Cantelli halved by symmetry": bound(
        lambda m, M, K: variance(m, M, K) / (variance(m, M, K) + 2 * m.m2**2), assumes="nonzero mean"
    ),
    "half of Chebyshev": bound(lambda m, M, K: B_chebyshev(m, M, K) / 2, assumes="nonzero mean"),
    "one per cent better than Cantelli, M = K": bound(
        lambda m, M, K: Fraction(99, 100) * variance(m, M, K) / (variance(m, M, K) + m.m2**2),
        assumes="nonzero mean",
        where=lambda M, K: M == K,
    ),
    "one per cent better than Cantelli, M = 2, K = 3": bound(
        lambda m, M, K: Fraction(99, 100) * variance(m, M, K) / (variance(m, M, K) + m.m2**2),
        assumes="nonzero mean",
        M=2,
        K=3,
    ),
    "exponential in d_align": bound(lambda m, M, K: exp(-n_eff(M, K) * m.d_align / 2)),
    "normal tail": bound(
        lambda m, M, K: normal_tail(m.m2 / math.sqrt(variance(m, M, K))) if m.t else 0.0,
        assumes="nonzero mean",
    ),
    "square of B_align": bound(lambda m, M, K: 1 / (1 + M * K / (M + K + 1) * m.d_align) ** 2),
    "never worse than a coin": bound(lambda m, M, K: Fraction(1, 2), assumes="nonzero mean"),
    "Cantelli cut at three quarters": bound(
        lambda m, M, K: min(Fraction(3, 4), variance(m, M, K) / (variance(m, M, K) + m.m2**2)),
        assumes="nonzero mean",
    ),
}

TRUE: dict[str, tuple[Bound, type]] = {
    "B_exact": (B_exact, Proved),
    "B_align": (B_align, Proved),
    "Chebyshev": (B_chebyshev, Proved),
    "regrouped by 3": (B_regrouped(3), Proved),
    "regrouped by 1/2": (B_regrouped(Fraction(1, 2)), Proved),
    "B_align in the user's words": (
        bound(lambda m, M, K: 1 / (1 + M * K / (M + K + 1) * min(m.d_par, m.d_2))),
        Proved,
    ),
    "a third of the smaller sample": (bound(lambda m, M, K: 1 / (1 + min(M, K) / 3 * m.d_align)), Proved),
    "half the harmonic sample": (bound(lambda m, M, K: 1 / (1 + M * K / (M + K) / 2 * m.d_align)), Proved),
    "dimensions in parallel": (
        bound(
            lambda m, M, K: 1 / (1 + M * K / (M + K + 1) / (1 / m.d_par + 1 / m.d_2)), assumes="nonzero mean"
        ),
        Proved,
    ),
    "union of the three sources": (
        bound(
            lambda m, M, K: 1 / (M * m.d_par) + 1 / (K * m.d_par) + 1 / (M * K * m.d_2),
            assumes="nonzero mean",
        ),
        Proved,
    ),
    "at least a half": (
        bound(
            lambda m, M, K: max(Fraction(1, 2), variance(m, M, K) / (variance(m, M, K) + m.m2**2)),
            assumes="nonzero mean",
        ),
        Proved,
    ),
    "one": (bound(lambda m, M, K: 1), Proved),
    "not scale-free": (
        bound(lambda m, M, K: 1 / (1 + M * K / (M + K + 1) * m.d_align) + m.m2, M=(1, 2), K=2),
        Unrefuted,
    ),
    "root of Cantelli": (bound(lambda m, M, K: sqrt(B_exact(m, M, K)), K=(1, 3)), Unrefuted),
}


@pytest.mark.parametrize("name", FALSE)
def test_false_bound_is_refuted(name):
    claim = FALSE[name]
    result = falsify(claim, seed=0, budget=60)
    assert isinstance(result, Refuted), result
    # Decided again from scratch, in exact arithmetic wherever the formula allows.
    assert finite_support_probability(result.law, result.M, result.K) == result.P
    assert claim.covers(result.M, result.K)
    assert result.P > result.B
    assert len(result.law.atoms) <= 2
    assert result.M + result.K <= 12


@pytest.mark.parametrize("name", TRUE)
def test_true_bound_survives(name):
    claim, expected = TRUE[name]
    result = falsify(claim, seed=0, budget=60, examples=100)
    assert isinstance(result, expected), result
    if isinstance(result, Proved):
        assert result.certificate.is_valid()
    else:
        assert result.coverage.complete
        assert result.worst_case.ratio <= 1
