"""Call functions side by side in processes of their own, one thread each; results come in the order given.

A worker is ``python -m validation.cells``: pickled functions without arguments come in, pickled results go
out. It holds nothing that must be saved, and ends by itself when the process that started it is gone. Unlike
with :mod:`multiprocessing`, a caller's script is neither forked with its threads nor imported again.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

T = TypeVar("T")


def in_order(calls: Sequence[Callable[[], T]], *, jobs: int) -> Generator[T, None, None]:
    """Results of ``calls`` in their order, whatever the order in which they were done.

    Every call runs on one thread of linear algebra, here or in a worker: sums are taken in one order, so
    ``jobs`` changes no bit of a result. With one job nothing leaves this process.

    Parameters
    ----------
    calls:
        Functions without arguments; picklable where ``jobs`` is more than 1.
    jobs:
        Processes at the same time.

    Raises
    ------
    RuntimeError
        If a call fails in a worker; its last line of error is quoted. With one job the call's own exception.
    """
    if jobs <= 1 or len(calls) <= 1:
        from threadpoolctl import threadpool_limits

        for call in calls:
            with threadpool_limits(1, user_api="blas"):
                result = call()
            yield result
        return
    orders: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
    results: queue.SimpleQueue[tuple[int, bool, Any]] = queue.SimpleQueue()
    for i, call in enumerate(calls):
        orders.put((i, pickle.dumps(call)))
    workers = [_Worker(orders, results) for _ in range(min(jobs, len(calls)))]
    early: dict[int, T] = {}
    try:
        for i in range(len(calls)):
            while i not in early:
                index, good, result = results.get()
                if not good:
                    raise RuntimeError(result)
                early[index] = result
            yield early.pop(i)
    finally:
        for _ in workers:
            orders.put(None)
        for worker in workers:
            worker.stop()


class _Worker:
    """A process and the thread that feeds it."""

    def __init__(
        self,
        orders: queue.SimpleQueue[tuple[int, bytes] | None],
        results: queue.SimpleQueue[tuple[int, bool, Any]],
    ) -> None:
        # A file takes the error output: a pipe that nobody reads can fill up and block the process.
        self.errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in stop)
        self.process = _start(self.errors)
        self.thread = threading.Thread(target=self._feed, args=(orders, results), daemon=True)
        self.thread.start()

    def _feed(
        self,
        orders: queue.SimpleQueue[tuple[int, bytes] | None],
        results: queue.SimpleQueue[tuple[int, bool, Any]],
    ) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        while (order := orders.get()) is not None:
            index, call = order
            try:
                self.process.stdin.write(len(call).to_bytes(8, "big") + call)
                self.process.stdin.flush()
                good, result = pickle.load(self.process.stdout)
            except (OSError, EOFError, ValueError, pickle.UnpicklingError):
                good, result = False, self._obituary()
            results.put((index, good, result))
            if not good:
                return

    def _obituary(self) -> str:
        status = self.process.wait()
        self.errors.seek(0)
        last = (self.errors.read().strip() or "no message").splitlines()[-1]
        return f"a process that measures ended with status {status}: {last}"

    def stop(self) -> None:
        """End the process and free all it held."""
        self.process.terminate()
        self.process.wait()
        self.thread.join()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


def _start(errors: IO[str]) -> subprocess.Popen[bytes]:
    here = str(Path(__file__).parent.parent)
    path = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "PYTHONPATH": here if not path else os.pathsep.join((here, path)),
        **{name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")},
    }
    return subprocess.Popen(
        [sys.executable, "-m", "validation.cells"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
    )


def _work(orders: IO[bytes], results: IO[bytes]) -> None:
    while size := orders.read(8):
        call = pickle.loads(orders.read(int.from_bytes(size, "big")))
        try:
            reply: tuple[bool, Any] = True, call()
        except Exception as error:
            reply = False, f"{type(error).__name__}: {error}"
        results.write(pickle.dumps(reply))
        results.flush()


if __name__ == "__main__":
    _results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the results
    _work(sys.stdin.buffer, _results)
