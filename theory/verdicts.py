"""What a search for counterexamples can say: proved, refuted, or unrefuted with what was covered."""

from __future__ import annotations

import keyword
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from theory.laws import FiniteLaw, WeakSignalLaw

if TYPE_CHECKING:
    from theory.cone import Dominance


_TAKEN = (
    "FiniteLaw",
    "Moments",
    "WeakSignalLaw",
    "exact",
    "laws",
    "P",
    "law",
    "exp",
    "map",
    "float",
)  # names in the snippets


@dataclass(frozen=True)
class WorstCase:
    """The law found to come closest to a bound: exact P, the bound B, and the attained ratio P/B.

    ``ratio = P / B``, ``gap = B - P``.

    Parameters
    ----------
    law, M, K
        The law of one unit and the sample sizes.
    P
        P(T <= 0), exact for a finite-support law.
    B
        Value of the bound there.
    ratio
        P/B as a float; 1 means attained, above 1 refuted.

    Notes
    -----
    Source: the attained value beside the bound, as in performance estimation (Taylor, Hendrickx, Glineur
    2017).

    Examples
    --------
    >>> WorstCase(FiniteLaw([0], [1]), 1, 1, P=Fraction(1), B=Fraction(2), ratio=0.5).gap
    1.0
    """

    law: Any
    M: int
    K: int
    P: Any
    B: Any
    ratio: float

    @property
    def gap(self) -> float:
        """B - P."""
        return float(self.B) - float(self.P)


@dataclass(frozen=True)
class Coverage:
    """What a search looked at.

    Definition: ``complete = False`` if and only if the clock stopped the search.

    Parameters
    ----------
    supports
        Numbers of supports tried (each with a grid of weights), by family.
    sizes
        The (M, K) tried.
    examples
        Random laws tried by hypothesis.
    seconds
        Wall-clock time used.
    complete
        False if the clock stopped the search: a repeat may then get further.
    seed
        Repeats the search.

    Notes
    -----
    Source: convention of this package; see docs/property_testing.md.

    Examples
    --------
    >>> print(Coverage({"{0, c}": 3}, ((1, 1), (2, 1)), 10, 0.5, True, seed=0))
    3 supports [{0, c} (3)], 10 random laws, 2 pairs (M, K) up to M + K = 3, seed 0, 0.5 s
    """

    supports: dict[str, int]
    sizes: tuple[tuple[int, int], ...]
    examples: int
    seconds: float = field(compare=False)
    complete: bool
    seed: int

    def __str__(self) -> str:
        families = ", ".join(f"{name} ({count})" for name, count in self.supports.items())
        return (
            f"{sum(self.supports.values())} supports [{families}], {self.examples} random laws, "
            f"{len(self.sizes)} pairs (M, K) up to M + K = {max((sum(s) for s in self.sizes), default=0)}, "
            f"seed {self.seed}, {self.seconds:.1f} s" + ("" if self.complete else ", STOPPED BY THE CLOCK")
        )


@dataclass(frozen=True)
class Refuted:
    """A counterexample: P(T <= 0) = P > B for this law and these sample sizes, decided in exact rationals.

    ``P(T <= 0) = P > B`` at one law and one (M, K).

    Parameters
    ----------
    law
        A ``FiniteLaw`` with exact weights (a ``GaussianLaw`` for a bound that assumes Gaussian units).
    M, K
        Sample sizes.
    P, B
        The exact probability and the value of the bound (a float if the formula is transcendental; then P
        exceeds it by more than 1e-9 relative).
    name
        Name of the bound.
    floats
        Whether its formula takes floats only.

    Notes
    -----
    Source: exact enumeration, :mod:`theory.exact`; see docs/property_testing.md.

    Examples
    --------
    >>> half = Refuted(FiniteLaw([0], [1]), 1, 1, P=Fraction(1), B=Fraction(1, 2), name="half")
    >>> exec(half.snippet, {"half": lambda moments, M, K: Fraction(1, 2)})
    >>> print(str(half).splitlines()[0])
    Refuted: P(T <= 0) = 1 > 1/2 = half at M = 1, K = 1
    """

    law: Any
    M: int
    K: int
    P: Any
    B: Any
    name: str = "bound"
    floats: bool = False

    verdict = "refuted"

    @property
    def snippet(self) -> str:
        """Two lines that check the counterexample, given the bound under its name."""
        usable = self.name.isidentifier() and not keyword.iskeyword(self.name)
        name = self.name if usable and self.name not in _TAKEN else "bound"
        moments = "Moments(*map(float, law.scalars()))" if self.floats else "Moments.from_law(law)"
        value = f"{name}({moments}, {self.M}, {self.K})"
        if isinstance(self.law, WeakSignalLaw):
            return (
                "from theory import Moments; from theory.laws import WeakSignalLaw\n"
                f"law = {self.law!r}; assert law.probability({self.M}, {self.K}) > {value}"
            )
        if not isinstance(self.law, FiniteLaw):  # lists, since arrays print eight digits only
            return (
                "from math import exp; from theory import Moments, exact, laws\n"
                f"law = laws.GaussianLaw({self.law.mu.tolist()}, {self.law.Sigma.tolist()}); assert "
                f"exp(exact.gaussian_log_probability(law.mu, law.Sigma, {self.M}, {self.K})) > {value}"
            )
        return (
            "from theory import FiniteLaw, Moments, exact; P = exact.finite_support_probability\n"
            f"law = {self.law!r}; assert P(law, {self.M}, {self.K}) > {value}"
        )

    def __str__(self) -> str:
        return (
            f"Refuted: P(T <= 0) = {_show(self.P)} > {_show(self.B)} = {self.name} "
            f"at M = {self.M}, K = {self.K}\n{self.snippet}"
        )


@dataclass(frozen=True)
class Proved:
    """The bound holds because it is never below Cantelli's on the moment cone; the certificate says why.

    ``B >= B_exact >= P(T <= 0)`` for every law with finite second moments.

    Domain: as made by ``falsify``.

    Notes
    -----
    Source: Cantelli 1928; the certificate is a :class:`theory.dominance.Dominance`.

    Examples
    --------
    >>> from theory import falsify
    >>> falsify(lambda m, M, K: 1).certificate.is_valid()
    True
    """

    name: str
    certificate: Dominance

    verdict = "proved"

    def __str__(self) -> str:
        return f"Proved: {self.name} >= B_exact. {self.certificate.statement}"


@dataclass(frozen=True)
class Unrefuted:
    """Neither broken nor proved: what was covered, and the law that came closest.

    ``P(T <= 0) <= B`` for every law that ``coverage`` lists, and no statement about others.

    Domain: as made by ``falsify``.

    Notes
    -----
    Source: convention of this package; see docs/property_testing.md.

    Examples
    --------
    >>> covered = Coverage({}, ((1, 1),), 0, 0.0, False, seed=0)
    >>> print(Unrefuted("mine", covered, None))
    Unrefuted: mine; no law with P > 0 was found.
    Covered: 0 supports [], 0 random laws, 1 pairs (M, K) up to M + K = 2, seed 0, 0.0 s, STOPPED BY THE CLOCK
    """

    name: str
    coverage: Coverage
    worst_case: WorstCase | None

    verdict = "unrefuted"

    def __str__(self) -> str:
        worst = self.worst_case
        closest = (
            "no law with P > 0 was found"
            if worst is None
            else f"closest: P/B = {worst.ratio:.6g} (P = {_show(worst.P)}, B = {_show(worst.B)}) "
            f"for {worst.law!r} at M = {worst.M}, K = {worst.K}"
        )
        return f"Unrefuted: {self.name}; {closest}.\nCovered: {self.coverage}"


def _show(value: Any) -> str:
    if isinstance(value, Fraction) and value.denominator > 10**6:
        return f"{float(value):.6g}"
    return str(value) if isinstance(value, Fraction | int) else f"{value:.6g}"
