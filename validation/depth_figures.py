"""The depth suite's part of a report: signal against depth, off-diagonal share, loss over the grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from validation.claims import group, of
from validation.depth_claims import (
    FAMILIES,
    blocks,
    by_family,
    claim_rows,
    decay,
    family,
    required_units,
    series,
)
from validation.plotting import DASHES, MARKERS, MUTED, PAPER, SERIES, Canvas, Figure, Panel
from validation.results import Diagonality, Geometry, Record, Training
from validation.tables import Column, Table

__all__ = ["claim_rows", "figures", "tables"]


def figures(records: Sequence[Record], id: str) -> list[Figure]:
    """Figures of the suite; those without records are left out."""
    made = [
        signal(records, f"{id}-signal"),
        alignment(records, f"{id}-alignment"),
        diagonality(of(records, Diagonality), f"{id}-diagonality"),
        grid(of(records, Training), f"{id}-grid"),
    ]
    return [f for f in made if f is not None]


def _mark(
    canvas: Canvas, x: float, y: float, low: float | None, high: float | None, colour: str, m: str
) -> None:
    ax = canvas.ax
    bottom, top = ax.get_ylim()
    ax.plot([x, x], [max(low or bottom, bottom), min(high or y, top)], color=colour, linewidth=1.1)
    ax.plot(
        [x],
        [y],
        marker=m,
        markersize=5,
        color=colour,
        markeredgecolor=PAPER,
        markeredgewidth=0.5,
        linestyle="none",
    )


def signal(records: Sequence[Record], id: str) -> Figure | None:
    """|mu|^2 against the number of blocks, with both decay laws."""
    panels: list[Panel] = []
    rows: list[dict[str, Any]] = []
    for name, positions, items in by_family(records):
        members = [g for _, ms in items for g in ms]
        values = [g.m2.value for g in members if g.m2.value is not None and g.m2.value > 0]
        if not values:
            continue
        xs = sorted({blocks(g.depth, name) for g in members})
        canvas = Canvas(x_title="residual blocks", y_title="|μ|²", margin=90)
        canvas.log_x_at([float(x) for x in xs])
        low, high = min(values) / 3, max(values) * 2.5
        canvas.log_y(low, high)
        wishes = []
        stages = sorted({k[2] for k, _ in items})
        widths = sorted({k[1] for k, _ in items})
        for key, ms in items:
            colour, dash = (
                SERIES[widths.index(key[1]) % len(SERIES)],
                DASHES[stages.index(key[2]) % len(DASHES)],
            )
            marker = MARKERS[stages.index(key[2]) % len(MARKERS)]
            shift = 1 + 0.02 * (widths.index(key[1]) - (len(widths) - 1) / 2)
            for g in ms:
                y = g.m2.value
                x = blocks(g.depth, name) * shift
                if y is not None and y > low:
                    _mark(canvas, x, y, g.m2.low, g.m2.high, colour, marker)
                else:  # zero or negative: an arrow at the foot
                    canvas.ax.plot([x], [low * 1.2], marker="v", color=colour, markersize=5, linestyle="none")
                rows.append(_signal_row(g, key))
            compared = decay(ms)
            if compared is not None:
                power = compared.fits["power"]
                p = power.rate.value if power.rate and power.rate.value is not None else 0.0
                bs = [float(blocks(g.depth, name)) for g in ms]
                grid_x = np.geomspace(min(bs), max(bs), 30)
                curve = power.scale * np.exp(-2 * p * (np.log(grid_x) - np.log(bs).mean()))
                canvas.ax.plot(grid_x, curve, color=colour, linestyle=dash, linewidth=1.2)
                wishes.append(
                    (float(curve[-1]), f"{key[1]} {key[2]}" if len(stages) > 1 else f"width {key[1]}", colour)
                )
        canvas.labels_right(wishes)
        title = f"{FAMILIES.get(name, name)}, positions {positions}"
        alt = f"{title}: squared signal norm at {len(members)} places against {xs[0]} to {xs[-1]} blocks."
        panels.append(Panel(title, canvas.svg(f"{id}-{len(panels)}", alt)))
    if not panels:
        return None
    caption = (
        "What to see: whether the signal falls from left to right. Points are trained networks with 95 % "
        "intervals (unbiased |μ|², jackknife), colours are widths, markers are insertion points that "
        "networks of every depth have (ends of stages, or the last layer). Lines are power laws fitted to "
        "all estimates by maximum likelihood; arrows at the foot are estimates that are zero, negative or "
        "below the axis, which the fits use as they are."
    )
    return Figure(id, "First-order signal against depth", caption, tuple(panels), tuple(rows))


def alignment(records: Sequence[Record], id: str) -> Figure | None:
    """The effective alignment dimension against the number of blocks, at the same places as the signal."""
    panels: list[Panel] = []
    rows: list[dict[str, Any]] = []
    for name, positions, items in by_family(records):
        members = [g for _, ms in items for g in ms]
        values = [g.d_align.value for g in members if g.d_align.value is not None and g.d_align.value > 0]
        if not values:
            continue
        xs = sorted({blocks(g.depth, name) for g in members})
        canvas = Canvas(x_title="residual blocks", y_title="d_{align}", margin=90)
        canvas.log_x_at([float(x) for x in xs])
        low, high = min(values) / 3, max(values) * 2.5
        canvas.log_y(low, high)
        stages = sorted({k[2] for k, _ in items})
        widths = sorted({k[1] for k, _ in items})
        wishes = []
        for key, ms in items:
            colour = SERIES[widths.index(key[1]) % len(SERIES)]
            marker = MARKERS[stages.index(key[2]) % len(MARKERS)]
            shift = 1 + 0.02 * (widths.index(key[1]) - (len(widths) - 1) / 2)
            seen: list[float] = []
            for g in ms:
                x, y = blocks(g.depth, name) * shift, g.d_align.value
                if y is not None and y > low:
                    _mark(canvas, x, y, g.d_align.low, g.d_align.high, colour, marker)
                    seen.append(y)
                else:  # zero or negative: an arrow at the foot
                    canvas.ax.plot([x], [low * 1.2], marker="v", color=colour, markersize=5, linestyle="none")
                rows.append(_signal_row(g, key))
            if seen:
                text = f"{key[1]} {key[2]}" if len(stages) > 1 else f"width {key[1]}"
                wishes.append((math.exp(float(np.mean(np.log(seen)))), text, colour))
        canvas.labels_right(wishes)
        title = f"{FAMILIES.get(name, name)}, positions {positions}"
        alt = f"{title}: alignment dimension at {len(members)} places against {xs[0]} to {xs[-1]} blocks."
        panels.append(Panel(title, canvas.svg(f"{id}-{len(panels)}", alt)))
    if not panels:
        return None
    caption = (
        "What to see: whether the alignment dimension changes from left to right; the smaller it is, the "
        "more units an insertion needs. Points are trained networks with 95 % intervals from unbiased "
        "parts, at the places of the figure of the signal; colours are widths, markers insertion points. No "
        "line is fitted; labels stand at geometric means. Arrows at the foot are estimates that do not "
        "exist, or are zero or negative."
    )
    return Figure(id, "Alignment dimension against depth", caption, tuple(panels), tuple(rows))


def _signal_row(g: Geometry, key: tuple[str, int, str, str]) -> dict[str, object]:
    return {
        "family": key[0],
        "label": g.label,
        "width": g.width,
        "blocks": blocks(g.depth, key[0]),
        "place": key[2],
        "module": g.module,
        "positions": g.positions,
        "seed": g.seed,
        "n": g.n,
        "m2": g.m2.value,
        "m2_low": g.m2.low,
        "m2_high": g.m2.high,
        "d_align": g.d_align.value,
        "d_align_low": g.d_align.low,
        "d_align_high": g.d_align.high,
        "detected": g.detected,
        "units_for_5_percent": required_units(g),
    }


def diagonality(points: Sequence[Diagonality], id: str) -> Figure | None:
    """Off-diagonal share against position in the network, with its references."""
    panels: list[Panel] = []
    rows: list[dict[str, Any]] = []
    for members in group(points, lambda d: (family(d), d.positions)).values():
        name, positions = family(members[0]), members[0].positions
        canvas = Canvas(
            x_title="position: share of the blocks before it", y_title="off-diagonal share", margin=104
        )
        ax = canvas.ax
        ax.set_xlim(0, 1.08)
        drawn = [v for d in members for v in (d.share.low, d.share.value) if v is not None]
        bottom = min(0.0, max(min(drawn, default=0.0), -0.3))
        ax.set_ylim(bottom - 0.03, 1.03)
        depths = sorted({d.depth for d in members})
        for d in members:
            if d.share.value is None:
                continue
            colour = SERIES[depths.index(d.depth) % len(SERIES)]
            x = d.place + 0.012 * (depths.index(d.depth) - (len(depths) - 1) / 2)
            low, high = d.share.low, d.share.high
            ax.plot(
                [x, x], [-9 if low is None else low, 9 if high is None else high], color=colour, linewidth=1
            )
            ax.plot(
                [x],
                [d.share.value],
                "o",
                color=colour,
                markersize=4.6,
                markeredgecolor=PAPER,
                markeredgewidth=0.5,
            )
            for value, marker in ((d.plug_in, "_"), (d.null_signs, "x"), (d.random_basis, "^")):
                if value is not None:
                    ax.plot([x], [value], marker, color=MUTED, markersize=4)
        ax.axhline(0.1, color=MUTED, linewidth=0.8, linestyle=DASHES[1])
        last = [next(d for d in reversed(members) if d.depth == k) for k in depths]
        canvas.labels_right(
            [(d.share.value or 0.0, f"depth {d.depth}", SERIES[i % len(SERIES)]) for i, d in enumerate(last)]
            + [
                (v, t, MUTED)
                for v, t in (
                    (float(np.median([d.random_basis or 0 for d in members])), "▵ random basis"),
                    (float(np.median([d.null_signs or 0 for d in members])), "× no correlation"),
                )
            ]
        )
        title = f"{FAMILIES.get(name, name)}, positions {positions}"
        alt = f"{title}: off-diagonal share of {len(members)} covariances, with references."
        panels.append(Panel(title, canvas.svg(f"{id}-{len(panels)}", alt)))
        rows += [
            {
                "label": d.label,
                "module": d.module,
                "positions": d.positions,
                "place": d.place,
                "seed": d.seed,
                "width": d.width,
                "depth": d.depth,
                "n": d.n,
                "d": d.d,
                "share": d.share.value,
                "share_low": d.share.low,
                "share_high": d.share.high,
                "plug_in": d.plug_in,
                "null_permuted": d.null_permuted,
                "null_signs": d.null_signs,
                "random_basis": d.random_basis,
                "relative_entry": d.relative_entry,
            }
            for d in members
        ]
    if not panels:
        return None
    caption = (
        "What to see: how far points lie above the dashed line at 10 %, and whether below the triangles. "
        "Points are unbiased shares of the covariance's squared entries that lie off the diagonal, with 95 % "
        "intervals. Bars: the sample covariance itself; crosses: what it would show with all correlation "
        "removed by random signs; triangles: the same spectrum in a random basis."
    )
    return Figure(id, "How diagonal the gradient covariance is", caption, tuple(panels), tuple(rows))


def grid(training: Sequence[Training], id: str) -> Figure | None:
    """Test loss against depth, a line per width."""
    panels: list[Panel] = []
    rows: list[dict[str, Any]] = []
    for name, members in group(training, family).items():
        depths = sorted({t.depth for t in members})
        if len(depths) < 2:
            continue
        canvas = Canvas(x_title="depth", y_title="test loss", margin=84)
        canvas.log_x_at([float(d) for d in depths])
        lows = [t.test_loss.low for t in members if t.test_loss.low is not None and t.test_loss.low > 0]
        highs = [t.test_loss.high for t in members if t.test_loss.high is not None]
        marks = [m * 10.0**k for k in range(-6, 4) for m in (1, 2, 5)]  # both ends get a label
        canvas.log_y(
            max(m for m in marks if m <= min(lows)), min(m for m in marks if m >= max(highs)) * 1.001
        )
        wishes = []
        for i, (width, ms) in enumerate(
            sorted(group(members, lambda t: t.width).items(), key=lambda k: str(k[0]).zfill(6))
        ):
            colour, marker = SERIES[i % len(SERIES)], MARKERS[i % len(MARKERS)]
            centres = []
            for d in depths:
                values = [t.test_loss.value for t in ms if t.depth == d and t.test_loss.value]
                if values:
                    centres.append((float(d), math.exp(float(np.mean(np.log(values))))))
            canvas.ax.plot([c[0] for c in centres], [c[1] for c in centres], color=colour, linewidth=1.3)
            for t in ms:
                if t.test_loss.value is not None:
                    _mark(
                        canvas,
                        t.depth * (1 + 0.02 * i),
                        t.test_loss.value,
                        t.test_loss.low,
                        t.test_loss.high,
                        colour,
                        marker,
                    )
                rows.append(
                    {
                        "label": t.label,
                        "depth": t.depth,
                        "width": t.width,
                        "seed": t.seed,
                        "test_loss": t.test_loss.value,
                        "test_loss_low": t.test_loss.low,
                        "test_loss_high": t.test_loss.high,
                        "train_loss": t.train_loss,
                    }
                )
            if centres:
                wishes.append((centres[-1][1], f"width {width}", colour))
        canvas.labels_right(wishes)
        title = FAMILIES.get(str(name), str(name))
        alt = f"{title}: test loss of {len(members)} networks against depth {depths[0]} to {depths[-1]}."
        panels.append(Panel(title, canvas.svg(f"{id}-{len(panels)}", alt)))
    if not panels:
        return None
    caption = (
        "What to see: whether a line turns up to the right (depth without width hurts) and whether wider "
        "lines do so later. Points are trained networks, one per seed, with 95 % intervals over held-out "
        "units; lines join geometric means. Every network has the same training budget and learning-rate "
        "rule."
    )
    return Figure(id, "Test loss over the grid of depth and width", caption, tuple(panels), tuple(rows))


def tables(records: Sequence[Record], id: str) -> list[Table]:
    """Decay fits and diagonality."""
    made = []
    rows = []
    flat = []
    for key, members in series(records).items():
        compared = decay(members)
        if compared is None:
            continue
        power, exponential = compared.fits["power"].rate, compared.fits["exponential"].rate
        w = compared.weights
        rows.append(
            (
                FAMILIES.get(key[0], key[0]),
                key[1],
                key[2],
                key[3],
                len(members),
                power,
                exponential,
                w["power"],
                w["exponential"],
                w["constant"],
                compared.preferred or "none",
            )
        )
        flat += members
    if rows:
        columns = (
            Column("family"),
            Column("width", "number"),
            Column("place"),
            Column("positions"),
            Column("networks", "number"),
            Column("power law: p", "measured"),
            Column("exponential: r", "measured"),
            Column("weight power", "number"),
            Column("weight exponential", "number"),
            Column("weight no decay", "number"),
            Column("preferred"),
        )
        note = (
            "|μ| = c L^−p against c exp(−r L) over L residual blocks, maximum likelihood on the unbiased "
            "|μ|² with their own errors and a relative spread between networks; 95 % profile intervals; "
            "Akaike weights. The gain that is left beyond L is finite only for p > 1/2."
        )
        made.append(
            Table(
                f"{id}-decay",
                f"Decay of the signal ({len(rows)} series)",
                note,
                columns,
                tuple(rows),
                tuple(flat),
                open=len(rows) <= 12,
            )
        )
    points = of(records, Diagonality)
    if points:
        heads = (
            Column("network"),
            Column("place"),
            Column("positions"),
            Column("seed", "number"),
            Column("n", "number"),
            Column("d", "number"),
            Column("off-diagonal share", "measured"),
            Column("sample covariance", "number"),
            Column("permuted", "number"),
            Column("signs", "number"),
            Column("random basis", "number"),
            Column("typical entry", "number"),
        )
        cells = tuple(
            (
                d.label,
                d.module,
                d.positions,
                d.seed,
                d.n,
                d.d,
                d.share,
                d.plug_in,
                d.null_permuted,
                d.null_signs,
                d.random_basis,
                d.relative_entry,
            )
            for d in points
        )
        note = (
            "Unbiased shares may be negative. Permuted and signs: what the sample covariance would show with "
            "all dependence, or all correlation, removed. Typical entry: off-diagonal over diagonal, root "
            "mean squares."
        )
        made.append(
            Table(
                f"{id}-diagonality",
                f"Diagonality ({len(points)} covariances)",
                note,
                heads,
                cells[:400],
                tuple(points),
            )
        )
    return made
