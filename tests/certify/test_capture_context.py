"""The context manager: names, hooks, parameters, graphs, and what it refuses."""

from __future__ import annotations

import collections
import dataclasses

import capture_models as nets
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from certify.errors import CaptureError, NonFiniteError
from certify.hooks import capture
from certify.losses import PerExample, classification
from certify.nested import primary_tensor
from certify.sites import unwrap
from certify.sweep import gradients


@pytest.fixture
def model():
    return nets.build(nets.mlp)


@pytest.fixture
def batch():
    return nets.randn(6, 5), nets.randint(3, 6)


def one_pass(model, batch, at, **options):
    with capture(model, at, **options) as captured:
        return captured.gradients(classification(model, batch))


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_everything_is_put_back(model, batch):
    model[2].weight.requires_grad_(False)
    before = [p.requires_grad for p in model.parameters()]
    with torch.no_grad():
        one_pass(model, batch, ["0"])
        assert not torch.is_grad_enabled()
    assert hooks(model) == 0
    assert [p.requires_grad for p in model.parameters()] == before


@pytest.mark.parametrize("where", ["forward", "block", "loss"])
def test_everything_is_put_back_after_an_exception(model, batch, where):
    def attempt():
        with capture(model, ["0"]) as captured:
            if where == "forward":
                model(torch.zeros(2, 17))
            if where == "loss":
                captured.gradients(model(batch[0]).sum())
            raise KeyboardInterrupt

    with pytest.raises((RuntimeError, ValueError, KeyboardInterrupt)):
        attempt()
    assert hooks(model) == 0
    assert all(p.requires_grad for p in model.parameters())
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_failing_consumer_leaves_no_hooks(model, batch):
    def stop(*counts):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        gradients(model, classification, [batch, batch], at="0", progress=stop)
    assert hooks(model) == 0, caught
    assert all(p.requires_grad for p in model.parameters())


def test_no_parameter_gradient_and_nothing_below_is_differentiated(model, batch):
    below = []

    class Watch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            below.append(g)
            return g

    class Probe(nn.Module):
        def forward(self, x):
            below.append(x.requires_grad)
            return Watch.apply(x)

    model = nn.Sequential(model[0], Probe(), *model[1:])
    x, y = batch
    one_pass(model, (x, y), ["3"])
    assert below == [False], "no graph is built below the lowest captured module"
    assert all(p.grad is None for p in model.parameters())
    below.clear()
    one_pass(model, (x.clone().requires_grad_(), y), ["3"])
    assert below == [True], "an input that requires grad makes a graph, which is not differentiated"


def test_chain_branches_and_nesting_in_one_sweep(batch):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Linear(5, 4)
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
            self.trunk = nn.Sequential(nn.Tanh(), nn.Linear(4, 3))

        def forward(self, x):
            x = self.stem(x)
            return self.trunk(self.left(x) * self.right(x))

    model = nets.build(Branches).double()
    x, y = batch[0].double(), batch[1]
    names = ["stem", "left", "right", "trunk", "trunk.0", "trunk.1", ""]
    expected = nets.loop_gradients(
        model, names, zip(x, y, strict=True), lambda m, e: F.cross_entropy(m(e[0][None]), e[1][None])
    )
    together = one_pass(model, (x, y), names)
    for name in names:
        assert nets.relative_error(together[name], expected[name]) < 1e-12
        assert torch.equal(one_pass(model, (x, y), [name])[name], together[name])


def test_an_alias_of_the_input_is_not_the_input(batch):
    """An identity on one branch: the gradient of its output is not that of the tensor it passes on."""

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.identity, self.head = nn.Linear(5, 5), nn.Identity(), nn.Linear(5, 3)

        def forward(self, x):
            x = self.first(x)
            return self.head(3 * x + self.identity(x))

    rows = one_pass(nets.build(Residual), batch, ["first", "identity"])
    assert nets.relative_error(rows["first"], 4 * rows["identity"]) < 1e-6


@pytest.mark.parametrize("change", ["relu", "add", "view"])
def test_changes_in_place_after_the_module(change, batch):
    class Net(nn.Module):
        def __init__(self, inplace):
            super().__init__()
            self.first, self.head, self.inplace = nn.Linear(5, 5), nn.Linear(5, 3), inplace

        def forward(self, x):
            z = self.first(x)
            if change == "relu":
                out = F.relu(z, inplace=self.inplace)
            elif change == "add":
                out = z.add_(x).mul_(2) if self.inplace else (z + x) * 2
            elif self.inplace:
                out = z
                out[:, :2] = 0
            else:
                out = torch.cat([torch.zeros_like(z[:, :2]), z[:, 2:]], 1)
            return self.head(out)

    inplace, plain = nets.build(lambda: Net(True)), nets.build(lambda: Net(False))
    a, b = one_pass(inplace, batch, ["first"])["first"], one_pass(plain, batch, ["first"])["first"]
    assert torch.equal(a, b)
    # a hook that merely remembers the output gets this wrong, or torch refuses it
    if change == "relu":
        seen = []
        inplace.first.register_forward_hook(lambda m, i, out: seen.append(out))
        naive = torch.autograd.grad(classification(inplace, batch).sum(), seen[0])[0]
        assert nets.relative_error(naive, b) > 0.3


def test_frozen_parameters_and_inference_mode(model, batch):
    expected = one_pass(model, batch, ["2"])["2"]
    model.requires_grad_(False)
    assert torch.equal(one_pass(model, batch, ["2"])["2"], expected)
    with torch.inference_mode():
        assert torch.equal(one_pass(model, batch, ["2"])["2"], expected)


def test_several_passes_in_one_block(model, batch):
    with capture(model, "0") as captured:
        a = captured.gradients(classification(model, batch))
        model(batch[0])
        captured.reset()
        b = captured.gradients(classification(model, batch))
    assert torch.equal(a["0"], b["0"])


def test_peak_graph_is_freed(model, batch):
    with capture(model, "0") as captured:
        losses = classification(model, batch)
        captured.gradients(losses)
        with pytest.raises(RuntimeError, match="second time"):
            losses.sum().backward()


# --- names -----------------------------------------------------------------------------------------------


def test_unknown_names_suggest_close_ones():
    model = nets.build(nets.ResNet20)
    with pytest.raises(ValueError, match=r"at='layer4.0' names no module of ResNet20; close names: 'layer"):
        capture(model, ["layer4.0"]).__enter__()
    with pytest.raises(ValueError, match=r"its top modules are 'conv1', 'bn1', 'layer1'"):
        capture(model, ["zzz"]).__enter__()
    assert hooks(model) == 0


@pytest.mark.parametrize(
    ("at", "error", "message"),
    [
        ([], ValueError, r"at=\[\]: expected at least one"),
        (["0", "0"], ValueError, "at contains '0' more than once"),
        (["0", "module.0"], ValueError, "at contains 'module.0' more than once"),
        (None, TypeError, "at is a NoneType; expected module names"),
        ([3], TypeError, "at contains 3 of type int"),
        (["0#x"], ValueError, r"at='0#x': expected 'module#k'"),
    ],
)
def test_bad_names(model, at, error, message):
    with pytest.raises(error, match=message):
        capture(model, at).__enter__()


def test_bad_arguments(model, batch):
    with pytest.raises(TypeError, match=r"model is a function; expected a torch\.nn\.Module"):
        capture(lambda x: x, ["0"]).__enter__()
    with pytest.raises(ValueError, match="positions='average': expected 'sum', 'mean' or 'flatten'"):
        capture(model, ["0"], positions="average").__enter__()
    maps = nets.build(nets.ResNet20)
    for axis in (0, 4, -4):
        with pytest.raises(ValueError, match=rf"channel_axis={axis} for module 'layer1'.*axis from 1 to 3"):
            one_pass(maps, (nets.randn(2, 3, 8, 8), nets.randint(10, 2)), ["layer1"], channel_axis=axis)


@pytest.mark.parametrize("name", ["0", "module.0", "_orig_mod.0", "module._orig_mod.0"])
def test_wrapper_prefixes_are_tolerated(model, batch, name):
    expected = one_pass(model, batch, ["0"])["0"]
    wrapped = nn.DataParallel(model)
    assert unwrap(wrapped) is model
    assert torch.equal(one_pass(wrapped, batch, [name])[name], expected)
    assert torch.equal(one_pass(model, batch, [name])[name], expected)


# --- outputs ---------------------------------------------------------------------------------------------

Pair = collections.namedtuple("Pair", "hidden extra")


@dataclasses.dataclass(frozen=True)
class Record:
    logits: torch.Tensor
    hidden: torch.Tensor


@pytest.mark.parametrize(
    "wrap",
    [
        lambda z: z,
        lambda z: (z,),
        lambda z: (z, None, torch.ones(3)),
        lambda z: [z, "note"],
        lambda z: Pair(z, 1),
        lambda z: {"only": z, "count": 3},
        lambda z: {"last_hidden_state": z, "pooled": z.mean(1)},
        lambda z: Record(z, z.detach()),
    ],
)
def test_containers_are_unwrapped_by_type_and_put_back(wrap, batch):
    class Wrapping(nn.Linear):
        def forward(self, x):
            return wrap(super().forward(x))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = Wrapping(5, 4), nn.Linear(4, 3)

        def forward(self, x):
            out = self.body(x)
            self.seen = type(out)
            return self.head(primary_tensor(out)[0])

    net, plain = nets.build(Net), nets.build(lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)))
    assert torch.equal(one_pass(net, batch, ["body"])["body"], one_pass(plain, batch, ["0"])["0"])
    assert net.seen is type(wrap(torch.zeros(2, 2)))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("text", "output of type str has no tensor"),
        ((), "output of type tuple has no tensor"),
        ({"a": torch.zeros(2), "b": torch.zeros(2)}, r"cannot tell which of the tensors \['a', 'b'\]"),
        (torch.zeros(3, dtype=torch.long), r"'body' returns a torch.int64 tensor"),
        (torch.zeros(()), "with 0 axes"),
    ],
)
def test_unusable_outputs(output, message, batch):
    class Odd(nn.Module):
        def forward(self, x):
            return output

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = Odd(), nn.Linear(5, 3)

        def forward(self, x):
            self.body(x)
            return self.head(x)

    with pytest.raises(CaptureError, match=message):
        one_pass(nets.build(Net), batch, ["body"])


def test_outputs_that_are_not_batch_first(batch):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(5, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.rnn(x[None].expand(7, -1, -1))[0].mean(0))

    with pytest.raises(CaptureError, match=r"'rnn' returns shape \(7, 6, 4\) for 6 examples; axis 0 must be"):
        one_pass(nets.build(Net), batch, ["rnn"])


# --- calls -----------------------------------------------------------------------------------------------


class Reuse(nn.Module):
    def __init__(self, times=3):
        super().__init__()
        self.block, self.head, self.idle = nn.Linear(5, 5), nn.Linear(5, 3), nn.Linear(5, 3)
        self.times = times
        self.alias = self.block

    def forward(self, x):
        for k in range(self.times):
            x = torch.tanh(self.block(x) if k % 2 == 0 else self.alias(x))
        return self.head(x)


def test_a_module_called_more_than_once(batch):
    model = nets.build(Reuse).double()
    batch = (batch[0].double(), batch[1])
    with pytest.raises(CaptureError, match=r"'block' was called 3 times .* '.*block#0' ... 'block#2'"):
        one_pass(model, batch, ["block"])
    with pytest.raises(CaptureError, match="'alias' was called 3 times"):
        one_pass(model, batch, ["alias"])
    with pytest.raises(CaptureError, match=r"'block#5' was called 3 times .* expected at least 6"):
        one_pass(model, batch, ["block#5"])

    class Unrolled(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.head = (nn.Linear(5, 5) for _ in range(4))

        def forward(self, x):
            return self.head(torch.tanh(self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))))

    unrolled = Unrolled().double()
    for layer in (unrolled.a, unrolled.b, unrolled.c):
        layer.load_state_dict(model.block.state_dict())
    unrolled.head = model.head
    expected = one_pass(unrolled, batch, ["a", "b", "c"])
    found = one_pass(model, batch, ["block#0", "block#1", "alias#2"])
    for name, same in (("block#0", "a"), ("block#1", "b"), ("alias#2", "c")):
        assert nets.relative_error(found[name], expected[same]) < 1e-12


def test_a_module_never_called_or_not_used(batch):
    model = nets.build(Reuse)
    with pytest.raises(CaptureError, match="module 'idle' was called 0 times"):
        one_pass(model, batch, ["head", "idle"])
    with capture(model, ["block#0", "head"]) as captured:
        x = model.block(batch[0])
        model.head(x)
        with pytest.raises(
            CaptureError, match=r"does not depend on the output of module 'head' \(called, but"
        ):
            captured.gradients(x.square().sum(1))
        losses = model(batch[0]).sum(1).detach()
        with pytest.raises(CaptureError, match=r"carry no gradient: .* of 'block#0', 'head'"):
            captured.gradients(losses)


def test_no_grad_inside_the_model(batch):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

        def forward(self, x):
            with torch.no_grad():
                x = self.body(x)
            return self.head(x)

    with pytest.raises(CaptureError, match=r"module 'body' ran under torch\.no_grad"):
        one_pass(nets.build(Net), batch, ["body", "head"])


def test_torchscript_is_refused():
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        scripted = torch.jit.script(nn.Sequential(nn.Linear(5, 3)).eval())
    with pytest.raises(ValueError, match="at='0' is a TorchScript module, which runs no hooks"):
        capture(scripted, ["0"]).__enter__()


# --- losses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reduce", "error", "message"),
    [
        (lambda v: v.mean(), ValueError, "loss returned a scalar; .*reduction='none'"),
        (lambda v: v[:, None], ValueError, r"loss returned shape \(6, 1\); expected \(B,\)"),
        (lambda v: v.tolist(), TypeError, "loss returned a list"),
        (lambda v: v[:0], ValueError, r"loss returned shape \(0,\)"),
        (lambda v: v[:3], CaptureError, "returns shape .* for 3 examples"),
        (
            lambda v: v * torch.tensor([1, 1, torch.nan, 1, 1, 1]),
            NonFiniteError,
            "example 2 in batch 0 is nan",
        ),
    ],
)
def test_losses_that_are_not_per_example(model, batch, reduce, error, message):
    with pytest.raises(error, match=message), capture(model, ["0"]) as captured:
        captured.gradients(reduce(F.cross_entropy(model(batch[0]), batch[1], reduction="none")))


def test_gradients_that_are_not_finite_name_module_batch_and_example(model, batch):
    y = torch.tensor([0, 1, 0, 1, 0, 1])
    bad = torch.tensor([0, 1, 0, 1, 2, 1])

    def loss(model, batch):
        values = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        chosen = batch[1] == 2
        return values.masked_scatter(chosen, torch.sqrt(values[chosen] - values[chosen].detach()))  # sqrt'(0)

    with pytest.raises(NonFiniteError, match=r"gradient at module '2' is .*: batch 1, example 4 of 6"):
        gradients(model, loss, [(batch[0], y), (batch[0], bad)], at=["2"])


def test_large_finite_gradients_are_fine(model, batch):
    """Their sum overflows float32, they do not."""
    with capture(model, ["0"], positions="flatten") as captured:
        rows = captured.gradients(classification(model, batch) * 3e37)
    assert torch.isfinite(rows["0"]).all()


def test_dropped_examples_have_zero_rows(model, batch):
    keep = torch.tensor([True, True, False, True, False, True])
    with capture(model, ["0"]) as captured:
        values = classification(model, batch)
        rows = captured.gradients(PerExample(values + 0, keep=keep))["0"]
    assert rows.any(1).tolist() == keep.tolist()


def test_padding_counts_for_nothing_even_if_the_model_looks_at_it():
    """The shift is shared by the real positions, whatever gradient (or NaN) arrives at the others."""
    model = nets.build(nets.postnorm).double()
    x, real = nets.randn(3, 6, 16, dtype=torch.float64), torch.tensor([6, 4, 1])
    mask = torch.arange(6)[None] < real[:, None]

    def rows(positions, noted, nan=False):
        with capture(model, ["encoder.layers.0"], positions=positions) as captured:
            values = model(x).square().sum(1)
            if nan:
                handle = torch.zeros_like(x).masked_fill(~mask[:, :, None], torch.nan)
                node = captured._sites[0].node.node
                node.register_prehook(lambda grads: (grads[0] + handle,))
            losses = PerExample(values + 0, positions=mask) if noted else values
            return captured.gradients(losses)["encoder.layers.0"]

    plain = rows("flatten", False).reshape(3, 6, 16)
    assert plain[~mask].all(), "the model does look at padding"
    for nan in (False, True):
        assert torch.equal(rows("flatten", True, nan).reshape(3, 6, 16), plain * mask[:, :, None])
        total = (plain * mask[:, :, None]).sum(1)
        assert nets.relative_error(rows("sum", True, nan), total) < 1e-12
        assert nets.relative_error(rows("mean", True, nan), total / real[:, None]) < 1e-12


def test_mean_needs_matching_positions():
    model = nets.build(nets.postnorm)
    x = nets.randn(2, 6, 16)

    def loss(model, batch):
        positions = torch.ones(len(batch), 4, dtype=torch.bool)
        return PerExample(model(batch).square().sum(1), positions=positions)

    with pytest.raises(CaptureError, match="has 6 positions but the loss marks real ones among 4"):
        gradients(model, loss, [x], at=["encoder.layers.0"], positions="mean")
    assert gradients(model, loss, [x], at=["encoder.layers.0"])["encoder.layers.0"].shape == (2, 16)
