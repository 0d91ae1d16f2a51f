"""A sweep: units, groups, limits, checks, provenance, and agreement of moments with the gradients."""

from __future__ import annotations

import collections
import dataclasses
import math
import types
import weakref

import capture_models as nets
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from certify.certification import certificate
from certify.errors import CaptureError, DependenceError, ModelError
from certify.estimators import estimate
from certify.losses import PerExample, classification
from certify.nested import map_tensors, take_examples
from certify.sweep import collect, gradients


@pytest.fixture
def model():
    return nets.build(nets.mlp).double()


@pytest.fixture
def batches():
    x, y = nets.randn(20, 5, dtype=torch.float64), nets.randint(3, 20)
    return [(x[:8], y[:8]), (x[8:16], y[8:16]), (x[16:], y[16:])]


def test_collect_takes_moments_of_the_gradients(model, batches):
    rows = gradients(model, classification, batches, at=["0", "2"])
    moments = collect(model, classification, batches, at=["0", "2"])
    assert list(moments) == ["0", "2"]
    for name in moments:
        assert (moments[name].n, moments[name].d) == (20, 8)
        assert moments[name].metadata == {
            "module": name,
            "positions": "sum",
            "unit": "example",
            "dtype": "float64",
        }
        found, direct = estimate(moments[name]), estimate(rows[name])
        for key in ("m2", "m2_squared", "mu_sigma_mu", "tr_sigma2", "tr_sigma"):
            assert getattr(found, key) == pytest.approx(getattr(direct, key), rel=1e-10)


def test_report(model, batches):
    seen = []
    found = gradients(
        model, classification, batches, at="0", progress=lambda done, total: seen.append((done, total))
    )
    report = found.report
    assert (report.at, report.positions, report.unit) == (("0",), "sum", "example")
    assert (report.units, report.examples, report.dropped, report.batches) == (20, 20, 0, 3)
    assert report.dtypes == {"0": "float64"}
    assert len(report.checks) == 6
    assert seen == [(8, None), (16, None), (20, None)]
    unchecked = gradients(model, classification, batches, at="0", checks=False).report
    assert len(unchecked.checks) == 2
    x, y = (torch.cat(t) for t in zip(*batches, strict=True))
    gradients(
        model,
        classification,
        DataLoader(TensorDataset(x, y), batch_size=15),
        at="0",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[3:] == [(15, 20), (20, 20)]


def test_order_and_batch_size_do_not_matter(model, batches):
    x, y = (torch.cat(t) for t in zip(*batches, strict=True))
    a = gradients(model, classification, batches, at="0")["0"]
    b = gradients(model, classification, [(x[i : i + 1], y[i : i + 1]) for i in range(20)], at="0")["0"]
    assert nets.relative_error(a, b) < 1e-12


@pytest.mark.parametrize("limit", [1, 8, 13, 20, 99])
def test_max_units(model, batches, limit):
    full = gradients(model, classification, batches, at="0")["0"]
    found = gradients(model, classification, batches, at="0", max_units=limit)
    assert np.array_equal(found["0"], full[:limit])
    assert found.report.units == found.report.examples == min(limit, 20)
    assert collect(model, classification, batches, at="0", max_units=limit)["0"].n == min(limit, 20)


def test_groups_are_averaged_over_batches(model, batches):
    keys = np.array(["a", "b", "c", "a", "a", "b", "d", "d"] + ["b", "e", "a", "c"] * 2 + ["f"] * 4)
    full = gradients(model, classification, batches, at="0")["0"]
    offsets = iter([0, 8, 16])

    def document(batch):
        start = next(offsets)
        return keys[start : start + len(batch[1])]

    found = gradients(model, classification, batches, at="0", unit=document)
    order = list(dict.fromkeys(keys.tolist()))
    assert found["0"].shape == (len(order), 8)
    for row, key in zip(found["0"], order, strict=True):
        assert nets.relative_error(row, full[keys == key].mean(0)) < 1e-12
    assert (found.report.unit, found.report.units, found.report.examples) == ("document", 6, 20)

    offsets = iter([0, 8, 16])
    first = gradients(model, classification, batches, at="0", unit=document, max_units=2)
    assert nets.relative_error(first["0"], found["0"][:2]) < 1e-12, "groups are completed, not cut"


def test_groups_of_one_are_examples(model, batches):
    counter = iter(range(20))
    ids = collect(
        model, classification, batches, at="0", unit=lambda b: torch.tensor([next(counter) for _ in b[1]])
    )
    assert ids["0"].n == 20


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"unit": "token"}, ValueError, "unit='token': tokens of one sequence are not independent"),
        ({"unit": "batch"}, ValueError, "unit='batch': expected 'example' or a callable"),
        ({"unit": 3}, TypeError, "unit is a int"),
        ({"unit": lambda b: [1]}, ValueError, r"unit\(batch\) gave 1 keys for 8 examples"),
        ({"unit": lambda b: [[1]] * len(b[1])}, TypeError, r"gave the key \[1\]; expected hashable"),
        ({"unit": lambda b: 7}, TypeError, r"unit\(batch\) gave a int; expected one group key"),
        ({"unit": lambda b: [math.nan] * len(b[1])}, TypeError, "gave the key nan"),
        ({"max_units": 0}, ValueError, "max_units=0: expected a whole number"),
        ({"max_units": True}, TypeError, "max_units=True: expected a whole number"),
        ({"memory_budget": 0}, ValueError, "memory_budget=0: expected a whole number"),
        ({"memory_budget": "1GB"}, TypeError, "memory_budget='1GB': expected a whole number"),
        ({"memory_budget": 1, "at": ["0", "2"]}, ValueError, "at least one byte for each of 2 modules"),
        ({"device": "gpu"}, ValueError, "device='gpu' is not available here"),
        ({"device": "meta"}, ValueError, "device='meta', but the model is on cpu; call model.to"),
        ({"channel_axis": "c"}, TypeError, "channel_axis='c': expected an integer"),
        ({"loader": None}, TypeError, "loader is a NoneType"),
        ({"loss": lambda m, b: m(b[0]).argmax(1)}, CaptureError, r"losses \(torch.int64\) carry no gradient"),
        ({"at": ["00"]}, ValueError, "at='00' names no module of Sequential"),
        ({"positions": "none"}, ValueError, "positions='none'"),
        ({"loss": "cross_entropy"}, TypeError, "loss is a str; a loss is called as loss"),
        (
            {"loss": nn.CrossEntropyLoss()},
            TypeError,
            r"CrossEntropyLoss does not take \(model, batch\); a loss",
        ),
        ({"loss": lambda out: out}, TypeError, r"called as loss\(model, batch\) -> one value per example"),
        ({"loss": lambda out, y: out - y}, ModelError, "on batch 0: TypeError: .*; a loss is called as loss"),
        (
            {"loader": TensorDataset(torch.zeros(4, 5))},
            TypeError,
            r"loader is a TensorDataset; expected an iterable of batches; wrap .*DataLoader\(dataset, batch_",
        ),
        ({"model": 3}, TypeError, "model is a int"),
        ({"loader": []}, ValueError, "the loader gave 0 batches"),
    ],
)
def test_bad_arguments(model, batches, options, error, message):
    arguments = {"model": model, "loss": classification, "loader": batches, "at": ["0"]} | options
    with pytest.raises(error, match=message):
        collect(**arguments)


def test_errors_of_the_callers_code_name_the_batch(model, batches):
    def loss(model, batch):
        return model(batch[0])[torch.arange(len(batch[1])), batch[1]]

    (x, y), *rest = batches
    with pytest.raises(
        ModelError, match=r"your model \(or loss\) failed on batch 2: IndexError: index "
    ) as e:
        collect(model, loss, [*rest, (x, y + 3)], at="0")
    assert isinstance(e.value.__cause__, IndexError)
    with pytest.raises(
        ModelError, match=r"failed on batch 0: RuntimeError: mat1 and mat2 shapes(?!.*called as)"
    ):
        collect(model, classification, [(x[:, :2], y)], at="0")

    class OneByOne(nn.Module):
        def forward(self, x):
            assert len(x) > 1, "pairs only"
            return x

    model.append(OneByOne())
    with pytest.raises(ModelError, match="on batch 0, its examples one by one: AssertionError: pairs only"):
        collect(model, classification, batches, at="0")

    def broken():
        yield x, y
        raise OSError("disk gone")

    with pytest.raises(ModelError, match="your data failed on batch 1: OSError: disk gone"):
        collect(model, classification, broken(), at="0", checks=False)
    with pytest.raises(ModelError, match="your unit function failed on batch 0: ZeroDivisionError"):
        collect(model, classification, batches, at="0", checks=False, unit=lambda batch: 1 / 0)


def test_a_sweep_is_told_from_the_moments_in_it(model, batches):
    found = collect(model, classification, batches, at=["0", "2"])
    with pytest.raises(KeyError, match="'4' was not measured; this sweep has '0', '2'"):
        found["4"]
    assert found.get("4") is None
    with pytest.raises(
        TypeError, match=r"Q is a Sweep with '0', '2'.*moments\['0'\], or call certificates\(\)"
    ):
        certificate(found, M=4, K=4)


def test_flatten_needs_one_size():
    model = nets.build(lambda: nn.Conv2d(1, 2, 3))

    def loss(model, batch):
        return model(batch).square().sum((1, 2, 3))

    with pytest.raises(ValueError, match="module '' gives 72 numbers per example in batch 1 and 32 before"):
        gradients(model, loss, [nets.randn(2, 1, 6, 6), nets.randn(2, 1, 8, 8)], at=[""], positions="flatten")


def test_padded_samplers_are_refused(model, batches):
    x, y = (torch.cat(t) for t in zip(*batches, strict=True))
    data = TensorDataset(x, y)
    padded = DistributedSampler(data, num_replicas=3, rank=0, shuffle=False)
    with pytest.raises(ValueError, match="DistributedSampler pads 20 examples to 21 by repeating"):
        collect(model, classification, DataLoader(data, sampler=padded, batch_size=4), at="0")
    exact = DistributedSampler(data, num_replicas=2, rank=0, shuffle=False)
    assert collect(model, classification, DataLoader(data, sampler=exact), at="0")["0"].n == 10
    even = DataLoader(data)
    even.__dict__["batch_sampler"] = types.SimpleNamespace(even_batches=True, num_processes=2)
    with pytest.raises(ValueError, match=r"repeats examples to make batches even.*even_batches=False"):
        collect(model, classification, even, at="0")
    dropping = DistributedSampler(data, num_replicas=3, rank=0, shuffle=False, drop_last=True)
    assert collect(model, classification, DataLoader(data, sampler=dropping), at="0")["0"].n == 6


@pytest.mark.parametrize(
    "make",
    [
        lambda data: RandomSampler(data, replacement=True),
        lambda data: RandomSampler(data, num_samples=2 * len(data)),
        lambda data: WeightedRandomSampler(torch.ones(len(data)), len(data)),
    ],
)
def test_samplers_that_draw_twice_are_refused(model, batches, make):
    data = TensorDataset(*(torch.cat(t) for t in zip(*batches, strict=True)))
    with pytest.raises(ValueError, match="draws examples more than once, and copies are not independent"):
        collect(model, classification, DataLoader(data, sampler=make(data)), at="0")


def test_empty_batches_and_generators_are_fine(model, batches):
    x, y = batches[0]
    found = collect(model, classification, iter([(x[:0], y[:0]), *batches, (x[:0], y[:0])]), at="0")
    assert found["0"].n == 20


def test_keys_that_are_tensors_group_by_value(model, batches):
    found = collect(model, classification, batches, at="0", unit=lambda batch: list(batch[1]))
    assert found["0"].n == len({int(k) for _, y in batches for k in y})


def test_all_modules_share_the_memory_budget(batches):
    model = nn.Sequential(nn.Linear(5, 400), nn.Tanh(), nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 3))
    budget = 600_000
    many = [(torch.randn(64, 5), torch.randint(3, (64,))) for _ in range(10)]
    four = collect(model.eval(), classification, many, at=["0", "1", "2", "3"], memory_budget=budget)
    assert sum(m.nbytes for m in four.values()) <= budget
    assert {m.memory_budget for m in four.values()} == {budget // 4}


# --- dependence ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: nn.BatchNorm1d(8), r"training mode: '1' \(BatchNorm1d\) couples .*; call model\.eval\(\)"),
        (lambda: nn.Dropout(0.2), r"training mode: '1' \(Dropout, dropout 0\.2\) adds noise"),
    ],
)
def test_training_mode_is_refused(layer, message, batches):
    model = nets.build(lambda: nn.Sequential(nn.Linear(5, 8), layer(), nn.Linear(8, 3))).double().train()
    with pytest.raises(DependenceError, match=message):
        collect(model, classification, batches, at="0")
    assert collect(model.eval(), classification, batches, at="0")["0"].n == 20


def test_training_mode_without_such_layers_is_fine(batches):
    model = (
        nets.build(lambda: nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.0), nn.LayerNorm(8), nn.Linear(8, 3)))
        .double()
        .train()
    )
    assert collect(model, classification, batches, at="0")["0"].n == 20
    assert model.training


def test_batch_statistics_in_eval_mode_are_refused(batches):
    model = (
        nets.build(
            lambda: nn.Sequential(
                nn.Linear(5, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3)
            )
        )
        .double()
        .train()
    )
    with pytest.raises(DependenceError, match=r"'1' \(BatchNorm1d\) has track_running_stats=False"):
        collect(model.double().eval(), classification, batches, at="0")


class BatchMean(nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)


class DetachedBatchScale(nn.Module):
    """Couples the examples in the forward pass only."""

    def forward(self, x):
        return x / x.detach().std(0, correction=0, keepdim=True).clamp(min=0.05)


class Noise(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.3, training=True)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            BatchMean,
            r"depends on its batch \(outputs first differ at module '1' \(BatchMean\)\); examples must",
        ),
        (DetachedBatchScale, r"outputs first differ at module '1' \(DetachedBatchScale\)"),
        (
            Noise,
            r"gradient at '0' differs between two runs on the same example \(outputs first differ at mod",
        ),
    ],
)
def test_the_probe_names_the_layer(layer, message, batches):
    model = nets.build(lambda: nn.Sequential(nn.Linear(5, 8), layer(), nn.Tanh(), nn.Linear(8, 3))).double()
    with pytest.raises(DependenceError, match=message):
        collect(model, classification, batches, at="0")
    assert collect(model, classification, batches, at="0", checks=False)["0"].n == 20


def test_weak_coupling_of_losses_is_seen(model, batches):
    """A penalty of 1e-3 on the spread of the logits over the batch, too small for any forward comparison."""

    def loss(model, batch):
        logits = model(batch[0])
        values = F.cross_entropy(logits, batch[1], reduction="none")
        return values + 1e-3 * (logits * logits.mean(0)).sum(1)

    with pytest.raises(DependenceError, match=r"another example's '0'|depends on its batch"):
        collect(model, loss, batches, at="0")


def test_mean_reduced_losses_are_recognised(model, batches):
    def divided(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none") / len(batch[1])

    with pytest.raises(DependenceError, match="8 times that in its batch of 8: the loss looks mean-reduced"):
        collect(model, divided, batches, at="0")

    def expanded(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1]).expand(len(batch[1]))

    # each entry is the mean: the sum over entries is the right gradient, but examples interact
    with pytest.raises(
        DependenceError, match=r"has a gradient at another example's '0'.*use a per-example loss"
    ):
        collect(model, expanded, batches, at="0")


def test_the_probe_costs_at_most_six_examples(model, batches):
    seen = []
    model.register_forward_pre_hook(lambda m, args: seen.append(len(args[0])))
    collect(model, classification, batches, at="0")
    assert seen[0] == 8
    assert seen[-2:] == [8, 4]
    assert sum(seen) - 20 <= 6


def test_the_probe_skips_dropped_examples(model):
    x, y = nets.randn(4, 5, dtype=torch.float64), nets.randint(3, 4)

    def loss(model, batch):
        x, y, keep = batch
        return PerExample(F.cross_entropy(model(x), y, reduction="none"), keep=keep)

    none, some = torch.zeros(4, dtype=torch.bool), torch.tensor([False, True, False, True])
    found = gradients(model, loss, [(x, y, none), (x, y, some)], at="0")
    whole = gradients(model, classification, [(x, y)], at="0")["0"]
    assert nets.relative_error(found["0"], whole[some.numpy()]) < 1e-12
    assert found.report.dropped == 6
    assert np.array_equal(gradients(model, loss, [(x, y, some)], at="0", max_units=1)["0"], found["0"][:1])
    grouped = gradients(model, loss, [(x, y, some)], at="0", unit=lambda batch: ["a", "a", "b", "a"])
    assert nets.relative_error(grouped["0"][0], found["0"].mean(0)) < 1e-12
    assert grouped.report.units == 1


def test_batches_that_cannot_be_cut(model, batches):
    class Batch:
        def __init__(self, x, y):
            self.x, self.y = x, y

    def loss(model, batch):
        return F.cross_entropy(model(batch.x), batch.y, reduction="none")

    own = [Batch(*b) for b in batches]
    with pytest.raises(
        TypeError, match=r"cannot cut single examples out of a batch of type Batch .*checks=False"
    ):
        collect(model, loss, own, at="0")
    assert collect(model, loss, own, at="0", checks=False)["0"].n == 20


Named = collections.namedtuple("Named", "x y")


@dataclasses.dataclass
class Data:
    x: torch.Tensor
    names: list


def test_examples_are_cut_from_nested_batches():
    x, y = torch.arange(6.0).reshape(3, 2), torch.arange(3)
    assert take_examples(x, [2, 0], 3).tolist() == [[4, 5], [0, 1]]
    assert take_examples((x, y), [1], 3)[1].tolist() == [1]
    pair = take_examples([x[:2], y[:2]], [1], 2)
    assert (pair[0].tolist(), pair[1].tolist()) == ([[2, 3]], [1]), "a pair is not a batch of two"
    named = take_examples(Named(x, y), [0], 3)
    assert isinstance(named, Named)
    assert named.y.tolist() == [0]
    data = take_examples(Data(x, ["a", "b", "c"]), [2], 3)
    assert (data.names, data.x.tolist()) == (["c"], [[4, 5]])
    nested = take_examples({"in": {"ids": y.numpy()}, "k": 7, "shared": torch.zeros(1, 2)}, [1], 3)
    assert nested["in"]["ids"].tolist() == [1]
    assert nested["k"] == 7
    assert nested["shared"].shape == (1, 2)
    assert take_examples([{"box": 1}, {"box": 2}, {"box": 3}], [1], 3) == [{"box": 2}]
    assert take_examples(types.MappingProxyType({"x": y}), [2], 3)["x"].tolist() == [2]


def test_batches_of_a_tokenizer_stay_what_they_are():
    from transformers import BatchEncoding

    batch = BatchEncoding({"input_ids": torch.arange(6).reshape(3, 2)})
    one = take_examples(batch, [1], 3)
    assert isinstance(one, BatchEncoding)
    assert one["input_ids"].tolist() == [[2, 3]]
    assert batch["input_ids"].shape == (3, 2)
    moved = map_tensors(lambda t: t + 1, batch)
    assert isinstance(moved, BatchEncoding)
    assert moved["input_ids"].tolist() == [[1, 2], [3, 4], [5, 6]]


def test_no_batch_or_graph_outlives_its_turn(model):
    inputs, outputs, alive = [], [], []
    model[2].register_forward_hook(lambda m, args, out: outputs.append(weakref.ref(out)))

    def loader():
        for k in range(12):
            x = nets.randn(8, 5, seed=k, dtype=torch.float64)
            inputs.append(weakref.ref(x))
            yield x, nets.randint(3, 8, seed=k)

    def watch(done, total):
        alive.append((sum(r() is not None for r in inputs), sum(r() is not None for r in outputs)))

    collect(model, classification, loader(), at=["0", "2"], progress=watch)
    assert alive[2:] == [alive[2]] * 10
    assert alive[2][0] <= 2
    assert alive[2][1] == 0, "the graph is freed before the next batch is read"
