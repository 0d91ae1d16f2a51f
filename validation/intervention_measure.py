"""Suite "intervention": step along minus the training gradient of a zero block, watch fresh units."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

import certify
from certify.blocks import ChannelShift, LinearMap, MLPBlock
from certify.losses import causal_lm, classification
from certify.steps import follow
from validation import gradients, growth_measure, measure, record_cache, training
from validation.results import Effect, Measured, Record
from validation.training import Network

CONFIDENCE = measure.CONFIDENCE

# A step is named by what the first order predicts for the M units: the
# share of the loss that it would take away, so that networks and blocks of any scale are comparable. Six
# decades, because a transformer's own biases leave so little first-order gain that 0.1 % already overshoots.
FRACTIONS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
IMAGES, SEQUENCES = 150, 60
"""M = K: units on each side."""
BLOCKS = ("channel shift", "linear map", "MLP")


def make_block(kind: str, channels: int, seed: int) -> Any:
    """A fresh zero-initialised block in float64."""
    if kind == "channel shift":
        return ChannelShift(channels, dtype=torch.float64)
    if kind == "linear map":
        return LinearMap(channels, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    return MLPBlock(channels, 2 * channels, generator=generator, dtype=torch.float64)


def in_double(model: nn.Module) -> nn.Module:
    """A copy in float64 and evaluation mode that computes in float64 throughout.

    The norms of transformers' LLaMA go through float32 whatever the model's type, which is rounding as large
    as the effect of a small step; PyTorch's own are put in their place.
    """
    model = copy.deepcopy(model).double().eval()
    for name, module in list(model.named_modules()):
        if type(module).__name__ == "LlamaRMSNorm":
            weight: Any = module.weight
            norm = nn.RMSNorm(len(weight), eps=float(module.variance_epsilon), dtype=weight.dtype)
            norm.weight = weight
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, norm.eval())
    return model


def _points(network: Network, model: nn.Module) -> list[str]:
    """First and last of the insertion points of the width suites."""
    names = gradients.insertion_points(network, model)
    return names if len(names) < 2 else [names[0], names[-1]]


def records(network: Network, seed: int) -> list[Record]:
    """Effects of every block at both insertion points, on fresh units and on the M units; guarantees.

    From the cache where they have been measured before.
    """
    sizes = [IMAGES, SEQUENCES, list(FRACTIONS), list(BLOCKS), CONFIDENCE]
    growth = [growth_measure.CLIP, growth_measure.UNITS, growth_measure.STEPS]
    return record_cache.obtain(
        "intervention", network, seed, [sizes, growth], __file__, lambda: _measure(network, seed)
    )


def _measure(network: Network, seed: int) -> list[Record]:
    trained = training.obtain(network)
    model = in_double(trained.model)
    n = IMAGES if network.images else SEQUENCES
    held = trained.held_out
    n = min(n, len(held) // 2)
    order = measure.rng_of(seed, network.name, "intervention").permutation(len(held))
    train, fresh = (_as_double(held.take(np.sort(order[k * n : (k + 1) * n]))) for k in (0, 1))
    found: list[Record] = []
    with training.one_thread():
        for at in _points(network, model):
            for kind in BLOCKS:
                block = make_block(kind, growth_measure.channels(model, at), seed)
                found += effects(network, model, at, kind, block, train, fresh)
    return found + list(growth_measure.records(network, trained, seed))


def _as_double(units: Any) -> Any:
    if hasattr(units, "images"):
        return replace(units, images=units.images.double())
    return units


def effects(
    network: Network, model: nn.Module, at: str, kind: str, block: nn.Module, train: Any, fresh: Any
) -> list[Effect]:
    """Steps along minus the mean gradient of the M units: what fresh units and the M units themselves do.

    ``model`` is in float64 and in evaluation mode; it and the block are as they were afterwards.
    """
    started = time.perf_counter()
    loss = classification if network.images else causal_lm
    sides = {
        name: [growth_measure.as_batch(b) for b in training.batches(units, 100)]
        for name, units in (("held-out", fresh), ("train", train))
    }
    rows = {
        name: certify.block_gradients(model, loss, batches, at=at, block=block)
        for name, batches in sides.items()
    }
    mu = rows["train"].mean(axis=0)
    with torch.no_grad():
        before = torch.cat([loss(model, batch).as_subclass(torch.Tensor) for batch in sides["train"]])
    alphas = float(before.mean()) / float(mu @ mu) * np.asarray(FRACTIONS)
    found = {
        name: follow(
            model,
            loss,
            batches,
            at=at,
            block=block,
            mu=mu,
            slopes=rows[name] @ mu,
            alphas=alphas.tolist(),
            confidence=CONFIDENCE,
        )[2]
        for name, batches in sides.items()
    }
    seconds = (time.perf_counter() - started) / (2 * len(FRACTIONS))
    return [
        Effect(
            suite="intervention",
            case=network.name,
            label=network.label,
            module=at,
            block=kind,
            unit=network.unit,
            sample=sample,
            width=network.channels,
            depth=network.depth,
            seed=network.seed,
            M=len(rows["train"]),
            K=len(rows[sample]),
            fraction=fraction,
            alpha=step.alpha,
            T=-step.predicted / step.alpha,
            predicted=step.predicted,
            second_order=step.second_order,
            observed=_measured(step.observed),
            ratio=_measured(step.ratio),
            same_sign=step.same_sign,
            certain=step.certain,
            seconds=seconds,
        )
        for sample, steps in found.items()
        for fraction, step in zip(FRACTIONS, steps, strict=True)
    ]


def _measured(ci: certify.ConfidenceInterval) -> Measured:
    """As a record holds it: limits that do not exist are None."""
    value, low, high = (
        x if x is not None and math.isfinite(x) else None for x in (ci.estimate, ci.low, ci.high)
    )
    return Measured(value, low, high, ci.confidence, ci.method)
