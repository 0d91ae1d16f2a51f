"""Put a block behind any module of a model, without touching its source, and take it away again.

The module's `forward` is replaced on the instance while the insertion lasts: no submodule, parameter, buffer
or hook is added, so `state_dict()` and everything that walks the model sees the model as it was, and fused
paths of `torch.nn` that switch off when they see hooks stay as they are.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from certify.errors import CaptureError, NonFiniteError
from certify.nested import primary_tensor
from certify.sites import resolve, unwrap

__all__ = ["Insertion", "Residual", "bare", "insert"]


class _ExactSum(torch.autograd.Function):
    """h + delta, and h itself, to the bit, where delta is zero: plain addition turns -0.0 into 0.0."""

    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, delta: Tensor) -> Tensor:
        # zeros_like comes first, so that the result lies in memory as h does: layout decides how later sums
        # are ordered, hence their last bits
        return torch.where(torch.zeros_like(h).add(delta) == 0, h, h + delta)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], grads[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return tangents[0] + tangents[1]


def _first_name(module: nn.Module) -> str | None:
    """Name of the first argument of a module's forward, under which the activations may be passed."""
    parameters = inspect.signature(type(module).forward).parameters
    names = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return names[1] if len(names) > 1 else None


def _with_block(
    name: str, block: nn.Module, first: str | None, output: Any, args: Any, kwargs: Any, check: bool
) -> Any:
    """The module's output with h replaced by h + block(h)."""
    try:
        h, rebuild = primary_tensor(output)
    except TypeError as error:
        raise CaptureError(f"module {name!r}: {error}") from None
    if not h.is_floating_point() or h.is_sparse or h.is_nested or h.ndim == 0:
        kind = "nested" if h.is_nested else h.layout if h.is_sparse else h.dtype
        raise CaptureError(
            f"module {name!r} returns a {kind} tensor with {h.ndim} axes; insert at a module with an "
            "ordinary floating-point output (for nn.TransformerEncoder: enable_nested_tensor=False)"
        )
    if home := next((p.device for p in block.parameters() if p.device != h.device), None):
        raise ValueError(f"the block is on {home} and module {name!r} on {h.device}; use block.to(...) first")
    if getattr(block, "wants_call", False):
        delta = block(h, *args[1:], **{k: v for k, v in kwargs.items() if args or k != first})
    else:
        delta = block(h)
    if not isinstance(delta, Tensor) or delta.shape != h.shape:
        found = tuple(delta.shape) if isinstance(delta, Tensor) else type(delta).__name__
        raise ValueError(
            f"the block gave {found} for the output of module {name!r} of shape {tuple(h.shape)}; expected "
            "the same shape"
        )
    out: Tensor = _ExactSum.apply(h, delta.to(h.dtype))
    if check:
        _require_identity(name, block, h, out)
    return rebuild(out)


def _require_identity(name: str, block: nn.Module, h: Tensor, out: Tensor) -> None:
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(h.element_size())
    a, b = h.detach().contiguous(), out.detach().contiguous()
    if torch.equal(a.view(bits), b.view(bits)) if bits else torch.equal(a, b):
        return
    if not bool(torch.isfinite(a).all()):
        raise NonFiniteError(
            f"the output of module {name!r} is NaN or infinite, so zero times it is not zero; check the model"
        )
    change = float((b - a).abs().max())
    raise CaptureError(
        f"{type(block).__name__} at module {name!r} changes the output by up to {change:.3g} "
        "although its zero parameters are zero; a copied block must be the identity on these activations "
        "(after ReLU for ResNet blocks), or pass other names in zero= or shortcut="
    )


def _at_zero(block: nn.Module) -> bool:
    """Whether the block says which parameters start at zero, and they still are."""
    zero = getattr(block, "zero_parameters", None)
    return zero is not None and not any(bool(p.detach().any()) for p in zero().values())


class _Patched:
    """Stands in for `module.forward` and runs the blocks of all insertions there, in order."""

    def __init__(self, module: nn.Module, before: Any) -> None:
        self.__signature__ = inspect.signature(module.forward)
        self.module = module
        self.before = before
        self.insertions: list[Insertion] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        original = type(self.module).forward.__get__(self.module) if self.before is None else self.before
        output = original(*args, **kwargs)
        for insertion in tuple(self.insertions):
            output = insertion._apply(output, args, kwargs)
        return output

    def put(self) -> None:
        self.module.__dict__["forward"] = self

    def lift(self) -> None:
        if self.before is None:
            self.module.__dict__.pop("forward", None)
        else:
            self.module.__dict__["forward"] = self.before


def _patch_of(module: nn.Module) -> _Patched | None:
    found = module.__dict__.get("forward")
    return found if isinstance(found, _Patched) else None


@contextlib.contextmanager
def bare(model: nn.Module) -> Iterator[dict[str, list[Insertion]]]:
    """Take all insertions out of a model for the length of the block; yields them by module name."""
    found = {name: p for name, m in model.named_modules() if (p := _patch_of(m)) is not None}
    for patch in found.values():
        patch.lift()
    try:
        yield {name: list(patch.insertions) for name, patch in found.items()}
    finally:
        for patch in found.values():
            patch.put()


class Insertion:
    """What `insert` gives: a context manager, with `remove()` and `export()`.

    Attributes
    ----------
    name, block : where the block stands, and the block.
    calls : how often it has run.
    active : False once removed.
    """

    def __init__(self, model: nn.Module, name: str, module: nn.Module, block: nn.Module) -> None:
        self.name, self.block, self.calls, self.active = name, block, 0, False
        self._model, self._module = model, module
        self._first = _first_name(module)
        self._checked = False

    def _apply(self, output: Any, args: Any, kwargs: Any) -> Any:
        self.calls += 1
        check = not self._checked and _at_zero(self.block)
        result = _with_block(self.name, self.block, self._first, output, args, kwargs, check)
        self._checked = True
        return result

    def _put(self) -> None:
        patch = _patch_of(self._module)
        if patch is None:
            patch = _Patched(self._module, self._module.__dict__.get("forward"))
            patch.put()
        patch.insertions.append(self)
        self.active = True

    def remove(self) -> None:
        """Take the block out; the model is as it was before, bit for bit. A second call does nothing."""
        if not self.active:
            return
        self.active = False
        patch = _patch_of(self._module)
        if patch is None:
            return  # somebody replaced forward meanwhile; nothing of ours is left to run
        patch.insertions = [i for i in patch.insertions if i is not self]
        if not patch.insertions:
            patch.lift()

    def __enter__(self) -> Insertion:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def export(self) -> nn.Module:
        """Deep copy of the model with an ordinary `Residual` module in the place of each insertion.

        Includes this block and every other one that stands in the model now.  The copy's weights and blocks
        are its own; it can be saved, trained and compiled like any other module.
        """
        with bare(self._model) as found:
            if not self.active:
                name = next(n for n, m in self._model.named_modules() if m is self._module)
                found.setdefault(name, []).append(self)
            grown = copy.deepcopy(self._model)
        modules = dict(grown.named_modules())
        for name, insertions in found.items():
            old = new = modules[name]
            for insertion in insertions:
                with bare(insertion.block):
                    new = Residual(new, copy.deepcopy(insertion.block), insertion.name)
            if old is grown:
                grown = new
                continue
            for parent in modules.values():  # a shared module has several parents or names
                for child, module in list(parent._modules.items()):
                    if module is old:
                        parent._modules[child] = new
        return grown


class Residual(nn.Module):
    """A module followed by a block: output h becomes h + block(h). What `Insertion.export` puts in place.

    Other attributes are those of the inner module.

    Parameters
    ----------
    module, block : the parts, reachable under these names.
    name : name used in messages.

    Examples
    --------
    >>> from certify.blocks import ChannelShift
    >>> Residual(torch.nn.Linear(3, 2), ChannelShift(2))(torch.zeros(1, 3)).shape
    torch.Size([1, 2])
    """

    def __init__(self, module: nn.Module, block: nn.Module, name: str = "") -> None:
        super().__init__()
        self.module = module
        self.block = block
        self.name = name
        inner = module
        while isinstance(inner, Residual):
            inner = inner.module
        self.first = _first_name(inner)
        self.training = module.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Output of the module with the block added."""
        output = self.module(*args, **kwargs)
        return _with_block(self.name, self.block, self.first, output, args, kwargs, False)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "_modules" not in self.__dict__ or "module" not in self._modules:
                raise
            return getattr(self._modules["module"], name)


def insert(model: nn.Module, at: str, block: nn.Module) -> Insertion:
    r"""Put a residual block behind a module of any model: its output h becomes h + block(h).

    .. math::
        z \mapsto z + \mathrm{block}_\theta(z),\qquad \mathrm{block}_0 = 0

    With a block whose `zero_parameters()` are zero the model computes what it did before, to the bit; the
    first pass asserts it.  The model's source, parameters, buffers, hooks, modes and `state_dict()` are not
    touched; `remove()`, or the end of a `with` block, also by an exception, leaves it as it was.  The block
    trains by any optimizer over `block.parameters()`, whether the model is frozen or not.

    Parameters
    ----------
    model
        Any `torch.nn.Module`; names may carry the prefixes of DataParallel and other wrappers.
    at
        Name as in `model.named_modules()`.  The module may return a tensor, tuple, mapping or dataclass (see
        `certify.capture`).  Where it runs more than once in a pass, the block runs after each call.
    block
        A block of `certify.blocks`, or any module with `block(h)` of the shape of h.  It must be on the
        device of the activations; data types may differ, the result has that of h.

    Raises
    ------
    ValueError
        If no module has that name, or the model is compiled or spread over devices; when the model runs, if
        the block does not fit the activations.
    TypeError
        If `model` or `block` is not a module.
    CaptureError, NonFiniteError
        When the model runs: the block is not the identity at zero, or the activations are not finite.

    Notes
    -----
    Source: paper 1, direct residual interventions; paper 2, jumpboard model.

    Examples
    --------
    >>> from certify.blocks import LinearMap
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).eval()
    >>> x = torch.ones(2, 3)
    >>> before = model(x)
    >>> with insert(model, "1", LinearMap(4)) as insertion:
    ...     same = torch.equal(model(x), before)
    ...     grown = insertion.export()
    >>> same, torch.equal(grown(x), before)
    (True, True)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    if not isinstance(block, nn.Module):
        raise TypeError(f"block is a {type(block).__name__}; expected a torch.nn.Module, see certify.blocks")
    if not isinstance(at, str):
        raise TypeError(f"at is a {type(at).__name__}; expected the name of one module")
    for wrapper in model.modules():
        if isinstance(getattr(wrapper, "_orig_mod", None), nn.Module):
            raise ValueError(
                "model is compiled and would not see the block; insert into the module that was compiled, or "
                "export() and compile the result"
            )
        if isinstance(wrapper, nn.DataParallel) and len(wrapper.device_ids) > 1:
            raise ValueError(
                f"model is a DataParallel over {len(wrapper.device_ids)} devices and a block has one; insert "
                "into model.module, or export() and wrap the result"
            )
    (site,) = resolve(model, at)
    if site.call is not None:
        raise ValueError(f"at={at!r}: a block runs after every call of its module; leave out '#{site.call}'")
    insertion = Insertion(unwrap(model), at, site.module, block)
    insertion._put()
    return insertion
