"""Along the training, at matched test loss, and training against held-out units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from validation.claims import group, is_covered
from validation.figures import (
    SHOWN,
    cell_row,
    draw_frequency,
    figure,
    plain,
    positive,
    probability_floor,
    value_of,
)
from validation.plotting import DASHES, MARKERS, PAPER, SERIES, Canvas, Figure, Panel
from validation.results import Geometry, Misalignment, Training


def trajectories(
    geometry: Sequence[Geometry], training: Sequence[Training], id: str, title: str
) -> Figure | None:
    """d_align and test loss against step, d_align against test loss, and at one loss against width."""
    rows = _rows(geometry, training)
    if all(len({r["step"] for r in line}) < 2 for line in group(rows, _network).values()):
        return None
    panels = []
    losses = list({(r["case"], r["seed"], r["step"]): r for r in rows if r["test_loss"] is not None}.values())
    if losses:
        panels.append(
            _lines(losses, "step", "test_loss", "training step", "test loss", f"{id}-loss", "Test loss")
        )
    for i, (module, members) in enumerate(group(rows, lambda r: (r["module"], r["positions"])).items()):
        name = f"{module[0]}" if isinstance(module, tuple) else str(module)
        seen = [r for r in members if r["d_align"] is not None]
        if len(seen) < 2:
            continue
        panels.append(_lines(seen, "step", "d_align", "training step", "d_{align}", f"{id}-step-{i}", name))
        with_loss = [r for r in seen if r["test_loss"] is not None]
        if len(with_loss) > 1:
            x = "test loss (training goes to the left)"
            panels.append(
                _lines(with_loss, "test_loss", "d_align", x, "d_{align}", f"{id}-at-loss-{i}", name)
            )
            matched = _matched(with_loss)
            if len({m["width"] for m in matched}) > 1:
                panels.append(
                    _matched_panel(
                        matched, f"{id}-matched-{i}", f"{name}, at test loss {matched[0]['loss']:.3g}"
                    )
                )
                rows += matched
    if not panels:
        return None
    missing = sum(r.get("detected") is False for r in rows)
    caption = (
        "What to see: how d_{align} moves while the loss falls, and whether wider networks have the larger "
        "d_{align} "
        "also at the same test loss, so that width is not confused with how far training got. One line for "
        "each "
        "network, coloured by width; bars: the interval of each estimate. At matched loss: log d_{align} "
        "interpolated linearly in the loss at the smallest loss that every network reaches, as points "
        "without intervals "
        "(the verdict is in the claim table). "
    )
    if missing:
        caption += f"{missing} measurements without a detected signal are in the data only."
    return figure(id, title, caption.strip(), panels, tuple(rows), SHOWN)


def _network(row: dict[str, Any]) -> tuple[str, int]:
    return row["case"], row["seed"]


def _rows(geometry: Sequence[Geometry], training: Sequence[Training]) -> list[dict[str, Any]]:
    budget = {(t.case, t.seed): t.steps for t in training if t.step is None}
    loss = {(t.case, t.seed, t.step): t for t in training}
    out = []
    for g in geometry:
        if g.sample != "held-out":
            continue
        of_network = loss.get((g.case, g.seed, g.step))
        seen = g.detected and bool(positive([g.d_align.value]))
        out.append(
            {
                "case": g.case,
                "label": g.label,
                "module": g.module,
                "positions": g.positions,
                "width": g.width,
                "seed": g.seed,
                "step": budget.get((g.case, g.seed), 0) if g.step is None else g.step,
                "detected": g.detected,
                "d_align": g.d_align.value if seen else None,
                "d_align_low": g.d_align.low,
                "d_align_high": g.d_align.high,
                "test_loss": of_network.test_loss.value if of_network is not None else None,
                "test_loss_low": of_network.test_loss.low if of_network is not None else None,
                "test_loss_high": of_network.test_loss.high if of_network is not None else None,
            }
        )
    return out


def _colour(widths: Sequence[int], width: int) -> int:
    return list(widths).index(width)


def _lines(
    rows: Sequence[dict[str, Any]], x: str, y: str, x_title: str, y_title: str, id: str, name: str
) -> Panel:
    widths = sorted({r["width"] for r in rows})
    canvas = Canvas(x_title=x_title, y_title=y_title, margin=72)
    ax = canvas.ax
    xs = [float(r[x]) for r in rows]
    pad = (max(xs) - min(xs) or 1.0) * 0.05
    ax.set_xlim(min(xs) - pad, max(xs) + pad)
    values = [float(r[y]) for r in rows]
    if y == "d_align":
        lows, highs = positive(r["d_align_low"] for r in rows), positive(r["d_align_high"] for r in rows)
        low = max(min([*lows, *values]), min(values) / 30)
        canvas.log_y(low / 1.5, min(max([*highs, *values]), max(values) * 30) * 1.5)
    else:
        margin = (max(values) - min(values) or 1.0) * 0.08
        ax.set_ylim(min(values) - margin, max(values) + margin)
    bottom = ax.get_ylim()[0]
    wishes: dict[int, tuple[float, str, str]] = {}
    for line in group(rows, _network).values():
        line = sorted(line, key=lambda r: r["step"])
        k = _colour(widths, line[0]["width"])
        colour = SERIES[k % len(SERIES)]
        for r in line:
            ends = (r[f"{y}_low"], r[f"{y}_high"])
            if None not in ends:
                ax.plot([r[x]] * 2, [max(ends[0], bottom), ends[1]], color=colour, linewidth=0.8, alpha=0.6)
        ax.plot(
            [r[x] for r in line],
            [r[y] for r in line],
            color=colour,
            linewidth=1.2,
            linestyle=DASHES[k % len(DASHES)],
            marker=MARKERS[k % len(MARKERS)],
            markersize=4.2,
            markeredgecolor=PAPER,
            markeredgewidth=0.4,
        )
        at_edge = max(line, key=lambda r: float(r[x]))
        wishes[line[0]["width"]] = (float(at_edge[y]), f"width {line[0]['width']}", colour)
    canvas.labels_right(list(wishes.values()))
    alt = (
        f"{plain(y_title)} against {x_title}, {name}: {len(rows)} points, widths "
        + ", ".join(str(w) for w in widths)
        + f"; from {min(values):.3g} to {max(values):.3g}."
    )
    title = (
        name
        if y != "d_align"
        else f"{name}: d_{{align}} against " + ("the step" if x == "step" else "test loss")
    )
    return Panel(title, canvas.svg(id, alt))


def _matched(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """log d_align of every network, interpolated at the smallest loss that each of them reaches."""
    networks = list(group(rows, _network).values())
    at = max(min(float(r["test_loss"]) for r in line) for line in networks)
    out = []
    for line in networks:
        line = sorted(line, key=lambda r: r["step"])
        for a, b in zip(line, line[1:] + line[-1:], strict=True):
            one, two = float(a["test_loss"]), float(b["test_loss"])
            if (one - at) * (two - at) <= 0:
                share = 0.0 if one == two else (one - at) / (one - two)
                log = (1 - share) * math.log(a["d_align"]) + share * math.log(b["d_align"])
                out.append(
                    {k: a[k] for k in ("case", "label", "module", "positions", "width", "seed")}
                    | {"step": None, "loss": at, "matched_d_align": math.exp(log)}
                )
                break
    return out


def _matched_panel(matched: Sequence[dict[str, Any]], id: str, name: str) -> Panel:
    widths = sorted({m["width"] for m in matched})
    values = [m["matched_d_align"] for m in matched]
    canvas = Canvas(x_title="width", y_title="d_{align} at one test loss", margin=40)
    canvas.log_x_at([float(w) for w in widths])
    canvas.log_y(min(values) / 1.6, max(values) * 1.6)
    for m in matched:
        canvas.ax.plot([m["width"]], [m["matched_d_align"]], "o", color=SERIES[0], markersize=5.2)
    means = []
    for w in widths:
        logs = [math.log(m["matched_d_align"]) for m in matched if m["width"] == w]
        means.append(math.exp(sum(logs) / len(logs)))
    canvas.ax.plot(widths, means, color=SERIES[0], linewidth=1.3)
    alt = (
        f"d_align at test loss {matched[0]['loss']:.3g} against width, {name}: geometric means from "
        f"{means[0]:.3g} at "
        f"width {widths[0]} to {means[-1]:.3g} at width {widths[-1]}."
    )
    return Panel(name, canvas.svg(id, alt))


_PAIRS: tuple[tuple[str, str, int], ...] = (
    ("test-test", "held out, both", 0),
    ("train-test", "train, held out", 1),
    ("train-train", "train, both", 2),
)


def pairs(cells: Sequence[Misalignment], id: str, title: str) -> Figure | None:
    """Frequency against M, K for held-out, mixed and training units, one panel for each network and place."""
    cells = [c for c in cells if is_covered(c) and c.frequency.value is not None]
    both = group(cells, lambda c: (c.label, c.case, c.seed, c.module, c.positions))
    facets = [members for members in both.values() if len({c.pair for c in members}) > 1]
    if not facets:
        return None
    low = probability_floor([c for members in facets for c in members])
    draw: Callable[[int], Panel] = lambda i: _pair_panel(facets[i], low, f"{id}-{i}")  # noqa: E731
    keep = sorted({round(k * (len(facets) - 1) / max(1, SHOWN - 1)) for k in range(SHOWN)})
    caption = (
        "What to see: the theorem assumes units that the network has not seen (blue). Units it was trained "
        "on break "
        "this: their mean gradient differs, so the other two frequencies may lie above or below. Thin "
        "lines: "
        "B_{exact} of each pair, from the two pools' own moments, so valid for these draws. Bars: "
        f"{cells[0].frequency.method}; arrows down: no event."
    )
    rows = tuple({"pair": c.pair, **cell_row(c)} for members in facets for c in members)
    return figure(id, title, caption, [draw(i) for i in keep if i < len(facets)], rows, SHOWN)


def _pair_panel(members: Sequence[Misalignment], low: float, id: str) -> Panel:
    first = members[0]
    canvas = Canvas(x_title="units averaged on each side", y_title="frequency of T ≤ 0", margin=98)
    canvas.log_x_at([float(v) for v in sorted({c.M for c in members})])
    canvas.log_y(low, 1.3)
    x_low, x_high = canvas.ax.get_xlim()
    dodge = (x_high / x_low) ** 0.012
    wishes, texts = [], []
    for pair, text, k in _PAIRS:
        line = sorted((c for c in members if c.pair == pair), key=lambda c: (c.M, c.K))
        if not line:
            continue
        bounds = [(c.M, c.B_exact.value) for c in line if c.B_exact.value is not None]
        canvas.ax.plot(
            [b[0] for b in bounds],
            [b[1] for b in bounds],
            color=SERIES[k],
            linewidth=0.9,
            linestyle=DASHES[k],
        )
        for c in line:
            draw_frequency(canvas.ax, c.M * dodge ** (k - 1), c, SERIES[k], MARKERS[k])
        last = line[-1]
        wishes.append(
            (value_of(last.frequency) if last.events else last.frequency.high or 1.0, text, SERIES[k])
        )
        texts.append(f"{pair} from {value_of(line[0].frequency):.3g} to {value_of(last.frequency):.3g}")
    canvas.labels_right(wishes)
    name = f"{first.label} · {first.module} · seed {first.seed}"
    return Panel(
        name, canvas.svg(id, f"{name}: misalignment frequency by pair of samples: {'; '.join(texts)}.")
    )
