"""Listening through Redis: a turn is followed as it happens, and to its end whatever becomes of Redis."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from tests import servers
from tests.domain.flows import worker
from tests.domain.talk import talker
from tests.events.away import refuses, wait_until
from think_celery.domain.conversation.live import LiveEvent
from think_celery.domain.submissions import claims
from think_celery.events.redis import RedisEventLog
from think_celery.events.writer import LiveWriter
from think_celery.protocols import Finish, TextDelta, Usage
from think_celery.providers.scripted import FunctionModel, say
from think_celery.runtime import Runtime

pytestmark = pytest.mark.services

ROOT = Path(__file__).parent.parent.parent
WORDS = ["Once ", "upon ", "a ", "time."]


class Slow:
    """A model that says its words one by one, each when the test lets it."""

    name = "test/slow"

    def __init__(self) -> None:
        self.turn = threading.Semaphore(0)

    def stream(self, request: Any, signal: Any) -> Iterator[Any]:
        for word in WORDS:
            assert self.turn.acquire(timeout=30)
            yield TextDelta(word)
        assert self.turn.acquire(timeout=30)
        yield Finish("stop", "stop", Usage())


class Following:
    """What a listener has heard up to now."""

    def __init__(self, listening: Iterator[LiveEvent]) -> None:
        self.events: list[LiveEvent] = []
        self._listening = listening

    def run(self) -> list[LiveEvent]:
        self.events.extend(iter(self._take, None))
        return self.events

    def _take(self) -> LiveEvent | None:
        return next(self._listening, None)

    @property
    def text(self) -> str:
        """As it is shown: a snapshot or a reset voids what was shown before."""
        text = ""
        for event in list(self.events):
            text = event.text if event.type in ("snapshot", "reset") else text + event.text
        return text


Start = Callable[[str], Runtime]


@pytest.fixture
def start(sqlite_url: str) -> Iterator[Start]:
    """What makes the runtime of one more process, with its live log in the Redis of that url."""
    with ExitStack() as stack:

        def start(redis_url: str) -> Runtime:
            rt = stack.enter_context(worker(sqlite_url))
            rt.events = RedisEventLog(redis_url)
            rt.live = LiveWriter(rt.events, limit_seconds=60)  # a busy machine must not open the breaker
            return rt

        yield start


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def begin(start: Start, url: str, pool: ThreadPoolExecutor) -> tuple[Slow, Following, Future[Any]]:
    """A turn that runs in one process and thread, and a listener in another."""
    model = Slow()
    agent = talker(model=model)("a")
    rt, there = start(url), start(url)
    submission = agent._bound_to(rt, "a").submit_messages("Tell me")
    following = Following(agent._bound_to(there, "a").listen(submission.submission_id))
    pool.submit(claims.run, rt, submission.submission_id)
    return model, following, pool.submit(following.run)


def test_a_turn_is_seen_as_it_happens(start, pool, redis_url):
    """Each word is heard before the next is said; at the end the listener has the whole, once, and done."""
    model, following, heard = begin(start, redis_url, pool)

    for n in range(1, 5):
        model.turn.release()
        wait_until(lambda n=n: following.text == "".join(WORDS[:n]))
    model.turn.release()
    events = heard.result(20)

    assert [e.type for e in events].count("done") == 1
    assert (events[-1].type, events[-1].data["status"]) == ("done", "completed")
    assert "snapshot" not in [e.type for e in events]
    assert following.text == "".join(WORDS)


@pytest.mark.parametrize("comes_back", [False, True])
def test_redis_stops_in_the_middle(start, pool, comes_back):
    """The listener still ends, with done and the whole text from the database; and the turn is not held up."""
    with servers.own_redis() as own, ExitStack() as later:
        model, following, heard = begin(start, own.url, pool)
        model.turn.release()
        wait_until(lambda: following.text == WORDS[0])

        os.kill(own.pid, signal.SIGKILL)
        wait_until(lambda: refuses(own.url))
        model.turn.release()
        model.turn.release()
        if comes_back:
            later.enter_context(servers.own_redis(port=urlsplit(own.url).port))
        model.turn.release()
        model.turn.release()
        events = heard.result(20)

        assert (events[-1].type, events[-1].data["status"]) == ("done", "completed")
        assert following.text == "".join(WORDS)


def test_redis_hangs_in_the_middle(start, pool):
    """One that accepts and never answers costs the same: smoothness."""
    with servers.own_redis() as own:
        model, following, heard = begin(start, own.url, pool)
        model.turn.release()
        wait_until(lambda: following.text == WORDS[0])

        os.kill(own.pid, signal.SIGSTOP)
        try:
            for _ in range(4):
                model.turn.release()
            events = heard.result(20)
        finally:
            os.kill(own.pid, signal.SIGCONT)

        assert (events[-1].type, events[-1].data["status"]) == ("done", "completed")
        assert following.text == "".join(WORDS)


def test_redis_is_flushed_in_the_middle(start, pool, redis_url):
    """A flush between any two words leaves no hole in what a listener shows."""
    with redis.Redis.from_url(redis_url) as server:
        model, following, heard = begin(start, redis_url, pool)
        for _ in WORDS:
            model.turn.release()
            server.flushdb()
        model.turn.release()
        events = heard.result(20)

    assert (events[-1].type, events[-1].data["status"]) == ("done", "completed")
    assert following.text == "".join(WORDS)


def test_nobody_can_connect_from_the_start(start, pool):
    """Listening begins, and ends, without a Redis."""
    with servers.own_redis() as own:
        url = own.url
    model, following, heard = begin(start, url, pool)

    for _ in range(5):
        model.turn.release()

    assert heard.result(20)[-1].type == "done"
    assert following.text == "".join(WORDS)


def test_done_means_visible(start, redis_url, sqlite_url):
    """FR-56: another process that hears `done` through Redis finds the answer in the history, all 200 times."""
    agents = talker(model=FunctionModel(lambda request: say(f"answer to {request.messages[-1].text}")))
    rt, found = start(redis_url), []
    command = [sys.executable, "-m", "tests.events.reader", sqlite_url, redis_url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, bufsize=1, **pipes) as reader:
        try:
            for name in "abcd":
                for n in range(50):
                    turn = agents._bound_to(rt, name).submit_messages(f"q{n}")
                    reader.stdin.write(f"{name} {turn.submission_id}\n")
                    assert reader.stdout.readline() == "listens\n"
                    claims.run(rt, turn.submission_id)
                    found.append(json.loads(reader.stdout.readline()))
            reader.stdin.close()
            reader.wait(10)
        finally:
            reader.kill()

    assert reader.returncode == 0
    assert found == [["completed", True, ["|", f"answer to q{n}"]] for n in range(50)] * 4
