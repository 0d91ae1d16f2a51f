"""Captured gradients equal a loop of ordinary backward passes, at every block of five networks."""

from __future__ import annotations

import capture_models as nets
import pytest
import torch
import torch.nn.functional as F

from certify.errors import CaptureError
from certify.losses import causal_lm, classification
from certify.sweep import gradients

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def _images(dtype):
    return nets.randn(6, 3, 32, 32, dtype=dtype), nets.randint(10, 6)


def _cross_entropy(model, example):
    x, y = example
    return F.cross_entropy(model(x[None]), y[None])


def _check(model, names, batches, loss, examples, one_loss, dtype, reference=None):
    expected = nets.loop_gradients(reference or model, names, examples, one_loss)
    found = gradients(model, loss, batches, at=names, positions="flatten")
    for name in names:
        assert found[name].shape == tuple(expected[name].shape)
        assert nets.relative_error(found[name], expected[name]) <= TOLERANCE[dtype], name
    return found


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("inplace", [False, True])
def test_resnet20(dtype, inplace):
    model = nets.build(lambda: nets.ResNet20(inplace)).to(dtype)
    reference = nets.build(lambda: nets.ResNet20(False)).to(dtype)
    x, y = _images(dtype)
    batches = [(x[:4], y[:4]), (x[4:], y[4:])]  # a short last batch
    _check(
        model,
        nets.RESNET_BLOCKS,
        batches,
        classification,
        zip(x, y, strict=True),
        _cross_entropy,
        dtype,
        reference,
    )


def test_resnet20_channels_last_keeps_the_logical_order():
    model = nets.build(nets.ResNet20).double().to(memory_format=torch.channels_last)
    x, y = _images(torch.float64)
    x = x.to(memory_format=torch.channels_last)
    reference = nets.build(nets.ResNet20).double()
    names = ["layer1.2", "layer3.0"]
    _check(
        model,
        names,
        [(x, y)],
        classification,
        zip(x, y, strict=True),
        _cross_entropy,
        torch.float64,
        reference,
    )


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_mlp(dtype):
    model = nets.build(nets.mlp).to(dtype)
    x, y = nets.randn(7, 5, dtype=dtype), nets.randint(3, 7)
    names = ["0", "1", "2", "3", "4"]
    _check(model, names, [(x, y)], classification, zip(x, y, strict=True), _cross_entropy, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_postnorm_encoder_with_padding(dtype):
    """In eval mode torch would take a fused path that skips submodules and makes nested tensors."""
    model = nets.build(nets.postnorm).to(dtype)
    x, y = nets.randn(5, 6, 16, dtype=dtype), nets.randint(3, 5)
    padding = torch.arange(6)[None] >= torch.tensor([6, 4, 3, 6, 2])[:, None]
    names = [f"encoder.layers.{k}{part}" for k in range(3) for part in ("", ".norm1", ".linear2")]

    def loss(model, batch):
        x, padding, y = batch
        return F.cross_entropy(model(x, padding), y, reduction="none")

    def one_loss(model, example):
        x, padding, y = example
        return F.cross_entropy(model(x[None], padding[None]), y[None])

    fast = torch.backends.mha.get_fastpath_enabled()
    _check(model, names, [(x, padding, y)], loss, zip(x, padding, y, strict=True), one_loss, dtype)
    assert torch.backends.mha.get_fastpath_enabled() == fast


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("make", "layers"), [(nets.neox, "gpt_neox.layers"), (nets.llama, "model.layers")])
@pytest.mark.parametrize("side", ["right", "left"])
def test_language_models_against_unpadded_sequences(make, layers, side, dtype):
    """The reference runs each sequence alone and without padding, through the model's own loss (float32)."""
    model = nets.build(make).to(dtype)
    lengths, width = (7, 4, 6, 5), 7
    tokens, mask = torch.zeros(4, width, dtype=torch.long), torch.zeros(4, width, dtype=torch.long)
    places = [slice(0, n) if side == "right" else slice(width - n, width) for n in lengths]
    for i, place in enumerate(places):
        tokens[i, place] = nets.randint(61, lengths[i], seed=i)
        mask[i, place] = 1
    names = [f"{layers}.{k}" for k in range(3)]

    def one_loss(model, ids):
        if dtype is torch.float32:
            return model(input_ids=ids[None], labels=ids[None]).loss  # which takes logits to float32
        return F.cross_entropy(model(input_ids=ids[None]).logits[0, :-1], ids[1:])

    found = gradients(
        model,
        causal_lm,
        [{"input_ids": tokens, "attention_mask": mask}],
        at=names,
        positions="flatten",
    )
    summed = gradients(model, causal_lm, [{"input_ids": tokens, "attention_mask": mask}], at=names)
    mean = gradients(
        model, causal_lm, [{"input_ids": tokens, "attention_mask": mask}], at=names, positions="mean"
    )
    # rotary position embeddings of shifted positions agree to rounding only
    tolerance = TOLERANCE[dtype] if side == "right" else 10 * TOLERANCE[dtype]
    for i, place in enumerate(places):
        alone = nets.loop_gradients(model, names, [tokens[i, place]], one_loss)
        for name in names:
            grid = found[name][i].reshape(width, 32)
            expected = alone[name].reshape(lengths[i], 32)
            assert nets.relative_error(grid[place], expected) <= tolerance
            assert not grid[mask[i] == 0].any(), "padding contributes nothing"
            assert nets.relative_error(summed[name][i], expected.sum(0)) <= 10 * tolerance
            assert nets.relative_error(mean[name][i], expected.mean(0)) <= 10 * tolerance


def test_positions_of_maps():
    model = nets.build(nets.ResNet20).double()
    x, y = _images(torch.float64)
    at = ["layer2.0"]
    flat = gradients(model, classification, [(x, y)], at=at, positions="flatten")["layer2.0"]
    grid = flat.reshape(6, 32, 16 * 16)
    assert (
        nets.relative_error(gradients(model, classification, [(x, y)], at=at)["layer2.0"], grid.sum(2))
        < 1e-12
    )
    mean = gradients(model, classification, [(x, y)], at=at, positions="mean")["layer2.0"]
    assert nets.relative_error(mean, grid.mean(2)) < 1e-12
    last = gradients(model, classification, [(x, y)], at=at, channel_axis={"layer2.0": -1})["layer2.0"]
    assert nets.relative_error(last, flat.reshape(6, 32 * 16, 16).sum(1)) < 1e-12


def test_the_sum_is_the_gradient_of_a_shift_shared_by_all_positions():
    """Finite differences: adding h to every position changes the loss by h . q."""
    model = nets.build(nets.ResNet20).double()
    x, y = _images(torch.float64)
    q = gradients(model, classification, [(x, y)], at=["layer2.1"])["layer2.1"]
    direction, step = nets.randn(32, seed=3, dtype=torch.float64), 1e-6

    def losses(size):
        shift = size * direction[:, None, None]
        handle = model.layer2[1].register_forward_hook(lambda m, a, out: out + shift)
        with torch.no_grad():
            value = F.cross_entropy(model(x), y, reduction="none")
        handle.remove()
        return value

    change = (losses(step) - losses(-step)) / (2 * step)
    assert nets.relative_error(change, torch.as_tensor(q) @ direction) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models_are_close_and_come_out_in_float32(dtype):
    model = nets.build(nets.neox)
    tokens = nets.randint(61, 4, 8)
    at = ["gpt_neox.layers.1"]
    exact = gradients(model, causal_lm, [{"input_ids": tokens}], at=at)[at[0]]
    half = gradients(model.to(dtype), causal_lm, [{"input_ids": tokens}], at=at)
    assert half[at[0]].dtype == "float32"
    assert half.report.dtypes == {at[0]: str(dtype).removeprefix("torch.")}
    assert nets.relative_error(half[at[0]], exact) < (0.01 if dtype is torch.float16 else 0.1)


def test_float16_gradients_that_underflow_are_refused():
    model = nets.build(nets.neox).half()
    data = [{"input_ids": nets.randint(61, 4, 8)}]
    tiny = lambda m, b: causal_lm(m, b) * 1e-6  # noqa: E731
    with pytest.raises(CaptureError, match=r"below 2\^-14, where float16 loses digits; multiply"):
        gradients(model, tiny, data, at="gpt_neox.layers.1", checks=False)
    gradients(model, lambda m, b: tiny(m, b) * 2**20, data, at="gpt_neox.layers.1", checks=False)


def test_autocast():
    model = nets.build(nets.mlp)
    x, y = nets.randn(16, 5), nets.randint(3, 16)

    def loss(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return classification(model, batch)

    exact = gradients(model, classification, [(x, y)], at=["0"])["0"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outside = gradients(model, classification, [(x, y)], at=["0"])
    assert outside.report.dtypes == {"0": "bfloat16"}
    assert nets.relative_error(outside["0"], exact) < 0.05
    assert nets.relative_error(gradients(model, loss, [(x, y)], at=["0"])["0"], exact) < 0.05
