"""Cells side by side: the order and the bits of a serial run; failures are said; kills lose nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from validation import cases, cells, store

_TINY = """
import dataclasses
from validation import cases, run

cases.PRESETS["tiny"] = dataclasses.replace(
    cases.SMOKE, name="tiny", laws=cases.gaussian_grid(("flat", "spiked"), (4,), (0.1, 1.0)),
    law_replicates=500, other_laws=(),
    resnets=cases.resnets((1 / 8,), seeds=1, steps=4, batch=64, held_out=60),
    neoxes=cases.neoxes(
        (16,), 2, 1, steps=8, batch=8, held_out=40, length=32, train_units=64, train_pool=20, trajectory=10
    ),
    llamas=cases.llamas((16,), layers=2, seeds=1, steps=4, batch=8, held_out=40, length=32),
    pairs=((2, 2),), with_replacement=((1, 1), (8, 8)), without_replacement=((8, 8),), fresh=((2, 2),),
    pool_replicates=200, resnet_depths=(8,), neox_depths=(2,),
)
run.PRESETS = (*run.PRESETS, "tiny")
"""

_KILLER = (
    _TINY
    + """
import os, random, signal, sys
from pathlib import Path
from validation import growth_measure, intervention_measure, store, training

intervention_measure.FRACTIONS, growth_measure.STEPS, growth_measure.UNITS = (1e-4, 1e-2), 2, 10
tiny = cases.PRESETS["tiny"]
for network in (*tiny.resnets, *tiny.neoxes, *tiny.llamas):  # loads data and libraries for all
    training.build(network, training.load_data(network)[0])
base, rng, honest = Path(sys.argv[1]), random.Random(1), store._to_disk

class Deadly(run.Silent):
    # Dies after ``left`` steps of training, captured batches or counted cells, all known to the run.
    def __init__(self, left):
        self.left, self.stage = left, ""
    def start(self, total, description):
        self.stage = description.split()[0]
    def advance(self, n=1):
        if n:
            self.left -= 1
            if self.left == 0:
                os.write(2, f"{self.stage}\\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)

def child(out, cache, progress=None, torn=0):
    if (pid := os.fork()) == 0:
        os.environ[training.CACHE_VARIABLE] = str(base / cache)
        writes = [0]
        def to_disk(file):
            honest(file)
            writes[0] += 1
            if writes[0] == torn:
                os.write(2, b"Writing\\n")
                os.ftruncate(file.fileno(), os.fstat(file.fileno()).st_size - 7)
                os.kill(os.getpid(), signal.SIGKILL)
        store._to_disk = to_disk
        run.run("tiny", out=base / out, progress=progress, jobs=1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]

assert child("whole", "cache-whole") == 0
for kill in range(10):
    # Few steps each: ten kills fall into training and capture of several networks, and into later cells.
    torn = rng.randint(2, 5) if kill in (6, 8) else 0
    deadly = Deadly(10**9 if torn else rng.randint(2, 14))
    assert os.WIFSIGNALED(child("killed", "cache-killed", deadly, torn))
assert child("killed", "cache-killed") == 0
"""
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_all_suites_killed_ten_times_and_resumed_to_the_same_bits(tmp_path: Path) -> None:
    """SIGKILL in training, capture, counting and writing; caches are separate: networks are trained twice."""
    done = subprocess.run(
        [sys.executable, "-c", _KILLER, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    where = re.findall(r"^(Training|Measuring|Writing)$", done.stderr, re.M)
    assert len(where) == 10
    assert set(where) == {"Training", "Measuring", "Writing"}
    whole, killed = (store.read(tmp_path / name) for name in ("whole", "killed"))
    assert {getattr(r, "suite", "") for r in whole} >= set(cases.SUITES)
    assert store.fingerprint(whole) == store.fingerprint(killed)


def test_two_processes_store_the_same_lines_as_one(tmp_path: Path) -> None:
    """Laws and a network; records in the order of the plan; networks come from one cache."""
    script = _TINY + (
        "import sys; suites = ['gaussian', 'resnet20']; "
        "run.run('tiny', suites, out=sys.argv[1], jobs=int(sys.argv[2]))"
    )
    environment = {**os.environ, "GRADIENT_ALIGNMENT_CACHE": str(tmp_path / "cache")}
    for jobs in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / jobs), jobs],
            env=environment,
            check=True,
            timeout=300,
        )
    one, two = store.read(tmp_path / "1"), store.read(tmp_path / "2")
    assert len(one) > 40
    journals = [(tmp_path / jobs / store.JOURNAL).read_text().splitlines() for jobs in "12"]
    assert [json.loads(line)["cell"] for line in journals[0]] == [
        json.loads(line)["cell"] for line in journals[1]
    ]
    assert store.fingerprint(one) == store.fingerprint(two)


def test_results_come_in_order_whatever_takes_longest() -> None:
    import time

    calls = [partial(time.sleep, 0.3), *(partial(np.sqrt, float(i)) for i in range(5))]
    assert list(cells.in_order(calls, jobs=2)) == [None, *np.sqrt(np.arange(5.0))]


def test_failure_of_a_call_and_death_of_a_process_are_said() -> None:
    with pytest.raises(RuntimeError, match=r"^ValueError: invalid literal for int\(\) .*'x'"):
        list(cells.in_order([partial(int, "1"), partial(int, "x")], jobs=2))
    with pytest.raises(RuntimeError, match=r"a process that measures ended with status 3: no message"):
        list(cells.in_order([partial(int, "1"), partial(os._exit, 3)], jobs=2))


def test_stopping_early_leaves_no_process() -> None:
    running = cells.in_order([partial(int, "1"), *[partial(os.getpid)] * 3], jobs=2)
    assert next(running) == 1
    assert next(running) != os.getpid()
    running.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_every_planned_law_can_be_sent_to_a_process() -> None:
    import pickle

    for preset in cases.PRESETS.values():
        for case in (*preset.laws, *preset.other_laws):
            there = pickle.loads(pickle.dumps(case))
            assert there.build().scalars() == case.build().scalars()
