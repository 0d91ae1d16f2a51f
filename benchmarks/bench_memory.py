"""Peak memory of a sweep over many units with long gradients, and what it costs.

    OMP_NUM_THREADS=1 python benchmarks/bench_memory.py [--units 100000] [--d 4096] [--modules 1]

A small real module gives gradients of length d; batches are generated, so that nothing is stored but what
the sweep stores. Resident memory is polled in a thread (process peak from getrusage beside it) and compared
with the level after one warm-up batch, which holds the model, one batch and the libraries. The limit is
400 MB above it. Sweep and certificates are included. Exit status 1 if the limit is passed.
"""

from __future__ import annotations

import argparse
import resource
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import certify
from certify.losses import classification

LIMIT = 400e6


def resident() -> int:
    """Resident bytes of this process."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()


class Peak(threading.Thread):
    """Polls resident memory until stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.highest = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.005):
            self.highest = max(self.highest, resident())


def network(d: int, modules: int) -> nn.Module:
    """A chain of channel-wise layers of width d behind a small input, and a classifier."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(16, d)]
    for _ in range(modules - 1):
        layers += [nn.Tanh(), nn.GroupNorm(8, d)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(d, 10)).eval()


def batches(units: int, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Labels that follow the inputs, so that there is a signal."""
    generator = torch.Generator().manual_seed(1)
    for start in range(0, units, size):
        x = torch.randn(min(size, units - start), 16, generator=generator)
        yield x, x[:, :10].argmax(1)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--units", type=int, default=100_000)
    parser.add_argument("--d", type=int, default=4096)
    parser.add_argument("--modules", type=int, default=1)
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = network(options.d, options.modules)
    at = [str(2 * i) for i in range(options.modules)]
    # The warm-up also runs estimate and certificate, so that their libraries are loaded.
    warm = certify.collect(model, classification, batches(options.batch, options.batch), at=at)
    certify.certificate(warm[at[0]], M=256, K=256)
    del warm
    before, peak = resident(), Peak()
    peak.start()
    clock, processor = time.perf_counter(), time.process_time()
    moments = certify.collect(model, classification, batches(options.units, options.batch), at=at)
    swept = time.process_time() - processor
    issued = {name: certify.certificate(m, M=256, K=256) for name, m in moments.items()}
    total = time.process_time() - processor
    peak.done.set()
    peak.join()
    first = moments[at[0]]
    above = peak.highest - before
    print(f"n = {first.n}, d = {first.d}, {options.modules} modules, held as {first.representation}")
    print(f"moments {sum(m.nbytes for m in moments.values()) / 1e6:.0f} MB")
    print(f"above model and one batch: {above / 1e6:.0f} MB at the peak (limit {LIMIT / 1e6:.0f} MB)")
    print(f"process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2:.2f} GiB at the peak")
    wall = time.perf_counter() - clock
    print(f"processor: sweep {swept:.0f} s, certificates {total - swept:.0f} s; {wall:.0f} s on the clock")
    print(f"{at[0]}: {issued[at[0]].state}, upper limit {issued[at[0]].upper:.4g}")
    return int(above > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
