"""Counting T <= 0 over replicates drawn with replacement: factors against means in d dimensions.

Run ``python benchmarks/bench_resample.py [n [d [M [replicates]]]]``; one line per way, processor seconds
scaled to 100,000 replicates. The pool has a normal law whose eigenvalues fall as exp(-k/20)/k, as those of
trained networks do or slower.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from validation.resample import Pool


def means(Q: np.ndarray, M: int, replicates: int, rng: np.random.Generator) -> int:
    """Events by forming both means of every replicate."""
    events = 0
    for _ in range(replicates):
        w, v = (Q[rng.integers(len(Q), size=M)].mean(axis=0) for _ in range(2))
        events += int(w @ v <= 0)
    return events


def main(n: int = 4000, d: int = 4096, M: int = 1000, replicates: int = 4000) -> None:
    """Time both ways on one pool."""
    rng = np.random.default_rng(0)
    Q = (rng.standard_normal((n, d)) + 0.02) / np.sqrt(np.arange(1, d + 1.0))
    Q *= np.exp(-np.arange(d) / 40)
    started = time.process_time()
    pool = Pool(Q)
    pool.count(1, 1, protocol="with_replacement", replicates=1, rng=0)
    ready = time.process_time()
    e = pool.count(M, M, protocol="with_replacement", replicates=replicates, rng=1)
    done = time.process_time()
    few = max(20, replicates // 100)
    events = means(Q, M, few, rng)
    end = time.process_time()
    scale = 100_000 / replicates
    print(f"n={n} d={d} M=K={M}; {replicates} replicates, scaled to 100,000")
    print(
        f"factors     {(done - ready) * scale:8.1f} s + {ready - started:.1f} s once; "
        f"{e.events / e.trials:.4f} events"
    )
    print(f"d-dim means {(end - done) * 100_000 / few:8.1f} s; {events / few:.4f} events")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
