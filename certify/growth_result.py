"""What is known about growing a network by one block: guarantees, their constants, and the measurement."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

from certify.growth_terms import Constant
from certify.intervals import ConfidenceInterval
from theory.expansion import Event, Guarantee

SCHEMA = 1


@dataclass(frozen=True)
class Route:
    """One guarantee of the papers, evaluated by `theory.expansion`, and how far it is from saying something.

    Attributes
    ----------
    name : "A", "B" or "theorem 2".
    guarantee : what `theory.expansion` returned, or None with the reason in ``reason``.
    rests_on_estimates : some constant is only estimated, so that the probability is not guaranteed.
    gain, cost : the guaranteed change is cost - gain; the cost falls like 1/sqrt(sample size).
    M_needed, K_needed : sample sizes at which the change would be negative, by the formulas and with the same
        gain; infinite where there is no gain, None where the route does not depend on that size.
    """

    name: str
    guarantee: Guarantee | None
    reason: str
    rests_on_estimates: bool
    gain: float
    cost: float
    M_needed: float | None
    K_needed: float | None

    @property
    def improves(self) -> bool:
        """Whether a lower test risk is guaranteed, with some probability and given the constants."""
        return self.guarantee is not None and self.guarantee.improves

    @property
    def vacuous(self) -> bool:
        """Whether nothing is said."""
        return self.guarantee is None or self.guarantee.vacuous

    @property
    def factor(self) -> float:
        """Cost over gain: below 1 the route guarantees an improvement; infinite where there is no gain."""
        return self.cost / self.gain if self.gain > 0 else math.inf

    @property
    def verdict(self) -> str:
        """In words."""
        if self.vacuous:
            return "vacuous"
        return "improvement" if self.improves else "no improvement shown"


@dataclass(frozen=True)
class Expansion:
    """Guarantees for a block and what it really did, on one page.

    Gains are losses of the old model minus losses of the other one: positive is better.  Changes of
    guarantees are new minus old: negative is better, as in the papers.

    Attributes
    ----------
    at, block, parameters : where, what, and how many parameters.
    loss : name of the loss; with a clip everything is about the clipped loss.
    M, K, n_fresh, unit : sizes of the three disjoint samples, in units.
    step, step_chosen : the jumpboard is the block at -step times the train gradient; how the step was chosen.
    gradient_norm : norm of the mean train gradient at the zero block.
    radius, jumpboard_norm, new_norm : ball of the class, and distances of both models from its centre.
    train_risks, test_risks, fresh_risks : mean losses of (old, jumpboard, new).
    delta_train, delta_test : paired gains of the jumpboard; that on train is optimistic.
    gain_erm : train risk of the jumpboard minus that of the new model, at least 0 by the fallback rule.
    fallback : training ended above the jumpboard on train, which was therefore kept.
    trained_train_risk : train risk that training reached, before the fallback rule.
    fresh_jumpboard, fresh_new, fresh_over_jumpboard : paired gains on fresh units: jumpboard over old, new
        over old, new over jumpboard.
    fresh_new_bounded : the gain of the new model with an interval valid at every n, given the range.
    constants : every constant with its status.
    routes : A, B and theorem 2.
    training, notes, assumptions : how the block was trained; remarks; what all of it rests on.

    Examples
    --------
    >>> import torch, certify
    >>> from certify.blocks import ChannelShift
    >>> model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Identity()).eval()
    >>> _ = [p.data.zero_() for p in model.parameters()]
    >>> g = torch.Generator().manual_seed(0)
    >>> samples = [[(torch.randn(50, 1, generator=g), torch.rand(50, 1, generator=g))] for _ in range(3)]
    >>> result = certify.expansion(model, certify.losses.regression, *samples[:2], fresh=samples[2],
    ...     at="0", block=ChannelShift(1), loss_range=1.0, steps=20)
    >>> result.decision, Expansion.from_json(result.to_json()) == result
    ('insert', True)
    """

    at: str
    block: str
    parameters: int
    loss: str
    clip: float | None
    loss_range: float
    M: int
    K: int
    n_fresh: int
    unit: str
    confidence: float
    delta: float
    step: float
    step_chosen: str
    gradient_norm: float
    radius: float
    jumpboard_norm: float
    new_norm: float
    train_risks: tuple[float, float, float]
    test_risks: tuple[float, float, float]
    fresh_risks: tuple[float, float, float]
    delta_train: ConfidenceInterval
    delta_test: ConfidenceInterval
    gain_erm: float
    fallback: bool
    trained_train_risk: float
    fresh_jumpboard: ConfidenceInterval
    fresh_new: ConfidenceInterval
    fresh_over_jumpboard: ConfidenceInterval
    fresh_new_bounded: ConfidenceInterval
    constants: tuple[Constant, ...]
    routes: tuple[Route, ...]
    training: str
    assumptions: tuple[str, ...]
    notes: tuple[str, ...] = ()
    seed: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    grown: Any = field(default=None, repr=False, compare=False)
    """The block of the new model; not stored in JSON."""
    jumpboard: Any = field(default=None, repr=False, compare=False)
    """The block of the jumpboard model; not stored in JSON."""

    @property
    def decision(self) -> str:
        """insert, do not insert or undecided: by the interval of the gain of the new model on fresh units."""
        if self.fresh_new.low > 0:
            return "insert"
        return "do not insert" if self.fresh_new.high < 0 else "undecided"

    @property
    def guaranteed(self) -> bool:
        """Whether some route guarantees an improvement without resting on an estimated constant."""
        return any(r.improves and not r.rests_on_estimates for r in self.routes)

    def route(self, name: str) -> Route:
        """The route with that name.

        Raises
        ------
        ValueError
            If there is none.
        """
        for r in self.routes:
            if r.name == name:
                return r
        raise ValueError(f"name={name!r}: expected one of {', '.join(repr(r.name) for r in self.routes)}")

    def constant(self, name: str) -> Constant:
        """The constant with that name.

        Raises
        ------
        ValueError
            If there is none.
        """
        for c in self.constants:
            if c.name == name:
                return c
        raise ValueError(f"name={name!r}: expected one of {', '.join(repr(c.name) for c in self.constants)}")

    def export(self, model: Any) -> Any:
        """Deep copy of ``model`` with the trained block in it as an ordinary module.

        Raises
        ------
        ValueError
            If this result was read from JSON, which holds no weights.
        """
        if self.grown is None:
            raise ValueError(
                "this result holds no block (it was read from JSON): run certify.expansion again"
            )
        from certify.intervention import insert

        with insert(model, self.at, self.grown) as insertion:
            return insertion.export()

    def explain(self) -> str:
        """Paragraphs: what was measured, what is guaranteed, and what every constant rests on."""
        from certify.growth_text import explain

        return explain(self)

    def __str__(self) -> str:
        from certify.growth_text import plain

        return plain(self)

    def __rich__(self) -> Any:
        from certify.growth_text import rich_panel

        return rich_panel(self)

    def _repr_html_(self) -> str:
        from certify.growth_text import html

        return html(self)

    def to_json(self, indent: int | None = None) -> str:
        """JSON text without NaN; infinite numbers are the text "inf".  Blocks are not stored."""
        payload: dict[str, Any] = {"kind": "expansion", "schema": SCHEMA, "decision": self.decision}
        for f in dataclasses.fields(self):
            if f.name not in ("grown", "jumpboard"):
                payload[f.name] = _plain(getattr(self, f.name))
        return json.dumps(payload, allow_nan=False, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Expansion:
        """Inverse of :meth:`to_json`.

        Raises
        ------
        ValueError
            If the text is not a stored expansion of this schema.
        """
        try:
            payload = json.loads(text)
            kind, schema = payload.pop("kind"), payload.pop("schema")
        except (json.JSONDecodeError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"text={text[:60]!r}: expected a stored expansion") from error
        if kind != "expansion" or schema != SCHEMA:
            raise ValueError(f"kind={kind!r}, schema={schema!r}: expected an expansion of schema {SCHEMA}")
        try:
            payload.pop("decision")
            for name in _INTERVALS:
                payload[name] = ConfidenceInterval.from_dict(payload[name])
            for name in ("train_risks", "test_risks", "fresh_risks", "assumptions", "notes"):
                payload[name] = tuple(payload[name])
            payload["constants"] = tuple(_constant(c) for c in payload["constants"])
            payload["routes"] = tuple(_route(r) for r in payload["routes"])
            return cls(**payload)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"text={text[:60]!r}: a stored expansion with a part missing ({error})"
            ) from error


_INTERVALS = (
    "delta_train",
    "delta_test",
    "fresh_jumpboard",
    "fresh_new",
    "fresh_over_jumpboard",
    "fresh_new_bounded",
)


def _plain(value: Any) -> Any:
    if isinstance(value, ConfidenceInterval):
        return value.to_dict()
    if isinstance(value, Guarantee):
        return _plain({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    return value


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


def _constant(payload: dict[str, Any]) -> Constant:
    interval = payload["interval"]
    return Constant(
        payload["name"],
        _number(payload["value"]),
        payload["status"],
        payload["how"],
        None if interval is None else ConfidenceInterval.from_dict(interval),
    )


def _route(payload: dict[str, Any]) -> Route:
    stored = dict(payload)
    g = stored["guarantee"]
    if g is not None:
        stored["guarantee"] = Guarantee(
            route=g["route"],
            change=_number(g["change"]),
            events=tuple(Event(**e) for e in g["events"]),
            conditions=tuple(g["conditions"]),
            inputs={k: _number(v) for k, v in g["inputs"].items()},
            loss_range=g["loss_range"],
        )
    for name in ("gain", "cost", "M_needed", "K_needed"):
        stored[name] = _number(stored[name])
    return Route(**stored)
