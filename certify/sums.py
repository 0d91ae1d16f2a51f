"""Additive sums of gradient rows about a reference, the state behind the covariance representation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from certify.ustatistics import Sums

Array = NDArray[np.float64]

# Rows enter in slices of about this many numbers: large enough for the matrix product to run at full
# speed, small enough to stay near the processor.
SLICE = 1 << 17


@dataclass(frozen=True, eq=False)
class CovarianceSums:
    """Sums of x = 2^-exponent q - shift over n units: s = sum x, C = sum x x^T, w = sum |x|^2 x, p2, p4.

    Only the upper triangle of `scatter` (column-major) is filled. The numbers are additive for equal
    shift and exponent; `combine` aligns both.
    """

    n: int
    exponent: int
    shift: Array
    s: Array
    scatter: Array
    w: Array
    p2: float
    p4: float

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
        return self.shift.nbytes + self.s.nbytes + self.w.nbytes + self.scatter.nbytes


def exponent_of(rows: NDArray[Any]) -> int | None:
    """Power of two to divide finite rows by, or None for rows that are all zero, which any power fits.

    0 while fourth powers of the entries are far from the ends of float64; otherwise the exponent of the
    largest entry.
    """
    top = max(float(rows.max()), -float(rows.min())) if rows.size else 0.0
    if top == 0.0:
        return None
    exponent = int(np.frexp(top)[1])
    return 0 if abs(exponent) <= 128 else exponent


def centred(rows: NDArray[Any], exponent: int, shift: Array, out: Array) -> Array:
    """2^-exponent rows - shift in float64, written to `out`; exact scaling but for underflow."""
    if not exponent:
        return np.subtract(rows, shift, out=out)
    out[...] = rows
    np.ldexp(out, -exponent, out=out)
    out -= shift
    return out


def scaled_mean(rows: NDArray[Any], exponent: int) -> Array:
    """Mean of the rows in float64, times 2^-exponent; huge rows do not overflow."""
    if not exponent:
        return np.add.reduce(rows, axis=0, dtype=np.float64) / rows.shape[0]
    return np.ldexp(rows.astype(np.float64), -exponent).mean(axis=0)


class CovarianceAccumulator:
    """Mutable counterpart of CovarianceSums; the default reference is the mean of the first rows."""

    def __init__(self, d: int, shift: Array | None = None, exponent: int | None = None) -> None:
        self.d = d
        self.n = 0
        self.p2 = 0.0
        self.p4 = 0.0
        self.exponent = exponent
        self.shift = shift
        self.s = np.zeros(d)
        self.w = np.zeros(d)
        self.scatter = np.zeros((d, d), order="F")

    def update(self, rows: NDArray[Any], exponent: int | None) -> None:
        """Add finite rows (B, d) with the exponent that `exponent_of` gives them."""
        if rows.shape[0] == 0:
            return
        if self.exponent is None:
            # All rows so far were zero: any exponent fits them.
            self.exponent = exponent
        elif exponent is not None and exponent > self.exponent + 64:
            self._rescale(exponent)
        e = self.exponent or 0
        step = min(max(256, SLICE // self.d), rows.shape[0])
        if self.shift is None:
            self.shift = scaled_mean(rows[:step], e)
        buffer = np.empty((step, self.d))
        ones = np.ones(step)
        for start in range(0, rows.shape[0], step):
            part = rows[start : start + step]
            m = part.shape[0]
            x = centred(part, e, self.shift, buffer[:m])
            p = np.einsum("ij,ij->i", x, x)
            self.n += m
            self.s += ones[:m] @ x
            self.w += p @ x
            self.p2 += float(p.sum())
            self.p4 += float(p @ p)
            self.scatter = blas.dsyrk(1.0, x.T, beta=1.0, c=self.scatter, overwrite_c=1)

    def _rescale(self, exponent: int) -> None:
        assert self.exponent is not None
        by = self.exponent - exponent
        self.exponent = exponent
        if self.shift is not None:
            self.shift = np.ldexp(self.shift, by)
        np.ldexp(self.s, by, out=self.s)
        np.ldexp(self.scatter, 2 * by, out=self.scatter)
        np.ldexp(self.w, 3 * by, out=self.w)
        self.p2 = float(np.ldexp(self.p2, 2 * by))
        self.p4 = float(np.ldexp(self.p4, 4 * by))

    def result(self) -> CovarianceSums:
        """The sums so far; hands its arrays over, so the accumulator must not be used afterwards."""
        shift = np.zeros(self.d) if self.shift is None else self.shift
        for array in (shift, self.s, self.scatter, self.w):
            array.flags.writeable = False
        return CovarianceSums(
            self.n, self.exponent or 0, shift, self.s, self.scatter, self.w, self.p2, self.p4
        )


def combine(parts: Sequence[CovarianceSums], shift: Array | None = None) -> CovarianceSums:
    """Sum of parts moved to one exponent and one reference (default: the mean of all units).

    The reference and the exponent depend on the set of units alone, so the order does not matter beyond
    rounding.
    """
    parts = [part for part in parts if part.n] or list(parts[:1])
    if len(parts) == 1 and shift is None:
        return parts[0]
    e = max(part.exponent for part in parts)
    n = sum(part.n for part in parts)
    if shift is None:
        shift = sum((part.n * np.ldexp(part.mean, part.exponent - e) for part in parts), np.zeros(parts[0].d))
        shift = shift / max(n, 1)
    s, w = np.zeros_like(shift), np.zeros_like(shift)
    scatter = np.zeros((shift.size, shift.size), order="F")
    p2 = p4 = 0.0
    for part in parts:
        by = part.exponent - e
        delta = shift - np.ldexp(part.shift, by)
        ps, pw = np.ldexp(part.s, by), np.ldexp(part.w, 3 * by)
        pp2, pp4 = float(np.ldexp(part.p2, 2 * by)), float(np.ldexp(part.p4, 4 * by))
        c_delta = np.ldexp(blas.dsymv(1.0, part.scatter, delta), 2 * by)
        dd, sd, m = float(delta @ delta), float(ps @ delta), part.n
        if by:
            scatter += np.ldexp(part.scatter, 2 * by)
        else:
            scatter += part.scatter
        # C - s delta^T - delta s^T + m delta delta^T in one symmetric rank-two update
        scatter = blas.dsyr2(-1.0, delta, ps - (0.5 * m) * delta, a=scatter, overwrite_a=1)
        w += pw - 2 * c_delta + dd * ps - (pp2 - 2 * sd + m * dd) * delta
        s += ps - m * delta
        p2 += pp2 - 2 * sd + m * dd
        p4 += pp4 + 4 * float(delta @ c_delta) + m * dd * dd - 4 * float(pw @ delta) + 2 * dd * (pp2 - 2 * sd)
    for array in (s, scatter, w):
        array.flags.writeable = False
    return CovarianceSums(n, e, shift, s, scatter, w, p2, p4)


def square_norm(triangle: Array) -> float:
    """Squared Frobenius norm of a symmetric matrix given by one triangle, the other one being zero."""
    flat = triangle.T.reshape(-1) if triangle.flags.f_contiguous else triangle.reshape(-1)
    diagonal = triangle.diagonal()
    return 2.0 * float(flat @ flat) - float(diagonal @ diagonal)


def scalar_sums(part: CovarianceSums) -> Sums:
    """The sums that the estimators need, about the part's own reference."""
    c, s, w = part.shift, part.s, part.w
    c_c = blas.dsymv(1.0, part.scatter, c)
    c_s = blas.dsymv(1.0, part.scatter, s)
    ss = float(s @ s)
    return Sums(
        n=part.n,
        cc=float(c @ c),
        H1=float(c @ s),
        H2=float(c @ c_c),
        HP=float(c @ w),
        HR=float(c @ c_s - c @ w),
        P2=part.p2,
        P4=part.p4,
        PR=float(s @ w) - part.p4,
        S=ss - part.p2,
        R2=float(s @ c_s - 2 * (s @ w)) + part.p4,
        F2=square_norm(part.scatter) - part.p4,
    )
