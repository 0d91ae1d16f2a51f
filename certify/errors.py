"""What can go wrong while measuring, each with a message of one line that says what to do.

Bad arguments are `ValueError` or `TypeError`.  Everything that only shows once a model runs is a
`CertifyError`, so that a caller can catch all of it with one name.
"""

from __future__ import annotations

__all__ = ["CaptureError", "CertifyError", "DependenceError", "ModelError", "NonFiniteError"]


class CertifyError(Exception):
    """A measurement could not be made; the message names the cause and the remedy."""


class CaptureError(CertifyError):
    """A module was not called, was called too often, is not used by the loss, or has an unusable output."""


class ModelError(CertifyError):
    """The caller's own model, loss or data raised an error (the cause); the message names the batch."""


class NonFiniteError(CertifyError):
    """A loss or a gradient is NaN or infinite; the message names module, batch and example."""


class DependenceError(CertifyError):
    """Examples of a batch influence each other, or the model gives different results on the same example."""
