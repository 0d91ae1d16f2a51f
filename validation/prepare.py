"""Train and measure the networks of a run side by side, each in a process of its own that uses one thread.

A worker leaves its results in the cache, whole or not at all, so killing one loses its work and nothing
else. It is ``python -m validation.prepare``: networks come in as lines of JSON, steps go out as lines.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

from validation import gradients
from validation.training import Network

_STEP, _DONE = "step", "done"


def steps_of(network: Network) -> int:
    """How many times the preparation of ``network`` reports a step."""
    return network.steps + gradients.batches_of(network)


def _cost(network: Network) -> float:
    units = network.steps * network.batch + network.held_out + network.train_pool
    # A transformer's work grows with the square of its width, a narrow one's is mostly overhead.
    return units * max(network.length, 1) * network.channels * network.depth * max(1, network.channels / 128)


def prepare(
    networks: Sequence[Network],
    *,
    jobs: int,
    on_step: Callable[[int], None] = lambda n: None,
    note: Callable[[str], None] = lambda text: None,
) -> None:
    """Leave every network and its gradients in the cache; ``on_step`` is told how many steps are newly done.

    Raises
    ------
    RuntimeError
        If a worker fails; its last line of error is quoted.
    """
    missing = []
    for network in networks:
        if gradients.is_cached(network):
            on_step(steps_of(network))
        else:
            missing.append(network)
    missing.sort(key=_cost, reverse=True)  # the longest first, so that no core idles at the end
    if jobs <= 1 or len(missing) <= 1:
        for network in missing:
            note(f"training {network.label}, seed {network.seed}")
            done = _Counter(on_step)
            gradients.obtain(network, done.step)
            done.fill(steps_of(network))
        return
    events: queue.Queue[tuple[int, str | None]] = queue.Queue()
    workers = {i: _Worker(i, events) for i in range(min(jobs, len(missing)))}
    try:
        for worker in workers.values():
            worker.give(missing.pop(0), on_step, note)
        while any(worker.network for worker in workers.values()):
            index, line = events.get()
            worker = workers[index]
            if line == _STEP:
                worker.done.step()
            elif line == _DONE and worker.network is not None:
                worker.done.fill(steps_of(worker.network))
                worker.network = None
                if missing:
                    worker.give(missing.pop(0), on_step, note)
            elif line is None and worker.network is not None:
                raise RuntimeError(worker.obituary())
    finally:
        for worker in workers.values():
            worker.stop()


class _Worker:
    """A process that prepares one network after another; importing PyTorch is paid once."""

    def __init__(self, index: int, events: queue.Queue[tuple[int, str | None]]) -> None:
        # A file takes the error output: a pipe that nobody reads can fill up and block the process.
        self.errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in stop)
        self.process = _start(self.errors)
        self.network: Network | None = None
        self.done = _Counter(lambda n: None)
        self.reader = threading.Thread(target=_follow, args=(index, self.process, events), daemon=True)
        self.reader.start()

    def give(self, network: Network, on_step: Callable[[int], None], note: Callable[[str], None]) -> None:
        """Let the process prepare ``network`` next."""
        note(f"training {network.label}, seed {network.seed}")
        self.network, self.done = network, _Counter(on_step)
        with suppress(BrokenPipeError):  # it died: the reader says so
            print(json.dumps(asdict(network)), file=self.process.stdin, flush=True)

    def obituary(self) -> str:
        """Why the process ended before its time."""
        status = self.process.wait()
        self.errors.seek(0)
        last = (self.errors.read().strip() or "no message").splitlines()[-1]
        name = self.network.name if self.network else "nothing"
        return f"training {name} failed with status {status}: {last}"

    def stop(self) -> None:
        """End the process and free all it held."""
        self.process.terminate()
        self.process.wait()
        self.reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


class _Counter:
    """Reports steps and, at the end, those that were not needed."""

    def __init__(self, on_step: Callable[[int], None]) -> None:
        self.on_step = on_step
        self.done = 0

    def step(self) -> None:
        self.done += 1
        self.on_step(1)

    def fill(self, total: int) -> None:
        self.on_step(total - self.done)


def _start(errors: IO[str]) -> subprocess.Popen[str]:
    here = str(Path(__file__).parent.parent)
    path = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "PYTHONPATH": here if not path else os.pathsep.join((here, path)),
        **{name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")},
    }
    return subprocess.Popen(
        [sys.executable, "-m", "validation.prepare"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


def _follow(index: int, process: subprocess.Popen[str], events: queue.Queue[tuple[int, str | None]]) -> None:
    for line in process.stdout or ():
        events.put((index, line.strip()))
    events.put((index, None))


def _work(orders: IO[str]) -> None:
    for line in orders:
        gradients.obtain(Network(**json.loads(line)), lambda: print(_STEP, flush=True))
        print(_DONE, flush=True)


if __name__ == "__main__":
    _work(sys.stdin)
