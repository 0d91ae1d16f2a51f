"""``python -m theory``: run the claims ledger."""

from __future__ import annotations

import argparse
import sys
import textwrap

from theory import claims


def main(arguments: list[str] | None = None) -> int:
    """Print the ledger as a table, or as JSON or Markdown; return 1 if a claim fails, 2 on bad arguments."""
    parser = argparse.ArgumentParser(prog="python -m theory", description="Run the claims ledger.")
    parser.add_argument("--claim", action="append", metavar="ID", help="run this claim only (repeatable)")
    parser.add_argument("--json", action="store_true", help="print results as JSON")
    parser.add_argument("--markdown", action="store_true", help="print the documentation page")
    options = parser.parse_args(arguments)
    quiet = options.json or options.markdown
    try:
        results = claims.run(options.claim, progress=None if quiet else _show)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(claims.to_json(results))
    elif options.markdown:
        print(claims.to_markdown(results))
    else:
        counts = {
            v: sum(r.verdict == v for r in results)
            for v in ("established", "partly established", "not run", "fails")
        }
        total = sum(r.seconds for r in results)
        print("\n" + ", ".join(f"{n} {v}" for v, n in counts.items()) + f"; {total:.0f} s")
    return int(any(r.verdict == "fails" for r in results))


def _show(result: claims.ClaimResult) -> None:
    print(f"\n{result.id}: {result.verdict} ({result.source}, {result.seconds:.1f} s)")
    print(textwrap.indent(textwrap.fill(result.statement, 100), "  "))
    mark = {True: "agrees", False: "DISAGREES", None: "not run"}
    for e in result.evidence:
        text = textwrap.fill(f"{e.text} [{e.seconds:.1f} s]", 84)
        print(f"  {e.rung:<10}{mark[e.agrees]:<11}" + textwrap.indent(text, " " * 23).lstrip())


if __name__ == "__main__":
    sys.exit(main())
