"""`certify measure`: mistakes are found before the sweep, the hub is never waited for, outputs agree."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import numpy as np
import pytest

from validation import cli

MODEL = """
import torch

def build():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 8)]
    for _ in range(8):
        layers += [torch.nn.Tanh(), torch.nn.Linear(8, 8)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(8, 3)).eval()
"""
NINE = [str(2 * i) for i in range(9)]
MEASURE = ["measure", "--model", "python:nine_blocks:build", "--data", "npz:data.npz"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "nine_blocks.py").write_text(MODEL, encoding="utf-8")
    x = rng.standard_normal((120, 6)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=np.zeros(120, dtype=np.int64))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_nine_modules_in_one_list_with_page_and_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--at", ",".join(NINE), "--M", "512", "--K", "512", "--html", "page/c.html", "--json"]
    assert cli.main([*MEASURE, *options]) == 0
    streams = capsys.readouterr()
    found = json.loads(streams.out, parse_constant=lambda text: pytest.fail(f"{text} in JSON"))
    assert list(found["certificates"]) == NINE
    assert found["certificates"]["0"]["confidence"] == pytest.approx(1 - 0.05 / 9)
    assert found["certificates"]["4"]["dtype"] == "float32"
    assert found["certificates"]["4"]["module"] == "4"
    # progress on the other stream: count and rate
    assert re.search(r"Measuring gradients: 120/120, \S+/s", streams.err)
    page = (folder / "page" / "c.html").read_text(encoding="utf-8")
    assert all(f">{name}<" in page for name in NINE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--at", "0", "--K", "0"], "K=0: expected a whole number"),
        (["--at", "0", "--confidence", "95"], "confidence=95.0: expected a number in (0, 1), e.g. 0.95"),
        (["--at", "0", "--device", "gpu"], "device='gpu' is not available here"),
        (["--at", "0", "--positions", "max"], "positions='max': expected"),
        (["--at", "0,0"], "at contains '0' more than once"),
        (["--at", "0,99"], "at='99' names no module"),
    ],
)
def test_mistakes_are_found_before_the_sweep(
    options: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*MEASURE, *options]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_a_model_that_is_not_here_is_one_line_without_the_network(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert cli.main(["measure", "--model", "hf:nobody/nothing", "--data", "text:x", "--at", "0"]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "neither a folder nor in the hub's cache: run `hf download nobody/nothing` once" in lines[0]
