"""Candidate laws for breaking a bound: structured families and local optimisation, in fast float arithmetic.

Nothing here decides anything: a candidate is a law with integer atoms and integer weights whose float ratio
P/B looks large; ``theory.worst_case`` decides in exact rationals.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np

from theory.formula import Bound
from theory.laws import FiniteLaw
from theory.moments import Moments

Atoms = tuple[tuple[int, ...], ...]
Weights = tuple[int, ...]
Grid = tuple[Weights, ...]

_LARGEST_TABLE = 300_000  # entries of the table of sign(T) over pairs of multisets


@dataclass(frozen=True)
class Candidate:
    """A law with integer atoms and weights, sample sizes, and floats: the ratio P/B, and P."""

    atoms: Atoms
    weights: Weights
    M: int
    K: int
    ratio: float
    P: float
    family: str
    scale: Fraction = Fraction(1)

    def law(self) -> FiniteLaw:
        """The law itself, weights normalised exactly."""
        total = sum(self.weights)
        atoms = [tuple(self.scale * x for x in atom) for atom in self.atoms]
        return FiniteLaw(atoms, [Fraction(w, total) for w in self.weights])


@functools.lru_cache(maxsize=512)
def _multisets(s: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts (c, s) of n draws from s atoms, and their multinomial coefficients."""
    counts = np.zeros((math.comb(n + s - 1, n), s), dtype=np.int64)
    for row, chosen in enumerate(combinations_with_replacement(range(s), n)):
        for index in chosen:
            counts[row, index] += 1
    coefficients = [
        math.factorial(n) / math.prod(math.factorial(int(c)) for c in row) if n < 170 else 1.0
        for row in counts
    ]
    return counts, np.asarray(coefficients)


def fits(s: int, M: int, K: int) -> bool:
    """Whether the table of all pairs of multisets is small enough for the search."""
    return max(M, K) < 170 and math.comb(M + s - 1, M) * math.comb(K + s - 1, K) <= _LARGEST_TABLE


@functools.lru_cache(maxsize=4096)
def _misaligned(atoms: Atoms, M: int, K: int) -> np.ndarray:
    points = np.asarray(atoms, dtype=np.int64)
    left, right = _multisets(len(atoms), M)[0] @ points, _multisets(len(atoms), K)[0] @ points
    return (left @ right.T <= 0).astype(np.float64)  # integers: ties are exact


def probabilities(atoms: Atoms, weights: np.ndarray, M: int, K: int) -> np.ndarray:
    """P(T <= 0) in floats for each row of weights, shape (g, s).

    Examples
    --------
    >>> probabilities(((0,), (1,)), np.array([[0.5, 0.5]]), 1, 1)
    array([0.75])
    """
    table = _misaligned(atoms, M, K)

    def mass(n: int) -> np.ndarray:
        counts, coefficients = _multisets(weights.shape[1], n)
        return coefficients * np.prod(weights[:, None, :] ** counts[None], axis=-1)

    left = mass(M)
    return np.einsum("gi,gi->g", left @ table, left if K == M else mass(K))


@functools.lru_cache(maxsize=4096)
def _scalars(atoms: Atoms, weights: Grid) -> tuple[np.ndarray, np.ndarray]:
    """Normalised weights (g, s), and m2, a, t stacked (3, g)."""
    rows = np.asarray(weights, dtype=np.float64)
    rows /= rows.sum(axis=1, keepdims=True)
    points = np.asarray(atoms, dtype=np.float64)
    gram = points @ points.T
    along = rows @ gram  # mu^T x_i
    m2 = np.sum(along * rows, axis=1)
    centred = along - m2[:, None]
    a = np.sum(rows * centred**2, axis=1)
    inner = gram[None] - along[:, :, None] - along[:, None, :] + m2[:, None, None]
    t = np.einsum("gi,gj,gij->g", rows, rows, inner**2)
    m2 = np.maximum(m2, 0.0)
    return rows, np.stack([m2, np.minimum(a, m2 * np.sqrt(t)), t])


def values(bound: Bound, moments: Moments, M: int, K: int) -> np.ndarray:
    """Values of a bound at arrays of moments; NaN where it is undefined.

    Formulas that only know Python numbers are evaluated one by one.
    """
    with np.errstate(all="ignore"):
        try:
            value = bound(moments, M, K)
            if isinstance(value, list | tuple):
                raise TypeError(f"{bound.name}: value={value!r}: expected a number or an array")
            result = np.asarray(value, dtype=np.float64)
            return np.broadcast_to(result, moments.m2.shape)
        except (TypeError, ValueError, AttributeError, ArithmeticError):
            rows = zip(moments.m2, moments.a, moments.t, strict=True)
            return np.asarray([_value(bound, row, M, K) for row in rows])


def _value(bound: Bound, row: Iterable[Any], M: int, K: int) -> float:
    try:
        return float(bound(Moments(*map(float, row)), M, K))
    except (ArithmeticError, ValueError, TypeError):
        return math.nan


def evaluate(
    bound: Bound,
    supports: Iterable[tuple[str, Atoms, Grid]],
    M: int,
    K: int,
    *,
    nonzero_mean: bool,
    scale: Fraction = Fraction(1),
) -> list[list[Candidate]]:
    """For each support (family, atoms, grid of weights) its best candidates, best first, at most three.

    The bound is evaluated once, on the moments of all supports together.
    """
    chosen = [support for support in supports if fits(len(support[1]), M, K)]
    if not chosen:
        return []
    rows = [_scalars(atoms, weights) for _, atoms, weights in chosen]
    m2, a, t = np.concatenate([moments for _, moments in rows], axis=1)
    c = float(scale) ** 2
    B = values(bound, Moments(m2 * c, a * c * c, t * c * c), M, K)
    P = np.concatenate(
        [probabilities(atoms, w, M, K) for (_, atoms, _), (w, _) in zip(chosen, rows, strict=True)]
    )
    with np.errstate(all="ignore"):
        ratio = np.where(P > 0, P / np.maximum(B, 1e-300), np.where(B < 0, np.inf, 0.0))
    ratio[np.isnan(B) | (nonzero_mean & (m2 <= 1e-12 * np.sqrt(t)))] = -1.0
    result, start = [], 0
    for family, atoms, weights in chosen:
        first, start = start, start + len(weights)
        part = ratio[first:start]
        best = [i for i in np.argsort(-part, kind="stable")[:3] if part[i] >= 0]
        result.append(
            [
                Candidate(atoms, weights[i], M, K, float(part[i]), float(P[first + i]), family, scale)
                for i in best
            ]
        )
    return result


# Weights of two atoms: simple ones first, so that the first refutation found is already simple.
_ODDS = (1, 2, 3, 4, 5, 7, 9, 12, 19, 30, 49, 69, 99, 149, 199, 299, 399, 599, 799, 1199, 1999, 9_999, 99_999)
TWO: Grid = ((1, 1), *(w for n in _ODDS[1:] for w in ((n, 1), (1, n))), (2, 3), (3, 2))
THREE: Grid = tuple(
    dict.fromkeys(tuple(x // math.gcd(*w) for x in w) for w in product((1, 2, 6, 30, 200, 1000), repeat=3))
)
FOUR: Grid = tuple(w for w in product((1, 4, 40), repeat=4) if math.gcd(*w) == 1)


def families(M: int, K: int) -> Iterator[tuple[str, Atoms, Grid]]:
    """Structured supports with their weight grids, simplest first.

    Two atoms on the line, {0, c} and {1, -j} with j around M - 1 and K - 1; three atoms (sign-symmetric,
    mixtures with a far atom); one mean direction with sign-symmetric noise across it;
    orthogonal and sparse atoms;
    rank-one noise; pairs in the plane.
    """
    yield "point mass", ((1,),), ((1,),)
    yield "point mass at 0", ((0,),), ((1,),)
    yield "{0, c}", ((0,), (1,)), TWO
    far = sorted({1, 2, 3, M - 1, M, K - 1, K, 2 * M, 2 * K, 100} - {0, -1})
    for j in far:
        yield "{1, -j}", ((1,), (-j,)), TWO
    for j in (2, 3, M + 1, K + 1):
        yield "{1, -1/j}", ((j,), (-1,)), TWO
    yield "far atom", ((1,), (10,)), TWO
    for n in sorted({M, K}):  # noise across the mean, carried by the rare far atom alone
        for r in sorted({1, 2, n // 2 + 1, n - 1, n, n + n // 2, 2 * n, 3 * n} - {0}):
            yield "far atom across", ((1, 0), (1 - n, r)), TWO
    for r in (1, 2, 3):  # mean 1 along e1, noise +-r across it: a = 0
        yield "noise across the mean", ((1, r), (1, -r)), TWO
        yield "noise across the mean", ((1, 0), (1, r), (1, -r)), THREE
    yield "noise across the mean", ((2, 1), (2, -1)), TWO
    yield "sign-symmetric", ((0,), (1,), (-1,)), THREE
    for j in far:
        yield "three points", ((0,), (1,), (-j,)), THREE
        yield "three points", ((1,), (2,), (-j,)), THREE
    yield "orthogonal", ((1, 0), (0, 1)), TWO
    yield "orthogonal", ((1, 0, 0), (0, 1, 0), (0, 0, 1)), THREE
    yield "sparse", ((0, 0), (1, 0), (0, 1)), THREE
    yield "simplex", ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)), FOUR
    yield "rank-one noise", ((1, 0, 2), (1, 0, -2), (1, 2, 0), (1, -2, 0)), FOUR
    yield "corners", ((1, 1), (1, -1), (-1, 1), (0, 0)), FOUR
    yield from _planar()


@functools.lru_cache(maxsize=1)
def _planar() -> tuple[tuple[str, Atoms, Grid], ...]:
    """Pairs of vectors in the plane up to rotation, reflection and scale: one per Gram matrix."""
    seen: dict[tuple[int, int, int], Atoms] = {}
    grid = list(product(range(-3, 4), repeat=2))
    for x, y in product(grid, grid):
        gram = (x[0] ** 2 + x[1] ** 2, x[0] * y[0] + x[1] * y[1], y[0] ** 2 + y[1] ** 2)
        if x[0] * y[1] == x[1] * y[0] or math.gcd(*gram) != 1 or gram[0] < gram[2]:
            continue
        atoms = (x, y)
        if gram not in seen or (sum(map(abs, x + y)), x < (0, 0)) < (
            sum(map(abs, seen[gram][0] + seen[gram][1])),
            seen[gram][0] < (0, 0),
        ):
            seen[gram] = atoms
    return tuple(("pairs in the plane", atoms, TWO) for atoms in seen.values())


def neighbours(candidate: Candidate, rng: np.random.Generator) -> Iterator[tuple[Atoms, Grid]]:
    """Supports one integer step away, each with weights near the present ones; one random jump."""
    s, d = len(candidate.atoms), len(candidate.atoms[0])
    near = _near(candidate.weights)
    yield candidate.atoms, near
    for i in range(s):
        for k in range(d):
            for step in (-1, 1):
                rows = [list(atom) for atom in candidate.atoms]
                rows[i][k] += step
                yield tuple(map(tuple, rows)), near
    doubled = tuple(tuple(2 * x for x in atom) for atom in candidate.atoms)
    if max(abs(x) for atom in doubled for x in atom) < 200:
        yield tuple(tuple(int(x + rng.integers(-1, 2)) for x in atom) for atom in doubled), near


def _near(weights: Weights) -> Grid:
    found: dict[Weights, None] = {weights: None}
    for i in range(len(weights)):
        for factor in (0.5, 0.8, 0.93, 0.98, 1.02, 1.07, 1.25, 2.0):
            scale = 1 if min(weights) * abs(factor - 1) >= 1 else 20
            row = [w * scale for w in weights]
            row[i] = max(1, round(row[i] * factor))
            shrink = math.gcd(*row)
            if sum(row) // shrink < 10**6:  # rarer atoms add digits, not insight
                found[tuple(w // shrink for w in row)] = None
    return tuple(found)


def climb(
    bound: Bound, start: Candidate, rng: np.random.Generator, *, steps: int, nonzero_mean: bool
) -> Iterator[Candidate]:
    """Greedy ascent of P/B over integer atoms and weights; yields every improvement."""
    best = start
    for _ in range(steps):
        supports = [
            (start.family, atoms, weights)
            for atoms, weights in neighbours(best, rng)
            if len(set(atoms)) == len(atoms)
        ]
        found = [
            c
            for group in evaluate(
                bound, supports, best.M, best.K, nonzero_mean=nonzero_mean, scale=start.scale
            )
            for c in group[:1]
        ]
        top = max(found, key=lambda c: c.ratio, default=best)
        if top.ratio <= best.ratio * (1 + 1e-9):
            return
        best = top
        yield best
