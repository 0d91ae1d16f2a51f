"""A SymPy expression as a formula of (moments, M, K): exact for Fractions, compiled for the rest."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from theory.arithmetic import exp, log, maximum, minimum, sqrt
from theory.moments import Moments


def from_sympy(expression: Any) -> tuple[Callable[[Any, Any, Any], Any], Callable[[], Any]]:
    import sympy

    known = ("m2", "a", "t", "V", "d_par", "d_2", "d_align", "n_eff", "M", "K")
    unknown = sorted(s.name for s in expression.free_symbols if s.name not in known)
    if unknown:
        raise ValueError(
            f"symbols {unknown} in {expression}: expected only {', '.join(known)}; substitute the rest"
        )
    used = sorted(expression.free_symbols, key=lambda s: s.name)

    def value_of(name: str, m: Moments, M: Any, K: Any) -> Any:
        if name in ("M", "K"):
            return M if name == "M" else K
        if name == "V":
            return m.a / M + m.a / K + m.t / M / K
        return M * K / (M + K + 1) if name == "n_eff" else getattr(m, name)

    numeric = {
        "min": minimum,
        "max": maximum,
        "exp": exp,
        "log": log,
        "sqrt": sqrt,
    }
    compiled = sympy.lambdify(used, expression, modules=[numeric, "math"])

    def formula(m: Any, M: Any, K: Any) -> Any:
        values = {symbol: value_of(symbol.name, m, M, K) for symbol in used}
        if all(
            isinstance(value, Fraction) for value in values.values()
        ):  # lambdify would print 1/2 as a float
            exact = {s: sympy.Rational(v.numerator, v.denominator) for s, v in values.items()}
            result = expression.subs(exact)
            if result.is_Rational:
                return Fraction(int(result.p), int(result.q))
            if not result.is_finite:
                raise ZeroDivisionError(f"{expression} at {exact}")
            return float(result)
        return compiled(*values.values())

    return formula, lambda: expression
