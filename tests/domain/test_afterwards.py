"""`on_chat_response`: after every turn, under its line's lease, never nested; what it asks for runs there. (B9, B10)"""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from tests.domain.flows import worker
from tests.domain.talk import (
    ABORTED,
    COMPLETED,
    ERROR,
    Running,
    ask,
    ask_structured,
    events,
    now,
    row,
    talker,
)
from think_celery.domain import recovery, tick
from think_celery.domain.conversation import conversation
from think_celery.domain.submissions import claims, submissions
from think_celery.domain.turns import afterwards
from think_celery.errors import ChainTooLong, LeaseLost, TurnStillRunning
from think_celery.messages import as_messages
from think_celery.providers.scripted import FunctionModel, call, fail, say
from think_celery.store import tables
from think_celery.testing import ThinkTest

ROOT = Path(__file__).parents[2]


def line(rt: Any, agent: Any) -> Any:
    """The agent's line."""
    table = tables.lines
    return rt.db.read(
        lambda tx: tx.conn.execute(select(table).where(table.c.agent_id == agent._ref.id)).one()
    )


def saying(*texts: str) -> Any:
    """`get_model` of an agent that answers with these texts, one a request, on real threads."""
    left = iter(texts)
    model = FunctionModel(lambda request: say(next(left)))
    return lambda self: model


class TestEveryTurn:
    @pytest.mark.parametrize("way", ["completed", "error", "structured", "chat", "save"])
    def test_whoever_asked(self, t: ThinkTest, way: str) -> None:
        """B9: once, with what is stored by then: message, ids, status, error."""
        told: list[Any] = []

        def on_chat_response(self: Any, result: Any) -> None:
            told.append(
                (result, self.inspect_submission(result.submission_id), [m.text for m in self.messages])
            )

        agent = talker(on_chat_response=on_chat_response)("a")
        t.script(agent, fail("no such model") if way == "error" else say("Hi"))

        if way == "structured":
            t.script(agent, call("think_final_answer", {"label": "x"}))
            ask_structured(t, agent)
        elif way == "chat":
            agent.receive_messages("Go")
            t.run_until_idle()
        elif way == "save":
            agent.save_messages("Go")
        else:
            ask(t, agent, "Go", metadata={"a": 1})

        ((result, stored, messages),) = told
        assert (result.status, result.error) == (stored.status, stored.error)
        assert (result.submission_id, result.request_id) == (stored.submission_id,) * 2
        assert (result.kind, result.metadata, result.continuation) == (
            {"chat": "chat", "save": "save"}.get(way, "submit"),
            stored.metadata,
            False,
        )
        assert result.output == ({"label": "x"} if way == "structured" else None)
        assert result.message.text == ("Hi" if way in ("completed", "chat", "save") else "")
        assert messages == ([*messages[:1], "Hi"] if result.message.text else messages[:1])
        assert line(t.rt, agent).process_id is None

    def test_an_error_in_the_stream(self, t: ThinkTest) -> None:
        """FR-48: an error before any content: once, with the true status, and no message is stored."""
        told: list[Any] = []
        agent = talker(
            on_chat_response=lambda self, result: told.append((result.status, result.message.parts))
        )("a")
        t.script(agent, fail("overloaded"))

        done = ask(t, agent)

        assert (done.status, told) == (ERROR, [(ERROR, [])])
        assert [each.role for each in agent.messages] == ["user"]

    def test_what_ends_before_a_turn_begins(self, t: ThinkTest) -> None:
        """Too many attempts, or nothing to answer: it is told of these ends, too, and the line is given back."""
        told: list[Any] = []
        agent = talker(on_chat_response=lambda self, result: told.append(result.error_type))("a")
        t.script(agent, say("Hi"))
        t.crash_at("turn:before-model", times=5)

        ask(t, agent)
        agent.persist_messages([{"id": "m", "role": "assistant", "parts": [{"type": "text", "text": "x"}]}])
        again = ask(t, agent, [{"id": "m", "role": "assistant", "parts": [{"type": "text", "text": "x"}]}])

        assert told == ["TooManyAttempts", "NothingToAnswer"]
        assert (again.error_type, line(t.rt, agent).process_id) == ("NothingToAnswer", None)

    def test_done_goes_out_before(self, quick: ThinkTest) -> None:
        """B9: listeners have seen `done` when it is called; readers see the end."""
        seen: list[Any] = []

        def on_chat_response(self: Any, result: Any) -> None:
            seen.append([event["type"] for _, event in events(quick, self)][-1])

        agent = talker(on_chat_response=on_chat_response)("a")
        quick.script(agent, say("Hi"))

        ask(quick, agent)

        assert seen == ["done"]

    def test_not_after_a_reset(self, t: ThinkTest) -> None:
        """A turn that a reset has ended is not told of; nor is one that never began."""
        told: list[Any] = []
        agent = talker(
            on_chat_response=lambda self, result: told.append(result),
            on_chunk=lambda self, ctx: conversation.reset(t.rt, self._ref),
        )("a")
        t.script(agent, say("Hi"), say("Hi"))

        first, second = agent.submit_messages("One"), agent.submit_messages("Two")
        t.run_until_idle()

        assert [now(agent, each).status for each in (first, second)] == [ABORTED, "skipped"]
        assert told == []

    def test_a_cancelled_one(self, live: Any) -> None:
        """Only if it had started: then with what there is of it."""
        told: list[Any] = []

        agent_class = talker(
            on_chat_response=lambda self, result: told.append(
                (result.status, result.error, result.message.text)
            ),
            on_chunk=lambda self, ctx: ctx.signal.wait(10),
            get_model=saying("Hello"),
        )
        with ThreadPoolExecutor() as pool:
            turn = Running(live, pool, agent_class)
            pending = turn.agent.submit_messages("Later")
            turn.until(lambda: turn.shown)
            turn.agent.cancel_submission(pending.submission_id)
            turn.cancel()
            assert turn.end().status == ABORTED

        ((status, reason, text),) = told
        assert (status, reason) == (ABORTED, "enough")
        assert text == turn.shown
        assert "Hello".startswith(text)
        assert line(live, turn.agent).process_id is None

    def test_one_that_was_deleted_meanwhile(self, quick: ThinkTest) -> None:
        """A status hook that deletes the row: the other one is told of the end as it was."""
        told: list[Any] = []

        def on_chat_response(self: Any, result: Any) -> None:
            told.append(result.status)
            assert self.delete_submission(result.submission_id)

        agent = talker(on_chat_response=on_chat_response)("a")
        quick.script(agent, say("Hi"))
        agent.submit_messages("Go")
        quick.run_until_idle()

        assert (told, agent.list_submissions()) == ([COMPLETED], [])


class TestChains:
    def test_b10_three_links(self, t: ThinkTest) -> None:
        """B10: never nested, in order, and each answer is stored before its hook."""
        log: list[str] = []

        def on_chat_response(self: Any, result: Any) -> None:
            text = result.message.text
            log.append(f"begin {text}: {self.messages[-1].text}")
            if text != "three":
                log.append(f"saved {self.save_messages(f'after {text}').text}")
            log.append(f"end {text}")

        agent = talker(on_chat_response=on_chat_response)("a")
        t.script(agent, say("one"), say("two"), say("three"))

        ask(t, agent)

        assert log == [
            "begin one: one",
            "saved two",
            "end one",
            "begin two: two",
            "saved three",
            "end two",
            "begin three: three",
            "end three",
        ]
        assert [each.text for each in agent.messages] == [
            "Go",
            "one",
            "after one",
            "two",
            "after two",
            "three",
        ]
        assert line(t.rt, agent).process_id is None

    def test_on_real_threads(self, live: Any) -> None:
        """The same in a worker, where the hook has a thread of its own; under one lease from end to end."""
        tokens: list[int] = []

        def on_chat_response(self: Any, result: Any) -> None:
            tokens.append(line(live, self).token)
            if len(tokens) < 3:
                assert self.save_messages("more", timeout=20).status == COMPLETED

        agent_class = talker(on_chat_response=on_chat_response, get_model=saying("one", "two", "three"))
        with ThreadPoolExecutor() as pool:
            turn = Running(live, pool, agent_class)
            assert turn.end().status == COMPLETED

        assert tokens == [1, 1, 1]
        assert [m.text for m in turn.agent.messages if m.role == "assistant"] == ["one", "two", "three"]
        assert line(live, turn.agent).process_id is None

    def test_turns_of_others_keep_their_place(self, t: ThinkTest) -> None:
        """What somebody else has submitted meanwhile runs before the hook's own; hooks in that order."""
        told: list[str] = []

        def on_chat_response(self: Any, result: Any) -> None:
            told.append(result.message.text)
            if result.message.text == "one":
                self._bound_to(t.rt, self.name).submit_messages("somebody else")
                told.append(f"saved {self.save_messages('mine').text}")

        agent = talker(on_chat_response=on_chat_response)("a")
        t.script(agent, say("one"), say("theirs"), say("mine"))

        ask(t, agent)

        assert told == ["one", "saved mine", "theirs", "mine"]
        assert [m.text for m in agent.messages] == ["Go", "one", "somebody else", "theirs", "mine", "mine"]

    def test_submitting_does_not_wait(self, t: ThinkTest) -> None:
        """`submit_messages` makes a turn of its own, after the hook; it is no chain."""
        log: list[str] = []

        def on_chat_response(self: Any, result: Any) -> None:
            log.append(result.message.text)
            if len(log) < 60:
                self.submit_messages("next")
                assert self.messages[-1].text == result.message.text

        agent = talker(on_chat_response=on_chat_response)("a")
        t.script(agent, *[say(str(n)) for n in range(60)])

        ask(t, agent)

        assert log == [str(n) for n in range(60)]

    def test_an_endless_one_is_bounded(self, t: ThinkTest, caplog: pytest.LogCaptureFixture) -> None:
        """After `max_chained_turns` it is refused before anything is stored, logged, and the line goes on."""
        raised: list[Any] = []

        def on_chat_response(self: Any, result: Any) -> None:
            if result.kind == "submit":
                raised.clear()
            try:
                self.save_messages("and then?")
            except ChainTooLong as error:
                raised.append(error)
                raise

        agent = talker(on_chat_response=on_chat_response, max_chained_turns=4)("a")
        t.script(agent, *[say(str(n)) for n in range(10)])

        ask(t, agent)

        (error,) = raised
        assert (error.limit, str(agent._ref) in str(error)) == (4, True)
        assert any("has asked for 4 turns" in each.getMessage() for each in caplog.records)
        assert [each.status for each in agent.list_submissions()] == [COMPLETED] * 5
        assert ask(t, agent).status == COMPLETED
        assert len(agent.list_submissions()) == 10
        assert line(t.rt, agent).process_id is None

    @pytest.mark.parametrize("number", [0, True, "3", None])
    def test_the_bound_is_a_number(self, number: Any) -> None:
        """Anything else is refused when the class is made."""
        with pytest.raises(ValueError, match="max_chained_turns"):
            type("Bounded", (talker(),), {"max_chained_turns": number})

    def test_a_turn_of_the_chain_that_fails(self, t: ThinkTest) -> None:
        """Its caller is told, and so is the hook."""
        told: list[Any] = []

        def on_chat_response(self: Any, result: Any) -> None:
            told.append(result.status)
            if len(told) == 1:
                told.append(self.save_messages("more").error)

        agent = talker(on_chat_response=on_chat_response)("a")
        t.script(agent, say("one"), fail("no such model"))

        ask(t, agent)

        assert told == [COMPLETED, "no such model", ERROR]


class TestDeath:
    @pytest.mark.parametrize("point", ["hook:begin", "hook:returned"])
    def test_it_loses_the_hook_only(self, t: ThinkTest, point: str) -> None:
        """B9: the turn is complete; the next one runs, and its hook is called."""
        told: list[str] = []
        agent = talker(on_chat_response=lambda self, result: told.append(result.message.text))("a")
        t.script(agent, say("one"), say("two"))
        t.crash_at(point)

        first = agent.submit_messages("1")
        second = agent.submit_messages("2")
        t.run_until_idle()
        t.skip("5 seconds")

        assert [now(agent, each).status for each in (first, second)] == [COMPLETED, COMPLETED]
        assert told == (["two"] if point == "hook:begin" else ["one", "two"])
        assert line(t.rt, agent).process_id is None

    @pytest.mark.parametrize("point", ["turn:claimed", "turn:before-model", "turn:committed"])
    def test_in_a_turn_of_the_chain(self, t: ThinkTest, point: str) -> None:
        """That turn goes on in another worker, and its own hook is called there; the waiting hook is lost."""
        told: list[str] = []

        def on_chat_response(self: Any, result: Any) -> None:
            told.append(f"begin {result.message.text}")
            if result.message.text == "one":
                t.crash_at(point)
                self.save_messages("more")
            told.append(f"end {result.message.text}")

        agent = talker(on_chat_response=on_chat_response)("a")
        t.script(agent, say("one"), say("two"))

        ask(t, agent)
        t.skip("5 seconds")

        assert t.crashes == [point]
        assert [m.text for m in agent.messages if m.role == "assistant"] == ["one", "two"]
        lost = point == "turn:committed"  # its own hook dies with the process, too
        assert told == (["begin one"] if lost else ["begin one", "begin two", "end two"])
        assert line(t.rt, agent).process_id is None


KILLED_IN_ITS_HOOK = """
import os, sys
from tests.domain.flows import worker
from tests.domain.talk import talker
from think_celery.domain.submissions import claims
from think_celery.providers.scripted import FunctionModel, say

model = FunctionModel(lambda request: say("one"))
with worker(sys.argv[1]) as rt:
    agent = talker(get_model=lambda self: model, on_chat_response=lambda self, result: os.kill(os.getpid(), 9))
    claims.run(rt, agent._bound_to(rt, "a").submit_messages("Go").submission_id)
"""


def test_a_worker_that_is_killed_in_a_hook(database_url: str) -> None:
    """B9: kill -9: the turn is complete, another worker frees the line at once and runs the next one."""
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_IN_ITS_HOOK, database_url], cwd=ROOT, timeout=60, check=False
    )
    assert killed.returncode == -9

    told: list[str] = []
    agent_class = talker(
        get_model=saying("two"), on_chat_response=lambda self, result: told.append(result.message.text)
    )
    with worker(database_url) as rt:
        agent = agent_class._bound_to(rt, "a")
        later = agent.submit_messages("Next")
        assert claims.run(rt, later.submission_id).word == "busy"
        recovery.reap(rt)
        assert claims.run(rt, later.submission_id).word == "completed"

        assert [m.text for m in agent.messages] == ["Go", "one", "Next", "two"]
        assert (told, line(rt, agent).process_id) == (["two"], None)


def test_of_many_who_come_while_hooks_run(database_url: str) -> None:
    """Four threads try every turn of one agent: turns and hooks never overlap, and each end is told of once."""
    busy, told, problems = threading.Lock(), [], []

    def alone(self: Any, ctx: Any) -> None:
        if not busy.acquire(blocking=False):
            problems.append("overlap")
            return
        threading.Event().wait(0.002)
        busy.release()

    def on_chat_response(self: Any, result: Any) -> None:
        alone(self, result)
        told.append(result.submission_id)
        if result.kind == "submit" and len(told) % 2:
            self.save_messages("more", timeout=30)

    agent_class = talker(
        get_model=lambda self: FunctionModel(lambda request: say("Hi")),
        before_turn=alone,
        on_chat_response=on_chat_response,
    )
    with worker(database_url) as rt, ThreadPoolExecutor(4) as pool:
        agent = agent_class._bound_to(rt, "a")
        ids = [agent.submit_messages(str(n)).submission_id for n in range(6)]

        def try_all(_: int) -> None:
            while any(each.status in ("pending", "running") for each in agent.list_submissions()):
                for submission_id in ids:
                    claims.run(rt, submission_id)

        list(pool.map(try_all, range(4)))

        ended = [each.submission_id for each in agent.list_submissions(status="completed")]
        assert (problems, sorted(told)) == ([], sorted(ended))
        assert len(ended) > 6
        assert line(rt, agent).process_id is None


class TestChannels:
    """A reply that goes to a chat channel, posted with an id made of the turn and of what it is."""

    def test_fr_50_each_thing_is_posted_under_one_id(self, t: ThinkTest) -> None:
        """FR-50: killed after the notice of the interruption, it is posted again under the same id; the answer once."""
        channel: list[tuple[str, str]] = []

        def before_turn(self: Any, ctx: Any) -> None:
            if ctx.attempt > 1:
                channel.append((f"{ctx.submission_id}:interrupted", "One moment, I go on."))

        def on_chat_response(self: Any, result: Any) -> None:
            channel.append((f"{result.submission_id}:answer", result.message.text))

        agent = talker(before_turn=before_turn, on_chat_response=on_chat_response)("a")
        t.script(agent, say("Hello"), say("Hello"), say("Hello"))
        t.crash_at("turn:before-model", times=3)

        done = ask(t, agent)

        notice, reply = f"{done.submission_id}:interrupted", f"{done.submission_id}:answer"
        assert done.status == COMPLETED
        assert dict(channel) == {notice: "One moment, I go on.", reply: "Hello"}
        assert [key for key, _ in channel] == [notice, notice, notice, reply]


class TestTheLine:
    def test_it_is_held_and_nobody_runs_meanwhile(self, t: ThinkTest) -> None:
        """Readers see `completed`; a claim of the next turn is `busy`, the tick knocks for nobody."""
        seen: list[Any] = []

        def on_chat_response(self: Any, result: Any) -> None:
            if seen:
                return
            held, running = line(t.rt, self), self.inspect_submission(result.submission_id)
            later = self.submit_messages("next")
            seen.append((held.process_id is not None, running.status))
            seen.append(claims.run(t.rt, later.submission_id).word)
            t.clock.sleep(3)
            before = len(t._knocks)
            tick.run(t.rt)
            seen.append(len(t._knocks) - before)

        agent = talker(on_chat_response=on_chat_response)("a")
        t.script(agent, say("one"), say("two"))

        ask(t, agent)

        assert seen == [(True, COMPLETED), "busy", 0]
        assert [each.status for each in agent.list_submissions()] == [COMPLETED, COMPLETED]

    def test_it_is_held_while_the_news_of_the_end_is_delivered(self, t: ThinkTest) -> None:
        """Delivering may wait for whoever has the workflow's row: no lease that nobody works under meanwhile."""
        held: list[Any] = []
        agent = talker(on_chat_response=lambda self, result: None)("a")
        t.script(agent, say("Hi"))

        def slowly(point: str) -> None:
            if point == "outbox:before-delivery":
                for _ in range(3):
                    t.rt.monitor.beat()
                    t.clock.advance(timedelta(seconds=2))
                held.append(line(t.rt, agent).process_id)

        t.rt.failpoint = slowly
        waiting = submissions.Waiting(workflow_key="w", run=1, event_type="e")
        accept = partial(submissions.accept, kind="submit", waiting=waiting)
        t.rt.db.transact(lambda tx: accept(t.rt, tx, agent._ref, as_messages("Go")))
        t.run_until_idle()

        assert held == [t.rt.monitor.process_id()]
        assert line(t.rt, agent).process_id is None

    def test_it_is_given_back_when_the_hook_raises(self, t: ThinkTest) -> None:
        """And the next turn is knocked at once."""

        def on_chat_response(self: Any, result: Any) -> None:
            raise ValueError("no")

        agent = talker(on_chat_response=on_chat_response)("a")
        t.script(agent, say("one"), say("two"))
        agent.submit_messages("1")
        agent.submit_messages("2")
        t.run_until_idle()

        assert [each.status for each in agent.list_submissions()] == [COMPLETED, COMPLETED]
        assert line(t.rt, agent).process_id is None

    def test_a_reset_in_the_hook(self, t: ThinkTest) -> None:
        """It takes the line away: what waits is skipped, a turn that the hook asks for then is refused the lease."""
        raised: list[Any] = []

        def on_chat_response(self: Any, result: Any) -> None:
            if result.kind == "save":
                return
            conversation.reset(t.rt, self._ref)
            t.rt.monitor.beat()
            try:
                self.save_messages("more")
            except Exception as error:
                raised.append(type(error))

        agent = talker(on_chat_response=on_chat_response)("a")
        t.script(agent, say("one"), say("two"))
        ask(t, agent)
        t.skip("5 seconds")

        assert raised == [LeaseLost]
        assert line(t.rt, agent).process_id is None

    def test_a_transaction_beside_it(self, t: ThinkTest) -> None:
        """The hook holds no lock: another caller may accept, cancel and read."""
        agent = talker(
            on_chat_response=lambda self, result: (
                self.cancel_submission(self.submit_messages("never").submission_id) and None
            )
        )("a")
        t.script(agent, say("one"))

        ask(t, agent)

        assert sorted(each.status for each in agent.list_submissions()) == [ABORTED, COMPLETED]

    def test_current_is_the_hook_in_progress(self, quick: ThinkTest) -> None:
        """In the hook, and neither before nor after it, nor in a turn that it runs."""
        seen: list[Any] = []

        def look() -> str:
            """Look."""
            seen.append(("tool", afterwards.current()))
            return ""

        def on_chat_response(self: Any, result: Any) -> None:
            seen.append(("hook", afterwards.current().agent))
            if result.kind == "submit":
                self.save_messages("more")

        agent = talker(look, on_chat_response=on_chat_response)("a")
        quick.script(agent, call("look"), say("one"), call("look"), say("two"))

        ask(quick, agent)

        assert seen == [("tool", None), ("hook", agent._ref), ("tool", None), ("hook", agent._ref)]
        assert afterwards.current() is None


class TestStops:
    def test_a_worker_that_stops_lets_the_hook_end(self, live: Any) -> None:
        """SIGTERM: the hook goes on, but it can't run another turn here; that one is another worker's."""
        seen: list[Any] = []

        def on_chat_response(self: Any, result: Any) -> None:
            if seen:
                return
            seen.append(result.message.text)
            live.stopping.abort("SIGTERM")
            try:
                self.save_messages("more", timeout=20)
            except (LeaseLost, TurnStillRunning):
                seen.append("refused")

        agent_class = talker(on_chat_response=on_chat_response, get_model=saying("one", "two"))
        with ThreadPoolExecutor() as pool:
            turn = Running(live, pool, agent_class)
            assert turn.end().status == COMPLETED

        assert seen == ["one", "refused"]
        assert line(live, turn.agent).process_id is None
        assert [each.status for each in turn.agent.list_submissions()] == ["pending", COMPLETED]

    def test_a_turn_of_the_chain_is_handed_over(self, live: Any) -> None:
        """It stores what there is of it, and the line is free for the next worker."""
        texts = iter(["one", "Hello"])

        def on_chunk(self: Any, ctx: Any) -> None:
            if ctx.kind == "save":
                live.stopping.abort("SIGTERM")

        def on_chat_response(self: Any, result: Any) -> None:
            self.save_messages("more", timeout=20)

        agent_class = talker(
            on_chat_response=on_chat_response,
            on_chunk=on_chunk,
            get_model=lambda self: FunctionModel(lambda request: say(next(texts))),
        )
        with ThreadPoolExecutor() as pool:
            turn = Running(live, pool, agent_class)
            assert turn.end().status == COMPLETED

        inner = turn.agent.list_submissions()[0]
        assert (inner.status, row(live, inner).attempts) == ("pending", 0)
        assert line(live, turn.agent).process_id is None

    def test_a_turn_that_is_handed_over_is_not_told_of(self, live: Any) -> None:
        """It has not ended: the line is given back, and another worker goes on with it."""
        told: list[Any] = []

        def on_chunk(self: Any, ctx: Any) -> None:
            live.stopping.abort("SIGTERM")

        agent_class = talker(
            on_chat_response=lambda self, result: told.append(result),
            on_chunk=on_chunk,
            get_model=saying("Hello"),
        )
        with ThreadPoolExecutor() as pool:
            turn = Running(live, pool, agent_class)
            assert turn.outcome.result(10).word == "handed-over"

        assert (now(turn.agent, turn.submission).status, told) == ("pending", [])
        assert line(live, turn.agent).process_id is None

    def test_its_deadline(self, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """One that does not return is given up, and the line goes on."""
        monkeypatch.setattr("think_celery.domain.calls.GRACE_SECONDS", 0.05)
        release = threading.Event()
        agent_class = talker(
            on_chat_response=lambda self, result: release.wait(20) and None, get_model=saying("one")
        )
        with worker(sqlite_url, turn_timeout_seconds=0.3) as rt, ThreadPoolExecutor() as pool:
            turn = Running(rt, pool, agent_class)
            turn.until(lambda: rt.monitor.beat() or turn.outcome.done())
            assert turn.end().status == COMPLETED
            assert line(rt, turn.agent).process_id is None
            release.set()

    def test_a_time_limit_of_celery_s(self, t: ThinkTest) -> None:
        """It cuts the hooks, gives the line back, and the turn's outcome stands."""

        class SoftTimeLimitExceeded(Exception):
            pass

        def on_chat_response(self: Any, result: Any) -> None:
            raise SoftTimeLimitExceeded

        agent = talker(on_chat_response=on_chat_response)("a")
        t.script(agent, say("one"))
        submission = agent.submit_messages("Go")

        outcome = claims.run(t.rt, submission.submission_id)

        assert (outcome.word, outcome.ended) == ("completed", True)
        assert line(t.rt, agent).process_id is None

    def test_ctrl_c(self, t: ThinkTest) -> None:
        """It goes on upwards, with the line given back."""

        def on_chat_response(self: Any, result: Any) -> None:
            raise KeyboardInterrupt

        agent = talker(on_chat_response=on_chat_response)("a")
        t.script(agent, say("one"))
        submission = agent.submit_messages("Go")

        with pytest.raises(KeyboardInterrupt):
            claims.run(t.rt, submission.submission_id)
        assert line(t.rt, agent).process_id is None


class TestStatuses:
    def test_pending_running_and_one_end(self, t: ThinkTest) -> None:
        """B23: in this order, by whoever made it so; a repeat of an accept tells nothing."""
        seen: list[Any] = []
        agent = talker(on_submission_status=lambda self, change: seen.append((self.name, change.status)))("a")
        t.script(agent, say("one"))

        agent.submit_messages("Go", idempotency_key="k")
        agent.submit_messages("Go", idempotency_key="k")
        t.run_until_idle()

        assert seen == [("a", "pending"), ("a", "running"), ("a", COMPLETED)]

    def test_a_cancel_and_a_reset(self, t: ThinkTest) -> None:
        """Once each, with the reason."""
        seen: list[Any] = []
        agent = talker(on_submission_status=lambda self, change: seen.append((change.status, change.error)))(
            "a"
        )

        agent.cancel_submission(agent.submit_messages("1").submission_id, "no more")
        agent.submit_messages("2")
        conversation.reset(t.rt, agent._ref)

        assert seen == [
            ("pending", None),
            (ABORTED, "no more"),
            ("pending", None),
            ("skipped", conversation.SKIPPED_BY_RESET),
        ]

    def test_a_running_one_that_is_cancelled(self, t: ThinkTest) -> None:
        """Its worker tells of it, once."""
        seen: list[Any] = []

        def on_chunk(self: Any, ctx: Any) -> None:
            self.cancel_submission(ctx.submission_id, "enough")
            t.rt.monitor.beat()

        agent = talker(
            on_submission_status=lambda self, change: seen.append(change.status), on_chunk=on_chunk
        )("a")
        t.script(agent, say("one"))

        ask(t, agent)

        assert seen == ["pending", "running", ABORTED]

    def test_nothing_before_the_commit(self, t: ThinkTest) -> None:
        """What is rolled back was never so."""
        seen: list[Any] = []
        agent = talker(on_submission_status=lambda self, change: seen.append(change.status))("a")

        def work(tx: Any) -> None:
            from think_celery.domain.submissions import submissions
            from think_celery.messages import as_messages

            submissions.accept(t.rt, tx, agent._ref, as_messages("Go"), kind="submit")
            raise RuntimeError("rolled back")

        with pytest.raises(RuntimeError):
            t.rt.db.transact(work)

        assert seen == []


def test_a_cut_answer_s_partial_text_is_not_told_as_an_answer(t: ThinkTest) -> None:
    """B9: a stream that fails for good leaves no text, and the hook is told so."""
    told: list[Any] = []
    agent = talker(on_chat_response=lambda self, result: told.append((result.status, result.message.text)))(
        "a"
    )
    t.script(agent, *[[say("Hal"), fail("cut off", retryable=True)]] * 3)

    ask(t, agent)

    assert told == [(ERROR, "")]
