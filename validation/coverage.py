"""Coverage study of the certificates: how often do stated limits hold, and how wide are they?

``python -m validation.coverage --out coverage.jsonl`` draws samples from laws with known moments, issues
certificates of every tier and counts how often each limit holds. One JSON line per (law, n, tier) and chunk
of repetitions; a second run adds only what is missing; several processes may share one file with ``--shard``.
``--summary`` prints the table of the documentation.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from certify.certification import Certificate, certificate
from certify.intervals import clopper_pearson
from theory.bounds import B_align, B_exact
from theory.laws import (
    GaussianLaw,
    LognormalLaw,
    MixtureLaw,
    ParetoLaw,
    SparseLaw,
    StudentTLaw,
    flat_spectrum,
    power_law_spectrum,
    spiked_spectrum,
)
from theory.moments import Moments

Float = NDArray[np.float64]

D = 32
CHUNK = 100
POOL = 2000
REFERENCE = 200_000
QUANTITIES = ("misalignment", "B_exact", "B_align", "d_par", "d_2", "d_align")


@dataclass(frozen=True, eq=False)
class Pool:
    """The empirical law of a matrix of gradients: rows drawn with replacement, moments those of the pool."""

    rows: Float

    @property
    def dimension(self) -> int:
        """Length of a row."""
        return int(self.rows.shape[1])

    def mean(self) -> Float:
        """Mean of the pool."""
        return np.asarray(self.rows.mean(axis=0))

    def covariance(self) -> Float:
        """Covariance of the pool, divisor N."""
        x = self.rows - self.mean()
        return np.asarray(x.T @ x / len(x))

    def scalars(self) -> tuple[float, float, float]:
        """(m2, a, t) of the pool, by the smaller side of the matrix."""
        mu = self.mean()
        x = self.rows - mu
        along = x @ mu
        S = x @ x.T if x.shape[0] < x.shape[1] else x.T @ x
        return float(mu @ mu), float(along @ along) / len(x), float((S * S).sum()) / len(x) ** 2

    def sample(self, n: int, rng: np.random.Generator | int) -> Float:
        """Draw n rows with replacement."""
        return self.rows[np.random.default_rng(rng).integers(len(self.rows), size=n)]


def laws() -> dict[str, Any]:
    """The named laws of the study, d = 32: spectra, tails, sparse and mixed laws, weak and no signal."""
    along = np.full(D, D**-0.5)
    flat = flat_spectrum(D, trace=8.0)
    far = np.zeros(D)
    far[:2] = (1.0, 2.0)
    near = np.zeros(D)
    near[0] = -1.0
    return {
        "gauss-flat": GaussianLaw(along, flat),
        "gauss-power": GaussianLaw(along, power_law_spectrum(D, 1.0, trace=8.0)),
        "gauss-spiked": GaussianLaw(along, spiked_spectrum(D, 20.0, trace=8.0)),
        "gauss-weak": GaussianLaw(0.4 * along, flat),
        "gauss-null": GaussianLaw(0.0 * along, flat),
        "t5": StudentTLaw(along, flat, df=5.0),
        "t3": StudentTLaw(along, flat, df=3.0),
        "lognormal": LognormalLaw(along, flat, tau=1.0),
        "sparse-10%": SparseLaw(along, flat, p=0.1),
        "sparse-2%": SparseLaw(along, flat, p=0.02),
        "mixture": MixtureLaw(
            (GaussianLaw(far, flat / 4), GaussianLaw(near, flat / 4)), np.array([0.8, 0.2])
        ),
        "mixture-rare": MixtureLaw(
            (GaussianLaw(along, flat), GaussianLaw(-3 * along, flat)), np.array([0.97, 0.03])
        ),
        "pareto-3": ParetoLaw(along, flat, alpha=3.0),
        "pareto-5": ParetoLaw(along, flat, alpha=5.0),
    }


@dataclass(frozen=True)
class Cell:
    """One line of results: counts over ``repetitions`` samples of n units."""

    law: str
    n: int
    tier: str
    M: int
    K: int
    confidence: float
    chunk: int
    repetitions: int
    issued: int
    """Certificates with a limit below 1."""
    holds: dict[str, int]
    """How often the one-sided limit of each quantity holds."""
    stated: dict[str, int]
    """How often a limit was stated at all; the difference to ``repetitions`` counts as holding (vacuous)."""
    ratio: dict[str, list[float]]
    """Quartiles of (limit odds)/(true odds) for bounds and (truth)/(limit) for dimensions; large = wide."""
    interval: dict[str, int]
    """How often the two-sided interval holds."""
    seconds: float


class _Study:
    """A law with its truth, and certificates of one tier for samples from it."""

    def __init__(self, name: str, law: Any, tier: str, M: int, K: int) -> None:
        self.name, self.law, self.tier, self.M, self.K = name, law, tier, M, K
        self.options: dict[str, Any] = {}
        base, _, method = tier.partition(":")
        if base == "asymptotic":
            self.options = {"method": method or "separate"} | (
                {"resamples": 299} if method == "bootstrap" else {}
            )
        self.base = base
        # A stream of its own for everything that is fixed within the study.
        fixed = np.random.default_rng([0x5EED, *name.encode()])
        if base == "bounded" or tier == "conditional:bounded":
            # Bounded laws with known moments: the pool of clipped draws.
            rows = law.sample(POOL, fixed)
            norms = np.linalg.norm(rows, axis=1)
            radius = float(np.quantile(norms, 0.95)) or 1.0
            rows = rows * np.minimum(1.0, radius / np.maximum(norms, 1e-300))[:, None]
            self.law = Pool(rows)
            self.options["bound"] = radius
        self.truth = self._moments()
        if base == "conditional":
            v = np.zeros(self.law.dimension)
            while not v.any():  # sparse laws can draw nothing
                v = self.law.sample(M, fixed).mean(axis=0)
            self.options["direction"] = v
            self.truth = {"misalignment": self._conditional(v, fixed)}
        if base == "replicates":
            self.truth = {"misalignment": self._frequency(fixed)}

    def _moments(self) -> dict[str, float]:
        m2, a, t = (float(v) for v in self.law.scalars())
        m = Moments(m2, a, t)
        exact = float(B_exact(m, self.M, self.K))
        return {
            "misalignment": exact,
            "B_exact": exact,
            "B_align": float(B_align(m, self.M, self.K)),
            "d_par": float(m.d_par),
            "d_2": float(m.d_2),
            "d_align": float(m.d_align),
        }

    def _frequency(self, rng: np.random.Generator) -> float:
        events = 0
        step = max(1, 2_000_000 // (self.law.dimension * (self.M + self.K)))
        for start in range(0, REFERENCE, step):
            size = min(step, REFERENCE - start)
            rows = self.law.sample(size * (self.M + self.K), rng).reshape(size, self.M + self.K, -1)
            T = np.einsum("ij,ij->i", rows[:, : self.M].mean(axis=1), rows[:, self.M :].mean(axis=1))
            events += int((T <= 0).sum())
        # A limit is only counted as wrong where the truth is surely above it.
        return clopper_pearson(events, REFERENCE, 0.999, "greater").low

    def _conditional(self, v: Float, rng: np.random.Generator) -> float:
        if "bound" in self.options:
            # The limit is one for the conditional Cantelli bound, which is known.
            x = self.law.rows @ v
            centre, spread = float(x.mean()), float(x.var())
            return spread / (spread + self.K * centre**2) if centre > 0 else 1.0
        events = 0
        step = max(1, 2_000_000 // (self.law.dimension * self.K))
        for start in range(0, REFERENCE, step):
            size = min(step, REFERENCE - start)
            x = self.law.sample(size * self.K, rng) @ v
            events += int((x.reshape(size, self.K).mean(axis=1) <= 0).sum())
        return clopper_pearson(events, REFERENCE, 0.999, "greater").low

    def certify(self, n: int, rng: np.random.Generator, confidence: float) -> Certificate:
        """One certificate from a fresh sample of n units."""
        return certificate(
            self.law.sample(n, rng),
            M=self.M,
            K=self.K,
            confidence=confidence,
            tier=self.base,  # type: ignore[arg-type]
            rng=rng,
            **self.options,
        )

    def run(self, n: int, chunk: int, repetitions: int, seed: int, confidence: float) -> Cell:
        """One chunk of repetitions."""
        begun = time.perf_counter()
        names = [q for q in QUANTITIES if q in self.truth]
        holds, stated, interval = ({q: 0 for q in names} for _ in range(3))
        ratios: dict[str, list[float]] = {q: [] for q in names}
        issued = 0
        for r in range(repetitions):
            stream = [seed, n, chunk, r, *self.name.encode()]  # the same samples for every tier
            c = self.certify(n, np.random.default_rng(stream), confidence)
            issued += c.upper < 1
            for q in names:
                quantity, truth = getattr(c, q), self.truth[q]
                limit = quantity.limit
                if limit is None:
                    holds[q] += 1
                    continue
                less = limit.alternative == "less"
                value = limit.high if less else limit.low
                stated[q] += value < 1 if less else value > 0
                holds[q] += bool(value >= truth if less else value <= truth)
                ratios[q].append(_ratio(value, truth, less))
                if quantity.interval is not None:
                    interval[q] += truth in quantity.interval
        quartiles = {q: _quartiles(v) for q, v in ratios.items() if v}
        return Cell(
            self.name,
            n,
            self.tier,
            self.M,
            self.K,
            confidence,
            chunk,
            repetitions,
            int(issued),
            holds,
            {q: int(v) for q, v in stated.items()},
            quartiles,
            interval,
            round(time.perf_counter() - begun, 3),
        )


def _ratio(value: float, truth: float, less: bool) -> float:
    if not less:
        return truth / value if value > 0 else math.inf
    if value >= 1 or truth >= 1 or truth <= 0:
        return math.inf
    return (value / (1 - value)) / (truth / (1 - truth))


def _quartiles(values: list[float]) -> list[float]:
    # JSON has no infinity: -1 stands for "no limit".
    found = np.quantile(values, [0.25, 0.5, 0.75], method="inverted_cdf")
    return [float(f"{v:.4g}") if math.isfinite(v) else -1.0 for v in found]


TIERS: dict[str, tuple[int, int]] = {
    # tier[:method] -> (M, K); small sizes where probabilities themselves are counted
    "asymptotic:separate": (64, 64),
    "asymptotic:mover": (64, 64),
    "asymptotic:fieller": (64, 64),
    "asymptotic:bootstrap": (64, 64),
    "bounded": (64, 64),
    "replicates": (4, 4),
    "conditional": (64, 4),
    "conditional:bounded": (64, 64),
}
SLOW = {"asymptotic:bootstrap": 200}
"""Largest n at which a tier is studied: the bootstrap costs resamples * n^2."""


def cells(names: Iterable[str], sizes: Iterable[int], tiers: Iterable[str]) -> Iterator[tuple[str, int, str]]:
    """All (law, n, tier) of a study, small n first."""
    for n in sorted(sizes):
        for tier in tiers:
            M, K = TIERS[tier]
            if n > SLOW.get(tier, n) or (tier == "replicates" and n < M + K):
                continue
            for name in names:
                yield name, n, tier


def read(path: Path) -> list[Cell]:
    """Stored chunks, the longest of each; a torn last line (of an interrupted run) is left out."""
    found: dict[tuple[Any, ...], Cell] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            cell = Cell(**json.loads(line))
        except (json.JSONDecodeError, TypeError):
            continue
        key = (cell.law, cell.n, cell.tier, cell.confidence, cell.chunk)
        if key not in found or found[key].repetitions < cell.repetitions:
            found[key] = cell
    return list(found.values())


def append(path: Path, cell: Cell) -> None:
    """Add one line in a single write, so that processes sharing the file do not mix their lines."""
    data = (json.dumps(asdict(cell), allow_nan=False) + "\n").encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def run(
    path: Path,
    *,
    names: dict[str, Any],
    sizes: Iterable[int],
    tiers: Iterable[str],
    repetitions: int,
    seed: int = 0,
    confidence: float = 0.95,
    shard: tuple[int, int] = (0, 1),
    progress: Callable[[str], None] = lambda text: None,
) -> int:
    """Fill ``path`` with every missing chunk of this shard; returns how many were computed."""
    done = {(c.law, c.n, c.tier, c.chunk): c.repetitions for c in read(path) if c.confidence == confidence}
    studies: dict[tuple[str, str], _Study] = {}
    computed = 0
    chunks = -(-repetitions // CHUNK)
    work = [(cell, k) for cell in cells(names, sizes, tiers) for k in range(chunks)]
    for index, ((name, n, tier), k) in enumerate(work):
        wanted = min(CHUNK, repetitions - k * CHUNK)
        if index % shard[1] != shard[0] or done.get((name, n, tier, k), 0) >= wanted:
            continue
        key = (name, tier)
        if key not in studies:
            studies[key] = _Study(name, names[name], tier, *TIERS[tier])
        cell = studies[key].run(n, k, wanted, seed, confidence)
        append(path, cell)
        computed += 1
        progress(f"{index + 1}/{len(work)} {name} n={n} {tier} {cell.seconds:.1f} s")
    return computed


def summary(found: list[Cell], quantities: Iterable[str] = ("misalignment", "B_align", "d_align")) -> str:
    """Markdown tables: coverage of the one-sided limit with its 95 % interval, share issued, median width."""
    groups: dict[tuple[str, str, int], list[Cell]] = {}
    for c in sorted(found, key=lambda c: (c.tier, c.law, c.n, c.chunk)):
        groups.setdefault((c.tier, c.law, c.n), []).append(c)
    lines: list[str] = []
    tier = None
    for (name, law, n), group in groups.items():
        if name != tier:
            tier = name
            first = group[0]
            head = [q for q in quantities if q in first.holds]
            lines += [
                "",
                f"### {name} (M = {first.M}, K = {first.K}, nominal {100 * first.confidence:g} %)",
                "",
            ]
            lines.append("| law | n | issued | " + " | ".join(f"{q} | width" for q in head) + " |")
            lines.append("|---|---|---|" + "---|---|" * len(head))
        total = sum(c.repetitions for c in group)
        row = [law, str(n), f"{sum(c.issued for c in group) / total:.2f}"]
        for q in head:
            ci = clopper_pearson(sum(c.holds[q] for c in group), total)
            mark = " **low**" if ci.high < group[0].confidence else ""
            row.append(f"{ci.estimate:.3f} [{ci.low:.3f}, {ci.high:.3f}]{mark}")
            medians = [c.ratio[q][1] for c in group if q in c.ratio]
            finite = [m for m in medians if m >= 0]
            row.append(f"{float(np.median(finite)):.3g}" if 2 * len(finite) > len(medians) else "none")
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines).strip() + "\n"


@click.command()
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("coverage.jsonl"))
@click.option("--repetitions", type=click.IntRange(1), default=2000, show_default=True)
@click.option("--laws", "chosen", default="all", help="Comma-separated names, or all.")
@click.option("--n", "sizes", default="50,200,1000,5000", show_default=True)
@click.option("--tiers", default=",".join(TIERS), show_default=True)
@click.option("--empirical", multiple=True, help="NAME=FILE.npy, a matrix of gradients (N, d); repeatable.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--confidence", type=float, default=0.95, show_default=True)
@click.option("--shard", default="0/1", show_default=True, help="This process of how many, e.g. 0/2 and 1/2.")
@click.option(
    "--summary", "only_summary", is_flag=True, help="Print the table of what is stored; run nothing."
)
def main(
    out: Path,
    repetitions: int,
    chosen: str,
    sizes: str,
    tiers: str,
    empirical: tuple[str, ...],
    seed: int,
    confidence: float,
    shard: str,
    only_summary: bool,
) -> None:
    """Coverage study of every tier of the certificates."""
    if only_summary:
        click.echo(summary(read(out)))
        return
    known = laws()
    for item in empirical:
        name, _, file = item.partition("=")
        rows = np.load(file, allow_pickle=False)
        known[name] = Pool(np.asarray(rows, dtype=np.float64).reshape(len(rows), -1))
    names = list(known) if chosen == "all" else chosen.split(",")
    wanted = tiers.split(",")
    for given, allowed, what in ((names, known, "--laws"), (wanted, TIERS, "--tiers")):
        unknown = [x for x in given if x not in allowed]
        if unknown:
            raise click.BadParameter(f"{what}={','.join(unknown)}: expected some of {', '.join(allowed)}")
    index, _, count = shard.partition("/")
    run(
        out,
        names={name: known[name] for name in names},
        sizes=[int(n) for n in sizes.split(",")],
        tiers=wanted,
        repetitions=repetitions,
        seed=seed,
        confidence=confidence,
        shard=(int(index), int(count)),
        progress=lambda text: click.echo(text, err=True),
    )
    click.echo(summary(read(out)))


if __name__ == "__main__":
    main()
