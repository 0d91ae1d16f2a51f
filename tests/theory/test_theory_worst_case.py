"""Refutation, proof on the cone, worst cases: each verdict is checked from outside the search."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction as F

import numpy as np
import pytest

from theory import exact
from theory.bounds import (
    Assumption,
    B_align,
    B_conditional_cantelli,
    B_exact,
    B_regrouped,
    Moments,
    P_gaussian,
    bound,
    exp,
    log,
    n_eff,
    sqrt,
)
from theory.cone import prove_dominates_cantelli
from theory.exact import finite_support_probability
from theory.laws import FiniteLaw, GaussianLaw, coin, rare_reversal
from theory.search import TWO, _scalars, evaluate, probabilities
from theory.shrink import complexity, shrink
from theory.worst_case import Proved, Refuted, Unrefuted, decide, falsify, largest_ratio


def without_the_one(m, M, K):
    return 1 / (1 + M * K / (M + K) * m.d_align)


def test_refutation_of_the_restricted_slip_is_quick_and_small():
    """n_eff = MK/(M+K) for M, K >= 2: plain random search misses it."""
    claim = bound(without_the_one, M=">=2", K=">=2")
    result = falsify(claim, seed=0, budget=60)
    assert isinstance(result, Refuted)
    assert finite_support_probability(result.law, result.M, result.K) == result.P > result.B
    assert claim(Moments.from_law(result.law), result.M, result.K) == result.B
    assert (result.M, result.K, len(result.law.atoms), result.law.dimension) == (2, 2, 2, 2)
    known = FiniteLaw([(3, 2), (0, -2)], ["1/31", "30/31"])  # found by hand before
    assert decide(claim, known, 2, 2).ratio > 1


@pytest.mark.parametrize("n", [2, 3, 6, 12, 20])
def test_the_slip_is_false_for_every_m_equal_k(n):
    """Noise across the mean carried by the rare far atom: {(1, 0), (1 - n, r)}; the excess falls with n."""
    result = falsify(bound(without_the_one, M=n, K=n))
    assert isinstance(result, Refuted)
    assert (n, n) == (result.M, result.K)


def test_results_repeat():
    claim = bound(without_the_one, M=">=3", K=">=2")
    assert falsify(claim, seed=3) == falsify(claim, seed=3)
    root = bound(lambda m, M, K: B_exact(m, M, K) ** 0.5, M=2, K=1)
    one, two = (falsify(root, seed=1, examples=30) for _ in range(2))
    assert one == two
    assert one.coverage.examples > 0


@pytest.mark.parametrize(
    "claim",
    [
        bound(without_the_one),
        bound(without_the_one, M=">=2", K=">=2"),
        bound(lambda m, M, K: exp(-n_eff(M, K) * m.d_align / 2)),
        bound(lambda m, M, K: exp(-n_eff(M, K) * m.d_align / 2), assumes="Gaussian units"),
    ],
)
def test_the_snippet_checks_itself(claim):
    result = falsify(claim)
    assert isinstance(result, Refuted)
    lines = result.snippet.splitlines()
    assert len(lines) == 2
    scope = {"bound": claim, "without_the_one": claim}
    exec(result.snippet, scope)
    with pytest.raises(AssertionError):
        exec(result.snippet.replace(") > ", ") < "), scope)
    assert "Refuted: P(T <= 0) = " in str(result)


def test_first_refutation_is_the_universal_one():
    """Most false bounds shrink to the fair coin at M = K = 1."""
    result = falsify(without_the_one)
    assert (result.law, result.M, result.K, result.P, result.B) == (coin(), 1, 1, F(3, 4), F(2, 3))


def test_shrinking_keeps_the_violation_and_simplifies():
    claim = bound(without_the_one)
    start = decide(claim, FiniteLaw([(10, 0, 0), (-20, 40, 0), (10, 1, 0)], ["84/86", "1/86", "1/86"]), 3, 3)
    assert start.ratio > 1
    small = shrink(claim, start)
    assert small.ratio > 1
    assert small.law == coin()
    narrow = bound(without_the_one, M=">=2", K=">=2")
    large = FiniteLaw([(300, 200), (0, -200), (0, -199)], ["1/31", "15/31", "15/31"])
    start = decide(narrow, large, 2, 2)
    assert start.ratio > 1
    small = shrink(narrow, start)
    assert small.ratio > 1
    assert complexity(small.law, small.M, small.K) < (2, 2, 4, 40, 20)


def test_decide_is_exact():
    assert decide(B_exact, coin("1/3"), 1, 1).ratio == 1
    assert decide(B_exact, coin("1/3"), 1, 1).gap == 0
    slightly = bound(lambda m, M, K: B_exact(m, M, K) - F(1, 10**30))
    assert decide(slightly, coin("1/3"), 1, 1).ratio > 1  # far below float resolution
    assert decide(bound(lambda m, M, K: B_exact(m, M, K) + F(1, 10**30)), coin("1/3"), 1, 1).ratio <= 1
    rounded = bound(lambda m, M, K: float(B_exact(m, M, K)) * (1 - 1e-12))
    assert decide(rounded, coin("1/3"), 1, 1).ratio <= 1  # a float must be exceeded by more than rounding
    assert decide(bound(lambda m, M, K: 1 / m.m2), FiniteLaw([0], [1]), 1, 1) is None  # undefined: no claim
    assert decide(bound(lambda m, M, K: math.nan), coin(), 1, 1) is None
    assert pytest.approx(math.exp(-1)) == decide(bound(lambda m, M, K: np.exp(-m.d_align)), coin(), 1, 1).B
    assert decide(bound(lambda m, M, K: 0), coin(), 1, 1).ratio == math.inf
    assert decide(bound(lambda m, M, K: 0), FiniteLaw([1], [1]), 1, 1).ratio == 0
    # Ties carry the mass: 3 * 0.1 - 0.3 is 5.6e-17 in floats.
    law = FiniteLaw(["1/10", "-3/10"], ["3/4", "1/4"])
    assert finite_support_probability(law.scaled(10), 4, 1) == decide(B_exact, law, 4, 1).P


def test_fast_floats_agree_with_exact_rationals():
    atoms = ((1, 0), (-2, 3), (0, -1))
    rows, moments = _scalars(atoms, ((1, 1, 1), (1, 30, 5)))
    fast = probabilities(atoms, rows, 3, 2)
    for i, weights in enumerate(((1, 1, 1), (1, 30, 5))):
        law = FiniteLaw(atoms, [F(w, sum(weights)) for w in weights])
        assert fast[i] == pytest.approx(float(finite_support_probability(law, 3, 2)), rel=1e-12)
        assert moments[:, i] == pytest.approx([float(x) for x in law.scalars()], rel=1e-12)
    (best,) = evaluate(B_exact, [("pair", ((0,), (1,)), TWO)], 1, 1, nonzero_mean=True)
    assert best[0].ratio == pytest.approx(1)


def test_gaussian_units_are_searched_separately():
    """exp(-n_eff d_align / 2) fails for Gaussian units too, by noise of rank one across the mean."""
    claim = bound(lambda m, M, K: exp(-n_eff(M, K) * m.d_align / 2), assumes=Assumption.GAUSSIAN)
    result = falsify(claim)
    assert isinstance(result, Refuted)
    assert isinstance(result.law, GaussianLaw)
    mu, Sigma = np.array([3.0, 0.0]), np.array([0.0, 1.0])
    P = exact.gaussian_probability(mu, Sigma, 1, 1)
    B = claim(Moments.from_arrays(mu, Sigma), 1, 1)
    assert math.exp(exact.gaussian_log_probability(mu, Sigma, 1, 1)) == pytest.approx(1.543e-5, rel=1e-3)
    assert pytest.approx(math.exp(-81 / 6)) == B
    assert P is not None
    # An independent value: T <= 0 iff z z' <= -9, of probability (1/pi) int_9^oo K_0.
    from scipy import integrate, special

    tail = integrate.quad(special.k0, 9, 60)[0] / math.pi
    assert tail == pytest.approx(1.543e-5, rel=1e-3)
    assert tail > 10 * B
    fine = falsify(bound(lambda m, M, K: B_exact(m, M, K) ** 0.9, assumes="Gaussian units", M=1, K=2))
    assert isinstance(fine, Unrefuted)
    assert fine.worst_case.ratio < 1
    true = bound(lambda m, M, K: B_exact(m, M, K), assumes="Gaussian units")
    assert isinstance(falsify(true), Proved)


def test_exponential_bound_survives_for_gaussians_in_one_dimension_and_isotropic():
    """What was looked at, not a proof: the largest log ratio is -log 2, at vanishing signal."""
    worst = -math.inf
    for d in (1, 2, 10, 100):
        for r in (0.03, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 5.0):
            mu = np.zeros(d)
            mu[0] = r * d**0.25
            m = Moments.from_arrays(mu, np.ones(d))
            for M, K in ((1, 1), (1, 2), (1, 100), (3, 10), (30, 30)):
                log_bound = -float(n_eff(M, K)) * m.d_align / 2
                worst = max(worst, exact.gaussian_log_probability(mu, np.ones(d), M, K) - log_bound)
    assert -0.70 < worst < -0.69


def test_cantelli_is_attained_at_one_and_one():
    for p in (F(1, 10), F(1, 2), F(9, 10)):
        case = decide(B_exact, coin(p), 1, 1)
        assert case.P == case.B == 1 - p**2
    assert largest_ratio(1, 1, at_most=F(1, 10)).ratio == 1


# Largest P/B_exact found among laws with B_exact <= 1/2 (docs, page "Bounds").
RATIOS = {
    (1, 2): 0.888,
    (1, 3): 0.85,
    (1, 5): 0.86,
    (1, 10): 0.91,
    (2, 2): 0.99,
    (2, 3): 0.74,
    (2, 5): 0.71,
    (2, 10): 0.83,
    (3, 3): 0.99,
    (3, 5): 0.63,
    (3, 10): 0.76,
    (5, 5): 0.99,
    (5, 10): 0.70,
    (10, 10): 0.99,
}


@pytest.mark.parametrize("size", RATIOS)
def test_largest_ratios(size):
    case = largest_ratio(*size, at_most=F(1, 2), starts=4)
    assert RATIOS[size] <= case.ratio <= 1
    assert F(1, 2) >= case.B
    P = finite_support_probability(case.law, *size)
    assert float(P / B_exact(Moments.from_law(case.law), *size)) == pytest.approx(case.ratio)


def test_no_constant_below_one_survives_for_any_sizes_near_the_vacuous_end():
    """{0, 1} with P(q = 1) -> 0: P and B_exact both tend to 1, also for M != K."""
    for M, K in ((1, 2), (2, 3), (10, 1), (4, 8)):
        case = decide(B_exact, coin(F(1, 10**6)), M, K)
        assert case.ratio > 1 - 1e-5
    # In the informative range the rare reversal is tight for M = K only.
    assert decide(B_exact, rare_reversal(8, F(1, 10**5)), 8, 8).ratio > 0.999
    assert decide(B_exact, rare_reversal(4, F(1, 10**5)), 4, 8).ratio == pytest.approx(2 / 3, abs=1e-3)


def test_proofs_are_rechecked_and_can_fail():
    certificate = prove_dominates_cantelli(B_align)
    assert certificate.is_valid()
    assert "B_align - B_exact >= 0" in certificate.statement
    first, second = certificate.cases
    (identity,) = first.above.certificates
    wrong = dataclasses.replace(identity, terms=tuple((c + 1, powers) for c, powers in identity.terms))
    loose = dataclasses.replace(identity, hypotheses=("m2", *identity.hypotheses[1:]))
    forged = dataclasses.replace(identity, target="1", terms=((F(1), {}),))  # a true identity about nothing
    for above in (wrong, loose, forged):
        step = dataclasses.replace(first.above, certificates=(above,))
        tampered = dataclasses.replace(first, above=step)
        assert not dataclasses.replace(certificate, cases=(tampered, second)).is_valid()
    strict = dataclasses.replace(first.positive, certificates=(dataclasses.replace(forged, target="a"),))
    for bad in (
        dataclasses.replace(first, positive=strict),
        dataclasses.replace(first, positive=first.above),
        dataclasses.replace(first, conditions=()),  # B_align is not a/(...) everywhere
        dataclasses.replace(first, top=f"2*({first.top})"),
        dataclasses.replace(first, above=dataclasses.replace(first.above, certificates=())),  # z3 alone
    ):
        assert dataclasses.replace(certificate, cases=(bad, second)).is_valid() is (
            bad.above.certificates == () and bad.conditions != ()
        )
    assert not dataclasses.replace(certificate, cases=(first,)).is_valid()  # a case is missing
    assert not dataclasses.replace(certificate, cases=()).is_valid()
    assert not dataclasses.replace(certificate, hypotheses=()).is_valid()
    assert not dataclasses.replace(certificate, bound=bound(without_the_one)).is_valid()  # the points


@pytest.mark.parametrize(
    "claim",
    [
        bound(without_the_one),
        bound(without_the_one, M=">=2", K=">=2"),
        bound(lambda m, M, K: 1 / (1 + M * K / (M + K + 1) * max(m.d_par, m.d_2))),
        bound(lambda m, M, K: B_exact(m, M, K) - F(1, 10**9)),
        bound(lambda m, M, K: 1 / (1 + M * K / (M + K + 1) * m.d_align) if M < 10 else 0),
        bound(lambda m, M, K: m.a / (m.a + m.m2**2 * M * K / (M + K)), assumes="nonzero mean"),
        bound(lambda m, M, K: m.d_par * 0 + ((M + K) * m.a + m.t) / ((M + K) * m.a + m.t + M * K * m.m2)),
        bound(lambda m, M, K: ((M + K) * m.a + m.t) / ((M + K) * m.a + m.t + M * K * m.m2**2) / 2 + 1 / 4),
        bound(lambda m, M, K: 1 / (1 + M * K / (M + K + 1) * m.d_align) + m.m2 - m.m2**2),
        bound(lambda m, M, K: math.exp(-m.d_align)),
        # Branches: a SymPy symbol is true in `if x`, and not equal to any number.
        bound(lambda m, M, K: 0 if M == 500 else B_exact(m, M, K)),
        bound(lambda m, M, K: B_exact(m, M, K) if m.t else 0),
        bound(lambda m, M, K: {(500, 1): 0}.get((M, K), 1)),
        bound(lambda m, M, K: 1 if M in (1, 2, 3) else 0),
    ],
)
def test_nothing_false_is_proved(claim):
    assert prove_dominates_cantelli(claim) is None


def test_proofs_use_the_domain():
    """MK/(M+K+1) >= MK/(M+K) * 4/5 needs M + K >= 4."""

    def close(m, M, K):
        return 1 / (1 + F(4, 5) * M * K / (M + K) * m.d_align)

    assert prove_dominates_cantelli(bound(close, M=">=2", K=">=2")) is not None
    assert prove_dominates_cantelli(bound(close)) is None
    assert isinstance(falsify(bound(close)), Refuted)
    assert isinstance(falsify(bound(close, M=2, K=">=2")), Proved)
    assert isinstance(falsify(B_regrouped(F(7, 3))), Proved)


def test_unrefuted_says_what_was_covered():
    result = falsify(bound(lambda m, M, K: B_exact(m, M, K) ** 0.9, M=(1, 2), K=1), examples=40)
    assert isinstance(result, Unrefuted)
    assert result.coverage.complete
    assert result.coverage.sizes == ((1, 1), (2, 1))
    assert result.coverage.examples >= 30
    assert sum(result.coverage.supports.values()) > 100
    assert 0.8 < result.worst_case.ratio <= 1
    assert F(95, 100) > result.worst_case.P
    for part in ("Unrefuted", "closest: P/B", "Covered:", "seed 0"):
        assert part in str(result)
    stopped = falsify(bound(lambda m, M, K: B_exact(m, M, K) ** 0.9), budget=0.05)
    assert not stopped.coverage.complete
    assert "STOPPED BY THE CLOCK" in str(stopped)


def test_bounds_that_depend_on_the_scale_are_searched_at_several_scales():
    """True at the scale of the simple laws, false for large gradients."""
    claim = bound(lambda m, M, K: 1 / (1 + M * K / (M + K + 1) * m.d_align) + 5 / (1 + m.m2))
    assert isinstance(falsify(claim, examples=10, budget=2), Unrefuted)
    claim = bound(lambda m, M, K: 1 / (1 + M * K / (M + K) * m.d_align) + F(1, 2) / (1 + m.m2))
    result = falsify(claim)
    assert isinstance(result, Refuted)
    assert result.law.scalars()[0] > 1


def test_bad_requests():
    with pytest.raises(TypeError, match=r"upper bound on \(m2, a, t\)"):
        falsify(B_conditional_cantelli)
    with pytest.raises(TypeError, match=r"upper bound on \(m2, a, t\)"):
        falsify(P_gaussian)
    with pytest.raises(ValueError, match="budget=0: expected a number of seconds > 0"):
        falsify(B_exact, budget=0)
    with pytest.raises(ValueError, match=r"at_most=0: expected a value > 0"):
        largest_ratio(2, 3, at_most=0)


@pytest.mark.parametrize(
    "formula",
    [
        lambda m, M, K: (1e6 + m.variance(M, K) / (m.variance(M, K) + m.m2**2)) - 1e6,
        lambda m, M, K: sqrt(1 + m.variance(M, K) / (m.variance(M, K) + m.m2**2)) ** 2 - 1,
        lambda m, M, K: 1 - exp(log(1 - m.variance(M, K) / (m.variance(M, K) + m.m2**2))),
    ],
)
def test_cancellation_in_a_true_formula_is_no_counterexample(formula):
    """Cantelli's bound, written so that floats lose most digits: P > B by rounding only."""
    claim = bound(formula, M=(1, 2), K=1)
    for law in (coin("39/40"), coin("1/3"), coin("999/1000")):
        assert decide(claim, law, 1, 1).ratio <= 1
    lower = bound(lambda m, M, K: formula(m, M, K) * (1 - F(1, 10**12)), M=(1, 2), K=1)
    assert decide(lower, coin("39/40"), 1, 1).ratio > 1


def test_natural_ways_of_writing_a_true_bound_are_proved():
    def cantelli(m, M, K):
        return m.variance(M, K) / (m.variance(M, K) + m.m2**2)

    for formula in (
        lambda m, M, K: min(1, cantelli(m, M, K)),
        lambda m, M, K: min(1.0, cantelli(m, M, K)),
        lambda m, M, K: max(cantelli(m, M, K), 0.25 * cantelli(m, M, K)),
        lambda m, M, K: 0.5 * cantelli(m, M, K) + 0.5,
    ):
        assert isinstance(falsify(formula), Proved)
    for formula in (
        lambda m, M, K: min(1, 0.99 * cantelli(m, M, K)),
        lambda m, M, K: 0.5 * cantelli(m, M, K) + 0.49,
    ):
        assert prove_dominates_cantelli(bound(formula)) is None


def test_formulas_without_a_value_are_refused():
    for nothing in (None, "x", math.nan, [1], 1j):
        with pytest.raises(ValueError, match="no value at any of the simplest laws"):
            falsify(lambda m, M, K, nothing=nothing: nothing)
    with pytest.raises(TypeError, match="bound=None"):
        falsify(None)
    with pytest.raises(ValueError, match="not one given the training mean"):
        falsify(bound(without_the_one, assumes="given train mean"))
    for name, bad in (
        ("seed", None),
        ("seed", -1),
        ("examples", "x"),
        ("budget", None),
        ("budget", math.nan),
    ):
        with pytest.raises(ValueError, match=f"{name}={bad!r}"):
            falsify(B_exact, **{name: bad})
    with pytest.raises(TypeError, match="expected a Bound"):
        decide(None, coin(), 1, 1)


def test_snippets_of_bounds_with_awkward_names():
    for name in ("P", "law", "lambda", "exact"):
        result = falsify(bound(without_the_one, name=name))
        exec(result.snippet, {"bound": bound(without_the_one)})


def test_snippets_of_formulas_for_floats_and_of_long_spectra():
    only_floats = bound(lambda m, M, K: np.exp(-m.d_align), name="only_floats")
    exec(falsify(only_floats).snippet, {"only_floats": only_floats})
    many = bound(lambda m, M, K: exp(-n_eff(M, K) * m.d_par / 2), assumes="Gaussian units", name="many")
    result = falsify(many)
    assert result.law.dimension > 20
    assert len(result.snippet.splitlines()) == 2
    exec(result.snippet, {"many": many})
