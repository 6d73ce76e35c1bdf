"""Fibers: accepted once, with a snapshot of how far they came, and a decision when they were interrupted."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from tests.domain.crowd import transaction
from tests.domain.flows import worker_dies
from tests.domain.porter import row, run
from think_celery import Fiber, FiberRecovery, FiberRecoveryContext, FiberRun, JobStatus, Think
from think_celery.domain.jobs import runs
from think_celery.errors import (
    InsideTransaction,
    InvalidMethod,
    InvalidValue,
    JobStillRunning,
    LeaseLost,
    NotInFiber,
    NotSerializable,
)
from think_celery.providers.scripted import call, say
from think_celery.runtime import Runtime
from think_celery.testing import ThinkTest
from think_celery.tools import tool

Walk = Callable[["Scout", Fiber, Any], Any]


class Scout(Think):
    """The agent of these tests; what its fibers do is set by each test."""

    walks: ClassVar[Walk]

    def walk(self, fiber: Fiber, payload: Any = None) -> Any:
        """What a fiber runs."""
        return type(self).walks(self, fiber, payload)

    def plain(self) -> None:
        """No fiber's method."""


class Guide(Scout):
    """One that decides on interrupted fibers."""

    decides: ClassVar[Callable[[FiberRecoveryContext], Any]]

    def on_fiber_recovered(self, ctx: FiberRecoveryContext) -> FiberRecovery | None:
        """As the test says."""
        found: FiberRecovery | None = type(self).decides(ctx)
        return found


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Walk], None]:
    """Set what fibers do."""
    return lambda walk: monkeypatch.setattr(Scout, "walks", staticmethod(walk), raising=False)


@pytest.fixture
def decides(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Set what the guide decides."""
    return lambda decide: monkeypatch.setattr(Guide, "decides", staticmethod(decide), raising=False)


def scout(rt: Runtime, name: str = "a", cls: type[Scout] = Scout) -> Any:
    """That agent, on a runtime."""
    return cls._bound_to(rt, name)


def at(agent: Any, fiber_id: str) -> FiberRun:
    """A fiber as it stands now."""
    found = agent.inspect_fiber(fiber_id)
    assert isinstance(found, FiberRun)
    return found


class TestStarting:
    def test_it_is_accepted_once_and_runs_in_a_worker(self, t: ThinkTest, walks: Any):
        """B22: `method(fiber, payload)`; the same key again gives the fiber that there is."""
        seen = []
        walks(lambda agent, fiber, payload: seen.append((fiber.fiber_id, payload, fiber.attempt)))
        agent = scout(t.rt)
        first = agent.start_fiber(agent.walk, {"n": 1}, idempotency_key="k", metadata={"m": 1})
        again = agent.start_fiber("walk", {"n": 2}, idempotency_key="k")
        agent.start_fiber(agent.walk)
        t.run_until_idle()

        assert sorted(seen, key=repr) == sorted(
            [(first.fiber_id, {"n": 1}, 1), (agent.list_fibers()[0].fiber_id, None, 1)], key=repr
        )
        assert (first.accepted, again.accepted, again.fiber_id) == (True, False, first.fiber_id)
        ended = agent.inspect_fiber_by_key("k")
        assert (ended.status, ended.metadata, ended.settled) == (JobStatus.COMPLETED, {"m": 1}, True)
        assert agent.inspect_fiber("nobody") is None
        assert agent.get_job(first.fiber_id).kind == "fiber"

    def test_an_error_ends_it_without_another_try(self, t: ThinkTest, walks: Any):
        """B22: nothing is tried again by itself."""
        seen = []

        def fail(agent: Scout, fiber: Fiber, payload: Any) -> None:
            seen.append(fiber.attempt)
            raise ValueError("no way")

        walks(fail)
        agent = scout(t.rt)
        fiber = agent.start_fiber(agent.walk)
        t.run_until_idle()

        ended = at(agent, fiber.fiber_id)
        assert (ended.status, ended.error_type, ended.error, seen) == ("error", "ValueError", "no way", [1])

    def test_unfit_calls_store_nothing(self, quick: ThinkTest):
        """A fiber's method takes the fiber; a timeout needs somebody who waits."""
        agent = scout(quick.rt)
        with pytest.raises(InvalidMethod, match=r"called as plain\(fiber\)"):
            agent.start_fiber(agent.plain)
        with pytest.raises(InvalidMethod, match=r"called as plain\(fiber, payload\)"):
            agent.start_fiber("plain", 1)
        with pytest.raises(InvalidValue, match="time_limit"):
            agent.start_fiber(agent.walk, timeout=5)
        with transaction(quick.rt), pytest.raises(InsideTransaction):
            agent.start_fiber(agent.walk, wait_for_completion=True)
        with transaction(quick.rt), pytest.raises(InsideTransaction):
            agent.run_fiber(agent.walk)

        assert agent.list_fibers() == []


class TestStash:
    def test_what_was_stashed_last_is_the_snapshot(self, t: ThinkTest, walks: Any):
        """B22: each stash takes the place of the one before, through `fiber` and `self` alike; values come back."""

        def walk(agent: Scout, fiber: Fiber, payload: Any) -> list[Any]:
            before = fiber.snapshot
            fiber.stash({"step": 1, "after": timedelta(seconds=2)})
            agent.stash({"step": 2})
            return [before, fiber.snapshot]

        walks(walk)
        agent = scout(t.rt)
        fiber = agent.start_fiber(agent.walk, wait_for_completion=True)

        assert (fiber.output, fiber.snapshot) == ([None, {"step": 2}], {"step": 2})

    def test_outside_of_a_fiber_there_is_nothing_to_stash(self, quick: ThinkTest):
        """`self.stash` finds its fiber by the context that it runs in."""
        with pytest.raises(NotInFiber, match="start_fiber"):
            scout(quick.rt).stash(1)

    def test_unfit_data_leaves_the_snapshot(self, quick: ThinkTest, walks: Any):
        """What can't be stored is an error there and then; so is a stash that could be rolled back."""

        def walk(agent: Scout, fiber: Fiber, payload: Any) -> None:
            fiber.stash(1)
            with pytest.raises(NotSerializable):
                fiber.stash({1, 2})
            with transaction(agent._rt), pytest.raises(InsideTransaction):
                fiber.stash(2)

        walks(walk)
        agent = scout(quick.rt)
        fiber = agent.start_fiber(agent.walk, wait_for_completion=True)
        assert (fiber.status, fiber.snapshot) == ("completed", 1)

    def test_who_lost_the_fiber_stashes_nothing(self, t: ThinkTest, walks: Any):
        """The stash is fenced: a worker that stalled can't overwrite what its successor stored."""
        agent = scout(t.rt)

        def walk(agent: Scout, fiber: Fiber, payload: Any) -> None:
            fiber.stash("before")
            worker_dies(t)
            with pytest.raises(LeaseLost):
                fiber.stash("after")

        walks(walk)
        fiber = agent.start_fiber(agent.walk)
        assert run(t.rt, fiber.fiber_id).word == "lease-lost"
        assert at(agent, fiber.fiber_id).snapshot == "before"

    def test_a_stash_is_progress(self, t: ThinkTest, walks: Any, decides: Any):
        """Workers may die in it more than five times, if it got further each time."""
        decides(lambda ctx: FiberRecovery(status="retry"))

        def walk(agent: Scout, fiber: Fiber, payload: Any) -> int:
            for step in range(fiber.snapshot or 0, 8):
                fiber.stash(step + 1)
                agent._rt.failpoint("user:step")
            return int(fiber.snapshot)

        walks(walk)
        t.crash_at("user:step", times=7)
        agent = scout(t.rt, cls=Guide)
        fiber = agent.start_fiber(agent.walk)
        t.run_until_idle()

        assert (at(agent, fiber.fiber_id).status, at(agent, fiber.fiber_id).output) == ("completed", 8)

    def test_without_progress_it_is_given_up(self, t: ThinkTest, walks: Any, decides: Any):
        """Poison ends, also where the agent would have it tried for ever."""
        decides(lambda ctx: FiberRecovery(status="retry"))
        walks(lambda agent, fiber, payload: agent._rt.failpoint("user:step"))
        t.crash_at("user:step", times=t.rt.settings.max_attempts)
        agent = scout(t.rt, cls=Guide)
        fiber = agent.start_fiber(agent.walk)
        t.run_until_idle()

        assert at(agent, fiber.fiber_id).error_type == "TooManyAttempts"


def die_once(agent: Scout, fiber: Fiber, payload: Any) -> Any:
    """Stash, die, and go on from there the next time."""
    if fiber.snapshot is None:
        fiber.stash({"got": payload})
        agent._rt.failpoint("user:middle")
    return [fiber.snapshot, fiber.attempt]


class TestInterrupted:
    def test_without_a_hook_it_stays_so_until_somebody_decides(
        self, t: ThinkTest, walks: Any, caplog: pytest.LogCaptureFixture
    ):
        """B22: the default: nothing is done twice unasked. The log says so."""
        walks(die_once)
        agent = scout(t.rt)
        t.crash_at("user:middle")
        fiber = agent.start_fiber(agent.walk, 1)
        t.run_until_idle()

        assert at(agent, fiber.fiber_id).status == "interrupted"
        assert at(agent, fiber.fiber_id).snapshot == {"got": 1}
        assert "resolve_fiber" in caplog.text
        assert run(t.rt, fiber.fiber_id).word == "interrupted"
        t.skip("2 days")
        assert at(agent, fiber.fiber_id).status == "interrupted"
        assert agent.delete_fibers() == 0
        assert agent.delete_fibers(status="interrupted") == 1

    def test_the_hook_knows_it_all_and_may_call_the_method_again(
        self, t: ThinkTest, walks: Any, decides: Any
    ):
        """B22: `retry`: the method is called again, with the snapshot."""
        told: list[FiberRecoveryContext] = []

        def decide(ctx: FiberRecoveryContext) -> FiberRecovery:
            told.append(ctx)
            return FiberRecovery(status="retry")

        decides(decide)
        walks(die_once)
        agent = scout(t.rt, cls=Guide)
        t.crash_at("user:middle")
        fiber = agent.start_fiber(agent.walk, 1, idempotency_key="k", metadata={"m": 1})
        t.run_until_idle()

        assert at(agent, fiber.fiber_id).output == [{"got": 1}, 2]
        assert [
            (c.fiber_id, c.method, c.payload, c.snapshot, c.idempotency_key, c.metadata) for c in told
        ] == [(fiber.fiber_id, "walk", 1, {"got": 1}, "k", {"m": 1})]

    @pytest.mark.parametrize(
        ("decision", "expected"),
        [
            (FiberRecovery(status="completed", output=[1]), ("completed", None, None, [1], {"got": 1})),
            (
                FiberRecovery(status="error", error="too late"),
                ("error", "FiberError", "too late", None, {"got": 1}),
            ),
            (
                FiberRecovery(status="aborted", error="no need", snapshot={"new": 2}),
                ("aborted", None, "no need", None, {"new": 2}),
            ),
            (FiberRecovery(status="interrupted"), ("interrupted", None, None, None, {"got": 1})),
            (FiberRecovery(status="retry", snapshot=3), ("completed", None, None, [3, 2], 3)),
            (None, ("interrupted", None, None, None, {"got": 1})),
            ("again", ("interrupted", "InvalidValue", None, None, {"got": 1})),
            (
                FiberRecovery(status="completed", output=object()),
                ("interrupted", "NotSerializable", None, None, {"got": 1}),
            ),
        ],
    )
    def test_each_decision(self, t: ThinkTest, walks: Any, decides: Any, decision: Any, expected: Any):
        """B22: complete, error, abort, retry, stay; what is no decision leaves it interrupted and says why."""
        decides(lambda ctx: decision)
        walks(die_once)
        agent = scout(t.rt, cls=Guide)
        t.crash_at("user:middle")
        fiber = agent.start_fiber(agent.walk, 1)
        t.run_until_idle()

        found = at(agent, fiber.fiber_id)
        said = None if found.error_type in ("InvalidValue", "NotSerializable") else found.error
        assert (found.status, found.error_type, said, found.output, found.snapshot) == expected

    def test_a_hook_that_raises_leaves_it_interrupted(self, t: ThinkTest, walks: Any, decides: Any):
        """B22: and the error is kept with it."""

        def decide(ctx: FiberRecoveryContext) -> None:
            raise ValueError("can't say")

        decides(decide)
        walks(die_once)
        agent = scout(t.rt, cls=Guide)
        t.crash_at("user:middle")
        fiber = agent.start_fiber(agent.walk, 1)
        t.run_until_idle()

        found = at(agent, fiber.fiber_id)
        assert (found.status, found.error_type, found.error) == ("interrupted", "ValueError", "can't say")

    @pytest.mark.parametrize("point", ["fiber:recovery-decided", "job:before-end"])
    def test_dying_while_it_is_decided_asks_again(self, t: ThinkTest, walks: Any, decides: Any, point: str):
        """Like every hook it may be called again."""
        asked = []

        def decide(ctx: FiberRecoveryContext) -> FiberRecovery:
            asked.append(ctx.attempt)
            if len(asked) == 1:
                t.crash_at(point)
            return FiberRecovery(status="completed", output=1)

        decides(decide)
        walks(die_once)
        agent = scout(t.rt, cls=Guide)
        t.crash_at("user:middle")
        fiber = agent.start_fiber(agent.walk, 1)
        t.run_until_idle()

        assert (at(agent, fiber.fiber_id).output, asked) == (1, [2, 3])

    def test_resolving(self, t: ThinkTest, walks: Any):
        """B22: `resolve_fiber` decides on interrupted ones only; `retry` begins anew, with the snapshot."""
        walks(die_once)
        agent = scout(t.rt)
        t.crash_at("user:middle", times=2)
        one, two = agent.start_fiber(agent.walk, 1), agent.start_fiber(agent.walk, 2)
        assert not agent.resolve_fiber(one.fiber_id, FiberRecovery(status="completed"))
        t.run_until_idle()

        assert agent.resolve_fiber(one.fiber_id, FiberRecovery(status="completed", output=7))
        assert not agent.resolve_fiber(one.fiber_id, FiberRecovery(status="aborted"))
        assert not scout(t.rt, "b").resolve_fiber(two.fiber_id, FiberRecovery(status="aborted"))
        assert agent.resolve_fiber(two.fiber_id, FiberRecovery(status="retry"))
        t.run_until_idle()

        assert at(agent, one.fiber_id).output == 7
        assert at(agent, two.fiber_id).output == [{"got": 2}, 3]
        with pytest.raises(InvalidValue):
            agent.resolve_fiber(one.fiber_id, FiberRecovery(status="interrupted"))
        with pytest.raises(TypeError):
            agent.resolve_fiber(one.fiber_id, "completed")

    def test_unfit_decisions(self):
        """They are refused where they are made."""
        for unfit in ({"status": "done"}, {"status": "error", "error": 3}, {"status": "retry", "output": 1}):
            with pytest.raises(InvalidValue, match="FiberRecovery"):
                FiberRecovery(**unfit)


class TestWaiting:
    def test_whoever_waits_in_work_does_it_itself(self, t: ThinkTest, walks: Any):
        """B22: a tool that starts a fiber and waits does not stand still where there is one worker only."""

        class Asker2(Scout):
            @tool(idempotent=True)
            def look(self) -> str:
                """Look around."""
                found = self.start_fiber(self.walk, "tool", wait_for_completion=True, timeout=30)
                return f"{found.status} {found.output}"

        walks(lambda agent, fiber, payload: payload)
        t.script("Asker2", call("look"), say("ok"))
        agent = Asker2._bound_to(t.rt, "a")

        assert agent.save_messages("hi").text == "ok"
        (part,) = [p for p in agent.messages[-1].parts if getattr(p, "tool_name", "") == "look"]
        assert part.output == "completed tool"

    def test_the_time_is_up(self, t: ThinkTest, walks: Any):
        """`JobStillRunning` names the fiber, which goes on; a duplicate waits for the same one."""
        walks(lambda agent, fiber, payload: "done")
        agent = scout(t.rt)
        with pytest.raises(JobStillRunning) as overdue:
            agent.start_fiber(agent.walk, wait_for_completion=True, timeout=0, idempotency_key="k")
        fiber = agent.inspect_fiber_by_key("k")
        assert overdue.value.job_id == fiber.fiber_id

        again = agent.start_fiber(agent.walk, idempotency_key="k", wait_for_completion=True, timeout=30)
        assert (again.accepted, again.status, again.output) == (False, "completed", "done")

    def test_an_interrupted_one_is_given_back(self, t: ThinkTest, walks: Any):
        """Nobody decides on it, so nothing more is to be waited for."""
        walks(die_once)
        agent = scout(t.rt)
        t.crash_at("user:middle")

        assert agent.start_fiber(agent.walk, 1, wait_for_completion=True).status == "interrupted"


class TestCancelling:
    def test_a_waiting_one_never_runs(self, t: ThinkTest, walks: Any):
        """B22: `cancel_fiber` by id and by key, with a reason."""
        seen = []
        walks(lambda agent, fiber, payload: seen.append(payload))
        agent = scout(t.rt)
        one = agent.start_fiber(agent.walk, 1)
        agent.start_fiber(agent.walk, 2, idempotency_key="k")
        assert agent.cancel_fiber(one.fiber_id, "no need")
        assert agent.cancel_fiber_by_key("k")
        assert not agent.cancel_fiber(one.fiber_id)
        assert not agent.cancel_fiber_by_key("other")
        assert not scout(t.rt, "b").cancel_fiber(one.fiber_id)
        t.run_until_idle()

        assert seen == []
        assert (at(agent, one.fiber_id).status, at(agent, one.fiber_id).error) == ("aborted", "no need")

    def test_a_running_one_is_told_and_stores_nothing_more(self, t: ThinkTest, walks: Any):
        """B22: its signal comes; stash and check end it; what it returned is dropped."""
        seen: list[Any] = []

        def walk(agent: Scout, fiber: Fiber, payload: Any) -> str:
            fiber.stash(1)
            assert agent.cancel_fiber(fiber.fiber_id, "enough")
            seen.append(fiber.signal.aborted)
            if payload == "stash":
                fiber.stash(2)
            elif payload == "check":
                fiber.check()
            seen.append("went on")
            return "dropped"

        walks(walk)
        agent = scout(t.rt)
        for how in ("stash", "check", "return"):
            fiber = agent.start_fiber(agent.walk, how)
            t.run_until_idle()
            found = at(agent, fiber.fiber_id)
            assert (found.status, found.output, found.snapshot, found.error) == ("aborted", None, 1, "enough")
            assert row(t.rt, fiber.fiber_id).process_id is None

        assert seen == [True, True, True, "went on"]

    def test_deleting(self, t: ThinkTest, walks: Any):
        """B22: those that ended, by status and age; what goes on is never deleted."""
        walks(lambda agent, fiber, payload: payload)
        agent = scout(t.rt)
        for n in range(3):
            agent.start_fiber(agent.walk, n)
        t.run_until_idle()
        moment = t.clock.now()
        t.skip(10)
        agent.start_fiber(agent.walk, 3)
        t.run_until_idle()
        agent.start_fiber(agent.walk, 4)

        assert agent.delete_fibers(status="error") == 0
        assert agent.delete_fibers(completed_before=moment) == 0  # strictly before
        assert agent.delete_fibers(completed_before=moment + timedelta(seconds=1), limit=2) == 2
        assert agent.delete_fibers() == 2
        assert [fiber.status for fiber in agent.list_fibers()] == ["pending"]
        for unfit in ({"status": "running"}, {"limit": 0}, {"completed_before": moment.replace(tzinfo=None)}):
            with pytest.raises(ValueError, match=r"cancel_fiber|between|time zone"):
                agent.delete_fibers(**unfit)


class TestInline:
    def test_it_runs_here_on_this_very_object(self, t: ThinkTest, walks: Any):
        """B22: `run_fiber` returns what the method returns and raises what it raises; the row stays."""

        def walk(agent: Scout, fiber: Fiber, payload: Any) -> Any:
            agent.stash({"payload": payload})
            if payload == "bad":
                raise KeyError("own")
            return (agent.mark, payload)  # type: ignore[attr-defined]

        walks(walk)
        agent = scout(t.rt)
        agent.mark = object()

        assert agent.run_fiber(agent.walk, 1) == (agent.mark, 1)
        with pytest.raises(KeyError, match="own"):
            agent.run_fiber(agent.walk, "bad")
        assert [(fiber.status, fiber.snapshot) for fiber in agent.list_fibers()] == [
            ("error", {"payload": "bad"}),
            ("completed", {"payload": 1}),
        ]

    def test_when_its_process_dies_a_worker_decides(self, t: ThinkTest, walks: Any, decides: Any):
        """B22: what was accepted inline is taken up as any other, and its caller is gone."""
        decides(lambda ctx: FiberRecovery(status="retry"))
        walks(die_once)
        agent = scout(t.rt, cls=Guide)
        t.crash_at("user:middle")
        with pytest.raises(BaseException, match="user:middle"):
            agent.run_fiber(agent.walk, 1)
        t._restart()
        t.run_until_idle()

        (fiber,) = agent.list_fibers()
        assert (fiber.status, fiber.output) == ("completed", [{"got": 1}, 2])

    def test_nobody_else_runs_it_meanwhile(self, t: ThinkTest, walks: Any):
        """It is in the hands of its caller."""
        words = []
        walks(lambda agent, fiber, payload: words.append(runs.run(agent._rt, fiber.fiber_id).word))
        agent = scout(t.rt)
        agent.run_fiber(agent.walk)

        assert words == ["busy"]
