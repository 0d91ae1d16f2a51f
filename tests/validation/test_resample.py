"""Misalignment counts: against exhaustive enumeration, against exact rationals, and against false claims."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from theory import laws
from validation import resample
from validation.resample import Pool

ALPHA = 1e-6
"""False-alarm rate of each statistical check below; seeds are fixed, so a pass stays a pass."""


def _agrees(events: resample.Events, p: float) -> bool:
    return stats.binomtest(events.events, events.trials, p).pvalue > ALPHA


def _with_replacement(Q: list[list[int]], M: int, K: int) -> float:
    """P(T <= 0) by enumeration, in integers; imports no product code."""
    hits = total = 0
    for w in itertools.product(Q, repeat=M):
        for v in itertools.product(Q, repeat=K):
            total += 1
            hits += (
                sum(sum(c) * sum(e) for c, e in zip(zip(*w, strict=True), zip(*v, strict=True), strict=True))
                <= 0
            )
    return hits / total


def _without_replacement(Q: list[list[int]], M: int, K: int) -> float:
    hits = total = 0
    for chosen in itertools.permutations(range(len(Q)), M + K):
        w, v = [Q[i] for i in chosen[:M]], [Q[i] for i in chosen[M:]]
        total += 1
        hits += (
            sum(sum(c) * sum(e) for c, e in zip(zip(*w, strict=True), zip(*v, strict=True), strict=True)) <= 0
        )
    return hits / total


WIDE = [[1, 2, 0, 0, 1], [2, -1, 1, 0, 0], [-1, 1, 1, 2, 0], [0, 1, -2, 1, 1], [1, 0, 0, -1, 2]]
NARROW = [[3], [1], [-2], [1], [0], [-1]]


@pytest.mark.parametrize("Q", [WIDE, NARROW], ids=["gram route", "factor route"])
@pytest.mark.parametrize(("M", "K"), [(1, 1), (2, 1), (2, 3)])
def test_frequencies_agree_with_enumeration(Q: list[list[int]], M: int, K: int) -> None:
    pool = Pool(np.array(Q, dtype=np.float32))
    assert pool.uses_gram == (len(Q) < 2 * len(Q[0]))
    replaced = pool.count(M, K, protocol="with_replacement", replicates=40_000, rng=M)
    drawn = pool.count(M, K, protocol="without_replacement", replicates=40_000, rng=K)
    assert _agrees(replaced, _with_replacement(Q, M, K))
    assert _agrees(drawn, _without_replacement(Q, M, K))
    assert not _agrees(replaced, _with_replacement(Q, M, K) - 0.03)  # a false claim is noticed


def test_the_two_protocols_differ() -> None:
    """Pool {0, 1}, M = K = 1: 3/4 with replacement, 1 without, beyond the theorem's bound of 3/4."""
    pool = Pool(np.array([[0.0], [1.0]]))
    assert pool.count(1, 1, protocol="without_replacement", replicates=500, rng=0).events == 500
    assert _agrees(pool.count(1, 1, protocol="with_replacement", replicates=20_000, rng=0), 0.75)


def test_fresh_blocks_are_disjoint_and_use_each_unit_once() -> None:
    Q = np.zeros((10, 3))
    Q[7] = 1  # one unit that matters: with disjoint blocks T = 0 everywhere
    e = Pool(Q).count(2, 1, protocol="fresh", replicates=100, rng=0)
    assert (e.trials, e.events, e.ties) == (3, 3, 3)
    ones = Pool(np.ones((10, 1))).count(2, 1, protocol="fresh", replicates=100, rng=0)
    assert (ones.trials, ones.events) == (3, 0)


@pytest.mark.parametrize("protocol", ["with_replacement", "without_replacement", "fresh"])
def test_counts_do_not_depend_on_the_size_of_blocks(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Q = np.random.default_rng(0).standard_normal((60, 40)) + 0.05
    whole = Pool(Q).count(3, 4, protocol=protocol, replicates=500, rng=5)  # type: ignore[arg-type]
    monkeypatch.setattr(resample, "_CHUNK_BYTES", 8 * 60 * 7)
    assert Pool(Q).count(3, 4, protocol=protocol, replicates=500, rng=5) == whole  # type: ignore[arg-type]
    assert 0 < whole.events < whole.trials


def test_other_views_of_the_units_share_the_draws() -> None:
    Q = np.random.default_rng(0).standard_normal((50, 6)) + 0.1
    a, b = resample.count_each(
        [Pool(Q), Pool(-3e-20 * Q)], 3, 3, protocol="with_replacement", replicates=2000, rng=1
    )
    assert a == b


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e30])
def test_scale_changes_nothing(scale: float) -> None:
    Q = np.random.default_rng(1).standard_normal((40, 30)) + 0.1
    reference = Pool(Q).count(5, 5, protocol="with_replacement", replicates=3000, rng=2)
    assert Pool(scale * Q).count(5, 5, protocol="with_replacement", replicates=3000, rng=2) == reference


def test_ties_are_events_although_decimals_do_not_cancel() -> None:
    """3 * 0.1 - 0.3 is 5.6e-17 in floats; the tie must not be lost."""
    pool = Pool(np.array([[0.1], [0.1], [0.1], [-0.3]]))
    e = pool.count(4, 1, protocol="with_replacement", replicates=20_000, rng=0)
    p = _with_replacement([[1], [1], [1], [-3]], 4, 1)
    tie = 4 * 0.75**3 * 0.25
    assert _agrees(e, p)
    assert _agrees(resample.Events(e.ties, e.trials, 0, 4, 1, "with_replacement"), tie)
    assert not _agrees(e, p - tie)


@pytest.mark.parametrize(("sign", "events"), [(1, 0), (-1, 500)])
def test_rounding_never_decides_a_sign(sign: int, events: int) -> None:
    """T = 2^-40 or -2^-40; in float32 both are 0, so without the second look one is miscounted."""
    a = [1 + 2.0**-20, 1.0]
    b = [1.0, -(1 + 2.0**-20 - sign * 2.0**-40)]
    assert Fraction(a[0]) * Fraction(b[0]) + Fraction(a[1]) * Fraction(b[1]) == sign * Fraction(1, 2**40)
    assert np.float32(a[0]) * np.float32(b[0]) + np.float32(a[1]) * np.float32(b[1]) == 0
    e = Pool(np.array([a, b])).count(1, 1, protocol="without_replacement", replicates=500, rng=0)
    assert (e.events, e.ties) == (events, 0)


def test_counts_equal_a_naive_loop() -> None:
    """The same draws, summed one by one in float64 by a loop that shares no code."""
    Q = np.random.default_rng(3).standard_normal((30, 50)) + 0.1
    e = Pool(Q).count(4, 6, protocol="with_replacement", replicates=300, rng=4)
    w, v = (
        r.integers(0, 30, size=(300, m))
        for r, m in zip(np.random.default_rng(4).spawn(2), (4, 6), strict=True)
    )
    naive = sum(float(sum(Q[i] for i in a) @ sum(Q[j] for j in b)) <= 0 for a, b in zip(w, v, strict=True))
    assert e.events == naive


def test_pool_moments_match_enumeration_exactly() -> None:
    """Mean and variance of T for both ways of drawing, against Fractions, through the bounds."""
    from validation.pool_bounds import pool_bounds

    M, K = 2, 2
    Q = [[2, 1], [1, -1], [3, 0], [1, 1], [-1, 2]]
    moments = Pool(np.array(Q, dtype=float)).moments()
    for replacement in (True, False):
        draws = (
            itertools.product(range(5), repeat=M + K)
            if replacement
            else itertools.permutations(range(5), M + K)
        )
        values = [
            Fraction(sum(Q[i][c] * Q[j][c] for i in d[:M] for j in d[M:] for c in (0, 1)), M * K)
            for d in draws
        ]
        mean = sum(values) / len(values)
        variance = sum(v * v for v in values) / len(values) - mean**2
        bound = pool_bounds(moments, M, K, replacement=replacement)[0].value
        assert bound == pytest.approx(float(variance / (variance + mean**2)), rel=1e-12)


@pytest.mark.parametrize(
    ("law", "M", "K", "p"),
    [
        (laws.coin(), 1, 1, 0.75),
        (laws.rare_reversal(4, "1/10"), 4, 4, 1 - 0.9**8),
        (laws.GaussianLaw([0.0, 0.0], [1.0, 2.0]), 3, 5, 0.5),
    ],
    ids=["coin", "rare reversal", "no signal"],
)
def test_known_laws(law: laws.Law, M: int, K: int, p: float) -> None:
    e = resample.law_events(law, M, K, replicates=40_000, rng=0)
    assert abs(e.events / e.trials - p) < 0.02 if "Finite" in type(law).__name__ else _agrees(e, p)
    assert not _agrees(e, p + 0.05)


def test_gaussian_means_agree_with_unit_by_unit_draws() -> None:
    law = laws.GaussianLaw([0.4, 0.1, 0.0], [1.0, 0.5, 2.0])
    matrix = laws.GaussianLaw([0.4, 0.1, 0.0], np.diag([1.0, 0.5, 2.0]))  # takes the unit-by-unit way
    from theory.exact import gaussian_log_probability

    p = math.exp(gaussian_log_probability(law.mu, law.Sigma, 4, 6))
    assert _agrees(resample.law_events(law, 4, 6, replicates=30_000, rng=0), p)
    assert _agrees(resample.law_events(matrix, 4, 6, replicates=30_000, rng=1), p)


@pytest.mark.parametrize(
    ("Q", "words"),
    [
        (np.zeros(3), "expected \\(n, d\\)"),
        (np.zeros((1, 3)), "at least 2 units"),
        (np.array([[0.0], [np.nan]]), "first in unit 1"),
    ],
)
def test_bad_pools_are_refused(Q: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Pool(Q)


@pytest.mark.parametrize(
    ("M", "K", "protocol", "replicates", "words"),
    [
        (0, 1, "with_replacement", 1, "M=0"),
        (3, 3, "without_replacement", 1, "more units than the pool's 5"),
        (1, 1, "bootstrap", 1, "protocol='bootstrap': expected one of fresh"),
        (1, 1, "fresh", 0, "replicates=0"),
    ],
)
def test_bad_requests_are_refused(M: int, K: int, protocol: str, replicates: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Pool(np.ones((5, 2))).count(M, K, protocol=protocol, replicates=replicates, rng=0)  # type: ignore[arg-type]


def test_all_zero_gradients_are_all_ties() -> None:
    e = Pool(np.zeros((4, 3))).count(1, 1, protocol="with_replacement", replicates=50, rng=0)
    assert (e.events, e.ties) == (50, 50)


def test_low_rank_factors_change_no_count() -> None:
    """A pool with a few large directions: fewer coordinates, the same counts as with all of them."""
    rng = np.random.default_rng(0)
    Q = (rng.standard_normal((300, 280)) + 0.02) * np.exp(-np.arange(280) / 8)
    fast, slow = Pool(Q), Pool(Q)
    slow._factors = resample._Factors(slow.Q, slow.Q, 0.0, 1e-9)
    for M in (1, 20, 200):
        a, b = (p.count(M, M, protocol="with_replacement", replicates=1500, rng=M) for p in (fast, slow))
        assert a == b
        assert 0 < a.events < a.trials
    assert fast._factors is not None
    assert fast._factors.left.shape[1] < 100
    left_out = fast.gram - fast._factors.left @ fast._factors.right.T
    assert 0 < np.linalg.norm(left_out, 2) <= fast._factors.error


def test_pairs_of_pools_agree_with_enumeration() -> None:
    """M units of one pool, K of another, against all equally likely draws; and a false claim is noticed."""
    one, two = [[1, 2], [-1, 1], [2, -1]], [[1, 0], [-2, 1], [1, 1], [0, -1]]
    for M, K in ((1, 1), (2, 1), (1, 3)):
        pair = resample.PoolPair(Pool(np.array(one, float)), Pool(np.array(two, float)))
        e = resample.count_pairs([pair], M, K, replicates=40_000, rng=M)[0]
        p = np.mean(
            [
                np.sum(w, axis=0) @ np.sum(v, axis=0) <= 0
                for w in itertools.product(one, repeat=M)
                for v in itertools.product(two, repeat=K)
            ]
        )
        assert _agrees(e, float(p))
        assert not _agrees(e, float(p) - 0.03)


def test_two_pool_moments_match_enumeration_exactly() -> None:
    from validation.pool_bounds import two_pool_moments

    one, two = [[1, 2], [-1, 1], [2, 3]], [[1, 0], [2, 1], [1, 1], [0, -1]]
    M, K = 2, 3
    values = [
        Fraction(int(np.sum(w, axis=0) @ np.sum(v, axis=0)), M * K)
        for w in itertools.product(one, repeat=M)
        for v in itertools.product(two, repeat=K)
    ]
    mean = sum(values) / len(values)
    V = sum(x * x for x in values) / len(values) - mean**2
    exact, align = two_pool_moments(np.array(one, float), np.array(two, float)).bounds(M, K)
    assert exact.value == pytest.approx(float(V / (V + mean**2)), rel=1e-12)
    assert align.value is not None
    assert align.value >= exact.value  # type: ignore[operator]
    against = two_pool_moments(np.array(one, float), -np.array(two, float)).bounds(M, K)
    assert (against[0].value, against[1].value) == (None, None)  # E T < 0: Cantelli claims nothing
