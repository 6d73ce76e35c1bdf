"""A process that may have no more threads: whoever needs one is told, and later ones are served as ever."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.domain.crowd import clerk, workers
from tests.events.test_writer import Gate, text
from think_celery.domain import calls, recovery
from think_celery.domain.calls import Done, Helper
from think_celery.domain.poller import Poller
from think_celery.domain.submissions import claims
from think_celery.events.writer import LiveWriter
from think_celery.providers import watchdog
from think_celery.runtime import Runtime

NO_MORE = "can't start new thread"


@pytest.fixture
def no_more(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Inside the block it gives, no thread of that name begins."""
    start = threading.Thread.start

    @contextmanager
    def refuse(name: str) -> Iterator[None]:
        def begin(thread: threading.Thread) -> None:
            if thread.name == name:
                raise RuntimeError(NO_MORE)
            start(thread)

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", begin)
            yield

    return refuse


def test_who_waits_is_told_and_the_next_one_is_looked_after(live: Runtime, no_more: Any) -> None:
    """A thread that did not begin is not counted on: later ones would have waited for it for ever."""
    poller = Poller(live)
    with no_more("think-waiting"), pytest.raises(RuntimeError, match=NO_MORE):
        with poller.watching("a", None, for_line=False):
            pass

    with poller.watching("a", None, for_line=False) as watch:
        rung = threading.Event()
        threading.Thread(target=lambda: (watch.rest(10), rung.set()), daemon=True).start()

        assert rung.wait(5), "nobody works for agent a, and who waits for that is not told"
    poller.close()


def test_who_waits_is_looked_after_although_nobody_can_listen(live: Runtime, no_more: Any) -> None:
    """To hear of ends sooner is a courtesy: without its thread the look goes on."""
    heard: list[int] = []

    class Ears:
        def listen(self, agent_ids: Any, seconds: float) -> set[str]:
            heard.append(len(agent_ids))
            return set()

        def close(self) -> None:
            pass

    live.events.ears = Ears  # type: ignore[method-assign,assignment]
    agent = clerk(live)
    agent.submit_messages("Hello", submission_id="s")
    poller, pause = live.poller, threading.Event()
    with no_more("think-hearing"), poller.watching(agent._ref.id, "s", for_line=False) as watch:
        pause.wait(1.0)
        assert not heard
        agent.cancel_submission("s")
        rung = threading.Event()
        threading.Thread(target=lambda: (watch.rest(10), rung.set()), daemon=True).start()

        assert rung.wait(5)


def test_frames_are_dropped_and_later_ones_are_shown(no_more: Any, caplog: pytest.LogCaptureFixture) -> None:
    """`put` never raises, and says once why listeners get nothing; after its rest it writes again."""
    gate = Gate()
    writer = LiveWriter(gate, rest_seconds=0.05)
    with no_more("think-live"):
        writer.put(text(1, "lost"))
    threading.Event().wait(0.1)
    writer.put(text(2, "shown"))

    assert writer.close()
    assert [frame.event["delta"] for frame in gate.frames] == ["shown"]
    assert NO_MORE in caplog.text


def test_a_guard_that_nobody_watches_is_refused_and_the_next_one_is_watched(
    no_more: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request without a deadline that holds would not be begun; those after it have theirs."""
    monkeypatch.setattr(watchdog, "_watcher", watchdog._Watcher())
    with no_more("think-watchdog"), pytest.raises(RuntimeError, match=NO_MORE):
        with watchdog.guard(lambda: None):
            pass
    cut = threading.Event()

    with watchdog.guard(cut.set) as guard:
        guard.extend(0.05, "too slow")

        assert cut.wait(5)


def test_a_helper_without_its_thread_makes_the_next_call_in_another(live: Runtime, no_more: Any) -> None:
    """The hooks of a turn share one: the second had waited for a thread that never was."""
    helper = Helper()
    with no_more("think-call"), pytest.raises(RuntimeError, match=NO_MORE):
        calls.attempt(live, lambda: 1, timeout=5, helper=helper)

    assert calls.attempt(live, lambda: 2, timeout=5, helper=helper) == Done(2)
    helper.close()


def test_a_lease_that_could_not_be_given_up_is_given_up_at_the_next_beat(
    database_url: str, no_more: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is under way is noted, so that no beat does it twice; what did not begin is not under way."""
    given: list[str] = []
    hand_back = recovery.hand_back
    monkeypatch.setattr("think_celery.domain.leases.UNHELD_SECONDS", 0.0)
    monkeypatch.setattr(
        recovery, "hand_back", lambda rt, lease: (given.append(lease.key), hand_back(rt, lease))
    )
    with workers(database_url) as rt:
        clerk(rt).submit_messages("Hello", submission_id="s")
        with no_more("think-release"):
            claims.claim(rt, "s")
            for _ in range(2):
                rt.monitor.beat()
            assert not given
        pause = threading.Event()
        for _ in range(500):
            if given:
                break
            pause.wait(0.02)
        assert given
