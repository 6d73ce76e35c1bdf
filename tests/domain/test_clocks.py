"""Times in a workflow: `step.now`, `step.sleep_until`; and steps with a queue of their own."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.domain.flows import DESK, begin, flow, start
from think_celery.domain import knocks
from think_celery.domain.workflows import workflows
from think_celery.errors import InvalidValue
from think_celery.retries import Retry
from think_celery.testing import ThinkTest
from think_celery.workflow import ThinkWorkflow


class TestNow:
    def test_it_is_the_time_of_the_first_pass(self, t: ThinkTest):
        """However late the run is replayed; each call has an entry of its own."""
        seen: list[list[datetime]] = []

        def run(event, step):
            first = step.now()
            step.sleep("nap", 60)
            seen.append([first, step.now()])
            step.sleep("again", 60)

        began = t.clock.now()
        workflow = begin(t, run)
        t.skip(300)

        assert seen == [[began, began + timedelta(seconds=60)]] * 2
        assert seen[0][0].tzinfo is UTC
        assert [key for key, _ in workflow.keys] == ["now", "nap", "now#2", "again"]


class TestSleepUntil:
    def test_it_wakes_at_the_instant(self, t: ThinkTest):
        """Any zone will do; the run is one waiting row until then."""
        paris = datetime(2027, 1, 2, 9, 0, tzinfo=ZoneInfo("Europe/Paris"))
        workflow = begin(t, lambda event, step: [step.sleep_until("morning", paris), step.now()])
        assert workflow.row.wake_at == paris.astimezone(UTC)

        t.skip("1 day")
        assert workflow.output == [None, paris.astimezone(UTC)]

    def test_what_has_passed_is_no_wait(self, t: ThinkTest):
        """It is recorded, and the run goes on in the same pass."""
        workflow = begin(t, lambda event, step: step.sleep_until("past", datetime(2020, 1, 1, tzinfo=UTC)))

        assert (workflow.status, workflow.row.wakes) == ("complete", 0)
        assert workflow.keys == [("past", "done")]

    def test_the_first_instant_stands(self, t: ThinkTest):
        """FR-60: what the code computes on a later pass changes nothing."""
        workflow = begin(t, lambda event, step: step.sleep_until("s", t.clock.now() + timedelta(seconds=60)))
        workflow.send("other")
        t.run_until_idle()
        t.skip(61)

        assert workflow.status == "complete"

    @pytest.mark.parametrize("when", [datetime(2027, 1, 1), "tomorrow", None, 5.0])
    def test_a_time_without_a_zone_is_no_instant(self, quick: ThinkTest, when: Any):
        """Refused with the remedy, before anything is recorded."""

        def run(event, step):
            try:
                step.sleep_until("s", when)
            except Exception as error:
                return [type(error).__name__, str(error)]

        name, text = begin(quick, run).output
        assert name == "StepMisuse"
        assert "tzinfo=" in text

    @pytest.mark.parametrize("hours", [0, -23, 23])
    def test_an_instant_that_no_date_can_name(self, t: ThinkTest, hours: int):
        """The end of all dates, in whatever zone, is refused on each database, before anything is recorded."""
        when = datetime.max.replace(tzinfo=timezone(timedelta(hours=hours)))
        workflow = begin(t, lambda event, step: step.sleep_until("s", when))

        assert (workflow.status, workflow.row.error_type, workflow.keys) == ("errored", "StepMisuse", [])


def queued(t: ThinkTest) -> list[tuple[str, str | None]]:
    """The queue of each message for a workflow that is under way, and what it says of it."""
    return [
        (str(knock.queue), knock.kwargs.get("queue"))
        for knock in t._knocks
        if knock.task == knocks.ADVANCE_WORKFLOW
    ]


class TestQueue:
    def run(self, event: Any, step: Any) -> list[str]:
        """Two steps on the way, and one before and after."""
        return [
            step.do("a", lambda: "a"),
            step.do("b", lambda: "b", queue="gpu"),
            step.do("c", lambda: "c", queue="gpu"),
            step.do("d", lambda: "d"),
        ]

    def test_there_and_back(self, t: ThinkTest):
        """The run goes to the step's queue, and the next step that acts brings it back; each step runs once."""
        workflow = start(t.rt, self.run)
        t.lose_messages()
        assert workflow.advance().word == "moved"
        assert queued(t) == [("gpu", "gpu")]
        assert (workflow.row.step_queue, workflow.row.takeovers, workflow.row.attempts) == ("gpu", 0, 0)
        assert workflow.keys == [("a", "done")]

        t._perform(t._knocks.popleft())
        assert workflow.keys == [("a", "done"), ("b", "done"), ("c", "done")]
        assert queued(t) == [("None", None)]
        assert workflow.row.step_queue is None

        t.run_until_idle()
        assert workflow.output == ["a", "b", "c", "d"]

    def test_no_other_worker_takes_it(self, t: ThinkTest):
        """An old message in another queue does nothing; the tick knocks in the step's own."""
        workflow = start(t.rt, self.run)
        workflow.advance()
        t.lose_messages()

        assert workflow.advance().word == "other-queue"
        assert workflow.row.attempts == 0
        t.clock.advance(timedelta(seconds=5))
        workflows.knock_missed(t.rt, 10)
        assert queued(t) == [("gpu", "gpu")]
        t.run_until_idle()
        assert workflow.output == ["a", "b", "c", "d"]

    def test_a_wait_is_where_the_run_is_at_home(self, t: ThinkTest):
        """A run that waits wakes up in its own queue; one that waits for a retry, in that of the step."""
        tries: list[int] = []

        def fails_once() -> str:
            tries.append(1)
            if len(tries) == 1:
                raise RuntimeError("not yet")
            return "done"

        def run(event, step):
            step.do("b", fails_once, queue="gpu", retry=Retry(max_attempts=2, delay=60))
            return step.wait_for_event("w", type="go").payload

        flow(run).queue = "slow"
        workflow = start(t.rt, None)
        t.run_until_idle()
        assert (workflow.status, workflow.row.step_queue) == ("waiting", "gpu")
        t.clock.advance(timedelta(seconds=61))
        workflows.wake_due(t.rt, 10)
        assert queued(t) == [("gpu", "gpu")]
        t.run_until_idle()
        assert (workflow.status, workflow.row.step_queue) == ("waiting", None)
        workflow.send("go", 1)
        assert queued(t) == [("slow", None)]

    def test_its_own_queue_is_no_other(self, t: ThinkTest):
        """Naming the run's own queue costs no message."""
        flow(self.run).queue = "gpu"
        workflow = start(t.rt, None)
        t.run_until_idle()

        assert (workflow.output, workflow.row.wakes) == (["a", "b", "c", "d"], 0)

    @pytest.mark.parametrize(
        "point", ["workflow:before-move", "workflow:moved", "step:b:ran", "step:b:committed"]
    )
    def test_killed_on_the_way(self, t: ThinkTest, point: str):
        """Another worker of the right queue goes on."""
        t.crash_at(point)
        workflow = start(t.rt, self.run)
        t.run_until_idle()
        t.skip(120)

        assert t.crashes == [point]
        assert workflow.output == ["a", "b", "c", "d"]

    def test_a_thousand_ways_are_no_circle(self, t: ThinkTest):
        """Going to another queue is no death: it counts neither as an attempt nor as a takeover."""

        def run(event, step):
            for number in range(30):
                step.do(f"a{number}", lambda: None, queue="gpu")
                step.do(f"b{number}", lambda: None)

        workflow = begin(t, run)

        assert workflow.status == "complete"
        assert workflow.row.takeovers <= 1

    @pytest.mark.parametrize("queue", ["", " ", 5, "a\nb"])
    def test_what_is_no_queue(self, quick: ThinkTest, queue: Any):
        """Refused before anything is recorded."""

        def run(event, step):
            try:
                step.do("a", lambda: None, queue=queue)
            except Exception as error:
                return str(error)

        assert "queue=" in begin(quick, run).output


def old(event: Any, step: Any) -> Any:
    """What version 1 asks for."""
    return [step.wait_for_event("go", type="go").payload, step.do("old", lambda: "old")]


def new(event: Any, step: Any) -> Any:
    """What version 2 asks for; old runs go on as they began."""
    said = [step.wait_for_event("go", type="go").payload]
    if step.version == "1":
        return [*said, step.do("old", lambda: "old")]
    return [*said, step.do("new", lambda: "new"), step.version]


class TestVersions:
    def test_old_runs_go_on_in_the_new_class(self, t: ThinkTest):
        """FR-63: `also_runs` names the versions whose runs it takes on, `step.version` tells them apart."""
        flow(old, version="1")
        first = start(t.rt, None)
        t.run_until_idle()
        flow(new, version="2").also_runs = ("1",)
        second = start(t.rt, None, id="w2")
        t.run_until_idle()
        for workflow in (first, second):
            workflow.send("go", 1)
        t.run_until_idle()

        assert first.output == [1, "old"]
        assert second.output == [1, "new", "2"]
        assert (first.row.version, second.row.version) == ("1", "2")

    def test_a_run_of_another_version_stays_queued(self, t: ThinkTest):
        """It is not claimed, no attempt counts, the distance between its knocks grows; a worker that has it goes on."""
        flow(old, version="1")
        workflow = start(t.rt, None)
        t.run_until_idle()
        flow(new, version="2")
        workflow.send("go", 1)
        t.run_until_idle()
        for _ in range(4):
            t.clock.advance(timedelta(seconds=20))
            workflows.knock_missed(t.rt, 10)
            t.run_until_idle()

        row = workflow.row
        assert (row.status, row.attempts, row.takeovers) == ("queued", 0, 0)
        assert row.knocks == 4
        assert row.knock_at - t.clock.now() > timedelta(seconds=2)

        flow(old, version="1")
        t.skip(300)
        assert workflow.output == [1, "old"]

    def test_changed_code_is_mended_by_a_version(self, t: ThinkTest):
        """FR-63: the error names one remedy, and it works: the paused run goes on."""
        flow(lambda event, step: [step.do("old", lambda: "old"), step.sleep("nap", 5)], version="1")
        workflow = start(t.rt, None)
        t.run_until_idle()
        flow(lambda event, step: [step.do("new", lambda: "new"), step.sleep("nap", 5)], version="1")
        t.skip(6)
        assert (workflow.status, workflow.row.error_type) == ("paused", "ReplayMismatch")
        for words in ("new version", "also_runs", "step.version", "resume"):
            assert words in workflow.row.error

        def mended(event, step):
            return [step.do("old" if step.version == "1" else "new", lambda: "x"), step.sleep("nap", 5)]

        flow(mended, version="2").also_runs = ("1",)
        DESK.resume_workflow("w1")
        t.run_until_idle()
        assert workflow.output == ["old", None]

    @pytest.mark.parametrize("given", ["1", [5], ("",), None, (("1",),)])
    def test_what_is_no_tuple_of_versions(self, given: Any):
        """A text alone would be read as one version a letter."""
        with pytest.raises(InvalidValue, match="also_runs"):
            type("Unfit", (ThinkWorkflow,), {"run": lambda self, event, step: None, "also_runs": given})
