"""Estimators: naive loops, exact enumeration, invariance, bias, jackknife, two laws, errors."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from naive_estimators import dots, exact_statistics, naive_statistics, relative_errors

from certify.estimators import estimate, jackknife, plug_in, ratio, u_statistics
from certify.moments import GradientMoments
from certify.sketch import Sketch
from certify.two_laws import estimate_two_laws
from certify.ustatistics import Sums, falling, statistics_from_sums
from theory.laws import FiniteLaw

F = Fraction


def sums_about(rows: list[list[Fraction]], c: list[Fraction]) -> Sums:
    """The sums that the estimators need, from their definitions."""
    x = [[u - v for u, v in zip(row, c, strict=True)] for row in rows]
    g = dots(x)
    n = len(x)
    p = [g[i][i] for i in range(n)]
    r = [sum(g[i]) - p[i] for i in range(n)]
    h = [sum(u * v for u, v in zip(row, c, strict=True)) for row in x]

    def total(a: list[Fraction], b: list[Fraction]) -> Fraction:
        return sum((u * v for u, v in zip(a, b, strict=True)), F(0))

    return Sums(
        n=n,
        cc=sum((u * u for u in c), F(0)),
        H1=sum(h, F(0)),
        H2=total(h, h),
        HP=total(h, p),
        HR=total(h, r),
        P2=sum(p, F(0)),
        P4=total(p, p),
        PR=total(p, r),
        S=sum(r, F(0)),
        R2=total(r, r),
        F2=sum((g[i][j] ** 2 for i in range(n) for j in range(n) if i != j), F(0)),
    )


LAWS = [
    FiniteLaw(atoms=((0,), (1,)), weights=("1/2", "1/2")),
    FiniteLaw(atoms=((0, 2), (3, "-1/2"), (-1, -1)), weights=("1/2", "1/3", "1/6")),
    FiniteLaw(atoms=((1, 0, 0), (-3, 1, 2), ("2/3", 5, -1)), weights=("97/100", "1/100", "2/100")),
]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("n", [4, 5])
def test_expectation_over_all_samples_is_exactly_the_population_value(law: FiniteLaw, n: int) -> None:
    d = law.dimension
    m2, a, t = law.scalars()
    trace = sum(law.covariance()[i][i] for i in range(d))
    q2 = sum(w * sum(x * x for x in atom) for atom, w in zip(law.atoms, law.weights, strict=True))
    q4 = sum(w * sum(x * x for x in atom) ** 2 for atom, w in zip(law.atoms, law.weights, strict=True))
    population = (m2, m2 * m2, a, t, trace, trace * trace, q2, q4)
    expected = [F(0)] * 8
    plain = [F(0)] * 4
    reference = [F(7, 3)] + [F(-2)] * (d - 1)
    for choice in itertools.product(range(len(law.atoms)), repeat=n):
        weight = math.prod((law.weights[i] for i in choice), start=F(1))
        rows = [list(law.atoms[i]) for i in choice]
        s0 = sums_about(rows, [F(0)] * d)
        u = u_statistics(n, s0.S, s0.F2, s0.R2)
        about_mean = statistics_from_sums(
            sums_about(rows, [sum(column, F(0)) / n for column in zip(*rows, strict=True)])
        )
        # The reference changes nothing, not even in the sample.
        assert about_mean == statistics_from_sums(sums_about(rows, reference)) == statistics_from_sums(s0)
        assert about_mean.mu_sigma_mu == u.T3 - u.T4
        assert about_mean.tr_sigma2 == u.T2 - 2 * u.T3 + u.T4
        assert u == (about_mean.E2, about_mean.T2, about_mean.T3, about_mean.T4)
        for k, value in enumerate(about_mean):
            expected[k] += weight * value
        for k, value in enumerate(u):
            plain[k] += weight * value
    assert tuple(expected) == population
    assert plain == [m2, t + 2 * a + m2 * m2, a + m2 * m2, m2 * m2]


def test_enumeration_would_notice_a_wrong_formula() -> None:
    law = LAWS[1]
    m2 = law.scalars()[0]
    wrong = F(0)
    for choice in itertools.product(range(3), repeat=4):
        weight = math.prod((law.weights[i] for i in choice), start=F(1))
        s = sums_about([list(law.atoms[i]) for i in choice], [F(0), F(0)])
        # 4 becomes 3: a slip in the number of paths
        wrong += weight * (s.S * s.S - 3 * (s.R2 - s.F2) - 2 * s.F2) / falling(4, 4)
    assert wrong != m2 * m2


@pytest.mark.parametrize(("n", "d"), [(4, 2), (6, 3), (5, 12), (7, 7)])
def test_naive_loop(n: int, d: int) -> None:
    Q = np.random.default_rng(n).normal(0.4, 1.0, (n, d))
    rows = [[F(float(x)) for x in row] for row in Q]
    exact = naive_statistics(rows)
    assert exact == exact_statistics(Q)
    assert max(relative_errors(estimate(Q), exact).values()) < 1e-12


def test_derived_fields() -> None:
    e = estimate(np.random.default_rng(0).normal(0.5, 1.0, (60, 8)))
    assert e.d_par == pytest.approx(e.m2_squared / e.mu_sigma_mu)
    assert e.d_2 == pytest.approx(e.m2_squared / e.tr_sigma2)
    assert e.d_align == min(e.d_par, e.d_2)
    assert e.b_star == pytest.approx(e.d_par / e.d_2)
    assert e.gradient_noise_scale == pytest.approx(1 / e.gsnr) == pytest.approx(e.tr_sigma / e.m2)
    assert e.participation_ratio == pytest.approx(e.tr_sigma_squared / e.tr_sigma2)
    assert e.kurtosis_ratio == pytest.approx(e.mean_q4 / e.mean_q2**2)
    assert (e.n, e.d, e.unit, e.detected) == (60, 8, None, None)
    for M, K in [(1, 1), (3, 7), (500, 2)]:
        v = (1 / M + 1 / K) * e.mu_sigma_mu + e.tr_sigma2 / (M * K)
        assert e.variance(M, K) == pytest.approx(v)
        assert e.B_exact(M, K) == pytest.approx(v / (v + e.m2_squared))
        assert e.B_align(M, K) == pytest.approx(1 / (1 + M * K / (M + K + 1) * e.d_align))
        assert e.B_align(M, K) >= e.B_exact(M, K)
        assert e.B_regrouped(M, K) == pytest.approx(e.B_exact(M, K))
        assert e.B_regrouped(M, K, 1) == pytest.approx(e.B_align(M, K))
        for b in (0.3, 2.0, 9.0):
            assert e.B_regrouped(M, K, b) >= e.B_exact(M, K) * (1 - 1e-12)
    with pytest.raises(ValueError, match="M=0"):
        e.B_exact(0, 1)
    with pytest.raises(ValueError, match="K=0"):
        e.B_align(1, 0)
    with pytest.raises(ValueError, match="b=-1"):
        e.B_regrouped(2, 2, -1)


def test_nothing_is_clamped() -> None:
    rng = np.random.default_rng(0)
    noise = [estimate(rng.standard_normal((8, 5)), correct=False) for _ in range(400)]
    negative = [e for e in noise if e.m2_squared <= 0]
    assert negative
    assert min(e.m2 for e in noise) < 0
    assert min(e.mu_sigma_mu for e in noise) < 0
    for e in negative:
        assert e.detected is False
        assert e.B_exact(4, 4) is None
        assert e.B_align(4, 4) is None
    assert all((e.d_par is None) == (e.mu_sigma_mu < 0) for e in noise)
    assert any(e.d_par is not None and e.d_par < 0 for e in noise)
    assert any(e.b_star is None for e in noise)
    assert ratio(-1.0, 2.0) == -0.5
    assert ratio(0.0, 0.0) is None
    assert ratio(1.0, 0.0) == math.inf


def test_degenerate_samples() -> None:
    equal = estimate(np.full((6, 3), 0.1))
    assert equal.mu_sigma_mu == equal.tr_sigma2 == equal.tr_sigma == 0.0
    assert equal.d_align == equal.d_par_corrected == math.inf
    assert equal.B_exact(1, 1) == equal.B_align(1, 1) == 0.0
    zero = estimate(np.zeros((6, 3)))
    assert zero.m2 == 0.0
    assert zero.d_par is zero.d_align is zero.b_star is None
    assert zero.detected is False
    one = estimate(np.random.default_rng(0).normal(1.0, 1.0, (50, 1)))
    assert one.d == 1
    assert plug_in(np.full((3, 2), 0.1)).d_2 == math.inf
    assert estimate(np.random.default_rng(0).normal(1.0, 1.0, (4, 3))).correction is None
    with pytest.raises(ValueError, match="n=3: expected at least 4 units"):
        estimate(np.eye(3))
    with pytest.raises(ValueError, match="n=0"):
        plug_in(np.zeros((0, 3)))
    with pytest.raises(ValueError, match="n=1: expected at least 2"):
        plug_in(np.zeros((1, 3)), divisor="n-1")
    with pytest.raises(ValueError, match="divisor='n\\+1'"):
        plug_in(np.eye(3), divisor="n+1")


def heavy(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    """Lognormal lengths on Gaussian directions, with a mean: few units carry the gradient."""
    directions = rng.standard_normal(size) + 0.3
    return directions * np.exp(0.5 * rng.standard_normal((*size[:-1], 1)))


def test_unbiased_on_a_heavy_tailed_law_and_a_false_claim_is_caught() -> None:
    # 400 group means, each of 25 samples of n = 8. Where an estimator is unbiased, group means are nearly
    # symmetric about the truth: with p the chance of lying above, |count - 200| > 60 has a probability of
    # 2e-9 at p = 1/2 and below 1e-4 for |p - 1/2| <= 0.05, the skewness that means of 25 leave.
    d, scale2 = 4, math.exp(0.5)
    mean = np.full(d, 0.3) * math.exp(0.125)
    sigma = scale2 * (np.eye(d) + 0.09 * np.ones((d, d))) - np.outer(mean, mean)
    m2 = float(mean @ mean)
    truth = {
        "m2": m2,
        "m2_squared": m2**2,
        "mu_sigma_mu": float(mean @ sigma @ mean),
        "tr_sigma2": float((sigma**2).sum()),
        "tr_sigma": float(np.trace(sigma)),
    }
    rng = np.random.default_rng(7)
    found: dict[str, list[float]] = {name: [] for name in truth}
    claimed = []
    for Q in heavy(rng, (10_000, 8, d)):
        moments = GradientMoments.from_array(Q, copy=False)
        e = estimate(moments, correct=False)
        for name in truth:
            found[name].append(getattr(e, name))
        p = plug_in(moments)
        claimed.append((p.m2, p.mu_sigma_mu, p.tr_sigma2))

    def z(values: object, target: float) -> float:
        groups = np.asarray(values).reshape(400, 25).mean(axis=1)
        return float((groups.mean() - target) / (groups.std(ddof=1) / 20))

    def above(values: object, target: float) -> int:
        return int((np.asarray(values).reshape(400, 25).mean(axis=1) > target).sum())

    for name, target in truth.items():
        # |z| < 5: false-alarm rate 6e-7 for each of five numbers under normal means.
        assert abs(z(found[name], target)) < 5, name
    assert abs(above(found["m2"], truth["m2"]) - 200) <= 60
    assert abs(above(found["tr_sigma"], truth["tr_sigma"]) - 200) <= 60
    # The false claim "plug-in is unbiased" fails both ways of looking.
    plug_m2, plug_a, plug_t = (np.array(column) for column in zip(*claimed, strict=True))
    assert above(plug_m2, truth["m2"]) > 260
    assert z(plug_m2, truth["m2"]) > 20
    assert z(plug_a, truth["mu_sigma_mu"]) > 5
    assert abs(z(plug_t, truth["tr_sigma2"])) > 5


def test_bias_correction_moves_mean_and_median_towards_the_truth() -> None:
    # A decaying spectrum under lognormal lengths, n = 100: both ratios are far too large, the corrected ones
    # less.
    rng = np.random.default_rng(11)
    s = 1 / np.sqrt(1 + np.arange(50))
    mean = 0.5 * s * math.exp(0.5)
    sigma = math.exp(2) * (np.diag(s**2) + 0.25 * np.outer(s, s)) - np.outer(mean, mean)
    signal = float(mean @ mean) ** 2
    truth = np.array([signal / (mean @ sigma @ mean), signal / (sigma**2).sum()])
    raw, corrected = [], []
    for _ in range(400):
        Q = (rng.standard_normal((100, 50)) + 0.5) * s * np.exp(rng.standard_normal((100, 1)))
        e = estimate(Q)
        if e.d_par_corrected is not None and e.d_2_corrected is not None:
            raw.append((e.d_par, e.d_2))
            corrected.append((e.d_par_corrected, e.d_2_corrected))
    assert len(raw) > 390
    for middle in (np.mean, np.median):
        bias_raw = middle(raw, axis=0) / truth - 1
        bias_corrected = middle(corrected, axis=0) / truth - 1
        assert (bias_raw > 0.2).all()
        assert (np.abs(bias_corrected) < 0.6 * bias_raw).all()


def test_jackknife_standard_errors_agree_with_the_spread() -> None:
    rng = np.random.default_rng(5)
    runs = [estimate(rng.normal(0.6, 1.0, (80, 6))) for _ in range(400)]
    for name in ("m2", "mu_sigma_mu", "tr_sigma2", "d_par", "d_2"):
        spread = np.std([getattr(e, name) for e in runs], ddof=1)
        reported = np.median([e.standard_errors[name] for e in runs])
        assert 0.75 < reported / spread < 1.3, name
    assert runs[0].correction == "jackknife, leave-one-out"


def test_jackknife_of_a_mean_and_of_a_square() -> None:
    x = np.arange(6.0) ** 2
    without = (x.sum() - x) / 5
    corrected, error = jackknife(x.mean(), without, np.full(6, 5), 6)
    assert corrected == pytest.approx(x.mean())
    assert error == pytest.approx(x.std(ddof=1) / math.sqrt(6))
    # For the squared mean the bias is var/n exactly, and the jackknife removes it exactly.
    corrected, _ = jackknife(x.mean() ** 2, without**2, np.full(6, 5), 6)
    assert corrected == pytest.approx(x.mean() ** 2 - x.var(ddof=1) / 6)
    groups = [x[:1], x[1:3], x[3:]]
    parts = np.array([(x.sum() - g.sum()) / (6 - g.size) for g in groups])
    assert jackknife(x.mean(), parts, np.array([5, 4, 3]), 6)[0] == pytest.approx(x.mean())
    assert jackknife(1.0, np.array([math.nan]), np.array([1]), 2) == (None, None)


def test_correction_from_groups_when_rows_are_gone() -> None:
    Q = np.random.default_rng(0).normal(0.5, 1.0, (4000, 6))
    whole = estimate(Q)
    grouped = estimate(GradientMoments.from_array(Q, memory_budget=20_000))
    assert grouped.representation == "covariance"
    assert grouped.correction == "jackknife, leave-group-out"
    assert grouped.d_par == pytest.approx(whole.d_par, rel=1e-10)
    assert grouped.d_par_corrected == pytest.approx(whole.d_par_corrected, rel=0.02)
    assert grouped.standard_errors["d_par"] == pytest.approx(whole.standard_errors["d_par"], rel=0.5)
    lone = estimate(GradientMoments.from_array(Q, memory_budget=100))
    assert lone.correction is None
    assert lone.d_par_corrected is None


def test_plug_in_is_the_population_of_the_pool() -> None:
    atoms = [(3, 1), (-1, 2), (0, 0), (5, -4)]
    m2, a, t = FiniteLaw(atoms=tuple(atoms), weights=("1/4",) * 4).scalars()
    for kind in ("rows", "covariance"):
        p = plug_in(GradientMoments.from_array(np.array(atoms), representation=kind))
        assert (p.m2, p.mu_sigma_mu, p.tr_sigma2) == pytest.approx((float(m2), float(a), float(t)), rel=1e-13)
        v = 2 / 3 * p.mu_sigma_mu + p.tr_sigma2 / 9
        assert p.B_exact(3, 3) == pytest.approx(v / (v + p.m2**2))
        assert p.B_align(3, 3) == pytest.approx(1 / (1 + 9 / 7 * p.d_align))


def naive_two_laws(A: np.ndarray, B: np.ndarray) -> dict[str, float]:
    """Averages over pairs of different units of each sample."""
    pairs_a = list(itertools.permutations(range(len(A)), 2))
    pairs_b = list(itertools.permutations(range(len(B)), 2))
    G = A @ B.T

    def average(f) -> float:  # type: ignore[no-untyped-def]
        return float(np.mean([f(i, k, j, m) for i, k in pairs_a for j, m in pairs_b]))

    square = average(lambda i, k, j, m: G[i, j] * G[k, m])
    same_1 = average(lambda i, k, j, m: G[i, j] * G[i, m])
    same_2 = average(lambda i, k, j, m: G[i, j] * G[k, j])
    both = average(lambda i, k, j, m: G[i, j] ** 2)
    return {
        "mean_T": float(G.mean()),
        "mean_T_squared": square,
        "mu2_sigma1_mu2": same_1 - square,
        "mu1_sigma2_mu1": same_2 - square,
        "tr_sigma1_sigma2": both - same_1 - same_2 + square,
    }


@pytest.mark.parametrize("kinds", list(itertools.product(["rows", "covariance"], repeat=2)))
@pytest.mark.parametrize("d", [3, 20])
def test_two_laws_equal_naive_averages(kinds: tuple[str, str], d: int) -> None:
    rng = np.random.default_rng(d)
    A, B = rng.normal(0.5, 1.0, (5, d)) * 1e-3, rng.normal(0.7, 2.0, (6, d)) * 1e4
    e = estimate_two_laws(
        GradientMoments.from_array(A, representation=kinds[0]),
        GradientMoments.from_array(B, representation=kinds[1]),
    )
    for name, value in naive_two_laws(A, B).items():
        assert getattr(e, name) == pytest.approx(value, rel=1e-9), name
    v = e.mu2_sigma1_mu2 / 3 + e.mu1_sigma2_mu1 / 4 + e.tr_sigma1_sigma2 / 12
    assert e.variance(3, 4) == pytest.approx(v)
    bound = e.B_exact(3, 4)
    assert bound is None or bound == pytest.approx(v / (v + e.mean_T_squared))


def test_two_laws_are_unbiased_over_all_samples() -> None:
    # Enumeration of every sample of sizes 2 and 3 of two laws on two atoms each.
    atoms_1, w_1 = np.array([[0.0, 2.0], [3.0, -0.5]]), [0.25, 0.75]
    atoms_2, w_2 = np.array([[1.0, 1.0], [-2.0, 4.0]]), [0.5, 0.5]

    def mean_and_covariance(atoms: np.ndarray, w: list[float]) -> tuple[np.ndarray, np.ndarray]:
        mean = np.array(w) @ atoms
        return mean, (atoms - mean).T @ np.diag(w) @ (atoms - mean)

    (mu1, s1), (mu2, s2) = mean_and_covariance(atoms_1, w_1), mean_and_covariance(atoms_2, w_2)
    truth = {
        "mean_T": mu1 @ mu2,
        "mean_T_squared": (mu1 @ mu2) ** 2,
        "mu2_sigma1_mu2": mu2 @ s1 @ mu2,
        "mu1_sigma2_mu1": mu1 @ s2 @ mu1,
        "tr_sigma1_sigma2": np.trace(s1 @ s2),
    }
    found = dict.fromkeys(truth, 0.0)
    for i in itertools.product(range(2), repeat=2):
        for j in itertools.product(range(2), repeat=3):
            weight = math.prod([w_1[k] for k in i]) * math.prod([w_2[k] for k in j])
            e = estimate_two_laws(atoms_1[list(i)], atoms_2[list(j)])
            for name in truth:
                found[name] += weight * getattr(e, name)
    assert found == pytest.approx(truth, rel=1e-12)


def test_two_laws_sketch_scale_and_errors() -> None:
    rng = np.random.default_rng(0)
    A, B = rng.normal(0.5, 1.0, (30, 9)), rng.normal(0.6, 2.0, (40, 9))
    exact = estimate_two_laws(A, B)
    runs = []
    for seed in range(400):
        sketch = Sketch(k=4, replicates=2, seed=seed)
        a, b = (GradientMoments.from_array(Q, representation="sketch", sketch=sketch) for Q in (A, B))
        runs.append(estimate_two_laws(a, b if seed % 2 else B))
    for name in ("mu2_sigma1_mu2", "mu1_sigma2_mu1", "tr_sigma1_sigma2"):
        values = np.array([getattr(e, name) for e in runs])
        # |z| < 5: false-alarm rate 6e-7 each under normal means
        assert abs(values.mean() - getattr(exact, name)) < 5 * values.std() / 20
    assert runs[0].mean_T == pytest.approx(exact.mean_T, rel=1e-12)
    assert runs[0].sketch_error > 0
    tiny = estimate_two_laws(1e-30 * A, 1e-30 * B)
    assert tiny.d_2 == pytest.approx(exact.d_2, rel=1e-9)
    assert tiny.B_exact(3, 3) == pytest.approx(exact.B_exact(3, 3), rel=1e-9)
    with pytest.raises(ValueError, match="d=9: expected d=8"):
        estimate_two_laws(A[:, :8], B)
    with pytest.raises(ValueError, match="n=1"):
        estimate_two_laws(A, B[:1])
    with pytest.raises(ValueError, match="the same sketch"):
        estimate_two_laws(
            GradientMoments.from_array(A, representation="sketch", sketch=Sketch(4)),
            GradientMoments.from_array(B, representation="sketch", sketch=Sketch(5)),
        )


def test_intervals_on_request() -> None:
    e = estimate(np.random.default_rng(0).normal(1.0, 1.0, (200, 5)), confidence=0.9)
    assert e.intervals
    assert e.detected is True
    noise = estimate(np.random.default_rng(1).normal(0.0, 1.0, (200, 5)), confidence=0.95)
    assert noise.detected is False
