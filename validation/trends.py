"""Verdicts on trends: does misalignment fall with more units and with width, does d_align grow with width?

A trained network is the independent unit of every trend over widths; cells of one network only average out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from itertools import pairwise

import numpy as np
from scipy import stats

from validation.claims import CLAIMS, CONFIDENCE, ClaimRow, Outcome, group, holm, plural, seed_count
from validation.results import Geometry, Measured, Misalignment, Training


def falls_with_units(suite: str, cells: Sequence[Misalignment]) -> list[ClaimRow]:
    """Does the frequency fall from step to step as M and K grow, all else fixed?"""

    def series(c: Misalignment) -> Hashable:
        return (c.case, c.label, c.module, c.positions, c.seed, c.width, c.protocol)

    falls = overlaps = 0
    p_rise: list[float] = []
    drops: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
    used: list[Misalignment] = []
    for members in group(cells, series).values():
        ordered = sorted(members, key=lambda c: (c.M, c.K))
        chain = [ordered[0]]
        for cell in ordered[1:]:
            if cell.K >= chain[-1].K:
                chain.append(cell)
        if len(chain) < 2:
            continue
        used += chain
        for before, after in pairwise(chain):
            p_rise.append(_p_first_smaller(before, after))
            if (after.frequency.high or 0.0) < (before.frequency.low or 0.0):
                falls += 1
            else:
                overlaps += 1
        first, last = chain[0], chain[-1]
        drops[(first.case, first.seed)].append(_drop(first, last))
    if not p_rise:
        return []
    rises = int(holm(np.array(p_rise), 1 - CONFIDENCE).sum())
    overlaps -= rises
    effect = _mean_drop(list(drops.values()))
    if rises:
        verdict: Outcome = "fails"
        why = f"in {plural(rises, 'step')} the frequency rises beyond chance"
    elif effect.low is not None and effect.low > 0:
        verdict = "holds"
        why = "from the smallest to the largest M, K the frequency drops; no step rises beyond chance"
    elif effect.high is not None and effect.high < 0:
        verdict, why = "fails", "on average the frequency rises from the smallest to the largest M, K"
    else:
        verdict, why = "undecided", "the interval of the mean drop contains 0"
    return [
        ClaimRow(
            "misalign-down",
            CLAIMS["misalign-down"],
            suite,
            "more units M, K; the same law or network",
            verdict,
            "steps",
            falls,
            overlaps,
            rises,
            effect_name="drop of the frequency, smallest to largest M, K",
            effect=effect,
            n=sum(c.trials for c in used),
            n_name="trials",
            seeds=seed_count(used),
            why=why,
        )
    ]


def _p_first_smaller(before: Misalignment, after: Misalignment) -> float:
    """Fisher's exact one-sided p-value for ``after`` having the larger probability."""
    total, events = before.trials + after.trials, before.events + after.events
    return float(stats.hypergeom.sf(after.events - 1, total, events, after.trials))


def _drop(first: Misalignment, last: Misalignment) -> tuple[float, float]:
    """Fall of the frequency and its binomial standard error (one event and one miss added: never 0)."""
    variance = 0.0
    for c in (first, last):
        p = (c.events + 1) / (c.trials + 2)
        variance += p * (1 - p) / c.trials
    return (first.frequency.value or 0.0) - (last.frequency.value or 0.0), math.sqrt(variance)


def _mean_drop(by_case: Sequence[Sequence[tuple[float, float]]]) -> Measured:
    """Mean drop over these laws or networks, with counting error only: it says nothing about others.

    Places of one network are counted with the same draws, so their errors are taken as fully dependent.
    """
    means = [float(np.mean([d for d, _ in drops])) for drops in by_case]
    errors = [float(np.mean([e for _, e in drops])) for drops in by_case]
    mean = float(np.mean(means))
    half = float(stats.norm.ppf((1 + CONFIDENCE) / 2)) * math.sqrt(sum(e * e for e in errors)) / len(errors)
    return Measured(mean, mean - half, mean + half, CONFIDENCE, "normal, counting error only")


def slope(x: Sequence[float], y: Sequence[float], confidence: float = CONFIDENCE) -> Measured:
    """Least-squares slope with Student's interval; the points are independent trained networks.

    >>> slope([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]).value
    1.0
    """
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    centred = a - a.mean()
    ss = float(centred @ centred)
    if ss == 0:
        return Measured(None, None, None, confidence, "one width only: no slope")
    value = float(centred @ b) / ss
    if len(a) < 3:
        return Measured(value, None, None, confidence, "two networks: no interval")
    residual = b - b.mean() - value * centred
    se = math.sqrt(float(residual @ residual) / (len(a) - 2) / ss)
    half = float(stats.t.ppf((1 + confidence) / 2, len(a) - 2)) * se
    return Measured(value, value - half, value + half, confidence, "least squares over networks, Student")


def _loss_remark(training: Sequence[Training]) -> str:
    by_width = {w: [t.test_loss.value for t in ts] for w, ts in group(training, lambda t: t.width).items()}
    means = {
        int(str(w)): float(np.mean([v for v in vs if v is not None]))
        for w, vs in by_width.items()
        if all(v is not None for v in vs)
    }
    if len(means) < 2:
        return ""
    low, high = min(means), max(means)
    return (
        f"; mean test loss goes from {means[low]:.3g} (width {low}) to {means[high]:.3g} (width {high}), "
        "so width is not separated from how far training got"
    )


def _common(by_network: dict[Hashable, dict[Hashable, float]]) -> list[Hashable]:
    """Keys measured in every network, so that a mean over them compares like with like."""
    maps = list(by_network.values())
    return [k for k in maps[0] if all(k in m for m in maps[1:])] if maps else []


def _trend_row(
    claim: str,
    suite: str,
    scope: str,
    networks: dict[tuple[str, int, int], dict[Hashable, float]],
    effect_name: str,
    sign: int,
    training: Sequence[Training],
    empty: str,
    *,
    base: float,
) -> list[ClaimRow]:
    if len({width for _, _, width in networks}) < 2:
        return []
    common = _common(networks)  # type: ignore[arg-type]
    log_width = [math.log(width, base) for _, _, width in networks]
    seeds = len({seed for _, seed, _ in networks})
    if not common:
        effect: Measured | None = None
        verdict: Outcome = "undecided"
        why = empty
    else:
        means = [float(np.mean([m[k] for k in common])) for m in networks.values()]
        effect = slope(log_width, means)
        verdict, word = _sign(effect, sign)
        skipped = len({k for m in networks.values() for k in m}) - len(common)
        why = word + (
            f"; left out, not detected in every network: {plural(skipped, 'place')}" if skipped else ""
        )
        why += _loss_remark(training)
    pairs = _width_pairs(networks, common, sign)
    return [
        ClaimRow(
            claim,
            CLAIMS[claim],
            suite,
            scope,
            verdict,
            "width steps",
            *pairs,
            effect_name=effect_name,
            effect=effect,
            n=len(networks),
            n_name="trained networks",
            seeds=seeds,
            why=why,
        )
    ]


def _sign(effect: Measured, sign: int) -> tuple[Outcome, str]:
    if effect.low is None or effect.high is None:
        return "undecided", effect.method
    low, high = (effect.low, effect.high) if sign > 0 else (-effect.high, -effect.low)
    if low > 0:
        return "holds", "the whole interval of the slope has the claimed sign"
    if high < 0:
        return "fails", "the whole interval of the slope has the opposite sign"
    return "undecided", "the interval of the slope contains 0"


def _width_pairs(
    networks: dict[tuple[str, int, int], dict[Hashable, float]], common: Sequence[Hashable], sign: int
) -> tuple[int, int, int]:
    """Steps between neighbouring widths within a seed: as claimed, no change, against the claim."""
    counts = [0, 0, 0]
    if not common:
        return 0, 0, 0
    for members in group(networks.items(), lambda item: item[0][1]).values():
        ordered = sorted(members, key=lambda item: item[0][2])
        values = [float(np.mean([m[k] for k in common])) for _, m in ordered]
        for (one, a), (two, b) in pairwise(zip(ordered, values, strict=True)):
            if one[0][2] == two[0][2]:
                continue
            step = sign * (b - a)
            counts[0 if step > 0 else 2 if step < 0 else 1] += 1
    return counts[0], counts[1], counts[2]


def falls_with_width(
    suite: str, cells: Sequence[Misalignment], training: Sequence[Training]
) -> list[ClaimRow]:
    """Does the mean frequency of a network fall with its width, at the same M, K, places and depth?"""
    rows: list[ClaimRow] = []
    for depth, members in group(cells, lambda c: c.depth).items():
        networks: dict[tuple[str, int, int], dict[Hashable, float]] = {}
        for c in members:
            if c.frequency.value is not None:
                key = (c.module, c.positions, c.unit, c.M, c.K, c.protocol)
                networks.setdefault((c.case, c.seed, c.width), {})[key] = c.frequency.value
        rows += _trend_row(
            "misalign-down",
            suite,
            f"wider networks at fixed M, K (depth {depth})",
            networks,
            "change of the mean frequency per doubling of width",
            -1,
            [t for t in training if t.depth == depth],
            "no cell was measured in every network",
            base=2.0,
        )
    return rows


def width_up(suite: str, geometry: Sequence[Geometry], training: Sequence[Training]) -> list[ClaimRow]:
    """Does log d_align, averaged over places detected in every network, grow with log width?"""
    rows: list[ClaimRow] = []
    held_out = [g for g in geometry if g.sample == "held-out"]
    for members in group(held_out, lambda g: (g.depth, g.positions)).values():
        depth, positions = members[0].depth, members[0].positions
        networks: dict[tuple[str, int, int], dict[Hashable, float]] = {}
        for g in members:
            values = networks.setdefault((g.case, g.seed, g.width), {})
            if g.detected and g.d_align.value is not None and g.d_align.value > 0:
                values[g.module] = math.log(g.d_align.value)
        rows += _trend_row(
            "width-up",
            suite,
            f"held-out units, positions {positions}, depth {depth}",
            networks,
            "exponent of d_{align} in width",
            +1,
            [t for t in training if t.depth == depth],
            "no insertion point has a detected signal in every network",
            base=math.e,
        )
    return rows
