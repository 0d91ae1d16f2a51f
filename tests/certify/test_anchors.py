"""Numbers that people know under other names agree with ours; formulas written from their publications."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from certify.estimators import estimate, plug_in


def sample(n: int, d: int) -> np.ndarray:
    return np.random.default_rng(n + d).normal(0.4, 1.0, (n, d)) * np.linspace(0.5, 2.0, d)


@pytest.mark.parametrize(("n", "d"), [(7, 3), (6, 12)])
def test_row_corrected_part_of_the_participation_ratio(n: int, d: int) -> None:
    """Chun, Canatar, Chung and Lee (2025): averages over *different* rows (samples) of centred products.

    The denominator of the row-corrected participation ratio averages [(x_i - x_j).(x_k - x_l)]^2 / 4 over
    four different rows, its numerator |x_i - x_j|^2 |x_k - x_l|^2 / 4.
    """
    Q = sample(n, d)
    below, above = [], []
    for i, j, k, m in itertools.permutations(range(n), 4):
        u, v = Q[i] - Q[j], Q[k] - Q[m]
        below.append((u @ v) ** 2 / 4)
        above.append((u @ u) * (v @ v) / 4)
    e = estimate(Q)
    assert e.tr_sigma2 == pytest.approx(np.mean(below), rel=1e-11)
    assert e.tr_sigma_squared == pytest.approx(np.mean(above), rel=1e-11)
    assert e.participation_ratio == pytest.approx(np.mean(above) / np.mean(below), rel=1e-11)


@pytest.mark.parametrize(("n", "d"), [(8, 3), (9, 40), (200, 6)])
def test_unbiased_linear_hsic(n: int, d: int) -> None:
    """Song, Smola, Gretton, Bedo and Borgwardt (2012), Theorem 2: HSIC_1, linear kernel, K against K."""
    Q = sample(n, d)
    K = Q @ Q.T
    np.fill_diagonal(K, 0.0)
    one = np.ones(n)
    hsic = (
        np.trace(K @ K) + (one @ K @ one) ** 2 / ((n - 1) * (n - 2)) - 2 / (n - 2) * (one @ K @ K @ one)
    ) / (n * (n - 3))
    assert estimate(Q).tr_sigma2 == pytest.approx(hsic, rel=1e-9)


@pytest.mark.parametrize(("n", "d"), [(8, 3), (9, 40), (128, 6)])
def test_inner_product_test(n: int, d: int) -> None:
    """Bollapragada, Byrd and Nocedal (2018), equation (2.6), as Cockpit (Schneider et al., 2021) tracks it.

    theta^2 = sample variance (divisor B - 1) of the projections g_i.g_B, over B |g_B|^4.
    """
    Q = sample(n, d)
    mean = Q.mean(axis=0)
    projections = Q @ mean
    theta2 = projections.var(ddof=1) / n / (mean @ mean) ** 2
    assert plug_in(Q, divisor="n-1").d_par == pytest.approx(1 / (n * theta2), rel=1e-11)
    # With the population divisor n of a pool the same number is larger by n / (n - 1).
    assert plug_in(Q).d_par == pytest.approx(n / (n - 1) / (n * theta2), rel=1e-11)
    # And it is not the unbiased-parts ratio: that the anchor can fail.
    assert estimate(Q).d_par != pytest.approx(1 / (n * theta2), rel=1e-3)


def test_simple_noise_scale() -> None:
    """McCandlish, Kaplan, Amodei et al. (2018), appendix A.1: two batch sizes give |G|^2 and S without bias.

    With batch sizes 1 and n of one sample their two equations are solved exactly by our m2 and tr Sigma.
    """
    Q = sample(50, 7)
    small, big = 1, 50
    g_small, g_big = (Q**2).sum(axis=1).mean(), (Q.mean(axis=0) ** 2).sum()
    signal = (big * g_big - small * g_small) / (big - small)
    noise = (g_small - g_big) / (1 / small - 1 / big)
    e = estimate(Q)
    assert e.m2 == pytest.approx(signal, rel=1e-12)
    assert e.tr_sigma == pytest.approx(noise, rel=1e-12)
    assert e.gradient_noise_scale == pytest.approx(noise / signal, rel=1e-12)
