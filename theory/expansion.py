"""Test risk after inserting a block: jumpboards, routes A and B, and the direct train-test theorem.

The available accounts of the papers give the inequalities and the words "with high probability".  Here each
statement lists the events it intersects, what each may fail with, and the union bound over them.  Left unsaid
in those accounts and therefore made explicit as arguments:

* the range ``loss_range`` of a bounded loss, without which Hoeffding's inequality says nothing;
* that the test sample is independent of the training sample and of everything selected with it;
* which class ``eps_M`` is uniform over (it must contain the selected model and the jumpboard), and with which
  probability ``delta_M``; the same for ``eps_K`` on the test sample;
* that positive alignment alone bounds the test margin by nothing more than zero to first order, so that a
  quantified version needs a slack, a step and a curvature bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from theory.depth import (
    DeepestRegime,
    PowerLaw,
    certified_depth,
    deepest_regime,
    derive_exponential_decay,
    derive_power_law,
    remaining_gain,
    required_d_align,
)
from theory.jumpboards import Jumpboard, jumpboard
from theory.transfer import (
    check_at_least_zero,
    check_number,
    check_positive,
    check_probability,
    check_sample_size,
    check_share,
    hoeffding_failure,
    hoeffding_sample_size,
    pointwise_gap,
    uniform_gap,
)

__all__ = [
    "DeepestRegime",
    "Event",
    "Guarantee",
    "Jumpboard",
    "PowerLaw",
    "certified_depth",
    "deepest_regime",
    "derive_exponential_decay",
    "derive_power_law",
    "hoeffding_failure",
    "hoeffding_sample_size",
    "jumpboard",
    "pointwise_gap",
    "remaining_gain",
    "required_d_align",
    "route_A",
    "route_B",
    "theorem_2",
    "theorems",
    "uniform_gap",
]


class _HasMoments(Protocol):
    @property
    def m2(self) -> Any: ...

    @property
    def a(self) -> Any: ...

    @property
    def t(self) -> Any: ...


# ----------------------------------------------------------------------------------------------------
# Guarantees


@dataclass(frozen=True)
class Event:
    """An event that the guarantee needs, and an upper bound on the probability that it fails.

    ``P(event fails) <= failure``.

    Domain: 0 <= failure; a value >= 1 says nothing.

    Notes
    -----
    Source: paper 2, the events of theorems 1 to 3; see docs/expansion.md.

    Examples
    --------
    >>> Event("G_M", "the gap on the training sample is small", 0.05).failure
    0.05
    """

    name: str
    statement: str
    failure: float


@dataclass(frozen=True)
class Guarantee:
    """``L_test(new) - L_test(old) <= change`` on the intersection of the events.

    Parameters
    ----------
    route
        "A", "B" or "theorem 2".
    change
        Guaranteed upper bound on the change of the test risk; negative means strict improvement.
    events
        Intersected events; their failure probabilities add up (union bound, no independence needed).
    conditions
        What is assumed to hold surely.
    inputs
        The arguments by name.
    loss_range
        B, or None for a loss without known range.

    Notes
    -----
    Source: papers 1 and 2; the union bound (Boole) for the probability, see docs/expansion.md.

    Examples
    --------
    >>> events = Event("one", "holds", 0.03), Event("two", "holds", 0.07)
    >>> result = Guarantee("B", change=-0.1, events=events, conditions=(), inputs={})
    >>> round(result.failure, 9), round(result.probability, 9), result.improves, result.vacuous
    (0.1, 0.9, True, False)
    """

    route: str
    change: float
    events: tuple[Event, ...]
    conditions: tuple[str, ...]
    inputs: Mapping[str, float] = field(hash=False)
    loss_range: float | None = None

    @property
    def failure(self) -> float:
        """Sum of the failure probabilities, not capped at 1."""
        return sum(event.failure for event in self.events)

    @property
    def probability(self) -> float:
        """Lower bound on the probability of the inequality; at or below 0 it says nothing."""
        return 1 - self.failure

    @property
    def vacuous(self) -> bool:
        """Nothing is claimed: no positive probability, or a change that no bounded loss can exceed."""
        return self.probability <= 0 or (self.loss_range is not None and self.change >= self.loss_range)

    @property
    def improves(self) -> bool:
        """Strict improvement of the test risk is guaranteed with positive probability."""
        return self.change < 0 and self.probability > 0

    def __str__(self) -> str:
        verdict = (
            "VACUOUS" if self.vacuous else "strict improvement" if self.improves else "no improvement shown"
        )
        lines = [
            f"route {self.route}: L_test(new) <= L_test(old) {self.change:+.6g} "
            f"with probability >= {self.probability:.6g} ({verdict})"
        ]
        lines += [f"  event {e.name} (fails with <= {e.failure:.6g}): {e.statement}" for e in self.events]
        lines += [f"  assumes {condition}" for condition in self.conditions]
        return "\n".join(lines)


_SELECTION = "selection: L_train(new) <= L_train(jumpboard) - Delta_ERM"
_TRAIN_EVENT = "|L_train - L_pop| <= eps_M for every model of the expanded class"


def route_A(
    *,
    margin: float,
    gain_erm: float,
    eps_M: float,
    delta_M: float,
    K: int,
    loss_range: float = 1.0,
    share: float = 0.5,
) -> Guarantee:
    """Route A, through the population risk.

    ``L_test(new) <= L_test(old) - (1 - share) Delta_R - Delta_ERM + 2 eps_M`` (share 1/2 in paper 2)

    with probability at least ``1 - delta_M - exp(-share^2 K Delta_R^2 / (2 B^2))``: on the first event
    ``L_pop(new) <= L_pop(old) - Delta_R - Delta_ERM + 2 eps_M`` (theorem 1 of paper 2); given the training
    sample the pair (new, old) is fixed, and Hoeffding's inequality on the test sample costs
    ``share * Delta_R``.

    Parameters
    ----------
    margin
        Delta_R = L_pop(old) - L_pop(population jumpboard), at least 0.
    gain_erm
        Delta_ERM = L_train(jumpboard) - L_train(new), at least 0.
    eps_M, delta_M
        Uniform generalisation gap on the training sample and its failure probability.
    K
        Test sample size.
    loss_range
        B: losses lie in an interval of this length.
    share
        Share of the margin spent on the transfer to the test sample, in (0, 1].

    Raises
    ------
    ValueError
        Arguments outside these ranges.

    Notes
    -----
    Source: paper 2, theorems 1 and 2; the probability is ours.

    Examples
    --------
    >>> result = route_A(margin=0.1, gain_erm=0.0, eps_M=0.01, delta_M=0.05, K=4000)
    >>> round(result.change, 6), round(result.probability, 6), result.improves
    (-0.03, 0.943262, True)
    """
    check_at_least_zero("gain_erm", gain_erm)
    check_at_least_zero("eps_M", eps_M)
    check_probability("delta_M", delta_M)
    failure = hoeffding_failure(margin, K, loss_range=loss_range, share=share)
    return Guarantee(
        route="A",
        change=-(1 - share) * margin - gain_erm + 2 * eps_M,
        events=(
            Event("G_M", _TRAIN_EVENT, delta_M),
            Event(
                "H_K",
                "the test sample's margin of new over old is at most share * Delta_R below the population's",
                failure,
            ),
        ),
        conditions=(
            _SELECTION,
            "the test sample is independent of the training sample",
            "losses lie in an interval of length loss_range",
            "the population jumpboard belongs to the expanded class",
        ),
        inputs={
            "margin": margin,
            "gain_erm": gain_erm,
            "eps_M": eps_M,
            "delta_M": delta_M,
            "K": K,
            "loss_range": loss_range,
            "share": share,
        },
        loss_range=loss_range,
    )


def route_B(
    *,
    test_margin: float,
    gain_erm: float,
    eps_M: float,
    delta_M: float,
    eps_K: float,
    delta_K: float,
    loss_range: float | None = None,
) -> Guarantee:
    """Route B, directly between training and test sample.

    ``L_test(new) <= L_test(old) - Delta_test - Delta_ERM + 2 (eps_M + eps_K)``

    with probability at least ``1 - delta_M - delta_K``.  ``Delta_test`` is random; the inequality holds for
    the margin that occurred, and may hold with a negative one.

    Parameters
    ----------
    test_margin
        Delta_test = L_test(old) - L_test(training jumpboard), any sign.
    gain_erm
        Delta_ERM = L_train(training jumpboard) - L_train(new), at least 0.
    eps_M, delta_M
        Uniform generalisation gap on the training sample and its failure probability.
    eps_K, delta_K
        Gap on the test sample and its failure probability; `pointwise_gap` suffices.
    loss_range
        B if the loss is bounded; only used to recognise a vacuous result.

    Raises
    ------
    ValueError
        Arguments outside these ranges.

    Notes
    -----
    Source: paper 2, theorem 3; the probability is ours.

    Examples
    --------
    >>> result = route_B(test_margin=0.05, gain_erm=0.02, eps_M=0.01, delta_M=0.05, eps_K=0.005, delta_K=0.05)
    >>> round(result.change, 6), round(result.probability, 6)
    (-0.04, 0.9)
    """
    check_number("test_margin", test_margin)
    for name, value in (("gain_erm", gain_erm), ("eps_M", eps_M), ("eps_K", eps_K)):
        check_at_least_zero(name, value)
    for name, value in (("delta_M", delta_M), ("delta_K", delta_K)):
        check_probability(name, value)
    if loss_range is not None:
        check_positive("loss_range", loss_range)
    return Guarantee(
        route="B",
        change=-test_margin - gain_erm + 2 * (eps_M + eps_K),
        events=_gap_events(delta_M, delta_K),
        conditions=(
            _SELECTION,
            "the training jumpboard belongs to the expanded class",
            "the test sample is independent of the training sample, or eps_K is uniform over the class",
        ),
        inputs={
            "test_margin": test_margin,
            "gain_erm": gain_erm,
            "eps_M": eps_M,
            "delta_M": delta_M,
            "eps_K": eps_K,
            "delta_K": delta_K,
        },
        loss_range=loss_range,
    )


def _gap_events(delta_M: float, delta_K: float) -> tuple[Event, Event]:
    compared = "L_test(new) - L_test(jumpboard) exceeds L_pop(new) - L_pop(jumpboard) by at most 2 eps_K"
    return Event("G_M", _TRAIN_EVENT, delta_M), Event("G_K", compared, delta_K)


def theorem_2(
    moments: _HasMoments,
    M: int,
    K: int,
    *,
    step: float,
    curvature: float,
    norm_sq: float,
    gain_erm: float,
    eps_M: float,
    delta_M: float,
    eps_K: float,
    delta_K: float,
    slack: float = 1.0,
    bound: Literal["exact", "align"] = "align",
    loss_range: float | None = None,
) -> Guarantee:
    """Direct train-test expansion: alignment certificate and route B together.

    On the event ``T > (1 - slack) m2`` a step along ``-mu_M`` has the test margin
    ``Delta_test >= step (1 - slack) m2 - curvature step^2 |mu_M|^2 / 2``; then route B applies:
    ``L_test(new) <= L_test(old) - Delta_test - Delta_ERM + 2 (eps_M + eps_K)``

    with probability at least ``1 - B(slack) - delta_M - delta_K`` where ``B(slack) = V / (V + slack^2 m2^2)``
    ("exact", V = Var T) or ``1 / (1 + slack^2 n_eff d_align)`` ("align").  ``slack = 1`` is the papers' event
    T > 0 with the papers' probability; it bounds the margin by a second-order loss only, so that a guaranteed
    strict improvement needs either ``slack < 1`` or an optimisation gain above the statistical cost.

    Parameters
    ----------
    moments
        Object with ``m2``, ``a``, ``t`` (for instance `theory.Moments`).
    M, K
        Train and test sample sizes.
    step
        Step size along ``-mu_M``, at least 0.
    curvature
        Bound on the second derivative of the test risk along unit directions, over the step.
    norm_sq
        ``|mu_M|^2`` as observed, or an upper bound.
    gain_erm, eps_M, delta_M, eps_K, delta_K, loss_range
        As in `route_B`.
    slack
        Share of the mean alignment given up, in (0, 1].
    bound
        Which certificate.

    Raises
    ------
    ValueError
        Arguments outside these ranges.

    Notes
    -----
    Source: paper 1, theorem 2; the quantified margin and the probability are ours.  The three events need not
    be independent of each other.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> law = SimpleNamespace(m2=1.0, a=0.5, t=2.0)
    >>> result = theorem_2(law, 1000, 1000, step=0.1, curvature=1.0, norm_sq=1.1, gain_erm=0.0,
    ...     eps_M=0.005, delta_M=0.01, eps_K=0.005, delta_K=0.01, slack=0.5, bound="exact")
    >>> round(result.change, 6), round(result.probability, 4)
    (-0.0245, 0.976)
    """
    for name, value in (("m2", moments.m2), ("a", moments.a), ("t", moments.t)):
        check_at_least_zero(name, value)
    for name, value in (("step", step), ("curvature", curvature), ("norm_sq", norm_sq)):
        check_at_least_zero(name, value)
    check_sample_size("M", M)
    check_sample_size("K", K)
    check_share(slack, "slack")
    if bound not in ("exact", "align"):
        raise ValueError(f"bound={bound!r}: expected 'exact' or 'align'")
    signal = slack * moments.m2
    if bound == "exact":
        spread = ((M + K) * moments.a + moments.t) / (M * K)
    else:
        spread = max(moments.a, moments.t) * (M + K + 1) / (M * K)
    # Cleared of the division by d_align; without any signal T > 0 is not certified at all.
    misaligned = 1.0 if signal == 0 else spread / (spread + signal**2)
    margin = step * (1 - slack) * moments.m2 - curvature * step**2 * norm_sq / 2
    direct = route_B(
        test_margin=margin,
        gain_erm=gain_erm,
        eps_M=eps_M,
        delta_M=delta_M,
        eps_K=eps_K,
        delta_K=delta_K,
        loss_range=loss_range,
    )
    aligned = Event("A", "T = mu_M . g_K > (1 - slack) m2", misaligned)
    return Guarantee(
        route="theorem 2",
        change=direct.change,
        events=(aligned, *direct.events),
        conditions=(
            *direct.conditions,
            "units are independent of each other and of the trained model",
            "the jumpboard is the step along -mu_M",
            "the second derivative of the test risk along the step is at most curvature",
        ),
        inputs={
            **direct.inputs,
            "m2": moments.m2,
            "a": moments.a,
            "t": moments.t,
            "M": M,
            "K": K,
            "step": step,
            "curvature": curvature,
            "norm_sq": norm_sq,
            "slack": slack,
        },
        loss_range=loss_range,
    )


def theorems() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Deterministic cores of the statements as implications between polynomial inequalities.

    Each is ``hypotheses >= 0 imply conclusion >= 0`` in named real symbols, such as
    ``L_test_new <= L_test_old - Delta_R / 2 - Delta_ERM + 2 eps_M``.

    Domain: no arguments; all real values of the symbols.

    Returns
    -------
    tuple
        True implications and false variants, each a tuple of `theory.proofs.Implication` in named symbols
        (``L_test_new``, ``Delta_R``, ``eps_M``, ...), ready for `theory.proofs.prove`.

    Notes
    -----
    Source: papers 1 and 2; the probabilistic parts are the events named in the hypotheses.

    Examples
    --------
    >>> true, false = theorems()
    >>> [t.name for t in true][:2]
    ['jumpboard-gain', 'jumpboard-strict']
    """
    from theory.expansion_theorems import FALSE_VARIANTS, THEOREMS

    return THEOREMS, FALSE_VARIANTS
