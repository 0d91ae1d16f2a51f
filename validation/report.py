"""Stored records to one self-contained HTML page, and to CSV and JSON summaries.

The page is built from records alone: nothing is measured here, and a report can be rebuilt at any time.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from validation import cells, latex, page, store
from validation.claims import of, suites
from validation.methods import TITLES, methods
from validation.results import Geometry, Misalignment, Record, Run, Training, from_json
from validation.verdicts import claim_table

__all__ = [
    "FORMATS",
    "STORE",
    "TITLES",
    "build",
    "certificates_page",
    "check_formats",
    "comparison_page",
    "load",
    "render",
    "summary",
    "write",
]

STORE = "results.jsonl"
FORMATS = ("html", "json", "csv", "tex")
_ROOM = 2_600_000
"""Bytes for all pictures of a page at first; less where its tables and data take more than the rest."""
_MANY = 1000
"""Records above which drawing in processes of their own is worth starting them."""
_PAGE = 4_900_000
"""Bytes of a page: it opens at once and goes through mail."""


def load(path: str | Path) -> list[Record]:
    """Records of a run, from its folder or its ``results.jsonl``.

    Of a folder with a journal (every run's) only finished cells are read. Of a bare file, a last line without
    its newline is a write that was cut off; it is left out.

    Raises
    ------
    ValueError
        If there is no store, a line is not a record, or no run is described.
    """
    file = Path(path)
    if (file / store.JOURNAL).is_file():
        return store.read(file)
    if file.is_dir():
        file = file / STORE
    if not file.is_file():
        raise ValueError(
            f"path={str(path)!r}: expected a folder with {STORE}; make one with `certify validate --out "
            f"{path}`"
        )
    lines = file.read_text(encoding="utf-8").split("\n")[:-1]
    records = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                records.append(from_json(line))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{file}, line {number}: {error}") from error
    if not of(records, Run):
        raise ValueError(
            f"path={str(path)!r}: no run is described in {file.name}; repeat `certify validate --out {path}`"
        )
    return records


def build(records: Sequence[Record], path: str | Path) -> Path:
    """Write the page for ``records`` to ``path`` at once (never a half-written file) and return the path."""
    return _write(Path(path), render(records))


def check_formats(formats: Iterable[str]) -> tuple[str, ...]:
    """The formats, each once.

    Raises
    ------
    ValueError
        For a format other than html, json, csv, tex.
    """
    chosen = tuple(dict.fromkeys(formats))
    for f in chosen:
        if f not in FORMATS:
            raise ValueError(f"format={f!r}: expected some of {', '.join(FORMATS)}, separated by commas")
    return chosen


def write(records: Sequence[Record], out: str | Path, formats: Iterable[str] = ("html",)) -> list[Path]:
    """Write ``report.html``, ``summary.json``, CSV tables and ``tables.tex`` into the folder ``out``.

    Raises
    ------
    ValueError
        For a format other than html, json, csv, tex.
    """
    chosen = check_formats(formats)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    if "html" in chosen:
        written.append(build(records, folder / "report.html"))
    if "json" in chosen:
        text = json.dumps(summary(records), indent=2, allow_nan=False, ensure_ascii=False)
        written.append(_write(folder / "summary.json", text + "\n"))
    if "csv" in chosen:
        written.append(
            _write(folder / "claims.csv", page.to_csv([page.flat(r) for r in claim_table(records)]))
        )
        for kind, name in ((Misalignment, "misalignment"), (Geometry, "geometry"), (Training, "training")):
            rows = [page.flat(r) for r in of(records, kind)]
            if rows:
                written.append(_write(folder / f"{name}.csv", page.to_csv(rows)))
    if "tex" in chosen:
        written.append(_write(folder / "tables.tex", latex.document(records)))
    return written


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """The run, the number of records of each kind and the claim table, ready for JSON."""
    rows = claim_table(records)
    return {
        "run": dataclasses.asdict(_run(records)),
        "records": {k.__name__.lower(): len(of(records, k)) for k in (Training, Geometry, Misalignment)},
        "verdicts": {v: sum(r.verdict == v for r in rows) for v in ("holds", "undecided", "fails")},
        "claims": [dataclasses.asdict(r) for r in rows],
    }


def _environment() -> tuple[Any, str]:
    """The templates and the style sheet without its indentation."""
    try:
        import jinja2
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{error.name} is missing; install it with: pip install 'gradient-alignment[validation]'"
        ) from error
    folder = Path(__file__).parent / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined
    )
    markup = jinja2.utils.markupsafe.Markup
    environment.filters |= {"math": lambda text: markup(page.math_html(text)), "num": page.number}
    return environment, re.sub(r"\s*\n\s*", "\n", (folder / "report.css").read_text(encoding="utf-8"))


def certificates_page(certificates: Mapping[str, Any], model: str, data: str, note: str) -> str:
    """A page of certificates, one for each module, in the report's style."""
    environment, css = _environment()
    return str(
        environment.get_template("certificates.html").render(
            css=css, certificates=certificates, model=model, data=data, note=note
        )
    )


_DIFFERENCES = 400


def comparison_page(a: Sequence[Record], b: Sequence[Record], path: str | Path) -> Path:
    """Write the page that compares two runs and return its path."""
    from validation import compare

    environment, css = _environment()
    found = compare.compare(a, b)
    made = [{**vars(f), "csv": page.download(f.id, f.rows)} for f in compare.figures(a, b)]
    rows = [dataclasses.asdict(d) for d in found.differences]
    text = environment.get_template("compare.html").render(
        css=css,
        c=found,
        figures=made,
        judged=len(compare.judged(found)),
        changed=sum(v["a"] != v["b"] for v in compare.judged(found)),
        shown=_DIFFERENCES,
        csv=page.download("differences", rows),
    )
    return _write(Path(path), text)


def render(records: Sequence[Record], *, jobs: int | None = None) -> str:
    """The page as text; suites are drawn in ``jobs`` processes, None: one a core where there is much to draw.

    The page is the same whatever their number.
    """
    environment, css = _environment()
    if jobs is None:
        jobs = (os.cpu_count() or 1) if len(records) > _MANY else 1
    run, rows = _run(records), claim_table(records)
    # The suite with the most records is drawn first, so that no core idles at the end.
    names = suites(records)
    size = {s: sum(getattr(r, "suite", None) == s for r in records) for s in names}
    order = sorted(names, key=lambda s: -size[s])
    with closing(cells.in_order([partial(page.suite_view, records, s) for s in order], jobs=jobs)) as drawn:
        by_suite = dict(zip(order, drawn, strict=True))
    views = [by_suite[s] for s in names]
    for view in views:
        view["claims"] = page.claim_views([r for r in rows if r.suite == view["suite"]])
    pictures = page.fit(views, _ROOM)
    text = _page(environment, css, records, run, rows, views)
    excess = len(text.encode()) - _PAGE
    if excess > 0:
        page.fit(views, pictures - excess)
        text = _page(environment, css, records, run, rows, views)
    return text


def _page(
    environment: Any, css: str, records: Sequence[Record], run: Run, rows: Sequence[Any], views: Any
) -> str:
    text: str = environment.get_template("report.html").render(
        run=run,
        css=css,
        started=page.date(run.started),
        count=len(records),
        headline=page.headline(rows),
        lead=page.lead(records, run),
        facts=page.facts(records),
        claims=page.claim_views(rows),
        suites=views,
        methods=methods(records, run),
    )
    return text


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    return path


def _run(records: Sequence[Record]) -> Run:
    runs = of(records, Run)
    if not runs:
        raise ValueError("records: expected a Run record; repeat `certify validate`")
    return runs[-1]
