"""Moments of per-unit gradients: immutable, additive, streaming in one pass, within a memory budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from certify.gram import CentredGram, centred_gram
from certify.sums import CovarianceAccumulator, CovarianceSums, combine, exponent_of, scalar_sums
from certify.ustatistics import Sums

DEFAULT_BUDGET = 128 << 20
MAX_GROUPS = 32

Representation = Literal["rows", "covariance", "sketch"]


@dataclass(frozen=True, eq=False)
class GradientMoments:
    """Sufficient information about n gradient rows of length d; add two of them with ``+``.

    Built by `from_array`, by `MomentAccumulator` or by `load`; the constructor is not for direct use.
    """

    n: int
    d: int
    memory_budget: int
    rows: tuple[NDArray[Any], ...] | None = field(default=None, repr=False)
    blocks: tuple[CovarianceSums, ...] = field(default=(), repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def representation(self) -> Representation:
        """How the rows are held: "rows", "covariance" or "sketch"."""
        return "rows" if self.rows is not None else "covariance"

    @classmethod
    def from_array(
        cls,
        Q: Any,
        *,
        memory_budget: int = DEFAULT_BUDGET,
        metadata: Mapping[str, str] | None = None,
    ) -> GradientMoments:
        """Moments of the rows of Q, shape (n, d), NumPy or torch, one row per independent unit."""
        rows = as_rows(Q)
        accumulator = MomentAccumulator(rows.shape[1], memory_budget=memory_budget, metadata=metadata)
        accumulator.update(rows)
        return accumulator.result()

    def __add__(self, other: GradientMoments) -> GradientMoments:
        if not isinstance(other, GradientMoments):
            return NotImplemented
        return merge([self, other])

    def __radd__(self, other: Any) -> GradientMoments:
        # sum([m1, m2]) starts from the integer 0
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def exponent(self) -> int:
        """Power of two by which the statistics are scaled: they belong to q 2^-exponent."""
        if self.rows is not None:
            found = [e for chunk in self.rows if (e := exponent_of(chunk)) is not None]
            return max(found, default=0)
        return max((block.exponent for block in self.blocks), default=0)

    def gram(self) -> CentredGram:
        """Centred Gram matrix; needs the rows."""
        if self.rows is None:
            raise ValueError(
                f"representation={self.representation!r}: the Gram matrix needs the rows themselves, which "
                f"did not fit memory_budget={self.memory_budget} bytes; raise memory_budget"
            )
        if self.n == 0:
            raise ValueError("n=0: expected at least one unit")
        return centred_gram(self.rows, self.exponent())

    def total(self) -> CovarianceSums:
        """All rows as one set of additive sums."""
        if self.rows is not None:
            accumulator = CovarianceAccumulator(self.d)
            e = self.exponent()
            for chunk in self.rows:
                accumulator.update(chunk, e)
            return accumulator.result()
        return combine(self.blocks)

    def sums(self) -> tuple[Sums, int]:
        """Sums that the estimators need, and their exponent; the smaller side of Q decides the route."""
        if self.rows is not None and self.n <= self.d and self.n > 0:
            gram = self.gram()
            return gram.scalar_sums(), gram.exponent
        total = self.total()
        return scalar_sums(total), total.exponent


def merge(parts: Sequence[GradientMoments]) -> GradientMoments:
    """Sum of several moments in one step; the order does not matter."""
    parts = list(parts)
    if not parts:
        raise ValueError("parts=[]: expected at least one GradientMoments to merge")
    d = parts[0].d
    for part in parts[1:]:
        if part.d != d:
            raise ValueError(
                f"d={part.d}: expected d={d} as in the other moments; only gradients at the same point of "
                "the same network can be merged"
            )
    metadata = merged_metadata([part.metadata for part in parts])
    accumulator = MomentAccumulator(
        d, memory_budget=max(part.memory_budget for part in parts), metadata=metadata
    )
    for part in parts:
        accumulator.absorb(part)
    return accumulator.result()


def merged_metadata(items: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Metadata that all parts agree on; parts that differ in unit, positions or module are refused."""
    out: dict[str, str] = {}
    for key in sorted({key for item in items for key in item}):
        values = {item[key] for item in items if key in item}
        if len(values) == 1:
            out[key] = values.pop()
        elif key in ("unit", "positions", "module"):
            raise ValueError(
                f"{key}={sorted(values)}: expected equal {key} in all merged moments; gradients of different "
                "units, positions or modules have different laws"
            )
    return out


class MomentAccumulator:
    """One-pass accumulator: ``update`` with (B, d) batches, then ``result``."""

    def __init__(
        self,
        d: int,
        *,
        memory_budget: int = DEFAULT_BUDGET,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(d, bool) or not isinstance(d, int | np.integer) or d < 1:
            raise ValueError(f"d={d!r}: expected a positive number of coordinates")
        if memory_budget <= 0:
            raise ValueError(f"memory_budget={memory_budget!r}: expected a positive number of bytes")
        self.d = int(d)
        self.n = 0
        self.memory_budget = int(memory_budget)
        self.metadata = dict(metadata or {})
        self._rows: list[NDArray[Any]] | None = []
        self._bytes = 0
        self._groups: list[CovarianceAccumulator] = []
        self._done: list[list[CovarianceSums]] = []
        self._next = 0

    def update(self, Q: Any) -> None:
        """Add the rows of Q, shape (B, d), NumPy or torch; B may be 0 and may vary."""
        rows = as_rows(Q)
        if rows.shape[1] != self.d:
            raise ValueError(
                f"Q has d={rows.shape[1]} columns: expected d={self.d} as in the earlier batches"
            )
        exponent = checked_exponent(rows, first=self.n)
        if rows.shape[0] == 0:
            return
        if self._rows is not None:
            self._append(rows.copy() if np.may_share_memory(rows, Q_memory(Q)) else rows)
        else:
            self._add(rows, exponent)
            self.n += rows.shape[0]

    def absorb(self, moments: GradientMoments) -> None:
        """Add finished moments."""
        if moments.rows is not None:
            for chunk in moments.rows:
                if self._rows is not None:
                    self._append(chunk)
                else:
                    self._add(chunk, exponent_of(chunk))
                    self.n += chunk.shape[0]
            return
        if self._rows is not None:
            self._spill()
        for i, block in enumerate(moments.blocks):
            self._done[i % len(self._done)].append(block)
        self.n += moments.n

    def result(self) -> GradientMoments:
        """The moments of all rows so far; the accumulator cannot be used afterwards."""
        rows = blocks = None
        if self._rows is not None:
            for chunk in self._rows:
                chunk.flags.writeable = False
            rows = tuple(self._rows)
        else:
            blocks = tuple(
                combine([*done, group.result()] if group.n or not done else done)
                for group, done in zip(self._groups, self._done, strict=True)
            )
        return GradientMoments(self.n, self.d, self.memory_budget, rows, blocks or (), self.metadata)

    def _append(self, rows: NDArray[Any]) -> None:
        assert self._rows is not None
        self._rows.append(rows)
        self._bytes += rows.nbytes
        self.n += rows.shape[0]
        if self._bytes > self.memory_budget:
            self._spill()

    def _spill(self) -> None:
        """Turn kept rows into additive sums, freeing each chunk as soon as it is counted."""
        assert self._rows is not None
        kept, self._rows = self._rows, None
        number = min(max(self.memory_budget // (8 * self.d * self.d), 1), MAX_GROUPS)
        self._groups = [CovarianceAccumulator(self.d) for _ in range(number)]
        self._done = [[] for _ in range(number)]
        kept.reverse()
        while kept:
            chunk = kept.pop()
            self._add(chunk, exponent_of(chunk))

    def _add(self, rows: NDArray[Any], exponent: int | None) -> None:
        for part in self._pieces(rows):
            self._groups[self._next].update(part, exponent)
            self._next = (self._next + 1) % len(self._groups)

    def _pieces(self, rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
        step = max(32, -(-rows.shape[0] // len(self._groups)))
        for start in range(0, rows.shape[0], step):
            yield rows[start : start + step]


def Q_memory(Q: Any) -> NDArray[Any]:
    """The memory that belongs to the caller, to decide whether rows must be copied."""
    if isinstance(Q, np.ndarray):
        return Q
    if hasattr(Q, "detach") and str(Q.device) == "cpu" and "bfloat16" not in str(Q.dtype):
        array: NDArray[Any] = Q.detach().numpy()
        return array
    return np.empty(0)


def as_rows(Q: Any) -> NDArray[Any]:
    """Rows of Q as a float32 or float64 array (n, d); half precision is widened, integers become float64."""
    if hasattr(Q, "detach") and hasattr(Q, "cpu"):
        tensor = Q.detach()
        if "float64" not in str(tensor.dtype) and tensor.is_floating_point():
            tensor = tensor.float()
        array = tensor.cpu().numpy()
    else:
        array = np.asarray(Q)
    if array.dtype.kind in "iub":
        array = array.astype(np.float64)
    if array.dtype.kind != "f":
        raise TypeError(f"Q.dtype={array.dtype}: expected real numbers; pass real gradients")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32 if array.dtype.itemsize < 4 else np.float64)
    if array.ndim != 2:
        raise ValueError(
            f"Q.shape={array.shape}: expected (n, d) with one row per independent unit; "
            "flatten or average positions first, e.g. Q.reshape(n, -1)"
        )
    if array.shape[1] == 0:
        raise ValueError(f"Q.shape={array.shape}: expected at least one coordinate")
    return np.ascontiguousarray(array)


def checked_exponent(rows: NDArray[Any], first: int = 0) -> int | None:
    """Exponent of the largest entry; NaN and infinite entries are refused with their place."""
    if rows.size == 0:
        return None
    # max and min carry NaN along, so two reductions answer both questions
    if np.isfinite(rows.max()) and np.isfinite(rows.min()):
        return exponent_of(rows)
    i, j = np.argwhere(~np.isfinite(rows))[0]
    raise ValueError(
        f"Q[{first + i}, {j}]={rows[i, j]}: expected finite gradients; drop the unit or mend the loss "
        "(an example with nothing to predict gives 0/0)"
    )
