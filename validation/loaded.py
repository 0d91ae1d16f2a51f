"""The validation of one network that was trained elsewhere: a language model or a CIFAR checkpoint.

Geometry of its held-out gradients, and counted misalignment against the bounds, by the three protocols and
with the sample sizes of a preset. A cell is one insertion point; like every run this one survives being
killed and goes on with the cells that are missing.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import certify
from certify.sweep import check_device
from theory.moments import Moments
from validation import cases, measure, pretrained, resample, targets, training
from validation.measure import Level, rng_of
from validation.pool_bounds import pool_bounds
from validation.resample import Pool
from validation.results import Record, Run
from validation.store import Store

_SUITES = {"gpt_neox": "neox", "llama": "llama"}
_EVERY = 2  # every second transformer layer, as for the networks that are trained here


@dataclass(frozen=True)
class Loaded:
    """A network to be validated, completely described.

    ``model`` is ``hf:PATH_OR_NAME``, ``checkpoint:FILE``, or a bare path or name, which means ``hf:``;
    ``data`` is what ``certify measure --data`` takes: ``text:FILE`` or ``images:PATH[:SPLIT]``, held out.
    """

    model: str
    data: str
    length: int = 128
    batch: int = 16
    revision: str | None = None
    dtype: str | None = None
    device: str | None = None
    device_map: str | None = None

    def __post_init__(self) -> None:
        if not self.model.startswith(("hf:", "checkpoint:")):
            object.__setattr__(self, "model", f"hf:{self.model}")
        if not self.data.startswith(("text:", "images:")):
            raise ValueError(f"data={self.data!r}: expected text:FILE or images:PATH[:SPLIT]")

    @property
    def path(self) -> str:
        """The model without its kind."""
        return self.model.partition(":")[2]

    def weights_sha256(self) -> str:
        """Hash of the model's files."""
        if self.model.startswith("hf:"):
            return pretrained.identity(self.path, self.revision)
        if not Path(self.path).is_file():
            raise ValueError(f"model={self.model!r}: no such checkpoint")
        with open(self.path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class _Ready:
    """What is loaded: the network on its device, its batches and how records call it."""

    target: targets.Target
    at: list[str]
    common: dict[str, Any]
    units: int
    data_sha256: str


def run(
    what: Loaded,
    *,
    preset: str = "default",
    seed: int = 0,
    out: str | Path = "runs/loaded",
    max_units: int | None = None,
    progress: Any = None,
    command: str | None = None,
) -> Path:
    """Validate a loaded network and return the path of ``out/results.jsonl``.

    Parameters
    ----------
    what:
        The network and its held-out data.
    preset:
        Whose sample sizes and numbers of replicates are used.
    seed:
        Of the resampling.
    out:
        Folder to write into or to go on with.
    max_units:
        Units to measure; None means as many as the preset holds out.
    progress:
        As in :func:`validation.run.run`.
    command:
        To print in the report; None writes the equivalent ``certify validate``.

    Raises
    ------
    ValueError
        For a model, data or folder that cannot be used; another run in ``out``.
    BoundViolated
        After everything is stored, where an exactly valid bound was contradicted.
    """
    from validation.run import BoundViolated, Silent, violations

    if preset not in cases.PRESETS:
        raise ValueError(f"preset={preset!r}: expected one of {', '.join(cases.PRESETS)}")
    if max_units is not None and max_units < 8:
        raise ValueError(f"max_units={max_units}: expected at least 8")
    progress = progress or Silent()
    budget = cases.PRESETS[preset]
    weights = what.weights_sha256()
    ready = _load(what, budget, max_units, seed)
    comparisons = _comparisons(ready, budget)
    with Store(
        Path(out), _describe(what, ready, preset, seed, Path(out), weights, max_units, command)
    ) as store:
        left = [name for name in ready.at if name not in store.finished]
        if left:
            progress.start(ready.units, "Measuring gradients")
            rows = _gradients(ready, left, progress)
            progress.start(len(left) * comparisons, "Counting misaligned events")
            level = Level(len(ready.at) * comparisons)
            for name in left:
                by = _by_positions(what, rows[name], ready, name)
                store.append(name, _records(by, name, ready, budget, seed, level))
                progress.advance(comparisons)
        contradictions = violations(store.records())
    if contradictions:
        raise BoundViolated(store.path, contradictions)
    return store.path


def _load(what: Loaded, budget: cases.Preset, max_units: int | None, seed: int) -> _Ready:
    images = what.model.startswith("checkpoint:")
    if images != what.data.startswith("images:"):
        raise ValueError(
            f"data={what.data!r}: expected {'images:PATH' if images else 'text:FILE'} for {what.model}"
        )
    target = targets.load(
        what.model,
        what.data,
        None,
        batch_size=what.batch,
        length=what.length,
        revision=what.revision,
        dtype=what.dtype,
        device_map=what.device_map,
    )
    if what.device is not None:
        target.model.to(check_device(what.device))
    like = (budget.resnets if images else budget.neoxes)[0]
    n = min(max_units or like.held_out, len(target.batches.dataset))
    if images:
        from validation.models import resnet_blocks

        suite, blocks = "resnet20", resnet_blocks(target.model)
        per_stage = len(blocks) // 3
        at, depth = blocks[per_stage - 1 :: per_stage], 2 * len(blocks) + 2
        width = target.model.conv1.out_channels
        name = Path(what.path).stem
    else:
        kind = getattr(target.model.config, "model_type", "?")
        if kind not in _SUITES:
            raise ValueError(
                f"model={what.model!r}: its type is {kind}; expected {' or '.join(_SUITES)}; `certify "
                "measure` takes any causal language model"
            )
        suite, layers = _SUITES[kind], pretrained.layers(target.model)
        at, depth = layers[1::_EVERY] or layers, len(layers)
        width = int(target.model.config.hidden_size)
        name = Path(what.path).name + (f"@{what.revision}" if what.revision else "")
    # A random choice, the same for every model at one seed: a file has its passages in an order.
    chosen = np.sort(rng_of(seed, "units").permutation(len(target.batches.dataset))[:n])
    arrays = tuple(a[chosen] for a in target.batches.arrays)
    target = dataclasses.replace(target, batches=dataclasses.replace(target.batches, arrays=arrays))
    common = {
        "suite": suite,
        "case": f"loaded-{name}",
        "label": f"{name} (loaded), {next(target.model.parameters()).dtype}".replace("torch.", ""),
        "unit": target.unit,
        "width": width,
        "depth": depth,
        "seed": seed,
    }
    sha = hashlib.sha256(b"".join(a.numpy().tobytes() for a in arrays)).hexdigest()
    return _Ready(target, at, common, n, sha)


def _gradients(ready: _Ready, at: list[str], progress: Any) -> dict[str, np.ndarray]:
    seen = 0

    def on_batch(done: int, _: int | None) -> None:
        nonlocal seen
        progress.advance(done - seen)
        seen = done

    flat = ready.common["suite"] == "resnet20"
    assert ready.target.loss is not None
    rows = certify.gradients(
        ready.target.model,
        ready.target.loss,
        ready.target.batches,
        at=at,
        positions="flatten" if flat else "sum",
        progress=on_batch,
    )
    return {name: np.asarray(Q, dtype=np.float32) for name, Q in rows.items()}


def _by_positions(what: Loaded, Q: np.ndarray, ready: _Ready, name: str) -> dict[str, np.ndarray]:
    if ready.common["suite"] != "resnet20":
        return {"sum": Q}
    channels = ready.target.model.get_submodule(name).conv2.out_channels
    return {"flatten": Q, "sum": Q.reshape(len(Q), channels, -1).sum(axis=2)}


def _sizes(n: int, budget: cases.Preset) -> list[tuple[str, int, int]]:
    return [
        *(("with_replacement", M, K) for M, K in budget.with_replacement),
        *(("without_replacement", M, K) for M, K in budget.without_replacement if n >= M + K),
        *(("fresh", M, K) for M, K in budget.fresh if n - n // 2 >= M + K),
    ]


def _comparisons(ready: _Ready, budget: cases.Preset) -> int:
    """Frequencies compared with bounds at one insertion point."""
    return len(_sizes(ready.units, budget)) * (2 if ready.common["suite"] == "resnet20" else 1)


def _records(
    by: dict[str, np.ndarray], name: str, ready: _Ready, budget: cases.Preset, seed: int, level: Level
) -> list[Record]:
    """Geometry and events at one insertion point."""
    records: list[Record] = []
    case = ready.common["case"]
    order = rng_of(seed, case, "halves").permutation(ready.units)
    first, second = order[: ready.units // 2], order[ready.units // 2 :]
    for positions, Q in by.items():
        common = {**ready.common, "module": name, "positions": positions}
        records.append(measure.geometry_record(Q, common))
        whole, half = Pool(Q), Pool(Q[second])
        moments = whole.moments()
        iid = Moments(moments.m2, moments.a, moments.t)
        for protocol, M, K in _sizes(ready.units, budget):
            started = time.perf_counter()
            fresh = protocol == "fresh"
            (events,) = resample.count_each(
                [half if fresh else whole],
                M,
                K,
                protocol=protocol,  # type: ignore[arg-type]
                replicates=budget.pool_replicates,
                rng=rng_of(seed, case, name, positions, protocol, str(M), str(K)),
            )
            if fresh:
                bounds = measure.estimated_bounds(Q[first], M, K)
            else:
                bounds = pool_bounds(moments, M, K, replacement=protocol == "with_replacement")
            records.append(
                measure._misalignment(
                    common,
                    events,
                    level,
                    "estimate" if fresh else "pool",
                    *bounds,
                    moments=iid if protocol == "with_replacement" else None,
                    seconds=time.perf_counter() - started,
                )
            )
    return records


def _describe(
    what: Loaded,
    ready: _Ready,
    preset: str,
    seed: int,
    out: Path,
    weights: str,
    max_units: int | None,
    command: str | None,
) -> Run:
    packages = ("gradient-alignment", "torch", "numpy", "scipy", "transformers")
    versions = {p: importlib.metadata.version(p) for p in packages} | {"python": platform.python_version()}
    package = Path(str(certify.__file__)).parent
    own = (__file__, *(str(m.__file__) for m in (cases, measure, resample, targets, pretrained)))
    code = training.source_digest(*own, *sorted(str(p) for p in package.glob("*.py")))
    asked = {"dtype": what.dtype, "length": what.length, "batch": what.batch, "at": ready.at}
    identity = json.dumps(
        ["loaded", preset, seed, ready.units, asked, weights, ready.data_sha256, versions, code],
        sort_keys=True,
    )
    options = (
        f"--model {shlex.quote(what.model)} --data {shlex.quote(what.data)} --preset {preset} --seed {seed}"
    )
    given: dict[str, Any] = {"revision": what.revision, "dtype": what.dtype, "device": what.device}
    given |= {"length": what.length, "device-map": what.device_map, "max-units": max_units, "out": str(out)}
    options += "".join(f" --{k} {shlex.quote(str(v))}" for k, v in given.items() if v is not None)
    device = next(ready.target.model.parameters()).device
    return Run(
        run_id=hashlib.sha256(identity.encode()).hexdigest()[:12],
        preset=preset,
        suites=(ready.common["suite"],),
        seed=seed,
        command=command or f"certify validate {options}",
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions=versions,
        hardware={
            "machine": platform.machine(),
            "system": platform.system(),
            "cores": str(os.cpu_count()),
            "device": str(device),
        },
        data={
            Path(what.data.split(":")[1]).name: f"sha256:{ready.data_sha256} (the {ready.units} units used)",
            Path(what.path).name: f"sha256:{weights} (weights)",
        },
    )
