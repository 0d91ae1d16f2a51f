"""Kinds of faults that public bug reports describe, and what the capture does in each case.

Every test first shows the fault in plain torch where that can be shown, then the right behaviour here.
Links name the report that the kind was taken from.
"""

from __future__ import annotations

import datetime
import json

import capture_models as nets
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from certify.certification import certificate
from certify.errors import CaptureError, DependenceError, ModelError
from certify.estimators import estimate
from certify.hooks import capture
from certify.losses import causal_lm, classification
from certify.moments import GradientMoments
from certify.sweep import collect, gradients


@pytest.fixture
def batch():
    return nets.randn(6, 5, dtype=torch.float64), nets.randint(3, 6)


def rows(model, batch, at, **options):
    return gradients(model, classification, [batch], at=at, **options)


def sequential(*layers):
    return nets.build(lambda: nn.Sequential(*[make() for make in layers])).double()


def plain_hook(model, name, batch):
    """What a hook that remembers the output gives."""
    seen = []
    handle = model.get_submodule(name).register_forward_hook(lambda m, args, out: seen.append(out))
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    handle.remove()
    return torch.autograd.grad(losses.sum(), seen[0])[0]


# --- outputs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["tensor", "tuple"])
def test_decoder_layers_return_a_tensor_or_a_tuple(version):
    """github.com/paninski-lab/lightning-pose/issues/448: out[0] of a tensor is example 0."""
    model = nets.build(nets.llama).double()
    expected = gradients(model, causal_lm, [{"input_ids": nets.randint(61, 4, 6)}], at=["model.layers.1"])
    assert expected["model.layers.1"].shape == (4, 32)
    if version == "tuple":
        layer = model.model.layers[1]
        forward = layer.forward
        layer.forward = lambda *args, **kwargs: (forward(*args, **kwargs), None)
        following = model.model.layers[2].forward
        model.model.layers[2].forward = lambda x, **kwargs: following(
            x[0] if isinstance(x, tuple) else x, **kwargs
        )
    found = gradients(model, causal_lm, [{"input_ids": nets.randint(61, 4, 6)}], at=["model.layers.1"])
    assert np.array_equal(found["model.layers.1"], expected["model.layers.1"])


# --- in-place operations ---------------------------------------------------------------------------------


def test_backward_hooks_and_inplace_relu(batch):
    """github.com/pytorch/pytorch/issues/61519: an exception, or a silently wrong gradient."""
    inplace = sequential(lambda: nn.Linear(5, 8), lambda: nn.ReLU(inplace=True), lambda: nn.Linear(8, 3))
    plain = sequential(lambda: nn.Linear(5, 8), lambda: nn.ReLU(), lambda: nn.Linear(8, 3))
    handle = inplace[0].register_full_backward_hook(lambda *args: None)
    with pytest.raises(RuntimeError, match="modified inplace"):
        inplace(batch[0]).sum().backward()
    handle.remove()
    truth = plain_hook(plain, "0", batch)
    assert nets.relative_error(plain_hook(inplace, "0", batch), truth) > 0.3
    assert nets.relative_error(rows(inplace, batch, ["0"])["0"], truth) < 1e-12


def test_inplace_shortcut_on_a_leaf(batch):
    """`x += shortcut` on an output that was made a leaf raises in plain torch."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

        def forward(self, x):
            out = self.body(x)
            out += x
            return self.head(out)

    model = nets.build(Net).double()
    handle = model.body.register_forward_hook(lambda m, args, out: out.detach().requires_grad_())
    with pytest.raises(RuntimeError, match="leaf Variable"):
        model(batch[0])
    handle.remove()
    # the loss depends on body(x) and on body(x) + x in the same way
    z = (model.body(batch[0]) + batch[0]).detach().requires_grad_()
    truth = torch.autograd.grad(F.cross_entropy(model.head(z), batch[1], reduction="sum"), z)[0]
    assert nets.relative_error(rows(model, batch, ["body"])["body"], truth) < 1e-12


# --- calls -----------------------------------------------------------------------------------------------


class Calls(nn.Module):
    def __init__(self, repeats=1, use_aux=False):
        super().__init__()
        self.a, self.aux, self.never = nn.Linear(5, 3), nn.Linear(5, 3), nn.Linear(5, 3)
        self.repeats, self.use_aux = repeats, use_aux

    def forward(self, x):
        aux = self.aux(x)
        for _ in range(self.repeats):
            out = self.a(x)
        return out + aux if self.use_aux else out


def test_a_module_that_runs_but_is_unused(batch):
    """github.com/pytorch/pytorch/issues/73697: the error of torch does not say which."""
    with pytest.raises(CaptureError, match="does not depend on the output of module 'aux'"):
        rows(nets.build(Calls).double(), batch, ["a", "aux"])


def test_a_module_that_never_runs(batch):
    with pytest.raises(CaptureError, match="module 'never' was called 0 times"):
        rows(nets.build(Calls).double(), batch, ["a", "never"])


def test_a_module_that_runs_twice(batch):
    with pytest.raises(CaptureError, match="module 'a' was called 2 times"):
        rows(nets.build(lambda: Calls(2)).double(), batch, ["a"])


def test_tied_modules_under_two_names(batch):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(5, 5)
            self.second, self.head = self.first, nn.Linear(5, 3)

        def forward(self, x):
            return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))

    model = nets.build(Tied).double()
    with pytest.raises(CaptureError, match="module 'second' was called 2 times"):
        rows(model, batch, ["second"])
    assert rows(model, batch, ["first#0", "second#1"])["second#1"].shape == (6, 5)


def test_tied_weights(batch):
    """Weights shared between modules are no obstacle: outputs are captured, not weights."""
    model = sequential(lambda: nn.Linear(5, 5), lambda: nn.Tanh(), lambda: nn.Linear(5, 5))
    model[2].weight = model[0].weight
    expected = nets.loop_gradients(
        model, ["0", "2"], zip(*batch, strict=True), lambda m, e: F.cross_entropy(m(e[0][None]), e[1][None])
    )
    found = rows(model, batch, ["0", "2"])
    for name in found:
        assert nets.relative_error(found[name], expected[name]) < 1e-12


# --- frozen parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", ["below", "all"])
def test_frozen_parameters(batch, frozen):
    """Plain torch: "element 0 of tensors does not require grad", or no gradient at the module."""
    model = sequential(lambda: nn.Linear(5, 8), lambda: nn.Tanh(), lambda: nn.Linear(8, 3))
    expected = rows(model, batch, ["1"])["1"]
    (model[0] if frozen == "below" else model).requires_grad_(False)
    with pytest.raises(RuntimeError, match="not require grad"):
        plain_hook(model, "1", batch)
    assert np.array_equal(rows(model, batch, ["1"])["1"], expected)
    assert not model[0].weight.requires_grad
    assert model[2].weight.requires_grad == (frozen == "below")


# --- examples that influence each other ------------------------------------------------------------------


def test_batchnorm_in_training_mode(batch):
    """discuss.pytorch.org/t/124639: gradients of one output at six examples in training, at one in eval."""
    model = sequential(
        lambda: nn.Linear(5, 4), lambda: nn.BatchNorm1d(4), lambda: nn.Tanh(), lambda: nn.Linear(4, 3)
    )
    touched = []
    for training in (True, False):
        model.train(training)
        seen = []
        handle = model[0].register_forward_hook(lambda m, args, out, seen=seen: seen.append(out))
        gradient = torch.autograd.grad(model(batch[0])[0, 0], seen[0])[0]
        handle.remove()
        touched.append(int((gradient.abs().sum(1) > 1e-9).sum()))
    assert touched == [6, 1]
    assert rows(model, batch, ["0"])["0"].shape == (6, 4)
    with pytest.raises(DependenceError, match=r"'1' \(BatchNorm1d\) couples the examples .*model.eval\(\)"):
        rows(model.train(), batch, ["0"])


def test_dropout_that_survives_eval(batch):
    class Always(nn.Dropout):
        def forward(self, x):
            return F.dropout(x, self.p, training=True)

    model = sequential(lambda: nn.Linear(5, 40), lambda: Always(0.5), lambda: nn.Linear(40, 3))
    with pytest.raises(DependenceError, match=r"two runs on the same example .*'1' \(Always\)"):
        rows(model, batch, ["0"])


# --- losses ----------------------------------------------------------------------------------------------


def test_mean_reduced_losses(batch):
    """github.com/f-dangel/backpack/issues/49: gradients scaled by 1/B, a short last batch weighted wrong."""
    model = nets.build(nets.mlp).double()

    def mean(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    with pytest.raises(ValueError, match=r"loss returned a scalar; .*reduction='none'"):
        collect(model, mean, [batch], at="0")
    whole = rows(model, batch, ["0"])["0"]
    x, y = batch
    parts = gradients(model, classification, [(x[:4], y[:4]), (x[4:], y[4:])], at=["0"])["0"]
    assert nets.relative_error(parts, whole) < 1e-12


def test_sums_and_never_means_of_means():
    """github.com/Lightning-AI/pytorch-lightning/issues/2924: 5.17 instead of 4.5 for batches of 4, 4, 2."""
    x = torch.arange(10.0, dtype=torch.float64)[:, None]
    assert float(torch.stack([b.mean() for b in x.split(4)]).mean()) != float(x.mean())
    model = sequential(nn.Identity)
    moments = collect(model, lambda m, b: 0.5 * m(b).square().sum(1), x.split(4), at=["0"], checks=False)
    assert moments["0"].n == 10
    direct = estimate(x.numpy())
    assert estimate(moments["0"]).m2 == pytest.approx(direct.m2, rel=1e-12)


def test_examples_with_nothing_to_predict():
    """github.com/pytorch/pytorch/issues/70348: the mean over no target is NaN."""
    model = nets.build(nets.neox)
    tokens = nets.randint(61, 3, 5)
    labels = tokens.clone()
    labels[1] = -100
    assert torch.isnan(model(input_ids=tokens[1:2], labels=labels[1:2]).loss)
    found = gradients(model, causal_lm, [{"input_ids": tokens, "labels": labels}], at=["gpt_neox.layers.0"])
    assert np.isfinite(found["gpt_neox.layers.0"]).all()
    assert (found.report.examples, found.report.dropped) == (2, 1)


def test_labels_shifted_twice():
    model = nets.build(nets.neox)
    tokens = nets.randint(61, 3, 5)
    shifted = torch.cat([tokens[:, 1:], torch.full((3, 1), -100)], 1)
    with pytest.raises(ValueError, match="already shifted by one"):
        collect(model, causal_lm, [{"input_ids": tokens, "labels": shifted}], at=["gpt_neox.layers.0"])


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e30])
def test_tiny_and_huge_gradients(scale):
    """github.com/google-deepmind/jax_privacy/pull/309: squares of fp16 and m2^2 in float32 underflow."""
    tiny = torch.full((1000,), 1e-5, dtype=torch.float16)
    assert float((tiny * tiny).sum()) == 0
    x = nets.randn(30, 5) + 2

    def loss(factor):
        return lambda model, batch: factor * model(batch).square().sum(1)

    model = nets.build(nets.mlp)
    plain = estimate(collect(model, loss(1.0), [x], at="0")["0"])
    scaled = estimate(collect(model, loss(scale), [x], at="0")["0"])
    assert scaled.d_par == pytest.approx(plain.d_par, rel=1e-4)
    assert scaled.d_2 == pytest.approx(plain.d_2, rel=1e-4)


def test_zero_initialised_blocks_need_one_factor_that_is_not_zero():
    """github.com/Guitaricet/relora/issues/18: with two zero factors the gradient stays zero forever."""
    model, z = nets.build(nets.mlp), nets.randn(6, 5)
    y = nets.randint(3, 6)
    captured = gradients(model, classification, [(z, y)], at="0")["0"]
    for first, dead in ((0.0, True), (1.0, False)):
        inner = first * nets.randn(8, 8)
        last = torch.zeros(8, 8, requires_grad=True)

        def block(module, args, output, inner=inner, last=last):
            return output + output.detach() @ inner @ last

        with model[0].register_forward_hook(block):
            F.cross_entropy(model(z), y).backward()
        hidden = model[0](z).detach() @ inner
        # the gradient of the zeroed last layer is that of the captured output, times what enters the layer
        expected = hidden.T @ torch.as_tensor(captured) / len(z)
        assert nets.relative_error(last.grad, expected) < 1e-5 or dead
        assert bool(last.grad.abs().max() == 0) is dead


def test_more_numbers_than_quantile_functions_take():
    """github.com/pytorch/pytorch/issues/64947: torch.quantile refuses inputs of more than 2^24 entries."""
    rows = np.ones((1 << 19, 33), dtype=np.float32)
    rows[::2] = 0.5
    assert rows.size > 1 << 24
    e = estimate(GradientMoments.from_array(rows, copy=False), correct=False)
    assert (e.m2, e.tr_sigma) == pytest.approx((33 * 0.75**2, 33 / 16), rel=1e-5)
    assert min(e.m2_squared, e.mu_sigma_mu) > 0


def test_nothing_that_json_cannot_say(batch):
    """A certificate of anything is valid JSON: nulls for what does not exist, never NaN."""
    model = nets.build(nets.mlp).double()
    moments = collect(model, classification, [batch], at="0")["0"]
    cases = [
        certificate(moments, M=2, K=2),
        certificate(np.ones((20, 3)), M=2, K=2),
        certificate(np.zeros((20, 3)), M=2, K=2),
        certificate(np.eye(20), M=2, K=2, tier="replicates"),
        certificate(np.zeros((20, 3)), M=2, K=2, tier="plug-in"),
    ]
    for c in cases:
        json.loads(c.to_json(), parse_constant=lambda text: pytest.fail(f"{text} in JSON"))
        assert type(c).from_json(c.to_json()) == c


# --- checkpointing, compilation, wrappers ----------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self, reentrant=None):
        super().__init__()
        self.stem = nn.Linear(5, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.tail = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.head, self.reentrant = nn.Linear(8, 3), reentrant

    def forward(self, x):
        x = self.stem(x)
        for part in (self.body, self.tail):
            x = part(x) if self.reentrant is None else checkpoint(part, x, use_reentrant=self.reentrant)
        return self.head(x)


def test_checkpointing_without_reentry(batch):
    """github.com/pytorch/pytorch/issues/143573: hooks fire again when the forward pass is recomputed."""
    plain = nets.build(lambda: Checkpointed(None)).double()
    model = nets.build(lambda: Checkpointed(False)).double()
    for at in (["stem", "body.0", "body.2", "body", "tail.1", "head"], ["body.2"], ["tail.0"]):
        expected, found = rows(plain, batch, at), rows(model, batch, at)
        for name in at:
            assert nets.relative_error(found[name], expected[name]) < 1e-12


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
def test_reentrant_checkpointing(batch):
    plain = nets.build(lambda: Checkpointed(None)).double()
    model = nets.build(lambda: Checkpointed(True)).double()
    remedy = r"use_reentrant=False.*switch checkpointing off"
    with pytest.raises(CaptureError, match=f"reentrant gradient checkpointing above a captured .*{remedy}"):
        rows(model, batch, ["stem"])
    with pytest.raises(CaptureError, match=f"module 'body.0' ran under torch.no_grad .*{remedy}"):
        rows(model, batch, ["body.0", "head"])
    # above all checkpointed parts nothing stands in the way
    assert np.array_equal(rows(model, batch, ["head"])["head"], rows(plain, batch, ["head"])["head"])
    assert all(not m._forward_hooks for m in model.modules())


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`:FutureWarning")
def test_checkpointing_of_transformers_models():
    model = nets.build(nets.neox).double()
    data = [{"input_ids": nets.randint(61, 3, 6)}]
    at = ["gpt_neox.layers.0", "gpt_neox.layers.2"]
    expected = gradients(model, causal_lm, data, at=at)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()  # these models checkpoint in training mode only; their dropout rates are zero here
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    calls = []
    model.gpt_neox.layers[1].attention.register_forward_hook(lambda *args: calls.append(1))
    found = gradients(model, causal_lm, data, at=at, checks=False)
    assert len(calls) == 2, "the layer ran again in the backward pass"
    for name in at:
        assert nets.relative_error(found[name], expected[name]) < 1e-12


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")  # of torch.compile
@pytest.mark.parametrize("how", ["whole", "part", "in place"])
def test_compiled_models(batch, how):
    """github.com/pytorch/pytorch/issues/117758: hooks registered after the first compiled call never fire."""
    expected = rows(nets.build(nets.mlp).double(), batch, ["0", "2"])
    model = nets.build(nets.mlp).double().requires_grad_(False)  # else freezing it would compile it anew
    if how == "whole":
        model = torch.compile(model, backend="eager")
    elif how == "part":
        model[2] = torch.compile(model[2], backend="eager")
    else:
        model.compile(backend="eager")
    before = model(batch[0])
    fired = []
    handle = model.get_submodule("_orig_mod.0" if how == "whole" else "0").register_forward_hook(
        lambda *args: fired.append(1)
    )
    model(batch[0])
    handle.remove()
    if how == "whole":
        assert fired == []
    found = rows(model, batch, ["0", "2"])
    for name in found:
        assert nets.relative_error(found[name], expected[name]) < 1e-12
    with capture(model, ["0", "2"]) as captured:
        again = captured.gradients(classification(model, batch))
    assert nets.relative_error(again["0"], expected["0"]) < 1e-12
    assert torch.equal(model(batch[0]), before)


@pytest.mark.parametrize("name", ["0", "module.0"])
def test_data_parallel_prefixes(batch, name):
    model = nets.build(nets.mlp).double()
    expected = rows(model, batch, ["0"])["0"]
    assert np.array_equal(rows(nn.DataParallel(model), batch, [name])[name], expected)
    assert np.array_equal(rows(model, batch, [name])[name], expected)


@pytest.mark.parametrize("find_unused", [False, True])
def test_distributed_data_parallel(batch, tmp_path, find_unused):
    model = nets.build(nets.mlp).double()
    expected = rows(model, batch, ["0"])["0"]
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{tmp_path}/store",
        rank=0,
        world_size=1,
        timeout=datetime.timedelta(seconds=30),
    )
    try:
        wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=find_unused)
        assert np.array_equal(rows(wrapped, batch, ["module.0"])["module.0"], expected)
        for _ in range(3):  # through the wrapper, again and again
            with capture(wrapped, ["0"]) as captured:
                assert np.array_equal(captured.gradients(classification(wrapped, batch))["0"], expected)
        classification(wrapped, batch).sum().backward()  # and training goes on
        assert model[0].weight.grad is not None
    finally:
        torch.distributed.destroy_process_group()


# --- units -----------------------------------------------------------------------------------------------


def test_tokens_are_no_units():
    model = nets.build(nets.neox)
    with pytest.raises(ValueError, match="tokens of one sequence are not independent"):
        collect(
            model,
            causal_lm,
            [{"input_ids": nets.randint(61, 2, 4)}],
            at=["gpt_neox.layers.0"],
            unit="token",
        )


def test_augmentations_of_one_image_are_one_unit(batch):
    """Copies that count as units make signal out of noise; grouped by source they do not."""
    model = nets.build(nets.mlp).double()
    x, y = (t.repeat_interleave(4, 0) for t in batch)
    grouped = estimate(
        collect(model, classification, [(x, y)], at="0", unit=lambda b: torch.arange(len(b[1])) // 4)["0"]
    )
    once = estimate(collect(model, classification, [batch], at="0")["0"])
    copies = estimate(collect(model, classification, [(x, y)], at="0")["0"])
    assert grouped.n == once.n == 6
    assert grouped.m2 == pytest.approx(once.m2, rel=1e-10)
    assert copies.m2 > 1.2 * once.m2


# --- hooks -----------------------------------------------------------------------------------------------


def test_hooks_after_an_exception():
    """github.com/cybertronai/autograd-lib/issues/5: a hook left behind."""
    model = nets.build(nets.mlp)
    with pytest.raises(ModelError, match=r"RuntimeError: .*shapes cannot be multiplied"):
        collect(model, classification, [(nets.randn(2, 7), nets.randint(3, 2))], at=["0", "2"])
    assert all(not m._forward_hooks for m in model.modules())
    assert all(p.requires_grad for p in model.parameters())
