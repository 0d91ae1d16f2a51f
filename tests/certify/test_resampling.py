"""Leave-one-out, leave-group-out and weighted statistics against refits and loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import certify.resampling as resampling
from certify.estimators import estimate
from certify.moments import GradientMoments
from certify.resampling import (
    Resampled,
    leave_group_out,
    leave_one_out,
    rescaled,
    weighted_statistics,
)
from certify.sketch import Sketch
from certify.ustatistics import Statistics

SHAPES = [(9, 3), (9, 30), (24, 5), (8, 8)]


def rows(n: int, d: int) -> np.ndarray:
    return np.random.default_rng(n * d).normal(0.5, 1.0, (n, d)) * 1e3


def refit(Q: np.ndarray) -> np.ndarray:
    e = estimate(GradientMoments.from_array(Q), correct=False)
    return np.array([getattr(e, name) for name in Statistics._fields])


def parts(resampled: Resampled) -> np.ndarray:
    return np.array(rescaled(resampled.parts, resampled.exponent))


@pytest.mark.parametrize(("n", "d"), SHAPES)
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_leave_one_out_equals_refits(n: int, d: int, offset: float) -> None:
    Q = rows(n, d) + offset
    found = leave_one_out(GradientMoments.from_array(Q))
    expected = np.stack([refit(np.delete(Q, i, axis=0)) for i in range(n)], axis=1)
    np.testing.assert_allclose(parts(found), expected, rtol=1e-8)
    np.testing.assert_allclose(rescaled(found.full, found.exponent), refit(Q), rtol=1e-12)
    assert (found.sizes == n - 1).all()
    u = found.parts
    np.testing.assert_allclose(u.T2 - 2 * u.T3 + u.T4, u.tr_sigma2, atol=1e-12 * float(np.max(u.T2)))
    np.testing.assert_allclose(u.E2, u.m2)


def test_both_routes_agree() -> None:
    Q = rows(30, 7)
    moments = GradientMoments.from_array(Q)
    by_gram, by_sums = leave_one_out(moments.gram()), leave_one_out(moments)
    np.testing.assert_allclose(parts(by_gram), parts(by_sums), rtol=1e-10)


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_counts_as_refits_equal_repeated_rows(n: int, d: int) -> None:
    Q = rows(n, d)
    weights = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=6)
    found = weighted_statistics(GradientMoments.from_array(Q), weights, repeats="refit")
    expected = np.stack([refit(np.repeat(Q, w, axis=0)) for w in weights], axis=1)
    np.testing.assert_allclose(parts(found), expected, rtol=1e-9)


def naive_weighted(Q: np.ndarray, w: np.ndarray) -> dict[str, float]:
    """Weighted sums over different units about the sample mean, by loops."""
    c = Q.mean(axis=0)
    X = Q - c
    G, h, n = X @ X.T, X @ c, len(Q)

    def mean(k: int, f) -> float:  # type: ignore[no-untyped-def]
        tuples = list(itertools.permutations(range(n), k))
        weights = [np.prod(w[list(i)]) for i in tuples]
        return float(np.dot(weights, [f(*i) for i in tuples]) / np.sum(weights))

    cc = float(c @ c)
    c_nu, nu_nu = mean(1, lambda i: h[i]), mean(2, lambda i, j: G[i, j])
    c_nu_2, c_nu_nu = mean(2, lambda i, j: h[i] * h[j]), mean(3, lambda i, j, k: h[i] * G[j, k])
    t2, t3 = mean(2, lambda i, j: G[i, j] ** 2), mean(3, lambda i, j, k: G[i, j] * G[j, k])
    t4 = mean(4, lambda i, j, k, m: G[i, j] * G[k, m])
    c_c, c_r = mean(1, lambda i: h[i] ** 2), mean(2, lambda i, j: h[i] * G[i, j])
    return {
        "m2": cc + 2 * c_nu + nu_nu,
        "m2_squared": cc**2 + 4 * cc * c_nu + 2 * cc * nu_nu + 4 * c_nu_2 + 4 * c_nu_nu + t4,
        "mu_sigma_mu": c_c - c_nu_2 + 2 * (c_r - c_nu_nu) + t3 - t4,
        "tr_sigma2": t2 - 2 * t3 + t4,
        "tr_sigma": mean(1, lambda i: G[i, i]) - nu_nu,
        "tr_sigma_squared": mean(2, lambda i, j: G[i, i] * G[j, j])
        - 2 * mean(3, lambda i, j, k: G[i, i] * G[j, k])
        + t4,
        "mean_q2": mean(1, lambda i: Q[i] @ Q[i]),
        "mean_q4": mean(1, lambda i: (Q[i] @ Q[i]) ** 2),
    }


@pytest.mark.parametrize(("n", "d"), [(7, 3), (6, 12)])
def test_distinct_weights_equal_loops(n: int, d: int) -> None:
    Q = rows(n, d)
    weights = np.random.default_rng(1).exponential(1.0, (4, n))
    weights[0] = 1.0
    weights[1, 0] = 0.0
    weights[2] = [3, 0, 1, 1, 2, 1] + [0] * (n - 6)
    found = weighted_statistics(GradientMoments.from_array(Q), weights)
    for k, w in enumerate(weights):
        for name, value in naive_weighted(Q, w).items():
            got = getattr(rescaled(found.parts, found.exponent), name)[k]
            assert got == pytest.approx(value, rel=1e-9), name
    np.testing.assert_allclose(parts(found)[:, 0], refit(Q), rtol=1e-11)
    np.testing.assert_allclose(rescaled(found.full, found.exponent), refit(Q), rtol=1e-11)


def test_repeated_units_make_refits_jump_but_not_distinct_weights() -> None:
    Q = np.random.default_rng(0).standard_normal((40, 400)) + 0.1
    moments = GradientMoments.from_array(Q)
    w = np.random.default_rng(1).multinomial(40, np.full(40, 1 / 40), size=50)
    truth = 400.0
    assert np.median(parts(weighted_statistics(moments, w, repeats="refit"))[3]) > 5 * truth
    assert abs(np.median(parts(weighted_statistics(moments, w))[3]) / truth - 1) < 0.5


@pytest.mark.parametrize(("n", "d"), SHAPES)
@pytest.mark.parametrize("repeats", ["distinct", "refit"])
def test_strips_of_the_gram_matrix_change_nothing(
    n: int, d: int, repeats: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Q = rows(n, d)
    moments = GradientMoments.from_array(Q[:4]) + GradientMoments.from_array(Q[4:])
    weights = np.random.default_rng(2).multinomial(n, np.full(n, 1 / n), size=5)
    whole = weighted_statistics(moments, weights, repeats=repeats)
    monkeypatch.setattr(resampling, "GRAM_ENTRIES", 4 * 3 * n)
    strips = weighted_statistics(moments, weights, repeats=repeats)
    np.testing.assert_allclose(parts(strips), parts(whole), rtol=1e-8)
    np.testing.assert_allclose(strips.full, whole.full, rtol=1e-9)


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_leave_group_out_of_rows_equals_refits(n: int, d: int) -> None:
    Q = rows(n, d)
    moments = GradientMoments.from_array(Q[:2]) + GradientMoments.from_array(Q[2:])
    found = leave_group_out(moments, groups=4)
    group = np.arange(n) * 4 // n
    expected = np.stack([refit(Q[group != g]) for g in range(4)], axis=1)
    np.testing.assert_allclose(parts(found), expected, rtol=1e-9)
    np.testing.assert_array_equal(found.sizes, [np.sum(group != g) for g in range(4)])


def test_leave_group_out_of_streams_equals_refits() -> None:
    Q = rows(128, 5)
    moments = GradientMoments.from_array(Q, representation="covariance", memory_budget=4 * 8 * 25)
    assert len(moments.blocks) == 4
    found = leave_group_out(moments)
    expected = np.stack([refit(np.delete(Q, slice(32 * g, 32 * g + 32), axis=0)) for g in range(4)], axis=1)
    np.testing.assert_allclose(parts(found), expected, rtol=1e-10)
    np.testing.assert_allclose(rescaled(found.full, found.exponent), refit(Q), rtol=1e-12)
    # The same units in groups with another exponent each
    Q[:32] *= 2.0**-80
    mixed = [GradientMoments.from_array(q, representation="covariance") for q in np.split(Q, 4)]
    blocks = tuple(block for m in mixed for block in m.blocks)
    odd = GradientMoments(128, 5, 1 << 20, None, blocks)
    expected = np.stack([refit(np.delete(Q, slice(32 * g, 32 * g + 32), axis=0)) for g in range(4)], axis=1)
    np.testing.assert_allclose(parts(leave_group_out(odd)), expected, rtol=1e-10)


def test_leave_group_out_of_sketches() -> None:
    Q = rows(96, 6)
    sketch = Sketch(k=400, replicates=8)
    blocks = [
        GradientMoments.from_array(q, representation="sketch", sketch=sketch, memory_budget=1)
        for q in np.split(Q, 3)
    ]
    moments = sum(blocks)
    found = leave_group_out(moments)
    expected = np.stack([refit(np.delete(Q, slice(32 * g, 32 * g + 32), axis=0)) for g in range(3)], axis=1)
    # 400 buckets for 6 coordinates: nearly no collisions
    np.testing.assert_allclose(parts(found), expected, rtol=0.05)
    np.testing.assert_allclose(parts(found)[[0, 4, 6]], expected[[0, 4, 6]], rtol=1e-11)


def test_errors() -> None:
    Q = rows(8, 3)
    moments = GradientMoments.from_array(Q)
    summed = GradientMoments.from_array(Q, representation="covariance")
    with pytest.raises(ValueError, match="n=4: expected at least 5"):
        leave_one_out(GradientMoments.from_array(Q[:4]))
    with pytest.raises(ValueError, match="raise memory_budget"):
        leave_one_out(summed)
    with pytest.raises(ValueError, match="raise memory_budget"):
        weighted_statistics(summed, np.ones(8))
    with pytest.raises(ValueError, match="groups=1"):
        leave_group_out(summed)
    with pytest.raises(ValueError, match="groups=1"):
        leave_group_out(moments, groups=1)
    with pytest.raises(ValueError, match="groups=1"):
        leave_group_out(GradientMoments.from_array(Q.T.copy()), groups=1)
    with pytest.raises(ValueError, match="n=2"):
        leave_group_out(GradientMoments.from_array(Q[:4]), groups=2)
    with pytest.raises(ValueError, match=r"weights.shape=\(7,\)"):
        weighted_statistics(moments, np.ones(7))
    with pytest.raises(ValueError, match=">= 0"):
        weighted_statistics(moments, -np.ones(8))
    with pytest.raises(ValueError, match="at least four units"):
        weighted_statistics(moments, [1, 1, 1, 0, 0, 0, 0, 0])
    with pytest.raises(ValueError, match="whole counts"):
        weighted_statistics(moments, np.full(8, 0.7), repeats="refit")
    with pytest.raises(ValueError, match="repeats='twice'"):
        weighted_statistics(moments, np.ones(8), repeats="twice")
