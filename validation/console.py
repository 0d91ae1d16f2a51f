"""What a run looks like on a terminal: progress bars with rate and remaining time, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any


def duration(seconds: float) -> str:
    """Seconds as a reader says them.

    >>> duration(7.4), duration(94), duration(3700)
    ('7 s', '1 min 34 s', '1 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


COUNTS = (
    "counts: cells, or steps of a trend, for the claim / undecided / against it; "
    "effect: [interval] or (range)"
)
_ENOUGH = 3  # units done before a remaining time is guessed


class Bars:
    """Progress of a run on standard error: rich bars on a terminal, lines now and then elsewhere.

    Use as a context manager; ``start``, ``advance`` and ``note`` are what a run calls. A remaining time is
    shown once a few units and ``patience`` seconds have passed: guesses from less are wild.
    """

    def __init__(self, console: Any = None, *, every: float = 5.0, patience: float = 10.0) -> None:
        from rich.console import Console

        self.console = console or Console(stderr=True, highlight=False)
        self._every = every
        self._patience = patience
        self._bars: Any = None
        self._task: Any = None
        self._total = self._done = 0
        self._text = ""
        self._began = self._said = 0.0

    def __enter__(self) -> Bars:
        if self.console.is_terminal:
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                ProgressColumn,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )
            from rich.text import Text

            class Rate(ProgressColumn):
                def render(self, task: Any) -> Text:
                    speed = task.finished_speed or task.speed
                    return Text("" if speed is None else f"{speed:.3g}/s", style="dim")

            patience = self._patience

            class Left(TimeRemainingColumn):
                def render(self, task: Any) -> Text:
                    known = task.completed >= _ENOUGH and (task.elapsed or 0.0) > patience
                    return Text.assemble(super().render(task), (" left", "dim")) if known else Text("")

            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                Rate(),
                TimeElapsedColumn(),
                Left(),
                console=self.console,
                expand=False,
            )
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
        elif kind is None and self._text:
            self._line(final=True)

    def start(self, total: int, description: str) -> None:
        """A stage of ``total`` units begins."""
        if self._bars is not None:
            if self._task is not None:
                self._bars.stop_task(self._task)
            self._task = self._bars.add_task(description, total=total or None)
            return
        if self._text:
            self._line(final=True)
        self._total, self._done, self._text = total, 0, description
        self._began = self._said = time.monotonic()
        self.console.print(f"{description}: {total} to do" if total else description, markup=False)

    def advance(self, n: int = 1) -> None:
        """``n`` more units are done."""
        if self._bars is not None:
            self._bars.advance(self._task, n)
            return
        self._done += n
        if time.monotonic() - self._said >= self._every:
            self._said = time.monotonic()
            self._line()

    def note(self, text: str) -> None:
        """One line for the reader."""
        self.console.print(text, markup=False)

    def _line(self, final: bool = False) -> None:
        passed = time.monotonic() - self._began
        rate = self._done / passed if passed > 0 else 0.0
        done = f"{self._done}/{self._total}" if self._total else str(self._done)
        text = f"{self._text}: {done}, {rate:.3g}/s, {duration(passed)}"
        known = self._done >= _ENOUGH and passed > self._patience
        if not final and known and self._total:
            text += f", {duration(max(self._total - self._done, 0) / rate)} left"
        self.console.print(text, markup=False)


def output() -> Any:
    """The console for results on standard output; wide where no terminal limits it."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=140)


def verdict_table(rows: Any, titles: dict[str, str]) -> Any:
    """The claim table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    from validation.claims import RANGE
    from validation.figures import plain
    from validation.page import number

    styles = {"holds": "green", "fails": "bold red", "undecided": "yellow"}
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("claim", "suite", "verdict", "counts", "effect", "what the effect is"):
        table.add_column(name, no_wrap=name in ("claim", "verdict", "effect"))
    last = ""
    for r in rows:
        effect = "–" if r.effect is None else number(r.effect.value)
        if r.effect is not None and r.effect.low is not None and r.effect.low != r.effect.high:
            limits = number(r.effect.low), number(r.effect.high)
            effect += (
                " ({} to {})".format(*limits) if r.effect.method == RANGE else " [{}, {}]".format(*limits)
            )
        table.add_row(
            "" if r.claim == last else r.claim,
            titles.get(r.suite, r.suite),
            Text(r.verdict, style=styles[r.verdict]),
            f"{r.holds}/{r.undecided}/{r.violated}",
            effect,
            Text(f"{plain(r.effect_name)}; {r.scope}", style="dim"),
        )
        last = r.claim
    return table
