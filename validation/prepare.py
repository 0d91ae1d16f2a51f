"""Train and measure the networks of a run side by side, each in a process of its own that uses one thread.

A worker leaves its results in the cache, whole or not at all, so killing one loses its work and nothing
else. Run as ``python -m validation.prepare <network as JSON>`` it prints one line for every step done.
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
from dataclasses import asdict
from pathlib import Path
from typing import IO

from validation import gradients
from validation.training import Network

_STEP = "step"


def steps_of(network: Network) -> int:
    """How many times the preparation of ``network`` reports a step."""
    return network.steps + gradients.batches_of(network)


def _cost(network: Network) -> float:
    return network.steps * network.batch * max(network.length, 1) * network.channels * network.depth


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
    waiting = list(missing)
    running: dict[int, _Worker] = {}
    events: queue.Queue[tuple[int, str | None]] = queue.Queue()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                worker = _Worker(waiting.pop(0), on_step, events)
                running[worker.process.pid] = worker
                note(f"training {worker.network.label}, seed {worker.network.seed}")
            try:
                pid, line = events.get(timeout=1.0)
            except queue.Empty:
                continue
            if line == _STEP:
                running[pid].done.step()
            elif line is None:
                with running.pop(pid) as worker:
                    worker.finish()
    finally:
        for worker in running.values():
            worker.stop()


class _Worker:
    """A process that prepares one network; leaving the ``with`` block frees all it held."""

    def __init__(
        self, network: Network, on_step: Callable[[int], None], events: queue.Queue[tuple[int, str | None]]
    ) -> None:
        self.network = network
        self.done = _Counter(on_step)
        # A file takes the error output: a pipe that nobody reads can fill up and block the process.
        self.errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in stop)
        self.process = _start(network, self.errors)
        self.reader = threading.Thread(target=_follow, args=(self.process, events), daemon=True)
        self.reader.start()

    def finish(self) -> None:
        """Wait for the end and report the steps that were not needed; RuntimeError if it failed."""
        if self.process.wait() != 0:
            self.errors.seek(0)
            last = (self.errors.read().strip() or "no message").splitlines()[-1]
            raise RuntimeError(
                f"training {self.network.name} failed with status {self.process.returncode}: {last}"
            )
        self.done.fill(steps_of(self.network))

    def stop(self) -> None:
        """End the process if it still runs."""
        self.process.terminate()
        self.process.wait()
        self.reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.errors.close()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


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


def _start(network: Network, errors: IO[str]) -> subprocess.Popen[str]:
    here = str(Path(__file__).parent.parent)
    path = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "PYTHONPATH": here if not path else os.pathsep.join((here, path)),
        **{name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")},
    }
    return subprocess.Popen(
        [sys.executable, "-m", "validation.prepare", json.dumps(asdict(network))],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


def _follow(worker: subprocess.Popen[str], events: queue.Queue[tuple[int, str | None]]) -> None:
    for line in worker.stdout or ():
        events.put((worker.pid, line.strip()))
    events.put((worker.pid, None))


def _work(described: str) -> None:
    network = Network(**json.loads(described))
    gradients.obtain(network, lambda: print(_STEP, flush=True))


if __name__ == "__main__":
    _work(sys.argv[1])
