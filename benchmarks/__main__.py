"""``python -m benchmarks``: measure, print the table, and write docs/performance.md."""

import argparse
import dataclasses
import datetime
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import (
    accept,
    floors,
    growth,
    parked,
    peers,
    recovery,
    replay,
    report,
    schedules,
    step,
    streaming,
    turn,
    wake,
)
from benchmarks.figures import SIZES, Row, Size
from benchmarks.place import ROOT, Place, clear_environment, place

MEASUREMENTS: Mapping[str, Callable[[Place, Size], Iterator[Row]]] = {
    "floors": floors.measure,
    "accept": accept.measure,
    "step": step.measure,
    "replay": replay.measure,
    "turn": turn.measure,
    "streaming": streaming.measure,
    "wake": wake.measure,
    "parked": parked.measure,
    "growth": growth.measure,
    "schedules": schedules.measure,
    "recovery": recovery.measure,
    "peers": peers.measure,
}
OURS = [name for name in MEASUREMENTS if name != "peers"]

PAGE = ROOT / "docs" / "performance.md"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command is told."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", metavar="NAME,…", help=f"some of: {', '.join(MEASUREMENTS)}")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", action="store_const", const="quick", dest="size", help="five minutes; no page"
    )
    size.add_argument(
        "--tiny", action="store_const", const="tiny", dest="size", help="a try of the code; no page"
    )
    parser.add_argument("--json", metavar="PATH", type=Path, help="write every figure to this file as well")
    parser.add_argument(
        "--page",
        metavar="PATH",
        type=Path,
        help="write the page here, whatever was measured (full: docs/performance.md)",
    )
    parser.add_argument("--peers", action="store_true", help="DBOS and Absurd as well, installed from PyPI")
    parser.set_defaults(size="full")
    told = parser.parse_args(given)
    told.only = told.only.split(",") if told.only else [*OURS, *(["peers"] if told.peers else [])]
    unknown = sorted(set(told.only) - set(MEASUREMENTS))
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}")
    return told


def measure(at: Place, names: Sequence[str], size: Size) -> tuple[list[Row], bool]:
    """The rows of these measurements, and whether all of them succeeded. A tiny run is too short to judge by."""
    rows: list[Row] = []
    whole = True
    for name in names:
        began = time.monotonic()
        try:
            for row in MEASUREMENTS[name](at, size):
                budget = None if size.name == "tiny" else row.budget
                rows.append(dataclasses.replace(row, measurement=name, budget=budget))
        except Exception:  # the others are worth having; the command still fails
            traceback.print_exc()
            whole = False
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return rows, whole


def main() -> int:
    """Do it; 1 if a measurement failed."""
    told = arguments()
    clear_environment()
    size = SIZES[told.size]
    load = os.getloadavg()[0]
    with place() as at:
        facts = at.facts()
        rows, whole = measure(at, told.only, size)
    facts["date"] = datetime.date.today().isoformat()
    facts["load before"] = f"{load:.1f}"
    print(report.plain(rows))
    print("\n" + ", ".join(f"{name} {value}" for name, value in facts.items()))
    if told.json:
        report.write(told.json, report.as_json(rows, facts))
    if whole and (told.page or (size.name == "full" and set(OURS) <= set(told.only))):
        report.write(told.page or PAGE, report.page(rows, facts, size))
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
