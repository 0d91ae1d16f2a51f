"""Multigraphs of dot products: canonical form, components, quotients, values at finite-support laws."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp


@dataclass(frozen=True)
class Graph:
    """A multigraph of dot products; its value is an expectation over independent draws.

    ``value = E[prod over edges (x_u . x_v)]`` with ``x_v = q_v`` (or ``q_v - mu`` where ``centred``).

    Parameters
    ----------
    labels
        One law label per vertex (``""`` when there is a single law).
    edges
        Pairs of vertex numbers; repeated pairs are powers, a loop ``(v, v)`` is ``|x_v|^2``.
    centred
        Vertices of degree two and more carry central moments.

    Raises
    ------
    ValueError
        An edge names a vertex that does not exist.

    Notes
    -----
    Source: the graph representation of U- and V-statistics, e.g. Lovász, *Large Networks and Graph Limits*,
    chapter 5 (homomorphism and injective numbers).

    Examples
    --------
    >>> Graph.of((0, 1), (0, 1)).canonical() == Graph.of((3, 2), (2, 3)).canonical()
    True
    """

    labels: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    centred: bool = False

    def __post_init__(self) -> None:
        for edge in self.edges:
            if len(edge) != 2 or not all(0 <= v < len(self.labels) for v in edge):
                raise ValueError(
                    f"edge={edge!r}: expected two vertex numbers in 0..{len(self.labels) - 1}; "
                    "give one label per vertex"
                )

    @staticmethod
    def of(*edges: tuple[int, int], centred: bool = False, labels: Sequence[str] | None = None) -> Graph:
        """Build a graph from its edges (one law unless ``labels`` are given).

        Examples
        --------
        >>> Graph.of((0, 1), (1, 2)).degrees()
        (1, 2, 1)
        """
        size = 1 + max((v for edge in edges for v in edge), default=-1)
        return Graph(tuple(labels) if labels is not None else ("",) * size, tuple(edges), centred)

    def degrees(self) -> tuple[int, ...]:
        """Degree of every vertex, a loop counting twice.

        Examples
        --------
        >>> Graph.of((0, 1), (1, 1)).degrees()
        (1, 3)
        """
        degree = [0] * len(self.labels)
        for u, v in self.edges:
            degree[u] += 1
            degree[v] += 1
        return tuple(degree)

    def canonical(self) -> Graph:
        """Return the representative of the isomorphism class (isolated vertices dropped).

        Examples
        --------
        >>> Graph.of((0, 1), (0, 2)).canonical() == Graph.of((0, 2), (1, 2)).canonical()
        True
        """
        return _canonical(self)

    def components(self) -> tuple[Graph, ...]:
        """Canonical connected components, sorted; the value of a graph is the product of theirs.

        Examples
        --------
        >>> len(Graph.of((0, 1), (2, 3)).components())
        2
        """
        return _components(self)

    def __mul__(self, other: Graph) -> Graph:
        """Disjoint union: the values multiply (both graphs raw or both centred, or one without draws)."""
        return _union((*self.components(), *other.components()))


def _union(components: Iterable[Graph]) -> Graph:
    labels: tuple[str, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    kinds = set()
    for part in sorted(components, key=_sort_key):
        edges += tuple((u + len(labels), v + len(labels)) for u, v in part.edges)
        labels += part.labels
        if max(part.degrees(), default=0) > 1:
            kinds.add(part.centred)
    if len(kinds) > 1:
        raise ValueError(
            "centred=(True, False): cannot multiply raw by centred draws; convert one of them first"
        )
    return Graph(labels, edges, True in kinds)


def _sort_key(graph: Graph) -> tuple[Any, ...]:
    return (len(graph.edges), len(graph.labels), graph.edges, graph.labels)


@functools.cache
def _canonical(graph: Graph) -> Graph:
    return _union(_components(graph))


@functools.cache
def _components(graph: Graph) -> tuple[Graph, ...]:
    root = list(range(len(graph.labels)))
    for u, v in graph.edges:
        old, new = root[u], root[v]
        root = [new if r == old else r for r in root]
    parts = []
    for r in sorted({root[u] for u, _ in graph.edges}):
        vertices = [v for v in range(len(root)) if root[v] == r]
        place = {v: i for i, v in enumerate(vertices)}
        edges = tuple((place[u], place[v]) for u, v in graph.edges if root[u] == r)
        part = Graph(tuple(graph.labels[v] for v in vertices), edges)
        # An edge between two leaves is mu.mu whether or not draws are centred.
        parts.append(_canonical_component(part, graph.centred and max(part.degrees()) > 1))
    return tuple(sorted(parts, key=_sort_key))


def _canonical_component(graph: Graph, centred: bool) -> Graph:
    """Smallest relabelling found by individualisation and refinement, exact for every graph."""
    n = len(graph.labels)
    times = [[0] * n for _ in range(n)]
    for u, v in graph.edges:
        times[u][v] += 1
        if u != v:
            times[v][u] += 1

    def refine(colour: list[int]) -> list[int]:
        while True:
            keys = [(colour[v], tuple(sorted((colour[w], times[v][w]) for w in range(n)))) for v in range(n)]
            distinct = sorted(set(keys))
            fresh = [distinct.index(key) for key in keys]
            if len(set(fresh)) == len(set(colour)):
                return fresh
            colour = fresh

    def twins(u: int, v: int) -> bool:
        others = (w for w in range(n) if w not in (u, v))
        return times[u][u] == times[v][v] and all(times[u][w] == times[v][w] for w in others)

    def leaves(colour: list[int]) -> Iterator[list[int]]:
        clash = next((c for c in range(n) if colour.count(c) > 1), None)
        if clash is None:
            yield colour
            return
        tried: list[int] = []
        for v in (w for w in range(n) if colour[w] == clash):
            # Swapping twins is an automorphism, so one of them is enough.
            if not any(twins(v, w) for w in tried):
                tried.append(v)
                marked = [2 * c + (w != v) for w, c in enumerate(colour)]
                yield from leaves(refine(marked))

    names = sorted(set(graph.labels))
    best: tuple[Any, ...] | None = None
    for place in leaves(refine([names.index(label) for label in graph.labels])):
        edges = tuple(sorted((min(place[u], place[v]), max(place[u], place[v])) for u, v in graph.edges))
        labels = [""] * n
        for v, label in enumerate(graph.labels):
            labels[place[v]] = label
        if best is None or (edges, tuple(labels)) < best:
            best = (edges, tuple(labels))
    assert best is not None
    return Graph(best[1], best[0], centred)


Combination = Mapping[Graph, Any]
"""A linear combination of canonical graphs: graph -> coefficient."""


def collect(terms: Iterable[tuple[Graph, Any]]) -> dict[Graph, Any]:
    """Sum coefficients graph by graph (canonical), factor them and drop zeros.

    ``sum over terms coefficient * graph``.

    Parameters
    ----------
    terms
        Pairs (graph, coefficient).

    Notes
    -----
    Source: canonical forms of graphs; see docs/calculus.md.

    Examples
    --------
    >>> path, same = Graph.of((0, 1), (1, 2)), Graph.of((0, 1), (0, 2))
    >>> list(collect([(path, 2), (same, 3)]).values()), collect([(path, 1), (same, -1)])
    ([5], {})
    """
    lists: dict[Graph, list[Any]] = {}
    for graph, coefficient in terms:
        lists.setdefault(graph.canonical(), []).append(coefficient)
    total = {
        g: sp.factor(sp.Add(*cs)) for g, cs in sorted(lists.items(), key=lambda item: _sort_key(item[0]))
    }
    return {g: c for g, c in total.items() if c != 0}


def multiply(left: Combination, right: Combination) -> dict[Graph, Any]:
    """Product of two combinations (disjoint unions of their graphs).

    ``(sum c_i G_i)(sum d_j H_j) = sum c_i d_j (G_i + H_j)``, + the disjoint union.

    Parameters
    ----------
    left, right
        Combinations: graph -> coefficient.

    Notes
    -----
    Source: independence: the value of a disjoint union is the product of the values.

    Examples
    --------
    >>> edge = Graph.of((0, 1))
    >>> multiply({edge: 2}, {edge: 3}) == {Graph.of((0, 1), (2, 3)).canonical(): 6}
    True
    """
    return collect((g * h, c * d) for g, c in left.items() for h, d in right.items())


def quotient(graph: Graph, blocks: Sequence[Sequence[int]]) -> Graph:
    """Merge the vertices of each block into one draw (edges inside a block become loops).

    ``G / pi``: vertices are the blocks of pi, every edge (u, v) joins the blocks of u and v.

    Parameters
    ----------
    graph
        Any graph.
    blocks
        A partition of its vertices; the vertices of a block have one law.

    Notes
    -----
    Source: definition: identified vertices of a graph.

    Examples
    --------
    >>> quotient(Graph.of((0, 1)), [(0, 1)]) == Graph.of((0, 0))
    True
    """
    place = {v: b for b, block in enumerate(blocks) for v in block}
    edges = tuple((place[u], place[v]) for u, v in graph.edges)
    return Graph(tuple(graph.labels[block[0]] for block in blocks), edges, graph.centred).canonical()


def law_value(graph: Graph, laws: Mapping[str, tuple[Sequence[Any], Sequence[Any]]]) -> Any:
    """Value of a graph at finite-support laws, exact for rational atoms and weights.

    ``value = E[prod over edges (x_u . x_v)]``, the draws of different vertices independent.

    Parameters
    ----------
    graph
        Any graph.
    laws
        Law label -> (atoms, weights); atoms are sequences of numbers, weights sum to one.

    Notes
    -----
    Source: definition of the moment tensors, summed over the atoms.

    Examples
    --------
    >>> from fractions import Fraction
    >>> coin = {"": ([(0,), (1,)], [Fraction(1, 2)] * 2)}
    >>> law_value(Graph.of((0, 1), (0, 1)), coin), law_value(Graph.of((0, 1), (0, 1), centred=True), coin)
    (Fraction(1, 4), Fraction(1, 16))
    """
    value: Any = 1
    for part in graph.components():
        supports = []
        for label, degree in zip(part.labels, part.degrees(), strict=True):
            atoms, weights = laws[label]
            mean = [sum(w * x[i] for x, w in zip(atoms, weights, strict=True)) for i in range(len(atoms[0]))]
            if degree == 1:
                supports.append([(mean, 1)])
            elif part.centred:
                supports.append(
                    [
                        ([x - m for x, m in zip(q, mean, strict=True)], w)
                        for q, w in zip(atoms, weights, strict=True)
                    ]
                )
            else:
                supports.append([(list(q), w) for q, w in zip(atoms, weights, strict=True)])
        total: Any = 0
        for draw in itertools.product(*supports):
            term: Any = 1
            for _, w in draw:
                term = term * w
            for u, v in part.edges:
                term = term * sum(x * y for x, y in zip(draw[u][0], draw[v][0], strict=True))
            total = total + term
        value = value * total
    return value
