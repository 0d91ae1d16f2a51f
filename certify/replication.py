"""From gradient moments to what the limits need: deletions, resamples and rows, in one common scale."""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from certify.asymptotic import Replicated
from certify.estimators import NO_SPREAD
from certify.moments import LEAST_GROUPS, GradientMoments
from certify.resampling import centred_rows, leave_group_out, leave_one_out, rescaled, weighted_statistics
from certify.ustatistics import Statistics, statistics_from_sums

Float = NDArray[np.float64]


def rows_of(moments: GradientMoments, why: str, *, shuffled: bool = False) -> Float:
    """The rows (n, d) in float64, times the power of two that brings them near 1.

    Tiers that cut the sample into groups ask for a fixed shuffle: data stored by class or source would else
    give groups that are not alike.

    Raises
    ------
    ValueError
        If the moments no longer hold the rows; ``why`` names what needs them.
    """
    if moments.rows is None:
        raise ValueError(
            f"representation={moments.representation!r}: {why} needs the gradient of every unit; pass the "
            f"array, or raise memory_budget (now {moments.memory_budget} bytes)"
        )
    Q = np.concatenate([np.asarray(chunk, dtype=np.float64) for chunk in moments.rows])
    Q = np.ldexp(Q, -moments.exponent)
    return np.random.default_rng(moments.n).permutation(Q) if shuffled else Q


def _columns(x: Statistics) -> Float:
    return np.stack([np.asarray(v) for v in (x.m2, x.m2_squared, x.mu_sigma_mu, x.tr_sigma2)], axis=-1)


def replicated(moments: GradientMoments) -> Replicated:
    """Estimates with and without each unit; without each group of units where only grouped sums are held.

    Raises
    ------
    ValueError
        If n < 6, or fewer than 8 groups are held: no spread can be estimated.
    """
    if moments.n < 6:
        raise ValueError(f"n={moments.n}: expected at least 6 units for an interval; collect more units")
    if moments.rows is not None:
        found = leave_one_out(moments)
        sizes = np.ones(moments.n)
    else:
        groups = sum(1 for block in moments.blocks if block.n)
        if groups < LEAST_GROUPS:
            raise ValueError(
                f"groups={groups}: expected at least {LEAST_GROUPS} groups of units to estimate a spread; "
                f"raise memory_budget (now {moments.memory_budget} bytes), which sets how many are held"
            )
        found = leave_group_out(moments)
        sizes = moments.n - np.asarray(found.sizes, dtype=np.float64)
    point, sketches = _columns(found.full), None
    if moments.representation == "sketch":
        items, e = moments.sums()
        sketches = np.stack([_columns(rescaled(statistics_from_sums(x), e - found.exponent)) for x in items])
    if found.full.tr_sigma <= NO_SPREAD * found.full.mean_q2:
        point[2:] = 0.0  # all units are equal up to rounding
    return Replicated(point, _columns(found.parts), sizes, found.exponent, sketches=sketches)


def copies(moments: GradientMoments) -> int:
    """How many units are exact copies of an earlier one; zero gradients do not count, nor short rows."""
    if moments.rows is None or moments.d < 8:
        return 0
    seen: set[bytes] = set()
    repeated = 0
    for chunk in moments.rows:
        for row in chunk:
            if row.any():
                key = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
                repeated += key in seen
                seen.add(key)
    return repeated


def serial_dependence(moments: GradientMoments) -> float:
    """Self-normalised sum of the dot products of consecutive centred units; about standard normal if iid.

    Large for units that share a source with their neighbours (tokens, frames, augmentations), and for rows
    that are merely sorted.
    """
    if moments.rows is None or moments.n < 20:
        return 0.0
    c = np.ldexp(moments.mean, -moments.exponent)
    total = squares = 0.0
    last: Float | None = None
    for x in centred_rows(moments, c):
        joined = x if last is None else np.concatenate([last, x])
        products = np.einsum("ij,ij->i", joined[:-1], joined[1:])
        total, squares, last = (
            total + float(products.sum()),
            squares + float(products @ products),
            x[-1:].copy(),
        )
    return total / math.sqrt(squares) if squares > 0 else 0.0


def resampled(moments: GradientMoments, resamples: int, rng: np.random.Generator | int) -> Float:
    """Estimates (resamples, 4) under multinomial weights on the units; no dot product is computed anew.

    Raises
    ------
    ValueError
        If the rows were not kept.
    """
    generator = np.random.default_rng(rng)
    weights = generator.multinomial(moments.n, np.full(moments.n, 1 / moments.n), size=resamples)
    return _columns(weighted_statistics(moments, weights).parts)
