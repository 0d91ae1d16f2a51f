"""``certify where``: the insertion points of a user's model, ranked by certified gain."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from validation import outputs, targets
from validation.measure_command import refuse


def where(
    *,
    model: str,
    data: str | None,
    train_data: str | None,
    loss: str | None,
    at: tuple[str, ...],
    block: str,
    rank: int,
    norm: str,
    confidence: float,
    method: str,
    train_units: int | None,
    test_units: int | None,
    batch_size: int,
    length: int,
    seed: int,
    device: str | None,
    page: Path | None,
    save: Path | None,
    as_json: bool,
    say_json: Callable[[Any], None],
) -> None:
    """Rank, show and write.

    Raises
    ------
    ValueError, CertifyError
        For bad options, and for everything a sweep refuses.
    """
    from certify.block_projection import BLOCKS
    from certify.gains import METHODS
    from certify.intervals import check_confidence, check_count
    from certify.ranking import NORMS
    from certify.ranking import where as rank_points
    from certify.sites import resolve
    from certify.sweep import check_device

    refuse(
        *(
            lambda name=name, value=value: check_count(name, value)
            for name, value in (
                ("train_units", train_units),
                ("test_units", test_units),
                ("batch_size", batch_size),
                ("rank", rank),
            )
            if value is not None
        ),
        lambda: check_confidence(confidence),
        *(
            lambda name=name, value=value, known=known: _check_one_of(name, value, known)
            for name, value, known in (
                ("block", block, BLOCKS),
                ("norm", norm, NORMS),
                ("method", method, METHODS),
            )
        ),
        lambda: None if device is None else check_device(device),
        lambda: outputs.check_file("--html", page, "where.html"),
        lambda: outputs.check_file("--save", save, "where.json"),
    )
    target = targets.load(model, data, loss, batch_size=batch_size, length=length)
    missing = []
    if target.batches is None:
        missing.append("--data is missing: expected held-out data, for example --data npz:FILE or text:FILE")
    if target.loss is None:
        missing.append(
            "--loss is missing: expected classification, causal_lm, regression or python:MODULE:FUNCTION"
        )
    if missing:
        raise ValueError("; and ".join(missing))
    if at:
        resolve(target.model, at)
    if train_data is not None:
        other = targets.load(model, train_data, loss, batch_size=batch_size, length=length)
        train, test = other.batches, target.batches
    else:
        train, test = split(target.batches, train_units, batch_size, seed)
    if device is not None:
        target.model.to(check_device(device))
    ranking = _run(
        rank_points,
        target,
        train,
        test,
        at=list(at) or None,
        block=block,
        rank=rank,
        norm=norm,
        confidence=confidence,
        method=method,
        train_units=train_units,
        test_units=test_units,
        seed=seed,
        device=device,
    )
    if train_data is None:
        note = "training and held-out units are two parts of --data"
        ranking = dataclasses.replace(ranking, notes=(*ranking.notes, note))
    written = []
    for path, text in ((page, _page), (save, lambda r: r.to_json(indent=2))):
        if path is not None:
            outputs.make_folder(path.parent)
            path.write_text(text(ranking), encoding="utf-8")
            written.append(str(path))
    if as_json:
        say_json({"model": model, "data": data, **json.loads(ranking.to_json()), "written": written})
        return
    from validation.console import output

    console = output()
    console.print(ranking)
    for name in written:
        console.print(f"wrote {name}", markup=False, soft_wrap=True)


def _check_one_of(name: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise ValueError(f"--{name}={value!r}: expected one of {', '.join(known)}")


def split(batches: Any, train_units: int | None, size: int, seed: int) -> tuple[Any, Any]:
    """Two disjoint parts of one source: examples drawn at random, or whole batches of an iterable.

    Raises
    ------
    ValueError
        If either part would be empty.
    """
    import numpy as np
    import torch

    if isinstance(batches, targets.Batches):
        n = len(batches.arrays[0])
        cut = n // 2 if train_units is None else train_units
        if not 0 < cut < n:
            raise ValueError(f"train_units={train_units}: expected fewer than the {n} examples of --data")
        order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
        first, second = (
            targets.Batches(tuple(a[part] for a in batches.arrays), size, batches.make)
            for part in (order[:cut], order[cut:])
        )
        return first, second
    kept = list(batches)
    counts = np.cumsum([_length(b) for b in kept])
    wanted = counts[-1] // 2 if train_units is None and len(kept) else (train_units or 0)
    cut = int(np.searchsorted(counts, wanted)) + 1
    if cut >= len(kept):
        raise ValueError(
            f"--data gave {len(kept)} batches: expected at least one for the step and one for the "
            "held-out units; give smaller batches, fewer --train-units or --train-data"
        )
    return kept[:cut], kept[cut:]


def _length(batch: Any) -> int:
    """Examples in a batch: the first axis of its first tensor."""
    from certify.nested import map_tensors

    sizes: list[int] = []
    map_tensors(lambda t: sizes.append(t.shape[0] if t.ndim else 1), batch)
    return sizes[0] if sizes else 1


def _run(
    rank_points: Callable[..., Any], target: targets.Target, train: Any, test: Any, **options: Any
) -> Any:
    from certify.errors import ModelError
    from validation.console import Bars

    with Bars() as bars:
        seen, stage = 0, 0

        def progress(done: int, total: int | None) -> None:
            nonlocal seen, stage
            if stage == 0 or done <= seen:
                wanted = options["train_units"] if stage == 0 else options["test_units"]
                expected = [n for n in (total, wanted) if n is not None]
                bars.start(min(expected, default=0), ("Training units", "Held-out units")[min(stage, 1)])
                seen, stage = 0, stage + 1
            bars.advance(done - seen)
            seen = done

        try:
            return rank_points(target.model, target.loss, train, test, progress=progress, **options)
        except ModelError as error:
            raise ModelError(f"{error}; --debug shows the traceback") from error.__cause__


def _page(ranking: Any) -> str:
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
        "table{border-collapse:collapse}td,th{padding:.2rem .7rem;text-align:left}"
    )
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Where to grow</title>"
        f"<style>{style}</style></head><body><h1>Where to grow</h1>{ranking._repr_html_()}</body></html>\n"
    )
