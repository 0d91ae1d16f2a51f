"""The command line: exit status, streams, one-line errors, and that nothing heavy loads early."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from synthetic_records import gaussian, make_run
from users_code import HELDOUT, one_line_error, users_folder

from validation import cli, doctor, run
from validation.console import Bars, duration
from validation.results import to_json

folder = pytest.fixture(users_folder)


@pytest.fixture
def quick_run(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace the measuring by one law's records; the arguments are kept, and ``raises`` makes the error."""
    seen: dict[str, Any] = {"raises": None}

    def fake(
        preset: str,
        suites: Any,
        seed: int,
        out: Path,
        progress: Any,
        *,
        jobs: int | None = None,
        images: Path | None = None,
        checkpoints: Path | None = None,
    ) -> Path:
        seen.update(preset=preset, suites=suites, seed=seed, out=out, jobs=jobs)
        progress.start(2, "counting")
        progress.note("a remark")
        progress.advance(2)
        out.mkdir(parents=True, exist_ok=True)
        path = out / "results.jsonl"
        records = [make_run(seed), *gaussian(np.random.default_rng(0), cases=1)]
        path.write_text("".join(to_json(r) + "\n" for r in records), encoding="utf-8")
        if seen["raises"] is not None:
            raise seen["raises"](path)
        return path

    monkeypatch.setattr(run, "run", fake)
    return seen


# -- starting up -------------------------------------------------------------------------------------------


def test_help_is_fast_because_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from validation.cli import main; status = main(['--help']); "
        "names = {'torch', 'numpy', 'scipy', 'sympy', 'matplotlib', 'jinja2', 'transformers'}; "
        "heavy = names & set(sys.modules); "
        "sys.exit(f'{status} {heavy}' if status or heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("validate", "report", "measure", "plan", "theory", "doctor"):
        assert f"\n  {command} " in done.stdout


def test_module_is_the_validate_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "validation", "--preset", "nope"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.strip() == "error: preset='nope': expected one of smoke, default, laptop, paper"


@pytest.mark.parametrize(
    "command", [[], *([c] for c in ("validate", "report", "measure", "plan", "theory", "doctor"))]
)
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert "Usage: certify" in out
    assert err == ""
    if command:
        assert "--json" in out
        assert "--debug" in out


# -- validate and report -----------------------------------------------------------------------------------


def test_validate_writes_the_report_and_keeps_stdout_for_results(
    folder: Path, quick_run: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["validate", "--preset", "smoke", "--suite", "gaussian,neox", "--suite", "resnet20"]) == 0
    assert quick_run["suites"] == ("gaussian", "neox", "resnet20")
    assert quick_run["out"] == Path("runs/smoke")
    out, err = capsys.readouterr()
    assert "cantelli" in out
    assert "for the claim / undecided / against it" in out
    assert "wrote runs/smoke/report.html" in out
    assert "counting: 2 to do" in err
    assert "a remark" in err
    assert "a remark" not in out
    assert (folder / "runs/smoke/report.html").stat().st_size > 10_000


def test_validate_json_is_only_json(
    folder: Path, quick_run: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--seed", "3", "--out", "here", "--format", "json,csv", "--jobs", "1", "--json"]
    assert cli.main(["validate", *options]) == 0
    assert (quick_run["seed"], quick_run["suites"], quick_run["jobs"]) == (3, None, 1)
    payload = json.loads(capsys.readouterr().out)
    assert payload["run"]["seed"] == 3
    assert [c["claim"] for c in payload["claims"]] == ["cantelli", "align", "follow", "misalign-down"]
    assert not (folder / "here/report.html").exists()
    assert (folder / "here/claims.csv").exists()


def test_contradicted_bound_is_loud_but_still_reported(
    folder: Path, quick_run: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    quick_run["raises"] = lambda path: run.BoundViolated(path, ("law M=1 K=1",))
    assert cli.main(["validate", "--out", "here"]) == 1
    err = capsys.readouterr().err
    assert "error: 1 cell(s) contradict B_exact" in err
    assert (folder / "here/report.html").exists()


def test_interruption_says_what_is_kept(
    folder: Path, quick_run: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    quick_run["raises"] = lambda path: KeyboardInterrupt()
    assert cli.main(["validate", "--out", "here"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert "finished cells are kept; the same command goes on from there" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("error", [ValueError, TypeError, OSError])
def test_expected_errors_are_one_line(
    error: type[Exception], folder: Path, quick_run: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    quick_run["raises"] = lambda path: error("depth=3: expected 4;\n  do this")
    assert cli.main(["validate"]) == 2
    assert one_line_error(capsys) == "error: depth=3: expected 4; do this"
    with pytest.raises(error, match="depth=3"):
        cli.main(["validate", "--debug"])


def test_certify_errors_are_one_line_and_bugs_are_not_hidden(
    folder: Path, quick_run: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    from certify.errors import NonFiniteError

    quick_run["raises"] = lambda path: NonFiniteError("layer1: NaN in batch 3")
    assert cli.main(["validate"]) == 2
    assert one_line_error(capsys) == "error: layer1: NaN in batch 3"
    quick_run["raises"] = lambda path: ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        cli.main(["validate"])


def test_data_sets_of_single_examples_are_batched(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--batch-size", "50", "--M", "8", "--K", "8", "--json", "--html", "new/c.html"]
    assert cli.main([*HELDOUT, *options]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["units"] == 120
    assert "made folder new" in err


def test_report_is_rebuilt_from_stored_results(
    folder: Path, quick_run: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["validate", "--out", "here"]) == 0
    first = (folder / "here/report.html").read_bytes()
    assert cli.main(["report", "here", "--out", "there/again.html", "--json"]) == 0
    assert (folder / "there/again.html").read_bytes() == first
    assert json.loads(capsys.readouterr().out.partition("report.html\n")[2])["written"] == [
        "there/again.html"
    ]
    assert cli.main(["report", "here/results.jsonl", "--format", "csv"]) == 0
    assert (folder / "here/misalignment.csv").exists()


def test_two_runs_are_compared(
    folder: Path, quick_run: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["validate", "--out", "a", "--format", "tex"]) == 0
    assert (folder / "a/tables.tex").read_text(encoding="ascii").startswith("\\documentclass")
    assert cli.main(["validate", "--out", "b", "--seed", "1", "--format", "json"]) == 0
    capsys.readouterr()
    assert cli.main(["report", "a", "b", "--json"]) == 0
    payload = json.loads(capsys.readouterr().out)
    assert payload["matched"] == payload["identical"] == 6
    assert ["seed", "0", "1"] in payload["protocol"]
    assert payload["written"] == ["comparison.html"]
    assert cli.main(["report", "a", "b", "--out", "x/two.html"]) == 0
    assert "6 of 6 matched records are identical bit for bit" in capsys.readouterr().out
    assert "Identical bit for bit" in (folder / "x/two.html").read_text(encoding="utf-8")
    assert cli.main(["report", "a", "nowhere"]) == 2
    assert "path='nowhere': expected a folder with results.jsonl" in capsys.readouterr().err
    assert cli.main(["report", "a", "b", "--format", "csv"]) == 2
    assert "--format=csv: a comparison is written as html; --json prints it" in capsys.readouterr().err


def test_open_shows_the_report(
    folder: Path,
    quick_run: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda uri: bool(shown.append(uri)))
    assert cli.main(["validate", "--out", "here", "--open"]) == 0
    assert shown == [(folder / "here/report.html").as_uri()]
    assert "no browser found; open here/report.html yourself" in capsys.readouterr().err


# -- measure and plan --------------------------------------------------------------------------------------


def test_measure_a_users_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["measure", "--model", "python:users_module:everything"]
    assert cli.main([*model, "--at", "0,2", "--M", "64", "--K", "32", "--html", "m.html", "--save", "m"]) == 0
    out = capsys.readouterr().out
    assert "n = 120 units (example), positions sum, M = 64, K = 32" in out
    assert "limits of all 2 modules hold together with confidence 0.95 (0.975 each)" in out
    page = (folder / "m.html").read_text(encoding="utf-8")
    assert page.count("<section") == 2
    assert "M = 64" in page
    assert "<script" not in page
    assert cli.main(["plan", "m/0.safetensors", "--target", "0.2", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["m/0.safetensors"]
    assert (plan["n"], plan["d"], plan["target"]) == (120, 6, 0.2)


def test_measure_json_agrees_with_the_library(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from certify.certification import certificate
    from certify.sweep import collect

    options = ["--at", "0", "--M", "8", "--K", "9", "--confidence", "0.9", "--json", "--max-units", "80"]
    assert cli.main(["measure", "--model", "python:users_module:everything", *options]) == 0
    payload = json.loads(capsys.readouterr().out)
    assert payload["units"] == 80
    import users_module

    model, loss, batches = users_module.everything()
    moments = collect(model, loss, batches[:2], at="0")["0"]
    expected = certificate(moments, M=8, K=9, confidence=0.9)
    found = payload["certificates"]["0"]
    assert found["confidence"] == 0.9
    assert found["B_exact"]["estimate"] == pytest.approx(expected.B_exact.estimate, rel=1e-12)
    assert found["misalignment"]["limit"]["high"] == pytest.approx(expected.upper, rel=1e-12)


def test_measure_lists_modules(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["measure", "--model", "python:users_module:build", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"0": "Linear", "1": "Tanh", "2": "Linear"}


def test_measure_a_checkpoint_on_an_array(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from validation.models import resnet

    model = resnet(8, 0.25, classes=3, seed=0)
    torch.save({"state_dict": model.state_dict()}, "net.th")
    rng = np.random.default_rng(0)
    np.savez("data.npz", x=rng.standard_normal((24, 3, 8, 8)).astype(np.float32), y=rng.integers(0, 3, 24))
    options = [
        "--at",
        "layer3.0",
        "--M",
        "4",
        "--K",
        "4",
        "--batch-size",
        "10",
        "--positions",
        "flatten",
        "--json",
    ]
    assert cli.main(["measure", "--model", "checkpoint:net.th", "--data", "npz:data.npz", *options]) == 0
    found = json.loads(capsys.readouterr().out)["certificates"]["layer3.0"]
    assert (found["n"], found["positions"]) == (24, "flatten")
    np.savez("short.npz", x=np.zeros((3, 2)), z=np.zeros(3))
    assert (
        cli.main(["measure", "--model", "checkpoint:net.th", "--data", "npz:short.npz", "--at", "layer3.0"])
        == 2
    )
    assert "expected arrays x and y, found x, z" in one_line_error(capsys)


def test_measure_a_saved_language_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from validation.models import neox

    neox(16, 2, length=16, seed=0).eval().save_pretrained("lm")
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 20, encoding="utf-8")
    capsys.readouterr()
    options = ["--at", "gpt_neox.layers.1", "--M", "4", "--K", "4", "--length", "16", "--json"]
    assert cli.main(["measure", "--model", "hf:lm", "--data", "text:text.txt", *options]) == 0
    found = json.loads(capsys.readouterr().out)["certificates"]["gpt_neox.layers.1"]
    assert (found["n"], found["d"], found["unit"]) == (56, 16, "sequence of 16 bytes")


def test_plan_for_given_dimensions(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--target", "0.1", "--d-par", "0.05", "--d-2", "1e-4", "--json"]) == 0
    sizes = json.loads(capsys.readouterr().out)
    assert (sizes["M"], sizes["K"]) == (530, 530)


# -- theory and doctor -------------------------------------------------------------------------------------


def test_theory_prints_claims(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["theory", "--claim", "cone", "--json"]) == 0
    (claim,) = json.loads(capsys.readouterr().out)
    assert (claim["id"], claim["verdict"]) == ("cone", "established")
    assert cli.main(["theory", "--claim", "cone"]) == 0
    assert "cone: established" in capsys.readouterr().out


def test_doctor_knows_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIENT_ALIGNMENT_CACHE", "/nowhere/at/all")
    assert cli.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert any(line.startswith("[validation] ") for line in doctor.lines(found))
    assert found["versions"]["torch"] == torch.__version__
    assert found["cache"]["folder"] == "/nowhere/at/all"
    assert found["self_check"]["ok"]
    assert [c["name"] for c in found["self_check"]["checks"]] == ["theory", "certify", "validation"]


def test_doctor_notices_a_broken_part(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import theory.bounds

    monkeypatch.setattr(theory.bounds, "B_align", lambda moments, M, K: moments.m2)
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAIL theory" in out
    assert "ok   certify" in out


def test_doctor_reports_an_exception_as_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> tuple[str, bool]:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(doctor, "_check_certify", broken)
    found = doctor.self_check()
    assert not found["ok"]
    assert found["checks"][1]["text"] == "RuntimeError: no such kernel"


# -- progress ----------------------------------------------------------------------------------------------


def progress_text(
    *, terminal: bool, every: float, work: Callable[[Bars], None], patience: float = 0.0
) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120, color_system=None)
    with Bars(console, every=every, patience=patience) as bars:
        work(bars)
    return stream.getvalue()


def test_progress_is_plain_lines_where_there_is_no_terminal() -> None:
    def work(bars: Bars) -> None:
        bars.start(4, "Training")
        bars.advance(1)
        bars.advance(2)
        bars.note("[width 16] loss 3.2")
        bars.start(0, "Counting")
        bars.advance()

    text = progress_text(terminal=False, every=0.0, work=work)
    lines = text.splitlines()
    assert lines[0] == "Training: 4 to do"
    assert lines[1].startswith("Training: 1/4, ")
    assert "left" not in lines[1], "one unit is too few to guess from"
    assert lines[2].startswith("Training: 3/4, ")
    assert lines[2].endswith(" left")
    assert "[width 16] loss 3.2" in lines  # square brackets are not markup
    assert "\x1b" not in text
    quiet = progress_text(terminal=False, every=1e9, work=work).splitlines()
    assert sum("left" in line for line in quiet) == 0
    for terminal in (True, False):
        assert "left" not in progress_text(terminal=terminal, every=0.0, work=work, patience=10.0)


def test_progress_bar_shows_counts_rate_and_remaining_time() -> None:
    def work(bars: Bars) -> None:
        bars.start(4, "Training")
        bars.advance(3)
        bars.start(4, "Counting")
        for _ in range(4):
            time.sleep(0.01)
            bars.advance(1)

    text = progress_text(terminal=True, every=0.0, work=work)
    assert "Training" in text
    assert "4/4" in text
    assert "/s" in text
    assert "left" in text


def test_durations() -> None:
    assert [duration(s) for s in (0.4, 59.6, 3599, 7260)] == ["0 s", "1 min 0 s", "59 min 59 s", "2 h 1 min"]
