"""Two runs side by side, from their stored results alone: protocol, verdicts, cells and differences.

Numbers of two runs are subtracted with an interval only where the runs are independent. Two runs that share
their seed or their data are not: their difference is shown without an interval, and the page says why.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from validation import store
from validation.claims import CLAIMS, of, suites
from validation.figures import plain
from validation.methods import TITLES
from validation.page import number
from validation.plotting import MUTED, SERIES, Canvas, Figure, Panel
from validation.results import Geometry, Measured, Misalignment, Record, Run, Training
from validation.verdicts import claim_table

__all__ = ["Comparison", "Difference", "compare", "figures", "judged", "to_dict"]

_VOLATILE = ("seconds", "cached")


@dataclass(frozen=True)
class Difference:
    """One quantity in both runs."""

    suite: str
    what: str
    """Where it was measured: network or law, place, sizes."""
    quantity: str
    a: float | None
    b: float | None
    difference: float | None
    """B minus A; of dimensions the logarithm of the ratio B / A."""
    low: float | None
    high: float | None
    method: str
    """``identical``, an interval's method, or why there is no interval."""


@dataclass(frozen=True)
class Comparison:
    """What is equal and what differs between run A and run B."""

    a: Run
    b: Run
    protocol: tuple[tuple[str, str, str], ...]
    """(name, A, B) of everything about the runs that differs."""
    shared: tuple[str, ...]
    """Why the runs are not independent; empty where nothing is shared."""
    identical: int
    """Matched records that are equal in every digit, times apart."""
    matched: int
    verdicts: tuple[dict[str, str], ...]
    differences: tuple[Difference, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    fingerprint_a: str
    fingerprint_b: str


def compare(a: Sequence[Record], b: Sequence[Record]) -> Comparison:
    """Compare two runs.

    Raises
    ------
    ValueError
        If one of them describes no run, or the two have nothing in common.
    """
    run_a, run_b = _run(a, "A"), _run(b, "B")
    cells_a, cells_b = _keyed(a), _keyed(b)
    both = [k for k in cells_a if k in cells_b]
    if not both:
        names = [f"preset={r.preset!r}, suites={','.join(r.suites)}" for r in (run_a, run_b)]
        raise ValueError(
            f"A and B have no cell in common (A: {names[0]}; B: {names[1]}); compare runs that share a suite"
        )
    shared = _shared(run_a, run_b, a, b)
    differences: list[Difference] = []
    identical = 0
    for key in both:
        one, two = cells_a[key], cells_b[key]
        if _payload(one) == _payload(two):
            identical += 1
        else:
            differences += _differences(one, two, shared)
    return Comparison(
        run_a,
        run_b,
        tuple(_protocol(run_a, run_b, a, b)),
        tuple(shared),
        identical,
        len(both),
        tuple(_verdicts(a, b)),
        tuple(differences),
        tuple(_name(cells_a[k]) for k in cells_a if k not in cells_b),
        tuple(_name(cells_b[k]) for k in cells_b if k not in cells_a),
        store.fingerprint(a),
        store.fingerprint(b),
    )


def judged(c: Comparison) -> list[dict[str, str]]:
    """The verdicts that both runs have."""
    return [v for v in c.verdicts if "not judged" not in (v["a"], v["b"])]


def to_dict(c: Comparison) -> dict[str, Any]:
    """The comparison ready for JSON."""
    return dataclasses.asdict(c)


def _run(records: Sequence[Record], name: str) -> Run:
    runs = of(records, Run)
    if not runs:
        raise ValueError(f"{name}: no run is described in its results; repeat `certify validate`")
    return runs[-1]


# -- matching ------------------------------------------------------------------------------------------------

_KEYS = (
    *(
        "suite",
        "case",
        "module",
        "positions",
        "unit",
        "sample",
        "width",
        "depth",
        "seed",
        "M",
        "K",
        "protocol",
    ),
    *("bound_source", "step", "pair", "block", "fraction", "at"),
)


def _key(record: Record) -> Hashable:
    return type(record).__name__, *((k, getattr(record, k)) for k in _KEYS if hasattr(record, k))


def _keyed(records: Sequence[Record]) -> dict[Hashable, Any]:
    """Records by what was measured; several with one key are told apart by their order."""
    out: dict[Hashable, Any] = {}
    for r in records:
        if isinstance(r, Run):
            continue
        key, k = _key(r), 0
        while (key, k) in out:
            k += 1
        out[key, k] = r
    return out


def _payload(record: Any) -> dict[str, Any]:
    return {k: v for k, v in dataclasses.asdict(record).items() if k not in _VOLATILE}


def _name(r: Any) -> str:
    parts = [TITLES.get(r.suite, r.suite), getattr(r, "label", r.suite)]
    if getattr(r, "module", "law") not in ("law", "", "none"):
        parts.append(r.module)
    parts += [f"{k} {getattr(r, k)}" for k in ("positions", "sample") if getattr(r, k, "none") != "none"]
    parts += [f"seed {r.seed}"] if hasattr(r, "seed") else []
    if hasattr(r, "M") and hasattr(r, "K"):
        parts.append(f"M = {r.M}, K = {r.K}")
    if hasattr(r, "protocol"):
        parts.append(str(r.protocol).replace("_", " "))
    if getattr(r, "step", None) is not None:
        parts.append(f"step {r.step}")
    if getattr(r, "pair", "test-test") != "test-test":
        parts.append(r.pair)
    return f"{type(r).__name__.lower()}: " + ", ".join(parts)


# -- what differs --------------------------------------------------------------------------------------------


def _protocol(run_a: Run, run_b: Run, a: Sequence[Record], b: Sequence[Record]) -> list[tuple[str, str, str]]:
    sides: list[list[tuple[str, str]]] = []
    for run, records in ((run_a, a), (run_b, b)):
        facts = [
            ("run", run.run_id),
            ("preset", run.preset),
            ("suites", ", ".join(run.suites)),
            ("seed", str(run.seed)),
            ("command", run.command),
            ("started", run.started),
        ]
        for name in ("versions", "hardware", "data"):
            facts += [(f"{name}: {k}", v) for k, v in getattr(run, name).items()]
        for s in suites(records):
            trained = [t for t in of(records, Training) if t.suite == s]
            cells = [c for c in of(records, Misalignment) if c.suite == s]
            title = TITLES.get(s, s)
            facts += [
                (f"{title}: training", "; ".join(dict.fromkeys(t.recipe for t in trained))),
                (f"{title}: training data", "; ".join(dict.fromkeys(t.data for t in trained))),
                (f"{title}: widths", ", ".join(map(str, sorted({t.width for t in trained})))),
                (f"{title}: network seeds", ", ".join(map(str, sorted({t.seed for t in trained})))),
                (f"{title}: M × K", ", ".join(f"{m} × {k}" for m, k in sorted({(c.M, c.K) for c in cells}))),
                (f"{title}: trials in a cell", ", ".join(map(str, sorted({c.trials for c in cells})))),
            ]
        sides.append([f for f in facts if f[1]])
    one, two = dict(sides[0]), dict(sides[1])
    return [(k, one.get(k, "–"), two.get(k, "–")) for k in {**one, **two} if one.get(k) != two.get(k)]


def _shared(run_a: Run, run_b: Run, a: Sequence[Record], b: Sequence[Record]) -> list[str]:
    """Reasons for which the two runs' numbers are not independent of each other."""
    out = []
    if run_a.seed == run_b.seed:
        out.append(f"both runs have seed {run_a.seed}, so they share random numbers")
    same = sorted(k for k, v in run_a.data.items() if run_b.data.get(k) == v)
    trained = [{(t.suite, t.data) for t in of(records, Training)} for records in (a, b)]
    if same or trained[0] & trained[1]:
        names = same or sorted({d for _, d in trained[0] & trained[1]})
        out.append(f"both runs use the same data ({', '.join(names)})")
    return out


def _verdicts(a: Sequence[Record], b: Sequence[Record]) -> list[dict[str, str]]:
    sides = [{(r.claim, r.suite, r.scope): r for r in claim_table(records)} for records in (a, b)]
    order = {c: i for i, c in enumerate(CLAIMS)}
    keys = sorted({**sides[0], **sides[1]}, key=lambda k: order.get(k[0], len(order)))
    out = []
    for key in keys:
        claim, suite, scope = key
        one, two = sides[0].get(key), sides[1].get(key)
        out.append(
            {
                "claim": claim,
                "suite": TITLES.get(suite, suite),
                "scope": scope,
                "a": one.verdict if one else "not judged",
                "b": two.verdict if two else "not judged",
                "effect_a": _effect(one.effect if one else None),
                "effect_b": _effect(two.effect if two else None),
                "effect_name": (one or two).effect_name,  # type: ignore[union-attr]
            }
        )
    return out


def _effect(m: Measured | None) -> str:
    if m is None:
        return "–"
    text = number(m.value)
    if m.low is not None and m.high is not None and m.low != m.high:
        text += f" [{number(m.low)}, {number(m.high)}]"
    return text


_SCALES = ("m2", "m2_squared", "mu_sigma_mu", "tr_sigma2", "d_par", "d_2", "d_align", "b_star")


def _differences(one: Any, two: Any, shared: Sequence[str]) -> Iterable[Difference]:
    what = _name(one)
    for f in dataclasses.fields(one):
        x, y = getattr(one, f.name), getattr(two, f.name, None)
        if x == y or f.name in _VOLATILE:
            continue
        if isinstance(x, Measured) or isinstance(y, Measured):
            pair = (x, y) if isinstance(x, Measured) and isinstance(y, Measured) else None
            if pair is not None:
                yield _difference(one.suite, what, f.name, *pair, logs=f.name in _SCALES, shared=shared)
        elif isinstance(x, float) and isinstance(y, float):
            yield Difference(one.suite, what, f.name, x, y, y - x, None, None, "no interval is stored")


def _difference(
    suite: str, what: str, quantity: str, x: Measured, y: Measured, *, logs: bool, shared: Sequence[str]
) -> Difference:
    if x.value is None or y.value is None:
        return Difference(suite, what, quantity, x.value, y.value, None, None, None, "not estimated in both")
    positive = x.value > 0 and y.value > 0
    scale: Callable[[float], float] = math.log if logs and positive else float
    name = f"log {quantity}" if logs and positive else quantity
    value = scale(y.value) - scale(x.value)
    if value == 0:
        return Difference(suite, what, name, x.value, y.value, 0.0, None, None, "equal; its interval differs")
    if shared:
        return Difference(
            suite, what, name, x.value, y.value, value, None, None, "not independent: no interval"
        )
    if x.confidence != y.confidence or None in (x.low, x.high, y.low, y.high):
        return Difference(
            suite, what, name, x.value, y.value, value, None, None, "one has no interval of the same level"
        )
    ends = (x.low, x.high, y.low, y.high)
    if scale is math.log and any(e is None or e <= 0 for e in ends):
        return Difference(suite, what, name, x.value, y.value, value, None, None, "an interval reaches 0")
    x_low, x_high, y_low, y_high = (scale(e) for e in ends if e is not None)
    if x_low == x_high and y_low == y_high:
        return Difference(suite, what, name, x.value, y.value, value, None, None, "exact in both runs")
    low = value - math.hypot(scale(y.value) - y_low, x_high - scale(x.value))
    high = value + math.hypot(y_high - scale(y.value), scale(x.value) - x_low)
    return Difference(
        suite, what, name, x.value, y.value, value, low, high,
        f"two independent estimates, {100 * x.confidence:.5g} %, squared limits added (MOVER)",
    )  # fmt: skip


# -- pictures ------------------------------------------------------------------------------------------------


def figures(a: Sequence[Record], b: Sequence[Record]) -> list[Figure]:
    """d_align and frequencies of run B against run A, on log axes, with the interval of each."""
    one, two = _keyed(a), _keyed(b)
    both = [(one[k], two[k]) for k in one if k in two]
    dims = [
        (x, x.d_align, y.d_align) for x, y in both if isinstance(x, Geometry) and x.detected and y.detected
    ]
    counts = [(x, x.frequency, y.frequency) for x, y in both if isinstance(x, Misalignment)]
    made = [
        _against(dims, "d-align", "d_{align}", "Alignment dimension: B against A"),
        _against(counts, "frequency", "frequency of T ≤ 0", "Misalignment frequency: B against A"),
    ]
    return [f for f in made if f is not None]


def _of(m: Measured) -> float:
    return math.nan if m.value is None else m.value


def _against(
    items: Sequence[tuple[Any, Measured, Measured]], id: str, axis: str, title: str
) -> Figure | None:
    drawn = [(r, x, y) for r, x, y in items if x.value and y.value and x.value > 0 and y.value > 0]
    if not drawn:
        return None
    panels = []
    for suite in dict.fromkeys(r.suite for r, _, _ in drawn):
        mine = [(x, y) for r, x, y in drawn if r.suite == suite]
        values = [v for x, y in mine for v in (x.value, y.value) if v]
        low, high = min(values) / 2, max(values) * 2
        canvas = Canvas(x_title=f"run A, {axis}", y_title=f"run B, {axis}", margin=44)
        canvas.log_x(low, high)
        canvas.log_y(low, high)
        ax = canvas.ax
        ax.plot([low, high], [low, high], color=MUTED, linewidth=1.0)
        for x, y in mine:
            if x.low is not None and x.high is not None:
                ax.plot(
                    [max(x.low, low), min(x.high, high)],
                    [_of(y)] * 2,
                    color=SERIES[0],
                    linewidth=0.8,
                    alpha=0.5,
                )
            if y.low is not None and y.high is not None:
                ax.plot(
                    [_of(x)] * 2,
                    [max(y.low, low), min(y.high, high)],
                    color=SERIES[0],
                    linewidth=0.8,
                    alpha=0.5,
                )
        ax.plot([_of(x) for x, _ in mine], [_of(y) for _, y in mine], "o", color=SERIES[0], markersize=3.6)
        canvas.labels_right([(high, "equal", MUTED)])
        ratios = sorted(y.value / x.value for x, y in mine if x.value and y.value)
        ends = f"from {ratios[0]:.3g} to {ratios[-1]:.3g}, median {ratios[len(ratios) // 2]:.3g}"
        what = f"{len(mine)} values of {plain(axis)} in run B against run A"
        alt = f"{TITLES.get(suite, suite)}: {what}; ratio {ends}."
        panels.append(Panel(TITLES.get(suite, suite), canvas.svg(f"compare-{id}-{suite}", alt)))
    lost = len(items) - len(drawn)
    caption = (
        "What to see: points on the diagonal are equal in both runs. Bars: each run's own interval, cut at "
        "the axes. "
    )
    if lost:
        caption += f"{lost} matched values are 0 or missing in one run: no place on a log axis, see the data."
    rows = tuple(
        {"what": _name(r)} | {f"{s}{e}": getattr(m, f) for s, m in (("a", x), ("b", y)) for e, f in _ENDS}
        for r, x, y in items
    )
    return Figure(f"compare-{id}", title, caption.strip(), tuple(panels), rows)


_ENDS = (("", "value"), ("_low", "low"), ("_high", "high"))
