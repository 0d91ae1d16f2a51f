"""A user's module, the folder it is in, and what an answered mistake looks like."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

MODEL = """
import torch
from certify.losses import classification

def build():
    g = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=g)
    return model.eval()

def batches():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(120, 4, generator=g) + 1
    return [(x[i : i + 40], (x[i : i + 40, 0] > -1).long()) for i in range(0, 120, 40)]

def everything():
    return build(), classification, batches()

def training():
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6)), classification, batches()

def number():
    return 3

def heldout():
    return torch.utils.data.TensorDataset(*(torch.cat(part) for part in zip(*batches())))

def high_labels():
    return [(x, y + 9) for x, y in batches()]

def own_loss(model, batch):
    return -model(batch[0]).log_softmax(1)[torch.arange(len(batch[1])), batch[1]]

def wrong_loss(out, target):
    return torch.nn.functional.cross_entropy(out, target, reduction="none")

reducing = torch.nn.CrossEntropyLoss()

def broken():
    raise AssertionError("no weights yet")

class Broken(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 6)

    def forward(self, x):
        return self.layer(x)[9999]

def broken_forward():
    return Broken(), classification, batches()
"""


BUILD = ["measure", "--model", "python:users_module:build", "--at", "0"]
HELDOUT = [*BUILD, "--data", "python:users_module:heldout", "--loss", "classification"]
EVERYTHING = ["measure", "--model", "python:users_module:everything", "--at", "0"]


def users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder with a module of the user's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "users_module.py").write_text(MODEL, encoding="utf-8")
    sys.modules.pop("users_module", None)
    return tmp_path


def one_line_error(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "Traceback" not in err
    return lines[0]
