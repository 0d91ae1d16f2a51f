"""The intervention suite's part of a report: observed over predicted against the length of the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from validation.claims import group, of
from validation.intervention_claims import claim_rows, family
from validation.plotting import (
    DASHES,
    GREEN,
    MARKERS,
    MUTED,
    PAPER,
    SERIES,
    SHADE,
    Canvas,
    Figure,
    Panel,
    power_of_ten,
)
from validation.results import Effect, Growth, Record
from validation.tables import Column, Table

__all__ = ["claim_rows", "figures", "tables"]

TITLES = {"resnet20": "ResNet-20", "neox": "GPT-NeoX", "llama": "LLaMA-like"}
_LOW, _HIGH = -1.0, 1.6


def figures(records: Sequence[Record], id: str) -> list[Figure]:
    """Figures of the suite; those without records are left out."""
    effects = of(records, Effect)
    return [f for f in (ratio(effects, f"{id}-ratio"), change(effects, f"{id}-change")) if f is not None]


def _rows(effects: Sequence[Effect]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "label": e.label,
            "module": e.module,
            "block": e.block,
            "sample": e.sample,
            "seed": e.seed,
            "M": e.M,
            "K": e.K,
            "fraction": e.fraction,
            "alpha": e.alpha,
            "T": e.T,
            "predicted": e.predicted,
            "second_order": e.second_order,
            "observed": e.observed.value,
            "observed_low": e.observed.low,
            "observed_high": e.observed.high,
            "ratio": e.ratio.value,
            "ratio_low": e.ratio.low,
            "ratio_high": e.ratio.high,
            "same_sign": e.same_sign,
            "certain": e.certain,
        }
        for e in effects
    )


def ratio(effects: Sequence[Effect], id: str) -> Figure | None:
    """Observed over predicted change of the loss of fresh units, against the step."""
    fresh = [e for e in effects if e.sample == "held-out"]
    panels: list[Panel] = []
    for name, members in group(fresh, family).items():
        steps = sorted({e.fraction for e in members})
        kinds = list(dict.fromkeys(e.block for e in members))
        canvas = Canvas(
            x_title="step: predicted share of the loss", y_title="observed / predicted", margin=96
        )
        ax = canvas.ax
        canvas.log_x_at(steps, [f"{power_of_ten(math.log10(100 * s))} %" for s in steps])
        ax.set_ylim(_LOW, _HIGH)
        ax.axhspan(0.96, 0.99, color=SHADE, linewidth=0)
        ax.axhline(1.0, color=MUTED, linewidth=0.9)
        ax.axhline(0.0, color=MUTED, linewidth=0.9, linestyle=DASHES[1])
        wishes = []
        for i, kind in enumerate(kinds):
            colour = SERIES[i % len(SERIES)]
            mine = [e for e in members if e.block == kind]
            for e in mine:
                if e.ratio.value is None:
                    continue
                x = e.fraction * 1.06 ** (i - (len(kinds) - 1) / 2)
                y = min(max(e.ratio.value, _LOW), _HIGH)
                beyond = y != e.ratio.value
                if e.ratio.low is not None and e.ratio.high is not None and not beyond:
                    ends = [min(max(v, _LOW), _HIGH) for v in (e.ratio.low, e.ratio.high)]
                    ax.plot([x, x], ends, color=colour, linewidth=0.8, alpha=0.6)
                solid = e.ratio.low is not None
                ax.plot(
                    [x],
                    [y],
                    marker=("v" if y == _LOW else "^") if beyond else MARKERS[i % len(MARKERS)],
                    color=colour,
                    markersize=4.2,
                    markerfacecolor=colour if solid else "none",
                    markeredgecolor=PAPER if solid else colour,
                    markeredgewidth=0.5 if solid else 0.9,
                    linestyle="none",
                )
            middle = [
                float(
                    np.median([e.ratio.value for e in mine if e.fraction == s and e.ratio.value is not None])
                )
                for s in steps
            ]
            ax.plot(steps, middle, color=colour, linewidth=1.4, linestyle=DASHES[i % len(DASHES)])
            wishes.append((middle[-1], kind, colour))
        canvas.labels_right(wishes)
        title = TITLES.get(str(name), str(name))
        alt = f"{title}: observed over predicted change for {len(members)} steps of {', '.join(kinds)}."
        panels.append(Panel(title, canvas.svg(f"{id}-{len(panels)}", alt)))
    if not panels:
        return None
    first = fresh[0]
    caption = (
        "What to see: at small steps the points lie at 1 (first order is exact in the limit) and fall as the "
        "step grows; below the dashed line the step made things worse. Shaded: the papers' 96 to 99 %. "
        "Points are places and networks with 95 % intervals paired over fresh units (Fieller), hollow where "
        "T itself may be 0 and the ratio has no limit, arrows beyond the axis; lines join medians. A step is "
        f"named by the share of the loss that the first order predicts for the M units; M = K = {first.M} "
        f"for {first.unit}s."
    )
    return Figure(
        id, "Observed against predicted change of held-out loss", caption, tuple(panels), _rows(effects)
    )


def change(effects: Sequence[Effect], id: str) -> Figure | None:
    """How often the change is a certain improvement, by step, on the M units and on fresh ones."""
    panels: list[Panel] = []
    rows: list[dict[str, Any]] = []
    for name, members in group(effects, family).items():
        steps = sorted({e.fraction for e in members})
        canvas = Canvas(x_title="step: predicted share of the loss", y_title="share of places", margin=96)
        canvas.log_x_at(steps, [f"{power_of_ten(math.log10(100 * s))} %" for s in steps])
        canvas.ax.set_ylim(-0.03, 1.03)
        wishes = []
        for i, (sample, text, test) in enumerate(
            (
                ("train", "M units: better", "certain"),
                ("held-out", "fresh: better", "certain"),
                ("held-out", "fresh: worse", "worse"),
            )
        ):
            colour = (SERIES[0], GREEN, SERIES[1])[i]
            shares = []
            for s in steps:
                mine = [e for e in members if e.sample == sample and e.fraction == s]
                hits = sum(e.certain if test == "certain" else (e.observed.low or 0.0) > 0 for e in mine)
                shares.append(hits / max(len(mine), 1))
                rows.append(
                    {"family": name, "sample": sample, "what": test, "step": s, "hits": hits, "of": len(mine)}
                )
            canvas.ax.plot(
                steps,
                shares,
                color=colour,
                marker=MARKERS[i],
                markersize=4.5,
                linewidth=1.4,
                linestyle=DASHES[i],
            )
            wishes.append((shares[-1], text, colour))
        canvas.labels_right(wishes)
        title = TITLES.get(str(name), str(name))
        alt = f"{title}: share of places where the loss certainly fell or rose, by step."
        panels.append(Panel(title, canvas.svg(f"{id}-{len(panels)}", alt)))
    if not panels:
        return None
    caption = (
        "What to see: up to which step the improvement is certain, and whether the M units improve more "
        "often than fresh ones. Better: the upper 95 % limit of the mean change, paired over units and for "
        "all steps together, lies below 0; worse: the two-sided 95 % interval of that step lies above 0."
    )
    return Figure(id, "Where a step is a certain improvement", caption, tuple(panels), tuple(rows))


def tables(records: Sequence[Record], id: str) -> list[Table]:
    """Steps at every place and block, and guarantees for trained blocks."""
    return [*_steps(of(records, Effect), id), *_guarantees(of(records, Growth), id)]


def _guarantees(found: Sequence[Growth], id: str) -> list[Table]:
    if not found:
        return []
    columns = (
        Column("network"),
        Column("place"),
        Column("seed", "number"),
        Column("M = K", "number"),
        Column("route", "text"),
        Column("change at most", "number"),
        Column("probability at least", "number"),
        Column("says", "text"),
        Column("cost / gain", "number"),
        Column("units needed", "number"),
        Column("observed change", "measured"),
    )
    rows = [
        (
            g.label,
            g.module,
            g.seed,
            g.M,
            g.route,
            g.change,
            g.probability,
            "vacuous" if g.vacuous else "improvement" if g.improves else "no improvement shown",
            g.factor,
            g.units_needed,
            g.observed,
        )
        for g in found
    ]
    note = (
        "Routes A and B and theorem 2 for a trained channel shift, and the change of the loss of fresh units "
        f"(new minus old, loss clipped at {found[0].clip:g}). Train, test and fresh units are disjoint."
    )
    return [
        Table(f"{id}-growth", f"Guarantees ({len(rows)})", note, columns, tuple(rows[:400]), tuple(found))
    ]


def _steps(effects: Sequence[Effect], id: str) -> list[Table]:
    """One row per place and block: the smallest step, and the largest certain one."""
    if not effects:
        return []
    columns = (
        Column("network"),
        Column("place"),
        Column("block"),
        Column("seed", "number"),
        Column("M = K", "number"),
        Column("T", "number"),
        Column("ratio, smallest step", "measured"),
        Column("largest certain step", "text"),
        Column("its change of the loss", "measured"),
    )
    rows = []
    fresh = [e for e in effects if e.sample == "held-out"]
    for members in group(fresh, lambda e: (e.case, e.seed, e.module, e.block)).values():
        ordered = sorted(members, key=lambda e: e.fraction)
        first, sure = ordered[0], [e for e in ordered if e.certain]
        last = sure[-1] if sure else None
        step = "none" if last is None else f"{100 * last.fraction:g} % (α = {last.alpha:.3g})"
        change = None if last is None else last.observed
        rows.append(
            (first.label, first.module, first.block, first.seed, first.M, first.T, first.ratio, step, change)
        )
    note = (
        "Fresh units. The ratio is observed over predicted change; the largest certain step is the largest "
        "one tried whose improvement is certain at 95 %, for all steps together."
    )
    return [
        Table(
            f"{id}-effects",
            f"Steps ({len(rows)} blocks at places)",
            note,
            columns,
            tuple(rows[:400]),
            tuple(effects),
        )
    ]
