"""Proof that a bound is never below Cantelli's on the cone of possible moments, hence true.

The difference B - B_exact is cleared of denominators, each ``min`` and ``max`` becomes a case, and every case
is a polynomial inequality, proved by a sum of non-negative terms or else by ``theory.proofs`` (Handelman
certificates and z3).  The result is re-checked in ``theory.dominance`` and ``theory.verify``, which share no
code with the search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from theory.assumptions import Assumption
from theory.dominance import Case, Dominance, Step
from theory.formula import Bound
from theory.moments import Moments

__all__ = ["prove_dominates_cantelli"]

_LARGEST = 4_000  # operations in the expression; beyond that clearing denominators takes too long


def prove_dominates_cantelli(bound: Bound, *, timeout: float = 4.0) -> Dominance | None:
    r"""Try to prove B >= B_exact on the moment cone.

    B(m2, a, t, M, K) >= V/(V + m2^2) for m2 > 0, a >= 0, t > 0, a^2 <= m2^2 t and real M, K in their ranges.

    At V = 0 nothing is needed beyond B >= 0, which follows by continuity; where a = 0 the formula's value is
    the limit, because arithmetic with an infinite d_par is continuous wherever it is defined.

    .. math:: B(m_2, a, t, M, K) \ge \frac{V}{V + m_2^2}, \qquad
              V = \Bigl(\frac1M + \frac1K\Bigr) a + \frac{t}{MK} .

    Parameters
    ----------
    bound
        A bound on (m2, a, t).  Rational formulas with min and max only; others return ``None``.
    timeout
        Seconds for the solver, per case.

    Returns
    -------
    Dominance or None
        ``None`` means not proved, which says nothing about the truth of the bound.

    Notes
    -----
    Source: Cantelli 1928 and the moment cone ``a^2 <= m2^2 t``.

    Examples
    --------
    >>> from theory.bounds import B_align
    >>> certificate = prove_dominates_cantelli(B_align)
    >>> certificate.is_valid(), len(certificate.cases)
    (True, 2)
    """
    import sympy as sp

    if bound.inputs is not Moments or bound.direction != "upper":
        return None
    try:
        expression = bound.trace(bound.symbols)
    except TypeError:
        return None
    if sp.count_ops(expression) > _LARGEST or not _rational(expression):
        return None
    symbols = bound.symbols
    plain = {symbol: sp.Symbol(name, real=True) for name, symbol in symbols.items()}
    m2, a, t, M, K = (plain[symbols[name]] for name in ("m2", "a", "t", "M", "K"))
    for name, sizes, symbol in (("M", bound.M, M), ("K", bound.K, K)):
        if sizes.low == sizes.high:
            plain[symbols[name]] = sp.Integer(sizes.low)
        else:
            plain[symbols[name]] = symbol
    M_, K_ = plain[symbols["M"]], plain[symbols["K"]]
    expression = sp.sympify(expression).xreplace(plain)
    V = (M_ + K_) * a + t
    hypotheses = [a >= 0, t > 0, a**2 <= m2**2 * t]
    if _scale_invariant(expression, m2, a, t):
        expression = expression.subs(m2, 1)
        hypotheses = [a >= 0, t > 0, a**2 <= t]
        norm = sp.Integer(1)
    elif Assumption.NONZERO_MEAN not in bound.assumptions:
        return None  # mean zero would need a look at every scale
    else:
        hypotheses.insert(0, m2 > 0)
        norm = m2
    for sizes, symbol in ((bound.M, M_), (bound.K, K_)):
        if symbol.is_Symbol:
            hypotheses.append(symbol >= sizes.low)
            if sizes.high is not None:
                hypotheses.append(symbol <= sizes.high)
    if not _mean_zero_is_covered(bound, M_, K_):
        return None
    cases = []
    for label, conditions, value in _branches(expression):
        if sp.false in conditions:  # never the extreme one
            continue
        case = _prove_case(bound.name, label, hypotheses, conditions, value, V, M_ * K_ * norm**2, timeout)
        if case is None:
            return None
        cases.append(case)
    domain = (
        f"{bound.M.text('M')}, {bound.K.text('K')}, and every law with finite second moments and nonzero mean"
        + (
            ""
            if Assumption.NONZERO_MEAN in bound.assumptions
            else " (mean zero: the bound is >= 1 or undefined there)"
        )
    )
    fixed = {name: int(value) for name, value in (("m2", norm), ("M", M_), ("K", K_)) if value.is_Integer}
    assumed = tuple((_slack(h), isinstance(h, sp.StrictGreaterThan)) for h in hypotheses)
    certificate = Dominance(bound.name, domain, assumed, fixed, tuple(cases), bound)
    return certificate if certificate.is_valid() else None


def _slack(relation: Any) -> str:
    """The polynomial that is >= 0 (or > 0) where the relation holds, as text."""
    import sympy as sp

    less = isinstance(relation, sp.LessThan | sp.StrictLessThan)
    difference = relation.rhs - relation.lhs if less else relation.lhs - relation.rhs
    return str(sp.expand(difference))


def _rational(expression: Any) -> bool:
    import sympy as sp

    allowed = (sp.Add, sp.Mul, sp.Pow, sp.Min, sp.Max, sp.Symbol, sp.Rational)
    return all(
        isinstance(node, allowed) and (not node.is_Pow or node.exp.is_Integer)
        for node in sp.preorder_traversal(sp.sympify(expression))
    )


def _scale_invariant(expression: Any, m2: Any, a: Any, t: Any) -> bool:
    import sympy as sp

    c = sp.Symbol("c", positive=True)
    names = {
        m2: sp.Symbol("m2", positive=True),
        a: sp.Symbol("a", positive=True),
        t: sp.Symbol("t", positive=True),
    }
    one = expression.xreplace(names)
    scaled = expression.xreplace({m2: c * names[m2], a: c**2 * names[a], t: c**2 * names[t]})
    if expression.has(sp.Min, sp.Max):  # compared branch by branch, in the same order
        left, right = list(_branches(one)), list(_branches(scaled))
        return len(left) == len(right) and all(
            sp.cancel(v - w) == 0
            and all(_same_sign(x, y, c) for x, y in zip(conditions, others, strict=True))
            for (_, conditions, v), (_, others, w) in zip(left, right, strict=True)
        )
    return bool(sp.cancel(one - scaled) == 0)


def _same_sign(one: Any, scaled: Any, c: Any) -> bool:
    import sympy as sp

    if one in (sp.true, sp.false) or scaled in (sp.true, sp.false):
        return bool(one == scaled)
    quotient = sp.cancel((scaled.lhs - scaled.rhs) / (one.lhs - one.rhs))
    return bool(quotient.free_symbols <= {c} and quotient.subs(c, 2) > 0)


def _branches(expression: Any) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """Replace the innermost min or max by each of its arguments, where that one is the extreme one."""
    import sympy as sp

    nodes = [n for n in sp.postorder_traversal(expression) if isinstance(n, sp.Min | sp.Max)]
    if not nodes:
        yield "whole domain", (), expression
        return
    node = nodes[0]
    for chosen in node.args:
        conditions = []
        for other in node.args:
            if other is not chosen:
                difference = chosen - other if isinstance(node, sp.Max) else other - chosen
                conditions.append(_cleared(difference))
        for label, rest, value in _branches(expression.xreplace({node: chosen})):
            here = f"{type(node).__name__}{node.args} = {chosen}"
            yield here if label == "whole domain" else f"{here}; {label}", (*conditions, *rest), value


def _cleared(difference: Any) -> Any:
    """difference >= 0 as a polynomial inequality; a denominator of unknown sign enters squared."""
    import sympy as sp

    top, bottom = sp.fraction(sp.cancel(sp.together(difference)))
    if (
        all(c > 0 for c in sp.Poly(bottom, *sorted(bottom.free_symbols, key=str)).coeffs())
        if bottom.free_symbols
        else bottom > 0
    ):
        return sp.expand(top) >= 0
    return sp.expand(top * bottom) >= 0


def _prove_case(
    name: str,
    label: str,
    domain: Sequence[Any],
    conditions: Sequence[Any],
    value: Any,
    V: Any,
    signal: Any,
    timeout: float,
) -> Case | None:
    import sympy as sp

    top, bottom = sp.fraction(sp.cancel(sp.together(value)))
    conditions = tuple(h for h in conditions if h is not sp.true)
    hypotheses = (*domain, *conditions)
    for sign in (1, -1):
        p, q = sp.expand(sign * top), sp.expand(sign * bottom)
        positive = _prove(f"{name}: denominator > 0, {label}", hypotheses, q, timeout, strict=True)
        if positive is None:
            continue
        above = _prove(
            f"{name} >= B_exact, {label}", hypotheses, sp.expand(p * (V + signal) - q * V), timeout
        )
        if above is None:
            return None
        return Case(label, tuple(map(_slack, conditions)), str(p), str(q), above, positive)
    return None


def _prove(
    name: str, hypotheses: tuple[Any, ...], target: Any, timeout: float, strict: bool = False
) -> Step | None:
    """target >= 0 (or > 0): by non-negative coefficients in shifted variables, else by ``theory.proofs``."""
    import sympy as sp

    from theory import proofs

    conclusion = target > 0 if strict else target >= 0
    if conclusion == sp.false:
        return None
    direct = _by_coefficients(hypotheses, target, strict)
    if direct is not None:
        return Step(name, ("algebraic certificate",), direct)
    if conclusion == sp.true:
        return None
    implication = proofs.Implication(name, name, hypotheses, conclusion)
    found = proofs.prove(implication, timeout=timeout, degree=2)
    if not isinstance(found, proofs.Proof):
        return None
    return Step(name, found.methods, found.certificates)


def _by_coefficients(hypotheses: tuple[Any, ...], target: Any, strict: bool) -> Any:
    """Write the target as a polynomial with coefficients >= 0 in the slacks of linear hypotheses."""
    import sympy as sp

    from theory import proofs

    lower: dict[Any, Any] = {}
    used: list[Any] = []
    for (
        relation
    ) in hypotheses:  # x - (lower limit) >= 0, where the limit is a number or a multiple of a variable
        if not isinstance(relation, sp.GreaterThan | sp.StrictGreaterThan):
            continue
        slack = sp.expand(relation.lhs - relation.rhs)
        if not slack.free_symbols or sp.Poly(slack, *sorted(slack.free_symbols, key=str)).total_degree() != 1:
            continue
        used.append(slack)
    for slack in sorted(used, key=lambda s: -len(s.free_symbols)):
        for x in sorted(slack.free_symbols, key=str):
            coefficient = slack.coeff(x)
            limit = sp.expand(x - slack / coefficient)
            if (
                coefficient > 0
                and x not in lower
                and not any(x in other.free_symbols for other in lower.values())
            ):
                lower[x] = limit
                break
    names = sorted(target.free_symbols, key=str)
    if any(x not in lower and not any(s == x for s in used) for x in names):
        return None
    shift = {x: limit + sp.Symbol(f"_{x}", real=True) for x, limit in lower.items()}
    moved = target
    for _ in range(2):  # a limit may itself contain a variable with a limit
        moved = sp.expand(moved.subs(shift, simultaneous=True)) if moved.free_symbols & set(shift) else moved
    inner = {sp.Symbol(f"_{x}", real=True): x - limit for x, limit in lower.items()}
    variables = sorted(moved.free_symbols, key=str)
    if any(v not in inner for v in variables):
        return None
    terms = sp.Poly(moved, *variables).terms() if variables else [((), moved)]
    if any(c < 0 for _, c in terms):
        return None
    if strict and not _strictly_positive(terms, variables, hypotheses, inner):
        return None
    slacks = [sp.expand(inner[v]) for v in variables]
    weights = [
        (Fraction(int(c.p), int(c.q)), {i: k for i, k in enumerate(powers) if k})
        for powers, c in terms
        if c != 0
    ]
    certificate = proofs.Certificate(str(target), tuple(map(str, slacks)), (), tuple(weights))
    return (certificate,) if certificate.is_valid() else None


def _strictly_positive(
    terms: Any, variables: list[Any], hypotheses: tuple[Any, ...], inner: dict[Any, Any]
) -> bool:
    """Some term is a product of slacks that are > 0 by hypothesis (or a positive constant)."""
    import sympy as sp

    strict = {sp.expand(h.lhs - h.rhs) for h in hypotheses if isinstance(h, sp.StrictGreaterThan)}
    sure = [sp.expand(inner[v]) in strict for v in variables]
    return any(c > 0 and all(ok or k == 0 for ok, k in zip(sure, powers, strict=True)) for powers, c in terms)


def _mean_zero_is_covered(bound: Bound, M: Any, K: Any) -> bool:
    """For mu = 0 P may be 1: the formula must be >= 1 there for all M, K, unless the bound excludes mu = 0.

    For a formula invariant under q -> c q it is enough to look at t = 0 and t = 1.
    """
    import sympy as sp

    if Assumption.NONZERO_MEAN in bound.assumptions:
        return True
    for t in (0, 1):
        values = {"m2": sp.Integer(0), "a": sp.Integer(0), "t": sp.Integer(t), "M": M, "K": K}
        try:
            value = sp.simplify(bound.trace(values))
        except TypeError:  # min or max of 0/0
            value = sp.nan
        if value.has(sp.nan, sp.zoo):
            continue  # undefined: no claim
        if not (value.is_extended_real and (value >= 1) == sp.true):
            return False
    return True
