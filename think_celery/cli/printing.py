"""How commands print: lists and details, for people and for programs, alike for all nouns.

A noun has one function that makes a dict of its row. Its fields are what ``--json`` prints, and columns name them::

    @jobs.command("list")
    @status_option(JobStatus)
    @agent_option
    @limit_option
    @cursor_option
    @app_options
    @json_option
    def list_(status, agent, limit, cursor, app, database_url, as_json):
        page = domain.find(runtime_of(app, database_url), agent, status=status, limit=limit, cursor=cursor)
        columns = ["job_id", AGENT, "status", "created_at", "error"]
        nothing = "There are no such jobs."
        print_list(map(_as_dict, page), columns, as_json, nothing=nothing, cursor=page.cursor)

    @jobs.command()
    ...
    def show(job_id, app, database_url, as_json):
        print_one(_as_dict(domain.require(runtime_of(app, database_url), job_id)), as_json)

On a terminal statuses have colours, times are told from now, and a line is cut where it ends; where it is too narrow
for a table, each row is a block of lines. Elsewhere all is plain, whole and exact. Nothing that is stored reaches the
terminal as a control character.
"""

import io
import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from think_celery.cli.options import without_color
from think_celery.clock import SystemClock

Fields = Mapping[str, Any]
Column = str | tuple[str, str | Callable[[Fields], Any]]
"""A field; or a head, and the field or what makes the value of all fields."""

AGENT: Column = ("agent", lambda fields: f"{fields['agent_class']}:{fields['agent_name']}")
"""``CLASS:NAME``, as the option ``--agent`` takes it."""

LEAST_OF_LAST_COLUMN = 20
"""A table whose last column would have less room is no table any more."""

STYLES = {
    style: words.split()
    for style, words in {
        "green": "completed complete done delivered approved answered ok",
        "red": "error errored failed problem",
        "yellow": "waiting paused retrying interrupted open warning",
        "cyan": "running",
        "dim": "aborted skipped dropped terminated rejected withdrawn cancelled",
    }.items()
}
_STYLE_OF = {word: style for style, words in STYLES.items() for word in words}
_GAP = 2

_clock = SystemClock()


def print_what_can_be() -> None:
    """Have what the encoding of the terminal or file lacks printed as an escape, in place of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


# --- for programs ---------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """Print one JSON document, indented."""
    text = json.dumps(value, ensure_ascii=False, indent=2, default=as_plain)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair, or another encoding than UTF-8
        text = json.dumps(value, indent=2, default=as_plain)
    click.echo(text)


def as_plain(value: Any) -> Any:
    """A value of a row for JSON: times as ISO texts, spans as seconds."""
    if isinstance(value, datetime):
        return value.isoformat()
    return value.total_seconds() if isinstance(value, timedelta) else str(value)


# --- lists and details ----------------------------------------------------------------------------


def print_list(
    rows: Iterable[Fields],
    columns: Sequence[Column],
    as_json: bool,
    *,
    nothing: str,
    limit: int | None = None,
    cursor: str | None = None,
) -> None:
    """Print rows, as JSON with all their fields, or as a table of *columns*; *nothing* where there are none.

    Standard error tells the *cursor* of the next page; where a list has no pages, a person is told if there are as many
    as the *limit*.
    """
    found = list(rows)
    if as_json:
        print_json(found)
    else:
        print_table(found, columns, nothing=nothing)
    if cursor is not None and (as_json or sys.stdout.isatty()):
        click.echo(f"There are more: --cursor {cursor}", err=True)
    elif limit is not None and len(found) == limit and not as_json and sys.stdout.isatty():
        click.echo(f"These are {limit}, and there may be others. Raise --limit for more.", err=True)


def print_table(rows: Iterable[Fields], columns: Sequence[Column], *, nothing: str) -> None:
    """Print rows in columns, or *nothing* where there are none. The last column may be long."""
    found = list(rows)
    if not found:
        click.echo(nothing)
        return
    screen, now = _screen(), _clock.now()
    heads = [_head(column) for column in columns]
    cells = [[_cell(column, row, screen, now) for column in columns] for row in found]
    if screen is not None:
        kept = [at for at in range(len(heads)) if any(row[at].plain for row in cells)]
        heads, cells = [heads[at] for at in kept], [[row[at] for at in kept] for row in cells]
    widths = [max(map(cell_len, (head, *(row[at].plain for row in cells)))) for at, head in enumerate(heads)]
    room = sum(widths[:-1]) + _GAP * (len(heads) - 1) + min(widths[-1], LEAST_OF_LAST_COLUMN)
    if screen is not None and room > screen.width:
        for at, row in enumerate(cells):
            if at:
                click.echo()
            told = {head: cell for head, cell in zip(heads, row, strict=True) if cell.plain}
            _print_lines(told, screen)
        return
    for row in [[Text(head, "bold") for head in heads], *cells]:
        line = Text()
        for cell, width in zip(row, [*widths[:-1], 0], strict=True):
            line.append_text(cell).append(" " * (max(width - cell.cell_len, 0) + _GAP))
        line.rstrip()
        if screen is None:
            click.echo(line.plain)
        else:
            screen.print(line, no_wrap=True, overflow="ellipsis")


def print_one(fields: Fields, as_json: bool) -> None:
    """Print one thing, as JSON or as names and values, one a line; to people what is not set is left out."""
    if as_json:
        print_json(fields)
    else:
        print_fields(fields)


def print_fields(fields: Fields) -> None:
    """Print names and values, one a line; what is not set is left out."""
    screen, now = _screen(), _clock.now()
    told = {name: _value(name, value, screen, now, exact=True) for name, value in fields.items()}
    _print_lines({name: text for name, text in told.items() if text.plain}, screen)


def print_text(title: str, text: str | None) -> None:
    """Print a text of several lines under its title, behind a blank line; nothing where there is none."""
    if text is not None:
        click.echo(f"\n{title}:\n{harmless(text)}")


def _print_lines(told: Mapping[str, Text], screen: Console | None) -> None:
    width = max(map(cell_len, told), default=0)
    if screen is None:
        for name, text in told.items():
            click.echo(f"{name.ljust(width)}  {text.plain}")
        return
    grid = Table.grid(padding=(0, _GAP))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in told.items():
        grid.add_row(name, text)
    screen.print(grid)


def _screen() -> Console | None:
    """The terminal, where there is one to read on."""
    if not sys.stdout.isatty():
        return None
    return Console(highlight=False, markup=False, emoji=False, no_color=True if without_color() else None)


# --- values ---------------------------------------------------------------------------------------


def _head(column: Column) -> str:
    name = column if isinstance(column, str) else column[0]
    return name.removesuffix("_id").removesuffix("_at").replace("_", " ")


def _cell(column: Column, row: Fields, screen: Console | None, now: datetime) -> Text:
    name, source = (column, column) if isinstance(column, str) else column
    value = row[source] if isinstance(source, str) else source(row)
    return _value(name, value, screen, now, exact=False)


def _value(name: str, value: Any, screen: Console | None, now: datetime, *, exact: bool) -> Text:
    if isinstance(value, datetime) and screen is not None:
        from_now = relative(value, now)
        return Text(f"{shown(value)} ({from_now})" if exact else from_now)
    text = shown(value)
    return Text(text, _STYLE_OF.get(text, "")) if name.endswith(("status", "level")) else Text(text)


def shown(value: Any) -> str:
    """A value for a reader, on one line."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone().isoformat(" ", "seconds").replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return spell(value)
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False, default=as_plain)
    return harmless(" ".join(str(value).split()))


def harmless(text: str) -> str:
    """A text without what a terminal would obey, or could not print."""
    return "".join(
        "\ufffd" if unicodedata.category(each) in ("Cc", "Cs") and each not in "\n\t" else each
        for each in text
    )


def relative(moment: datetime, now: datetime) -> str:
    """An instant as seen from *now*: ``3 min ago``, ``in 2 h``."""
    away = moment - now
    if abs(away) < timedelta(seconds=1):
        return "now"
    for seconds, unit in ((172_800, "days"), (3600, "h"), (60, "min"), (1, "s")):
        if abs(away).total_seconds() >= seconds:
            count = int(abs(away).total_seconds() // (86_400 if unit == "days" else seconds))
            return f"{count} {unit} ago" if away < timedelta(0) else f"in {count} {unit}"
    raise AssertionError("unreachable")


def spell(span: timedelta) -> str:
    """A span of time in its two greatest units: ``120 ms``, ``1.5 s``, ``3 min 20 s``, ``2 days 4 h``."""
    seconds = span.total_seconds()
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    units = ((86_400, "day"), (3600, "h"), (60, "min"), (1, "s"))
    for at, (size, unit) in enumerate(units):
        if seconds < size:
            continue
        count, rest = divmod(int(seconds), size)
        text = f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''}"
        smaller = units[at + 1] if at + 1 < len(units) else None
        if smaller is None or rest < smaller[0]:
            return text
        return f"{text} {rest // smaller[0]} {smaller[1]}"
    raise AssertionError("unreachable")
