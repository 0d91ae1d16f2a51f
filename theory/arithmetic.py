"""One formula, many number types: the few operations that plain Python operators do not cover.

A bound is written once and evaluated with ``Fraction`` (exact), ``float``, NumPy arrays and torch tensors
(through the array API), sympy expressions, z3 terms and flint balls.  Operators do most of the work; this
module supplies minimum, maximum, division with a stated value at 0/0, exp and sqrt.  None of those packages
is imported unless one of its values is passed in.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj

from theory.tracing import Traced, lift

Kind = Literal["exact", "float", "array", "opaque"]


class Count(Fraction):
    """A sample size inside a formula: divides exactly like a Fraction, indexes like an int.

    Definition: ``Count(n) == Fraction(n)`` and ``range(Count(n)) == range(n)``.

    Domain: integers >= 1, made by a ``Bound`` from its M and K.

    Notes
    -----
    Source: convention of this package; see docs/property_testing.md.

    Examples
    --------
    >>> Count(3) / 2, list(range(Count(2)))
    (Fraction(3, 2), [0, 1])
    """

    __slots__ = ()

    def __index__(self) -> int:
        return self.numerator


def package(value: Any) -> str:
    """Name of the top-level package that defines the type of ``value``.

    Definition: the part of ``type(value).__module__`` before the first dot.

    Parameters
    ----------
    value
        Anything.

    Notes
    -----
    Source: Python data model.

    Examples
    --------
    >>> package(Fraction(1, 2)), package(np.float64(1))
    ('fractions', 'numpy')
    """
    return type(value).__module__.partition(".")[0]


def kind_of(values: Iterable[Any]) -> Kind:
    """Arithmetic in which a formula of these values runs: exact, float, array or opaque (symbols, balls).

    Definition: the last in the order ``exact < float < array < opaque`` among the kinds of the values.

    Parameters
    ----------
    values
        Numbers, arrays or symbols.

    Raises
    ------
    TypeError
        If a value is none of these (bool, None, text, complex).

    Notes
    -----
    Source: convention of this package; arrays as in the Python array API standard.

    Examples
    --------
    >>> kind_of([1, Fraction(1, 3)]), kind_of([1, 0.5]), kind_of([1, np.ones(2)])
    ('exact', 'float', 'array')
    """
    found: set[Kind] = {_kind(value) for value in values}
    for kind in ("opaque", "array", "float"):
        if kind in found:
            return kind
    return "exact"


def _kind(value: Any) -> Kind:
    if isinstance(value, bool | np.bool_ | str | complex) or value is None:
        raise TypeError(f"value={value!r}: expected a number, an array or a symbolic expression")
    if package(value) in ("sympy", "z3", "flint") or isinstance(
        value, Traced
    ):  # before the test for int: sympy integers pass as numbers
        return "opaque"
    if isinstance(value, int | np.integer | Fraction):
        return "exact"
    if isinstance(value, float | np.floating):
        return "float"
    if is_array_api_obj(value) and array_namespace(value).isdtype(value.dtype, ("integral", "real floating")):
        return "array"
    raise TypeError(f"value={value!r}: expected a number, an array or a symbolic expression")


def convert(values: Iterable[Any], kind: Kind) -> list[Any]:
    """Bring all values to one arithmetic; arrays become float64 on the device of the first array.

    Definition: ``convert(x, kind)`` has the same values in one arithmetic, rounded to float64 where it is not
    exact.

    Parameters
    ----------
    values
        Numbers, arrays or symbols.
    kind
        As found by ``kind_of``.

    Raises
    ------
    TypeError
        If a value is no number, array or symbol.

    Notes
    -----
    Source: convention of this package; arrays as in the Python array API standard.

    Examples
    --------
    >>> convert([1, Fraction(1, 2)], "exact"), convert([1, Fraction(1, 2)], "float")
    ([Fraction(1, 1), Fraction(1, 2)], [1.0, 0.5])
    """
    items = list(values)
    if kind == "exact":
        return [value if isinstance(value, Fraction) else Fraction(int(value)) for value in items]
    if kind == "float":
        return [_to_float(value) for value in items]
    if kind == "array":
        arrays = [value for value in items if _kind(value) == "array"]
        guests = [value for value in arrays if package(value) != "numpy"] or arrays  # NumPy yields to torch
        xp, where = array_namespace(*guests), device(guests[0])

        def one(value: Any) -> Any:
            if _kind(value) != "array":
                return xp.asarray(_to_float(value), dtype=xp.float64, device=where)
            if package(value) == package(guests[0]):
                return xp.astype(value, xp.float64)
            return xp.asarray(value, dtype=xp.float64, device=where)

        return [one(value) for value in items]
    like = next(value for value in items if _kind(value) == "opaque")
    return [_lift(value, package(like)) for value in items]


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64: its limit is the right answer for 1/M
        return math.inf


def _lift(value: Any, root: str) -> Any:
    if package(value) == root:
        return value
    if isinstance(value, int | np.integer | Fraction):
        ratio = Fraction(value) if isinstance(value, Fraction) else Fraction(int(value))
        if root in ("sympy", "theory"):
            rational = importlib.import_module("sympy").Rational(ratio.numerator, ratio.denominator)
            return rational if root == "sympy" else Traced(rational)
        if root == "z3":
            return importlib.import_module("z3").RealVal(str(ratio))
        arb = importlib.import_module("flint").arb
        return arb(ratio.numerator) / arb(ratio.denominator)
    return Traced(lift(value)) if root == "theory" else value


def _pairwise(name: str, python: Callable[..., Any], values: tuple[Any, ...]) -> Any:
    if len(values) == 1:  # max(iterable), as in Python
        values = tuple(values[0])
    kind = kind_of(values)
    if kind in ("exact", "float"):
        return python(values)
    values = tuple(convert(values, kind))
    root = package(values[0])
    if kind == "array":
        xp = array_namespace(*values)
        step: Callable[[Any, Any], Any] = getattr(xp, f"{name}imum")
    elif root == "sympy":
        return getattr(importlib.import_module("sympy"), name.capitalize())(*values)
    elif root == "theory":
        return Traced(_pairwise(name, python, tuple(value.expression for value in values)))
    elif root == "z3":
        z3 = importlib.import_module("z3")

        def step(x: Any, y: Any) -> Any:
            return z3.If((x <= y) if name == "min" else (x >= y), x, y)
    else:

        def step(x: Any, y: Any) -> Any:
            return getattr(x, name)(y)

    result = values[0]
    for value in values[1:]:
        result = step(result, value)
    return result


def minimum(*values: Any) -> Any:
    """Smallest value, elementwise for arrays, ``Min`` for sympy, ``If`` for z3.

    ``min(x_1, ..., x_n) <= x_i`` for every i, with equality for one.

    Parameters
    ----------
    values
        Numbers, arrays (broadcast) or symbols, or one iterable of them.

    Raises
    ------
    TypeError
        For None, text or complex values.

    Notes
    -----
    Source: elementary; for polynomials without case distinctions the solver needs ``If``.

    Examples
    --------
    >>> minimum(2, Fraction(1, 2)), minimum(np.array([1.0, 3.0]), 2).tolist()
    (Fraction(1, 2), [1.0, 2.0])
    """
    return _pairwise("min", min, values)


def maximum(*values: Any) -> Any:
    """Largest value, elementwise for arrays, ``Max`` for sympy, ``If`` for z3.

    ``max(x_1, ..., x_n) >= x_i`` for every i, with equality for one.

    Parameters
    ----------
    values
        Numbers, arrays (broadcast) or symbols, or one iterable of them.

    Raises
    ------
    TypeError
        For None, text or complex values.

    Notes
    -----
    Source: elementary; for polynomials without case distinctions the solver needs ``If``.

    Examples
    --------
    >>> maximum(2, Fraction(1, 2)), maximum(np.array([1.0, 3.0]), 2).tolist()
    (2, [2.0, 3.0])
    """
    return _pairwise("max", max, values)


def ratio(numerator: Any, denominator: Any, at_zero: int) -> Any:
    """Quotient of non-negative values; x/0 is infinite for x > 0 and ``at_zero`` for x = 0.

    ``x / y``; ``x / 0 = inf`` for x > 0 and ``0 / 0 = at_zero``.

    Parameters
    ----------
    numerator, denominator
        Values >= 0 in any arithmetic.
    at_zero
        The value at 0/0: the limit that the formula has there, 0 or 1.

    Raises
    ------
    TypeError
        If a value is no number, array or symbol.

    Notes
    -----
    Source: limits of the bounds at V = 0 and mu = 0; see docs/bounds.md, section "Edges".

    Examples
    --------
    >>> ratio(1, 4, at_zero=1), ratio(1, 0, at_zero=1), ratio(0, 0, at_zero=1)
    (Fraction(1, 4), inf, Fraction(1, 1))
    """
    kind = kind_of((numerator, denominator))
    numerator, denominator = convert((numerator, denominator), kind)
    if kind == "opaque":
        if isinstance(denominator, Traced):
            return Traced(ratio(numerator.expression, denominator.expression, at_zero))
        if package(denominator) == "sympy" and denominator.is_zero:
            sympy = importlib.import_module("sympy")
            return sympy.Integer(at_zero) if numerator.is_zero else sympy.oo
        return numerator / denominator
    if kind == "array":
        xp = array_namespace(numerator, denominator)
        numerator, denominator = xp.broadcast_arrays(numerator, denominator)
        zero = denominator == 0
        quotient = numerator / xp.where(zero, xp.ones_like(denominator), denominator)
        limit = xp.where(
            numerator > 0, xp.full_like(quotient, math.inf), xp.full_like(quotient, float(at_zero))
        )
        return xp.where(zero, limit, quotient)
    if denominator == 0:
        return math.inf if numerator > 0 else type(denominator)(at_zero)
    if numerator == denominator:  # also inf/inf, which arises only from values beyond float64
        return type(denominator)(1)
    return numerator / denominator


def _function(name: str, value: Any) -> Any:
    kind = _kind(value)
    if kind == "array":
        xp = array_namespace(value)
        return getattr(xp, name)(xp.astype(value, xp.float64))
    if kind == "opaque":
        root = package(value)
        if root == "theory":
            return Traced(_function(name, value.expression))
        if root == "sympy":
            return getattr(importlib.import_module("sympy"), name)(value)
        if root == "flint":
            return getattr(value, name)()
        raise TypeError(f"{name} of a z3 term: the solver decides polynomial formulas only")
    try:
        return getattr(math, name)(value)
    except OverflowError:
        return math.inf


def exp(value: Any) -> Any:
    """Exponential function for every number type (float for Fractions).

    ``exp(x) = e^x`` in the arithmetic of its argument.

    Parameters
    ----------
    value
        An int, Fraction or float (inf beyond float64), an array (elementwise, float64), a sympy expression or
        a flint ball.

    Raises
    ------
    TypeError
        For a z3 term (the solver decides polynomials only), None, text or a complex number.

    Notes
    -----
    Source: elementary; the packages named above compute it.

    Examples
    --------
    >>> exp(0), exp(np.zeros(2)).tolist()
    (1.0, [1.0, 1.0])
    """
    return _function("exp", value)


def log(value: Any) -> Any:
    """Natural logarithm for every number type (float for Fractions).

    ``exp(log(x)) = x`` in the arithmetic of its argument.

    Parameters
    ----------
    value
        An int, Fraction or float (x > 0 for numbers), an array (elementwise, float64), a sympy expression or
        a flint ball.

    Raises
    ------
    TypeError
        For a z3 term (the solver decides polynomials only), None, text or a complex number.
    ValueError
        For a number outside the domain, as ``math.log``.

    Notes
    -----
    Source: elementary; the packages named above compute it.

    Examples
    --------
    >>> log(1), log(np.ones(2)).tolist()
    (0.0, [0.0, 0.0])
    """
    return _function("log", value)


def sqrt(value: Any) -> Any:
    """Square root for every number type (float for Fractions).

    ``sqrt(x)^2 = x``, >= 0, in the arithmetic of its argument.

    Parameters
    ----------
    value
        An int, Fraction or float (x >= 0 for numbers), an array (elementwise, float64), a sympy expression or
        a flint ball.

    Raises
    ------
    TypeError
        For a z3 term (the solver decides polynomials only), None, text or a complex number.
    ValueError
        For a number outside the domain, as ``math.sqrt``.

    Notes
    -----
    Source: elementary; the packages named above compute it.

    Examples
    --------
    >>> sqrt(4), sqrt(np.array([9.0])).tolist()
    (2.0, [3.0])
    """
    return _function("sqrt", value)


def sample_size(value: Any, name: str) -> Any:
    """Validate a number of units: an integer >= 1, an array of them, or a symbol.

    ``n >= 1``, an integer.

    Parameters
    ----------
    value
        Number, array or symbol (symbols pass unchecked).
    name
        For the message.

    Raises
    ------
    ValueError, TypeError
        If a value is not a positive integer.

    Notes
    -----
    Source: definition of a mean of n units.

    Examples
    --------
    >>> sample_size(3, "M")
    3
    >>> sample_size(0, "M")
    Traceback (most recent call last):
        ...
    ValueError: M=0: expected an integer >= 1 (a number of independent units); pass at least one unit
    """
    expected = "expected an integer >= 1 (a number of independent units); pass at least one unit"
    try:
        kind = _kind(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: {expected}") from None
    if kind == "opaque":
        return value
    if kind == "array":
        xp = array_namespace(value)
        if 0 in value.shape:
            raise ValueError(f"{name}={value!r}: expected at least one sample size")
        wide = xp.astype(value, xp.float64)
        if not bool(xp.all((wide >= 1) & (wide == xp.floor(wide)))):
            raise ValueError(f"{name}={value!r}: {expected}")
        return value
    if value in (math.inf, -math.inf) or value != value or value != int(value) or value < 1:
        raise ValueError(f"{name}={value!r}: {expected}")
    return int(value)
