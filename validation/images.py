"""Labelled images on disk: the official CIFAR files, or a tree of image files, also inside a tar."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast, get_args

import numpy as np
import torch

from validation import cifar
from validation.sets import ImageSet, digest

_ENDINGS = (".jpg", ".jpeg", ".png")
_BROKEN = (tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)


def images(path: str | Path, split: str, *, labels: str = "fine", per_class: int | None = None) -> ImageSet:
    """Labelled images from ``path``, whichever of the known forms it has; values in [0, 1].

    ==================================  ==============================================================
    form                                what ``path`` may be
    ==================================  ==============================================================
    CIFAR-10 or -100, Python version    ``cifar-10-batches-py``, ``cifar-100-python``, a folder above
                                        one of them, or the ``.tar.gz`` itself
    CIFAR-10 or -100, binary version    ``cifar-10-batches-bin``, ``cifar-100-binary``, likewise
    image tree ``SPLIT/CLASS/FILE``     a folder, or a tar file (also compressed) with such names;
                                        JPEG or PNG, all of one size
    ==================================  ==============================================================

    Nothing is unpacked to disk and nothing in a file is executed.

    Parameters
    ----------
    path:
        File or folder.
    split:
        ``train`` or ``test``; of an image tree, any folder name.
    labels:
        ``fine``, or ``coarse`` for the 20 superclasses of CIFAR-100.
    per_class:
        Keep the first so many of every class.

    Raises
    ------
    ValueError
        If nothing is there, the form is unknown or not unique, or a file is damaged, cut off or of a wrong
        size.
    ImportError
        If image files are to be decoded and Pillow is missing.
    """
    path = Path(path)
    if labels not in get_args(cifar.Labels):
        raise ValueError(f"labels={labels!r}: expected fine or coarse")
    if per_class is not None and per_class < 1:
        raise ValueError(f"per_class={per_class}: expected at least 1")
    if not path.exists():
        raise ValueError(f"path={str(path)!r}: nothing there; expected a folder or a tar file of images")
    source = _Tar(path) if path.is_file() else _Folder(path)
    found = _official(source)
    if found is None:
        if labels != "fine":
            raise ValueError(f"labels={labels!r}: only CIFAR-100 has them, {path.name} is a tree of images")
        return _tree(source, split, per_class)
    layout, folder = found
    read: list[bytes] = []
    wanted = [f"{folder}{f}" for f in (*layout.splits.get(split, ()), *sorted({*layout.names.values()}))]
    blobs = dict(source.read(wanted))

    def load(file: str) -> bytes:
        blob = blobs.get(f"{folder}{file}")
        if blob is None:
            raise ValueError(f"path={str(path)!r}: {layout.name} lacks its file {file}; copy it again")
        read.extend((file.encode(), blob))
        return blob

    try:
        pixels, y, classes = cifar.read(layout, load, split, cast(cifar.Labels, labels))
    except ValueError as error:
        raise ValueError(f"path={str(path)!r}: {error}") from error
    identity = digest(*read)
    blobs.clear()
    read.clear()
    if per_class is not None:
        keep = _first(y, per_class, classes)
        pixels, y = pixels[keep], y[keep]
    name = f"{layout.name}:{split}" + ("" if layout.name == "CIFAR-10" else f", {labels} labels")
    return ImageSet(name, _scaled(pixels), torch.from_numpy(y), classes, identity, cifar.LICENCE)


def image_tree(path: str | Path, split: str, per_class: int | None = None) -> ImageSet:
    """Images from ``split/<class>/<file>`` inside a folder or a tar file, which is read without unpacking.

    Classes in alphabetical order are labels 0, 1, ...; within a class files are taken in order of their
    names, the first ``per_class`` of them. Values are scaled to [0, 1]; all images must have one size.

    Raises
    ------
    ValueError
        If there is nothing at ``path``, no image under ``split``, too few in a class, images differ in
        size, or one cannot be decoded.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(f"path={str(path)!r}: nothing there; expected a folder or a tar file of images")
    return _tree(_Tar(path) if path.is_file() else _Folder(path), split, per_class)


def _tree(source: _Tar | _Folder, split: str, per_class: int | None) -> ImageSet:
    name = source.path.name
    files = _chosen(source.images(split), split, per_class)
    if not files:
        raise ValueError(f"split={split!r}: no images under {split}/<class>/ in {name}")
    classes = tuple(sorted({f.split("/")[-2] for f in files}))
    label = {c: i for i, c in enumerate(classes)}
    y = np.array([label[f.split("/")[-2]] for f in files], dtype=np.int64)
    if per_class is not None:
        _first(y, per_class, classes)
    place = {f: i for i, f in enumerate(files)}
    hashes = [""] * len(files)
    pixels: np.ndarray | None = None
    for file, blob in source.read(files):  # one image in memory at a time beside the result
        image = _decode(file, blob)
        if pixels is None:
            pixels = np.empty((len(files), *image.shape), dtype=np.uint8)
        if image.shape != pixels.shape[1:]:
            sizes = ", ".join(f"{w} x {h}" for h, w, _ in (pixels.shape[1:], image.shape))
            raise ValueError(f"images of {name} differ in size ({sizes}): expected one size; {file}")
        pixels[place[file]] = image
        hashes[place[file]] = digest(file.encode(), blob)
    assert pixels is not None
    identity = digest(*(h.encode() for h in hashes))
    licence = "as the owner of the file states"
    return ImageSet(
        f"{name}:{split}",
        _scaled(pixels.transpose(0, 3, 1, 2)),
        torch.from_numpy(y),
        classes,
        identity,
        licence,
    )


def _scaled(pixels: np.ndarray) -> torch.Tensor:
    """Bytes to float32 in [0, 1]; a slice at a time, so that no second array of floats is made."""
    out = np.empty(pixels.shape, dtype=np.float32)
    for start in range(0, len(pixels), 1024):
        part = slice(start, start + 1024)
        np.divide(pixels[part], np.float32(255), out=out[part])
    return torch.from_numpy(out)


def _first(y: np.ndarray, per_class: int, classes: Sequence[str]) -> np.ndarray:
    """Indices, in order, of the first ``per_class`` examples of every class."""
    found = [np.flatnonzero(y == i) for i in range(len(classes))]
    short = [c for c, at in zip(classes, found, strict=True) if len(at) < per_class]
    if short:
        raise ValueError(f"per_class={per_class}: fewer images than that in {', '.join(short[:10])}")
    return np.sort(np.concatenate([at[:per_class] for at in found]))


def _chosen(names: Iterable[str], split: str, per_class: int | None) -> list[str]:
    chosen: dict[str, list[str]] = {}
    for name in sorted(names):
        parts = name.split("/")
        if len(parts) >= 3 and parts[-3] == split and name.lower().endswith(_ENDINGS):
            chosen.setdefault(parts[-2], []).append(name)
    return [name for c in sorted(chosen) for name in chosen[c][:per_class]]


def _official(source: _Tar | _Folder) -> tuple[cifar.Layout, str] | None:
    """The official distribution that lies there and the folder it is in, or None."""
    found = [
        (layout, folder)
        for folder, names in source.folders()
        for layout in cifar.LAYOUTS
        if layout.marks & names and any(n in names for n in layout.names.values())
    ]
    if len(found) > 1:
        places = ", ".join(f"{layout.name} in {folder or '.'}" for layout, folder in found)
        raise ValueError(f"path={str(source.path)!r}: more than one data set ({places}): name one of them")
    return found[0] if found else None


@dataclass(frozen=True)
class _Folder:
    path: Path

    def folders(self) -> Iterator[tuple[str, frozenset[str]]]:
        """This folder and those directly in it, with the files in each."""
        for folder in (self.path, *sorted(p for p in self.path.iterdir() if p.is_dir())):
            prefix = "" if folder == self.path else f"{folder.name}/"
            yield prefix, frozenset(p.name for p in folder.iterdir() if p.is_file())

    def images(self, split: str) -> list[str]:
        """Files in the folders of a split."""
        return [p.relative_to(self.path).as_posix() for p in self.path.glob(f"{split}/*/*")]

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Content of those of the files that exist."""
        for name in names:
            if (self.path / name).is_file():
                yield name, (self.path / name).read_bytes()


class _Tar:
    def __init__(self, path: Path) -> None:
        self.path = path
        with self._opened() as tar:
            self.members = {m.name.removeprefix("./"): m for m in tar if m.isreg() and not m.issparse()}
            while tar.fileobj is not None and tar.fileobj.read(1 << 20):
                pass  # to the end: only there does a compressed file's checksum tell of damage

    @contextmanager
    def _opened(self) -> Iterator[tarfile.TarFile]:
        try:
            with tarfile.open(self.path) as tar:
                yield tar
        except _BROKEN as error:
            raise ValueError(
                f"path={str(self.path)!r}: expected a tar file of images; damaged, cut off or another file "
                f"({error or type(error).__name__})"
            ) from error

    def folders(self) -> Iterator[tuple[str, frozenset[str]]]:
        """Folders inside that hold files of an official distribution."""
        marks = frozenset(f for layout in cifar.LAYOUTS for f in (*layout.marks, *layout.names.values()))
        inside: dict[str, set[str]] = {}
        for name in self.members:
            folder, slash, file = name.rpartition("/")
            if file in marks:
                inside.setdefault(folder + slash, set()).add(file)
        yield from ((folder, frozenset(files)) for folder, files in sorted(inside.items()))

    def images(self, split: str) -> list[str]:
        """All files; their names tell the split."""
        return list(self.members)

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Content of those of the files that exist, in one forward pass: compressed files cannot go back."""
        wanted = sorted((n for n in names if n in self.members), key=lambda n: self.members[n].offset)
        with self._opened() as tar:
            assert tar.fileobj is not None
            for name in wanted:
                member = self.members[name]
                tar.fileobj.seek(member.offset_data)
                blob = tar.fileobj.read(member.size)
                if len(blob) != member.size:
                    raise ValueError(f"path={str(self.path)!r}: cut off inside {name}; copy it again")
                yield name, blob


@cache
def _decoder() -> Callable[[bytes], np.ndarray]:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "reading images needs Pillow: pip install 'gradient-alignment[validation]'"
        ) from error

    def decode(blob: bytes) -> np.ndarray:
        with Image.open(io.BytesIO(blob), formats=("JPEG", "PNG")) as image:
            return np.asarray(image.convert("RGB"))

    return decode


def _decode(file: str, blob: bytes) -> np.ndarray:
    decode = _decoder()
    try:
        return decode(blob)
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and errors of its own
        raise ValueError(f"{file}: cannot be decoded as JPEG or PNG ({str(error)[:80]})") from error
