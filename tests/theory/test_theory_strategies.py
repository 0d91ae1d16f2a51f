"""Strategies: what they promise to generate, how they shrink, and the checks for users' own tests."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction as F

import hypothesis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from theory import strategies
from theory.bounds import B_align, B_exact, Moments, bound
from theory.laws import FiniteLaw, coin
from theory.strategies import (
    BoundViolation,
    Scenario,
    assert_bound_holds,
    check,
    correlated,
    finite_laws,
    first_violation,
    gaussians,
    heavy_tailed,
    law_pairs,
    psd,
    rank_deficient,
    sample_sizes,
    scenarios,
    sparse_laws,
    weak_signals,
)
from theory.worst_case import Proved, Unrefuted

QUICK = settings(max_examples=40, deadline=None, database=None)


def find(strategy, condition, seed=0):
    """The shrunk example, found with a fixed seed."""
    options = settings(max_examples=2_000, database=None, deadline=None)
    return hypothesis.find(strategy, condition, settings=options, random=__import__("random").Random(seed))


def without_the_one(m, M, K):
    return 1 / (1 + M * K / (M + K) * m.d_align)


@given(finite_laws(min_atoms=2, max_atoms=4, min_dimension=2, max_dimension=3, max_atom=7, nonzero_mean=True))
@QUICK
def test_finite_laws_keep_their_limits(law):
    assert 2 <= len(law.atoms) <= 4
    assert 2 <= law.dimension <= 3
    assert all(abs(x) <= 7 and x.denominator == 1 for atom in law.atoms for x in atom)
    assert any(law.mean())
    assert sum(law.weights) == 1


@given(st.data())
@QUICK
def test_structured_families(data):
    law = data.draw(sparse_laws(max_dimension=3))
    assert max(law.weights) >= F(1, 2) - F(1, 4)
    assert (0,) * law.dimension in law.as_dict()
    law = data.draw(rank_deficient())
    assert np.linalg.matrix_rank(np.array(law.covariance(), dtype=float)) <= 1
    m2, a, t = data.draw(weak_signals(max_dimension=50, max_noise=20)).scalars()
    assert m2 == 1
    assert 0 <= a <= 400
    assert F(1, 49) <= t - a**2 <= 160_000
    assert data.draw(correlated()).dimension >= 2
    one, two = data.draw(law_pairs())
    assert one.dimension == two.dimension
    M, K = data.draw(sample_sizes(min_size=2, max_size=5))
    assert 2 <= min(M, K) <= max(M, K) <= 5
    heavy = data.draw(heavy_tailed())
    assert not heavy.finite_fourth_moment
    assert all(math.isfinite(x) for x in heavy.scalars())
    normal = data.draw(gaussians(max_dimension=3))
    assert 1 <= normal.dimension <= 3
    Moments.from_law(normal)  # on the cone


@given(psd(spectrum=[3.0, 1.0, 0.0]), psd(max_dimension=4, max_condition=100))
@QUICK
def test_psd_matrices(prescribed, drawn):
    assert np.linalg.eigvalsh(prescribed) == pytest.approx([0, 1, 3], abs=1e-12)
    values = np.linalg.eigvalsh(drawn)
    assert values.min() >= -1e-12
    assert np.array_equal(drawn, drawn.T)
    positive = values[values > 1e-6]
    assert not len(positive) or positive.max() / positive.min() <= 101


def test_shrinking_ends_at_simple_laws():
    assert find(finite_laws(), lambda law: len(law.atoms) == 2) == coin()
    assert find(sample_sizes(), lambda sizes: True) == (1, 1)
    assert find(scenarios(), lambda s: len(s.law.atoms) > 1) == Scenario(coin(), 1, 1)
    assert find(psd(), lambda m: True).tolist() == [[1.0]]
    assert find(gaussians(), lambda law: True).Sigma.tolist() == [1.0]


def test_search_repeats_under_a_seed():
    claim = bound(without_the_one)
    one, two = (first_violation(claim, seed=5, max_examples=300) for _ in range(2))
    assert one == two
    case, tried = one
    assert case.ratio > 1
    assert tried > 0
    assert (case.law, case.M, case.K) == (coin(), 1, 1)  # hypothesis shrinks to the fair coin, too
    assert first_violation(B_exact, seed=5, max_examples=30)[0] is None
    assert first_violation(claim, seed=5, max_examples=30, deadline=-1.0) == (None, 0)


@given(scenarios())
@settings(max_examples=100, deadline=None)
@hypothesis.example(Scenario(coin(), M=1, K=1))
def test_check_under_given(scenario):
    case = check(B_align, scenario)
    assert case.ratio <= 1


def test_check_raises_with_everything_to_paste():
    scenario = Scenario(coin(), 1, 1)
    with pytest.raises(BoundViolation, match=r"P\(T <= 0\) = 3/4 > 2/3") as caught:
        check(without_the_one, scenario)
    message = str(caught.value)
    assert "@example(Scenario(law=FiniteLaw([(0,), (1,)], ['1/2', '1/2']), M=1, K=1))" in message
    assert isinstance(caught.value, AssertionError)
    assert F(3, 4) == caught.value.case.P
    assert check(bound(without_the_one, M=">=2"), scenario) is None  # outside the claim
    assert check(bound(lambda m, M, K: 1 / m.m2), Scenario(FiniteLaw([0], [1]), 1, 1)) is None  # undefined


def test_given_finds_the_violation():
    @given(scenarios())
    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    def property_of_the_slip(scenario):
        check(without_the_one, scenario)

    with pytest.raises(BoundViolation, match=r"3/4 > 2/3"):
        property_of_the_slip()


def test_assert_bound_holds():
    assert isinstance(assert_bound_holds(B_align), Proved)
    assert isinstance(
        assert_bound_holds(lambda m, M, K: 1 / (1 + M * K / (M + K + 1) * min(m.d_par, m.d_2))), Proved
    )
    quick = bound(lambda m, M, K: B_exact(m, M, K) ** 0.5, M=1, K=1)
    assert isinstance(assert_bound_holds(quick, examples=20), Unrefuted)
    with pytest.raises(BoundViolation, match=r"(?s)3/4 > 2/3.*assert P\(law, 1, 1\).*@example") as caught:
        assert_bound_holds(without_the_one)
    assert caught.value.case.ratio == pytest.approx(9 / 8)


def test_scenarios_respect_the_claim():
    claim = bound(without_the_one, M=">=3", K=(2, 4), where=lambda M, K: M > K, assumes="nonzero mean")

    @given(scenarios(bound=claim))
    @QUICK
    def inside(scenario):
        assert claim.covers(scenario.M, scenario.K)
        assert any(scenario.law.mean())

    inside()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: finite_laws(min_atoms=3, max_atoms=2), "min_atoms=3, max_atoms=2"),
        (lambda: finite_laws(min_dimension=0), "min_dimension=0"),
        (lambda: sparse_laws(min_dimension=5, max_dimension=4), "min_dimension=5, max_dimension=4"),
        (lambda: weak_signals(min_dimension=1), "min_dimension=1"),
        (lambda: sample_sizes(min_size=0), "min_size=0, max_size=8: expected 1 <= min_size <= max_size"),
        (lambda: psd(spectrum=[-1.0]), r"spectrum=\[-1.0\]: expected a sequence of eigenvalues >= 0"),
        (
            lambda: scenarios(bound=bound(without_the_one, where=lambda M, K: False)),
            "no .M, K. with sizes in",
        ),
    ],
)
def test_bad_limits(call, message):
    with pytest.raises(ValueError, match=message):
        find(call(), lambda x: True)


def test_every_strategy_says_what_it_can_and_cannot_generate():
    for name in strategies.__all__:
        item = getattr(strategies, name)
        if name in ("BoundViolation", "Scenario", "assert_bound_holds", "check", "first_violation"):
            continue
        assert "Can generate:" in item.__doc__, name
        assert "Cannot generate:" in item.__doc__, name


def test_only_strategies_load_hypothesis():
    code = "import sys, theory.worst_case, theory.cone, theory.exact; print('hypothesis' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
