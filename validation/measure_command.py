"""``certify measure``: gradients of a user's model, their moments and certificates."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from validation import outputs, targets


def measure(
    *,
    model: str,
    data: str | None,
    loss: str | None,
    at: tuple[str, ...],
    list_: bool,
    M: int,
    K: int,
    confidence: float,
    per_module: bool,
    tier: str,
    bound: float | None,
    positions: str,
    batch_size: int,
    length: int,
    max_units: int | None,
    device: str | None,
    revision: str | None,
    dtype: str | None,
    device_map: str | None,
    save: Path | None,
    page: Path | None,
    explain: bool,
    as_json: bool,
    say_json: Callable[[Any], None],
) -> None:
    """Measure, certify and show.

    Raises
    ------
    ValueError, CertifyError
        For bad options, and for everything a sweep refuses.
    """
    from certify.certification import Tier, certificate
    from certify.intervals import check_confidence, check_count
    from certify.positions import check_positions
    from certify.sites import resolve
    from certify.sweep import check_device, collect
    from validation.pretrained import check_options

    refuse(
        *(
            lambda name=name, value=value: check_count(name, value)
            for name, value in (("M", M), ("K", K), ("batch_size", batch_size), ("max_units", max_units))
            if value is not None
        ),
        lambda: check_confidence(confidence),
        lambda: _check_tier(tier, bound),
        lambda: check_positions(positions),
        lambda: None if device in (None, "auto") else check_device(device),
        lambda: check_options(revision, dtype, device_map),
        lambda: _check_devices(device, device_map),
        lambda: outputs.check_folder("--save", save),
        lambda: outputs.check_file("--html", page, "certificate.html"),
    )
    if device == "auto":
        device = _best_device()
    target = targets.load(
        model,
        data,
        loss,
        batch_size=batch_size,
        length=length,
        revision=revision,
        dtype=dtype,
        device_map=device_map,
    )
    names = [name for name, _ in target.model.named_modules() if name]
    if list_:
        _show_modules(target.model, as_json, say_json)
        return
    missing = []
    if not at:
        missing.append(
            f"--at is missing: expected module names such as {', '.join(_examples(names))}; see --list"
        )
    if target.batches is None:
        missing.append("--data is missing: expected held-out data, for example --data npz:FILE or text:FILE")
    if target.loss is None:
        missing.append(
            "--loss is missing: expected classification, causal_lm, regression or python:MODULE:FUNCTION"
        )
    if missing:
        raise ValueError("; and ".join(missing))
    resolve(target.model, at)
    units = _expected_units(target.batches, max_units)
    if tier == "replicates" and units is not None and units < M + K:
        raise ValueError(
            f"tier='replicates': {units} units, but M + K = {M + K}; give smaller --M and --K, or more data"
        )
    each = confidence if per_module else 1 - (1 - confidence) / len(at)
    if device is not None:
        target.model.to(check_device(device))
    moments = _sweep(collect, target, at, positions, max_units, device)
    unit, chosen = target.unit, cast(Tier, tier)
    certificates = {
        name: certificate(m, M=M, K=K, confidence=each, tier=chosen, bound=bound, unit=unit)
        for name, m in moments.items()
    }
    saved = _save(moments, save)
    note = _note(confidence, each, len(at))
    if page is not None:
        _write_page(page, certificates, model, data, note)
    if as_json:
        say_json(
            {
                "model": model,
                "data": data,
                "note": note,
                "units": moments.report.units,
                "dropped": moments.report.dropped,
                "certificates": {k: json.loads(c.to_json()) for k, c in certificates.items()},
                "written": [str(p) for p in [*saved, *([page] if page else [])]],
            }
        )
        return
    _show(certificates, note, explain, [*saved, *([page] if page else [])])


def refuse(*checks: Callable[[], Any]) -> None:
    """Run all checks and say all mistakes together; a missing package only where there is no mistake."""
    mistakes, missing = [], None
    for check in checks:
        try:
            check()
        except (ValueError, TypeError) as error:
            mistakes.append(str(error))
        except ImportError as error:
            missing = error
    if mistakes:
        raise ValueError("; and ".join(mistakes))
    if missing is not None:
        raise missing


def _check_devices(device: str | None, device_map: str | None) -> None:
    if device is not None and device_map is not None:
        raise ValueError(f"device={device!r}, device_map={device_map!r}: give one of them")


def _best_device() -> str:
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _check_tier(tier: str, bound: float | None) -> None:
    from certify.certification import TIERS

    if tier not in TIERS or tier == "conditional":
        offered = ", ".join(t for t in TIERS if t != "conditional")
        raise ValueError(f"tier={tier!r}: expected one of {offered}")
    if bound is None and tier == "bounded":
        raise ValueError("--bound is missing: tier bounded needs a number that no unit's gradient exceeds")
    if bound is not None and tier != "bounded":
        raise ValueError(f"bound={bound}: only --tier bounded uses it, not {tier}")
    if bound is not None and not 0 < bound < math.inf:
        raise ValueError(f"bound={bound}: expected a positive finite number")


def _expected_units(batches: Any, max_units: int | None) -> int | None:
    """How many units a sweep gives at most, where it can be known before."""
    from certify.sweep import _total

    return min((n for n in (_total(batches), max_units) if n is not None), default=None)


def _examples(names: list[str]) -> list[str]:
    deep = [n for n in names if n.count(".") == 1] or names
    return deep[-3:] if deep else ["0"]


def _note(confidence: float, each: float, modules: int) -> str:
    if modules == 1:
        return f"limits hold with confidence {confidence:g}"
    if each == confidence:
        return f"limits hold with confidence {confidence:g} for each module by itself, not for all together"
    return f"limits of all {modules} modules hold together with confidence {confidence:g} ({each:.4g} each)"


def _sweep(
    collect: Callable[..., Any],
    target: targets.Target,
    at: tuple[str, ...],
    positions: str,
    max_units: int | None,
    device: str | None,
) -> Any:
    from certify.errors import ModelError
    from validation.console import Bars

    with Bars() as bars:
        seen = 0

        def progress(done: int, total: int | None) -> None:
            nonlocal seen
            expected = [n for n in (total, max_units) if n is not None]
            if seen == 0:
                bars.start(min(expected, default=0), "Measuring gradients")
            done = min([done, *expected])  # the last batch may hold more units than are wanted
            bars.advance(done - seen)
            seen = done

        try:
            return collect(
                target.model,
                target.loss,
                target.batches,
                at=list(at),
                positions=positions,
                max_units=max_units,
                progress=progress,
                device=device,
            )
        except ModelError as error:
            raise ModelError(f"{error}; --debug shows the traceback") from error.__cause__


def _save(moments: Mapping[str, Any], folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    outputs.make_folder(folder)
    paths = []
    for name, m in moments.items():
        path = folder / (re.sub(r"[^A-Za-z0-9_.-]+", "_", name) + ".safetensors")
        m.save(path)
        paths.append(path)
    return paths


def _show_modules(model: Any, as_json: bool, say_json: Callable[[Any], None]) -> None:
    modules = {name: type(module).__name__ for name, module in model.named_modules() if name}
    if as_json:
        say_json(modules)
        return
    import click

    for name, kind in modules.items():
        click.echo(f"{name:<40} {kind}")


def _show(certificates: Mapping[str, Any], note: str, explain: bool, written: list[Path]) -> None:
    from rich.table import Table

    from validation.console import output
    from validation.page import number

    first = next(iter(certificates.values()))
    table = Table(
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    for head in (
        "module",
        "d",
        "d_par",
        "d_2",
        "d_align",
        "B_exact",
        "B_align",
        "P(T ≤ 0)\nat most",
        "state",
    ):
        table.add_column(
            head, justify="left" if head in ("module", "state") else "right", no_wrap=head != "state"
        )
    styles = {"certified": "green", "assumption violated": "bold red"}
    for name, c in certificates.items():
        table.add_row(
            name,
            str(c.d),
            *(_with_limit(q) for q in (c.d_par, c.d_2, c.d_align, c.B_exact, c.B_align)),
            number(c.upper) if c.misalignment.limit is not None else "–",
            f"[{styles.get(c.state, 'yellow')}]{c.state}[/]",
        )
    console = output()
    console.print(table)
    sizes = f"n = {first.n} units ({first.unit}), positions {first.positions}, M = {first.M}, K = {first.K}"
    console.print(f"{sizes}; {note}", style="dim", markup=False, soft_wrap=True)
    console.print("each: the estimate, below it its one-sided limit", style="dim", markup=False)
    if explain:
        for c in certificates.values():
            console.print(f"\n{c.explain()}", markup=False)
    for path in written:
        console.print(f"wrote {path}", markup=False, soft_wrap=True)


def _with_limit(q: Any) -> str:
    """Estimate over its limit on the unfavourable side; two lines, so that a row fits 80 columns."""
    from validation.page import number

    if q.limit is None:
        return number(q.estimate)
    side = f"≤ {number(q.limit.high)}" if q.limit.alternative == "less" else f"≥ {number(q.limit.low)}"
    return f"{number(q.estimate)}\n{side}"


def _write_page(path: Path, certificates: Mapping[str, Any], model: str, data: str | None, note: str) -> None:
    from validation.report import certificates_page

    outputs.make_folder(path.parent)
    path.write_text(certificates_page(certificates, model, data or "", note), encoding="utf-8")
