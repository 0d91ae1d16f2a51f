"""Moments across processes: gloo with 3 ranks and with a group of 2, uneven and empty shards."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed
import torch.multiprocessing

from certify.distributed import all_reduce
from certify.estimators import Estimate, estimate
from certify.moments import GradientMoments, MomentAccumulator, merge
from certify.sketch import Sketch
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
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=3
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
    finally:
        torch.distributed.destroy_process_group()


def numbers(e: Estimate) -> np.ndarray:
    return np.array([getattr(e, name) for name in Statistics._fields])


def test_all_reduce_equals_one_process(tmp_path) -> None:
    torch.multiprocessing.spawn(work, args=(str(tmp_path),), nprocs=3)
    for size in (2, 3):
        for i, (kind, budget) in enumerate(CASES):
            results = [GradientMoments.load(tmp_path / f"{size}.{i}.{rank}") for rank in range(size)]
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


def test_without_a_process_group() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        all_reduce(GradientMoments.from_array(np.eye(4)))
