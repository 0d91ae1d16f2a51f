"""Set partitions, their Möbius function, and falling factorials."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def set_partitions(
    items: Sequence[int], apart: frozenset[frozenset[int]] = frozenset()
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield every set partition of ``items`` in which no pair of ``apart`` shares a block.

    The number of partitions is the Bell number B(len(items)) when ``apart`` is empty.

    Definition: disjoint nonempty blocks with union ``items``.

    Parameters
    ----------
    items
        Distinct numbers.
    apart
        Pairs that must not share a block.

    Notes
    -----
    Source: Stanley, *Enumerative Combinatorics* I, section 1.9 (blocks added one element at a time).

    Examples
    --------
    >>> sum(1 for _ in set_partitions(range(4)))
    15
    """
    if not items:
        yield ()
        return
    *rest, last = items
    for partition in set_partitions(rest, apart):
        for i, block in enumerate(partition):
            if not any(frozenset((last, x)) in apart for x in block):
                yield (*partition[:i], (*block, last), *partition[i + 1 :])
        yield (*partition, (last,))


def moebius(partition: Iterable[Sequence[int]]) -> int:
    """Möbius function of the partition lattice, ``prod (-1)^(b-1) (b-1)!`` over blocks of size b.

    Source: Rota, *On the foundations of combinatorial theory I*, 1964.

    Parameters
    ----------
    partition
        Blocks, each a nonempty sequence.

    Examples
    --------
    >>> moebius([(0, 1), (2, 3)]), moebius([(0, 1, 2)])
    (1, 2)
    """
    value = 1
    for block in partition:
        for k in range(1, len(block)):
            value *= -k
    return value


def falling_factorial(x: Any, k: int) -> Any:
    """Number of injective maps from k things into x things: ``x (x-1) ... (x-k+1)``.

    Parameters
    ----------
    x
        Number or symbol.
    k
        Integer >= 0; the empty product is 1.

    Notes
    -----
    Source: Stanley, *Enumerative Combinatorics* I, section 1.9: the number of injective maps.

    Examples
    --------
    >>> falling_factorial(5, 2), falling_factorial(1, 2), falling_factorial(7, 0)
    (20, 0, 1)
    """
    value: Any = 1
    for i in range(k):
        value = value * (x - i)
    return value
