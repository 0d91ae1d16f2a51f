"""Scenarios (a law, M and K) and checks of a bound in tests (``theory.strategies``)."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import hypothesis
from hypothesis import strategies as st

from theory._strategies_finite import (
    correlated,
    finite_laws,
    limits,
    rank_deficient,
    sparse_laws,
    weak_signals,
    weights,
)
from theory.assumptions import Assumption
from theory.formula import Bound
from theory.formula import bound as make_bound
from theory.laws import FiniteLaw, WeakSignalLaw
from theory.worst_case import Refuted, WorstCase, decide, falsify, refutation

# One choice each, so that hypothesis shrinks to them where they do: shorter counts as simpler.


_SIMPLE = (
    *(FiniteLaw([0, 1], [Fraction(n - 1, n), Fraction(1, n)]) for n in (2, 3, 10)),
    FiniteLaw([0, 1], ["1/10", "9/10"]),
    FiniteLaw([1, -1], ["9/10", "1/10"]),
)


_DENSE = 8  # the largest dimension of laws whose atoms are listed one by one


class BoundViolation(AssertionError):
    """A bound fails for a law; ``case`` holds the exact numbers.

    ``case.P > case.B``.

    Domain: raised by ``check`` and ``assert_bound_holds``.

    Notes
    -----
    Source: built for this package; see docs/property_testing.md.

    Examples
    --------
    >>> try:
    ...     assert_bound_holds(lambda m, M, K: Fraction(1, 2))
    ... except BoundViolation as violation:
    ...     violation.case.P
    Fraction(1, 1)
    """

    def __init__(self, message: str, case: Any) -> None:
        super().__init__(message)
        self.case = case


@dataclass(frozen=True)
class Scenario:
    """One law of a unit and two sample sizes.

    Definition: (law, M, K), where ``T = mu_M^T g_K`` has M + K independent units of that law.

    Domain: a law with exact P(T <= 0); M, K >= 1.

    Notes
    -----
    Source: paper 1, the setting of the alignment theorem.

    Examples
    --------
    >>> Scenario(FiniteLaw([0, 1], ["1/2", "1/2"]), M=1, K=1)
    Scenario(law=FiniteLaw([(0,), (1,)], ['1/2', '1/2']), M=1, K=1)
    """

    law: FiniteLaw | WeakSignalLaw
    M: int
    K: int


def sample_sizes(*, min_size: int = 1, max_size: int = 8) -> st.SearchStrategy[tuple[int, int]]:
    """Pairs (M, K), equal half of the time; shrinks to (min_size, min_size).

    Can generate: every pair in the square.  Cannot generate: sizes at which exact enumeration is slow.

    ``min_size <= M, K <= max_size``.

    Parameters
    ----------
    min_size, max_size
        Inclusive limits.

    Raises
    ------
    ValueError
        If the limits are out of order.

    Notes
    -----
    Source: built for this package; see docs/property_testing.md.

    Examples
    --------
    >>> import random
    >>> hypothesis.find(sample_sizes(min_size=2), lambda sizes: True, random=random.Random(0))
    (2, 2)
    """
    limits(min_size, max_size, "size", 1)
    size = st.integers(min_size, max_size)
    return st.one_of(size.map(lambda n: (n, n)), st.tuples(size, size))


@st.composite
def _break_candidates(draw: st.DrawFn, sizes: tuple[int, int]) -> FiniteLaw:
    """{0, c} and {1, -(n - 1)} with any weight: the laws that attain Cantelli's bound."""
    p = draw(weights(2))
    n = draw(st.sampled_from(sorted({1, *sizes})))
    return FiniteLaw([0, 1], p) if n == 1 else FiniteLaw([1, 1 - n], p)


@st.composite
def scenarios(
    draw: st.DrawFn,
    *,
    bound: Bound | None = None,
    min_size: int = 1,
    max_size: int = 5,
    max_atoms: int = 3,
    max_dimension: int = 2,
) -> Scenario:
    """A law with exactly known moments, and sample sizes; families that attain Cantelli's bound are mixed in.

    Can generate: everything ``finite_laws``, ``sparse_laws``, ``correlated`` and ``rank_deficient`` can in
    dimension at most 8, and ``weak_signals`` in dimension 2 and 3 or, if ``max_dimension`` is above 8, up to
    it.  Cannot generate: M or K above ``max_size``.  Shrinks to the fair coin {0, 1}.

    Definition: (law, M, K) with exact ``P(T <= 0)`` and exact ``m2, a, t``.

    Parameters
    ----------
    bound
        Restricts the sample sizes to those claimed; excludes mean zero if it assumes a nonzero mean.
    min_size, max_size, max_atoms, max_dimension
        Inclusive limits.

    Raises
    ------
    ValueError
        If the limits are out of order, or no (M, K) within them is claimed by the bound.

    Notes
    -----
    Source: built for this package; see docs/property_testing.md.

    Examples
    --------
    >>> scenarios(max_size=3)
    scenarios(max_size=3)
    """
    limits(min_size, max_size, "size", 1)
    listed = min(max_dimension, _DENSE)
    if bound is None:
        M, K = draw(sample_sizes(min_size=min_size, max_size=max_size))
    else:
        M, K = draw(_claimed_sizes(bound, min_size, max_size))
    law = draw(
        st.one_of(
            st.sampled_from(_SIMPLE),
            _break_candidates((M, K)),
            finite_laws(max_atoms=max_atoms, max_dimension=listed),
            sparse_laws(max_dimension=listed),
            rank_deficient(max_dimension=max(2, listed)),
            *([correlated()] if M + K <= 6 else []),
            *([weak_signals(max_dimension=3, max_noise=20).map(WeakSignalLaw.finite)] if M + K <= 8 else []),
            *([weak_signals(max_dimension=max_dimension)] if max_dimension > _DENSE and M + K <= 16 else []),
        )
    )
    if bound is not None and Assumption.NONZERO_MEAN in bound.assumptions:
        hypothesis.assume(any(law.mean()))
    return Scenario(law, M, K)


def _claimed_sizes(bound: Bound, low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    first_M, first_K = max(low, bound.M.low), max(low, bound.K.low)
    span = high - low
    pairs = [
        (M, K)
        for M in range(first_M, first_M + span + 1)
        for K in range(first_K, first_K + span + 1)
        if bound.covers(M, K)
    ]
    if not pairs:
        raise ValueError(
            f"{bound.name}: no (M, K) with sizes in [{low}, {high}] is in its domain; raise max_size"
        )
    return st.sampled_from(sorted(pairs, key=lambda p: (sum(p), p)))


def check(bound: Any, scenario: Scenario) -> WorstCase | None:
    """Check one scenario exactly; for use under ``@given(scenarios())``.

    Reports P/B to hypothesis's ``target``, so that the search climbs towards violations.

    Parameters
    ----------
    bound
        A ``Bound`` on (m2, a, t) or a plain formula.
    scenario
        A draw from ``scenarios``; one outside the bound's (M, K) is skipped.

    Returns
    -------
    WorstCase or None
        The exact numbers; ``None`` where the formula is undefined.

    Raises
    ------
    BoundViolation
        An ``AssertionError`` with the exact numbers, a two-line snippet and a paste-ready ``@example``.

    Notes
    -----
    Source: exact enumeration, :mod:`theory.exact`; see docs/property_testing.md.

    Examples
    --------
    >>> from theory.bounds import B_exact
    >>> check(B_exact, Scenario(FiniteLaw([0, 1], ["1/2", "1/2"]), 1, 1)).ratio
    1.0
    """
    if not isinstance(bound, Bound):
        bound = make_bound(bound)
    if not bound.covers(scenario.M, scenario.K):
        return None
    case = decide(bound, scenario.law, scenario.M, scenario.K)
    if case is None:
        return None
    if hypothesis.currently_in_test_context() and math.isfinite(case.ratio):
        hypothesis.target(case.ratio, label="P/B")
    if case.ratio > 1:
        refuted = refutation(bound, case)
        raise BoundViolation(f"{refuted}\n@example({scenario!r})", case)
    return case


def first_violation(
    bound: Bound, *, seed: int, max_examples: int, deadline: float = math.inf
) -> tuple[WorstCase | None, int]:
    """Search a violation with hypothesis, shrunk by it; returns the violation and the number of laws tried.

    ``P(T <= 0) > B``, decided in exact rationals.

    Parameters
    ----------
    bound
        A bound on (m2, a, t).
    seed, max_examples
        Repeatable: the database of past failures is not used.
    deadline
        A value of ``time.monotonic()`` after which further laws are skipped.

    Notes
    -----
    Source: MacIver and Donaldson, "Test-case reduction via test-case generation", ECOOP 2020.

    Examples
    --------
    >>> half = make_bound(lambda m, M, K: Fraction(1, 2))
    >>> case, tried = first_violation(half, seed=0, max_examples=50)
    >>> case.P > case.B
    True
    """
    tried = 0
    last: WorstCase | None = None

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=max_examples,
        database=None,
        deadline=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(scenarios(bound=bound))
    def hunt(scenario: Scenario) -> None:
        nonlocal tried, last
        if time.monotonic() > deadline:
            return
        tried += 1
        try:
            check(bound, scenario)
        except BoundViolation as violation:
            last = violation.case
            raise

    with contextlib.suppress(BoundViolation, hypothesis.errors.Flaky):  # flaky: the clock ran out
        hunt()
    return last, tried


def assert_bound_holds(bound: Any, *, seed: int = 0, budget: float = 60.0, examples: int = 1_000) -> Any:
    """Run the whole search of ``theory.worst_case.falsify`` in a test; fail with the shrunk counterexample.

    ``P(T <= 0) <= B(m2, a, t, M, K)``, the claim under test.

    Parameters
    ----------
    bound
        A ``Bound`` on (m2, a, t), a plain formula of (moments, M, K), or a sympy expression.
    seed, budget, examples
        As in ``falsify``.

    Returns
    -------
    Proved or Unrefuted
        What the search established: read ``Unrefuted.coverage`` before you call the bound true.

    Raises
    ------
    BoundViolation
        An ``AssertionError`` with the shrunk counterexample, a two-line snippet and a paste-ready
        ``@example``.

    Notes
    -----
    Source: search as described in docs/property_testing.md.

    Examples
    --------
    >>> from theory.bounds import B_align
    >>> assert_bound_holds(B_align).verdict
    'proved'
    """
    __tracebackhide__ = True
    result = falsify(bound, seed=seed, budget=budget, examples=examples)
    if isinstance(result, Refuted):
        case = WorstCase(
            result.law, result.M, result.K, result.P, result.B, float(result.P) / max(float(result.B), 1e-300)
        )
        raise BoundViolation(
            f"{result}\n@example(Scenario({result.law!r}, M={result.M}, K={result.K}))", case
        )
    return result
