"""Causal language models in Hugging Face format: a folder, or a name and revision in the hub's cache."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

DTYPES = ("float32", "bfloat16", "float16", "float64")
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
_WEIGHTS = ("*.safetensors", "*.bin", "*.json")


def check_options(
    revision: str | None = None, dtype: str | None = None, device_map: str | None = None
) -> None:
    """Refuse what no model can be loaded with.

    Raises
    ------
    ValueError
        For an unknown type or map.
    ImportError
        If a model is to be spread over devices and accelerate is missing.
    """
    if revision is not None and not revision.strip():
        raise ValueError("revision='': expected a branch, tag or commit such as step3000")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: expected one of {', '.join(DTYPES)}")
    if device_map is None:
        return
    if device_map not in ("auto", "balanced", "sequential"):
        raise ValueError(f"device_map={device_map!r}: expected auto, balanced or sequential")
    if importlib.util.find_spec("accelerate") is None:
        raise ImportError(
            f"device_map={device_map!r} spreads a model with accelerate: pip install accelerate"
        )


def language_model(
    path: str,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    device_map: str | None = None,
) -> tuple[Any, Any]:
    """A causal language model in evaluation mode, and its tokenizer or None where it has none.

    The network is never asked: a name must already be in the hub's cache (``hf download NAME --revision R``
    puts it there).  Weights in several files are put together by transformers.

    Parameters
    ----------
    path:
        Folder, or name such as ``EleutherAI/pythia-70m``.
    revision:
        Branch, tag or commit of a name; Pythia's training steps are ``step3000`` and so on.
    dtype:
        Of the weights; None means as they are stored.
    device_map:
        ``auto`` spreads the layers over all devices (accelerate); None loads to the processor.

    Raises
    ------
    ValueError
        If there is no such model, or an option is impossible.
    ImportError
        If transformers, or accelerate for ``device_map``, is missing.
    """
    check_options(revision, dtype, device_map)
    try:
        import transformers
    except ImportError as error:
        raise ImportError("hf: needs transformers: pip install 'gradient-alignment[validation]'") from error
    import torch

    local = Path(path).exists()
    if local and revision is not None:
        raise ValueError(
            f"revision={revision!r}: a folder has no revisions; name the model, or the folder of that step"
        )
    which: dict[str, Any] = {"local_files_only": True}
    if revision is not None:
        which["revision"] = revision
    how: dict[str, Any] = {"dtype": "auto" if dtype is None else getattr(torch, dtype)}
    if device_map is not None:
        how["device_map"] = device_map
    try:
        # Never the network: an unreachable hub costs half a minute of retries before anything is said.
        model = transformers.AutoModelForCausalLM.from_pretrained(path, **which, **how)
    except Exception as error:
        at, option = ("", "") if revision is None else (f" at {revision}", f" --revision {revision}")
        place = f"; neither a folder nor in the hub's cache: run `hf download {path}{option}` once"
        if local:
            place = f" ({type(error).__name__}: {str(error).strip().partition(chr(10))[0]})"
        raise ValueError(f"--model=hf:{path}: no causal language model there{at}{place}") from error
    folder = folder_of(path, revision)
    if not any((folder / f).exists() for f in _TOKENIZERS):
        return model.eval(), None  # transformers would make up an empty tokenizer
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, **which)
    except (OSError, ValueError, KeyError):
        tokenizer = None
    return model.eval(), tokenizer


def layers(model: Any) -> list[str]:
    """Names of the transformer layers: of the longest list of equal modules in the model."""
    from torch import nn

    lists = [
        (len(module), name)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len({type(m) for m in module}) == 1
    ]
    if not lists:
        raise ValueError(f"model={type(model).__name__}: no list of layers found; name modules with at=")
    _, name = max(lists, key=lambda pair: (pair[0], -len(pair[1])))
    return [f"{name}.{i}" for i in range(len(model.get_submodule(name)))]


def folder_of(path: str, revision: str | None = None) -> Path:
    """The folder that holds the files of a model: itself, or its snapshot in the hub's cache."""
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(path, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError) as error:
        raise ValueError(f"model={path!r}: neither a folder nor in the hub's cache") from error


def identity(path: str, revision: str | None = None) -> str:
    """SHA-256 over names and content of the weights, configuration and tokenizer of a model."""
    folder = folder_of(path, revision)
    h = hashlib.sha256()
    for file in sorted({f for pattern in _WEIGHTS for f in folder.glob(pattern)}):
        with open(file, "rb") as stream:
            h.update(f"{file.name}\0{hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return h.hexdigest()
