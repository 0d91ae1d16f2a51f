"""The public pretrained ResNet-20 on real CIFAR-10 images: accuracy and geometry against known values.

Needs images and checkpoints that are not shipped: a folder ``shared/data`` beside the repository, or
the folder that ``GRADIENT_ALIGNMENT_DATA`` names.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from certify import clopper_pearson, estimate, gradients
from certify.losses import classification
from validation import data, models, training
from validation.measure import verdict
from validation.pool_bounds import pool_bounds
from validation.resample import Pool
from validation.results import Measured

FOLDER = Path(os.environ.get("GRADIENT_ALIGNMENT_DATA", Path(__file__).parents[3] / "shared" / "data"))
IMAGES, CHECKPOINTS = FOLDER / "cifar10-jpeg.tar", FOLDER / "resnet-cifar10"

pytestmark = pytest.mark.skipif(
    not (IMAGES.is_file() and CHECKPOINTS.is_dir()),
    reason="needs cifar10-jpeg.tar and resnet-cifar10/ in shared/data beside the repository or in "
    "GRADIENT_ALIGNMENT_DATA",
)

EXPECTED_RIGHT = 2431
STAGES = ["layer1.2", "layer2.2", "layer3.2"]


def _checkpoint(depth: int) -> Path:
    (path,) = CHECKPOINTS.glob(f"resnet{depth}-*.th")
    return path


@pytest.fixture(scope="module")
def images() -> data.ImageSet:
    """The first 300 test images of each class."""
    return data.image_tree(IMAGES, "test", per_class=300).normalised(data.CIFAR_MEAN, data.CIFAR_STD)


@pytest.fixture(scope="module")
def pools(images: data.ImageSet) -> dict[str, np.ndarray]:
    """Gradients of 3,000 held-out images at the last block of each stage, whole maps."""
    model = models.load_resnet(_checkpoint(20))
    with training.one_thread():
        return gradients(model, classification, training.batches(images, 100), at=STAGES, positions="flatten")


@pytest.mark.parametrize("depth", [20, 32, 44, 56])
def test_public_checkpoints_load_exactly(depth: int) -> None:
    model = models.load_resnet(_checkpoint(depth))
    assert len(models.resnet_blocks(model)) == (depth - 2) // 2
    assert not model.training


def test_accuracy_is_the_known_one(images: data.ImageSet) -> None:
    """81.0 % of all 10,000 JPEG images (91.7 % of the lossless ones); of these 3,000 it gets 2,431 right."""
    with training.one_thread():
        _, correct = training.evaluate(models.load_resnet(_checkpoint(20)), images)
    assert correct is not None
    ci = clopper_pearson(int(correct.sum()), len(correct), 0.9999)
    assert ci.low < 0.81 < ci.high
    assert abs(correct.mean() - 0.81) < 0.02
    assert abs(int(correct.sum()) - EXPECTED_RIGHT) <= 3  # near ties may fall either way on other hardware


def test_geometry_lies_where_it_was_measured_before(pools: dict[str, np.ndarray]) -> None:
    """Known: d_par 0.040 to 0.075 and d_2 5e-5 to 6e-4 over the blocks, varying with the sample."""
    for module, d in zip(STAGES, (16 * 32 * 32, 32 * 16 * 16, 64 * 8 * 8), strict=True):
        e = estimate(pools[module])
        assert (e.n, e.d) == (3000, d)
        assert e.d_par is not None
        assert e.d_2 is not None
        assert 0.03 < e.d_par < 0.10, module
        assert 2e-5 < e.d_2 < 2e-3, module


def test_bounds_hold_with_replacement_and_are_far_apart(pools: dict[str, np.ndarray]) -> None:
    """The pool is the population, so B_exact must hold; at M = K = 300 B_align says next to nothing."""
    pool = Pool(pools["layer3.2"])
    for M in (30, 300):
        e = pool.count(M, M, protocol="with_replacement", replicates=3000, rng=0)
        exact, align = pool_bounds(pool.moments(), M, M, replacement=True)
        ci = clopper_pearson(e.events, e.trials, 0.999)
        f = Measured(ci.estimate, ci.low, ci.high, ci.confidence, ci.method)
        assert verdict(f, exact) != "violated"
    assert verdict(f, exact) == "holds"
    assert exact.value is not None
    assert align.value is not None
    assert exact.value < 0.25
    assert align.value > 0.8
