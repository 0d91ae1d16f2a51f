"""Gaussian probabilities: closed forms, conditioning, untilted inversion, simulation, tilted sampling."""

from __future__ import annotations

import math
from fractions import Fraction as F
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy import integrate, optimize, special, stats

from theory.exact import (
    GaussianProbability,
    gaussian_log_probability,
    gaussian_probability,
    lugannani_rice_log_probability,
)
from theory.laws import GaussianLaw

I12 = np.arange(1, 13, dtype=np.float64)
SIZES = [(1, 1), (3, 5), (256, 256), (1, 1_000_000), (1_000_000, 1), (1_000_000, 1_000_000)]


def sign_of_a_product(m: float, s: float, M: int, K: int) -> float:
    """log P(xy <= 0) for independent normals x and y: the closed form at d = 1."""
    a, b = m * math.sqrt(M / s), m * math.sqrt(K / s)
    log = special.log_ndtr
    return float(np.logaddexp(log(a) + log(-b), log(-a) + log(b)))


def conditional(m, s, M: int, K: int, t: float, unit: mpmath.mpf) -> mpmath.mpf:
    """unit * P(T <= t) with one random direction and a constant: condition on the training mean of it.

    ``unit`` brings the result near 1, as the quadrature's tolerance is absolute.
    """
    (m1, c), s1 = m, mpmath.mpf(s[0])

    def f(x):
        mean, scale = x * m1 + c * c, abs(x) * mpmath.sqrt(s1 / K)
        return unit * mpmath.npdf(x, m1, mpmath.sqrt(s1 / M)) * mpmath.ncdf((t - mean) / scale)

    spread = mpmath.sqrt(s1 / M)
    knots = sorted(
        {0, *(m1 + k * spread for k in range(-40, 41, 4)), *(k * spread for k in range(-40, 41, 4))}
    )
    return mpmath.quad(f, knots)


def imhof(m, s, M: int, K: int, t: float) -> float:
    """Inversion on the imaginary axis (Gil-Pelaez): accurate to about 1e-12 absolute, useless in tails."""
    m, s = np.asarray(m), np.asarray(s)

    def f(x: float) -> float:
        z2 = (x * s) ** 2 / (M * K)
        modulus = -0.25 * np.log1p(z2).sum() * 2 - 0.5 * (x**2 * m**2 * s * (1 / M + 1 / K) / (1 + z2)).sum()
        phase = (x * m**2 / (1 + z2)).sum() - x * t
        return math.exp(modulus) * math.sin(phase) / x

    scale = 1 / math.sqrt((m**2 * s).sum() * (1 / M + 1 / K) + (s**2).sum() / (M * K))
    total = 0.0
    for k in range(60):
        total += integrate.quad(f, k * scale, (k + 1) * scale, epsabs=1e-14)[0]
    return 0.5 - total / math.pi


def tilted_sampling(m, s, M: int, K: int, t: float, n: int, rng) -> tuple[float, float]:
    """(log estimate, relative standard error) of P(T <= t) by drawing (x, y) under density * e^{theta xy}."""

    def tilt(theta: float) -> tuple[float, list]:
        log_mgf, normals = 0.0, []
        for mean, var in zip(m, s, strict=True):
            precision = np.array([[M / var, -theta], [-theta, K / var]])
            shift = np.array([M, K]) * mean / var
            cov = np.linalg.inv(precision)
            log_mgf += 0.5 * (shift @ cov @ shift - (M + K) * mean**2 / var)
            log_mgf += 0.5 * math.log(M * K / var**2) - 0.5 * math.log(np.linalg.det(precision))
            normals.append((cov @ shift, np.linalg.cholesky(cov)))
        return log_mgf, normals

    edge = math.sqrt(M * K) / max(s)
    theta = optimize.minimize_scalar(
        lambda h: tilt(h)[0] - h * t, bounds=(-0.999999 * edge, 0), method="bounded"
    ).x
    log_mgf, normals = tilt(theta)
    value = np.zeros(n)
    for centre, root in normals:
        xy = rng.standard_normal((n, 2)) @ root.T + centre
        value += xy[:, 0] * xy[:, 1]
    weight = np.where(value <= t, np.exp(-theta * (value - t)), 0.0)
    mean = weight.mean()
    return math.log(mean) + log_mgf - theta * t, weight.std() / mean / math.sqrt(n)


class TestClosedForms:
    @pytest.mark.parametrize(("M", "K"), SIZES)
    @pytest.mark.parametrize("m", [0.0, 1e-8, 0.01, 1.0, -2.5, 8.0])
    def test_sign_of_a_product(self, m: float, M: int, K: int) -> None:
        m /= math.sqrt(min(M, K))
        assert gaussian_log_probability([m], [1.0], M, K) == pytest.approx(
            sign_of_a_product(m, 1.0, M, K), rel=1e-12, abs=1e-13
        )

    @pytest.mark.parametrize(("m", "log_p"), [(26.0, -342.0), (36.0, -651.0), (100.0, -5004.831061513645)])
    def test_far_tail_of_a_product(self, m: float, log_p: float) -> None:
        result = gaussian_probability([m], [1.0], 1, 1)
        expected = sign_of_a_product(m, 1.0, 1, 1)
        assert expected == pytest.approx(log_p, abs=1.0)
        assert abs(result.log_probability - expected) < 1e-11
        assert abs(result.log_probability - expected) < result.relative_error + 1e-12

    @pytest.mark.parametrize(("M", "K"), [(1, 1), (3, 5), (1_000_000, 2)])
    @pytest.mark.parametrize("x", [1e-9, 0.3, 5.0, 600.0, 5000.0, 1e6])
    def test_two_equal_directions_without_signal_are_laplace(self, x: float, M: int, K: int) -> None:
        s = 0.7
        t = x * s / math.sqrt(M * K)
        low = gaussian_probability([0.0, 0.0], [s, s], M, K, threshold=-t)
        assert low.log_probability == pytest.approx(-x - math.log(2), rel=1e-12)
        high = gaussian_probability([0.0, 0.0], [s, s], M, K, threshold=t)
        assert high.log_complement == pytest.approx(-x - math.log(2), rel=1e-12)
        assert high.log_probability == pytest.approx(math.log1p(-math.exp(-x) / 2), rel=1e-12)
        assert low.log_complement == pytest.approx(high.log_probability, rel=1e-12)

    @pytest.mark.parametrize("x", [0.5, 30.0, 900.0])
    def test_four_equal_directions(self, x: float) -> None:
        value = gaussian_log_probability(np.zeros(4), np.ones(4), 2, 8, threshold=-x / 4)
        assert value == pytest.approx(math.log1p(x / 2) - x - math.log(2), rel=1e-12)

    @pytest.mark.parametrize("x", [0.01, 700.0])
    def test_product_normal_distribution(self, x: float) -> None:
        # P(xy <= -x) = int_x^oo K_0(z) dz / pi for standard normals.
        scaled = mpmath.quad(lambda z: mpmath.besselk(0, x + z) * mpmath.exp(x), [0, 1, 5, 15, 50])
        value = gaussian_log_probability([0.0], [3.0], 4, 9, threshold=-x / 2)
        assert value == pytest.approx(float(mpmath.log(scaled / mpmath.pi)) - x, rel=1e-12, abs=1e-12)

    @pytest.mark.parametrize(("M", "K", "m2"), [(2, 7, 0.8), (5, 5, 0.3), (40, 1, 0.1)])
    def test_flat_spectrum_is_a_difference_of_chi_squares(self, M: int, K: int, m2: float) -> None:
        d, r = 6, math.sqrt(M * K)
        plus = m2 * (math.sqrt(M) + math.sqrt(K)) ** 2 / 2
        minus = m2 * (math.sqrt(M) - math.sqrt(K)) ** 2 / 2
        for t in (0.0, 0.2, -0.1):
            # T = (A - B)/(2r) with A, B noncentral chi-squares of d degrees of freedom
            other = stats.ncx2(d, minus) if minus else stats.chi2(d)
            cdf = stats.ncx2(d, plus).cdf
            lower = max(0.0, -2 * r * t)

            def density(b: float, other=other, cdf=cdf, t=t) -> float:
                return other.pdf(b) * cdf(b + 2 * r * t)

            exact = integrate.quad(density, lower, 200, limit=500)[0]
            value = gaussian_probability(np.full(d, math.sqrt(m2 / d)), np.ones(d), M, K, threshold=t)
            assert value.probability == pytest.approx(exact, rel=1e-6)
            assert other.cdf(200) == pytest.approx(1)

    @pytest.mark.parametrize(
        ("mean", "threshold", "log_p"), [([0.0], 0.0, 0.0), ([0.5], 0.25, 0.0), ([0.5], 0.2499, -math.inf)]
    )
    def test_no_noise_is_deterministic(self, mean: list[float], threshold: float, log_p: float) -> None:
        r = gaussian_probability([*mean, 0.0], [0.0, 0.0], 3, 4, threshold=threshold)
        assert r == GaussianProbability(
            log_p, -math.inf if log_p == 0 else 0.0, 0.0, "deterministic", 0, 3, 4, 2, threshold
        )
        assert r.probability == math.exp(log_p)
        assert lugannani_rice_log_probability([*mean, 0.0], [0.0, 0.0], 3, 4, threshold) == log_p


class TestSingularCovariance:
    @pytest.mark.parametrize(
        ("m", "s", "M", "K", "t"),
        [
            ((1.0, 0.5), (1.0, 0.0), 1, 1, 0.0),
            ((0.3, 2.0), (0.5, 0.0), 3, 2, 0.0),
            ((0.0, 1.5), (1.0, 0.0), 4, 4, 0.0),
            ((0.5, 4.0), (1.0, 0.0), 2, 9, 0.0),
            ((0.5, 4.0), (1.0, 0.0), 2, 9, 16.0),
            ((0.5, 1.0), (1.0, 0.0), 5, 1, 3.5),
        ],
    )
    def test_one_dimensional_conditioning(self, m, s, M: int, K: int, t: float) -> None:
        values = [gaussian_log_probability(m, basis, M, K, t) for basis in (np.array(s), np.diag(s))]
        with mpmath.workdps(25):
            ratio = conditional(m, s, M, K, t, unit=mpmath.exp(-values[0]))
        assert float(ratio) == pytest.approx(1.0, abs=2e-11)
        assert values[1] == pytest.approx(values[0], abs=1e-12)

    def test_null_directions_only_shift_the_threshold(self) -> None:
        m, s = np.array([0.4, 0.1, 0.9, 0.2]), np.array([1.0, 0.5, 0.0, 0.0])
        whole = gaussian_log_probability(m, s, 7, 3, 0.1)
        part = gaussian_log_probability(m[:2], s[:2], 7, 3, 0.1 - 0.81 - 0.04)
        assert whole == pytest.approx(part, abs=1e-12)

    def test_nearly_null_is_continuous(self) -> None:
        values = [gaussian_log_probability([0.2, 1.0], [1.0, e], 5, 8) for e in (1e-13, 1e-18, 1e-101, 0.0)]
        assert max(values) - min(values) < 1e-10

    def test_rank_deficient_matrix(self) -> None:
        rng = np.random.default_rng(4)
        factor, mu = rng.standard_normal((9, 4)), rng.standard_normal(9) / 3
        left, values, _ = np.linalg.svd(factor)
        eigenvalues = np.r_[values**2, np.zeros(5)]
        assert gaussian_log_probability(mu, factor @ factor.T, 6, 11) == pytest.approx(
            gaussian_log_probability(left.T @ mu, eigenvalues, 6, 11), abs=1e-11
        )


class TestIndependentMethods:
    @pytest.mark.parametrize(
        ("m", "s", "M", "K", "t"),
        [
            (0.3 / I12, 1 / I12, 2, 5, 0.0),
            (0.3 / I12, 1 / I12, 2, 5, 0.15),
            (np.full(12, 0.1), I12**-2, 4, 4, -0.05),
            (np.full(12, 0.2), np.ones(12), 3, 30, 0.2),
            (0.5 / np.sqrt(I12), np.r_[5.0, np.full(11, 0.2)], 10, 10, 0.0),
            (np.zeros(12), I12, 3, 1, -4.0),
        ],
    )
    def test_untilted_inversion(self, m, s, M: int, K: int, t: float) -> None:
        assert gaussian_probability(m, s, M, K, threshold=t).probability == pytest.approx(
            imhof(m, s, M, K, t), abs=2e-11
        )

    def test_simulation(self) -> None:
        rng, n = np.random.default_rng(5), 200_000
        m, s, M, K = 0.3 / I12[:4], 1 / I12[:4], 3, 2
        law = GaussianLaw(m, s)
        x = sum(law.sample(n, rng) for _ in range(M)) / M
        y = sum(law.sample(n, rng) for _ in range(K)) / K
        count = int(((x * y).sum(1) <= 0).sum())
        p = gaussian_probability(m, s, M, K).probability
        # two-sided binomial test, false alarm 1e-6; M and K exchanged with units must be caught
        assert stats.binomtest(count, n, p).pvalue > 1e-6
        wrong = gaussian_probability(m, s, M + 1, K).probability
        assert stats.binomtest(count, n, wrong).pvalue < 1e-6

    @pytest.mark.parametrize(
        ("m", "s", "M", "K"),
        [
            (np.full(8, 1.0), np.linspace(0.5, 1.5, 8), 6, 6),
            (np.full(8, 1.2), np.linspace(0.5, 1.5, 8), 30, 8),
            (np.full(3, 4.0), np.ones(3), 9, 9),
        ],
    )
    def test_tilted_sampling_in_the_tail(self, m, s, M: int, K: int) -> None:
        log_p, error = tilted_sampling(m, s, M, K, 0.0, 100_000, np.random.default_rng(8))
        exact = gaussian_log_probability(m, s, M, K)
        assert exact < -15
        assert error < 0.05
        assert abs(math.expm1(log_p - exact)) < 5 * error  # false alarm below 1e-6


class TestInvariances:
    M, S = 0.4 / I12, I12**-1.5

    @pytest.mark.parametrize("c", [1e-30, 1e-3, 1e7, 1e30])
    def test_scale(self, c: float) -> None:
        for t in (0.0, 0.4):
            scaled = gaussian_probability(c * self.M, c * c * self.S, 9, 4, threshold=c * c * t)
            plain = gaussian_probability(self.M, self.S, 9, 4, threshold=t)
            assert scaled.log_probability == pytest.approx(plain.log_probability, abs=1e-12)

    def test_rotation(self) -> None:
        q, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((12, 12)))
        for t in (0.0, 0.3):
            assert gaussian_log_probability(
                q @ self.M, q @ np.diag(self.S) @ q.T, 20, 70, t
            ) == pytest.approx(gaussian_log_probability(self.M, self.S, 20, 70, t), abs=1e-11)

    def test_exchange_of_sample_sizes_and_order_and_signs(self) -> None:
        base = gaussian_log_probability(self.M, self.S, 20, 70, 0.05)
        assert gaussian_log_probability(self.M, self.S, 70, 20, 0.05) == pytest.approx(base, abs=1e-12)
        assert gaussian_log_probability(-self.M[::-1], self.S[::-1], 20, 70, 0.05) == pytest.approx(
            base, abs=1e-12
        )

    def test_equal_eigenvalues_only_see_the_sum_of_squares(self) -> None:
        a = gaussian_probability([0.6, 0.8, 0.0, 0.1], [1.0, 1.0, 1.0, 2.0], 5, 3)
        b = gaussian_probability([1.0, 0.0, 0.0, 0.1], [1.0, 1.0, 1.0, 2.0], 5, 3)
        c = gaussian_probability([1.0, 0.0, 0.0, 0.1], [1.0 + 1e-14, 1.0, 1.0 - 1e-14, 2.0], 5, 3)
        assert a.log_probability == pytest.approx(b.log_probability, abs=1e-13)
        assert a.log_probability == pytest.approx(c.log_probability, abs=1e-12)

    @pytest.mark.parametrize(("M", "K"), SIZES)
    def test_no_signal_is_a_fair_sign(self, M: int, K: int) -> None:
        for s in (self.S, 10.0 ** -np.arange(12), np.r_[1e12, np.ones(11)]):
            r = gaussian_probability(np.zeros(12), s, M, K)
            assert r.probability == pytest.approx(0.5, abs=1e-13)
            assert r.log_complement == pytest.approx(-math.log(2), abs=1e-13)

    @pytest.mark.parametrize(("M", "K"), SIZES)
    def test_distribution_function(self, M: int, K: int) -> None:
        """Increasing in t, from one accurate tail to the other, both tails adding up to 1."""
        m2, a, t2 = GaussianLaw(self.M, self.S).scalars()
        sd = math.sqrt((1 / M + 1 / K) * a + t2 / (M * K))
        rs = [
            gaussian_probability(self.M, self.S, M, K, threshold=m2 + z * sd)
            for z in (-30.0, -9.0, -3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0, 9.0, 30.0)
        ]
        for lower, upper in pairwise(rs):
            assert lower.log_probability <= upper.log_probability
            assert lower.log_complement > upper.log_complement
        assert rs[0].log_probability < rs[1].log_probability < -8
        for r in rs:
            assert math.exp(r.log_probability) + math.exp(r.log_complement) == pytest.approx(1, abs=1e-15)
            assert r.relative_error < 1e-10
        assert rs[5].probability == pytest.approx(0.5, abs=0.2)


class TestHardCases:
    def test_pinned_values(self) -> None:
        """Confirmed by the ball-arithmetic enclosure (see test_theory_enclosure)."""
        i = np.arange(1, 65.0)
        assert gaussian_log_probability(np.full(64, 0.125), np.ones(64), 256, 256) == pytest.approx(
            -87.51772962603235, abs=1e-11
        )
        assert gaussian_log_probability(np.full(64, 0.125), 1 / i, 256, 256) == pytest.approx(
            -244.25961876080567, abs=1e-10
        )
        assert gaussian_log_probability(np.ones(12), 10.0 ** -np.arange(12), 3, 5) == pytest.approx(
            -44.37833248174829, abs=1e-11
        )
        s = 10.0 ** -np.arange(12)
        assert gaussian_log_probability(s, s, 3, 5) == pytest.approx(-2.9702129279511413, abs=1e-13)

    def test_large_dimension(self) -> None:
        d = 4096
        r = gaussian_probability(np.full(d, 1 / 64), 1 / np.arange(1, d + 1.0), 256, 256)
        assert r.log_probability == pytest.approx(-258.85072668994536, abs=1e-9)
        assert r.relative_error < 1e-11
        assert (r.dimension, r.M, r.K, r.threshold) == (d, 256, 256, 0.0)
        assert r.method == "tilted inversion"
        assert 50 < r.evaluations < 1000

    def test_error_estimate_follows_the_exponent(self) -> None:
        errors = [
            gaussian_probability([0.0, 0.0], [1.0, 1.0], 1, 1, threshold=-x).relative_error
            for x in (1.0, 1e3, 1e6)
        ]
        assert 1e-16 < errors[0] < 1e-13
        assert 2e-13 < errors[1] < 1e-11
        assert 2e-10 < errors[2] < 1e-8

    def test_one_tail_is_enough_unless_it_is_the_larger_one(self) -> None:
        for t in (-3.0, 9.0):
            m, s = np.array([1.0, 1.0]), np.array([1.0, 0.5])
            low, high = (gaussian_probability(m, s, 2, 3, threshold=x).evaluations for x in (t, t + 1e-12))
            assert low == high < 21 * 40
        skew = gaussian_probability([1.0], [1.0], 1, 1, threshold=0.9)  # below the mean, above the median
        assert skew.probability > 0.5
        one = gaussian_probability([1.0], [1.0], 1, 1, threshold=0.1).evaluations
        assert skew.evaluations > 1.5 * one

    def test_normal_limit(self) -> None:
        # huge M and K: T is m2 + 2 sqrt(a/M) Z to first order
        m, s = np.array([1.0, 2.0]), np.array([1.0, 3.0])
        r = gaussian_log_probability(m, s, 10**6, 10**6, threshold=5.0 - 0.005)
        assert r == pytest.approx(stats.norm.logcdf(-0.005 / math.sqrt(2e-6 * 13)), rel=2e-3)

    def test_condition_number(self) -> None:
        s = np.geomspace(1e-12, 1, 40)
        for m in (np.sqrt(s), np.full(40, 0.05), s):
            for M, K in SIZES:
                r = gaussian_probability(m, s, M, K)
                assert r.relative_error < 1e-8 or r.log_probability < -1e5
                assert r.log_probability < -0.693

    def test_accuracy_of_the_difference_from_the_mean(self) -> None:
        # threshold = m2 (1 + 1e-9): the excess is a small difference of large numbers
        m, s = np.array([1e4, 0.0]), np.array([1e-4, 1e-4])
        t = 1e8 * (1 + 1e-9)
        sd = math.sqrt(1e8 * 1e-4 * (2 / 1000))
        value = gaussian_log_probability(m, s, 1000, 1000, threshold=t)
        assert value == pytest.approx(stats.norm.logcdf((t - 1e8) / sd), abs=1e-6)


class TestLugannaniRice:
    def formula(self, m, s, M: int, K: int, t: float) -> float:
        """The formula in high precision, saddle by bisection: shares no code with the product."""
        m, s = [mpmath.mpf(float(x)) for x in m], [mpmath.mpf(float(x)) for x in s]

        def kappa(h):
            total = mpmath.mpf(0)
            for x, e in zip(m, s, strict=True):
                z2 = (h * e) ** 2 / (M * K)
                quad = h * x**2 + h**2 * x**2 * e * (mpmath.mpf(1) / M + mpmath.mpf(1) / K) / 2
                total += -mpmath.log(1 - z2) / 2 + quad / (1 - z2)
            return total

        edge = mpmath.sqrt(M * K) / max(s)
        lo, hi = -edge, edge
        for _ in range(120):
            mid = (lo + hi) / 2
            lo, hi = (lo, mid) if mpmath.diff(kappa, mid) > t else (mid, hi)
        h = (lo + hi) / 2
        w = mpmath.sign(h) * mpmath.sqrt(2 * (h * t - kappa(h)))
        v = h * mpmath.sqrt(mpmath.diff(kappa, h, 2))
        return float(mpmath.log(mpmath.ncdf(w) + mpmath.npdf(w) * (1 / w - 1 / v)))

    @pytest.mark.parametrize("t", [0.0, 0.3, -1.0, 1.5])
    def test_formula(self, t: float) -> None:
        m, s = 0.5 / I12[:5], 1 / I12[:5]
        with mpmath.workdps(40):
            expected = self.formula(m, s, 3, 8, t)
        assert lugannani_rice_log_probability(m, s, 3, 8, t) == pytest.approx(expected, abs=1e-9)

    def test_is_an_approximation(self) -> None:
        m, s = 0.5 / I12[:5], 1 / I12[:5]
        for t in (-3.0, 0.0, 0.9):
            exact = gaussian_log_probability(m, s, 3, 8, t)
            error = abs(math.expm1(lugannani_rice_log_probability(m, s, 3, 8, t) - exact))
            assert 1e-4 < error < 0.15

    @pytest.mark.parametrize(("M", "K"), [(1, 1000), (1000, 1)])
    def test_unequal_sample_sizes(self, M: int, K: int) -> None:
        m, s = 2.0 / I12[:5], 1 / I12[:5]
        exact = gaussian_log_probability(m, s, M, K)
        assert abs(math.expm1(lugannani_rice_log_probability(m, s, M, K) - exact)) < 0.05

    def test_far_tail_does_not_underflow(self) -> None:
        value = lugannani_rice_log_probability([100.0], [1.0], 1, 1)
        assert value == pytest.approx(-5004.83, abs=0.2)

    def test_continuous_at_the_mean(self) -> None:
        m, s = 0.5 / I12[:5], 1 / I12[:5]
        m2, a, t2 = GaussianLaw(m, s).scalars()
        sd = math.sqrt((1 / 3 + 1 / 8) * a + t2 / 24)
        grid = np.linspace(-4e-3, 4e-3, 17)  # the interpolated part is |z| < 1e-3
        at = [lugannani_rice_log_probability(m, s, 3, 8, m2 + z * sd) for z in grid]
        steps = np.diff(at)
        assert (steps > 0).all()
        np.testing.assert_allclose(steps, steps.mean(), rtol=1e-2)


class TestArguments:
    @pytest.mark.parametrize(
        "f", [gaussian_log_probability, gaussian_probability, lugannani_rice_log_probability]
    )
    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            (([1.0], [1.0], 0, 1), ValueError, "M=0, expected a sample size >= 1"),
            (([1.0], [1.0], 1, 2.5), TypeError, "K=2.5 has type float"),
            (([], [], 1, 1), ValueError, r"mu.shape=\(0,\), expected \(d,\)"),
            ((1.0, [1.0], 1, 1), ValueError, r"mu.shape=\(\)"),
            (([1.0], [1.0, 2.0], 1, 1), ValueError, r"Sigma.shape=\(2,\), expected \(1,\)"),
            (([1.0], [-1.0], 1, 1), ValueError, r"min\(Sigma\)=-1.0, expected eigenvalues >= 0"),
            (([1.0, 1.0], [[1.0, 0.1], [0.0, 1.0]], 1, 1), ValueError, "Sigma is not symmetric"),
            (([1.0, 1.0], [[0.0, 1.0], [1.0, 0.0]], 1, 1), ValueError, "Sigma has eigenvalue -1"),
            (([math.nan], [1.0], 1, 1), ValueError, "mu has non-finite entries"),
            (([1.0], [math.inf], 1, 1), ValueError, "Sigma has non-finite entries"),
        ],
    )
    def test_bad(self, f, arguments, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            f(*arguments)

    def test_fractions_and_integers_are_numbers(self) -> None:
        expected = gaussian_log_probability([0.5, 2.0], [1.0, 0.25], 2, 3)
        assert gaussian_log_probability([F(1, 2), 2], [1, F(1, 4)], 2, 3) == expected
        assert gaussian_log_probability([1, 2], [[2, 1], [1, 2]], 2, 3) == gaussian_log_probability(
            [1.0, 2.0], [[2.0, 1.0], [1.0, 2.0]], 2, 3
        )

    def test_bad_threshold(self) -> None:
        with pytest.raises(ValueError, match="threshold=nan, expected a finite number"):
            gaussian_probability([1.0], [1.0], 1, 1, threshold=math.nan)

    def test_tiny_asymmetry_and_negative_rounding_are_accepted(self) -> None:
        symmetric = 1e6 * np.array([[1.0, 1.0 + 1e-12], [1.0 + 1e-12, 1.0]])
        assert math.isfinite(gaussian_log_probability([0.5, 0.5], symmetric, 2, 2))
        with pytest.raises(ValueError, match="Sigma has eigenvalue -0"):
            gaussian_log_probability([0.5, 0.5], 1e6 * np.array([[1.0, 1.0 + 1e-9], [1.0 + 1e-9, 1.0]]), 2, 2)
        sigma = np.array([[1.0, 1.0 + 1e-12], [1.0, 1.0]])
        assert gaussian_log_probability([0.5, 0.5], sigma, 2, 2) == pytest.approx(
            gaussian_log_probability([math.sqrt(0.5), 0.0], [2.0, 0.0], 2, 2), abs=1e-9
        )
