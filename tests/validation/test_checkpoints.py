"""Pretrained networks in the suites "intervention" and "depth"."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from validation import cases, models, training
from validation.run import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoints")
    for depth in (8, 14):
        state = models.resnet(depth, 1.0, classes=10, channels_in=3, seed=depth).state_dict()
        torch.save(
            {"state_dict": {f"module.{k}": v for k, v in state.items()}}, path / f"resnet{depth}-ab.th"
        )
    return path


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for split, count in (("train", 4), ("test", 12)):
        for label in "abcdefghij":
            target = root / split / label
            target.mkdir(parents=True)
            for i in range(count):
                Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(target / f"{i}.png")
    return root


def test_checkpoints_take_the_place_of_the_resnets(folder, images):
    found = models.checkpoints(folder)
    assert sorted(found) == [8, 14]
    grid = cases.SMOKE.networks("depth", 0, str(images), found)
    assert [(n.depth, n.weights) for n in grid if n.images] == [(8, found[8]), (14, found[14])]
    stepped = cases.SMOKE.networks("intervention", 0, str(images), found)
    assert [n.depth for n in stepped if n.images] == [8]
    assert {n.name for n in grid}.isdisjoint(n.name for n in cases.SMOKE.networks("depth", 0) if n.images)
    assert all(not n.weights for n in cases.SMOKE.networks("resnet20", 0, str(images), found))


def test_loaded_weights_are_those_of_the_file_and_the_cache_knows_them(folder, images, tmp_path, monkeypatch):
    monkeypatch.setenv(training.CACHE_VARIABLE, str(tmp_path))
    path = models.checkpoints(folder)[8]
    network = training.Network("resnet20", 1.0, 8, 0, 0, 8, str(images), 50, weights=path)
    first, again = training.obtain(network), training.obtain(network)
    expected = models.load_resnet(path)
    for trained in (first, again):
        assert all(
            torch.equal(a, b) for a, b in zip(trained.model.parameters(), expected.parameters(), strict=True)
        )
    assert (first.cached, again.cached) == (False, True)
    assert len(first.held_out) == 50
    assert first.train_loss == again.train_loss
    other = training.Network(
        "resnet20", 1.0, 8, 0, 0, 8, str(images), 50, weights=models.checkpoints(folder)[14]
    )
    assert training.cache_key(network, "x") != training.cache_key(other, "x")
    with pytest.raises(ValueError, match="a ResNet-14, expected ResNet-8"):
        training.obtain(other)


def test_two_of_one_depth_or_none_are_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"expected files such as resnet20"):
        models.checkpoints(tmp_path)
    for name in ("resnet8-a.th", "resnet8-b.th"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="two of depth 8"):
        models.checkpoints(tmp_path)


def test_checkpoints_need_their_images(folder, tmp_path):
    with pytest.raises(ValueError, match="images is missing"):
        run("smoke", ["depth"], out=tmp_path / "run", checkpoints=folder)
