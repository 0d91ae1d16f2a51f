"""Refute, prove or fail to refute a bound on P(T <= 0); the law that comes closest to breaking it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from theory import search
from theory.assumptions import Assumption
from theory.bounds import B_exact
from theory.cone import prove_dominates_cantelli
from theory.formula import Bound
from theory.formula import bound as make_bound
from theory.laws import FiniteLaw, WeakSignalLaw
from theory.moments import Moments
from theory.verdicts import Coverage, Proved, Refuted, Unrefuted, WorstCase

__all__ = ["Coverage", "Proved", "Refuted", "Unrefuted", "WorstCase", "decide", "falsify", "largest_ratio"]

_MARGIN = 1e-9  # relative; a float value of B (exp, sqrt) must be exceeded by more than its rounding error


def decide(bound: Bound, law: FiniteLaw | WeakSignalLaw, M: int, K: int) -> WorstCase | None:
    """Exact P, the bound B and their ratio for one law; ``None`` where the formula is undefined.

    P is exact.  B is exact for rational formulas.  A formula with exp, sqrt or float constants gives a float;
    if that comes near P, B is evaluated again from the formula's expression with 40 digits, so that neither
    rounding nor cancellation can pass for a violation.  Only for a formula without an expression (one that
    branches, or calls ``math.exp``) the float decides, and the ratio is then lowered by 1e-9 relative.

    ``ratio = P(T <= 0) / B``.

    Parameters
    ----------
    bound
        A bound on (m2, a, t).
    law, M, K
        Law of one unit and sample sizes.

    Raises
    ------
    TypeError
        If the bound is no ``Bound`` or the law neither a ``FiniteLaw`` nor a ``WeakSignalLaw``.

    Notes
    -----
    Source: definition of the event; enumeration by :mod:`theory.exact`.

    Examples
    --------
    >>> from theory.laws import coin
    >>> case = decide(B_exact, coin(), 1, 1)
    >>> case.P, case.B, case.ratio
    (Fraction(3, 4), Fraction(3, 4), 1.0)
    """
    from theory.exact import finite_support_probability

    if not isinstance(bound, Bound) or not isinstance(law, FiniteLaw | WeakSignalLaw):
        raise TypeError(
            f"bound={bound!r}, law={law!r}: expected a Bound (theory.bound) and a FiniteLaw or WeakSignalLaw"
        )
    moments = Moments.from_law(law)
    B = _value(bound, moments, M, K)
    if B is None:
        return None
    P = law.probability(M, K) if isinstance(law, WeakSignalLaw) else finite_support_probability(law, M, K)
    precise = B
    if not isinstance(B, Fraction) and float(P) > B * (1 - 1e-6):
        precise = _precise(bound, moments, M, K)
    if isinstance(precise, Fraction):
        if precise > 0:
            ratio = float(P / precise) if precise * 10**300 > P else math.inf
            # The float of a ratio near 1 must not contradict the exact comparison.
            ratio = max(ratio, math.nextafter(1, 2)) if precise < P else min(ratio, 1.0)
        else:
            ratio = math.inf if precise < P else 0.0
        B = B if isinstance(B, Fraction) else float(precise)
    else:
        ratio = float(P) / B * (1 - _MARGIN) if B > 0 else (math.inf if P > 0 or B < 0 else 0.0)
    return WorstCase(law, M, K, P, B, ratio)


def _precise(bound: Bound, moments: Moments, M: int, K: int) -> Fraction | None:
    """The bound to 40 digits, from its expression; ``None`` if it has none or no finite real value."""
    import sympy as sp

    exact = {"m2": moments.m2, "a": moments.a, "t": moments.t, "M": M, "K": K}
    values = {name: sp.Rational(x.numerator, x.denominator) for name, x in exact.items()}
    try:
        value = bound.trace(values)
        value = value if value.is_Rational else value.evalf(40, maxn=400)
    except (TypeError, ArithmeticError, ValueError):
        return None
    if not value.is_Rational and not value.is_Float:
        return None
    value = sp.Rational(value)
    return Fraction(int(value.p), int(value.q))


def _value(bound: Bound, moments: Moments, M: int, K: int) -> Any:
    """The bound, exactly if the formula allows; ``None`` where it is undefined."""
    for inputs in (moments, None):
        try:
            inputs = inputs or Moments(*map(float, (moments.m2, moments.a, moments.t)))
            value = bound(inputs, M, K)
            if isinstance(value, Fraction):
                return value
            value = float(value)
            return None if math.isnan(value) else value
        except (TypeError, AttributeError, ArithmeticError, ValueError) as error:
            if not isinstance(error, TypeError | AttributeError):
                return None
    return None


def sizes(bound: Bound) -> list[tuple[int, int]]:
    """Sample sizes at which a bound is tried: the smallest it is claimed for, then some spread-out ones."""
    near = [(M, K) for M in range(bound.M.low, bound.M.low + 5) for K in range(bound.K.low, bound.K.low + 5)]
    wide = [(8, 8), (1, 10), (10, 1), (2, 10), (10, 2), (16, 16), (1, 30), (30, 1), (30, 30)]
    square = [(n, n) for n in range(1, 40)]
    found = [pair for pair in near if bound.covers(*pair)]
    found = sorted(found, key=lambda pair: (sum(pair), abs(pair[0] - pair[1]), pair))[:12]
    rest = [pair for pair in (*wide, *square) if bound.covers(*pair) and pair not in found]
    return found + rest[:6]


def falsify(
    bound: Any, *, seed: int = 0, budget: float = 60.0, examples: int = 1_000
) -> Proved | Refuted | Unrefuted:
    """Search a law that breaks a bound, prove that there is none, or say what was covered.

    Claim under test: P(T <= 0) <= bound(moments, M, K) for every law with finite second moments that meets
    the bound's assumptions and for all (M, K) of its domain.

    In order: structured families with grids of weights at two pairs (M, K); a proof that the bound dominates
    Cantelli's, which ends the search; the families at further pairs; ascent of P/B over integer atoms and
    weights from the best laws found; random laws from ``theory.strategies`` with hypothesis's ``target``.
    Violations are decided in exact rationals, then shrunk: few atoms, small integers, small M, K and d.

    ``P(T <= 0) <= B(m2, a, t, M, K)``, the claim under test.

    Parameters
    ----------
    bound
        A ``Bound``, a plain function of (moments, M, K), or a sympy expression.
    seed
        Makes the search repeatable.
    budget
        Limit in seconds; a search that the clock stopped says so in its coverage.
    examples
        Number of random laws in the last stage.

    Returns
    -------
    Proved, Refuted or Unrefuted
        ``.verdict`` is "proved", "refuted" or "unrefuted"; ``str()`` is a report.

    Raises
    ------
    TypeError
        If the bound is a function of other inputs than (m2, a, t): see ``theory.strategies``.
    ValueError
        If budget, seed or examples is out of range, if the formula has no value at any law tried, or if the
        bound is conditional on the training mean (P(T <= 0) here is not).

    Notes
    -----
    Cantelli's bound is not the true supremum, so a bound below it may still be true, and then the answer is
    ``Unrefuted``.  For a bound that assumes Gaussian units the search runs over Gaussian laws instead, with
    numerically exact probabilities.

    Source: search as described in docs/property_testing.md; MacIver and Donaldson 2020 for the random laws
    and their shrinking.

    Examples
    --------
    >>> result = falsify(lambda m, M, K: 1 / (1 + M * K / (M + K) * m.d_align))
    >>> result.law, result.M, result.K, result.P, result.B
    (FiniteLaw([(0,), (1,)], ['1/2', '1/2']), 1, 1, Fraction(3, 4), Fraction(2, 3))
    """
    from theory.shrink import shrink

    if not isinstance(bound, Bound):
        if bound is None:
            raise TypeError("bound=None: expected a Bound, a formula of (moments, M, K), or an expression")
        bound = make_bound(bound)
    if bound.inputs is not Moments or bound.direction != "upper":
        raise TypeError(
            f"{bound.name}: expected an upper bound on (m2, a, t); test other inputs with theory.strategies"
        )
    if Assumption.GIVEN_TRAIN_MEAN in bound.assumptions:
        raise ValueError(
            f"{bound.name}: expected a bound on P(T <= 0), not one given the training mean; "
            "test that with theory.strategies and ConditionalMoments"
        )
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not budget > 0:
        raise ValueError(f"budget={budget!r}: expected a number of seconds > 0")
    for name, value in (("seed", seed), ("examples", examples)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name}={value!r}: expected an integer >= 0")
    hunt = _Hunt(bound, seed, budget)
    if Assumption.GAUSSIAN in bound.assumptions:
        from theory.gaussian_search import gaussian_laws

        certificate = prove_dominates_cantelli(bound)
        return hunt.gaussian(gaussian_laws(seed)) if certificate is None else Proved(bound.name, certificate)
    found = hunt.structured(hunt.sizes[:2])
    if found is None:
        certificate = prove_dominates_cantelli(bound)
        if certificate is not None:
            return Proved(bound.name, certificate)
        if not hunt.best and hunt.complete:
            raise ValueError(
                f"{bound.name}: the formula has no value at any of the simplest laws; expected a function of "
                "(moments, M, K) that returns a number, try bound(Moments(1, 1, 1), 2, 2)"
            )
        found = hunt.structured(hunt.sizes[2:]) or hunt.ascent() or hunt.random(examples)
    if found is None:
        return Unrefuted(bound.name, hunt.coverage(), hunt.worst())
    small = shrink(bound, found)
    return refutation(bound, small)


def refutation(bound: Bound, case: WorstCase) -> Refuted:
    """The verdict on a bound that this case violates; says whether its formula takes exact moments."""
    try:
        bound(Moments.from_law(case.law), case.M, case.K)
        floats = False
    except (TypeError, AttributeError):
        floats = True
    return Refuted(case.law, case.M, case.K, case.P, case.B, bound.name, floats)


class _Hunt:
    """One search: the clock, what was covered, the best candidates so far."""

    def __init__(self, bound: Bound, seed: int, budget: float) -> None:
        self.bound, self.seed = bound, seed
        self.start = time.monotonic()
        self.deadline = self.start + budget
        self.nonzero_mean = Assumption.NONZERO_MEAN in bound.assumptions
        self.sizes = sizes(bound)
        self.supports: dict[str, int] = {}
        self.examples = 0
        self.complete = True
        self.best: list[search.Candidate] = []

    def late(self) -> bool:
        if time.monotonic() < self.deadline:
            return False
        self.complete = False
        return True

    def structured(self, pairs: list[tuple[int, int]]) -> WorstCase | None:
        scales = (
            (Fraction(1),)
            if self._scale_free()
            else tuple(map(Fraction, ("1", "10", "1/10", "100", "1/100")))
        )
        for M, K in pairs:
            families = list(search.families(M, K))
            for scale in scales:
                if self.late():
                    return None
                groups = search.evaluate(
                    self.bound, families, M, K, nonzero_mean=self.nonzero_mean, scale=scale
                )
                for found in filter(None, groups):
                    family = found[0].family
                    self.supports[family] = self.supports.get(family, 0) + 1
                    broken = self._first_violation(found)
                    if broken is not None:
                        return broken
        return None

    def _scale_free(self) -> bool:
        sample = np.asarray([1.0, 0.3, 7.0]), np.asarray([0.5, 0.2, 9.0]), np.asarray([1.0, 3.0, 11.0])
        M, K = self.sizes[0]
        one = search.values(self.bound, Moments(*sample), M, K)
        c = 9.0
        other = search.values(self.bound, Moments(sample[0] * c, sample[1] * c * c, sample[2] * c * c), M, K)
        return bool(np.allclose(one, other, rtol=1e-9, atol=0, equal_nan=True))

    def _first_violation(self, found: list[search.Candidate]) -> WorstCase | None:
        self.best += found[:1]
        if len(self.best) > 400:
            self.best = self._leaders()
        for candidate in found:
            if candidate.ratio > 1 - 1e-9:
                case = decide(self.bound, candidate.law(), candidate.M, candidate.K)
                if case is not None and case.ratio > 1:
                    return case
        return None

    def _leaders(self) -> list[search.Candidate]:
        """The best candidates, one per family and sample sizes, so that none crowds out the rest.

        Near P = 1 every bound is nearly attained and nothing is learnt: such candidates come last.
        """
        kept: dict[tuple[str, int, int], search.Candidate] = {}
        for candidate in sorted(self.best, key=lambda c: (c.P >= 0.95, -c.ratio)):
            kept.setdefault((candidate.family, candidate.M, candidate.K), candidate)
        return list(kept.values())[:60]

    def ascent(self) -> WorstCase | None:
        rng = np.random.default_rng(self.seed)
        # A ratio that is 1 already is a law that attains the bound: no way up from there.
        starts = [c for c in self._leaders() if c.ratio < 1 - 1e-6][:24]
        for start in starts:
            for candidate in search.climb(self.bound, start, rng, steps=12, nonzero_mean=self.nonzero_mean):
                if self.late():
                    return None
                self.supports["ascent"] = self.supports.get("ascent", 0) + 1
                broken = self._first_violation([candidate])
                if broken is not None:
                    return broken
        return None

    def random(self, examples: int) -> WorstCase | None:
        from theory.strategies import first_violation

        if self.late():
            return None
        case, self.examples = first_violation(
            self.bound, seed=self.seed, max_examples=examples, deadline=self.deadline
        )
        self.late()
        return case

    def gaussian(self, laws: Iterator[tuple[str, Any]]) -> Refuted | Unrefuted:
        from theory.exact import gaussian_log_probability

        worst: WorstCase | None = None
        tried = [(family, law, Moments.from_law(law)) for family, law in laws]
        for M, K in self.sizes:
            for family, law, moments in tried:
                if self.late():
                    return Unrefuted(self.bound.name, self.coverage(), worst)
                self.supports[family] = self.supports.get(family, 0) + 1
                B = _value(self.bound, moments, M, K)
                if B is None:
                    continue
                P = math.exp(gaussian_log_probability(law.mu, law.Sigma, M, K))
                ratio = P / float(B) if B > 0 else (math.inf if P > 0 else 0.0)
                if worst is None or ratio > worst.ratio:
                    worst = WorstCase(law, M, K, P, B, ratio)
                if ratio > 1 + 1e-6:  # far above the error of the inversion
                    return refutation(self.bound, WorstCase(law, M, K, P, B, ratio))
        return Unrefuted(self.bound.name, self.coverage(), worst)

    def worst(self) -> WorstCase | None:
        for candidate in self._leaders():
            case = decide(self.bound, candidate.law(), candidate.M, candidate.K)
            if case is not None and case.P > 0:
                return case
        return None

    def coverage(self) -> Coverage:
        spent = time.monotonic() - self.start
        return Coverage(self.supports, tuple(self.sizes), self.examples, spent, self.complete, self.seed)


def largest_ratio(
    M: int, K: int, *, bound: Bound = B_exact, at_most: Any = 1, seed: int = 0, starts: int = 6
) -> WorstCase:
    """The law with the largest ratio P(T <= 0)/B found, among laws with B <= ``at_most``.

    sup P/B over laws with finite support (a lower estimate of it: the law is a witness, not a proof).

    ``max P(T <= 0) / B`` over the laws tried.

    Parameters
    ----------
    M, K
        Sample sizes.
    bound
        The bound in the denominator.
    at_most
        Only laws at which the bound is at most this value.  Without it the answer is uninteresting: for
        {0, 1} with P(q = 1) -> 0 both P and B_exact tend to 1, whatever M and K.
    seed
        Makes the search repeatable.
    starts
        Number of ascents from the best structured laws.

    Raises
    ------
    ValueError
        If at_most <= 0.

    Notes
    -----
    Source: Cantelli 1928 for the bound; search as described in docs/property_testing.md.

    Examples
    --------
    >>> largest_ratio(1, 1, at_most=Fraction(1, 2)).ratio
    1.0
    """
    try:
        limit = Fraction(at_most)
    except (TypeError, ValueError, OverflowError):
        limit = Fraction(0)
    if limit <= 0:
        raise ValueError(f"at_most={at_most!r}: expected a value > 0 (a bound is 0 only where P is)")

    def restricted(
        m: Any, M: Any, K: Any
    ) -> Any:  # infinite where the bound exceeds the limit: ratio 0 there
        value = bound(m, M, K)
        if isinstance(value, np.ndarray):
            return np.where(value <= float(limit), value, np.inf)
        return value if value <= limit else math.inf

    hunted = make_bound(restricted, M=M, K=K, name=bound.name)
    rng = np.random.default_rng(seed)
    best: dict[str, search.Candidate] = {}

    def keep(found: list[search.Candidate]) -> None:
        for candidate in found:
            if candidate.family not in best or candidate.ratio > best[candidate.family].ratio:
                best[candidate.family] = candidate

    for group in search.evaluate(hunted, search.families(M, K), M, K, nonzero_mean=True):
        keep(group)
    for start in sorted(best.values(), key=lambda c: -c.ratio)[:starts]:
        keep(list(search.climb(hunted, start, rng, steps=40, nonzero_mean=True)))
    for candidate in sorted(best.values(), key=lambda c: -c.ratio):
        case = decide(hunted, candidate.law(), M, K)
        if case is not None and math.isfinite(float(case.B)):
            return case
    raise ValueError(f"at_most={at_most}: no law found at M={M}, K={K} has a bound that small; raise it")
