"""Sequential certification for a given training mean: collect gradients only until it is settled."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from certify.betting import Capital, smallest_rejected
from certify.finite_sample import as_direction, conditional_game, opposed, projections
from certify.intervals import check_count, check_probability

Float = NDArray[np.float64]

_MEANS: Float = np.logspace(-4.0, 0.0, 81)[:-1]
_SQUARES: Float = np.logspace(-8.0, 0.0, 161)


@dataclass(frozen=True)
class Sequential:
    """Result of :func:`certify_until`: issued, refuted or exhausted, after ``n`` units.

    ``issued``: P(T <= 0 | mu_M) <= target.  ``refuted``: by signs, P(T <= 0 | mu_M) > target; by moments, the
    conditional Cantelli bound exceeds the target.  Whichever is stated is false with probability at most
    ``delta``, although the data decided when to stop.
    """

    state: Literal["issued", "refuted", "exhausted"]
    target: float
    delta: float
    K: int
    n: int
    max_units: int
    method: Literal["signs", "moments"]
    bound: float | None
    events: int | None
    trials: int | None
    unit: str

    @property
    def statement(self) -> str:
        """One sentence with the guarantee and its assumptions."""
        what = f"the mean gradient of K = {self.K} fresh {self.unit}s opposes the given mu_M (T <= 0)"
        if self.state == "issued":
            text = f"the probability that {what} is at most {self.target:g}"
        elif self.state == "refuted" and self.method == "signs":
            text = f"the probability that {what} is above {self.target:g}"
        elif self.state == "refuted":
            text = f"the two-moment bound on the probability that {what} is above {self.target:g}"
        else:
            return (
                f"Undecided after {self.n} {self.unit}s (limit {self.max_units}): neither a bound of "
                f"{self.target:g} nor its opposite is established at error {self.delta:g}."
            )
        grounds = f"units independent of each other, of mu_M and of the model, mu_M fixed ({self.method}"
        grounds += (
            ")" if self.bound is None else f", |mu_M . q| <= {self.bound:g} |mu_M| for every possible unit)"
        )
        return (
            f"With confidence {1 - self.delta:g}, valid at the data-dependent stopping time n = {self.n}: "
            f"{text}; assumed: {grounds}."
        )

    def __str__(self) -> str:
        return f"{self.state} after {self.n} of at most {self.max_units} {self.unit}s. {self.statement}"


def certify_until(
    batches: Iterable[ArrayLike],
    *,
    direction: ArrayLike | None,
    K: int,
    target: float,
    delta: float = 0.05,
    max_units: int,
    bound: float | None = None,
    unit: str = "example",
) -> Sequential:
    r"""Pull batches of gradients until "P(mu_M . g_K <= 0 | mu_M) <= target" is issued, refuted or exhausted.

    .. math:: P(\text{the statement made is false}) \le \delta

    ``batches``: arrays (B, d) of fresh gradients, or of projections (B,) if ``direction`` is None; pulled
    one at a time and only while undecided.

    Parameters
    ----------
    batches : iterable of arrays
        May be a generator that runs the network.
    direction : array (d,) or None
        The given training mean mu_M; None if the batches hold ``mu_M . q`` already.
    K : int
        Size of the test mean.
    target : float
        Bound to be issued, in (0, 1).
    delta : float
        Error probability.
    max_units : int
        Give up after that many units; a batch is cut there.
    bound : float, optional
        With it the game is about moments: ``|mu_M . q| <= bound |mu_M|`` (or ``|x| <= bound`` for
        projections) must hold for every possible unit, and the two-moment bound is certified; every unit
        counts.  Without it the signs of disjoint means of K units are counted: no assumption, about K
        log(1/delta)/target units.
    unit : str
        What one unit is.

    Raises
    ------
    ValueError
        If an argument is out of range, shapes do not match, a gradient is not finite or exceeds the bound.

    Notes
    -----
    Optional stopping is allowed by Ville's inequality; see ``certify.betting``.  Waudby-Smith and Ramdas
    (2023); Howard, Ramdas, McAuliffe, Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence
    sequences", Annals of Statistics 49 (2021).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> stream = (0.5 + rng.uniform(-1, 1, (50, 4)) for _ in range(1000))
    >>> r = certify_until(stream, direction=np.ones(4), K=16, target=0.1, max_units=50_000, bound=3.0)
    >>> r.state, r.n < 1000
    ('issued', True)
    """
    K, max_units = check_count("K", K), check_count("max_units", max_units)
    check_probability("target", target), check_probability("delta", delta)
    if bound is not None and not (math.isfinite(bound) and bound > 0):
        raise ValueError(f"bound={bound!r}: expected a positive finite number")
    v = None if direction is None else as_direction(direction)
    game = _Signs(K, target) if bound is None else _Moments(K, target, bound, delta)
    n = 0
    state: Literal["issued", "refuted", "exhausted"] = "exhausted"
    for batch in batches:
        x = _projections(batch, v, n)[: max_units - n]
        n += x.size
        if x.size:
            game.play(x)
        if game.issued(delta):
            state = "issued"
        elif game.refuted(delta):
            state = "refuted"
        if state != "exhausted" or n >= max_units:
            break
    counted = isinstance(game, _Signs)
    return Sequential(
        state,
        target,
        delta,
        K,
        n,
        max_units,
        "signs" if counted else "moments",
        bound,
        game.events if isinstance(game, _Signs) else None,
        game.trials if isinstance(game, _Signs) else None,
        unit,
    )


def _projections(batch: Any, v: Float | None, seen: int) -> Float:
    if hasattr(batch, "detach"):
        batch = batch.detach().cpu().double().numpy()
    x = np.asarray(batch, dtype=np.float64)
    if v is not None:
        if x.ndim != 2 or x.shape[1] != v.size:
            raise ValueError(f"batch.shape={x.shape}: expected (B, {v.size}), one gradient per row")
        x = projections(x, v)
    elif x.ndim != 1:
        raise ValueError(f"batch.shape={x.shape}: expected projections (B,), or pass direction=mu_M")
    if not np.isfinite(x).all():
        where = seen + int(np.flatnonzero(~np.isfinite(x))[0])
        raise ValueError(f"unit {where} has a gradient that is not finite: drop the unit or mend the loss")
    return x


class _Signs:
    """Events "mean of K projections <= 0" of disjoint groups; units of an unfinished group wait."""

    def __init__(self, K: int, target: float) -> None:
        self.K, self.target = K, target
        self.against, self.favour = Capital(1), Capital(1)
        self.waiting: Float = np.empty(0)
        self.events = self.trials = 0

    def play(self, x: Float) -> None:
        x = np.concatenate([self.waiting, x])
        whole = x.size // self.K * self.K
        self.waiting = x[whole:]
        if not whole:
            return
        groups = x[:whole].reshape(-1, self.K)
        event = opposed(groups).astype(np.float64)
        self.events += int(event.sum())
        self.trials += event.size
        payoff = event[:, None] - self.target
        self.against.bet(payoff, np.array([1 - self.target]))  # plays against "P >= target"
        self.favour.bet(-payoff, np.array([self.target]))  # plays against "P <= target"

    def issued(self, delta: float) -> bool:
        return bool(self.against.rejected(delta)[0])

    def refuted(self, delta: float) -> bool:
        return bool(self.favour.rejected(delta)[0])


class _Moments:
    """The conditional two-moment bound E x^2 <= (1 + K c)(E x)^2, and its refutation by two limits."""

    def __init__(self, K: int, target: float, bound: float, delta: float) -> None:
        self.K, self.bound, self.delta = K, bound, delta
        self.odds = np.array([target / (1 - target)])
        self.against = Capital(1)
        self.mean, self.square = Capital(_MEANS.size), Capital(_SQUARES.size)
        self.total = 0.0

    def play(self, x: Float) -> None:
        conditional_game(x, self.K, self.bound, self.odds, self.against, self.total)
        z = np.clip(x / self.bound, -1.0, 1.0)
        self.total += float(z.sum())
        self.mean.bet(z[:, None] - _MEANS, 1 - _MEANS)  # plays against "E x >= m"
        self.square.bet(_SQUARES - z[:, None] ** 2, _SQUARES)  # plays against "E x^2 <= s"

    def issued(self, delta: float) -> bool:
        return bool(self.against.rejected(delta)[0])

    def refuted(self, delta: float) -> bool:
        top = smallest_rejected(self.mean.rejected(delta / 2))
        bottom = smallest_rejected(self.square.rejected(delta / 2)[::-1])
        if top is None or bottom is None:
            return False
        return bool(_SQUARES[::-1][bottom] > (1 + self.K * self.odds[0]) * _MEANS[top] ** 2)
