"""The inversion integral's parts: integrand, derivatives, saddle, contour, rule; and the ball enclosure."""

from __future__ import annotations

import math
import sys
from itertools import pairwise

import numpy as np
import pytest

from theory import _contour
from theory._contour import GAUSS, KRONROD, NODES, Form, Tail, descend, integrate, skewness, tail_factor
from theory.exact import Enclosure, gaussian_enclosure, gaussian_probability
from theory.laws import flat_spectrum, power_law_spectrum, spiked_spectrum

FORMS = [
    Form(np.array([1.0]), np.array([1.0]), np.array([0.0]), 0.0, 0.0),
    Form(np.array([0.3, 1.0]), np.array([2.0, 1.0]), np.array([0.7, 0.2]), 0.4, 0.9),
    Form(np.array([1e-9, 0.5, 1.0]), np.array([5.0, 3.0, 1.0]), np.array([2.0, 0.1, 4.0]), 2.0, 7.0),
]
TAILS = [Tail(form, sign) for form in FORMS for sign in (-1, 1)]


def kappa(form: Form, h: complex) -> complex:
    """log E e^{h (T - t)} in the units of the form, straight from the textbook formula."""
    z2 = (h * form.r) ** 2
    noise = form.b * form.r * 2 * (1 + form.eta)
    terms = -form.k / 2 * np.log(1 - z2) + (h * form.b + h * h / 2 * noise) / (1 - z2) - h * form.b
    return complex(terms.sum() + h * form.excess)


class TestIntegrand:
    @pytest.mark.parametrize("tail", TAILS)
    @pytest.mark.parametrize("u", [0.2, 0.9, 0.3 + 0.5j, -0.4 + 0.1j, 1.7 + 0.2j, 4j])
    def test_exponent_is_the_generating_function(self, tail: Tail, u: complex) -> None:
        expected = kappa(tail.form, tail.sign * u) - np.log(u)
        got = complex(tail.exponent(u, 1 - u))
        assert np.exp(got) == pytest.approx(np.exp(expected), rel=1e-12)

    @pytest.mark.parametrize("tail", TAILS)
    def test_derivatives(self, tail: Tail) -> None:
        for u in (0.2 + 0j, 0.95 + 0j, 0.3 + 0.5j, -0.4 + 0.6j, 1.7 + 0.4j):
            first, second, _ = tail.derivatives(u, 1 - u)
            h = 1e-4

            def phi(v: complex) -> complex:
                return complex(tail.exponent(v, 1 - v))

            numeric = (phi(u - 2 * h) - 8 * phi(u - h) + 8 * phi(u + h) - phi(u + 2 * h)) / (12 * h)
            assert first == pytest.approx(numeric, rel=1e-6, abs=1e-6)
            numeric = (-phi(u - 2 * h) + 16 * phi(u - h) - 30 * phi(u) + 16 * phi(u + h) - phi(u + 2 * h)) / (
                12 * h * h
            )
            assert second == pytest.approx(numeric, rel=2e-5, abs=2e-5)

    def test_near_factor_is_accurate_at_the_end(self) -> None:
        q = 1e-25
        got = TAILS[0].exponent(1 - q, q)
        assert float(got) == pytest.approx(-0.5 * math.log(2 * q), rel=1e-15)

    @pytest.mark.parametrize("tail", TAILS)
    def test_magnitude_bounds_the_exponent(self, tail: Tail) -> None:
        for u in (0.01, 0.5, 0.99):
            size = tail.magnitude(u, 1 - u)
            assert abs(float(tail.exponent(u, 1 - u))) <= size * (1 + 1e-12)
        form = FORMS[1]
        r, k, b = form.r, form.k, form.b
        u = 0.5
        expected = (
            (k / 2 * (np.abs(np.log(1 - r * u)) + np.log(1 + r * u))).sum()
            + (b * r * u * u * (1 / (1 + r * u) + form.eta / (1 - r * r * u * u))).sum()
            + form.excess * u
            - math.log(u)
        )
        assert Tail(form, -1).magnitude(u, 1 - u) == pytest.approx(expected, rel=1e-14)

    @pytest.mark.parametrize("tail", TAILS)
    def test_growth_bounds_the_vertical_ray(self, tail: Tail) -> None:
        rng = np.random.default_rng(0)
        for _ in range(60):
            u = complex(rng.uniform(-6, 6), 10 ** rng.uniform(-3, 1))
            growth = tail.derivatives(u, 1 - u)[2]
            assert growth >= 0
            v = u + 1j * np.geomspace(1e-4, 1e4, 200)
            rise = (tail.exponent(v, 1 - v) - tail.exponent(u, 1 - u)).real
            assert rise.max() <= growth + 1e-9

    def test_growth_is_attained(self) -> None:
        # straight above a point far behind the cut the exponent really rises by about this much
        form = Form(np.array([1.0]), np.array([1.0]), np.array([500.0]), 0.0, 0.0)
        u = 1.2 + 1e-3j
        growth = Tail(form, 1).derivatives(u, 1 - u)[2]
        assert growth == pytest.approx(500 / 0.2, rel=1e-4)
        mirrored = -1.2 + 1e-3j
        assert Tail(form, -1).derivatives(mirrored, 1 - mirrored)[2] == pytest.approx(growth, rel=1e-12)
        assert Tail(form, 1).derivatives(mirrored, 1 - mirrored)[2] == 0.0
        unequal = Form(form.r, form.k, form.b, 3.0, 0.0)
        assert Tail(unequal, -1).derivatives(u, 1 - u)[2] == pytest.approx(1.5 * growth, rel=1e-12)

    def test_skewness(self) -> None:
        assert skewness(5, 5) == 0.0
        assert skewness(4, 9) == pytest.approx(1 / 12, rel=1e-15)
        assert skewness(1, 4) == skewness(4, 1) == pytest.approx(1 / 4, rel=1e-15)


class TestContour:
    @pytest.mark.parametrize("tail", TAILS)
    def test_saddle_is_the_minimum(self, tail: Tail) -> None:
        c, q = tail.saddle()
        assert 0 < c < 1
        assert c + q == pytest.approx(1, abs=1e-15)
        _, second, _ = tail.derivatives(c, q)
        assert abs(float(tail.derivatives(c, q)[0])) < 1e-6 * math.sqrt(second) * max(
            1, math.sqrt(second) * c
        )
        for other in (c * 0.9, c + 0.1 * q):
            assert float(tail.exponent(other, 1 - other)) > float(tail.exponent(c, q))

    @pytest.mark.parametrize(("excess", "u"), [(1e9, 1 - 0.5e-9), (-1e9, 1e-9)])
    def test_saddle_near_the_ends(self, excess: float, u: float) -> None:
        c, q = Tail(Form(np.array([1.0]), np.array([1.0]), np.array([0.0]), 0.0, excess), -1).saddle()
        assert c == pytest.approx(u, rel=1e-6)
        assert min(c, q) == pytest.approx(min(u, 0.5e-9 if u > 0.5 else 1e-9), rel=1e-6)

    def test_plain_saddle(self) -> None:
        form = Form(
            np.array([1.0]), np.array([2.0]), np.array([0.0]), 0.0, 3.0
        )  # Laplace: kappa = -log(1-u^2)
        u, phi, second = Tail(form, -1).plain_saddle()
        exact = (math.sqrt(10) - 1) / 3  # 2u/(1-u^2) = 3
        assert u == pytest.approx(exact, rel=1e-14)
        assert phi == pytest.approx(-math.log(1 - exact**2) - 3 * exact, rel=1e-13)
        assert second == pytest.approx(2 * (1 + exact**2) / (1 - exact**2) ** 2, rel=1e-13)

    @pytest.mark.parametrize("tail", TAILS)
    def test_corners(self, tail: Tail) -> None:
        c, q = tail.saddle()
        corners, beyond = descend(tail, c, q)
        steps = np.diff(corners)
        assert corners[0] == 0
        assert steps[0].real == 0  # straight up from the saddle
        assert (steps.imag > 0).all()
        lean = np.abs(np.angle(steps) - math.pi / 2)
        assert lean.max() <= math.pi / 3 + 1e-12
        assert 0 <= beyond < 1e-15 * abs(steps[0])
        for a, b in pairwise(corners):
            singular = [-c, q, -1 - c]
            nearest = min(abs(a - x) for x in singular)
            assert abs(b - a) <= 2 * max(nearest, 0.0) + 1e-12

    def test_distance(self) -> None:
        f = _contour._distance
        assert f(0j, 0.25, 0.75) == 0.25  # the pole
        assert f(0j, 0.75, 0.25) == 0.25  # the right cut's end
        assert f(0.5 + 0.1j, 0.75, 0.25) == 0.1  # above the right cut
        assert f(0.25 + 0.3j, 0.75, 0.25) == pytest.approx(0.3)
        assert f(-2.5 + 0.1j, 0.75, 0.25) == 0.1  # above the left cut
        assert f(-1.5 + 0.1j, 0.75, 0.25) == pytest.approx(math.hypot(0.25, 0.1))
        assert f(-1.1 + 0.1j, 0.75, 0.25) == pytest.approx(math.hypot(0.35, 0.1))

    @pytest.mark.parametrize("angle", [-170, -120, -61, -59, -10, 0, 10, 59, 61, 120, 170])
    def test_downhill(self, angle: float) -> None:
        down = 3 * complex(-math.sin(math.radians(angle)), math.cos(math.radians(angle)))
        got = _contour._downhill(-down.conjugate())
        clipped = math.radians(max(-60.0, min(60.0, angle)))
        assert got == pytest.approx(complex(-math.sin(clipped), math.cos(clipped)), abs=1e-12)

    @pytest.mark.parametrize("u", [0.5 + 0.2j, 1.5 + 0.4j, -3 + 2j, 1e-3 + 1j])
    def test_ray_beyond_the_contour(self, u: complex) -> None:
        # the integral of |(1 - v^2)^(-1/2) / v| over the ray, by brute force, relative to its first value
        y = np.geomspace(1e-7, 1e7, 400_001)
        v = u + 1j * y
        f = 1 / (abs(v) * np.sqrt(abs(1 - v * v)))
        ray = np.trapezoid(f, y) * abs(u) * math.sqrt(abs(1 - u * u))
        assert ray < tail_factor(u, 1 - u) < 60 * ray

    def test_rule(self) -> None:
        for n in range(32):
            exact = 2 / (n + 1) if n % 2 == 0 else 0.0
            assert NODES**n @ KRONROD == pytest.approx(exact, abs=1e-14)
            if n < 20:
                assert NODES**n @ GAUSS == pytest.approx(exact, abs=1e-14)
        assert abs(NODES**20 @ GAUSS - 2 / 21) > 1e-7

    @pytest.mark.parametrize("reach", [0.5, 2.0, 6.0])
    def test_value_does_not_depend_on_the_contour(
        self, reach: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = [integrate(tail) for tail in TAILS]
        monkeypatch.setattr(_contour, "_REACH", reach)
        monkeypatch.setattr(_contour, "_BUDGET", 3.0 * reach)
        monkeypatch.setattr(_contour, "_MAX_ANGLE", 0.5)
        for tail, before in zip(TAILS, plain, strict=True):
            after = integrate(tail)
            assert after.log_value == pytest.approx(before.log_value, abs=3e-12)
            assert after.relative_error < 1e-10

    def test_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = integrate(TAILS[4])
        monkeypatch.setattr(_contour, "_BLOCK", 100)
        assert integrate(TAILS[4]).log_value == pytest.approx(whole.log_value, abs=1e-14)

    @pytest.mark.parametrize("tail", TAILS)
    def test_steps_spend_the_budget(self, tail: Tail) -> None:
        """|phi'| L + |phi''| L^2 / 2 is the budget, unless a singularity is nearer; directions go down."""
        c, q = tail.saddle()
        corners, beyond = descend(tail, c, q)
        base, first_step = float(tail.exponent(c, q)), abs(corners[1])
        for i, (a, b) in enumerate(pairwise(corners)):
            first, second, _ = tail.derivatives(c + a, q - a)
            step = abs(b - a)
            spent = abs(first) * step + abs(second) * step**2 / 2
            room = 2 * _contour._distance(a, c, q)
            if step < room * (1 - 1e-9):
                assert spent == pytest.approx(6, rel=1e-9)
            else:
                assert step == pytest.approx(room, rel=1e-12)
                assert spent <= 6 * (1 + 1e-9)
            if i:
                assert (b - a) / step == pytest.approx(_contour._downhill(first), rel=1e-9)
            _, _, growth = tail.derivatives(c + b, q - b)
            rest = float(tail.exponent(c + b, q - b).real) - base + growth
            left = math.exp(min(rest, 700.0)) * tail_factor(c + b, q - b)
            if i < len(corners) - 2:
                assert left >= 1e-16 * first_step
            else:
                assert left == beyond < 1e-16 * first_step

    def test_far_behind_the_cut_growth_is_cut_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # e^growth would overflow; the descent goes on instead
        form = Form(np.array([1.0]), np.array([1.0]), np.array([5e4]), 0.0, 0.0)
        monkeypatch.setattr(_contour, "_downhill", lambda slope: complex(math.sin(1.5), math.cos(1.5)))
        monkeypatch.setattr(_contour, "_MAX_STEPS", 40)
        with pytest.raises(ArithmeticError, match="did not end within 40 steps"):
            descend(Tail(form, 1), 0.5, 0.5)

    def test_rule_on_pieces(self) -> None:
        """Value, modulus and error of each piece against a Gauss rule of 60 nodes and QUADPACK's formula."""
        tail = TAILS[2]
        c, q = tail.saddle()
        base = float(tail.exponent(c, q)) + 0.25
        start, stop = np.array([0j, 0.3 + 0.6j, 0j]), np.array([0.3 + 0.6j, 0.2 + 1.9j, 300j])
        part, size, miss = _contour._apply_rule(tail, c, q, base, start, stop)
        x, weights = np.polynomial.legendre.leggauss(60)
        for i in range(2):
            half = (stop[i] - start[i]) / 2
            w = (start[i] + stop[i]) / 2 + half * x
            f = np.exp(tail.exponent(c + w, q - w) - base)
            assert part[i] == pytest.approx((half * (f @ weights)).imag, rel=1e-9)
            assert size[i] == pytest.approx(abs(half) * (abs(f) @ weights), rel=1e-5)
        for i in range(3):
            half = (stop[i] - start[i]) / 2
            w = (start[i] + stop[i]) / 2 + half * NODES
            f = np.exp(tail.exponent(c + w, q - w) - base)
            difference = abs(part[i] - (half * (f @ GAUSS)).imag)
            modulus = abs(half) * (abs(f) @ KRONROD)
            assert miss[i] == pytest.approx(modulus * min(1.0, (200 * difference / modulus) ** 1.5), rel=1e-6)
        assert miss[2] == pytest.approx(size[2])  # one rule cannot see so long a piece

    def test_pieces_where_the_integrand_underflows(self) -> None:
        tail = TAILS[3]
        c, q = tail.saddle()
        part, size, miss = _contour._apply_rule(tail, c, q, 5_000.0, np.array([1j]), np.array([2j]))
        assert (part, size, miss) == (0.0, 0.0, 0.0)

    @pytest.mark.parametrize("tail", TAILS)
    def test_the_parts_of_the_result(self, tail: Tail) -> None:
        c, q = tail.saddle()
        corners, beyond = descend(tail, c, q)
        base = float(tail.exponent(c, q))
        part, size, miss = _contour._apply_rule(
            tail, c, q, base, np.array(corners[:-1]), np.array(corners[1:])
        )
        noise = 8.9e-16 * (tail.magnitude(c, q) + 2)
        result = integrate(tail, tolerance=1e9)  # no piece is bisected
        assert result.evaluations == 21 * (len(corners) - 1)
        assert result.log_value == pytest.approx(base + math.log(part.sum() / math.pi), rel=1e-15)
        error = beyond + miss.sum() + noise * size.sum()
        assert result.relative_error == pytest.approx(error / part.sum(), rel=1e-9)

    def test_bisection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Long steps: pieces are halved until the errors are allowed, and only those that need it."""
        tail = TAILS[2]
        plain = integrate(tail)
        monkeypatch.setattr(_contour, "_BUDGET", 60.0)
        monkeypatch.setattr(_contour, "_REACH", 30.0)
        c, q = tail.saddle()
        corners, beyond = descend(tail, c, q)
        noise = 8.9e-16 * (tail.magnitude(c, q) + 2)
        for tolerance in (1e-3, 1e-6, 1e-12):
            base, count, done = float(tail.exponent(c, q)), 0, []
            todo = list(pairwise(corners))
            while todo:
                pieces = [np.array(ends) for ends in zip(*todo, strict=True)]
                rows = list(zip(*_contour._apply_rule(tail, c, q, base, *pieces), todo, strict=True))
                count += 21 * len(todo)
                modulus = sum(row[1] for row in rows) + sum(row[1] for row in done)
                allowed = max(tolerance / 8, noise) * modulus
                done += [row for row in rows if row[2] <= allowed]
                halves = [(a, (a + b) / 2, b) for _, _, miss, (a, b) in rows if miss > allowed]
                todo = [x[:2] for x in halves] + [x[1:] for x in halves]
            got = integrate(tail, tolerance)
            value = sum(row[0] for row in done)
            error = beyond + sum(row[2] for row in done) + noise * sum(row[1] for row in done)
            assert got.evaluations == count > 21 * (len(corners) - 1)
            assert got.log_value == pytest.approx(base + math.log(value / math.pi), rel=1e-14)
            assert got.relative_error == pytest.approx(error / value, rel=1e-9)
            assert got.log_value == pytest.approx(plain.log_value, abs=tolerance)
        monkeypatch.setattr(_contour, "_MAX_DEPTH", 1)
        assert integrate(tail).evaluations == 21 * (len(corners) - 1)  # taken as it is, with its error
        assert integrate(tail).relative_error > 1e-6
        monkeypatch.setattr(_contour, "_MAX_DEPTH", 2)
        bad = (integrate(tail).evaluations // 21 - (len(corners) - 1)) // 2
        assert 0 < bad <= len(corners) - 1

    def test_a_result_that_is_not_positive(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nothing = np.zeros(1)
        for part in (nothing, nothing - 1, nothing + math.nan):
            monkeypatch.setattr(_contour, "_apply_rule", lambda *_, part=part: (part, nothing, nothing))
            monkeypatch.setattr(_contour, "descend", lambda *_: ([0j, 1j], 0.0))
            with pytest.raises(ArithmeticError, match=r"came out as .*expected a positive number"):
                integrate(TAILS[0])

    @pytest.mark.parametrize("form", FORMS[1:])
    def test_plain_saddle_is_stationary(self, form: Form) -> None:
        u, phi, second = Tail(form, -1).plain_saddle()
        h = 1e-5
        value, below, above = (kappa(form, -v).real for v in (u, u - h, u + h))
        assert phi == pytest.approx(value, rel=1e-12)
        assert (above - below) / (2 * h) == pytest.approx(0, abs=1e-5 * second)
        assert second == pytest.approx((above - 2 * value + below) / h**2, rel=1e-4)

    def test_minimum_of_any_increasing_slope(self) -> None:
        for root in (1e-7, 0.01, 0.4, 0.5, 0.9, 1 - 1e-7):
            c, q = _contour._minimum(lambda u, q, root=root: (u - root) / (u * q))
            assert c == pytest.approx(root, rel=1e-6)
            assert q == pytest.approx(1 - root, rel=1e-6)

    def test_the_contour_must_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_contour, "_MAX_STEPS", 3)
        with pytest.raises(ArithmeticError, match="did not end within 3 steps"):
            integrate(TAILS[0])


SPECTRA = {
    "flat": flat_spectrum(12),
    "power": power_law_spectrum(12, 1.5),
    "spiked": spiked_spectrum(12, 100.0, rank=2),
    "singular": np.r_[power_law_spectrum(5, 1.0), np.zeros(7)],
    "condition": np.geomspace(1e-12, 1, 12),
}


class TestEnclosure:
    @pytest.mark.parametrize("name", SPECTRA)
    @pytest.mark.parametrize(("M", "K"), [(1, 1), (3, 50), (10**6, 10**6)])
    def test_contains_the_fast_value(self, name: str, M: int, K: int) -> None:
        s = SPECTRA[name]
        for mu, t in ((np.full(12, 0.05), 0.0), (np.sqrt(s) / 3, 0.1), (np.full(12, 0.2), 0.4)):
            fast = gaussian_probability(mu, s, M, K, threshold=t)
            proved = gaussian_enclosure(mu, s, M, K, threshold=t)
            assert proved.contains(fast.log_probability, fast.relative_error)
            assert fast.relative_error < max(1e-10, 1e-14 * abs(fast.log_probability))
            assert 0 <= proved.log_high - proved.log_low < max(1e-11, 1e-13 * abs(fast.log_probability))
            # a value that is off by 1e-7 must be noticed
            assert not proved.contains(fast.log_probability + 1e-7, fast.relative_error)
            assert not proved.contains(fast.log_probability - 1e-7, fast.relative_error)

    @pytest.mark.parametrize("d", [1, 64])
    def test_larger_and_smaller_dimension(self, d: int) -> None:
        s, mu = flat_spectrum(d, trace=d), np.full(d, 1 / math.sqrt(d))
        proved = gaussian_enclosure(mu, s, 256, 256)
        assert proved.contains(gaussian_probability(mu, s, 256, 256).log_probability, 1e-11)
        if d == 64:
            assert proved.log_low == pytest.approx(-87.51772962603235, abs=1e-11)

    def test_distinct_eigenvalues(self) -> None:
        s, mu = power_law_spectrum(24, 0.7, trace=24), np.full(24, 0.3)
        proved = gaussian_enclosure(mu, s, 9, 4, precision=96)
        fast = gaussian_probability(mu, s, 9, 4)
        assert proved.contains(fast.log_probability, fast.relative_error)
        assert (proved.precision, proved.method, proved.dimension) == (96, "ball arithmetic", 24)
        assert (proved.M, proved.K, proved.threshold) == (9, 4, 0.0)

    def test_closed_form_of_the_laplace_law(self) -> None:
        for x in (0.3, 900.0):
            low = gaussian_enclosure([0.0, 0.0], [2.0, 2.0], 1, 4, threshold=-x)
            assert low.log_low <= -x - math.log(2) <= low.log_high
            high = gaussian_enclosure([0.0, 0.0], [2.0, 2.0], 1, 4, threshold=x)
            assert high.contains(math.log1p(-math.exp(-x) / 2), 1e-15)

    def test_precision_of_the_caller_is_restored(self) -> None:
        flint = pytest.importorskip("flint")
        before = flint.ctx.prec
        gaussian_enclosure([1.0], [1.0], 1, 1, precision=200)
        assert flint.ctx.prec == before

    def test_contains(self) -> None:
        e = Enclosure(-2.0, -1.0, "ball arithmetic", 128, 1, 1, 1, 0.0)
        assert e.contains(-2.0)
        assert e.contains(-1.0)
        assert not e.contains(-0.9)
        assert not e.contains(-2.1)
        assert e.contains(-0.9, 0.11)
        assert e.contains(-2.1, 0.11)

    def test_no_noise(self) -> None:
        e = gaussian_enclosure([0.5], [0.0], 2, 3, threshold=0.25)
        assert (e.log_low, e.log_high, e.method) == (0.0, 0.0, "deterministic")
        assert gaussian_enclosure([0.5], [0.0], 2, 3).log_high == -math.inf

    def test_bad_arguments(self) -> None:
        with pytest.raises(ValueError, match=r"eigenvalues.shape=\(1, 1\), expected \(d,\)"):
            gaussian_enclosure([1.0], [[1.0]], 1, 1)
        with pytest.raises(ValueError, match="precision=32, expected at least 64"):
            gaussian_enclosure([1.0], [1.0], 1, 1, precision=32)
        with pytest.raises(ValueError, match="M=0"):
            gaussian_enclosure([1.0], [1.0], 0, 1)

    def test_names_the_missing_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "flint", None)
        with pytest.raises(ImportError, match=r"gradient-alignment\[proofs\]"):
            gaussian_enclosure([1.0], [1.0], 1, 1)
