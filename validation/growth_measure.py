"""Test-risk guarantees of the papers for a trained block, beside what the block does on fresh units."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

import certify
from certify.losses import causal_lm, classification
from validation import gradients, measure, models, training
from validation.results import Growth, Measured
from validation.training import Network, Trained

CLIP = 5.0
"""Losses are clipped here, so that they have the range that the theorems need."""
UNITS = 300
"""Units in each of the three samples, fewer where a third of the held-out units is less."""
STEPS = 50
"""Steps of training of the block."""


def records(network: Network, trained: Trained, seed: int) -> list[Growth]:
    """A channel shift at the last insertion point: one record for each route.

    Train, test and fresh units are disjoint and held out: no step of the network has seen any of them.
    """
    held = trained.held_out
    n = min(UNITS, len(held) // 3)
    order = measure.rng_of(seed, network.name, "growth").permutation(len(held))
    samples = [held.take(np.sort(order[i * n : (i + 1) * n])) for i in range(3)]
    train, test, fresh = ([as_batch(b) for b in training.batches(s, 100)] for s in samples)
    at = gradients.insertion_points(network, trained.model)[-1]
    started = time.perf_counter()
    with training.one_thread():
        found = certify.expansion(
            trained.model,
            classification if network.images else causal_lm,
            train,
            test,
            fresh=fresh,
            at=at,
            block=certify.ChannelShift(channels(trained.model, at)),
            clip=CLIP,
            steps=STEPS,
            generator=seed,
            confidence=measure.CONFIDENCE,
        )
    seconds = (time.perf_counter() - started) / len(found.routes)
    return [
        Growth(
            suite="intervention",
            case=network.name,
            label=network.label,
            module=at,
            block="channel shift",
            unit=network.unit,
            width=network.channels,
            depth=network.depth,
            seed=network.seed,
            M=found.M,
            K=found.K,
            fresh=found.n_fresh,
            clip=CLIP,
            route=route.name,
            change=None if route.guarantee is None else float(route.guarantee.change),
            probability=None if route.guarantee is None else float(route.guarantee.probability),
            vacuous=route.vacuous,
            improves=route.improves,
            rests_on_estimates=route.rests_on_estimates,
            factor=_finite(route.factor),
            units_needed=_finite(max(route.M_needed or 0.0, route.K_needed or 0.0)),
            fallback=found.fallback,
            observed=_change(found.fresh_new),
            jumpboard=_change(found.fresh_jumpboard),
            reason=route.reason,
            seconds=seconds,
        )
        for route in found.routes
    ]


def as_batch(batch: tuple[Any, Any]) -> Any:
    """Inputs and labels as the losses of :mod:`certify.losses` take them."""
    inputs, labels = batch
    return {"input_ids": inputs} if inputs.ndim == 2 and inputs.dtype == labels.dtype else (inputs, labels)


def channels(model: Any, at: str) -> int:
    """Channels of the output of an insertion point."""
    module = model.get_submodule(at)
    if isinstance(module, models.BasicBlock):
        return int(module.conv2.out_channels)
    return int(model.config.hidden_size)


def _finite(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None


def _change(gain: certify.ConfidenceInterval) -> Measured:
    """A gain (old minus new) as a change of the loss (new minus old)."""
    value, low, high = (None if x is None else -x for x in (gain.estimate, gain.high, gain.low))
    return Measured(value, low, high, gain.confidence, gain.method)
