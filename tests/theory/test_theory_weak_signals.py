"""High dimension with a tiny signal: exact moments and probabilities, the strategy, bounds tested with it."""

from __future__ import annotations

import time
from fractions import Fraction as F

import hypothesis
import numpy as np
import pytest
from hypothesis import given, settings

from theory.bounds import B_align, B_exact, Moments, bound
from theory.exact import finite_support_probability
from theory.laws import FiniteLaw, Law, WeakSignalLaw
from theory.strategies import BoundViolation, Scenario, check, sample_sizes, scenarios, weak_signals
from theory.worst_case import decide

SMALL = [
    WeakSignalLaw(d, *numbers)
    for d in (2, 3, 4)
    for numbers in ((1, 0, 1), (1, 0, 2), (1, 2, 3), (2, "1/2", 5), (0, 1, 1), (-1, 0, 2), (1, 3, 0))
]


def find(strategy, condition):
    options = settings(max_examples=2_000, database=None, deadline=None)
    return hypothesis.find(strategy, condition, settings=options, random=__import__("random").Random(0))


@pytest.mark.parametrize("law", SMALL, ids=repr)
def test_exact_numbers_agree_with_the_written_out_law(law):
    """Moments and P(T <= 0) against the enumeration of all atoms, which knows nothing of axes."""
    written_out = law.finite()
    assert isinstance(law, Law)
    assert law.scalars() == written_out.scalars()
    assert law.mean() == written_out.mean()
    assert law.covariance() == written_out.covariance()
    assert law.trace == sum(row[i] for i, row in enumerate(law.covariance()))
    for M, K in ((1, 1), (1, 3), (3, 1), (2, 2), (3, 2)):
        assert law.probability(M, K) == finite_support_probability(written_out, M, K)


def test_many_axes_against_a_simulation():
    """20,000 draws of T at d = 500; off by more than 4.5 standard errors once in 150,000 seeds."""
    law, M, K, n = WeakSignalLaw(500, 1, "1/2", 12), 3, 4, 20_000
    rng = np.random.default_rng(1)
    exact = float(law.probability(M, K))
    hits = 0
    for _ in range(10):
        train = law.sample(n // 10 * M, rng).reshape(-1, M, 500).mean(axis=1)
        test = law.sample(n // 10 * K, rng).reshape(-1, K, 500).mean(axis=1)
        hits += int(((train * test).sum(axis=1) <= 0).sum())
    assert 0.005 < exact < 0.05
    assert abs(hits / n - exact) < 4.5 * (exact * (1 - exact) / n) ** 0.5
    assert abs(hits / n - 1.6 * exact) > 4.5 * (exact * (1 - exact) / n) ** 0.5  # a false claim is seen


def test_text_is_code():
    law = WeakSignalLaw(4096, "1/2", 3, 1000)
    assert repr(law) == "WeakSignalLaw(4096, '1/2', 3, 1000)"
    assert eval(repr(law)) == law
    assert len({law, eval(repr(law)), WeakSignalLaw(4096, "1/2", 3, 999)}) == 2


@pytest.mark.parametrize(
    ("numbers", "error", "message"),
    [
        ((1,), ValueError, "dimension=1: expected at least 2"),
        ((2.0,), TypeError, "expected an integer"),
        ((3, 1, -1), ValueError, "along=-1: expected a size of noise >= 0"),
        ((3, 1, 0, -2), ValueError, "across=-2: expected a size of noise >= 0"),
        ((3, 0.5), TypeError, "signal=0.5 has type float"),
    ],
)
def test_bad_laws(numbers, error, message):
    with pytest.raises(error, match=message):
        WeakSignalLaw(*numbers)


def test_bad_sizes():
    for M, K, name in ((0, 1, "M"), (1, 0, "K")):
        with pytest.raises(ValueError, match=f"{name}=0: expected an integer >= 1"):
            WeakSignalLaw(3).probability(M, K)


def test_the_strategy_reaches_high_dimension_and_tiny_signals():
    """What the docs promise is found, and shrinks to its edge."""
    high = find(weak_signals(), lambda law: law.dimension >= 1000)
    assert (high.dimension, high.along, high.across) == (1000, 0, 1)
    tiny = find(weak_signals(), lambda law: law.signal**2 / law.trace < F(1, 10**5))
    assert tiny.dimension == 2
    assert 316 < tiny.across + tiny.along <= 450
    assert find(weak_signals(min_dimension=300), lambda law: law.along > 0) == WeakSignalLaw(300, 1, 1, 1)
    both = find(
        weak_signals(), lambda law: law.dimension > 2000 and law.scalars()[2] > 10**4 and law.along == 0
    )
    assert both == WeakSignalLaw(2001, 1, 0, 67)


def test_draws_are_fast_in_any_dimension():
    """200 laws in dimension 4096 with both bounds and exact P at M, K <= 3: milliseconds each."""
    seen = []

    @given(weak_signals(min_dimension=4096), sample_sizes(max_size=3))
    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    def bounds_hold(law, sizes):
        moments = Moments.from_law(law)
        assert law.probability(*sizes) <= B_exact(moments, *sizes) <= B_align(moments, *sizes)
        seen.append((law.dimension, law.across))

    start = time.process_time()
    bounds_hold()
    assert time.process_time() - start < 20
    assert len(seen) >= 150
    assert {d for d, _ in seen} == {4096}
    assert max(r for _, r in seen) > 900


def small_noise_slip(m, M, K):
    """False only where many axes share the noise: P is about 1/(2 d) there and the claim is V/(4 m2^2)."""
    V = m.variance(M, K)
    return V / (4 * m.m2**2)


def test_a_slip_that_needs_many_axes_is_caught():
    """P = 1/(2 (d - 1)) at M = K = 1 and r = 1, above V/4 = 1/(4 (d - 1)): told apart exactly at d = 4096."""
    case = decide(bound(small_noise_slip), WeakSignalLaw(4096), 1, 1)
    assert case.P == 2 * case.B == F(1, 8190)
    with pytest.raises(BoundViolation, match=r"assert law.probability\(1, 1\) > ") as caught:
        check(bound(small_noise_slip, name="slip"), Scenario(WeakSignalLaw(4096), 1, 1))
    lines = str(caught.value).splitlines()
    exec("\n".join(lines[1:3]), {"slip": bound(small_noise_slip)})
    assert lines[-1] == "@example(Scenario(law=WeakSignalLaw(4096, 1, 0, 1), M=1, K=1))"

    @given(weak_signals(min_dimension=1000), sample_sizes(max_size=2))
    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    def slip(law, sizes):
        check(small_noise_slip, Scenario(law, *sizes))

    with pytest.raises(BoundViolation, match=r"WeakSignalLaw\(1000, 1, 0, 1\), M=1, K=1"):
        slip()


def test_scenarios_in_high_dimension():
    """Above dimension 8 scenarios mix in weak signals; the other families stay where atoms can be listed."""
    high = find(scenarios(max_dimension=4096), lambda s: s.law.dimension > 1000)
    assert isinstance(high.law, WeakSignalLaw)

    @given(scenarios(max_dimension=4096, max_size=3))
    @settings(max_examples=30, deadline=None, database=None, derandomize=True)
    def bounded(scenario):
        assert check(B_exact, scenario).ratio <= 1
        assert isinstance(scenario.law, WeakSignalLaw) or scenario.law.dimension <= 8

    bounded()
    flat = find(scenarios(), lambda s: s.law.dimension == 3)
    assert isinstance(flat.law, FiniteLaw)
