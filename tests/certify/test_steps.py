"""Predicted, second-order and observed changes: convergence, coverage, and what must be refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import capture_models as models
import numpy as np
import pytest
import torch
from capture_models import build, randint, randn
from scipy import stats

from certify.blocks import BlockCopy, ChannelShift, LinearMap, MLPBlock
from certify.losses import causal_lm, classification
from certify.steps import fieller, step_effects


def data(n, *shape, first=0):
    return [
        (randn(16, *shape, seed=first + k, dtype=torch.float64), randint(3, 16, seed=first + k))
        for k in range(n)
    ]


ALPHAS = [0.5, 1.0, 2.0]
CASES = {
    "shift": ("1", lambda m: ChannelShift(8, dtype=torch.float64)),
    "linear": ("1", lambda m: LinearMap(8, dtype=torch.float64)),
    "mlp": ("3", lambda m: MLPBlock(8, 6, generator=0, dtype=torch.float64)),
}


def errors(effects):
    first = [abs(s.observed.estimate - s.predicted) for s in effects.steps]
    second = [abs(s.observed.estimate - s.second_order) for s in effects.steps]
    return first, second


def slopes(alphas, values):
    return np.diff(np.log(values)) / np.diff(np.log(alphas))


@pytest.mark.parametrize("case", CASES)
def test_errors_fall_with_the_second_and_third_power(case):
    at, make = CASES[case]
    model = build(models.mlp).double()
    effects = step_effects(
        model, classification, data(3, 5), data(3, 5, first=50), at=at, block=make(model), alphas=ALPHAS
    )
    first, second = errors(effects)
    np.testing.assert_allclose(slopes(ALPHAS, first), 2, atol=0.15)
    np.testing.assert_allclose(slopes(ALPHAS, second), 3, atol=0.3)
    # the planted sign bug: -alpha T taken as +alpha T does not converge at all
    wrong = [abs(s.observed.estimate + s.predicted) for s in effects.steps]
    assert np.all(slopes(ALPHAS, wrong) < 1.5)


def test_language_model_and_copied_block():
    model = build(models.llama).double()
    tokens = [
        {"input_ids": randint(61, 8, 7, seed=k), "attention_mask": torch.ones(8, 7, dtype=torch.long)}
        for k in range(4)
    ]
    block = BlockCopy(model.model.layers[0])
    alphas = [0.05, 0.1]  # the norms of this library compute in float32: smaller steps are rounding
    effects = step_effects(
        model, causal_lm, tokens[:2], tokens[2:], at="model.layers.1", block=block, alphas=alphas
    )
    first, second = errors(effects)
    np.testing.assert_allclose(slopes(alphas, first), 2, atol=0.2)
    np.testing.assert_allclose(slopes(alphas, second), 3, atol=0.3)
    assert not any(bool(p.any()) for p in block.zero_parameters().values())
    assert all(p.requires_grad for p in block.parameters())
    assert effects.parameters == sum(p.numel() for p in block.zero_parameters().values())


def learnable(n, first):
    rule = randn(5, 3, seed=99, dtype=torch.float64)
    xs = [randn(32, 5, seed=first + k, dtype=torch.float64) for k in range(n)]
    return [(x, (x @ rule).argmax(1)) for x in xs]


def test_a_clear_signal_is_certain_and_a_huge_step_is_not():
    model = build(models.mlp).double()
    train, test = learnable(8, 0), learnable(8, 50)
    block = LinearMap(8, dtype=torch.float64)
    effects = step_effects(model, classification, train, test, at="1", block=block)
    assert (effects.M, effects.K, effects.unit) == (256, 256, "example")
    assert effects.T.low > 0
    small = effects.steps[0]
    assert small.certain
    assert small.same_sign
    assert pytest.approx(small.ratio.estimate, abs=0.02) == 1.0
    assert small.ratio.low < small.ratio.estimate < small.ratio.high
    assert small.step_norm == pytest.approx(small.alpha * effects.mu_norm)
    assert effects.largest_certain_alpha in effects.alphas
    huge = step_effects(model, classification, train, test, at="1", block=block, alphas=[1e6])
    assert not huge.steps[0].certain
    assert huge.largest_certain_alpha is None
    assert "none" in str(huge)
    assert json.loads(json.dumps(effects.to_dict()))["steps"][0]["certain"] is True
    # all step sizes together: wider than one by itself
    alone = step_effects(model, classification, train, test, at="1", block=block, alphas=[small.alpha])
    assert alone.steps[0].upper < small.upper
    assert alone.steps[0].observed == small.observed


def test_groups_are_the_units():
    model = build(models.mlp).double()

    def source(batch):
        return (batch[0][:, 0] * 1000).abs().long() % 7

    train, test = learnable(4, 0), learnable(4, 50)
    block = LinearMap(8, dtype=torch.float64)
    grouped = step_effects(
        model, classification, train, test, at="1", block=block, unit=source, alphas=[0.5, 1.0, 2.0]
    )
    assert (grouped.M, grouped.K, grouped.unit) == (7, 7, "source")
    first, second = errors(grouped)
    np.testing.assert_allclose(slopes(ALPHAS, first), 2, atol=0.15)
    np.testing.assert_allclose(slopes(ALPHAS, second), 3, atol=0.3)


def test_same_units_are_refused():
    model = build(models.mlp).double()
    batches = data(2, 5)
    block = LinearMap(8, dtype=torch.float64)
    with pytest.raises(ValueError, match="train is test"):
        step_effects(model, classification, batches, batches, at="1", block=block)
    with pytest.raises(ValueError, match="expected disjoint units"):
        step_effects(model, classification, batches, list(batches), at="1", block=block)
    with pytest.raises(ValueError, match="all positive"):
        step_effects(model, classification, batches, data(2, 5, first=9), at="1", block=block, alphas=[-1.0])


def test_block_is_back_at_zero_after_an_exception():
    model = build(models.mlp).double()
    block = LinearMap(8, dtype=torch.float64)

    def loss(m, batch):
        if bool(block.linear.weight.any()):
            raise ZeroDivisionError
        return classification(m, batch)

    with pytest.raises(ZeroDivisionError):
        step_effects(model, loss, data(2, 5), data(2, 5, first=9), at="1", block=block)
    assert not bool(block.linear.weight.any())
    assert block.linear.weight.requires_grad
    assert "forward" not in model[1].__dict__


def test_ratio_limits_cover_and_the_delta_method_of_a_false_ratio_does_not():
    """4000 samples of 40 skewed, correlated pairs; 99.9 % binomial limits around 95 % (false alarm 1e-3)."""
    rng = np.random.default_rng(7)
    truth, hits, false = 0.97, 0, 0
    for _ in range(4000):
        x = rng.gamma(2.0, 1.0, 40) - 1.2
        y = truth * x + 0.3 * rng.standard_normal(40)
        _, low, high = fieller(y, x, 0.95)
        hits += low <= truth <= high
        false += low <= truth * 1.3 <= high
    allowed = stats.binom.ppf([0.0005, 0.9995], 4000, 0.95)
    assert allowed[0] - 20 <= hits <= allowed[1] + 20  # skewness costs at most half a per cent
    assert false < 0.3 * 4000


def test_ratio_has_no_limits_without_a_signal():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(50)
    x -= x.mean() - 1e-3
    estimate, low, high = fieller(1e-200 * x, 1e-200 * x, 0.95)
    assert estimate == pytest.approx(1.0)
    assert (low, high) == (-np.inf, np.inf)
    with pytest.raises(ValueError, match="at least two"):
        fieller(x[:1], x[:1], 0.95)


def test_the_code_of_the_page_runs(capsys):
    page = Path(__file__).parents[2] / "docs" / "interventions.md"
    names: dict[str, object] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.S)), names)
    assert torch.equal(names["same"], names["model"](names["x"]))
    assert torch.equal(names["grown"](names["x"]), names["same"])
    assert names["effects"].largest_certain_alpha is not None
    assert "observed / predicted" in capsys.readouterr().out
