"""Suite "intervention": step along minus the training gradient of a zero block, watch fresh units."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import nn

from certify.blocks import ChannelShift, LinearMap, MLPBlock
from certify.intervention import insert
from validation import gradients, growth_measure, measure, models, training
from validation.results import Effect, Measured, Record
from validation.training import Network

CONFIDENCE = measure.CONFIDENCE

# A step is named by what the first order predicts for the M units: the
# share of the loss that it would take away, so that networks and blocks of any scale are comparable. Six
# decades, because a transformer's own biases leave so little first-order gain that 0.1 % already overshoots.
FRACTIONS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
IMAGES, SEQUENCES = 150, 60
"""M = K: units on each side."""
BLOCKS = ("channel shift", "linear map", "MLP")
_PROBE = 1e-6  # central difference, as a fraction like those above; float64


@dataclass(frozen=True)
class Steps:
    """Losses of K units before, and after steps of every length along one direction."""

    alphas: np.ndarray
    fractions: tuple[float, ...]
    before: np.ndarray
    after: np.ndarray
    slopes: np.ndarray
    """Directional derivative of each unit's loss along mu_M; their mean is T."""
    curvature: float
    """v'Hv of the mean loss with v = mu_M."""


def make_block(kind: str, channels: int, seed: int) -> Any:
    """A fresh zero-initialised block in float64."""
    if kind == "channel shift":
        return ChannelShift(channels, dtype=torch.float64)
    if kind == "linear map":
        return LinearMap(channels, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    return MLPBlock(channels, 2 * channels, generator=generator, dtype=torch.float64)


def _losses(model: nn.Module, units: Any) -> np.ndarray:
    with torch.no_grad():
        parts = [training.unit_losses(model, batch) for batch in training.batches(units, 100)]
    return torch.cat(parts).double().numpy()


def take_steps(
    model: nn.Module,
    at: str,
    block: Any,
    train: Any,
    tests: Sequence[Any],
    fractions: Sequence[float] = FRACTIONS,
    batches: Callable[..., Any] = training.batches,
) -> list[Steps]:
    """Insert, take the M units' mean gradient, and evaluate each sample after every step; model restored.

    ``model`` is in float64 and in evaluation mode. Slopes and curvature are central differences.
    """
    with insert(model, at, block):
        parameters = list(block.zero_parameters().values())
        total = [torch.zeros_like(p) for p in parameters]
        loss_sum, count = 0.0, 0
        for batch in batches(train, 100):
            losses = training.unit_losses(model, batch)
            for t, g in zip(total, torch.autograd.grad(losses.sum(), parameters), strict=True):
                t += g
            loss_sum, count = loss_sum + float(losses.sum().detach()), count + len(losses)
        direction = [t / count for t in total]
        square = sum(float((v * v).sum()) for v in direction)
        unit = loss_sum / count / square  # alpha of fraction 1
        alphas = unit * np.asarray(fractions)

        def at_step(alpha: float) -> list[np.ndarray]:
            with torch.no_grad():
                for p, v in zip(parameters, direction, strict=True):
                    p.copy_(-alpha * v)
            return [_losses(model, t) for t in tests]

        before, probe = at_step(0.0), _PROBE * unit
        down, up = at_step(probe), at_step(-probe)
        after = [at_step(float(a)) for a in alphas]
        at_step(0.0)
    return [
        Steps(
            alphas,
            tuple(fractions),
            before[i],
            np.stack([a[i] for a in after]),
            (up[i] - down[i]) / (2 * probe),
            float(np.mean(up[i] - 2 * before[i] + down[i])) / probe**2,
        )
        for i in range(len(tests))
    ]


def ratio_interval(observed: np.ndarray, predicted: np.ndarray, confidence: float = CONFIDENCE) -> Measured:
    """mean(observed) / mean(predicted), paired: Fieller's interval.

    >>> ratio_interval(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0])).value
    1.0
    """
    n, a, b = len(observed), float(np.mean(observed)), float(np.mean(predicted))
    cov = np.cov(observed, predicted) / n
    q = float(stats.t.ppf((1 + confidence) / 2, n - 1)) ** 2
    A, B, C = b * b - q * cov[1, 1], a * b - q * cov[0, 1], a * a - q * cov[0, 0]
    value = a / b if b != 0 else None
    if A <= 0:
        return Measured(value, None, None, confidence, "Fieller: no limit, T may be 0")
    root = math.sqrt(max(B * B - A * C, 0.0))
    return Measured(value, float((B - root) / A), float((B + root) / A), confidence, "Fieller, paired units")


def _mean_interval(x: np.ndarray) -> Measured:
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(x) - 1)) * float(np.std(x, ddof=1)) / math.sqrt(len(x))
    m = float(np.mean(x))
    return Measured(m, m - half, m + half, CONFIDENCE, "Student, paired units")


def _points(network: Network, model: nn.Module) -> list[str]:
    """First and last of the insertion points of the width suites."""
    names = gradients.insertion_points(network, model)
    return names if len(names) < 2 else [names[0], names[-1]]


def _channels(model: nn.Module, at: str) -> int:
    module = model.get_submodule(at)
    if isinstance(module, models.BasicBlock):
        return int(module.conv2.out_channels)
    return int(model.config.hidden_size)  # type: ignore[union-attr, arg-type]


def records(network: Network, seed: int) -> list[Record]:
    """Effects of every block at both insertion points, on fresh units and on the M units; guarantees."""
    trained = training.obtain(network)
    model = copy.deepcopy(trained.model).double().eval()
    n = IMAGES if network.images else SEQUENCES
    held = trained.held_out
    n = min(n, len(held) // 2)
    order = measure.rng_of(seed, network.name, "intervention").permutation(len(held))
    sides = [_as_double(held.take(np.sort(order[k * n : (k + 1) * n]))) for k in (0, 1)]
    found: list[Record] = []
    with training.one_thread():
        for at in _points(network, model):
            for kind in BLOCKS:
                started = time.perf_counter()
                block = make_block(kind, _channels(model, at), seed)
                fresh, same = take_steps(model, at, block, sides[0], [sides[1], sides[0]])
                seconds = (time.perf_counter() - started) / (2 * len(FRACTIONS))
                for sample, steps in (("held-out", fresh), ("train", same)):
                    found += _effects(network, at, kind, sample, steps, seconds)
    return found + list(growth_measure.records(network, trained, seed))


def _as_double(units: Any) -> Any:
    if hasattr(units, "images"):
        return replace(units, images=units.images.double())
    return units


def _effects(network: Network, at: str, kind: str, sample: str, steps: Steps, seconds: float) -> list[Effect]:
    T, n = float(steps.slopes.mean()), len(steps.before)
    out = []
    for fraction, alpha, after in zip(steps.fractions, steps.alphas, steps.after, strict=True):
        change = after - steps.before
        observed = _mean_interval(change)
        out.append(
            Effect(
                suite="intervention",
                case=network.name,
                label=network.label,
                module=at,
                block=kind,
                unit=network.unit,
                sample=sample,
                width=network.channels,
                depth=network.depth,
                seed=network.seed,
                M=n,
                K=n,
                fraction=fraction,
                alpha=float(alpha),
                T=T,
                predicted=-float(alpha) * T,
                second_order=-float(alpha) * T + float(alpha) ** 2 * steps.curvature / 2,
                observed=observed,
                ratio=ratio_interval(change, -alpha * steps.slopes),
                same_sign=bool(change.mean() * -T > 0),
                certain=observed.high is not None and observed.high < 0,
                seconds=seconds,
            )
        )
    return out
