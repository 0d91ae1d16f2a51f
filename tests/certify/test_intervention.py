"""Inserted blocks: identical at the start, trainable, removable to the bit, exportable."""

from __future__ import annotations

import copy
import pickle

import capture_models as models
import pytest
import torch
from capture_models import build, randint, randn
from torch import nn

from certify.blocks import BlockCopy, ChannelShift, FullShift, LinearMap, LowRankMap, MLPBlock
from certify.errors import CaptureError, NonFiniteError
from certify.hooks import capture
from certify.intervention import insert

TOKENS = {"input_ids": randint(61, 2, 9), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
CASES = {
    "resnet": (models.ResNet20, "layer1.0", "layer1.1", 16, (16, 16, 16), randn(2, 3, 16, 16)),
    "neox": (models.neox, "gpt_neox.layers.0", "gpt_neox.layers.1", 32, (9, 32), TOKENS),
    "llama": (models.llama, "model.layers.0", "model.layers.1", 32, (9, 32), TOKENS),
    "postnorm": (models.postnorm, "encoder.layers.0", "encoder.layers.1", 16, (7, 16), randn(2, 7, 16)),
    "mlp": (models.mlp, "1", None, 8, (8,), randn(2, 5)),
}


def run(model, x):
    out = model(**x) if isinstance(x, dict) else model(x)
    return out.logits if hasattr(out, "logits") else out


def bits(a, b):
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def snapshot(model):
    """Everything that an insertion could disturb."""
    state = {k: v.clone() for k, v in model.state_dict().items()}
    dictionaries = {n: dict(m.__dict__) for n, m in model.named_modules()}
    hooks = {n: (len(m._forward_hooks), len(m._forward_pre_hooks)) for n, m in model.named_modules()}
    modes = {n: m.training for n, m in model.named_modules()}
    return state, {n: set(d) for n, d in dictionaries.items()}, hooks, modes


def same_snapshot(a, b):
    return all(bits(a[0][k], b[0][k]) for k in a[0]) and a[0].keys() == b[0].keys() and a[1:] == b[1:]


def blocks_for(case, model):
    _, _, neighbour, channels, shape, _ = CASES[case]
    made = [
        ChannelShift(channels),
        FullShift(shape),
        LinearMap(channels, bias=True),
        LowRankMap(channels, 3, generator=0),
        MLPBlock(channels, 5, generator=1),
    ]
    return made if neighbour is None else [*made, BlockCopy(model.get_submodule(neighbour))]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_identical_before_training_exported_and_removed_to_the_bit(case, grad):
    make, at, _, _, _, x = CASES[case]
    model = build(make)
    before = snapshot(model)
    with torch.set_grad_enabled(grad):
        reference = run(model, x)
        for block in blocks_for(case, model):
            name = type(block).__name__
            with insert(model, at, block) as insertion:
                assert model.state_dict().keys() == before[0].keys()
                assert bits(run(model, x), reference), name
                assert insertion.calls == 1
                with torch.no_grad():
                    for p in block.zero_parameters().values():
                        p.add_(0.1)
                moved = run(model, x)
                assert not torch.allclose(moved, reference), name
                grown = insertion.export()
            assert bits(run(grown, x), moved), name
            assert bits(run(model, x), reference), name
    assert same_snapshot(snapshot(model), before)


def test_removed_after_exceptions():
    model = build(models.mlp)
    before, x = snapshot(model), randn(2, 5)
    with pytest.raises(ZeroDivisionError), insert(model, "1", LinearMap(8)):
        raise ZeroDivisionError
    assert same_snapshot(snapshot(model), before)
    with pytest.raises(ValueError, match="that many channels"), insert(model, "1", LinearMap(7)):
        model(x)
    assert same_snapshot(snapshot(model), before)


def test_instance_forward_is_put_back():
    model = build(models.mlp)
    own = model[1].forward = lambda x: torch.tanh(x) + 1
    with insert(model, "1", ChannelShift(8)):
        model(randn(2, 5))
    assert model[1].forward is own


def test_negative_zero_keeps_its_sign_and_layout():
    h = torch.tensor([[-0.0, 0.0, 1.0]])
    with insert(model := nn.Sequential(nn.Identity()), "0", ChannelShift(3)):
        assert bits(model(h), h)
    maps = randn(2, 4, 3, 3).to(memory_format=torch.channels_last)
    with insert(model, "0", LinearMap(4)):
        assert model(maps).stride() == maps.stride()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_data_type_is_that_of_the_activations(dtype):
    model = build(models.mlp).to(dtype)
    x = randn(2, 5).to(dtype)
    reference = model(x)
    for block in (ChannelShift(8), LinearMap(8), MLPBlock(8, 4, generator=0)):  # float32 parameters
        with insert(model, "1", block):
            assert bits(model(x), reference)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = build(models.mlp)
        reference = half(randn(2, 5))
        with insert(half, "0", LinearMap(8)):
            assert bits(half(randn(2, 5)), reference)


def test_nan_and_infinite_activations_are_named():
    model = nn.Sequential(nn.Identity())
    with insert(model, "0", LinearMap(2)), pytest.raises(NonFiniteError, match="'0' is NaN or infinite"):
        model(torch.tensor([[1.0, float("inf")]]))


def test_nested_inserts_are_removed_in_any_order():
    model = build(models.mlp)
    before, x = snapshot(model), randn(2, 5)
    reference = model(x)
    one, two = ChannelShift(8), LinearMap(8)
    first, second = insert(model, "1", one), insert(model, "1", two)
    with torch.no_grad():
        one.shift.fill_(0.5)
        two.linear.weight.copy_(torch.eye(8))
    h = model[1](model[0](x))  # the patched module by itself
    plain = torch.tanh(model[0](x))
    torch.testing.assert_close(h, 2 * (plain + 0.5))
    grown = first.export()
    assert bits(grown(x), model(x))
    first.remove()
    torch.testing.assert_close(model[1](model[0](x)), 2 * plain)
    second.remove()
    second.remove()
    assert bits(model(x), reference)
    assert same_snapshot(snapshot(model), before)


def test_shared_module_gets_the_block_after_each_call():
    shared = nn.Tanh()
    model = nn.Sequential(nn.Linear(3, 3), shared, nn.Linear(3, 3), shared)
    block = ChannelShift(3)
    with torch.no_grad():
        block.shift.fill_(1.0)
    x = randn(2, 3)
    expected = torch.tanh(model[2](torch.tanh(model[0](x)) + 1)) + 1
    with insert(model, "1", block) as insertion:
        torch.testing.assert_close(model(x), expected)
        assert insertion.calls == 2
        grown = insertion.export()
    torch.testing.assert_close(grown(x), expected)
    assert grown[1] is grown[3]
    with pytest.raises(ValueError, match="every call"):
        insert(model, "1#0", block)


def test_block_trains_on_a_frozen_model_and_export_is_independent():
    model = build(models.mlp).requires_grad_(False)
    x, y = randn(64, 5), randint(3, 64)
    block = MLPBlock(8, 8, generator=0)
    optimizer = torch.optim.Adam(block.parameters(), 0.05)
    with insert(model, "1", block) as insertion:
        first = nn.functional.cross_entropy(model(x), y)
        for _ in range(30):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        grown = insertion.export()
        expected = model(x)
    assert loss < 0.9 * first
    assert bits(grown(x), expected)
    again = pickle.loads(pickle.dumps(grown))
    assert bits(again(x), expected)
    other = copy.deepcopy(grown)
    other.load_state_dict(grown.state_dict())
    assert any(name.startswith("1.block.") for name in grown.state_dict())
    with torch.no_grad():
        block.last.weight.zero_()
    assert bits(grown(x), expected)


def test_batch_statistics_of_the_original_stay_and_copies_own_theirs():
    model = build(models.ResNet20).train()
    block = BlockCopy(model.layer1[1])
    before = model.layer1[1].bn2.running_mean.clone()
    block(torch.relu(randn(4, 16, 8, 8)))
    assert bits(model.layer1[1].bn2.running_mean, before)
    assert not bits(block.copy.bn2.running_mean, before)
    assert model.training
    assert all(p.requires_grad for p in block.parameters())


def test_capture_sees_the_output_with_the_block():
    model = build(models.mlp)
    with insert(model, "1", ChannelShift(8)), capture(model, ["1"]) as captured:
        losses = nn.functional.cross_entropy(model(randn(4, 5)), randint(3, 4), reduction="none")
        assert captured.gradients(losses)["1"].shape == (4, 8)


def test_names_through_data_parallel_and_bad_arguments():
    model = build(models.mlp)
    with insert(nn.DataParallel(model), "module.1", ChannelShift(8)) as insertion:
        model(randn(2, 5))
        assert insertion.calls == 1
    with pytest.raises(ValueError, match="names no module"):
        insert(model, "nowhere", ChannelShift(8))
    with pytest.raises(TypeError, match=r"block is a int"):
        insert(model, "1", 3)
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module"):
        insert("model", "1", ChannelShift(8))
    with insert(model, "1", FullShift((4,))), pytest.raises(ValueError, match="FullShift"):
        model(randn(2, 5))
    with insert(model, "1", nn.Linear(8, 4)), pytest.raises(ValueError, match="same shape"):
        model(randn(2, 5))


def test_unknown_blocks_ask_for_zero():
    with pytest.raises(ValueError, match="zero="):
        BlockCopy(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="names no parameters"):
        BlockCopy(nn.Sequential(nn.Linear(3, 3)), zero="1")
    block = BlockCopy(nn.Sequential(nn.Linear(3, 3)), zero="0", shortcut=False)
    assert not block(torch.ones(1, 3)).any()


def test_a_copy_that_is_not_the_identity_is_refused():
    model = build(models.ResNet20)
    block = BlockCopy(model.layer1[1])
    with insert(model, "conv1", block), pytest.raises(CaptureError, match="changes the output"):
        model(randn(2, 3, 8, 8))  # before the ReLU activations are negative
    with insert(model, "layer2.0", BlockCopy(model.layer2[0])), pytest.raises((ValueError, RuntimeError)):
        model(randn(2, 3, 8, 8))


def test_copy_in_pre_norm_encoder():
    make = lambda: nn.TransformerEncoder(  # noqa: E731
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), 2, enable_nested_tensor=False
    )
    model = build(make)
    x = randn(2, 4, 8)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            reference = model(x)
            with insert(model, "layers.0", BlockCopy(model.layers[1])):
                assert bits(model(x), reference)


def test_generation_with_a_cache_is_refused_for_copies():
    model = build(models.llama)
    with insert(model, "model.layers.0", BlockCopy(model.model.layers[1])):
        with pytest.raises(CaptureError, match="use_cache=False"), torch.no_grad():
            model.generate(TOKENS["input_ids"], max_new_tokens=2, do_sample=False)
        with torch.no_grad():
            model.generate(TOKENS["input_ids"], max_new_tokens=2, do_sample=False, use_cache=False)


def test_global_random_state_is_not_touched():
    state = torch.get_rng_state()
    LinearMap(4), LowRankMap(4, 2, generator=0), MLPBlock(4, 8, generator=0)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(MLPBlock(4, 8, generator=3).first.weight, MLPBlock(4, 8, generator=3).first.weight)
