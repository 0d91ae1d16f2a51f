"""What a validation run stores: one frozen record per measured thing, one JSON line per record.

The report is built from these records alone, so a record carries everything a reader needs beside a number:
its interval, the count behind it, the unit of independence and the assumptions.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

SCHEMA = 1

Verdict = Literal["holds", "violated", "inconclusive"]
Protocol = Literal["fresh", "with_replacement", "without_replacement"]
Pair = Literal["test-test", "train-test", "train-train"]


@dataclass(frozen=True)
class Measured:
    """A number from data with its interval. ``value`` is None where the estimate does not exist."""

    value: float | None
    low: float | None
    high: float | None
    confidence: float
    method: str


@dataclass(frozen=True)
class Run:
    """One per run: what produced the records, and how to repeat it."""

    run_id: str
    preset: str
    suites: tuple[str, ...]
    seed: int
    command: str
    started: str
    versions: dict[str, str]
    hardware: dict[str, str]
    data: dict[str, str] = field(default_factory=dict)
    """Content hashes and licences of the data used, by name."""


@dataclass(frozen=True)
class Training:
    """A network trained (or loaded) for a case."""

    suite: str
    case: str
    label: str
    width: int
    depth: int
    parameters: int
    seed: int
    steps: int
    seconds: float
    cached: bool
    data: str
    train_loss: float
    test_loss: Measured
    test_accuracy: Measured | None
    recipe: str
    """Optimizer, learning-rate rule and budget in one line."""
    step: int | None = None
    """Training step at which the network was taken; None is the end of the budget."""


@dataclass(frozen=True)
class Geometry:
    """Moments of the activation gradients at one insertion point, estimated from ``n`` held-out units."""

    suite: str
    case: str
    label: str
    module: str
    positions: str
    unit: str
    sample: str
    """Where the units came from: ``population`` (known law), ``held-out`` or ``train``."""
    n: int | None
    d: int
    width: int
    depth: int
    seed: int
    m2: Measured
    m2_squared: Measured
    mu_sigma_mu: Measured
    tr_sigma2: Measured
    d_par: Measured
    d_2: Measured
    d_align: Measured
    b_star: Measured
    detected: bool
    """False where the interval of m2_squared covers 0: no signal detected, no certificate."""
    assumptions: tuple[str, ...]
    seconds: float
    step: int | None = None
    """Training step at which the network was taken; None is the end of the budget."""


@dataclass(frozen=True)
class Misalignment:
    """Events T <= 0 counted in one (M, K) cell, against the bounds that claim to cover them."""

    suite: str
    case: str
    label: str
    module: str
    positions: str
    unit: str
    width: int
    depth: int
    seed: int
    M: int
    K: int
    protocol: Protocol
    events: int
    trials: int
    frequency: Measured
    """Clopper-Pearson interval of P(T <= 0)."""
    bound_source: str
    """What the bounds were computed from: ``population``, ``pool`` (both exactly valid) or ``estimate``."""
    B_exact: Measured
    B_align: Measured
    log_probability: float | None
    """log P(T <= 0) where it is known exactly (Gaussian laws), else None."""
    verdict: Verdict
    """Of B_exact: violated if the frequency's lower limit exceeds it, holds if the upper is below it."""
    verdict_align: Verdict
    seconds: float
    step: int | None = None
    """Training step at which the network was taken; None is the end of the budget."""
    pair: Pair = "test-test"
    """Which samples the M and the K units come from."""
    B_regrouped: Measured | None = None
    """B_align with its units averaged in groups of the estimated best size b*, where that was computed."""
    regrouping: int | None = None
    """The whole group size behind ``B_regrouped``."""
    normal_log_probability: float | None = None
    """log of Phi(-E T / sd T), the central-limit approximation: no bound, shown for comparison."""


@dataclass(frozen=True)
class Diagonality:
    """Off-diagonal share of the gradient covariance at one insertion point (see ``certify.diagonality``)."""

    suite: str
    case: str
    label: str
    module: str
    positions: str
    unit: str
    n: int
    d: int
    width: int
    depth: int
    seed: int
    place: float
    """Position of the insertion point: residual blocks before it over all blocks, in (0, 1]."""
    share: Measured
    plug_in: float | None
    null_permuted: float | None
    null_signs: float | None
    random_basis: float | None
    relative_entry: float | None
    seconds: float


@dataclass(frozen=True)
class Effect:
    """A step of length ``alpha`` along minus the training mean gradient of one zero-initialised block."""

    suite: str
    case: str
    label: str
    module: str
    block: str
    unit: str
    sample: str
    """Where the K observed units came from: ``held-out``, or ``train`` for the M units themselves."""
    width: int
    depth: int
    seed: int
    M: int
    K: int
    fraction: float
    """What the first order predicts for the M units, as a share of the loss before the step."""
    alpha: float
    T: float
    """Inner product of both mean gradients."""
    predicted: float
    """-alpha T."""
    second_order: float | None
    """Predicted with the curvature along the step: -alpha T + alpha^2 v'Hv / 2."""
    observed: Measured
    """Mean change of the loss, paired over the K units."""
    ratio: Measured
    """Observed over predicted."""
    same_sign: bool
    certain: bool
    """The one-sided upper limit of the change, for all step lengths together (Bonferroni), lies below 0."""
    seconds: float


@dataclass(frozen=True)
class Growth:
    """One guarantee for one block at its place, and what the trained block did on fresh units."""

    suite: str
    case: str
    label: str
    module: str
    block: str
    unit: str
    width: int
    depth: int
    seed: int
    M: int
    K: int
    fresh: int
    """Units that neither trained the block nor entered the guarantee."""
    clip: float
    """Losses above it count as this."""
    route: str
    """``A``, ``B`` or ``theorem 2``."""
    change: float | None
    """Guaranteed: the test risk changes by at most this ..."""
    probability: float | None
    """... with at least this probability; at most 0 where nothing is guaranteed."""
    vacuous: bool
    improves: bool
    rests_on_estimates: bool
    factor: float | None
    """Cost of the worst case over the gain; None where there is no gain."""
    units_needed: float | None
    """Units in each sample at which the guarantee would show an improvement; None where none suffice."""
    fallback: bool
    observed: Measured
    """Change of the loss on fresh units, new model minus old."""
    jumpboard: Measured
    """The same for the jumpboard."""
    reason: str
    seconds: float


Record = Run | Training | Geometry | Misalignment | Diagonality | Effect | Growth
_KINDS: dict[str, type] = {cls.__name__.lower(): cls for cls in get_args(Record)}


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"value={value}: a record holds finite numbers or None; store None and say why")
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def to_json(record: Record) -> str:
    """One JSON line, keys in the order of the fields, NaN and infinities refused.

    >>> to_json(Measured(0.5, 0.4, 0.6, 0.95, "exact"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    TypeError: record: expected one of run, training, ..., got Measured
    """
    kind = type(record).__name__.lower()
    if kind not in _KINDS:
        raise TypeError(f"record: expected one of {', '.join(_KINDS)}, got {type(record).__name__}")
    return json.dumps({"kind": kind, "schema": SCHEMA, **_plain(dataclasses.asdict(record))}, allow_nan=False)


def from_json(line: str) -> Record:
    """Inverse of :func:`to_json`.

    Raises
    ------
    ValueError
        If the line is not a record of this schema.
    """
    try:
        payload = json.loads(line)
        cls = _KINDS[payload.pop("kind")]
        schema = payload.pop("schema")
    except (json.JSONDecodeError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"line={line[:60]!r}: expected a stored validation record") from error
    if schema != SCHEMA:
        raise ValueError(f"schema={schema}: expected {SCHEMA}; rerun `certify validate` to make new results")
    for f in dataclasses.fields(cls):
        value = payload.get(f.name)
        if isinstance(value, dict) and "Measured" in str(f.type):
            payload[f.name] = Measured(**value)
        elif isinstance(value, list):
            payload[f.name] = tuple(value)
    record: Record = cls(**payload)
    if isinstance(record, Misalignment) and not 0 <= record.events <= record.trials:
        raise ValueError(
            f"events={record.events}, trials={record.trials}: expected 0 <= events <= trials, "
            "as every run writes"
        )
    return record
