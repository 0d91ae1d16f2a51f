"""Dot-product graphs: expectations of polynomials in dot products of sample means.

A *graph* stands for the expectation of a product of dot products of independent draws: a vertex is one draw,
an edge is one dot product.  A vertex of degree 1 contracts to ``mu``, of degree 2 to ``R = Sigma + mu mu^T``,
of degree k to the k-th raw moment tensor.  In a *centred* graph a vertex of degree k >= 2 carries the k-th
central moment tensor instead (degree 2: ``Sigma``), and a vertex of degree 1 is still ``mu``.

The expectation of a polynomial in dot products of sample means is a sum over *patterns*: which of the summed
indices coincide.  Each pattern has a counting polynomial in the sample sizes and a graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp

from theory.dot_graph import Combination, Graph, collect, law_value, multiply, quotient
from theory.forms import to_central, to_gaussian, to_raw
from theory.partitions import falling_factorial, moebius, set_partitions
from theory.scalars import to_expression

__all__ = [
    "MEAN",
    "Combination",
    "Design",
    "Expectation",
    "Graph",
    "Pattern",
    "Polynomial",
    "Statistic",
    "collect",
    "dot",
    "expectation",
    "falling_factorial",
    "injective_sums",
    "law_value",
    "moebius",
    "multiply",
    "power_sum",
    "quotient",
    "set_partitions",
    "to_central",
    "to_expression",
    "to_gaussian",
    "to_raw",
    "u_statistic",
]

MEAN = "mean"
"""Name of the pseudo-sample whose slots are the population mean ``mu`` itself."""


@dataclass(frozen=True, order=True)
class Statistic:
    """An average, over maps of its vertices into sample indices, of a product of dot products.

    ``samples[v]`` names the sample that vertex v runs over.  With ``injective`` the vertices of one sample
    run over distinct indices (a U-statistic); otherwise each vertex is an independent sum (a sample mean).

    ``(1/number of maps) sum over maps i of prod over edges (u, v) of q_{i(u)} . q_{i(v)}``.

    Domain: any samples and edges; one graph of draws.

    Notes
    -----
    Source: von Mises 1947 and Hoeffding 1948 (V- and U-statistics).

    Examples
    --------
    >>> dot("train", "test").terms[0][0]
    (Statistic(samples=('test', 'train'), edges=((0, 1),), injective=False),)
    """

    samples: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    injective: bool = False


@dataclass(frozen=True)
class Polynomial:
    """A polynomial in statistics; build it from `dot` and `u_statistic` with ``+ - * **``.

    Domain: integer powers >= 0; coefficients are numbers or sympy expressions; ValueError on other powers.

    Notes
    -----
    Source: algebra of V- and U-statistics; see docs/calculus.md.

    Examples
    --------
    >>> T = dot("train", "test")
    >>> len(((T - 1) ** 3).terms)
    4
    """

    terms: tuple[tuple[tuple[Statistic, ...], sp.Expr], ...]

    @staticmethod
    def _collect(terms: Iterable[tuple[tuple[Statistic, ...], Any]]) -> Polynomial:
        total: dict[tuple[Statistic, ...], Any] = {}
        for monomial, coefficient in terms:
            key = tuple(sorted(monomial))
            total[key] = total.get(key, 0) + sp.sympify(coefficient)
        return Polynomial(tuple((k, c) for k, c in sorted(total.items()) if c != 0))

    def _lift(self, other: Any) -> Polynomial:
        return other if isinstance(other, Polynomial) else Polynomial((((), sp.sympify(other)),))

    def __add__(self, other: Any) -> Polynomial:
        return self._collect((*self.terms, *self._lift(other).terms))

    def __mul__(self, other: Any) -> Polynomial:
        return self._collect(
            ((*m1, *m2), c1 * c2) for m1, c1 in self.terms for m2, c2 in self._lift(other).terms
        )

    def __sub__(self, other: Any) -> Polynomial:
        return self + self._lift(other) * -1

    def __pow__(self, power: int) -> Polynomial:
        if not isinstance(power, int) or power < 0:
            raise ValueError(f"power={power!r}: expected an integer >= 0")
        result = self._lift(1)
        for _ in range(power):
            result = result * self
        return result

    __radd__ = __add__
    __rmul__ = __mul__


def dot(x: str, y: str) -> Polynomial:
    """The dot product of two sample means, ``mean(x) . mean(y)``; ``MEAN`` stands for ``mu``.

    ``mean(x) . mean(y) = (1/(n_x n_y)) sum over i, j of x_i . y_j``.

    Parameters
    ----------
    x, y
        Names of samples (sizes are given by the ``Design``), or ``MEAN``.

    Notes
    -----
    Source: paper 1, the alignment statistic T = dot("train", "test").

    Examples
    --------
    >>> dot("train", "test") == dot("test", "train")
    True
    """
    return Polynomial((((Statistic(tuple(sorted((x, y))), ((0, 1),)),), sp.Integer(1)),))


def u_statistic(graph: Graph, sample: str) -> Polynomial:
    """The U-statistic of a raw one-law graph: the mean of its Gram products over injective maps.

    ``U = 1/(n)_k  sum over distinct i_1..i_k of prod over edges (q_i . q_j)``.

    Parameters
    ----------
    graph
        Raw graph of one law, without centred draws.
    sample
        Name of the sample.

    Notes
    -----
    Source: Hoeffding, "A class of statistics with asymptotically normal distribution", 1948.

    Examples
    --------
    >>> expectation(u_statistic(Graph.of((0, 1)), "units"), Design.iid(units=sp.Symbol("n"))).expression()
    m2
    """
    graph = _require_raw(graph.canonical())
    return Polynomial((((Statistic((sample,) * len(graph.labels), graph.edges, True),), sp.Integer(1)),))


def _require_raw(graph: Graph) -> Graph:
    if graph.centred or set(graph.labels) - {""}:
        raise ValueError(f"graph={graph!r}: expected raw draws of a single law; expand it with to_raw first")
    return graph


@dataclass(frozen=True)
class Design:
    """How samples are drawn: sizes, laws, and whether they exhaust a finite pool.

    ``mean(x) = (1/n) sum q_i`` (or ``sum w_i q_i``), the q_i independent, or distinct units of the pool.

    Parameters
    ----------
    sizes
        Pairs (sample, size); sizes are symbols or numbers.
    laws
        Pairs (sample, law label); samples not named share the law ``""``.
    pool
        Size N of the pool from which all samples are drawn disjointly, without replacement; None for
        independent draws (which is also sampling a pool *with* replacement, the pool being the law).
    weighted
        Sample means are ``sum w_i q_i`` with ``sum w_i = 1``; the size entry is then the letter that names
        the power sums ``sum w_i^k``.

    Notes
    -----
    Source: definition of the sampling schemes; see docs/calculus.md.

    Examples
    --------
    >>> Design.iid(train=sp.Symbol("M")).pool is None
    True
    """

    sizes: tuple[tuple[str, Any], ...]
    laws: tuple[tuple[str, str], ...] = ()
    pool: Any = None
    weighted: bool = False

    @staticmethod
    def iid(**sizes: Any) -> Design:
        """Independent samples of one law with the given sizes."""
        return Design(tuple(sizes.items()))

    def weight(self, sample: str, blocks: Sequence[Sequence[int]], injective: Iterable[int]) -> Any:
        """Counting polynomial of one sample's equality pattern, divided by the averages' normalisers.

        Parameters
        ----------
        sample
            Its name.
        blocks
            Classes of slots that share an index.
        injective
            Slot counts of the injective statistics among them; all other slots are plain means.

        Examples
        --------
        >>> M = sp.Symbol("M")
        >>> Design.iid(train=M).weight("train", [(0, 1)], [])  # two slots, one index
        1/M
        >>> Design.iid(train=5).weight("train", [(0,), (1,)], [])
        4/5
        """
        size = dict(self.sizes)[sample]
        if self.weighted:
            return sum(
                moebius(merge)
                * sp.prod([power_sum(size, sum(len(blocks[b]) for b in part)) for part in merge])
                for merge in set_partitions(range(len(blocks)))
            )
        bound = list(injective)
        plain = sum(len(block) for block in blocks) - sum(bound)
        below = size**plain * sp.prod([falling_factorial(size, k) for k in bound])
        return falling_factorial(size, len(blocks)) / sp.sympify(below)


def power_sum(letter: Any, k: int) -> sp.Expr:
    """Symbol for ``sum w_i^k`` of weights that sum to one (so 1 at k = 1).

    Parameters
    ----------
    letter
        Of the weights, "w" for w_i.
    k
        Integer >= 1.

    Notes
    -----
    Source: notation; see docs/calculus.md.

    Examples
    --------
    >>> power_sum("w", 1), power_sum("w", 2)
    (1, w_2)
    """
    return sp.Integer(1) if k == 1 else sp.Symbol(f"{letter}_{k}", positive=True)


@dataclass(frozen=True)
class Pattern:
    """One equality pattern: which slots share an index, how often it occurs, and its graph.

    ``weight`` = number of index choices with exactly these equalities, over the number of all choices.

    Domain: as made by ``expectation``.

    Notes
    -----
    Source: counting maps by their kernel (Stanley, *Enumerative Combinatorics* I, section 1.9); see
    docs/calculus.md.

    Examples
    --------
    >>> sizes = Design.iid(train=sp.Symbol("M"), test=sp.Symbol("K"))
    >>> [(p.blocks, p.weight) for p in expectation(dot("train", "test"), sizes).patterns]
    [(((1,), (0,)), 1)]
    """

    samples: tuple[str, ...]
    blocks: tuple[tuple[int, ...], ...]
    weight: sp.Expr
    graph: Graph


@dataclass(frozen=True)
class Expectation:
    """The expectation of a polynomial, pattern by pattern.

    ``E f = sum over patterns weight * coefficient * value(graph)``.

    Domain: as made by ``expectation``.

    Notes
    -----
    Source: derived here by enumeration of index patterns; see docs/calculus.md.

    Examples
    --------
    >>> norm = expectation(dot("train", "train"), Design.iid(train=sp.Symbol("M")))
    >>> len(norm.patterns), norm.expression()
    (2, m2*(M - 1)/M + tr_R/M)
    >>> norm.combination()[Graph.of((0, 1))]
    (M - 1)/M
    """

    patterns: tuple[Pattern, ...]
    design: Design

    def combination(self) -> dict[Graph, Any]:
        """Coefficients of raw graphs; for a pool these are graphs of draws *with* replacement from it."""
        together = collect((p.graph, p.weight) for p in self.patterns)
        if self.design.pool is None:
            return together
        return collect(
            (part, coefficient * share)
            for graph, coefficient in together.items()
            for part, share in _without_replacement(graph, self.design.pool)
        )

    def expression(self) -> sp.Expr:
        """The same as a sympy expression in the named scalars of the raw graphs."""
        return to_expression(self.combination())


def expectation(polynomial: Polynomial, design: Design) -> Expectation:
    """Expectation of a polynomial in dot products of sample means.

    ``E f = sum over patterns (counting polynomial) x (graph)``

    Parameters
    ----------
    polynomial
        Built from `dot`, `u_statistic`, numbers and sympy expressions.
    design
        Sample sizes and how the samples are drawn.

    Raises
    ------
    ValueError
        A sample has no size in the design, the pool mixes laws, the population mean is used with a pool, or
        weights are combined with U-statistics or a pool.

    Notes
    -----
    Source: the definition of a sample mean; the pattern sum is the multinomial expansion of its powers.

    Examples
    --------
    >>> M, K = sp.symbols("M K", positive=True)
    >>> mean = expectation(dot("train", "test"), Design.iid(train=M, test=K))
    >>> mean.expression()
    m2
    """
    sizes, laws = dict(design.sizes), dict(design.laws)
    patterns: list[Pattern] = []
    for monomial, coefficient in polynomial.terms:
        samples = [s for statistic in monomial for s in statistic.samples]
        _check_design(design, samples, any(s.injective for s in monomial))
        edges: list[tuple[int, int]] = []
        apart: set[frozenset[int]] = set()
        injective: dict[str, list[int]] = {name: [] for name in sizes}
        start = 0
        for statistic in monomial:
            slots = range(start, start + len(statistic.samples))
            edges += [(start + u, start + v) for u, v in statistic.edges]
            if statistic.injective:
                apart |= {frozenset(pair) for pair in itertools.combinations(slots, 2)}
                for name in set(statistic.samples):
                    injective[name].append(statistic.samples.count(name))
            start = slots.stop
        free = [(i,) for i, s in enumerate(samples) if s == MEAN]
        names = [name for name in sizes if name in samples]
        choices = [
            list(set_partitions([i for i, s in enumerate(samples) if s == name], frozenset(apart)))
            for name in names
        ]
        for choice in itertools.product(*choices):
            weight = coefficient
            for name, blocks in zip(names, choice, strict=True):
                weight = weight * design.weight(name, blocks, injective[name])
            merged = (*itertools.chain(*choice), *free)
            labels = tuple(laws.get(samples[block[0]], "") for block in merged)
            place = {slot: b for b, block in enumerate(merged) for slot in block}
            graph = Graph(labels, tuple((place[u], place[v]) for u, v in edges))
            patterns.append(Pattern(tuple(samples), merged, weight, graph.canonical()))
    return Expectation(tuple(patterns), design)


def _check_design(design: Design, samples: Sequence[str], injective: bool) -> None:
    for name in samples:
        if name != MEAN and name not in dict(design.sizes):
            raise ValueError(f"sample={name!r}: expected one of {sorted(dict(design.sizes))}; add its size")
    if MEAN in samples and design.laws:
        raise ValueError(f"sample={MEAN!r}: expected a single law; write the mean as a further sample")
    if design.pool is not None and (design.laws or MEAN in samples):
        raise ValueError(f"pool={design.pool!r}: expected samples of a single law, none of them {MEAN!r}")
    if design.weighted and (injective or design.pool is not None):
        raise ValueError("weighted=True: expected independent draws and plain means; drop the weights")


def _without_replacement(graph: Graph, pool: Any) -> Iterator[tuple[Graph, Any]]:
    """Expectation over distinct pool elements in terms of independent draws from the pool.

    The sum over injective maps is the Möbius inversion of the sums over all maps, and each of these is
    ``pool^k`` times the expectation over k independent draws.
    """
    size = len(graph.labels)
    total = falling_factorial(pool, size)
    for blocks in set_partitions(range(size)):
        yield quotient(graph, blocks), moebius(blocks) * pool ** len(blocks) / total


def injective_sums(graph: Graph, *, diagonal: bool = False) -> dict[Graph, int]:
    """Möbius inversion: the sum over injective maps as a combination of sums over all maps.

    ``inj(H) = sum over partitions pi of mu(pi) hom(H / pi)``

    Parameters
    ----------
    graph
        Raw graph of one law.
    diagonal
        Keep quotients with loops, for a Gram matrix with its diagonal.  Without (the default) the
        homomorphism sums are over the Gram matrix with zeroed diagonal, where a loop contributes nothing.

    Raises
    ------
    ValueError
        The graph is centred or has several laws.

    Notes
    -----
    Source: Lovász, *Large Networks and Graph Limits*, section 5.2.1.

    Examples
    --------
    >>> path = Graph.of((0, 1), (1, 2))
    >>> injective_sums(path) == {path.canonical(): 1, Graph.of((0, 1), (0, 1)): -1}
    True
    """
    graph = _require_raw(graph.canonical())
    apart = frozenset() if diagonal else frozenset(frozenset(e) for e in graph.edges if e[0] != e[1])
    terms = ((quotient(graph, b), moebius(b)) for b in set_partitions(range(len(graph.labels)), apart))
    return {g: int(c) for g, c in collect(terms).items()}
