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
