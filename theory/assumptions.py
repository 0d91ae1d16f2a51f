"""What a bound needs to be true: assumptions as values, read from phrases."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Assumption(Enum):
    """What a bound needs to be true; a result carries the assumptions it rests on.

    Definition: a bound ``P(T <= 0) <= B`` is claimed for the laws that meet all of its assumptions.  Every
    bound here
    needs independent units with finite second moments; ``IID`` adds that train and test units have one law.

    Domain: the nine values; :func:`theory.assumptions.assumptions` reads them from phrases.

    Notes
    -----
    Source: paper 1, assumptions of the alignment theorem; the others belong to the bounds in docs/bounds.md.

    Examples
    --------
    >>> Assumption.GAUSSIAN.value
    'Gaussian units'
    """

    IID = "independent and identically distributed units"
    INDEPENDENT_SAMPLES = "independent units"
    FINITE_SECOND_MOMENT = "finite second moments"
    FINITE_FOURTH_MOMENT = "finite fourth moments"
    NONZERO_MEAN = "nonzero mean"
    BOUNDED = "bounded units"
    SUBGAUSSIAN = "sub-Gaussian units"
    GAUSSIAN = "Gaussian units"
    GIVEN_TRAIN_MEAN = "conditional on the training mean"


_ALIASES = {
    "iid": Assumption.IID,
    "independent samples": Assumption.INDEPENDENT_SAMPLES,
    "independence": Assumption.INDEPENDENT_SAMPLES,
    "bounded": Assumption.BOUNDED,
    "sub-gaussian": Assumption.SUBGAUSSIAN,
    "subgaussian": Assumption.SUBGAUSSIAN,
    "gaussian": Assumption.GAUSSIAN,
    "given train mean": Assumption.GIVEN_TRAIN_MEAN,
}


def assumptions(given: Assumption | str | Iterable[Assumption | str] | None) -> frozenset[Assumption]:
    """Read assumptions from values, phrases separated by commas, or a mixture of both.

    Parameters
    ----------
    given
        ``None`` for nothing beyond what every bound here needs (independent, identically distributed units).

    Raises
    ------
    ValueError
        If a phrase names no assumption.

    Examples
    --------
    >>> sorted(a.name for a in assumptions("independent units, finite second moments"))
    ['FINITE_SECOND_MOMENT', 'INDEPENDENT_SAMPLES']
    >>> assumptions("unicorns")
    Traceback (most recent call last):
        ...
    ValueError: assumes='unicorns': expected Assumption values or phrases among 'independent ...
    """
    if given is None:
        return frozenset()
    if isinstance(given, Assumption):
        return frozenset({given})
    if not isinstance(given, str):
        return frozenset().union(*(assumptions(item) for item in given))
    phrases = {item.value.lower(): item for item in Assumption} | _ALIASES
    found = set()
    for phrase in (part.strip().lower() for part in given.split(",")):
        for candidate in (phrase, phrase.removesuffix("s"), phrase + "s"):
            if candidate in phrases:
                found.add(phrases[candidate])
                break
        else:
            raise ValueError(
                f"assumes={given!r}: expected Assumption values or phrases among "
                + ", ".join(repr(item.value) for item in Assumption)
                + "; separate phrases by commas"
            )
    return frozenset(found)
