"""Waiting for turns that real workers run, and in real workers: none of it stands still."""

import subprocess
import sys
import threading
import time

import pytest

from tests.domain.crowd import at_once
from tests.domain.talk import shape
from tests.waits.conftest import ROOT, Office
from tests.waits.project import Echo, Left, Nowhere, Right, Survey
from think_celery import AbortController, current
from think_celery.errors import TurnStillRunning
from think_celery.store import tables


class TestFromAScript:
    def test_an_answer(self, office: Office) -> None:
        """B7: the worker runs the turn, and the caller has it in hand soon after."""
        result = Echo("script").save_messages("Hi", timeout=60)

        assert (result.status, result.text) == ("completed", "re: Hi")

    def test_many_callers_at_once(self, office: Office) -> None:
        """B7: thirty threads wait in one process, each for its own agent."""
        results = at_once(
            30, lambda number: Echo(f"many-{number}").save_messages(f"{number}", timeout=60).text
        )

        assert results == [f"re: {number}" for number in range(30)]

    def test_functions_of_many_at_once(self, office: Office) -> None:
        """B7: of six who write into one conversation each sees all that stands before its own message."""

        def add(number: int) -> str:
            return str(
                Echo("one").save_messages(lambda before: [*before, f"{len(before)}"], timeout=60).status
            )

        assert at_once(6, add) == ["completed"] * 6
        assert [m.text for m in Echo("one").messages if m.role == "user"] == ["0", "2", "4", "6", "8", "10"]

    def test_a_signal(self, office: Office) -> None:
        """B16: the worker stops, and the partial text is stored when the call returns."""
        controller = AbortController()

        def abort() -> None:
            for event in Echo("signal").listen():
                if event.text == "half of it":
                    controller.abort("enough")
                    break

        listener = threading.Thread(target=abort, daemon=True)
        listener.start()
        result = Echo("signal").save_messages("slow", signal=controller.signal, timeout=60)
        listener.join(60)

        assert (result.status, result.error) == ("aborted", "enough")
        assert result.text == "half of it"
        assert Echo("signal").wait_until_stable(timeout=20)

    def test_nobody_who_runs_it(self, office: Office) -> None:
        """B7: a queue that no worker consumes: the time is over, the turn is stored, and a cancel ends it."""
        with pytest.raises(TurnStillRunning) as late:
            Nowhere("n").save_messages("Hi", timeout=0.5)

        assert current().cancel_submission(late.value.submission_id)

    def test_another_process(self, office: Office) -> None:
        """FR-52: an id is all that it needs."""
        submission = Echo("elsewhere").submit_messages("slow")
        script = (
            "import os, sys; from tests.waits.project import make_app; make_app(os.environ);"
            "from think_celery import current; print(current().wait_for_submission(sys.argv[1], timeout=60).status)"
        )
        with pytest.raises(TurnStillRunning):
            current().wait_for_submission(submission.submission_id, timeout=0.5)
        found = subprocess.run(
            [sys.executable, "-c", script, submission.submission_id],
            cwd=ROOT,
            env={"PATH": "", **office.environ},
            capture_output=True,
            text=True,
            timeout=60,
        )

        assert (found.stdout.strip(), found.stderr) == ("completed", "")


class TestInAWorker:
    def test_a_full_pool_of_steps(self, office: Office) -> None:
        """B25: two slots, twenty workflows whose steps wait for agents: each runs the turn that it waits for."""
        ids = [Echo("boss").run_workflow(Survey, {"name": f"step-{number}"}) for number in range(20)]

        office.until(lambda: all(current().get_workflow(each).status == "complete" for each in ids))
        assert {current().get_workflow(each).output for each in ids} == {"re: from a step"}

    def test_a_full_pool_of_the_host_s_own_tasks(self, office: Office) -> None:
        """B7: a Celery task of the host's that waits helps, too: it has a slot of the worker."""
        for number in range(20):
            office.app.send_task("waits.ask", args=(f"task-{number}",))

        agents = [Echo(f"task-{number}") for number in range(20)]
        office.until(lambda: all(len(agent.messages) == 2 for agent in agents))
        assert {agent.messages[1].text for agent in agents} == {"re: from a task"}

    def test_a_full_pool_that_waits_for_one_agent(self, office: Office) -> None:
        """B7: its turns run one after the other, in whichever slot is free to."""
        ids = [Echo("boss").run_workflow(Survey, {"name": "only"}) for _ in range(10)]

        office.until(lambda: all(current().get_workflow(each).status == "complete" for each in ids))
        assert len(Echo("only").messages) == 20

    def test_a_tool_that_asks_another_agent(self, office: Office) -> None:
        """B7: its answer is the tool's result."""
        result = Right("asker").save_messages("ask helper", timeout=60)

        assert (result.status, result.text) == ("completed", "asked")

    def test_two_agents_that_ask_each_other(self, office: Office) -> None:
        """B7: however the slots are dealt, one of them is told of the circle, both turns end, and nobody hangs."""
        for number in range(2):
            left, right = Left(f"l{number}"), Right(f"r{number}")
            turns = [left.submit_messages(f"ask r{number}"), right.submit_messages(f"ask l{number}")]

            ended = [current().wait_for_submission(each.submission_id, timeout=60) for each in turns]

            assert [each.status for each in ended] == ["completed", "completed"]
            assert [agent.wait_until_stable(timeout=60) for agent in (left, right)] == [True, True]
            answers = [m for agent in (left, right) for m in agent.messages if m.role == "assistant"]
            assert "would wait for ever" in str([shape(message) for message in answers])
        rows = office.rt.db.read(lambda tx: list(tx.execute(tables.lines.select())))
        assert {row.waits_for for row in rows} == {None}


class TestLatency:
    def test_the_end_of_a_long_turn_is_heard_of(self, office: Office) -> None:
        """Who has waited for long is looked after every half second; what the live log says comes before that."""
        submission = Echo("long").submit_messages("slow")
        ended = current().wait_for_submission(submission.submission_id, timeout=60)
        late = time.time() - ended.completed_at.timestamp()

        assert ended.status == "completed"
        assert late < 2
