"""Hypothesis strategies for laws, spectra and sample sizes, and checks of a bound for use in tests.

The only public module of this package that imports hypothesis.  Every strategy takes keyword-only limits
``min_*`` and ``max_*`` (inclusive; ValueError if out of order), shrinks towards simple values (fair coin
{0, 1}, M = K = 1), and is deterministic under hypothesis's seed.
"""

from __future__ import annotations

from theory._strategies_checks import (
    BoundViolation,
    Scenario,
    assert_bound_holds,
    check,
    first_violation,
    sample_sizes,
    scenarios,
)
from theory._strategies_continuous import gaussians, heavy_tailed, psd
from theory._strategies_finite import (
    correlated,
    finite_laws,
    law_pairs,
    rank_deficient,
    sparse_laws,
    weak_signals,
)

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
