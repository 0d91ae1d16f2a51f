"""A bound as an object: a plain formula of (moments, M, K) with its assumptions, domain and source."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, overload

from array_api_compat import array_namespace

from theory.arithmetic import Count, convert, kind_of, maximum, minimum, package, sample_size
from theory.assumptions import Assumption, assumptions
from theory.moments import Moments
from theory.sizes import ANY, Sizes
from theory.symbolic_formula import from_sympy
from theory.tracing import Traced

if TYPE_CHECKING:
    import sympy


_REMEDY = (
    "use exp, sqrt, log, minimum and maximum of theory.bounds, and no branches, for arrays and expressions"
)


@dataclass(frozen=True)
class Bound:
    r"""An upper bound on P(T <= 0), T = mu_M^T g_K, as a function of (moments, M, K).

    Call it like a function: Fractions give a ``Fraction``, floats a ``float``, NumPy arrays and torch tensors
    a float64 array of the same kind (elementwise, broadcasting), sympy, z3 and flint values an expression.
    Nothing is clamped: a value >= 1 says nothing about a probability.

    .. math:: P(T \le 0) \le B(\text{inputs}, M, K) \quad \text{or, for direction "equal",}
              \quad P(T \le 0) = B .

    Parameters
    ----------
    name
        Short identifier.
    formula
        Callable of (inputs, M, K).
    assumptions
        What the bound needs.
    tightness
        When it is attained, or how loose it is.
    source
        Paper and theorem, or book.
    domain
        Inputs for which it is claimed, in words.
    direction
        "upper" for a bound on P(T <= 0) from above, "equal" for a reference value.
    status
        "proved", "claimed" (a user's formula) or "reference".
    M, K
        Sample sizes for which it is claimed.
    where
        Further condition on (M, K), for instance ``lambda M, K: M == K``.
    inputs
        The record type of the first argument.

    Raises
    ------
    ValueError, TypeError
        On calling it with M or K outside the domain, with another record type, or with arrays or symbols that
        the formula cannot take.

    Notes
    -----
    Source: paper 1, the form of the alignment theorem; each bound names its own in ``source``, see
    docs/bounds.md.

    Examples
    --------
    >>> half = Bound("half", lambda m, M, K: Fraction(1, 2), M=Sizes(low=2))
    >>> half(Moments(1, 1, 1), 2, 1), half.covers(1, 1)
    (Fraction(1, 2), False)
    >>> flip = Bound("flip", lambda m, M, K: 1 / (1 + M * m.m2))
    >>> flip.expression, flip.symbols["m2"] in flip.expression.free_symbols
    (1/(M*m2 + 1), True)
    >>> import sympy
    >>> flip.trace(flip.symbols | {"M": sympy.Integer(3)})
    1/(3*m2 + 1)
    """

    name: str
    formula: Callable[[Any, Any, Any], Any] = field(repr=False)
    assumptions: frozenset[Assumption] = frozenset()
    tightness: str = field(default="unknown", repr=False)
    source: str = field(default="user", repr=False)
    domain: str = field(default="every law with finite second moments", repr=False)
    direction: Literal["upper", "equal"] = "upper"
    status: Literal["proved", "claimed", "reference"] = "claimed"
    M: Sizes = ANY
    K: Sizes = ANY
    where: Callable[[int, int], bool] | None = field(default=None, repr=False)
    inputs: type[Any] = field(default=Moments, repr=False)
    symbolic: Callable[[], Any] | None = field(default=None, repr=False)

    def __call__(self, inputs: Any, M: Any, K: Any) -> Any:
        """Value of the bound; see the class for the arithmetic."""
        if not isinstance(inputs, self.inputs):
            raise TypeError(
                f"{self.name}: inputs={inputs!r}: expected {self.inputs.__name__}; see its constructors"
            )
        M, K = sample_size(M, "M"), sample_size(K, "K")
        self._check_sizes(M, K)
        if self.direction == "equal":
            return self.formula(inputs, M, K)
        names = [item.name for item in fields(inputs)]
        values = [getattr(inputs, name) for name in names]
        kind = kind_of([*values, M, K])
        if kind == "exact":
            return _exact(self.formula(inputs, Count(M), Count(K)))
        *converted, M, K = convert([*values, M, K], kind)
        new = dict(zip(names, converted, strict=True))
        if any(new[name] is not getattr(inputs, name) for name in names):
            inputs = replace(inputs, **new)
        if kind == "float":
            return float(self.formula(inputs, M, K))
        try:
            return _with_generic_builtins(self.formula)(inputs, M, K)
        except Exception as error:
            if not isinstance(error, TypeError | ValueError) and package(error) != "z3":
                raise
            raise TypeError(f"{self.name}: the formula works on numbers only ({error}); {_REMEDY}") from error

    def covers(self, M: int, K: int) -> bool:
        """Whether the bound is claimed for these sample sizes."""
        return M in self.M and K in self.K and (self.where is None or bool(self.where(M, K)))

    def _check_sizes(self, M: Any, K: Any) -> None:
        for name, size, allowed in (("M", M, self.M), ("K", K, self.K)):
            kind = kind_of((size,))
            if kind == "opaque":
                return
            if kind == "array":
                xp = array_namespace(size)
                lowest, highest = int(xp.min(size)), int(xp.max(size))
            else:
                lowest = highest = size
            if lowest not in allowed or highest not in allowed:
                raise ValueError(f"{self.name}: {name}={size!r}: expected {allowed.text(name)}")
        if self.where is not None and kind_of((M, K)) == "exact" and not self.where(M, K):
            raise ValueError(f"{self.name}: M={M}, K={K}: outside the condition `where` of this bound")

    @property
    def symbols(self) -> dict[str, sympy.Symbol]:
        """The sympy symbols of ``expression``: fields of the inputs (reals) and M, K (positive integers)."""
        import sympy

        signed = {"mean", "third"}
        found = {
            item.name: sympy.Symbol(item.name, real=True)
            if item.name in signed
            else sympy.Symbol(item.name, nonnegative=True)
            for item in fields(self.inputs)
        }
        return found | {name: sympy.Symbol(name, positive=True, integer=True) for name in ("M", "K")}

    @property
    def expression(self) -> sympy.Expr:
        """The bound as a sympy expression.

        Raises
        ------
        TypeError
            If the formula branches on values or calls functions that know numbers only.
        """
        return self.trace(self.symbols) if self.symbolic is None else self.symbolic()

    def trace(self, values: Mapping[str, Any]) -> sympy.Expr:
        """The formula at given SymPy values of the inputs and of M and K, followed by ``theory.tracing``.

        Parameters
        ----------
        values
            SymPy expressions by name: the fields of the inputs, M and K.

        Raises
        ------
        TypeError
            If the formula branches on values or calls functions that know numbers only.
        """
        import sympy

        traced = {name: Traced(value) for name, value in values.items()}
        inputs = self.inputs(**{item.name: traced[item.name] for item in fields(self.inputs)})
        try:
            value = _with_generic_builtins(self.formula)(inputs, traced["M"], traced["K"])
        except (TypeError, AttributeError, ValueError) as error:
            raise TypeError(f"{self.name}: the formula works on numbers only ({error}); {_REMEDY}") from error
        return value.expression if isinstance(value, Traced) else sympy.sympify(value)

    def latex(self) -> str:
        """The expression in LaTeX.

        Examples
        --------
        >>> Bound("flip", lambda m, M, K: 1 / (1 + M * m.m2)).latex()
        '\\\\frac{1}{M m_{2} + 1}'
        """
        import sympy

        return str(sympy.latex(self.expression))


def _exact(value: Any) -> Any:
    return Fraction(value) if isinstance(value, int) else Fraction(value) if type(value) is Count else value


def _with_generic_builtins(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Let Python's own ``min`` and ``max`` inside a formula act on arrays and symbols.

    The function is rebuilt at call time, so that names defined after the formula are seen.
    """
    if not isinstance(formula, types.FunctionType):
        return formula
    scope = formula.__globals__
    swap = {name: new for name, new in (("min", minimum), ("max", maximum)) if name not in scope}
    if not swap.keys() & set(formula.__code__.co_names):
        return formula
    rebuilt = types.FunctionType(
        formula.__code__, {**scope, **swap}, formula.__name__, formula.__defaults__, formula.__closure__
    )
    rebuilt.__kwdefaults__ = formula.__kwdefaults__
    return rebuilt


@overload
def bound(formula: Callable[[Any, Any, Any], Any] | sympy.Expr, /, **options: Any) -> Bound: ...
@overload
def bound(
    *,
    assumes: Assumption | str | Iterable[Assumption | str] | None = None,
    M: Any = None,
    K: Any = None,
    where: Callable[[int, int], bool] | None = None,
    name: str | None = None,
    source: str = "user",
    inputs: type[Any] = Moments,
) -> Callable[[Callable[[Any, Any, Any], Any]], Bound]: ...


def bound(formula: Any = None, /, **options: Any) -> Any:
    """Turn a plain formula of (moments, M, K), or a sympy expression, into a ``Bound``.

    Claim: P(T <= 0) <= formula(moments, M, K), T = mu_M^T g_K.

    Use it bare (``@bound``), with options (``@bound(assumes="Gaussian units", M=">=2")``), or as a call.
    In a formula ``M * K / (M + K)`` is exact when the moments are; ``min`` and ``max`` work for every number
    type; take exp, sqrt and log from ``theory.bounds`` (with ``math.exp`` it works for numbers only).

    Parameters
    ----------
    formula
        Callable of (moments, M, K), or a sympy expression in symbols among m2, a, t, V, d_par, d_2, d_align,
        n_eff, M, K.
    assumes
        Assumption values, iterables of them, phrases separated by commas, or nothing.
    M, K
        Sample sizes claimed: ``None`` (all), ``3``, ``">=2"``, ``(2, 8)``, ``range(2, 9)``.
    where
        Further condition on (M, K).
    name, source
        For reports; the name of the function by default.
    inputs
        Record type of the first argument.

    Raises
    ------
    TypeError
        If the formula is neither callable nor a sympy expression.
    ValueError
        On unknown assumptions, sizes, or symbols.

    Notes
    -----
    Source: the claim is the user's; how it is tested: docs/property_testing.md.

    Examples
    --------
    >>> @bound(assumes="independent units, finite second moments", M=">=2")
    ... def mine(m, M, K):
    ...     return 1 / (1 + M * K / (M + K) * m.d_align)
    >>> mine(Moments(1, 1, 1), 2, 2)
    Fraction(1, 2)
    >>> mine.M
    Sizes(low=2, high=None)
    """
    if formula is None:
        return lambda function: _make(function, **options)
    return _make(formula, **options)


def _make(
    formula: Any,
    *,
    assumes: Assumption | str | Iterable[Assumption | str] | None = None,
    M: Any = None,
    K: Any = None,
    where: Callable[[int, int], bool] | None = None,
    name: str | None = None,
    source: str = "user",
    inputs: type[Any] = Moments,
) -> Bound:
    symbolic = None
    if package(formula) == "sympy":
        name = name or str(formula)
        formula, symbolic = from_sympy(formula)
    elif not callable(formula):
        raise TypeError(f"formula={formula!r}: expected a callable of (moments, M, K) or a sympy expression")
    return Bound(
        name=name or str(getattr(formula, "__name__", "bound")),
        formula=formula,
        assumptions=assumptions(assumes),
        source=source,
        M=Sizes.read(M, "M"),
        K=Sizes.read(K, "K"),
        where=where,
        inputs=inputs,
        symbolic=symbolic,
    )
