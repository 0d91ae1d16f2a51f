"""Rankings in words: plain text, a rich table, and HTML for notebooks."""

from __future__ import annotations

import html as _html
import math
from typing import Any

from certify.ranking import SCORES, Point, Ranking

HEADS = ("rank", "module", "gain", "together at", "Holm p", "verdict", "units needed", *SCORES)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return f"{value:.3g}"


def needed_text(p: Point, K: int) -> str:
    """Held-out units to be added, with the range that the estimate's error leaves."""
    needed = p.gain.needed
    if needed is None or needed.units is None:
        return "-" if p.verdict != "undecided" else "unknown"

    def more(units: int | None) -> str:
        return "no limit" if units is None else f"{max(units - K, 0)}"

    return f"{more(needed.units)} more [{more(needed.low)}, {more(needed.high)}]"


def _row(p: Point, K: int) -> tuple[str, ...]:
    ci = p.interval
    return (
        str(p.rank),
        p.module,
        _number(ci.estimate),
        f"[{_number(ci.low)}, {_number(ci.high)}]",
        f"{p.gain.adjusted:.2g}",
        p.verdict,
        needed_text(p, K),
        *("-" if (r := p.score_ranks[k]) is None else f"#{r}" for k in SCORES),
    )


def head(r: Ranking) -> str:
    """What was asked, in a line."""
    per = "unit length of the parameters" if r.norm == "parameter" else "relative change of the activation"
    return (
        f"Where to insert a block ({r.block}): held-out gain per {per}; M = {r.M} training and K = {r.K} "
        f"held-out {r.unit}s; {100 * r.confidence:.10g} % for all {len(r.points)} points together"
    )


def remarks(r: Ranking) -> list[str]:
    """Reasons, agreement with other scores, assumptions and notes."""
    lines = [f"{p.module}: {p.gain.reason}" for p in r.points if p.gain.reason]
    known = [f"{k} {v:.2f}" for k, v in r.agreement.items() if v is not None]
    if known:
        lines.append("rank correlation with this order: " + ", ".join(known))
    if any(p.verdict == "certified" and p.lower <= 0 for p in r.points):
        lines.append("verdicts are Holm's, limits Bonferroni's: a certified gain can have a limit below 0")
    lines.append("rests on: " + "; ".join(r.assumptions) + f" ({r.tier}, {r.method})")
    return lines + [f"note: {note}" for note in r.notes]


def _heads(r: Ranking) -> tuple[str, ...]:
    return tuple(f"{h} {100 * r.confidence:.10g} %" if h == "together at" else h for h in HEADS)


def plain(r: Ranking) -> str:
    """A table and a few lines for a terminal."""
    rows = [_heads(r), *(_row(p, r.K) for p in r.points)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    table = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([head(r), *table, *remarks(r)])


def rich_table(r: Ranking) -> Any:
    """A rich table with the remarks below."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim", title=Text(head(r)), title_justify="left")
    for name in _heads(r):
        table.add_column(name)
    styles = {"certified": "green", "refuted": "red", "undecided": "yellow"}
    for p in r.points:
        table.add_row(*(Text(c, style=styles.get(c, "")) for c in _row(p, r.K)))
    return Group(table, *(Text(line, style="dim") for line in remarks(r)))


def html(r: Ranking) -> str:
    """A table for notebooks; every text is escaped."""
    top = "".join(f"<th>{_html.escape(h)}</th>" for h in _heads(r))
    body = "".join(
        "<tr>" + "".join(f"<td>{_html.escape(c)}</td>" for c in _row(p, r.K)) + "</tr>" for p in r.points
    )
    notes = "".join(f"<p>{_html.escape(line)}</p>" for line in remarks(r))
    return (
        f"<div><p><strong>{_html.escape(head(r))}</strong></p><table><thead><tr>{top}</tr></thead>"
        f"<tbody>{body}</tbody></table>{notes}</div>"
    )
