"""Bounds as objects: values against formulas written out here, every number type, edges, exact cases."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from theory import bounds
from theory.bounds import (
    PUBLISHED,
    Assumption,
    B_align,
    B_chebyshev,
    B_conditional_bernstein,
    B_conditional_cantelli,
    B_conditional_hoeffding,
    B_exact,
    B_fourth,
    B_regrouped,
    B_subgaussian,
    B_two_laws,
    ConditionalMoments,
    GaussianInput,
    Moments,
    P_gaussian,
    Sizes,
    StatisticMoments,
    SubGaussianMoments,
    TwoLawMoments,
    bound,
    n_eff,
)
from theory.exact import (
    finite_support_distribution,
    finite_support_probability,
    gaussian_log_probability,
)
from theory.laws import FiniteLaw, coin
from theory.strategies import finite_laws, law_pairs

POINTS = [(F(1), F(1, 2), F(3)), (F(1, 4), F(1, 16), F(1, 16)), (F(5), F(0), F(7)), (F(2), F(3), F(11, 2))]
SIZES = [(1, 1), (2, 3), (7, 1), (100, 30)]


def written_out(m2, a, t, M, K):
    """The formulas of paper 1, by hand."""
    V = (F(1, M) + F(1, K)) * a + t / F(M * K)
    n, w = F(M * K, M + K + 1), max(a, t)
    return V / (V + m2**2), 1 / (1 + n * m2**2 / w), V / m2**2


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("size", SIZES)
def test_values_in_every_arithmetic(point, size):
    torch = pytest.importorskip("torch")
    expected = written_out(*point, *size)
    for B, value in zip((B_exact, B_align, B_chebyshev), expected, strict=True):
        assert B(Moments(*point), *size) == value
        floats = tuple(map(float, point))
        result = B(Moments(*floats), *size)
        assert type(result) is float
        assert result == pytest.approx(float(value), rel=1e-14)
        array = B(Moments(*(np.full((2, 1), x) for x in floats)), np.array([size[0]] * 3), size[1])
        assert array.shape == (2, 3)
        assert array.dtype == np.float64
        np.testing.assert_allclose(array, float(value), rtol=1e-14)
        tensor = B(
            Moments(*(torch.tensor([x], dtype=torch.float32) for x in floats)), *map(torch.tensor, size)
        )
        assert tensor.dtype == torch.float64
        assert tensor.tolist() == pytest.approx([float(value)], rel=1e-6)
        mixed = B(
            Moments(*(torch.tensor([x], dtype=torch.float64) for x in floats)), np.array([size[0]]), size[1]
        )
        assert mixed.tolist() == pytest.approx([float(value)], rel=1e-14)


def test_symbols_balls_and_solver_terms():
    sympy, z3, flint = pytest.importorskip("sympy"), pytest.importorskip("z3"), pytest.importorskip("flint")
    m2, a, t, M, K = sympy.symbols("m2 a t M K", positive=True)
    V = (1 / M + 1 / K) * a + t / (M * K)
    assert sympy.simplify(B_exact(Moments(m2, a, t), M, K) - V / (V + m2**2)) == 0
    ball = B_align(Moments(*(flint.arb(x.numerator) / x.denominator for x in POINTS[0])), 2, 3)
    assert abs(float(ball.mid()) - float(written_out(*POINTS[0], 2, 3)[1])) < 1e-15
    terms = z3.Reals("m2 a t M K")
    solver = z3.Solver()
    solver.add(
        *[x >= 1 for x in terms],
        B_exact(Moments(*terms[:3]), *terms[3:]) > B_align(Moments(*terms[:3]), *terms[3:]),
    )
    assert solver.check() == z3.unsat


def test_edges():
    for number in (F, float):
        zero, one = number(0), number(1)
        assert (
            B_exact(Moments(one, zero, zero), 3, 4) == B_align(Moments(one, zero, zero), 3, 4) == 0
        )  # V = 0
        assert (
            B_exact(Moments(zero, zero, one), 3, 4) == B_align(Moments(zero, zero, one), 3, 4) == 1
        )  # mu = 0
        assert (
            B_exact(Moments(zero, zero, zero), 3, 4) == B_align(Moments(zero, zero, zero), 3, 4) == 1
        )  # T = 0
        assert B_chebyshev(Moments(zero, zero, one), 3, 4) == math.inf
    no_noise, no_mean = Moments(1, 0, 0), Moments(0, 0, 1)
    assert no_noise.d_par == no_noise.d_2 == no_noise.d_align == math.inf
    assert no_mean.d_par == no_mean.d_2 == no_mean.d_align == 0
    array = Moments(np.array([1.0, 0.0, 0.0, 1.0]), np.array([0.0, 0, 0, 1]), np.array([0.0, 1, 0, 1]))
    assert array.d_align.tolist() == [math.inf, 0, 0, 1]
    assert B_align(array, 1, 1).tolist() == [0, 1, 1, 0.75]
    assert B_exact(array, 1, 1).tolist() == [0, 1, 1, 0.75]
    m = Moments(0.25, 0.0625, 0.0625)
    assert B_exact(m, 10**400, 10**400) == 0.0  # sizes beyond float64: the limit
    assert B_exact(m, 10**400, 1) == pytest.approx(0.5)
    assert 0 < B_exact(Moments(F(1), F(1), F(1)), 10**400, 10**400) < F(1, 10**399)
    assert n_eff(10**400, 1) == F(10**400, 10**400 + 2)


@pytest.mark.parametrize("c", [1e-30, 1e-15, 1.0, 1e15, 1e30])
def test_scale_of_q_changes_nothing(c):
    m = Moments(0.3 * c**2, 0.2 * c**4, 1.7 * c**4)
    for B in (B_exact, B_align, B_chebyshev, B_regrouped(3)):
        assert B(m, 7, 9) == pytest.approx(B(Moments(0.3, 0.2, 1.7), 7, 9), rel=1e-12)
    assert m.d_align == pytest.approx(0.09 / 1.7, rel=1e-12)


def test_small_bounds_keep_relative_accuracy():
    m = Moments(F(10**12), F(1), F(3))
    exact = B_exact(m, 3, 5)
    assert B_exact(Moments(1e12, 1.0, 3.0), 3, 5) == pytest.approx(float(exact), rel=1e-14)
    assert 0 < exact < F(1, 10**23)


@given(finite_laws(), st.integers(1, 6), st.integers(1, 6), st.fractions(F(1, 5), 5))
@settings(max_examples=60, deadline=None)
def test_order_and_regrouping(law, M, K, b):
    m = Moments.from_law(law)
    assert m.a**2 <= m.m2**2 * m.t
    if law.dimension == 1:
        assert m.a**2 == m.m2**2 * m.t
    P, tight, loose = finite_support_probability(law, M, K), B_exact(m, M, K), B_align(m, M, K)
    assert P <= tight <= loose <= 1
    assert tight <= B_chebyshev(m, M, K)
    assert tight <= B_regrouped(b)(m, M, K)
    assert loose == B_regrouped(1)(m, M, K)
    if m.a and m.t:
        assert B_regrouped(m.t / m.a)(m, M, K) == tight
    assert tight >= B_exact(m, M + 1, K)
    assert loose >= B_align(m, M, K + 1)


@given(law_pairs(max_atoms=2), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_two_laws(pair, M, K):
    train, test = pair
    x = TwoLawMoments.from_laws(train, test)
    distribution = finite_support_distribution(train, M, K, test_law=test)
    mean = sum(v * p for v, p in distribution.items())
    assert x.mean == mean
    assert x.variance(M, K) == sum(v * v * p for v, p in distribution.items()) - mean**2
    assert finite_support_probability(train, M, K, test_law=test) <= B_two_laws(x, M, K)
    same = TwoLawMoments.from_laws(train, train)
    if same.mean > 0:
        assert B_two_laws(same, M, K) == B_exact(Moments.from_law(train), M, K)


def test_two_laws_against_the_mean_is_vacuous():
    assert B_two_laws(TwoLawMoments(F(-1), F(1), F(1), F(1)), 2, 2) == 1
    assert B_two_laws(TwoLawMoments(np.array([-1.0, 1.0]), 1, 1, 1), 1, 1).tolist() == [1.0, 0.75]


def conditional_probability(law, v, K):
    """P(v^T g_K <= 0) exactly: the law of one sum, by convolution."""
    point = FiniteLaw([tuple(v)], [1])
    return finite_support_probability(point, 1, K, test_law=law)


CONDITIONAL = (B_conditional_cantelli, B_conditional_bernstein, B_conditional_hoeffding)


@given(finite_laws(), st.tuples(st.integers(-3, 3), st.integers(-3, 3)), st.integers(1, 8))
@settings(max_examples=100, deadline=None)
def test_conditional_bounds_hold(law, v, K):
    v = v[: law.dimension]
    x = ConditionalMoments.from_law(law, v)
    P = conditional_probability(law, v, K)
    for B in CONDITIONAL:
        value = B(x, 1, K)
        assert float(P) <= value * (1 + 1e-12)
        assert B(x, 5, K) == value  # the training mean is given, so M does not matter
        if x.mean <= 0:
            assert value == 1


def test_sharper_conditional_bounds_would_be_false():
    """A larger exponent is caught by the same exact probabilities."""
    law = FiniteLaw([1, -1], ["3/5", "2/5"])
    x = ConditionalMoments.from_law(law, (1,))
    P = float(conditional_probability(law, (1,), 500))
    assert B_conditional_bernstein(x, 1, 500) ** 1.6 < P
    assert B_conditional_hoeffding(x, 1, 500) ** 1.6 < P
    x = ConditionalMoments.from_law(coin(F(1, 2)), (1,))
    assert conditional_probability(coin(F(1, 2)), (1,), 1) == B_conditional_cantelli(x, 1, 1)  # attained


def statistic_moments(law, M, K):
    distribution = finite_support_distribution(law, M, K)
    mean = sum(v * p for v, p in distribution.items())
    return StatisticMoments(
        mean, *(sum((v - mean) ** k * p for v, p in distribution.items()) for k in (2, 3, 4))
    )


@given(finite_laws(nonzero_mean=True), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_fourth_moment_bound(law, M, K):
    x = statistic_moments(law, M, K)
    value = B_fourth(x, M, K)
    assert finite_support_probability(law, M, K) <= value <= B_exact(Moments.from_law(law), M, K)
    floats = StatisticMoments(*map(float, (x.mean, x.variance, x.third, x.fourth)))
    if float(value) > 1e-6:
        # (a law of T on two points makes the quotient 0/0: rounding may then return Cantelli's bound)
        assert B_fourth(floats, M, K) <= float(B_exact(Moments.from_law(law), M, K)) * (1 + 1e-9)


def test_fourth_moment_bound_knows_two_point_laws():
    x = statistic_moments(FiniteLaw([1, 2], ["1/2", "1/2"]), 1, 1)
    positive = StatisticMoments(3, 1, 0, 1)  # T = 2 or 4
    assert B_fourth(positive, 1, 1) == 0
    assert B_fourth(x, 1, 1) < B_exact(Moments.from_law(FiniteLaw([1, 2], ["1/2", "1/2"])), 1, 1)
    assert B_fourth(StatisticMoments(3.0, 1.0, 0.0, 3.0), 1, 1) == pytest.approx(
        float(B_fourth(StatisticMoments(3, 1, 0, 3), 1, 1))
    )
    assert B_fourth(StatisticMoments(np.array([3.0, -1.0]), 1, 0, 3), 1, 1).tolist() == pytest.approx(
        [1 / 42, 1.0], rel=1
    )


@pytest.mark.parametrize("d", [1, 3, 40])
@pytest.mark.parametrize(("M", "K"), [(1, 1), (4, 4), (2, 20), (50, 50)])
def test_sub_gaussian_bound_is_the_chernoff_bound_of_the_isotropic_normal(d, M, K):
    for m2 in (0.1, 1.0, 6.0, 30.0):
        mu = np.zeros(d)
        mu[0] = math.sqrt(2 * m2)
        log_P = gaussian_log_probability(mu, np.full(d, 2.0), M, K)  # proxy 2, so the signal is m2
        if log_P < -600:  # the bound itself would underflow
            continue
        value = math.log(B_subgaussian(SubGaussianMoments(2 * m2, 2.0, d), M, K))
        assert log_P <= value
        assert value <= log_P + 3 + math.log1p(-log_P)  # Chernoff loses a polynomial factor only
        if log_P < -20:
            assert log_P > 1.35 * value  # a 35 % larger exponent would be false


@given(finite_laws(max_dimension=1, min_atoms=2), st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_sub_gaussian_bound_on_bounded_laws(law, M, K):
    """Hoeffding's lemma: a variable in [x, y] has proxy (y - x)^2 / 4."""
    values = [atom[0] for atom in law.atoms]
    if len(values) < 2:
        return
    x = SubGaussianMoments(Moments.from_law(law).m2, F(max(values) - min(values)) ** 2 / 4, 1)
    assert float(finite_support_probability(law, M, K)) <= B_subgaussian(x, M, K) * (1 + 1e-12)


def test_sub_gaussian_bound_on_arrays():
    values = B_subgaussian(SubGaussianMoments(np.array([1.0, 2.0]), 1.0, 3), np.array([[4], [8]]), 5)
    assert values.shape == (2, 2)
    assert values[1, 0] == pytest.approx(B_subgaussian(SubGaussianMoments(1.0, 1.0, 3), 8, 5), rel=1e-14)


def test_gaussian_reference():
    x = GaussianInput(np.array([1.0, 0.5]), np.array([0.5, 2.0]))
    assert P_gaussian.direction == "equal"
    assert P_gaussian(x, 3, 4) == pytest.approx(math.exp(gaussian_log_probability(x.mu, x.Sigma, 3, 4)))
    assert P_gaussian(x, 3, 4) <= B_exact(x.moments, 3, 4)


@pytest.mark.parametrize("B", [*PUBLISHED, B_regrouped(2)], ids=lambda B: B.name)
def test_every_bound_is_documented_and_has_an_expression(B):
    assert B.assumptions
    assert B.status == "proved"
    assert B.direction == "upper"
    assert all(len(text) > 10 for text in (B.tightness, B.source, B.domain))
    free = {symbol.name for symbol in B.expression.free_symbols}
    assert free <= set(map(str, B.symbols)) | {"u"}
    assert B.latex()


def test_expression_agrees_with_the_numbers():
    values = {"m2": F(2), "a": F(1, 3), "t": F(5), "M": 3, "K": 4}
    for B in (B_exact, B_align, B_chebyshev, B_regrouped(F(5, 2))):
        expression = B.expression.subs({s: values[n] for n, s in B.symbols.items()})
        assert F(str(expression)) == B(Moments(F(2), F(1, 3), F(5)), 3, 4)


def test_expressions_under_stronger_assumptions_agree_with_the_numbers():
    cases = [
        (B_conditional_cantelli, ConditionalMoments(F(1, 5), F(1, 3), F(2))),
        (B_conditional_bernstein, ConditionalMoments(F(1, 5), F(1, 3), F(2))),
        (B_conditional_hoeffding, ConditionalMoments(F(1, 5), F(1, 3), F(2))),
        (B_fourth, StatisticMoments(F(3), F(1), F(1, 2), F(4))),
        (B_two_laws, TwoLawMoments(F(2), F(1), F(3), F(5))),
    ]
    for B, inputs in cases:
        values = {"M": 3, "K": 4} | {f.name: getattr(inputs, f.name) for f in dataclasses.fields(inputs)}
        expression = B.expression.subs({s: values[n] for n, s in B.symbols.items()})
        assert float(expression) == pytest.approx(float(B(inputs, 3, 4)), rel=1e-13)
    B, x = B_subgaussian, SubGaussianMoments(F(2), F(3), 5)
    values = {"M": 30, "K": 40, "m2": 2, "proxy": 3, "dimension": 5}
    at_tilt = B.expression.subs({s: values[n] for n, s in B.symbols.items()})
    (u,) = at_tilt.free_symbols
    import sympy

    tilts = sympy.lambdify(u, at_tilt)(np.arange(1, 512) / 512)
    assert B(x, 30, 40) == pytest.approx(min(tilts), rel=1e-12)
    assert min(tilts) < 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 2, 1), r"m2=1, a=2, t=1.*a\^2 <= m2\^2 t.*from_law"),
        ((1.0, 1.0001, 1.0), r"a\^2 <= m2\^2 t"),
        ((-1, 0, 1), r"m2=-1: expected a value >= 0.*no certificate"),
        ((1.0, float("nan"), 1.0), r"a=nan: expected a finite value"),
        ((1.0, 0.5, math.inf), r"t=inf: expected a finite value"),
        ((np.array([1.0, 1.0]), np.array([0.5, 3.0]), 1.0), r"a\^2 <= m2\^2 t"),
    ],
)
def test_impossible_moments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Moments(*arguments)


def test_cone_allows_rounding_in_floats_only():
    assert Moments(1.0, 1.0 + 1e-10, 1.0).a > 1
    with pytest.raises(ValueError, match="from_law"):
        Moments(F(1), F(1) + F(1, 10**12), F(1))


def test_other_bad_arguments():
    m = Moments(1, 1, 1)
    for bad in (0, -1, 2.5, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"M=.*integer >= 1"):
            B_exact(m, bad, 1)
    with pytest.raises(TypeError, match=r"K=True.*integer >= 1"):
        B_exact(m, 1, True)
    with pytest.raises(ValueError, match=r"M=.*integer >= 1"):
        B_exact(m, np.array([1, 0]), 1)
    with pytest.raises(TypeError, match=r"Moments.*expected numbers"):
        Moments(None, 1, 1)
    with pytest.raises(TypeError, match="expected Moments"):
        B_exact((1, 1, 1), 1, 1)
    with pytest.raises(TypeError, match="expected ConditionalMoments"):
        B_conditional_cantelli(m, 1, 1)
    with pytest.raises(ValueError, match=r"b=0: .*group size > 0"):
        B_regrouped(0)
    with pytest.raises(ValueError, match=r"variance \+ mean\^2 <= radius\^2"):
        ConditionalMoments(1, 1, 1)
    with pytest.raises(ValueError, match="Pearson"):
        StatisticMoments(1, 1, 1, 1)
    with pytest.raises(ValueError, match=r"proxy=.*expected proxy > 0"):
        SubGaussianMoments(1, 0, 1)
    with pytest.raises(ValueError, match=r"dimensions 1 and 2"):
        TwoLawMoments.from_laws(coin(F(1, 2)), FiniteLaw([(1, 0)], [1]))
    with pytest.raises(ValueError, match=r"mu.shape=\(2,\), Sigma.shape=\(3, 3\)"):
        Moments.from_arrays([1, 2], np.eye(3))
    with pytest.raises(ValueError, match="not symmetric"):
        Moments.from_arrays([1, 2], [[1, 2], [0, 1]])


def test_moments_from_arrays_match_laws():
    torch = pytest.importorskip("torch")
    law = FiniteLaw([(3, 2), (0, -2), (1, 1)], ["1/5", "3/5", "1/5"])
    mu, Sigma = [float(x) for x in law.mean()], [[float(x) for x in row] for row in law.covariance()]
    exact = [float(x) for x in law.scalars()]
    for m in (Moments.from_arrays(mu, Sigma), Moments.from_arrays(torch.tensor(mu), torch.tensor(Sigma))):
        assert [m.m2, m.a, m.t] == pytest.approx(exact, rel=1e-6)


def test_decorator():
    @bound(
        assumes=["independent units", Assumption.NONZERO_MEAN], M=">=2", K=(1, 4), where=lambda M, K: M >= K
    )
    def mine(m, M, K):
        return 1 / (1 + M * K / (M + K + 1) * min(m.d_par, m.d_2, later()))

    m = Moments(F(1), F(1), F(2))
    assert mine.name == "mine"
    assert mine.assumptions == {Assumption.INDEPENDENT_SAMPLES, Assumption.NONZERO_MEAN}
    assert mine(m, 2, 2) == F(5, 7)
    assert isinstance(mine(m, 2, 2), F)
    assert mine(Moments(np.ones(2), np.ones(2), np.array([2.0, 4.0])), 2, 2) == pytest.approx([5 / 7, 5 / 6])
    assert mine.covers(3, 2)
    assert not mine.covers(2, 3)
    assert not mine.covers(1, 1)
    with pytest.raises(ValueError, match="mine: M=1: expected M >= 2"):
        mine(m, 1, 1)
    with pytest.raises(ValueError, match="mine: K=5: expected 1 <= K <= 4"):
        mine(m, 6, 5)
    with pytest.raises(ValueError, match="condition `where`"):
        mine(m, 2, 3)


def later():
    return 100


def test_bound_from_sympy():
    import sympy

    d, n = sympy.symbols("d_align n_eff")
    B = bound(1 / (1 + n * d))
    m = Moments(F(1), F(1), F(2))
    assert B(m, 2, 3) == B_align(m, 2, 3)
    assert B(Moments(1.0, 1.0, 2.0), 2, 3) == pytest.approx(float(B_align(m, 2, 3)))
    assert B(Moments(np.ones(3), 1, 2), 2, 3) == pytest.approx([float(B_align(m, 2, 3))] * 3)
    with pytest.raises(ValueError, match=r"symbols \['z'\]"):
        bound(1 / (1 + sympy.Symbol("z")))
    with pytest.raises(TypeError, match="formula=3: expected a callable"):
        bound(3)


def test_formulas_that_only_know_numbers_degrade():
    B = bound(lambda m, M, K: math.exp(-float(m.d_align)) if m.d_align > 1 else 1)
    assert B(Moments(F(2), F(1), F(1)), 1, 1) == math.exp(-4)
    with pytest.raises(TypeError, match="works on numbers only"):
        _ = B.expression


def test_assumptions_and_sizes_are_read():
    assert bounds.bound(lambda m, M, K: 1, assumes="IID, bounded units").assumptions == {
        Assumption.IID,
        Assumption.BOUNDED,
    }
    with pytest.raises(ValueError, match="assumes='magic'"):
        bound(lambda m, M, K: 1, assumes="magic")
    for bad in ("two", "=2", 0, (3, 2), 1.5, True):
        with pytest.raises(ValueError, match="M="):
            Sizes.read(bad)
    assert Sizes.read("<=8") == Sizes(1, 8)
    assert 8 in Sizes.read((2, None))
    assert 1 not in Sizes.read((2, None))


def test_import_is_light():
    heavy = "{'torch', 'hypothesis', 'sympy', 'z3'}"
    code = f"import sys, theory, theory.bounds; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_fourth_moment_bound_is_not_lost_to_rounding():
    """T on {0, c} attains Cantelli; in floats both 0 terms of the formula are rounding noise."""
    rng = np.random.default_rng(3)
    for p, c in zip(rng.uniform(1e-3, 0.999, 300), 10 ** rng.uniform(-3, 3, 300), strict=True):
        q, top = F(p), F(c)
        mean = q * top
        central = [(-mean) ** k * (1 - q) + (top - mean) ** k * q for k in (2, 3, 4)]
        exact = StatisticMoments(mean, *central)
        assert B_fourth(exact, 1, 1) == 1 - q
        for value in (
            B_fourth(StatisticMoments(*map(float, (mean, *central))), 1, 1),
            B_fourth(StatisticMoments(*(np.array([float(x)]) for x in (mean, *central))), 1, 1)[0],
        ):
            assert value >= (1 - p) * (1 - 1e-12)


def test_a_formula_with_branches_says_what_it_cannot_do():
    branchy = bound(lambda m, M, K: F(1, 2) if m.a > m.t else 1, name="branchy")
    assert branchy(Moments(1, 1, 1), 2, 3) == 1
    z3 = pytest.importorskip("z3")
    one = np.ones(2)
    for moments in (Moments(one, one, one), Moments(*z3.Reals("m2 a t"))):
        with pytest.raises(TypeError, match="branchy: the formula works on numbers only"):
            branchy(moments, 2, 3)
    with pytest.raises(TypeError, match="branchy: the formula works on numbers only"):
        _ = branchy.expression
