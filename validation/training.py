"""Train the networks of the validation cases: seeded, one thread, and cached under a hash of all that
matters.

A cached network is taken only if everything that could change its weights is the same: the description of the
network, the content of its data, the source of the files that build and train it, and the versions of
PyTorch, NumPy and transformers. Files are written whole or not at all, so an interrupted run leaves nothing
broken behind.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from validation import cifar, data, images, models, sets

CACHE_VARIABLE = "GRADIENT_ALIGNMENT_CACHE"
Family = Literal["resnet20", "neox", "llama"]
FAMILY_NAMES = {"resnet20": "ResNet-20", "neox": "GPT-NeoX", "llama": "LLaMA"}


@dataclass(frozen=True)
class Network:
    """A network to be trained, completely described.

    ``width`` is the channel multiplier of a ResNet and the residual channels of a transformer; ``data`` is
    ``digits``, ``mnist``, ``pydoc_data.topics``, or the path of images (ResNet) or of a text file
    (transformers). ``held_out`` is the number of held-out units that are used; all networks of one ``seed``
    share one split of the data.
    """

    family: Family
    width: float
    depth: int
    seed: int
    steps: int
    batch: int
    data: str
    held_out: int
    length: int = 0
    """Bytes in a sequence (transformers)."""
    train_units: int = 0
    """Training units that are used, drawn by the seed; 0 means all."""
    train_pool: int = 0
    """Training units whose gradients are measured at the end; 0 means none."""
    trajectory: int = 0
    """Held-out units whose gradients are measured along training, at :attr:`checkpoints`; 0 means none."""
    weights: str = ""
    """Path of a public checkpoint of a ResNet trained elsewhere; empty: the network is trained here."""

    @property
    def images(self) -> bool:
        """Whether a unit is an image, not a sequence."""
        return self.family == "resnet20"

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Steps after which gradients are measured: none, 1/8, 1/4 and 1/2 of the budget."""
        if not self.trajectory:
            return ()
        return tuple(sorted({0, *(self.steps // part for part in (8, 4, 2))}))

    @property
    def channels(self) -> int:
        """The width as a number of channels: of the first stage, or of the residual stream."""
        return int(16 * self.width) if self.images else int(self.width)

    @property
    def name(self) -> str:
        """Short, unique within a run."""
        name = f"{self.family}-w{self.channels}-L{self.depth}-s{self.seed}"
        return f"{name}-pretrained" if self.weights else name

    @property
    def label(self) -> str:
        """For people."""
        if self.weights:
            return f"ResNet-{self.depth}, pretrained"
        if self.images:
            return f"ResNet-{self.depth}, width × {self.width:g}"
        return f"{FAMILY_NAMES[self.family]}, {self.depth} layers, width {self.channels}"

    @property
    def unit(self) -> str:
        """What one independent draw is."""
        return "image" if self.images else f"sequence of {self.length} bytes"

    @property
    def recipe(self) -> str:
        """Optimizer, learning-rate rule and budget: one rule for all widths, fixed beforehand."""
        if self.weights:
            return f"trained elsewhere: {Path(self.weights).name}; no step was taken here"
        if self.images:
            rate = f"{_resnet_rate():g} at every width"
            rule = f"SGD, Nesterov momentum 0.9, weight decay 1e-4, learning rate {rate}"
        else:
            rate = f"0.02/sqrt(width) = {_transformer_rate(self):.2g}"
            rule = f"AdamW, weight decay 0.01, gradient norm clipped at 1, learning rate {rate}"
        unit = "images" if self.images else f"sequences of {self.length} bytes"
        return f"{rule}, 10 % linear warm-up then cosine to 0; {self.steps} steps of {self.batch} {unit}"


@dataclass(frozen=True)
class Trained:
    """A trained network with what was measured on it; ``held_out`` are the units no step has seen."""

    network: Network
    model: nn.Module
    train: data.ImageSet | data.SequenceSet
    held_out: data.ImageSet | data.SequenceSet
    parameters: int
    seconds: float
    cached: bool
    train_loss: float
    test_losses: np.ndarray
    test_correct: np.ndarray | None


def load_data(
    network: Network,
) -> tuple[data.ImageSet | data.SequenceSet, data.ImageSet | data.SequenceSet]:
    """The training and the held-out units of ``network``; the split depends on its seed only."""
    return _load(
        network.images, network.data, network.seed, network.held_out, network.length, network.train_units
    )


@lru_cache(maxsize=2)  # networks that differ in width share their data
def _load(
    images: bool, name: str, seed: int, held_out: int, length: int, train_units: int
) -> tuple[data.ImageSet | data.SequenceSet, data.ImageSet | data.SequenceSet]:
    train, held = _split(images, name, seed, held_out, length)
    if train_units > len(train):
        raise ValueError(f"train_units={train_units}: {train.name} has only {len(train)} units")
    if train_units:
        chosen = np.random.default_rng([seed, 0x7281]).permutation(len(train))[:train_units]
        train = train.take(np.sort(chosen))
    return train, held


def _split(
    images: bool, name: str, seed: int, held_out: int, length: int
) -> tuple[data.ImageSet | data.SequenceSet, data.ImageSet | data.SequenceSet]:
    rng = np.random.default_rng([seed, 0x5EED])
    if not images:
        if name == "pydoc_data.topics":
            train, held = data.python_topics(length, 0.45, rng)
        else:
            train, held = data.text_file(name, length, 0.45)
        if len(held) < held_out:
            raise ValueError(f"held_out={held_out}: {held.name} has only {len(held)} sequences")
        chosen = np.sort(rng.permutation(len(held))[:held_out])
        return train, held.take(chosen)
    if name in ("digits", "mnist"):
        whole = data.digits() if name == "digits" else data.mnist()
        left, right = data.split_indices(len(whole), held_out, rng)
        # One mean and deviation of all training pixels: some pixels of the digits never change.
        pixels = whole.take(left).images
        whole = whole.normalised([pixels.mean().item()], [pixels.std().item()])
        return whole.take(left), whole.take(right)
    train_images, test_images = _images_on_disk(name, "train"), _images_on_disk(name, "test")
    if len(test_images) < held_out:
        raise ValueError(f"held_out={held_out}: {test_images.name} has only {len(test_images)} images")
    return train_images, test_images.take(np.sort(rng.permutation(len(test_images))[:held_out]))


@lru_cache(maxsize=2)  # decoding tens of thousands of files takes half a minute, and seeds share them
def _images_on_disk(name: str, split: str) -> data.ImageSet:
    return data.images(name, split).normalised(data.CIFAR_MEAN, data.CIFAR_STD)


def build(network: Network, train: data.ImageSet | data.SequenceSet) -> nn.Module:
    """The network with its initial weights."""
    if isinstance(train, data.ImageSet):
        return models.resnet(
            network.depth,
            network.width,
            classes=len(train.classes),
            channels_in=train.images.shape[1],
            seed=network.seed,
        )
    make = models.llama if network.family == "llama" else models.neox
    return make(network.channels, network.depth, length=network.length, seed=network.seed)


def batches(
    units: data.ImageSet | data.SequenceSet, size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and labels in order, ``size`` units at a time; for sequences both are the bytes."""
    for start in range(0, len(units), size):
        part = slice(start, start + size)
        if isinstance(units, data.ImageSet):
            yield units.images[part], units.labels[part]
        else:
            yield units.tokens[part], units.tokens[part]


def unit_losses(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Loss of each unit, shape (B,): cross-entropy of an image, mean cross-entropy of a sequence's bytes."""
    return _losses(_logits(model, batch[0]), batch[1])


def _logits(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    if inputs.dtype == torch.int64:
        return model(input_ids=inputs).logits
    return model(inputs)


def _losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if logits.ndim == 2:
        return F.cross_entropy(logits, labels, reduction="none")
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none").mean(dim=1)


def _resnet_rate() -> float:
    return 0.1


def _transformer_rate(network: Network) -> float:
    return 0.02 / math.sqrt(network.channels)


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one thread: sums are then taken in one order, and networks can be trained side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train(
    network: Network,
    on_step: Callable[[], None] = lambda: None,
    at_checkpoint: Callable[[int, float, nn.Module], None] | None = None,
) -> Trained:
    """Train ``network``; the same weights whenever the same machine does it again.

    ``at_checkpoint`` is called with the step, the mean training loss of up to 20 steps before it (NaN at
    step 0) and the model in evaluation mode, at each of the network's checkpoints; it must not change
    the model.

    Raises
    ------
    FloatingPointError
        If the loss is no longer finite.
    """
    started = time.process_time()
    units, held_out = load_data(network)
    if network.weights:
        return _pretrained(network, units, held_out)
    with one_thread():
        model = build(network, units).train()
        rate = _resnet_rate() if network.images else _transformer_rate(network)
        optimizer: torch.optim.Optimizer
        if network.images:
            optimizer = torch.optim.SGD(
                model.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4, nesterov=True
            )
        else:
            optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, fused=True)
        warm = max(1, network.steps // 10)
        generator = torch.Generator().manual_seed(network.seed)
        recent: list[float] = []
        for step, batch in enumerate(_shuffled(units, network.batch, network.steps, generator)):
            if at_checkpoint is not None and step in network.checkpoints:
                at_checkpoint(step, float(np.mean(recent)) if recent else math.nan, model.eval())
                model.train()
            share = (step - warm) / max(1, network.steps - warm)
            factor = (step + 1) / warm if step < warm else (1 + math.cos(math.pi * share)) / 2
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.zero_grad()
            loss = unit_losses(model, batch).mean()
            loss.backward()
            if not network.images:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            recent = [*recent[-19:], loss.item()]
            if not math.isfinite(recent[-1]):
                raise FloatingPointError(
                    f"{network.name}: loss={recent[-1]} at step {step}; lower the learning rate"
                )
            on_step()
        model.eval()
        losses, correct = evaluate(model, held_out)
    return Trained(
        network=network,
        model=model,
        train=units,
        held_out=held_out,
        parameters=sum(p.numel() for p in model.parameters()),
        seconds=time.process_time() - started,
        cached=False,
        train_loss=float(np.mean(recent)),
        test_losses=losses,
        test_correct=correct,
    )


def _pretrained(
    network: Network, units: data.ImageSet | data.SequenceSet, held_out: data.ImageSet | data.SequenceSet
) -> Trained:
    """A network trained elsewhere; its training loss is that of up to 1,000 of the given training units."""
    started = time.process_time()
    model = models.load_resnet(network.weights)
    depth = 2 * len(models.resnet_blocks(model)) + 2
    if depth != network.depth:
        raise ValueError(
            f"weights={Path(network.weights).name}: a ResNet-{depth}, expected ResNet-{network.depth}"
        )
    with one_thread():
        chosen = np.random.default_rng([network.seed, 0x7281]).permutation(len(units))[:1000]
        train_losses, _ = evaluate(model, units.take(np.sort(chosen)))
        losses, correct = evaluate(model, held_out)
    return Trained(
        network=network,
        model=model,
        train=units,
        held_out=held_out,
        parameters=sum(p.numel() for p in model.parameters()),
        seconds=time.process_time() - started,
        cached=False,
        train_loss=float(train_losses.mean()),
        test_losses=losses,
        test_correct=correct,
    )


def evaluate(
    model: nn.Module, units: data.ImageSet | data.SequenceSet
) -> tuple[np.ndarray, np.ndarray | None]:
    """Loss of each unit, and for images whether its label was predicted; ``model`` in evaluation mode."""
    losses, correct = [], []
    with torch.no_grad():
        for inputs, labels in batches(units, 64):
            logits = _logits(model, inputs)
            losses.append(_losses(logits, labels))
            if logits.ndim == 2:
                correct.append(logits.argmax(dim=1) == labels)
    return torch.cat(losses).double().numpy(), torch.cat(correct).numpy() if correct else None


def _shuffled(
    units: data.ImageSet | data.SequenceSet, size: int, steps: int, generator: torch.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if not 0 < size <= len(units):
        raise ValueError(f"batch={size}: expected 1 to {len(units)}, the number of training units")
    done = 0
    while True:
        order = torch.randperm(len(units), generator=generator)
        for start in range(0, len(units) - size + 1, size):
            if done == steps:
                return
            done += 1
            chosen = order[start : start + size]
            if isinstance(units, data.ImageSet):
                yield units.images[chosen], units.labels[chosen]
            else:
                yield units.tokens[chosen], units.tokens[chosen]


def cache_folder() -> Path:
    """Where networks are kept: the user's cache folder, or what ``GRADIENT_ALIGNMENT_CACHE`` names."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    try:
        import platformdirs
    except ImportError as error:
        raise ImportError(
            "finding the cache folder needs platformdirs: pip install 'gradient-alignment[validation]', "
            f"or set {CACHE_VARIABLE}"
        ) from error
    return Path(platformdirs.user_cache_dir("gradient-alignment"))


@lru_cache(maxsize=8)
def source_digest(*files: str) -> str:
    """Hash of source files, so that a cache made by other code is not taken."""
    return data.digest(*(Path(f).read_bytes() for f in files))


def cache_key(network: Network, data_sha256: str) -> str:
    """Hash of everything that decides the weights."""
    described = {
        "network": {
            **asdict(network),
            "data": Path(network.data).name,
            "train_pool": 0,
            "trajectory": 0,
            "weights": source_digest(network.weights) if network.weights else "",
        },
        "data": data_sha256,
        "code": source_digest(__file__, *(m.__file__ for m in (models, data, images, sets, cifar))),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "numpy", "transformers")},
    }
    return data.digest(json.dumps(described, sort_keys=True).encode())[:32]


def cached_path(network: Network, data_sha256: str) -> Path:
    """The file that holds the trained network, if it is cached."""
    return cache_folder() / "networks" / f"{cache_key(network, data_sha256)}.safetensors"


def obtain(
    network: Network,
    on_step: Callable[[], None] = lambda: None,
    at_checkpoint: Callable[[int, float, nn.Module], None] | None = None,
) -> Trained:
    """The trained network, from the cache where it is there, else trained and cached.

    With ``at_checkpoint`` (see :func:`train`) a network that has checkpoints is trained in any case.

    A cache file that cannot be read is treated as absent; a cache that cannot be written is no error.
    """
    units, held_out = load_data(network)
    path = cached_path(network, units.sha256)
    stored = None if at_checkpoint is not None and network.checkpoints else _read(path)
    if stored is None:
        trained = train(network, on_step, at_checkpoint)
        write_atomically(path, lambda temporary: _write(temporary, trained))
        return trained
    tensors, facts = stored
    model = build(network, units)
    correct = tensors.pop("_test_correct", None)
    losses = tensors.pop("_test_losses").numpy()
    model.load_state_dict(tensors, strict=True)
    return Trained(
        network=network,
        model=model.eval(),
        train=units,
        held_out=held_out,
        parameters=sum(p.numel() for p in model.parameters()),
        seconds=facts["seconds"],
        cached=True,
        train_loss=facts["train_loss"],
        test_losses=losses,
        test_correct=None if correct is None else correct.numpy(),
    )


def write_atomically(path: Path, write: Callable[[Path], None]) -> bool:
    """Write beside ``path`` and rename, so that readers see a whole file or none; False if impossible."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        os.replace(temporary, path)
    except OSError:
        return False
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return True


def _write(path: Path, trained: Trained) -> None:
    tensors = {k: v.contiguous() for k, v in trained.model.state_dict().items()}
    tensors["_test_losses"] = torch.from_numpy(trained.test_losses)
    if trained.test_correct is not None:
        tensors["_test_correct"] = torch.from_numpy(trained.test_correct)
    facts = {"seconds": trained.seconds, "train_loss": trained.train_loss}
    save_file(tensors, path, metadata={"facts": json.dumps(facts)})


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            return {k: file.get_tensor(k) for k in file.keys()}, json.loads(file.metadata()["facts"])  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, TypeError, json.JSONDecodeError):
        return None
