"""Exact rational probabilities: brute force, closed forms, published numbers, limits of size."""

from __future__ import annotations

import itertools
import random
import time
from fractions import Fraction as F

import numpy as np
import pytest

from theory import _enumeration
from theory.exact import finite_support_distribution, finite_support_probability
from theory.laws import FiniteLaw, coin, rare_reversal

WORST = FiniteLaw([(3, 2), (0, -2)], ["1/31", "30/31"])
FOUR = FiniteLaw([(1, 2), ("-3/7", 1), (2, -1), (0, "-1/11")], ["1/2", "1/4", "1/8", "1/8"])


def brute_force(law: FiniteLaw, M: int, K: int, threshold: F = F(0), test: FiniteLaw | None = None) -> F:
    """Every sequence of M + K draws, one by one: shares no code with the product."""
    test = test or law
    total = F(0)
    pairs, others = list(law.as_dict().items()), list(test.as_dict().items())
    for xs in itertools.product(pairs, repeat=M):
        for ys in itertools.product(others, repeat=K):
            weight = F(1)
            for _, w in (*xs, *ys):
                weight *= w
            value = sum(sum(x[i] for x, _ in xs) * sum(y[i] for y, _ in ys) for i in range(law.dimension)) / (
                M * K
            )
            if value <= threshold:
                total += weight
    return total


def random_law(rng: random.Random, d: int, n: int) -> FiniteLaw:
    atoms = [[F(rng.randint(-4, 4), rng.randint(1, 3)) for _ in range(d)] for _ in range(n)]
    parts = [rng.randint(1, 9) for _ in range(n)]
    return FiniteLaw(atoms, [F(p, sum(parts)) for p in parts])


class TestAgainstBruteForce:
    @pytest.mark.parametrize("seed", range(12))
    def test_random_laws(self, seed: int) -> None:
        rng = random.Random(seed)
        d, n = rng.choice([(1, 2), (1, 3), (2, 2), (2, 3), (3, 3)])
        M, K = rng.choice([(1, 1), (1, 2), (2, 1), (2, 3), (3, 2), (3, 3)])
        law, other = random_law(rng, d, n), random_law(rng, d, n)
        for threshold in (F(0), F(1, 3), F(-1, 2), F(2)):
            assert finite_support_probability(law, M, K, threshold=threshold) == brute_force(
                law, M, K, threshold
            )
        assert finite_support_probability(law, M, K, test_law=other) == brute_force(law, M, K, test=other)
        assert finite_support_probability(other, K, M, test_law=law) == brute_force(other, K, M, test=law)

    @pytest.mark.parametrize(("M", "K"), [(1, 1), (2, 3)])
    def test_distribution(self, M: int, K: int) -> None:
        law = finite_support_distribution(FOUR, M, K)
        assert sum(law.values()) == 1
        assert list(law) == sorted(law)
        mu = FOUR.mean()
        _, a, t = FOUR.scalars()
        mean = sum(x * p for x, p in law.items())
        assert mean == sum(x * x for x in mu)
        assert sum((x - mean) ** 2 * p for x, p in law.items()) == (F(1, M) + F(1, K)) * a + t / (M * K)
        for threshold in (*list(law)[::3], F(1, 97)):
            below = sum(p for x, p in law.items() if x <= threshold)
            assert finite_support_probability(FOUR, M, K, threshold=threshold) == below

    def test_distribution_of_two_laws(self) -> None:
        assert finite_support_distribution(coin(), 1, 1, test_law=FiniteLaw([-2], [1])) == {
            F(-2): F(1, 2),
            F(0): F(1, 2),
        }

    def test_ties_sit_exactly_on_the_threshold(self) -> None:
        law = FiniteLaw(["0.1", "0.3"], ["1/2", "1/2"])
        # 3 * 0.1 - 0.3 is not 0 in floats.
        line = FiniteLaw([("0.1", 1), ("-0.3", 1)], ["3/4", "1/4"])
        assert finite_support_probability(line, 4, 1, threshold=1, test_law=FiniteLaw([(1, 1)], [1])) == (
            1 - F(3, 4) ** 4
        )
        assert finite_support_probability(law, 1, 1, threshold="0.03") == F(3, 4)
        assert finite_support_probability(law, 1, 1, threshold=F(3, 100) - F(1, 10**30)) == F(1, 4)

    @pytest.mark.parametrize("sign", [1, -1])
    def test_line_and_plane_agree(self, sign: int) -> None:
        line = FiniteLaw([2, -1, 0], ["1/2", "1/3", "1/6"])
        plane = FiniteLaw([(2, 0), (-1, 0), (0, 0)], ["1/2", "1/3", "1/6"])
        for threshold in (F(0), F(sign, 3), F(sign, 12), F(-sign)):
            for M, K in ((2, 3), (4, 4)):
                assert finite_support_probability(
                    line, M, K, threshold=threshold
                ) == finite_support_probability(plane, M, K, threshold=threshold)

    def test_huge_integers_do_not_overflow(self) -> None:
        big = 10**25
        law = FiniteLaw([(3 * big, 2 * big), (0, -2 * big)], WORST.weights)
        assert finite_support_probability(law, 3, 2) == finite_support_probability(WORST, 3, 2)
        # Just below and above what int64 products can hold.
        for power in range(29, 34):
            law = FiniteLaw([(3 * 2**power, 2**power), (0, -(2**power))], ["1/2", "1/2"])
            small = FiniteLaw([(3, 1), (0, -1)], ["1/2", "1/2"])
            assert finite_support_probability(law, 2, 2) == finite_support_probability(small, 2, 2)
        assert finite_support_probability(WORST, 2, 2, threshold=2**70) == 1
        assert finite_support_probability(WORST, 2, 2, threshold=-(2**70)) == 0

    def test_huge_thresholds_on_the_line(self) -> None:
        big = 10**30 + 7
        for sign in (1, -1):
            law = FiniteLaw([sign * 3 * big, big], ["1/2", "1/2"])
            value = sign * 3 * big * big  # the middle atom of T, exactly and one below it
            below = F(1, 4) if sign > 0 else F(0)
            assert finite_support_probability(law, 1, 1, threshold=value) == below + F(1, 2)
            assert finite_support_probability(law, 1, 1, threshold=value - 1) == below

    def test_blocks_of_rows_join(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = finite_support_probability(FOUR, 4, 3)
        monkeypatch.setattr(_enumeration, "_CHUNK", 50)
        assert finite_support_probability(FOUR, 4, 3) == whole


class TestPublishedNumbers:
    def test_fair_coin(self) -> None:
        assert finite_support_probability(coin(), 1, 1) == F(3, 4)

    @pytest.mark.parametrize("p", ["1/7", "1/2", "0.99"])
    @pytest.mark.parametrize("c", [1, -3, "2/5"])
    def test_cantelli_is_attained(self, p: str, c: int | str) -> None:
        law = coin(p, c)
        m2, a, t = law.scalars()
        V = 2 * a + t
        assert finite_support_probability(law, 1, 1) == 1 - F(p) ** 2 == V / (V + m2**2)

    @pytest.mark.parametrize(("M", "K"), [(2, 3), (7, 1), (30, 30)])
    def test_coin_in_general(self, M: int, K: int) -> None:
        p = F(1, 5)
        assert finite_support_probability(coin(p), M, K) == 1 - (1 - (1 - p) ** M) * (1 - (1 - p) ** K)

    def test_probability_is_not_monotone_in_sample_size(self) -> None:
        law = FiniteLaw([1, -3], ["0.98", "0.02"])
        values = [round(float(finite_support_probability(law, m, m)), 3) for m in range(1, 6)]
        assert values == [0.039, 0.076, 0.111, 0.149, 0.008]

    def test_no_smaller_constant_for_equal_sizes(self) -> None:
        p = F(1, 10**4)
        for M, K, ratio in ((8, 8, 0.9990), (4, 8, 0.667)):
            law = rare_reversal(M, p)
            m2, a, t = law.scalars()
            V = (F(1, M) + F(1, K)) * a + t / (M * K)
            got = finite_support_probability(law, M, K) / (V / (V + m2**2))
            assert abs(float(got) - ratio) < 1e-3 * ratio

    def test_counterexample_to_the_larger_effective_size(self) -> None:
        p = finite_support_probability(WORST, 2, 2)
        assert round(float(p), 4) == 0.1189
        assert p == brute_force(WORST, 2, 2)
        m2, a, t = WORST.scalars()
        d = min(m2**2 / a, m2**2 / t)
        assert p > 1 / (1 + F(2 * 2, 2 + 2) * d)
        assert p <= 1 / (1 + F(2 * 2, 2 + 2 + 1) * d)

    def test_unfair_sign(self) -> None:
        # q = +-1: T <= 0 unless both sums have one strict sign.
        law = FiniteLaw([1, -1], ["2/3", "1/3"])
        assert finite_support_probability(law, 1, 1) == F(4, 9)
        assert finite_support_probability(law, 2, 1) == 1 - (F(4, 9) * F(2, 3) + F(1, 9) * F(1, 3))


class TestLimits:
    def test_fast_enough(self) -> None:
        cases = [
            (coin("1/3"), 30, 30),
            (WORST, 30, 30),
            (FOUR, 8, 8),
        ]
        for law, M, K in cases:
            start = time.process_time()
            finite_support_probability(law, M, K)
            assert time.process_time() - start < 1.0

    def test_many_atoms_on_a_lattice_collapse(self) -> None:
        die = FiniteLaw(range(-3, 7), ["1/10"] * 10)
        assert 0 < finite_support_probability(die, 12, 9) < F(1, 2)

    def test_too_large_says_how_large(self) -> None:
        with pytest.raises(ValueError, match=r"max_support=10 is exceeded: the sum of 3 of M=5 .* up to 56"):
            finite_support_probability(FOUR, 5, 2, max_support=10)
        with pytest.raises(ValueError, match=r"max_support=10 .* K=9 units already takes 20 .* up to 220"):
            finite_support_probability(FOUR, 1, 9, max_support=10)
        with pytest.raises(
            ValueError, match=r"sum of 20 of K=20 units already takes 21 values \(.*up to 21\)"
        ):
            finite_support_probability(WORST, 1, 20, max_support=20)
        assert finite_support_probability(WORST, 1, 20, max_support=21) > 0
        assert finite_support_probability(FOUR, 2, 2, max_support=10) > 0

    @pytest.mark.parametrize(
        ("call", "error", "message"),
        [
            (lambda: finite_support_probability(coin(), 0, 1), ValueError, "M=0, expected a sample size"),
            (lambda: finite_support_probability(coin(), 1, -2), ValueError, "K=-2, expected a sample size"),
            (lambda: finite_support_probability(coin(), 1.0, 1), TypeError, "M=1.0 has type float"),
            (lambda: finite_support_probability(coin(), 1, True), TypeError, "K=True has type bool"),
            (lambda: finite_support_probability(coin(), 1, 1, threshold=0.5), TypeError, "threshold=0.5"),
            (lambda: finite_support_probability([0, 1], 1, 1), TypeError, "law has type list"),
            (
                lambda: finite_support_probability(coin(), 1, 1, test_law=3),
                TypeError,
                "test_law has type int",
            ),
            (
                lambda: finite_support_probability(coin(), 1, 1, test_law=WORST),
                ValueError,
                "test_law.dimension=2 differs from law.dimension=1",
            ),
        ],
    )
    def test_bad_arguments(self, call, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            call()

    def test_numpy_sizes(self) -> None:
        assert finite_support_probability(coin(), np.int64(1), np.int32(1)) == F(3, 4)
