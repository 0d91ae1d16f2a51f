"""Count sketches of gradient rows: additive sums in little memory for many units and many coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import blas

from certify.sums import Array, CovarianceSums, centred, scaled_mean, square_norm
from certify.ustatistics import Sums

SLICE = 1 << 20


@dataclass(frozen=True)
class Sketch:
    r"""Parameters of independent count sketches R^d -> R^k; equal parameters make sketches mergeable.

    Each coordinate l goes to bucket h(l) with sign sigma(l), so that a row costs one pass. With S one
    sketch, over its randomness and for fixed vectors u, v, x:

    .. math::
        E\,(Su\cdot Sx)(Sx\cdot Sv) = (u\cdot x)(x\cdot v)
            + \tfrac1k\bigl[(u\cdot v)|x|^2 + (u\cdot x)(x\cdot v) - 2\sum_l u_l v_l x_l^2\bigr]

    which is solved for the first term. Independent replicates are averaged, and their spread measures
    the extra variance.

    Parameters
    ----------
    k : buckets of one sketch.
    replicates : number of independent sketches, at least 2.
    seed : seed of the hashes.
    """

    k: int
    replicates: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.k < 2:
            raise ValueError(f"k={self.k}: expected at least 2 buckets; a few hundred are usual")
        if self.replicates < 2:
            raise ValueError(
                f"replicates={self.replicates}: expected at least 2, since their spread is the extra variance"
            )


@lru_cache(maxsize=4)
def sketch_matrix(sketch: Sketch, d: int) -> sparse.csr_array:
    """All replicates stacked as one sparse (replicates k, d) matrix, one sign per column and replicate."""
    rng = np.random.default_rng([sketch.seed, d, sketch.k, sketch.replicates])
    buckets = rng.integers(0, sketch.k, size=(sketch.replicates, d))
    signs = rng.integers(0, 2, size=(sketch.replicates, d)) * 2.0 - 1.0
    rows = buckets + sketch.k * np.arange(sketch.replicates)[:, None]
    columns = np.broadcast_to(np.arange(d), rows.shape)
    shape = (sketch.replicates * sketch.k, d)
    return sparse.csr_array((signs.ravel(), (rows.ravel(), columns.ravel())), shape=shape)


@dataclass(frozen=True, eq=False)
class SketchSums:
    """Sums of x = 2^-exponent q - shift over n units, exact but for the sketched scatter.

    Exact: s = sum x, ``w = sum |x|^2 x``, v = sum (shift.x) x, diagonal = sum x_l^2, p2, p4 and
    h2 = sum (shift.x)^2. `scatter` holds, per replicate, the upper triangle of sum (Sx)(Sx)^T, column-major.
    """

    sketch: Sketch
    n: int
    exponent: int
    shift: Array
    s: Array
    w: Array
    v: Array
    diagonal: Array
    p2: float
    p4: float
    h2: float
    scatter: tuple[Array, ...]

    @property
    def d(self) -> int:
        """Number of coordinates."""
        return int(self.shift.shape[0])

    @property
    def mean(self) -> Array:
        """Sample mean in scaled units."""
        return self.shift + self.s / self.n

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return 5 * self.shift.nbytes + sum(c.nbytes for c in self.scatter)


class SketchAccumulator:
    """Mutable counterpart of SketchSums."""

    def __init__(
        self, d: int, sketch: Sketch, shift: Array | None = None, exponent: int | None = None
    ) -> None:
        self.d, self.sketch = d, sketch
        self.n, self.p2, self.p4, self.h2 = 0, 0.0, 0.0, 0.0
        self.exponent, self.shift = exponent, shift
        self.s, self.w, self.v, self.diagonal = (np.zeros(d) for _ in range(4))
        self.scatter = [np.zeros((sketch.k, sketch.k), order="F") for _ in range(sketch.replicates)]

    def update(self, rows: NDArray[Any], exponent: int | None) -> None:
        """Add finite rows (B, d) with the exponent that `exponent_of` gives them."""
        if rows.shape[0] == 0:
            return
        if self.exponent is None:
            self.exponent = exponent
        elif exponent is not None and exponent > self.exponent + 64:
            self._rescale(exponent)
        matrix, k = sketch_matrix(self.sketch, self.d), self.sketch.k
        e, step = self.exponent or 0, max(1, SLICE // self.d)
        if self.shift is None:
            self.shift = scaled_mean(rows[:step], e)
        for start in range(0, rows.shape[0], step):
            part = rows[start : start + step]
            x = centred(part, e, self.shift, np.empty(part.shape))
            p, h = np.einsum("ij,ij->i", x, x), x @ self.shift
            self.n += x.shape[0]
            self.s += x.sum(axis=0)
            self.w += p @ x
            self.v += h @ x
            self.diagonal += np.einsum("ij,ij->j", x, x)
            self.p2 += float(p.sum())
            self.p4 += float(p @ p)
            self.h2 += float(h @ h)
            y = matrix @ np.ascontiguousarray(x.T)
            for r in range(self.sketch.replicates):
                block = y[r * k : (r + 1) * k]
                self.scatter[r] = blas.dsyrk(
                    1.0, block.T, beta=1.0, c=self.scatter[r], trans=1, overwrite_c=1
                )

    def _rescale(self, exponent: int) -> None:
        by = (self.exponent or 0) - exponent
        done = rescaled_sums(self.result(), by)
        self.exponent, self.shift = exponent, done.shift
        self.s, self.w, self.v, self.diagonal = done.s, done.w, done.v, done.diagonal
        self.p2, self.p4, self.h2, self.scatter = done.p2, done.p4, done.h2, list(done.scatter)

    def result(self) -> SketchSums:
        """The sums so far; hands its arrays over, so the accumulator must not be used afterwards."""
        shift = np.zeros(self.d) if self.shift is None else self.shift
        return SketchSums(
            self.sketch,
            self.n,
            self.exponent or 0,
            shift,
            self.s,
            self.w,
            self.v,
            self.diagonal,
            self.p2,
            self.p4,
            self.h2,
            tuple(self.scatter),
        )


def sketched(part: CovarianceSums, sketch: Sketch) -> SketchSums:
    """Sketch of sums whose scatter matrix is known: S C S^T, without a look at the rows."""
    c = part.scatter + part.scatter.T
    diagonal = part.scatter.diagonal().copy()
    np.fill_diagonal(c, diagonal)
    matrix, k = sketch_matrix(sketch, part.d), sketch.k
    scatter = []
    for r in range(sketch.replicates):
        rows = matrix[r * k : (r + 1) * k]
        scatter.append(np.asfortranarray(np.triu(rows @ (rows @ c).T)))
    v = c @ part.shift
    return SketchSums(
        sketch,
        part.n,
        part.exponent,
        part.shift,
        part.s,
        part.w,
        v,
        diagonal,
        part.p2,
        part.p4,
        float(part.shift @ v),
        tuple(scatter),
    )


def rescaled_sums(part: SketchSums, by: int) -> SketchSums:
    """The same sums for rows times 2^by."""
    if by == 0:
        return part
    return SketchSums(
        part.sketch,
        part.n,
        part.exponent - by,
        np.ldexp(part.shift, by),
        np.ldexp(part.s, by),
        np.ldexp(part.w, 3 * by),
        np.ldexp(part.v, 3 * by),
        np.ldexp(part.diagonal, 2 * by),
        float(np.ldexp(part.p2, 2 * by)),
        float(np.ldexp(part.p4, 4 * by)),
        float(np.ldexp(part.h2, 4 * by)),
        tuple(np.ldexp(c, 2 * by) for c in part.scatter),
    )


def fuse(a: SketchSums, b: SketchSums) -> SketchSums | None:
    """Sum of two parts that share sketch and reference, or None when they do not."""
    if a.sketch != b.sketch:
        raise ValueError(
            f"sketch={b.sketch}: expected {a.sketch} as in the other moments; sketches merge only with equal "
            "k, replicates and seed"
        )
    e = max(a.exponent, b.exponent)
    a, b = rescaled_sums(a, a.exponent - e), rescaled_sums(b, b.exponent - e)
    if a.shift is not b.shift and not np.array_equal(a.shift, b.shift):
        return None
    return SketchSums(
        a.sketch,
        a.n + b.n,
        e,
        a.shift,
        a.s + b.s,
        a.w + b.w,
        a.v + b.v,
        a.diagonal + b.diagonal,
        a.p2 + b.p2,
        a.p4 + b.p4,
        a.h2 + b.h2,
        tuple(x + y for x, y in zip(a.scatter, b.scatter, strict=True)),
    )


@dataclass(frozen=True, eq=False)
class CentredSketch:
    """Sketched scatter matrix about the mean of all units, with its exact trace p2 and diagonal."""

    n: int
    mean: Array
    p2: float
    diagonal: Array
    scatter: list[Array]


def sketch_quadratic(part: SketchSums, delta: Array) -> Array:
    """Unbiased delta^T C delta about the part's reference, one value per replicate."""
    k = part.sketch.k
    image = sketch_matrix(part.sketch, part.d) @ delta
    q = np.empty(part.sketch.replicates)
    for r in range(q.size):
        u = image[r * k : (r + 1) * k]
        q[r] = u @ blas.dsymv(1.0, part.scatter[r], u)
    return (q - (float(delta @ delta) * part.p2 - 2 * float((delta * delta) @ part.diagonal)) / k) / (
        1 + 1 / k
    )


def centre(parts: Sequence[SketchSums]) -> CentredSketch:
    """Parts of one exponent moved to the mean of all their units; exact apart from the sketch itself."""
    sketch, d, n = parts[0].sketch, parts[0].d, sum(part.n for part in parts)
    mean = sum((part.shift * (part.n / n) + part.s / n for part in parts), np.zeros(d))
    matrix, k = sketch_matrix(sketch, d), sketch.k
    p2, diagonal = 0.0, np.zeros(d)
    scatter = [np.zeros((k, k), order="F") for _ in range(sketch.replicates)]
    for part in parts:
        m, s, delta = part.n, part.s, mean - part.shift
        both = matrix @ np.stack([delta, s - (0.5 * m) * delta], axis=1)
        for r in range(sketch.replicates):
            u, y = np.ascontiguousarray(both[r * k : (r + 1) * k].T)
            scatter[r] += part.scatter[r]
            scatter[r] = blas.dsyr2(-1.0, u, y, a=scatter[r], overwrite_a=1)
        diagonal += part.diagonal - 2 * s * delta + m * delta * delta
        p2 += part.p2 - 2 * float(s @ delta) + m * float(delta @ delta)
    return CentredSketch(n, mean, p2, diagonal, scatter)


def sketched_sums(parts: Sequence[SketchSums]) -> tuple[list[Sums], int]:
    """Sums about the mean of all units, one per replicate, each unbiased given the data; and the exponent.

    Only sum G_ij^2 and delta^T C delta are sketched, delta being the small step from a part's reference
    to the common mean; all other sums are exact. The parts keep their own references, so the result does not
    depend on the order in which they were merged.
    """
    parts = [part for part in parts if part.n]
    e = max(part.exponent for part in parts)
    parts = [rescaled_sums(part, part.exponent - e) for part in parts]
    whole = centre(parts)
    mean, p2, k = whole.mean, whole.p2, parts[0].sketch.k
    p4 = h2 = hp = 0.0
    quadratic = np.zeros(parts[0].sketch.replicates)
    for part in parts:
        m, s, delta = part.n, part.s, mean - part.shift
        dd, sd, md, ms = float(delta @ delta), float(s @ delta), float(mean @ delta), float(mean @ s)
        vd, wd = float(part.v @ delta), float(part.w @ delta)
        # Everything but q = delta^T C delta is exact; q enters P4 four times, H2 once and HP by -2.
        quadratic += sketch_quadratic(part, delta)
        p4 += part.p4 + m * dd * dd - 4 * wd + 2 * dd * (part.p2 - 2 * sd)
        h2 += part.h2 + 2 * vd - 2 * ms * md + m * md * md
        hp += float(mean @ part.w) - 2 * vd + dd * ms - (part.p2 - 2 * sd + m * dd) * md
    f2 = np.array([square_norm(c) for c in whole.scatter])
    f2 = (f2 - (p2 * p2 - 2 * float(whole.diagonal @ whole.diagonal)) / k) / (1 + 1 / k)
    out = []
    for r in range(quadratic.size):
        P4, HP = p4 + 4 * quadratic[r], hp - 2 * quadratic[r]
        out.append(
            Sums(
                n=whole.n,
                cc=float(mean @ mean),
                H1=0.0,
                H2=h2 + quadratic[r],
                HP=HP,
                HR=-HP,
                P2=p2,
                P4=P4,
                PR=-P4,
                S=-p2,
                R2=P4,
                F2=f2[r] - P4,
            )
        )
    return out, e
