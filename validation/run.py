"""Run the validation cells of a preset, one after another, into a store that survives interruption."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

PRESETS: tuple[str, ...] = ("smoke", "default", "laptop", "paper")
SUITES: tuple[str, ...] = ("gaussian", "resnet20", "neox")


class Progress(Protocol):
    """What a run reports while it works; the command line draws it, a library user may ignore it.

    ``start`` is called once for every stage (training, cells), ``advance`` as its units get done, ``note`` for a
    line of text worth showing (what is being trained, a cell skipped because it is already stored).
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
        The command to print in the report for repeating the run; None writes the equivalent ``certify validate``.
    jobs:
        Networks trained at the same time, one thread each; None means one for each core.

    Raises
    ------
    ValueError
        For an unknown preset or suite, an ``out`` that cannot be written or that holds another run.
    BoundViolated
        After everything is stored, where an exactly valid bound was contradicted.
    """
    raise NotImplementedError
