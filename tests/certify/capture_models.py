"""Networks and an independent reference for the capture tests; imports no product code."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


def build(make, seed=0):
    """Build with a fixed seed, without touching the global generator afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval()


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def randint(high, *shape, seed=0):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


class Block(nn.Module):
    def __init__(self, before, width, stride, inplace):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.grow, self.inplace = stride, width - before, inplace

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=self.inplace)))
        if self.grow:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.grow // 2, self.grow // 2))
        if self.inplace:
            out += x
            return F.relu_(out)
        return F.relu(out + x)


class ResNet20(nn.Module):
    """He et al. 2016, CIFAR version; `inplace` adds shortcuts and takes ReLUs in place."""

    def __init__(self, inplace=False):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        before = 16
        for k, width in enumerate((16, 32, 64), start=1):
            blocks = []
            for j in range(3):
                blocks.append(Block(before, width, 2 if k > 1 and j == 0 else 1, inplace))
                before = width
            self.add_module(f"layer{k}", nn.Sequential(*blocks))
        self.linear = nn.Linear(64, 10)
        for m in self.modules():
            if isinstance(m, nn.BatchNorm2d):  # statistics that are not those of an untrained layer
                m.running_mean.normal_(0, 0.1)
                m.running_var.uniform_(0.5, 1.5)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


RESNET_BLOCKS = [f"layer{k}.{j}" for k in (1, 2, 3) for j in range(3)]


def mlp():
    layers = [nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3)]
    return nn.Sequential(*layers)


def postnorm():
    """An encoder with the normalisation after the residual sum, then a classifier on the mean."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=False)
            self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=True)
            self.head = nn.Linear(16, 3)

        def forward(self, x, padding=None):
            return self.head(self.encoder(x, src_key_padding_mask=padding).mean(1))

    return Encoder()


def neox():
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=61, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64
        )
    )


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=61,
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
        )
    )


def loop_gradients(model, names, examples, one_loss):
    """Per-example gradients by a loop of ordinary backward passes, batch size one.

    `one_loss(model, example)` is the scalar loss of one example.  The model must not change the captured
    outputs in place.  Returns {name: (n, everything)} in float64.
    """
    rows = {name: [] for name in names}
    for example in examples:
        seen = {}
        handles = []
        for name in names:

            def keep(module, args, out, name=name, seen=seen):
                out = out[0] if isinstance(out, tuple) else out
                out.retain_grad()
                seen[name] = out

            handles.append(model.get_submodule(name).register_forward_hook(keep))
        one_loss(model, example).backward()
        for handle in handles:
            handle.remove()
        for name in names:
            rows[name].append(seen[name].grad.double().reshape(-1))
    model.zero_grad(set_to_none=True)
    return {name: torch.stack(r) for name, r in rows.items()}


def relative_error(a, b):
    a, b = torch.as_tensor(a).double(), torch.as_tensor(b).double()
    return float((a - b).norm() / b.norm())
