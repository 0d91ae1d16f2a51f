"""Dot products of block gradients: products of dot products against explicit outer products.

`python benchmarks/bench_blocks.py [rounds]` prints medians over the rounds and their ratio, both routes side
by side in every round; one core: OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from certify.block_factors import gram_of_outer_products

# units, positions, channels: a pooled vector or perceptron, small maps, short sequences
SIZES = [(500, 1, 128), (500, 1, 512), (200, 1, 1024), (200, 8, 256), (200, 16, 512), (200, 64, 64)]


def explicit(q: list[np.ndarray], phi: list[np.ndarray]) -> np.ndarray:
    """Outer products first, then their dot products."""
    rows = np.stack([(a.T @ b).ravel() for a, b in zip(q, phi, strict=True)])
    return rows @ rows.T


def seconds(function: Callable[[], np.ndarray]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main(rounds: int = 5) -> None:
    """Print one line per size."""
    rng = np.random.default_rng(0)
    print(
        f"{'units':>6} {'positions':>9} {'channels':>8} {'gram s':>9} {'explicit s':>10} {'ratio':>7}  agree"
    )
    for n, positions, channels in SIZES:
        q = list(rng.normal(size=(n, positions, channels)))
        phi = list(rng.normal(size=(n, positions, channels)))
        one, two = gram_of_outer_products(q, phi), explicit(q, phi)
        error = float(np.abs(one - two).max() / np.abs(two).max())
        times = [
            (seconds(lambda: gram_of_outer_products(q, phi)), seconds(lambda: explicit(q, phi)))  # noqa: B023
            for _ in range(rounds)
        ]
        gram, rows = (statistics.median(t[k] for t in times) for k in (0, 1))
        ratio = statistics.median(b / a for a, b in times)
        print(f"{n:>6} {positions:>9} {channels:>8} {gram:>9.4f} {rows:>10.4f} {ratio:>7.2f}  {error:.0e}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
