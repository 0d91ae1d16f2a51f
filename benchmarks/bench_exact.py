"""Times and accuracies of the exact probabilities.

python benchmarks/bench_exact.py             # seconds, medians of 5
python benchmarks/bench_exact.py --simulate  # adds 1e7 simulated draws per case (about a minute)
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from theory.exact import finite_support_probability, gaussian_enclosure, gaussian_probability
from theory.laws import FiniteLaw, GaussianLaw, coin, flat_spectrum, power_law_spectrum, spiked_spectrum


def median_ms(call: Callable[[], Any], repeats: int = 5) -> float:
    """Return the median process time of ``call`` in milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times)


def enumeration() -> None:
    """Finite support: exact rational probabilities."""
    two = FiniteLaw([(3, 2), (0, -2)], ["1/31", "30/31"])
    four = FiniteLaw([(1, 2), ("-3/7", 1), (2, -1), (0, "-1/11")], ["1/2", "1/4", "1/8", "1/8"])
    print(f"{'law':<22}{'M, K':>8}{'P(T<=0)':>14}{'ms':>9}")
    for name, law, n in (
        ("coin, d = 1", coin(), 30),
        ("two points, d = 2", two, 30),
        ("four points, d = 2", four, 4),
        ("four points, d = 2", four, 8),
        ("four points, d = 2", four, 14),
    ):
        p = float(finite_support_probability(law, n, n))
        ms = median_ms(partial(finite_support_probability, law, n, n))
        print(f"{name:<22}{n:>8}{p:>14.4e}{ms:>9.2f}")


SPECTRA = {
    "flat": flat_spectrum,
    "power law 1": lambda d, trace: power_law_spectrum(d, 1.0, trace),
    "spiked 100": lambda d, trace: spiked_spectrum(d, 100.0, trace=trace),
    "condition 1e12": lambda d, trace: np.geomspace(1.0, 1e-12, d) * trace / d,
}


def gaussian(enclose_up_to: int) -> None:
    """Normal gradients: time, estimated error and distance from the enclosure."""
    print(
        f"\n{'spectrum':<16}{'d':>6}{'log P':>14}{'error est.':>12}{'ms':>9}"
        f"{'deviation':>12}{'enclosure s':>13}"
    )
    for name, spectrum in SPECTRA.items():
        for d in (1, 64, 4096):
            mu, s = np.full(d, 1 / math.sqrt(d)), spectrum(d, trace=float(d))
            result = gaussian_probability(mu, s, 64, 64)
            ms = median_ms(partial(gaussian_probability, mu, s, 64, 64))
            line = f"{name:<16}{d:>6}{result.log_probability:>14.6f}{result.relative_error:>12.1e}{ms:>9.1f}"
            if d <= enclose_up_to:
                start = time.process_time()
                proved = gaussian_enclosure(mu, s, 64, 64)
                seconds = time.process_time() - start
                middle = (proved.log_low + proved.log_high) / 2
                line += f"{abs(middle - result.log_probability):>12.1e}{seconds:>13.2f}"
            print(line, flush=True)


def simulation(n: int = 10_000_000, seed: int = 1) -> None:
    """Compare with n simulated pairs of means; p-values of the binomial test must look uniform."""
    print(f"\n{'simulated':<16}{'P exact':>12}{'P simulated':>13}{'p-value':>9}")
    rng = np.random.default_rng(seed)
    for name, spectrum in SPECTRA.items():
        d, M, K = 8, 5, 20
        mu, s = np.full(d, 0.12), spectrum(d, trace=float(d))
        # the means themselves are normal: no need to draw the units
        train, test = GaussianLaw(mu, s / M), GaussianLaw(mu, s / K)
        hits, block = 0, n // 20
        for _ in range(20):
            hits += int(((train.sample(block, rng) * test.sample(block, rng)).sum(1) <= 0).sum())
        p = gaussian_probability(mu, s, M, K).probability
        test_result = stats.binomtest(hits, 20 * block, p)
        print(f"{name:<16}{p:>12.6f}{hits / (20 * block):>13.6f}{test_result.pvalue:>9.3f}", flush=True)


def main() -> None:
    """Run all parts and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", action="store_true", help="add 1e7 simulated draws per case")
    parser.add_argument("--enclose", type=int, default=64, help="largest dimension to enclose (64)")
    arguments = parser.parse_args()
    enumeration()
    gaussian(arguments.enclose)
    if arguments.simulate:
        simulation()


if __name__ == "__main__":
    main()
