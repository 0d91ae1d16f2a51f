"""The tables of a report: training, geometry at every insertion point, and every counted cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from validation.claims import is_vacuous
from validation.results import Geometry, Measured, Misalignment, Training

_MOST = 200
"""Rows shown on the page; the CSV download always has all of them."""


@dataclass(frozen=True)
class Column:
    """Heading of a column and how its values are shown."""

    title: str
    kind: Literal["text", "number", "measured", "bound", "verdict"] = "text"

    @property
    def numeric(self) -> bool:
        """Whether the column is set flush right."""
        return self.kind in ("number", "measured", "bound")

    def vacuous(self, value: Any) -> bool:
        """Whether a value of this column is a bound that excludes nothing."""
        return self.kind == "bound" and is_vacuous(value)


@dataclass(frozen=True)
class Table:
    """A folded table; ``records`` are what its CSV download holds."""

    id: str
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    records: tuple[Any, ...] = field(repr=False)
    open: bool = False


def _confidence(measures: Sequence[Measured | None]) -> str:
    """The confidence and method of a column of intervals, in words."""
    found = {(m.confidence, m.method) for m in measures if m is not None and m.low != m.high}
    return "; ".join(f"{100 * c:.5g} % by {method}" for c, method in sorted(found))


def _fold(
    columns: Sequence[Column], rows: Sequence[tuple[Any, ...]]
) -> tuple[list[Column], list[tuple[Any, ...]], str]:
    """Columns that say the same in every row move into a sentence, so that the table fits more screens."""
    if len(rows) < 2:
        return list(columns), list(rows), ""
    same = [c.kind in ("text", "number") and len({r[i] for r in rows}) == 1 for i, c in enumerate(columns)]
    said = [
        f"{c.title} {rows[0][i]}"
        for i, c in enumerate(columns)
        if same[i] and rows[0][i] not in (None, "none")
    ]
    kept = [i for i, s in enumerate(same) if not s]
    text = f" In every row: {', '.join(said)}." if said else ""
    return [columns[i] for i in kept], [tuple(r[i] for i in kept) for r in rows], text


def _cut(n: int) -> str:
    return f" The first {_MOST} of {n} rows; the CSV file has all." if n > _MOST else ""


def training(records: Sequence[Training], id: str) -> Table | None:
    """Loss and accuracy of every trained network."""
    if not records:
        return None
    with_accuracy = any(t.test_accuracy is not None for t in records)
    columns = [
        Column("network"),
        Column("width", "number"),
        Column("depth", "number"),
        Column("parameters", "number"),
        Column("seed", "number"),
        Column("steps", "number"),
        Column("seconds"),
        Column("train loss", "number"),
        Column("test loss", "measured"),
    ]
    if with_accuracy:
        columns.append(Column("test accuracy", "measured"))
    rows = []
    for t in records:
        seconds = f"{t.seconds:.0f}" + (" (cached)" if t.cached else "")
        row = [t.label, t.width, t.depth, t.parameters, t.seed, t.steps, seconds, t.train_loss, t.test_loss]
        rows.append((*row, t.test_accuracy) if with_accuracy else tuple(row))
    note = "Held-out loss" + (" and accuracy" if with_accuracy else "") + " with intervals "
    note += f"({_confidence([m for t in records for m in (t.test_loss, t.test_accuracy)])})."
    columns, rows, said = _fold(columns, rows)
    note += said
    return Table(
        f"{id}-training",
        f"Training ({len(records)} networks)",
        note + _cut(len(rows)),
        tuple(columns),
        tuple(rows[:_MOST]),
        tuple(records),
        open=len(records) <= 12,
    )


def geometry(records: Sequence[Geometry], id: str) -> Table | None:
    """Dimensions and moments at every insertion point."""
    if not records:
        return None
    known = all(g.sample == "population" for g in records)
    columns = (
        Column("law" if known else "network"),
        Column("place"),
        Column("positions"),
        Column("unit"),
        Column("sample"),
        Column("n", "number"),
        Column("d", "number"),
        Column("seed", "number"),
        Column("signal"),
        Column("d_{align}", "measured"),
        Column("d_{par}", "measured"),
        Column("d_{2}", "measured"),
        Column("regrouping b*", "measured"),
        Column("|μ|²", "measured"),
    )
    rows: list[tuple[Any, ...]] = [
        (
            g.label,
            g.module,
            g.positions,
            g.unit,
            g.sample,
            g.n,
            g.d,
            g.seed,
            _signal(g),
            g.d_align,
            g.d_par,
            g.d_2,
            g.b_star,
            g.m2,
        )
        for g in records[:_MOST]
    ]
    note = "d_{align} = min(d_{par}, d_{2}); negative or missing estimates are shown as they are"
    how = _confidence([g.d_align for g in records])
    note += f"; intervals: {how}." if how else "; moments of known laws are exact."
    touching = sum(_touches_zero(g) for g in records)
    if touching:
        note += (
            f" “Lower limit 0” ({touching} of {len(records)}): a signal is detected where the interval of "
            "|μ|² alone lies above 0; the interval of d_{align} shares the same 5 % between |μ|² and its "
            "denominators, asks more of |μ|² than that, and so can still reach 0."
        )
    shown, rows, said = _fold(columns, rows)
    note += said
    return Table(
        f"{id}-geometry",
        f"Geometry ({len(records)} measurements)",
        note + _cut(len(records)),
        tuple(shown),
        tuple(rows),
        tuple(records),
        open=len(records) <= 12,
    )


def _touches_zero(g: Geometry) -> bool:
    return g.sample != "population" and g.detected and g.d_align.low is not None and g.d_align.low <= 0


def _signal(g: Geometry) -> str:
    if g.sample == "population":
        return "known"
    if not g.detected:
        return "not detected"
    return "detected, lower limit 0" if _touches_zero(g) else "detected"


def cells(records: Sequence[Misalignment], id: str) -> Table | None:
    """Every counted cell with its bounds."""
    if not records:
        return None
    exact = any(c.log_probability is not None for c in records)
    columns = [
        Column("law or network"),
        Column("place"),
        Column("positions"),
        Column("seed", "number"),
        Column("M", "number"),
        Column("K", "number"),
        Column("protocol"),
        Column("events", "number"),
        Column("trials", "number"),
        Column("frequency", "measured"),
        Column("B_{exact}", "bound"),
        Column("B_{align}", "bound"),
        Column("B_{exact} verdict", "verdict"),
    ]
    if exact:
        columns.insert(10, Column("exact P"))
    rows = []
    for c in records[:_MOST]:
        row = [
            c.label,
            c.module,
            c.positions,
            c.seed,
            c.M,
            c.K,
            c.protocol.replace("_", " "),
            c.events,
            c.trials,
            c.frequency,
            c.B_exact,
            c.B_align,
            c.verdict,
        ]
        if exact:
            row.insert(10, _probability(c.log_probability))
        rows.append(tuple(row))
    note = (
        f"Frequencies with intervals: {_confidence([c.frequency for c in records])}. The verdict is the "
        "single cell's. Vacuous: a bound of 1 to printing accuracy, or none."
    )
    columns, rows, said = _fold(columns, rows)
    note += said
    return Table(
        f"{id}-cells",
        f"All cells ({len(records)})",
        note + _cut(len(records)),
        tuple(columns),
        tuple(rows),
        tuple(records),
    )


def _probability(log_p: float | None) -> str:
    """A probability given by its logarithm, which may be far below the smallest float.

    >>> _probability(-5001.0)
    '10^−2172'
    """
    if log_p is None:
        return "–"
    if log_p > math.log(1e-4):
        return f"{math.exp(log_p):.3g}"
    return f"10^{log_p / math.log(10):.0f}".replace("-", "−") if log_p < -690 else f"{math.exp(log_p):.2e}"
