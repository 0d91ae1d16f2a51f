"""Raw, central and Gaussian forms of a combination of dot-product graphs.

Each form expands every vertex of degree two and more: a draw into mean plus deviation, a deviation into draw
minus mean, or a Gaussian moment tensor into pairings of the covariance.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from theory.dot_graph import Combination, Graph, collect


def _split(
    graph: Graph, choices: Iterable[tuple[Sequence[Sequence[int]], int]], vertex: int
) -> Iterator[tuple[Graph, int]]:
    """Replace one vertex by several, sharing out its half-edges; half-edge 2e + s is end s of edge e."""
    for groups, sign in choices:
        labels = [*graph.labels, *(graph.labels[vertex] for _ in groups)]
        ends = [list(edge) for edge in graph.edges]
        for new, group in enumerate(groups, start=len(graph.labels)):
            for half in group:
                ends[half // 2][half % 2] = new
        yield Graph(tuple(labels), tuple((u, v) for u, v in ends), graph.centred), sign


def _expand(combination: Combination, kind: str, centred: bool) -> dict[Graph, Any]:
    """Apply one expansion rule to every vertex of degree two and more of every graph."""
    return collect(
        (g, c * s) for graph, c in combination.items() for g, s in _expand_graph(graph, kind, centred)
    )


@functools.cache
def _expand_graph(graph: Graph, kind: str, centred: bool) -> tuple[tuple[Graph, int], ...]:
    todo = [(graph, 1)]
    for vertex, degree in enumerate(graph.degrees()):
        if degree < 2:
            continue
        halves = [2 * e + s for e, edge in enumerate(graph.edges) for s in (0, 1) if edge[s] == vertex]
        rule = list(_pairings(halves) if kind == "wick" else _subsets(halves, kind))
        todo = [(g, c * s) for old, c in todo for g, s in _split(old, rule, vertex)]
    total: dict[Graph, int] = {}
    for g, c in todo:
        key = Graph(g.labels, g.edges, centred).canonical()
        total[key] = total.get(key, 0) + c
    return tuple(total.items())


def _subsets(halves: Sequence[int], kind: str) -> Iterator[tuple[tuple[tuple[int, ...], ...], int]]:
    """Ways to write the draw as mean plus deviation ("central") or deviation as draw minus mean ("raw")."""
    for keep in range(len(halves) + 1):
        if kind == "central" and keep == 1:
            continue  # the deviation has mean zero
        for kept in itertools.combinations(halves, keep):
            means = tuple((h,) for h in halves if h not in kept)
            sign = (-1) ** len(means) if kind == "raw" else 1
            yield ((kept, *means) if kept else means), sign


def _pairings(halves: Sequence[int]) -> Iterator[tuple[tuple[tuple[int, int], ...], int]]:
    """Perfect matchings (none for an odd number): the Wick-Isserlis expansion of a Gaussian moment."""
    if not halves:
        yield (), 1
    for i in range(1, len(halves)):
        for rest, _ in _pairings([*halves[1:i], *halves[i + 1 :]]):
            yield ((halves[0], halves[i]), *rest), 1


def to_central(combination: Combination) -> dict[Graph, Any]:
    """Rewrite raw moments as central ones, ``q = mu + c`` at every draw.

    Parameters
    ----------
    combination
        Graph -> coefficient, numbers or sympy expressions.

    Raises
    ------
    ValueError
        If a graph with a vertex of degree two or more is centred already.

    Notes
    -----
    Source: expansion of each raw moment tensor about the mean, multilinear in the half-edges.

    Examples
    --------
    >>> from theory.scalars import to_expression
    >>> to_expression(to_central({Graph.of((0, 1), (0, 1)): 1}))
    2*a + m2**2 + t
    """
    _check_kind(combination, centred=False)
    return _expand(combination, "central", True)


def to_raw(combination: Combination) -> dict[Graph, Any]:
    """Rewrite central moments as raw ones, ``c = q - mu`` at every draw.

    Parameters
    ----------
    combination
        Graph -> coefficient, numbers or sympy expressions.

    Raises
    ------
    ValueError
        If a graph with a vertex of degree two or more is raw already.

    Notes
    -----
    Source: expansion of each central moment tensor, multilinear in the half-edges.

    Examples
    --------
    >>> from theory.scalars import to_expression
    >>> to_expression(to_raw({Graph.of((0, 1), (1, 2), centred=True): 1}))
    -m2**2 + mu_R_mu
    """
    _check_kind(combination, centred=True)
    return _expand(combination, "raw", False)


def to_gaussian(combination: Combination) -> dict[Graph, Any]:
    """Replace central moment tensors of a Gaussian law by pairings of ``Sigma`` (Wick-Isserlis).

    Source: Isserlis, *On a formula for the product-moment coefficient...*, 1918.

    ``E[c_i c_j c_k c_l] = S_ij S_kl + S_ik S_jl + S_il S_jk`` with S = Sigma, and so on; odd moments vanish.

    Parameters
    ----------
    combination
        Graph -> coefficient, numbers or sympy expressions.

    Raises
    ------
    ValueError
        If a graph with a vertex of degree two or more is raw.

    Examples
    --------
    >>> from theory.scalars import to_expression
    >>> to_expression(to_gaussian({Graph.of((0, 0), (0, 0), centred=True): 1}))
    2*t + tr_Sigma**2
    """
    _check_kind(combination, centred=True)
    return _expand(combination, "wick", True)


def _check_kind(combination: Combination, *, centred: bool) -> None:
    for graph in combination:
        if graph.centred != centred and max(graph.degrees(), default=0) > 1:
            raise ValueError(
                f"graph={graph!r}: expected centred={centred}; convert it with to_central or to_raw"
            )
