"""Laws: exact moments against independent formulas and against samples; validation; round trips."""

from __future__ import annotations

import math
from fractions import Fraction as F

import numpy as np
import pytest

from theory.laws import (
    FiniteLaw,
    GaussianLaw,
    Law,
    LognormalLaw,
    MixtureLaw,
    ParetoLaw,
    SparseLaw,
    StudentTLaw,
    coin,
    flat_spectrum,
    power_law_spectrum,
    rare_reversal,
    spiked_spectrum,
)

WORST = FiniteLaw([(3, 2), (0, -2)], ["1/31", "30/31"])


class TestFiniteLaw:
    def test_merges_drops_and_keeps_order(self) -> None:
        law = FiniteLaw([2, "1/2", 2, 7], ["1/4", "1/2", "1/4", 0])
        assert law.atoms == ((F(2),), (F(1, 2),))
        assert law.weights == (F(1, 2), F(1, 2))
        assert law.dimension == 1
        assert law.finite_fourth_moment is True

    def test_equality_and_hash_ignore_order(self) -> None:
        a = FiniteLaw([(0, 1), (1, 0)], ["1/3", "2/3"])
        b = FiniteLaw([(1, 0), (0, 1)], ["2/3", "1/3"])
        assert a == b
        assert hash(a) == hash(b)
        assert a != FiniteLaw([(1, 0), (0, 1)], ["1/3", "2/3"])
        assert a != "law"

    @pytest.mark.parametrize(
        "law", [coin(), WORST, FiniteLaw([(F(1, 3), -2, 0), (1, 2, "0.5")], ["0.98", "0.02"])]
    )
    def test_repr_round_trips(self, law: FiniteLaw) -> None:
        back = eval(repr(law))
        assert back == law
        assert back.atoms == law.atoms

    def test_repr_text(self) -> None:
        assert repr(WORST) == "FiniteLaw([(3, 2), (0, -2)], ['1/31', '30/31'])"
        assert repr(FiniteLaw([("1/2",)], [1])) == "FiniteLaw([('1/2',)], [1])"

    def test_accepts_numpy_integers_and_arrays(self) -> None:
        law = FiniteLaw(np.array([[1, 2], [3, 4]]), ["1/2", F(1, 2)])
        assert law == FiniteLaw([(1, 2), (3, 4)], ["1/2", "1/2"])
        assert type(law.atoms[0][0].numerator) is int

    @pytest.mark.parametrize(
        ("atoms", "weights", "message"),
        [
            ([], [], "is empty"),
            ([1], ["1/2", "1/2"], r"len\(weights\)=2 does not match len\(atoms\)=1"),
            ([(1, 2), (1,)], ["1/2", "1/2"], r"atoms have lengths \[1, 2\]"),
            ([()], [1], r"atoms have lengths \[0\]"),
            ([0, 1], ["3/2", "-1/2"], r"weights\[1\]=-1/2 is negative"),
            ([0, 1], ["1/2", "1/3"], r"sum\(weights\)=5/6, expected exactly 1"),
            (["x"], [1], r"atoms\[0\]='x' is not a rational number"),
            (["1/0"], [1], r"atoms\[0\]='1/0' is not a rational"),
        ],
    )
    def test_bad_values(self, atoms: list, weights: list, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            FiniteLaw(atoms, weights)

    def test_floats_are_refused(self) -> None:
        with pytest.raises(TypeError, match=r"weights\[0\]=0.5 has type float"):
            FiniteLaw([0, 1], [0.5, 0.5])
        with pytest.raises(TypeError, match=r"atoms\[1\]=1.5 has type float"):
            FiniteLaw([0, 1.5], ["1/2", "1/2"])

    def test_moments_of_the_coin(self) -> None:
        law = coin("1/3", 2)
        assert law.mean() == (F(2, 3),)
        assert law.second_moment() == ((F(4, 3),),)
        assert law.covariance() == ((F(8, 9),),)
        assert law.scalars() == (F(4, 9), F(32, 81), F(64, 81))

    def test_moments_by_hand_in_two_dimensions(self) -> None:
        law = FiniteLaw([(1, 0), (0, 1), (-1, -1)], ["1/2", "1/4", "1/4"])
        assert law.mean() == (F(1, 4), F(0))
        assert law.second_moment() == ((F(3, 4), F(1, 4)), (F(1, 4), F(1, 2)))
        assert law.covariance() == ((F(11, 16), F(1, 4)), (F(1, 4), F(1, 2)))
        assert law.scalars() == (F(1, 16), F(11, 256), F(121, 256) + F(1, 8) + F(1, 4))

    def test_both_routes_to_the_scalars_agree(self) -> None:
        # As many atoms as dimensions takes the route over pairs of atoms; here is the definition.
        for law in (WORST, FiniteLaw([(1, 2, 3), (0, "1/2", -1), (5, 5, 5)], ["1/2", "1/3", "1/6"])):
            mu, sigma = law.mean(), law.covariance()
            d = range(law.dimension)
            a = sum(mu[i] * sigma[i][j] * mu[j] for i in d for j in d)
            t = sum(sigma[i][j] ** 2 for i in d for j in d)
            assert law.scalars() == (sum(x * x for x in mu), a, t)

    def test_one_dimension_lies_on_the_boundary_of_the_cone(self) -> None:
        m2, a, t = FiniteLaw([1, 2, -3], ["1/2", "1/3", "1/6"]).scalars()
        assert a * a == m2 * m2 * t

    def test_scaled(self) -> None:
        assert WORST.scaled("-1/2") == FiniteLaw([("-3/2", -1), (0, 1)], ["1/31", "30/31"])
        m2, a, t = WORST.scalars()
        assert WORST.scaled(3).scalars() == (9 * m2, 81 * a, 81 * t)

    def test_families(self) -> None:
        assert coin("1/3").as_dict() == {(F(0),): F(2, 3), (F(1),): F(1, 3)}
        assert rare_reversal(3, "0.02") == FiniteLaw([1, -2], ["0.98", "0.02"])

    def test_samples_have_the_exact_frequencies(self) -> None:
        n = 20_000
        draws = WORST.sample(n, rng=3)
        assert draws.shape == (n, 2)
        assert draws.dtype == np.float64
        hits = int((draws == [3.0, 2.0]).all(axis=1).sum())
        assert ((draws == [3.0, 2.0]).all(axis=1) | (draws == [0.0, -2.0]).all(axis=1)).all()
        # 4.5 standard deviations: false alarm below 1e-5.
        assert abs(hits - n / 31) < 4.5 * math.sqrt(n * 30) / 31
        # The same test must notice weights that are swapped or equal.
        assert abs(hits - n / 2) > 4.5 * math.sqrt(n) / 2

    def test_samples_with_weights_beyond_63_bits(self) -> None:
        p = F(1, 3**50)
        draws = FiniteLaw([0, 1, 2], [F(1, 2), F(1, 2) - p, p]).sample(4000, rng=0)
        assert abs(draws.mean() - 0.5) < 4.5 * 0.5 / math.sqrt(4000)

    def test_sampling_is_seeded_and_counts_are_checked(self) -> None:
        assert (coin().sample(50, 7) == coin().sample(50, np.random.default_rng(7))).all()
        assert coin().sample(0, 7).shape == (0, 1)
        with pytest.raises(ValueError, match="n=-1 is negative"):
            coin().sample(-1, 0)
        with pytest.raises(TypeError, match=r"n=2\.0 has type float"):
            coin().sample(2.0, 0)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="n=True has type bool"):
            coin().sample(True, 0)


MU = np.array([0.7, -0.2, 0.4])
SIGMA = np.array([[1.0, 0.3, 0.0], [0.3, 0.5, 0.1], [0.0, 0.1, 0.2]])
LAWS: list[Law] = [
    GaussianLaw(MU, SIGMA),
    StudentTLaw(MU, SIGMA, df=9.0),
    LognormalLaw(MU, SIGMA, tau=0.4),
    SparseLaw(MU, SIGMA, p=0.3),
    ParetoLaw(MU, SIGMA, alpha=9.0),
    MixtureLaw((GaussianLaw(MU, SIGMA), StudentTLaw(-2 * MU, SIGMA, df=9.0)), np.array([0.8, 0.2])),
    MixtureLaw(
        (FiniteLaw([(1, 0, 0), (0, 2, 1)], ["1/2", "1/2"]), GaussianLaw(MU, [1.0, 0.0, 2.0])),
        np.array([0.4, 0.6]),
    ),
]


class TestParametricLaws:
    @pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
    def test_moments_match_samples(self, law: Law) -> None:
        assert isinstance(law, Law)
        n = 60_000
        x = law.sample(n, rng=12)
        assert x.shape == (n, 3)
        assert x.dtype == np.float64
        mean, cov = np.array(law.mean()), np.array(law.covariance())
        # 5 standard errors per entry, estimated from the sample: 12 entries, false alarm below 1e-5.
        assert (np.abs(x.mean(0) - mean) < 5 * x.std(0) / math.sqrt(n)).all()
        y = (x - mean)[:, :, None] * (x - mean)[:, None, :]
        assert (np.abs(y.mean(0) - cov) < 5 * y.std(0) / math.sqrt(n)).all()
        # A covariance off by 10 % must be noticed.
        assert (np.abs(y.mean(0) - 1.1 * cov) > 5 * y.std(0) / math.sqrt(n)).any()

    @pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
    def test_scalars_follow_from_mean_and_covariance(self, law: Law) -> None:
        mean, cov = np.array(law.mean()), np.array(law.covariance())
        np.testing.assert_allclose(
            law.scalars(), (mean @ mean, mean @ cov @ mean, np.trace(cov @ cov)), rtol=1e-13
        )
        assert law.dimension == 3

    def test_eigenvalues_and_matrix_agree(self) -> None:
        s = np.array([1.0, 0.5, 0.0])
        for make in (
            lambda sigma: GaussianLaw(MU, sigma),
            lambda sigma: LognormalLaw(MU, sigma, tau=0.7),
            lambda sigma: SparseLaw(MU, sigma, p=0.2),
        ):
            short, full = make(s), make(np.diag(s))
            np.testing.assert_allclose(short.scalars(), full.scalars(), rtol=1e-14)
            np.testing.assert_allclose(short.covariance(), full.covariance(), rtol=1e-14)

    def test_closed_forms(self) -> None:
        assert GaussianLaw([3.0, 4.0], [1.0, 2.0]).scalars() == (25.0, 41.0, 5.0)
        assert SparseLaw([2.0], [0.0], p=0.5).scalars() == (1.0, 1.0, 1.0)
        pareto = ParetoLaw([1.0], [0.0], alpha=3.0)  # E s^2 = 4/3
        np.testing.assert_allclose(pareto.scalars(), (1.0, 1 / 3, 1 / 9))
        lognormal = LognormalLaw([1.0], [1.0], tau=1.0)
        v = 2 * math.e - 1
        np.testing.assert_allclose(lognormal.scalars(), (1.0, v, v * v))

    def test_fourth_moments(self) -> None:
        assert not StudentTLaw([1.0], [1.0], df=4.0).finite_fourth_moment
        assert StudentTLaw([1.0], [1.0], df=5.0).finite_fourth_moment
        assert not ParetoLaw([1.0], [1.0], alpha=4.0).finite_fourth_moment
        assert ParetoLaw([1.0], [1.0], alpha=4.5).finite_fourth_moment
        assert GaussianLaw([1.0], [1.0]).finite_fourth_moment
        heavy, light = StudentTLaw([1.0], [1.0], df=3.0), GaussianLaw([1.0], [1.0])
        assert not MixtureLaw((heavy, light), np.array([0.5, 0.5])).finite_fourth_moment
        assert MixtureLaw((heavy, light), np.array([0.0, 1.0])).finite_fourth_moment

    def test_student_tails_are_heavy(self) -> None:
        x = StudentTLaw([0.0], [1.0], df=3.0).sample(100_000, rng=0)
        assert (np.abs(x) > 8).sum() > 30  # P = 0.0008 for this law, 1e-15 for a normal one

    def test_sparse_law_is_mostly_zero(self) -> None:
        x = SparseLaw([1.0, 1.0], [1.0, 1.0], p=0.02).sample(5000, rng=1)
        active = int((x != 0).any(axis=1).sum())
        assert abs(active - 100) < 4.5 * math.sqrt(98)
        assert ((x != 0).all(axis=1) == (x != 0).any(axis=1)).all()

    def test_spectra(self) -> None:
        np.testing.assert_allclose(flat_spectrum(5, trace=2.0), np.full(5, 0.4))
        np.testing.assert_allclose(power_law_spectrum(3, 2.0, trace=49.0), [36.0, 9.0, 4.0])
        np.testing.assert_allclose(spiked_spectrum(4, 3.0, rank=2, trace=8.0), [3.0, 3.0, 1.0, 1.0])

    def test_arrays_are_read_only_copies(self) -> None:
        mu = np.array([1.0, 2.0])
        law = GaussianLaw(mu, [1.0, 1.0])
        mu[0] = 9.0
        assert law.mean()[0] == 1.0
        with pytest.raises(ValueError, match="read-only"):
            law.mu[0] = 3.0

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: GaussianLaw([], []), r"mu.shape=\(0,\), expected \(d,\)"),
            (lambda: GaussianLaw([[1.0]], [1.0]), r"mu.shape=\(1, 1\)"),
            (lambda: GaussianLaw([1.0, 2.0], [1.0]), r"Sigma.shape=\(1,\), expected \(2,\)"),
            (lambda: GaussianLaw([1.0], [-1.0]), r"min\(Sigma\)=-1.0"),
            (lambda: GaussianLaw([1.0, 0.0], [[1.0, 0.5], [0.0, 1.0]]), "not symmetric"),
            (lambda: GaussianLaw([1.0, 0.0], [[0.0, 1.0], [1.0, 0.0]]), "Sigma has eigenvalue -1"),
            (lambda: GaussianLaw([np.nan], [1.0]), "mu has non-finite entries"),
            (lambda: GaussianLaw([1.0], [np.inf]), "Sigma has non-finite entries"),
            (lambda: StudentTLaw([1.0], [1.0], df=2.0), "df=2.0, expected a finite number > 2"),
            (lambda: StudentTLaw([1.0], [1.0], df=math.inf), "df=inf"),
            (lambda: LognormalLaw([1.0], [1.0], tau=0.0), "tau=0.0, expected a finite number > 0"),
            (lambda: SparseLaw([1.0], [1.0], p=0.0), r"p=0.0, expected a probability in \(0, 1\]"),
            (lambda: SparseLaw([1.0], [1.0], p=1.1), "p=1.1"),
            (lambda: ParetoLaw([1.0], [1.0], alpha=2.0), "alpha=2.0, expected a finite number > 2"),
            (lambda: MixtureLaw((), np.array([])), "0 components"),
            (lambda: MixtureLaw((coin(), WORST), np.array([0.5, 0.5])), r"dimensions \[1, 2\]"),
            (lambda: MixtureLaw((coin(), coin()), np.array([0.7, 0.7])), "expected probabilities that sum"),
            (lambda: MixtureLaw((coin(), coin()), np.array([1.5, -0.5])), "expected probabilities that sum"),
            (lambda: MixtureLaw((coin(), coin()), np.array([1.0])), "expected one weight per component"),
        ],
    )
    def test_bad_parameters(self, make, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            make()
