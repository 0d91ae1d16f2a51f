"""Checks before and during a sweep: may these gradients be treated as independent units?

`refuse_batch_coupling` looks at the modules, `refuse_repeating_sampler` at the loader, and `probe` at the
numbers: a few examples are computed again one by one and the results must agree.  When they do not, both
forward passes are traced and the first module that differs is named.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from certify.errors import CertifyError, DependenceError, ModelError
from certify.hooks import Capture
from certify.nested import can_take_examples, primary_tensor, take_examples

__all__ = ["CHECKS", "CONTRACT", "probe", "refuse_batch_coupling", "refuse_repeating_sampler", "users_code"]

CHECKS = (
    "each module called as often as expected",
    "gradients finite",
    "no batch statistics or dropout in training mode",
    "same example twice gives the same gradient",
    "examples computed one by one agree with the batch",
    "the loss of one example has no gradient at another",
)

# Relative to the largest gradient of the batch.  Other batch sizes take other kernels, and a rounding error
# can flip a ReLU; coupling through batch statistics or a mean-reduced loss changes gradients by far more.
_AGREE = {torch.float64: 1e-6, torch.float32: 3e-2, torch.float16: 5e-2, torch.bfloat16: 2e-1}
_REPEAT = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_EXAMPLES = 3


CONTRACT = (
    "a loss is called as loss(model, batch) -> one value per example, shape (B,); ready-made ones are "
    "classification, regression and causal_lm in certify.losses"
)


@contextlib.contextmanager
def users_code(what: str, where: str, model: nn.Module | None = None) -> Iterator[None]:
    """Say of an error that it comes from the caller's own code, and where; this package's own pass.

    Raises
    ------
    ModelError
        From the error; with the contract of a loss where the loss may not have reached `model`.
    """
    try:
        yield
    except CertifyError:
        raise
    except Exception as error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        if isinstance(error, (ValueError, TypeError)) and frames[-1].f_globals.get("__name__", "").startswith(
            "certify."
        ):
            raise  # a message of our own
        message = f"your {what} failed {where}: {type(error).__name__}: {error}"
        inside = any(frame.f_locals.get("self") is model for frame in frames)
        if model is not None and isinstance(error, (TypeError, AttributeError)) and not inside:
            message += f"; {CONTRACT}"
        raise ModelError(message) from error


def refuse_batch_coupling(model: nn.Module) -> None:
    """Refuse modules that make examples depend on each other or on chance.

    Parameters
    ----------
    model
        The model, in the mode in which it would be measured.

    Raises
    ------
    DependenceError
        If a batch normalisation uses batch statistics or a dropout is active; the message names it.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    >>> try:
    ...     refuse_batch_coupling(model)
    ... except DependenceError as error:
    ...     print(str(error)[:60])
    the model is in training mode: '1' (BatchNorm1d) couples the
    >>> refuse_batch_coupling(model.eval())
    """
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.training:
                raise DependenceError(
                    f"the model is in training mode: {name!r} ({kind}) couples the examples of a batch; "
                    "call model.eval()"
                )
            if module.running_mean is None:
                raise DependenceError(
                    f"{name!r} ({kind}) has track_running_stats=False and couples the examples of a batch "
                    "even in eval mode; use a layer with running statistics, or group normalisation"
                )
        rate = getattr(module, "p", 0.0) if isinstance(module, nn.modules.dropout._DropoutNd) else 0.0
        if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
            rate = module.dropout
        if module.training and isinstance(rate, (int, float)) and rate > 0:
            raise DependenceError(
                f"the model is in training mode: {name!r} ({kind}, dropout {rate}) adds noise that is not "
                "data noise; call model.eval()"
            )


def refuse_repeating_sampler(loader: Any) -> None:
    """Refuse samplers that repeat examples: with replacement, or to fill up the last distributed round.

    Parameters
    ----------
    loader
        Any iterable of batches; only data loaders with a `sampler` are looked at.

    Raises
    ------
    ValueError
        If the sampler would hand out some example twice: a repeated unit biases every U-statistic.

    Examples
    --------
    >>> refuse_repeating_sampler([1, 2, 3])
    """
    batch_sampler = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), getattr(batch_sampler, "sampler", None)):
        source: Any = getattr(sampler, "data_source", None)
        drawn: Any = getattr(sampler, "num_samples", None)
        if getattr(sampler, "replacement", False) or (
            hasattr(source, "__len__") and isinstance(drawn, int) and drawn > len(source)
        ):
            raise ValueError(
                f"the loader's {type(sampler).__name__} draws examples more than once, and copies are not "
                "independent units; use a loader with shuffle=False, or a sampler without replacement"
            )
        total: Any = getattr(sampler, "total_size", None)
        dataset: Any = getattr(sampler, "dataset", None)
        if isinstance(total, int) and hasattr(dataset, "__len__") and total > len(dataset):
            raise ValueError(
                f"the loader's {type(sampler).__name__} pads {len(dataset)} examples to {total} by repeating "
                "some, which biases the estimates; use drop_last=True or Subset(data, range(rank, n, world))"
            )
    if getattr(batch_sampler, "even_batches", False) and getattr(batch_sampler, "num_processes", 1) > 1:
        raise ValueError(
            f"the loader's {type(batch_sampler).__name__} repeats examples to make batches even, which "
            "biases the estimates; prepare it with even_batches=False"
        )


def probe(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    captured: Capture,
    batch: Any,
    rows: Mapping[str, Tensor],
    keep: Tensor | None = None,
) -> None:
    """Compute a few examples of a batch again, alone and in a pair, and compare.

    Three examples (the one with the largest gradient, the first and the last) are computed one by one, the
    first of them twice, and with one companion while only its own loss is differentiated: six examples in
    all, never more than a small batch.

    Parameters
    ----------
    model, loss, captured, batch
        As in the sweep, inside the `with` block of `capture`.
    rows
        Gradients of the whole batch, (B, d) for each module.
    keep
        Boolean (B,): examples that the loss dropped are not probed.

    Raises
    ------
    DependenceError
        If results disagree; the message names captured module, cause and remedy.
    TypeError
        If single examples cannot be cut out of the batch.
    """
    size = len(next(iter(rows.values())))
    if not can_take_examples(batch, size):
        raise TypeError(
            f"cannot cut single examples out of a batch of type {type(batch).__name__} with {size} examples "
            "to check that they do not interact; use tensors, lists, mappings or dataclasses, or checks=False"
        )
    norms = torch.stack([row.detach().double().norm(dim=1).cpu() for row in rows.values()])
    usable = torch.arange(size) if keep is None else keep.cpu().nonzero().flatten()
    if len(usable) == 0:
        return
    largest = int(usable[norms.sum(0)[usable].argmax()])
    chosen = list(dict.fromkeys([largest, int(usable[0]), int(usable[-1])]))[:_EXAMPLES]
    scale = {name: float(norm.max()) for name, norm in zip(rows, norms, strict=True)}
    dtype = _coarsest(captured, next(iter(rows.values())).device.type)

    def run(indices: list[int]) -> Tensor:
        captured.reset()
        return loss(model, take_examples(batch, indices, size))

    alone = {i: captured.gradients(run([i])) for i in chosen}
    again = captured.gradients(run([largest]))
    for name in rows:
        if _distance(alone[largest][name], again[name]) > _REPEAT[dtype] * scale[name]:
            where = _first_difference(model, lambda: run([largest]), lambda: run([largest]))
            raise DependenceError(
                f"gradient at {name!r} differs between two runs on the same example{where}; "
                "call model.eval(), remove dropout or sampling, or fix the noise in the forward pass"
            )
    for i in chosen:
        for name, row in rows.items():
            one, here = alone[i][name], row[i : i + 1]
            if one.shape != here.shape:
                raise DependenceError(
                    f"gradient at {name!r} has {one.shape[1]} entries for example {i} alone and "
                    f"{here.shape[1]} in its batch: the output's axis 0 may not be the batch"
                )
            if _distance(one, here) > _AGREE[dtype] * scale[name]:
                raise DependenceError(_explain(model, run, i, size, name, one, here))
    if size > 1:
        companion = next(j for j in (0, size - 1) if j != largest)
        losses = run([largest, companion])
        values = captured._checked(losses)
        first_only = torch.zeros_like(values)
        first_only[0] = 1
        try:
            raw = captured._backward(values, first_only)
        finally:
            captured.reset()
        for name, gradient in zip(captured.names, raw, strict=True):
            leak, own = float(gradient[1].double().norm()), float(gradient[0].double().norm())
            if leak > _REPEAT[dtype] * own:
                raise DependenceError(
                    f"the loss of one example has a gradient at another example's {name!r}"
                    f"{_coupling(model, run, largest, companion)}; examples must not interact: call "
                    "model.eval(), replace layers that mix the batch, use a per-example loss"
                )


def _coarsest(captured: Capture, device: str) -> torch.dtype:
    names = "+".join(captured.dtypes.values())
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        if str(dtype).removeprefix("torch.") in names.split("+") or dtype is autocast:
            return dtype
    return torch.float64


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm())


def _explain(
    model: nn.Module,
    run: Callable[[list[int]], Tensor],
    index: int,
    size: int,
    name: str,
    alone: Tensor,
    here: Tensor,
) -> str:
    ratio = float((alone.double() * here.double()).sum() / (alone.double() ** 2).sum().clamp(min=1e-300))
    if (
        size > 1
        and abs(ratio * size - 1) < 0.05
        and _distance(alone / size, here) < 0.05 * float(here.norm())
    ):
        return (
            f"gradient at {name!r} of example {index} alone is {size} times that in its batch of {size}: the "
            "loss looks mean-reduced; return one unscaled loss per example (reduction='none')"
        )
    return (
        f"gradient at {name!r} of example {index} depends on its batch"
        f"{_coupling(model, run, index, (index + 1) % size)}; examples must not interact: call model.eval(), "
        "replace layers that mix the batch, use a per-example loss"
    )


def _coupling(model: nn.Module, run: Callable[[list[int]], Tensor], index: int, other: int) -> str:
    if index == other:
        return ""
    return _first_difference(model, lambda: run([index]), lambda: run([index, other]))


def _first_difference(model: nn.Module, run_a: Callable[[], Tensor], run_b: Callable[[], Tensor]) -> str:
    """Name the first leaf module whose output for the first example differs between two forward passes."""
    names = {m: n for n, m in model.named_modules() if not any(m.children())}
    traces: list[list[tuple[str, Tensor]]] = []
    for run in (run_a, run_b):
        trace: list[tuple[str, Tensor]] = []

        def record(
            module: nn.Module, args: Any, output: Any, trace: list[tuple[str, Tensor]] = trace
        ) -> None:
            try:
                tensor, _ = primary_tensor(output)
            except TypeError:
                return
            if tensor.is_floating_point() and tensor.ndim:
                label = f"{names[module]!r} ({type(module).__name__})"
                trace.append((label, tensor[:1].detach().double().clone()))

        handles = [m.register_forward_hook(record) for m in names]
        try:
            run()
        finally:
            for handle in handles:
                handle.remove()
        traces.append(trace)
    for (label, a), (_, b) in zip(*traces, strict=False):
        if a.shape != b.shape or _distance(a, b) > 1e-3 * float(a.norm()):
            return f" (outputs first differ at module {label})"
    return " (module outputs agree, so it is the loss)" if traces[0] else ""
