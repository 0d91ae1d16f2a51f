"""Guarantees beside outcomes: what is stored, and what decides the rows."""

from __future__ import annotations

import dataclasses

import pytest

from validation import cases, growth_measure, intervention_claims, intervention_figures, results, training
from validation.results import Growth, Measured


def growth(**changes) -> Growth:
    base = {
        "suite": "intervention",
        "case": "resnet20-w8-L20-s0",
        "label": "ResNet-20, width × 0.5",
        "module": "layer3.2",
        "block": "channel shift",
        "unit": "image",
        "width": 8,
        "depth": 20,
        "seed": 0,
        "M": 300,
        "K": 300,
        "fresh": 300,
        "clip": 5.0,
        "route": "B",
        "change": -0.1,
        "probability": 0.9,
        "vacuous": False,
        "improves": True,
        "rests_on_estimates": True,
        "factor": 0.5,
        "units_needed": 200.0,
        "fallback": False,
        "observed": Measured(-0.2, -0.3, -0.1, 0.95, "paired t"),
        "jumpboard": Measured(-0.1, -0.2, 0.0, 0.95, "paired t"),
        "reason": "",
        "seconds": 1.0,
    }
    return Growth(**(base | changes))


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "holds"),
        ({"vacuous": True, "probability": -0.1}, "undecided"),
        ({"improves": False, "change": 0.4}, "undecided"),
        ({"observed": Measured(0.0, -0.05, 0.05, 0.95, "paired t")}, "fails"),
        ({"observed": Measured(-0.1, -0.3, 0.1, 0.95, "paired t")}, "undecided"),
    ],
)
def test_only_a_guarantee_that_speaks_is_judged(changes, verdict):
    (row,) = intervention_claims.claim_rows([growth(**changes)])
    assert (row.claim, row.verdict) == ("route-B", verdict)
    assert row.effect is not None
    assert row.effect.value == growth(**changes).observed.value


def test_vacuous_rows_say_how_far_they_are():
    rows = [growth(route=r, vacuous=True, factor=17.0, units_needed=3e5) for r in ("A", "theorem 2")]
    found = intervention_claims.claim_rows(rows)
    assert [r.claim for r in found] == ["route-A", "expansion-T2"]
    assert all("17 to 17 times the gain" in r.why and "3e+05 units" in r.why for r in found)
    assert "vacuous" in intervention_figures.tables(rows, "x")[0].rows[0]


def test_records_of_a_network_are_those_of_certify_expansion(tmp_path, monkeypatch):
    monkeypatch.setenv(training.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(growth_measure, "STEPS", 5)
    network = dataclasses.replace(cases.SMOKE.resnets[0], steps=4, train_pool=0, trajectory=0)
    trained = training.obtain(network)
    found = growth_measure.records(network, trained, 0)
    assert [g.route for g in found] == ["A", "B", "theorem 2"]
    assert all(g.M == g.K == g.fresh == 100 and g.clip == growth_measure.CLIP for g in found)
    assert len({g.observed for g in found}) == 1
    assert found == [
        dataclasses.replace(g, seconds=f.seconds)
        for g, f in zip(growth_measure.records(network, trained, 0), found, strict=True)
    ]
    assert [results.from_json(results.to_json(g)) for g in found] == found
    observed = found[0].observed
    assert observed.low is not None
    assert observed.high is not None
    assert observed.low <= observed.value <= observed.high
