"""Moments of per-unit gradients: immutable, additive, streaming in one pass, within a memory budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from certify.gram import CentredGram, centred_gram
from certify.rows import as_rows, checked_exponent
from certify.sketch import Sketch, SketchAccumulator, SketchSums, fuse, sketched, sketched_sums
from certify.sums import Array, CovarianceAccumulator, CovarianceSums, combine, scalar_sums, scaled_mean
from certify.ustatistics import Sums

DEFAULT_BUDGET = 128 << 20
MAX_GROUPS = 32
LEAST_GROUPS = 8  # fewer groups of units give no usable spread
# These decide which law the gradients follow, so moments that differ in one of them must not be merged.
LAW_KEYS = ("unit", "positions", "module")

Representation = Literal["rows", "covariance", "sketch"]


@dataclass(frozen=True, eq=False)
class GradientMoments:
    r"""Everything the estimators need to know about n gradient rows of length d; ``m1 + m2`` merges.

    .. math::
        n,\quad \textstyle\sum q,\quad \sum q q^\top,\quad \sum |q|^2 q,\quad \sum |q|^2,\quad \sum |q|^4

    Built by `from_array`, `MomentAccumulator`, `load` or `merge`. Three representations, chosen by
    `memory_budget` (bytes):

    * "rows": the rows as they came (float32 or float64) while they fit the budget. The Gram matrix
      (n <= d) or the scatter matrix (d < n) is formed when asked for; unit-level resampling is possible.
    * "covariance": additive sums about a reference near the mean, when 8 groups of 8 d^2 bytes fit the
      budget. The units are dealt to up to 32 groups, so that a delete-group jackknife needs no second pass.
    * "sketch": the same with the scatter matrix replaced by count sketches, when units and coordinates are
      both many; unbiased, with extra variance that estimate and certificate account for.

    All sums are float64 of rows scaled by a power of two.

    Parameters
    ----------
    n, d : number of units and of coordinates.
    memory_budget : bytes that the representation may use.
    rows : row chunks, or None.
    blocks : additive sums, one per group.
    scale : power of two such that all entries of the rows are below 2^scale.
    metadata : what the gradients are, for example unit, positions, module.

    Notes
    -----
    Paper 1, section on the effective alignment dimension, needs m2, mu^T Sigma mu and tr Sigma^2 only.

    Examples
    --------
    >>> import numpy as np
    >>> Q = np.random.default_rng(0).normal(1.0, 1.0, size=(100, 5))
    >>> both = GradientMoments.from_array(Q[:30]) + GradientMoments.from_array(Q[30:])
    >>> both.n, both.d, both.representation
    (100, 5, 'rows')
    """

    n: int
    d: int
    memory_budget: int
    rows: tuple[NDArray[Any], ...] | None = field(default=None, repr=False)
    blocks: tuple[CovarianceSums, ...] | tuple[SketchSums, ...] = field(default=(), repr=False)
    scale: int | None = field(default=None, repr=False)
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def representation(self) -> Representation:
        """How the rows are held: "rows", "covariance" or "sketch"."""
        if self.rows is not None:
            return "rows"
        return "sketch" if isinstance(self.blocks[0], SketchSums) else "covariance"

    @property
    def exponent(self) -> int:
        """Power of two by which sums are scaled: they belong to 2^-exponent q."""
        if self.rows is not None:
            return self.scale or 0
        return max(block.exponent for block in self.blocks)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        if self.rows is not None:
            return sum(chunk.nbytes for chunk in self.rows)
        return sum(block.nbytes for block in self.blocks)

    @property
    def mean(self) -> Array:
        """Sample mean of the gradients, shape (d,), in their own units."""
        if self.n == 0:
            raise ValueError("n=0: expected at least one unit for a mean")
        if self.rows is not None:
            return row_mean(self.rows, 0)
        parts = [b for b in self.blocks if b.n]
        return sum((np.ldexp(b.mean * (b.n / self.n), b.exponent) for b in parts), np.zeros(self.d))

    @classmethod
    def from_array(
        cls,
        Q: Any,
        *,
        memory_budget: int = DEFAULT_BUDGET,
        representation: Representation | None = None,
        sketch: Sketch | None = None,
        metadata: Mapping[str, str] | None = None,
        copy: bool = True,
    ) -> GradientMoments:
        """Moments of the rows of Q, one row per independent unit.

        Parameters
        ----------
        Q : array or tensor, shape (n, d); any float or integer type, any device.
        memory_budget, representation, sketch, metadata : as in `MomentAccumulator`.
        copy : False to keep the memory of Q itself; the caller must not change it afterwards.

        Raises
        ------
        TypeError
            If Q is not real.
        ValueError
            If Q is not two-dimensional, or holds NaN or infinite entries (the first one is named).

        Examples
        --------
        >>> GradientMoments.from_array([[1.0, 2.0], [3.0, 4.0]]).mean
        array([2., 3.])
        """
        rows, ours = as_rows(Q)
        accumulator = MomentAccumulator(
            rows.shape[1],
            memory_budget=memory_budget,
            representation=representation,
            sketch=sketch,
            metadata=metadata,
        )
        accumulator.add(rows, ours or not copy)
        return accumulator.result()

    def __add__(self, other: GradientMoments) -> GradientMoments:
        return merge([self, other]) if isinstance(other, GradientMoments) else NotImplemented

    def __radd__(self, other: Any) -> GradientMoments:
        # sum([m1, m2]) starts from the integer 0
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def with_metadata(self, **metadata: str) -> GradientMoments:
        """The same moments with entries added to the metadata."""
        return replace(self, metadata=MappingProxyType({**self.metadata, **metadata}))

    def gram(self) -> CentredGram:
        """Dot products of the rows about their mean, (n, n); needs the "rows" representation.

        Raises
        ------
        ValueError
            If the rows were not kept, or there are none.
        """
        if self.rows is None:
            raise ValueError(
                f"representation={self.representation!r}: the Gram matrix needs the rows, which did not "
                f"fit memory_budget={self.memory_budget} bytes; raise memory_budget, or use leave_group_out"
            )
        if self.n == 0:
            raise ValueError("n=0: expected at least one unit")
        return centred_gram(self.rows, self.exponent)

    def total(self) -> CovarianceSums:
        """All rows as one set of additive sums (d, d); not available for sketches."""
        if self.rows is not None:
            accumulator = CovarianceAccumulator(self.d, exponent=self.scale)
            for chunk in self.rows:
                accumulator.update(chunk, self.scale)
            return accumulator.result()
        blocks = [block for block in self.blocks if isinstance(block, CovarianceSums)]
        if not blocks:
            raise ValueError(
                "representation='sketch': the scatter matrix was not kept; raise memory_budget to at least "
                f"{8 * self.d * self.d} bytes"
            )
        return combine(blocks)

    def sums(self) -> tuple[list[Sums], int]:
        """Sums about a reference, one item (several for sketches: one per replicate), and their exponent.

        The smaller side of the n x d matrix decides between the Gram and the covariance route.
        """
        if self.rows is not None and 0 < self.n <= self.d:
            gram = self.gram()
            return [gram.scalar_sums()], gram.exponent
        sketches = [block for block in self.blocks if isinstance(block, SketchSums)]
        if sketches:
            return sketched_sums(sketches)
        total = self.total()
        return [scalar_sums(total)], total.exponent

    def save(self, path: str | Path) -> None:
        """Write to a safetensors file, atomically; metadata travel as JSON in its header."""
        from certify.storage import save

        save(self, path)

    @classmethod
    def load(cls, path: str | Path, *more: str | Path) -> GradientMoments:
        """Read a file written by `save`; several files are merged."""
        from certify.storage import load

        paths = [Path(p).resolve() for p in (path, *more)]
        if len(set(paths)) < len(paths):
            raise ValueError(f"paths={[str(p) for p in (path, *more)]}: expected each file once")
        return merge([load(p) for p in (path, *more)])


def row_mean(chunks: Sequence[NDArray[Any]], exponent: int) -> Array:
    """Mean of all rows in the chunks, scaled."""
    n = sum(chunk.shape[0] for chunk in chunks)
    parts = (scaled_mean(chunk, exponent) * (chunk.shape[0] / n) for chunk in chunks if chunk.shape[0])
    return sum(parts, np.zeros(chunks[0].shape[1]))


def choose(d: int, memory_budget: int) -> Representation:
    """Representation of rows that do not fit: exact while enough scatter matrices fit, or are smaller."""
    sketch = default_sketch(d, memory_budget)
    exact = LEAST_GROUPS * 8 * d * d <= memory_budget or d * d <= sketch.replicates * sketch.k**2
    return "covariance" if exact else "sketch"


def default_groups(d: int, memory_budget: int, kind: Representation) -> int:
    """Number of jackknife groups whose sums fit the budget."""
    if kind == "covariance":
        return min(max(memory_budget // (8 * d * d), 1), MAX_GROUPS)
    # Five vectors of d numbers for each group, in half of the budget.
    return min(max(memory_budget // (80 * d), 1), LEAST_GROUPS)


def default_sketch(d: int, memory_budget: int) -> Sketch:
    """Sketch whose groups use about half the budget; a function of d and the budget, so that equals merge."""
    room = memory_budget // (2 * 8 * 8 * default_groups(d, memory_budget, "sketch"))
    return Sketch(k=min(max(math.isqrt(room), 16), 1024))


def merge(parts: Sequence[GradientMoments]) -> GradientMoments:
    """Sum of several moments in one step; the order of the parts changes nothing beyond rounding.

    Raises
    ------
    ValueError
        If there are none or the same twice, or they differ in d, unit, positions, module or sketches.

    Examples
    --------
    >>> merge([GradientMoments.from_array([[1.0]]), GradientMoments.from_array([[2.0]])]).n
    2
    """
    parts = list(parts)
    if not parts:
        raise ValueError("parts=[]: expected at least one GradientMoments to merge")
    d = parts[0].d
    for part in parts:
        if part.d != d:
            raise ValueError(
                f"d={part.d}: expected d={d} as in the other moments; only gradients at the same place of "
                "the same network can be merged"
            )
    if len({id(part) for part in parts if part.n}) < sum(part.n > 0 for part in parts):
        raise ValueError("parts hold the same moments twice: expected samples of different units")
    metadata = merged_metadata([part.metadata for part in parts])
    if len(parts) == 1:
        return replace(parts[0], metadata=metadata)
    budget = max(part.memory_budget for part in parts)
    kinds = {part.representation for part in parts if part.n} or {"rows"}
    n = sum(part.n for part in parts)
    if kinds == {"rows"} and sum(part.nbytes for part in parts if part.rows is not None) <= budget:
        scale = max((part.scale for part in parts if part.scale is not None), default=None)
        rows = tuple(chunk for part in parts for chunk in part.rows or ())
        return GradientMoments(n, d, budget, rows, (), scale, metadata)
    if "sketch" in kinds or (kinds == {"rows"} and choose(d, budget) == "sketch"):
        return GradientMoments(n, d, budget, None, tuple(merged_sketches(parts, budget)), None, metadata)
    groups: list[list[CovarianceSums]] = [[] for _ in range(default_groups(d, budget, "covariance"))]
    for part in parts:
        for i, block in enumerate(blocks_of(part, "covariance", budget, None)):
            assert isinstance(block, CovarianceSums)
            groups[i % len(groups)].append(block)
    blocks = tuple(combine(group) for group in groups if group)
    return GradientMoments(n, d, budget, None, blocks, None, metadata)


def merged_sketches(parts: Sequence[GradientMoments], budget: int) -> list[SketchSums]:
    """Sketch blocks of all parts; blocks with one reference are fused once there are many."""
    known = [b.sketch for part in parts for b in part.blocks if isinstance(b, SketchSums)]
    sketch = known[0] if known else default_sketch(parts[0].d, budget)
    blocks: list[SketchSums] = []
    for part in parts:
        blocks += [b for b in blocks_of(part, "sketch", budget, sketch) if isinstance(b, SketchSums)]
    for block in blocks[1:]:
        fuse(blocks[0], block)  # refuses different sketches
    first = 0
    while len(blocks) > MAX_GROUPS and first < len(blocks):
        for i in range(first + 1, len(blocks)):
            both = fuse(blocks[first], blocks[i])
            if both is not None:
                blocks = [*blocks[:first], *blocks[first + 1 : i], *blocks[i + 1 :], both]
                break
        else:
            first += 1
    return blocks


def blocks_of(
    part: GradientMoments, kind: Representation, budget: int, sketch: Sketch | None
) -> list[CovarianceSums] | list[SketchSums]:
    """The part's sums as covariance or sketch blocks."""
    if part.n == 0:
        return []
    if part.rows is None:
        if kind == "sketch":
            assert sketch is not None
            return [sketched(b, sketch) if isinstance(b, CovarianceSums) else b for b in part.blocks]
        return [b for b in part.blocks if isinstance(b, CovarianceSums)]
    accumulator = MomentAccumulator(part.d, memory_budget=budget, representation=kind, sketch=sketch)
    accumulator.spill(list(part.rows), part.mean, part.scale)
    return list(accumulator.result().blocks)  # type: ignore[return-value]


def merged_metadata(items: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """Metadata on which all parts agree; parts of different laws are refused."""
    out: dict[str, str] = {}
    for key in sorted({key for item in items for key in item}):
        values = {item[key] for item in items if key in item}
        if len(values) == 1:
            out[key] = values.pop()
        elif key in LAW_KEYS:
            raise ValueError(
                f"{key}={sorted(values)}: expected equal {key} in all merged moments; gradients that differ "
                f"in {key} have different laws"
            )
    return MappingProxyType(out)


class MomentAccumulator:
    """One-pass accumulator: ``update`` with (B, d) batches of units, then ``result``.

    Rows are kept until they exceed `memory_budget`, then turned into additive sums about the mean of the rows
    seen so far; see `GradientMoments`.

    Parameters
    ----------
    d : number of coordinates.
    memory_budget : bytes for the representation (the rows first, then the sums).
    representation : "rows", "covariance" or "sketch" to force one; None lets the budget decide.
    sketch : parameters of the count sketches, when wanted other than the default; equal ones merge.
    metadata : what the gradients are, for example unit, positions, module.

    Raises
    ------
    ValueError
        If d or memory_budget is not positive, or the representation is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> accumulator = MomentAccumulator(3)
    >>> for batch in np.ones((4, 10, 3)):
    ...     accumulator.update(batch)
    >>> accumulator.result().n
    40
    """

    def __init__(
        self,
        d: int,
        *,
        memory_budget: int = DEFAULT_BUDGET,
        representation: Representation | None = None,
        sketch: Sketch | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(d, bool) or not isinstance(d, int | np.integer) or d < 1:
            raise ValueError(f"d={d!r}: expected a positive number of coordinates")
        number = isinstance(memory_budget, Real) and not isinstance(memory_budget, bool)
        if not (number and 1 <= memory_budget < math.inf):
            raise ValueError(
                f"memory_budget={memory_budget!r}: expected a positive number of bytes, e.g. 256 << 20"
            )
        if representation not in (None, "rows", "covariance", "sketch"):
            raise ValueError(f"representation={representation!r}: expected 'rows', 'covariance' or 'sketch'")
        self.d = int(d)
        self.n = 0
        self.memory_budget = int(memory_budget)
        self.metadata = dict(metadata or {})
        self._kind = representation
        self._sketch = sketch
        self._rows: list[NDArray[Any]] = []
        self._scale: int | None = None
        self._groups: list[CovarianceAccumulator] | list[SketchAccumulator] = []
        self._next = 0
        self._open = True

    def update(self, Q: Any, *, copy: bool = True) -> None:
        """Add the rows of Q.

        Parameters
        ----------
        Q : array or tensor, shape (B, d); B may be 0 and may vary.
        copy : False to keep the memory of Q itself; the caller must not change it afterwards.

        Raises
        ------
        ValueError
            If the number of columns is not d, or an entry is NaN or infinite.
        """
        rows, ours = as_rows(Q)
        self.add(rows, ours or not copy)

    def add(self, rows: NDArray[Any], keep: bool) -> None:
        """Add rows as `as_rows` gives them; `keep` their memory instead of copying it."""
        self._require_open()
        if rows.shape[1] != self.d:
            raise ValueError(f"Q.shape={rows.shape}: expected d={self.d} columns as in the earlier batches")
        exponent = checked_exponent(rows, first=self.n)
        if rows.shape[0] == 0:
            return
        if exponent is not None:
            self._scale = exponent if self._scale is None else max(self._scale, exponent)
        if self._groups:
            self._deal(rows, exponent)
        elif self._kind in ("covariance", "sketch"):
            self.spill([rows], None, self._scale)
        else:
            self._rows.append(rows.view() if keep else rows.copy())
            self.n += rows.shape[0]
            if self._kind is None and sum(chunk.nbytes for chunk in self._rows) > self.memory_budget:
                kept, self._rows, self.n = self._rows, [], 0
                self.spill(kept, None, self._scale)

    def result(self) -> GradientMoments:
        """The moments of all rows so far; the accumulator cannot be used afterwards."""
        self._require_open()
        self._open = False
        metadata = MappingProxyType(self.metadata)
        if self._groups:
            results: Any = [group.result() for group in self._groups if group.n]
            return GradientMoments(self.n, self.d, self.memory_budget, None, tuple(results), None, metadata)
        for chunk in self._rows:
            chunk.flags.writeable = False
        rows = tuple(self._rows)
        return GradientMoments(self.n, self.d, self.memory_budget, rows, (), self._scale, metadata)

    def spill(self, kept: list[NDArray[Any]], mean: Array | None, exponent: int | None) -> None:
        """Turn kept rows into additive sums, freeing each chunk as soon as it is counted."""
        kind = self._kind or choose(self.d, self.memory_budget)
        if mean is None:
            mean = row_mean(kept, exponent or 0)
        elif exponent:
            mean = np.ldexp(mean, -exponent)
        # A reference at the mean of all rows seen so far: the closer, the fewer digits are lost.
        shift = None if exponent is None else mean
        number = default_groups(self.d, self.memory_budget, kind)
        if kind == "covariance":
            self._groups = [CovarianceAccumulator(self.d, shift, exponent) for _ in range(number)]
        else:
            sketch = self._sketch or default_sketch(self.d, self.memory_budget)
            self._groups = [SketchAccumulator(self.d, sketch, shift, exponent) for _ in range(number)]
        kept.reverse()
        while kept:
            self._deal(kept.pop(), exponent)

    def _deal(self, rows: NDArray[Any], exponent: int | None) -> None:
        """Deal the rows to the groups in turn, a few dozen at a time so that products stay efficient."""
        step = max(32, -(-rows.shape[0] // len(self._groups)))
        for start in range(0, rows.shape[0], step):
            self._groups[self._next].update(rows[start : start + step], exponent)
            self._next = (self._next + 1) % len(self._groups)
        self.n += rows.shape[0]

    def _require_open(self) -> None:
        if not self._open:
            raise ValueError(
                "result() was called before: start a new MomentAccumulator and merge the two results with +"
            )
