"""Losses of single examples: what a sweep differentiates.

A loss is any callable `loss(model, batch)` that returns one value per example, a tensor of shape (B,).
That is the whole interface.  A loss may also return a `PerExample`, which is such a tensor and says in
addition which examples to drop and which positions of a sequence are real.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["PerExample", "causal_lm", "classification", "regression"]


class PerExample(Tensor):
    """One loss per example, with a note on which examples count and which positions are real.

    It behaves as an ordinary tensor of shape (B,); the result of any operation on it is a plain tensor.

    Parameters
    ----------
    values
        Losses, shape (B,), finite everywhere (zero where `keep` is false).
    keep
        Boolean, shape (B,): false drops the example from the sweep, and the sweep counts it.
    positions
        Boolean, shape (B, L): true at real positions, false at padding.  A captured gradient of shape
        (B, L, C) is set to zero at padding, and `positions="mean"` divides by the number of real ones.

    Examples
    --------
    >>> import torch
    >>> loss = PerExample(torch.tensor([1.0, 0.0]), keep=torch.tensor([True, False]))
    >>> float(loss.sum()), loss.keep.tolist(), type(loss + 1) is torch.Tensor
    (1.0, [True, False], True)
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    keep: Tensor | None
    positions: Tensor | None

    @staticmethod
    def __new__(
        cls, values: Tensor, *, keep: Tensor | None = None, positions: Tensor | None = None
    ) -> PerExample:
        if values.ndim != 1:
            raise ValueError(f"values.shape={tuple(values.shape)}: expected one loss per example, shape (B,)")
        if keep is not None and (keep.shape != values.shape or keep.dtype != torch.bool):
            raise ValueError(
                f"keep has shape {tuple(keep.shape)} and dtype {keep.dtype}: expected a boolean tensor of "
                f"shape {tuple(values.shape)}"
            )
        if positions is not None and (positions.ndim != 2 or positions.shape[0] != values.shape[0]):
            raise ValueError(
                f"positions.shape={tuple(positions.shape)}: expected (B, L) with B={values.shape[0]}"
            )
        result = values.as_subclass(cls)
        result.keep = keep
        result.positions = None if positions is None else positions.bool()
        return result


def _inputs_and_targets(batch: Any, loss: str) -> tuple[Any, Tensor]:
    if isinstance(batch, Mapping):
        for key in ("labels", "label", "targets", "target"):
            if key in batch:
                return {k: v for k, v in batch.items() if k != key}, batch[key]
    elif isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    raise TypeError(
        f"batch of type {type(batch).__name__}: losses.{loss} expects (inputs, targets) or a mapping with "
        "'labels'; for other batches write loss(model, batch) yourself, returning shape (B,)"
    )


def _call(model: torch.nn.Module, inputs: Any) -> Tensor:
    output = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if logits is None and isinstance(output, Mapping):
        logits = output.get("logits")
    if logits is None and isinstance(output, (tuple, list)) and output:
        logits = output[0]
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"the model returned a {type(output).__name__} without logits; expected a tensor, a tuple that "
            "starts with one, or an object with .logits"
        )
    return logits


def classification(
    model: torch.nn.Module, batch: Any, *, ignore_index: int = -100, label_smoothing: float = 0.0
) -> PerExample:
    """Cross-entropy of each example.

    l_i = -log softmax(logits_i)[y_i]; for dense targets the mean over the positions that are not ignored.

    Logits have shape (B, C) or (B, C, ...), integer targets (B,) or (B, ...), probability targets the shape
    of the logits.  Half-precision logits are taken to float32 first.

    Parameters
    ----------
    model
        Called as `model(inputs)`, or `model(**inputs)` when the batch is a mapping.
    batch
        A pair (inputs, targets), or a mapping with "labels" (or "label", "targets", "target").
    ignore_index
        Targets with this value do not count; an example with no other target is dropped and counted.
    label_smoothing
        As in `torch.nn.functional.cross_entropy`.

    Raises
    ------
    TypeError
        If the batch is neither a pair nor a mapping with labels, or the model returns no logits.

    Notes
    -----
    Source: paper 1, the loss of its image experiments (cross-entropy of one example).

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(2, 3)
    >>> classification(model, (torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]))).shape
    torch.Size([4])
    """
    inputs, targets = _inputs_and_targets(batch, "classification")
    logits = _call(model, inputs)
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    try:
        losses = F.cross_entropy(
            logits, targets, reduction="none", ignore_index=ignore_index, label_smoothing=label_smoothing
        )
    except (IndexError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} and {targets.dtype} do not fit logits of shape "
            f"{tuple(logits.shape)} ({error}); give class numbers (int64) below the size of axis 1, or "
            "probabilities of the shape of the logits"
        ) from error
    if targets.is_floating_point():
        return PerExample(losses if losses.ndim == 1 else losses.flatten(1).mean(1))
    counted = (targets != ignore_index)[..., None].flatten(1)
    total = losses[..., None].flatten(1).sum(1)
    return PerExample(total / counted.sum(1).clamp(min=1), keep=counted.any(1))


def regression(model: torch.nn.Module, batch: Any) -> PerExample:
    """Squared error of each example, averaged over its output entries.

    l_i = mean_k (f(x_i)_k - y_ik)^2

    Predictions and targets have the same number of entries per example; float64 stays float64.

    Parameters
    ----------
    model
        Called as `model(inputs)`, or `model(**inputs)` when the batch is a mapping.
    batch
        A pair (inputs, targets), or a mapping with "labels" (or "label", "targets", "target").

    Raises
    ------
    ValueError
        If an example's prediction and target differ in size (plain broadcasting would pair each
        prediction with every target).

    Notes
    -----
    Source: the least-squares loss of any statistics book.

    Examples
    --------
    >>> import torch
    >>> regression(torch.nn.Linear(2, 1), (torch.zeros(4, 2), torch.zeros(4))).shape
    torch.Size([4])
    """
    inputs, targets = _inputs_and_targets(batch, "regression")
    predictions = _call(model, inputs)
    size = len(predictions)
    if predictions.numel() != targets.numel() or targets.shape[:1] != predictions.shape[:1]:
        raise ValueError(
            f"predictions.shape={tuple(predictions.shape)} and targets.shape={tuple(targets.shape)} do not "
            "match; give targets with as many entries per example as the model predicts"
        )
    errors = predictions.reshape(size, -1) - targets.reshape(size, -1)
    return PerExample(errors.square().mean(1))


def causal_lm(model: torch.nn.Module, batch: Mapping[str, Any], *, ignore_index: int = -100) -> PerExample:
    """Mean next-token cross-entropy of each sequence, for causal models of the Hugging Face kind.

    ``l_i = (1/|P_i|) sum_{t in P_i} -log p(y_{i,t+1} | tokens up to t)``

    P_i holds the positions t whose token and whose successor are both real (attention mask 1) and whose
    successor's label is not ignored.  One value per sequence: the unit is the sequence, never the token.

    Conventions, fixed here once:

    * `labels` (default: `input_ids`) are *not* shifted; the shift by one happens here and only here.
    * Padding may be on either side.  It is known from `attention_mask` alone; without one, every token is
      real.  For padding on the left, `position_ids` are derived from the mask when the model takes them
      and the batch has none.
    * A sequence with nothing to predict is dropped and counted, not turned into NaN.
    * Logits are taken to float32 when the model computes in half precision.

    Parameters
    ----------
    model
        Called with `input_ids`, `attention_mask` and the other entries of the batch except `labels`.
    batch
        Mapping with `input_ids` (B, L), optionally `attention_mask` (B, L) and `labels` (B, L).
    ignore_index
        Label that is not predicted.

    Raises
    ------
    TypeError
        If the batch is not a mapping with `input_ids`.
    ValueError
        If the labels look as if they had been shifted already, or shapes do not match.

    Notes
    -----
    Source: paper 1, the loss of its language-model experiments.

    Examples
    --------
    >>> import torch
    >>> tokens = torch.tensor([[1, 2, 3], [4, 5, 0]])
    >>> mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    >>> class Bigram(torch.nn.Module):  # the logits depend on one token only
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.table = torch.nn.Embedding(10, 10)
    ...     def forward(self, input_ids, attention_mask=None):
    ...         return self.table(input_ids)
    >>> loss = causal_lm(Bigram(), {"input_ids": tokens, "attention_mask": mask})
    >>> loss.shape, loss.keep.tolist()
    (torch.Size([2]), [True, False])
    """
    if not isinstance(batch, Mapping) or "input_ids" not in batch:
        raise TypeError(
            f"batch of type {type(batch).__name__}: losses.causal_lm expects a mapping with 'input_ids' and "
            "optionally 'attention_mask' and 'labels', each of shape (B, L)"
        )
    tokens: Tensor = batch["input_ids"]
    given: Tensor | None = batch.get("attention_mask")
    labels: Tensor = tokens if batch.get("labels") is None else batch["labels"]
    mask = torch.ones_like(tokens, dtype=torch.bool) if given is None else given.bool()
    if labels.shape != tokens.shape or mask.shape != tokens.shape or tokens.ndim != 2:
        raise ValueError(
            f"input_ids, attention_mask and labels have shapes {tuple(tokens.shape)}, {tuple(mask.shape)}, "
            f"{tuple(labels.shape)}; expected the same (B, L) for all"
        )
    targets = labels[:, 1:]
    predicted = (targets != ignore_index) & mask[:, 1:] & mask[:, :-1]
    if labels is not tokens:
        _refuse_shifted_labels(tokens, labels, mask, ignore_index)
    inputs = {k: v for k, v in batch.items() if k != "labels"}
    inputs |= _extra_arguments(model, given, inputs)
    logits = _call(model, inputs)[:, -tokens.shape[1] :][:, :-1]
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    chosen = F.cross_entropy(logits[predicted], targets[predicted], reduction="none")
    losses = chosen.new_zeros(predicted.shape).masked_scatter(predicted, chosen)
    values = losses.sum(1) / predicted.sum(1).clamp(min=1)
    return PerExample(values, keep=predicted.any(1), positions=mask)


def _refuse_shifted_labels(tokens: Tensor, labels: Tensor, mask: Tensor, ignore_index: int) -> None:
    real = (labels != ignore_index) & mask
    ahead = real[:, :-1] & mask[:, 1:]
    if not bool(ahead.any()) or bool((labels == tokens)[real].all()):
        return
    if bool((labels[:, :-1] == tokens[:, 1:])[ahead].all()):
        raise ValueError(
            "labels are already shifted by one (labels[:, t] equals input_ids[:, t+1]); pass unshifted "
            "labels, the shift happens in losses.causal_lm"
        )


def _extra_arguments(
    model: torch.nn.Module, mask: Tensor | None, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments that make one convention hold for every model that accepts them."""
    accepted = inspect.signature(model.forward).parameters
    extra: dict[str, Any] = {}
    if "use_cache" in accepted and "use_cache" not in inputs:
        extra["use_cache"] = False  # a cache would only cost memory
    padded_left = mask is not None and not bool(mask[:, 0].bool().all())
    if padded_left and "position_ids" in accepted and "position_ids" not in inputs:
        assert mask is not None
        extra["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)
    return extra
