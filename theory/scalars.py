"""Names of the population scalars: one symbol per connected dot-product graph.

Paths and cycles of second moments get short names, everything else is spelled out as an expectation over
numbered independent draws, so that a name always says what the number is.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy as sp

if TYPE_CHECKING:
    from theory.dot_graph import Graph


@dataclass(frozen=True)
class Scalar:
    """A named population scalar: its symbol, LaTeX, meaning in words, and the graph it is the value of."""

    symbol: sp.Symbol
    latex: str
    meaning: str
    graph: Graph


def scalar(graph: Graph) -> Scalar:
    """Name a connected graph.

    Raises
    ------
    ValueError
        The graph has several components (its value is a product of scalars).

    Examples
    --------
    >>> from theory.graphs import Graph
    >>> [str(scalar(Graph.of(*e, centred=True)).symbol) for e in ([(0, 1)], [(0, 1), (1, 2)], [(0, 1)] * 2)]
    ['m2', 'a', 't']
    >>> str(scalar(Graph.of((0, 1), (0, 1), (0, 2), centred=True)).symbol)
    'E[(c1.c2)^2 (c2.mu)]'
    """
    parts = graph.components()
    if len(parts) != 1:
        raise ValueError(
            f"graph={graph!r}: expected one connected component; name the {len(parts)} parts apart"
        )
    return _scalar(parts[0])


@functools.cache
def _scalar(graph: Graph) -> Scalar:
    degrees = graph.degrees()
    if max(degrees) > 2:
        return _spelled(graph)
    letter = "Sigma" if graph.centred else "R"
    word = "covariance" if graph.centred else "second moment"
    walk = _walk(graph)
    path = degrees.count(1) == 2
    inner = [graph.labels[v] for v in (walk[1:-1] if path else walk)]
    ends = [graph.labels[walk[0]], graph.labels[walk[-1]]] if path else []
    factors = _powers(letter, inner)
    name = "_".join(
        [*_powers("mu", ends[:1]), *factors, *_powers("mu", ends[1:])] if path else ["tr", *factors]
    )
    tex = " ".join(_tex_powers(f"\\{letter}" if graph.centred else letter, inner))
    if path:
        left, right = (_tex_law("\\mu", e) for e in ends)
        same = not inner and ends[0] == ends[1]
        tex = rf"\lVert {left} \rVert^2" if same else rf"{left}^\top {tex} {right}"
        meaning = (
            f"mean times {len(inner)} {word} factors times mean" if inner else "dot product of the means"
        )
    else:
        tex, meaning = rf"\operatorname{{tr}}({tex})", f"trace of a product of {len(inner)} {word} factors"
    one_law = not any(graph.labels)
    short = {"mu_mu": "m2", "mu_Sigma_mu": "a", "tr_Sigma2": "t"}
    symbol = sp.Symbol(short.get(name, name), nonnegative=True) if one_law else sp.Symbol(name, real=True)
    return Scalar(symbol, tex, meaning, graph)


def _walk(graph: Graph) -> list[int]:
    """Vertices of a path or cycle in order; of all readings the one with the smallest labels."""
    near: dict[int, list[int]] = {v: [] for v in range(len(graph.labels))}
    for u, v in graph.edges:
        near[u].append(v)
        near[v].append(u)
    tips = [v for v, n in near.items() if len(n) == 1] or list(near)
    walks = []
    for tip in tips:
        for second in near[tip]:
            walk = [tip, second]
            while len(walk) < len(near):
                onward = list(near[walk[-1]])
                onward.remove(walk[-2])
                walk.append(onward[0])
            walks.append(walk[: len(near)])
    return min(walks, key=lambda w: ([graph.labels[v] for v in w], w))


def _powers(letter: str, laws: list[str]) -> list[str]:
    stems = [(f"{letter}[{law}]" if law else letter, k) for law, k in _runs(laws)]
    return [stem + (str(k) if k > 1 else "") for stem, k in stems]


def _tex_powers(letter: str, laws: list[str]) -> list[str]:
    return [_tex_law(letter, law) + (f"^{{{k}}}" if k > 1 else "") for law, k in _runs(laws)]


def _tex_law(letter: str, law: str) -> str:
    return f"{letter}_{{{law}}}" if law else letter


def _runs(laws: list[str]) -> list[tuple[str, int]]:
    runs: list[tuple[str, int]] = []
    for law in laws:
        if runs and runs[-1][0] == law:
            runs[-1] = (law, runs[-1][1] + 1)
        else:
            runs.append((law, 1))
    return runs


def _spelled(graph: Graph) -> Scalar:
    """Spell a graph out as an expectation, ``E[(c1.c2)^2 (c1.mu)]``."""
    degrees = graph.degrees()
    letter = "c" if graph.centred else "q"
    text, tex = {}, {}
    edges = sorted(graph.edges, key=lambda e: (min(degrees[v] for v in e) == 1, e))
    draws = list(dict.fromkeys(v for e in edges for v in e if degrees[v] > 1))
    for v, label in enumerate(graph.labels):
        law = f"[{label}]" if label else ""
        if v in draws:
            number = draws.index(v) + 1
            text[v] = f"{letter}{law}{number}"
            tex[v] = rf"{letter}^{{({label})}}_{{{number}}}" if label else rf"{letter}_{{{number}}}"
        else:
            text[v], tex[v] = f"mu{law}", _tex_law("\\mu", label)
    powers: Counter[tuple[str, str, bool]] = Counter()
    for edge in edges:
        u, v = sorted(edge, key=lambda w: draws.index(w) if w in draws else len(draws))
        loop = u == v
        powers[
            (f"|{text[u]}|" if loop else f"({text[u]}.{text[v]})"),
            (rf"\lVert {tex[u]} \rVert" if loop else rf"({tex[u]}^\top {tex[v]})"),
            loop,
        ] += 2 if loop else 1
    name = " ".join(f + (f"^{k}" if k > 1 else "") for (f, _, _), k in powers.items())
    latex = " ".join(f + (f"^{{{k}}}" if k > 1 else "") for (_, f, _), k in powers.items())
    word = "centred independent" if graph.centred else "independent"
    meaning = f"expectation over {len(draws)} {word} draw{'s' * (len(draws) > 1)}"
    symbol = sp.Symbol(f"E[{name}]", real=True)
    return Scalar(symbol, rf"\operatorname{{E}}\bigl[{latex}\bigr]", meaning, graph)


def to_expression(combination: Mapping[Graph, Any]) -> sp.Expr:
    """Sympy expression of a combination of graphs in their named scalars.

    ``sum over graphs coefficient * prod over components (named scalar)``.

    Parameters
    ----------
    combination
        Graph -> coefficient, numbers or sympy expressions.

    Notes
    -----
    Source: names of this package (m2, a, t, tr_Sigma, ...); see docs/calculus.md.

    Examples
    --------
    >>> from theory.graphs import Graph
    >>> to_expression({Graph.of((0, 1), (2, 3)): 1, Graph.of((0, 1), (1, 2)): -1})
    m2**2 - mu_R_mu
    """
    return sp.Add(
        *(c * sp.Mul(*(scalar(part).symbol for part in g.components())) for g, c in combination.items())
    )


def scalars_of(combination: Iterable[Graph]) -> tuple[Scalar, ...]:
    """All named scalars that occur in the graphs, each once, in order of first occurrence."""
    parts = dict.fromkeys(part for graph in combination for part in graph.components())
    return tuple(_scalar(part) for part in parts)
