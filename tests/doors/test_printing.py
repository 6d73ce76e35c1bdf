"""How commands print: for people on a terminal of any width, for pipes, and for programs."""

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from think_celery import states
from think_celery.cli import printing
from think_celery.cli.printing import AGENT, harmless, print_fields, print_list, relative, shown, spell

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
ROWS = [
    {
        "job_id": "j-1",
        "agent_class": "Shop",
        "agent_name": "a",
        "status": "error",
        "created_at": NOW - timedelta(minutes=3),
        "error": "the reason " * 10,
    },
    {
        "job_id": "j-2",
        "agent_class": "Shop",
        "agent_name": "b",
        "status": "completed",
        "created_at": NOW - timedelta(days=3),
        "error": None,
    },
]
COLUMNS = ["job_id", AGENT, "status", ("accepted", "created_at"), "error"]


class Clock:
    def now(self) -> datetime:
        return NOW


@pytest.fixture(autouse=True)
def at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "_clock", Clock())


def on_screen(monkeypatch: pytest.MonkeyPatch, width: int, print_it: Any, **options: Any) -> str:
    screen = Console(file=io.StringIO(), width=width, highlight=False, force_terminal=True, **options)
    monkeypatch.setattr(printing, "_screen", lambda: screen)
    print_it()
    told = screen.file
    assert isinstance(told, io.StringIO)
    return told.getvalue()


def print_rows() -> None:
    print_list(ROWS, COLUMNS, False, nothing="There are none.")


class TestLists:
    def test_a_terminal_shows_times_from_now_in_lines_that_fit(self, monkeypatch: Any) -> None:
        """One line a row, cut where the terminal ends; the head names the columns."""
        told = on_screen(monkeypatch, 60, print_rows, color_system=None).splitlines()

        assert told[0].split() == ["job", "agent", "status", "accepted", "error"]
        assert told[1].split()[:5] == ["j-1", "Shop:a", "error", "3", "min"]
        assert "3 days ago" in told[2]
        assert len(told) == 3
        assert max(map(len, told)) == 60
        assert told[1].endswith("…")

    def test_where_a_table_has_no_room_each_row_is_a_block(self, monkeypatch: Any) -> None:
        """Nothing is squeezed until it can't be read: ids can still be copied."""
        told = on_screen(monkeypatch, 40, print_rows, color_system=None).splitlines()

        assert [line.split() for line in told[:4]] == [
            ["job", "j-1"],
            ["agent", "Shop:a"],
            ["status", "error"],
            ["accepted", "3", "min", "ago"],
        ]
        assert sum("job" in line for line in told) == 2
        assert max(len(line.rstrip()) for line in told) <= 40

    def test_statuses_have_colours(self, monkeypatch: Any) -> None:
        """Red for what failed, green for what is done."""
        told = on_screen(monkeypatch, 100, print_rows, color_system="standard")

        assert "\x1b[31merror\x1b[0m" in told
        assert "\x1b[32mcompleted\x1b[0m" in told

    def test_a_pipe_gets_no_colours_whole_texts_and_exact_times(self, capsys: Any) -> None:
        """What greps and cuts it reads the same, whenever it runs."""
        print_rows()
        told = capsys.readouterr().out

        assert "\x1b" not in told
        assert ("the reason " * 10).strip() in told
        assert shown(NOW - timedelta(minutes=3)) in told
        assert "ago" not in told

    def test_programs_get_all_fields_in_one_document(self, capsys: Any) -> None:
        """An array of objects; times as ISO texts, what is not set as null."""
        print_list(ROWS, ["job_id"], True, nothing="There are none.")
        found = json.loads(capsys.readouterr().out)

        assert [each["job_id"] for each in found] == ["j-1", "j-2"]
        assert found[1].keys() == ROWS[1].keys()
        assert found[1]["error"] is None
        assert datetime.fromisoformat(found[0]["created_at"]) == NOW - timedelta(minutes=3)

    def test_none(self, capsys: Any) -> None:
        """People are told so, programs get an empty array."""
        print_list([], COLUMNS, False, nothing="There are none.")
        print_list([], COLUMNS, True, nothing="There are none.")

        assert capsys.readouterr().out == "There are none.\n[]\n"

    def test_wide_letters_keep_the_columns(self, capsys: Any) -> None:
        """A Chinese name takes two cells a letter."""
        rows = [{"name": "問題", "n": 1, "more": "x"}, {"name": "issue", "n": 2, "more": "y"}]
        print_list(rows, ["name", "n", "more"], False, nothing="")

        assert capsys.readouterr().out.splitlines()[1:] == ["問題   1  x", "issue  2  y"]


class TestDetails:
    def test_a_time_is_told_exactly_and_from_now(self, monkeypatch: Any) -> None:
        """And what is not set is left out."""
        told = on_screen(monkeypatch, 100, lambda: print_fields(ROWS[1]), color_system=None)

        assert f"{shown(NOW - timedelta(days=3))} (3 days ago)" in told
        assert "error" not in told

    def test_nothing_that_is_stored_reaches_the_terminal_as_a_command(self, monkeypatch: Any) -> None:
        """An answer or an error may hold escape sequences; they are shown as what they are: no letters."""
        evil = {"error": "red \x1b[31m\x07 title \x1b]0;x\x07\udc80"}
        told = on_screen(monkeypatch, 100, lambda: print_fields(evil), color_system=None)

        assert "\x1b[31m" not in told
        assert "\x07" not in told
        assert told.count("\ufffd") == 5


@pytest.mark.parametrize(
    ("away", "told"),
    [
        (timedelta(seconds=-0.4), "now"),
        (timedelta(seconds=-12), "12 s ago"),
        (timedelta(seconds=119), "in 1 min"),
        (timedelta(hours=-47), "47 h ago"),
        (timedelta(hours=-49), "2 days ago"),
        (timedelta(days=400), "in 400 days"),
    ],
)
def test_an_instant_from_now(away: timedelta, told: str) -> None:
    """One unit is enough: the exact time is in the details."""
    assert relative(NOW + away, NOW) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0004, "0 ms"),
        (0.12, "120 ms"),
        (1.54, "1.5 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (93_600, "1 day 2 h"),
        (3 * 86_400 + 59, "3 days"),
    ],
)
def test_a_span(seconds: float, told: str) -> None:
    """The two greatest units that follow each other."""
    assert spell(timedelta(seconds=seconds)) == told


def test_lines_and_tabs_of_a_text_stay() -> None:
    """An answer of several lines is printed as such."""
    assert harmless("a\n\tb\r\x00") == "a\n\tb\ufffd\ufffd"


def test_each_status_that_is_an_end_has_a_colour() -> None:
    """A new status is coloured too: what went well, what failed and what was ended can be told at a glance."""
    coloured = {word for words in printing.STYLES.values() for word in words}
    ends = {
        str(status)
        for each in vars(states).values()
        if isinstance(each, type) and issubclass(each, states.StrEnum) and each.__name__.endswith("Status")
        for status in each
        if states.is_terminal(status)
    }

    assert ends - coloured == set()
