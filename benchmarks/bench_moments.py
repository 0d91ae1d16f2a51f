"""Cost of the moments of an n x d array against one symmetric product (SYRK) on its smaller side.

    OMP_NUM_THREADS=1 python benchmarks/bench_moments.py [--repeats 15] [--wall]

The floor is scipy.linalg.blas.dsyrk on an array that is already float64, in the right order and in memory.
"moments" are all unbiased statistics of rows that moments already hold, "from array" adds the checks and the
copy of the caller's array, "jackknife" adds bias correction and standard errors. Runs are interleaved and the
medians of the ratios are printed; processor time unless --wall. The last columns show ssyrk and how far a
single-precision product of the centred rows, summed in float64, moves tr Sigma^2: it is not used.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from scipy.linalg import blas

from certify.estimators import estimate
from certify.moments import GradientMoments

SIZES = [(256, 16384), (512, 4096), (1024, 1024), (1000, 8192), (2000, 512), (8000, 512), (3000, 1024)]
ROW = "{:>6} {:>6} {:>8} {:>8} {:>8} {:>11} {:>10} {:>9} {:>14}"


def floor(Q: np.ndarray) -> Callable[[], object]:
    """One SYRK on the smaller side; Q.T of a row-major array is the column-major array that BLAS wants."""
    syrk = blas.dsyrk if Q.dtype == np.float64 else blas.ssyrk
    return lambda: syrk(1.0, Q.T, trans=int(Q.shape[0] <= Q.shape[1]))


def single_precision_error(Q: np.ndarray) -> float:
    """Relative error of tr Sigma^2 when the centred product runs in float32 and is summed in float64."""
    x = Q.astype(np.float64)
    x -= x.mean(axis=0)
    n = len(Q)

    def trace(x: np.ndarray) -> float:
        total = np.zeros((min(x.shape),) * 2)
        step = 512
        for start in range(0, max(x.shape), step):
            part = x[:, start : start + step] if n <= x.shape[1] else x[start : start + step].T
            total += part @ part.T
        p = (x.astype(np.float64) ** 2).sum(axis=1)
        f2, p2, p4 = (total**2).sum(), p.sum(), p @ p
        n2, n3, n4 = n * (n - 1), n * (n - 1) * (n - 2), n * (n - 1) * (n - 2) * (n - 3)
        return (f2 - p4) / n2 - 2 * (2 * p4 - f2) / n3 + (p2 * p2 - 6 * p4 + 2 * f2) / n4

    return float(trace(x.astype(np.float32)) / trace(x) - 1)


def main() -> None:
    """Print one line per size and type."""
    parser = argparse.ArgumentParser(description="Moments against one symmetric product.")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--wall", action="store_true", help="wall-clock instead of processor time")
    options = parser.parse_args()
    clock = time.perf_counter if options.wall else time.process_time
    rng = np.random.default_rng(0)
    names = ("n", "d", "dtype", "dsyrk ms", "moments", "from array", "jackknife", "ssyrk ms", "float32 error")
    print(ROW.format(*names))
    for n, d in SIZES:
        spectrum = 1 / np.sqrt(1 + np.arange(d))
        Q64 = (rng.standard_normal((n, d)) + 0.3) * spectrum * np.exp(rng.standard_normal((n, 1)))
        for Q in (Q64, Q64.astype(np.float32)):
            held = GradientMoments.from_array(Q, representation="rows")
            runs: dict[str, Callable[[], object]] = {
                "dsyrk": floor(Q64),
                "moments": lambda held=held: estimate(held, correct=False),
                "from array": lambda Q=Q: estimate(
                    GradientMoments.from_array(Q, representation="rows"), correct=False
                ),
                "jackknife": lambda held=held: estimate(held),
                "ssyrk": floor(Q.astype(np.float32)),
            }
            times: dict[str, list[float]] = {name: [] for name in runs}
            for run in runs.values():
                run()
            for _ in range(options.repeats):
                for name, run in runs.items():
                    start = clock()
                    run()
                    times[name].append(clock() - start)
            ms = {name: f"{1e3 * float(np.median(values)):.1f}" for name, values in times.items()}
            base = np.array(times["dsyrk"])
            ratios = [
                f"{float(np.median(np.array(times[name]) / base)):.2f}"
                for name in ("moments", "from array", "jackknife")
            ]
            error = f"{single_precision_error(Q):.1e}"
            print(ROW.format(n, d, str(Q.dtype), ms["dsyrk"], *ratios, ms["ssyrk"], error), flush=True)


if __name__ == "__main__":
    main()
