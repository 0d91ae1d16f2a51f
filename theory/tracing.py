"""Values that record what a formula computes and refuse to be compared, so that a branch cannot go unnoticed.

A SymPy symbol is true in ``if x`` and unequal to 5 in ``if x == 5``: a formula with such a branch would
silently turn into the expression of one side of it.  A ``Traced`` value raises ``TypeError`` instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import sympy


def lift(value: Any) -> Any:
    """A number as SymPy value: exact, and a float as the decimal it prints as.

    0.1 in a formula means one tenth; the nearest binary number would be neither readable nor exact.

    Examples
    --------
    >>> lift(0.1), lift(Fraction(1, 3)), lift("x")
    (1/10, 1/3, NotImplemented)
    """
    import sympy

    if isinstance(value, Traced):
        return value.expression
    if isinstance(value, Fraction):
        return sympy.Rational(value.numerator, value.denominator)
    if isinstance(value, int | float) and not isinstance(value, bool):
        decimal = isinstance(value, float) and math.isfinite(value)
        return sympy.Rational(repr(float(value))) if decimal else sympy.sympify(value)
    return NotImplemented


def _binary(operation: Callable[[Any, Any], Any], swapped: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Traced, other: Any) -> Any:
        right = lift(other)
        if right is NotImplemented:
            return NotImplemented
        left = self.expression
        return Traced(operation(right, left) if swapped else operation(left, right))

    return method


def _refuse(self: Traced, *others: Any) -> NoReturn:
    raise TypeError("the formula compares or tests a value, which an expression cannot follow")


class Traced:
    """A SymPy expression under arithmetic only.

    Examples
    --------
    >>> import sympy
    >>> x = Traced(sympy.Symbol("x"))
    >>> (1 / (1 + 2 * x)).expression
    1/(2*x + 1)
    >>> x == 5
    Traceback (most recent call last):
        ...
    TypeError: the formula compares or tests a value, which an expression cannot follow
    """

    __slots__ = ("expression",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expression: sympy.Expr) -> None:
        self.expression = expression

    __add__ = _binary(lambda x, y: x + y)
    __radd__ = _binary(lambda x, y: x + y, swapped=True)
    __sub__ = _binary(lambda x, y: x - y)
    __rsub__ = _binary(lambda x, y: x - y, swapped=True)
    __mul__ = _binary(lambda x, y: x * y)
    __rmul__ = _binary(lambda x, y: x * y, swapped=True)
    __truediv__ = _binary(lambda x, y: x / y)
    __rtruediv__ = _binary(lambda x, y: x / y, swapped=True)
    __pow__ = _binary(lambda x, y: x**y)
    __rpow__ = _binary(lambda x, y: x**y, swapped=True)
    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse

    def __neg__(self) -> Traced:
        return Traced(-self.expression)

    def __pos__(self) -> Traced:
        return self
