"""The methods of a run in words: what was drawn, from where, what is assumed, and what it ran on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from validation.claims import group, of, suites
from validation.results import Geometry, Misalignment, Record, Run, Training

TITLES = {
    "gaussian": "Known laws",
    "resnet20": "ResNet-20",
    "neox": "GPT-NeoX (Pythia)",
    "llama": "LLaMA-like",
    "intervention": "Interventions",
    "depth": "Depth",
}
INTROS = {
    "gaussian": (
        "Gradients drawn from laws whose mean and covariance are known exactly, so that the bounds carry "
        "no "
        "estimation error and, for normal laws, the true probability is known."
    ),
    "resnet20": (
        "Residual networks trained on real images; the gradients are those of single held-out examples at "
        "the outputs of residual blocks."
    ),
    "neox": (
        "Transformers of the Pythia architecture trained on real text; the unit is a held-out sequence, "
        "because tokens of one sequence are not independent."
    ),
    "llama": (
        "Transformers of the LLaMA architecture (RMSNorm, SwiGLU, rotary positions) trained on the same "
        "real "
        "text, of several widths and equal depth; the unit is a held-out sequence."
    ),
    "intervention": (
        "A residual block that is zero at the start is put into a trained network and moved one step along "
        "−μ_{M}; the change of the loss on held-out units is compared with the predicted −αT."
    ),
    "depth": (
        "Networks of several depths: how the first-order signal, its covariance and the test loss change "
        "as "
        "blocks are added, at fixed width and together with it."
    ),
}
_PROTOCOLS = {
    "fresh": "fresh: M + K independent units for every trial, none used twice",
    "with_replacement": (
        "with replacement: units drawn from a finite pool of held-out units, which then is the population; "
        "B_{exact} from the pool's own moments is exactly valid for these draws"
    ),
    "without_replacement": (
        "without replacement: disjoint units from a finite pool; not independent, so B_{exact} is "
        "Cantelli's "
        "inequality with the finite pool's mean and variance of T, and B_{align} is shown for comparison "
        "only"
    ),
}
_SOURCES = {
    "population": "population: the law's own moments, no estimation",
    "pool": "pool: the finite pool's own moments (divisor N), no estimation for draws from that pool",
    "estimate": "estimate: unbiased estimates from other units, so the bound itself is uncertain",
}
_ASSUMED = {
    "IID": "units are independent and identically distributed",
    "INDEPENDENT_SAMPLES": "units are independent of each other and of the trained network",
    "FINITE_SECOND_MOMENT": "finite second moments",
    "FINITE_FOURTH_MOMENT": "finite fourth moments (for asymptotic intervals)",
    "NONZERO_MEAN": "a mean gradient other than 0",
    "BOUNDED": "a known bound on the gradient's length",
    "SUBGAUSSIAN": "sub-Gaussian tails",
    "GAUSSIAN": "Gaussian gradients",
    "GIVEN_TRAIN_MEAN": "the training mean is given",
}
_PAIRS = {
    "test-test": "M and K units both held out",
    "train-test": "M units the network was trained on, K held-out units (two laws)",
    "train-train": "M and K units both from the training data, which training has seen: not what the "
    "theorem assumes",
}


def join(words: Sequence[str]) -> str:
    """Words as a list in a sentence."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def methods(records: Sequence[Record], run: Run) -> list[dict[str, Any]]:
    """The methods box."""
    cells, geometry, training = of(records, Misalignment), of(records, Geometry), of(records, Training)
    measured: list[Any] = [*cells, *geometry]
    out: list[dict[str, Any]] = []

    def item(name: str, entries: Iterable[str]) -> None:
        texts = list(dict.fromkeys(e for e in entries if e))
        if texts:
            out.append(
                {"name": name, "text": texts[0]} if len(texts) == 1 else {"name": name, "entries": texts}
            )

    def per_suite(text: Callable[[Any], str]) -> list[str]:
        found = group(measured, lambda r: r.suite)
        return [f"{TITLES.get(str(s), s)}: {join(sorted({text(r) for r in rs}))}" for s, rs in found.items()]

    item(
        "Event",
        [
            "T = mean over M units · mean over K units; T ≤ 0 is misalignment, ties included. "
            "n_{eff} = MK/(M+K+1)."
        ],
    )
    item("Unit of independence", per_suite(lambda r: r.unit))
    item("Positions", per_suite(lambda r: r.positions))
    item("Protocols", (_PROTOCOLS.get(c.protocol, c.protocol) for c in cells))
    item("Bounds from", (_SOURCES.get(c.bound_source, c.bound_source) for c in cells))
    item(
        "Intervals",
        [
            *(f"frequencies: {c.frequency.method}, {100 * c.frequency.confidence:.5g} % each" for c in cells),
            *(
                f"dimensions: {g.d_align.method}, {100 * g.d_align.confidence:g} %"
                for g in geometry
                if g.sample != "population"
            ),
            "verdicts on bounds: Holm over all cells of a row of the claim table, family-wise 5 %",
        ],
    )
    item("Training", (f"{TITLES.get(t.suite, t.suite)}: {t.recipe}; data: {t.data}" for t in training))
    item("Assumptions", (_ASSUMED.get(a, a.replace("_", " ")) for g in geometry for a in g.assumptions))
    item(
        "Seeds",
        [
            f"run seed {run.seed}; seeds in the records: "
            + ", ".join(str(s) for s in sorted({r.seed for r in (*measured, *training)}))
        ],
    )
    item(
        "Seconds", [f"{TITLES.get(s, s)}: {_seconds(s, training, geometry, cells)}" for s in suites(records)]
    )
    item("Data", (f"{k}: {v}" for k, v in run.data.items()))
    item("Versions", [", ".join(f"{k} {v}" for k, v in run.versions.items())])
    item("Hardware", [", ".join(f"{k}: {v}" for k, v in run.hardware.items())])
    return out


def _seconds(suite: str, training: Iterable[Any], geometry: Iterable[Any], cells: Iterable[Any]) -> str:
    parts = []
    for name, rs in (("training", training), ("gradients", geometry), ("resampling", cells)):
        mine = [r for r in rs if r.suite == suite]
        if mine:
            cached = sum(getattr(r, "cached", False) for r in mine)
            total = sum(r.seconds for r in mine)
            parts.append(
                f"{name} {total:.0f}" + (f" ({cached} of {len(mine)} from the cache)" if cached else "")
            )
    return ", ".join(parts)


def suite_methods(records: Sequence[Record], suite: str) -> list[dict[str, str]]:
    """The methods box of one suite: unit, positions, protocol, sizes, seeds, training, seconds."""
    mine: list[Any] = [r for r in records if getattr(r, "suite", None) == suite]
    cells, geometry, training = of(mine, Misalignment), of(mine, Geometry), of(mine, Training)
    measured: list[Any] = [*cells, *geometry]
    out: list[dict[str, str]] = []

    def item(name: str, values: Iterable[Any]) -> None:
        found = list(dict.fromkeys(str(v) for v in values if v not in (None, "", "none")))
        if found:
            out.append({"name": name, "text": "; ".join(found)})

    everything = [r for r in mine if hasattr(r, "unit")]
    item("Unit", (r.unit for r in everything))
    item("Positions", (r.positions for r in mine if hasattr(r, "positions")))
    item("Insertion points", (r.module for r in measured if r.module != "law"))
    item("Units measured", (f"{g.n} ({g.sample})" for g in geometry if g.n is not None))
    item("Protocols", (_PROTOCOLS.get(c.protocol, c.protocol) for c in cells))
    item("Pairs of samples", (_PAIRS[c.pair] for c in cells if any(c.pair != "test-test" for c in cells)))
    item("M × K", (f"{M} × {K}" for M, K in sorted({(c.M, c.K) for c in cells})))
    trials = sorted({(c.protocol, c.trials) for c in cells})
    item("Trials in a cell", (f"{p.replace('_', ' ')}: {n:,}" for p, n in trials[:6]))
    item("Widths", sorted({r.width for r in training}))
    item("Depths", sorted({r.depth for r in training}))
    item("Training", (f"{t.recipe}; data: {t.data}" for t in training))
    item("Steps measured", sorted({r.step for r in measured if r.step is not None}))
    item("Seeds", sorted({r.seed for r in mine if hasattr(r, "seed")}))
    item("Intervals", (f"{100 * c.frequency.confidence:.5g} % {c.frequency.method}" for c in cells))
    if measured or training:
        item("Seconds", [_seconds(suite, training, geometry, cells)])
    elif any(hasattr(r, "seconds") for r in mine):
        item("Seconds", [f"{sum(getattr(r, 'seconds', 0.0) for r in mine):.0f}"])
    return out
