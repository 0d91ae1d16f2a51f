"""Records of the suites "intervention" and "depth", kept beside the networks that they were measured on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import certify
import theory
from validation import data, results, training
from validation.results import Record, Training
from validation.training import Network


def obtain(
    suite: str,
    network: Network,
    seed: int,
    decided_by: object,
    source: str,
    make: Callable[[], list[Record]],
) -> list[Record]:
    """The records of one cell: from the cache where they are there, else made and kept.

    ``decided_by`` holds the sizes and budgets of the suite, ``source`` the file that measures it; with the
    network, its data, the seed and the source of everything that measures, they name the file. Times in
    records from the cache are those of the run that measured them. A cache file that cannot be read is
    treated as absent; a cache that cannot be written is no error.
    """
    path = path_of(suite, network, seed, decided_by, source)
    stored = _read(path)
    if stored is None:
        stored = make()
        training.write_atomically(path, partial(_write, records=stored))
        return stored
    return [replace(r, cached=True) if isinstance(r, Training) else r for r in stored]


def path_of(suite: str, network: Network, seed: int, decided_by: object, source: str) -> Path:
    """The file that holds the records of one cell, if they are cached."""
    units, _ = training.load_data(network)
    packages = (p for m in (certify, theory) for p in Path(str(m.__file__)).parent.glob("*.py"))
    own = (
        Path(__file__).parent / f"{name}.py" for name in ("growth_measure", "gradients", "measure", "results")
    )
    code = training.source_digest(source, __file__, *sorted(map(str, (*packages, *own))))
    described = [suite, training.cache_key(network, units.sha256), network.name, seed, decided_by, code]
    key = data.digest(json.dumps(described).encode())[:32]
    return training.cache_folder() / "records" / f"{suite}-{key}.jsonl"


def _write(path: Path, records: list[Record]) -> None:
    path.write_text("".join(results.to_json(r) + "\n" for r in records), encoding="utf-8")


def _read(path: Path) -> list[Record] | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        found = [results.from_json(line) for line in lines]
    except (OSError, ValueError, TypeError):
        return None
    return found or None
