"""Hypothesis strategies for laws, spectra and sample sizes, and checks of a bound for use in tests.

The only module of this package that imports hypothesis.  Every strategy takes keyword-only limits ``min_*``
and ``max_*`` (inclusive; ValueError if out of order), shrinks towards simple values (fair coin {0, 1},
M = K = 1), and is deterministic under hypothesis's seed.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

from theory.formula import Assumption, Bound
from theory.formula import bound as make_bound
from theory.laws import FiniteLaw, GaussianLaw, StudentTLaw
from theory.worst_case import Refuted, WorstCase, decide, falsify, refutation

__all__ = [
    "BoundViolation",
    "Scenario",
    "assert_bound_holds",
    "check",
    "correlated",
    "finite_laws",
    "first_violation",
    "gaussians",
    "heavy_tailed",
    "law_pairs",
    "psd",
    "rank_deficient",
    "sample_sizes",
    "scenarios",
    "sparse_laws",
    "weak_signals",
]

# Weights are integers: mostly small ones, sometimes over orders of magnitude (rare far atoms break bounds).
_SPREAD = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000)


# One choice each, so that hypothesis shrinks to them where they do: shorter counts as simpler.
_SIMPLE = (
    *(FiniteLaw([0, 1], [Fraction(n - 1, n), Fraction(1, n)]) for n in (2, 3, 10)),
    FiniteLaw([0, 1], ["1/10", "9/10"]),
    FiniteLaw([1, -1], ["9/10", "1/10"]),
)


class BoundViolation(AssertionError):
    """A bound fails for a law; ``case`` holds the exact numbers.

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

    Examples
    --------
    >>> Scenario(FiniteLaw([0, 1], ["1/2", "1/2"]), M=1, K=1)
    Scenario(law=FiniteLaw([(0,), (1,)], ['1/2', '1/2']), M=1, K=1)
    """

    law: FiniteLaw
    M: int
    K: int


def _limits(low: float, high: float, name: str, floor: float) -> None:
    if not floor <= low <= high:
        raise ValueError(f"min_{name}={low}, max_{name}={high}: expected {floor} <= min_{name} <= max_{name}")


def _weights(atoms: int) -> st.SearchStrategy[list[Fraction]]:
    weight = st.one_of(st.integers(1, 5), st.sampled_from(_SPREAD), st.integers(1, 1000))
    return st.lists(weight, min_size=atoms, max_size=atoms).map(lambda w: [Fraction(x, sum(w)) for x in w])


@st.composite
def finite_laws(
    draw: st.DrawFn,
    *,
    min_atoms: int = 1,
    max_atoms: int = 3,
    min_dimension: int = 1,
    max_dimension: int = 2,
    max_atom: int = 5,
    nonzero_mean: bool = False,
) -> FiniteLaw:
    """Laws with integer atoms and rational weights, hence exactly known moments and probabilities.

    Can generate: ties, point masses, mean zero, rare far atoms (weights over three orders of magnitude).
    Cannot generate: continuous laws, infinite moments.  Shrinks to atoms near 0 and equal weights.

    Parameters
    ----------
    min_atoms, max_atoms, min_dimension, max_dimension
        Inclusive limits (equal atoms are merged, so fewer may remain).
    max_atom
        Largest absolute coordinate.
    nonzero_mean
        Exclude mean zero.

    Examples
    --------
    >>> finite_laws(max_atoms=2)
    finite_laws(max_atoms=2)
    """
    _limits(min_atoms, max_atoms, "atoms", 1)
    _limits(min_dimension, max_dimension, "dimension", 1)
    if (2 * max_atom + 1) ** min_dimension < max_atoms:
        raise ValueError(
            f"max_atom={max_atom}, max_atoms={max_atoms}: expected that many different points in dimension "
            f"{min_dimension}; raise max_atom"
        )
    d = draw(st.integers(min_dimension, max_dimension))
    s = draw(st.integers(min_atoms, max_atoms))
    coordinate = st.integers(-max_atom, max_atom)
    atoms = draw(st.lists(st.tuples(*[coordinate] * d), min_size=s, max_size=s, unique=True))
    law = FiniteLaw(atoms, draw(_weights(len(atoms))))
    if nonzero_mean:
        hypothesis.assume(any(law.mean()))
    return law


@st.composite
def sparse_laws(draw: st.DrawFn, *, min_dimension: int = 1, max_dimension: int = 4) -> FiniteLaw:
    """Almost no gradient most of the time: atom 0, and rare atoms along the axes.

    Can generate: weights of the nonzero atoms down to 1/1000.  Cannot generate: dense noise.
    Shrinks to the fair coin.

    Examples
    --------
    >>> sparse_laws(max_dimension=2)
    sparse_laws(max_dimension=2)
    """
    _limits(min_dimension, max_dimension, "dimension", 1)
    d = draw(st.integers(min_dimension, max_dimension))
    rare = draw(st.sampled_from((2, 3, 5, 10, 100, 1000)))
    sizes = draw(st.lists(st.integers(1, 10), min_size=d, max_size=d))
    atoms = [(0,) * d] + [tuple(x if i == k else 0 for i in range(d)) for k, x in enumerate(sizes)]
    return FiniteLaw(atoms, [1 - Fraction(1, rare)] + [Fraction(1, rare * d)] * d)


@st.composite
def correlated(
    draw: st.DrawFn, *, min_dimension: int = 2, max_dimension: int = 3, max_atom: int = 4
) -> FiniteLaw:
    """Noise that acts on all coordinates together: integer mean plus +-1 times one integer direction.

    Can generate: noise along, across and oblique to the mean; off-diagonal entries of Sigma as large as the
    diagonal.  Cannot generate: noise of rank above 2.  Shrinks to small integers, dimension 2.

    Parameters
    ----------
    min_dimension, max_dimension
        Inclusive limits, at least 2.
    max_atom
        Largest absolute coordinate of the mean and of the directions.

    Examples
    --------
    >>> correlated(max_atom=2)
    correlated(max_atom=2)
    """
    _limits(min_dimension, max_dimension, "dimension", 2)
    d = draw(st.integers(min_dimension, max_dimension))
    vector = st.tuples(*[st.integers(-max_atom, max_atom)] * d)
    mean, one, two = draw(vector), draw(vector), draw(vector)
    atoms = [
        tuple(m + s * x + r * y for m, x, y in zip(mean, one, two, strict=True))
        for s in (1, -1)
        for r in (0, 1, -1)
    ]
    return FiniteLaw(atoms, ["1/6"] * 6)


@st.composite
def rank_deficient(draw: st.DrawFn, *, min_dimension: int = 2, max_dimension: int = 5) -> FiniteLaw:
    """At most two atoms in a higher dimension: the covariance has rank at most 1.

    Can generate: rank 0 (a point mass) and rank 1.  Cannot generate: rank 2 or more.
    Shrinks as ``finite_laws`` does.

    Examples
    --------
    >>> rank_deficient(max_dimension=3)
    rank_deficient(max_dimension=3)
    """
    _limits(min_dimension, max_dimension, "dimension", 1)
    return draw(finite_laws(max_atoms=2, min_dimension=min_dimension, max_dimension=max_dimension))


@st.composite
def weak_signals(draw: st.DrawFn, *, min_dimension: int = 2, max_dimension: int = 6) -> FiniteLaw:
    """A tiny mean in high dimension: atoms e_1 +- r e_j with r up to 20, so d_2 is far below 1.

    Can generate: a = 0 exactly (d_par infinite) with small d_2.  Cannot generate: noise along the mean.
    Shrinks to dimension ``min_dimension`` and r = 1.

    Examples
    --------
    >>> weak_signals(min_dimension=3)
    weak_signals(min_dimension=3)
    """
    _limits(min_dimension, max_dimension, "dimension", 2)
    d = draw(st.integers(min_dimension, max_dimension))
    r = draw(st.integers(1, 20))
    atoms = [
        (1, *(sign * r if i == j else 0 for i in range(d - 1))) for j in range(d - 1) for sign in (1, -1)
    ]
    return FiniteLaw(atoms, [Fraction(1, len(atoms))] * len(atoms))


@st.composite
def psd(
    draw: st.DrawFn,
    *,
    spectrum: Any = None,
    min_dimension: int = 1,
    max_dimension: int = 6,
    max_condition: float = 1e6,
) -> np.ndarray:
    """Symmetric positive semidefinite float64 matrices with a prescribed or random spectrum.

    Can generate: singular matrices, condition numbers up to ``max_condition``, random and standard bases.
    Cannot generate: exact rationals.
    Shrinks to the identity of the smallest dimension.

    Parameters
    ----------
    spectrum
        Eigenvalues >= 0; random if ``None``.
    min_dimension, max_dimension
        Inclusive limits when the spectrum is random.
    max_condition
        Ratio of the largest to the smallest nonzero eigenvalue when the spectrum is random.

    Raises
    ------
    ValueError
        On negative eigenvalues.

    Examples
    --------
    >>> psd(spectrum=[2.0, 1.0])
    psd(spectrum=[2.0, 1.0])
    """
    if spectrum is None:
        _limits(min_dimension, max_dimension, "dimension", 1)
        d = draw(st.integers(min_dimension, max_dimension))
        if not 1 <= max_condition < math.inf:
            raise ValueError(f"max_condition={max_condition!r}: expected a finite number >= 1")
        reach = math.log10(max_condition)
        values = 10.0 ** np.array(draw(st.lists(st.floats(-reach, 0.0), min_size=d, max_size=d)))
        values[d - draw(st.integers(0, d)) :] = 0.0
    else:
        values = np.asarray(spectrum, dtype=np.float64)
        if values.ndim != 1 or not values.size or not np.all((values >= 0) & np.isfinite(values)):
            raise ValueError(f"spectrum={spectrum!r}: expected a sequence of eigenvalues >= 0, all finite")
        d = len(values)
    rotations = draw(st.integers(0, 2**16))
    basis = np.eye(d)
    if rotations:  # 0 shrinks to a diagonal matrix
        basis, _ = np.linalg.qr(np.random.default_rng(rotations).normal(size=(d, d)))
    matrix = (basis * values) @ basis.T
    return (matrix + matrix.T) / 2


@st.composite
def gaussians(
    draw: st.DrawFn, *, min_dimension: int = 1, max_dimension: int = 5, max_signal: float = 10.0
) -> GaussianLaw:
    """Gaussian laws in the eigenbasis: eigenvalues over eight orders of magnitude, some of them 0.

    Can generate: singular covariances, Sigma = 0, mean zero.  Cannot generate: a covariance that is not
    diagonal (rotate with ``psd``).

    Parameters
    ----------
    min_dimension, max_dimension
        Inclusive limits.
    max_signal
        Largest absolute coordinate of the mean.

    Examples
    --------
    >>> gaussians(max_dimension=3)
    gaussians(max_dimension=3)
    """
    _limits(min_dimension, max_dimension, "dimension", 1)
    d = draw(st.integers(min_dimension, max_dimension))
    if not 0 <= max_signal < math.inf:
        raise ValueError(f"max_signal={max_signal!r}: expected a finite number >= 0")
    mu = draw(st.lists(st.floats(-max_signal, max_signal, allow_subnormal=False), min_size=d, max_size=d))
    values = 10.0 ** np.array(draw(st.lists(st.integers(-4, 4), min_size=d, max_size=d)))
    values[d - draw(st.integers(0, d)) :] = 0.0
    return GaussianLaw(np.array(mu), values)


@st.composite
def heavy_tailed(draw: st.DrawFn, *, min_dimension: int = 1, max_dimension: int = 4) -> StudentTLaw:
    """Student t laws with 2 < degrees of freedom <= 4: finite variance, infinite fourth moment.

    Can generate: variances near infinity (2.25 degrees of freedom).  Cannot generate: exact probabilities;
    compare with a simulation and its interval.  Shrinks to mean zero and 4 degrees of freedom.

    Examples
    --------
    >>> heavy_tailed(max_dimension=2)
    heavy_tailed(max_dimension=2)
    """
    _limits(min_dimension, max_dimension, "dimension", 1)
    d = draw(st.integers(min_dimension, max_dimension))
    mu = draw(st.lists(st.integers(0, 5), min_size=d, max_size=d))
    return StudentTLaw(
        np.array(mu, dtype=np.float64), np.ones(d), draw(st.sampled_from((4.0, 3.5, 3.0, 2.5, 2.25)))
    )


def sample_sizes(*, min_size: int = 1, max_size: int = 8) -> st.SearchStrategy[tuple[int, int]]:
    """Pairs (M, K), equal half of the time; shrinks to (min_size, min_size).

    Can generate: every pair in the square.  Cannot generate: sizes at which exact enumeration is slow.

    Parameters
    ----------
    min_size, max_size
        Inclusive limits.

    Examples
    --------
    >>> import random
    >>> hypothesis.find(sample_sizes(min_size=2), lambda sizes: True, random=random.Random(0))
    (2, 2)
    """
    _limits(min_size, max_size, "size", 1)
    size = st.integers(min_size, max_size)
    return st.one_of(size.map(lambda n: (n, n)), st.tuples(size, size))


def law_pairs(**limits: Any) -> st.SearchStrategy[tuple[FiniteLaw, FiniteLaw]]:
    """Two laws on one space, for train and test units of different laws.

    Can generate: E T of any sign.  Cannot generate: different dimensions.

    Parameters
    ----------
    limits
        Those of ``finite_laws``.

    Examples
    --------
    >>> import random
    >>> one, two = hypothesis.find(law_pairs(max_atoms=2), lambda pair: True, random=random.Random(0))
    >>> one.dimension == two.dimension
    True
    """
    low, high = limits.pop("min_dimension", 1), limits.pop("max_dimension", 2)
    return st.integers(low, high).flatmap(
        lambda d: st.tuples(*[finite_laws(min_dimension=d, max_dimension=d, **limits)] * 2)
    )


@st.composite
def _break_candidates(draw: st.DrawFn, sizes: tuple[int, int]) -> FiniteLaw:
    """{0, c} and {1, -(n - 1)} with any weight: the laws that attain Cantelli's bound."""
    p = draw(_weights(2))
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

    Can generate: everything ``finite_laws``, ``sparse_laws``, ``correlated``, ``rank_deficient`` and
    ``weak_signals`` can.  Cannot generate: M or K above ``max_size``.  Shrinks to the fair coin {0, 1}.

    Parameters
    ----------
    bound
        Restricts the sample sizes to those claimed; excludes mean zero if it assumes a nonzero mean.
    min_size, max_size, max_atoms, max_dimension
        Inclusive limits.

    Examples
    --------
    >>> scenarios(max_size=3)
    scenarios(max_size=3)
    """
    _limits(min_size, max_size, "size", 1)
    if bound is None:
        M, K = draw(sample_sizes(min_size=min_size, max_size=max_size))
    else:
        M, K = draw(_claimed_sizes(bound, min_size, max_size))
    law = draw(
        st.one_of(
            st.sampled_from(_SIMPLE),
            _break_candidates((M, K)),
            finite_laws(max_atoms=max_atoms, max_dimension=max_dimension),
            sparse_laws(max_dimension=max_dimension),
            rank_deficient(max_dimension=max(2, max_dimension)),
            *([correlated()] if M + K <= 6 else []),
            *([weak_signals(max_dimension=3)] if M + K <= 8 else []),
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

    Parameters
    ----------
    bound
        A bound on (m2, a, t).
    seed, max_examples
        Repeatable: the database of past failures is not used.
    deadline
        A value of ``time.monotonic()`` after which further laws are skipped.

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
