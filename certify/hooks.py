"""Gradients of every example at named modules, by forward hooks that vanish with the `with` block.

The output of the lowest captured module becomes a leaf of a new graph and all parameters are frozen while
the block lasts, so nothing below that module and no parameter gradient is ever computed.  The module hands
on a copy of its output: the copy is a graph node of its own, which makes the gradient that of this module's
output alone, also when the output is an alias of its input or is changed in place further up.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from certify.errors import CaptureError, CertifyError, NonFiniteError
from certify.losses import PerExample
from certify.nested import primary_tensor
from certify.positions import Positions, check_axis, check_positions, reduce_positions
from certify.sites import Site, resolve

__all__ = ["Capture", "capture"]

_REENTRANT = "use_reentrant=True"


class Capture:
    """What `capture` gives inside its `with` block: `gradients(losses)` after each forward pass."""

    def __init__(
        self, sites: list[Site], positions: str, channel_axis: int | Mapping[str, int] | None
    ) -> None:
        self._sites = sites
        self._positions = positions
        self._channel_axis = channel_axis
        self._replaying = False
        self.batch = 0  # number that error messages give to the next pass

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the captured modules, as given."""
        return tuple(site.name for site in self._sites)

    @property
    def dtypes(self) -> dict[str, str]:
        """Data type of each captured output, e.g. {"layer1": "float32"}."""
        return {
            site.name: "+".join(sorted(str(d).removeprefix("torch.") for d in site.dtypes))
            for site in self._sites
        }

    def reset(self) -> None:
        """Forget a forward pass whose gradients are not wanted."""
        for site in self._sites:
            site.reset()

    def _hook(self, site: Site, output: Any) -> Any:
        if not self._replaying:
            site.calls += 1
            if site.call is not None and site.calls - 1 != site.call:
                return None
        try:
            tensor, rebuild = primary_tensor(output)
        except TypeError as error:
            raise CaptureError(f"module {site.name!r}: {error}") from None
        if not tensor.is_floating_point() or tensor.is_sparse or tensor.is_nested or tensor.ndim == 0:
            kind = "nested" if tensor.is_nested else tensor.layout if tensor.is_sparse else tensor.dtype
            raise CaptureError(
                f"module {site.name!r} returns a {kind} tensor with {tensor.ndim} axes; capture at a module "
                "with an ordinary floating-point output whose axis 0 is the batch"
            )
        if not torch.is_grad_enabled():
            site.without_grad = True
            return None
        source = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        handed_on = source.clone()
        if not self._replaying:  # checkpointing runs the module again during the backward pass
            site.node = get_gradient_edge(handed_on)
            site.dtypes.add(tensor.dtype)
        return rebuild(handed_on)

    def gradients(self, losses: Tensor) -> dict[str, Tensor]:
        """Differentiate each example's loss with respect to each captured output.

        q_i = d loss_i / d z_i, with positions treated as `capture` was told.

        `losses` has shape (B,); each result has shape (B, d), float32 (float64 for float64 models), on the
        module's device, rows in the order of the batch, zero rows for examples that the loss drops.  The
        graph of this forward pass is freed.

        Parameters
        ----------
        losses
            One loss per example, from a forward pass inside this `with` block.

        Raises
        ------
        ValueError
            If `losses` is not of shape (B,).
        CaptureError
            If a module was not called exactly once, is not used by the losses or is not batch first.
        NonFiniteError
            If a loss or gradient is NaN or infinite.

        Notes
        -----
        Source: paper 1, section on activation gradients (q = gradient at z = f_bot(x)).
        """
        try:
            return self._gradients(losses)
        finally:
            self.reset()

    def _gradients(self, losses: Tensor) -> dict[str, Tensor]:
        values = self._checked(losses)
        keep, mask = getattr(losses, "keep", None), getattr(losses, "positions", None)
        weights = torch.ones_like(values) if keep is None else keep.to(values.dtype)
        raw = self._backward(values, weights)
        rows = {}
        counted = bool(((values.detach() != 0) & (weights != 0)).any())
        for site, gradient in zip(self._sites, raw, strict=True):
            if counted:
                self._refuse_underflow(gradient, site.name)
            if gradient.shape[0] != len(values):
                raise CaptureError(
                    f"module {site.name!r} returns shape {tuple(gradient.shape)} for {len(values)} examples; "
                    "axis 0 must be the batch: use batch_first=True or capture at a batch-first module"
                )
            rows[site.name] = reduce_positions(
                gradient, self._positions, self._axis(site.name), mask, site.name
            )
        self._require_finite(rows)
        self.batch += 1
        return rows

    def _axis(self, name: str) -> int | None:
        if isinstance(self._channel_axis, Mapping):
            return self._channel_axis.get(name)
        return self._channel_axis

    def _checked(self, losses: Tensor) -> Tensor:
        if not isinstance(losses, Tensor):
            raise TypeError(
                f"loss returned a {type(losses).__name__}; expected a tensor (B,), one loss per example"
            )
        if losses.ndim == 0:
            raise ValueError(
                "loss returned a scalar; expected one loss per example, shape (B,): use reduction='none', "
                "never a mean or sum over the batch"
            )
        if losses.ndim > 1 or len(losses) == 0:
            raise ValueError(
                f"loss returned shape {tuple(losses.shape)}; expected (B,): average each example's own loss "
                "over its positions, e.g. losses.flatten(1).mean(1)"
            )
        values = losses.as_subclass(Tensor) if isinstance(losses, PerExample) else losses
        numbers = values.detach()
        finite = torch.isfinite(numbers)
        if not bool(finite.all()):
            worst = int((~finite).nonzero()[0])
            raise NonFiniteError(
                f"the loss of example {worst} in batch {self.batch} is {float(numbers[worst])}; check that "
                "example, or drop it in the loss with PerExample(values, keep=...)"
            )
        return values

    def _backward(self, values: Tensor, weights: Tensor, retain_graph: bool = False) -> tuple[Tensor, ...]:
        nodes = [self._node(site) for site in self._sites]
        if not values.requires_grad:
            raise CaptureError(
                f"the losses ({values.dtype}) carry no gradient: detached, computed under no_grad, whole "
                f"numbers, or independent of {', '.join(map(repr, self.names))}; return the differentiable "
                "loss of each example"
            )
        self._replaying = True
        device = values.device.type
        without_autocast = (
            torch.autocast(device, enabled=False)
            if torch.is_autocast_enabled(device)
            else contextlib.nullcontext()
        )
        try:
            with without_autocast:
                raw = torch.autograd.grad(
                    values, nodes, grad_outputs=weights, allow_unused=True, retain_graph=retain_graph
                )
        except RuntimeError as error:
            if _REENTRANT in str(error):
                raise CaptureError(
                    "reentrant gradient checkpointing above a captured module cannot be differentiated by "
                    "example; use use_reentrant=False, or switch checkpointing off for the measurement"
                ) from error
            raise
        finally:
            self._replaying = False
        if unused := [site.name for site, g in zip(self._sites, raw, strict=True) if g is None]:
            self._refuse_unused(unused)
        return raw

    def _node(self, site: Site) -> GradientEdge:
        expected = 1 if site.call is None else site.call + 1
        if site.calls == 0:
            raise CaptureError(
                f"module {site.name!r} was called 0 times in the forward pass; capture at a module that the "
                "loss runs by calling it (not through its weights, .forward or a compiled or scripted copy)"
            )
        if site.calls != expected and (site.call is None or site.calls < expected):
            raise CaptureError(
                f"module {site.name!r} was called {site.calls} times in one forward pass, expected "
                + (
                    f"once; choose a call by '{site.name}#0' ... '{site.name}#{site.calls - 1}', or capture "
                    "at the modules that use it"
                    if site.call is None
                    else f"at least {expected}"
                )
            )
        if site.node is None:
            raise CaptureError(
                f"module {site.name!r} ran under torch.no_grad (or inside reentrant checkpointing) and has "
                "no gradient; remove no_grad, or use use_reentrant=False or switch checkpointing off"
            )
        return site.node

    @staticmethod
    def _refuse_unused(names: list[str]) -> None:
        raise CaptureError(
            f"the loss does not depend on the output of module {', '.join(map(repr, names))} (called, but "
            "unused or detached); remove it from at="
        )

    def _refuse_underflow(self, gradient: Tensor, name: str) -> None:
        """Half precision loses digits below 2^-14 and everything below 2^-24; no later step can tell."""
        if gradient.dtype == torch.float16 and float(gradient.abs().max()) < 2**-14:
            raise CaptureError(
                f"gradients at module {name!r} in batch {self.batch} are all below 2^-14, where float16 "
                "loses digits; multiply the loss by a constant such as 2**12 (it changes no result), or use "
                "bfloat16"
            )

    def _require_finite(self, rows: Mapping[str, Tensor]) -> None:
        for name, row in rows.items():
            # a sum is cheap and finite unless something is wrong (or overflows, which the second look tells)
            if bool(torch.isfinite(row.sum())):
                continue
            bad = ~torch.isfinite(row).all(1)
            if bool(bad.any()):
                index = int(bad.nonzero()[0])
                kind = "NaN" if bool(torch.isnan(row[index]).any()) else "infinite"
                raise NonFiniteError(
                    f"gradient at module {name!r} is {kind}: batch {self.batch}, example {index} of "
                    f"{len(row)}; check that example, or the precision ({row.dtype} after "
                    f"{self.dtypes.get(name)})"
                )


@contextlib.contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Switch off requires_grad of every parameter, and put it back whatever happens."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    for p in trainable:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in trainable:
            p.requires_grad_(True)


@contextlib.contextmanager
def _plain_execution(model: nn.Module) -> Iterator[None]:
    """Make modules run as written: gradients on, no compiled copy, no fused path that skips submodules."""
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and importing it takes seconds
            if not hasattr(torch.compiler, "set_stance"):
                raise CertifyError(
                    "compiled modules skip hooks in torch < 2.6; measure before importing torch._dynamo"
                )
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if isinstance(model, nn.parallel.DistributedDataParallel):
            stack.enter_context(model.no_sync())  # no reduction may wait for other processes
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        yield


@contextlib.contextmanager
def capture(
    model: nn.Module,
    at: str | Iterable[str],
    *,
    positions: Positions = "sum",
    channel_axis: int | Mapping[str, int] | None = None,
) -> Iterator[Capture]:
    """Capture the activation gradients of single examples at named modules.

    q_i = d loss_i / d z_i  at  z = output of the module, for every example i of a batch.

    Inside the block all parameters of `model` have `requires_grad=False` and every captured module hands on
    a copy of its output; both end with the block, also by an exception.  Examples must not interact (no
    batch statistics): `certify.collect` checks that, this context manager does not.

    Parameters
    ----------
    model
        Any `torch.nn.Module`; wrappers (DataParallel, DDP, torch.compile) may surround it.
    at
        Names as in `model.named_modules()`; wrapper prefixes such as "module." may be there or not.
        "block#k" means the k-th call (from 0) of a module that runs more than once in a forward pass.
    positions
        "sum": gradient of one shift shared by all positions (the width-N residual parameter of paper 1);
        "mean": the same divided by the number of (real) positions; "flatten": the whole map.
    channel_axis
        Axis of the channels if not 1 for outputs with four or more axes and the last one for three; one
        integer for all modules, or a mapping from names to integers.

    Raises
    ------
    ValueError
        If a name does not exist (close names are suggested) or an argument is out of range.
    TypeError
        If `model` is not a module.

    Notes
    -----
    Source: paper 1, definition of the activation gradient at an insertion point.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    >>> x, y = torch.zeros(5, 3), torch.tensor([0, 1, 0, 1, 1])
    >>> with capture(model, at=["0", "1"]) as captured:
    ...     losses = torch.nn.functional.cross_entropy(model(x), y, reduction="none")
    ...     gradients = captured.gradients(losses)
    >>> gradients["0"].shape, gradients["1"].shape
    (torch.Size([5, 4]), torch.Size([5, 4]))
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    check_positions(positions)
    check_axis(channel_axis)
    sites = resolve(model, at)
    captured = Capture(sites, positions, channel_axis)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_plain_execution(model))
        stack.enter_context(_frozen(model))
        for site in sites:

            def hook(module: nn.Module, args: Any, output: Any, site: Site = site) -> Any:
                return captured._hook(site, output)

            stack.callback(site.module.register_forward_hook(hook).remove)
        yield captured
