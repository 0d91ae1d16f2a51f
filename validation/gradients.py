"""Pools of activation gradients of held-out units, measured once per network and cached beside it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import nn

import certify
from certify.losses import causal_lm, classification
from validation import models, training
from validation.training import Network, Trained


@dataclass(frozen=True)
class Pools:
    """Gradients of held-out units: ``by_place[module, positions]`` of shape (n, d), float32."""

    trained: Trained
    by_place: dict[tuple[str, str], np.ndarray]


def insertion_points(network: Network, model: nn.Module) -> list[str]:
    """Where gradients are captured: the last block of each stage, or every other transformer layer.

    Fixed by the architecture, not by what the numbers look like.
    """
    if isinstance(model, models.CifarResNet):
        blocks = models.resnet_blocks(model)
        per_stage = len(blocks) // 3
        return blocks[per_stage - 1 :: per_stage]
    return models.neox_layers(model)[1::2]


def measure(trained: Trained, on_batch: Callable[[], None] = lambda: None) -> Pools:
    """Capture the gradients of all held-out units of a network at its insertion points.

    Images: the whole map ("flatten") and its sum over positions, which is the gradient of one shift shared
    by all positions. Sequences: the sum only.
    """
    model, held_out = trained.model, trained.held_out
    images = trained.network.family == "resnet20"
    loss = classification if images else causal_lm
    size = 50 if images else 16
    loader = (
        (inputs, labels) if images else {"input_ids": inputs}
        for inputs, labels in training.batches(held_out, size)
    )
    at = insertion_points(trained.network, model)
    with training.one_thread():
        rows = certify.gradients(
            model,
            loss,
            loader,
            at=at,
            positions="flatten" if images else "sum",
            progress=lambda *_: on_batch(),
        )
    by_place: dict[tuple[str, str], np.ndarray] = {}
    for name in at:
        Q = np.asarray(rows[name], dtype=np.float32)
        by_place[name, "flatten" if images else "sum"] = Q
        if images:
            channels = cast(models.BasicBlock, model.get_submodule(name)).conv2.out_channels
            by_place[name, "sum"] = Q.reshape(len(Q), channels, -1).sum(axis=2)
    return Pools(trained, by_place)


def batches_of(network: Network) -> int:
    """How many times :func:`measure` reports a batch."""
    return -(-network.held_out // (50 if network.family == "resnet20" else 16))


def pools_key(network: Network, data_sha256: str) -> str:
    """Hash of the trained network's key and of the source of everything that captures."""
    package = Path(certify.__file__).parent
    code = training.source_digest(__file__, *sorted(str(p) for p in package.glob("*.py")))
    return hashlib.sha256((training.cache_key(network, data_sha256) + code).encode()).hexdigest()[:32]


def obtain(network: Network, on_step: Callable[[], None] = lambda: None) -> Pools:
    """Train and measure ``network``, or take either from the cache; ``on_step`` marks each step."""
    trained = training.obtain(network, on_step)
    path = _path(network, trained.train.sha256)
    try:
        stored = load_file(path)
        return Pools(trained, {(k.rpartition("|")[0], k.rpartition("|")[2]): v for k, v in stored.items()})
    except (SafetensorError, OSError):
        pools = measure(trained, on_step)
        tensors = {f"{name}|{positions}": Q for (name, positions), Q in pools.by_place.items()}
        training.write_atomically(path, lambda temporary: save_file(tensors, os.fspath(temporary)))
        return pools


def is_cached(network: Network) -> bool:
    """Whether :func:`obtain` has nothing left to compute."""
    units, _ = training.load_data(network)
    return training.cached_path(network, units.sha256).is_file() and _path(network, units.sha256).is_file()


def _path(network: Network, data_sha256: str) -> Path:
    return training.cache_folder() / "gradients" / f"{pools_key(network, data_sha256)}.safetensors"
