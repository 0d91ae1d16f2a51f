"""The command line ``certify``: validate, report, measure, where, plan, theory, doctor.

Heavy imports live inside the commands, so that ``certify --help`` answers at once. With ``--json`` standard
output holds JSON and nothing else; progress and remarks go to standard error. Exit status: 0 done, 1 a claim
or a check failed, 2 a mistake in the input or a refusal (one line, no traceback; ``--debug`` shows it), 130
interrupted.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class State:
    """What the error handler must know about the call."""

    debug: bool = False
    resumable: str = ""
    """Folder of the run that an interruption leaves to be continued."""


def _debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_object(State).debug = True  # type: ignore[union-attr]


def common(command: F) -> F:
    """``--json`` and ``--debug`` for a command."""
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON only on standard output.")(
        command
    )
    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_debug,
        help="Show the traceback of an error.",
    )(command)


def csv_option(_: click.Context, __: click.Parameter, value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """``--suite a,b --suite c`` as ('a', 'b', 'c')."""
    parts = (value,) if isinstance(value, str) else value or ()
    return tuple(p.strip() for part in parts for p in part.split(",") if p.strip())


def written_as(command: F) -> F:
    """``--format`` and ``--open`` of the commands that write a report."""
    command = click.option(
        "--open/--no-open", "open_", default=False, help="Show the report in the browser afterwards."
    )(command)
    return click.option(
        "--format",
        "formats",
        multiple=True,
        callback=csv_option,
        metavar="NAME[,NAME...]",
        default=("html",),
        show_default=True,
        help="html, json, csv, tex.",
    )(command)


def say_json(payload: Any) -> None:
    """Print a JSON document; a NaN is a bug and raises."""
    click.echo(json.dumps(payload, indent=2, allow_nan=False, ensure_ascii=False))


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="gradient-alignment", prog_name="certify")
@click.option("--debug", is_flag=True, expose_value=False, is_eager=True, callback=_debug, hidden=True)
def cli() -> None:
    """Verify, estimate and certify the alignment of train and test gradients."""


@cli.command()
@click.option(
    "--preset",
    default="default",
    show_default=True,
    metavar="NAME",
    help="smoke (a minute), default (ten), laptop (an hour) or paper.",
)
@click.option(
    "--suite",
    "suites",
    multiple=True,
    callback=csv_option,
    metavar="NAME[,NAME...]",
    help="gaussian, resnet20, neox, llama, ...; default: all of the preset.",
)
@click.option("--seed", default=0, show_default=True, help="Everything random derives from it.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for results and report. [default: runs/PRESET]"
)
@written_as
@click.option(
    "--images",
    type=click.Path(path_type=Path, exists=True),
    help="Images for the ResNets: official CIFAR files or SPLIT/CLASS/FILE, also packed. [default: embedded]",
)
@click.option(
    "--checkpoints",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of public resnetDEPTH*.th for the suites intervention and depth; needs --images.",
)
@click.option("--jobs", type=int, help="Networks trained at the same time. [default: one for each core]")
@click.option(
    "--model", metavar="SPEC", help="Only this trained network: hf:PATH_OR_NAME or checkpoint:FILE."
)
@click.option("--data", metavar="SPEC", help="Held-out data of --model: text:FILE or images:PATH[:SPLIT].")
@click.option("--length", type=int, help="Tokens in a sequence of --model. [default: 128]")
@click.option("--max-units", type=int, help="Units of --data to use. [default: as many as the preset's]")
@click.option("--revision", metavar="NAME", help="Of --model hf:NAME, e.g. the training step step3000.")
@click.option("--dtype", metavar="NAME", help="Of --model hf:, e.g. bfloat16. [default: as stored]")
@click.option("--device", metavar="NAME", help="Of --model: cpu, cuda, ... [default: cpu]")
@click.option("--device-map", metavar="NAME", help="auto spreads --model over devices (accelerate).")
@common
@click.pass_obj
def validate(
    state: State,
    preset: str,
    suites: tuple[str, ...],
    seed: int,
    out: Path | None,
    formats: tuple[str, ...],
    open_: bool,
    images: Path | None,
    checkpoints: Path | None,
    jobs: int | None,
    as_json: bool,
    **of_model: Any,
) -> None:
    """Count misalignment on known laws and on real networks, and write the report.

    An interrupted run goes on where it stopped when the same command is given again.
    """
    from validation import report
    from validation import validate_command as command

    report.check_formats(formats)
    of_model = command.only_model(of_model, suites, images, checkpoints, jobs)
    folder = out or Path("runs") / ("loaded" if of_model else preset)
    state.resumable = str(folder)
    store, contradiction = command.run(preset, suites, seed, folder, images, checkpoints, jobs, of_model)
    records = report.load(store)
    written = report.write(records, folder, formats)
    _conclude(records, written, as_json)
    if open_:
        _open(written)
    if contradiction is not None:
        click.echo(f"error: {contradiction}", err=True)
        raise click.exceptions.Exit(1)


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path), required=False)
@click.option(
    "--out", type=click.Path(path_type=Path), help="HTML file to write. [default: FOLDER/report.html]"
)
@written_as
@common
def report(
    folder: Path,
    other: Path | None,
    out: Path | None,
    formats: tuple[str, ...],
    open_: bool,
    as_json: bool,
) -> None:
    """Build the report again from the results stored in FOLDER; nothing is measured.

    With a second folder, OTHER, write one page that compares the two runs: FOLDER is A, OTHER is B.
    """
    from validation import report as page
    from validation.outputs import check_file, check_folder

    page.check_formats(formats)
    if other is not None:
        _compare(folder, other, out, formats, open_, as_json)
        return
    target = folder if folder.is_dir() else folder.parent
    check_file("--out", out, "report.html")
    if folder.exists() and (out is None or set(formats) - {"html"}):
        check_folder("FOLDER", target)
    records = _load(folder)
    written = page.write(records, target, [f for f in formats if f != "html" or out is None])
    if out is not None:
        written.append(page.build(records, out))
    _conclude(records, written, as_json)
    if open_:
        _open(written)


def _load(folder: Path) -> Any:
    from validation import report as page

    try:
        return page.load(folder)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"path={str(folder)!r}: the results are not UTF-8 text (byte {error.start}): no run wrote "
            "them so; repeat `certify validate` in another folder"
        ) from error


def _compare(
    a: Path, b: Path, out: Path | None, formats: tuple[str, ...], open_: bool, as_json: bool
) -> None:
    """Write the page on two runs, or print the comparison as JSON."""
    from validation import compare
    from validation import report as page
    from validation.outputs import check_file

    if set(formats) - {"html", "json"}:
        raise ValueError(
            f"--format={','.join(formats)}: a comparison is written as html; --json prints it as JSON"
        )
    target = out or Path("comparison.html")
    check_file("--out", target, "comparison.html")
    first, second = _load(a), _load(b)
    found = compare.compare(first, second)
    written = [page.comparison_page(first, second, target)]
    if as_json:
        say_json({**compare.to_dict(found), "written": [str(p) for p in written]})
    else:
        both = compare.judged(found)
        changed = [v for v in both if v["a"] != v["b"]]
        click.echo(f"{found.identical} of {found.matched} matched records are identical bit for bit")
        click.echo(f"only in A: {len(found.only_a)}; only in B: {len(found.only_b)}")
        for reason in found.shared:
            click.echo(f"not independent: {reason}")
        click.echo(f"{len(changed)} of the {len(both)} verdicts of both runs differ")
        for v in changed:
            click.echo(f"  {v['claim']}, {v['suite']}, {v['scope']}: {v['a']} -> {v['b']}")
        click.echo(f"wrote {written[0]}")
    if open_:
        _open(written)


def _conclude(records: Any, written: list[Path], as_json: bool) -> None:
    from validation import report as page

    if as_json:
        say_json({**page.summary(records), "written": [str(p) for p in written]})
        return
    from validation.console import COUNTS, output, verdict_table
    from validation.verdicts import claim_table

    console = output()
    console.print(verdict_table(claim_table(records), page.TITLES))
    console.print(COUNTS, style="dim", markup=False, soft_wrap=True)
    for path in written:
        console.print(f"wrote {path}", markup=False, soft_wrap=True)


def _open(written: list[Path]) -> None:
    import webbrowser

    pages = [p for p in written if p.suffix == ".html"]
    if pages and not webbrowser.open(pages[0].resolve().as_uri()):
        click.echo(f"no browser found; open {pages[0]} yourself", err=True)


@cli.command()
@common
def doctor(as_json: bool) -> None:
    """Show versions, devices, threads, optional extras and the cache, and run a two-second self-check."""
    from validation.doctor import examine, lines

    found = examine()
    if as_json:
        say_json(found)
    else:
        click.echo("\n".join(lines(found)))
    if not found["self_check"]["ok"]:
        raise click.exceptions.Exit(1)


@cli.command()
@click.option(
    "--model",
    required=True,
    metavar="SPEC",
    help="python:MODULE:FUNCTION, hf:PATH or checkpoint:FILE (a CIFAR ResNet).",
)
@click.option(
    "--data",
    metavar="SPEC",
    help="python:MODULE:FUNCTION, text:FILE, images:PATH[:SPLIT[:coarse]] or npz:FILE with x and y.",
)
@click.option(
    "--loss",
    metavar="NAME",
    help="classification, causal_lm, regression or python:MODULE:FUNCTION. [default: what fits the "
    "data; python: data need it, unless the model brings its loss]",
)
@click.option(
    "--at", multiple=True, callback=csv_option, metavar="NAME[,NAME...]", help="Modules to measure at."
)
@click.option("--list", "list_", is_flag=True, help="List the model's modules and stop.")
@click.option("--M", "M", default=256, show_default=True, help="Units averaged on the training side.")
@click.option("--K", "K", default=256, show_default=True, help="Units averaged on the test side.")
@click.option("--confidence", default=0.95, show_default=True, help="Of all modules' limits together.")
@click.option("--per-module", is_flag=True, help="Let --confidence hold for each module by itself.")
@click.option(
    "--tier", default="asymptotic", show_default=True, help="plug-in, asymptotic, bounded or replicates."
)
@click.option("--bound", type=float, help="For tier bounded: no unit's gradient is longer.")
@click.option("--positions", default="sum", show_default=True, help="sum, mean or flatten.")
@click.option("--batch-size", default=64, show_default=True)
@click.option("--length", default=128, show_default=True, help="Tokens in a sequence (text:).")
@click.option("--max-units", type=int, help="Stop after this many units.")
@click.option("--device", metavar="NAME", help="cpu, cuda, mps or auto. [default: where the model is]")
@click.option("--revision", metavar="NAME", help="Of a model hf:NAME, e.g. the training step step3000.")
@click.option("--dtype", metavar="NAME", help="float32, bfloat16, ... (hf:). [default: as stored]")
@click.option("--device-map", metavar="NAME", help="auto spreads an hf: model over devices (accelerate).")
@click.option(
    "--save", type=click.Path(path_type=Path), help="Folder to save the moments in, for `certify plan`."
)
@click.option("--html", "page", type=click.Path(path_type=Path), help="Also write an HTML file.")
@click.option("--explain", is_flag=True, help="Print how each number was obtained.")
@common
def measure(as_json: bool, **options: Any) -> None:
    """Measure the gradients of your own model on held-out data and certify their alignment."""
    from validation.measure_command import measure as run

    run(as_json=as_json, say_json=say_json, **options)


@cli.command()
@click.argument("pilots", nargs=-1, type=click.Path(path_type=Path), metavar="[PILOT]...")
@click.option("--target", type=float, required=True, help="The bound must come down to this.")
@click.option("--bound", default="exact", show_default=True, help="exact, align or gaussian (not a bound).")
@click.option("--d-par", type=float, help="Instead of a pilot: d_par and d_2.")
@click.option("--d-2", "d_2", type=float, help="Instead of a pilot: d_par and d_2.")
@click.option("--cost-ratio", default=1.0, show_default=True, help="Cost of a train unit in test units.")
@click.option("--M", "M", type=int, help="Fix the units on the training side.")
@click.option("--K", "K", type=int, help="Fix the units on the test side.")
@click.option(
    "--confidence", default=0.95, show_default=True, help="Of the limits behind the cautious sizes."
)
@click.option("--relative", default=0.2, show_default=True, help="Wanted relative error of the odds V/m2^2.")
@common
def plan(as_json: bool, **options: Any) -> None:
    """Find the M and K, and the units for the estimate, that a target bound needs.

    PILOT is a file saved by `certify measure --save`, or a .npy array with one row per unit.
    """
    from validation.plan_command import plan as run

    run(as_json=as_json, say_json=say_json, **options)


@cli.command()
@click.option(
    "--model",
    required=True,
    metavar="SPEC",
    help="python:MODULE:FUNCTION, hf:PATH or checkpoint:FILE (a CIFAR ResNet).",
)
@click.option("--data", metavar="SPEC", help="Held-out data, as for `certify measure`.")
@click.option(
    "--train-data",
    metavar="SPEC",
    help="Data of the step; may be the network's own training data. [default: a part of --data]",
)
@click.option("--loss", metavar="NAME", help="As for `certify measure`.")
@click.option(
    "--at",
    multiple=True,
    callback=csv_option,
    metavar="NAME[,NAME...]",
    help="Places to compare. [default: the repeated blocks of the model]",
)
@click.option(
    "--block", default="shift", show_default=True, help="shift, full, linear, lowrank, mlp or copy."
)
@click.option("--rank", default=4, show_default=True, help="Of --block lowrank.")
@click.option(
    "--norm",
    default="parameter",
    show_default=True,
    help="parameter or activation: unit of length of the step.",
)
@click.option("--confidence", default=0.95, show_default=True, help="Of all verdicts together.")
@click.option("--method", default="bootstrap", show_default=True, help="bootstrap or student.")
@click.option("--train-units", type=int, help="Units that choose the step. [default: half of --data]")
@click.option("--test-units", type=int, help="Held-out units at most.")
@click.option("--batch-size", default=64, show_default=True)
@click.option("--length", default=128, show_default=True, help="Tokens in a sequence (text:).")
@click.option(
    "--seed", default=0, show_default=True, help="Of the split, of random blocks and the bootstrap."
)
@click.option("--device", metavar="NAME", help="cpu, cuda, mps. [default: where the model is]")
@click.option("--html", "page", type=click.Path(path_type=Path), help="Also write an HTML file.")
@click.option("--save", type=click.Path(path_type=Path), help="Also write the ranking as a JSON file.")
@common
def where(as_json: bool, **options: Any) -> None:
    """Rank the places where a block could be inserted by their certified gain on held-out data."""
    from validation.where_command import where as run

    run(as_json=as_json, say_json=say_json, **options)


def _theory(claims: tuple[str, ...], as_json: bool) -> None:
    """Run the claims ledger: derive, prove, enumerate, simulate; exit status 1 if a claim fails."""
    from theory import claims as ledger
    from theory.__main__ import main as run

    if as_json:
        results = ledger.run(claims or None)
        click.echo(ledger.to_json(results))
        raise click.exceptions.Exit(int(any(r.verdict == "fails" for r in results)))
    status = run([word for c in claims for word in ("--claim", c)])
    if status:
        raise click.exceptions.Exit(status)


def _has(package: str, module: str) -> bool:
    """Whether a module file exists, without importing its package."""
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec is not None else None
    return any((Path(p) / f"{module}.py").exists() for p in places or ())


if _has("theory", "claims"):
    cli.command("theory")(
        click.option(
            "--claim",
            "claims",
            multiple=True,
            callback=csv_option,
            metavar="ID[,ID...]",
            help="Only these claims.",
        )(common(_theory))
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    state = State()
    try:
        result = cli.main(args=arguments, prog_name="certify", standalone_mode=False, obj=state)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.ClickException as error:
        return _error(error.format_message().rstrip("."), _help(error))
    except (click.Abort, KeyboardInterrupt):
        kept = "nothing was kept"
        if state.resumable:
            kept = (
                "finished cells are kept; the same command goes on from there, and "
                f"`certify report {state.resumable}` shows them"
            )
        click.echo(f"\ninterrupted: {kept}", err=True)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away; say nothing more
        return 1
    except Exception as error:
        if state.debug or not _is_expected(error):
            raise
        return _error(str(error) or type(error).__name__, "")


def _help(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return f"; see `{context.command_path} --help`" if context is not None else ""


def _is_expected(error: Exception) -> bool:
    """Mistakes in the input and refusals; anything else is a bug and keeps its traceback."""
    if isinstance(error, (ValueError, TypeError, OSError, ImportError)):
        return True
    module = sys.modules.get("certify.errors")
    return module is not None and isinstance(error, module.CertifyError)


def _error(message: str, remedy: str) -> int:
    click.echo("error: " + " ".join(message.split()) + remedy, err=True)
    return 2
