"""Where should a network grow?  All insertion points ranked by their certified held-out gain."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import nn

from certify.block_projection import BLOCKS, BlockFactory, Side, run_side
from certify.candidates import candidates
from certify.certification import COPIES, versions
from certify.gains import FEW, Gain, Needed, family_gains
from certify.growth_scores import gradmax_score, tiny_score
from certify.intervals import ConfidenceInterval
from certify.sites import as_names
from certify.sweep import Loss, Progress, Unit

__all__ = ["Point", "Ranking", "where"]

SCHEMA = 1
NORMS = ("parameter", "activation")
SCORES = {
    "gradient": "norm of the mean gradient of this block",
    "gradmax": "GradMax: largest singular value of the mean gradient of a linear map",
    "tiny": "TINY (gromo): part of the wanted change that a linear map can make",
}


@dataclass(frozen=True)
class Point:
    """One place: the gain of a step there, what is decided about it, and what other methods say.

    ``rank`` orders by the lower limit of the gain; ``scores`` and ``score_ranks`` by published plug-in
    scores on the same units (1 is best; see `SCORES`), None where not computed.
    """

    module: str
    rank: int
    gain: Gain
    parameters: int
    gradient_norm: float
    """``|mu_M|``, length of the training gradient along which the step goes."""
    relative: float
    """Relative change of the activation (root mean square) by a step of unit length."""
    scores: Mapping[str, float | None]
    score_ranks: Mapping[str, int | None]

    @property
    def verdict(self) -> str:
        """certified, refuted or undecided."""
        return self.gain.verdict

    @property
    def interval(self) -> ConfidenceInterval:
        """Of the gain; holds together with those of all other points."""
        return self.gain.interval

    @property
    def lower(self) -> float:
        """Certified gain: lower limit."""
        return self.gain.interval.low


@dataclass(frozen=True)
class Ranking:
    """Insertion points in the order of their certified gain, with verdicts that hold together.

    `points` is ordered by rank; ``ranking["layer3.2"]`` finds one by name.  `export` builds the grown model,
    where the ranking was not read from JSON.
    """

    points: tuple[Point, ...]
    block: str
    norm: str
    confidence: float
    tier: str
    method: str
    M: int
    K: int
    unit: str
    agreement: Mapping[str, float | None]
    """Spearman correlation of each score with the lower limits of the gain; None below 3 points."""
    assumptions: tuple[str, ...]
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    made: Any = field(default=None, repr=False, compare=False)
    """Model, blocks and steps, for `export`; None after from_json."""

    def __getitem__(self, module: str) -> Point:
        for point in self.points:
            if point.module == module:
                return point
        raise KeyError(f"{module!r} was not ranked; points are {', '.join(p.module for p in self.points)}")

    @property
    def certified(self) -> tuple[Point, ...]:
        """Points with a gain that is certified, best first."""
        return tuple(p for p in self.points if p.verdict == "certified")

    def export(self, module: str | None = None, *, step: float = 0.0) -> nn.Module:
        """Deep copy of the model with the block at ``module`` as an ordinary residual module.

        With ``step`` = 0 it computes what the old model does, to the bit.  ``step`` > 0 moves the block's
        zero parameters by that much against the training gradient, in the length of this ranking's `norm`:
        per unit of it the held-out loss changes by about -gain.

        Parameters
        ----------
        module
            Default: the first certified point.
        step
            Length of the step.

        Raises
        ------
        ValueError
            If nothing is certified and no module is named, or the ranking came from JSON.
        """
        from certify.intervention import insert

        if self.made is None:
            raise ValueError("this ranking was read from JSON and holds no model; call certify.where again")
        if not isinstance(step, (int, float)) or not math.isfinite(step):
            raise ValueError(f"step={step!r}: expected a finite number, 0 for the unchanged function")
        if module is None:
            if not self.certified:
                raise ValueError("no point is certified; name the module to grow at anyway")
            module = self.certified[0].module
        model, blocks, steps = self.made
        point = self[module]
        if step and not steps[module]:
            raise ValueError(
                f"module={module!r}: its training gradient is zero; there is no direction to step"
            )
        with insert(model, module, blocks[module]) as insertion:
            grown = insertion.export()
        if step:
            length = step / point.relative if self.norm == "activation" else step
            inserted = next(
                m for m in grown.modules() if getattr(m, "name", None) == module and hasattr(m, "block")
            ).block
            with torch.no_grad():
                for name, p in inserted.zero_parameters().items():  # type: ignore[union-attr,operator]
                    p.copy_(-length * steps[module][name].to(p.device, p.dtype))
        return grown

    def __str__(self) -> str:
        from certify.ranking_text import plain

        return plain(self)

    def __rich__(self) -> Any:
        from certify.ranking_text import rich_table

        return rich_table(self)

    def _repr_html_(self) -> str:
        from certify.ranking_text import html

        return html(self)

    def to_json(self, indent: int | None = None) -> str:
        """JSON text without NaN or infinity."""
        payload: dict[str, Any] = {"kind": "ranking", "schema": SCHEMA}
        for f in dataclasses.fields(self):
            if f.name == "made":
                continue
            value = getattr(self, f.name)
            if f.name == "points":
                value = [_point_payload(p) for p in value]
            payload[f.name] = dict(value) if isinstance(value, Mapping) else value
        return json.dumps(payload, allow_nan=False, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Ranking:
        """Inverse of :meth:`to_json`, without the model.

        Raises
        ------
        ValueError
            If the text is not a stored ranking of this schema.
        """
        try:
            payload = json.loads(text)
            kind, schema = payload.pop("kind"), payload.pop("schema")
        except (json.JSONDecodeError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"text={text[:60]!r}: expected a stored ranking") from error
        if kind != "ranking" or schema != SCHEMA:
            raise ValueError(f"kind={kind!r}, schema={schema!r}: expected a ranking of schema {SCHEMA}")
        try:
            payload["points"] = tuple(_point_of(p) for p in payload["points"])
            for name in ("assumptions", "notes"):
                payload[name] = tuple(payload[name])
            return cls(**payload)
        except (KeyError, TypeError) as error:
            raise ValueError(f"text={text[:60]!r}: incomplete ranking ({error})") from error


def _point_payload(p: Point) -> dict[str, Any]:
    found = {f.name: getattr(p, f.name) for f in dataclasses.fields(p)}
    gain = {f.name: getattr(p.gain, f.name) for f in dataclasses.fields(p.gain)}
    gain["interval"] = p.gain.interval.to_dict()
    gain["needed"] = None if p.gain.needed is None else dataclasses.asdict(p.gain.needed)
    return {
        **found,
        "gain": gain,
        "relative": p.relative if math.isfinite(p.relative) else None,
        "scores": dict(p.scores),
        "score_ranks": dict(p.score_ranks),
    }


def _point_of(payload: dict[str, Any]) -> Point:
    gain = payload["gain"]
    gain["interval"] = ConfidenceInterval.from_dict(gain["interval"])
    gain["needed"] = None if gain["needed"] is None else Needed(**gain["needed"])
    relative = math.inf if payload["relative"] is None else payload["relative"]
    return Point(**{**payload, "gain": Gain(**gain), "relative": relative})


def where(
    model: nn.Module,
    loss: Loss,
    train: Iterable[Any],
    test: Iterable[Any],
    *,
    at: str | Iterable[str] | None = None,
    block: str | BlockFactory = "shift",
    confidence: float = 0.95,
    norm: str = "parameter",
    tier: str = "asymptotic",
    method: str = "bootstrap",
    bound: float | Mapping[str, float] | None = None,
    unit: Unit = "example",
    train_units: int | None = None,
    test_units: int | None = None,
    channel_axis: int | None = None,
    rank: int = 4,
    power: float = 0.8,
    resamples: int = 9999,
    seed: int = 0,
    scores: bool = True,
    checks: bool = True,
    progress: Progress | None = None,
    device: torch.device | str | None = None,
) -> Ranking:
    r"""Rank insertion points by the certified first-order gain of a step on held-out units.

    .. math::
        \text{gain} = E\,\langle \mu_M, q\rangle / |\mu_M|

    where mu_M is the mean gradient of the block's zero parameters over M training units, and q that of one
    fresh held-out unit: the decrease of the held-out loss per unit length of the step ``-mu_M/|mu_M|``, to
    first order.  mu_M is held fixed, so the M units may be the network's own training data; the K held-out
    units must be independent of the network and of mu_M.  All verdicts together are true with probability
    ``confidence``.

    Parameters
    ----------
    model, loss
        As in `certify.collect`.
    train, test
        Iterables of batches of the M and of the K units; no example may be in both.
    at
        Module names; default: the repeated blocks of the model, see `certify.candidates.candidates`.
    block
        "shift" (a constant per channel), "full" (a constant per entry), "linear", "lowrank", "mlp", "copy",
        or a callable that gets a `certify.block_projection.Place` and returns a block; see `certify.blocks`.
    confidence
        Of all verdicts together (Holm), and of all intervals together (Bonferroni).
    norm
        "parameter": gain per unit length of the block's parameters.  "activation": per relative change of the
        activation, both as root mean squares; comparable between places of different scale.
    tier, method, bound, power, resamples
        As in `certify.gains.family_gains`; ``bound`` is in the length of the parameters.
    unit, channel_axis, checks, progress, device
        As in `certify.collect`; the checks also compare the examples of both sides.
    train_units, test_units
        Stop after as many units.
    rank
        Of block="lowrank".
    seed
        Of blocks with random parts, and of the bootstrap.
    scores
        Whether to compute the scores of GradMax and TINY on the same M + K units.

    Raises
    ------
    ValueError, TypeError
        For bad arguments, and where more than a few held-out examples are training examples.
    CertifyError
        As in `certify.collect`.

    Notes
    -----
    Paper 1, direct residual interventions: a step -alpha mu_M changes the held-out loss by -alpha T.

    Examples
    --------
    >>> import certify
    >>> generator = torch.Generator().manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> x = torch.randn(200, 3, generator=generator)
    >>> data = [(x[i : i + 50], 3 + x[i : i + 50, :1]) for i in range(0, 200, 50)]
    >>> found = certify.where(model, certify.losses.regression, data[:2], data[2:])
    >>> [p.verdict for p in found.points], found.M, found.K
    (['certified', 'certified'], 100, 100)
    """
    if norm not in NORMS:
        raise ValueError(f"norm={norm!r}: expected 'parameter' or 'activation'")
    if not callable(block) and block not in BLOCKS:
        raise ValueError(
            f"block={block!r}: expected one of {', '.join(BLOCKS)}, or a callable(place) -> block"
        )
    if train is test:
        raise ValueError("train and test are the same object; expected disjoint, independent units")
    names = candidates(model) if at is None else as_names(at)
    _check_statistics(names, confidence, tier, method, bound, power, resamples, seed)
    options: dict[str, Any] = {
        "block": block,
        "unit": unit,
        "channel_axis": channel_axis,
        "seed": seed,
        "rank": rank,
        "moments": scores,
        "checks": checks,
        "progress": progress,
        "device": device,
    }
    first = run_side(model, loss, train, names, max_units=train_units, **options)
    norms, steps = {}, {}
    for name in names:
        mean = first.means[name]
        norms[name] = math.sqrt(sum(float((v**2).sum()) for v in mean.values()))
        steps[name] = {k: v / norms[name] for k, v in mean.items()} if norms[name] > 0 else {}
    second = run_side(
        model, loss, test, names, steps=steps, made=first.blocks, max_units=test_units, **options
    )
    notes = _overlap(first, second) if checks else []
    if second.units < FEW:
        notes.append(
            f"K = {second.units}: below about {FEW} units the asymptotic tier is not to be relied on"
        )
    alive = [name for name in names if steps[name]]
    unit_name = unit if isinstance(unit, str) else getattr(unit, "__name__", type(unit).__name__)
    gains: dict[str, Gain] = {}
    if alive:
        gains = _gains(
            {n: second.projections[n] for n in alive},
            {n: 1 / second.relative[n] if norm == "activation" else 1.0 for n in alive},
            confidence=confidence,
            tier=tier,
            method=method,
            bound=bound,
            power=power,
            resamples=resamples,
            rng=seed,
            unit=unit_name,
        )
    for name in names:
        if name not in gains:
            gains[name] = _dead(confidence, second.units, unit_name)
    found = _points(names, gains, norms, first, second, scores)
    first_gain = next(iter(gains.values()))
    return Ranking(
        points=found,
        block=block if isinstance(block, str) else getattr(block, "__name__", type(block).__name__),
        norm=norm,
        confidence=confidence,
        tier=tier,
        method=first_gain.interval.method,
        M=first.units,
        K=second.units,
        unit=unit_name,
        agreement=_agreement(found),
        assumptions=(
            *first_gain.interval.assumptions,
            "first order: the gain of an infinitely short step",
            *(
                ["relative change of the activation as measured, taken as exact"]
                if norm == "activation"
                else []
            ),
        ),
        notes=tuple(notes),
        versions=versions(),
        made=(model, first.blocks, steps),
    )


def _check_statistics(
    names: tuple[str, ...],
    confidence: float,
    tier: str,
    method: str,
    bound: Any,
    power: float,
    resamples: int,
    seed: int,
) -> None:
    """Refuse what the statistics would refuse, before the network runs."""
    family_gains(
        dict.fromkeys(names, np.array([0.0, 0.1])),
        confidence=confidence,
        tier=tier,
        method=method,
        bound=None
        if bound is None
        else (1.0 if isinstance(bound, Mapping) else max(bound, 0.1 * (bound > 0))),
        power=power,
        resamples=resamples,
        rng=seed,
    )


def _gains(projections: dict[str, np.ndarray], scale: dict[str, float], **options: Any) -> dict[str, Gain]:
    """Gains in the wanted norm: signs and p-values do not depend on it."""
    found = family_gains(projections, **options)
    out = {}
    for name, gain in found.items():
        ci, c = gain.interval, scale[name]
        assert ci.estimate is not None
        scaled = dataclasses.replace(ci, estimate=c * ci.estimate, low=c * ci.low, high=c * ci.high)
        out[name] = dataclasses.replace(gain, interval=scaled)
    return out


def _dead(confidence: float, n: int, unit: str) -> Gain:
    nothing = ConfidenceInterval(None, -math.inf, math.inf, confidence, "none", n, unit)
    return Gain(nothing, 1.0, 1.0, "undecided", "the training gradient is zero: no direction to step", None)


def _overlap(first: Side, second: Side) -> list[str]:
    """Refuse held-out examples that are training examples; a few equal ones are noted."""
    if first.contents is None or second.contents is None:
        return ["batches cannot be cut into examples: whether train and test are disjoint was not checked"]
    shared = len(first.contents & second.contents)
    if shared > COPIES * len(second.contents):
        raise ValueError(
            f"{shared} of the {len(second.contents)} held-out examples are also training examples here; "
            "expected disjoint units: gains on the units that chose the step are certified too easily"
        )
    return [f"{shared} held-out examples equal training examples"] if shared else []


def _points(
    names: tuple[str, ...],
    gains: dict[str, Gain],
    norms: dict[str, float],
    first: Side,
    second: Side,
    scores: bool,
) -> tuple[Point, ...]:
    n = first.examples + second.examples
    found: dict[str, dict[str, float | None]] = {}
    for name in names:
        found[name] = {"gradient": norms[name], "gradmax": None, "tiny": None}
        if scores and name in first.moments and name in second.moments:
            S, G = (a + b for a, b in zip(first.moments[name], second.moments[name], strict=True))
            found[name]["gradmax"] = gradmax_score(G / n)
            found[name]["tiny"] = tiny_score(S / n, -G.T / n)
    ranks: dict[str, dict[str, int | None]] = {name: {} for name in names}
    for key in SCORES:
        known = sorted((-v, name) for name in names if (v := found[name][key]) is not None)
        places = {name: i + 1 for i, (_, name) in enumerate(known)}
        for name in names:
            ranks[name][key] = places.get(name)
    # Ties (no limit) fall back to the estimate.
    order = sorted(
        names, key=lambda s: (-gains[s].interval.low, -(gains[s].interval.estimate or 0.0), names.index(s))
    )
    return tuple(
        Point(
            name,
            i + 1,
            gains[name],
            sum(v.numel() for v in first.means[name].values()),
            norms[name],
            second.relative.get(name, math.inf),
            found[name],
            ranks[name],
        )
        for i, name in enumerate(order)
    )


def _agreement(points: tuple[Point, ...]) -> dict[str, float | None]:
    out: dict[str, float | None] = {}
    for key in SCORES:
        pairs = [(p.rank, r) for p in points if (r := p.score_ranks[key]) is not None]
        if len(pairs) < 3:
            out[key] = None
            continue
        a, b = (list(x) for x in zip(*pairs, strict=True))
        out[key] = float(stats.spearmanr(a, b).statistic)
    return out
