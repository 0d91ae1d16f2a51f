"""What ``certify measure`` is pointed at: models, data and losses named on the command line."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MODELS = "python:MODULE:FUNCTION, hf:PATH or checkpoint:FILE"
_DATA = "python:MODULE:FUNCTION, text:FILE, images:PATH[:SPLIT[:coarse]] or npz:FILE"
_LOSSES = "classification, causal_lm, regression or python:MODULE:FUNCTION"


@dataclass(frozen=True)
class Target:
    """A model in evaluation mode, its loss and batches of held-out examples."""

    model: Any
    loss: Callable[..., Any] | None
    batches: Any
    unit: str
    """What one example is, in words."""


@dataclass(frozen=True)
class Batches:
    """Slices of arrays of equal length; ``make`` turns the slices into a batch."""

    arrays: tuple[Any, ...]
    size: int
    make: Callable[..., Any]

    @property
    def dataset(self) -> Any:
        """The examples, so that a sweep knows how many there are."""
        return self.arrays[0]

    def __len__(self) -> int:
        return -(-len(self.arrays[0]) // self.size)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self.arrays[0]), self.size):
            yield self.make(*(a[start : start + self.size] for a in self.arrays))


def split_spec(option: str, spec: str, expected: str) -> tuple[str, str]:
    """'kind:rest' in two.

    >>> split_spec("--model", "hf:models/pythia", "hf:PATH")
    ('hf', 'models/pythia')
    """
    kind, colon, rest = spec.partition(":")
    if not colon or not rest:
        raise ValueError(f"{option}={spec!r}: expected {expected}")
    return kind, rest


@contextlib.contextmanager
def reading(what: str, *, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Say of an error in the user's code or file where it comes from.

    Raises
    ------
    ValueError
        From any error that is not of a type in ``passing``.
    """
    try:
        yield
    except passing:
        raise
    except Exception as error:
        raise ValueError(f"{what}: {type(error).__name__}: {error}; --debug shows the traceback") from error


def _made(option: str, spec: str, rest: str) -> Any:
    """What a function of the user's returns, or the object itself if it is none."""
    found = named(option, rest)
    if _is_module(found) or not callable(found):
        return found
    with reading(f"{option}={spec}: your function failed"):
        return found()


def named(option: str, rest: str) -> Any:
    """The object MODULE:NAME, imported with the current folder on the path.

    Raises
    ------
    ValueError
        If the module or the name does not exist.
    """
    module_name, colon, name = rest.partition(":")
    if not colon or not name:
        raise ValueError(f"{option}=python:{rest}: expected python:MODULE:FUNCTION")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with reading(f"{option}=python:{rest}: importing {module_name!r} failed"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is not None and not f"{module_name}.".startswith(f"{error.name}."):
                raise
            module = None
    if module is None:
        raise ValueError(
            f"{option}=python:{rest}: no module {module_name!r}; run from its folder or install it"
        )
    found = getattr(module, name, None)
    if found is None:
        own = [n for n, value in vars(module).items() if not n.startswith("_") and callable(value)]
        close = difflib.get_close_matches(name, own, cutoff=0.5) or own[:5]
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise ValueError(f"{option}=python:{rest}: module {module_name!r} has no {name!r}{hint}")
    return found


def load(
    model: str,
    data: str | None,
    loss: str | None,
    *,
    batch_size: int,
    length: int,
    revision: str | None = None,
    dtype: str | None = None,
    device_map: str | None = None,
) -> Target:
    """The target that the options describe; ``revision``, ``dtype``, ``device_map`` are of an hf: model.

    Raises
    ------
    ValueError
        For a specification that cannot be read, with what was expected.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: expected at least 1")
    kind, rest = split_spec("--model", model, _MODELS)
    asked = {"--revision": revision, "--dtype": dtype, "--device-map": device_map}
    if kind != "hf" and (useless := [name for name, value in asked.items() if value is not None]):
        raise ValueError(f"{', '.join(useless)}: only for a model hf:PATH, not for {kind}:")
    given_loss: Any = None
    batches: Any = None
    tokenizer = None
    if kind == "python":
        made = _made("--model", model, rest)
        if isinstance(made, tuple):
            if len(made) != 3:
                raise ValueError(f"--model={model}: a function may return a model or (model, loss, batches)")
            made, given_loss, batches = made
    elif kind == "hf":
        from validation.pretrained import language_model

        made, tokenizer = language_model(rest, revision=revision, dtype=dtype, device_map=device_map)
    elif kind == "checkpoint":
        from validation.models import load_resnet

        if not Path(rest).is_file():
            raise ValueError(f"--model={model}: no such checkpoint; expected checkpoint:FILE")
        try:
            made = load_resnet(rest)
        except Exception as error:  # torch would advise to run what is in the file
            why = f" ({error})" if isinstance(error, ValueError) else ""
            raise ValueError(
                f"--model={model}: not a checkpoint of a CIFAR ResNet{why}; expected torch.save of a "
                "dictionary with 'state_dict'"
            ) from error
    else:
        raise ValueError(f"--model={model!r}: expected {_MODELS}")
    if not _is_module(made):
        raise ValueError(f"--model={model!r}: expected a torch.nn.Module, got {type(made).__name__}")
    usual, unit = None, "example"
    if data is not None:
        with reading(f"--data={data}", passing=(ValueError, TypeError, OSError, ImportError)):
            batches, usual, unit = _data(data, batch_size, length, tokenizer, made)
    if hasattr(batches, "__getitem__") and not isinstance(batches, Iterable):
        from torch.utils.data import DataLoader

        batches = DataLoader(batches, batch_size=batch_size)  # a data set of single examples
    if loss is not None or given_loss is None:
        given_loss = _loss(loss or usual)
    return Target(made, given_loss, batches, unit)


def _is_module(value: Any) -> bool:
    import torch

    return isinstance(value, torch.nn.Module)


def _loss(name: str | None) -> Callable[..., Any] | None:
    from certify import losses

    if name is None:
        return None
    if name in ("classification", "causal_lm", "regression"):
        return getattr(losses, name)
    kind, rest = split_spec("--loss", name, _LOSSES)
    if kind != "python":
        raise ValueError(f"--loss={name!r}: expected {_LOSSES}")
    return named("--loss", rest)


def _data(spec: str, size: int, length: int, tokenizer: Any, model: Any) -> tuple[Any, str | None, str]:
    """Batches, the loss that usually goes with them, and what one unit is."""
    kind, rest = split_spec("--data", spec, _DATA)
    if kind == "python":
        return _made("--data", spec, rest), None, "example"
    if kind == "npz":
        return _arrays(rest, size)
    if kind == "images":
        return _images(rest, size)
    if kind == "text":
        return _text(rest, size, length, tokenizer, model)
    raise ValueError(f"--data={spec!r}: expected {_DATA}")


def _arrays(path: str, size: int) -> tuple[Any, str, str]:
    import numpy as np
    import torch

    if not Path(path).is_file():
        raise ValueError(f"--data=npz:{path}: no such file")
    try:
        stored = np.load(path, allow_pickle=False)
        found = {k: stored[k] for k in stored} if hasattr(stored, "files") else {"a single array": stored}
    except Exception as error:  # numpy would advise to allow pickled objects
        raise ValueError(
            f"--data=npz:{path}: not an npz file of plain arrays; write one with "
            f"numpy.savez({path!r}, x=..., y=...)"
        ) from error
    if not {"x", "y"} <= set(found):
        raise ValueError(f"--data=npz:{path}: expected arrays x and y, found {', '.join(found) or 'none'}")
    x, y = found["x"], found["y"]
    if wrong := [k for k in ("x", "y") if found[k].dtype.kind not in "fiub" or not found[k].ndim]:
        raise ValueError(
            f"--data=npz:{path}: {wrong[0]} is {found[wrong[0]].dtype}: expected an array of numbers"
        )
    if len(x) != len(y) or not len(x):
        raise ValueError(
            f"--data=npz:{path}: x has {len(x)} examples and y {len(y)}: expected the same, at least one"
        )
    labels = np.issubdtype(y.dtype, np.integer)
    first = torch.from_numpy(x.astype(np.float32) if np.issubdtype(x.dtype, np.floating) else x)
    second = torch.from_numpy(y.astype(np.int64 if labels else np.float32))
    usual = "classification" if labels else "regression"
    return Batches((first, second), size, lambda a, b: (a, b)), usual, "example"


def _images(rest: str, size: int) -> tuple[Any, str, str]:
    import numpy as np

    from validation.data import CIFAR_MEAN, CIFAR_STD, images

    path, split, labels = rest, "test", "fine"
    if not Path(path).exists():
        head, colon, last = path.rpartition(":")
        if colon and last in ("fine", "coarse"):
            path, labels = head, last
        head, colon, last = path.rpartition(":")
        if colon and not Path(path).exists():
            path, split = head, last
    found = images(path, split, labels=labels)
    # A tree comes class by class: the first units of it would all be of one class.
    mixed = found.take(np.random.default_rng(0).permutation(len(found)))
    found = mixed.normalised(CIFAR_MEAN, CIFAR_STD)
    return Batches((found.images, found.labels), size, lambda a, b: (a, b)), "classification", "image"


def _text(path: str, size: int, length: int, tokenizer: Any, model: Any) -> tuple[Any, str, str]:
    import torch

    if length < 2:
        raise ValueError(f"length={length}: expected at least 2 tokens, one to predict from another")
    if not Path(path).is_file():
        raise ValueError(f"--data=text:{path}: no such file")
    content = Path(path).read_bytes()
    if tokenizer is None:
        vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
        if vocabulary != 256:
            raise ValueError(
                f"--data=text:{path}: the model has no tokenizer beside it and {vocabulary} tokens; a model "
                "of bytes has 256; save its tokenizer in the same folder"
            )
        tokens = torch.frombuffer(bytearray(content), dtype=torch.uint8).long()
    else:
        ids = tokenizer(content.decode("utf-8", errors="replace"), add_special_tokens=False, verbose=False)
        tokens = torch.tensor(ids["input_ids"], dtype=torch.long)
    config = getattr(model, "config", None)
    longest, known = (getattr(config, k, None) for k in ("max_position_embeddings", "vocab_size"))
    if isinstance(longest, int) and length > longest:
        raise ValueError(f"length={length}: the model reads at most {longest} tokens")
    if isinstance(known, int) and len(tokens) and int(tokens.max()) >= known:
        raise ValueError(f"--data=text:{path}: the tokenizer gives tokens the model does not have ({known})")
    rows = tokens[: len(tokens) // length * length].reshape(-1, length)
    if len(rows) < 4:
        raise ValueError(
            f"--data=text:{path}: {len(tokens)} tokens make {len(rows)} sequences of {length}: expected 4"
        )
    what = "bytes" if tokenizer is None else "tokens"
    batches = Batches((rows,), size, lambda ids: {"input_ids": ids, "labels": ids})
    return batches, "causal_lm", f"sequence of {length} {what}"
