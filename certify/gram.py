"""The Gram matrix of centred gradient rows: the route for more coordinates than units, and for resampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from certify.sums import centred, scaled_mean
from certify.ustatistics import Sums

Array = NDArray[np.float64]

SLICE = 1 << 18


@dataclass(frozen=True, eq=False)
class CentredGram:
    """Dot products of x = 2^-exponent q - c over n units, c near their mean, with h_i = c.x_i, cc = |c|^2.

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


def reference(chunks: Sequence[NDArray[Any]], exponent: int) -> Array:
    """Mean of at most 64 rows spread over the chunks, scaled: near enough to the mean to lose no digits.

    Spread evenly, so that sorted or drifting rows are represented.
    """
    n = sum(chunk.shape[0] for chunk in chunks)
    step, first, picked = max(1, n // 64), 0, []
    for chunk in chunks:
        picked.append(scaled_mean_sum(chunk[first::step], exponent))
        first = (first - chunk.shape[0]) % step
    count = sum(number for number, _ in picked)
    return sum((part for _, part in picked), np.zeros(chunks[0].shape[1])) / count


def scaled_mean_sum(rows: NDArray[Any], exponent: int) -> tuple[int, Array]:
    """Number of rows and their scaled sum."""
    if rows.shape[0] == 0:
        return 0, np.zeros(rows.shape[1])
    return rows.shape[0], rows.shape[0] * scaled_mean(rows, exponent)


def centred_slices(chunks: Sequence[NDArray[Any]], exponent: int, shift: Array, width: int) -> Any:
    """Yield (columns, float64 block (n, width) of the scaled rows minus the shift) over stacked row chunks.

    The block is a buffer that is overwritten by the next step.
    """
    n, d = sum(chunk.shape[0] for chunk in chunks), chunks[0].shape[1]
    buffer = np.empty(n * min(width, d))
    for left in range(0, d, width):
        columns = slice(left, min(left + width, d))
        # contiguous also for the last, narrower block, as BLAS wants it
        x = buffer[: n * (columns.stop - left)].reshape(n, columns.stop - left)
        top = 0
        for chunk in chunks:
            part = x[top : top + chunk.shape[0]]
            centred(chunk[:, columns], exponent, shift[columns], part)
            top += chunk.shape[0]
        yield columns, x


def centred_gram(chunks: Sequence[NDArray[Any]], exponent: int) -> CentredGram:
    """Gram matrix of the stacked rows near their mean; one symmetric product, sliced by columns."""
    chunks = [chunk for chunk in chunks if chunk.shape[0]]
    n = sum(chunk.shape[0] for chunk in chunks)
    shift = reference(chunks, exponent)
    triangle = np.zeros((n, n), order="F")
    h = np.zeros(n)
    for columns, x in centred_slices(chunks, exponent, shift, max(256, SLICE // n)):
        h += x @ shift[columns]
        triangle = blas.dsyrk(1.0, x.T, beta=1.0, c=triangle, trans=1, overwrite_c=1)
    return CentredGram(n, exponent, float(shift @ shift), h, triangle)


def gram_coordinates(G: Array) -> Array:
    r"""Rows X with X X^T = G: as many coordinates as the rank, in which lengths and angles are those of G.

    Everything that depends on the gradients through dot products (all moments, dimensions and certificates)
    is the same for X as for the rows that G was made from.  Pivoted Cholesky, errors of a few rounding steps
    of the largest entry of G.

    Parameters
    ----------
    G : symmetric positive semidefinite, (n, n), float64; the lower triangle is read.

    Raises
    ------
    ValueError
        If an entry is NaN or infinite.

    Examples
    --------
    >>> Q = np.arange(15.0).reshape(3, 5) ** 2
    >>> X = gram_coordinates(Q @ Q.T)
    >>> X.shape, bool(np.allclose(X @ X.T, Q @ Q.T))
    ((3, 3), True)
    """
    if not np.isfinite(G).all():
        raise ValueError("G holds NaN or infinite entries: expected dot products of finite gradients")
    n = len(G)
    factor, pivots, rank, _ = lapack.dpstrf(
        G, lower=1, tol=n * np.finfo(float).eps * float(G.diagonal().max())
    )
    rows = np.empty((n, max(int(rank), 1)))
    rows[pivots - 1] = np.tril(factor)[:, : max(int(rank), 1)]
    return rows
