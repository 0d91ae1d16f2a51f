"""The sample sizes for which a bound is claimed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sizes:
    """The range of a sample size for which a bound is claimed.

    ``low <= size <= high``

    Parameters
    ----------
    low, high
        Inclusive limits; ``high=None`` for no limit.

    Raises
    ------
    ValueError
        If ``read`` cannot make a nonempty range of integers >= 1 of what it is given.

    Notes
    -----
    Source: notation of this package for the (M, K) of a claim; see docs/property_testing.md.

    Examples
    --------
    >>> Sizes.read(">=2"), Sizes.read(3), Sizes.read(range(1, 5)), Sizes.read(None)
    (Sizes(low=2, high=None), Sizes(low=3, high=3), Sizes(low=1, high=4), Sizes(low=1, high=None))
    >>> Sizes.read((2, 8)).text("M"), 9 in Sizes.read((2, 8))
    ('2 <= M <= 8', False)
    """

    low: int = 1
    high: int | None = None

    @classmethod
    def read(cls, given: Any, name: str = "M") -> Sizes:
        """Accept ``None`` (any), ``3`` (exactly), ``">=2"``, ``"<=8"``, ``(2, None)`` or a ``range``."""
        try:
            if given is None:
                return cls()
            if isinstance(given, Sizes):
                return given
            if isinstance(given, str):
                text = given.replace(" ", "").replace("≥", ">=").replace("≤", "<=")
                low, high = (int(text[2:]), None) if text.startswith(">=") else (1, int(text[2:]))
                if text[:2] not in (">=", "<="):
                    raise ValueError
            elif isinstance(given, range) and given.step == 1:
                low, high = given.start, given.stop - 1
            elif isinstance(given, tuple):
                low, high = given
            elif isinstance(given, int) and not isinstance(given, bool):
                low = high = given
            else:
                raise ValueError
            if low < 1 or (high is not None and high < low):
                raise ValueError
        except (ValueError, TypeError):
            raise ValueError(
                f"{name}={given!r}: expected a number >= 1, '>=2', '<=8', (low, high), a range, or None"
            ) from None
        return cls(low, high)

    def __contains__(self, size: int) -> bool:
        return self.low <= size and (self.high is None or size <= self.high)

    def text(self, name: str) -> str:
        """The range in words, for messages."""
        if self.high is None:
            return f"{name} >= {self.low}"
        return f"{name} = {self.low}" if self.low == self.high else f"{self.low} <= {name} <= {self.high}"


ANY = Sizes()
"""Every sample size."""
