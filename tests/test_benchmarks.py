"""The benchmarks do the work that they measure, and their table is made of it. Nothing here asks how fast."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchmarks import __main__ as command
from benchmarks import fill, report
from benchmarks.figures import SIZES, Row, at_least, at_most, in_turn, ratio_at_least, ratio_at_most
from benchmarks.place import ROOT, Place, place, threads
from benchmarks.project import Answer1, Nobodys, Waiter
from think_celery.ids import AgentRef, WorkflowRef

FRESH = {
    "think_workflows": {"key", "workflow_id", "agent_name", "wake_at"},
    "think_steps": {"workflow_key", "deadline_at"},
    "think_messages": {"seq", "agent_id", "message_id", "position"},
    "think_schedules": {"id", "key", "agent_id", "agent_name", "next_run_at", "due_at"},
    "think_submissions": {"seq", "id", "agent_id", "agent_name", "knock_at", "knocks", "queue"},
}
"""The columns in which a row that was filled in may differ from one that the engine made, times of making aside."""

MADE_AT = {"created_at", "started_at", "completed_at", "applied_at"}


@pytest.fixture(scope="module")
def at() -> Iterator[Place]:
    with place() as made:
        yield made


@pytest.mark.services
@pytest.mark.once
class TestMeasurements:
    @pytest.mark.parametrize("name", command.OURS)
    def test_each_measures_something(self, at, name):
        """At the smallest size each gives rows, with figures of work that it has counted afterwards."""
        rows, whole = command.measure(at, [name], SIZES["tiny"])

        assert whole
        assert rows
        assert all(row.measurement == name and row.ours and min(row.ours) >= 0 for row in rows)

    def test_one_that_fails_hides_no_other_and_is_told(self, at, monkeypatch, capsys):
        """The command says that it failed, shows why, and measures the rest."""

        def fails(*_: object) -> Iterator[Row]:
            raise RuntimeError("the disk is full")

        good = Row(what="good", unit="/s", ours=[1.0])
        monkeypatch.setattr(command, "MEASUREMENTS", {"bad": fails, "good": lambda *_: iter([good])})

        rows, whole = command.measure(at, ["bad", "good"], SIZES["tiny"])

        assert ([row.what for row in rows], whole) == (["good"], False)
        assert "the disk is full" in capsys.readouterr().err

    @pytest.mark.parametrize(("size", "judged"), [("tiny", False), ("quick", True)])
    def test_a_tiny_run_is_not_judged(self, at, monkeypatch, size, judged):
        """Its figures mean nothing, so they keep no budget and miss none."""
        missed = Row(what="slow", unit="/s", ours=[1.0], budget=at_least(2, "/s"))
        monkeypatch.setattr(command, "MEASUREMENTS", {"slow": lambda *_: iter([missed])})

        (row,), _ = command.measure(at, ["slow"], SIZES[size])

        assert row.met is (False if judged else None)

    def test_filled_rows_are_as_the_engine_makes_them(self, at):
        """All but ids, names and due times is what a row of the engine has; keys are computed as it computes them."""
        with at.scene() as scene, scene.worker(threads(SIZES["tiny"])):
            fill.parked(scene, 3)
            (talker,) = fill.history(scene, 100)
            fill.waiting_heads(scene, 2)
            real = scene.agent(Nobodys, "real").submit_messages("Triage this report.").submission_id

            def row(table: str, where: str, *values: object) -> dict[str, object]:
                found = scene.conn.execute(f"SELECT to_json(t) FROM {table} t WHERE {where}".encode(), values)
                (it,) = found.fetchone()
                if it.get("messages"):
                    it["messages"] = re.sub(r'"(id|createdAt)":"[^"]+"', "", it["messages"])
                return {name: value for name, value in it.items() if name not in FRESH[table] | MADE_AT}

            made, filled = (
                WorkflowRef(Waiter.workflow_name, it).key for it in ("model-0", fill.parked_id(2))
            )
            assert row("think_workflows", "key = %s", made) == row("think_workflows", "key = %s", filled)
            assert row("think_steps", "workflow_key = %s", made) == row(
                "think_steps", "workflow_key = %s", filled
            )
            one = "agent_id = %s AND role = %s LIMIT 1"
            for role in ("user", "assistant"):
                spoken, copied = (AgentRef(Answer1.agent_class, name).id for name in ("talker", talker))
                assert row("think_messages", one, spoken, role) == row("think_messages", one, copied, role)
            fill.schedules(scene, 2)
            noted = [row("think_schedules", "agent_name = %s", it) for it in ("model", "clerk-of-1")]
            assert noted[0] == noted[1]
            waiting = AgentRef(Nobodys.agent_class, "nobodys-1").id
            assert row("think_submissions", "id = %s", real) == row(
                "think_submissions", "agent_id = %s", waiting
            )


def test_without_the_drivers_it_names_what_to_install():
    """One line, before anything is imported that would fail."""
    code = "import runpy, sys; sys.modules['psycopg'] = None; runpy.run_module('benchmarks', run_name='__main__')"

    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
    assert "pip install -e '.[dev]'" in ran.stderr


class TestTheTable:
    def test_the_ratio_is_that_of_the_medians(self):
        """One round that was disturbed moves neither the ratio nor the verdict; the spread shows it."""
        row = Row(what="it", unit="/s", ours=[50, 60, 5], floor=[100, 100, 100], budget=ratio_at_least(0.5))

        assert (row.ratio, row.ratio_spread, row.met) == (0.5, (0.05, 0.6), True)

    @pytest.mark.parametrize(
        ("budget", "met"),
        [
            (ratio_at_least(2.1), False),
            (ratio_at_most(2), True),
            (at_most(19, "ms"), False),
            (at_most(20, "ms"), True),
            (at_least(21, "/s"), False),
            (None, None),
        ],
    )
    def test_a_budget_is_kept_or_not(self, budget, met):
        """Of the ratio or of the figure, at least or at most."""
        assert Row(what="it", unit="ms", ours=[20.0], floor=[10.0], budget=budget).met is met

    def test_a_budget_without_its_floor_is_not_judged(self):
        """No verdict without a figure."""
        assert Row(what="it", unit="ms", ours=[20.0], budget=ratio_at_most(2)).met is None

    def test_measures_are_taken_in_turn_and_the_first_round_does_not_count(self):
        """A machine that slows down slows all of them; connections are made before the figures."""
        order: list[tuple[str, int]] = []

        def measure(name: str):
            return lambda number: order.append((name, number)) or float(number)

        taken = in_turn(SIZES["quick"], measure("floor"), measure("ours"))

        assert order == [(name, number) for number in range(4) for name in ("floor", "ours")]
        assert taken == [[1.0, 2.0, 3.0]] * 2

    def test_the_page_says_what_is_missed(self):
        """Nobody has to look for it in the table, and no figure is left out."""
        rows = [
            Row(what="commit", unit="/s", ours=[2000.0, 2100.0], measurement="floors"),
            Row(
                what="accept",
                unit="/s",
                ours=[500.0],
                floor=[1000.0],
                floor_name="commit",
                budget=ratio_at_least(0.7),
            ),
            Row(what="park", unit="bytes", ours=[2048.0], budget=at_most(4096, "bytes")),
            Row(what="DBOS: accept", unit="/s", ours=[400.0], floor=[1000.0], measurement="peers"),
        ]
        page = report.page(rows, {"cores": "2"}, SIZES["full"])

        assert "1 of 2 budgets are kept.\n\nMissed:\n\n* accept\n" in page
        assert "| accept | 500/s | 1,000/s (commit) | 0.50 × | ≥ 0.7 × | **no** |" in page
        assert "| park | 2,048 bytes |  |  | ≤ 4096 bytes | yes |" in page
        assert "| commit | 2,050/s | 2,000/s to 2,100/s |" in page
        assert "| DBOS: accept | 400/s |" in page
        assert "quick run" not in page
        assert "**A quick run**" in report.page(rows, {"cores": "2"}, SIZES["quick"])
        figures = json.loads(report.as_json(rows, {"cores": "2"}))
        assert [row["ours"] for row in figures["rows"]] == [row.ours for row in rows]

    def test_a_name_that_is_none_is_refused(self, capsys):
        """A typing error must not measure nothing."""
        with pytest.raises(SystemExit):
            command.arguments(["--only", "accept,stepp"])

        assert "there is no stepp" in capsys.readouterr().err

    def test_peers_are_measured_when_asked_for(self):
        """They are installed from PyPI, so never without being asked for."""
        assert "peers" not in command.arguments([]).only
        assert command.arguments(["--peers"]).only[-1] == "peers"
