"""What a verdict is: the claims, one row of the claim table, and the small tools its rules share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from validation.results import Measured, Misalignment, Record

CONFIDENCE = 0.95
"""Confidence of every effect interval and family-wise level of every row."""

RANGE = "median and range over cells"
"""Method of an effect whose limits are the smallest and largest value, not a confidence interval."""
VACUOUS = 0.9995
"""A bound from here on prints as 1.000: it excludes nothing."""

Outcome = Literal["holds", "fails", "undecided"]
R = TypeVar("R")

CLAIMS = {
    "cantelli": "The misalignment probability is at most B_{exact}.",
    "align": "B_{exact} ≤ B_{align}, and the probability is at most B_{align}.",
    "follow": "Both bounds cover the measured frequency and rise and fall with it.",
    "misalign-down": "Misalignment falls with M and K, and with width.",
    "width-up": "The alignment dimension d_{align} grows with width.",
    "training-down": "The alignment dimension d_{align} falls as training goes on.",
    "training-moments": "B_{exact} of training units alone covers the misalignment of training with held-out "
    "units.",
    "intervention": "A small step of a new zero-initialised block along −μ_{M} lowers held-out loss by "
    "about αT.",
    "jumpboard-train": "A small step along −μ_{M} strictly lowers the loss of the M units.",
    "jumpboard-pop": "A small step along a population descent direction strictly lowers the population loss.",
    "route-A": "Route A: alignment on the test set and a gain on the training set lower the test risk.",
    "route-B": "Route B: population descent and a gain on the training set lower the test risk.",
    "expansion-T2": "Theorem 2: with probability 1 − B_{align} the expanded model has a lower test risk.",
    "near-diagonal": "The covariance of the gradients is nearly diagonal.",
    "signal-decay": "The size of the first-order signal falls with depth.",
    "deepest": "Where the first-order signal vanishes, more depth brings no first-order gain.",
    "power-law": "Under a decay of the first-order signal with depth, the gain of depth is a power law.",
    "joint-scaling": "Depth without width gives a non-monotone test loss.",
}


@dataclass(frozen=True)
class ClaimRow:
    """The verdict on one claim in one suite."""

    claim: str
    statement: str
    suite: str
    scope: str
    """Which records were used, in words."""
    verdict: Outcome
    counted: str
    """What the three counts count: cells, steps or networks."""
    holds: int
    undecided: int
    violated: int
    effect_name: str
    effect: Measured | None
    n: int
    """Trials behind the row, or trained networks for a trend over widths."""
    n_name: str
    seeds: int
    why: str


def of(records: Iterable[Record], kind: type[R]) -> list[R]:
    """The records of one kind, in stored order."""
    return [r for r in records if isinstance(r, kind)]


def suites(records: Iterable[Record]) -> list[str]:
    """Suites that have at least one measured record, in stored order."""
    return list(dict.fromkeys(r.suite for r in records if hasattr(r, "suite")))


def final(records: Iterable[R]) -> list[R]:
    """Records of networks at the end of their training, and of known laws."""
    return [r for r in records if getattr(r, "step", None) is None]


def held_out(cells: Iterable[Misalignment]) -> list[Misalignment]:
    """Cells whose units on both sides come from held-out data, which the theorem is about."""
    return [c for c in cells if c.pair == "test-test"]


def group(items: Iterable[R], key: Any) -> dict[Hashable, list[R]]:
    """Items by key, both in stored order."""
    out: dict[Hashable, list[R]] = defaultdict(list)
    for item in items:
        out[key(item)].append(item)
    return dict(out)


def n_eff(M: int, K: int) -> float:
    """Effective sample size MK/(M+K+1) of one cell."""
    return M * K / (M + K + 1)


def is_covered(cell: Misalignment) -> bool:
    """Whether the theorem itself speaks about this cell: iid units and exactly known moments.

    Fresh draws from a known law, or draws with replacement from a pool whose own moments give the bound.
    """
    return (cell.bound_source, cell.protocol) in {("population", "fresh"), ("pool", "with_replacement")}


def is_exact(cell: Misalignment) -> bool:
    """Whether B_exact is valid without estimation error in this cell.

    The covered cells, and draws without replacement bounded with the finite pool's mean and variance of T.
    """
    return is_covered(cell) or (cell.bound_source, cell.protocol) == ("pool", "without_replacement")


def holm(p_values: np.ndarray, level: float) -> np.ndarray:
    """Which hypotheses Holm's step-down procedure rejects at family-wise ``level``.

    >>> holm(np.array([0.001, 0.04, 0.5]), 0.05).tolist()
    [True, False, False]
    """
    order = np.argsort(p_values)
    thresholds = level / np.arange(len(p_values), 0, -1)
    passed = np.logical_and.accumulate(p_values[order] <= thresholds)
    rejected = np.zeros(len(p_values), dtype=bool)
    rejected[order] = passed
    return rejected


def is_vacuous(bound: Measured) -> bool:
    """Whether a bound excludes nothing: it does not exist, or is 1 to printing accuracy.

    >>> [is_vacuous(Measured(b, b, b, 1.0, "exact")) for b in (0.75, 0.9994, 0.9995, None)]
    [False, False, True, True]
    """
    return bound.value is None or bound.value >= VACUOUS


def seed_count(records: Iterable[Any]) -> int:
    """Distinct seeds among records."""
    return len({r.seed for r in records})


def plural(n: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "cell"), plural(2, "cell")
    ('1 cell', '2 cells')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
