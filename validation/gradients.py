"""Pools of activation gradients, measured once per network and cached beside it."""

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
from validation import data, models, training
from validation.training import Network, Trained

By = dict[tuple[str, str], np.ndarray]
"""Gradients by (module, positions), each of shape (n, d), float32."""


@dataclass(frozen=True)
class Snapshot:
    """A network along its training: after ``step`` steps, on the first held-out units of the pool."""

    step: int
    train_loss: float
    """Mean over up to 20 steps before; NaN at step 0, where no step was made."""
    test_losses: np.ndarray
    by_place: By


@dataclass(frozen=True)
class Pools:
    """Gradients of held-out units, of training units, and of held-out units along training."""

    trained: Trained
    by_place: By
    train: By
    trajectory: tuple[Snapshot, ...]


def insertion_points(network: Network, model: nn.Module) -> list[str]:
    """Where gradients are captured: the last block of each stage, or every other transformer layer.

    Fixed by the architecture, not by what the numbers look like.
    """
    if isinstance(model, models.CifarResNet):
        blocks = models.resnet_blocks(model)
        per_stage = len(blocks) // 3
        return blocks[per_stage - 1 :: per_stage]
    layers = models.llama_layers(model) if network.family == "llama" else models.neox_layers(model)
    return layers[1::2]


def capture(
    network: Network,
    model: nn.Module,
    units: data.ImageSet | data.SequenceSet,
    on_batch: Callable[[], None] = lambda: None,
) -> By:
    """Gradients of ``units`` at the insertion points.

    Images: the whole map ("flatten") and its sum over positions, which is the gradient of one shift shared
    by all positions. Sequences: the sum only. The mean over positions is the sum divided by their number,
    the same for every unit here, so every dimension, bound and frequency is the same.
    """
    loss = classification if network.images else causal_lm
    loader = (
        (inputs, labels) if network.images else {"input_ids": inputs}
        for inputs, labels in training.batches(units, _batch(network))
    )
    at = insertion_points(network, model)
    with training.one_thread():
        rows = certify.gradients(
            model,
            loss,
            loader,
            at=at,
            positions="flatten" if network.images else "sum",
            progress=lambda *_: on_batch(),
        )
    by_place: By = {}
    for name in at:
        Q = np.asarray(rows[name], dtype=np.float32)
        by_place[name, "flatten" if network.images else "sum"] = Q
        if network.images:
            channels = cast(models.BasicBlock, model.get_submodule(name)).conv2.out_channels
            by_place[name, "sum"] = Q.reshape(len(Q), channels, -1).sum(axis=2)
    return by_place


def measure(
    trained: Trained,
    trajectory: tuple[Snapshot, ...] = (),
    on_batch: Callable[[], None] = lambda: None,
) -> Pools:
    """Capture the gradients of all held-out units of a network, and of its pool of training units."""
    network = trained.network
    held_out = capture(network, trained.model, trained.held_out, on_batch)
    train: By = {}
    if network.train_pool:
        train = capture(network, trained.model, _train_units(trained), on_batch)
    return Pools(trained, held_out, train, trajectory)


def _train_units(trained: Trained) -> data.ImageSet | data.SequenceSet:
    """A random choice of the training units, by the network's seed: networks of one seed share it."""
    network = trained.network
    rng = np.random.default_rng([network.seed, 0x7001])
    return trained.train.take(np.sort(rng.permutation(len(trained.train))[: network.train_pool]))


def _batch(network: Network) -> int:
    return 50 if network.images else max(16, 2048 // network.length)


def batches_of(network: Network) -> int:
    """How many times :func:`obtain` reports a batch of gradients."""
    size = _batch(network)
    along = len(network.checkpoints) * -(-network.trajectory // size)
    return -(-network.held_out // size) + -(-network.train_pool // size) + along


def pools_key(network: Network, data_sha256: str) -> str:
    """Hash of the trained network's key and of the source of everything that captures."""
    package = Path(certify.__file__).parent
    code = training.source_digest(__file__, *sorted(str(p) for p in package.glob("*.py")))
    sizes = f"{network.train_pool},{network.trajectory}"
    key = training.cache_key(network, data_sha256) + code + sizes
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def obtain(network: Network, on_step: Callable[[], None] = lambda: None) -> Pools:
    """Train and measure ``network``, or take either from the cache; ``on_step`` marks each step."""
    units, held_out = training.load_data(network)
    path = _path(network, units.sha256)
    try:
        stored = load_file(path)
    except (SafetensorError, OSError):
        snapshots: list[Snapshot] = []
        first = held_out.take(np.arange(min(network.trajectory, len(held_out))))

        def look(step: int, train_loss: float, model: nn.Module) -> None:
            losses, _ = training.evaluate(model, first)
            snapshots.append(Snapshot(step, train_loss, losses, capture(network, model, first, on_step)))

        trained = training.obtain(network, on_step, look)
        pools = measure(trained, tuple(snapshots), on_step)
        training.write_atomically(path, lambda temporary: save_file(_packed(pools), os.fspath(temporary)))
        return pools
    return _unpacked(training.obtain(network, on_step), stored)


def _packed(pools: Pools) -> dict[str, np.ndarray]:
    parts = {"held-out": pools.by_place, "train": pools.train}
    parts |= {f"step {s.step}": s.by_place for s in pools.trajectory}
    tensors = {
        f"{part}|{m}|{p}": np.ascontiguousarray(Q) for part, by in parts.items() for (m, p), Q in by.items()
    }
    for s in pools.trajectory:
        tensors[f"losses {s.step}||"] = s.test_losses
        tensors[f"train {s.step}||"] = np.array([s.train_loss])
    return tensors


def _unpacked(trained: Trained, stored: dict[str, np.ndarray]) -> Pools:
    parts: dict[str, By] = {}
    for module, positions in _places(trained):  # safetensors sorts its keys; the order of modules matters
        for part in {key.split("|")[0] for key in stored}:
            found = stored.get(f"{part}|{module}|{positions}")
            if found is not None:
                parts.setdefault(part, {})[module, positions] = found
    trajectory = tuple(
        Snapshot(
            step,
            float(stored[f"train {step}||"][0]),
            stored[f"losses {step}||"],
            parts[f"step {step}"],
        )
        for step in trained.network.checkpoints
    )
    return Pools(trained, parts["held-out"], parts.get("train", {}), trajectory)


def _places(trained: Trained) -> list[tuple[str, str]]:
    positions = ("flatten", "sum") if trained.network.images else ("sum",)
    return [(m, p) for m in insertion_points(trained.network, trained.model) for p in positions]


def is_cached(network: Network) -> bool:
    """Whether :func:`obtain` has nothing left to compute."""
    units, _ = training.load_data(network)
    return training.cached_path(network, units.sha256).is_file() and _path(network, units.sha256).is_file()


def _path(network: Network, data_sha256: str) -> Path:
    return training.cache_folder() / "gradients" / f"{pools_key(network, data_sha256)}.safetensors"
