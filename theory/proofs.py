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
from theory.implication import Implication
from theory.theorems import FALSE_VARIANTS, THEOREMS

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
class Proof:
    """An implication that holds for all reals; ``methods`` says what established it.

    ``h_i >= 0 for all i implies conclusion``, shown by an identity or by the solver.

    Domain: as made by ``prove``.

    Notes
    -----
    Source: Handelman 1988; de Moura and Bjorner, "Z3", 2008.

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

    ``h_i(x) >= 0`` for all i and not ``conclusion(x)``, at a rational x.

    Domain: as made by ``prove``.

    Notes
    -----
    Source: model of the solver (de Moura and Bjorner, "Z3", 2008), re-checked in rationals.

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

    Definition: neither a proof nor a counter-model was found in time.

    Domain: as made by ``prove``.

    Notes
    -----
    Source: convention of this package; see docs/evidence.md.

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

    Domain: polynomials with rational coefficients; ``is_valid`` re-checks the identity.

    Notes
    -----
    Source: D. Handelman, Pacific J. Math. 132 (1988).

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

    ``h_i(x) >= 0 for all i implies conclusion(x)``, for all real x.

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

    Raises
    ------
    ValueError
        If a relation is none of >=, >, <=, <, Eq.
    RuntimeError
        If certificate and solver contradict each other.

    Notes
    -----
    Source: Handelman 1988 for the certificate; de Moura and Bjorner, "Z3", TACAS 2008, for the solver.

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
