"""Independent re-check of algebraic certificates, in plain integer arithmetic on dictionaries.

Nothing here imports sympy's simplifier, a solver or any other module of this package: a certificate found by
:mod:`theory.proofs` is accepted only if this file, which a reader can check by eye, agrees.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from fractions import Fraction

Polynomial = dict[tuple[tuple[str, int], ...], Fraction]
"""Monomial (sorted pairs of variable and power) to coefficient; no zero coefficients."""


def parse(text: str) -> Polynomial:
    """Read a polynomial with rational coefficients written with ``+ - * ** /`` and names.

    Parameters
    ----------
    text
        The polynomial, in Python's syntax.

    Raises
    ------
    ValueError
        If the text contains anything but that (a call, a negative power, division by a non-constant).

    Notes
    -----
    Source: Python's grammar, restricted to polynomials.

    Examples
    --------
    >>> parse("(x + 1)**2 - 1") == parse("x*(x + 2)")
    True
    >>> parse("1/x")
    Traceback (most recent call last):
    ...
    ValueError: text='1/x': expected a polynomial, found division by a polynomial that is not constant
    """

    def fail(what: str) -> ValueError:
        return ValueError(f"text={text!r}: expected a polynomial, found {what}")

    def walk(node: ast.expr) -> Polynomial:
        match node:
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                return {(): Fraction(value)} if value else {}
            case ast.Name(id=name):
                return {((name, 1),): Fraction(1)}
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return multiply({(): Fraction(-1)}, walk(operand))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return add(walk(left), walk(right))
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return add(walk(left), multiply({(): Fraction(-1)}, walk(right)))
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return multiply(walk(left), walk(right))
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                divisor = walk(right)
                if set(divisor) != {()}:
                    raise fail("division by a polynomial that is not constant")
                return multiply(walk(left), {(): 1 / divisor[()]})
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)) if power >= 0:
                result: Polynomial = {(): Fraction(1)}
                base = walk(left)
                for _ in range(power):
                    result = multiply(result, base)
                return result
            case _:
                raise fail(type(node).__name__)

    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        raise fail("text that is no expression") from None
    return walk(tree.body)


def add(p: Polynomial, q: Polynomial) -> Polynomial:
    """Sum of two polynomials.

    ``p + q``.

    Parameters
    ----------
    p, q
        Polynomials as made by ``parse``.

    Notes
    -----
    Source: algebra of polynomials over the rationals.

    Examples
    --------
    >>> add(parse("x"), parse("-x"))
    {}
    """
    total = dict(p)
    for monomial, coefficient in q.items():
        value = total.get(monomial, Fraction(0)) + coefficient
        if value:
            total[monomial] = value
        else:
            total.pop(monomial, None)
    return total


def multiply(p: Polynomial, q: Polynomial) -> Polynomial:
    """Product of two polynomials.

    ``p * q``.

    Parameters
    ----------
    p, q
        Polynomials as made by ``parse``.

    Notes
    -----
    Source: algebra of polynomials over the rationals.

    Examples
    --------
    >>> multiply(parse("x + 1"), parse("x - 1")) == parse("x**2 - 1")
    True
    """
    total: Polynomial = {}
    for left, a in p.items():
        for right, b in q.items():
            powers = dict(left)
            for name, power in right:
                powers[name] = powers.get(name, 0) + power
            total = add(total, {tuple(sorted(powers.items())): a * b})
    return total


def evaluate(p: Polynomial, values: Mapping[str, Fraction]) -> Fraction:
    """Value of a polynomial at rational numbers.

    ``p(x)`` as ``sum c * prod x_i^k_i``.

    Parameters
    ----------
    p
        Polynomials as made by ``parse``.
    values
        A rational number for every name in p.

    Raises
    ------
    KeyError
        If a name has no value.

    Notes
    -----
    Source: algebra of polynomials over the rationals.

    Examples
    --------
    >>> evaluate(parse("x**2*y - 1"), {"x": Fraction(1, 2), "y": Fraction(8)})
    Fraction(1, 1)
    """
    total = Fraction(0)
    for monomial, coefficient in p.items():
        for name, power in monomial:
            coefficient *= values[name] ** power
        total += coefficient
    return total


def is_nonnegative_combination(
    target: str,
    hypotheses: Sequence[str],
    terms: Sequence[tuple[Fraction | int, Mapping[int, int]]],
    squares: Sequence[str] = (),
) -> bool:
    r"""Whether ``target`` equals a combination of products of hypotheses and squares with weights >= 0.

    .. math:: \text{target} = \sum_j c_j \prod_i h_i^{k_{ji}}, \qquad c_j \ge 0,\ k_{ji} \ge 0,

    so that ``target >= 0`` wherever all ``h_i >= 0`` (a Handelman certificate; squares may be factors).

    Parameters
    ----------
    target, hypotheses
        Polynomials as text, see :func:`parse`.
    terms
        Pairs ``(c_j, {i: k_ji})``, exact numbers; an index past the hypotheses counts into ``squares``.
    squares
        Polynomials that are squared here before use, hence nonnegative without any hypothesis.

    Notes
    -----
    Source: D. Handelman, Pacific J. Math. 132 (1988).

    Examples
    --------
    >>> is_nonnegative_combination("x*y - x", ["x", "y - 1"], [(1, {0: 1, 1: 1})])
    True
    >>> is_nonnegative_combination("x*y - x", ["x", "y - 1"], [(-1, {0: 1, 1: 1})])
    False
    """
    factors = range(len(hypotheses) + len(squares))
    for c, powers in terms:
        if not isinstance(c, int | Fraction) or c < 0:
            return False
        if any(i not in factors or not isinstance(k, int) or k < 0 for i, k in powers.items()):
            return False
    parsed = [parse(h) for h in hypotheses] + [multiply(parse(p), parse(p)) for p in squares]
    total: Polynomial = {}
    for c, powers in terms:
        product: Polynomial = {(): Fraction(c)} if c else {}
        for index, power in powers.items():
            for _ in range(power):
                product = multiply(product, parsed[index])
        total = add(total, product)
    return total == parse(target)
