"""Mistakes on the command line, in files and in the user's own code: one line, exit status 2."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from synthetic_records import gaussian, make_run
from users_code import BUILD, EVERYTHING, HELDOUT, one_line_error, users_folder

from certify.errors import ModelError
from validation import cli
from validation.results import Misalignment, to_json

folder = pytest.fixture(users_folder)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["validate", "--format", "pdf"], "format='pdf': expected some of html, json, csv"),
        (["validate", "--seed", "x"], "'x' is not a valid integer; see `certify validate --help`"),
        (["nonsense"], "No such command 'nonsense'; see `certify --help`"),
        (["report", "nowhere"], "path='nowhere': expected a folder with results.jsonl"),
        (
            ["measure", "--model", "foo"],
            "--model='foo': expected python:MODULE:FUNCTION, hf:PATH or checkpoint:FILE",
        ),
        (["measure", "--model", "python:users_module"], "expected python:MODULE:FUNCTION"),
        (["measure", "--model", "python:no_such:f"], "no module 'no_such'"),
        (["measure", "--model", "python:users_module:g"], "has no 'g'"),
        (["measure", "--model", "python:users_module:biuld"], "has no 'biuld'; did you mean 'build'"),
        (
            ["measure", "--model", "python:users_module:broken"],
            "--model=python:users_module:broken: your function failed: AssertionError: no weights yet; --d",
        ),
        (
            ["measure", "--model", "python:bad_syntax:f"],
            "--model=python:bad_syntax:f: importing 'bad_syntax' failed: SyntaxError",
        ),
        (
            [*BUILD, "--data", "python:users_module:broken"],
            "--data=python:users_module:broken: your function failed: AssertionError: no weights yet",
        ),
        (
            ["measure", "--model", "python:users_module:broken_forward", "--at", "layer"],
            "your model (or loss) failed on batch 0: IndexError: index 9999 is out of bounds",
        ),
        (
            [*BUILD, "--data", "python:users_module:high_labels", "--loss", "python:users_module:own_loss"],
            "your model (or loss) failed on batch 0: IndexError: index 10 is out of bounds",
        ),
        ([*EVERYTHING, "--loss", "python:users_module:wrong_loss"], "a loss is called as loss(model, batch)"),
        ([*EVERYTHING, "--loss", "python:users_module:reducing"], "ready-made ones are classification,"),
        ([*EVERYTHING, "--device", "foo"], "device='foo' is not available here"),
        ([*EVERYTHING, "--device", "cuda:99"], "device='cuda:99' is not available here"),
        ([*EVERYTHING, "--tier", "bounded"], "--bound is missing: tier bounded needs a number"),
        (
            [*EVERYTHING, "--tier", "bounded", "--bound", "-1"],
            "bound=-1.0: expected a positive finite number",
        ),
        ([*EVERYTHING, "--bound", "1"], "bound=1.0: only --tier bounded uses it, not asymptotic"),
        ([*EVERYTHING, "--max-units", "0"], "max_units=0: expected"),
        (
            [*EVERYTHING, "--K", "0", "--confidence", "2"],
            "K=0: expected a whole number of at least 1; and confidence=2.0: expected",
        ),
        ([*EVERYTHING, "--save", "file/m"], "--save=file/m: cannot write in"),
        ([*EVERYTHING, "--save", "/proc/m"], "--save=/proc/m: cannot write in /"),
        ([*EVERYTHING, "--html", "/proc/m.html"], "--html=/proc/m.html: cannot write in /"),
        ([*EVERYTHING, "--html", "."], "--html=.: is a folder; expected a file, e.g. certificate.html"),
        (
            [*HELDOUT, "--tier", "replicates", "--M", "100", "--K", "100"],
            "tier='replicates': 120 units, but M + K = 200",
        ),
        (["measure", "--model", "python:users_module:build"], "see --list; and --data is missing"),
        (
            ["measure", "--model", "checkpoint:file", "--at", "0"],
            "file: not a checkpoint of a CIFAR ResNet; expected torch.save",
        ),
        (
            [*BUILD, "--data", "npz:file"],
            "not an npz file of plain arrays; write one with numpy.savez('file'",
        ),
        (["plan", "--target", "0.1", "file.npy"], "not a .npy file of numbers; write one with numpy.save"),
        (["report", "nowhere", "--out", "/proc/x.html"], "--out=/proc/x.html: cannot write in /"),
        (["report", "latin"], "path='latin': the results are not UTF-8 text (byte 0)"),
        (["report", "negative"], "line 2: events=-3, trials="),
        (["measure", "--model", "python:users_module:number"], "expected a torch.nn.Module, got int"),
        (
            ["measure", "--model", "python:users_module:everything"],
            "--at is missing: expected module names such as",
        ),
        (["measure", "--model", "python:users_module:build", "--at", "0"], "--data is missing"),
        (["measure", "--model", "python:users_module:everything", "--at", "9"], "at='9' names no module"),
        (
            ["measure", "--model", "python:users_module:everything", "--at", "0", "--tier", "x"],
            "tier='x': expected one of",
        ),
        (["measure", "--model", "python:users_module:everything", "--at", "0", "--M", "0"], "M=0: expected"),
        (["measure", "--model", "python:users_module:training", "--at", "0"], "eval"),
        (["measure", "--model", "checkpoint:none.th", "--at", "0"], "no such checkpoint"),
        (
            ["measure", "--model", "python:users_module:build", "--data", "npz:none", "--at", "0"],
            "no such file",
        ),
        (["plan", "--target", "0.1"], "expected PILOT files, or --d-par and --d-2"),
        (["plan", "--target", "0.1", "none.safetensors"], "no such file"),
        (["plan", "--target", "2", "--d-par", "1", "--d-2", "1"], "target=2"),
        (["theory", "--claim", "hodge"], "claim='hodge': expected one of"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    arguments: list[str], expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("file", "file.npy"):
        (folder / name).write_text("neither arrays nor weights", encoding="utf-8")
    (folder / "bad_syntax.py").write_text("def f(:", encoding="utf-8")
    cell = next(r for r in gaussian(np.random.default_rng(0), cases=1) if isinstance(r, Misalignment))
    lines = to_json(make_run(0)) + "\n" + to_json(dataclasses.replace(cell, events=-3)) + "\n"
    for name, content in (("latin", b"\xe9" + lines.encode()), ("negative", lines.encode())):
        (folder / name).mkdir()
        (folder / name / "results.jsonl").write_bytes(content)
    assert cli.main(arguments) == 2
    assert expected in one_line_error(capsys)
    assert not list(folder.glob("**/*.safetensors"))


def test_debug_shows_the_users_own_error(folder: Path) -> None:
    with pytest.raises(ModelError, match="failed on batch 0") as caught:
        cli.main(["measure", "--model", "python:users_module:broken_forward", "--at", "layer", "--debug"])
    assert isinstance(caught.value.__cause__, IndexError)
