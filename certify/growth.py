"""Is it worth inserting this block? The guarantees, every constant named, beside the measurement."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from certify.growth_result import Expansion
from certify.growth_routes import (
    SLACK,
    Facts,
    bernstein,
    check_range,
    evaluate_A,
    evaluate_B,
    evaluate_theorem_2,
    margin_limit,
    positive,
    step_constants,
    train_side,
)
from certify.growth_terms import Constant, covering_radius, paired_interval
from certify.intervals import check_confidence, check_count, check_probability
from theory.transfer import pointwise_gap

if TYPE_CHECKING:
    from torch import nn

    from certify.growth_training import Losses, Optimizer
    from certify.sweep import Loss, Unit

__all__ = ["expansion"]

OPTIMISTIC = ("the jumpboard was chosen on these units: optimistic",)
FRESH = ("iid units", "disjoint from train and test", "large n")


def expansion(
    model: nn.Module,
    loss: Loss,
    train: Iterable[Any],
    test: Iterable[Any],
    *,
    fresh: Iterable[Any],
    at: str,
    block: nn.Module,
    clip: float | None = None,
    loss_range: float | None = None,
    step: float | None = None,
    steps: int = 200,
    learning_rate: float = 1e-3,
    optimizer: Optimizer | None = None,
    generator: Any = 0,
    radius: float | None = None,
    rademacher: float | Literal["linearised", "lipschitz"] = "linearised",
    lipschitz: float | None = None,
    curvature: float | None = None,
    margin: float | None = None,
    slack: float = 0.5,
    share: float = 0.5,
    delta: float = 0.05,
    confidence: float = 0.95,
    unit: Unit = "example",
) -> Expansion:
    r"""Guarantees and measured outcome of inserting a block that starts at zero into a trained model.

    .. math::
        \theta_S = -\eta \nabla_\theta L_{train}(0),\qquad
        \Delta_S = L_S(\text{old}) - L_S(\text{jumpboard})

    The jumpboard is built and evaluated; the block is trained from there with the old model frozen; routes A
    and B of paper 2 and theorem 2 of paper 1 are evaluated by `theory.expansion`; and old, jumpboard and new
    model are compared unit by unit on fresh data.  A guarantee is only as good as its constants: each is
    labelled estimated, bounded or declared.

    Parameters
    ----------
    model
        The old model in eval mode; it is left as it was found.
    loss
        `loss(model, batch)`, one value per example; see `certify.losses`.
    train, test, fresh
        Three disjoint samples, each an iterable of batches that can be read again (a list, a DataLoader).
        `train` makes the jumpboard, trains the block and applies the fallback rule; `test` is the sample of
        the guarantees; nothing is chosen with `fresh`.  Train units that the old model was trained on are
        allowed, but then are not draws of the law of new units, which the guarantees assume.
    at, block
        Module name, and a block of `certify.blocks`; the block is copied.
    clip
        Losses, which must be at least 0, are clipped at this value: B = clip, and everything, gradients and
        training included, is about the clipped loss.
    loss_range
        Declared B instead: losses lie in an interval of this length.  Exactly one of the two is needed.
    step
        eta; default: the step with the least train risk among seven steps and a parabola through the best.
    steps, learning_rate, optimizer, generator
        Optimizer steps, one per batch; Adam with that rate unless `optimizer(parameters)` makes another;
        seed or `torch.Generator` for the order of batches (of a list) and for the signs.
    radius
        The class is the ball of this radius around the initial parameters; training is projected onto it.
        Default: the smallest power of two that is at least twice the jumpboard's norm, paid for by a
        union over all powers of two.
    rademacher
        "linearised": exact supremum of the class linearised about the zero block, by Monte-Carlo signs
        (estimated: the remainder is neglected).  "lipschitz": sqrt(2) G r sqrt(p/M) for any block.  A
        number: declared.
    lipschitz
        G, declared: no unit's loss changes faster than G per unit of parameter distance inside the ball.
        Without it the largest gradient norm at the zero block is taken, which is an estimate.
    curvature
        Declared bound on the second derivative of the risk along the step; else estimated on train.
    margin
        Declared Delta_R of route A; else a lower limit for the jumpboard's margin from fresh units.
    slack, share
        As in `theory.expansion.theorem_2` and `route_A`.
    delta
        Failure probability given to the generalisation gaps: half to train, half to test (or the margin).
    confidence
        Level of the paired intervals.
    unit
        "example", or a callable `unit(batch)` giving one group key per example; losses and gradients are
        averaged within groups first.

    Raises
    ------
    ValueError, TypeError
        For bad arguments, samples that overlap, losses outside the declared range, a block that is not zero.
    CertifyError
        For what shows while the model runs; see `certify.errors`.

    Notes
    -----
    Source: paper 2, jumpboard models, theorems 1 to 3 and the fallback rule (condition 2); paper 1,
    theorem 2.  The probabilities and the constants are ours.

    Examples
    --------
    >>> import torch, certify
    >>> from certify.blocks import ChannelShift
    >>> model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Identity()).eval()
    >>> _ = [p.data.zero_() for p in model.parameters()]
    >>> g = torch.Generator().manual_seed(0)
    >>> train, test, fresh = ([(torch.randn(99, 1, generator=g), torch.rand(99, 1, generator=g))]
    ...     for _ in range(3))
    >>> result = expansion(model, certify.losses.regression, train, test, fresh=fresh, at="0",
    ...     block=ChannelShift(1), clip=1.0, steps=0)
    >>> result.delta_test.low > 0, result.route("B").verdict, result.constant("eps_M").status
    (True, 'vacuous', 'estimated')
    """
    import torch

    from certify import checks
    from certify.certification import versions
    from certify.growth_training import (
        Site,
        clipped,
        distance,
        find_step,
        refuse_shared,
        standing,
        train_block,
    )
    from certify.sites import unwrap
    from certify.sweep import _check_arguments, _unit_name

    samples = {"train": train, "test": test, "fresh": fresh}
    for name, loader in samples.items():
        _check_arguments(model, loss, loader, unit, None)
        checks.refuse_repeating_sampler(loader)
        if isinstance(loader, Iterator):
            raise ValueError(
                f"{name} is an iterator, which can be read only once; give a list or a DataLoader"
            )
    inner = unwrap(model)
    checks.refuse_batch_coupling(inner)
    confidence, delta = check_confidence(confidence), check_probability("delta", delta)
    if (clip is None) == (loss_range is None):
        raise ValueError(
            f"clip={clip!r}, loss_range={loss_range!r}: expected exactly one; the guarantees need losses of "
            "a known range, so declare it, or clip the loss (everything is then about the clipped loss)"
        )
    B = positive("clip", clip) if clip is not None else positive("loss_range", loss_range)
    for name, value in (("radius", radius), ("lipschitz", lipschitz), ("learning_rate", learning_rate)):
        if value is not None:
            positive(name, value)
    for name, value in (("step", step), ("curvature", curvature), ("margin", margin)):
        if value is not None:
            positive(name, value, zero=True)
    if isinstance(rademacher, str) and rademacher not in ("linearised", "lipschitz"):
        raise ValueError(f"rademacher={rademacher!r}: expected 'linearised', 'lipschitz' or a number")
    steps = check_count("steps", steps, least=0)
    random = generator if isinstance(generator, torch.Generator) else torch.Generator().manual_seed(generator)
    seed = None if isinstance(generator, torch.Generator) else int(generator)
    signs = np.random.default_rng(int(torch.randint(2**62, (1,), generator=random)))
    bounded = loss if clip is None else clipped(loss, B)
    grown = copy.deepcopy(block)

    with standing(inner, at, grown):
        site = Site(inner, bounded, grown, unit)
        zero = site.state()
        old = site.losses([zero], train, "train")
        gradient = site.gradient(zero, train, "train", old)
        found = find_step(site, zero, gradient, train, float(old.values.mean()), step)
        board = site.moved(zero, gradient, found.size)
        board_norm = distance(board, zero)
        if radius is None:
            ball, part = covering_radius(board_norm)
        else:
            ball, part = float(radius), 1.0
            if board_norm > ball * (1 + SLACK):
                raise ValueError(
                    f"radius={ball:g}: the jumpboard lies at {board_norm:.4g} from the zero block; give a "
                    "larger ball or a smaller step"
                )
        rule = optimizer or (lambda parameters: torch.optim.Adam(parameters, lr=learning_rate))
        trained = board
        if steps:
            trained = train_block(
                site,
                board,
                zero,
                train,
                steps=steps,
                optimizer=rule,
                radius=ball,
                generator=random,
            )
        on_train = site.losses([zero, board, trained], train, "train")
        reached = float(on_train.values[2].mean())
        fallback = bool(reached > float(on_train.values[1].mean()))
        new = board if fallback else trained
        if fallback:
            on_train = dataclasses.replace(on_train, values=on_train.values[[0, 1, 1]])
        on_test = site.losses([zero, board, new], test, "test")
        on_fresh = site.losses([zero, board, new], fresh, "fresh")
        shared = refuse_shared({"train": on_train, "test": on_test, "fresh": on_fresh})
        check_range({"train": on_train, "test": on_test, "fresh": on_fresh}, B, clip)
        site.put(new)
        new_norm = distance(new, zero)
    jumpboard = copy.deepcopy(block)
    with torch.no_grad():
        for p, kept in zip(jumpboard.parameters(), board, strict=True):
            p.copy_(kept)

    name = _unit_name(unit)
    gain = {
        (sample, a, b): on.values[a] - on.values[b]
        for sample, on in (("train", on_train), ("test", on_test), ("fresh", on_fresh))
        for a, b in ((0, 1), (0, 2), (1, 2))
    }
    erm = float(gain["train", 1, 2].mean())
    M, K = on_train.n, on_test.n
    facts = Facts(
        model=inner,
        loss=bounded,
        train=train,
        at=at,
        block=block,
        unit=unit,
        unit_name=name,
        M=M,
        K=K,
        B=B,
        delta=delta,
        radius=ball,
        part=part,
        signs=signs,
        parameters=sum(p.numel() for p in site.trained),
    )
    statistics, constants, gap = train_side(facts, rademacher, lipschitz, clip, radius)
    constants += step_constants(found, curvature)
    bend = curvature if curvature is not None else max(found.curvature or 0.0, 0.0)
    eps_K = pointwise_gap(K, delta / 2, loss_range=B)
    constants.append(
        Constant("eps_K", eps_K, "bounded", "one paired comparison on test (Hoeffding), given B")
    )
    limit, how = margin_limit(gain["fresh", 0, 1], margin, B, delta / 2, name)
    constants.append(limit)
    estimated = any(c.name == "eps_M" and c.status == "estimated" for c in constants)
    routes = (
        evaluate_A(facts, gap, limit, how, erm, share, estimated),
        evaluate_B(facts, gap, float(gain["test", 0, 1].mean()), erm, eps_K, estimated),
        evaluate_theorem_2(facts, gap, statistics, found, bend, erm, eps_K, slack),
    )
    where = f"{type(rule(site.trained)).__name__}" if optimizer else f"Adam, learning rate {learning_rate:g}"
    return Expansion(
        at=at,
        block=f"{type(block).__name__}({extra})" if (extra := block.extra_repr()) else type(block).__name__,
        parameters=facts.parameters,
        loss=getattr(bounded, "__name__", type(bounded).__name__),
        clip=None if clip is None else float(clip),
        loss_range=B,
        M=M,
        K=K,
        n_fresh=on_fresh.n,
        unit=name,
        confidence=confidence,
        delta=delta,
        step=found.size,
        step_chosen=found.chosen,
        gradient_norm=math.sqrt(found.slope),
        radius=ball,
        jumpboard_norm=board_norm,
        new_norm=new_norm,
        train_risks=_risks(on_train),
        test_risks=_risks(on_test),
        fresh_risks=_risks(on_fresh),
        delta_train=paired_interval(gain["train", 0, 1], confidence, unit=name, assumptions=OPTIMISTIC),
        delta_test=paired_interval(gain["test", 0, 1], confidence, unit=name),
        gain_erm=erm,
        fallback=fallback,
        trained_train_risk=reached,
        fresh_jumpboard=paired_interval(gain["fresh", 0, 1], confidence, unit=name, assumptions=FRESH),
        fresh_new=paired_interval(gain["fresh", 0, 2], confidence, unit=name, assumptions=FRESH),
        fresh_over_jumpboard=paired_interval(gain["fresh", 1, 2], confidence, unit=name, assumptions=FRESH),
        fresh_new_bounded=bernstein(gain["fresh", 0, 2], B, confidence, name),
        constants=tuple(constants),
        routes=routes,
        training=f"{steps} steps of {where}, old model frozen, inside the ball",
        assumptions=(
            "units of all three samples are independent draws of one law",
            "train, test and fresh are disjoint; test and fresh chose nothing",
            f"losses {'are clipped, and' if clip is not None else 'are declared to'} lie in an interval of "
            f"length {B:g}",
        ),
        notes=shared,
        seed=seed,
        versions=versions(),
        grown=grown,
        jumpboard=jumpboard,
    )


def _risks(losses: Losses) -> tuple[float, float, float]:
    old, board, new = (float(row.mean()) for row in losses.values)
    return old, board, new
