"""Sums over a Gram matrix: the computable side of a graph, and its unbiased estimator.

For a Gram matrix ``G`` with zeroed diagonal, ``hom(H)`` sums ``prod over edges G[f(u), f(v)]`` over all maps
f of the vertices of H; the sum over injective maps is a Möbius combination of such sums, and divided by
``n (n-1) ... (n-k+1)`` it is unbiased for the value of the graph.
"""

from __future__ import annotations

import string
from typing import Any

import numpy as np
import sympy as sp

from theory.graphs import Combination, Graph, falling_factorial, injective_sums, to_raw

_SHORT = {
    Graph.of((0, 1)): ("S", "S"),
    Graph.of((0, 1), (0, 1)): ("F2", r"\lVert G' \rVert_F^2"),
    Graph.of((0, 1), (1, 2)).canonical(): ("sum_r2", r"\textstyle\sum_i r_i^2"),
}


def gram_symbol(graph: Graph) -> tuple[sp.Symbol, str]:
    """Symbol and LaTeX of the homomorphism sum of a connected graph.

    ``S = sum G'``, ``F2 = sum G'^2``, ``sum_r2 = sum of squared row sums``; others are spelled out.

    Parameters
    ----------
    graph
        Connected raw graph of one law; a loop reads the diagonal, which G' does not have.

    Notes
    -----
    Source: names of this package; homomorphism sums as in Lovász, *Large Networks and Graph Limits*, section
    5.2.

    Examples
    --------
    >>> gram_symbol(Graph.of((0, 1), (1, 2), (0, 2)))[0]
    sum(G'[1,2] G'[1,3] G'[2,3])
    """
    graph = graph.canonical()
    matrix = "G" if any(u == v for u, v in graph.edges) else "G'"
    name = " ".join(f"{matrix}[{u + 1},{v + 1}]" for u, v in graph.edges)
    tex = " ".join(f"{matrix}_{{i_{u + 1} i_{v + 1}}}" for u, v in graph.edges)
    short, latex = _SHORT.get(graph, (f"sum({name})", rf"\textstyle\sum {tex}"))
    return sp.Symbol(short, real=True), latex


def estimator_terms(target: Graph | Combination) -> dict[Graph, list[tuple[Graph, Any]]]:
    """Raw graphs of the target, each with its coefficient and the homomorphism sums of its estimator.

    Returns a mapping from each raw graph to pairs (homomorphism graph, integer or symbolic coefficient); the
    estimator is ``sum over graphs (1/(n)_k) sum over pairs coefficient * hom``.

    Parameters
    ----------
    target
        Graph or combination, raw or centred, of one law.

    Notes
    -----
    Source: Moebius inversion on the partition lattice (Rota 1964).

    Examples
    --------
    >>> {g.edges: [(h.edges, c) for h, c in v] for g, v in estimator_terms(Graph.of((0, 1), (1, 2))).items()}
    {((0, 2), (1, 2)): [(((0, 1), (0, 1)), -1), (((0, 2), (1, 2)), 1)]}
    """
    combination: Combination = {target: 1} if isinstance(target, Graph) else target
    raw: dict[Graph, Any] = {}
    for graph, coefficient in combination.items():
        canonical = graph.canonical()
        pieces = to_raw({canonical: 1}) if canonical.centred else {canonical: 1}
        for piece, sign in pieces.items():
            raw[piece] = raw.get(piece, 0) + sign * coefficient
    return {
        g: [(hom, count * c) for hom, count in injective_sums(g, diagonal=_loops(g)).items()]
        for g, c in raw.items()
        if c != 0
    }


def _loops(graph: Graph) -> bool:
    return any(u == v for u, v in graph.edges)


def unbiased_expression(target: Graph | Combination, n: Any) -> sp.Expr:
    """Unbiased estimator of a graph (or combination) as a sympy expression in Gram sums and n.

    ``sum over graphs coefficient * inj(H) / (n)_k``, inj the sum over injective maps.

    Parameters
    ----------
    target
        Graph or combination, raw or centred, of one law.
    n
        Number of units, a symbol or a number.

    Notes
    -----
    Source: Moebius inversion on the partition lattice (Rota 1964) applied to injective sums.

    Examples
    --------
    >>> unbiased_expression(Graph.of((0, 1)), sp.Symbol("n"))
    S/(n*(n - 1))
    """
    total = sp.Integer(0)
    for graph, terms in estimator_terms(target).items():
        numerator = sp.Add(*(c * sp.Mul(*(gram_symbol(p)[0] for p in hom.components())) for hom, c in terms))
        total += numerator / falling_factorial(n, len(graph.labels))
    return total


def homomorphism_sum(graph: Graph, gram: Any) -> float:
    """Sum of products of Gram entries over all maps of the vertices into the rows.

    ``hom(H) = sum over f: V(H) -> {1..n} of prod over edges gram[f(u), f(v)]``

    Parameters
    ----------
    graph
        Raw graph; a loop reads the diagonal.
    gram
        Square array (n, n), float64.

    Raises
    ------
    ValueError
        The matrix is not square.

    Notes
    -----
    Source: Lovász, *Large Networks and Graph Limits*, section 5.2.

    Examples
    --------
    >>> homomorphism_sum(Graph.of((0, 1)), np.array([[0.0, 2.0], [2.0, 0.0]]))
    4.0
    """
    gram = np.asarray(gram, dtype=np.float64)
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
        raise ValueError(f"gram.shape={gram.shape}: expected a square matrix (n, n); pass Q @ Q.T")
    value = 1.0
    for part in graph.components():
        subscripts = ",".join(string.ascii_letters[u] + string.ascii_letters[v] for u, v in part.edges)
        value *= float(np.einsum(subscripts + "->", *[gram] * len(part.edges), optimize="greedy"))
    return value


def unbiased_estimate(target: Graph | Combination, Q: Any) -> float:
    """Unbiased estimate of any graph (or numeric combination) from independent draws.

    ``sum over graphs coefficient * inj(H; Q Q^T) / (n)_k``

    Parameters
    ----------
    target
        Graph, raw or centred, or a combination with numeric coefficients.
    Q
        Draws, array (n, d), float64.

    Raises
    ------
    ValueError
        Q is not a matrix or has fewer rows than the largest graph has vertices.

    Notes
    -----
    Source: Hoeffding, *A class of statistics with asymptotically normal distribution*, 1948.

    Examples
    --------
    >>> unbiased_estimate(Graph.of((0, 1)), [[1.0], [2.0], [4.0]])
    4.666666666666667
    """
    Q = np.asarray(Q, dtype=np.float64)
    if Q.ndim != 2:
        raise ValueError(f"Q.shape={Q.shape}: expected a matrix (n, d); reshape to one row per unit")
    terms = estimator_terms(target)
    need = max((len(g.labels) for g in terms), default=0)
    if len(Q) < need:
        raise ValueError(f"n={len(Q)}: expected at least {need} rows; collect more units")
    full = Q @ Q.T
    empty = full - np.diag(np.diag(full))
    total = 0.0
    for graph, homs in terms.items():
        gram = full if _loops(graph) else empty
        injective = sum(float(c) * homomorphism_sum(hom, gram) for hom, c in homs)
        total += injective / float(falling_factorial(len(Q), len(graph.labels)))
    return total
