"""The certificate that a bound is never below Cantelli's, and its re-check without SymPy.

``theory.cone`` searches the certificate.  Here it is a record of polynomials as text, and the re-check reads
them with ``theory.verify``: every identity; that the identities are about this bound (its value in every
case, compared with the formula itself at exact rational points); that the cases leave no gap there; and that
only the stated hypotheses are used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from theory import verify
from theory.assumptions import Assumption
from theory.formula import Bound
from theory.moments import Moments

if TYPE_CHECKING:
    from theory.proofs import Certificate


@dataclass(frozen=True)
class Step:
    """One polynomial inequality and what established it: exact identities, or the solver alone.

    Definition: ``p >= 0`` or ``p > 0`` for a polynomial p, with the methods that established it.

    Domain: polynomials with rational coefficients in m2, a, t, M, K.

    Notes
    -----
    Source: Handelman 1988 for the identities; re-checked by :mod:`theory.verify`.

    Examples
    --------
    >>> Step("a >= 0", ("z3 unsat",), ()).methods
    ('z3 unsat',)
    """

    claim: str
    methods: tuple[str, ...]
    certificates: tuple[Certificate, ...]


@dataclass(frozen=True)
class Case:
    """One case of the minima and maxima of a formula: there the bound equals top/bottom.

    ``B = top / bottom`` wherever all ``conditions >= 0``.

    Parameters
    ----------
    label
        In words.
    conditions
        Polynomials that are >= 0 exactly in this case.
    top, bottom
        Polynomials.
    above
        Shows top (V + m2^2) - bottom V >= 0, V = Var T, everything multiplied by MK.
    positive
        Shows bottom > 0.

    Notes
    -----
    Source: derived here: cases of min and max, in which the claim is polynomial; see
    docs/property_testing.md.

    Examples
    --------
    >>> from theory.cone import prove_dominates_cantelli
    >>> from theory.bounds import B_align
    >>> [case.conditions for case in prove_dominates_cantelli(B_align).cases]
    [('a - t',), ('-a + t',)]
    """

    label: str
    conditions: tuple[str, ...]
    top: str
    bottom: str
    above: Step
    positive: Step


@dataclass(frozen=True)
class Dominance:
    """Certificate that B >= B_exact for every law in ``domain``.

    ``B >= B_exact = V / (V + m2^2)`` on the moment cone ``a^2 <= m2^2 t``.

    Parameters
    ----------
    name
        The bound.
    domain
        Sample sizes and moments covered, in words.
    hypotheses
        The same as polynomials: pairs (text, strict), >= 0 or, if strict, > 0.
    fixed
        Variables that are numbers here: m2 = 1 for a bound that q -> c q leaves alone, a single sample size.
    cases
        One proof per case: the numerator of the difference is >= 0, the denominator > 0.
    bound
        The bound itself.

    Notes
    -----
    Source: Cantelli 1928 (so that dominance proves the bound); Handelman 1988 for the certificates.

    Examples
    --------
    >>> from theory.cone import prove_dominates_cantelli
    >>> from theory.bounds import B_align
    >>> certificate = prove_dominates_cantelli(B_align)
    >>> certificate.is_valid(), certificate.hypotheses[0], certificate.fixed
    (True, ('a', False), {'m2': 1})
    >>> certificate.statement.split("; ")[0].endswith(": B_align - B_exact >= 0")
    True
    """

    name: str
    domain: str
    hypotheses: tuple[tuple[str, bool], ...]
    fixed: Mapping[str, int] = field(hash=False)
    cases: tuple[Case, ...]
    bound: Bound

    @property
    def statement(self) -> str:
        """What was proved, and how."""
        methods = sorted({m for case in self.cases for s in (case.above, case.positive) for m in s.methods})
        how = f"{len(self.cases)} case(s), by {', '.join(methods)}"
        return f"For {self.domain}: {self.name} - B_exact >= 0; {how}."

    def is_valid(self) -> bool:
        """Re-check everything; see the module.

        A step that only the solver proved is put to the solver's complete procedure, built from the text.
        """
        return all(map(self._holds, self.cases)) and all(self._at_points())

    def _holds(self, case: Case) -> bool:
        M, K, m2 = (str(self.fixed.get(name, name)) for name in ("M", "K", "m2"))
        V, signal = verify.parse(f"({M} + {K})*a + t"), verify.parse(f"{M}*{K}*{m2}**2")
        top, bottom = verify.parse(case.top), verify.parse(case.bottom)
        negative = verify.multiply(verify.parse("-1"), verify.multiply(bottom, V))
        above = verify.add(verify.multiply(top, verify.add(V, signal)), negative)
        allowed = [(verify.parse(text), strict) for text, strict in self.hypotheses]
        allowed += [(verify.parse(text), False) for text in case.conditions]
        return _established(case.above, above, allowed, strict=False) and _established(
            case.positive, bottom, allowed, strict=True
        )

    def _at_points(self) -> Iterator[bool]:
        """Formula and certificate agree, and B >= B_exact, at exact rational points of the domain."""
        from theory.bounds import B_exact

        cases = [
            ([verify.parse(c) for c in case.conditions], verify.parse(case.top), verify.parse(case.bottom))
            for case in self.cases
        ]
        for moments, M, K in _points(self.bound):
            try:
                value = self.bound(moments, M, K)
            except ZeroDivisionError:  # undefined: no claim
                continue
            if value != value:
                continue
            if not moments.m2:
                yield Assumption.NONZERO_MEAN in self.bound.assumptions or value >= 1
                continue
            unit = moments.m2 if "m2" in self.fixed else Fraction(1)
            at = {"m2": moments.m2 / unit, "a": moments.a / unit**2, "t": moments.t / unit**2}
            at |= {"M": Fraction(M), "K": Fraction(K)}
            found = [
                verify.evaluate(top, at) / verify.evaluate(bottom, at)
                for conditions, top, bottom in cases
                if all(verify.evaluate(c, at) >= 0 for c in conditions)
            ]
            yield bool(found) and all(_same(value, other) for other in found)
            yield value >= B_exact(moments, M, K) * (1 if isinstance(value, Fraction) else 1 - _ROUNDING)


_ROUNDING = Fraction(1, 10**9)  # for formulas with float constants, whose value is a float


def _same(value: Any, exact: Fraction) -> bool:
    return value == exact if isinstance(value, Fraction) else math.isclose(value, exact, rel_tol=1e-9)


def _points(bound: Bound) -> Iterator[tuple[Moments, int, int]]:
    """Inside and on the edges of the cone, at three scales, at mean zero; sample sizes near and far."""
    sizes = [(0, 0), (1, 0), (0, 3), (9, 20), (100, 77)]
    pairs = [(bound.M.low + M, bound.K.low + K) for M, K in sizes]
    cone = [
        (a, a * a + more)
        for a in map(Fraction, ("0", "1/7", "1", "2", "30"))
        for more in map(Fraction, ("0", "1/9", "3", "900"))
        if a or more
    ]
    for M, K in filter(lambda pair: bound.covers(*pair), pairs):
        for (a, t), m2 in itertools.product(cone, map(Fraction, ("1", "1/3", "50"))):
            yield Moments(m2, a * m2 * m2, t * m2 * m2), M, K
        for t in map(Fraction, ("0", "1", "1/9", "900")):
            yield Moments(Fraction(0), Fraction(0), t), M, K


def _established(
    step: Step, target: verify.Polynomial, allowed: Sequence[tuple[verify.Polynomial, bool]], *, strict: bool
) -> bool:
    """Whether the step shows target >= 0 (> 0 if strict) from the allowed hypotheses and nothing else."""
    if not step.certificates:
        return _solver_agrees(target, allowed, strict)
    for certificate in step.certificates:
        if verify.parse(certificate.target) != target or not certificate.is_valid():
            return False
        factors: dict[int, bool] = {}  # index of a hypothesis in use: whether it is strict
        for index in {i for c, powers in certificate.terms if c for i, k in powers.items() if k}:
            if index < len(certificate.hypotheses):
                used = verify.parse(certificate.hypotheses[index])
                matches = [is_strict for other, is_strict in allowed if _is_multiple(used, other)]
                if not matches:
                    return False
                factors[index] = any(matches)
        sure = any(
            c > 0 and all(factors.get(i, False) for i, k in powers.items() if k)
            for c, powers in certificate.terms
        )
        if strict and not sure:  # some term must be a product of positive factors
            return False
    return True


def _is_multiple(one: verify.Polynomial, other: verify.Polynomial) -> bool:
    """Whether one = c other with a number c > 0."""
    if not one or one.keys() != other.keys():
        return False
    quotients = {one[monomial] / other[monomial] for monomial in one}
    return len(quotients) == 1 and min(quotients) > 0


def _solver_agrees(
    target: verify.Polynomial, allowed: Sequence[tuple[verify.Polynomial, bool]], strict: bool
) -> bool:
    import z3

    def term(polynomial: verify.Polynomial) -> Any:
        total = z3.RealVal(0)
        for monomial, coefficient in polynomial.items():
            product = z3.RealVal(str(coefficient))
            for name, power in monomial:
                for _ in range(power):
                    product = product * z3.Real(name)
            total = total + product
        return total

    # The default solver found the proof; this is the complete procedure alone.
    solver = z3.Tactic("qfnra-nlsat").solver()
    solver.set("timeout", 10_000)
    for hypothesis, is_strict in allowed:
        solver.add(term(hypothesis) > 0 if is_strict else term(hypothesis) >= 0)
    solver.add(term(target) <= 0 if strict else term(target) < 0)
    return bool(solver.check() == z3.unsat)
