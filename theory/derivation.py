"""A derived formula together with the steps that lead to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy as sp

from theory.graphs import MEAN, Expectation, Graph, Pattern, law_value
from theory.scalars import Scalar, scalar, scalars_of

M, K, n, N = sp.symbols("M K n N", integer=True, positive=True)
"""Train sample size, test sample size, estimation sample size, pool size."""


@dataclass(frozen=True)
class Derivation:
    """A formula and the steps that lead to it.

    ``target = expression``, for instance ``E T = m2``.

    Parameters
    ----------
    name
        Short name such as ``"variance"``.
    target
        LaTeX of the left-hand side.
    statement
        What is derived and under which sampling design, in words.
    expression
        The formula.
    terms
        The same as pairs (graph, coefficient), empty for an estimator.
    moments
        The pattern expansions used, one per power of the statistic.
    notes
        Further steps in words.
    latex_names
        LaTeX of symbols that are not population scalars.

    Notes
    -----
    Source: derived here by enumeration of index patterns; see docs/calculus.md.

    Examples
    --------
    >>> from theory.derivations import derive_mean
    >>> derive_mean().expression
    m2
    """

    name: str
    target: str
    statement: str
    expression: sp.Expr
    terms: tuple[tuple[Graph, Any], ...] = ()
    moments: tuple[Expectation, ...] = ()
    notes: tuple[str, ...] = ()
    latex_names: tuple[tuple[sp.Symbol, str], ...] = ()

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """The population scalars of the formula with their graphs.

        Examples
        --------
        >>> from theory.derivations import derive_variance
        >>> sorted(str(s.symbol) for s in derive_variance().scalars)
        ['a', 't']
        """
        return scalars_of(graph for graph, _ in self.terms)

    @property
    def symbols(self) -> dict[sp.Symbol, str]:
        """Meaning of every symbol of the formula.

        Examples
        --------
        >>> from theory.derivations import derive_mean
        >>> {str(s): meaning for s, meaning in derive_mean().symbols.items()}
        {'m2': 'dot product of the means'}
        """
        known = {M: "train sample size", K: "test sample size", n: "number of units", N: "size of the pool"}
        known |= {s.symbol: s.meaning for s in self.scalars}
        known |= {symbol: f"Gram sum ${tex}$" for symbol, tex in self.latex_names}
        return {s: known.get(s, "power sum of the weights") for s in _sorted(self.expression.free_symbols)}

    def latex(self) -> str:
        r"""Return ``target = formula`` in LaTeX.

        Examples
        --------
        >>> from theory.derivations import derive_mean
        >>> print(derive_mean().latex())
        \operatorname{E} T = \lVert \mu \rVert^2
        """
        names = {s.symbol: s.latex for s in self.scalars} | dict(self.latex_names)
        return f"{self.target} = {sp.latex(self.expression, symbol_names=names)}"

    def trace(self) -> str:
        """Readable account: the patterns with their counts and graphs, then the later steps.

        Examples
        --------
        >>> from theory.derivations import derive_mean
        >>> print(derive_mean().trace())
        mean: T = (mean of M train draws) . (mean of K test draws)
        power 1: 1 pattern
          1 x  i1 | j1  weight 1  graph m2
        result: m2
        """
        lines = [f"{self.name}: {self.statement}"]
        for power, moment in enumerate(self.moments, start=1):
            count = len(moment.patterns)
            lines.append(f"power {power}: {count} pattern{'s' * (count > 1)}")
            lines += _pattern_lines(moment.patterns)
        return "\n".join([*lines, *self.notes, f"result: {self.expression}"])

    def evaluate(self, laws: Mapping[str, Any] | Any, **sizes: int) -> Fraction:
        """Exact value at finite-support laws.

        Parameters
        ----------
        laws
            A law with ``atoms`` and ``weights``, a pair (atoms, weights), or a mapping law label -> either;
            rational numbers.
        **sizes
            Values of M, K, n, N.

        Raises
        ------
        ValueError
            The derivation is of an estimator, or a size is missing or unknown.

        Examples
        --------
        >>> from theory.derivations import derive_variance
        >>> coin = ([(0,), (1,)], [Fraction(1, 2)] * 2)
        >>> derive_variance().evaluate(coin, M=1, K=1)
        Fraction(3, 16)
        """
        if not self.terms:
            raise ValueError(f"name={self.name!r}: expected a population formula; evaluate Gram sums on data")
        unknown = sorted(set(sizes) - {"M", "K", "n", "N"})
        if unknown:
            raise ValueError(
                f"sizes={sizes!r}: expected M, K, n, N only, found {unknown}; check the spelling"
            )
        by_label = {k: _atoms(v) for k, v in (laws if isinstance(laws, Mapping) else {"": laws}).items()}
        values = {s: sp.Integer(sizes[s.name]) for s in (M, K, n, N) if s.name in sizes}
        total = Fraction(0)
        for graph, coefficient in self.terms:
            number = sp.sympify(coefficient)
            for symbol, value in values.items():
                # Cancelling in between removes the poles of patterns that small samples do not have.
                number = sp.cancel(number.subs(symbol, value))
            if not number.is_Rational:
                raise ValueError(
                    f"sizes={sizes!r}: expected values that make {coefficient} a number; add them"
                )
            total += Fraction(int(number.p), int(number.q)) * law_value(graph, by_label)
        return total


def _atoms(law: Any) -> tuple[Sequence[Sequence[Any]], Sequence[Any]]:
    return (law.atoms, law.weights) if hasattr(law, "atoms") else law


def _sorted(symbols: Iterable[Any]) -> list[sp.Symbol]:
    return sorted(symbols, key=str)


def _pattern_lines(patterns: Sequence[Pattern]) -> list[str]:
    """One line per (weight, graph); the slots of one pattern of the group serve as the example."""
    groups = Counter((p.weight, p.graph) for p in patterns)
    rows = []
    for (weight, graph), count in groups.items():
        example = next(p for p in patterns if (p.weight, p.graph) == (weight, graph))
        value = "*".join(f"{scalar(g).symbol}" for g in graph.components()) or "1"
        rows.append((f"{count} x", _slots(example), f"weight {sp.factor(weight)}", f"graph {value}"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _slots(pattern: Pattern) -> str:
    """Indices with their equalities, sample by sample: ``i1=i2 | j1 j2``."""
    order = dict.fromkeys(s for s in sorted(pattern.samples, reverse=True) if s != MEAN)
    letters = {s: "ijkl"[position] for position, s in enumerate(order)}
    seen: Counter[str] = Counter()
    names = {}
    for slot, sample in enumerate(pattern.samples):
        seen[sample] += 1
        names[slot] = f"{letters.get(sample, 'mu')}{seen[sample]}"
    return " | ".join(
        " ".join(
            "=".join(names[s] for s in block) for block in pattern.blocks if pattern.samples[block[0]] == name
        )
        for name in order
    )
