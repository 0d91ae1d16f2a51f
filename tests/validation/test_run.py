"""Runs: resumed after any interruption to the same bits, loud on a violated bound, clear on bad input."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from validation import cases, measure, prepare, store, training
from validation import run as run_module
from validation.measure import Level, rng_of, verdict
from validation.pool_bounds import known
from validation.resample import Events
from validation.results import Geometry, Measured, Misalignment, Record, Run, Training
from validation.run import BoundViolated, run, violations

TINY = dataclasses.replace(
    cases.SMOKE,
    name="tiny",
    laws=cases.gaussian_grid(("flat",), (4,), (1.0,)),
    law_replicates=500,
    other_laws=(),
    resnets=cases.resnets((1 / 16, 1 / 8), seeds=1, steps=4, batch=64, held_out=60),
    neoxes=cases.neoxes(
        (16,), 2, 1, steps=8, batch=8, held_out=40, length=32, train_units=64, train_pool=20, trajectory=10
    ),
    llamas=cases.llamas((16,), layers=2, seeds=1, steps=4, batch=8, held_out=40, length=32),
    pairs=((2, 2),),
    with_replacement=((1, 1), (8, 8)),
    without_replacement=((8, 8),),
    fresh=((2, 2),),
    pool_replicates=200,
)


PLAIN = ("gaussian", "resnet20", "neox", "llama")
"""The suites tested here; the others have tests of their own."""


class Recorder:
    """A progress that adds up, and stops the run after some units if told to."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stages: list[list[int]] = []
        self.notes: list[str] = []
        self.left = stop_after

    def start(self, total: int, description: str) -> None:
        self.stages.append([total, 0])

    def advance(self, n: int = 1) -> None:
        self.stages[-1][1] += n
        if self.left is not None:
            self.left -= n
            if self.left <= 0:
                raise KeyboardInterrupt

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache for this file: the tests must not touch the user's, and share what is trained."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(training.CACHE_VARIABLE, str(folder))
        patch.setitem(cases.PRESETS, "tiny", TINY)
        patch.setattr(run_module, "PRESETS", (*run_module.PRESETS, "tiny"))
        yield folder


@pytest.fixture(scope="module")
def uninterrupted(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run("tiny", PLAIN, out=tmp_path_factory.mktemp("whole") / "run", jobs=1)


def _of(records: list[Record], kind: type) -> list:
    return [r for r in records if isinstance(r, kind)]


def test_records_of_every_kind_and_the_planned_number(uninterrupted: Path) -> None:
    records = store.read(uninterrupted.parent)
    assert isinstance(records[0], Run)
    assert len(_of(records, Run)) == 1
    assert len(_of(records, Training)) == 4 + 4  # at the end, and at steps 0, 1, 2, 4 of the NeoX
    assert len(_of(records, Geometry)) == 1 + 2 * 6 + 1 + 1 + (1 + 4)
    along = [(r.step, r.n) for r in _of(records, Geometry) if r.suite == "neox" and r.sample == "held-out"]
    assert along == [(None, 40), (0, 10), (1, 10), (2, 10), (4, 10)]
    cells = _of(records, Misalignment)
    assert len(cells) == 3 + 4 * (2 * 6 + 1 + 1) + 2
    assert [c.pair for c in cells if c.pair != "test-test"] == ["train-train", "train-test"]
    assert {c.protocol for c in cells} == {"fresh", "with_replacement", "without_replacement"}
    confidence = {round((1 - c.frequency.confidence) * len(cells), 10) for c in cells}
    assert confidence == {0.05}  # Bonferroni over exactly the cells that there are
    assert set(records[0].data) == {"digits", "pydoc_data.topics"}


def test_fields_of_a_network_cell(uninterrupted: Path) -> None:
    records = store.read(uninterrupted.parent)
    trained = _of(records, Training)[0]
    assert (trained.suite, trained.width, trained.steps, trained.seconds > 0) == ("resnet20", 1, 4, True)
    assert trained.test_accuracy is not None
    assert trained.test_accuracy.low < trained.test_accuracy.value < trained.test_accuracy.high
    places = {(g.module, g.positions, g.d) for g in _of(records, Geometry) if g.case == trained.case}
    assert places == {
        ("layer1.2", "flatten", 64), ("layer2.2", "flatten", 32), ("layer3.2", "flatten", 16),
        ("layer1.2", "sum", 1), ("layer2.2", "sum", 2), ("layer3.2", "sum", 4),
    }  # fmt: skip
    fresh = [m for m in _of(records, Misalignment) if m.protocol == "fresh" and m.suite == "neox"]
    assert [(m.bound_source, m.trials, m.unit) for m in fresh] == [("estimate", 5, "sequence of 32 bytes")]


def test_exact_probability_lies_below_the_bound_and_in_the_interval(uninterrupted: Path) -> None:
    for cell in _of(store.read(uninterrupted.parent), Misalignment)[:3]:
        p = np.exp(cell.log_probability)
        assert p <= cell.B_exact.value <= cell.B_align.value
        assert cell.frequency.low <= p <= cell.frequency.high


def test_second_run_measures_nothing_and_changes_nothing(uninterrupted: Path) -> None:
    before = uninterrupted.read_bytes()
    seen = Recorder()
    assert run("tiny", PLAIN, out=uninterrupted.parent, progress=seen, jobs=1) == uninterrupted
    assert uninterrupted.read_bytes() == before
    assert seen.notes == ["5 of 5 cells are already stored; going on with the rest"]


@pytest.mark.parametrize("after", [1, 7, 25, 60])
def test_interrupted_run_goes_on_to_the_same_bits(after: int, uninterrupted: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run("tiny", PLAIN, out=tmp_path, progress=Recorder(stop_after=after), jobs=1)
    partial = (tmp_path / "results.jsonl").read_bytes()
    path = run("tiny", PLAIN, out=tmp_path, jobs=1)
    assert path.read_bytes().startswith(partial)
    assert store.fingerprint(store.read(tmp_path)) == store.fingerprint(store.read(uninterrupted.parent))


def test_progress_adds_up(tmp_path: Path) -> None:
    seen = Recorder()
    run("tiny", ["neox", "gaussian"], out=tmp_path, progress=seen, jobs=1)
    assert len(seen.stages) == 2
    assert all(total == done > 0 for total, done in seen.stages)


def test_training_elsewhere_gives_the_same_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers in processes of their own, and this process: equal weights and gradients, bit for bit."""
    from validation import gradients

    networks = [TINY.resnets[0], TINY.neoxes[0]]
    here = [gradients.obtain(n) for n in networks]
    monkeypatch.setenv(training.CACHE_VARIABLE, str(tmp_path))
    steps: list[int] = []
    prepare.prepare(networks, jobs=2, on_step=steps.append)
    assert sum(steps) == sum(map(prepare.steps_of, networks))
    for network, mine in zip(networks, here, strict=True):
        assert gradients.is_cached(network)
        theirs = gradients.obtain(network)
        assert theirs.trained.cached
        assert theirs.by_place.keys() == mine.by_place.keys()
        assert all(np.array_equal(theirs.by_place[k], mine.by_place[k]) for k in mine.by_place)
        assert np.array_equal(theirs.trained.test_losses, mine.trained.test_losses)


def test_failing_worker_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(training.CACHE_VARIABLE, str(tmp_path))

    def start(errors: IO[str]) -> subprocess.Popen[str]:
        script = "import sys; print('step'); sys.exit('first line\\nlast line')"
        return subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

    monkeypatch.setattr(prepare, "_start", start)
    with pytest.raises(RuntimeError, match=r"training resnet20-w.-L20-s0 failed with status 1: last line"):
        prepare.prepare(TINY.resnets, jobs=2)


_KILLER = """
import dataclasses, os, random, signal, sys
from pathlib import Path
from validation import cases, run, store

cases.PRESETS["tiny"] = dataclasses.replace(
    cases.SMOKE, laws=cases.gaussian_grid(("flat", "spiked"), (4, 64), (0.1, 1.0)), other_laws=(),
    law_replicates=500,
)
run.PRESETS = (*run.PRESETS, "tiny")
base, rng, stopped, honest = Path(sys.argv[1]), random.Random(0), [], store._to_disk
run.run("tiny", ["gaussian"], out=base / "whole")
results = base / "killed" / store.RESULTS

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def dying(write, phase):
    # Each cell is two writes: its records, then its line of the journal.
    def to_disk(file, count=[0]):
        count[0] += 1
        if count[0] == write and phase == "before":
            die()
        honest(file)
        if count[0] == write and phase == "torn":
            os.ftruncate(file.fileno(), os.fstat(file.fileno()).st_size - 7)
        if count[0] == write:
            die()
    return to_disk

for phase in ("before", "torn", "after", "torn", "after", "before", "torn", "after", "torn", "after"):
    write = rng.randint(1, 4)
    child = os.fork()
    if child == 0:
        store._to_disk = dying(write, phase)
        run.run("tiny", ["gaussian"], out=base / "killed")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    stopped.append([os.WIFSIGNALED(status), results.stat().st_size])
run.run("tiny", ["gaussian"], out=base / "killed")
print(stopped)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_ten_times_and_resumed_to_the_same_bits(tmp_path: Path) -> None:
    """SIGKILL before, within and after writes leaves no time to clean up; restarts go on from whole cells."""
    done = subprocess.run(
        [sys.executable, "-c", _KILLER, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    stopped = json.loads(done.stdout.replace("True", "true").replace("False", "false"))
    assert sum(killed for killed, _ in stopped) >= 5  # the others found everything stored
    assert len({size for _, size in stopped}) >= 4
    whole, killed = (store.read(tmp_path / name) for name in ("whole", "killed"))
    assert len(whole) == 1 + 8 * 4
    assert store.fingerprint(whole) == store.fingerprint(killed)


# -- the store -------------------------------------------------------------------------------------------


def _run(seed: int = 0) -> Run:
    return Run(f"id{seed}", "tiny", ("gaussian",), seed, "certify validate", "now", {}, {})


def _geometry(case: str) -> Geometry:
    one = known(1.0)
    return Geometry(
        "gaussian", case, case, "law", "none", "draw", "population", None, 1, 1, 0, 0,
        one, one, one, one, one, one, one, one, True, (), 0.5,
    )  # fmt: skip


def _fill(out: Path, cells: int) -> None:
    with store.Store(out, _run()) as s:
        for i in range(len(s.finished) - 1, cells):
            s.append(f"cell{i}", [_geometry(f"{i}a"), _geometry(f"{i}b")])


def test_cut_anywhere_only_whole_cells_are_read_and_the_rest_is_redone(tmp_path: Path) -> None:
    """Every possible length of both files that a kill can leave: results first, journal after."""
    _fill(tmp_path / "whole", 3)
    results, journal = ((tmp_path / "whole" / n).read_bytes() for n in (store.RESULTS, store.JOURNAL))
    ends = list(itertools.accumulate(len(line) + 1 for line in journal.splitlines()))
    goods = [json.loads(line)["bytes"] for line in journal.splitlines()]
    states = [(r, 0) for r in range(0, goods[0] + 1, 41)]
    for k, (end, good) in enumerate(itertools.pairwise(goods), start=0):
        states += [(r, ends[k]) for r in range(end, good + 1, 397)]
        states += [(good, j) for j in range(ends[k], ends[k + 1] + 1, 17)]
    for i, (r, j) in enumerate(states):
        out = tmp_path / str(i)
        out.mkdir()
        (out / store.RESULTS).write_bytes(results[:r])
        (out / store.JOURNAL).write_bytes(journal[:j])
        _fill(out, 3)
        assert (out / store.RESULTS).read_bytes() == results, (r, j)
        assert (out / store.JOURNAL).read_bytes() == journal, (r, j)


def test_a_damaged_cell_is_measured_again(tmp_path: Path) -> None:
    _fill(tmp_path, 2)
    path = tmp_path / store.RESULTS
    good = path.read_bytes()
    path.write_bytes(good[:-30] + b"x" + good[-29:])
    with pytest.raises(ValueError, match=r"disagree after 2 cells \(edited or damaged\).*measures the rest"):
        store.read(tmp_path)
    _fill(tmp_path, 2)
    assert path.read_bytes() == good
    assert len(store.read(tmp_path)) == 5


def test_folder_of_another_run_is_left_alone(tmp_path: Path) -> None:
    _fill(tmp_path, 1)
    before = (tmp_path / store.RESULTS).read_bytes()
    with pytest.raises(ValueError, match=r"holds another run .*seed=0"):
        store.Store(tmp_path, _run(seed=1))
    assert (tmp_path / store.RESULTS).read_bytes() == before


def test_foreign_results_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / store.RESULTS).write_text("my notes\n")
    with pytest.raises(ValueError, match=r"holds a results\.jsonl of another kind"):
        store.Store(tmp_path, _run())
    assert (tmp_path / store.RESULTS).read_text() == "my notes\n"


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="file locks exist on POSIX systems only")
    with store.Store(tmp_path, _run()), pytest.raises(ValueError, match="another run is writing there"):
        store.Store(tmp_path, _run())
    store.Store(tmp_path, _run()).close()


def test_fingerprint_ignores_times_only() -> None:
    a = _geometry("x")
    assert store.fingerprint([a]) == store.fingerprint([dataclasses.replace(a, seconds=9.0)])
    assert store.fingerprint([a]) != store.fingerprint([dataclasses.replace(a, m2=known(1.0000000001))])


@pytest.mark.parametrize("make", ["file", "file above"])
def test_unwritable_folder_is_refused_before_any_work(make: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" if make == "file" else tmp_path / "file" / "run"
    seen = Recorder()
    with pytest.raises(ValueError, match=r"cannot write there .* choose another folder"):
        run("tiny", PLAIN, out=out, progress=seen)
    assert not seen.stages


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no results there"):
        store.read(tmp_path)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"preset": "huge"}, "preset='huge': expected one of smoke, default"),
        ({"suites": ["vision"]}, "'vision': expected some of gaussian"),
        ({"suites": []}, "suites="),
        ({"seed": -1}, "seed=-1"),
        ({"seed": True}, "seed=True"),
        ({"jobs": 0}, "jobs=0"),
    ],
)
def test_bad_arguments(kwargs: dict, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        run(out=tmp_path / "run", **{"preset": "tiny", **kwargs})
    assert not (tmp_path / "run").exists()


# -- verdicts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "bound", "expected"),
    [
        (0.1, 0.2, known(0.3), "holds"),
        (0.1, 0.3, known(0.3), "holds"),
        (0.1, 0.4, known(0.3), "inconclusive"),
        (0.4, 0.5, known(0.3), "violated"),
        (0.3, 0.5, known(0.3), "inconclusive"),
        (0.1, 0.2, known(1.0), "inconclusive"),
        (0.1, 0.2, known(None), "inconclusive"),
        (0.4, 0.5, Measured(0.3, 0.1, 0.45, 0.95, "estimate"), "inconclusive"),
        (0.5, 0.6, Measured(0.3, 0.1, 0.45, 0.95, "estimate"), "violated"),
    ],
)
def test_verdict(low: float, high: float, bound: Measured, expected: str) -> None:
    assert verdict(Measured((low + high) / 2, low, high, 0.95, "x"), bound) == expected


def test_family_wise_intervals_are_wider() -> None:
    events = Events(10, 100, 0, 1, 1, "fresh")
    one, many = Level(1).frequency(events), Level(1000).frequency(events)
    assert many.low < one.low < 0.1 < one.high < many.high
    assert one.confidence == pytest.approx(0.95)


def test_a_false_bound_is_caught_and_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """B_exact made a fifth too small is caught at M = K = 1, where the coin attains it."""
    honest = measure.B_exact
    monkeypatch.setattr(measure, "B_exact", lambda m, M, K: honest(m, M, K) * 0.8)
    coin = tuple(c for c in cases.DEFAULT.other_laws if c.name == "coin")
    monkeypatch.setitem(cases.PRESETS, "tiny", dataclasses.replace(TINY, laws=(), other_laws=coin))
    with pytest.raises(BoundViolated, match=r"coin law none fresh M=1 K=1.*all records are in") as caught:
        run("tiny", ["gaussian"], out=tmp_path)
    assert len(caught.value.cells) == 1
    assert violations(store.read(caught.value.path.parent)) == caught.value.cells
    with pytest.raises(BoundViolated):  # also when everything is stored already
        run("tiny", ["gaussian"], out=tmp_path)


def test_generators_of_cells_differ() -> None:
    draws = {rng_of(s, *n).integers(2**62) for s in (0, 1) for n in (("a", "b"), ("a", "c"), ("ab",), ("a",))}
    assert len(draws) == 8


# -- the cache -------------------------------------------------------------------------------------------


def test_key_follows_everything_that_decides_the_weights() -> None:
    network = TINY.resnets[0]
    changed = [
        dataclasses.replace(network, **change)
        for change in ({"seed": 9}, {"steps": 5}, {"width": 0.25}, {"batch": 9}, {"held_out": 61})
    ]
    keys = {training.cache_key(n, "data") for n in (network, *changed)} | {
        training.cache_key(network, "other")
    }
    assert len(keys) == 7


def test_broken_cache_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(training.CACHE_VARIABLE, str(tmp_path))
    first = training.obtain(TINY.resnets[0])
    (path,) = (tmp_path / "networks").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    again = training.obtain(TINY.resnets[0])
    assert not again.cached
    assert np.array_equal(first.test_losses, again.test_losses)
    assert training.obtain(TINY.resnets[0]).cached


def test_unwritable_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(training.CACHE_VARIABLE, str(tmp_path / "file"))
    assert not training.obtain(TINY.resnets[0]).cached


def test_training_repeats_bit_for_bit_and_leaves_global_generators() -> None:
    import torch

    before = torch.random.get_rng_state()
    a, b = training.train(TINY.neoxes[0]), training.train(TINY.neoxes[0])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(x, y) for x, y in zip(a.model.parameters(), b.model.parameters(), strict=True))
    assert a.train_loss == b.train_loss < np.log(256) + 0.5


def test_networks_learn() -> None:
    network = dataclasses.replace(TINY.resnets[1], steps=60, batch=32, width=0.25, held_out=500)
    assert training.train(network).test_correct.mean() > 0.8  # type: ignore[union-attr]
