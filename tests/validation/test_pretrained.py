"""Language models in Hugging Face format: saved, loaded back by path or cached name, same gradients."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import certify
from certify.losses import causal_lm
from validation import cli, models, pretrained, targets

TEXT = "the quick brown fox jumps over the lazy dog; " * 40


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def _neox(seed: int = 0, vocabulary: int = 256) -> torch.nn.Module:
    return models.neox(32, 3, length=32, seed=seed, vocabulary=vocabulary).eval()


def _llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        bos_token_id=None,
        eos_token_id=None,
    )
    with models.seeded_init(1):
        return LlamaForCausalLM(config).eval()


def _tokenizer(folder: Path) -> None:
    """A real byte-level tokenizer with merges, learned from the text."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator([TEXT], vocab_size=280, min_frequency=2)
    PreTrainedTokenizerFast(tokenizer_object=learned._tokenizer).save_pretrained(folder)


def _text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def _same_gradients(target: targets.Target, model: torch.nn.Module, at: list[str]) -> None:
    assert target.loss is not None
    found = certify.gradients(target.model, target.loss, target.batches, at=at, positions="sum")
    expected = certify.gradients(model, causal_lm, target.batches, at=at, positions="sum")
    for name in at:
        assert np.asarray(found[name]).any()
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("kind", ["neox", "llama"])
def test_a_saved_model_gives_the_gradients_it_had(kind: str, tmp_path: Path) -> None:
    model = _neox() if kind == "neox" else _llama()
    model.save_pretrained(tmp_path / "m")  # type: ignore[operator]
    target = targets.load(f"hf:{tmp_path / 'm'}", f"text:{_text(tmp_path)}", None, batch_size=8, length=16)
    assert target.unit == "sequence of 16 bytes"
    assert not target.model.training
    at = pretrained.layers(target.model)
    assert at == [f"{'gpt_neox' if kind == 'neox' else 'model'}.layers.{i}" for i in range(len(at))]
    _same_gradients(target, model, at)


def test_a_tokenizer_beside_the_model_cuts_the_text(tmp_path: Path) -> None:
    model = _neox(vocabulary=300)
    model.save_pretrained(tmp_path / "m")  # type: ignore[operator]
    _tokenizer(tmp_path / "m")
    target = targets.load(f"hf:{tmp_path / 'm'}", f"text:{_text(tmp_path)}", None, batch_size=8, length=16)
    assert target.unit == "sequence of 16 tokens"
    rows = target.batches.arrays[0]
    assert 0 < rows.shape[0] * 16 < len(TEXT) / 1.2
    _, tokenizer = pretrained.language_model(str(tmp_path / "m"))
    assert TEXT.startswith(tokenizer.decode(rows.flatten().tolist()))
    _same_gradients(target, model, ["gpt_neox.layers.1"])


def test_weights_in_several_files_are_put_together(tmp_path: Path) -> None:
    model = _neox()
    model.save_pretrained(tmp_path / "m", max_shard_size="30KB")  # type: ignore[operator]
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 2
    loaded, _ = pretrained.language_model(str(tmp_path / "m"))
    state = model.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in loaded.state_dict().items())
    before = pretrained.identity(str(tmp_path / "m"))
    last = sorted((tmp_path / "m").glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-1] + b"\x01")
    assert pretrained.identity(str(tmp_path / "m")) != before


def _cached(cache: Path, name: str, revision: str, commit: str, model: torch.nn.Module) -> None:
    place = cache / f"models--{name.replace('/', '--')}"
    model.save_pretrained(place / "snapshots" / commit)  # type: ignore[operator]
    (place / "refs").mkdir(exist_ok=True)
    (place / "refs" / revision).write_text(commit, encoding="utf-8")


def test_a_revision_is_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    steps = {"main": _neox(0), "step3000": _neox(1)}
    for letter, (revision, model) in zip("ab", steps.items(), strict=True):
        _cached(tmp_path, "x/tiny", revision, letter * 40, model)
    for revision, model in steps.items():
        loaded, tokenizer = pretrained.language_model("x/tiny", revision=revision)
        state = model.state_dict()
        assert all(torch.equal(v, state[k]) for k, v in loaded.state_dict().items())
        assert tokenizer is None
    assert pretrained.identity("x/tiny", "main") != pretrained.identity("x/tiny", "step3000")
    assert pretrained.identity("x/tiny") == pretrained.identity("x/tiny", "main")
    with pytest.raises(ValueError, match=r"at step9; .*run `hf download x/tiny --revision step9` once"):
        pretrained.language_model("x/tiny", revision="step9")


def test_bfloat16_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = _neox()
    model.save_pretrained(tmp_path / "m")  # type: ignore[operator]
    _text(tmp_path)
    monkeypatch.chdir(tmp_path)
    base = ["measure", "--model", "hf:m", "--data", "text:text.txt", "--length", "16", "--json"]
    options = ["--at", "gpt_neox.layers.1", "--device", "auto", "--M", "8", "--K", "8"]
    found = {}
    for dtype in ("float32", "bfloat16"):
        assert cli.main([*base, *options, "--dtype", dtype]) == 0
        found[dtype] = json.loads(capsys.readouterr().out)["certificates"]["gpt_neox.layers.1"]
    assert [c["dtype"] for c in found.values()] == ["float32", "bfloat16"]
    exact, rounded = (c["d_par"]["estimate"] for c in found.values())
    assert rounded == pytest.approx(exact, rel=0.2)
    assert rounded != exact


def test_device_map_needs_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _neox().save_pretrained(tmp_path / "m")  # type: ignore[operator]
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "accelerate" else real(n))
    with pytest.raises(ImportError, match="accelerate: pip install accelerate"):
        pretrained.language_model(str(tmp_path / "m"), device_map="auto")


def test_a_mapped_model_gives_the_same_gradients(tmp_path: Path) -> None:
    model = _neox()
    model.save_pretrained(tmp_path / "m")  # type: ignore[operator]
    options = {"batch_size": 8, "length": 16, "device_map": "auto"}
    target = targets.load(f"hf:{tmp_path / 'm'}", f"text:{_text(tmp_path)}", None, **options)  # type: ignore[arg-type]
    _same_gradients(target, model, ["gpt_neox.layers.1"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype='int8': expected one of float32"),
        ({"device_map": "cuda"}, "device_map='cuda': expected auto"),
        ({"revision": " "}, "revision='': expected"),
        ({"revision": "step1"}, "revision='step1': a folder has no revisions"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        pretrained.language_model(str(tmp_path), **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dtype", "int8", "--device", "cpu", "--device-map", "auto"], "expected one of float32, bfloat16"),
        (["--device", "cpu", "--device-map", "auto"], "device='cpu', device_map='auto': give one of them"),
        (["--length", "64"], "length=64: the model reads at most 32 tokens"),
        (["--revision", "step3"], "a folder has no revisions"),
    ],
)
def test_mistakes_on_the_command_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _neox().save_pretrained(tmp_path / "m")  # type: ignore[operator]
    _text(tmp_path)
    monkeypatch.chdir(tmp_path)
    at = ["--at", "gpt_neox.layers.1"]
    assert cli.main(["measure", "--model", "hf:m", "--data", "text:text.txt", *at, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_options_of_language_models_are_refused_for_others() -> None:
    with pytest.raises(ValueError, match="--revision, --dtype: only for a model hf:PATH, not for checkpoint"):
        targets.load("checkpoint:x", None, None, batch_size=1, length=2, revision="a", dtype="float32")
