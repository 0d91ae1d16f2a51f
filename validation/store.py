"""A folder that holds one run's records and survives being killed at any moment.

``results.jsonl`` has one line per record, cells in the order of the plan. ``cells.jsonl`` is the journal:
after a cell's lines are on disk, one line says how far the results are good. On reopening, whatever lies
beyond is cut off: a half-written line, or lines of a cell that was not finished. So results are always
those of whole cells.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from validation.results import Record, Run, from_json, to_json

RESULTS, JOURNAL = "results.jsonl", "cells.jsonl"
_HEAD = "run"
_BEGINNING = b'{"kind": "run"'
_VOLATILE = {"seconds", "started", "cached", "hardware", "command"}
"""Fields that differ between two runs of one plan: times, whether a cache helped, where and how it ran."""


class Store:
    """An open run folder. Use it in a ``with`` block; one process at a time.

    Parameters
    ----------
    out:
        The folder; made if missing.
    run:
        The run to begin or to go on with.

    Raises
    ------
    ValueError
        If the folder cannot be written, is in use, or holds another run.
    """

    def __init__(self, out: Path, run: Run) -> None:
        self.path = out / RESULTS
        self._journal = out / JOURNAL
        with ExitStack() as opened:
            try:
                out.mkdir(parents=True, exist_ok=True)
                lock = opened.enter_context(open(out / ".lock", "a"))
                self._results = opened.enter_context(open(self.path, "ab"))
                opened.enter_context(open(self._journal, "ab"))
            except OSError as error:
                raise ValueError(
                    f"out={str(out)!r}: cannot write there ({error.strerror}); choose another folder"
                ) from error
            _take(lock, out)
            self._refuse_foreign(out)
            self.finished, self._good = _finished(self._journal, self.path)
            self._refuse_another(out, run)
            self._results.truncate(self._good)
            if not self.finished:
                self.append(_HEAD, [run])
            self._opened = opened.pop_all()

    def _refuse_foreign(self, out: Path) -> None:
        with open(self.path, "rb") as file:
            begun = file.read(len(_BEGINNING))
        if not _BEGINNING.startswith(begun):
            raise ValueError(f"out={str(out)!r}: holds a {RESULTS} of another kind; choose another folder")

    def _refuse_another(self, out: Path, run: Run) -> None:
        held = next(iter(_records(self.path, self._good)), run)
        if isinstance(held, Run) and held.run_id == run.run_id:
            return
        what = "unknown"
        if isinstance(held, Run):
            what = f"preset={held.preset!r}, suites={','.join(held.suites)}, seed={held.seed}"
        raise ValueError(
            f"out={str(out)!r}: holds another run ({what}), or one made by another version of this package "
            "or its dependencies; choose another folder or delete this one"
        )

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder; everything appended is already on disk."""
        self._opened.close()

    def append(self, cell: str, records: Sequence[Record]) -> None:
        """Store a finished cell, whole or not at all."""
        block = "".join(to_json(r) + "\n" for r in records).encode()
        self._results.write(block)
        _to_disk(self._results)
        self._good += len(block)
        self.finished[cell] = self._good
        line = json.dumps(
            {"cell": cell, "bytes": self._good, "sha256": hashlib.sha256(block).hexdigest()[:16]}
        )
        with open(self._journal, "ab") as journal:
            journal.truncate(_whole_lines(self._journal, len(self.finished) - 1))
            journal.write(line.encode() + b"\n")
            _to_disk(journal)

    def records(self) -> list[Record]:
        """All records of finished cells."""
        return list(_records(self.path, self._good))


def read(out: str | Path) -> list[Record]:
    """Records of all finished cells in a run folder, also while the run goes on or after it was killed.

    Raises
    ------
    ValueError
        If there are none, or if the files were edited or damaged.
    """
    out = Path(out)
    results, journal = out / RESULTS, out / JOURNAL
    if not results.is_file() or not journal.is_file():
        raise ValueError(f"out={str(out)!r}: no results there; run `certify validate --out {out}` first")
    finished, good = _finished(journal, results)
    # Results reach the disk before their journal line: a journal that knows more cells was not interrupted.
    if journal.read_bytes().count(b"\n") > len(finished):
        raise ValueError(
            f"out={str(out)!r}: {RESULTS} and {JOURNAL} disagree after {len(finished)} cells (edited or "
            f"damaged); `certify validate --out {out}` measures the rest again"
        )
    if not finished:
        raise ValueError(f"out={str(out)!r}: no finished cell yet; run `certify validate --out {out}` again")
    return list(_records(results, good))


def fingerprint(records: Iterable[Record]) -> str:
    """SHA-256 of the records without times and places: equal for two runs of one plan, interrupted or not."""
    h = hashlib.sha256()
    for record in records:
        payload = {k: v for k, v in json.loads(to_json(record)).items() if k not in _VOLATILE}
        h.update(json.dumps(payload, sort_keys=True).encode() + b"\n")
    return h.hexdigest()


def _records(path: Path, good: int) -> Iterable[Record]:
    with open(path, "rb") as file:
        lines = file.read(good).decode().splitlines()
    return (from_json(line) for line in lines)


def _finished(journal: Path, results: Path) -> tuple[dict[str, int], int]:
    """Finished cells with the end of their lines, and how many bytes of the results are good."""
    content = results.read_bytes()
    finished: dict[str, int] = {}
    good = 0
    for line in journal.read_bytes().split(b"\n")[:-1]:  # what follows the last line end is unfinished
        try:
            entry = json.loads(line)
            cell, end, sha = entry["cell"], entry["bytes"], entry["sha256"]
        except (ValueError, KeyError, TypeError):
            break
        if not good <= end <= len(content) or hashlib.sha256(content[good:end]).hexdigest()[:16] != sha:
            break
        finished[cell] = good = end
    return finished, good


def _whole_lines(path: Path, count: int) -> int:
    """Bytes of the first ``count`` lines: a journal is cut there before its next line is written."""
    return sum(len(line) + 1 for line in path.read_bytes().split(b"\n")[:count])


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _take(lock: IO[str], out: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no such locks on Windows; two runs in one folder are then the user's care
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ValueError(f"out={str(out)!r}: another run is writing there; choose another folder") from error
