"""Data sets: content pinned by hash, splits without overlap, files on disk read as documented."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from validation import data


def test_digits_are_the_known_set() -> None:
    digits = data.digits()
    assert digits.images.shape == (1797, 1, 8, 8)
    assert digits.images.dtype == torch.float32
    assert (digits.images.min(), digits.images.max()) == (0, 1)
    assert torch.bincount(digits.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert digits.sha256 == "53ce1c551c0cd0fc33d81025757b6fb8e7da8a493910c1353a98bc0c6d992780"


def test_split_is_a_seeded_partition() -> None:
    train, held = data.split_indices(100, 30, rng=3)
    assert (len(train), len(held)) == (70, 30)
    assert sorted([*train, *held]) == list(range(100))
    again = data.split_indices(100, 30, rng=3)
    assert all((a == b).all() for a, b in zip((train, held), again, strict=True))
    assert (data.split_indices(100, 30, rng=4)[1] != held).any()


@pytest.mark.parametrize("held_out", [0, 10, 11])
def test_split_needs_two_parts(held_out: int) -> None:
    with pytest.raises(ValueError, match=f"held_out={held_out}: expected 1 to 9"):
        data.split_indices(10, held_out, rng=0)


def test_topics_share_no_sequence_and_repeat_with_the_seed() -> None:
    train, held = data.python_topics(64, 0.45, rng=0)
    rows = [{bytes(r) for r in part.tokens.to(torch.uint8).numpy()} for part in (train, held)]
    assert min(map(len, rows)) > 1000
    shared = rows[0] & rows[1]  # rulers of tables may be on both sides, words may not
    assert not [r for r in shared if any(c.isalpha() for c in r.decode())]
    assert train.sha256 == held.sha256
    again = data.python_topics(64, 0.45, rng=0)[0]
    assert torch.equal(train.tokens, again.tokens)
    assert not torch.equal(train.tokens, data.python_topics(64, 0.45, rng=1)[0].tokens)


def test_no_held_out_paragraph_was_trained_on() -> None:
    """The source repeats itself across topics; without the removal this fails by thousands of characters."""
    train, held = data.python_topics(64, 0.45, rng=0)
    texts = [part.tokens.to(torch.uint8).numpy().tobytes().decode(errors="replace") for part in (train, held)]
    paragraphs = [p for p in texts[1].split("\n\n") if len(p) > 300]
    assert len(paragraphs) > 30
    assert not [p for p in paragraphs if p in texts[0]]


def test_repeated_paragraphs_are_kept_once() -> None:
    texts = {"b": "shared   text\n\nown b", "a": "own a\n\nshared text\n\nown a"}
    assert data._without_repeats(texts) == {"a": b"own a\n\nshared text", "b": b"own b"}


@pytest.mark.parametrize(("length", "share", "words"), [(1, 0.5, "length=1"), (64, 1.0, "held_out=1.0")])
def test_topics_refuse_bad_arguments(length: int, share: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        data.python_topics(length, share, rng=0)


def _jpeg(value: int, size: int = 8) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), value, dtype=np.uint8)).save(file, format="JPEG")
    return file.getvalue()


@pytest.fixture
def tree(tmp_path: Path) -> tuple[Path, Path]:
    """The same four images as a folder and as a tar whose members are not in order of their names."""
    folder, archive = tmp_path / "images", tmp_path / "images.tar"
    files = {
        f"test/{c}/{i}.jpg": _jpeg(100 * k + 30 * i) for k, c in enumerate(["cat", "dog"]) for i in (0, 1)
    }
    files["test/cat/notes.txt"] = b"no image"
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    with tarfile.open(archive, "w") as tar:
        for name in sorted(files, reverse=True):
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            tar.addfile(info, io.BytesIO(files[name]))
    return folder, archive


def test_folder_and_tar_give_the_same_images(tree: tuple[Path, Path]) -> None:
    folder, archive = (data.image_tree(p, "test") for p in tree)
    assert folder.classes == archive.classes == ("cat", "dog")
    assert folder.labels.tolist() == archive.labels.tolist() == [0, 0, 1, 1]
    assert torch.equal(folder.images, archive.images)
    assert folder.sha256 == archive.sha256
    assert archive.images[:, 0, 0, 0].mul(255).round().tolist() == pytest.approx([0, 30, 100, 130], abs=2)


def test_first_images_of_each_class(tree: tuple[Path, Path]) -> None:
    assert data.image_tree(tree[1], "test", per_class=1).labels.tolist() == [0, 1]
    with pytest.raises(ValueError, match="per_class=3: fewer images than that in cat, dog"):
        data.image_tree(tree[1], "test", per_class=3)


def test_image_tree_refuses_what_is_not_one(tree: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing there"):
        data.image_tree(tmp_path / "none.tar", "test")
    with pytest.raises(ValueError, match="split='train': no images"):
        data.image_tree(tree[1], "train")
    (tmp_path / "x.tar").write_bytes(b"not a tar file" * 100)
    with pytest.raises(ValueError, match="expected a tar file"):
        data.image_tree(tmp_path / "x.tar", "test")
    (tree[0] / "test/cat/2.jpg").write_bytes(_jpeg(9, size=4))
    with pytest.raises(ValueError, match="differ in size"):
        data.image_tree(tree[0], "test")


def test_text_file_keeps_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(256)) * 40)
    train, held = data.text_file(path, length=16, held_out=0.5, block=1024)
    assert (len(train), len(held)) == ((5120 - 1024) // 16, 5120 // 16)
    with pytest.raises(ValueError, match="too short"):
        data.text_file(path, length=6000, held_out=0.5)
    with pytest.raises(ValueError, match="expected a text file"):
        data.text_file(tmp_path / "none.txt", length=16, held_out=0.5)


def test_normalised_acts_on_channels() -> None:
    images = data.ImageSet("x", torch.ones(2, 3, 1, 1), torch.zeros(2, dtype=torch.int64), ("a",), "", "")
    out = images.normalised([0.0, 1.0, 0.5], [1.0, 1.0, 0.25]).images
    assert out[1, :, 0, 0].tolist() == [1, 0, 2]
