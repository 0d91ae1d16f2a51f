"""What each preset measures: networks, known laws, sample sizes and budgets, fixed in advance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from theory import laws
from theory.laws import Law
from validation.training import Family, Network

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
    llamas: tuple[Network, ...]
    with_replacement: Sizes
    without_replacement: Sizes
    fresh: Sizes
    pairs: Sizes
    """Sizes for the pairs train-train and train-test, drawn with replacement."""
    pool_replicates: int
    resnet_depths: tuple[int, ...] = (8, 14, 20, 32)
    neox_depths: tuple[int, ...] = (2, 4, 6, 8)
    side_by_side: bool = True
    """Whether networks are trained in processes of their own, one for each core."""

    def networks(
        self, suite: str, seed: int, images: str | None = None, pretrained: Mapping[int, str] | None = None
    ) -> tuple[Network, ...]:
        """Networks of a suite; a run's seed shifts those of its networks.

        ``images`` is the path of image files that take the place of the digits (ResNet only);
        ``pretrained``, paths of public checkpoints by depth, take the place of the ResNets of the suites
        "intervention" (the shallowest) and "depth" (all).
        """
        chosen = {
            "resnet20": self.resnets,
            "neox": self.neoxes,
            "llama": self.llamas,
            "depth": self.grid(),
            "intervention": self.stepped(),
        }.get(suite, ())
        if pretrained and suite in ("intervention", "depth"):
            depths = sorted(pretrained)[: 1 if suite == "intervention" else None]
            like = replace(self.resnets[0], width=1.0, seed=0, steps=0, train_pool=0, trajectory=0)
            chosen = (
                *(replace(like, depth=d, weights=pretrained[d]) for d in depths),
                *(n for n in chosen if not n.images),
            )
        if images is not None:
            chosen = tuple(replace(n, data=images) if n.images else n for n in chosen)
        return tuple(replace(n, seed=n.seed + 1000 * seed) for n in chosen)

    def grid(self) -> tuple[Network, ...]:
        """Networks of the suite "depth": depths times widths and seeds, same budget and rate for all.

        ResNets at every width up to the published one; transformers at the smallest width.
        """
        least = min(n.width for n in self.neoxes)
        wide = [n for n in self.resnets if n.width <= 1]
        narrow = [n for n in self.neoxes if n.width == least]
        return tuple(
            n if n.depth == depth else replace(n, depth=depth, train_pool=0, trajectory=0)
            for members, depths in ((wide, self.resnet_depths), (narrow, self.neox_depths))
            for depth in depths
            for n in members
        )

    def stepped(self) -> tuple[Network, ...]:
        """Networks of the suite "intervention": one width of each family, every seed up to three.

        Half the published width of the ResNet, and the smallest of the transformers.
        """
        width = max(n.width for n in self.resnets if n.width <= 0.5)
        chosen = [n for n in self.resnets if n.width == width]
        for family in (self.neoxes, self.llamas):
            chosen += [n for n in family if n.width == min(m.width for m in family)]
        return tuple(n for n in chosen if n.seed < 3)


def _square(*sizes: int) -> Sizes:
    return tuple((m, m) for m in sizes)


# -- known laws ------------------------------------------------------------------------------------

_SPECTRA: dict[str, Callable[[int], np.ndarray]] = {
    "flat": laws.flat_spectrum,
    "power-law": lambda d: laws.power_law_spectrum(d, 1.0),
    "spiked": lambda d: laws.spiked_spectrum(d, float(d)),
}


def _mean(d: int, signal: float) -> np.ndarray:
    """|mu|^2 = signal (traces are 1), spread evenly over the eigenvectors."""
    return np.full(d, np.sqrt(signal / d))


# Laws are built by partials, not lambdas: cells are pickled to be measured in other processes.
def _gaussian(spectrum: str, d: int, signal: float) -> Law:
    return laws.GaussianLaw(_mean(d, signal), _SPECTRA[spectrum](d))


def _other(law: Callable[..., Law], signal: float, **shape: float) -> Law:
    return law(_mean(8, signal), laws.flat_spectrum(8), **shape)


def gaussian_grid(
    spectra: tuple[str, ...], dimensions: tuple[int, ...], signals: tuple[float, ...]
) -> tuple[LawCase, ...]:
    """Normal laws N(mu, Sigma) for every spectrum, dimension and signal ``|mu|^2 / tr Sigma``."""
    return tuple(
        LawCase(
            f"gaussian-{s}-d{d}-s{x:g}",
            f"normal, {s} spectrum, d = {d}, |μ|²/tr Σ = {x:g}",
            partial(_gaussian, s, d, x),
        )
        for s in spectra
        for d in dimensions
        for x in signals
    )


_OTHER_LAWS = (
    LawCase(
        "student-t2.5",
        "Student t, 2.5 degrees of freedom (infinite fourth moment), d = 8",
        partial(_other, laws.StudentTLaw, 0.3, df=2.5),
    ),
    LawCase(
        "lognormal-1.5",
        "normal times lognormal scale (τ = 1.5), d = 8",
        partial(_other, laws.LognormalLaw, 0.3, tau=1.5),
    ),
    LawCase(
        "pareto-2.5",
        "normal times Pareto scale (α = 2.5, infinite fourth moment), d = 8",
        partial(_other, laws.ParetoLaw, 0.3, alpha=2.5),
    ),
    LawCase("sparse-0.05", "zero for 19 units of 20, d = 8", partial(_other, laws.SparseLaw, 3.0, p=0.05)),
    LawCase("coin", "fair coin on {0, 1}: attains both bounds at M = K = 1", laws.coin),
    LawCase(
        "rare-reversal-8",
        "1, rarely −7: nearly attains B_exact at M = K = 8",
        partial(laws.rare_reversal, 8, "1/200"),
    ),
)


# -- networks --------------------------------------------------------------------------------------


def resnets(
    widths: tuple[float, ...],
    seeds: int,
    steps: int,
    batch: int,
    held_out: int,
    train_units: int = 0,
    train_pool: int = 0,
    trajectory: int = 0,
    data: str = "digits",
) -> tuple[Network, ...]:
    """ResNet-20 for every width and seed."""
    return tuple(
        Network("resnet20", w, 20, s, steps, batch, data, held_out, 0, train_units, train_pool, trajectory)
        for s in range(seeds)
        for w in widths
    )


def transformers(
    family: Family,
    widths: tuple[int, ...],
    layers: int,
    seeds: int,
    steps: int,
    batch: int,
    held_out: int,
    length: int,
    train_units: int = 0,
    train_pool: int = 0,
    trajectory: int = 0,
) -> tuple[Network, ...]:
    """GPT-NeoX or LLaMA on the Python reference for every width and seed."""
    data = "pydoc_data.topics"
    return tuple(
        Network(
            family, w, layers, s, steps, batch, data, held_out, length, train_units, train_pool, trajectory
        )
        for s in range(seeds)
        for w in widths
    )


neoxes = partial(transformers, "neox")
llamas = partial(transformers, "llama")


# Budgets that both families of transformers share.
_SMOKE_TEXT = {
    "seeds": 1,
    "steps": 60,
    "batch": 16,
    "held_out": 300,
    "length": 32,
    "train_pool": 100,
    "trajectory": 100,
}
_DEFAULT_TEXT = {
    "seeds": 3,
    "steps": 120,
    "batch": 8,
    "held_out": 480,
    "length": 64,
    "train_units": 480,
    "train_pool": 224,
    "trajectory": 96,
}
_LAPTOP_TEXT = {
    "seeds": 3,
    "steps": 150,
    "batch": 8,
    "held_out": 600,
    "length": 128,
    "train_units": 600,
    "train_pool": 200,
    "trajectory": 96,
}

SMOKE = Preset(
    name="smoke",
    laws=gaussian_grid(("flat", "power-law"), (8,), (0.1, 1.0)),
    law_sizes=((1, 1), (10, 10), (10, 100)),
    law_replicates=2_000,
    other_laws=tuple(c for c in _OTHER_LAWS if c.name in ("student-t2.5", "coin")),
    other_sizes=_square(1, 8),
    other_replicates=2_000,
    resnets=resnets((0.25, 0.5), 1, steps=40, batch=64, held_out=300, train_pool=100, trajectory=100),
    neoxes=neoxes((16, 32), layers=2, **_SMOKE_TEXT),
    llamas=llamas((16, 32), layers=2, **_SMOKE_TEXT),
    with_replacement=_square(1, 10, 100),
    without_replacement=_square(10, 100),
    fresh=_square(1, 5),
    pairs=_square(10),
    pool_replicates=1_000,
    resnet_depths=(8, 14, 20),
    neox_depths=(2, 4),
    side_by_side=False,
)

# Every network sees its training data twice, so that none interpolates it (a converged network's gradient
# comes from a handful of units): steps = 2 units / batch, rounded up. The number of units is what two cores
# train and measure in the preset's time, and is the same for every width and seed of a family.
DEFAULT = Preset(
    name="default",
    laws=gaussian_grid(("flat", "power-law", "spiked"), (8, 64, 512), (0.01, 0.1, 1.0)),
    law_sizes=((1, 1), (10, 10), (100, 100), (10, 1000)),
    law_replicates=20_000,
    other_laws=_OTHER_LAWS,
    other_sizes=_square(1, 8, 40),
    other_replicates=20_000,
    resnets=resnets((0.25, 0.5, 1.0), 3, steps=50, batch=32, held_out=1000, train_pool=400, trajectory=200),
    neoxes=neoxes(
        (32, 64, 128, 256),
        layers=6,
        **_DEFAULT_TEXT,
    ),
    llamas=llamas(
        (32, 64, 128, 256),
        layers=4,
        **_DEFAULT_TEXT,
    ),
    with_replacement=_square(1, 3, 10, 30, 100, 300),
    without_replacement=_square(10, 30, 100),
    fresh=_square(1, 3, 10, 30),
    pairs=_square(1, 10, 100),
    pool_replicates=5_000,
)

LAPTOP = replace(
    DEFAULT,
    name="laptop",
    law_replicates=100_000,
    resnets=resnets(
        (0.25, 0.5, 1.0, 2.0),
        seeds=3,
        steps=157,
        batch=32,
        held_out=1000,
        train_units=2500,
        train_pool=400,
        trajectory=200,
        data="mnist",
    ),
    neoxes=neoxes(
        (32, 64, 128, 256, 512),
        layers=6,
        **_LAPTOP_TEXT,
    ),
    llamas=llamas(
        (32, 64, 128, 256),
        layers=4,
        **_LAPTOP_TEXT,
    ),
    with_replacement=(*_square(1, 3, 10, 30, 100, 300, 1000), (30, 300)),
    without_replacement=_square(10, 30, 100, 300),
    pool_replicates=30_000,
    resnet_depths=(8, 14, 20, 32, 44, 56),
    neox_depths=(2, 4, 6, 8, 12),
)

PAPER = replace(
    LAPTOP,
    name="paper",
    pool_replicates=100_000,
    resnets=resnets(
        (0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
        seeds=3,
        steps=125,
        batch=64,
        held_out=1000,
        train_units=4000,
        train_pool=1000,
        trajectory=500,
        data="mnist",
    ),
    neoxes=neoxes(
        (128, 256, 512, 768, 1024, 2048, 2560),
        layers=6,
        seeds=3,
        steps=170,
        batch=16,
        held_out=1200,
        length=128,
        train_pool=1000,
        trajectory=500,
    ),
    llamas=llamas(
        (512, 768, 1024, 1536, 2048, 3072),
        layers=6,
        seeds=3,
        steps=170,
        batch=16,
        held_out=1200,
        length=128,
        train_pool=1000,
        trajectory=500,
    ),
)

PRESETS: dict[str, Preset] = {p.name: p for p in (SMOKE, DEFAULT, LAPTOP, PAPER)}
SUITES: tuple[str, ...] = ("gaussian", "resnet20", "neox", "llama", "intervention", "depth")
