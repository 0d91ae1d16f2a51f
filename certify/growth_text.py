"""Expansions in words: the measurement, the guarantees, and tables for terminals and notebooks."""

from __future__ import annotations

import html as _html
import math
from typing import Any

from certify.certificate_text import _number, _percent
from certify.growth_result import Expansion, Route
from certify.intervals import ConfidenceInterval

_DECISIONS = {
    "insert": "INSERT: lower loss on fresh units",
    "do not insert": "DO NOT INSERT: higher loss on fresh units",
    "undecided": "UNDECIDED: the interval of the gain on fresh units covers 0",
}


def _interval(ci: ConfidenceInterval) -> str:
    return f"{_number(ci.estimate)} [{_number(ci.low)}, {_number(ci.high)}]"


def _loss(e: Expansion) -> str:
    if e.clip is None:
        return f"{e.loss}, declared to lie in a range of length {e.loss_range:g}"
    return f"{e.loss} (all numbers are about the clipped loss)"


def _measured(e: Expansion) -> str:
    lead = {
        "insert": "Measured: the new model is better.",
        "do not insert": "Measured: the new model is worse.",
        "undecided": "Measured: no difference can be told.",
    }[e.decision]
    kept = (
        "training ended worse than the jumpboard on the train sample, so the jumpboard was kept"
        if e.fallback
        else f"on the train sample the new model is {_number(e.gain_erm)} below the jumpboard"
    )
    return (
        f"{lead} On {e.n_fresh} fresh {e.unit}s its loss is lower than the old model's by "
        f"{_interval(e.fresh_new)}, the jumpboard's by {_interval(e.fresh_jumpboard)} "
        f"({_percent(e.confidence)} paired intervals, large n); valid at every n, given the range: "
        f"{_interval(e.fresh_new_bounded)}. "
        f"Training: {e.training}; {kept}."
    )


def _route_line(e: Expansion, r: Route) -> str:
    if r.guarantee is None:
        return (
            f"Route {r.name}: nothing, {r.reason}." if len(r.name) == 1 else f"{r.name}: nothing, {r.reason}."
        )
    g = r.guarantee
    head = r.name if r.name.startswith("theorem") else f"route {r.name}"
    text = (
        f"{head[0].upper()}{head[1:]}: L_test(new) - L_test(old) <= {g.change:+.4g} with probability at "
        f"least {_number(g.probability)}: {r.verdict}."
    )
    if not r.improves:
        text += " " + _shortfall(r)
    if r.rests_on_estimates:
        text += " It rests on estimated constants, so the probability is not guaranteed."
    if r.reason:
        text += f" ({r.reason}.)"
    return text


def _shortfall(r: Route) -> str:
    if r.gain <= 0:
        return f"The gain {_number(r.gain)} is not positive: no number of units helps, other things equal."
    sizes = [
        f"{name} = {_size(value)}"
        for name, value in (("M", r.M_needed), ("K", r.K_needed))
        if value is not None
    ]
    return (
        f"The statistical cost {_number(r.cost)} is {_number(r.factor)} times the gain {_number(r.gain)}; by "
        f"the formula it would fall below the gain at {' and '.join(sizes)} units."
    )


def _size(value: float) -> str:
    if math.isinf(value):
        return "no number of"
    return f"{value:,.0f}" if value < 1e7 else f"{value:.2g}"


def _guarantees(e: Expansion) -> str:
    if e.guaranteed:
        return "Guaranteed in advance: a lower test risk, with every constant bounded or declared."
    if any(r.improves for r in e.routes):
        return "In advance: a lower test risk follows, but only if the estimated constants are right."
    return (
        "Guaranteed in advance: nothing. The worst-case terms are larger than the gain on every route: the "
        "guarantees are vacuous or show no improvement for this block and these samples; only the "
        "measurement speaks."
    )


def statement(e: Expansion) -> str:
    """One paragraph: what happened and what was guaranteed."""
    return f"{_measured(e)} {_guarantees(e)}"


def explain(e: Expansion) -> str:
    """Paragraphs: measurement, jumpboard, guarantees, constants, assumptions."""
    lines = [
        _DECISIONS[e.decision],
        "",
        statement(e),
        "",
        f"Where: {e.block} ({e.parameters} parameters) at {e.at}, M = {e.M} train, K = {e.K} test and "
        f"{e.n_fresh} fresh {e.unit}s; loss: {_loss(e)}.",
        "",
        f"Jumpboard: the block at -{_number(e.step)} times the mean train gradient of norm "
        f"{_number(e.gradient_norm)} ({e.step_chosen}), at distance {_number(e.jumpboard_norm)} from the "
        f"zero block; the new model at {_number(e.new_norm)}, inside the ball of radius {_number(e.radius)}. "
        f"Delta on train {_interval(e.delta_train)} (optimistic: chosen there), on test "
        f"{_interval(e.delta_test)}.",
        "",
        "Guarantees",
    ]
    lines += [f"  {_route_line(e, r)}" for r in e.routes]
    for r in e.routes:
        if r.guarantee is not None:
            lines += [
                f"    {r.name}, event {v.name} (fails with at most {_number(v.failure)}): {v.statement}"
                for v in r.guarantee.events
            ]
    lines += ["", "Constants"] + [f"  {c}" for c in e.constants]
    lines += ["", "Assumptions"] + [f"  {a}" for a in e.assumptions]
    if e.notes:
        lines += ["", "Notes"] + [f"  {note}" for note in e.notes]
    return "\n".join(lines)


def _rows(e: Expansion) -> list[tuple[str, str, str, str]]:
    """Mean losses of old, jumpboard and new model, and what the difference is."""
    rows = []
    for sample, risks, gain in (
        ("train", e.train_risks, f"jumpboard {_interval(e.delta_train)}, optimistic"),
        ("test", e.test_risks, f"jumpboard {_interval(e.delta_test)}"),
        ("fresh", e.fresh_risks, f"new {_interval(e.fresh_new)}"),
    ):
        rows.append((sample, "  ".join(f"{r:.5f}" for r in risks), gain, ""))
    return rows


def _route_rows(e: Expansion) -> list[tuple[str, str, str, str]]:
    rows = []
    for r in e.routes:
        change = "-" if r.guarantee is None else f"{r.guarantee.change:+.4g}"
        probability = "-" if r.guarantee is None else _number(r.guarantee.probability)
        rows.append((r.name, change, probability, r.verdict))
    return rows


def plain(e: Expansion) -> str:
    """A few lines for a terminal."""
    lines = [
        f"{_DECISIONS[e.decision]}  ({e.block} at {e.at}, M = {e.M}, K = {e.K}, fresh {e.n_fresh} {e.unit}s)",
        f"  loss: {_loss(e)}",
        "  mean loss of  old      jumpboard  new       gain over old",
    ]
    lines += [f"  {a:<12}{b:<30}  {c}" for a, b, c, _ in _rows(e)]
    lines += [f"  {a:<12}change <= {b}, probability >= {c}: {d}" for a, b, c, d in _route_rows(e)]
    lines += [f"  {_guarantees(e)}"]
    lines += [f"  note: {note}" for note in e.notes]
    return "\n".join(line.rstrip() for line in lines)


def rich_panel(e: Expansion) -> Any:
    """A rich panel with the losses, the routes and the statement."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    losses = Table(box=None, pad_edge=False)
    for head in ("sample", "loss of old, jumpboard, new", f"gain, {_percent(e.confidence)} interval"):
        losses.add_column(head)
    for row in _rows(e):
        losses.add_row(*(Text(cell) for cell in row[:3]))
    routes = Table(box=None, pad_edge=False)
    for head in ("route", "change at most", "probability at least", "verdict"):
        routes.add_column(head)
    for row in _route_rows(e):
        routes.add_row(*(Text(cell) for cell in row))
    style = {"insert": "green", "do not insert": "red"}.get(e.decision, "yellow")
    body = Group(losses, Text(), routes, Text(), Text(statement(e)))
    return Panel(body, title=Text(_DECISIONS[e.decision]), border_style=style)


def html(e: Expansion) -> str:
    """Two tables for notebooks; every text is escaped."""

    def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
        head = "".join(f"<th>{_html.escape(h)}</th>" for h in heads)
        body = "".join(
            "<tr>" + "".join(f"<td>{_html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    losses = table(
        ("sample", "loss of old, jumpboard, new", f"gain, {_percent(e.confidence)} interval"),
        [row[:3] for row in _rows(e)],
    )
    routes = table(("route", "change at most", "probability at least", "verdict"), list(_route_rows(e)))
    title = _html.escape(_DECISIONS[e.decision])
    return f"<div><strong>{title}</strong>{losses}{routes}<p>{_html.escape(statement(e))}</p></div>"
