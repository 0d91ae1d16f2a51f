"""Certificates: a limit for P(T <= 0) with its confidence, assumptions and provenance."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal

from certify.intervals import ConfidenceInterval, check_confidence, check_count

Tier = Literal["plug-in", "asymptotic", "bounded", "replicates", "conditional"]
TIERS: tuple[str, ...] = ("plug-in", "asymptotic", "bounded", "replicates", "conditional")
SCHEMA = 1
SERIAL_LIMIT = 5.0  # standard deviations
COPIES = 0.05
"""Share of exact copies above which independence counts as contradicted by the data."""


@dataclass(frozen=True)
class Quantity:
    """A number with its two-sided interval and its one-sided limit on the unfavourable side.

    Each of the three may be None: an estimate that does not exist, or a tier that gives no such statement.
    """

    estimate: float | None
    interval: ConfidenceInterval | None = None
    limit: ConfidenceInterval | None = None


@dataclass(frozen=True)
class AssumptionStatus:
    """One assumption and what is known of it: ``declared`` (taken on trust), ``tested`` or ``violated``."""

    name: str
    status: Literal["declared", "tested", "violated"]
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.status}{': ' + self.detail if self.detail else ''})"


@dataclass(frozen=True)
class Certificate:
    """What is guaranteed about T = mu_M . g_K, with which confidence, and on which grounds.

    ``misalignment`` is the statement itself: a one-sided upper limit of P(T <= 0), 1 (vacuous) where nothing
    is certified.  ``B_exact`` and ``B_align`` are the two bounds with upper limits; ``d_par``, ``d_2``,
    ``d_align`` carry lower limits.  Estimates are never clamped.

    Examples
    --------
    >>> import numpy as np
    >>> from certify.certification import certificate
    >>> Q = 1 + np.random.default_rng(0).standard_normal((200, 3))
    >>> c = certificate(Q, M=32, K=32)
    >>> c.certified, c.detected, round(c.upper, 2)
    (True, True, 0.03)
    >>> Certificate.from_json(c.to_json()) == c
    True
    """

    M: int
    K: int
    confidence: float
    tier: str
    method: str
    n: int
    d: int
    detected: bool | None
    """False where the interval of m2^2 covers 0 or its estimate is not positive; None where not looked at."""
    misalignment: Quantity
    B_exact: Quantity
    B_align: Quantity
    d_par: Quantity
    d_2: Quantity
    d_align: Quantity
    m2_squared: Quantity
    assumptions: tuple[AssumptionStatus, ...]
    notes: tuple[str, ...] = ()
    unit: str = "example"
    module: str | None = None
    positions: str | None = None
    dtype: str | None = None
    seed: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    n_test: int | None = None
    """Units of the test law, where the K units follow another law than the M; else None."""

    @property
    def upper(self) -> float:
        """Upper limit of P(T <= 0); 1 where nothing is certified."""
        limit = self.misalignment.limit
        return 1.0 if limit is None else limit.high

    @property
    def violated(self) -> tuple[AssumptionStatus, ...]:
        """Assumptions that the data contradict."""
        return tuple(a for a in self.assumptions if a.status == "violated")

    @property
    def certified(self) -> bool:
        """Whether a limit below 1 is stated and no assumption behind it is contradicted by the data."""
        return self.upper < 1.0 and not self.violated

    @property
    def state(self) -> str:
        """certified, signal not detected, vacuous, assumption violated or no confidence."""
        if self.tier == "plug-in":
            return "no confidence"
        if self.violated:
            return "assumption violated"
        if self.detected is False:
            return "signal not detected"
        return "certified" if self.certified else "vacuous"

    @property
    def statement(self) -> str:
        """One paragraph of plain words: the guarantee, its probabilities, its assumptions and its origin."""
        from certify.certificate_text import statement

        return statement(self)

    def explain(self) -> str:
        """Several paragraphs: how every number was obtained and what would make the certificate wrong."""
        from certify.certificate_text import explain

        return explain(self)

    def __str__(self) -> str:
        from certify.certificate_text import plain

        return plain(self)

    def __rich__(self) -> Any:
        from certify.certificate_text import rich_panel

        return rich_panel(self)

    def _repr_html_(self) -> str:
        from certify.certificate_text import html

        return html(self)

    def to_json(self, indent: int | None = None) -> str:
        """JSON text without NaN or infinity: a missing limit is null.  The statement is stored for
        readers."""
        payload = {"kind": "certificate", "schema": SCHEMA, "state": self.state, "statement": self.statement}
        for f in dataclasses.fields(self):
            payload[f.name] = _plain(getattr(self, f.name))
        return json.dumps(payload, allow_nan=False, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Inverse of :meth:`to_json`.

        Raises
        ------
        ValueError
            If the text is not a stored certificate of this schema.
        """
        try:
            payload = json.loads(text)
            kind, schema = payload.pop("kind"), payload.pop("schema")
        except (json.JSONDecodeError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"text={text[:60]!r}: expected a stored certificate") from error
        if kind != "certificate" or schema != SCHEMA:
            raise ValueError(f"kind={kind!r}, schema={schema!r}: expected a certificate of schema {SCHEMA}")
        try:
            payload.pop("state"), payload.pop("statement")
            for name, value in payload.items():
                if isinstance(value, dict) and "estimate" in value:
                    payload[name] = _quantity(value)
            payload["assumptions"] = tuple(AssumptionStatus(**a) for a in payload["assumptions"])
            payload["notes"] = tuple(payload["notes"])
            return cls(**payload)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"text={text[:60]!r}: a stored certificate with a part missing ({error})"
            ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Quantity):
        estimate = value.estimate
        return {
            # d_par is infinite where all units are equal; JSON has no infinity
            "estimate": str(estimate) if estimate is not None and math.isinf(estimate) else estimate,
            "interval": _plain(value.interval),
            "limit": _plain(value.limit),
        }
    if isinstance(value, ConfidenceInterval):
        return value.to_dict()
    if isinstance(value, AssumptionStatus):
        return dataclasses.asdict(value)
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"value={value}: a certificate holds finite numbers or None")
    return value


def _quantity(payload: dict[str, Any]) -> Quantity:
    estimate, interval, limit = payload["estimate"], payload["interval"], payload["limit"]
    return Quantity(
        None if estimate is None else float(estimate),
        None if interval is None else ConfidenceInterval.from_dict(interval),
        None if limit is None else ConfidenceInterval.from_dict(limit),
    )


def certificate(
    moments: Any,
    *,
    M: int,
    K: int,
    test: Any = None,
    confidence: float = 0.95,
    tier: Tier = "asymptotic",
    method: Literal["separate", "mover", "fieller", "bootstrap"] = "separate",
    bound: float | None = None,
    direction: Any = None,
    resamples: int = 999,
    rng: Any = 0,
    unit: str | None = None,
    module: str | None = None,
    positions: str | None = None,
    dtype: str | None = None,
    seed: int | None = None,
) -> Certificate:
    r"""Certificate that the mean gradients of M and of K fresh units align, at a stated confidence.

    .. math::
        P(\text{sample}: P(T \le 0) \le u) \ge \text{confidence}, \qquad T = \mu_M^T g_K

    ``moments``: :class:`GradientMoments`, or an array (n, d) with one row per independent unit.

    Parameters
    ----------
    moments : GradientMoments or array (n, d)
        The estimation sample: held-out units, independent of each other and of the trained model.
    M, K : int
        Sizes of the two means.
    test : GradientMoments or array (n_test, d), optional
        Sample of a second law that the K units follow, for example test gradients when ``moments`` are
        training gradients (tiers asymptotic and replicates). The bound then needs E T = mu_1.mu_2 > 0.
    confidence : float
        Probability, over the estimation sample, that the limits hold.
    tier : {"plug-in", "asymptotic", "bounded", "replicates", "conditional"}
        What the limits rest on.  ``plug-in``: nothing, no confidence.  ``asymptotic``: large n and finite
        fourth moments.  ``bounded``: ``bound`` on every unit's norm.  ``replicates``: independence alone, and
        n >= M + K.  ``conditional``: ``direction`` is the given mu_M, the statement is about K further units.
    method : {"separate", "mover", "fieller", "bootstrap"}
        How the asymptotic tier makes its limits; the default is the one that the coverage study supports.
    bound : float, optional
        R with ``|q| <= R`` (tier bounded), or with ``|mu_M . q| <= R |mu_M|`` (tier conditional; without
        it the conditional tier counts signs).
    direction : array (d,), optional
        The given mu_M of the conditional tier.
    resamples, rng
        Number of resamples and seed (or Generator) of the bootstrap.
    unit, module, positions, dtype, seed
        Where the gradients come from; taken from the moments' metadata where they have it.

    Raises
    ------
    ValueError
        If an argument is out of range, n is too small for the tier, or a unit exceeds ``bound``.

    Notes
    -----
    The bounds are those of paper 1 (alignment theorem).  The limits: see ``certify.asymptotic`` and
    ``certify.finite_sample``.

    Examples
    --------
    >>> import numpy as np
    >>> Q = 1 + np.random.default_rng(0).standard_normal((200, 3))
    >>> noise = Q - Q.mean(axis=0)
    >>> certificate(noise, M=8, K=8).state
    'signal not detected'
    """
    issue = prepared(
        moments,
        M=M,
        K=K,
        test=test,
        tier=tier,
        method=method,
        bound=bound,
        direction=direction,
        resamples=resamples,
        rng=rng,
        unit=unit,
        module=module,
        positions=positions,
        dtype=dtype,
        seed=seed,
    )
    return issue(confidence)


def prepared(
    moments: Any,
    *,
    M: int,
    K: int,
    test: Any = None,
    tier: Tier = "asymptotic",
    method: str = "separate",
    bound: float | None = None,
    direction: Any = None,
    resamples: int = 999,
    rng: Any = 0,
    unit: str | None = None,
    module: str | None = None,
    positions: str | None = None,
    dtype: str | None = None,
    seed: int | None = None,
) -> Callable[[float], Certificate]:
    """The certificate as a function of its confidence: what all levels share is computed once.

    Parameters and errors are those of :func:`certificate`. A bootstrap draws its resamples once.

    Examples
    --------
    >>> import numpy as np
    >>> issue = prepared(1 + np.random.default_rng(0).standard_normal((200, 3)), M=8, K=8)
    >>> issue(0.9).upper < issue(0.99).upper
    True
    """
    from certify.moments import GradientMoments
    from certify.tiers import IID, RUN, Request

    if tier not in TIERS:
        raise ValueError(f"tier={tier!r}: expected one of {', '.join(TIERS)}")
    from certify.asymptotic import METHODS

    if method not in METHODS:
        raise ValueError(f"method={method!r}: expected one of {', '.join(METHODS)}")
    given, second = (
        m if m is None or isinstance(m, GradientMoments) else GradientMoments.from_array(m)
        for m in (moments, test)
    )
    if given is None:
        raise TypeError("moments=None: expected GradientMoments or an array (n, d)")
    if second is not None:
        _check_second(given, second, tier)
    meta = dict(given.metadata)
    if dtype is None:
        dtype = meta.get("dtype") or (str(moments.dtype) if hasattr(moments, "dtype") else None)
    unit = unit or meta.get("unit") or "example"
    shared = Request(
        check_count("M", M),
        check_count("K", K),
        0.5,  # stands for any: replaced below
        unit,
        method,
        check_count("resamples", resamples),
        rng,
        _positive("bound", bound),
        direction,
        second,
    )
    samples = [m for m in (given, second) if m is not None]

    def issue(confidence: float) -> Certificate:
        ask = dataclasses.replace(shared, confidence=check_confidence(confidence))
        found = RUN[tier](given, ask)
        notes = found.notes
        doubts, contradicted = ask.once("doubts", lambda: _doubts(samples))
        if doubts:
            status: Any = "violated" if contradicted else "declared"
            assumptions = tuple(
                dataclasses.replace(a, status=status, detail="; ".join(doubts)) if a == IID else a
                for a in found.assumptions
            )
            found = dataclasses.replace(found, assumptions=assumptions)
            notes += tuple(f"{doubt}: {remedy}" for doubt, remedy in doubts.items())
        return Certificate(
            M=ask.M,
            K=ask.K,
            confidence=ask.confidence,
            tier=tier,
            n=given.n,
            d=given.d,
            unit=unit,
            module=module or meta.get("module"),
            positions=positions or meta.get("positions"),
            dtype=dtype,
            seed=seed
            if seed is not None
            else (rng if method == "bootstrap" and isinstance(rng, int) else None),
            versions=versions(),
            n_test=None if second is None else second.n,
            notes=notes,
            **{f.name: getattr(found, f.name) for f in dataclasses.fields(found) if f.name != "notes"},
        )

    return issue


def _check_second(given: Any, second: Any, tier: str) -> None:
    """Refuse a second sample that does not belong to the first one or that the tier has no use for."""
    if tier not in ("asymptotic", "replicates"):
        raise ValueError(f"tier={tier!r}: expected 'asymptotic' or 'replicates' with test=")
    if second is given:
        raise ValueError("test is the very sample given as moments: leave test out for one law")
    for key in ("module", "positions"):
        one, two = given.metadata.get(key), second.metadata.get(key)
        if one != two and None not in (one, two):
            raise ValueError(f"{key}={one!r} and {two!r} of test: expected gradients at the same place")


def _doubts(samples: list[Any]) -> tuple[dict[str, str], bool]:
    """Signs that units are dependent, each with what to do, and whether they contradict independence."""
    from certify.replication import copies, serial_dependence

    found = {}
    repeated = sum(copies(m) for m in samples)
    total = sum(m.n for m in samples)
    # Zero gradients repeat by themselves and all-equal units are judged elsewhere: both are not counted here.
    contradicted = COPIES * total < repeated < total - 1
    if repeated:
        found[f"{repeated} units are exact copies of others"] = (
            "if a sampler repeats examples to fill a batch, drop them by index; copies are not independent"
        )
    z = max(serial_dependence(m) for m in samples)
    if z > SERIAL_LIMIT:
        found[f"consecutive units are alike (z = {z:.1f})"] = (
            "harmless if the rows are merely sorted; units that share a source (tokens, frames, "
            "augmentations, pages) are not independent: average them with unit= first"
        )
    return found, contradicted


def _positive(name: str, value: float | None) -> float | None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if value is not None and not (number and math.isfinite(value) and value > 0):
        raise ValueError(f"{name}={value!r}: expected a positive finite number")
    return None if value is None else float(value)


def versions() -> dict[str, str]:
    """Versions of the packages that made the numbers."""
    return dict(_versions())


@functools.cache
def _versions() -> dict[str, str]:
    import importlib.metadata

    found = {"python": platform.python_version()}
    for name in ("gradient-alignment", "numpy", "scipy", "torch"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
