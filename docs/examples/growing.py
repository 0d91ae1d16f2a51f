"""From "where should I grow?" to a certified decision and the measured outcome, on a pretrained ResNet-20.

    python docs/examples/growing.py --checkpoint CHECKPOINT.th --images IMAGES [--json FILE]

CHECKPOINT is a public CIFAR-10 ResNet checkpoint (a dictionary with "state_dict"), IMAGES the CIFAR-10
files, or a folder or tar file with SPLIT/CLASS/FILE.  Five disjoint samples of the test images, which the
network has never seen, in a random order fixed by --seed:

* two to rank the insertion points;
* train makes the jumpboard and trains the block; test is the sample of the guarantees; fresh measures.
"""

from __future__ import annotations

import argparse
import json
import textwrap
import time
from pathlib import Path

import numpy as np

import certify
from certify.blocks import LinearMap
from validation.data import CIFAR_MEAN, CIFAR_STD, images
from validation.models import load_resnet, resnet_blocks
from validation.sets import ImageSet

CHANNELS = {"layer1": 16, "layer2": 32, "layer3": 64}


def batches(data: ImageSet, indices: np.ndarray, size: int = 100) -> list:
    """The images at these indices as a list of (images, labels)."""
    part = data.take(indices)
    return [(part.images[i : i + size], part.labels[i : i + size]) for i in range(0, len(part), size)]


def wrapped(text: str, width: int = 100) -> str:
    """Long lines broken, with what follows indented."""
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        lines.append(textwrap.fill(line, width, subsequent_indent=indent + "  " if indent else ""))
    return "\n".join(lines)


def main() -> None:
    """Rank, choose, expand, measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--rank", type=int, default=1000, help="images in each of the two ranking samples")
    parser.add_argument("--train", type=int, default=1000)
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--fresh", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=60, help="training steps of the block")
    parser.add_argument("--clip", type=float, default=5.0, help="losses are clipped here")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    began = time.perf_counter()

    model = load_resnet(options.checkpoint)
    data = images(options.images, "test").normalised(CIFAR_MEAN, CIFAR_STD)
    sizes = [options.rank, options.rank, options.train, options.test, options.fresh]
    if sum(sizes) > len(data):
        parser.error(f"{sum(sizes)} images asked for, {len(data)} are there: lower the sizes")
    order = np.random.default_rng(options.seed).permutation(len(data))
    parts = np.split(order[: sum(sizes)], np.cumsum(sizes)[:-1])
    rank_train, rank_test, train, test, fresh = (batches(data, p) for p in parts)

    loss = certify.losses.classification
    ranking = certify.where(
        model, loss, rank_train, rank_test, at=resnet_blocks(model), block="linear", norm="activation"
    )
    print(ranking, end="\n\n")
    if not ranking.certified:
        print("No insertion point is certified on so few images: raise --rank.")
        return
    at = ranking.certified[0].module

    result = certify.expansion(
        model,
        loss,
        train,
        test,
        fresh=fresh,
        at=at,
        block=LinearMap(CHANNELS[at.partition(".")[0]]),
        clip=options.clip,
        steps=options.steps,
        generator=options.seed,
    )
    print(wrapped(result.explain()))
    print(f"\n{time.perf_counter() - began:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(json.loads(result.to_json()), indent=1))


if __name__ == "__main__":
    main()
