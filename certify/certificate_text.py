"""Certificates in words: the statement, the explanation, and tables for terminals and notebooks."""

from __future__ import annotations

import html as _html
import math
from typing import Any

from certify.certification import Certificate, Quantity

_STATES = {
    "certified": "CERTIFIED",
    "signal not detected": "NOT CERTIFIED: signal not detected",
    "vacuous": "NOT CERTIFIED: the limit is vacuous",
    "assumption violated": "NOT CERTIFIED: an assumption is contradicted by the data",
    "no confidence": "NO CONFIDENCE: plug-in values",
}


def _percent(p: float) -> str:
    return f"{100 * p:.10g} %"


def _number(value: float | None, nothing: str = "-") -> str:
    if value is None:
        return nothing
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return f"{value:.4g}"


def _place(c: Certificate) -> str:
    parts = [f"module {c.module}" if c.module else "an unnamed module"]
    parts.append(f"positions {c.positions}" if c.positions else "positions as in the given rows")
    parts.append(f"in {c.dtype}" if c.dtype else "dtype unknown")
    return ", ".join(parts)


def _event(c: Certificate) -> str:
    if c.tier == "conditional":
        return (
            f"the mean gradient of K = {c.K} fresh {c.unit}s has no positive component along the given mu_M "
            "(T = mu_M . g_K <= 0, mu_M held fixed)"
        )
    return (
        f"the mean gradients of M = {c.M} {'and of' if c.n_test is None else 'fresh training and'} K = {c.K} "
        f"fresh {'' if c.n_test is None else 'test '}{c.unit}s fail to align (T = mu_M . g_K <= 0)"
    )


def _assumptions(c: Certificate) -> str:
    return "; ".join(str(a) for a in c.assumptions)


def _origin(c: Certificate) -> str:
    seed = "no seed" if c.seed is None else f"seed {c.seed}"
    made = ", ".join(f"{k} {v}" for k, v in c.versions.items())
    return f"{_units(c)}, gradients of length {c.d}, {_place(c)}; {seed}; {made}"


def _units(c: Certificate) -> str:
    return f"n = {c.n} {c.unit}s" if c.n_test is None else f"n = {c.n} training and {c.n_test} test {c.unit}s"


def _label(c: Certificate, name: str) -> str:
    labels = {"misalignment": "P(T <= 0)", "m2_squared": "m2^2" if c.n_test is None else "(E T)^2"}
    return labels.get(name, name)


def statement(c: Certificate) -> str:
    """One paragraph of plain words."""
    about = "approximately " if c.tier == "asymptotic" else "at least "
    if c.state == "no confidence":
        first = (
            f"No guarantee: with the moments of this sample put in place of the true ones, the bound on the "
            f"probability that {_event(c)} is {_number(c.B_exact.estimate)}. No confidence is attached to it."
        )
    elif c.state == "certified":
        first = (
            f"With probability {about}{_percent(c.confidence)} over the draw of the estimation sample, the "
            f"probability over fresh {c.unit}s that {_event(c)} is at most {c.upper:.4g}."
        )
        if c.d_align.limit is not None and c.d_align.limit.low > 0:
            align = _number(c.B_align.limit.high if c.B_align.limit else None)
            first += (
                f" Taken by themselves, with the same confidence, d_align is at least "
                f"{_number(c.d_align.limit.low)} and B_align at most {align}."
            )
    elif c.state == "assumption violated":
        first = (
            f"Not certified: the data contradict an assumption ({'; '.join(map(str, c.violated))}). The "
            f"computed limit {c.upper:.4g} for the probability that {_event(c)} must not be relied on."
        )
    else:
        why = "the limit found is vacuous"
        if c.state == "signal not detected":
            why = "no signal is detected"
            ci = c.m2_squared.interval
            if ci is not None:
                why += f": {_label(c, 'm2_squared')} is estimated as {_number(c.m2_squared.estimate)} with "
                why += f"interval [{_number(ci.low)}, {_number(ci.high)}]"
        first = (
            f"Not certified: {why}. The bound on the probability that {_event(c)} is reported as 1, which "
            "says nothing."
        )
    return f"{first} This rests on: {_assumptions(c)}. Tier {c.tier} ({c.method}). Measured on {_origin(c)}."


_TIER_TEXT = {
    "plug-in": (
        "The sample's own moments are treated as the true ones. That is how the bounds are usually "
        "reported; it is biased for small n and says nothing about the error."
    ),
    "asymptotic": (
        "Unbiased estimates of a = mu'Sigma mu, t = tr Sigma^2 and m2 = |mu|^2, with spreads from leaving "
        "out one unit at a time. The upper limit of V/m2^2 is found from limits of V and of m2; where the "
        "interval of m2 covers 0 there is none. The level is approximate: see the coverage table of the "
        "documentation for the laws on which it falls short."
    ),
    "bounded": (
        "Disjoint triples of units give bounded unbiased payoffs; a gambler who bets against each candidate "
        "value of the bound can multiply her money by 1/alpha with probability at most alpha if the "
        "candidate is true. Valid at every n, without any moment assumption beyond the stated bound; "
        "usually wide."
    ),
    "replicates": (
        "The sample is cut into disjoint replicates of T, their signs are counted, and the exact binomial "
        "limit is stated for P(T <= 0) itself. Nothing is assumed beyond independence."
    ),
    "conditional": (
        "The training mean is given and held fixed, so that only the one-dimensional law of mu_M . q "
        "matters. The statement is about further units only, not about another training sample."
    ),
}


def explain(c: Certificate) -> str:
    """Several paragraphs: state, statement, method, numbers, assumptions."""
    lines = [_STATES[c.state], "", statement(c), "", f"How: {_TIER_TEXT[c.tier]}", "", "Numbers"]
    lines += [f"  {name:<14}{value:>12}  {interval:<28}{limit}" for name, value, interval, limit in _rows(c)]
    lines += ["", "Assumptions"] + [f"  {a}" for a in c.assumptions]
    if c.notes:
        lines += ["", "Notes"] + [f"  {note}" for note in c.notes]
    return "\n".join(lines)


_NAMES = ("misalignment", "B_exact", "B_align", "d_par", "d_2", "d_align", "m2_squared")


def _rows(c: Certificate) -> list[tuple[str, str, str, str]]:
    rows = []
    for name in _NAMES:
        q: Quantity = getattr(c, name)
        if q.estimate is None and q.interval is None and q.limit is None:
            continue
        interval = "" if q.interval is None else f"[{_number(q.interval.low)}, {_number(q.interval.high)}]"
        limit = ""
        if q.limit is not None:
            less = q.limit.alternative == "less"
            limit = f"at most {_number(q.limit.high)}" if less else f"at least {_number(q.limit.low)}"
            if less and q.limit.high == 1.0:
                limit = "at most 1 (vacuous)"
            if not less and q.limit.low <= 0:
                limit = "no lower limit"
        rows.append((_label(c, name), _number(q.estimate, ""), interval, limit))
    return rows


def plain(c: Certificate) -> str:
    """A few lines for a terminal."""
    where = f"{c.module or 'gradients'}, M = {c.M}, K = {c.K}, {_units(c)}"
    level = "" if c.state == "no confidence" else f"{_percent(c.confidence)}, "
    lines = [f"{_STATES[c.state]}  ({where}; {level}{c.tier})"]
    lines += [f"  {name:<10}{value:>11}  {interval:<26}{limit}" for name, value, interval, limit in _rows(c)]
    lines += [f"  note: {note}" for note in c.notes]
    return "\n".join(line.rstrip() for line in lines)


def rich_panel(c: Certificate) -> Any:
    """A rich panel with the numbers and the statement."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for head, justify in (
        ("", "left"),
        ("estimate", "right"),
        (f"{_percent(c.confidence)} interval", "left"),
    ):
        table.add_column(head, justify=justify)  # type: ignore[arg-type]
    table.add_column("one-sided limit")
    for row in _rows(c):
        table.add_row(*(Text(cell) for cell in row))
    style = "green" if c.state == "certified" else "yellow"
    return Panel(Group(table, Text(), Text(statement(c))), title=Text(_STATES[c.state]), border_style=style)


def html(c: Certificate) -> str:
    """A table for notebooks; every text is escaped."""
    cells = "".join(
        "<tr>" + "".join(f"<td>{_html.escape(cell)}</td>" for cell in row) + "</tr>" for row in _rows(c)
    )
    head = "".join(
        f"<th>{_html.escape(h)}</th>" for h in ("", "estimate", f"{_percent(c.confidence)} interval", "limit")
    )
    return (
        f"<div><strong>{_html.escape(_STATES[c.state])}</strong>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table>"
        f"<p>{_html.escape(statement(c))}</p></div>"
    )
