"""Whoever joins a turn in its middle is told all of it, each piece once, wherever the log still has its beginning."""

import math
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from tests.domain.flows import worker
from tests.domain.talk import ask, crash_at_nth, talker
from tests.domain.till import Till, only
from think_celery import Think
from think_celery.domain.conversation import listening, seen
from think_celery.domain.conversation.live import LiveEvent
from think_celery.domain.submissions import claims
from think_celery.events.redis import RedisEventLog
from think_celery.events.writer import LiveWriter, merged
from think_celery.protocols import EventLog, Finish, Frame, TextDelta, ToolCallComplete, Usage
from think_celery.providers.scripted import FunctionModel, call, fail, say
from think_celery.runtime import Runtime
from think_celery.testing import ThinkTest, think_test

ROUNDS = int(os.environ.get("THINK_ROUNDS", "10"))

SQLITE = ("sqlite_url", None)
LOGS = [
    pytest.param(SQLITE, id="sqlite"),
    pytest.param(("postgres_url", None), id="postgresql", marks=pytest.mark.services),
    pytest.param(("sqlite_url", "redis_url"), id="redis", marks=pytest.mark.services),
]

PIECES = [say("It "), say("is "), say("a "), say("word.")]
ANSWER = "It is a word."


@pytest.fixture(params=LOGS)
def urls(request: pytest.FixtureRequest) -> tuple[str, str | None]:
    """Where the database is, and the Redis that has the live log, if it is not the database."""
    database, redis = request.param
    return request.getfixturevalue(database), redis and request.getfixturevalue(redis)


def log_of(rt: Runtime, redis_url: str | None) -> EventLog:
    return rt.events if redis_url is None else RedisEventLog(redis_url)


@pytest.fixture
def t(urls: tuple[str, str | None]) -> Iterator[ThinkTest]:
    """A runtime with a fake clock, on each database, and with each log."""
    with think_test(database_url=urls[0]) as test:
        test.rt.events = log_of(test.rt, urls[1])
        yield test


class Gathering(LiveWriter):
    """Writes when that many frames wait, or a turn ends; and lets others do something before and after each frame."""

    def __init__(self, log: EventLog, size: int, beside: Callable[[Frame], None]) -> None:
        super().__init__(log, synchronous=True, limit_seconds=math.inf)
        self.log, self.size, self.beside = log, size, beside
        self.gathered: list[Frame] = []

    def put(self, frame: Frame) -> None:
        self.beside(frame)
        self.gathered.append(frame)
        if len(self.gathered) >= self.size or frame.event["type"] == "done":
            self.log.append(merged(self.gathered))
            self.gathered = []
        self.beside(frame)

    def grow(self, frame: Frame) -> None:
        self.put(frame)


class Joining:
    """Joins at each frame of an agent's turns: one listener of that turn, and one of the agent."""

    def __init__(self, t: ThinkTest, agent: Think, size: int = 1, of: str | None = None) -> None:
        """*of*: only at the frames of that turn."""
        self.agent, self.of = agent, of
        self.joined: list[tuple[str, Iterator[LiveEvent]]] = []
        t.rt.live = Gathering(t.rt.events, size, self.join)

    def join(self, frame: Frame) -> None:
        turn = frame.submission_id
        if turn and self.of in (None, turn) and frame.event["type"] != "done":
            self.joined += [(turn, self.agent.listen(turn)), (turn, self.agent.listen())]

    def heard(self) -> list[list[LiveEvent]]:
        """What each of them was told, up to the turn's end."""
        assert len(self.joined) > 10
        return [list(until_done(listener, turn)) for turn, listener in self.joined]


def until_done(events: Iterator[LiveEvent], turn: str) -> Iterator[LiveEvent]:
    for event in events:
        yield event
        if (event.type, event.submission_id) == ("done", turn):
            return


def said(events: Iterable[LiveEvent], message_id: str) -> str:
    """The text of a message as a listener shows it."""
    text = ""
    for event in events:
        if event.message_id == message_id:
            text = event.text if event.type in ("snapshot", "reset") else text + event.text
    return text


def assert_told_once(events: list[LiveEvent], answer: str = ANSWER) -> None:
    """Also whoever knows of no snapshot and no reset has the answer."""
    kinds = [event.type for event in events]
    assert "".join(event.text for event in events) == answer
    assert not {"snapshot", "reset"} & {*kinds}
    assert (kinds.count("done"), kinds[-1], events[-1].data["status"]) == (1, "done", "completed")


def add(a: int, b: int) -> int:
    return a + b


SIZES = pytest.mark.parametrize("size", [1, 2, 3, 1000])


class TestAtEachFrame:
    """*size* frames are written at once, their text merged: of some that were put, nothing is in the log yet."""

    @SIZES
    def test_each_piece_is_told_once(self, t, size):
        """Also where the database has more of the answer than the log, for what it says of a tool comes at once."""
        agent = talker(add)("a")
        t.script(agent, [say("Let me see. "), call("add", {"a": 1, "b": 2})], PIECES)
        joining = Joining(t, agent, size)
        ask(t, agent)

        for events in joining.heard():
            assert_told_once(events, f"Let me see. {ANSWER}")
            assert [event.type for event in events].count("tool-output-available") == 1

    @SIZES
    def test_of_other_turns_and_of_what_was_before_nothing_is_told(self, t, size):
        """A log with turns before and after, with broadcasts, states and messages beside them."""
        agent = talker()("a")
        t.script(agent, "Before.", PIECES, "After.")
        agent.broadcast("old")
        agent.persist_messages("an old note")
        agent.set_state({"x": 1})
        turn = [agent.submit_messages(word) for word in ("one", "two", "three")][1]
        joining = Joining(t, agent, size, of=turn.submission_id)
        t.run_until_idle()

        for events in joining.heard():
            states = [event for event in events if event.type == "state"]
            assert_told_once([event for event in events if event.type != "state"])
            assert [event.data["state"] for event in states] in ([], [{"x": 1}])
            assert {event.submission_id for event in events} <= {"", turn.submission_id}

    @SIZES
    def test_an_attempt_that_failed(self, t, size):
        """Is void for whoever was told of it, and is not told to whoever joins after it."""
        agent = talker()("a")
        t.script(agent, [say("Half "), say("an "), fail("busy", retryable=True)], PIECES)
        joining = Joining(t, agent, size)
        done = ask(t, agent)

        heard = joining.heard()

        assert {said(events, done.message_id) for events in heard} == {ANSWER}
        assert "snapshot" not in {events[-2].type for events in heard}, "the whole text was told again"
        assert [events for events in heard if "Half " not in {event.text for event in events}]

    @SIZES
    def test_a_turn_that_was_taken_over(self, t, size):
        """The new worker's frames begin with what is there; those of the old one are void, whenever they come."""
        agent = talker()("a")
        t.script(agent, PIECES, PIECES)
        crash_at_nth(t, "turn:streaming", 3)
        joining = Joining(t, agent, size)
        done = ask(t, agent)

        for events in joining.heard():
            assert said(events, done.message_id) == ANSWER
            assert events[-2].type != "snapshot", "the whole text was told again"

    @SIZES
    @pytest.mark.parametrize("between", [False, True])
    def test_an_answer_that_goes_on(self, t, size, between):
        """A continuation in the message of an earlier turn, or (with a turn *between*) behind it: each frame once."""
        agent = Till().agent()
        answers = ["Sure."] if between else []
        t.script(agent, [say("Wait. "), call("pay", {"euros": 5})], *answers, PIECES)
        ask(t, agent)
        if between:
            ask(t, agent, "Are you there?")
        joining = Joining(t, agent, size)
        decided = agent.approve_tool_call(only(agent).tool_call_id)
        t.run_until_idle()

        done = agent.inspect_submission(decided.continuation_id)
        expected = ANSWER if between else f"Wait. {ANSWER}"
        for events in joining.heard():
            assert said(events, done.message_id) == expected
            assert events[-2].type != "snapshot", "the whole text was told again"
            deltas = [event.text for event in events if event.type == "text-delta"]
            assert "".join(deltas) == ANSWER

    def test_a_frame_that_is_in_the_log_twice(self, t):
        """What was written again, because nobody heard that it was written, is told once."""
        agent = talker()("a")
        t.script(agent, PIECES)
        append = t.rt.events.append
        t.rt.events.append = lambda frames: (append(frames), append(frames))
        joining = Joining(t, agent, 2)
        ask(t, agent)

        for events in joining.heard():
            assert_told_once(events)


class TestWithoutItsBeginning:
    """What the log has not kept comes from the database."""

    @pytest.mark.parametrize("size", [1, 3])
    @pytest.mark.parametrize("lost", [1, 3, 6])
    def test_the_log_is_lost_in_the_middle(self, t, size, lost):
        """Whoever joins then, and whoever had joined before, has the whole text at the end."""
        agent = talker()("a")
        t.script(agent, PIECES)
        joining = Joining(t, agent, size)
        join = joining.join

        def lose(frame: Frame) -> None:
            if frame.n == lost and frame.event["type"] != "done":
                t.rt.events.forget(frame.agent_id)
            join(frame)

        t.rt.live.beside = lose
        done = ask(t, agent)

        for events in joining.heard():
            assert said(events, done.message_id) == ANSWER
            assert [event.type for event in events].count("done") == 1

    @pytest.mark.parametrize("dropped", [{1}, {1, 2, 3}, {4}, {4, 5, 6}, {7}])
    def test_frames_that_were_not_written(self, t, dropped):
        """A hole in the numbers is no beginning."""
        agent = talker()("a")
        t.script(agent, PIECES)
        joining = Joining(t, agent)
        put = t.rt.live.put
        t.rt.live.put = lambda frame: None if frame.n in dropped else put(frame)
        t.rt.live.grow = t.rt.live.put
        done = ask(t, agent)

        for events in joining.heard():
            assert said(events, done.message_id) == ANSWER
            assert [event.type for event in events].count("done") == 1

    def test_nothing_of_it_is_in_the_log(self, t):
        """Then what is stored is told after five seconds, in which its frames might have come."""
        agent = talker(add)("a")
        t.script(agent, [say("Let me see. "), call("add", {"a": 1, "b": 2})], PIECES)
        t.rt.live.put = t.rt.live.grow = lambda frame: None
        told: list[Any] = []

        def failpoint(reached: str) -> None:
            if reached == "turn:tool-stored":
                for turn_id in (turn.submission_id, None):
                    began = t.clock.elapsed()
                    told.append((next(agent.listen(turn_id)), t.clock.elapsed() - began))

        t.rt.failpoint = failpoint
        turn = agent.submit_messages("Go")
        t.run_until_idle()

        assert [(event.type, event.text) for event, _ in told] == [("snapshot", "Let me see. ")] * 2
        assert [seconds for _, seconds in told] == pytest.approx([5.0, 5.0], abs=0.06)


def test_races_of_a_writer_and_those_who_join(urls, monkeypatch):
    """Whoever comes while a turn runs, at any moment, is told each piece once: by its id and by its agent's name."""
    monkeypatch.setattr(listening, "SILENCE_SECONDS", 60.0)  # a busy machine's frames may be late
    said_so_far, joined = threading.Semaphore(0), threading.Semaphore(0)
    words = [f"{n} " for n in range(30)]

    def respond(request: Any) -> Iterator[Any]:
        again = request.messages[-1].role == "assistant"
        for word in words[15:] if again else words[:15]:
            yield TextDelta(word)
            said_so_far.release()
            threading.Event().wait(0.0005)
        if again:
            for _ in range(4):
                assert joined.acquire(timeout=60)
            yield TextDelta("end")
            yield Finish("stop", None, Usage())
        else:
            yield ToolCallComplete(0, "c", "add", '{"a": 1, "b": 2}')
            yield Finish("tool-calls", None, Usage())

    agents = talker(add, model=FunctionModel(respond))
    with ExitStack() as stack:
        rt, there = (stack.enter_context(worker(urls[0])) for _ in range(2))
        for each in (rt, there):
            each.events = log_of(each, urls[1])
        rt.live = LiveWriter(rt.events, gather_seconds=0.002, limit_seconds=60)
        here, far = agents._bound_to(rt, "a"), agents._bound_to(there, "a")
        pool = stack.enter_context(ThreadPoolExecutor(5))

        def join(turn: str, *, by_id: bool) -> list[LiveEvent]:
            for _ in range(random.randrange(7)):
                assert said_so_far.acquire(timeout=60)
            listener = far.listen(turn) if by_id else far.listen()
            joined.release()
            return list(until_done(listener, turn))

        for _ in range(ROUNDS):
            turn = here.submit_messages("Go").submission_id
            ran = pool.submit(claims.run, rt, turn)
            heard = [pool.submit(join, turn, by_id=bool(n % 2)) for n in range(4)]
            for each in heard:
                assert_told_once(each.result(60), "".join([*words, "end"]))
            assert ran.result(60).word == "completed"
            while said_so_far.acquire(blocking=False):
                pass


def test_who_follows_an_agent_for_long_remembers_a_bounded_number_of_messages():
    """The newest ones."""
    recent = seen._Recent[int]()
    for n in range(3000):
        recent[str(n)] = n

    assert list(recent.values()) == list(range(2000, 3000))
