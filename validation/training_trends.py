"""Verdicts that need more than the end of training: widths at equal loss, the trajectory, and both samples.

``d_align`` falls while a network learns, and wider networks learn faster, so a trend over widths at an equal
budget mixes both. Here widths are compared where they have the same held-out loss; the rules are fixed in
code and were not chosen by their outcome.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from scipy import stats

from validation.claims import CLAIMS, CONFIDENCE, ClaimRow, Outcome, group, holm, plural
from validation.results import Geometry, Measured, Misalignment, Training
from validation.trends import _trend_row

TARGETS = 3
"""Held-out losses at which widths are compared, for each seed."""


def training_rows(
    suite: str,
    cells: Sequence[Misalignment],
    geometry: Sequence[Geometry],
    training: Sequence[Training],
) -> list[ClaimRow]:
    """All rows of this file; arguments hold the records of a suite at every step and of every pair."""
    return [
        *width_up_at_equal_loss(suite, geometry, training),
        *falls_along_training(suite, geometry),
        *training_moments(suite, cells),
    ]


# -- widths at equal loss ----------------------------------------------------------------------------------


def width_up_at_equal_loss(
    suite: str, geometry: Sequence[Geometry], training: Sequence[Training]
) -> list[ClaimRow]:
    """Does d_align grow with width among networks that have the same held-out loss?

    For every seed the common losses are those between the largest final loss of its widths and the smallest
    loss at their first checkpoint after step 0. At :data:`TARGETS` losses, equally spaced inside, log d_align
    of each place is interpolated linearly in the loss between checkpoints where a signal is detected.
    """
    losses = {(t.case, t.seed, t.step): t.test_loss.value for t in training}
    if not any(step is not None for _, _, step in losses):
        return []
    rows: list[ClaimRow] = []
    held_out = [g for g in geometry if g.sample == "held-out" and g.step != 0]
    for members in group(held_out, lambda g: (g.depth, g.positions)).values():
        networks: dict[tuple[str, int, int], dict[Hashable, float]] = {}
        without = 0
        for seed_members in group(members, lambda g: g.seed).values():
            by_network = group(seed_members, lambda g: (g.case, g.seed, g.width))
            targets = _common_losses([list(gs) for gs in by_network.values()], losses)
            without += not targets
            for key, gs in by_network.items():
                values = networks.setdefault(key, {})  # type: ignore[arg-type]
                for module, points in group(gs, lambda g: g.module).items():
                    for i, value in enumerate(_interpolated(points, losses, targets)):
                        if value is not None:
                            values[module, i] = value
        first = members[0]
        empty = "no place has a detected signal at common losses in every network"
        if without:
            empty = f"the held-out losses of the widths do not overlap: {plural(without, 'seed')}"
        rows += _trend_row(
            "width-up",
            suite,
            f"at equal held-out loss (interpolated), positions {first.positions}, depth {first.depth}",
            networks,
            "exponent of d_{align} in width at equal loss",
            +1,
            [],
            empty,
            base=math.e,
        )
    return rows


Losses = dict[tuple[str, int, int | None], float | None]


def _common_losses(networks: Sequence[Sequence[Geometry]], losses: Losses) -> list[float]:
    """Losses that every network passes through after its first checkpoint; none if they do not overlap."""
    lows, highs = [], []
    for gs in networks:
        steps = sorted({g.step for g in gs if g.step is not None})
        end = losses.get((gs[0].case, gs[0].seed, None))
        start = losses.get((gs[0].case, gs[0].seed, steps[0])) if steps else None
        if end is None or start is None:
            return []
        lows.append(end)
        highs.append(start)
    low, high = max(lows), min(highs)
    if not low < high:
        return []
    return [low + (high - low) * (i + 1) / (TARGETS + 1) for i in range(TARGETS)]


def _interpolated(points: Sequence[Geometry], losses: Losses, targets: Sequence[float]) -> list[float | None]:
    """log d_align at each target; None outside the losses at which a signal was detected."""
    known = []
    for g in points:
        loss = losses.get((g.case, g.seed, g.step))
        if loss is not None and g.detected and g.d_align.value is not None and g.d_align.value > 0:
            known.append((loss, math.log(g.d_align.value)))
    known.sort()
    if len(known) < 2:
        return [None] * len(targets)
    x, y = zip(*known, strict=True)
    return [float(np.interp(t, x, y)) if x[0] <= t <= x[-1] else None for t in targets]


# -- along training ----------------------------------------------------------------------------------------


def falls_along_training(suite: str, geometry: Sequence[Geometry]) -> list[ClaimRow]:
    """Does d_align fall from the first checkpoint after step 0 to the end of the budget?

    Change of log d_align at places detected at both ends, averaged over a network's places; the networks are
    the independent units.
    """
    held_out = [g for g in geometry if g.sample == "held-out"]
    rows: list[ClaimRow] = []
    for positions, members in group(held_out, lambda g: g.positions).items():
        changes: list[float] = []
        seeds: set[int] = set()
        for gs in group(members, lambda g: (g.case, g.seed)).values():
            steps = sorted({g.step for g in gs if g.step})
            if not steps:
                continue
            first, last = ({g.module: g for g in gs if g.step == s} for s in (steps[0], None))
            both = [
                _log(last[m]) - _log(first[m])
                for m in first
                if m in last and math.isfinite(_log(last[m]) + _log(first[m]))
            ]
            if both:
                changes.append(float(np.mean(both)))
                seeds.add(gs[0].seed)
        if not changes:
            continue
        effect = _mean(changes)
        verdict, why = _falls(effect)
        rows.append(
            ClaimRow(
                "training-down",
                CLAIMS["training-down"],
                suite,
                f"from 1/8 of the budget to its end, held-out units, positions {positions}",
                verdict,
                "networks",
                sum(c < 0 for c in changes),
                sum(c == 0 for c in changes),
                sum(c > 0 for c in changes),
                effect_name="change of log d_{align}",
                effect=effect,
                n=len(changes),
                n_name="trained networks",
                seeds=len(seeds),
                why=why,
            )
        )
    return rows


def _log(g: Geometry) -> float:
    value = g.d_align.value
    return math.log(value) if g.detected and value is not None and value > 0 else math.nan


def _mean(values: Sequence[float]) -> Measured:
    """Mean with Student's interval; the values are of independent networks."""
    x = np.asarray(values, dtype=float)
    centre = float(x.mean())
    if len(x) < 2:
        return Measured(centre, None, None, CONFIDENCE, "one network: no interval")
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x)))
    return Measured(centre, centre - half, centre + half, CONFIDENCE, "mean over networks, Student")


def _falls(effect: Measured) -> tuple[Outcome, str]:
    if effect.low is None or effect.high is None:
        return "undecided", effect.method
    if effect.high < 0:
        return "holds", "the whole interval of the change is negative"
    if effect.low > 0:
        return "fails", "the whole interval of the change is positive: it grows at this scale"
    return "undecided", "the interval of the change contains 0"


# -- what training breaks ----------------------------------------------------------------------------------


def training_moments(suite: str, cells: Sequence[Misalignment]) -> list[ClaimRow]:
    """Does B_exact from training gradients alone cover how often they misalign with held-out ones?

    The theorem says nothing about it: a network was trained on these units, and their gradients follow
    another law. Each cell is the frequency of a train-test pair against B_exact of the train-train pair of
    the same place, M and K; the effect is by how much train-test pairs misalign more often than test-test
    pairs, averaged over the cells of a network.
    """

    def place(c: Misalignment) -> Hashable:
        return (c.case, c.seed, c.module, c.positions, c.M, c.K)

    drawn = [c for c in cells if c.protocol == "with_replacement" and c.step is None]
    bounds, held_out = (
        {place(c): c for c in drawn if c.pair == pair} for pair in ("train-train", "test-test")
    )
    across = [c for c in drawn if c.pair == "train-test"]
    if not across:
        return []
    outcomes: list[Outcome] = []
    p_values: list[float] = []
    gaps: dict[Hashable, list[float]] = {}
    for c in across:
        own = bounds.get(place(c))
        bound = None if own is None else own.B_exact.value
        other = held_out.get(place(c))
        if other is not None and other.frequency.value is not None and c.frequency.value is not None:
            gaps.setdefault((c.case, c.seed), []).append(c.frequency.value - other.frequency.value)
        covered = bound is not None and c.frequency.high is not None and c.frequency.high <= bound
        outcomes.append("holds" if covered else "undecided")
        p_values.append(
            1.0 if bound is None else float(stats.binom.sf(c.events - 1, c.trials, min(bound, 1)))
        )
    for k in np.flatnonzero(holm(np.array(p_values), 1 - CONFIDENCE)):
        outcomes[int(k)] = "fails"
    beyond, open_ = outcomes.count("fails"), outcomes.count("undecided")
    effect = _mean([float(np.mean(g)) for g in gaps.values()]) if gaps else None
    if beyond:
        verdict: Outcome = "fails"
        why = f"beyond the bound from training units alone, after correction: {plural(beyond, 'cell')}"
    elif open_:
        verdict, why = "undecided", f"no cell exceeds it; not decided: {plural(open_, 'cell')}"
    else:
        verdict, why = (
            "holds",
            "every cell lies below; the bound is loose enough to cover the other law as well",
        )
    return [
        ClaimRow(
            "training-moments",
            CLAIMS["training-moments"],
            suite,
            "training units against held-out units, bound from training units only (no theorem)",
            verdict,
            "cells",
            outcomes.count("holds"),
            open_,
            beyond,
            effect_name="misalignment of train-test minus test-test pairs",
            effect=effect,
            n=sum(c.trials for c in across),
            n_name="trials",
            seeds=len({c.seed for c in across}),
            why=why,
        )
    ]
