"""What each preset measures: networks, known laws, sample sizes and budgets, fixed in advance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from theory import laws
from theory.laws import Law
from validation.training import Network

Sizes = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LawCase:
    """A known law of one unit's gradient, built when its cell runs."""

    name: str
    label: str
    build: Callable[[], Law]


@dataclass(frozen=True)
class Preset:
    """Everything a preset decides. ``seeds`` is the number of networks per width."""

    name: str
    laws: tuple[LawCase, ...]
    law_sizes: Sizes
    law_replicates: int
    other_laws: tuple[LawCase, ...]
    other_sizes: Sizes
    other_replicates: int
    resnets: tuple[Network, ...]
    neoxes: tuple[Network, ...]
    with_replacement: Sizes
    without_replacement: Sizes
    fresh: Sizes
    pool_replicates: int
    side_by_side: bool = True
    """Whether networks are trained in processes of their own, one for each core."""

    def networks(self, suite: str, seed: int) -> tuple[Network, ...]:
        """Networks of a suite; a run's seed shifts those of its networks."""
        chosen = {"resnet20": self.resnets, "neox": self.neoxes}.get(suite, ())
        return tuple(replace(n, seed=n.seed + 1000 * seed) for n in chosen)


def _square(*sizes: int) -> Sizes:
    return tuple((m, m) for m in sizes)


# -- known laws ------------------------------------------------------------------------------------

_SPECTRA: dict[str, Callable[[int], np.ndarray]] = {
    "flat": lambda d: laws.flat_spectrum(d),
    "power-law": lambda d: laws.power_law_spectrum(d, 1.0),
    "spiked": lambda d: laws.spiked_spectrum(d, float(d)),
}


def _mean(d: int, signal: float) -> np.ndarray:
    """|mu|^2 = signal (traces are 1), spread evenly over the eigenvectors."""
    return np.full(d, np.sqrt(signal / d))


def gaussian_grid(
    spectra: tuple[str, ...], dimensions: tuple[int, ...], signals: tuple[float, ...]
) -> tuple[LawCase, ...]:
    """Normal laws N(mu, Sigma) for every spectrum, dimension and signal ``|mu|^2 / tr Sigma``."""

    def case(spectrum: str, d: int, signal: float) -> LawCase:
        return LawCase(
            f"gaussian-{spectrum}-d{d}-s{signal:g}",
            f"normal, {spectrum} spectrum, d = {d}, |μ|²/tr Σ = {signal:g}",
            lambda: laws.GaussianLaw(_mean(d, signal), _SPECTRA[spectrum](d)),
        )

    return tuple(case(s, d, x) for s in spectra for d in dimensions for x in signals)


_OTHER_LAWS = (
    LawCase(
        "student-t2.5",
        "Student t, 2.5 degrees of freedom (infinite fourth moment), d = 8",
        lambda: laws.StudentTLaw(_mean(8, 0.3), laws.flat_spectrum(8), df=2.5),
    ),
    LawCase(
        "lognormal-1.5",
        "normal times lognormal scale (τ = 1.5), d = 8",
        lambda: laws.LognormalLaw(_mean(8, 0.3), laws.flat_spectrum(8), tau=1.5),
    ),
    LawCase(
        "pareto-2.5",
        "normal times Pareto scale (α = 2.5, infinite fourth moment), d = 8",
        lambda: laws.ParetoLaw(_mean(8, 0.3), laws.flat_spectrum(8), alpha=2.5),
    ),
    LawCase(
        "sparse-0.05",
        "zero for 19 units of 20, d = 8",
        lambda: laws.SparseLaw(_mean(8, 3.0), laws.flat_spectrum(8), p=0.05),
    ),
    LawCase("coin", "fair coin on {0, 1}: attains both bounds at M = K = 1", laws.coin),
    LawCase(
        "rare-reversal-8",
        "1, rarely −7: nearly attains B_exact at M = K = 8",
        lambda: laws.rare_reversal(8, "1/200"),
    ),
)


# -- networks --------------------------------------------------------------------------------------


def resnets(
    widths: tuple[float, ...], seeds: int, steps: int, batch: int, held_out: int
) -> tuple[Network, ...]:
    """ResNet-20 on the digits for every width and seed."""
    return tuple(
        Network("resnet20", w, 20, s, steps, batch, "digits", held_out) for s in range(seeds) for w in widths
    )


def neoxes(
    widths: tuple[int, ...], layers: int, seeds: int, steps: int, batch: int, held_out: int, length: int
) -> tuple[Network, ...]:
    """GPT-NeoX on the Python reference for every width and seed."""
    return tuple(
        Network("neox", w, layers, s, steps, batch, "pydoc_data.topics", held_out, length)
        for s in range(seeds)
        for w in widths
    )


SMOKE = Preset(
    name="smoke",
    laws=gaussian_grid(("flat", "power-law"), (8,), (0.1, 1.0)),
    law_sizes=((1, 1), (10, 10), (10, 100)),
    law_replicates=2_000,
    other_laws=tuple(c for c in _OTHER_LAWS if c.name in ("student-t2.5", "coin")),
    other_sizes=_square(1, 8),
    other_replicates=2_000,
    resnets=resnets((0.25, 0.5), seeds=1, steps=40, batch=64, held_out=300),
    neoxes=neoxes((16, 32), layers=2, seeds=1, steps=60, batch=16, held_out=300, length=32),
    with_replacement=_square(1, 10, 100),
    without_replacement=_square(10, 100),
    fresh=_square(1, 5),
    pool_replicates=1_000,
    side_by_side=False,
)

# Both families see their training data twice (50 steps of 32 of 797 images, 170 steps of 16 of some 1,330
# sequences), so that neither interpolates it: a converged network's gradient comes from a handful of units.
DEFAULT = Preset(
    name="default",
    laws=gaussian_grid(("flat", "power-law", "spiked"), (8, 64, 512), (0.01, 0.1, 1.0)),
    law_sizes=((1, 1), (10, 10), (100, 100), (10, 1000)),
    law_replicates=20_000,
    other_laws=_OTHER_LAWS,
    other_sizes=_square(1, 8, 40),
    other_replicates=20_000,
    resnets=resnets((0.25, 0.5, 1.0), seeds=3, steps=50, batch=32, held_out=1000),
    neoxes=neoxes((32, 64, 128), layers=6, seeds=2, steps=170, batch=16, held_out=800, length=128),
    with_replacement=_square(1, 3, 10, 30, 100, 300),
    without_replacement=_square(10, 30, 100, 300),
    fresh=_square(1, 3, 10, 30),
    pool_replicates=5_000,
)

LAPTOP = replace(
    DEFAULT,
    name="laptop",
    law_replicates=100_000,
    resnets=resnets((0.25, 0.5, 1.0, 2.0), seeds=3, steps=50, batch=32, held_out=1000),
    neoxes=neoxes((32, 64, 128, 256, 512), layers=6, seeds=3, steps=170, batch=16, held_out=1200, length=128),
    with_replacement=(*_square(1, 3, 10, 30, 100, 300, 1000), (30, 300)),
    pool_replicates=100_000,
)

PAPER = replace(
    LAPTOP,
    name="paper",
    resnets=resnets((0.25, 0.5, 1.0, 2.0, 4.0, 8.0), seeds=3, steps=50, batch=32, held_out=1000),
    neoxes=neoxes(
        (32, 64, 128, 256, 512, 1024), layers=6, seeds=3, steps=1000, batch=16, held_out=1200, length=128
    ),
)

PRESETS: dict[str, Preset] = {p.name: p for p in (SMOKE, DEFAULT, LAPTOP, PAPER)}
SUITES: tuple[str, ...] = ("gaussian", "resnet20", "neox")
