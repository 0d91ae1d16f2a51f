"""Off-diagonal share: exact unbiasedness, naive loops, nulls by enumeration, invariance and coverage."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from certify.diagonality import off_diagonal_share, relative_entry, variance_squared
from certify.moments import GradientMoments


def naive(Q: np.ndarray) -> tuple[float, float]:
    """Unbiased tr Sigma^2 and sum of Sigma_ii^2 by loops over ordered quadruples of different units."""
    total = diagonal = 0.0
    count = 0
    for i, j, k, m in itertools.permutations(range(len(Q)), 4):
        # (q_i - q_j)(q_i - q_j)^T / 2 is unbiased for Sigma, and independent of that of units k, m
        a, b = (Q[i] - Q[j])[:, None] * (Q[i] - Q[j]) / 2, (Q[k] - Q[m])[:, None] * (Q[k] - Q[m]) / 2
        total += float((a * b).sum())
        diagonal += float((np.diag(a) * np.diag(b)).sum())
        count += 1
    return total / count, diagonal / count


@pytest.mark.parametrize("shape", [(6, 3), (7, 9), (8, 1)])
def test_point_equals_the_naive_loops(shape: tuple[int, int]) -> None:
    Q = np.random.default_rng(3).gamma(1.0, size=shape) @ np.triu(np.ones((shape[1], shape[1])))
    total, diagonal = naive(Q)
    found = off_diagonal_share(Q)
    assert found.total == pytest.approx(total, rel=1e-10)
    assert found.off_diagonal == pytest.approx(total - diagonal, rel=1e-9, abs=1e-9 * total)
    assert found.share == pytest.approx(1 - diagonal / total, rel=1e-9, abs=1e-9)


def test_variance_squared_is_exactly_unbiased_over_a_finite_law() -> None:
    atoms, weights = (
        (Fraction(0), Fraction(1), Fraction(-3)),
        (Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)),
    )
    mean = sum(w * a for w, a in zip(weights, atoms, strict=True))
    variance = sum(w * (a - mean) ** 2 for w, a in zip(weights, atoms, strict=True))
    for n in (4, 5):
        expected = Fraction(0)
        for choice in itertools.product(range(3), repeat=n):
            p = Fraction(1)
            for c in choice:
                p *= weights[c]
            sums = [sum((atoms[c] ** k for c in choice), Fraction(0)) for k in (1, 2, 3, 4)]
            expected += p * variance_squared(n, *sums)
        assert expected == variance**2


def test_both_parts_are_unbiased_over_a_finite_law_of_two_coordinates() -> None:
    atoms = np.array([[0.0, 0.0], [1.0, 2.0], [-1.0, 1.0]])
    p = np.array([0.5, 0.3, 0.2])
    mean = p @ atoms
    Sigma = (atoms - mean).T @ np.diag(p) @ (atoms - mean)
    off = total = 0.0
    for choice in itertools.product(range(3), repeat=6):
        if len(set(choice)) == 1:
            continue  # all units equal: both parts are 0 and the share does not exist
        found = off_diagonal_share(atoms[list(choice)])
        weight = float(np.prod(p[list(choice)]))
        off += weight * found.off_diagonal
        total += weight * found.total
    assert total == pytest.approx((Sigma * Sigma).sum(), rel=1e-10)
    assert off == pytest.approx(2 * Sigma[0, 1] ** 2, rel=1e-9)


def test_nulls_are_the_means_over_all_permutations_and_over_signs() -> None:
    rng = np.random.default_rng(5)
    Q = rng.standard_normal((6, 2)) + rng.standard_normal((6, 1))
    x = Q - Q.mean(axis=0)
    found = off_diagonal_share(Q)
    diagonal = float(((x * x).sum(axis=0) ** 2).sum())
    permuted = np.mean([2 * (x[:, 0] @ x[list(o), 1]) ** 2 for o in itertools.permutations(range(6))])
    signs = np.mean(
        [2 * (np.array(s) @ (x[:, 0] * x[:, 1])) ** 2 for s in itertools.product((-1, 1), repeat=6)]
    )
    assert found.null_permuted == pytest.approx(permuted / (permuted + diagonal))
    assert found.null_signs == pytest.approx(signs / (signs + diagonal))


def test_random_basis_is_the_mean_over_rotations() -> None:
    spectrum = np.array([4.0, 1.0, 0.5])
    shares = []
    for rotation in stats.ortho_group.rvs(3, size=4000, random_state=7):
        S = rotation @ np.diag(spectrum) @ rotation.T
        shares.append(1 - (np.diag(S) ** 2).sum() / (spectrum**2).sum())
    r = spectrum.sum() ** 2 / (spectrum**2).sum()
    assert np.mean(shares) == pytest.approx((3 - r) / 5, abs=4 * np.std(shares) / 4000**0.5)
    Q = np.random.default_rng(0).standard_normal((4000, 3)) * np.sqrt(spectrum)
    assert off_diagonal_share(Q).random_basis == pytest.approx((3 - r) / 5, abs=0.03)


@pytest.mark.parametrize("factor", [1e-30, -2.0, 1e30])
def test_share_ignores_scale_shift_and_order(factor: float) -> None:
    rng = np.random.default_rng(1)
    Q = rng.standard_normal((40, 5)) @ rng.standard_normal((5, 5))
    one, other = off_diagonal_share(Q), off_diagonal_share((factor * (Q + 7.0))[::-1, ::-1])
    assert other.share == pytest.approx(one.share, rel=1e-8)
    assert (other.interval.low, other.interval.high) == pytest.approx((one.interval.low, one.interval.high))
    assert other.null_signs == pytest.approx(one.null_signs)


COVERED = 0.95
REPEATS = 200
FALSE_ALARM = 1e-4


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_interval_covers_and_the_plug_in_does_not(rho: float) -> None:
    """At d = 20, n = 120 the interval misses rarely enough; the plug-in share is caught as a false claim."""
    rng = np.random.default_rng(11)
    S = rho ** np.abs(np.subtract.outer(np.arange(20), np.arange(20)))
    truth = 1 - (np.diag(S) ** 2).sum() / (S * S).sum()
    root = np.linalg.cholesky(S).T
    inside = plug_in_inside = 0
    for _ in range(REPEATS):
        found = off_diagonal_share(rng.standard_normal((120, 20)) @ root + 0.5)
        inside += truth in found.interval
        half = found.interval.width / 2
        assert found.plug_in is not None
        plug_in_inside += abs(found.plug_in - truth) <= half
    # 90 % allowed for: a large-sample method; a fault such as a wrong divisor falls far below
    least = stats.binom.ppf(FALSE_ALARM, REPEATS, COVERED - 0.05)
    assert inside >= least
    assert plug_in_inside < least


def test_heavy_units_look_correlated_only_to_the_permutation_null() -> None:
    rng = np.random.default_rng(2)
    Q = rng.standard_normal((300, 30)) * (rng.random((300, 1)) < 0.1)
    found = off_diagonal_share(Q)
    assert found.plug_in > 5 * found.null_permuted  # the usual reference is fooled by units of unequal size
    assert found.plug_in == pytest.approx(found.null_signs, abs=0.05)
    assert 0.0 in found.interval


def test_nothing_is_clamped() -> None:
    shares = [off_diagonal_share(np.random.default_rng(s).standard_normal((20, 8))).share for s in range(20)]
    assert min(shares) < 0 < max(shares)
    assert (
        min(s.interval.low for s in [off_diagonal_share(np.random.default_rng(0).normal(size=(20, 8)))]) < 0
    )


def test_equal_units_have_no_share() -> None:
    found = off_diagonal_share(np.ones((10, 3)))
    assert found.share is None
    assert found.plug_in is None
    assert (found.interval.low, found.interval.high) == (-np.inf, np.inf)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="n=5: expected at least 6"):
        off_diagonal_share(np.ones((5, 2)))
    with pytest.raises(ValueError, match=r"confidence=1\.5"):
        off_diagonal_share(np.ones((8, 2)), confidence=1.5)
    streamed = GradientMoments.from_array(np.eye(8), representation="covariance")
    with pytest.raises(ValueError, match=r"representation='covariance'.*pass the array"):
        off_diagonal_share(streamed)


def test_relative_entry() -> None:
    assert relative_entry(None, 5) is None
    assert relative_entry(0.2, 1) is None
    S = np.full((4, 4), 0.3) + 0.7 * np.eye(4)
    share = 1 - 4 / (S * S).sum()
    assert relative_entry(share, 4) == pytest.approx(0.3)
