"""CIFAR-10 and CIFAR-100 from the official files: Python pickles or binary records, nothing executed.

The pickles are read by an unpickler that knows arrays of bytes, numbers, strings, lists and dictionaries and
refuses everything else; it never calls a function that the file names.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

PIXELS = 3 * 32 * 32
Labels = Literal["fine", "coarse"]
LICENCE = "none stated by the authors (Krizhevsky 2009); research use, cite the technical report"


@dataclass(frozen=True)
class Layout:
    """Files of one official distribution: those of each split, and those that name the classes."""

    name: str
    splits: Mapping[str, tuple[str, ...]]
    names: Mapping[Labels, str]
    binary: bool

    @property
    def marks(self) -> frozenset[str]:
        """Files that, lying in one folder, show this distribution."""
        return frozenset(f for files in self.splits.values() for f in files)

    @property
    def label_bytes(self) -> int:
        """Bytes before the pixels of a binary record."""
        return len(self.names)


def _ten(end: str, names: str, binary: bool) -> Layout:
    train = tuple(f"data_batch_{i}{end}" for i in range(1, 6))
    return Layout("CIFAR-10", {"train": train, "test": (f"test_batch{end}",)}, {"fine": names}, binary)


LAYOUTS = (
    _ten("", "batches.meta", False),
    _ten(".bin", "batches.meta.txt", True),
    Layout("CIFAR-100", {"train": ("train",), "test": ("test",)}, {"coarse": "meta", "fine": "meta"}, False),
    Layout(
        "CIFAR-100",
        {"train": ("train.bin",), "test": ("test.bin",)},
        {"coarse": "coarse_label_names.txt", "fine": "fine_label_names.txt"},
        True,
    ),
)


def read(
    layout: Layout, load: Callable[[str], bytes], split: str, labels: Labels = "fine"
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Pixels (n, 3, 32, 32) uint8, labels (n,) int64 and the names of the classes.

    Parameters
    ----------
    layout:
        Which of :data:`LAYOUTS` the files have.
    load:
        Content of a file of that distribution, by its name.
    split:
        ``train`` or ``test``.
    labels:
        ``fine`` (10 or 100 classes) or, for CIFAR-100, ``coarse`` (20).

    Raises
    ------
    ValueError
        For an unknown split or kind of labels, and for files that are damaged, cut off or of another size.
    """
    if split not in layout.splits:
        raise ValueError(f"split={split!r}: {layout.name} has {' and '.join(layout.splits)}")
    if labels not in layout.names:
        raise ValueError(f"labels={labels!r}: {layout.name} has {' and '.join(layout.names)}")
    classes = _class_names(layout, load, labels)
    parts = []
    for file in layout.splits[split]:
        take = _records if layout.binary else _pickled
        pixels, y = take(layout, file, load(file), labels)
        if len(y) and not 0 <= y.min() <= y.max() < len(classes):
            raise ValueError(f"{file}: labels from {y.min()} to {y.max()}, but {len(classes)} classes")
        parts.append((pixels, y))
    sizes = [len(y) for _, y in parts]
    if len(set(sizes)) > 1:  # the official files of a split are equally long: one of these was cut off
        found = ", ".join(f"{f}: {n}" for f, n in zip(layout.splits[split], sizes, strict=True))
        raise ValueError(f"files of {layout.name} {split} differ in length ({found}): copy them again")
    pixels, y = (np.concatenate(column) for column in zip(*parts, strict=True))
    return pixels.reshape(-1, 3, 32, 32), y, classes


def _class_names(layout: Layout, load: Callable[[str], bytes], labels: Labels) -> tuple[str, ...]:
    file = layout.names[labels]
    if layout.binary:
        names = load(file).decode("utf-8", errors="replace").split()
    else:
        content = loads(load(file), file)
        key = b"label_names" if layout.name == "CIFAR-10" else f"{labels}_label_names".encode()
        entries = content.get(key)
        if not isinstance(entries, list) or not all(isinstance(e, (bytes, str)) for e in entries):
            raise ValueError(f"{file}: expected a list {key.decode()!r} of the classes' names")
        names = [e.decode("utf-8", errors="replace") if isinstance(e, bytes) else e for e in entries]
    if not names:
        raise ValueError(f"{file}: names no classes")
    return tuple(names)


def _records(layout: Layout, file: str, blob: bytes, labels: Labels) -> tuple[np.ndarray, np.ndarray]:
    size = layout.label_bytes + PIXELS
    if not blob or len(blob) % size:
        raise ValueError(
            f"{file}: {len(blob)} bytes are not whole {layout.name} records of {size}; it is cut off, or "
            "another file"
        )
    rows = np.frombuffer(blob, dtype=np.uint8).reshape(-1, size)
    column = list(layout.names).index(labels)  # the coarse label comes first
    return rows[:, layout.label_bytes :], rows[:, column].astype(np.int64)


def _pickled(layout: Layout, file: str, blob: bytes, labels: Labels) -> tuple[np.ndarray, np.ndarray]:
    content = loads(blob, file)
    key = b"labels" if layout.name == "CIFAR-10" else f"{labels}_labels".encode()
    pixels, y = content.get(b"data"), content.get(key)
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != PIXELS or not len(pixels):
        shape = pixels.shape if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise ValueError(f"{file}: data is {shape}: expected an array of bytes (n, {PIXELS})")
    if not isinstance(y, list) or not all(type(v) is int for v in y):
        raise ValueError(f"{file}: expected a list {key.decode()!r} of whole numbers")
    if len(y) != len(pixels):
        raise ValueError(f"{file}: {len(pixels)} images and {len(y)} labels: expected the same number")
    return pixels, np.array(y, dtype=np.int64)


# -- pickles -----------------------------------------------------------------------------------------


def loads(blob: bytes, file: str) -> dict[bytes, Any]:
    """The dictionary in a pickle of Python 2 or 3, keys as bytes, with arrays of bytes only.

    Raises
    ------
    ValueError
        If the pickle is damaged, cut off, or holds anything else.
    """
    try:
        content = _Unpickler(io.BytesIO(blob), encoding="bytes").load()
        if not isinstance(content, dict):
            raise ValueError(f"holds {type(content).__name__}, not a dictionary")
        return {k.encode() if isinstance(k, str) else k: _array_of(v) for k, v in content.items()}
    except Exception as error:  # a damaged pickle raises almost anything
        why = str(error) or type(error).__name__
        raise ValueError(f"{file}: not an official pickle, damaged or cut off ({why})") from error


class _Type:
    """Stands for a NumPy type; only bytes are accepted, and what the file wants to set on it is ignored."""

    def __init__(self, name: Any, *_: Any) -> None:
        if name not in ("u1", b"u1", "|u1", b"|u1", "uint8"):
            raise pickle.UnpicklingError(f"an array of {name!r} instead of bytes")

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment mean nothing for bytes."""


class _Array:
    """Stands for a NumPy array until it is complete: NumPy itself never sees what is not checked."""

    content: np.ndarray

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        self._fill(raw, kind, shape, "F" if fortran else "C")

    def _fill(self, raw: Any, kind: Any, shape: Any, order: Literal["C", "F"]) -> None:
        if not isinstance(kind, _Type) or not isinstance(raw, (bytes, bytearray)):
            raise pickle.UnpicklingError("an array that is not of bytes")
        self.content = np.frombuffer(raw, dtype=np.uint8).reshape(shape, order=order)


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _from_buffer(raw: Any, kind: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array._fill(raw, kind, shape, "F" if order in ("F", b"F") else "C")
    return array


def _latin1(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1", "latin-1"):
        raise pickle.UnpicklingError("a text in an unknown encoding")
    return text.encode("latin-1")


class _ArrayType:
    """Stands for numpy.ndarray, which the files name as an argument."""


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _ArrayType,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _latin1,  # how Python 3 writes bytes for Python 2
    **{(f"numpy.{c}.multiarray", "_reconstruct"): _reconstruct for c in ("core", "_core")},
    **{(f"numpy.{c}.numeric", "_frombuffer"): _from_buffer for c in ("core", "_core")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """A stand-in for the few names that arrays need; nothing is imported."""
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not executed") from None


def _array_of(value: Any) -> Any:
    return getattr(value, "content", None) if isinstance(value, _Array) else value
