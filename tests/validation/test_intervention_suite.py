"""Intervention suite: exact on quadratics, derivatives against autograd, verdicts decide both ways."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from certify.blocks import ChannelShift
from validation import intervention_claims, intervention_figures
from validation import intervention_measure as im
from validation.claims import ClaimRow
from validation.results import Effect, Measured, from_json, to_json


class Net(torch.nn.Module):
    """Two layers; the loss below is quadratic in a shift of the first one's output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 4)
        self.second = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class Units:
    """Images and labels, as far as the loaders look."""

    def __init__(self, n: int, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        self.images = torch.randn(n, 3, generator=g, dtype=torch.float64)
        self.labels = torch.randint(0, 2, (n,), generator=g)

    def __len__(self) -> int:
        return len(self.images)


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> tuple[Net, Units, Units, list[im.Steps]]:
    def batches(units: Units, size: int):  # type: ignore[no-untyped-def]
        for i in range(0, len(units), size):
            yield units.images[i : i + size], units.labels[i : i + size]

    monkeypatch.setattr(im.training, "batches", batches)
    torch.manual_seed(0)
    model = Net().double().eval()
    train, test = Units(40, 1), Units(30, 2)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    steps = im.take_steps(
        model, "first", ChannelShift(4, dtype=torch.float64), train, [test, train], batches=batches
    )
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    return model, train, test, steps


def _gradient(model: Net, units: Units) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean loss's gradient and Hessian in a shift of the first layer's output, by autograd."""

    def loss(shift: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(
            model.second(model.first(units.images) + shift), units.labels
        )

    zero = torch.zeros(4, dtype=torch.float64)
    zero.requires_grad_()
    return torch.autograd.grad(loss(zero), zero)[0], torch.autograd.functional.hessian(loss, zero.detach())


def test_slope_and_curvature_are_autograds(stepped: tuple[Net, Units, Units, list[im.Steps]]) -> None:
    model, train, test, (fresh, same) = stepped
    mu, _ = _gradient(model, train)
    g, H = _gradient(model, test)
    assert fresh.slopes.mean() == pytest.approx(float(mu @ g), rel=1e-6)
    assert same.slopes.mean() == pytest.approx(float(mu @ mu), rel=1e-6)
    assert fresh.curvature == pytest.approx(float(mu @ H @ mu), rel=1e-3)


def test_second_order_predicts_better(stepped: tuple[Net, Units, Units, list[im.Steps]]) -> None:
    *_, (fresh, _) = stepped
    change = (fresh.after - fresh.before).mean(axis=1)
    first = -fresh.alphas * fresh.slopes.mean()
    second = first + fresh.alphas**2 * fresh.curvature / 2
    assert (np.abs(change - second) <= np.abs(change - first)).all()
    assert change[0] / first[0] == pytest.approx(1.0, abs=0.01)


def test_ratio_interval_covers_a_true_ratio_and_misses_a_false_one() -> None:
    rng = np.random.default_rng(0)
    inside = wrong = 0
    for _ in range(200):
        predicted = rng.exponential(size=100)
        observed = 0.9 * predicted + 0.2 * rng.standard_normal(100)
        m = im.ratio_interval(observed, predicted)
        assert m.low is not None
        assert m.high is not None
        inside += m.low <= 0.9 <= m.high
        wrong += m.low <= 1.0 <= m.high
    least = stats.binom.ppf(1e-4, 200, 0.93)
    assert inside >= least > wrong


def test_ratio_without_a_signal_has_no_limits() -> None:
    m = im.ratio_interval(np.array([1.0, -1.0, 1.0, -1.1]), np.array([1.0, -1.0, 1.0, -1.1]))
    assert (m.low, m.high) == (None, None)


def effect(
    ratio: float, fraction: float = 0.001, seed: int = 0, sample: str = "held-out", half: float = 0.01
) -> Effect:
    change = -0.01 * ratio
    return Effect(
        "intervention", f"resnet20-w16-L20-s{seed}", "ResNet-20, width × 1", "layer3.2", "channel shift",
        "image",
        sample, 16, 20, seed, 200, 200, fraction, 0.1, 0.1, -0.01, -0.0099,
        Measured(change, change - 0.001, change + 0.001, 0.95, "Student"),
        Measured(ratio, ratio - half, ratio + half, 0.95, "Fieller"), ratio > 0, change + 0.001 < 0, 0.1,
    )  # fmt: skip


def rows(cells: list[Effect]) -> list[ClaimRow]:
    return intervention_claims.claim_rows(cells)


@pytest.mark.parametrize(("ratio", "verdict"), [(0.98, "holds"), (0.8, "fails")])
def test_size_rule(ratio: float, verdict: str) -> None:
    found = next(r for r in rows([effect(ratio + 0.001 * s, seed=s) for s in range(3)]) if "size" in r.scope)
    assert found.verdict == verdict
    assert found.seeds == 3


def test_size_needs_three_networks() -> None:
    found = next(r for r in rows([effect(0.98)]) if "size" in r.scope)
    assert found.verdict == "undecided"
    assert found.effect is not None
    assert found.effect.low is None


@pytest.mark.parametrize(("ratio", "verdict"), [(0.9, "holds"), (-0.9, "fails"), (0.05, "undecided")])
def test_sign_and_jumpboard_rules(ratio: float, verdict: str) -> None:
    found = rows(
        [effect(ratio), effect(ratio, fraction=0.0001), effect(1.0, sample="train", fraction=0.0001)]
    )
    sign = next(r for r in found if "sign" in r.scope)
    jump = next(r for r in found if r.claim == "jumpboard-pop")
    assert (sign.verdict, jump.verdict) == (verdict, verdict)
    assert next(r for r in found if r.claim == "jumpboard-train").verdict == "holds"


def test_a_larger_step_that_overshoots_is_no_evidence_against_the_jumpboard() -> None:
    found = rows([effect(0.99, fraction=0.0001), effect(-3.0, fraction=0.1)])
    assert next(r for r in found if r.claim == "jumpboard-pop").verdict == "holds"


def test_records_figures_and_tables() -> None:
    record = effect(0.98)
    assert from_json(to_json(record)) == record
    cells = [effect(r, f, s) for s in range(2) for f, r in ((0.001, 0.99), (0.01, 0.9), (0.1, -4.0))]
    cells.append(replace(cells[0], seed=5, ratio=Measured(0.9, None, None, 0.95, "no limit")))
    made = intervention_figures.figures(cells, "intervention")
    assert [f.id for f in made] == ["intervention-ratio", "intervention-change"]
    assert len(made[0].rows) == len(cells)
    table = intervention_figures.tables(cells, "intervention")[0]
    assert any("1 %" in r[7] for r in table.rows)
    assert intervention_figures.figures([], "intervention") == []
    assert intervention_figures.tables([], "intervention") == []
