r"""Proofs for all reals: an implication between polynomial inequalities is proved, refuted or left undecided.

Two independent ways, and a proof says which of them ran:

* an exact algebraic certificate, conclusion :math:`=\sum_j c_j\prod_i h_i^{k_{ji}}` with :math:`c_j\ge 0` and
  hypotheses :math:`h_i\ge 0` (Handelman), found by linear programming, made rational, and re-checked by
  :mod:`theory.verify`, which shares no code with the search;
* a refutation of the negation by the SMT solver z3 (optional, extra ``proofs``).

Everything is stated without divisions: with uninterpreted ``x/0`` a solver "refutes" true bounds at V = 0.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import scipy.optimize
import sympy as sp

from theory import verify

__all__ = [
    "FALSE_VARIANTS",
    "THEOREMS",
    "Certificate",
    "CounterModel",
    "Implication",
    "Proof",
    "Undecided",
    "find_certificate",
    "prove",
]


@dataclass(frozen=True)
class Implication:
    r"""``hypotheses`` imply ``conclusion``, for all real values of the symbols.

    Hypotheses and conclusion are ``>=``, ``>``, ``<=``, ``<`` or ``Eq`` relations between polynomials; a
    maximum is a symbol ``w`` with the hypotheses ``w >= a``, ``w >= t``.

    Raises
    ------
    ValueError
        If a side is not a polynomial with rational coefficients: multiply denominators out first; or if a
        symbol carries assumptions, which the solver would not see.

    Examples
    --------
    >>> x, y = sp.symbols("x y", real=True)
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


@dataclass(frozen=True)
class Proof:
    """An implication that holds for all reals; ``methods`` says what established it.

    Examples
    --------
    >>> proof = prove(next(t for t in THEOREMS if t.name == "exact-below-align"))
    >>> proof.methods, [certificate.is_valid() for certificate in proof.certificates]
    (('algebraic certificate', 'z3 unsat'), [True])
    """

    implication: Implication
    methods: tuple[str, ...]
    certificates: tuple[Certificate, ...]
    """Exact identities, re-checked; empty when only the solver proved it."""
    seconds: float = field(compare=False)

    def __repr__(self) -> str:
        return f"Proof({self.implication.name}: {', '.join(self.methods)})"


@dataclass(frozen=True)
class CounterModel:
    """Rational values at which the hypotheses hold and the conclusion fails (re-checked exactly).

    Examples
    --------
    >>> false = next(t for t in FALSE_VARIANTS if t.name == "false-n_eff")
    >>> false.holds_at(prove(false).model), len(false.symbols)
    (False, 6)
    """

    implication: Implication
    model: dict[str, Fraction]
    seconds: float = field(compare=False)

    def __repr__(self) -> str:
        values = ", ".join(f"{k}={v}" for k, v in self.model.items())
        return f"CounterModel({self.implication.name}: {values})"


@dataclass(frozen=True)
class Undecided:
    """Neither proved nor refuted; ``reason`` says what was tried.

    Examples
    --------
    >>> x = sp.Symbol("x", real=True)
    >>> Undecided(Implication("open", "x^2 >= x", (), x**2 >= x), "nothing was tried", 0.0)
    Undecided(open: nothing was tried)
    """

    implication: Implication
    reason: str
    seconds: float = field(compare=False)

    def __repr__(self) -> str:
        return f"Undecided({self.implication.name}: {self.reason})"


def _slack(relation: Any) -> list[sp.Expr]:
    """Polynomials that are >= 0 where the relation holds (weakened if strict)."""
    difference = sp.expand(relation.lhs - relation.rhs)
    match relation:
        case sp.GreaterThan() | sp.StrictGreaterThan():
            return [difference]
        case sp.LessThan() | sp.StrictLessThan():
            return [sp.expand(-difference)]
        case sp.Equality():
            return [difference, sp.expand(-difference)]
    raise ValueError(f"relation={relation}: expected >=, >, <=, < or Eq")


@dataclass(frozen=True)
class Certificate:
    r"""An exact identity :math:`\text{target} = \sum_j c_j \prod_i h_i^{k_{ji}}` with :math:`c_j \ge 0`.

    Examples
    --------
    >>> identity = Certificate("x*y - x", ("x", "y - 1"), (), ((Fraction(1), {0: 1, 1: 1}),))
    >>> print(identity, identity.is_valid())
    x*y - x = (x)*(y - 1) True
    """

    target: str
    hypotheses: tuple[str, ...]
    squares: tuple[str, ...]
    terms: tuple[tuple[Fraction, dict[int, int]], ...]

    def is_valid(self) -> bool:
        """Re-check the identity in :mod:`theory.verify`, which shares no code with the search."""
        return verify.is_nonnegative_combination(self.target, self.hypotheses, self.terms, self.squares)

    def __str__(self) -> str:
        factors = [*self.hypotheses, *(f"{p}**2" for p in self.squares)]
        parts = []
        for weight, powers in self.terms:
            product = [f"({factors[i]})" + (f"**{k}" if k > 1 else "") for i, k in powers.items()]
            if weight != 1 or not product:
                product.insert(0, str(weight))
            parts.append("*".join(product))
        return f"{self.target} = {' + '.join(parts) or '0'}"


@functools.cache
def find_certificate(implication: Implication, degree: int = 4) -> tuple[Certificate, ...]:
    r"""Search exact certificates.

    .. math:: \text{conclusion} = \sum_j c_j \prod_i h_i^{k_{ji}}, \qquad c_j \ge 0

    The weights come from a linear program in floats, are solved again exactly on their support, and the
    identity is re-checked by :func:`theory.verify.is_nonnegative_combination`; floats never decide anything.
    Squares of the symbols count as hypotheses.

    Parameters
    ----------
    implication
        With a ``>=``, ``<=`` or ``=`` conclusion (a strict conclusion has no such certificate).
    degree
        Largest number of hypotheses multiplied together.

    Returns
    -------
    One certificate, two (for both directions) if the conclusion is an equation, none if the search fails.

    References
    ----------
    D. Handelman, "Representing polynomials by positive linear functions on compact convex polyhedra",
    Pacific J. Math. 132 (1988).

    Examples
    --------
    >>> x, y = sp.symbols("x y", real=True)
    >>> demo = Implication("demo", "x, y >= 0 imply xy + x >= 0", (x >= 0, y >= 0), x * y + x >= 0)
    >>> print(*find_certificate(demo))
    x*y + x = (x) + (x)*(y)
    """
    if isinstance(implication.conclusion, (sp.StrictGreaterThan, sp.StrictLessThan)):
        return ()
    symbols = implication.symbols
    hypotheses = [h for relation in implication.hypotheses for h in _slack(relation)]
    factors = [h.as_poly(*symbols) for h in hypotheses] + [(x**2).as_poly(*symbols) for x in symbols]
    one = sp.Integer(1).as_poly(*symbols)
    certificates: list[Certificate] = []
    for target in _slack(implication.conclusion):
        goal = target.as_poly(*symbols)
        if goal.is_zero:
            terms: list[tuple[Fraction, dict[int, int]]] | None = []
        for size in range(1, degree + 1) if not goal.is_zero else ():
            products: list[tuple[dict[int, int], Any]] = [({}, one)]
            for k in range(1, size + 1):
                for combo in itertools.combinations_with_replacement(range(len(factors)), k):
                    if sum(factors[i].total_degree() for i in combo) <= goal.total_degree() + 3:
                        product = functools.reduce(lambda p, i: p * factors[i], combo, one)
                        products.append(({i: combo.count(i) for i in combo}, product))
            terms = _solve_nonnegative(goal, products)
            if terms is not None:
                break
        if terms is None:
            return ()
        certificate = Certificate(
            str(target), tuple(map(str, hypotheses)), tuple(map(str, symbols)), tuple(terms)
        )
        if not certificate.is_valid():
            return ()
        certificates.append(certificate)
    return tuple(certificates)


def _solve_nonnegative(
    goal: Any, products: list[tuple[dict[int, int], Any]]
) -> list[tuple[Fraction, dict[int, int]]] | None:
    monomials = sorted({m for _, p in products for m in p.monoms()} | set(goal.monoms()))
    index = {m: i for i, m in enumerate(monomials)}
    matrix = np.zeros((len(monomials), len(products)))
    for j, (_, p) in enumerate(products):
        for m, c in p.terms():
            matrix[index[m], j] = float(c)
    rhs = np.zeros(len(monomials))
    for m, c in goal.terms():
        rhs[index[m]] = float(c)
    solution = scipy.optimize.linprog(
        np.ones(len(products)), A_eq=matrix, b_eq=rhs, bounds=(0, None), method="highs-ds"
    )
    if solution.status != 0:
        return None
    support = [j for j in range(len(products)) if solution.x[j] > 1e-9]
    if not support:
        return []
    exact = sp.Matrix(
        len(monomials), len(support), lambda i, j: products[support[j]][1].coeff_monomial(monomials[i])
    )
    right = sp.Matrix([goal.coeff_monomial(m) for m in monomials])
    try:
        weights, free = exact.gauss_jordan_solve(right)
    except ValueError:
        return None
    weights = weights.subs(dict.fromkeys(free, 0))
    return [
        (Fraction(int(w.p), int(w.q)), products[j][0])
        for w, j in zip(weights, support, strict=True)
        if w != 0
    ]


def _to_z3(expression: Any, variables: Mapping[sp.Symbol, Any]) -> Any:
    import z3

    match expression:
        case sp.Symbol():
            return variables[expression]
        case sp.Rational():
            return z3.RealVal(f"{expression.p}/{expression.q}")
        case sp.Add():
            return functools.reduce(lambda a, b: a + b, (_to_z3(e, variables) for e in expression.args))
        case sp.Mul():
            return functools.reduce(lambda a, b: a * b, (_to_z3(e, variables) for e in expression.args))
        case sp.Pow() if expression.exp.is_Integer and expression.exp > 0:
            base = _to_z3(expression.base, variables)
            return functools.reduce(lambda a, b: a * b, [base] * int(expression.exp))
    raise ValueError(f"expression={expression}: expected a polynomial")


def _z3_relation(relation: Any, variables: Mapping[sp.Symbol, Any]) -> Any:
    left, right = _to_z3(relation.lhs, variables), _to_z3(relation.rhs, variables)
    match relation:
        case sp.StrictGreaterThan():
            return left > right
        case sp.GreaterThan():
            return left >= right
        case sp.StrictLessThan():
            return left < right
        case sp.LessThan():
            return left <= right
        case sp.Equality():
            return left == right
    raise ValueError(f"relation={relation}: expected >=, >, <=, < or Eq")


def _as_fraction(value: Any) -> Fraction:
    import z3

    if z3.is_algebraic_value(value):
        value = value.approx(30)
    return Fraction(value.numerator_as_long(), value.denominator_as_long())


def prove(
    implication: Implication, *, timeout: float = 10.0, degree: int = 4
) -> Proof | CounterModel | Undecided:
    """Prove or refute an implication for all reals.

    Parameters
    ----------
    implication
        What to prove.
    timeout
        Seconds for the solver.
    degree
        Largest number of hypotheses multiplied in the algebraic certificate.

    Returns
    -------
    :class:`Proof` (saying which of the two methods succeeded), :class:`CounterModel` (re-checked in exact
    rational arithmetic) or :class:`Undecided`.

    Examples
    --------
    >>> x = sp.Symbol("x", real=True)
    >>> prove(Implication("squares", "x^2 >= x", (), x**2 >= x)).model["x"] < 1
    True
    """
    start = time.perf_counter()
    status, model = _ask_solver(implication, timeout)
    if model is not None and not implication.holds_at(model):
        return CounterModel(implication, model, time.perf_counter() - start)
    certificates = find_certificate(implication, degree)
    if certificates and status == "sat":
        raise RuntimeError(f"{implication.name}: certificate and solver disagree; please report this")
    methods = ["algebraic certificate"] * bool(certificates) + ["z3 unsat"] * (status == "unsat")
    seconds = time.perf_counter() - start
    if methods:
        return Proof(implication, tuple(methods), certificates, seconds)
    reason = {
        "missing": "pip install 'gradient-alignment[proofs]' for the solver z3",
        "sat": "the solver's model is irrational and did not survive rounding",
        "unknown": "z3 unknown",
    }[status]
    return Undecided(implication, f"no certificate up to degree {degree}; {reason}", seconds)


def _ask_solver(implication: Implication, timeout: float) -> tuple[str, dict[str, Fraction] | None]:
    """Status of the negation (``missing`` without z3), and a rational model if it is satisfiable."""
    try:
        import z3
    except ImportError:
        return "missing", None
    variables = {s: z3.Real(str(s)) for s in implication.symbols}
    solver = z3.Solver()
    solver.set("timeout", int(1000 * timeout))
    for h in implication.hypotheses:
        solver.add(_z3_relation(h, variables))
    solver.add(z3.Not(_z3_relation(implication.conclusion, variables)))
    status = str(solver.check())
    if status != "sat":
        return status, None
    model = solver.model()
    return status, {str(s): _as_fraction(model.eval(v, model_completion=True)) for s, v in variables.items()}


# --- The published inequalities, without divisions ---

_s, _a, _t, _w, _v = sp.symbols("m2 a t w v", real=True)
_M, _K, _M1, _K1, _b = sp.symbols("M K M1 K1 b", real=True)
_p, _q, _p1, _q1 = sp.symbols("d_par d_2 d_par1 d_21", real=True)
_T, _u, _N, _c, _s2, _l, _m = sp.symbols("T u N c s2 lambda_ m", real=True)

_MOMENTS = (_s >= 0, _a >= 0, _t >= 0)
_SIZES = (_M >= 1, _K >= 1)
_DIMENSIONS = (_p >= 0, _q >= 0)


def _V(M: Any, K: Any) -> Any:
    """M K Var T, a polynomial."""
    return (M + K) * _a + _t


THEOREMS: tuple[Implication, ...] = (
    Implication(
        "cantelli-pointwise",
        "T <= 0, u >= 0, E T = m2 >= 0: 1 <= ((u + m2 - T)/(u + m2))^2, a quadratic above the indicator",
        (_T <= 0, _u >= 0, _s >= 0),
        (_u + _s - _T) ** 2 >= (_u + _s) ** 2,
        "Cantelli 1928; Boucheron, Lugosi, Massart, Concentration Inequalities, exercise 2.3",
    ),
    Implication(
        "cantelli-optimum",
        "(V + u^2)/(u + m2)^2 at u = V/m2 is V/(V + m2^2): (V + u^2)(V + m2^2) = V (u + m2)^2 with u m2 = V",
        (sp.Eq(_u * _s, _v), _s > 0, _v >= 0),
        sp.Eq((_v + _u**2) * (_v + _s**2), _v * (_u + _s) ** 2),
        "the minimiser over u of the expectation of cantelli-pointwise",
    ),
    Implication(
        "exact-below-align",
        "B_exact <= B_align: (M+K+1) w >= (M+K) a + t for every w >= max(a, t)",
        (*_MOMENTS, *_SIZES, _w >= _a, _w >= _t),
        (_M + _K + 1) * _w >= _V(_M, _K),
        "paper 1, theorem 1",
    ),
    Implication(
        "align-below-one",
        "B_align <= 1: w (M+K+1) <= w (M+K+1) + M K m2^2",
        (*_MOMENTS, *_SIZES, _w >= 0),
        _w * (_M + _K + 1) <= _w * (_M + _K + 1) + _M * _K * _s**2,
        "paper 1, theorem 1",
    ),
    Implication(
        "exact-falls-in-M",
        "Var T at M1 >= M is at most Var T at M, multiplied by M M1 K",
        (*_MOMENTS, *_SIZES, _M1 >= _M),
        _M * _V(_M1, _K) <= _M1 * _V(_M, _K),
        "paper 1, section on sample sizes",
    ),
    Implication(
        "exact-falls-in-K",
        "Var T at K1 >= K is at most Var T at K, multiplied by M K K1",
        (*_MOMENTS, *_SIZES, _K1 >= _K),
        _K * _V(_M, _K1) <= _K1 * _V(_M, _K),
        "paper 1, section on sample sizes",
    ),
    Implication(
        "align-falls-in-M",
        "n_eff grows with M",
        (*_SIZES, _M1 >= _M),
        _M1 * _K * (_M + _K + 1) >= _M * _K * (_M1 + _K + 1),
        "paper 1, theorem 1",
    ),
    Implication(
        "align-falls-in-K",
        "n_eff grows with K",
        (*_SIZES, _K1 >= _K),
        _M * _K1 * (_M + _K + 1) >= _M * _K * (_M + _K1 + 1),
        "paper 1, theorem 1",
    ),
    Implication(
        "exact-falls-in-d_par",
        "Var T / m2^2 = (1/M + 1/K)/d_par + 1/(M K d_2) falls in d_par, multiplied out",
        (*_SIZES, _p > 0, _q > 0, _p1 >= _p),
        ((_M + _K) * _q + _p1) * _p <= ((_M + _K) * _q + _p) * _p1,
        "paper 1, theorem 1",
    ),
    Implication(
        "exact-falls-in-d_2",
        "Var T / m2^2 falls in d_2, multiplied out",
        (*_SIZES, _p > 0, _q > 0, _q1 >= _q),
        ((_M + _K) * _q1 + _p) * _q <= ((_M + _K) * _q + _p) * _q1,
        "paper 1, theorem 1",
    ),
    Implication(
        "align-falls-in-d_align",
        "1/(1 + n d) falls in d for n >= 0: (1 + n d') >= (1 + n d)",
        (_u >= 0, _p >= 0, _p1 >= _p),
        1 + _u * _p1 >= 1 + _u * _p,
        "paper 1, theorem 1",
    ),
    Implication(
        "regroup-identity",
        "at b d_2 = d_par: (M + K + b) d_2 = (M + K) d_2 + d_par, so B_align(b) = B_exact",
        (*_SIZES, *_DIMENSIONS, sp.Eq(_b * _q, _p)),
        sp.Eq((_M + _K + _b) * _q, (_M + _K) * _q + _p),
        "ours: the loss in B_align is the choice of unit",
    ),
    Implication(
        "regroup-below",
        "B_exact <= B_align(b): w <= d_par, w <= b d_2 give (M+K+b) d_par d_2 >= w ((M+K) d_2 + d_par)",
        (*_SIZES, *_DIMENSIONS, _b >= 0, _w >= 0, _w <= _p, _w <= _b * _q),
        (_M + _K + _b) * _p * _q >= _w * ((_M + _K) * _q + _p),
        "ours: regrouping keeps B_align a bound",
    ),
    Implication(
        "linear-width-par",
        "d_par >= c N / s2: a <= s2 m2 and m2 >= c N give m2^2 s2 >= c N a",
        (_s >= _c * _N, _a <= _s2 * _s, _a >= 0, _s >= 0, _s2 >= 0, _c >= 0, _N >= 1),
        _s**2 * _s2 >= _c * _N * _a,
        "paper 1, recovery of the linear rate",
    ),
    Implication(
        "linear-width-2",
        "d_2 >= c^2 N / s2^2: t <= N s2^2 and m2 >= c N give m2^2 s2^2 >= c^2 N t",
        (_s >= _c * _N, _t <= _N * _s2**2, _t >= 0, _s >= 0, _s2 >= 0, _c >= 0, _N >= 1),
        _s**2 * _s2**2 >= _c**2 * _N * _t,
        "paper 1, recovery of the linear rate",
    ),
    Implication(
        "spectrum-term",
        "each eigenvalue: lambda <= s2 gives lambda m^2 <= s2 m^2 (summed: a <= s2 m2)",
        (_l >= 0, _l <= _s2),
        _l * _m**2 <= _s2 * _m**2,
        "spectral theorem, termwise",
    ),
    Implication(
        "cone",
        "a^2 <= m2^2 t: the norm of Sigma - u mu mu^T at u m2^2 = a is t - u a >= 0, times m2^2",
        (*_MOMENTS, sp.Eq(_u * _s**2, _a), _t - 2 * _u * _a + _u**2 * _s**2 >= 0),
        _a**2 <= _s**2 * _t,
        "Cauchy-Schwarz for the Frobenius inner product of Sigma and mu mu^T, any dimension",
    ),
)
"""Published inequalities and ours, cleared of denominators; routes A and B: :mod:`theory.expansion`."""

_CONE = (
    _s > 0,
    _a >= 0,
    _t >= 0,
    _a**2 <= _s**2 * _t,
)  # outside it a counterexample is none: no law is there

FALSE_VARIANTS: tuple[Implication, ...] = (
    Implication(
        "false-n_eff",
        "n_eff = M K/(M + K): (M+K) w >= (M+K) a + t",
        (*_CONE, *_SIZES, _w >= _a, _w >= _t),
        (_M + _K) * _w >= _V(_M, _K),
    ),
    Implication(
        "false-max",
        "max(d_par, d_2) instead of min: only one of w >= a, w >= t is available",
        (*_CONE, *_SIZES, _w >= _a),
        (_M + _K + 1) * _w >= _V(_M, _K),
    ),
    Implication(
        "false-cantelli",
        "the quadratic is above the indicator also for T > 0 up to m2",
        (_s >= _T, _u >= 0, _s >= 0),
        (_u + _s - _T) ** 2 >= (_u + _s) ** 2,
    ),
    Implication(
        "false-below-one",
        "B_align <= 1/2",
        (*_MOMENTS, *_SIZES, _w >= 0),
        _w * (_M + _K + 1) <= _M * _K * _s**2,
    ),
    Implication(
        "false-falls-in-M",
        "Var T falls like 1/M^2",
        (*_MOMENTS, *_SIZES, _M1 >= _M),
        _M1 * _V(_M1, _K) <= _M * _V(_M, _K),
    ),
    Implication(
        "false-n_eff-growth",
        "n_eff grows at least linearly with M",
        (*_SIZES, _M1 >= _M),
        _M * _M1 * _K * (_M + _K + 1) >= _M1 * _M * _K * (_M1 + _K + 1),
    ),
    Implication(
        "false-d_par",
        "Var T / m2^2 rises in d_par",
        (*_SIZES, _p > 0, _q > 0, _p1 >= _p),
        ((_M + _K) * _q + _p1) * _p >= ((_M + _K) * _q + _p) * _p1,
    ),
    Implication(
        "false-d_2",
        "Var T / m2^2 rises in d_2",
        (*_SIZES, _p > 0, _q > 0, _q1 >= _q),
        ((_M + _K) * _q1 + _p) * _q >= ((_M + _K) * _q + _p) * _q1,
    ),
    Implication(
        "false-regroup",
        "the identity at any b",
        (*_SIZES, *_DIMENSIONS, _b >= 0),
        sp.Eq((_M + _K + _b) * _q, (_M + _K) * _q + _p),
    ),
    Implication(
        "false-regroup-2",
        "b counted once in the exchange: w <= b d_2 dropped",
        (*_SIZES, *_DIMENSIONS, _b >= 0, _w >= 0, _w <= _p),
        (_M + _K + _b) * _p * _q >= _w * ((_M + _K) * _q + _p),
    ),
    Implication(
        "false-linear-par",
        "d_par >= c N^2 / s2",
        (_s >= _c * _N, _a <= _s2 * _s, _a >= 0, _s >= 0, _s2 >= 0, _c >= 0, _N >= 1),
        _s**2 * _s2 >= _c * _N**2 * _a,
    ),
    Implication(
        "false-linear-2",
        "d_2 >= c^2 N^2 / s2^2",
        (_s >= _c * _N, _t <= _N * _s2**2, _t >= 0, _s >= 0, _s2 >= 0, _c >= 0, _N >= 1),
        _s**2 * _s2**2 >= _c**2 * _N**2 * _t,
    ),
    Implication("false-cone", "the cone without the norm being >= 0", _MOMENTS, _a**2 <= _s**2 * _t),
)
"""One false variant per theorem: each must be refuted with a model (they are, in the tests)."""
