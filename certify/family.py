"""Several modules at once: certificates that hold together, and decisions with family-wise error control."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from certify.certification import Certificate, certificate, prepared
from certify.intervals import check_confidence, check_probability

LEAST_P = 1e-12


@dataclass(frozen=True)
class Decision:
    """Whether "P(T <= 0) <= target" is issued for one module of a family.

    ``adjusted`` is the p-value after the correction: the smallest family-wise error at which it is issued.
    """

    module: str
    target: float
    p_value: float
    adjusted: float
    issued: bool
    correction: str
    family: int


def _check_items(items: Any) -> None:
    if not isinstance(items, Mapping):
        raise TypeError(f"items is a {type(items).__name__}; expected a mapping from module names to moments")
    if not items:
        raise ValueError("items={}: expected at least one module")


def certificates(
    items: Mapping[str, Any], *, M: int, K: int, confidence: float = 0.95, **options: Any
) -> dict[str, Certificate]:
    """Certificates of several modules that hold *together* at the stated confidence (Bonferroni).

    With m modules each certificate is issued at 1 - (1 - confidence)/m, whatever their dependence, which
    gradients of one network share.

    Parameters
    ----------
    items : mapping
        Module name to moments or array (n, d).
    M, K, confidence, options
        As in :func:`certify.certificate`; ``confidence`` is that of all statements together.

    Raises
    ------
    ValueError
        If ``items`` is empty, or an argument is out of range.

    Notes
    -----
    Dunn, "Multiple comparisons among means", JASA 56 (1961).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> Q = {"block1": 1 + rng.standard_normal((200, 3)), "block2": 1 + rng.standard_normal((200, 3))}
    >>> both = certificates(Q, M=32, K=32)
    >>> round(both["block1"].confidence, 3)
    0.975
    """
    _check_items(items)
    each = 1 - (1 - check_confidence(confidence)) / len(items)
    note = (
        f"one of {len(items)} certificates that hold together with confidence {confidence:g} "
        f"(Bonferroni: each at {each:.6g})"
    )
    found = {}
    for name, moments in items.items():
        one = certificate(moments, M=M, K=K, confidence=each, **{"module": name, **options})
        found[name] = dataclasses.replace(one, notes=(*one.notes, note)) if len(items) > 1 else one
    return found


def p_value(moments: Any, target: float, *, M: int, K: int, **options: Any) -> float:
    """Smallest error probability at which a certificate states an upper limit of at most ``target``.

    Values below 1e-12 (bootstrap: below 4/(resamples + 1), where percentiles end) are reported as that; 1
    where no certificate can be had. What does not depend on the level is computed once.

    Examples
    --------
    >>> import numpy as np
    >>> Q = 1 + np.random.default_rng(0).standard_normal((200, 3))
    >>> p_value(Q, 0.1, M=32, K=32) < 1e-6
    True
    """
    check_probability("target", target)
    issue = prepared(moments, M=M, K=K, **options)

    def stated(log_alpha: float) -> bool:
        c = issue(1 - math.exp(log_alpha))
        return c.upper <= target and not c.violated

    least = LEAST_P
    if options.get("method") == "bootstrap":
        # A certificate asks for percentiles at a quarter of its level; none exist below 1/(resamples + 1).
        least = max(least, 4.0001 / (options.get("resamples", 999) + 1))
    low, high = math.log(least), math.log(0.5)
    if not stated(high):
        return 1.0
    if stated(low):
        return least
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if stated(middle) else (middle, high)
    return math.exp(high)


def decide(
    items: Mapping[str, Any],
    target: float,
    *,
    M: int,
    K: int,
    confidence: float = 0.95,
    correction: Literal["holm", "bonferroni"] = "holm",
    **options: Any,
) -> dict[str, Decision]:
    """For which modules can "P(T <= 0) <= target" be issued, with all issued ones true at this confidence?

    Parameters
    ----------
    items : mapping
        Module name to moments or array (n, d).
    target : float
        The bound to be issued.
    M, K, options
        As in :func:`certify.certificate`.
    confidence : float
        Probability that none of the issued statements is false.
    correction : {"holm", "bonferroni"}
        Holm's step-down procedure issues at least as much as Bonferroni's at the same confidence.

    Raises
    ------
    ValueError
        If ``items`` is empty or an argument is out of range.

    Notes
    -----
    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6
    (1979); statsmodels ``multipletests``.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> Q = {"signal": 1 + rng.standard_normal((200, 3)), "noise": rng.standard_normal((200, 3))}
    >>> {name: d.issued for name, d in decide(Q, 0.1, M=32, K=32).items()}
    {'signal': True, 'noise': False}
    """
    from statsmodels.stats.multitest import multipletests

    _check_items(items)
    if correction not in ("holm", "bonferroni"):
        raise ValueError(f"correction={correction!r}: expected 'holm' or 'bonferroni'")
    p = [p_value(moments, target, M=M, K=K, **options) for moments in items.values()]
    issued, adjusted, _, _ = multipletests(p, alpha=1 - check_confidence(confidence), method=correction)
    return {
        name: Decision(name, target, value, float(q), bool(yes), correction, len(items))
        for name, value, q, yes in zip(items, p, adjusted, issued, strict=True)
    }
