"""What the terminal shows: progress while it works, a question where one is asked, a table at the end."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from think_celery.demo.desk import Desk
from think_celery.demo.watch import ENDED, Phase, Standing

STYLES = {
    Phase.QUEUED: "dim",
    Phase.WORKING: "cyan",
    Phase.WAITING: "bold yellow",
    Phase.APPLIED: "green",
    Phase.REJECTED: "yellow",
    Phase.FAILED: "bold red",
}
SEVERITIES = {"high": "bold red", "medium": "yellow", "low": "green"}
MARKS = {Phase.QUEUED: "·", Phase.WAITING: "?", Phase.APPLIED: "✓", Phase.REJECTED: "✗", Phase.FAILED: "!"}
LONGEST_SHOWN_ID = 24
_PLAIN = {"·": ".", "✓": "ok", "✗": "no"}


class Screen:
    """Shows the standing of reports: redrawn in place on a terminal, one line for each change elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._spinner = Spinner("dots", style="cyan")
        self._phases: dict[str, Phase] = {}

    def __enter__(self) -> "Screen":
        if self.console.is_terminal:
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        self._live = Live(console=self.console, transient=True, refresh_per_second=12)
        self._live.start()

    def _stop(self) -> None:
        """Take the rows away. They are never started again: that would erase as many lines of what came after."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def update(self, standing: Mapping[str, Standing]) -> None:
        """Show how things stand now."""
        if self._live is not None:
            self._live.update(self._board(standing))
            return
        for report_id, now in standing.items():
            if self._phases.get(report_id, Phase.QUEUED) != now.phase:
                self._phases[report_id] = now.phase
                detail = "" if now.phase is Phase.WORKING else now.detail
                self.console.print(_line(report_id, now.phase, detail), soft_wrap=True)

    def _board(self, standing: Mapping[str, Standing]) -> RenderableType:
        ended = sum(1 for each in standing.values() if each.phase in ENDED)
        head = Table.grid(padding=(0, 1))
        head.add_row(
            Text(f"Triaging {count(len(standing), 'report')}"),
            ProgressBar(total=len(standing), completed=ended, width=24),
            Text(f"{ended} done", style="dim"),
        )
        rows = Table.grid(padding=(0, 1), expand=True)
        room = max(self.console.height - 4, 3)
        shown = most_interesting(standing, room)
        width = max((len(name) for name in shown), default=0)
        for fixed in (2, min(width, LONGEST_SHOWN_ID), max(map(len, Phase))):
            rows.add_column(width=fixed, min_width=fixed, no_wrap=True, overflow="ellipsis")
        rows.add_column(ratio=1, no_wrap=True, overflow="ellipsis")  # the only one that gives way
        for name in shown:
            now = standing[name]
            mark: RenderableType = self._spinner if now.phase is Phase.WORKING else self._mark(now.phase)
            style = STYLES[now.phase]
            rows.add_row(mark, Text(name), Text(now.phase, style=style), Text(_flat(now.detail), style="dim"))
        left = len(standing) - len(shown)
        return Group(head, rows, *([Text(f"… and {left} more", style="dim")] if left else []))

    def _mark(self, phase: Phase) -> Text:
        mark = MARKS[phase]
        if self.console.encoding.lower() not in ("utf-8", "utf8"):
            mark = _PLAIN.get(mark, mark)
        return Text(mark, style=STYLES[phase])

    # --- questions --------------------------------------------------------------------------------

    def ask(self, report_id: str, draft: Mapping[str, Any]) -> bool:
        """Show a draft, and ask whether its labels may be applied.

        Raises:
            EOFError: There is nobody to answer.
        """
        self._stop()
        self.console.print(_draft_panel(report_id, draft))
        while True:
            try:
                answer = self.console.input("Apply these labels? [bold]\\[y/n][/bold] ").strip().lower()
            except (KeyboardInterrupt, EOFError):
                self.console.print()  # what is said next stands on a line of its own
                raise
            if answer in ("y", "yes", "n", "no"):
                break
            self.console.print("Answer y or n. (Ctrl-C stops; what is open is asked again next time.)")
        if self.console.is_terminal:
            self._start()
        return answer.startswith("y")


def count(number: int, noun: str) -> str:
    """Such as ``1 report`` or ``2 reports``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def most_interesting(standing: Mapping[str, Standing], room: int) -> list[str]:
    """As many as there is room for, in their order; those at work come first, those that ended last."""
    if len(standing) <= room:
        return list(standing)
    order = [Phase.WAITING, Phase.WORKING, Phase.QUEUED]
    by_rank = sorted(
        standing,
        key=lambda name: order.index(standing[name].phase) if standing[name].phase in order else len(order),
    )
    chosen = set(by_rank[:room])
    return [name for name in standing if name in chosen]


def _flat(text: str) -> str:
    return " ".join(text.split())


def _line(report_id: str, phase: Phase, detail: str) -> Text:
    line = Text(report_id)
    line.append(f"  {phase}", style=STYLES[phase])
    return line.append(f"  {_flat(detail)}", style="dim") if detail else line


def _draft_panel(report_id: str, draft: Mapping[str, Any]) -> Panel:
    severity = str(draft.get("severity", ""))
    body = Table.grid(padding=(0, 2))
    body.add_row(Text("title", style="dim"), Text(_flat(str(draft.get("title", "")))))
    body.add_row(Text("summary", style="dim"), Text(_flat(str(draft.get("summary", "")))))
    body.add_row(Text("labels", style="dim"), Text(", ".join(map(str, draft.get("labels", [])))))
    body.add_row(Text("severity", style="dim"), Text(severity, style=SEVERITIES.get(severity, "")))
    return Panel(body, title=Text(f"{report_id} needs approval"), title_align="left", border_style="yellow")


# --- the end --------------------------------------------------------------------------------------


def show_results(console: Console, desk: Desk, standing: Mapping[str, Standing]) -> None:
    """The table of everything, and where it lies."""
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("Report", overflow="fold")
    table.add_column("Severity", no_wrap=True)
    table.add_column("Labels", ratio=2)
    table.add_column("Title", ratio=3)
    table.add_column("Outcome", max_width=40)
    for report_id, now in standing.items():
        result = desk.result(report_id) or {}
        severity = str(result.get("severity", ""))
        labels = result.get("labels") or result.get("proposed_labels") or []
        outcome = Text(now.phase, style=STYLES[now.phase])
        if now.detail and now.phase is Phase.FAILED:
            outcome.append(f": {_flat(now.detail)}", style="dim")
        table.add_row(
            Text(report_id),
            Text(severity, style=SEVERITIES.get(severity, "")),
            Text(", ".join(map(str, labels)), style="dim" if now.phase is Phase.REJECTED else ""),
            Text(_flat(str(result.get("title", "")))),
            outcome,
        )
    console.print(table)
    counted = Counter(each.phase for each in standing.values())
    told = [f"{counted[phase]} {phase}" for phase in Phase if counted[phase]]
    console.print(Text(f"{', '.join(told)}."))
