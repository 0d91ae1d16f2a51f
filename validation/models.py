"""The networks of the validation cases, built with seeds or loaded from public checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm and a parameter-free shortcut ("option A" of He et al. 2016)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride = stride
        self.pad = channels - channels_in

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Residual sum, then ReLU."""
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride != 1 or self.pad:
            x = F.pad(
                x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad // 2, self.pad - self.pad // 2)
            )
        return F.relu(out + x)


class CifarResNet(nn.Module):
    """ResNet for small images: one convolution, three stages of ``blocks`` basic blocks, mean pool, linear.

    Depth is 6 blocks + 2; parameter names are those of the public CIFAR-10 checkpoints.
    """

    def __init__(self, blocks: int, widths: tuple[int, int, int], channels_in: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        before = (widths[0], widths[0], widths[1])
        stages = [
            nn.Sequential(*(BasicBlock(w if i else b, w, 1 if i else s) for i in range(blocks)))
            for b, w, s in zip(before, widths, (1, 2, 2), strict=True)
        ]
        self.layer1, self.layer2, self.layer3 = stages
        self.linear = nn.Linear(widths[2], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, classes)."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer3(self.layer2(self.layer1(out)))
        return self.linear(out.mean(dim=(2, 3)))


@contextmanager
def seeded_init(seed: int) -> Iterator[None]:
    """Layers built inside draw their initial weights from ``seed``; the global generator is put back
    afterwards.

    PyTorch constructors take no generator, so this is the one way to seed third-party modules without a
    trace.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def resnet(
    depth: int, width: float = 1.0, *, classes: int = 10, channels_in: int = 3, seed: int
) -> CifarResNet:
    """CIFAR-style ResNet with ``width`` times (16, 32, 64) channels, He initialisation, in training mode.

    Parameters
    ----------
    depth:
        20, 32, 44, 56, ...: 6 n + 2.
    width:
        Channel multiplier; 16 times it must be a positive whole number.
    seed:
        Of the initial weights.

    Source: He, Zhang, Ren, Sun, "Deep residual learning for image recognition" (2016), section 4.2.

    Examples
    --------
    >>> sum(p.numel() for p in resnet(20, seed=0).parameters())
    269722
    """
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth={depth}: expected 6 n + 2 such as 20, 32, 44 or 56")
    base = 16 * width
    if base < 1 or base != int(base):
        raise ValueError(f"width={width}: expected a multiple of 1/16, at least 1/16")
    with seeded_init(seed):
        b = int(base)
        model = CifarResNet((depth - 2) // 6, (b, 2 * b, 4 * b), channels_in, classes)
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)
    return model


def resnet_blocks(model: CifarResNet) -> list[str]:
    """Names of the residual blocks in order, ``layer1.0`` to ``layer3.2`` for depth 20."""
    return [name for name, module in model.named_modules() if isinstance(module, BasicBlock)]


def load_resnet(path: str | Path) -> CifarResNet:
    """A pretrained CIFAR-10 ResNet from a public checkpoint, in evaluation mode.

    Weights-only loading (nothing in the file is executed), with the NumPy scalars allow-listed that such
    files hold beside the weights; keys lose their ``module.`` prefix and must then match exactly.

    Raises
    ------
    ValueError
        If the file is missing or is not a checkpoint of such a network.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"path={str(path)!r}: no such checkpoint")
    scalars = [np.dtype, type(np.dtype(np.float64)), type(np.dtype(np.float32)), np.float64, np.float32]
    core = getattr(np, "_core", None) or np.core  # the module moved in NumPy 2; old files name the old place
    allowed: list = [
        *scalars,
        core.multiarray.scalar,
        (core.multiarray.scalar, "numpy.core.multiarray.scalar"),
    ]
    with torch.serialization.safe_globals(allowed):
        content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or "state_dict" not in content:
        raise ValueError(f"path={str(path)!r}: expected a checkpoint with an entry 'state_dict'")
    state = {key.removeprefix("module."): value for key, value in content["state_dict"].items()}
    blocks = sum(key.startswith("layer1.") and key.endswith(".conv1.weight") for key in state)
    if not blocks or "conv1.weight" not in state or "linear.weight" not in state:
        raise ValueError(
            f"path={str(path)!r}: expected the weights of a CIFAR ResNet (conv1, layer1.., linear)"
        )
    stem, head = state["conv1.weight"], state["linear.weight"]
    model = resnet(
        6 * blocks + 2, stem.shape[0] / 16, classes=head.shape[0], channels_in=stem.shape[1], seed=0
    )
    model.load_state_dict(state, strict=True)
    return model.eval()


def checkpoints(folder: str | Path) -> dict[int, str]:
    """Public checkpoints ``resnetDEPTH*.th`` of a folder, absolute paths by depth.

    Raises
    ------
    ValueError
        If there is none, or two of one depth.
    """
    found: dict[int, str] = {}
    for path in sorted(Path(folder).resolve().glob("resnet*.th")):
        match = re.match(r"resnet(\d+)\D", path.name)
        if match is None:
            continue
        depth = int(match[1])
        if depth in found:
            raise ValueError(
                f"checkpoints={str(folder)!r}: two of depth {depth}, "
                f"{Path(found[depth]).name} and {path.name}; leave one in the folder"
            )
        found[depth] = str(path)
    if not found:
        raise ValueError(f"checkpoints={str(folder)!r}: expected files such as resnet20-12fca82f.th")
    return found


def neox(width: int, layers: int, *, length: int, seed: int, vocabulary: int = 256) -> nn.Module:
    """GPT-NeoX (the architecture of Pythia) from ``transformers``: byte vocabulary, no dropout, in training
    mode.

    Heads have 16 channels, a quarter of them rotary; attention and MLP in parallel, as in Pythia.

    Parameters
    ----------
    width:
        Residual stream channels, a multiple of 16.
    layers:
        Transformer layers; they are captured as ``gpt_neox.layers.<i>``.
    length:
        Longest sequence.
    seed:
        Of the initial weights.
    """
    if width < 16 or width % 16:
        raise ValueError(f"width={width}: expected a positive multiple of 16, the channels of one head")
    try:
        from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
    except ImportError as error:
        raise ImportError(
            "this model comes from transformers: pip install 'gradient-alignment[validation]'"
        ) from error
    config = GPTNeoXConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 16,
        intermediate_size=4 * width,
        max_position_embeddings=length,
        use_cache=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    with seeded_init(seed):
        return GPTNeoXForCausalLM(config)


def neox_layers(model: nn.Module) -> list[str]:
    """Names of the transformer layers in order."""
    return [f"gpt_neox.layers.{i}" for i in range(model.config.num_hidden_layers)]  # type: ignore[union-attr, arg-type]


def llama(width: int, layers: int, *, length: int, seed: int, vocabulary: int = 256) -> nn.Module:
    """LLaMA (RMSNorm, SwiGLU, rotary positions) from ``transformers``: byte vocabulary, in training mode.

    Heads have 16 channels as in :func:`neox`; the gated MLP has 8/3 of the width, rounded to a multiple of
    16, so that it has as many weights as one of 4 times the width.

    Parameters
    ----------
    width:
        Residual stream channels, a multiple of 16.
    layers:
        Transformer layers; they are captured as ``model.layers.<i>``.
    length:
        Longest sequence.
    seed:
        Of the initial weights.

    Source: Touvron et al., "LLaMA: open and efficient foundation language models" (2023), section 2.2.
    """
    if width < 16 or width % 16:
        raise ValueError(f"width={width}: expected a positive multiple of 16, the channels of one head")
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise ImportError(
            "this model comes from transformers: pip install 'gradient-alignment[validation]'"
        ) from error
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 16,
        intermediate_size=16 * round(width / 6),
        max_position_embeddings=length,
        use_cache=False,
        attention_dropout=0.0,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with seeded_init(seed):
        return LlamaForCausalLM(config)


def llama_layers(model: nn.Module) -> list[str]:
    """Names of the transformer layers in order."""
    return [f"model.layers.{i}" for i in range(model.config.num_hidden_layers)]  # type: ignore[union-attr, arg-type]
