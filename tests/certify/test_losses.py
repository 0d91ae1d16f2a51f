"""Ready-made losses: one value per example, one shift, padding on either side, nothing to predict."""

from __future__ import annotations

import math

import capture_models as nets
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from certify.losses import PerExample, causal_lm, classification, regression
from certify.sweep import gradients


class Table(nn.Module):
    """A causal model whose logits depend on the token alone; notes what it was called with."""

    def __init__(self, vocabulary=11):
        super().__init__()
        self.table = nn.Embedding(vocabulary, vocabulary)
        self.called = {}

    def forward(self, input_ids, attention_mask=None, position_ids=None, use_cache=None):
        self.called = {"position_ids": position_ids, "use_cache": use_cache, "mask": attention_mask}
        return {"logits": self.table(input_ids)}


@pytest.fixture
def table():
    return nets.build(Table).double()


def by_hand(table, tokens, labels, mask):
    """One sequence by a loop over positions: the mean of -log p(next label), or None."""
    log_p = torch.log_softmax(table.table(tokens), dim=-1)
    terms = [
        -log_p[t, labels[t + 1]]
        for t in range(len(tokens) - 1)
        if mask[t] and mask[t + 1] and labels[t + 1] != -100
    ]
    return sum(terms) / len(terms) if terms else None


def test_causal_lm_against_a_loop_over_positions(table):
    tokens = nets.randint(11, 6, 5)
    mask = torch.tensor(
        [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 1, 1, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]]
    )
    labels = tokens.clone()
    labels[0, :3] = -100  # a prompt that is not predicted
    labels[3, 2] = -100
    loss = causal_lm(table, {"input_ids": tokens, "attention_mask": mask, "labels": labels})
    expected = [by_hand(table, tokens[i], labels[i], mask[i]) for i in range(6)]
    assert loss.keep.tolist() == [e is not None for e in expected] == [True] * 4 + [False] * 2
    for value, e in zip(loss, expected, strict=True):
        assert float(value.detach()) == pytest.approx(0.0 if e is None else float(e.detach()), abs=1e-12)
    assert loss.positions.tolist() == mask.bool().tolist()


def test_a_sequence_with_nothing_to_predict_is_dropped_and_counted(table):
    """Plain cross-entropy gives NaN here, and through it NaN gradients for the whole batch."""
    tokens = nets.randint(11, 4, 5)
    labels = tokens.clone()
    labels[1] = -100
    plain = F.cross_entropy(table.table(tokens[1, :-1]), labels[1, 1:])
    assert math.isnan(float(plain.detach()))
    found = gradients(table, causal_lm, [{"input_ids": tokens, "labels": labels}] * 2, at=["table"])
    assert found["table"].shape == (6, 11)
    assert (found.report.examples, found.report.dropped, found.report.units) == (6, 2, 6)
    with pytest.raises(ValueError, match="gave 1 batches, 4 dropped examples and no other"):
        gradients(
            table, causal_lm, [{"input_ids": tokens, "labels": torch.full_like(tokens, -100)}], at=["table"]
        )


def test_labels_are_shifted_once(table):
    tokens = nets.randint(11, 3, 6)
    plain = causal_lm(table, {"input_ids": tokens})
    same = causal_lm(table, {"input_ids": tokens, "labels": tokens.clone()})
    assert torch.equal(plain + 0, same + 0)
    shifted = torch.cat([tokens[:, 1:], torch.full((3, 1), -100)], dim=1)
    with pytest.raises(ValueError, match="labels are already shifted by one"):
        causal_lm(table, {"input_ids": tokens, "labels": shifted})
    constant = torch.full((2, 4), 7)  # both readings agree: nothing to refuse
    causal_lm(table, {"input_ids": constant, "labels": constant.clone()})
    other = nets.randint(11, 3, 6, seed=1)  # labels of another task
    causal_lm(table, {"input_ids": tokens, "labels": other})


def test_padding_on_the_left_gets_position_ids(table):
    tokens, mask = nets.randint(11, 2, 4), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    causal_lm(table, {"input_ids": tokens, "attention_mask": mask})
    assert table.called["position_ids"].tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]
    assert table.called["use_cache"] is False
    causal_lm(table, {"input_ids": tokens, "attention_mask": mask.flip(1)})
    assert table.called["position_ids"] is None
    given = torch.zeros(2, 4, dtype=torch.long)
    causal_lm(table, {"input_ids": tokens, "attention_mask": mask, "position_ids": given})
    assert table.called["position_ids"] is given


def test_learned_positions_agree_for_both_paddings():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = nets.build(
        lambda: GPT2LMHeadModel(
            GPT2Config(
                vocab_size=61, n_embd=16, n_layer=2, n_head=2, n_positions=12, bos_token_id=0, eos_token_id=0
            )
        )
    ).double()
    tokens, zeros = nets.randint(61, 2, 4), torch.zeros(2, 3, dtype=torch.long)
    right = {
        "input_ids": torch.cat([tokens, zeros], 1),
        "attention_mask": torch.cat([torch.ones_like(tokens), zeros], 1),
    }
    left = {
        "input_ids": torch.cat([zeros, tokens], 1),
        "attention_mask": torch.cat([zeros, torch.ones_like(tokens)], 1),
    }
    for positions in ("sum", "mean"):
        a, b, c = (
            gradients(model, causal_lm, [batch], at=["transformer.h.0"], positions=positions)[
                "transformer.h.0"
            ]
            for batch in (right, left, {"input_ids": tokens})
        )
        assert nets.relative_error(a, c) < 1e-12
        assert nets.relative_error(b, c) < 1e-12


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ((1, 2), TypeError, "batch of type tuple: losses.causal_lm expects a mapping with 'input_ids'"),
        (
            {"input_ids": torch.zeros(2, 3, dtype=torch.long), "attention_mask": torch.ones(2, 4)},
            ValueError,
            r"shapes \(2, 3\), \(2, 4\), \(2, 3\); expected the same",
        ),
    ],
)
def test_causal_lm_refuses(table, batch, error, message):
    with pytest.raises(error, match=message):
        causal_lm(table, batch)


def test_classification():
    model = nets.build(nets.mlp)
    x, y = nets.randn(6, 5), torch.tensor([0, 1, 2, -100, 1, 0])
    loss = classification(model, (x, y))
    for i in range(6):
        if i != 3:
            assert torch.allclose(loss[i], F.cross_entropy(model(x[i]), y[i]))
    assert loss.keep.tolist() == [True, True, True, False, True, True]
    probabilities = torch.softmax(nets.randn(6, 3, seed=2), 1)
    soft = classification(model, {"input": x, "labels": probabilities})
    assert torch.allclose(soft + 0, F.cross_entropy(model(x), probabilities, reduction="none"))
    assert soft.keep is None


@pytest.mark.parametrize("targets", [torch.zeros(4), torch.full((4,), 7), torch.zeros(3, dtype=torch.long)])
def test_targets_that_do_not_fit_the_logits(targets):
    with pytest.raises(ValueError, match=r"do not fit logits of shape \(4, 3\)"):
        classification(nn.Linear(2, 3), (torch.zeros(4, 2), targets))


def test_classification_of_pixels_averages_over_counted_pixels():
    model = nets.build(lambda: nn.Conv2d(3, 4, 1))
    x, y = nets.randn(2, 3, 2, 2), torch.tensor([[[0, 1], [-100, 3]], [[-100, -100], [-100, -100]]])
    loss = classification(model, (x, y))
    assert torch.allclose(loss[0], F.cross_entropy(model(x[:1]), y[:1]))
    assert loss.keep.tolist() == [True, False]


def test_regression_pairs_each_prediction_with_its_target():
    model = nets.build(lambda: nn.Linear(3, 1))
    x, y = nets.randn(5, 3), nets.randn(5, seed=1)
    expected = (model(x)[:, 0] - y) ** 2
    assert torch.allclose(regression(model, (x, y)) + 0, expected)
    assert torch.allclose(regression(model, (x, y[:, None])) + 0, expected)
    with pytest.raises(ValueError, match=r"predictions.shape=\(5, 1\) and targets.shape=\(5, 2\)"):
        regression(model, (x, nets.randn(5, 2)))
    with pytest.raises(
        TypeError, match=r"batch of type Tensor: losses.regression expects \(inputs, targets\)"
    ):
        regression(model, x)


def test_outputs_without_logits_are_refused():
    class Odd(nn.Module):
        def forward(self, x):
            return "text"

    with pytest.raises(TypeError, match="returned a str without logits"):
        classification(Odd(), (nets.randn(2, 3), torch.zeros(2, dtype=torch.long)))


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (torch.zeros(2, 2), {}, r"values.shape=\(2, 2\)"),
        (
            torch.zeros(2),
            {"keep": torch.ones(2)},
            "keep has shape .* dtype torch.float32: expected a boolean",
        ),
        (torch.zeros(2), {"positions": torch.ones(3, 4)}, r"positions.shape=\(3, 4\): expected \(B, L\)"),
    ],
)
def test_per_example_refuses(values, options, message):
    with pytest.raises(ValueError, match=message):
        PerExample(values, **options)
