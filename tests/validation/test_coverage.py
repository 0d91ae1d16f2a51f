"""The coverage study itself: resumable, honest about truth, able to mark a method that falls short."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from theory.laws import FiniteLaw
from validation import coverage


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(coverage, "CHUNK", 3)
    monkeypatch.setattr(coverage, "REFERENCE", 2000)
    return {name: law for name, law in coverage.laws().items() if name in ("gauss-flat", "sparse-2%")}


def test_every_cell_runs_and_a_second_run_adds_nothing(tmp_path, few):
    out = tmp_path / "c.jsonl"
    options = {"names": few, "sizes": [20], "tiers": list(coverage.TIERS), "repetitions": 4}
    assert coverage.run(out, **options) == 2 * 2 * len(coverage.TIERS)
    cells = coverage.read(out)
    assert {c.repetitions for c in cells} == {3, 1}
    assert all(0 <= c.holds[q] <= c.repetitions for c in cells for q in c.holds)
    assert coverage.run(out, **options) == 0
    with out.open("a") as file:
        file.write('{"law": "gauss-fl')  # torn by an interruption
    assert coverage.read(out) == cells
    assert coverage.run(out, **{**options, "repetitions": 6}) == 2 * len(coverage.TIERS)
    assert "| gauss-flat | 20 |" in coverage.summary(coverage.read(out))


def test_shards_share_the_work(tmp_path, few):
    out = tmp_path / "c.jsonl"
    options = {"names": few, "sizes": [20], "tiers": ["replicates", "bounded"], "repetitions": 4}
    done = [coverage.run(out, **options, shard=(i, 3)) for i in range(3)]
    assert sum(done) == 8
    assert min(done) > 0
    one = tmp_path / "one.jsonl"
    coverage.run(one, **options)
    strip = [{**c.__dict__, "seconds": 0} for c in coverage.read(out)]
    assert all({**c.__dict__, "seconds": 0} in strip for c in coverage.read(one))


def test_pool_moments_are_those_of_its_finite_law():
    rows = np.random.default_rng(0).integers(-3, 4, (7, 3))
    exact = FiniteLaw([tuple(map(int, r)) for r in rows], [f"1/{len(rows)}"] * len(rows))
    for x in (rows.astype(float), np.repeat(rows, 2, axis=0).astype(float)):
        assert coverage.Pool(x).scalars() == pytest.approx([float(v) for v in exact.scalars()])


def test_summary_marks_what_falls_short():
    base = coverage.Cell("law", 50, "bounded", 4, 4, 0.95, 0, 100, 90, {}, {}, {}, {}, 0.1)
    lines = []
    for held in (100, 80):
        cell = coverage.Cell(**{**base.__dict__, "holds": {"misalignment": held}})
        lines.append(coverage.summary([cell]).splitlines()[-1])
    assert "**low**" not in lines[0]
    assert "**low**" in lines[1]


def test_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr(coverage, "CHUNK", 3)
    matrix = tmp_path / "g.npy"
    np.save(matrix, 1 + np.random.default_rng(0).standard_normal((30, 2, 3)).astype(np.float32))
    out = tmp_path / "c.jsonl"
    arguments = ["--out", str(out), "--repetitions", "2", "--n", "20", "--tiers", "asymptotic:separate"]
    found = CliRunner().invoke(coverage.main, [*arguments, "--empirical", f"mine={matrix}", "--laws", "mine"])
    assert found.exit_code == 0, found.output
    assert "| mine | 20 |" in found.output
    assert "| mine | 20 |" in CliRunner().invoke(coverage.main, ["--out", str(out), "--summary"]).output
    assert CliRunner().invoke(coverage.main, [*arguments, "--laws", "unknown"]).exit_code == 2
