"""From stored records to verdicts on the papers' empirical claims: counts, effect, interval, and why.

Rules are fixed here, before any number is seen:

* ``fails`` needs evidence that survives a Holm correction over all cells (or steps) of the row;
* ``holds`` needs every cell decided, or an effect whose whole interval has the claimed sign;
* everything else is ``undecided``, with the reason in words.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from scipy import stats

from validation.results import Geometry, Measured, Misalignment, Record, Training

CONFIDENCE = 0.95
"""Confidence of every effect interval and family-wise level of every row."""

Outcome = Literal["holds", "fails", "undecided"]
R = TypeVar("R")

CLAIMS = {
    "cantelli": "The misalignment probability is at most B_{exact}.",
    "align": "B_{exact} ≤ B_{align}, and the probability is at most B_{align}.",
    "follow": "Both bounds cover the measured frequency and rise and fall with it.",
    "misalign-down": "Misalignment falls with M and K, and with width.",
    "width-up": "The alignment dimension d_{align} grows with width.",
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
    return list(
        dict.fromkeys(r.suite for r in records if isinstance(r, (Training, Geometry, Misalignment)))
    )


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


def claim_table(records: Sequence[Record]) -> list[ClaimRow]:
    """Every claim in every suite that has records for it, claims in the order of :data:`CLAIMS`."""
    rows: list[ClaimRow] = []
    for suite in suites(records):
        cells = [r for r in of(records, Misalignment) if r.suite == suite]
        geometry = [r for r in of(records, Geometry) if r.suite == suite]
        training = [r for r in of(records, Training) if r.suite == suite]
        rows += _bound_rows(suite, cells)
        rows += _follow_row(suite, cells)
        rows += _falls_with_units(suite, cells)
        if training:  # width means the width of a trained network; a law has only a dimension
            rows += _falls_with_width(suite, cells, training)
            rows += _width_up(suite, geometry, training)
    order = list(CLAIMS)
    return sorted(rows, key=lambda row: order.index(row.claim))


# -- the bounds themselves ---------------------------------------------------------------------------------


def _outcomes(cells: Sequence[Misalignment], which: Literal["B_exact", "B_align"]) -> list[Outcome]:
    """One outcome per cell; a violation must survive Holm's correction over all cells given."""
    p_values = np.ones(len(cells))
    out: list[Outcome] = ["undecided"] * len(cells)
    for i, cell in enumerate(cells):
        bound: Measured = getattr(cell, which)
        if bound.value is None:
            continue
        if cell.log_probability is not None:
            # the truth is known, no interval is needed; the slack covers rounding of the stored logarithm
            exceeds = cell.log_probability > math.log(bound.value) + 1e-9 if bound.value > 0 else True
            out[i] = "fails" if exceeds else "holds"
            continue
        limit = bound.value if bound.high is None else bound.high
        p_values[i] = stats.binom.sf(cell.events - 1, cell.trials, min(limit, 1.0))
        recorded = cell.verdict if which == "B_exact" else cell.verdict_align
        if recorded == "holds":
            out[i] = "holds"
    for i in np.flatnonzero(holm(p_values, 1 - CONFIDENCE)):
        out[int(i)] = "fails"
    return out


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


def _tally(outcomes: Sequence[Outcome]) -> tuple[Outcome, dict[str, int]]:
    counts = {
        "holds": outcomes.count("holds"),
        "undecided": outcomes.count("undecided"),
        "violated": outcomes.count("fails"),
    }
    if counts["violated"]:
        return "fails", counts
    return ("undecided" if counts["undecided"] or not counts["holds"] else "holds"), counts


def _seeds(records: Iterable[Any]) -> int:
    return len({r.seed for r in records})


def _bound_rows(suite: str, cells: Sequence[Misalignment]) -> list[ClaimRow]:
    cells = [c for c in cells if is_covered(c) and c.B_exact.value is not None]
    if not cells:
        return []
    source = cells[0].bound_source
    scope = {
        "population": "known laws, fresh draws, exact moments",
        "pool": "units drawn with replacement from a pool, the pool's own moments",
    }[source]
    trials, seeds = sum(c.trials for c in cells), _seeds(cells)

    verdict, counts = _tally(_outcomes(cells, "B_exact"))
    closest = max(cells, key=lambda c: (c.frequency.value or 0.0) / max(c.B_exact.value or 0.0, 1e-300))
    exact = ClaimRow(
        "cantelli", CLAIMS["cantelli"], suite, scope, verdict, "cells", **counts,
        effect_name="closest cell: frequency / B_{exact}", effect=_ratio(closest),
        n=trials, n_name="trials", seeds=seeds,
        why=_bound_reason(counts, "B_{exact}", closest),
    )  # fmt: skip

    ordered = [c for c in cells if c.B_align.value is not None]
    outcomes = _outcomes(ordered, "B_align")
    for i, c in enumerate(ordered):
        # the deterministic half of the claim; the slack is rounding in the stored numbers
        if (c.B_exact.value or 0.0) > (c.B_align.value or 0.0) * (1 + 1e-9):
            outcomes[i] = "fails"
    verdict, counts = _tally(outcomes)
    factors = [c.B_align.value / c.B_exact.value for c in ordered if c.B_align.value and c.B_exact.value]
    effect = (
        Measured(float(np.median(factors)), min(factors), max(factors), 1.0, "median and range over cells")
        if factors
        else None
    )
    align = ClaimRow(
        "align", CLAIMS["align"], suite, scope, verdict, "cells", **counts,
        effect_name="B_{align} / B_{exact}, median and range", effect=effect,
        n=trials, n_name="trials", seeds=seeds,
        why=_bound_reason(counts, "B_{align}", closest),
    )  # fmt: skip
    return [exact, align] if ordered else [exact]


def _ratio(cell: Misalignment) -> Measured:
    bound = cell.B_exact.value or 1.0
    f = cell.frequency
    low, high = f.low, f.high
    return Measured(
        None if f.value is None else f.value / bound,
        None if low is None else low / bound,
        None if high is None else high / bound,
        f.confidence,
        f.method,
    )


def _where(cell: Misalignment) -> str:
    return f"{cell.label}, {cell.module}, M = {cell.M}, K = {cell.K}"


def _bound_reason(counts: dict[str, int], name: str, closest: Misalignment) -> str:
    if counts["violated"]:
        return (
            f"{counts['violated']} cells exceed {name} after correction over all cells: "
            "either a fault in the software or units that are not independent"
        )
    if counts["undecided"]:
        return f"in {counts['undecided']} cells the interval contains {name}; none exceeds it"
    return f"every cell is below {name}; closest: {_where(closest)}"


# -- follow ------------------------------------------------------------------------------------------------


def _follow_row(suite: str, cells: Sequence[Misalignment]) -> list[ClaimRow]:
    cells = [c for c in cells if c.B_exact.value is not None and c.frequency.value is not None]
    if len(cells) < 3:
        return []
    verdict, counts = _tally(_outcomes(cells, "B_exact"))
    rho = _rank_correlation(cells)
    if rho is None:
        why, verdict = "too few distinct values for a rank correlation", "undecided"
    elif rho.high is not None and rho.high < 0:
        why, verdict = "the bound moves against the frequency", "fails"
    elif verdict == "fails":
        why = f"{counts['violated']} cells exceed B_{{exact}} after correction over all cells"
    elif rho.low is None or rho.low <= 0:
        why, verdict = "the interval of the rank correlation contains 0", "undecided"
    elif verdict == "undecided":
        why = f"in {counts['undecided']} cells the interval contains B_{{exact}}; none exceeds it"
    else:
        why = "every cell is covered, and larger bounds go with larger frequencies"
    protocols = sorted({c.protocol.replace("_", " ") for c in cells})
    return [
        ClaimRow(
            "follow", CLAIMS["follow"], suite, "all protocols: " + ", ".join(protocols), verdict,
            "cells", **counts, effect_name="rank correlation of B_{exact} and frequency", effect=rho,
            n=sum(c.trials for c in cells), n_name="trials", seeds=_seeds(cells), why=why,
        )
    ]  # fmt: skip


def _rank_correlation(cells: Sequence[Misalignment], resamples: int = 500) -> Measured | None:
    """Spearman correlation; interval by a bootstrap over whole networks or laws, which share their cells."""
    x = np.array([c.B_exact.value for c in cells], dtype=float)
    y = np.array([c.frequency.value for c in cells], dtype=float)
    clusters = [np.array(v) for v in group(range(len(cells)), lambda i: (cells[i].case, cells[i].seed)).values()]
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    rx, ry = stats.rankdata(x), stats.rankdata(y)

    def correlation(index: np.ndarray) -> float:
        a, b = rx[index] - rx[index].mean(), ry[index] - ry[index].mean()
        scale = math.sqrt(float(a @ a) * float(b @ b))
        return float(a @ b) / scale if scale > 0 else math.nan

    value = correlation(np.arange(len(cells)))
    if len(clusters) < 3:
        return Measured(value, None, None, CONFIDENCE, "needs three networks or laws for an interval")
    rng = np.random.default_rng(0)
    draws = [
        correlation(np.concatenate([clusters[i] for i in rng.integers(len(clusters), size=len(clusters))]))
        for _ in range(resamples)
    ]
    finite = [d for d in draws if math.isfinite(d)]
    low, high = np.quantile(finite, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Measured(value, float(low), float(high), CONFIDENCE, "bootstrap over networks or laws")


# -- trends ------------------------------------------------------------------------------------------------


def _falls_with_units(suite: str, cells: Sequence[Misalignment]) -> list[ClaimRow]:
    def series(c: Misalignment) -> Hashable:
        return (c.case, c.label, c.module, c.positions, c.seed, c.width, c.protocol)

    falls = overlaps = 0
    p_rise: list[float] = []
    drops: dict[Hashable, list[float]] = defaultdict(list)
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
        for before, after in zip(chain, chain[1:], strict=False):
            p_rise.append(_p_first_smaller(before, after))
            if (after.frequency.high or 0.0) < (before.frequency.low or 0.0):
                falls += 1
            else:
                overlaps += 1
        first, last = chain[0], chain[-1]
        drops[(first.case, first.seed)].append((first.frequency.value or 0.0) - (last.frequency.value or 0.0))
    if not p_rise:
        return []
    rises = int(holm(np.array(p_rise), 1 - CONFIDENCE).sum())
    overlaps -= rises
    effect = _mean_interval([float(np.mean(v)) for v in drops.values()])
    if rises:
        verdict: Outcome = "fails"
        why = f"in {rises} steps the frequency rises beyond chance"
    elif effect.low is not None and effect.low > 0:
        verdict = "holds"
        why = "on average the frequency drops from the smallest to the largest M, K; no step rises beyond chance"
    elif effect.high is not None and effect.high < 0:
        verdict, why = "fails", "on average the frequency rises from the smallest to the largest M, K"
    else:
        verdict, why = "undecided", "the interval of the mean drop contains 0 or does not exist"
    return [
        ClaimRow(
            "misalign-down", CLAIMS["misalign-down"], suite, "more units M, K at fixed width", verdict,
            "steps", falls, overlaps, rises,
            effect_name="drop of the frequency, smallest to largest M, K", effect=effect,
            n=sum(c.trials for c in used), n_name="trials", seeds=_seeds(used), why=why,
        )
    ]  # fmt: skip


def _p_first_smaller(before: Misalignment, after: Misalignment) -> float:
    """Fisher's exact one-sided p-value for ``after`` having the larger probability."""
    total, events = before.trials + after.trials, before.events + after.events
    return float(stats.hypergeom.sf(after.events - 1, total, events, after.trials))


def _mean_interval(values: Sequence[float]) -> Measured:
    """Mean of independent networks or laws with Student's interval."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Measured(mean, None, None, CONFIDENCE, "one network or law: no interval")
    half = float(
        stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    )
    return Measured(mean, mean - half, mean + half, CONFIDENCE, "Student over networks or laws")


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
    claim: str, suite: str, scope: str, networks: dict[tuple[str, int, int], dict[Hashable, float]],
    effect_name: str, sign: int, training: Sequence[Training], empty: str, *, base: float,
) -> list[ClaimRow]:  # fmt: skip
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
        why = word + (f"; {skipped} series not measured in every network are left out" if skipped else "")
        why += _loss_remark(training)
    pairs = _width_pairs(networks, common, sign)
    return [
        ClaimRow(
            claim, CLAIMS[claim], suite, scope, verdict, "width steps", *pairs,
            effect_name=effect_name, effect=effect, n=len(networks), n_name="trained networks",
            seeds=seeds, why=why,
        )
    ]  # fmt: skip


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
    for members in group(networks.items(), lambda item: item[0][1]).values():
        ordered = sorted(members, key=lambda item: item[0][2])
        values = [float(np.mean([m[k] for k in common])) if common else math.nan for _, m in ordered]
        for (one, a), (two, b) in zip(zip(ordered, values, strict=True), list(zip(ordered, values, strict=True))[1:], strict=False):  # noqa: E501
            if one[0][2] == two[0][2]:
                continue
            step = sign * (b - a)
            counts[0 if step > 0 else 2 if step < 0 else 1] += 1
    return counts[0], counts[1], counts[2]


def _falls_with_width(
    suite: str, cells: Sequence[Misalignment], training: Sequence[Training]
) -> list[ClaimRow]:
    rows: list[ClaimRow] = []
    for depth, members in group(cells, lambda c: c.depth).items():
        networks: dict[tuple[str, int, int], dict[Hashable, float]] = {}
        for c in members:
            if c.frequency.value is not None:
                key = (c.module, c.positions, c.unit, c.M, c.K, c.protocol)
                networks.setdefault((c.case, c.seed, c.width), {})[key] = c.frequency.value
        rows += _trend_row(
            "misalign-down", suite, f"wider networks at fixed M, K (depth {depth})", networks,
            "change of the mean frequency per doubling of width", -1,
            [t for t in training if t.depth == depth], "no cell was measured in every network", base=2.0,
        )  # fmt: skip
    return rows


def _width_up(suite: str, geometry: Sequence[Geometry], training: Sequence[Training]) -> list[ClaimRow]:
    rows: list[ClaimRow] = []
    held_out = [g for g in geometry if g.sample == "held-out"]
    for key, members in group(held_out, lambda g: (g.depth, g.positions)).items():
        depth, positions = key  # type: ignore[misc]
        networks: dict[tuple[str, int, int], dict[Hashable, float]] = {}
        for g in members:
            values = networks.setdefault((g.case, g.seed, g.width), {})
            if g.detected and g.d_align.value is not None and g.d_align.value > 0:
                values[g.module] = math.log(g.d_align.value)
        rows += _trend_row(
            "width-up", suite, f"held-out units, positions {positions}, depth {depth}", networks,
            "exponent of d_{align} in width", +1, [t for t in training if t.depth == depth],
            "no insertion point has a detected signal in every network", base=math.e,
        )  # fmt: skip
    return rows
