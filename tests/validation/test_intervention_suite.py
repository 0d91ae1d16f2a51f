"""Intervention suite: exact on quadratics, derivatives against autograd, verdicts decide both ways."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import certify
from certify.blocks import ChannelShift
from certify.losses import causal_lm
from validation import cases, intervention_claims, intervention_figures, models
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
def stepped(monkeypatch: pytest.MonkeyPatch) -> tuple[Net, Units, Units, list[Effect]]:
    def batches(units: Units, size: int):  # type: ignore[no-untyped-def]
        for i in range(0, len(units), size):
            yield units.images[i : i + size], units.labels[i : i + size]

    monkeypatch.setattr(im.training, "batches", batches)
    torch.manual_seed(0)
    model = Net().double().eval()
    train, test = Units(140, 1), Units(130, 2)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    block = ChannelShift(4, dtype=torch.float64)
    found = im.effects(cases.SMOKE.resnets[0], model, "first", "channel shift", block, train, test)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(bool(p.any()) for p in block.zero_parameters().values())
    return model, train, test, found


def _gradient(model: Net, units: Units) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean loss's gradient and Hessian in a shift of the first layer's output, by autograd."""

    def loss(shift: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(
            model.second(model.first(units.images) + shift), units.labels
        )

    zero = torch.zeros(4, dtype=torch.float64)
    zero.requires_grad_()
    return torch.autograd.grad(loss(zero), zero)[0], torch.autograd.functional.hessian(loss, zero.detach())


def test_records_are_autograds(stepped: tuple[Net, Units, Units, list[Effect]]) -> None:
    model, train, test, found = stepped
    mu, _ = _gradient(model, train)
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(train.images), train.labels)
    assert [(e.sample, e.fraction) for e in found] == [
        (sample, f) for sample in ("held-out", "train") for f in im.FRACTIONS
    ]
    for e in found:
        units = test if e.sample == "held-out" else train
        g, H = _gradient(model, units)
        assert (140, len(units)) == (e.M, e.K)
        assert pytest.approx(float(mu @ g), rel=1e-9) == e.T
        assert e.alpha * float(mu @ mu) == pytest.approx(e.fraction * float(loss), rel=1e-9)
        assert e.predicted == pytest.approx(-e.alpha * float(mu @ g), rel=1e-9)
        bend = e.alpha**2 / 2 * float(mu @ H @ mu)
        assert e.second_order is not None
        assert e.second_order - e.predicted == pytest.approx(bend, rel=1e-6)


def test_second_order_predicts_better(stepped: tuple[Net, Units, Units, list[Effect]]) -> None:
    for e in stepped[-1]:
        assert e.observed.value is not None
        assert e.second_order is not None
        assert abs(e.observed.value - e.second_order) <= abs(e.observed.value - e.predicted)
    small = stepped[-1][0]
    assert small.ratio.value == pytest.approx(1.0, abs=0.01)


def test_the_doubled_llama_computes_in_float64() -> None:
    """A difference far below float32's rounding must be seen; the library's own norms hide it."""
    model = models.llama(16, 2, length=20, seed=0).eval()
    tokens = torch.arange(40).reshape(2, 20)

    def moved(m: torch.nn.Module) -> float:
        losses = []
        for size in (0.0, 1e-9):
            shift = torch.full((16,), size, dtype=torch.float64) * torch.arange(16)
            module = m.get_submodule("model.layers.1")
            handle = module.register_forward_hook(lambda _m, _a, out, s=shift: out + s)
            losses.append(float(causal_lm(m, {"input_ids": tokens}).sum()))
            handle.remove()
        return (losses[1] - losses[0]) / 1e-9

    doubled = im.in_double(model)
    coarse = copy.deepcopy(model).double().eval()
    assert "LlamaRMSNorm" in {type(m).__name__ for m in model.modules()}
    with torch.no_grad():
        assert float(causal_lm(doubled, {"input_ids": tokens}).sum()) == pytest.approx(
            float(causal_lm(coarse, {"input_ids": tokens}).sum()), rel=1e-6
        )
    shift = torch.zeros(16, dtype=torch.float64, requires_grad=True)
    handle = doubled.get_submodule("model.layers.1").register_forward_hook(lambda _m, _a, out: out + shift)
    causal_lm(doubled, {"input_ids": tokens}).sum().backward()
    handle.remove()
    assert shift.grad is not None
    slope = float(shift.grad @ torch.arange(16).double())
    with torch.no_grad():
        assert moved(doubled) == pytest.approx(slope, rel=1e-4)
        assert moved(coarse) != pytest.approx(slope, rel=1e-4)


def test_limits_that_do_not_exist_are_none() -> None:
    ci = certify.ConfidenceInterval(1.0, -np.inf, np.inf, 0.95, "fieller", 4, "image", ())
    m = im._measured(ci)
    assert (m.value, m.low, m.high) == (1.0, None, None)


def test_a_second_measurement_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(im.training.CACHE_VARIABLE, str(tmp_path))
    network = replace(cases.SMOKE.resnets[0], steps=2, train_pool=0, trajectory=0, held_out=60)
    monkeypatch.setattr(im, "FRACTIONS", (1e-5, 1e-3))
    monkeypatch.setattr(im.growth_measure, "STEPS", 2)
    calls: list[str] = []
    real = im._measure
    monkeypatch.setattr(im, "_measure", lambda n, seed: calls.append(n.name) or real(n, seed))
    first = im.records(network, 0)
    assert im.records(network, 0) == first
    assert len(calls) == 1
    im.records(network, 1)  # another seed, another choice of units
    monkeypatch.setattr(im, "FRACTIONS", (1e-5,))
    assert len(im.records(network, 0)) < len(first)
    assert len(calls) == 3
    kept = sorted((tmp_path / "records").iterdir())
    for path in kept:
        path.write_text(path.read_text()[:-40])  # cut off: taken as absent
    im.records(network, 0)
    assert len(calls) == 4


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
