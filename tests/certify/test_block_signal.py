"""Gradients of blocks at zero against autograd on a module written by hand, by both routes."""

from __future__ import annotations

import capture_models as models
import numpy as np
import pytest
import torch
from capture_models import build, randint, randn
from torch import nn

from certify.block_factors import gram_of_outer_products
from certify.block_signal import block_gradients, block_moments, block_moments_pair
from certify.blocks import BlockCopy, ChannelShift, FullShift, LinearMap, LowRankMap, MLPBlock
from certify.certification import certificate
from certify.errors import DependenceError
from certify.estimators import estimate
from certify.gram import gram_coordinates
from certify.losses import causal_lm, classification
from certify.two_laws import estimate_two_laws

TOKENS = [
    {"input_ids": randint(61, 3, 7, seed=k), "attention_mask": torch.ones(3, 7, dtype=torch.long)}
    for k in range(2)
]


def images(dtype):
    return [(randn(3, 3, 8, 8, seed=k, dtype=dtype), randint(10, 3, seed=k)) for k in range(2)]


def vectors(dtype, shape):
    return [(randn(4, *shape, seed=k, dtype=dtype), randint(3, 4, seed=k)) for k in range(2)]


CASES = {
    "resnet": (models.ResNet20, "layer2.0", "layer2.1", 32, (32, 4, 4), images, classification),
    "neox": (models.neox, "gpt_neox.layers.1", "gpt_neox.layers.0", 32, (7, 32), lambda _: TOKENS, causal_lm),
    "llama": (models.llama, "model.layers.1", "model.layers.0", 32, (7, 32), lambda _: TOKENS, causal_lm),
    "postnorm": (
        models.postnorm,
        "encoder.layers.0",
        "encoder.layers.1",
        16,
        (5, 16),
        lambda dtype: vectors(dtype, (5, 16)),
        classification,
    ),
    "mlp": (models.mlp, "1", None, 8, (8,), lambda dtype: vectors(dtype, (5,)), classification),
}


def blocks(case, model):
    _, _, neighbour, channels, shape, _, _ = CASES[case]
    dtype = next(model.parameters()).dtype
    made = [
        ChannelShift(channels, dtype=dtype),
        FullShift(shape, dtype=dtype),
        LinearMap(channels, dtype=dtype, bias=True),
        LowRankMap(channels, 3, generator=0, dtype=dtype),
        MLPBlock(channels, 5, generator=1, dtype=dtype),
    ]
    if neighbour is not None:
        made.append(BlockCopy(model.get_submodule(neighbour)))
    return made


class ByHand(nn.Module):
    """The grown place written out: an ordinary module that knows nothing of insertions."""

    def __init__(self, inner, block):
        super().__init__()
        self.inner, self.block = inner, block

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, *args, **kwargs):
        z = self.inner(*args, **kwargs)
        return z + (
            self.block(z, *args[1:], **kwargs) if isinstance(self.block, BlockCopy) else self.block(z)
        )


def reference(model, at, block, loss, loader):
    """Gradients by a loop of backward passes over single examples through `ByHand`."""
    parent, _, child = at.rpartition(".")
    owner = model.get_submodule(parent)
    inner = owner._modules[child]
    owner._modules[child] = ByHand(inner, block)
    rows = []
    try:
        for batch in loader:
            size = len(batch["input_ids"] if isinstance(batch, dict) else batch[0])
            for i in range(size):
                one = (
                    {k: v[i : i + 1] for k, v in batch.items()}
                    if isinstance(batch, dict)
                    else tuple(v[i : i + 1] for v in batch)
                )
                value = loss(model, one).as_subclass(torch.Tensor).sum()
                grads = torch.autograd.grad(value, list(block.zero_parameters().values()))
                rows.append(torch.cat([g.flatten() for g in grads]).double().numpy())
    finally:
        owner._modules[child] = inner
    return np.stack(rows)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_at_zero_equal_autograd_on_a_module_by_hand(case, dtype):
    make, at, _, _, _, data, loss = CASES[case]
    model = build(make).to(dtype)
    loader = data(dtype)
    for block in blocks(case, model):
        found = block_gradients(model, loss, loader, at=at, block=block)
        expected = reference(model, at, block, loss, loader)
        assert found.shape == expected.shape
        error = np.abs(found - expected).max() / np.abs(expected).max()
        assert error < (1e-12 if dtype == torch.float64 else 2e-5), (type(block).__name__, error)
        norm = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert norm < (1e-12 if dtype == torch.float64 else 3e-6), (type(block).__name__, norm)


@pytest.mark.parametrize("case", CASES)
def test_gram_route_equals_explicit_rows(case):
    make, at, _, _, _, data, loss = CASES[case]
    model = build(make).double()
    loader = data(torch.float64)
    for block in blocks(case, model):
        rows = block_gradients(model, loss, loader, at=at, block=block)
        for route in ("gram", "rows"):
            moments = block_moments(model, loss, loader, at=at, block=block, route=route)
            X = np.concatenate(moments.rows)
            np.testing.assert_allclose(
                X @ X.T, rows @ rows.T, rtol=0, atol=1e-10 * np.square(rows).sum(1).max()
            )
            one, other = estimate(moments), estimate(rows)
            assert one.m2 == pytest.approx(other.m2, rel=1e-9, abs=1e-12 * other.mean_q2)
            assert one.tr_sigma2 == pytest.approx(other.tr_sigma2, rel=1e-9)


def mlp_case(n=6, size=8):
    model = build(models.mlp).double()
    data = [(randn(size, 5, seed=k, dtype=torch.float64), randint(3, size, seed=k)) for k in range(n)]
    return model, data


def test_route_follows_the_operations_and_the_budget():
    model, data = mlp_case()
    block = LinearMap(8, dtype=torch.float64)
    rows = block_gradients(model, classification, data, at="1", block=block)
    chosen = block_moments(model, classification, data, at="1", block=block)
    assert chosen.metadata["route"] == "gram"
    assert chosen.metadata["parameters"] == "64"
    shift = block_moments(model, classification, data, at="1", block=ChannelShift(8, dtype=torch.float64))
    assert shift.metadata["route"] == "rows"
    small = block_moments(model, classification, data, at="1", block=block, memory_budget=20_000)
    assert small.metadata["route"] == "rows"
    for moments in (chosen, small):
        assert estimate(moments).m2 == pytest.approx(estimate(rows).m2, rel=1e-9)
    with pytest.raises(ValueError, match="memory_budget=20000"):
        block_moments(model, classification, data, at="1", block=block, memory_budget=20_000, route="gram")
    with pytest.raises(ValueError, match="route='other'"):
        block_moments(model, classification, data, at="1", block=block, route="other")


def test_long_sequences_take_rows_and_varying_lengths_work():
    model = build(models.neox).double()
    loader = [
        {"input_ids": randint(61, 2, length), "attention_mask": torch.ones(2, length, dtype=torch.long)}
        for length in (5, 9)
    ]
    block = LinearMap(32, dtype=torch.float64)
    rows = block_gradients(model, causal_lm, loader, at="gpt_neox.layers.0", block=block)
    moments = block_moments(model, causal_lm, loader, at="gpt_neox.layers.0", block=block, route="gram")
    X = np.concatenate(moments.rows)
    np.testing.assert_allclose(X @ X.T, rows @ rows.T, rtol=0, atol=1e-11 * np.square(rows).sum(1).max())


@pytest.mark.parametrize("route", ["gram", "rows"])
def test_groups_are_averaged_across_batches(route):
    model, data = mlp_case()
    block = LinearMap(8, dtype=torch.float64)
    rows = block_gradients(model, classification, data, at="1", block=block)

    def source(batch):
        return [int(v) % 5 for v in (batch[0][:, 0] * 1000).abs().long()]

    keys = np.concatenate([source(batch) for batch in data])
    expected = np.stack([rows[keys == k].mean(0) for k in dict.fromkeys(keys.tolist())])
    moments = block_moments(model, classification, data, at="1", block=block, unit=source, route=route)
    assert moments.n == 5
    X = np.concatenate(moments.rows)
    np.testing.assert_allclose(X @ X.T, expected @ expected.T, rtol=0, atol=1e-12 * np.abs(rows).max())
    first = block_moments(
        model, classification, data, at="1", block=block, unit=source, max_units=2, route=route
    )
    assert first.n == 2


def test_two_samples_share_coordinates():
    model, data = mlp_case(8)
    block = MLPBlock(8, 6, generator=0, dtype=torch.float64)
    rows = [block_gradients(model, classification, d, at="1", block=block) for d in (data[:5], data[5:])]
    for route in ("gram", "rows"):
        one, two = block_moments_pair(
            model, classification, data[:5], data[5:], at="1", block=block, route=route
        )
        assert (one.n, two.n) == (40, 24)
        found, expected = estimate_two_laws(one, two), estimate_two_laws(*rows)
        assert found.mean_T == pytest.approx(expected.mean_T, rel=1e-9)
        assert found.tr_sigma1_sigma2 == pytest.approx(expected.tr_sigma1_sigma2, rel=1e-9)


def test_certificate_is_that_of_explicit_rows():
    model, data = mlp_case()
    data = [(x, torch.zeros_like(y)) for x, y in data]  # one class only: a clear direction
    block = LinearMap(8, dtype=torch.float64)
    rows = block_gradients(model, classification, data, at="1", block=block)
    moments = block_moments(model, classification, data, at="1", block=block, route="gram")
    one, two = (certificate(m, M=50, K=50) for m in (moments, rows))
    assert two.certified
    assert one.upper == pytest.approx(two.upper, rel=1e-6)
    assert one.d_align.estimate == pytest.approx(two.d_align.estimate, rel=1e-6)


def test_max_units_checks_and_moved_blocks():
    model, data = mlp_case()
    block = LinearMap(8, dtype=torch.float64)
    assert block_gradients(model, classification, data, at="1", block=block, max_units=11).shape == (11, 64)
    coupled = build(models.ResNet20).train()
    with pytest.raises(DependenceError, match="training mode"):
        block_moments(coupled, classification, images(torch.float32), at="layer1.0", block=LinearMap(16))
    with torch.no_grad():
        block.linear.weight.add_(1)
    with pytest.raises(ValueError, match="not zero any more"):
        block_moments(model, classification, data, at="1", block=block)
    with pytest.raises(TypeError, match="zero_parameters"):
        block_moments(model, classification, data, at="1", block=torch.nn.Linear(8, 8))


def test_model_is_left_as_it_was():
    model, data = mlp_case(2)
    block = LinearMap(8, dtype=torch.float64)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    block_moments(model, classification, data, at="1", block=block)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(p.requires_grad for p in [*model.parameters(), *block.parameters()])
    assert "forward" not in model[1].__dict__
    assert not any(m._forward_hooks for m in [*model.modules(), *block.modules()])


def test_outer_products_by_hand_at_any_scale():
    rng = np.random.default_rng(0)
    sizes = [1, 3, 2, 5, 4]
    q, phi = [rng.normal(size=(p, 4)) for p in sizes], [rng.normal(size=(p, 6)) for p in sizes]
    rows = np.stack([(a.T @ b).ravel() for a, b in zip(q, phi, strict=True)])
    np.testing.assert_allclose(gram_of_outer_products(q, phi), rows @ rows.T, rtol=1e-12, atol=1e-12)
    tiny = gram_of_outer_products([1e-30 * a for a in q], phi)
    np.testing.assert_allclose(tiny * 1e60, rows @ rows.T, rtol=1e-12, atol=1e-12)
    wrong = gram_of_outer_products(q, [np.roll(b, 1, axis=0) for b in phi])  # the comparison can fail
    assert not np.allclose(wrong, rows @ rows.T)
    with pytest.raises(ValueError, match="pairs"):
        gram_of_outer_products(q, phi[:-1])


def test_coordinates_of_singular_and_repeated_rows():
    Q = np.repeat(np.arange(12.0).reshape(3, 4), 2, axis=0)
    X = gram_coordinates(Q @ Q.T)
    assert X.shape[1] == 2  # the rank of these rows
    np.testing.assert_allclose(X @ X.T, Q @ Q.T, atol=1e-11)
    assert not gram_coordinates(np.zeros((3, 3))).any()
    with pytest.raises(ValueError, match="NaN"):
        gram_coordinates(np.full((2, 2), np.nan))
