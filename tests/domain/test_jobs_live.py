"""Jobs with helper threads and the real clock: time limits, cancels, workers that stop."""

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from sqlalchemy import select

from tests.domain.crowd import at_once
from tests.domain.porter import Hauler, porter, row, run
from tests.domain.test_fibers import Guide, Scout, at, scout
from think_celery import Fiber, FiberRecovery, Retry
from think_celery.domain import calls
from think_celery.domain.jobs.waiting import end_of
from think_celery.domain.submissions import claims
from think_celery.errors import JobStillRunning, NestedJob, NestedTurn
from think_celery.providers.scripted import FunctionModel, call, say
from think_celery.runtime import Runtime
from think_celery.signals import AbortController
from think_celery.store import tables
from think_celery.testing import ThinkTest
from think_celery.tools import tool

Set = Callable[[Callable[..., Any]], None]


@pytest.fixture
def carries(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Set what the haulers do."""
    return lambda carry: monkeypatch.setattr(Hauler, "carries", staticmethod(carry))


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Set what fibers do."""
    return lambda walk: monkeypatch.setattr(Scout, "walks", staticmethod(walk), raising=False)


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "GRACE_SECONDS", 0.2)


def test_an_attempt_that_takes_too_long_has_failed(live: Runtime, carries: Set):
    """The monitor gives the signal at the deadline; the method is given up, and what it returns is dropped."""
    let_go = threading.Event()
    carries(lambda agent, payload: let_go.wait(60) and "late")
    agent = porter(live)
    job = agent.queue(agent.carry, 1, time_limit=0.1, retry=Retry(max_attempts=2, delay=0))

    assert run(live, job.job_id).word == "retrying"
    assert run(live, job.job_id).word == "error"
    let_go.set()
    ended = agent.get_job(job.job_id)
    assert ended is not None
    assert (ended.error_type, ended.attempts, ended.output) == ("JobTimeout", 2, None)


def test_a_fiber_whose_time_is_up_is_told(live: Runtime, walks: Set):
    """`fiber.signal` comes at the deadline, with the reason."""
    seen = []

    def walk(agent: Scout, fiber: Fiber, payload: Any) -> None:
        seen.append(fiber.signal.wait(30))
        fiber.check()

    walks(walk)
    agent = scout(live)
    fiber = agent.start_fiber(agent.walk, time_limit=0.1)

    assert run(live, fiber.fiber_id).word == "error"
    assert (seen, at(agent, fiber.fiber_id).error_type) == ([True], "JobTimeout")


def test_a_cancel_from_elsewhere_comes_within_a_second_or_so(live: Runtime, walks: Set):
    """The monitor sees it in its beat; a method that does not stop is given up, and its row is free."""
    began, let_go = threading.Event(), threading.Event()

    def walk(agent: Scout, fiber: Fiber, payload: Any) -> None:
        began.set()
        assert fiber.signal.wait(30)
        let_go.wait(30)

    walks(walk)
    agent = scout(live)
    fiber = agent.start_fiber(agent.walk)

    def cancel() -> str:
        began.wait(30)
        assert agent.cancel_fiber(fiber.fiber_id, "enough")
        return str(at(agent, fiber.fiber_id).status)

    outcome, status = at_once(2, lambda n: cancel() if n else run(live, fiber.fiber_id))
    let_go.set()
    assert (outcome.word, status) == ("aborted", "aborted")
    assert row(live, fiber.fiber_id).process_id is None


class TestAWorkerThatStops:
    def test_a_fiber_that_looks_is_handed_over(self, live: Runtime, walks: Set):
        """B22: `fiber.check` ends it; the next worker calls the method again, with the snapshot, and asks nobody."""

        def walk(agent: Scout, fiber: Fiber, payload: Any) -> Any:
            if fiber.snapshot is None:
                fiber.stash("half")
                controller.abort("the worker stops")
                fiber.check()
            return fiber.snapshot

        walks(walk)
        agent, controller = scout(live), live.stopping
        fiber = agent.start_fiber(agent.walk)
        assert run(live, fiber.fiber_id).word == "handed-over"
        assert (row(live, fiber.fiber_id).status, row(live, fiber.fiber_id).attempts) == ("pending", 0)

        live.stopping = AbortController()  # the next worker
        assert run(live, fiber.fiber_id).word == "completed"
        assert at(agent, fiber.fiber_id).output == "half"

    def test_a_call_goes_on_to_its_end(self, live: Runtime, carries: Set):
        """As in Celery's warm shutdown: a method has no safe point but its end."""

        def carry(agent: Hauler, payload: Any) -> str:
            live.stopping.abort("the worker stops")
            return "done"

        carries(carry)
        agent = porter(live)
        job = agent.queue(agent.carry, 1)
        assert run(live, job.job_id).word == "completed"

    def test_a_call_that_waits_for_a_turn_is_handed_over(self, live: Runtime, carries: Set):
        """Who waits in a worker that stops waits no longer; that is no failure of the call's."""

        def carry(agent: Hauler, payload: Any) -> str:
            live.stopping.abort("the worker stops")
            return agent.save_messages("hello").text

        carries(carry)
        agent = porter(live)
        job = agent.queue(agent.carry, 1, retry=Retry(max_attempts=1))
        assert run(live, job.job_id).word == "handed-over"
        assert row(live, job.job_id).failures == 0

    def test_a_call_that_is_cut_goes_to_another_worker_and_a_fiber_is_decided_on(
        self, t: ThinkTest, carries: Set, walks: Set, monkeypatch: pytest.MonkeyPatch
    ):
        """Celery's soft time limit, or a cold shutdown: put back in order, no attempt counts."""
        cut: list[Any] = []

        def once(value: Any) -> Any:
            if value not in cut:
                cut.append(value)
                raise SoftTimeLimitExceeded()
            return value

        carries(lambda agent, payload: once("call"))
        walks(lambda agent, fiber, payload: once("fiber"))
        decided = []

        def decide(ctx: Any) -> FiberRecovery:
            decided.append(ctx.fiber_id)
            return FiberRecovery(status="retry")

        monkeypatch.setattr(Guide, "decides", staticmethod(decide), raising=False)
        agent, guide = porter(t.rt), scout(t.rt, cls=Guide)
        job, fiber = agent.queue(agent.carry, 1), guide.start_fiber(guide.walk)
        t.run_until_idle()

        assert (row(t.rt, job.job_id).status, row(t.rt, job.job_id).attempts) == ("completed", 1)
        assert at(guide, fiber.fiber_id).output == "fiber"
        assert decided == [fiber.fiber_id]


class TestWaiting:
    def test_outside_of_a_worker_the_poller_tells(self, live: Runtime, walks: Set):
        """B22: a script or a web process waits for the worker that runs it."""
        walks(lambda agent, fiber, payload: payload)
        agent = scout(live)
        fiber = agent.start_fiber(agent.walk, 7)
        found = at_once(
            2,
            lambda n: run(live, fiber.fiber_id).word if n else end_of(live, fiber.fiber_id, "it", 30).status,
        )

        assert found == ["completed", "completed"]

    def test_callers_that_fill_the_pool_do_the_work_themselves(self, live: Runtime, carries: Set, walks: Set):
        """B22: two workers, two calls that each wait for a fiber, and nobody else: nothing stands still."""
        live.takes = lambda knock: True
        walks(lambda agent, fiber, payload: payload * 2)
        guide = scout(live)
        carries(
            lambda agent, payload: (
                guide.start_fiber(guide.walk, payload, wait_for_completion=True, timeout=30).output
            )
        )
        jobs = [porter(live, name).queue("carry", number) for number, name in enumerate("ab")]
        at_once(2, lambda n: run(live, jobs[n].job_id))

        assert [
            porter(live, name).get_job(job.job_id).output for name, job in zip("ab", jobs, strict=True)
        ] == [0, 2]  # type: ignore[union-attr]

    def test_a_time_that_is_up(self, live: Runtime, walks: Set):
        """It is told how long it waited for; nobody has begun."""
        agent = scout(live)
        walks(lambda agent, fiber, payload: payload)
        with pytest.raises(JobStillRunning, match="doctor"):
            agent.start_fiber(agent.walk, 1, wait_for_completion=True, timeout=0.1)

    def test_a_fiber_that_would_wait_for_the_turn_that_waits_for_it(self, live: Runtime, walks: Set):
        """In another worker, too, it is told so at once: else both would wait until their time is up."""
        said: list[Any] = []
        live.takes = lambda knock: False  # the turn's own worker does not run fibers

        def walk(agent: Scout, fiber: Fiber, payload: Any) -> str:
            until(lambda: waiting_line(live, agent))
            with pytest.raises(NestedTurn) as nested:
                agent.save_messages("again", timeout=30)
            said.append(nested.value.circle)
            return "told"

        walks(walk)
        live.stand_in = lambda _: FunctionModel(
            lambda request: say("ok") if len(request.messages) > 1 else call("look")
        )
        Looker.looks = staticmethod(
            lambda agent: agent.start_fiber(agent.walk, wait_for_completion=True, timeout=30)
        )
        looker = Looker._bound_to(live, "a")
        turn = looker.submit_messages("hi")

        def run_fiber() -> str:
            until(looker.list_fibers)
            return run(live, looker.list_fibers()[0].fiber_id).word

        words = at_once(2, lambda n: run_fiber() if n else claims.run(live, turn.submission_id).word)
        assert words == ["completed", "completed"]
        fiber = looker.list_fibers()[0]
        assert fiber.output == "told"
        assert said == [(f"job {fiber.fiber_id}", "Looker('a')", f"job {fiber.fiber_id}")]

    @pytest.mark.parametrize("behind", [False, True], ids=["itself", "the call behind it"])
    def test_two_queued_calls_that_wait_for_each_other(self, live: Runtime, carries: Set, behind: bool):
        """In two workers: one of them is told so at once, names the circle, and the other gets its answer (or is told,
        too, where both have looked at the same moment). Or one waits for what is behind the other in its lane, and
        can't begin before that has ended."""
        said: list[tuple[str, ...]] = []
        live.takes = lambda knock: False  # neither worker runs what it waits for

        def carry(agent: Hauler, payload: Any) -> Any:
            until(lambda: all(row(live, ids[other]).status == "running" for other in ("a", "b")))
            if payload == "a":
                until(lambda: row(live, ids["b"]).waits_for)
            try:
                return end_of(live, ids["b" if payload == "a" else last], "wait_for_job()", 60).status
            except NestedJob as nested:
                said.append(nested.circle)
                return "told"

        carries(carry)
        ids = {name: porter(live, name).queue("carry", name).job_id for name in "ab"}
        last = "next" if behind else "a"
        ids["next"] = porter(live, "a").queue("carry", "next").job_id
        a, b, following = (f"job {ids[name]}" for name in ("a", "b", "next"))

        def work(name: str) -> None:
            assert run(live, ids[name]).word == "completed"
            if name == "a" and behind:
                carries(lambda agent, payload: None)
                assert run(live, ids["next"]).word == "completed"

        at_once(2, lambda n: work("ab"[n]))

        way = [a, b, following] if behind else [a, b]
        of_a, of_b = (*way, a), (*way[1:], *way[:2])
        outputs = {name: row(live, ids[name]).output for name in "ab"}
        assert said
        assert set(said) <= {of_a, of_b}
        assert [outputs[name] for name in "ab"] == [
            '"told"' if circle in said else '"completed"' for circle in (of_a, of_b)
        ]
        assert [row(live, ids[name]).waits_for for name in "ab"] == [None, None]

    def test_a_turn_that_would_wait_for_a_job_that_waits_for_it(self, live: Runtime, carries: Set):
        """The job waited first: what it waits for is in its row, where the turn's tool finds it; if the job has not
        found the turn's own wait by then."""
        said: list[tuple[str, ...]] = []
        live.takes = lambda knock: False

        def look(agent: Looker) -> Any:
            until(lambda: row(live, job.job_id).waits_for)
            try:
                end_of(live, job.job_id, "wait_for_job()", 60)
            except NestedJob as nested:
                said.append(nested.circle)
            return job

        def carry(agent: Hauler, payload: Any) -> Any:
            try:
                return looker.wait_for_submission(turn.submission_id, timeout=60).status
            except NestedTurn as nested:
                said.append(nested.circle)
                return "told"

        Looker.looks = staticmethod(look)
        live.stand_in = lambda _: FunctionModel(
            lambda request: say("ok") if len(request.messages) > 1 else call("look")
        )
        looker = Looker._bound_to(live, "asked")
        turn = looker.submit_messages("hi")
        carries(carry)
        job = porter(live).queue("carry", 1)

        words = at_once(
            2, lambda n: run(live, job.job_id).word if n else claims.run(live, turn.submission_id).word
        )

        assert words == ["completed", "completed"]
        turn_, job_ = "Looker('asked')", f"job {job.job_id}"
        assert said
        assert set(said) <= {(turn_, job_, turn_), (job_, turn_, job_)}

    @pytest.mark.parametrize("first", ["the fiber", "the job"])
    def test_a_job_that_waits_for_a_turn_whose_tool_runs_a_fiber(
        self, live: Runtime, carries: Set, walks: Set, first: str
    ):
        """The fiber runs inside the tool and waits for the job, which waits for the turn: who comes second is told."""
        said: list[tuple[str, ...]] = []
        live.takes = lambda knock: False

        def walk(agent: Scout, fiber: Fiber, payload: Any) -> str:
            if first == "the job":
                until(lambda: row(live, job.job_id).waits_for)
            try:
                return str(end_of(live, job.job_id, "wait_for_job()", 20).status)
            except NestedJob as nested:
                said.append(nested.circle)
                return "told"

        def carry(agent: Hauler, payload: Any) -> Any:
            if first == "the fiber":
                until(lambda: [each for each in looker.list_fibers() if row(live, each.fiber_id).waits_for])
            try:
                return looker.wait_for_submission(turn.submission_id, timeout=20).status
            except NestedTurn as nested:
                said.append(nested.circle)
                return "told"

        class Inline(Looker, name="Inline"):
            @tool(idempotent=True)
            def look(self) -> str:
                """Look around."""
                return str(self.run_fiber(self.walk))

        live.stand_in = lambda _: FunctionModel(
            lambda request: say("ok") if len(request.messages) > 1 else call("look")
        )
        looker = Inline._bound_to(live, "asked")
        turn = looker.submit_messages("hi")
        walks(walk)
        carries(carry)
        job = porter(live).queue("carry", 1)

        words = at_once(
            2, lambda n: run(live, job.job_id).word if n else claims.run(live, turn.submission_id).word
        )

        assert words == ["completed", "completed"]
        (fiber,) = looker.list_fibers()
        asked, mine, other = "Inline('asked')", f"job {fiber.fiber_id}", f"job {job.job_id}"
        assert said
        assert set(said) <= {(other, asked, mine, other), (asked, mine, other, asked)}
        assert not waiting_line(live, looker)


class Looker(Scout):
    """One whose tool starts a fiber and waits for it."""

    looks: ClassVar[Callable[..., Any]]

    @tool(idempotent=True)
    def look(self) -> str:
        """Look around."""
        return str(type(self).looks(self).output)


def until(true: Callable[[], Any]) -> None:
    """Wait until *true*."""
    for _ in range(3000):
        if true():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come true")


def waiting_line(rt: Runtime, agent: Scout) -> Any:
    """Whom the agent's turn waits for."""
    query = select(tables.lines.c.waits_for).where(tables.lines.c.agent_id == agent._ref.id)
    return rt.db.read(lambda tx: tx.execute(query).scalar())
