"""Official CIFAR files: the real formats written here, read from folders and archives, damage refused."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import struct
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from validation import cifar, data, targets

FOLDER = Path(os.environ.get("GRADIENT_ALIGNMENT_DATA", Path(__file__).parents[3] / "shared" / "data"))
TEN = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FINE, COARSE = [f"fine_{i}" for i in range(100)], [f"coarse_{i}" for i in range(20)]
N = 4  # images in a file


def _pixels(file: int) -> np.ndarray:
    return np.random.default_rng(file).integers(0, 256, (N, 3072), dtype=np.uint8)


def _labels(file: int, classes: int = 10) -> list[int]:
    return np.random.default_rng(100 + file).integers(0, classes, N).tolist()


def _python2(content: dict[bytes, object]) -> bytes:
    """A pickle as Python 2 wrote it: bytes as its strings, arrays by numpy.core.multiarray."""
    return _as_python2(content) + b"."


def _as_python2(value: object) -> bytes:
    if isinstance(value, dict):
        items = b"".join(_as_python2(k) + _as_python2(v) for k, v in value.items())
        return b"\x80\x02}(" + items + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_as_python2, value)) + b"e"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    assert isinstance(value, np.ndarray)
    shape = b"(" + b"".join(_as_python2(n) for n in value.shape) + b"t"
    dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01" + shape + dtype + b"\x89" + _as_python2(value.tobytes()) + b"tb"
    return b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR" + state


def _python3(content: dict[bytes, object]) -> bytes:
    return pickle.dumps({k.decode(): v for k, v in content.items()}, protocol=2)


def _names(words: list[str]) -> list[bytes]:
    return [w.encode() for w in words]


def _write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, blob in files.items():
        (folder / name).write_bytes(blob)
    return folder


def _ten_python(dump: Callable[[dict[bytes, object]], bytes] = _python2) -> dict[str, bytes]:
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    files = {n: dump({b"data": _pixels(i), b"labels": _labels(i)}) for i, n in enumerate(names)}
    return files | {"batches.meta": _python2({b"label_names": _names(TEN), b"num_vis": 3072})}


def _ten_binary() -> dict[str, bytes]:
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    files = {n: _records([_labels(i)], _pixels(i)) for i, n in enumerate(names)}
    return files | {"batches.meta.txt": ("\n".join(TEN) + "\n\n").encode()}


def _records(columns: list[list[int]], pixels: np.ndarray) -> bytes:
    return np.concatenate([np.array(columns, dtype=np.uint8).T, pixels], axis=1).tobytes()


def _hundred_python() -> dict[str, bytes]:
    files = {
        n: _python2({b"data": _pixels(i), b"fine_labels": _labels(i, 100), b"coarse_labels": _labels(i, 20)})
        for i, n in enumerate(("train", "test"))
    }
    meta = {b"fine_label_names": _names(FINE), b"coarse_label_names": _names(COARSE)}
    return files | {"meta": _python2(meta)}


def _hundred_binary() -> dict[str, bytes]:
    files = {
        f"{n}.bin": _records([_labels(i, 20), _labels(i, 100)], _pixels(i))
        for i, n in enumerate(("train", "test"))
    }
    return files | {
        "fine_label_names.txt": "\n".join(FINE).encode(),
        "coarse_label_names.txt": "\n".join(COARSE).encode(),
    }


DISTRIBUTIONS = {
    "cifar-10-batches-py": _ten_python,
    "cifar-10-batches-bin": _ten_binary,
    "cifar-100-python": _hundred_python,
    "cifar-100-binary": _hundred_binary,
}


def _packed(folder: Path) -> Path:
    path = folder.parent / f"{folder.name}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    return path


@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
@pytest.mark.parametrize("form", ["folder", "parent", "tar.gz"])
def test_official_files_give_their_images(name: str, form: str, tmp_path: Path) -> None:
    folder = _write(tmp_path / "sets" / name, DISTRIBUTIONS[name]())
    path = {"folder": lambda: folder, "parent": lambda: folder.parent, "tar.gz": lambda: _packed(folder)}[
        form
    ]()
    ten = name.startswith("cifar-10-")
    for split, files in (("train", range(5) if ten else [0]), ("test", [5] if ten else [1])):
        found = data.images(path, split)
        expected = np.concatenate([_pixels(i) for i in files]).reshape(-1, 3, 32, 32)
        assert found.images.dtype == torch.float32
        assert torch.equal(found.images, torch.from_numpy(expected) / 255)
        assert found.labels.tolist() == [y for i in files for y in _labels(i, 10 if ten else 100)]
        assert found.classes == tuple(TEN if ten else FINE)
        assert found.name.startswith(f"CIFAR-{10 if ten else 100}:{split}")
        assert "research" in found.licence
        assert found.sha256 == data.images(folder, split).sha256
    if not ten:
        coarse = data.images(path, "test", labels="coarse")
        assert coarse.labels.tolist() == _labels(1, 20)
        assert coarse.classes == tuple(COARSE)


def test_python_3_and_protocol_5_pickles_give_the_same_arrays(tmp_path: Path) -> None:
    for blob in (
        _python3({b"data": _pixels(0), b"labels": _labels(0)}),
        pickle.dumps({"data": _pixels(0), "labels": _labels(0)}, protocol=5),
        pickle.dumps({"data": np.asfortranarray(_pixels(0)), "labels": _labels(0)}, protocol=5),
    ):
        content = cifar.loads(blob, "data_batch_1")
        assert (content[b"data"] == _pixels(0)).all()
        assert content[b"labels"] == _labels(0)


def test_what_is_written_here_is_what_numpy_reads() -> None:
    """The hand-made Python 2 pickle is a real one: the ordinary unpickler agrees."""
    blob = _python2({b"data": _pixels(0), b"labels": _labels(0)})
    pickletools.dis(blob, out=io.StringIO())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy 2 on the alignment flag of old files
        content = pickle.loads(blob, encoding="bytes")
    assert (content[b"data"] == _pixels(0)).all()
    assert content[b"labels"] == _labels(0)


class _Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('executed')",))


@pytest.mark.parametrize(
    "harmful",
    [
        _Harmful(),
        np.array([_Harmful()], dtype=object),
        np.arange(4.0),
        np.array([(1, 2)], dtype=[("a", "u1"), ("b", "u1")]),
    ],
    ids=["call", "objects", "floats", "records"],
)
@pytest.mark.parametrize("protocol", [2, 5])
def test_nothing_in_a_pickle_is_executed(harmful: object, protocol: int, tmp_path: Path) -> None:
    files = _ten_python() | {"test_batch": pickle.dumps({"data": harmful, "labels": [1]}, protocol=protocol)}
    folder = _write(tmp_path / "cifar-10-batches-py", files)
    with pytest.raises(ValueError, match="test_batch: not an official pickle"):
        data.images(folder, "test")


@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
def test_a_file_cut_anywhere_is_refused(name: str, tmp_path: Path) -> None:
    files = DISTRIBUTIONS[name]()
    test = next(n for n in files if n.startswith("test"))
    folder = _write(tmp_path / name, files)
    whole = files[test]
    for length in (0, 1, 100, len(whole) // 2 + 1, len(whole) - 1):
        (folder / test).write_bytes(whole[:length])
        with pytest.raises(
            ValueError, match=f"{test}: (not an official pickle|{length} bytes are not whole)"
        ):
            data.images(folder, "test")


def test_a_batch_cut_between_records_is_refused(tmp_path: Path) -> None:
    folder = _write(tmp_path / "cifar-10-batches-bin", _ten_binary())
    path = folder / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-3073])
    with pytest.raises(ValueError, match=r"differ in length \(data_batch_1.bin: 4, .*data_batch_3.bin: 3"):
        data.images(folder, "train")
    assert len(data.images(folder, "test")) == N


def test_damage_in_the_middle_never_passes_unseen_as_another_shape(tmp_path: Path) -> None:
    """Every byte of the pickle's frame, flipped: refused, or a pixel or label of the same count changed."""
    blob = bytearray(_python2({b"data": _pixels(0), b"labels": _labels(0)}))
    head = blob.index(_pixels(0).tobytes())
    refused = 0
    for at in [*range(head), *range(head + 3072 * N, len(blob))]:
        damaged = bytearray(blob)
        damaged[at] ^= 0xFF
        files = _ten_python() | {"test_batch": bytes(damaged)}
        layout = cifar.LAYOUTS[0]
        try:
            pixels, labels, _ = cifar.read(layout, files.__getitem__, "test")
        except ValueError:
            refused += 1
            continue
        assert pixels.shape == (N, 3, 32, 32)
        assert len(labels) == N
        assert all(0 <= y < 10 for y in labels)
    assert refused > 100


def _dump(**content: object) -> bytes:
    return pickle.dumps(content, protocol=2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"test_batch": _dump(data=_pixels(0), labels=[1, 2])}, "4 images and 2 labels"),
        ({"test_batch": _dump(data=_pixels(0)[:, :3000], labels=[1] * 4)}, r"data is \(4, 3000\): expected"),
        ({"test_batch": _dump(data=_pixels(0), labels=[1, 2, 3, 10])}, "labels from 1 to 10, but 10 classes"),
        ({"test_batch": _dump(data=_pixels(0), labels=[1, 2, 3, -1])}, "labels from -1 to 3"),
        ({"test_batch": _dump(data=_pixels(0), labels=b"1234")}, "expected a list 'labels' of whole numbers"),
        ({"test_batch": _dump(labels=[1])}, "data is NoneType: expected an array"),
        ({"test_batch": pickle.dumps([1], protocol=2)}, "holds list, not a dictionary"),
        ({"batches.meta": _dump(names=[])}, "batches.meta: expected a list 'label_names'"),
    ],
)
def test_wrong_content_is_named(changed: dict[str, bytes], message: str, tmp_path: Path) -> None:
    folder = _write(tmp_path / "cifar-10-batches-py", _ten_python() | changed)
    with pytest.raises(ValueError, match=message):
        data.images(folder, "test")


def test_missing_files_and_wrong_choices_are_named(tmp_path: Path) -> None:
    folder = _write(tmp_path / "sets" / "cifar-10-batches-py", _ten_python())
    with pytest.raises(ValueError, match="split='valid': CIFAR-10 has train and test"):
        data.images(folder, "valid")
    with pytest.raises(ValueError, match="labels='coarse': CIFAR-10 has fine"):
        data.images(folder, "test", labels="coarse")
    with pytest.raises(ValueError, match="labels='x': expected fine or coarse"):
        data.images(folder, "test", labels="x")
    with pytest.raises(ValueError, match="per_class=0"):
        data.images(folder, "test", per_class=0)
    with pytest.raises(ValueError, match="per_class=9: fewer images than that in airplane"):
        data.images(folder, "test", per_class=9)
    (folder / "data_batch_4").unlink()
    with pytest.raises(ValueError, match="CIFAR-10 lacks its file data_batch_4"):
        data.images(folder, "train")
    _write(tmp_path / "sets" / "cifar-10-batches-bin", _ten_binary())
    with pytest.raises(
        ValueError, match=r"more than one data set \(CIFAR-10 in cifar-10-batches-bin/, CIFAR"
    ):
        data.images(folder.parent, "test")
    with pytest.raises(ValueError, match="nothing there"):
        data.images(tmp_path / "none", "test")


def test_first_of_every_class_in_the_order_of_the_file(tmp_path: Path) -> None:
    files = _ten_binary()
    pixels = np.arange(20, dtype=np.uint8)[:, None].repeat(3072, axis=1)
    files["test_batch.bin"] = _records([[i % 10 for i in range(20)]], pixels)
    folder = _write(tmp_path / "cifar-10-batches-bin", files)
    found = data.images(folder, "test", per_class=1)
    assert found.labels.tolist() == list(range(10))
    assert (found.images[:, 0, 0, 0] * 255).round().tolist() == list(range(10))


@pytest.mark.parametrize("cut", [0.3, 0.9])
def test_damaged_archives_are_refused(cut: float, tmp_path: Path) -> None:
    folder = _write(tmp_path / "cifar-10-batches-py", _ten_python())
    archive = _packed(folder)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(cut * len(whole))])
    with pytest.raises(ValueError, match="expected a tar file of images; damaged, cut off"):
        data.images(archive, "test")
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    archive.write_bytes(flipped)
    with pytest.raises(ValueError, match="damaged"):
        data.images(archive, "test")


def test_a_tree_goes_through_the_same_door(tmp_path: Path) -> None:
    for split, shade in (("train", 10), ("test", 200)):
        for c in ("cat", "dog"):
            (tmp_path / "t" / split / c).mkdir(parents=True)
            image = Image.fromarray(np.full((8, 8), shade, dtype=np.uint8))  # grey becomes three channels
            image.save(tmp_path / "t" / split / c / "a.PNG", format="PNG")
    found = data.images(tmp_path / "t", "test")
    assert found.images.shape == (2, 3, 8, 8)
    assert (found.images * 255).round().unique().tolist() == [200]
    with tarfile.open(tmp_path / "t.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "t", arcname="some/where")
    packed = data.images(tmp_path / "t.tar.gz", "test")
    assert torch.equal(packed.images, found.images)
    with pytest.raises(ValueError, match="only CIFAR-100 has them, t is a tree of images"):
        data.images(tmp_path / "t", "test", labels="coarse")
    (tmp_path / "t/test/cat/b.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"test/cat/b\.png: cannot be decoded as JPEG or PNG"):
        data.images(tmp_path / "t", "test")


def test_measured_images_are_mixed_and_their_split_and_labels_chosen(tmp_path: Path) -> None:
    """A tree is sorted by class: the first hundred of ten thousand units would be aeroplanes only."""
    folder = _write(tmp_path / "cifar-100-binary", _hundred_binary())
    batches, usual, unit = targets._images(f"{folder}:train:coarse", 64)
    (_, labels), *rest = batches
    assert (usual, unit, rest) == ("classification", "image", [])
    assert sorted(labels.tolist()) == sorted(_labels(0, 20))
    assert sorted(targets._images(f"{folder}:train", 64)[0].arrays[1].tolist()) == sorted(_labels(0, 100))
    assert sorted(targets._images(f"{folder}", 64)[0].arrays[1].tolist()) == sorted(_labels(1, 100))
    blocks = _ten_binary()
    blocks["test_batch.bin"] = _records(
        [[i // 20 for i in range(200)]], np.zeros((200, 3072), dtype=np.uint8)
    )
    ten = _write(tmp_path / "cifar-10-batches-bin", blocks)
    ((_, first), *_) = targets._images(str(ten), 50)[0]
    assert len(first.unique()) > 5
    with pytest.raises(ValueError, match="nothing there"):
        targets._images(f"{tmp_path}/none:test", 4)


@pytest.mark.skipif(
    not (FOLDER / "cifar10-jpeg.tar").is_file(),
    reason="needs cifar10-jpeg.tar in shared/data beside the repository or in GRADIENT_ALIGNMENT_DATA",
)
def test_the_real_pictures() -> None:
    """Colour means of CIFAR-10 are published as 0.4914, 0.4822, 0.4465 and deviations 0.247, 0.243, 0.262."""
    found = data.images(FOLDER / "cifar10-jpeg.tar", "test", per_class=200)
    assert found.classes == tuple(TEN)
    assert torch.bincount(found.labels).tolist() == [200] * 10
    mean, std = found.images.mean((0, 2, 3)), found.images.std((0, 2, 3))
    assert mean.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=0.02)
    assert std.tolist() == pytest.approx([0.247, 0.243, 0.262], abs=0.01)
    assert len(found.sha256) == 64
