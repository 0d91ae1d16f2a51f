"""What the readers of ``validation.data`` return: images and sequences that know where they came from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch


@dataclass(frozen=True)
class ImageSet:
    """Labelled images: ``images`` (n, channels, height, width), float32, and ``labels`` (n,), int64."""

    name: str
    images: torch.Tensor
    labels: torch.Tensor
    classes: tuple[str, ...]
    sha256: str
    licence: str

    def __len__(self) -> int:
        return len(self.labels)

    def normalised(self, mean: Iterable[float], std: Iterable[float]) -> ImageSet:
        """Subtract ``mean`` and divide by ``std``, one number per channel."""
        m, s = (torch.tensor(tuple(v), dtype=torch.float32).reshape(1, -1, 1, 1) for v in (mean, std))
        return replace(self, images=(self.images - m).div_(s))  # in place: these are the largest arrays

    def take(self, indices: np.ndarray) -> ImageSet:
        """The examples at ``indices``, in that order."""
        at = torch.from_numpy(np.asarray(indices, dtype=np.int64))
        return replace(self, images=self.images[at], labels=self.labels[at])


@dataclass(frozen=True)
class SequenceSet:
    """Byte sequences of equal length: ``tokens`` (n, length), int64 in 0..255."""

    name: str
    tokens: torch.Tensor
    sha256: str
    licence: str

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, indices: np.ndarray) -> SequenceSet:
        """The sequences at ``indices``, in that order."""
        return replace(self, tokens=self.tokens[torch.from_numpy(np.asarray(indices, dtype=np.int64))])


def digest(*parts: bytes | memoryview) -> str:
    """SHA-256 of ``parts``, each preceded by its length so that no two lists of parts collide.

    >>> digest(b"ab", b"c") == digest(b"a", b"bc")
    False
    """
    h = hashlib.sha256()
    for part in parts:
        h.update(len(part).to_bytes(8, "big"))
        h.update(part)
    return h.hexdigest()
