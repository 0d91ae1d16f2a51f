"""Validation of networks trained elsewhere: records like those of trained ones, identity, resumption."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import certify
from certify.losses import causal_lm
from validation import cli, loaded, models, report, store, targets
from validation.loaded import Loaded
from validation.results import Geometry, Misalignment, Run

TEXT = bytes(range(256)) * 30


@pytest.fixture
def neox(tmp_path: Path) -> Loaded:
    models.neox(32, 4, length=32, seed=0).eval().save_pretrained(tmp_path / "m")  # type: ignore[operator]
    (tmp_path / "text.txt").write_bytes(TEXT)
    return Loaded(str(tmp_path / "m"), f"text:{tmp_path / 'text.txt'}", length=16)


@pytest.fixture
def resnet(tmp_path: Path) -> Loaded:
    model = models.resnet(20, 0.25, classes=2, seed=0)
    torch.save({"state_dict": model.state_dict()}, tmp_path / "tiny.th")
    rng = np.random.default_rng(0)
    for c in ("cat", "dog"):
        (tmp_path / "images" / "test" / c).mkdir(parents=True)
        for i in range(12):
            image = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
            image.save(tmp_path / "images" / "test" / c / f"{i}.png")
    return Loaded(f"checkpoint:{tmp_path / 'tiny.th'}", f"images:{tmp_path / 'images'}")


def test_a_language_model_gives_geometry_and_counts(neox: Loaded, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert loaded.run(neox, preset="smoke", out=out, max_units=200).parent == out
    records = store.read(out)
    (run,) = [r for r in records if isinstance(r, Run)]
    assert run.suites == ("neox",)
    assert "--model hf:" in run.command
    geometry = [r for r in records if isinstance(r, Geometry)]
    assert [g.module for g in geometry] == ["gpt_neox.layers.1", "gpt_neox.layers.3"]
    assert {(g.n, g.d, g.width, g.depth, g.unit) for g in geometry} == {
        (200, 32, 32, 4, "sequence of 16 bytes")
    }
    counted = [r for r in records if isinstance(r, Misalignment)]
    assert {r.protocol for r in counted} == {"with_replacement", "without_replacement", "fresh"}
    assert all(r.frequency.confidence == pytest.approx(1 - 0.05 / len(counted)) for r in counted)
    # the numbers are those of the same units taken by hand
    target = targets.load(neox.model, neox.data, None, batch_size=16, length=16)
    chosen = np.sort(loaded.rng_of(0, "units").permutation(480)[:200])
    rows = target.batches.arrays[0][chosen]
    at = "gpt_neox.layers.1"
    Q = certify.gradients(target.model, causal_lm, [{"input_ids": rows}], at=[at], positions="sum")[at]
    assert geometry[0].m2.value == pytest.approx(certify.estimate(np.asarray(Q)).m2, rel=1e-4)


def test_a_checkpoint_gives_maps_and_sums(resnet: Loaded, tmp_path: Path) -> None:
    loaded.run(resnet, preset="smoke", out=tmp_path / "run")
    geometry = [r for r in store.read(tmp_path / "run") if isinstance(r, Geometry)]
    assert [(g.module, g.positions) for g in geometry] == [
        (f"layer{s}.2", p) for s in (1, 2, 3) for p in ("flatten", "sum")
    ]
    assert {(g.n, g.width, g.depth, g.suite) for g in geometry} == {(24, 4, 20, "resnet20")}


def test_the_report_shows_a_loaded_network(neox: Loaded, tmp_path: Path) -> None:
    loaded.run(neox, preset="smoke", out=tmp_path / "run", max_units=100)
    page = report.build(report.load(tmp_path / "run"), tmp_path / "report.html").read_text(encoding="utf-8")
    assert "m (loaded), float32" in page


def test_an_interrupted_run_goes_on_with_what_is_missing(
    neox: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"preset": "smoke", "max_units": 100}
    loaded.run(neox, out=tmp_path / "whole", **options)  # type: ignore[arg-type]
    real, asked = loaded._records, []

    def stop(*args: object) -> object:
        if len(asked) == 1:
            raise KeyboardInterrupt
        asked.append(args[1])
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(loaded, "_records", stop)
    with pytest.raises(KeyboardInterrupt):
        loaded.run(neox, out=tmp_path / "cut", **options)  # type: ignore[arg-type]
    monkeypatch.setattr(loaded, "_records", lambda *args: asked.append(args[1]) or real(*args))  # type: ignore[func-returns-value, arg-type]
    loaded.run(neox, out=tmp_path / "cut", **options)  # type: ignore[arg-type]
    assert asked == ["gpt_neox.layers.1", "gpt_neox.layers.3"]
    assert store.fingerprint(store.read(tmp_path / "cut")) == store.fingerprint(
        store.read(tmp_path / "whole")
    )
    loaded.run(neox, out=tmp_path / "cut", **options)  # type: ignore[arg-type]
    assert len(asked) == 2


def test_other_weights_are_another_run(neox: Loaded, tmp_path: Path) -> None:
    loaded.run(neox, preset="smoke", out=tmp_path / "run", max_units=50)
    models.neox(32, 4, length=32, seed=1).eval().save_pretrained(neox.path)  # type: ignore[operator]
    with pytest.raises(ValueError, match="holds another run"):
        loaded.run(neox, preset="smoke", out=tmp_path / "run", max_units=50)


def test_what_cannot_be_validated_is_refused(neox: Loaded, resnet: Loaded, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected text:FILE or images:PATH"):
        Loaded("x", "npz:x")
    with pytest.raises(ValueError, match="expected images:PATH for checkpoint:"):
        loaded.run(Loaded(resnet.model, neox.data), out=tmp_path / "run")
    with pytest.raises(ValueError, match="no such checkpoint"):
        loaded.run(Loaded("checkpoint:none", resnet.data), out=tmp_path / "run")
    with pytest.raises(ValueError, match="preset='x'"):
        loaded.run(neox, preset="x", out=tmp_path / "run")
    with pytest.raises(ValueError, match="max_units=2"):
        loaded.run(neox, max_units=2, out=tmp_path / "run")
    with pytest.raises(ValueError, match="neither a folder nor in the hub's cache"):
        loaded.run(Loaded("nobody/nothing", neox.data), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_line_validates_one_model(
    neox: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--data", "text:text.txt", "--length", "16", "--max-units", "60", "--preset", "smoke"]
    assert cli.main(["validate", "--model", "m", *options, "--dtype", "bfloat16"]) == 0
    records = store.read(tmp_path / "runs" / "loaded")
    assert {r.label for r in records if isinstance(r, Geometry)} == {"m (loaded), bfloat16"}
    assert (tmp_path / "runs" / "loaded" / "report.html").is_file()
    capsys.readouterr()
    for wrong, message in (
        (["--model", "m"], "--data is missing"),
        (["--model", "m", "--data", "text:text.txt", "--suite", "neox"], "--suite: not with --model"),
        (["--dtype", "float32"], "--dtype: only with --model"),
        (
            ["--model", "m", "--data", "text:text.txt", "--revision", "step1"],
            "revision='step1': a folder has",
        ),
    ):
        assert cli.main(["validate", *wrong]) == 2
        assert message in capsys.readouterr().err
