"""Networks: published sizes, seeded weights, checkpoints that load without executing anything."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from validation import models


@pytest.mark.parametrize(("depth", "parameters"), [(20, 269_722), (32, 464_154), (56, 853_018)])
def test_resnets_have_the_published_number_of_parameters(depth: int, parameters: int) -> None:
    assert sum(p.numel() for p in models.resnet(depth, seed=0).parameters()) == parameters


@pytest.mark.parametrize("width", [1 / 16, 0.25, 0.5, 2.0])
def test_width_multiplies_channels(width: int) -> None:
    model = models.resnet(20, width, classes=7, channels_in=1, seed=0).eval()
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 7)
    assert model.linear.in_features == 64 * width


def test_shortcut_subsamples_and_pads_channels_evenly() -> None:
    block = models.BasicBlock(2, 4, stride=2).eval()
    torch.nn.init.zeros_(block.bn2.weight)  # the residual branch gives 0
    x = torch.rand(1, 2, 4, 4)
    out = block(x)
    assert torch.equal(out[:, 1:3], x[:, :, ::2, ::2])
    assert out[:, [0, 3]].abs().max() == 0


def test_seed_decides_the_weights_and_leaves_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    a, b, c = (models.resnet(20, 0.25, seed=s).conv1.weight for s in (1, 1, 2))
    d, e, f = (next(models.neox(16, 1, length=8, seed=s).parameters()) for s in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(a, b)
    assert torch.equal(d, e)
    assert not torch.equal(a, c)
    assert not torch.equal(d, f)


def test_neox_is_causal_and_has_no_dropout() -> None:
    model = models.neox(32, 2, length=16, seed=0).train()
    tokens = torch.arange(16)[None]
    out = model(input_ids=tokens).logits
    assert out.shape == (1, 16, 256)
    assert torch.equal(out, model(input_ids=tokens).logits)
    changed = tokens.clone()
    changed[0, 10] = 200
    assert torch.allclose(model(input_ids=changed).logits[0, :10], out[0, :10], atol=1e-6)
    assert not torch.allclose(model(input_ids=changed).logits[0, 10:], out[0, 10:], atol=1e-3)
    assert dict(model.named_modules()).keys() >= set(models.neox_layers(model))


def test_llama_is_causal_gated_and_seeded() -> None:
    before = torch.random.get_rng_state()
    model, again = (models.llama(32, 2, length=16, seed=0).train() for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    tokens = torch.arange(16)[None]
    out = model(input_ids=tokens).logits
    assert out.shape == (1, 16, 256)
    changed = tokens.clone()
    changed[0, 10] = 200
    assert torch.allclose(model(input_ids=changed).logits[0, :10], out[0, :10], atol=1e-6)
    assert not torch.allclose(model(input_ids=changed).logits[0, 10:], out[0, 10:], atol=1e-3)
    modules = dict(model.named_modules())
    assert modules.keys() >= set(models.llama_layers(model))
    assert {"LlamaRMSNorm", "LlamaRotaryEmbedding"} <= {type(m).__name__ for m in modules.values()}
    assert modules["model.layers.0.mlp.gate_proj"].weight.shape == (80, 32)  # 8/3 of the width


def test_impossible_llama_is_refused() -> None:
    with pytest.raises(ValueError, match="width=40: expected a positive multiple of 16"):
        models.llama(40, 1, length=8, seed=0)


def test_block_names() -> None:
    assert models.resnet_blocks(models.resnet(20, 0.25, seed=0)) == [
        f"layer{stage}.{block}" for stage in (1, 2, 3) for block in (0, 1, 2)
    ]


def test_checkpoint_with_prefix_and_numpy_scalar_loads(tmp_path: Path) -> None:
    model = models.resnet(32, 0.25, classes=5, seed=3)
    path = tmp_path / "model.th"
    state = {f"module.{k}": v for k, v in model.state_dict().items()}
    torch.save({"state_dict": state, "best_prec1": np.float64(92.6)}, path)
    loaded = models.load_resnet(path)
    assert not loaded.training
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in loaded.state_dict().items())


def test_checkpoint_must_match_exactly(tmp_path: Path) -> None:
    state = models.resnet(20, 0.25, seed=0).state_dict()
    del state["layer2.1.bn2.bias"]
    torch.save({"state_dict": state}, tmp_path / "model.th")
    with pytest.raises(RuntimeError, match=r"Missing key.*layer2\.1\.bn2\.bias"):
        models.load_resnet(tmp_path / "model.th")


class _Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('executed')",))


def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "extra": _Harmful()}, tmp_path / "model.th")
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        models.load_resnet(tmp_path / "model.th")


@pytest.mark.parametrize("content", [{"weights": {}}, {"state_dict": {"a": torch.zeros(1)}}])
def test_other_files_are_refused(tmp_path: Path, content: dict[str, object]) -> None:
    torch.save(content, tmp_path / "model.th")
    with pytest.raises(ValueError, match="expected"):
        models.load_resnet(tmp_path / "model.th")
    with pytest.raises(ValueError, match="no such checkpoint"):
        models.load_resnet(tmp_path / "none.th")


@pytest.mark.parametrize(("depth", "width", "words"), [(21, 1, "depth=21"), (20, 0.3, "width=0.3")])
def test_impossible_resnets_are_refused(depth: int, width: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        models.resnet(depth, width, seed=0)


def test_impossible_neox_is_refused() -> None:
    with pytest.raises(ValueError, match="width=40: expected a positive multiple of 16"):
        models.neox(40, 1, length=8, seed=0)
