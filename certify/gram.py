"""The Gram matrix of centred gradient rows: the route for more coordinates than units, and for resampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from certify.ustatistics import Sums

Array = NDArray[np.float64]

SLICE = 1 << 20


@dataclass(frozen=True, eq=False)
class CentredGram:
    """Dot products of x = 2^-exponent q - c over n units, c their mean, with h_i = c.x_i and cc = |c|^2.

    `triangle` holds the upper triangle of the (n, n) Gram matrix in column-major order, diagonal included.
    """

    n: int
    exponent: int
    cc: float
    h: Array
    triangle: Array

    @property
    def p(self) -> Array:
        """Squared lengths |x_i|^2, shape (n,)."""
        return np.ascontiguousarray(self.triangle.diagonal())

    def times(self, v: Array) -> Array:
        """Off-diagonal part of the Gram matrix times a vector, shape (n,)."""
        product: Array = blas.dsymv(1.0, self.triangle, v)
        return product - self.p * v

    def row_sums(self) -> Array:
        """Row sums r_i of the off-diagonal part, shape (n,)."""
        return self.times(np.ones(self.n))

    def square_row_sums(self) -> Array:
        """Row sums f_i of the squared off-diagonal entries, shape (n,)."""
        squares = np.square(self.triangle)
        both: Array = squares.sum(axis=0) + squares.sum(axis=1)
        return both - 2 * self.p**2

    def off_diagonal(self) -> Array:
        """The full symmetric matrix with a zero diagonal, shape (n, n)."""
        full: Array = self.triangle + self.triangle.T
        np.fill_diagonal(full, 0.0)
        return full

    def scalar_sums(self) -> Sums:
        """The sums that the estimators need."""
        h, p, r = self.h, self.p, self.row_sums()
        flat = self.triangle.T.reshape(-1)
        return Sums(
            n=self.n,
            cc=self.cc,
            H1=float(h.sum()),
            H2=float(h @ h),
            HP=float(h @ p),
            HR=float(h @ r),
            P2=float(p.sum()),
            P4=float(p @ p),
            PR=float(p @ r),
            S=float(r.sum()),
            R2=float(r @ r),
            F2=2.0 * (float(flat @ flat) - float(p @ p)),
        )


def centred_slices(chunks: Sequence[NDArray[Any]], exponent: int, width: int) -> Any:
    """Yield (columns, mean, centred float64 block (n, width)) over the columns of stacked row chunks.

    The block is a buffer that is overwritten by the next step.
    """
    n = sum(chunk.shape[0] for chunk in chunks)
    d = chunks[0].shape[1]
    buffer = np.empty((n, min(width, d)))
    for left in range(0, d, width):
        columns = slice(left, min(left + width, d))
        x = buffer[:, : columns.stop - left] if columns.stop - left == buffer.shape[1] else None
        if x is None:
            x = np.empty((n, columns.stop - left))
        top = 0
        for chunk in chunks:
            x[top : top + chunk.shape[0]] = chunk[:, columns]
            top += chunk.shape[0]
        if exponent:
            np.ldexp(x, -exponent, out=x)
        mean = x.mean(axis=0)
        x -= mean
        # The first mean is off by its rounding, which matters when |mean| is 10^6 times the spread.
        rest = x.mean(axis=0)
        x -= rest
        yield columns, mean + rest, x


def centred_gram(chunks: Sequence[NDArray[Any]], exponent: int) -> CentredGram:
    """Gram matrix of the stacked rows about their mean; one symmetric product, sliced by columns."""
    n = sum(chunk.shape[0] for chunk in chunks)
    width = max(256, SLICE // max(n, 1))
    triangle = np.zeros((n, n), order="F")
    h = np.zeros(n)
    cc = 0.0
    for _, mean, x in centred_slices(chunks, exponent, width):
        h += x @ mean
        cc += float(mean @ mean)
        triangle = blas.dsyrk(1.0, x.T, beta=1.0, c=triangle, trans=1, overwrite_c=1)
    return CentredGram(n, exponent, cc, h, triangle)
