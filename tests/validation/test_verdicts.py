"""Verdicts on claims: what holds, what fails, and what stays undecided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from synthetic_records import known, make_records, make_run, network, some_cell, with_false_bound

from validation.claims import holm, of
from validation.results import Geometry, Misalignment, Record
from validation.verdicts import claim_table


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return make_records(small=True)


def verdicts(records: list[Record], claim: str, suite: str) -> list[str]:
    return [r.verdict for r in claim_table(records) if (r.claim, r.suite) == (claim, suite)]


def test_true_bounds_hold_and_a_planted_false_one_is_caught(records: list[Record]) -> None:
    assert verdicts(records, "cantelli", "resnet20") == ["holds"]
    broken = with_false_bound(records)
    rows = [r for r in claim_table(broken) if r.claim == "cantelli" and r.suite == "resnet20"]
    assert [(r.verdict, r.violated) for r in rows] == [("fails", 1)]
    assert verdicts(broken, "follow", "resnet20") == ["fails"]
    assert verdicts(broken, "cantelli", "neox") == ["holds"]


def test_b_align_below_b_exact_fails_without_any_data(records: list[Record]) -> None:
    swapped = [
        replace(r, B_align=known((r.B_exact.value or 0) * 0.999))
        if isinstance(r, Misalignment) and r.suite == "gaussian" and r.M == 8
        else r
        for r in records
    ]
    rows = [r for r in claim_table(swapped) if (r.claim, r.suite) == ("align", "gaussian")]
    assert rows[0].verdict == "fails"
    assert rows[0].violated == 2


def test_known_probability_decides_without_an_interval(records: list[Record]) -> None:
    # at the bound exactly, an interval always contains it; the exact probability still decides
    tight = [
        replace(r, log_probability=float(np.log(r.B_exact.value or 1)), verdict="inconclusive")
        if isinstance(r, Misalignment) and r.suite == "gaussian"
        else r
        for r in records
    ]
    assert verdicts(tight, "cantelli", "gaussian") == ["holds"]
    above = [
        replace(r, log_probability=(r.log_probability or 0) + 1e-6)
        if isinstance(r, Misalignment) and r.suite == "gaussian"
        else r
        for r in tight
    ]
    assert verdicts(above, "cantelli", "gaussian") == ["fails"]


def test_overlapping_intervals_are_undecided(records: list[Record]) -> None:
    wide = [
        replace(r, verdict="inconclusive") if isinstance(r, Misalignment) and r.bound_source == "pool" else r
        for r in records
    ]
    assert verdicts(wide, "cantelli", "resnet20") == ["undecided"]


@pytest.mark.parametrize(("exponent", "expected"), [(1.5, "holds"), (-1.5, "fails"), (0.0, "undecided")])
def test_width_trend_follows_the_data(exponent: float, expected: str) -> None:
    rng = np.random.default_rng(5)
    chosen = [make_run(), *network(rng, "neox", "N", (32, 64, 128), ("a", "b"), 0.01, exponent=exponent)]
    assert verdicts(chosen, "width-up", "neox") == [expected]


def test_width_trend_keeps_to_places_detected_everywhere() -> None:
    rng = np.random.default_rng(5)
    chosen: list[Record] = [
        make_run(),
        *network(rng, "neox", "N", (32, 64, 128), ("a", "b"), 0.01, undetected=2),
    ]
    (row,) = [r for r in claim_table(chosen) if r.claim == "width-up"]
    assert "left out, not detected in every network: 1 place" in row.why
    blind = [replace(r, detected=False) if isinstance(r, Geometry) else r for r in chosen]
    (row,) = [r for r in claim_table(blind) if r.claim == "width-up"]
    assert row.verdict == "undecided"
    assert row.effect is None


def test_two_networks_give_no_interval_and_no_verdict() -> None:
    rng = np.random.default_rng(5)
    chosen = [make_run(), *network(rng, "neox", "N", (32, 64), ("a",), 0.01, seeds=1, undetected=0)]
    (row,) = [r for r in claim_table(chosen) if r.claim == "width-up"]
    assert row.verdict == "undecided"
    assert row.effect is not None
    assert row.effect.low is None
    assert "width is not separated from how far training got" in row.why


def test_rise_with_more_units_is_found() -> None:
    rng = np.random.default_rng(3)
    chosen = of(network(rng, "neox", "N", (32, 64), ("a",), 0.01, undetected=0), Misalignment)
    pool = [c for c in chosen if c.bound_source == "pool"]
    reversed_m = {4: 256, 16: 64, 64: 16, 256: 4}
    turned = [replace(c, M=reversed_m[c.M], K=reversed_m[c.K]) for c in pool]
    assert verdicts([make_run(), *pool], "misalign-down", "neox") == ["holds"]
    assert verdicts([make_run(), *turned], "misalign-down", "neox") == ["fails"]


def test_false_alarm_rate_of_the_bound_verdict() -> None:
    """A bound that is attained exactly (P = B in all 12 cells) is called violated in at most 5 % of runs.

    200 runs; the threshold has a false-alarm rate below 1e-4 at a true rate of 5 %.
    """
    rng = np.random.default_rng(11)
    template = some_cell(events=300)
    alarms = caught = 0
    for _ in range(200):
        cells: list[Misalignment] = []
        worse: list[Misalignment] = []
        for p in np.linspace(0.05, 0.9, 12):
            events = int(rng.binomial(1000, p))
            base = replace(template, events=events, trials=1000, verdict="inconclusive")
            cells.append(replace(base, B_exact=known(float(p))))
            worse.append(replace(base, B_exact=known(float(p) * 0.8)))
        alarms += any(r.verdict == "fails" for r in claim_table(cells) if r.claim == "cantelli")
        caught += any(r.verdict == "fails" for r in claim_table(worse) if r.claim == "cantelli")
    assert alarms <= stats.binom.ppf(1 - 1e-4, 200, 0.05)
    assert caught >= 195


def test_holm_agrees_with_a_plain_loop() -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        p = rng.random(int(rng.integers(1, 20))) ** 4
        expected = [False] * len(p)
        for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
            if p[i] > 0.05 / (len(p) - rank):
                break
            expected[i] = True
        assert holm(p, 0.05).tolist() == expected
