"""Mutation testing of the theory layer with mutmut: see docs/mutation.md.

python tests/mutation.py prepare            in a clone: bring decorated functions within mutmut's reach
python tests/mutation.py sample 0 100       names of mutants 1..100 of each room, in an order drawn at random
python tests/mutation.py sample 0 100 exact the same of one room
python tests/mutation.py report 0 100       killed, interval and survivors among them
"""

from __future__ import annotations

import ast
import json
import random
import sys
from collections import Counter
from pathlib import Path

ROOMS = {
    "graphs": ("graphs", "dot_graph", "forms", "partitions", "gram"),
    "bounds": (
        *("bounds", "moments", "moment_records", "conditional", "formula"),
        *("symbolic_formula", "assumptions", "sizes"),
    ),
    "exact": ("_enumeration", "_gaussian", "_contour"),
}


def undecorate(text: str) -> str:
    """Move ``@property`` and ``@functools.cache`` behind the function: mutmut skips what is decorated."""
    lines, moved = text.splitlines(), []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and len(node.decorator_list) == 1:
            decorator = ast.unparse(node.decorator_list[0])
            stub = isinstance(node.body[-1], ast.Expr)  # a protocol's "..."
            if decorator in ("property", "functools.cache") and not stub:
                after = f"{' ' * node.col_offset}{node.name} = {decorator}({node.name})"
                moved.append((node.decorator_list[0].lineno, node.end_lineno or 0, after))
    for first, last, after in sorted(moved, reverse=True):
        lines.insert(last, after)
        del lines[first - 1]
    return "\n".join(lines) + "\n"


def shuffled(room: str) -> list[str]:
    """Every mutant of a room, in a random order that depends on the names only."""
    from mutmut.mutation.file_mutation import mutate_file_contents

    names = []
    for module in ROOMS[room]:
        path = Path("theory", f"{module}.py")
        mutants = mutate_file_contents(str(path), path.read_text(encoding="utf-8")).mutant_names
        names += [f"theory.{module}.{mutant}" for mutant in mutants]
    random.Random(f"mutation {room}").shuffle(names)
    return names


def report(start: int, stop: int) -> None:
    """Print killed and timed-out mutants of the slice per module, and the interval per room."""
    from scipy.stats import binomtest

    codes: dict[str, int | None] = {}
    for path in Path("mutants", "theory").glob("*.meta"):
        codes |= json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
    for room in ROOMS:
        everything = shuffled(room)
        tried = [name for name in everything[start:stop] if codes.get(name) is not None]
        dead = [name for name in tried if codes[name] != 0]
        slow = sum(codes[name] not in (1, 3) for name in dead)
        interval = binomtest(len(dead), len(tried)).proportion_ci(0.95, "exact") if tried else None
        print(
            f"{room}: {len(everything)} mutants, {len(tried)} tried, {len(dead)} killed ({slow} by time)",
            interval,
        )
        total, killed = Counter(n.split(".")[1] for n in tried), Counter(n.split(".")[1] for n in dead)
        for module in ROOMS[room]:
            print(f"  {module}: {total[module]} tried, {killed[module]} killed")
        print("".join(f"  survived: {name}\n" for name in tried if codes[name] == 0), end="")


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        for source in (Path("theory", f"{module}.py") for modules in ROOMS.values() for module in modules):
            source.write_text(undecorate(source.read_text(encoding="utf-8")), encoding="utf-8")
    elif sys.argv[1] == "sample":
        first, last = int(sys.argv[2]), int(sys.argv[3])
        print(*(name for room in sys.argv[4:] or ROOMS for name in shuffled(room)[first:last]))
    else:
        report(int(sys.argv[2]), int(sys.argv[3]))
