"""Make a counterexample small: fewest atoms, lowest dimension, smallest M and K, simplest numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

from theory.assumptions import Assumption
from theory.formula import Bound
from theory.laws import FiniteLaw

if TYPE_CHECKING:
    from theory.verdicts import WorstCase

Key = tuple[int, int, int, int, int]


def complexity(law: FiniteLaw, M: int, K: int) -> Key:
    """Order of simplicity: atoms, dimension, M + K, size of the weights, size of the atoms.

    Examples
    --------
    >>> complexity(FiniteLaw([0, 1], ["1/2", "1/2"]), 1, 1)
    (2, 1, 2, 2, 1)
    """
    size = sum(abs(x.numerator) + 2 * (x.denominator - 1) for atom in law.atoms for x in atom)
    signs = sum(x < 0 for atom in law.atoms for x in atom)
    common = math.lcm(*(w.denominator for w in law.weights))
    return len(law.atoms), law.dimension, M + K, common, 2 * size - (size > 0) + signs


def shrink(bound: Bound, case: WorstCase, *, rounds: int = 200) -> WorstCase:
    """The simplest violation reachable from one violation; every step is re-decided exactly.

    Parameters
    ----------
    bound
        The refuted bound.
    case
        A violation, ``case.ratio > 1``.
    rounds
        Limit on the number of accepted simplifications.
    """
    best = case
    for M, K, law in _catalogue(bound):
        if complexity(law, M, K) < complexity(best.law, best.M, best.K):
            found = _violation(bound, law, M, K)
            if found is not None:
                best = found
                break
    for _ in range(rounds):
        for law, M, K in _simpler(best.law, best.M, best.K):
            if complexity(law, M, K) >= complexity(best.law, best.M, best.K) or not bound.covers(M, K):
                continue
            found = _violation(bound, law, M, K)
            if found is not None:
                best = found
                break
        else:
            return best
    return best


def _violation(bound: Bound, law: FiniteLaw, M: int, K: int) -> WorstCase | None:
    from theory.worst_case import decide

    if Assumption.NONZERO_MEAN in bound.assumptions and not any(law.mean()):
        return None
    found = decide(bound, law, M, K)
    return found if found is not None and found.ratio > 1 else None


def _catalogue(bound: Bound) -> Iterator[tuple[int, int, FiniteLaw]]:
    """Well-known laws in order of simplicity: point masses, the fair coin, one far atom."""
    pairs = sorted(
        ((M, K) for M in range(1, 9) for K in range(1, 9) if bound.covers(M, K)), key=lambda p: (sum(p), p)
    )[:10]
    laws = [FiniteLaw([0], [1]), FiniteLaw([1], [1]), FiniteLaw([0, 1], ["1/2", "1/2"])]
    laws += [FiniteLaw([0, 1], [1 - Fraction(1, n), Fraction(1, n)]) for n in (3, 4, 5, 10)]
    laws += [FiniteLaw([0, 1], [Fraction(1, n), 1 - Fraction(1, n)]) for n in (3, 4, 5, 10)]
    laws += [FiniteLaw([1, -j], [1 - Fraction(1, n), Fraction(1, n)]) for j in (1, 2, 3) for n in (3, 5, 10)]
    for law in laws:
        for M, K in pairs:
            yield M, K, law


def _simpler(law: FiniteLaw, M: int, K: int) -> Iterator[tuple[FiniteLaw, int, int]]:
    atoms, weights, s = law.atoms, law.weights, len(law.atoms)
    for i in range(s) if s > 1 else ():  # an atom less: its weight shared out, or given to a neighbour
        kept = [j for j in range(s) if j != i]
        rest = sum(weights[j] for j in kept)
        yield FiniteLaw([atoms[j] for j in kept], [weights[j] / rest for j in kept]), M, K
        for j in kept:
            merged = [weights[k] + (weights[i] if k == j else 0) for k in kept]
            yield FiniteLaw([atoms[k] for k in kept], merged), M, K
    for k in range(law.dimension) if law.dimension > 1 else ():  # a coordinate less
        yield FiniteLaw([atom[:k] + atom[k + 1 :] for atom in atoms], weights), M, K
    for smaller in ((M - 1, K - 1), (M // 2, K // 2), (M - 1, K), (M, K - 1)):
        if min(smaller) >= 1:
            yield law, *smaller
    for row in _weights(weights):
        yield FiniteLaw(atoms, row), M, K
    common = math.gcd(*(x.numerator for atom in atoms for x in atom))
    scale = math.lcm(*(x.denominator for atom in atoms for x in atom))
    if scale > 1:
        yield law.scaled(scale), M, K
    if common > 1:
        yield law.scaled(Fraction(1, common)), M, K
    if all(x <= 0 for x in law.mean()):
        yield law.scaled(-1), M, K
    for i in range(s):
        for k in range(law.dimension):
            x = atoms[i][k]
            for y in dict.fromkeys((Fraction(0), -x, Fraction(int(x / 2)), Fraction(int(x)), x - 1, x + 1)):
                if y != x and (abs(y) < abs(x) or (y == -x > 0)):
                    changed = [
                        atom if j != i else (*atom[:k], y, *atom[k + 1 :]) for j, atom in enumerate(atoms)
                    ]
                    yield FiniteLaw(changed, weights), M, K


def _weights(weights: tuple[Fraction, ...]) -> Iterator[list[Fraction]]:
    """Simpler weights: every composition of a small denominator, then roundings of the present ones."""
    s = len(weights)
    common = math.lcm(*(w.denominator for w in weights))
    for n in range(s, min(common, 9)):
        for row in product(range(1, n), repeat=s - 1):
            if sum(row) < n:
                yield [Fraction(x, n) for x in (*row, n - sum(row))]
    for n in sorted({*range(9, 33), 40, 50, 64, 100, 200, 500, 1000, 10_000}):
        if n < common:
            near = [max(1, round(w * n)) for w in weights]
            near[near.index(max(near))] += n - sum(near)
            if min(near) >= 1:
                yield [Fraction(x, n) for x in near]
