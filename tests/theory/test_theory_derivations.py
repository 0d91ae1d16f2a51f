"""Derived formulas against the published ones, exact enumeration in rationals, and simulation."""

from __future__ import annotations

import doctest
import itertools
import math
import time
from fractions import Fraction as F
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sympy as sp

from theory import derivations as d
from theory.derivation import K, M, N, n
from theory.gram import unbiased_estimate
from theory.graphs import Design, dot, u_statistic

LAWS = {
    "fair coin": ([(0,), (1,)], [F(1, 2)] * 2),
    "rare": ([(1,), (-4,)], [F(9, 10), F(1, 10)]),
    "skewed": ([(2, 0), (-1, 1), (0, -3)], [F(1, 2), F(1, 3), F(1, 6)]),
    "zero mean": ([(1, 2), (-2, -4)], [F(2, 3), F(1, 3)]),
    "constant": ([(3, -1)], [F(1)]),
}


def inner(x, y):
    return sum((a * b for a, b in zip(x, y, strict=True)), F(0))


def sums(law, size):
    """Distribution of the sum of independent draws, exactly."""
    total = {(0,) * len(law[0][0]): F(1)}
    for _ in range(size):
        fresh = {}
        for s, p in total.items():
            for x, w in zip(*law, strict=True):
                key = tuple(a + b for a, b in zip(s, x, strict=True))
                fresh[key] = fresh.get(key, 0) + p * w
        total = fresh
    return total


def naive_central(train, test, m, k, order):
    pairs = [
        (inner(x, y) / (m * k), p * q) for x, p in sums(train, m).items() for y, q in sums(test, k).items()
    ]
    mean = sum(v * p for v, p in pairs)
    return mean if order == 1 else sum((v - mean) ** order * p for v, p in pairs)


ORDERS = {
    1: d.derive_mean,
    2: d.derive_variance,
    3: d.derive_third_central_moment,
    4: d.derive_fourth_central_moment,
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("law", LAWS)
def test_central_moments_equal_enumeration(law, order):
    for m, k in [(1, 1), (1, 2), (3, 2), (4, 5)]:
        exact = naive_central(LAWS[law], LAWS[law], m, k, order)
        assert ORDERS[order]().evaluate(LAWS[law], M=m, K=k) == exact


def test_two_laws_equal_enumeration():
    train, test = LAWS["skewed"], ([(1, 1), (-2, 3)], [F(1, 4), F(3, 4)])
    laws = {"1": train, "2": test}
    for m, k in [(1, 1), (2, 3), (4, 1)]:
        assert d.derive_two_laws_mean().evaluate(laws, M=m, K=k) == naive_central(train, test, m, k, 1)
        assert d.derive_two_laws_variance().evaluate(laws, M=m, K=k) == naive_central(train, test, m, k, 2)


def symbols(derivation):
    return {s.name: s for s in derivation.expression.free_symbols}


def equal(left, right):
    return sp.simplify(left - right) == 0


def test_published_mean_and_variance():
    m2, a, t = sp.symbols("m2 a t", nonnegative=True)
    assert d.derive_mean().expression == m2
    assert equal(d.derive_variance().expression, (1 / M + 1 / K) * a + t / (M * K))
    assert not equal(d.derive_variance().expression, a / M + t / (M * K))


def test_published_two_laws_variance():
    x = d.derive_two_laws_variance()
    s = symbols(x)
    formula = (
        s["mu[2]_Sigma[1]_mu[2]"] / M + s["mu[1]_Sigma[2]_mu[1]"] / K + s["tr_Sigma[1]_Sigma[2]"] / (M * K)
    )
    assert equal(x.expression, formula)
    assert d.derive_two_laws_mean().latex() == r"\operatorname{E} T = \mu_{1}^\top  \mu_{2}"


def test_published_unbiased_estimators():
    S, F2, r2 = sp.symbols("S F2 sum_r2", real=True)

    def below(k):
        return math.prod(n - i for i in range(k))

    t3, t4 = (r2 - F2) / below(3), (S**2 - 4 * (r2 - F2) - 2 * F2) / below(4)
    published = {
        "E2": S / below(2),
        "T2": F2 / below(2),
        "T3": t3,
        "T4": t4,
        "a": t3 - t4,
        "t": F2 / below(2) - 2 * t3 + t4,
    }
    derived = d.derive_unbiased_estimators()
    assert derived.keys() == published.keys()
    for name, formula in published.items():
        assert equal(derived[name].expression, formula), name


def gram_sums(sample):
    G = [[inner(x, y) * (i != j) for j, y in enumerate(sample)] for i, x in enumerate(sample)]
    rows = [sum(row) for row in G]
    return {"S": sum(rows), "F2": sum(g * g for row in G for g in row), "sum_r2": sum(r * r for r in rows)}


def estimates(sample):
    values = {k: sp.Rational(v.numerator, v.denominator) for k, v in gram_sums(sample).items()} | {
        "n": len(sample)
    }
    out = {}
    for name, x in d.derive_unbiased_estimators().items():
        number = x.expression.subs({s: values[s.name] for s in x.expression.free_symbols})
        out[name] = F(int(number.p), int(number.q))
    return out


@pytest.mark.parametrize("law", ["fair coin", "skewed"])
def test_estimators_are_unbiased_and_the_variance_of_E2_is_exact(law):
    atoms, weights = LAWS[law]
    size = 5 if law == "fair coin" else 4
    first = dict.fromkeys(d.GRAPHS, F(0))
    second = dict.fromkeys(d.GRAPHS, F(0))
    # Multisets with multinomial counts, so that every distinct sample is evaluated once.
    for picks in itertools.combinations_with_replacement(range(len(atoms)), size):
        p = F(math.factorial(size))
        for i in set(picks):
            p *= weights[i] ** picks.count(i) / F(math.factorial(picks.count(i)))
        for name, v in estimates([atoms[i] for i in picks]).items():
            first[name] += p * v
            second[name] += p * v * v
    mean = [sum(w * x[i] for x, w in zip(atoms, weights, strict=True)) for i in range(len(atoms[0]))]
    m2 = inner(mean, mean)
    centred = [[x - m for x, m in zip(q, mean, strict=True)] for q in atoms]
    a = sum(w * inner(c, mean) ** 2 for c, w in zip(centred, weights, strict=True))
    pairs = list(itertools.product(zip(centred, weights, strict=True), repeat=2))
    t = sum(w * v * inner(c, e) ** 2 for (c, w), (e, v) in pairs)
    assert first == {"E2": m2, "T2": t + 2 * a + m2**2, "T3": a + m2**2, "T4": m2**2, "a": a, "t": t}
    for name in ("E2", "T2", "T3", "T4"):
        exact = second[name] - first[name] ** 2
        assert d.derive_estimator_variance(name).evaluate(LAWS[law], n=size) == exact, name


def test_variance_of_the_estimator_of_m2():
    a, t = sp.symbols("a t", nonnegative=True)
    assert equal(d.derive_estimator_variance().expression, 4 * a / n + 2 * t / (n * (n - 1)))
    with pytest.raises(ValueError, match=r"name='T9': expected one of E2, T2, T3, T4"):
        d.derive_estimator_variance("T9")


def test_numeric_estimates_agree_with_the_formulas():
    Q = np.random.default_rng(5).integers(-3, 4, (6, 3))
    exact = estimates([tuple(map(int, row)) for row in Q])
    for name, graph in d.GRAPHS.items():
        assert unbiased_estimate(graph, Q) == pytest.approx(float(exact[name]), rel=1e-10)


# ---- Gaussian forms


def form_cumulants(mu, Sigma, m, k):
    """Cumulants of the quadratic form x^T A x, x = (train mean, test mean): Mathai and Provost."""
    dim = len(mu)
    A = np.block([[np.zeros((dim, dim)), np.eye(dim) / 2], [np.eye(dim) / 2, np.zeros((dim, dim))]])
    C = np.block([[Sigma / m, np.zeros((dim, dim))], [np.zeros((dim, dim)), Sigma / k]])
    x = np.concatenate([mu, mu])
    out = []
    for r in range(1, 5):
        power = np.linalg.matrix_power(A @ C, r)
        shift = x @ np.linalg.matrix_power(A @ C, r - 1) @ A @ x
        out.append(2 ** (r - 1) * math.factorial(r - 1) * (np.trace(power) + r * shift))
    return out


@pytest.mark.parametrize(("m", "k"), [(1, 1), (3, 7), (20, 2)])
def test_gaussian_moments_match_the_cumulants_of_the_quadratic_form(m, k):
    rng = np.random.default_rng(m)
    B = rng.normal(size=(4, 4))
    Sigma, mu = B @ B.T, rng.normal(size=4)
    k1, k2, k3, k4 = form_cumulants(mu, Sigma, m, k)
    got = d.gaussian_central_moments(mu, Sigma, m, k)
    assert m == got.M
    assert k == got.K
    assert [got.mean, got.variance, got.third, got.fourth] == pytest.approx(
        [k1, k2, k3, k4 + 3 * k2**2], rel=1e-10
    )
    assert got.skewness == pytest.approx(k3 / k2**1.5)
    assert got.excess_kurtosis == pytest.approx(k4 / k2**2)
    values, vectors = np.linalg.eigh(Sigma)
    assert d.gaussian_central_moments(vectors.T @ mu, values, m, k).fourth == pytest.approx(
        got.fourth, rel=1e-9
    )
    # The derived formulas give the same numbers.
    power = [mu @ np.linalg.matrix_power(Sigma, p) @ mu for p in range(4)]
    numbers = {
        "M": m,
        "K": k,
        "m2": power[0],
        "a": power[1],
        "mu_Sigma2_mu": power[2],
        "mu_Sigma3_mu": power[3],
    }
    numbers |= {"t": np.trace(Sigma @ Sigma), "tr_Sigma4": np.trace(np.linalg.matrix_power(Sigma, 4))}
    for order, value in ((3, got.third), (4, got.fourth)):
        expression = ORDERS[order]("gaussian").expression
        assert float(expression.subs({s: numbers[s.name] for s in expression.free_symbols})) == pytest.approx(
            value
        )


def test_gaussian_form_equals_general_form_on_a_law_with_gaussian_moments():
    z = [(-1, F(1, 6)), (0, F(2, 3)), (1, F(1, 6))]
    law = (
        [(2 + 2 * x + y, y - 3 * x - 1) for (x, _), (y, _) in itertools.product(z, z)],
        [p * q for (_, p), (_, q) in itertools.product(z, z)],
    )
    for order in (3, 4):
        general, gaussian = ORDERS[order](), ORDERS[order]("gaussian")
        assert gaussian.evaluate(law, M=3, K=2) == general.evaluate(law, M=3, K=2)
        assert gaussian.evaluate(LAWS["rare"], M=3, K=2) != general.evaluate(LAWS["rare"], M=3, K=2)


def test_gaussian_moments_by_simulation():
    """Five standard errors per moment: false alarm below 3e-6."""
    rng = np.random.default_rng(11)
    mu, scale, m, k, draws = np.array([0.6, -0.3, 0.2]), np.array([1.0, 0.5, 2.0]), 2, 3, 400_000
    u = mu + rng.normal(size=(draws, 3)) * scale / math.sqrt(m)
    v = mu + rng.normal(size=(draws, 3)) * scale / math.sqrt(k)
    deviation = np.einsum("ij,ij->i", u, v) - mu @ mu
    got = d.gaussian_central_moments(mu, np.diag(scale**2), m, k)

    def z(values, claim):
        return abs(values.mean() - claim) / (values.std() / math.sqrt(draws))

    for order, claim in ((1, 0.0), (2, got.variance), (3, got.third), (4, got.fourth)):
        assert z(deviation**order, claim) < 5
    # Deliberately false claims are noticed.
    assert z(deviation**2, got.variance * 1.05) > 5
    assert z(deviation**4, 3 * got.variance**2) > 5


def test_gaussian_moments_validate_their_arguments():
    with pytest.raises(ValueError, match=r"mu\.shape=\(2,\), Sigma\.shape=\(3, 3\)"):
        d.gaussian_central_moments([1, 2], np.eye(3), 1, 1)
    with pytest.raises(ValueError, match=r"mu\.shape=\(1, 2\)"):
        d.gaussian_central_moments([[1, 2]], np.eye(2), 1, 1)
    for m, k in [(0, 1), (1, 0)]:
        with pytest.raises(ValueError, match=r"[MK]=0: expected an integer >= 1"):
            d.gaussian_central_moments([1, 2], np.eye(2), m, k)
    still = d.gaussian_central_moments([1.0], [0.0], 1, 1)
    assert math.isnan(still.skewness)
    assert math.isnan(still.excess_kurtosis)


# ---- finite pools


def pool_of(rows):
    """Exact pool scalars, from their definitions."""
    size = F(len(rows))
    mean = [sum(c) / size for c in zip(*rows, strict=True)]
    centred = [[x - m for x, m in zip(q, mean, strict=True)] for q in rows]
    along, square = [inner(c, mean) for c in centred], [inner(c, c) for c in centred]
    return d.PoolMoments(
        N=len(rows),
        m2=inner(mean, mean),
        a=sum(x * x for x in along) / size,
        t=sum(inner(c, e) ** 2 for c in centred for e in centred) / size**2,
        tr_sigma=sum(square) / size,
        cubic=sum(x * y for x, y in zip(along, square, strict=True)) / size,
        quartic=sum(x * x for x in square) / size,
    )


def pool_naive(rows, m, k):
    values = []
    for p in itertools.permutations(rows, m + k):
        u = [sum(c) for c in zip(*p[:m], strict=True)]
        v = [sum(c) for c in zip(*p[m:], strict=True)]
        values.append(inner(u, v) / (m * k))
    mean = sum(values) / len(values)
    return mean, sum((v - mean) ** 2 for v in values) / len(values)


POOLS = {
    "coin": [(0,), (1,)],
    "three": [(0,), (1,), (5,)],
    "published": [(2,), (-3,), (-3,), (-3,), (-3,)],
    "plane": [(2, 1), (-1, 0), (0, 3), (5, -2), (1, 1)],
    "six": [(1, 1), (0, 2), (3, -1), (-2, 0), (4, 4), (-1, 5)],
}


@pytest.mark.parametrize("name", POOLS)
def test_finite_pool_moments_equal_enumeration(name):
    rows = POOLS[name]
    pool, law = pool_of(rows), (rows, [F(1, len(rows))] * len(rows))
    for m, k in itertools.product(range(1, 4), repeat=2):
        if m + k > len(rows):
            continue
        mean, variance = pool_naive(rows, m, k)
        assert d.finite_pool_mean(pool, m, k) == mean
        assert d.finite_pool_variance(pool, m, k) == variance
        assert d.derive_finite_pool_mean().evaluate(law, M=m, K=k, N=len(rows)) == mean
        assert d.derive_finite_pool_variance().evaluate(law, M=m, K=k, N=len(rows)) == variance


def test_finite_pool_closed_form_equals_the_derivation_symbolically():
    x = d.derive_finite_pool_variance()
    names = {"m2": sp.Symbol("m2", nonnegative=True)} | symbols(x)
    (cubic,) = [s for s in names.values() if "mu" in s.name]
    (quartic,) = [s for s in names.values() if s.name == "E[|c1|^4]"]
    pool = d.PoolMoments(N, names["m2"], names["a"], names["t"], names["tr_Sigma"], cubic, quartic)
    assert equal(d.finite_pool_variance(pool, M, K), x.expression)
    assert equal(d.finite_pool_mean(pool, M, K), d.derive_finite_pool_mean().expression)


def test_finite_pool_facts():
    published, coin = pool_of(POOLS["published"]), pool_of(POOLS["coin"])
    iid = d.derive_variance().evaluate((POOLS["published"], [F(1, 5)] * 5), M=1, K=1)
    assert d.finite_pool_variance(published, 1, 1) / iid == F(9, 8)
    # The pool {0, 1}: T is always 0, so that the bound 3/4 fails there.
    assert (d.finite_pool_mean(coin, 1, 1), d.finite_pool_variance(coin, 1, 1)) == (0, 0)
    # All units used: with M + K = N the variance vanishes at first order but not altogether.
    assert d.finite_pool_variance(pool_of(POOLS["six"]), 3, 3) == pool_naive(POOLS["six"], 3, 3)[1]
    # A large pool is like the law itself.
    big = d.pool_moments(np.random.default_rng(0).normal(0.3, 1.0, (5000, 3)))
    ratio = d.finite_pool_variance(big, 5, 7) / ((1 / 5 + 1 / 7) * big.a + big.t / 35)
    assert ratio == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("shape", [(6, 2), (3, 8), (4, 4)])
def test_pool_moments_of_an_array(shape):
    Q = np.random.default_rng(3).integers(-4, 5, shape)
    got, exact = d.pool_moments(Q), pool_of([tuple(map(int, row)) for row in Q])
    for field in ("N", "m2", "a", "t", "tr_sigma", "cubic", "quartic"):
        assert getattr(got, field) == pytest.approx(float(getattr(exact, field)), rel=1e-12, abs=1e-12), field


def test_finite_pool_is_homogeneous():
    Q = np.random.default_rng(4).normal(size=(9, 3))
    base = d.finite_pool_variance(d.pool_moments(Q), 2, 3)
    for scale in (1e-30, 1e30):
        assert d.finite_pool_variance(d.pool_moments(scale * Q), 2, 3) == pytest.approx(
            scale**4 * base, rel=1e-9
        )


@pytest.mark.parametrize(
    ("m", "k", "message"),
    [
        (0, 1, r"M=0: expected an integer >= 1"),
        (1, 1.5, r"K=1\.5: expected an integer >= 1"),
        (np.int64(-1), 1, r"M=.*-1.*: expected an integer >= 1"),
        (3, 3, r"M \+ K = 6: expected at most N=5"),
    ],
)
def test_finite_pool_sizes_are_checked(m, k, message):
    pool = pool_of(POOLS["published"])
    for function in (d.finite_pool_mean, d.finite_pool_variance):
        with pytest.raises(ValueError, match=message):
            function(pool, m, k)


@pytest.mark.parametrize(
    ("Q", "message"),
    [
        ([1.0, 2.0], r"Q\.shape=\(2,\)"),
        ([[1.0]], r"Q\.shape=\(1, 1\)"),
        ([[1.0], [math.nan]], r"finite entries"),
    ],
)
def test_pool_arrays_are_checked(Q, message):
    with pytest.raises(ValueError, match=message):
        d.pool_moments(Q)


# ---- the object


def test_weighted_variance():
    x = d.derive_weighted_variance()
    s = symbols(x)
    assert equal(x.expression, (s["u_2"] + s["v_2"]) * s["a"] + s["u_2"] * s["v_2"] * s["t"])
    assert x.symbols[s["u_2"]] == "power sum of the weights"
    assert "weights summing to one" in x.trace()


def test_the_trace_lists_patterns_and_counts():
    text = d.derive_variance().trace()
    lines = text.splitlines()
    assert lines[0] == "variance: T = (mean of M train draws) . (mean of K test draws)"
    assert lines[3] == "power 2: 4 patterns"
    assert [" ".join(line.split()) for line in lines[4:8]] == [
        "1 x i1=i2 | j1=j2 weight 1/(K*M) graph tr_R2",
        "1 x i1=i2 | j1 j2 weight (K - 1)/(K*M) graph mu_R_mu",
        "1 x i1 i2 | j1=j2 weight (M - 1)/(K*M) graph mu_R_mu",
        "1 x i1 i2 | j1 j2 weight (K - 1)*(M - 1)/(K*M) graph m2*m2",
    ]
    assert lines[-1] == f"result: {d.derive_variance().expression}"
    assert "power 4: 225 patterns" in d.derive_fourth_central_moment().trace()
    assert "Wick-Isserlis" in d.derive_third_central_moment("gaussian").trace()
    assert "Wick" not in d.derive_third_central_moment().trace()
    assert "pool of N" in d.derive_finite_pool_variance().trace()
    assert "Moebius" in d.derive_finite_pool_mean().trace()
    assert "train law 1 and test law 2" in d.derive_two_laws_variance().trace()
    assert "+2 F2 -4 sum_r2 +1 S*S, divided by (n)_4" in d.derive_unbiased_estimators()["T4"].trace()
    assert "4 x  i1=i3 i2 i4" in d.derive_estimator_variance().trace()


def test_latex_and_symbols():
    assert d.derive_estimator_variance().latex() == (
        r"\operatorname{Var} \mathrm{E2} = \frac{4 \mu^\top \Sigma \mu}{n} "
        r"+ \frac{2 \operatorname{tr}(\Sigma^{2})}{n \left(n - 1\right)}"
    )
    assert r"\lVert G' \rVert_F^2" in d.derive_unbiased_estimators()["T2"].latex()
    meanings = {s.name: v for s, v in d.derive_variance().symbols.items()}
    assert meanings["M"] == "train sample size"
    assert "covariance" in meanings["a"]
    assert list(meanings) == sorted(meanings)
    assert "Gram sum" in {s.name: v for s, v in d.derive_unbiased_estimators()["E2"].symbols.items()}["S"]
    assert [str(s.symbol) for s in d.derive_mean().scalars] == ["m2"]


def test_derivations_are_frozen_and_cached():
    assert d.derive_variance() is d.derive_variance()
    with pytest.raises(AttributeError):
        d.derive_variance().name = "other"
    with pytest.raises(TypeError):
        d.derive_unbiased_estimators()["T2"] = None


def test_evaluate_accepts_laws_and_reports_what_is_missing():
    law = SimpleNamespace(atoms=((F(0),), (F(1),)), weights=(F(1, 2), F(1, 2)))
    assert d.derive_variance().evaluate(law, M=1, K=1) == F(3, 16)
    with pytest.raises(ValueError, match=r"sizes=\{'M': 1\}: expected values"):
        d.derive_variance().evaluate(law, M=1)
    with pytest.raises(ValueError, match=r"found \['m'\]; check the spelling"):
        d.derive_variance().evaluate(law, m=1, K=1)
    with pytest.raises(ValueError, match=r"name='estimator T2': expected a population formula"):
        d.derive_unbiased_estimators()["T2"].evaluate(law, n=4)


def test_bad_forms_and_orders_are_refused():
    with pytest.raises(ValueError, match=r"form='wick': expected 'general' or 'gaussian'"):
        d.derive_third_central_moment("wick")
    with pytest.raises(ValueError, match=r"order=0: expected an integer >= 1"):
        d.central_moment(dot("x", "y"), Design.iid(x=M, y=K), 0)


def test_central_moment_of_other_statistics():
    """The squared norm of a sample mean, whose variance has third and fourth moments; enumerated."""
    law = LAWS["skewed"]
    combination, _ = d.central_moment(dot("x", "x"), Design.iid(x=n), 2)
    graphs = d.Derivation("", "", "", sp.Integer(0), terms=tuple(combination.items()))
    pairs = [(inner(s, s) / F(9), p) for s, p in sums(law, 3).items()]
    mean = sum(v * p for v, p in pairs)
    assert graphs.evaluate(law, n=3) == sum((v - mean) ** 2 * p for v, p in pairs)
    moments = d.central_moment(u_statistic(d.GRAPHS["E2"], "x"), Design.iid(x=n), 2)[1]
    assert len(moments) == 2


def test_derivations_are_fast():
    """CPU seconds without caches: 0.5 is the target for the variance; twice that is an alarm."""
    from theory import dot_graph, forms, scalars

    for cache in (dot_graph._canonical, dot_graph._components, forms._expand_graph, scalars._scalar):
        cache.cache_clear()
    for function, limit in ((d.derive_variance, 1.0), (d.derive_fourth_central_moment, 6.0)):
        function.cache_clear()
        start = time.process_time()
        function()
        assert time.process_time() - start < limit


@pytest.mark.parametrize("page", ["calculus", "expansion"])
def test_examples_in_the_documentation_run(page):
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text(encoding="utf-8").replace("```", "")
    examples = doctest.DocTestParser().get_doctest(text.replace("pycon\n", "\n"), {}, page, None, 0)
    results = doctest.DocTestRunner().run(examples)
    assert results.attempted > 3
    assert results.failed == 0
