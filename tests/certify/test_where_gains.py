"""Statistics of the ranking: error control, power, and the scores of other methods by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from certify.gains import _holm, family_gains, units_needed
from certify.growth_scores import gradmax_score, tiny_score

LEVEL, FALSE_ALARM = 0.05, 1e-6


def at_most(level, trials):
    """Largest count that a procedure of this level exceeds with probability below FALSE_ALARM."""
    return int(stats.binom.ppf(1 - FALSE_ALARM, trials, level))


def families(trials, m=8, n=60, train=60, d=5, seed=0, reuse=False):
    """Count families of null points with a certified one; the step is fitted, the mean gradient is 0."""
    rng = np.random.default_rng(seed)
    wrong = 0
    for _ in range(trials):
        x = {}
        for j in range(m):
            first, second = rng.standard_normal((train, d)), rng.standard_normal((n, d))
            mu = first.mean(0)
            x[str(j)] = (first if reuse else second) @ mu / np.linalg.norm(mu)
        wrong += any(g.verdict == "certified" for g in family_gains(x, method="student").values())
    return wrong


def test_family_wise_error_at_the_null_and_the_false_comparator_that_uses_train_units_twice():
    trials = 120
    limit = at_most(LEVEL / 2, trials)
    assert families(trials) <= limit
    # The same procedure on the units that chose the step must be caught.
    assert families(trials, reuse=True) > 3 * limit


@pytest.mark.parametrize(
    "options", [{"method": "bootstrap", "resamples": 999}, {"tier": "bounded", "bound": 4.0}]
)
def test_other_methods_at_the_null(options):
    trials, m, rng, wrong = 12, 3, np.random.default_rng(1), 0
    for _ in range(trials):
        X = rng.uniform(-1, 1, (40, m))
        found = family_gains({str(j): X[:, j] for j in range(m)}, **options)
        wrong += any(g.verdict != "undecided" for g in found.values())
    assert wrong <= at_most(LEVEL, trials)


@pytest.mark.parametrize(
    "options",
    [{"method": "student"}, {"method": "bootstrap", "resamples": 1999}, {"tier": "bounded", "bound": 6.5}],
)
def test_power_and_signs(options):
    rng = np.random.default_rng(0)
    X = np.clip(rng.standard_normal((300, 3)), -5, 5) + np.array([1.5, -1.5, 0.0])
    found = family_gains(dict(zip("abc", X.T, strict=True)), **options)
    assert [found[n].verdict for n in "abc"] == ["certified", "refuted", "undecided"]
    assert found["a"].interval.low > 0 > found["b"].interval.high
    assert found["a"].interval.low <= 1.5 <= found["a"].interval.high


def test_student_limits_and_holm_by_hand():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((40, 3)) + np.array([0.45, 0.5, 1.0])
    found = family_gains(dict(zip("abc", X.T, strict=True)), method="student")
    one_sided = [stats.ttest_1samp(X[:, j], 0, alternative="greater").pvalue for j in range(3)]
    order = np.argsort(one_sided)
    running, expected = 0.0, {}
    for k, j in enumerate(order):
        running = max(running, 2 * (3 - k) * one_sided[j])
        expected["abc"[j]] = min(1.0, running)
    for name in "abc":
        assert found[name].adjusted == pytest.approx(expected[name])
    half = stats.t.ppf(1 - 0.05 / 6, 39) * X[:, 0].std(ddof=1) / math.sqrt(40)
    assert found["a"].interval.low == pytest.approx(X[:, 0].mean() - half)


def test_intervals_hold_together():
    rng, trials, missed = np.random.default_rng(5), 200, 0
    for _ in range(trials):
        X = rng.standard_normal((50, 6)) + 0.3
        missed += any(
            0.3 not in g.interval for g in family_gains(dict(enumerate(X.T)), method="student").values()
        )
    assert missed <= at_most(LEVEL, trials)
    assert missed > 0  # not merely infinite


def test_units_needed_gives_the_power_it_promises():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(400)
    x = (x - x.mean()) / x.std(ddof=1) + 0.1
    needed = units_needed(x, 0.05 / 9)
    assert needed.low < needed.units
    assert needed.high is None or needed.high > needed.units
    trials = 300
    fresh = rng.standard_normal((trials, needed.units)) + 0.1
    t = fresh.mean(1) / fresh.std(1, ddof=1) * math.sqrt(needed.units)
    decided = int((t > stats.t.ppf(1 - 0.05 / 18, needed.units - 1)).sum())
    assert stats.binomtest(decided, trials, 0.8).pvalue > FALSE_ALARM
    assert units_needed(x - x.mean(), 0.05).high is None


def test_one_unit_with_all_the_spread_decides_nothing():
    x = np.r_[np.full(50, 1.0), 200.0]
    found = family_gains({"a": x, "b": np.ones(51)})
    assert "one unit carries" in found["a"].reason
    assert "same gain" in found["b"].reason
    assert {g.verdict for g in found.values()} == {"undecided"}


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({}, {}, "expected at least one step"),
        ({"a": [1.0]}, {}, "K=1: expected at least 2"),
        ({"a": [1.0, np.nan]}, {}, "projection of unit 1 on step 'a' is nan"),
        ({"a": [1.0, 2.0], "b": [1.0]}, {}, "all of one length"),
        ({"a": [1.0, 2.0]}, {"tier": "bounded"}, "needs a number"),
        ({"a": [1.0, 2.0]}, {"bound": 3.0}, "other tiers none"),
        ({"a": [1.0, 2.0]}, {"tier": "bounded", "bound": 1.5}, "state a bound"),
        ({"a": [1.0, 2.0]}, {"method": "bootstrap", "resamples": 10}, "expected at least 40"),
        ({"a": [1.0, 2.0]}, {"method": "x"}, "student, bootstrap"),
    ],
)
def test_mistakes(given, options, message):
    with pytest.raises(ValueError, match=message):
        family_gains(given, **options)


def test_gradmax_is_the_largest_gradient_norm_of_new_neurons():
    rng = np.random.default_rng(0)
    G = rng.standard_normal((4, 3))
    tried = rng.standard_normal((20000, 4))
    norms = np.linalg.norm(tried / np.linalg.norm(tried, axis=1, keepdims=True) @ G, axis=1)
    assert norms.max() <= gradmax_score(G) <= 1.01 * norms.max()
    s = np.linalg.svd(G, compute_uv=False)
    assert gradmax_score(G, neurons=2, norm=3.0) == pytest.approx(3 * math.sqrt((s[0] ** 2 + s[1] ** 2) / 2))


def test_tiny_is_the_part_of_the_wanted_change_that_a_linear_map_explains():
    rng = np.random.default_rng(0)
    h, v = rng.standard_normal((50, 4)), rng.standard_normal((50, 3))
    fit, *_ = np.linalg.lstsq(h, v, rcond=None)
    explained = ((v**2).sum() - ((v - h @ fit) ** 2).sum()) / 50
    assert tiny_score(h.T @ h / 50, h.T @ v / 50) == pytest.approx(explained)
    # best single neuron, against a search over its input direction
    a = rng.standard_normal((40000, 4)) @ np.linalg.inv(np.linalg.cholesky(h.T @ h / 50))
    gains = ((h.T @ v / 50).T @ a.T) ** 2
    best = (gains.sum(0) / np.einsum("ij,jk,ik->i", a, h.T @ h / 50, a)).max()
    assert best <= tiny_score(h.T @ h / 50, h.T @ v / 50, neurons=1) <= 1.01 * best


def test_holm_agrees_with_statsmodels():
    from statsmodels.stats.multitest import multipletests

    p = np.random.default_rng(0).random(9) ** 4
    np.testing.assert_allclose(_holm(list(p)), multipletests(p, method="holm")[1])


def test_skewed_units_certify_too_easily_by_student_and_not_by_the_bootstrap():
    """A few units lose much by the step and the rest win a little; there is no gain on average."""
    rng, trials = np.random.default_rng(0), 50
    wrong = {"student": 0, "bootstrap": 0}
    for seed in range(trials):
        X = 1 - np.where(rng.random((200, 9)) < 0.05, rng.exponential(20, (200, 9)), 0)
        for method in wrong:
            found = family_gains(dict(enumerate(X.T)), method=method, resamples=999, rng=seed)
            wrong[method] += any(g.verdict == "certified" for g in found.values())
    assert wrong["bootstrap"] <= at_most(LEVEL / 2, trials) < wrong["student"]
