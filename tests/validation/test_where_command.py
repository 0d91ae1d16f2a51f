"""`certify where`: the whole way from options to verdicts, and mistakes in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from certify import Ranking
from validation import cli
from validation.targets import Batches
from validation.where_command import split

MODEL = """
import torch

def build():
    nn = torch.nn
    layers = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)]
    model = nn.Sequential(*layers).eval()
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator) / 3
    return model
"""
WHERE = ["where", "--model", "python:two_places:build"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "two_places.py").write_text(MODEL, encoding="utf-8")
    x = rng.standard_normal((240, 6)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=(x[:, 0] > 0.2).astype(np.int64))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_json_page_and_saved_ranking(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--data",
        "npz:data.npz",
        "--train-units",
        "100",
        "--html",
        "out/w.html",
        "--save",
        "out/w.json",
    ]
    assert cli.main([*WHERE, *options, "--json"]) == 0
    streams = capsys.readouterr()
    found = json.loads(streams.out, parse_constant=lambda text: pytest.fail(f"{text} in JSON"))
    assert (found["M"], found["K"]) == (100, 140)
    assert {p["module"] for p in found["points"]} == {"0", "2"}
    assert "Training units: 100/100" in streams.err
    assert "Held-out units: 140/140" in streams.err
    assert "held-out gain" in (folder / "out" / "w.html").read_text(encoding="utf-8")
    saved = Ranking.from_json((folder / "out" / "w.json").read_text(encoding="utf-8"))
    assert saved.M == 100
    assert any("two parts of --data" in note for note in saved.notes)


def test_table_and_block(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data", "npz:data.npz", "--block", "linear", "--at", "2", "--norm", "activation"]
    assert cli.main([*WHERE, *options]) == 0
    out = capsys.readouterr().out
    assert "block (linear)" in out
    assert "relative change" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--data is missing"),
        (["--data", "npz:data.npz", "--block", "conv", "--norm", "x"], "--block='conv'"),
        (["--data", "npz:data.npz", "--train-units", "240"], "expected fewer than the 240 examples"),
        (["--data", "npz:data.npz", "--train-data", "npz:data.npz"], "also training examples"),
        (["--data", "npz:data.npz", "--at", "9"], "names no module"),
    ],
)
def test_mistakes_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert cli.main([*WHERE, *options]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error


def test_split_is_disjoint_and_whole() -> None:
    source = Batches((torch.arange(10),), 4, lambda a: a)
    first, second = split(source, 3, 4, 0)
    a, b = (sorted(torch.cat(list(s)).tolist()) for s in (first, second))
    assert len(a) == 3
    assert sorted(a + b) == list(range(10))
    one, two = split([torch.zeros(4), torch.ones(4), torch.ones(4)], 4, 4, 0)
    assert (len(one), len(two)) == (1, 2)
    with pytest.raises(ValueError, match="gave 1 batches"):
        split([torch.zeros(4)], None, 4, 0)
