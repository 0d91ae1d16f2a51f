"""Residual blocks that are exactly zero at the start: what can be inserted into a trained network.

Each is an ordinary `torch.nn.Module`.  `block(h)` has the shape and data type of `h`; `zero_parameters()` are
the parameters that start at zero, where the whole first-order signal lives: all other gradients are zero.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from certify.errors import CaptureError
from certify.intervals import check_count
from certify.nested import primary_tensor

__all__ = ["BlockCopy", "ChannelShift", "FullShift", "LinearMap", "LowRankMap", "MLPBlock", "ZeroBlock"]

Generator = torch.Generator | int


class ZeroBlock(nn.Module):
    """Base of the blocks here; a block of your own needs only `forward(h)` and `zero_parameters()`."""

    wants_call = False  # whether forward also takes the other arguments of the module it stands behind

    def zero_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters that are zero at the start, by name; the first-order signal is the gradient by these."""
        raise NotImplementedError


class ChannelShift(ZeroBlock):
    r"""One constant per channel, shared by all positions: the width-N residual parameter of paper 1.

    .. math::
        \mathrm{block}(h)_{pc} = \theta_c,\qquad
        \nabla_\theta \ell\,|_{\theta=0} = \textstyle\sum_p q_p

    Parameters
    ----------
    channels : number of channels N.
    channel_axis : axis of the channels; default 1 for outputs with four or more axes, else the last.
    dtype, device : of the parameter, as in `torch.nn`.

    Raises
    ------
    ValueError
        If `channels` is not positive, or (when called) the activations have another number of channels.

    Notes
    -----
    Source: paper 1, zero-initialised residual parameter.

    Examples
    --------
    >>> block = ChannelShift(4)
    >>> bool(block(torch.ones(2, 4)).any()), list(block.zero_parameters())
    (False, ['shift'])
    """

    def __init__(
        self,
        channels: int,
        *,
        channel_axis: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.channels = check_count("channels", channels)
        self.channel_axis = channel_axis
        self.shift = nn.Parameter(torch.zeros(self.channels, dtype=dtype, device=device))

    def zero_parameters(self) -> dict[str, nn.Parameter]:
        """The shift."""
        return {"shift": self.shift}

    def forward(self, h: Tensor) -> Tensor:
        """The shift in the shape of h."""
        axis = channel_axis_of(h, self.channel_axis, self.channels, "ChannelShift")
        shape = [1] * h.ndim
        shape[axis] = self.channels
        return self.shift.to(h.dtype).view(shape).expand_as(h)

    def extra_repr(self) -> str:
        """Size."""
        return f"{self.channels}, channel_axis={self.channel_axis}"


class FullShift(ZeroBlock):
    r"""One constant per entry of the activation: every channel at every position.

    .. math::
        \mathrm{block}(h) = \theta,\qquad \nabla_\theta \ell\,|_{\theta=0} = q

    Parameters
    ----------
    shape : shape of one example's activation, without the batch axis.
    dtype, device : of the parameter, as in `torch.nn`.

    Raises
    ------
    ValueError
        If the shape is empty, or (when called) the activations have another one.

    Notes
    -----
    Source: paper 1, zero-initialised residual parameter, for flattened maps.

    Examples
    --------
    >>> FullShift((4, 2, 2))(torch.ones(3, 4, 2, 2)).shape
    torch.Size([3, 4, 2, 2])
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        if not sizes:
            raise ValueError("shape=(): expected the shape of one example's activation, e.g. (64, 8, 8)")
        sizes = tuple(check_count("shape", size) for size in sizes)
        self.shift = nn.Parameter(torch.zeros(sizes, dtype=dtype, device=device))

    def zero_parameters(self) -> dict[str, nn.Parameter]:
        """The shift."""
        return {"shift": self.shift}

    def forward(self, h: Tensor) -> Tensor:
        """The shift, once for each example."""
        if h.shape[1:] != self.shift.shape:
            raise ValueError(
                f"FullShift(shape={tuple(self.shift.shape)}) met activations of shape {tuple(h.shape[1:])} "
                "per example; give that shape, or use ChannelShift where lengths vary"
            )
        return self.shift.to(h.dtype).expand_as(h)


class LinearMap(ZeroBlock):
    r"""A linear map of the channels, the same at every position (a 1 x 1 convolution for maps).

    .. math::
        \mathrm{block}(h)_p = W h_p,\quad W = 0,\qquad
        \nabla_W \ell\,|_{W=0} = \textstyle\sum_p q_p h_p^\top

    Parameters
    ----------
    channels : number of channels N; W has N^2 entries.
    bias : also a constant per channel.
    channel_axis, dtype, device : as in `ChannelShift`.

    Raises
    ------
    ValueError
        As for `ChannelShift`.

    Notes
    -----
    Source: paper 2, residual jump model; the gradient is the one that growing methods maximise.

    Examples
    --------
    >>> block = LinearMap(3)
    >>> bool(block(torch.ones(2, 3, 5, 5)).any()), block.linear.weight.shape
    (False, torch.Size([3, 3]))
    """

    def __init__(
        self,
        channels: int,
        *,
        bias: bool = False,
        channel_axis: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.channels = check_count("channels", channels)
        self.channel_axis = channel_axis
        self.linear = _zeroed(_linear(self.channels, self.channels, bias, dtype, device))

    def zero_parameters(self) -> dict[str, nn.Parameter]:
        """The matrix, and the bias if there is one."""
        return {f"linear.{name}": p for name, p in self.linear.named_parameters()}

    def forward(self, h: Tensor) -> Tensor:
        """W h at every position."""
        axis = channel_axis_of(h, self.channel_axis, self.channels, "LinearMap")
        x = h.movedim(axis, -1).to(self.linear.weight.dtype)
        return self.linear(x).movedim(-1, axis).to(h.dtype)


class LowRankMap(ZeroBlock):
    r"""A linear map of rank r: a fixed random projection down, zero up.

    .. math::
        \mathrm{block}(h)_p = U V h_p,\quad U = 0,\qquad
        \nabla_U \ell\,|_{U=0} = \textstyle\sum_p q_p (V h_p)^\top

    The entries of V are normal with variance 1/N, so that V h has about the mean square of h.  Both matrices
    train; V has no gradient until U has moved.

    Parameters
    ----------
    channels, rank : N and r; U has N r entries.
    generator : seed or `torch.Generator` for V; the global random state is not touched.
    channel_axis, dtype, device : as in `ChannelShift`.

    Raises
    ------
    ValueError
        As for `ChannelShift`.

    Notes
    -----
    Source: low-rank adaptation (Hu et al., 2022), whose initialisation this is.

    Examples
    --------
    >>> block = LowRankMap(6, 2, generator=0)
    >>> bool(block(torch.ones(2, 6)).any()), list(block.zero_parameters())
    (False, ['up.weight'])
    """

    def __init__(
        self,
        channels: int,
        rank: int,
        *,
        generator: Generator,
        channel_axis: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.channels, rank = check_count("channels", channels), check_count("rank", rank)
        self.channel_axis = channel_axis
        self.down = _linear(self.channels, rank, False, dtype, device)
        self.up = _zeroed(_linear(rank, self.channels, False, dtype, device))
        _fill(self.down.weight, 1 / math.sqrt(self.channels), as_generator(generator))

    def zero_parameters(self) -> dict[str, nn.Parameter]:
        """The matrix U."""
        return {f"up.{name}": p for name, p in self.up.named_parameters()}

    def forward(self, h: Tensor) -> Tensor:
        """U V h at every position."""
        axis = channel_axis_of(h, self.channel_axis, self.channels, "LowRankMap")
        x = h.movedim(axis, -1).to(self.up.weight.dtype)
        return self.up(self.down(x)).movedim(-1, axis).to(h.dtype)


class MLPBlock(ZeroBlock):
    r"""A perceptron with one hidden layer whose last layer is zero, the same at every position.

    .. math::
        \mathrm{block}(h)_p = W_2\,\sigma(W_1 h_p + b_1) + b_2,\quad W_2 = 0, b_2 = 0,\qquad
        \nabla_{W_2} \ell = \textstyle\sum_p q_p\,\sigma(W_1 h_p + b_1)^\top

    sigma is GELU; W_1 is normal with variance 1/N, b_1 = 0.

    Parameters
    ----------
    channels, hidden : N and the width of the hidden layer.
    generator : seed or `torch.Generator` for W_1; the global random state is not touched.
    channel_axis, dtype, device : as in `ChannelShift`.

    Raises
    ------
    ValueError
        As for `ChannelShift`.

    Notes
    -----
    Source: paper 2, zero-initialised residual block.

    Examples
    --------
    >>> block = MLPBlock(6, 12, generator=0)
    >>> bool(block(torch.ones(2, 6)).any()), list(block.zero_parameters())
    (False, ['last.weight', 'last.bias'])
    """

    def __init__(
        self,
        channels: int,
        hidden: int,
        *,
        generator: Generator,
        channel_axis: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.channels, hidden = check_count("channels", channels), check_count("hidden", hidden)
        self.channel_axis = channel_axis
        self.first = _zeroed(_linear(self.channels, hidden, True, dtype, device))
        self.last = _zeroed(_linear(hidden, self.channels, True, dtype, device))
        _fill(self.first.weight, 1 / math.sqrt(self.channels), as_generator(generator))

    def zero_parameters(self) -> dict[str, nn.Parameter]:
        """Weight and bias of the last layer."""
        return {f"last.{name}": p for name, p in self.last.named_parameters()}

    def forward(self, h: Tensor) -> Tensor:
        """The perceptron at every position."""
        axis = channel_axis_of(h, self.channel_axis, self.channels, "MLPBlock")
        x = h.movedim(axis, -1).to(self.last.weight.dtype)
        return self.last(F.gelu(self.first(x))).movedim(-1, axis).to(h.dtype)


class BlockCopy(ZeroBlock):
    r"""A deep copy of a residual block of the network, silenced: depth expansion by one more such block.

    .. math::
        \mathrm{block}(h) = \mathrm{copy}(h) - h \quad\text{(the copy has its own shortcut)},\qquad
        \mathrm{block}(h) = \mathrm{copy}(h) \quad\text{(it has none)}

    What is set to zero, by kind of block:

    * CIFAR and ImageNet ResNet blocks: weight and bias of the last norm (`bn2`, `bn3`).  The last ReLU keeps
      activations that are not negative, which is what such blocks hand on; elsewhere the identity fails and
      `certify.insert` says so.
    * pre-norm transformer layers (GPT-NeoX, LLaMA and its relatives, GPT-2, OPT with norm first,
      `nn.TransformerEncoderLayer(norm_first=True)`): the output projections of attention and perceptron.
    * post-norm `nn.TransformerEncoderLayer`: the layer normalises *after* adding its shortcut, so no value of
      its weights makes it the identity.  Weight and bias of its last norm are set to zero, which silences the
      whole layer, and the shortcut is put around it: h + norm2(...).  That is not the same network as one
      more post-norm layer.
    * anything else: name the modules or parameters in `zero=`.

    The copy is called with the other arguments of the original call (attention mask, position embeddings).
    A key-value cache is never shared: it is left out, and generation step by step is refused.

    Parameters
    ----------
    module : the block to copy; it must keep the shape of its input.
    zero : names of submodules or parameters of `module` that are set to zero.
    shortcut : whether `module` adds its own input; default True, except for post-norm layers.

    Raises
    ------
    ValueError
        If the kind of block is unknown and `zero` is not given, or a name in `zero` does not exist.

    Notes
    -----
    Source: paper 2, depth expansion by a residual block that starts at zero; zero last norm: Goyal et al.
    (2017).

    Examples
    --------
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True).eval()
    >>> block = BlockCopy(layer)
    >>> sorted(block.zero_parameters())[:2]
    ['copy.linear2.bias', 'copy.linear2.weight']
    >>> bool(block(torch.ones(2, 3, 8)).any())
    False
    """

    wants_call = True

    def __init__(
        self, module: nn.Module, *, zero: str | Iterable[str] | None = None, shortcut: bool | None = None
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"module is a {type(module).__name__}; expected the torch.nn.Module to copy")
        if zero is None:
            names, own = silencers(module)
        else:
            names, own = ((zero,) if isinstance(zero, str) else tuple(zero)), True
        self.shortcut = own if shortcut is None else bool(shortcut)
        from certify.intervention import bare

        with bare(module):  # blocks inserted into the original stay there
            self.copy = copy.deepcopy(module)
        self.copy.requires_grad_(True)
        known = dict(self.copy.named_parameters())
        self.zero_names = tuple(
            p for name in names for p in known if p == name or p.startswith(f"{name}.") or name == ""
        )
        for name in names:
            if not any(p == name or p.startswith(f"{name}.") for p in known):
                raise ValueError(
                    f"zero={name!r}: names no parameters of {type(module).__name__}; its submodules are "
                    f"{', '.join(repr(n) for n, _ in module.named_children())}"
                )
        with torch.no_grad():
            for name in self.zero_names:
                known[name].zero_()

    def zero_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that were set to zero."""
        known = dict(self.copy.named_parameters())
        return {f"copy.{name}": known[name] for name in self.zero_names}

    def forward(self, h: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """What the copy adds to h."""
        out = self.copy(h, *(_without_cache(a, h) for a in args), **_kwargs_without_cache(kwargs, h))
        z, _ = primary_tensor(out)
        if z.shape != h.shape:
            raise ValueError(
                f"the copied {type(self.copy).__name__} turns shape {tuple(h.shape)} into {tuple(z.shape)}; "
                "copy a block that keeps the shape (no stride, no change of width)"
            )
        return (z - h if self.shortcut else z).to(h.dtype)


# What is silenced in pre-norm blocks of known libraries.
_PRE_NORM = (
    ("attention.dense", "mlp.dense_4h_to_h"),  # GPT-NeoX
    ("self_attn.o_proj", "mlp.down_proj"),  # LLaMA, Mistral, Qwen
    ("attn.c_proj", "mlp.c_proj"),  # GPT-2
)


def silencers(module: nn.Module) -> tuple[tuple[str, ...], bool]:
    """Names to set to zero in a residual block of a known kind, and whether it has its own shortcut."""
    if isinstance(module, nn.TransformerEncoderLayer):
        return (("self_attn.out_proj", "linear2"), True) if module.norm_first else (("norm2",), False)
    names = dict(module.named_modules())
    for known in _PRE_NORM:
        if all(name in names for name in known):
            return known, True
    if {"self_attn.out_proj", "fc2"} <= set(names) and getattr(module, "do_layer_norm_before", False):
        return ("self_attn.out_proj", "fc2"), True
    for k in (3, 2):  # a bottleneck has three convolutions, a basic block two
        if f"conv{k}" in names and f"conv{k + 1}" not in names:
            norm = names.get(f"bn{k}")
            if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.affine:
                return (f"bn{k}",), True
    raise ValueError(
        f"module is a {type(module).__name__}, whose output projection is not known; name it with zero=, "
        "e.g. BlockCopy(module, zero=['attn.out', 'mlp.out']) for a block that adds its own shortcut"
    )


def _without_cache(value: Any, h: Tensor) -> Any:
    """None instead of a key-value cache, whose entries belong to the original layer."""
    if not callable(getattr(value, "get_seq_length", None)):
        return value
    if h.ndim == 3 and int(value.get_seq_length()) > h.shape[1]:
        raise CaptureError(
            f"a cache of {int(value.get_seq_length())} tokens was given for {h.shape[1]} new ones; a copied "
            "block has no cache of its own: call the model on whole sequences with use_cache=False"
        )
    return None


def _kwargs_without_cache(kwargs: dict[str, Any], h: Tensor) -> dict[str, Any]:
    found = {name: _without_cache(value, h) for name, value in kwargs.items()}
    if found.get("use_cache"):
        found["use_cache"] = False
    return found


def channel_axis_of(h: Tensor, axis: int | None, channels: int, who: str) -> int:
    """Axis of the channels: as given, else 1 for maps (four or more axes) and the last one otherwise."""
    found = (1 if h.ndim >= 4 else h.ndim - 1) if axis is None else axis
    if not -h.ndim < found < h.ndim or found % h.ndim == 0 or h.shape[found] != channels:
        raise ValueError(
            f"{who}(channels={channels}, channel_axis={axis}) met activations of shape {tuple(h.shape)}; "
            "expected that many channels on axis 1 (four or more axes) or the last one, or channel_axis="
        )
    return found % h.ndim


def as_generator(generator: Generator) -> torch.Generator:
    """A generator from a seed or itself."""
    if isinstance(generator, torch.Generator):
        return generator
    if isinstance(generator, bool) or not isinstance(generator, int):
        raise TypeError(f"generator={generator!r}: expected a whole number as seed or a torch.Generator")
    return torch.Generator().manual_seed(generator)


def _linear(
    inputs: int, outputs: int, bias: bool, dtype: torch.dtype | None, device: torch.device | str | None
) -> nn.Linear:
    """A linear layer without the random start that torch gives it, which would use the global generator."""
    return nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias, dtype=dtype, device=device or "cpu")


def _zeroed(layer: nn.Linear) -> nn.Linear:
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
    return layer


def _fill(weight: Tensor, scale: float, generator: torch.Generator) -> None:
    values = torch.randn(weight.shape, generator=generator, dtype=torch.float64, device=generator.device)
    with torch.no_grad():
        weight.copy_(scale * values)
