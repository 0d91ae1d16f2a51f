"""An implication between polynomial inequalities: what :mod:`theory.proofs` proves or refutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy as sp


@dataclass(frozen=True)
class Implication:
    r"""``hypotheses`` imply ``conclusion``, for all real values of the symbols.

    Hypotheses and conclusion are ``>=``, ``>``, ``<=``, ``<`` or ``Eq`` relations between polynomials; a
    maximum is a symbol ``w`` with the hypotheses ``w >= a``, ``w >= t``.

    ``h_1 >= 0, ..., h_k >= 0 imply c >= 0`` (or with >, or c = 0).

    Raises
    ------
    ValueError
        If a side is not a polynomial with rational coefficients: multiply denominators out first; or if a
        symbol carries assumptions, which the solver would not see.

    Notes
    -----
    Source: first-order theory of the reals (Tarski 1951), which is decidable.

    Examples
    --------
    >>> x, y = sp.symbols("x y", real=True)
    >>> from theory.proofs import prove
    >>> demo = Implication("demo", "x >= 1 and y >= x imply xy >= x", (x >= 1, y >= x), x * y >= x)
    >>> prove(demo)
    Proof(demo: algebraic certificate, z3 unsat)
    >>> demo.symbols, demo.holds_at({"x": Fraction(1), "y": Fraction(2)})
    ((x, y), True)
    """

    name: str
    statement: str
    hypotheses: tuple[Any, ...]
    conclusion: Any
    source: str = ""

    def __post_init__(self) -> None:
        names: dict[str, sp.Symbol] = {}
        for relation in (*self.hypotheses, self.conclusion):
            for symbol in getattr(relation, "free_symbols", ()):
                assumed = symbol.is_integer or symbol.is_rational or symbol.is_extended_nonnegative
                if (
                    assumed
                    or symbol.is_extended_nonpositive
                    or names.setdefault(symbol.name, symbol) != symbol
                ):
                    raise ValueError(
                        f"{self.name}: symbol={symbol}: expected real symbols without further assumptions, "
                        "one per name; write x >= 0 as a hypothesis (integers are not supported)"
                    )
            if not isinstance(relation, (sp.core.relational.Relational,)):
                raise ValueError(
                    f"{self.name}: relation={relation!r}: expected a sympy relation such as x >= y "
                    "(a comparison of numbers has already become True or False)"
                )
            difference = sp.expand(relation.lhs - relation.rhs)
            symbols = sorted(difference.free_symbols, key=str)
            if not symbols:
                continue
            poly = difference.as_poly(*symbols)
            if poly is None or poly.domain not in (sp.ZZ, sp.QQ):
                raise ValueError(
                    f"{self.name}: relation={relation}: expected polynomials with rational coefficients; "
                    "multiply denominators out and replace max/min by a symbol with its inequalities"
                )

    @property
    def symbols(self) -> tuple[sp.Symbol, ...]:
        """All symbols, by name."""
        relations = (*self.hypotheses, self.conclusion)
        return tuple(sorted(set().union(*(r.free_symbols for r in relations)), key=str))

    def holds_at(self, model: Mapping[str, Fraction]) -> bool:
        """Evaluate hypotheses => conclusion at one rational point, exactly."""
        values = {s: sp.Rational(model[str(s)].numerator, model[str(s)].denominator) for s in self.symbols}

        def truth(relation: Any) -> bool:
            return bool(relation.subs(values))

        return not all(truth(h) for h in self.hypotheses) or truth(self.conclusion)
