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
            self._live = Live(console=self.console, transient=True, refresh_per_second=12)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

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
            Text(f"Triaging {len(standing)} reports"),
            ProgressBar(total=len(standing), completed=ended, width=24),
            Text(f"{ended} done", style="dim"),
        )
        rows = Table.grid(padding=(0, 1))
        room = max(self.console.height - 4, 3)
        shown = most_interesting(standing, room)
        width = max((len(name) for name in shown), default=0)
        rows.add_column(width=2)
        rows.add_column(width=min(width, 24), no_wrap=True)
        rows.add_column(width=14, no_wrap=True)
        rows.add_column(no_wrap=True, overflow="ellipsis")
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
        if self._live is not None:
            self._live.stop()
        try:
            self.console.print(_draft_panel(report_id, draft))
            while True:
                answer = self.console.input("Apply these labels? [bold]\\[y/n][/bold] ").strip().lower()
                if answer in ("y", "yes", "n", "no"):
                    return answer.startswith("y")
                self.console.print("Answer y or n. (Ctrl-C stops; what is open is asked again next time.)")
        finally:
            if self._live is not None:
                self._live.start()


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
