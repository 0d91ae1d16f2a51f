"""A bound as an object: a plain formula of (moments, M, K) with its assumptions, domain and source."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, overload

from array_api_compat import array_namespace

from theory.arithmetic import (
    Count,
    convert,
    exp,
    kind_of,
    log,
    maximum,
    minimum,
    package,
    sample_size,
    sqrt,
)
from theory.moments import Moments
from theory.tracing import Traced

if TYPE_CHECKING:
    import sympy


class Assumption(Enum):
    """What a bound needs to be true; a result carries the assumptions it rests on.

    Examples
    --------
    >>> Assumption.GAUSSIAN.value
    'Gaussian units'
    """

    IID = "independent and identically distributed units"
    INDEPENDENT_SAMPLES = "independent units"
    FINITE_SECOND_MOMENT = "finite second moments"
    FINITE_FOURTH_MOMENT = "finite fourth moments"
    NONZERO_MEAN = "nonzero mean"
    BOUNDED = "bounded units"
    SUBGAUSSIAN = "sub-Gaussian units"
    GAUSSIAN = "Gaussian units"
    GIVEN_TRAIN_MEAN = "conditional on the training mean"


_ALIASES = {
    "iid": Assumption.IID,
    "independent samples": Assumption.INDEPENDENT_SAMPLES,
    "independence": Assumption.INDEPENDENT_SAMPLES,
    "bounded": Assumption.BOUNDED,
    "sub-gaussian": Assumption.SUBGAUSSIAN,
    "subgaussian": Assumption.SUBGAUSSIAN,
    "gaussian": Assumption.GAUSSIAN,
    "given train mean": Assumption.GIVEN_TRAIN_MEAN,
}


def assumptions(given: Assumption | str | Iterable[Assumption | str] | None) -> frozenset[Assumption]:
    """Read assumptions from values, phrases separated by commas, or a mixture of both.

    Parameters
    ----------
    given
        ``None`` for nothing beyond what every bound here needs (independent, identically distributed units).

    Raises
    ------
    ValueError
        If a phrase names no assumption.

    Examples
    --------
    >>> sorted(a.name for a in assumptions("independent units, finite second moments"))
    ['FINITE_SECOND_MOMENT', 'INDEPENDENT_SAMPLES']
    >>> assumptions("unicorns")
    Traceback (most recent call last):
        ...
    ValueError: assumes='unicorns': expected Assumption values or phrases among 'independent ...
    """
    if given is None:
        return frozenset()
    if isinstance(given, Assumption):
        return frozenset({given})
    if not isinstance(given, str):
        return frozenset().union(*(assumptions(item) for item in given))
    phrases = {item.value.lower(): item for item in Assumption} | _ALIASES
    phrases |= {item.name.lower().replace("_", " "): item for item in Assumption}
    found = set()
    for phrase in (part.strip().lower() for part in given.split(",")):
        for candidate in (phrase, phrase.removesuffix("s"), phrase + "s"):
            if candidate in phrases:
                found.add(phrases[candidate])
                break
        else:
            raise ValueError(
                f"assumes={given!r}: expected Assumption values or phrases among "
                + ", ".join(repr(item.value) for item in Assumption)
                + "; separate phrases by commas"
            )
    return frozenset(found)


@dataclass(frozen=True)
class Sizes:
    """The range of a sample size for which a bound is claimed.

    Parameters
    ----------
    low, high
        Inclusive limits; ``high=None`` for no limit.

    Examples
    --------
    >>> Sizes.read(">=2"), Sizes.read(3), Sizes.read(range(1, 5)), Sizes.read(None)
    (Sizes(low=2, high=None), Sizes(low=3, high=3), Sizes(low=1, high=4), Sizes(low=1, high=None))
    >>> Sizes.read((2, 8)).text("M"), 9 in Sizes.read((2, 8))
    ('2 <= M <= 8', False)
    """

    low: int = 1
    high: int | None = None

    @classmethod
    def read(cls, given: Any, name: str = "M") -> Sizes:
        """Accept ``None`` (any), ``3`` (exactly), ``">=2"``, ``"<=8"``, ``(2, None)`` or a ``range``."""
        try:
            if given is None:
                return cls()
            if isinstance(given, Sizes):
                return given
            if isinstance(given, str):
                text = given.replace(" ", "").replace("≥", ">=").replace("≤", "<=")
                low, high = (int(text[2:]), None) if text.startswith(">=") else (1, int(text[2:]))
                if text[:2] not in (">=", "<="):
                    raise ValueError
            elif isinstance(given, range) and given.step == 1:
                low, high = given.start, given.stop - 1
            elif isinstance(given, tuple):
                low, high = given
            elif isinstance(given, int) and not isinstance(given, bool):
                low = high = given
            else:
                raise ValueError
            if low < 1 or (high is not None and high < low):
                raise ValueError
        except (ValueError, TypeError):
            raise ValueError(
                f"{name}={given!r}: expected a number >= 1, '>=2', '<=8', (low, high), a range, or None"
            ) from None
        return cls(low, high)

    def __contains__(self, size: int) -> bool:
        return self.low <= size and (self.high is None or size <= self.high)

    def text(self, name: str) -> str:
        """The range in words, for messages."""
        if self.high is None:
            return f"{name} >= {self.low}"
        return f"{name} = {self.low}" if self.low == self.high else f"{self.low} <= {name} <= {self.high}"


_REMEDY = (
    "use exp, sqrt, log, minimum and maximum of theory.bounds, and no branches, for arrays and expressions"
)


@dataclass(frozen=True)
class Bound:
    """An upper bound on P(T <= 0), T = mu_M^T g_K, as a function of (moments, M, K).

    Call it like a function: Fractions give a ``Fraction``, floats a ``float``, NumPy arrays and torch tensors
    a float64 array of the same kind (elementwise, broadcasting), sympy, z3 and flint values an expression.
    Nothing is clamped: a value >= 1 says nothing about a probability.

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
    M: Sizes = Sizes()
    K: Sizes = Sizes()
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
        if any(new is not old for new, old in zip(converted, values, strict=True)):
            inputs = replace(inputs, **dict(zip(names, converted, strict=True)))
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
        formula, symbolic = _from_sympy(formula)
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


def _from_sympy(expression: Any) -> tuple[Callable[[Any, Any, Any], Any], Callable[[], Any]]:
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
        "Min": minimum,
        "Max": maximum,
        "min": minimum,
        "max": maximum,
        "exp": exp,
        "log": log,
        "sqrt": sqrt,
    }
    compiled = sympy.lambdify(used, expression, modules=[numeric, "math"])

    def formula(m: Any, M: Any, K: Any) -> Any:
        values = [value_of(symbol.name, m, M, K) for symbol in used]
        if all(isinstance(value, Fraction) for value in values):  # lambdify would print 1/2 as a float
            pairs = [
                (s, sympy.Rational(v.numerator, v.denominator)) for s, v in zip(used, values, strict=True)
            ]
            result = expression.subs(pairs)
            if result.is_Rational:
                return Fraction(int(result.p), int(result.q))
            if not result.is_finite:
                raise ZeroDivisionError(f"{expression} at {pairs}")
            return float(result)
        return compiled(*values)

    return formula, lambda: expression
