"""Suite "depth": one cell per network, measured on the same held-out gradients as the width suites."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from certify.diagonality import off_diagonal_share
from validation import gradients, measure, models, record_cache
from validation.gradients import Pools
from validation.results import Diagonality, Measured, Record
from validation.training import Network

CONFIDENCE = measure.CONFIDENCE


def records(network: Network, seed: int) -> list[Record]:
    """Training, geometry and diagonality of one network at its insertion points; nothing here is random.

    From the cache where they have been measured before.
    """
    del seed
    return record_cache.obtain("depth", network, 0, CONFIDENCE, __file__, lambda: _measure(network))


def _measure(network: Network) -> list[Record]:
    pools = gradients.obtain(network)
    found: list[Record] = [replace(measure.training_record(pools), suite="depth")]
    for (module, positions), Q in pools.by_place.items():
        common = {
            "suite": "depth",
            "case": network.name,
            "label": network.label,
            "module": module,
            "positions": positions,
            "unit": network.unit,
            "width": network.channels,
            "depth": network.depth,
            "seed": network.seed,
        }
        found.append(measure.geometry_record(Q, common))
        found.append(diagonality_record(Q, place_of(pools, module), common))
    return found


def place_of(pools: Pools, module: str) -> float:
    """Blocks up to and including the insertion point over all blocks."""
    model = pools.trained.model
    names = (
        models.resnet_blocks(model)
        if isinstance(model, models.CifarResNet)
        else [n for n, m in model.named_modules() if n.rpartition(".")[0].endswith("layers")]
    )
    return (names.index(module) + 1) / len(names)


def diagonality_record(Q: np.ndarray, place: float, common: dict[str, object]) -> Diagonality:
    """The share with its interval, the plug-in share and its references."""
    started = time.perf_counter()
    found = off_diagonal_share(Q, confidence=CONFIDENCE)
    ci = found.interval
    low, high = (None if not np.isfinite(x) else float(x) for x in (ci.low, ci.high))
    return Diagonality(
        **common,  # type: ignore[arg-type]
        n=found.n,
        d=found.d,
        place=place,
        share=Measured(found.share, low, high, ci.confidence, ci.method),
        plug_in=found.plug_in,
        null_permuted=found.null_permuted,
        null_signs=found.null_signs,
        random_basis=found.random_basis,
        relative_entry=found.relative_entry,
        seconds=time.perf_counter() - started,
    )
