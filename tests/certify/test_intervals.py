"""Intervals: exact proportions, tests by betting, finite-sample limits and large-sample limits."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from certify import asymptotic, finite_sample
from certify.asymptotic import PARALLEL, TRACE, Combination, Replicated
from certify.betting import Capital, betting_interval, empirical_bernstein_interval, smallest_rejected
from certify.estimators import estimate
from certify.intervals import ConfidenceInterval, clopper_pearson
from certify.moments import GradientMoments
from certify.replication import replicated, resampled
from certify.sketch import Sketch


@pytest.mark.parametrize("trials", [1, 2, 7, 30, 1000])
@pytest.mark.parametrize("alternative", ["two-sided", "less", "greater"])
def test_clopper_pearson_agrees_with_scipy(trials, alternative):
    for events in {0, 1, trials // 3, trials - 1, trials}:
        ours = clopper_pearson(events, trials, 0.9, alternative)
        theirs = stats.binomtest(events, trials, alternative=alternative).proportion_ci(0.9, "exact")
        assert ours.low == pytest.approx(theirs.low, abs=1e-12)
        assert ours.high == pytest.approx(theirs.high, abs=1e-12)


def test_closed_forms_at_the_ends():
    assert clopper_pearson(0, 50, 0.95, "less").high == pytest.approx(1 - 0.05 ** (1 / 50), rel=1e-14)
    assert clopper_pearson(50, 50, 0.95, "greater").low == pytest.approx(0.05 ** (1 / 50), rel=1e-14)
    assert clopper_pearson(0, 50).low == 0.0
    assert clopper_pearson(50, 50).high == 1.0
    # 1 - x would lose all digits here
    assert clopper_pearson(0, 10**15, 0.95, "less").high == pytest.approx(-math.log(0.05) / 1e15, rel=1e-12)


@pytest.mark.parametrize("alpha", [1e-20, 1e-100, 1e-300])
@pytest.mark.parametrize(
    ("events", "trials"), [(0, 5), (1, 10), (3, 5), (5, 10**6), (10**6 - 1, 10**6), (5, 5)]
)
def test_tiny_levels_stay_valid(events, trials, alpha):
    ci = clopper_pearson(events, trials, alpha=alpha)
    assert 0 <= ci.low <= events / trials <= ci.high <= 1
    # Valid means: the tail beyond the limit has at most half the level, up to the accuracy of the reference.
    if ci.low > 0:
        assert stats.binom.logsf(events - 1, trials, ci.low) <= math.log(alpha / 2) + 1e-4
    if ci.high < 1:
        # 1 - high is rounded, which moves the tail where high is near 1
        slack = 1e-4 if ci.high < 1 - 1e-9 else 1.0
        assert stats.binom.logcdf(events, trials, ci.high) <= math.log(alpha / 2) + slack


def coverage_of(limits, n, p):
    weights = stats.binom.pmf(np.arange(n + 1), n, p)
    return sum(w for w, (low, high) in zip(weights, limits, strict=True) if low <= p <= high)


def test_exact_coverage_and_a_false_interval_is_caught():
    n = 12
    exact = [(ci.low, ci.high) for ci in (clopper_pearson(k, n, 0.9) for k in range(n + 1))]
    wald = [
        (k / n - 1.645 * s, k / n + 1.645 * s) for k in range(n + 1) for s in [math.sqrt(k * (n - k) / n**3)]
    ]
    grid = np.linspace(0.01, 0.99, 99)
    assert min(coverage_of(exact, n, p) for p in grid) >= 0.9
    assert min(coverage_of(wald, n, p) for p in grid) < 0.9


def test_bad_counts_are_refused():
    with pytest.raises(ValueError, match="trials=0: expected at least one trial"):
        clopper_pearson(0, 0)
    with pytest.raises(ValueError, match="events=3, trials=2"):
        clopper_pearson(3, 2)
    with pytest.raises(ValueError, match="confidence=1"):
        clopper_pearson(1, 2, 1.0)
    with pytest.raises(ValueError, match="alpha=0"):
        clopper_pearson(1, 2, alpha=0.0)
    with pytest.raises(ValueError, match="alternative='both'"):
        clopper_pearson(1, 2, 0.9, "both")
    for bad in (1.5, "x", True):
        with pytest.raises(TypeError, match="events="):
            clopper_pearson(bad, 2)


def test_interval_record():
    ci = ConfidenceInterval(math.inf, math.inf, math.inf, 0.9, "m", 3, "example", ("iid",), "greater")
    assert ConfidenceInterval.from_dict(ci.to_dict()) == ci
    open_ended = ConfidenceInterval(None, -math.inf, math.inf, 0.9, "m", 3, "example")
    assert open_ended.to_dict()["low"] is None
    assert ConfidenceInterval.from_dict(open_ended.to_dict()) == open_ended
    with pytest.raises(ValueError, match=r"low=2\.0, high=1\.0"):
        ConfidenceInterval(0.0, 2.0, 1.0, 0.9, "m", 3, "example")
    with pytest.raises(ValueError, match="low=nan"):
        ConfidenceInterval(0.0, math.nan, 1.0, 0.9, "m", 3, "example")
    assert "at most" in str(clopper_pearson(1, 9, alternative="less"))
    assert "at least" in str(clopper_pearson(1, 9, alternative="greater"))


def expected_capital(play, values, weights, steps):
    """E K_T over all sequences of a finite law."""
    total = 0.0
    for path in itertools.product(range(len(values)), repeat=steps):
        log_capital = play(np.array([values[i] for i in path], dtype=float))
        total += math.prod(weights[i] for i in path) * math.exp(log_capital)
    return total


def final(game):
    return float(game.log_mixture()[0])


def test_capital_is_a_supermartingale_exactly():
    def play(x):
        game = Capital(1)
        game.bet(x[:, None], np.array([2.0]))
        return final(game)

    # mean of the payoff 0: the game is fair; positive: unfair to the gambler; negative: she wins.
    assert expected_capital(play, [-1.0, 2.0], [2 / 3, 1 / 3], 7) == pytest.approx(1.0, abs=1e-12)
    assert expected_capital(play, [-1.0, 2.0], [0.5, 0.5], 7) < 1
    assert expected_capital(play, [-1.0, 2.0], [0.9, 0.1], 7) > 1


def test_conditional_game_is_a_supermartingale_exactly():
    # x in {1, -1/2} with probabilities 1/2: mean 1/4, second moment 5/8, variance 9/16.
    K, odds = 3, (9 / 16) / (3 / 16)

    def play_at(c):
        def play(x):
            return final(finite_sample.conditional_game(x, K, 1.0, np.array([c]), Capital(1), 0.0))

        return play

    assert expected_capital(play_at(odds), [1.0, -0.5], [0.5, 0.5], 9) <= 1 + 1e-12
    assert expected_capital(play_at(0.3 * odds), [1.0, -0.5], [0.5, 0.5], 9) < 1
    # a false hypothesis, far below c: the gambler gains, else the test above could never fail
    assert expected_capital(play_at(odds), [1.0, 0.9], [0.5, 0.5], 9) > 1.05


def test_bounded_payoffs_have_the_stated_means_and_ceilings():
    atoms = np.array([[0.9, 0.1], [-0.3, 0.5], [0.0, -0.8], [0.6, 0.6]])
    weights = np.array([0.5, 0.2, 0.1, 0.2])
    triples = np.array([atoms[list(t)] for t in itertools.product(range(4), repeat=3)])
    w = np.array([weights[list(t)].prod() for t in itertools.product(range(4), repeat=3)])
    s = finite_sample.blocks(triples.reshape(-1, 2), 1.0)
    mu = weights @ atoms
    R = (weights[:, None] * atoms).T @ atoms
    assert w @ s.e == pytest.approx(mu @ mu)
    assert w @ s.t2 == pytest.approx(np.trace(R @ R))
    assert w @ s.t3 == pytest.approx(mu @ R @ mu)
    rng = np.random.default_rng(0)
    for d in (1, 2, 5):
        x = rng.standard_normal((3000, d))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        s = finite_sample.blocks(x, 1.0)
        assert s.t3.min() >= -1 / 3 - 1e-12
        assert s.e.min() >= -1 / 2 - 1e-12
        assert max(s.t2.max(), s.t3.max(), s.e.max()) <= 1 + 1e-12
    for k in (PARALLEL, TRACE, Combination.variance(1, 1), Combination.variance(7, 3)):
        finite_sample.bounded_odds(finite_sample.blocks(x, 1.0), k, 0.05)  # no ceiling is exceeded


def test_a_false_bound_is_refused():
    with pytest.raises(ValueError, match=r"bound=1: unit 2 has norm 2"):
        finite_sample.blocks(np.array([[0.5], [0.1], [2.0]]), 1.0)
    with pytest.raises(ValueError, match=r"bound=1: projection 1 is -3"):
        finite_sample.conditional_odds(np.array([0.5, -3.0]), 2, 1.0, 0.05)
    with pytest.raises(ValueError, match="payoff/ceiling=2"):
        Capital(1).bet(np.array([[2.0]]), np.array([1.0]))


def test_smallest_rejected():
    assert smallest_rejected(np.array([False, True, True])) == 1
    assert smallest_rejected(np.array([True, True])) == 0
    assert smallest_rejected(np.array([True, False])) is None
    assert smallest_rejected(np.array([], dtype=bool)) is None


# 300 samples at level 0.9: fewer than 253 covering ones have probability below 1e-3 if the level holds.
FEWEST = int(stats.binom.ppf(1e-3, 300, 0.9))


@pytest.mark.parametrize("method", [betting_interval, empirical_bernstein_interval])
def test_mean_intervals_cover(method):
    rng = np.random.default_rng(1)
    options = {"grid": 100} if method is betting_interval else {}
    p, widths, covered = 0.05, [], 0
    for _ in range(300):
        ci = method(rng.random(100) < p, 0, 1, 0.9, **options)
        covered += p in ci
        widths.append(ci.width)
    assert covered >= FEWEST
    assert np.median(widths) < 0.5


def test_betting_beats_the_closed_form_and_a_wrong_level_is_caught():
    rng = np.random.default_rng(2)
    x = rng.beta(2, 20, 400)
    assert betting_interval(x, 0, 1).width < empirical_bernstein_interval(x, 0, 1).width
    # A claim of the mean off by 0.03 must lie outside nearly always.
    outside = sum(
        2 / 22 + 0.03 not in betting_interval(rng.beta(2, 20, 1000), 0, 1, grid=200) for _ in range(20)
    )
    assert outside >= 18


def test_bounded_observations_are_checked():
    with pytest.raises(ValueError, match="expected all in"):
        betting_interval([0.5, 1.5], 0, 1)
    with pytest.raises(ValueError, match=r"x\[1\]=nan"):
        empirical_bernstein_interval([0.5, math.nan], 0, 1)
    with pytest.raises(ValueError, match="n=1"):
        empirical_bernstein_interval([0.5], 0, 1)
    with pytest.raises(ValueError, match="low=1, high=0"):
        betting_interval([0.5], 1, 0)


def naive(Q):
    """m2, m2^2, a, t by loops over different units; no product code."""
    n = len(Q)
    G = Q @ Q.T
    T = {2: [], 3: [], 4: [], 1: []}
    for i, j in itertools.permutations(range(n), 2):
        T[1].append(G[i, j])
        T[2].append(G[i, j] ** 2)
    for i, j, k in itertools.permutations(range(n), 3):
        T[3].append(G[i, j] * G[j, k])
    for i, j, k, m in itertools.permutations(range(n), 4):
        T[4].append(G[i, j] * G[k, m])
    E2, T2, T3, T4 = (float(np.mean(T[k])) for k in (1, 2, 3, 4))
    return np.array([E2, T4, T3 - T4, T2 - 2 * T3 + T4])


def test_jackknife_equals_refits():
    Q = 0.5 + np.random.default_rng(3).standard_normal((8, 3))
    moments = GradientMoments.from_array(Q)
    r = replicated(moments)
    scale = 4.0 ** (moments.exponent * np.array([1, 2, 2, 2]))
    np.testing.assert_allclose(r.point * scale, naive(Q), rtol=1e-9)
    refits = np.array([naive(np.delete(Q, i, axis=0)) for i in range(8)])
    np.testing.assert_allclose(r.without * scale, refits, rtol=1e-8, atol=1e-10)
    m2 = refits[:, 0]
    assert r.spread(lambda x: x[:, 0]) * scale[0] == pytest.approx(
        math.sqrt(7 / 8 * ((m2 - m2.mean()) ** 2).sum())
    )


def test_limits_solve_their_equations():
    Q = 0.7 + np.random.default_rng(4).standard_normal((60, 4))
    r = replicated(GradientMoments.from_array(Q))
    k, alpha = Combination.variance(8, 8), 0.05
    t = stats.t.isf(alpha, 59)
    assert r.quantile(alpha) == pytest.approx(t)
    low, high = asymptotic.fieller(r, k, alpha)
    for c, sign in ((low, -1), (high, 1)):
        value = lambda x, c=c: k.a * x[:, 2] + k.t * x[:, 3] - c * x[:, 1]  # noqa: E731
        assert float(value(r.point[None])[0]) == pytest.approx(-sign * t * r.spread(value), rel=1e-6)
    v, v_low, v_high = asymptotic.numerator_limits(r, k, alpha)
    e, (e_low, e_high) = r.point[0], asymptotic.signal_limits(r, alpha)
    low, high = asymptotic.mover(r, k, alpha)
    for c, x_limit, e_limit in ((low, v_low, e_high), (high, v_high, e_low)):
        x, rho = math.sqrt(v), math.sqrt(c)
        left = (x - rho * e) ** 2
        right = (math.sqrt(x_limit) - x) ** 2 + rho**2 * (e - e_limit) ** 2
        assert left == pytest.approx(right, rel=1e-6)
    _, v_low, v_high = asymptotic.numerator_limits(r, k, alpha / 2)
    e_low, e_high = asymptotic.signal_limits(r, alpha / 2)
    assert asymptotic.separate(r, k, alpha) == pytest.approx((v_low / e_high**2, v_high / e_low**2))
    for limits in (asymptotic.separate, asymptotic.mover, asymptotic.fieller):
        low, high = limits(r, k, alpha)
        assert low < (k.a * r.point[2] + k.t * r.point[3]) / r.point[1] < high
        assert limits(r, k, 0.01)[1] > high


@pytest.mark.parametrize("limits", [asymptotic.separate, asymptotic.mover, asymptotic.fieller])
def test_limits_are_ordered_where_rounding_is_all_there_is(limits):
    rng = np.random.default_rng(9)
    for _ in range(300):
        point = rng.random(4) * 10.0 ** rng.integers(-9, 9, 4)
        low, high = limits(Replicated(point, np.tile(point, (9, 1)), np.ones(9)), TRACE, 0.05)
        assert 0 <= low <= high


def test_no_signal_gives_no_upper_limit():
    Q = np.random.default_rng(5).standard_normal((60, 10))
    moments = GradientMoments.from_array(Q - Q.mean(axis=0))
    r = replicated(moments)
    for limits in (asymptotic.separate, asymptotic.mover, asymptotic.fieller):
        assert limits(r, PARALLEL, 0.05)[1] == math.inf
    assert asymptotic.percentile(resampled(moments, 99, 0), PARALLEL, 0.05)[1] == math.inf
    with pytest.raises(ValueError, match="resamples=9: expected at least 20"):
        asymptotic.percentile(resampled(moments, 9, 0), PARALLEL, 0.05)


def test_intervals_from_sketches_count_the_variance_of_the_hashes():
    # 2,000 units and 6 buckets: nearly all error is that of the hashes, which every deletion shares.
    d, rng = 32, np.random.default_rng(8)
    scale = 1 / np.sqrt(1 + np.arange(d))
    Q = 0.2 + scale * rng.standard_normal((2000, d))
    truth = float((scale**4).sum())
    inside = without = 0
    for seed in range(30):
        m = GradientMoments.from_array(Q, representation="sketch", sketch=Sketch(k=6, seed=seed))
        inside += truth in estimate(m, confidence=0.95).intervals["tr_sigma2"]
        r = dataclasses.replace(replicated(m), sketches=None)
        _, low, high = asymptotic.numerator_limits(r, TRACE, 0.025)
        without += low <= truth <= high
    # P(Binomial(30, 0.95) < 24) < 1e-3; intervals blind to the hashes miss far more often
    assert inside >= 24
    assert without < 24


def test_group_deletions_stand_in_for_unit_deletions():
    Q = 0.7 + np.random.default_rng(6).standard_normal((4000, 5))
    units = replicated(GradientMoments.from_array(Q))
    groups = replicated(GradientMoments.from_array(Q, representation="covariance", memory_budget=1 << 14))
    assert groups.groups < 100
    np.testing.assert_allclose(groups.point / groups.point[0], units.point / units.point[0], rtol=1e-9)
    f = [lambda x: x[:, 0], lambda x: x[:, 2], lambda x: x[:, 3]]
    for g in f:
        ratio = groups.spread(g) / groups.point[0] / (units.spread(g) / units.point[0])
        assert 0.6 < ratio < 1.6


def test_estimate_intervals():
    rng = np.random.default_rng(7)
    e = estimate(0.5 + rng.standard_normal((500, 6)), confidence=0.99)
    truth = {"m2": 1.5, "m2_squared": 2.25, "mu_sigma_mu": 1.5, "tr_sigma2": 6.0, "d_par": 1.5, "d_2": 0.375}
    for name, value in {**truth, "d_align": 0.375}.items():
        assert value in e.intervals[name], name
        assert e.intervals[name].estimate == getattr(e, name)
    assert e.detected is True
    assert estimate(rng.standard_normal((50, 6)), confidence=0.99).detected is False
    with pytest.raises(ValueError, match="n=5: expected at least 6 units"):
        estimate(rng.standard_normal((5, 6)), confidence=0.99)
