"""From stored records to verdicts on the papers' empirical claims: counts, effect, interval, and why.

Rules are fixed here, before any number is seen:

* ``fails`` needs evidence that survives a Holm correction over all cells (or steps) of the row;
* ``holds`` needs every cell decided (``cantelli``, ``align``), or an effect whose whole interval has the
  claimed sign (``follow`` also needs more cells decided than not);
* everything else is ``undecided``, with the reason in words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy import stats

from validation.claims import (
    CLAIMS,
    CONFIDENCE,
    RANGE,
    ClaimRow,
    Outcome,
    final,
    group,
    held_out,
    holm,
    is_covered,
    is_exact,
    of,
    plural,
    seed_count,
    suites,
)
from validation.parts import PARTS, part
from validation.results import Geometry, Measured, Misalignment, Record, Training
from validation.training_trends import training_rows
from validation.trends import falls_with_units, falls_with_width, width_up


def claim_table(records: Sequence[Record]) -> list[ClaimRow]:
    """Every claim in every suite that has records for it, claims in the order of :data:`CLAIMS`."""
    rows: list[ClaimRow] = []
    for suite in suites(records):
        counted = [r for r in of(records, Misalignment) if r.suite == suite]
        cells = held_out(final(counted))
        geometry = final(r for r in of(records, Geometry) if r.suite == suite)
        training = final(r for r in of(records, Training) if r.suite == suite)
        rows += _bound_rows(suite, counted)  # the bounds cover every step and every pair of samples
        rows += _follow_row(suite, cells)
        rows += falls_with_units(suite, cells)
        if training and suite not in PARTS:  # the width of a trained network; a law has only a dimension
            rows += falls_with_width(suite, cells, training)
            rows += width_up(suite, geometry, training)
            points = [r for r in of(records, Geometry) if r.suite == suite]
            trained = [r for r in of(records, Training) if r.suite == suite]
            rows += training_rows(suite, counted, points, trained)
        rows += part(suite, "claim_rows", records)
    order = {claim: i for i, claim in enumerate(CLAIMS)}
    return sorted(rows, key=lambda row: order.get(row.claim, len(order)))


# -- the bounds themselves ---------------------------------------------------------------------------------


def _outcomes(cells: Sequence[Misalignment], which: Literal["B_exact", "B_align"]) -> list[Outcome]:
    """One outcome per cell; a violation must survive Holm's correction over all cells given."""
    out: list[Outcome] = ["undecided"] * len(cells)
    limits = np.full(len(cells), np.nan)  # nan: not decided by counts
    for i, cell in enumerate(cells):
        bound: Measured = getattr(cell, which)
        if bound.value is None:
            continue
        if cell.log_probability is not None:
            # the truth is known, no interval is needed; the slack covers rounding of the stored logarithm
            exceeds = cell.log_probability > math.log(bound.value) + 1e-9 if bound.value > 0 else True
            out[i] = "fails" if exceeds else "holds"
            continue
        limits[i] = min(bound.value if bound.high is None else bound.high, 1.0)
        recorded = cell.verdict if which == "B_exact" else cell.verdict_align
        if recorded == "holds":
            out[i] = "holds"
    events, trials = (np.array([getattr(c, f) for c in cells]) for f in ("events", "trials"))
    p_values = np.where(np.isnan(limits), 1.0, stats.binom.sf(events - 1, trials, np.nan_to_num(limits)))
    for k in np.flatnonzero(holm(p_values, 1 - CONFIDENCE)):
        out[int(k)] = "fails"
    return out


def _tally(outcomes: Sequence[Outcome]) -> tuple[Outcome, dict[str, int]]:
    counts = {
        "holds": outcomes.count("holds"),
        "undecided": outcomes.count("undecided"),
        "violated": outcomes.count("fails"),
    }
    if counts["violated"]:
        return "fails", counts
    return ("undecided" if counts["undecided"] or not counts["holds"] else "holds"), counts


_SCOPES = {
    ("population", "fresh"): "known laws, fresh draws, exact moments",
    ("pool", "with_replacement"): "drawn with replacement from a pool; the pool's own moments",
    ("pool", "without_replacement"): "drawn without replacement; the finite pool's mean and variance of T",
}


_PAIRS = {
    "train-test": "training units against held-out units (two laws)",
    "train-train": "training units on both sides",
}


def _scope(cell: Misalignment) -> str:
    """Which cells a row is about: how units were drawn, from which samples, at which point of training."""
    text = _SCOPES[cell.bound_source, cell.protocol]
    text += f"; {_PAIRS[cell.pair]}" if cell.pair in _PAIRS else ""
    return text + ("" if cell.step is None else "; along the training")


def _bound_rows(suite: str, cells: Sequence[Misalignment]) -> list[ClaimRow]:
    rows: list[ClaimRow] = []
    exact = [c for c in cells if is_exact(c) and c.B_exact.value is not None]
    for members in group(exact, lambda c: (c.bound_source, c.protocol, c.pair, c.step is None)).values():
        rows.append(_exact_row(suite, members))
        two_laws = members[0].pair == "train-test"  # has no d_align
        # the iid formula B_align is no theorem for draws without replacement
        if is_covered(members[0]) and not two_laws:
            ordered = [c for c in members if c.B_align.value is not None]
            rows += [_align_row(suite, ordered)] if ordered else []
    return rows


def _exact_row(suite: str, cells: Sequence[Misalignment]) -> ClaimRow:
    verdict, counts = _tally(_outcomes(cells, "B_exact"))
    closest = max(cells, key=lambda c: _ratio(c).value or 0.0)
    return ClaimRow(
        "cantelli",
        CLAIMS["cantelli"],
        suite,
        _scope(cells[0]),
        verdict,
        "cells",
        **counts,
        effect_name="closest cell: P(T ≤ 0) / B_{exact}",
        effect=_ratio(closest),
        n=sum(c.trials for c in cells),
        n_name="trials",
        seeds=seed_count(cells),
        why=_bound_reason(counts, "B_{exact}", f"closest: {_where(closest)}"),
    )


def _align_row(suite: str, cells: Sequence[Misalignment]) -> ClaimRow:
    outcomes = _outcomes(cells, "B_align")
    for i, c in enumerate(cells):
        # the deterministic half of the claim; the slack is rounding in the stored numbers
        if (c.B_exact.value or 0.0) > (c.B_align.value or 0.0) * (1 + 1e-9):
            outcomes[i] = "fails"
    verdict, counts = _tally(outcomes)
    factors = [c.B_align.value / c.B_exact.value for c in cells if c.B_align.value and c.B_exact.value]
    effect = None
    if factors:
        middle = float(np.median(factors))
        effect = Measured(middle, min(factors), max(factors), 1.0, RANGE)
    return ClaimRow(
        "align",
        CLAIMS["align"],
        suite,
        _scope(cells[0]),
        verdict,
        "cells",
        **counts,
        effect_name="B_{align} / B_{exact}, median over cells",
        effect=effect,
        n=sum(c.trials for c in cells),
        n_name="trials",
        seeds=seed_count(cells),
        why=_bound_reason(counts, "B_{align}", "B_{align} is nowhere the smaller of the two"),
    )


def _ratio(cell: Misalignment) -> Measured:
    """P(T <= 0) / B_exact: exactly where P is known, else with the frequency's interval."""
    bound = cell.B_exact.value or math.inf
    if cell.log_probability is not None:
        exact = math.exp(cell.log_probability) / bound
        return Measured(exact, exact, exact, 1.0, "exact")
    f = cell.frequency
    value, low, high = (None if v is None else v / bound for v in (f.value, f.low, f.high))
    return Measured(value, low, high, f.confidence, f.method)


def _where(cell: Misalignment) -> str:
    place = "" if cell.bound_source == "population" else f", {cell.module}"
    return f"{cell.label}{place}, M = {cell.M}, K = {cell.K}"


def _bound_reason(counts: dict[str, int], name: str, remark: str) -> str:
    if counts["violated"]:
        return (
            f"beyond {name} after correction over all cells: {plural(counts['violated'], 'cell')}; "
            "either a fault in the software or units that are not independent"
        )
    if counts["undecided"]:
        return f"in {plural(counts['undecided'], 'cell')} the interval contains {name}; none exceeds it"
    return f"no cell is above {name}; {remark}"


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
        why = f"beyond B_{{exact}} after correction over all cells: {plural(counts['violated'], 'cell')}"
    elif rho.low is None or rho.low <= 0:
        why = "the interval of the rank correlation contains 0" if rho.low is not None else rho.method
        verdict = "undecided"
    elif counts["holds"] <= counts["undecided"]:
        why = f"in {plural(counts['undecided'], 'cell')} the interval contains B_{{exact}}: too many"
    else:
        verdict, why = "holds", "no cell exceeds its bound, and larger bounds go with larger frequencies"
        if counts["undecided"]:
            why += f"; in {plural(counts['undecided'], 'cell')} the interval is too wide to tell"
    protocols = sorted({c.protocol.replace("_", " ") for c in cells})
    return [
        ClaimRow(
            "follow",
            CLAIMS["follow"],
            suite,
            ", ".join(protocols),
            verdict,
            "cells",
            **counts,
            effect_name="rank correlation of B_{exact} and frequency",
            effect=rho,
            n=sum(c.trials for c in cells),
            n_name="trials",
            seeds=seed_count(cells),
            why=why,
        )
    ]


def _rank_correlation(cells: Sequence[Misalignment], resamples: int = 500) -> Measured | None:
    """Spearman correlation; interval by a bootstrap over whole networks or laws, which share their cells."""
    x = np.array([c.B_exact.value for c in cells], dtype=float)
    y = np.array([c.frequency.value for c in cells], dtype=float)
    clusters = [
        np.array(v) for v in group(range(len(cells)), lambda i: (cells[i].case, cells[i].seed)).values()
    ]
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
