"""`certify.where` on small networks: against autograd on grown models, planted points, export, mistakes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from certify import Ranking, blocks, losses, where
from certify.candidates import candidates


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.inner(x))


class Net(nn.Module):
    def __init__(self, width=6, depth=3):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.last = nn.Linear(width, 2)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


class Planted(nn.Module):
    """Branches whose gradients are given numbers: a signal in the first, pure noise in the others."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(nn.Identity() for _ in range(5))

    def forward(self, batch):
        return sum((f(batch["one"]) * batch[k]).sum(1) for f, k in zip(self.branches, "sabcd", strict=True))


PLACES = [f"branches.{i}" for i in range(5)]


def planted_loss(model, batch):
    return model(batch)


def planted(n, seed, groups=1, noise=1.0):
    g = torch.Generator().manual_seed(seed)
    batch = {k: torch.randn(n // groups, 3, generator=g).repeat_interleave(groups, 0) for k in "sabcd"}
    for key in "abcd":
        batch[key] = batch[key] * noise
    batch["s"] = batch["s"] + 0.7
    batch["one"] = torch.ones(n, 3)
    batch["unit"] = torch.arange(n // groups).repeat_interleave(groups) + 1_000_000 * seed
    batch["id"] = torch.arange(n) + 1_000_000 * seed
    return [batch]


@pytest.fixture(scope="module")
def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net().double().eval()


def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=g, dtype=torch.float64)
    y = (x[:, 0] + 0.3 * torch.randn(n, generator=g, dtype=torch.float64) > 0).long()
    return [(x[i : i + 25], y[i : i + 25]) for i in range(0, n, 25)]


FACTORIES = {
    "shift": lambda: blocks.ChannelShift(6, dtype=torch.float64),
    "linear": lambda: blocks.LinearMap(6, dtype=torch.float64),
    "lowrank": lambda: blocks.LowRankMap(6, 2, generator=1, dtype=torch.float64),
    "mlp": lambda: blocks.MLPBlock(6, 5, generator=1, dtype=torch.float64),
}


@pytest.mark.parametrize("kind", FACTORIES)
def test_gain_equals_autograd_on_the_grown_model(net, kind):
    """An independent reference: the exported model, every unit by itself."""
    train, test = data(50, 1), data(75, 2)
    found = where(net, losses.classification, train, test, block=lambda place: FACTORIES[kind]())
    name = "layers.1"
    grown = found.export(name)
    block = next(m for m in grown.modules() if hasattr(m, "zero_parameters"))
    zero = list(block.zero_parameters().values())

    def rows(batches):
        out = []
        for x, y in batches:
            for i in range(len(x)):
                loss = F.cross_entropy(grown(x[i : i + 1]), y[i : i + 1])
                out.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, zero)]))
        return torch.stack(out)

    mu = rows(train).mean(0)
    x = rows(test) @ mu / mu.norm()
    point = found[name]
    assert point.interval.estimate == pytest.approx(float(x.mean()), rel=1e-9)
    assert point.gradient_norm == pytest.approx(float(mu.norm()), rel=1e-9)
    assert (found.M, found.K, point.parameters) == (50, 75, len(mu))


def test_the_step_lowers_the_loss_by_the_gain(net):
    train, test = data(100, 1), data(100, 2)

    def risk(model):
        with torch.no_grad():
            return float(torch.cat([F.cross_entropy(model(x), y, reduction="none") for x, y in test]).mean())

    for norm in ("parameter", "activation"):
        found = where(net, losses.classification, train, test, norm=norm)
        for p in found.points:
            change = risk(net) - risk(found.export(p.module, step=1e-4))
            assert change == pytest.approx(1e-4 * p.interval.estimate, rel=1e-3)


def test_activation_norm_is_the_relative_change(net):
    train, test = data(50, 1), data(50, 2)
    found = where(net, losses.classification, train, test, norm="activation")
    x = torch.cat([b[0] for b in test])
    outputs = {}
    hook = net.layers[0].register_forward_hook(lambda m, a, o: outputs.update(h=o.detach()))
    net(x)
    hook.remove()
    rms = float((outputs["h"] ** 2).sum(1).mean().sqrt())
    assert found["layers.0"].relative == pytest.approx(1 / rms)
    plain = where(net, losses.classification, train, test)
    a, b = found["layers.0"].interval, plain["layers.0"].interval
    assert a.estimate == pytest.approx(b.estimate * rms)
    assert found["layers.0"].gain.p_value == plain["layers.0"].gain.p_value


def test_export_is_the_old_model_to_the_bit_and_leaves_it_alone(net):
    before = {k: v.clone() for k, v in net.state_dict().items()}
    found = where(net, losses.classification, data(50, 1), data(100, 2), block="linear")
    grown = found.export(found.points[0].module)
    x = torch.cat([b[0] for b in data(50, 3)])
    assert torch.equal(grown(x), net(x))
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert not any(m._forward_hooks for m in net.modules())
    moved = found.export(found.points[0].module, step=0.1)
    from certify import intervention

    block = next(m for m in moved.modules() if hasattr(m, "zero_parameters"))
    with intervention.insert(net, found.points[0].module, block):
        assert torch.equal(moved(x), net(x))


def test_the_planted_point_is_found_among_noise():
    found = where(Planted().eval(), planted_loss, planted(200, 1), planted(200, 2), at=PLACES)
    assert found.points[0].module == PLACES[0]
    assert found[PLACES[0]].verdict == "certified"
    assert {found[name].verdict for name in PLACES[1:]} == {"undecided"}


def test_a_plug_in_norm_prefers_noise_and_the_gain_does_not():
    """Few training units and loud noise: the longest mean gradient is noise, its held-out gain is not."""
    train, test = planted(16, 1, noise=30.0), planted(400, 2, noise=30.0)
    found = where(Planted().eval(), planted_loss, train, test, at=PLACES)
    best = next(p for p in found.points if p.score_ranks["gradient"] == 1)
    assert (found.points[0].module, found.points[0].verdict) == (PLACES[0], "certified")
    assert best.module != PLACES[0]
    assert best.verdict == "undecided"
    assert best.gain.needed.units > 400
    assert found[PLACES[0]].score_ranks["gradient"] == 5


def test_units_are_groups():
    options = {"at": PLACES, "unit": lambda batch: batch["unit"].tolist()}
    train, test = planted(100, 1, groups=4), planted(100, 2, groups=4)
    found = where(Planted().eval(), planted_loss, train, test, **options)
    single = where(Planted().eval(), planted_loss, train, test, at=PLACES)
    assert (found.M, found.K, single.K) == (25, 25, 100)
    for name in PLACES:
        # Copies look like four times the evidence; groups do not.
        a, b = found[name].interval, single[name].interval
        assert a.estimate == pytest.approx(b.estimate, rel=1e-5)
        assert a.width > 1.8 * b.width


def test_shared_examples_are_refused(net):
    with pytest.raises(ValueError, match="25 of the 50 held-out examples are also training examples"):
        where(net, losses.classification, data(50, 1), [data(50, 1)[0], data(50, 2)[0]])
    train = data(50, 1)
    with pytest.raises(ValueError, match="same object"):
        where(net, losses.classification, train, train)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"norm": "l1"}, ValueError, "'parameter' or 'activation'"),
        ({"block": "conv"}, ValueError, "expected one of shift, full"),
        ({"block": lambda p: nn.Linear(6, 6)}, TypeError, "zero_parameters"),
        ({"confidence": 95}, ValueError, "confidence=95"),
        ({"at": ["layers.9"]}, ValueError, "names no module"),
        ({"tier": "bounded"}, ValueError, "needs a number"),
    ],
)
def test_mistakes(net, options, error, message):
    with pytest.raises(error, match=message):
        where(net, losses.classification, data(25, 1), data(25, 2), **options)


def test_json_text_and_tables(net):
    found = where(net, losses.classification, data(50, 1), data(100, 2))
    back = Ranking.from_json(found.to_json())
    assert back == found
    json.loads(found.to_json(), parse_constant=lambda text: pytest.fail(text))
    with pytest.raises(ValueError, match="read from JSON"):
        back.export("layers.0")
    with pytest.raises(ValueError, match="expected a stored ranking"):
        Ranking.from_json("{}")
    from rich.console import Console

    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(found)
    for text in (str(found), found._repr_html_(), console.export_text()):
        assert "layers.1" in text
        assert "held-out gain" in text
    console.file.close()
    with pytest.raises(KeyError, match="was not ranked"):
        found["first"]


def test_candidate_rule():
    assert candidates(Net()) == ("layers.0", "layers.1", "layers.2")
    from capture_models import ResNet20

    from validation.models import neox, neox_layers

    assert candidates(ResNet20()) == tuple(f"layer{k}.{j}" for k in (1, 2, 3) for j in range(3))
    gpt = neox(32, 2, length=16, seed=0)
    assert list(candidates(gpt)) == list(neox_layers(gpt))
    with pytest.raises(ValueError, match="no repeated blocks"):
        candidates(nn.Linear(2, 2))


def test_copies_of_blocks_are_ranked_by_their_first_order_signal():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True) for _ in range(2)]
        model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, 2)).eval()
    g = torch.Generator().manual_seed(0)

    def batches():
        x = torch.randn(40, 3, 8, generator=g)
        return [(x, (x[:, 0, 0] > 0).long())]

    train, test = batches(), batches()
    found = where(model, losses.classification, train, test, block="copy")
    for p in found.points:
        grown = found.export(p.module, step=1e-3)
        x, y = test[0]
        with torch.no_grad():
            change = F.cross_entropy(model(x), y) - F.cross_entropy(grown(x), y)
        assert float(change) / 1e-3 == pytest.approx(p.interval.estimate, rel=0.05, abs=2e-3)
    assert np.isfinite([p.gradient_norm for p in found.points]).all()
