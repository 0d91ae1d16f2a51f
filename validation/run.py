"""Run the validation cells of a preset, one after another, into a store that survives interruption."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import certify
import theory
from validation import (
    cases,
    cells,
    cifar,
    data,
    depth_measure,
    gradients,
    growth_measure,
    intervention_measure,
    measure,
    models,
    pool_bounds,
    prepare,
    record_cache,
    resample,
    sets,
    training,
)
from validation import images as image_files
from validation.measure import Level
from validation.results import Misalignment, Record, Run
from validation.store import Store
from validation.training import Network

PRESETS: tuple[str, ...] = tuple(cases.PRESETS)
SUITES: tuple[str, ...] = cases.SUITES
_PACKAGES = ("gradient-alignment", "torch", "numpy", "scipy", "transformers", "scikit-learn")


class Progress(Protocol):
    """What a run reports while it works; the command line draws it, a library user may ignore it.

    ``start`` is called once for every stage (training, cells), ``advance`` as its units get done, ``note``
    for a line of text worth showing (what is being trained, a cell skipped because it is already stored).
    """

    def start(self, total: int, description: str) -> None:
        """A stage of ``total`` units begins; an earlier stage has ended."""

    def advance(self, n: int = 1) -> None:
        """``n`` more units of the current stage are done."""

    def note(self, text: str) -> None:
        """One line for the reader; no markup."""


class Silent:
    """The default :class:`Progress`: says nothing."""

    def start(self, total: int, description: str) -> None:
        """Ignore the stage."""

    def advance(self, n: int = 1) -> None:
        """Ignore the units."""

    def note(self, text: str) -> None:
        """Ignore the line."""


class BoundViolated(Exception):
    """A bound that is exactly valid was contradicted by counted events: a bug or a false theorem.

    Raised after all records are stored, so that the report can still be built from ``path``.
    """

    def __init__(self, path: Path, cells: tuple[str, ...]) -> None:
        self.path = path
        self.cells = cells
        super().__init__(
            f"{len(cells)} cell(s) contradict B_exact where it is exactly valid: {', '.join(cells[:5])}"
            f"{' ...' if len(cells) > 5 else ''}; all records are in {path}"
        )


def run(
    preset: str = "default",
    suites: Sequence[str] | None = None,
    seed: int = 0,
    out: str | Path = "runs/latest",
    progress: Progress | None = None,
    *,
    command: str | None = None,
    jobs: int | None = None,
    images: str | Path | None = None,
    checkpoints: str | Path | None = None,
) -> Path:
    """Measure every cell of ``preset`` and return the path of ``out/results.jsonl``.

    A second call with the same arguments and the same ``out`` goes on where the first one stopped.

    Parameters
    ----------
    preset:
        One of :data:`PRESETS`.
    suites:
        Some of :data:`SUITES`; None means all suites of the preset.
    seed:
        Everything random derives from it and from the cell's name.
    out:
        Folder to write into; made if missing.
    progress:
        Receives what happens, see :class:`Progress`; None is silent.
    command:
        The command to print in the report for repeating the run; None writes the equivalent ``certify
        validate``.
    jobs:
        Networks trained, and cells measured, at the same time, one thread each; None means one for each core.
        The records are the same whatever their number.
    images:
        Images for the ResNets in place of the embedded ones, in any form that
        :func:`validation.data.images` reads; splits ``train`` and ``test``.
    checkpoints:
        Folder of public CIFAR-10 checkpoints ``resnetDEPTH*.th``; in the suites "intervention" and "depth"
        they take the place of the ResNets trained here. Needs ``images`` of CIFAR-10.

    Raises
    ------
    ValueError
        For an unknown preset or suite, an ``out`` that cannot be written or that holds another run.
    BoundViolated
        After everything is stored, where an exactly valid bound was contradicted.
    """
    chosen = _chosen(preset, suites, seed, jobs)
    progress = progress or Silent()
    budget = cases.PRESETS[preset]
    if checkpoints is not None and images is None:
        raise ValueError("images is missing: checkpoints need the CIFAR-10 images that they were trained for")
    pretrained = None if checkpoints is None else models.checkpoints(checkpoints)
    counted = [n for s in chosen if s not in _OWN for n in budget.networks(s, seed, _images(images))]
    others = {s: budget.networks(s, seed, _images(images), pretrained) for s in chosen if s in _OWN}
    networks = list(dict.fromkeys([*counted, *(n for members in others.values() for n in members)]))
    plan = _plan(budget, chosen, seed, counted) + _own_plan(others, seed)
    described = _describe(preset, chosen, seed, Path(out), plan, networks, command, _images(images))
    with Store(Path(out), described) as store:
        left = [cell for cell in plan if cell.name not in store.finished]
        if len(left) < len(plan):
            progress.note(
                f"{len(plan) - len(left)} of {len(plan)} cells are already stored; going on with the rest"
            )
        wanted = list(dict.fromkeys(cell.network for cell in left if cell.network is not None))
        cores = jobs or (os.cpu_count() or 1 if budget.side_by_side else 1)
        if wanted:
            progress.start(sum(map(prepare.steps_of, wanted)), "Training networks, measuring gradients")
            prepare.prepare(wanted, jobs=cores, on_step=progress.advance, note=progress.note)
        progress.start(sum(cell.comparisons for cell in plan), "Measuring and counting")
        progress.advance(sum(cell.comparisons for cell in plan) - sum(cell.comparisons for cell in left))
        with closing(cells.in_order([cell.measure for cell in left], jobs=cores)) as measured:
            for cell, records in zip(left, measured, strict=True):
                store.append(cell.name, records)
                progress.advance(cell.comparisons)
        contradictions = violations(store.records())
    if contradictions:
        raise BoundViolated(store.path, contradictions)
    return store.path


@dataclass(frozen=True)
class _Cell:
    """What is stored whole or not at all: all records of one law or one network."""

    name: str
    comparisons: int
    measure: Callable[[], list[Record]]
    network: Network | None = None


def _images(path: str | Path | None) -> str | None:
    """An absolute path: workers and a resumed run may start elsewhere."""
    return None if path is None else str(Path(path).resolve())


def _plan(budget: cases.Preset, suites: Sequence[str], seed: int, networks: Sequence[Network]) -> list[_Cell]:
    normal, other = (len(budget.law_sizes), len(budget.other_sizes))
    known = [(c, normal) for c in budget.laws] + [(c, other) for c in budget.other_laws]
    known = known if "gaussian" in suites else []
    level = Level(sum(k for _, k in known) + sum(_comparisons(n, budget) for n in networks))
    return [
        *(_Cell(c.name, k, partial(measure.law_records, c, budget, seed, level)) for c, k in known),
        *(
            _Cell(
                n.name, _comparisons(n, budget), partial(measure.network_records, n, budget, seed, level), n
            )
            for n in networks
        ),
    ]


_OWN: dict[str, Callable[[Network, int], list[Record]]] = {
    "intervention": intervention_measure.records,
    "depth": depth_measure.records,
}
"""Suites that count no events: what measures one network."""


def _own_plan(suites: Mapping[str, Sequence[Network]], seed: int) -> list[_Cell]:
    return [
        _Cell(f"{suite}/{n.name}", 1, partial(_OWN[suite], n, seed), n)
        for suite, networks in suites.items()
        for n in networks
    ]


def _comparisons(network: Network, budget: cases.Preset) -> int:
    """Frequencies that are compared with bounds for one network."""
    n = network.held_out
    sizes = (
        len(budget.with_replacement)
        + sum(n >= M + K for M, K in budget.without_replacement)
        + sum(n - n // 2 >= M + K for M, K in budget.fresh)
    )
    if network.train_pool:
        sizes += 2 * len(budget.pairs)
    return sizes * (6 if network.images else network.depth // 2)


def violations(records: Iterable[Record]) -> tuple[str, ...]:
    """Cells that contradict a bound where its moments are exactly known, so that it must hold.

    Laws, and draws from a pool with either protocol (without replacement: Cantelli's inequality with the
    finite-pool moments). Bounds from estimates may fail with their stated probability and are not listed.
    """
    found = []
    for r in records:
        if not isinstance(r, Misalignment) or r.bound_source not in ("population", "pool"):
            continue
        bad = r.verdict == "violated"
        bad |= r.verdict_align == "violated" and r.protocol != "without_replacement"
        if r.log_probability is not None and r.B_exact.value:
            bad |= r.log_probability > math.log(r.B_exact.value) + 1e-9
        if bad:
            found.append(f"{r.case} {r.module} {r.positions} {r.protocol} M={r.M} K={r.K}")
    return tuple(found)


def _chosen(preset: str, suites: Sequence[str] | None, seed: int, jobs: int | None) -> tuple[str, ...]:
    if preset not in PRESETS:
        raise ValueError(f"preset={preset!r}: expected one of {', '.join(PRESETS)}")
    if isinstance(suites, str):
        raise TypeError(f"suites={suites!r}: expected a sequence of names such as ['gaussian', 'neox']")
    for suite in suites or ():
        if suite not in SUITES:
            raise ValueError(f"suites has {suite!r}: expected some of {', '.join(SUITES)}")
    if suites is not None and not suites:
        raise ValueError(f"suites=[]: expected some of {', '.join(SUITES)}, or None for all")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31:
        raise ValueError(f"seed={seed!r}: expected a whole number from 0 to 2^31 - 1")
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs={jobs}: expected at least 1")
    return tuple(s for s in SUITES if suites is None or s in suites)


def _describe(
    preset: str,
    suites: tuple[str, ...],
    seed: int,
    out: Path,
    plan: list[_Cell],
    networks: list[Network],
    command: str | None,
    images: str | None,
) -> Run:
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES} | {
        "python": platform.python_version()
    }
    used = {}
    for network in networks:
        units, _ = training.load_data(network)
        used[Path(network.data).name] = f"sha256:{units.sha256} ({units.licence})"
        if network.weights:
            digest = hashlib.sha256(Path(network.weights).read_bytes()).hexdigest()
            used[Path(network.weights).name] = f"sha256:{digest} (weights trained elsewhere)"
    sources = _sources()
    identity = json.dumps(
        [
            preset,
            suites,
            seed,
            [c.name for c in plan],
            versions,
            used,
            training.source_digest(*map(str, sources)),
        ]
    )
    options = f"--preset {preset} --suite {','.join(suites)} --seed {seed} --out {shlex.quote(str(out))}"
    if images is not None:
        options += f" --images {shlex.quote(images)}"
    folders = {str(Path(n.weights).parent) for n in networks if n.weights}
    options += "".join(f" --checkpoints {shlex.quote(folder)}" for folder in folders)
    return Run(
        run_id=hashlib.sha256(identity.encode()).hexdigest()[:12],
        preset=preset,
        suites=suites,
        seed=seed,
        command=command or f"certify validate {options}",
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions=versions,
        hardware={
            "machine": platform.machine(),
            "system": platform.system(),
            "cores": str(os.cpu_count()),
            "device": "cpu",
        },
        data=used,
    )


def _sources() -> list[Path]:
    """Files whose source decides the numbers: a run is not continued by other code."""
    packages = [p for module in (theory, certify) for p in Path(str(module.__file__)).parent.glob("*.py")]
    own = (cases, cells, cifar, data, gradients, image_files, measure, models, pool_bounds, prepare, resample)
    more = (depth_measure, growth_measure, intervention_measure, record_cache, sets, training)
    return sorted([*packages, *(Path(str(module.__file__)) for module in (*own, *more))])
