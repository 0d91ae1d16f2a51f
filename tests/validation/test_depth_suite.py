"""Depth suite: fits recover known decays with honest limits, verdict rules decide both ways, figures hold."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from validation import cases, depth_claims, depth_figures, depth_fit, depth_measure, training
from validation.claims import ClaimRow
from validation.results import Diagonality, Geometry, Measured, Record, Training, from_json, to_json

DEPTHS = (8, 14, 20, 32)


def geometry(depth: int, seed: int, m2: float, error: float = 0.01, width: int = 4) -> Geometry:
    half = error * float(stats.t.ppf(0.975, 999))
    plain = Measured(m2, m2 - half, m2 + half, 0.95, "jackknife")
    part = Measured(1.0, 0.5, 2.0, 0.95, "jackknife")
    square = Measured(m2**2, 0.0, 1.0, 0.95, "jackknife")
    return Geometry(
        "depth", f"resnet20-w{width}-L{depth}-s{seed}", f"ResNet-{depth}", f"layer3.{(depth - 2) // 6 - 1}",
        "flatten", "image", "held-out", 1000, 64, width, depth, seed, plain, square, part, part, part, part,
        part, part, m2 - half > 0, ("iid",), 0.1,
    )  # fmt: skip


def trained(depth: int, seed: int, loss: float, width: int = 4) -> Training:
    measured = Measured(loss, loss * 0.9, loss * 1.1, 0.95, "Student")
    return Training(
        "depth", f"resnet20-w{width}-L{depth}-s{seed}", f"ResNet-{depth}", width, depth, 1000, seed, 50, 1.0,
        False, "digits", loss, measured, None, "SGD",
    )  # fmt: skip


def diagonal(share: float, half: float, seed: int = 0, n: int = 1000) -> Diagonality:
    return Diagonality(
        "depth", f"resnet20-w4-L20-s{seed}", "ResNet-20", "layer3.2", "sum", "image", n, 64, 4, 20, seed, 1.0,
        Measured(share, share - half, share + half, 0.95, "Fieller"), 0.3, 0.1, 0.2, 0.9, 0.05, 0.1,
    )  # fmt: skip


def decaying(p: float, noise: float = 0.02, seed: int = 0, sign: float = 1.0) -> list[Record]:
    rng = np.random.default_rng(seed)
    out: list[Record] = []
    for depth in DEPTHS:
        for s in range(3):
            b = (depth - 2) / 2
            out.append(
                geometry(depth, s, sign * b ** (-2 * p) * math.exp(noise * rng.standard_normal()), 1e-4)
            )
    return out


def row(rows: list[ClaimRow], claim: str) -> ClaimRow:
    return next(r for r in rows if r.claim == claim)


def test_records_survive_a_line_of_json() -> None:
    record = diagonal(0.2, 0.1)
    assert from_json(to_json(record)) == record


def test_least_squares_limit_agrees_with_statsmodels() -> None:
    """With large known errors the spread between networks is 0, and the fit is weighted least squares."""
    rng = np.random.default_rng(0)
    x = np.repeat([3.0, 6.0, 9.0, 15.0], 4)
    error = np.full(16, 0.05)
    y = x**-1.0 + error * rng.standard_normal(16)
    mine = depth_fit.fit(x, y, error, "power")
    link = sm.families.Gaussian(sm.families.links.Log())
    theirs = sm.GLM(y, sm.add_constant(np.log(x)), family=link).fit()
    assert mine.spread < 0.1
    assert mine.rate is not None
    assert mine.rate.value == pytest.approx(-theirs.params[1] / 2, abs=0.02)


def test_rate_intervals_cover_and_a_false_rate_is_caught() -> None:
    """40 repetitions with negative estimates among them; at a 1e-4 false-alarm rate for 90 % coverage."""
    rng = np.random.default_rng(4)
    x = np.repeat([3.0, 6.0, 9.0, 15.0], 3)
    inside = wrong = negative = 0
    for _ in range(40):
        truth = x**-1.5
        y = truth * (1 + 0.2 * rng.standard_normal(12)) + 0.02 * rng.standard_normal(12)
        negative += int((y < 0).any())
        rate = depth_fit.fit(x, y, np.full(12, 0.02), "power").rate
        assert rate is not None
        assert rate.low is not None
        assert rate.high is not None
        inside += rate.low <= 0.75 <= rate.high
        wrong += rate.low <= 0.0 <= rate.high
    least = stats.binom.ppf(1e-4, 40, 0.9)
    assert negative > 0
    assert inside >= least
    assert wrong < least


@pytest.mark.parametrize("model", ["power", "exponential", "constant"])
def test_the_true_model_is_preferred(model: str) -> None:
    x = np.repeat([2.0, 4.0, 8.0, 16.0, 32.0], 3)
    curve = {"power": x**-1.0, "exponential": np.exp(-0.2 * x), "constant": np.ones_like(x)}[model]
    y = curve * np.exp(0.05 * np.random.default_rng(1).standard_normal(len(x)))
    compared = depth_fit.compare(x, y, 0.01 * curve)
    assert sum(compared.weights.values()) == pytest.approx(1.0)
    if model == "constant":  # the others contain it, so that it cannot lead by much
        assert compared.preferred in (None, "constant")
    else:
        assert compared.preferred == model


def test_few_points_give_no_interval_and_no_preference() -> None:
    compared = depth_fit.compare([3, 9], [1.0, 0.5], [0.1, 0.1])
    rate = compared.fits["power"].rate
    assert rate is not None
    assert rate.low is None
    assert compared.preferred is None


def test_no_model_wins_by_having_fewer_parameters() -> None:
    """Four networks are enough for AICc of the constant only; a clear decay must not count for it."""
    compared = depth_fit.compare([9, 15, 21, 27], [7.4, 4.0, 3.1, 2.3], [0.1, 0.1, 0.1, 0.1])
    assert compared.too_few
    assert compared.preferred is None
    assert compared.weights == dict.fromkeys(depth_fit.MODELS, pytest.approx(1 / 3))


def test_bad_points_are_refused() -> None:
    with pytest.raises(ValueError, match=r"min\(errors\)=0"):
        depth_fit.fit([1, 2], [1.0, 1.0], [0.0, 1.0], "power")
    with pytest.raises(ValueError, match=r"len\(blocks\)=2"):
        depth_fit.fit([1, 2], [1.0], [1.0], "power")


@pytest.mark.parametrize(("p", "verdict"), [(0.8, "holds"), (-0.8, "fails"), (0.0, "undecided")])
def test_signal_decay_is_decided_by_the_exponent(p: float, verdict: str) -> None:
    found = row(depth_claims.claim_rows(decaying(p, noise=0.2)), "signal-decay")
    assert found.verdict == verdict
    assert found.effect is not None
    assert found.effect.value == pytest.approx(p, abs=0.3)


def test_power_law_is_told_from_exponential() -> None:
    assert row(depth_claims.claim_rows(decaying(1.0)), "power-law").verdict == "holds"
    other = [
        replace(g, m2=Measured(v, v - 2e-4, v + 2e-4, 0.95, "jackknife"))
        for g in decaying(1.0)
        if isinstance(g, Geometry)
        for v in [math.exp(-0.4 * (g.depth - 2) / 2)]
    ]
    assert row(depth_claims.claim_rows(other), "power-law").verdict == "fails"


def test_negative_estimates_are_used_and_drawn() -> None:
    records = decaying(0.8, noise=0.2)
    last = records[-1]
    assert isinstance(last, Geometry)
    records[-1] = replace(last, m2=Measured(-0.001, -0.003, 0.001, 0.95, "jackknife"), detected=False)
    found = row(depth_claims.claim_rows(records), "signal-decay")
    assert found.n == 12
    assert "not detected in 1 of 12" in found.why
    figure = depth_figures.signal(records, "x")
    assert figure is not None
    assert any(r["m2"] == -0.001 for r in figure.rows)


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [((0.02, 0.05), "holds"), ((0.02, 0.4), "fails"), ((0.02, 0.1), "undecided"), ((-0.01,), "holds")],
)
def test_near_diagonal_rule(shares: tuple[float, ...], verdict: str) -> None:
    points = [diagonal(s, 0.02, i) for i, s in enumerate(shares)]
    assert row(depth_claims.claim_rows(points), "near-diagonal").verdict == verdict


def test_joint_scaling_sees_a_loss_that_turns_up_and_one_that_falls() -> None:
    rng = np.random.default_rng(0)
    for losses, verdict in (((0.5, 0.3, 0.3, 0.6), "holds"), ((0.9, 0.6, 0.4, 0.2), "fails")):
        runs: list[Record] = [
            trained(d, s, loss + 0.01 * rng.standard_normal())
            for d, loss in zip(DEPTHS, losses, strict=True)
            for s in range(3)
        ]
        assert row(depth_claims.claim_rows(runs), "joint-scaling").verdict == verdict


def test_required_units_solve_the_bound() -> None:
    g = geometry(20, 0, 0.5)
    units = depth_claims.required_units(g)
    assert units is not None
    s, a, t = (m.value for m in (g.m2_squared, g.mu_sigma_mu, g.tr_sigma2))
    assert s is not None
    assert a is not None
    assert t is not None
    V = 2 * a / units + t / units**2
    assert V / (V + s) == pytest.approx(0.05)
    assert depth_claims.required_units(replace(g, detected=False)) is None


def test_figures_and_tables_carry_their_data() -> None:
    runs = [trained(d, s, 0.3, w) for d in DEPTHS for s in range(2) for w in (4, 8)]
    records = [*decaying(0.5), *runs, diagonal(0.2, 0.1)]
    made = depth_figures.figures(records, "depth")
    assert [f.id for f in made] == ["depth-signal", "depth-alignment", "depth-diagonality", "depth-grid"]
    for figure in made:
        assert figure.caption.startswith("What to see")
        assert figure.rows
        assert all("aria-label" in p.svg for p in figure.panels)
    assert [t.id for t in depth_figures.tables(records, "depth")] == ["depth-decay", "depth-diagonality"]
    assert depth_figures.figures([], "depth") == []
    assert depth_figures.tables([], "depth") == []


def test_a_second_measurement_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(training.CACHE_VARIABLE, str(tmp_path))
    network = replace(cases.SMOKE.resnets[0], depth=8, steps=2, train_pool=0, trajectory=0, held_out=60)
    calls: list[str] = []
    real = depth_measure._measure
    monkeypatch.setattr(depth_measure, "_measure", lambda n: calls.append(n.name) or real(n))
    first, again = depth_measure.records(network, 0), depth_measure.records(network, 0)
    assert calls == [network.name]
    assert [replace(r, cached=True) if isinstance(r, Training) else r for r in first] == again
    assert any(isinstance(r, Diagonality) for r in again)
    depth_measure.records(replace(network, seed=1), 0)
    assert len(calls) == 2


@pytest.mark.parametrize("p", [0.5, -0.5])
def test_the_deepest_regime_turns_decay_into_units(p: float) -> None:
    """Signal L^-p asks for units L^{4p}: from 3 to 15 blocks 5^{4p} times as many, whatever the constants."""
    members = [r for r in decaying(p, noise=0.0) if isinstance(r, Geometry)]
    found = depth_claims.regime(members)
    assert found is not None
    assert found[0] == pytest.approx(p, abs=1e-3)
    assert f"asks for {5.0 ** (4 * p):.2g} [" in found[1]
    rows = [r.why for r in depth_claims.claim_rows(decaying(p)) if r.claim == "deepest"]
    assert all("at 15 blocks as at 3" in why for why in rows)
    assert rows


def test_alignment_is_drawn_against_depth() -> None:
    figure = depth_figures.alignment(decaying(0.5), "x")
    assert figure is not None
    assert len(figure.rows) == 12
    assert {r["d_align"] for r in figure.rows} == {1.0}
    nothing = Measured(None, None, None, 0.95, "none")
    gone = [replace(r, d_align=nothing) for r in decaying(0.5) if isinstance(r, Geometry)]
    assert depth_figures.alignment(gone, "x") is None
