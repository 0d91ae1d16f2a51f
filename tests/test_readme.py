"""Every block of the README runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]
SHELL = [
    line.split("  #")[0].strip()
    for language, text in BLOCKS
    if language == "bash"
    for line in text.splitlines()
    if line.strip() and not line.startswith("#")
]


@pytest.mark.parametrize("block", PYTHON, ids=lambda b: b.strip().splitlines()[0][:40])
def test_python_block_runs(block, tmp_path):
    script = tmp_path / "block.py"
    script.write_text(block)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if "def test_" in block:
        tested = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", script],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert tested.returncode == 0, tested.stdout


@pytest.mark.parametrize("command", SHELL)
def test_shell_line_runs(command, tmp_path):
    words = shlex.split(command)
    if words[0] == "make":
        target = re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert target, f"no make target {words[1]}"
        return
    assert words[0] == "certify", f"the README shows {command!r}: expected make or certify"
    done = subprocess.run(
        [sys.executable, "-m", "validation.cli", *words[1:]],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "GRADIENT_ALIGNMENT_CACHE": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_three_ways_in_are_short():
    certify_block = next(b for b in PYTHON if "certify.collect" in b)
    bound_block = next(b for b in PYTHON if "falsify" in b)
    assert sum(bool(line.strip()) for line in certify_block.splitlines()) <= 10
    assert sum(bool(line.strip()) for line in bound_block.splitlines()) <= 15


def test_the_readme_shows_what_its_blocks_print(tmp_path):
    """Words to the letter, numbers to 2 % (another machine may round differently)."""
    shown = [
        line.strip() for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("    ")
    ]
    number = re.compile(r"\d+\.?\d*(?:e-?\d+)?")
    for block in PYTHON:
        done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=True)
        for line in done.stdout.splitlines()[:4]:
            words = number.sub("#", line.strip())
            alike = [
                [float(x) for x in number.findall(text)] for text in shown if number.sub("#", text) == words
            ]
            assert alike, f"the README does not show {line!r}"
            printed = [float(x) for x in number.findall(line)]
            assert any(printed == pytest.approx(x, rel=0.02) for x in alike), (line, alike)
