"""Moments and DDP-wrapped models across processes: gloo with 3 ranks and 2, uneven and empty shards."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import capture_models as nets
import numpy as np
import pytest
import torch
import torch.distributed
import torch.multiprocessing

from certify.distributed import all_reduce
from certify.estimators import Estimate, estimate
from certify.losses import classification
from certify.moments import GradientMoments, MomentAccumulator, merge
from certify.sketch import Sketch
from certify.sweep import collect
from certify.ustatistics import Statistics

SKETCH = Sketch(k=6, replicates=2, seed=1)
CASES = [
    ("rows", 1 << 20),
    ("rows", 700),  # some shards fit this budget, the whole does not
    ("covariance", 1 << 20),
    ("sketch", 1 << 20),
]
# Uneven shards; the last of three ranks has no units at all.
EDGES = {2: [0, 9, 31], 3: [0, 22, 31, 31]}


def data() -> np.ndarray:
    return np.random.default_rng(0).normal(0.5, 1.0, (31, 5))


def shard(rank: int, size: int, kind: str, budget: int) -> GradientMoments:
    accumulator = MomentAccumulator(
        5, memory_budget=budget, representation=None if kind == "rows" else kind, sketch=SKETCH
    )
    stop = EDGES[size][rank + 1]
    for start in range(EDGES[size][rank], stop, 8):
        accumulator.update(torch.tensor(data()[start : min(start + 8, stop)]))
    return accumulator.result()


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=3,
        timeout=datetime.timedelta(seconds=60),  # a collective call that not all ranks make fails, not hangs
    )
    try:
        pair = torch.distributed.new_group([1, 2])
        for i, (kind, budget) in enumerate(CASES):
            all_reduce(shard(rank, 3, kind, budget)).save(f"{folder}/3.{i}.{rank}")
            if rank > 0:
                all_reduce(shard(rank - 1, 2, kind, budget), pair).save(f"{folder}/2.{i}.{rank - 1}")
        # Shards that do not fit together are refused on every rank; none is left hanging.
        with pytest.raises(ValueError, match="expected d="):
            all_reduce(GradientMoments.from_array(np.eye(5 if rank == 1 else 4)))
        sweep_shard(rank, 3, folder, None)
        if rank > 0:
            sweep_shard(rank - 1, 2, folder, pair)
    finally:
        torch.distributed.destroy_process_group()


def numbers(e: Estimate) -> np.ndarray:
    return np.array([getattr(e, name) for name in Statistics._fields])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What three processes wrote: started once, for they take seconds to start."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(work, args=(str(folder),), nprocs=3)
    return folder


def test_all_reduce_equals_one_process(folder: Path) -> None:
    for size in (2, 3):
        for i, (kind, budget) in enumerate(CASES):
            results = [GradientMoments.load(folder / f"{size}.{i}.{rank}") for rank in range(size)]
            found = [numbers(estimate(result, correct=False)) for result in results]
            for other in found[1:]:
                np.testing.assert_array_equal(other, found[0])
            assert {result.n for result in results} == {31}
            shards = [shard(rank, size, kind, budget) for rank in range(size)]
            np.testing.assert_allclose(found[0], numbers(estimate(merge(shards))), rtol=1e-12)
            if kind != "sketch":
                np.testing.assert_allclose(found[0], numbers(estimate(data())), rtol=1e-12)
            expected = {("rows", 1 << 20): "rows", ("rows", 700): "covariance"}.get((kind, budget), kind)
            assert results[0].representation == expected


PLACES = {"1": 24, "3": 16}
# With a third rank the first one has no examples; batches of 8 give the others 2 and 3 of them.
SHARDS = {2: [0, 13, 37], 3: [0, 0, 13, 37]}


def network() -> torch.nn.Module:
    def make() -> torch.nn.Module:
        # Normalisation has buffers, which a forward pass of the wrapper would broadcast between processes.
        return torch.nn.Sequential(
            torch.nn.Linear(6, 24), torch.nn.BatchNorm1d(24), torch.nn.Tanh(), torch.nn.Linear(24, 16)
        )

    return nets.build(make).double()


def batches(start: int, stop: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x = nets.randn(37, 6, dtype=torch.float64)
    y = nets.randint(16, 37, seed=1)
    return [(x[i : min(i + 8, stop)], y[i : min(i + 8, stop)]) for i in range(start, stop, 8)]


def sweep_shard(rank: int, size: int, folder: str, group: Any) -> None:
    model = torch.nn.parallel.DistributedDataParallel(network(), process_group=group).eval()
    mine = batches(*SHARDS[size][rank : rank + 2])
    if mine:
        found = collect(model, classification, mine, at=list(PLACES))
    else:
        with pytest.raises(ValueError, match="the loader gave 0 batches"):
            collect(model, classification, mine, at=list(PLACES))
        found = {name: MomentAccumulator(d).result() for name, d in PLACES.items()}
    for name in PLACES:
        all_reduce(found[name], group).save(f"{folder}/{size}.{name}.of{rank}")
    # Training goes on: gradients are averaged over the processes as before.
    x, y = batches(8 * rank, 8 * rank + 8)[0]
    classification(model, (x, y)).sum().backward()
    gradient = model.module[0].weight.grad
    assert gradient is not None
    others = [torch.empty_like(gradient) for _ in range(size)]
    torch.distributed.all_gather(others, gradient, group=group)
    assert all(torch.equal(gradient, other) for other in others)


@pytest.mark.parametrize("size", [2, 3])
def test_sweeps_of_wrapped_models_equal_one_process(folder: Path, size: int) -> None:
    whole = collect(network(), classification, batches(0, 37), at=list(PLACES))
    for name, expected in whole.items():
        results = [GradientMoments.load(folder / f"{size}.{name}.of{rank}") for rank in range(size)]
        for result in results:
            assert (result.n, result.d) == (37, PLACES[name])
            assert {k: result.metadata[k] for k in ("unit", "positions")} == {
                k: expected.metadata[k] for k in ("unit", "positions")
            }
            np.testing.assert_allclose(
                numbers(estimate(result)), numbers(estimate(expected)), rtol=1e-12, atol=0
            )


def test_without_a_process_group() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        all_reduce(GradientMoments.from_array(np.eye(4)))
