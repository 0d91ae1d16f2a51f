"""The graph calculus against naive enumeration in rationals that uses none of its code."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction as F

import numpy as np
import pytest
import sympy as sp

from theory.gram import gram_symbol, homomorphism_sum, unbiased_estimate, unbiased_expression
from theory.graphs import (
    MEAN,
    Design,
    Graph,
    collect,
    dot,
    expectation,
    falling_factorial,
    injective_sums,
    law_value,
    moebius,
    multiply,
    quotient,
    set_partitions,
    to_central,
    to_expression,
    to_gaussian,
    to_raw,
    u_statistic,
)
from theory.scalars import scalar, scalars_of

SKEWED = ([(2, 0), (-1, 1), (0, -3)], [F(1, 2), F(1, 3), F(1, 6)])
COIN = ([(3, 1), (-2, 1)], [F(1, 4), F(3, 4)])

# Named by what they are; every vertex degree from 1 to 5, loops, cycles, trees, several components.
ZOO = {
    "edge": [(0, 1)],
    "double": [(0, 1)] * 2,
    "path": [(0, 1), (1, 2)],
    "separate": [(0, 1), (2, 3)],
    "loop": [(0, 0)],
    "loops": [(0, 0), (0, 0)],
    "flag": [(0, 0), (0, 1)],
    "triple": [(0, 1)] * 3,
    "star": [(0, 1), (0, 2), (0, 3)],
    "triangle": [(0, 1), (1, 2), (0, 2)],
    "double and leaf": [(0, 1), (0, 1), (1, 2)],
    "square": [(0, 1), (1, 2), (2, 3), (0, 3)],
    "long path": [(0, 1), (1, 2), (2, 3)],
    "theta": [(0, 1), (0, 1), (0, 2), (1, 2), (2, 2)],
    "bouquet": [(0, 0), (0, 1), (0, 2), (0, 1)],
}


def inner(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def naive_value(edges, law, centred=False):
    """Expectation over independent draws; a vertex of degree one is a plain draw."""
    atoms, weights = law
    size = 1 + max(v for e in edges for v in e)
    degree = [sum(e.count(v) for e in edges) for v in range(size)]
    mean = [sum(w * x[i] for x, w in zip(atoms, weights, strict=True)) for i in range(len(atoms[0]))]
    total = F(0)
    for pick in itertools.product(range(len(atoms)), repeat=size):
        term = F(1)
        draws = []
        for v, i in enumerate(pick):
            term *= weights[i]
            shift = mean if centred and degree[v] > 1 else [0] * len(mean)
            draws.append([a - m for a, m in zip(atoms[i], shift, strict=True)])
        for u, v in edges:
            term *= inner(draws[u], draws[v])
        total += term
    return total


def naive_expectation(function, sizes, laws):
    """E function(list of samples) over independent samples."""
    total = F(0)
    pairs = zip(sizes, laws, strict=True)
    spaces = [list(itertools.product(zip(*law, strict=True), repeat=m)) for m, law in pairs]
    for combined in itertools.product(*spaces):
        weight = F(1)
        for sample in combined:
            for _, w in sample:
                weight *= w
        total += weight * function(*[[x for x, _ in sample] for sample in combined])
    return total


def average(sample, weights=None):
    weights = weights or [F(1, len(sample))] * len(sample)
    return [sum(w * x[i] for x, w in zip(sample, weights, strict=True)) for i in range(len(sample[0]))]


def value(combination, laws, **sizes):
    """Evaluate a combination exactly; independent of Derivation.evaluate."""
    total = F(0)
    for graph, c in combination.items():
        number = sp.nsimplify(sp.sympify(c).subs({s: sizes[s.name] for s in sp.sympify(c).free_symbols}))
        total += F(int(number.p), int(number.q)) * law_value(graph, laws)
    return total


M, K, n, N = (sp.Symbol(s, positive=True) for s in "MKnN")
IID = Design.iid(train=M, test=K)
T = dot("train", "test")


# ---- graphs


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("name", ZOO)
def test_value_is_the_expectation_over_independent_draws(name, centred):
    graph = Graph.of(*ZOO[name], centred=centred)
    assert law_value(graph, {"": SKEWED}) == naive_value(ZOO[name], SKEWED, centred)
    assert law_value(graph.canonical(), {"": SKEWED}) == naive_value(ZOO[name], SKEWED, centred)


def random_graph(rng, vertices, edges, labels=("",)):
    chosen = tuple((rng.randrange(vertices), rng.randrange(vertices)) for _ in range(edges))
    return Graph(tuple(rng.choice(labels) for _ in range(vertices)), chosen)


def isomorphic(g, h):
    """Brute force over all vertex bijections, isolated vertices removed."""

    def bare(x):
        used = sorted({v for e in x.edges for v in e})
        return [x.labels[v] for v in used], [tuple(used.index(v) for v in e) for e in x.edges]

    (gl, ge), (hl, he) = bare(g), bare(h)
    if len(gl) != len(hl) or len(ge) != len(he):
        return False
    target = sorted(tuple(sorted(e)) for e in he)
    return any(
        all(gl[v] == hl[p[v]] for v in range(len(gl)))
        and sorted(tuple(sorted((p[u], p[v]))) for u, v in ge) == target
        for p in itertools.permutations(range(len(gl)))
    )


@pytest.mark.parametrize("labels", [("",), ("1", "2")])
def test_canonical_form_decides_isomorphism(labels):
    rng = random.Random(1)
    graphs = [random_graph(rng, 4, rng.randint(2, 4), labels) for _ in range(120)]
    pairs = list(itertools.combinations(graphs, 2))
    same = [isomorphic(g, h) for g, h in pairs]
    assert sum(same) > 10
    assert same == [g.canonical() == h.canonical() for g, h in pairs]


def test_canonical_form_survives_relabelling_of_symmetric_graphs():
    cycle = [(i, (i + 1) % 7) for i in range(7)]
    star = [(0, i) for i in range(1, 8)]
    wheel = [*cycle, *[(7, i) for i in range(7)]]
    bipartite = [(i, 4 + j) for i in range(4) for j in range(4)]
    rng = random.Random(2)
    for edges in (cycle, star, wheel, bipartite):
        order = list(range(8))
        rng.shuffle(order)
        moved = [(order[v], order[u]) for u, v in edges]
        rng.shuffle(moved)
        graph, other = Graph(("",) * 8, tuple(edges)), Graph(("",) * 8, tuple(moved))
        assert graph.canonical() == other.canonical()
        assert isomorphic(graph.canonical(), graph) or len(edges) > 7
    # Regular graphs with equal degrees that are not isomorphic.
    hexagon = Graph.of(*[(i, (i + 1) % 6) for i in range(6)])
    triangles = Graph.of((0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5))
    prism = Graph.of(*triangles.edges, (0, 3), (1, 4), (2, 5))
    utility = Graph.of(*[(i, 3 + j) for i in range(3) for j in range(3)])
    assert hexagon.canonical() != triangles.canonical()
    assert prism.canonical() != utility.canonical()
    assert (
        prism.canonical()
        == Graph.of((5, 4), (4, 3), (3, 5), (0, 1), (1, 2), (2, 0), (5, 0), (4, 2), (3, 1)).canonical()
    )


def test_canonical_form_of_a_regular_graph_with_inequivalent_vertices():
    """Refinement cannot tell the vertices of a cubic graph apart, but only three lie in a triangle."""
    cubic = [*[(i, (i + 1) % 8) for i in range(8)], (0, 2), (1, 5), (3, 6), (4, 7)]
    rng = random.Random(4)
    forms = set()
    for _ in range(30):
        order = list(range(8))
        rng.shuffle(order)
        forms.add(Graph.of(*[(order[u], order[v]) for u, v in cubic]).canonical())
    assert len(forms) == 1
    assert isomorphic(forms.pop(), Graph.of(*cubic))


def test_interchangeable_leaves_do_not_cost_factorial_time():
    star = Graph.of(*[(0, i) for i in range(1, 16)])
    moved = Graph.of(*[(i, 15) for i in range(15)])
    assert star.canonical() == moved.canonical()


def test_canonical_is_idempotent_and_drops_isolated_vertices():
    graph = Graph(("", "", ""), ((2, 0), (0, 2)))
    assert graph.canonical() == Graph(("", ""), ((0, 1), (0, 1)))
    assert graph.canonical().canonical() == graph.canonical()
    assert Graph(("",), ()).canonical() == Graph((), ())
    assert Graph.of().labels == ()


def test_a_leaf_edge_is_the_same_scalar_raw_or_centred():
    assert Graph.of((0, 1), centred=True).canonical() == Graph.of((0, 1)).canonical()
    mixed = Graph.of((0, 1), (1, 2), (3, 4), centred=True)
    assert [g.centred for g in mixed.components()] == [False, True]


def test_components_and_products():
    graph = Graph.of((0, 1), (1, 2)) * Graph.of((0, 1))
    assert [len(g.edges) for g in graph.components()] == [1, 2]
    assert law_value(graph, {"": SKEWED}) == naive_value([(0, 1), (1, 2)], SKEWED) * naive_value(
        [(0, 1)], SKEWED
    )
    with pytest.raises(ValueError, match=r"centred=.*cannot multiply raw by centred"):
        Graph.of((0, 0)) * Graph.of((0, 0), centred=True)
    leaf = Graph.of((0, 1)) * Graph.of((0, 0), centred=True)
    assert leaf.centred


def test_degrees_count_a_loop_twice():
    assert Graph.of((0, 0), (0, 1), (1, 2)).degrees() == (3, 2, 1)


def test_laws_of_unequal_lengths_are_noticed():
    half = [F(1, 2), F(1, 2)]
    short, ragged = {"": ([(1,), (2,)], half[:1])}, {"": ([(1,), (2, 3)], half)}
    for graph in (Graph.of((0, 1)), Graph.of((0, 0)), Graph.of((0, 0), centred=True)):
        with pytest.raises(ValueError, match="zip"):
            law_value(graph, short)
    with pytest.raises(ValueError, match="zip"):
        law_value(Graph.of((0, 0), centred=True), ragged)
    planes = {"x": ([(1, 2), (2, 3)], half), "y": ([(1,), (2,)], half)}
    for edges in ([(0, 1)], [(0, 1), (0, 1)]):
        with pytest.raises(ValueError, match="zip"):
            law_value(Graph.of(*edges, labels=("x", "y")), planes)


def test_quotient_merges_draws():
    graph = quotient(Graph.of((0, 1), (2, 3)), [(0, 2), (1,), (3,)])
    assert graph == Graph.of((0, 1), (1, 2)).canonical()
    assert quotient(Graph.of((0, 1)), [(0, 1)]) == Graph.of((0, 0))
    assert quotient(Graph.of((0, 1), (0, 1), centred=True), [(0, 1)]).centred


@pytest.mark.parametrize("edges", [((0, 2),), ((-1, 0),), ((0, 1, 1),)])
def test_bad_edges_are_refused(edges):
    with pytest.raises(ValueError, match=r"edge=.*expected two vertex numbers in 0\.\.1"):
        Graph(("", ""), edges)


# ---- partitions


def test_set_partitions_are_all_and_distinct():
    bell = [1, 1, 2, 5, 15, 52, 203]
    for size, count in enumerate(bell):
        found = {frozenset(map(frozenset, p)) for p in set_partitions(range(size))}
        assert len(found) == count == sum(1 for _ in set_partitions(range(size)))
        assert all(sorted(x for b in p for x in b) == list(range(size)) for p in found)


def test_set_partitions_keep_pairs_apart():
    apart = frozenset({frozenset((0, 1)), frozenset((2, 3))})
    kept = {frozenset(map(frozenset, p)) for p in set_partitions(range(4), apart)}
    every = {frozenset(map(frozenset, p)) for p in set_partitions(range(4))}
    assert kept == {p for p in every if not any({0, 1} <= b or {2, 3} <= b for b in p)}
    assert len(kept) == 7


def test_moebius_inverts_the_zeta_function():
    for size in range(2, 6):
        assert sum(moebius(p) for p in set_partitions(range(size))) == 0
        # Injective maps into x points: the characteristic polynomial of the partition lattice.
        for x in range(6):
            maps = sum(moebius(p) * x ** len(p) for p in set_partitions(range(size)))
            assert maps == math.perm(x, size) == falling_factorial(x, size)
    assert [moebius([range(b)]) for b in range(1, 6)] == [1, -1, 2, -6, 24]


# ---- expectations


def naive_T(x, y):
    return inner(average(x), average(y))


CASES = {
    "T": (T, naive_T),
    "T^2": (T**2, lambda x, y: naive_T(x, y) ** 2),
    "T^3": (T**3, lambda x, y: naive_T(x, y) ** 3),
    "|mean|^2": (dot("train", "train"), lambda x, y: inner(average(x), average(x))),
    "T |mean|^2": (T * dot("train", "train"), lambda x, y: naive_T(x, y) * inner(average(x), average(x))),
    "2 T^2 - 3 T + 5": (T**2 * 2 - 3 * T + 5, lambda x, y: 2 * naive_T(x, y) ** 2 - 3 * naive_T(x, y) + 5),
    "7 - T": (7 + T * -1, lambda x, y: 7 - naive_T(x, y)),
    "T (mean.mu)": (
        T * dot("train", MEAN),
        lambda x, y: naive_T(x, y) * inner(average(x), average(*LAW_MEAN)),
    ),
    "m2": (dot(MEAN, MEAN), lambda x, y: inner(average(*LAW_MEAN), average(*LAW_MEAN))),
}
LAW_MEAN = SKEWED


@pytest.mark.parametrize(("m", "k"), [(1, 1), (2, 1), (1, 3), (3, 2)])
@pytest.mark.parametrize("case", CASES)
def test_expectation_equals_enumeration(case, m, k):
    polynomial, function = CASES[case]
    combination = expectation(polynomial, IID).combination()
    exact = naive_expectation(function, (m, k), (SKEWED, SKEWED))
    assert value(combination, {"": SKEWED}, M=m, K=k) == exact
    assert value(to_central(combination), {"": SKEWED}, M=m, K=k) == exact


def test_expectation_with_numeric_sizes():
    combination = expectation(T**2, Design.iid(train=2, test=3)).combination()
    assert value(combination, {"": COIN}) == naive_expectation(
        lambda x, y: naive_T(x, y) ** 2, (2, 3), (COIN, COIN)
    )


def test_two_laws_keep_their_vertices_apart():
    design = Design((("train", M), ("test", K)), laws=(("train", "1"), ("test", "2")))
    laws = {"1": SKEWED, "2": COIN}
    for power in (1, 2, 3):
        combination = expectation(T**power, design).combination()
        exact = naive_expectation(lambda x, y, p=power: naive_T(x, y) ** p, (2, 3), (SKEWED, COIN))
        assert value(combination, laws, M=2, K=3) == exact
        assert value(to_central(combination), laws, M=2, K=3) == exact


def u_naive(edges, size):
    def function(sample):
        total = F(0)
        for pick in itertools.permutations(range(len(sample)), size):
            term = F(1)
            for u, v in edges:
                term *= inner(sample[pick[u]], sample[pick[v]])
            total += term
        return total / math.perm(len(sample), size)

    return function


@pytest.mark.parametrize("name", ["edge", "double", "path", "flag", "triangle"])
def test_u_statistics_are_unbiased_and_their_second_moment_is_exact(name):
    graph = Graph.of(*ZOO[name])
    size = len(graph.labels)
    u, design = u_statistic(graph, "units"), Design.iid(units=n)
    assert expectation(u, design).combination() == {graph.canonical(): 1}
    second = expectation(u**2, design).combination()
    function = u_naive(graph.edges, size)
    exact = naive_expectation(lambda x: function(x) ** 2, (4,), (COIN,))
    assert value(second, {"": COIN}, n=4) == exact


def test_mixed_means_and_u_statistics():
    polynomial = u_statistic(Graph.of((0, 1)), "x") * dot("x", "y")
    combination = expectation(polynomial, Design.iid(x=M, y=K)).combination()
    exact = naive_expectation(lambda x, y: u_naive([(0, 1)], 2)(x) * naive_T(x, y), (3, 2), (SKEWED, SKEWED))
    assert value(combination, {"": SKEWED}, M=3, K=2) == exact


POOL = [(2, 1), (-1, 0), (0, 3), (5, -2), (1, 1)]


def pool_naive(function, m, k, pool=POOL):
    """Average over ordered disjoint samples."""
    picks = list(itertools.permutations(pool, m + k))
    return sum((F(function(p[:m], p[m:])) for p in picks), F(0)) / len(picks)


@pytest.mark.parametrize(("m", "k"), [(1, 1), (2, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("case", ["T", "T^2", "T |mean|^2", "2 T^2 - 3 T + 5"])
def test_drawing_without_replacement(case, m, k):
    polynomial, function = CASES[case]
    design = Design((("train", M), ("test", K)), pool=N)
    law = {"": (POOL, [F(1, 5)] * 5)}
    combination = expectation(polynomial, design).combination()
    exact = pool_naive(function, m, k)
    assert value(combination, law, M=m, K=k, N=5) == exact
    assert value(to_central(combination), law, M=m, K=k, N=5) == exact


def test_unequal_weights():
    design = Design((("train", "u"), ("test", "v")), weighted=True)
    u, v = [F(1, 2), F(1, 3), F(1, 6)], [F(3, 4), F(1, 4)]
    sums = {f"u_{p}": sum(w**p for w in u) for p in (2, 3)} | {f"v_{p}": sum(w**p for w in v) for p in (2, 3)}
    for power in (1, 2, 3):
        combination = expectation(T**power, design).combination()
        exact = naive_expectation(
            lambda x, y, p=power: inner(average(x, u), average(y, v)) ** p, (3, 2), (SKEWED, COIN)[:1] * 2
        )
        assert (
            value(
                combination,
                {"": SKEWED},
                **{k: sp.Rational(s.numerator, s.denominator) for k, s in sums.items()},
            )
            == exact
        )


def test_equal_weights_are_the_plain_mean():
    weighted = Design((("x", "w"),), weighted=True)
    plain = Design.iid(x=n)
    for blocks in ([(0,), (1,)], [(0, 1, 2), (3,)], [(0, 1), (2, 3), (4,)]):
        powers = {sp.Symbol(f"w_{k}", positive=True): n ** (1 - k) for k in range(2, 6)}
        assert sp.simplify(weighted.weight("x", blocks, []).subs(powers) - plain.weight("x", blocks, [])) == 0


def test_patterns_are_counted():
    moment = expectation(T**2, IID)
    assert len(moment.patterns) == 4
    assert sp.simplify(sum(p.weight for p in moment.patterns) - 1) == 0
    assert len(expectation(T**4, IID).patterns) == 225
    assert moment.expression() == to_expression(moment.combination())
    assert {p.samples for p in moment.patterns} == {("test", "train", "test", "train")}


def test_the_weights_of_all_patterns_sum_to_one():
    for polynomial in (T**3, u_statistic(Graph.of((0, 1)), "train") ** 2, T * dot("train", "train")):
        assert sp.simplify(sum(p.weight for p in expectation(polynomial, IID).patterns) - 1) == 0


def test_the_building_blocks_are_frozen():
    pattern = expectation(T, IID).patterns[0]
    for thing, field in ((T, "terms"), (IID, "pool"), (pattern, "weight"), (Graph.of((0, 1)), "edges")):
        with pytest.raises(AttributeError):
            setattr(thing, field, None)
    with pytest.raises(AttributeError):
        T.terms[0][0][0].edges = ()
    with pytest.raises(AttributeError):
        expectation(T, IID).design = None


def test_polynomials_collect_equal_monomials():
    assert (T * 2 - T - T).terms == ()
    assert (T + 1) ** 2 == T * T + T + T + 1
    power = T**0
    assert power.terms == (((), 1),)
    assert dot("a", "b") * dot("c", "d") == dot("d", "c") * dot("b", "a")
    with pytest.raises(ValueError, match=r"power=-1: expected an integer >= 0"):
        T**-1
    with pytest.raises(ValueError, match=r"power=1\.5"):
        T**1.5


@pytest.mark.parametrize(
    ("polynomial", "design", "message"),
    [
        (T, Design.iid(train=M), r"sample='test': expected one of \['train'\]"),
        (
            dot("train", MEAN),
            Design((("train", M), ("test", K)), laws=(("train", "1"),)),
            r"sample='mean': expected a single law",
        ),
        (dot("train", MEAN), Design((("train", M),), pool=N), r"pool=N: expected samples of a single law"),
        (T, Design((("train", M), ("test", K)), laws=(("train", "1"),), pool=N), r"pool=N"),
        (u_statistic(Graph.of((0, 1)), "x"), Design((("x", "w"),), weighted=True), r"weighted=True"),
        (T, Design((("train", "u"), ("test", "v")), pool=N, weighted=True), r"weighted=True"),
        (
            dot("x", "x") * u_statistic(Graph.of((0, 1)), "x"),
            Design((("x", "w"),), weighted=True),
            r"weighted=True",
        ),
    ],
)
def test_impossible_designs_are_refused(polynomial, design, message):
    with pytest.raises(ValueError, match=message):
        expectation(polynomial, design)


# ---- forms


@pytest.mark.parametrize("name", ZOO)
def test_raw_and_central_forms_agree(name):
    graph = Graph.of(*ZOO[name])
    central = to_central({graph: F(1)})
    assert all(g.centred or max(g.degrees()) == 1 for g in central)
    assert sum(c * law_value(g, {"": SKEWED}) for g, c in central.items()) == naive_value(ZOO[name], SKEWED)
    assert to_raw(central) == {graph.canonical(): 1}


@pytest.mark.parametrize("name", ZOO)
def test_central_to_raw_keeps_the_value(name):
    raw = to_raw({Graph.of(*ZOO[name], centred=True): F(1)})
    assert not any(g.centred for g in raw)
    assert sum(c * law_value(g, {"": SKEWED}) for g, c in raw.items()) == naive_value(ZOO[name], SKEWED, True)


def hermite_law():
    """Rational law with Gaussian moments up to order five: atoms -1, 0, 1 with 1/6, 2/3, 1/6."""
    mix = [[2, 1], [-1, 3]]
    atoms, weights = [], []
    for z in itertools.product([(-1, F(1, 6)), (0, F(2, 3)), (1, F(1, 6))], repeat=2):
        x = [v for v, _ in z]
        atoms.append((1 + inner(mix[0], x), inner(mix[1], x) - 2))
        weights.append(z[0][1] * z[1][1])
    return atoms, weights


@pytest.mark.parametrize("name", [*ZOO, "quadruple"])
def test_gaussian_form_on_a_law_with_gaussian_moments(name):
    edges = ZOO.get(name, [(0, 1)] * 4)
    law = {"": hermite_law()}
    graph = Graph.of(*edges)
    assert max(graph.degrees()) <= 5
    gaussian = to_gaussian(to_central({graph: 1}))
    assert all(max(g.degrees()) <= 2 for g in gaussian)
    assert sum(F(int(c)) * law_value(g, law) for g, c in gaussian.items()) == law_value(graph, law)


def test_gaussian_pairings_count_as_double_factorials():
    for half in (1, 2, 3, 4):
        bunch = Graph(("",), ((0, 0),) * half, True)
        pairings = to_gaussian({bunch: 1})
        assert sum(pairings.values()) == math.prod(range(1, 2 * half, 2))
    assert to_gaussian({Graph.of((0, 1), (0, 1), (0, 1), centred=True): 1}) == {}


def test_forms_refuse_the_wrong_kind():
    with pytest.raises(ValueError, match=r"expected centred=False"):
        to_central({Graph.of((0, 0), centred=True): 1})
    for form in (to_raw, to_gaussian):
        with pytest.raises(ValueError, match=r"expected centred=True"):
            form({Graph.of((0, 0)): 1})
        with pytest.raises(ValueError, match=r"expected centred=True"):
            form({Graph.of((0, 1), (1, 2)): 1})
        assert form({Graph.of((0, 1)): 1}) == {Graph.of((0, 1)): 1}


def test_collect_and_multiply():
    edge, loop = Graph.of((0, 1)), Graph.of((0, 0))
    assert collect([(edge, n), (Graph.of((1, 0)), 1 - n), (loop, n), (loop, -n)]) == {edge: 1}
    assert multiply({edge: 2, loop: n}, {edge: 3}) == {edge * edge: 6, edge * loop: 3 * n}


# ---- Gram sums


LOOPED = [k for k, edges in ZOO.items() if any(u == v for u, v in edges)]


@pytest.mark.parametrize(
    ("name", "diagonal"),
    [(k, True) for k in ZOO if k != "bouquet"] + [(k, False) for k in ZOO if k not in LOOPED],
)
def test_injective_sums_by_moebius_inversion(name, diagonal):
    graph = Graph.of(*ZOO[name])
    Q = np.array([[1, 2], [0, -1], [3, 1], [-2, 2], [1, 0]])
    gram = Q @ Q.T
    naive = 0
    for pick in itertools.permutations(range(5), len(graph.labels)):
        naive += math.prod(int(gram[pick[u], pick[v]]) for u, v in graph.edges)
    used = gram if diagonal else gram - np.diag(np.diag(gram))
    sums = injective_sums(graph, diagonal=diagonal)
    assert all(isinstance(c, int) for c in sums.values())
    assert diagonal or not any(u == v for g in sums for u, v in g.edges)
    assert sum(c * homomorphism_sum(g, used) for g, c in sums.items()) == pytest.approx(naive, rel=1e-12)
    if diagonal or name in ("edge", "path", "star"):
        estimate = naive / math.perm(5, len(graph.labels))
        assert unbiased_estimate(graph, Q) == pytest.approx(estimate, rel=1e-12)


def test_unbiased_estimate_of_a_combination_and_its_errors():
    Q = np.array([[1.0], [2.0], [4.0], [-1.0]])
    a = Graph.of((0, 1), (1, 2), centred=True)
    path, square = Graph.of((0, 1), (1, 2)), Graph.of((0, 1), (2, 3))
    assert unbiased_estimate(a, Q) == pytest.approx(unbiased_estimate(path, Q) - unbiased_estimate(square, Q))
    assert unbiased_estimate({path: 2, square: -2}, Q) == pytest.approx(2 * unbiased_estimate(a, Q))
    with pytest.raises(ValueError, match=r"n=3: expected at least 4 rows"):
        unbiased_estimate(a, Q[:3])
    with pytest.raises(ValueError, match=r"Q\.shape=\(4,\)"):
        unbiased_estimate(a, Q[:, 0])
    for bad in (Q, Q[0]):
        with pytest.raises(ValueError, match=r"gram\.shape=.*square"):
            homomorphism_sum(path, bad)
    with pytest.raises(ValueError, match=r"expected raw draws of a single law"):
        injective_sums(a)
    with pytest.raises(ValueError, match=r"expected raw draws of a single law"):
        u_statistic(Graph.of((0, 1), labels=("1", "1")), "x")


def test_large_integers_do_not_overflow_and_shapes_are_checked():
    draws = [[10**10], [2 * 10**10], [4 * 10**10]]
    assert unbiased_estimate(Graph.of((0, 1)), draws) == pytest.approx(1e20 * 14 / 3, rel=1e-14)
    square = [[0, 10**10], [10**10, 0]]
    assert homomorphism_sum(Graph.of((0, 1), (0, 1)), square) == pytest.approx(2e20, rel=1e-14)
    with pytest.raises(ValueError, match=r"Q\.shape=\(2, 1, 1\)"):
        unbiased_estimate(Graph.of((0, 1)), np.ones((2, 1, 1)))
    with pytest.raises(ValueError, match=r"gram\.shape=\(2, 3\)"):
        homomorphism_sum(Graph.of((0, 1)), np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"gram\.shape=\(2, 2, 2\)"):
        homomorphism_sum(Graph.of((0, 1)), np.ones((2, 2, 2)))


def test_the_number_one_has_every_form():
    one = Graph.of()
    assert one.degrees() == ()
    assert one.canonical() == one * one == one
    for form in (to_raw, to_central, to_gaussian):
        assert form({one: 3}) == {one: 3}
    assert law_value(one, {}) == 1
    assert unbiased_estimate({one: 3}, np.ones((2, 1))) == 3.0
    assert unbiased_expression({one: 3}, sp.Symbol("n")) == 3
    assert unbiased_estimate({}, np.ones((2, 1))) == 0.0
    assert homomorphism_sum(one, np.ones((2, 2))) == 1.0


def test_names_of_gram_sums():
    assert str(gram_symbol(Graph.of((2, 1), (0, 1)))[0]) == "sum_r2"
    looped = Graph.of((0, 0), (0, 1)).canonical()
    (u, v), (w, x) = looped.edges
    symbol, tex = gram_symbol(looped)
    assert str(symbol) == f"sum(G[{u + 1},{v + 1}] G[{w + 1},{x + 1}])"
    assert tex == rf"\textstyle\sum G_{{i_{u + 1} i_{v + 1}}} G_{{i_{w + 1} i_{x + 1}}}"
    assert str(unbiased_expression(Graph.of((0, 0)), n)) == "sum(G[1,1])/n"


# ---- names


@pytest.mark.parametrize(
    ("edges", "centred", "labels", "name", "tex"),
    [
        ([(0, 1)], False, None, "m2", r"\lVert \mu \rVert^2"),
        ([(0, 1), (1, 2)], True, None, "a", r"\mu^\top \Sigma \mu"),
        ([(0, 1)] * 2, True, None, "t", r"\operatorname{tr}(\Sigma^{2})"),
        ([(0, 1)] * 2, False, None, "tr_R2", r"\operatorname{tr}(R^{2})"),
        ([(0, 0)], True, None, "tr_Sigma", r"\operatorname{tr}(\Sigma)"),
        ([(0, 1), (1, 2), (2, 3)], True, None, "mu_Sigma2_mu", r"\mu^\top \Sigma^{2} \mu"),
        ([(0, 1), (1, 2), (2, 0)], False, None, "tr_R3", r"\operatorname{tr}(R^{3})"),
        ([(0, 1)], False, "12", "mu[1]_mu[2]", r"\mu_{1}^\top  \mu_{2}"),
        ([(0, 1)], False, "11", "mu[1]_mu[1]", r"\lVert \mu_{1} \rVert^2"),
        ([(0, 1), (1, 2)], True, "221", "mu[1]_Sigma[2]_mu[2]", r"\mu_{1}^\top \Sigma_{2} \mu_{2}"),
        ([(0, 1), (1, 2), (2, 3), (3, 0)], True, "2122", "tr_Sigma[1]_Sigma[2]3",
         r"\operatorname{tr}(\Sigma_{1} \Sigma_{2}^{3})"),
        ([(0, 0)] * 2, True, None, "E[|c1|^4]", r"\operatorname{E}\bigl[\lVert c_{1} \rVert^{4}\bigr]"),
        ([(0, 1)] * 3, False, None, "E[(q1.q2)^3]", r"\operatorname{E}\bigl[(q_{1}^\top q_{2})^{3}\bigr]"),
        ([(0, 1), (0, 2), (0, 3)], True, None, "E[(c1.mu)^3]",
         r"\operatorname{E}\bigl[(c_{1}^\top \mu)^{3}\bigr]"),
        ([(0, 1)] * 3, True, "12", "E[(c[1]1.c[2]2)^3]",
         r"\operatorname{E}\bigl[(c^{(1)}_{1}^\top c^{(2)}_{2})^{3}\bigr]"),
        ([(0, 1), (0, 2), (0, 3)], False, "1222", "E[(q[1]1.mu[2])^3]",
         r"\operatorname{E}\bigl[(q^{(1)}_{1}^\top \mu_{2})^{3}\bigr]"),
    ],
)  # fmt: skip
def test_names_of_scalars(edges, centred, labels, name, tex):
    named = scalar(Graph.of(*edges, centred=centred, labels=labels))
    assert str(named.symbol) == name
    assert " ".join(named.latex.split()) == " ".join(tex.split())
    assert named.meaning
    assert named.symbol.is_real


def test_naming_refuses_products_and_lists_each_scalar_once():
    pair = Graph.of((0, 1), (2, 3))
    with pytest.raises(ValueError, match=r"expected one connected component.* 2 parts"):
        scalar(pair)
    assert [str(s.symbol) for s in scalars_of([pair, Graph.of((0, 1), (1, 2), (3, 4))])] == ["m2", "mu_R_mu"]


def test_distinct_graphs_have_distinct_names():
    rng = random.Random(3)
    graphs = {g for _ in range(400) for g in random_graph(rng, 4, rng.randint(1, 5)).components()}
    assert len(graphs) > 50
    assert len({scalar(g).symbol for g in graphs}) == len(graphs)
