"""Certificates for two laws: deletions equal refits, the bound needs E T > 0, and the level holds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from certify.certification import Certificate, certificate
from certify.moments import GradientMoments
from certify.two_laws import estimate_two_laws, replicated_two_laws

M, K = 3, 5
RNG = np.random.default_rng(0)
TRAIN, TEST = RNG.standard_normal((9, 4)) + 0.5, 2 * RNG.standard_normal((7, 4)) + 0.5


def columns(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    e = estimate_two_laws(train, test)
    a = (K * e.mu2_sigma1_mu2 + M * e.mu1_sigma2_mu1) / (M + K)
    return np.array([e.mean_T, e.mean_T_squared, a, e.tr_sigma1_sigma2])


def test_deletions_equal_refits() -> None:
    r = replicated_two_laws(GradientMoments.from_array(TRAIN), GradientMoments.from_array(TEST), M, K)
    assert (r.exponent, r.split, r.groups) == (0, 9, 16)
    np.testing.assert_allclose(r.point, columns(TRAIN, TEST), rtol=1e-10)
    for i in range(9):
        np.testing.assert_allclose(r.without[i], columns(np.delete(TRAIN, i, 0), TEST), rtol=1e-9)
    for j in range(7):
        np.testing.assert_allclose(r.without[9 + j], columns(TRAIN, np.delete(TEST, j, 0)), rtol=1e-9)


def test_the_bound_is_that_of_the_estimate() -> None:
    c = certificate(TRAIN, test=TEST, M=M, K=K)
    assert c.B_exact.estimate == pytest.approx(estimate_two_laws(TRAIN, TEST).B_exact(M, K))
    assert (c.n, c.n_test) == (9, 7)
    assert "n = 9 training and 7 test examples" in c.statement
    assert Certificate.from_json(c.to_json()) == c


@pytest.mark.parametrize(("s", "t"), [(1e-30, 1e30), (1e-200, 1e-170), (2.0**199, 2.0**-300)])
def test_scales_of_the_two_laws_change_nothing(s: float, t: float) -> None:
    a = certificate(1 + TRAIN, test=1 + TEST, M=64, K=64)
    b = certificate((1 + TRAIN) * s, test=(1 + TEST) * t, M=64, K=64)
    assert b.upper == pytest.approx(a.upper, rel=1e-9)
    assert b.state == a.state


def test_opposed_laws_get_no_bound_although_the_square_is_positive() -> None:
    rng = np.random.default_rng(1)
    c = certificate(1 + rng.standard_normal((200, 4)), test=rng.standard_normal((150, 4)) - 1, M=64, K=64)
    assert c.state == "signal not detected"
    assert (c.upper, c.B_exact.estimate, c.B_align.estimate) == (1.0, None, None)
    assert "(E T)^2 is estimated" in c.statement


def test_equal_units_and_one_law_given_twice() -> None:
    c = certificate(np.full((20, 3), 0.1), test=np.full((30, 3), 0.7), M=8, K=8)
    assert (c.upper, c.state) == (0.0, "assumption violated")
    assert "all units are equal, the sample shows no spread to judge by" in c.statement
    same = GradientMoments.from_array(TRAIN)
    with pytest.raises(ValueError, match="test is the very sample given"):
        certificate(same, test=same, M=1, K=1)


def test_replicates_take_m_from_one_sample_and_k_from_the_other() -> None:
    rng = np.random.default_rng(2)
    c = certificate(rng.random((60, 2)), test=rng.random((33, 2)), M=6, K=4, tier="replicates")
    assert c.misalignment.limit.n == 8
    assert c.upper == pytest.approx(1 - 0.05 ** (1 / 8))
    assert certificate(rng.random((60, 2)), test=-rng.random((33, 2)), M=6, K=4, tier="replicates").upper == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": TEST[:, :2]}, "test d=2: expected d=4"),
        ({"test": TEST[:5]}, "test n=5: expected at least 6"),
        ({"test": TEST, "tier": "bounded", "bound": 9.0}, "tier='bounded': expected 'asymptotic' or"),
        ({"test": TEST, "method": "bootstrap"}, "method='bootstrap': expected 'separate'"),
        ({"test": TEST, "tier": "replicates", "M": 10}, "test n=7, M=10, K=5: expected at least M training"),
    ],
)
def test_bad_requests(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        certificate(TRAIN, **{"M": M, "K": K, **options})
    places = [GradientMoments.from_array(TEST, metadata={"module": m}) for m in "ab"]
    with pytest.raises(ValueError, match="module='a' and 'b' of test: expected gradients at the same place"):
        certificate(places[0], test=places[1], M=M, K=K)


def test_coverage_and_a_limit_that_ignores_the_test_sample_is_caught() -> None:
    # 200 repetitions at 95 %: below 180 is 1 in 1000 for a valid limit.
    mu1, mu2 = np.full(6, 1.0), np.full(6, 1.0)
    s1, s2 = np.full(6, 0.1), np.full(6, 3.0)
    M, K, n1, n2 = 64, 64, 400, 60
    e = float(mu1 @ mu2)
    rng, good, bad = np.random.default_rng(3), 0, 0
    for _ in range(200):
        train = mu1 + s1 * rng.standard_normal((n1, 6))
        test = mu2 + s2 * rng.standard_normal((n2, 6))
        r = replicated_two_laws(*map(GradientMoments.from_array, (train, test)), M, K)
        low = r.point[0] - r.quantile(0.05) * r.spread(lambda x: x[:, 0])
        good += low <= e
        alone = dataclasses.replace(r, without=r.without[:n1], sizes=r.sizes[:n1], split=0)
        bad += alone.point[0] - alone.quantile(0.05) * alone.spread(lambda x: x[:, 0]) <= e
    assert stats.binom.cdf(good, 200, 0.95) > 1e-3
    assert stats.binom.cdf(bad, 200, 0.95) < 1e-3
