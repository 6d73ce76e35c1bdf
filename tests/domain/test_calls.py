"""Calling users' functions in helper threads: results, errors, and giving up."""

import contextvars
import threading
from typing import Any

import pytest
from celery import Celery

from think_celery import ThinkCelery, hosts
from think_celery.domain import calls
from think_celery.domain.calls import Abandoned, Done, Failed
from think_celery.errors import CallTimeout
from think_celery.runtime import Runtime
from think_celery.signals import AbortController
from think_celery.testing import ThinkTest

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who")


def fail(error: BaseException) -> Any:
    raise error


@pytest.fixture
def hang():
    """An event that a function waits for; set at the end, so that no thread is left."""
    event = threading.Event()
    yield event
    event.set()


class TestCall:
    def test_value_and_error(self, live: Runtime):
        """What the function returns or raises comes out of the call."""
        assert calls.call(live, lambda: 5, timeout=10) == 5
        with pytest.raises(LookupError, match="no"):
            calls.call(live, lambda: fail(LookupError("no")), timeout=10)

    def test_given_up(self, live: Runtime, hang: threading.Event):
        """After its timeout the function is nobody's: CallTimeout, while it may go on."""
        with pytest.raises(CallTimeout) as caught:
            calls.call(live, lambda: hang.wait(20), timeout=0.1)
        assert caught.value.seconds == 0.1

    def test_where_it_runs(self, live: Runtime, quick: ThinkTest):
        """In a thread of its own; without a timeout, or with threads off, in the caller's."""
        here = threading.get_ident()

        assert calls.call(live, threading.get_ident, timeout=10) != here
        assert calls.call(live, threading.get_ident, timeout=None) == here
        assert calls.call(quick.rt, threading.get_ident, timeout=10) == here

    def test_it_has_a_copy_of_the_context(self, live: Runtime):
        """Context variables are there; what the function sets stays its own."""
        WHO.set("me")

        assert calls.call(live, lambda: [WHO.get(), WHO.set("you")][0], timeout=10) == "me"
        assert WHO.get() == "me"

    def test_what_comes_from_outside_is_not_the_functions(self, quick: ThinkTest):
        """Ctrl-C and Celery's soft time limit go through; anything else is the function's failure."""

        class SoftTimeLimitExceeded(Exception):
            """Named as Celery's is."""

        for error in (KeyboardInterrupt(), SoftTimeLimitExceeded()):
            with pytest.raises(type(error)):
                calls.run(lambda error=error: fail(error))
        for error in (SystemExit(), GeneratorExit(), ValueError()):
            assert calls.run(lambda error=error: fail(error)) == Failed(error)

    def test_a_helper_that_raises_an_interrupt_still_answers(self, live: Runtime):
        """A thread that ends in an odd way does not leave its caller waiting."""
        with pytest.raises(KeyboardInterrupt):
            calls.call(live, lambda: fail(KeyboardInterrupt()), timeout=10)

    def test_each_thread_closes_what_it_opened(self, live: Runtime, monkeypatch):
        """The host's per-thread connections are closed in that thread; one that fails hides none."""
        closed: list[int] = []
        closers = [lambda: fail(OSError("broken")), lambda: closed.append(threading.get_ident())]
        monkeypatch.setattr(hosts, "_added", closers)

        ran_in = calls.call(live, threading.get_ident, timeout=10)

        assert closed == [ran_in]

    def test_one_that_was_given_up_closes_when_it_comes_back(self, live: Runtime, monkeypatch):
        """Until then it may be using what is its thread's."""
        free, closed = threading.Event(), threading.Event()
        monkeypatch.setattr(hosts, "_added", [closed.set])

        with pytest.raises(CallTimeout):
            calls.call(live, lambda: free.wait(20), timeout=0.05)
        assert not closed.is_set()
        free.set()

        assert closed.wait(10)

    def test_the_users_own_call(self, live: Runtime, monkeypatch):
        """`think.at_thread_end` adds one, once; one that wants to end the thread leaves nobody waiting."""
        closed: list[int] = []
        monkeypatch.setattr(hosts, "_added", [lambda: fail(SystemExit())])
        think = ThinkCelery(Celery("closing", set_as_current=False))

        @think.at_thread_end
        def close() -> None:
            closed.append(threading.get_ident())

        think.at_thread_end(close)

        assert calls.call(live, threading.get_ident, timeout=10) == closed[0]
        assert len(closed) == 1

    def test_a_signal_leaves_it_a_moment(self, live: Runtime, hang: threading.Event):
        """After the signal a function has the grace, and is then given up; one that answers in it counts."""
        stop = AbortController()
        threading.Timer(0.05, stop.abort).start()
        gone = calls.attempt(live, lambda: hang.wait(20), timeout=20, signal=stop.signal, grace=0.1)
        polite = calls.attempt(live, lambda: stop.signal.wait(20), timeout=20, signal=stop.signal, grace=5)

        assert gone == Abandoned()
        assert polite == Done(True)


class TestAll:
    def test_at_once_and_in_order(self, live: Runtime):
        """FR-64: all run at once; results come in the order of the calls, whatever finished first."""
        meet = threading.Barrier(3)

        def one(number: int) -> int:
            meet.wait(20)
            threading.Event().wait(0.05 * (3 - number))
            return number

        results = calls.call_all(
            live, [lambda n=n: one(n) for n in range(3)], signal=AbortController().signal
        )

        assert results == [Done(0), Done(1), Done(2)]

    def test_not_all_of_very_many_at_once(self, live: Runtime):
        """A model that asks for hundreds of tools in one answer doesn't get hundreds of threads."""
        lock, running, peak = threading.Lock(), 0, 0
        full = threading.Event()

        def work(n: int) -> int:
            nonlocal running, peak
            with lock:
                running += 1
                peak = max(peak, running)
                if running == calls.AT_ONCE:
                    full.set()
            full.wait(20)
            with lock:
                running -= 1
            return n

        results = calls.call_all(
            live, [lambda n=n: work(n) for n in range(3 * calls.AT_ONCE)], signal=AbortController().signal
        )

        assert results == [Done(n) for n in range(3 * calls.AT_ONCE)]
        assert peak == calls.AT_ONCE

    def test_failures_are_results(self, live: Runtime):
        """One that raises does not hide the others."""
        error = ValueError("no")

        assert calls.call_all(
            live, [lambda: 1, lambda: fail(error), lambda: 3], signal=AbortController().signal
        ) == [Done(1), Failed(error), Done(3)]

    def test_after_the_signal(self, live: Runtime, hang: threading.Event):
        """Those that don't answer within the grace are given up; the others' results are kept."""
        stop = AbortController()
        threading.Timer(0.05, stop.abort).start()

        results = calls.call_all(
            live,
            [lambda: hang.wait(20), lambda: stop.signal.wait(20), lambda: 3],
            signal=stop.signal,
            grace=0.3,
        )

        assert results == [Abandoned(), Done(True), Done(3)]

    def test_nothing_is_begun_after_the_signal(self, live: Runtime, quick: ThinkTest):
        """A call that comes too late is not made, and says so: its outcome is known."""
        stop = AbortController()
        stop.abort()
        ran: list[int] = []

        for rt in (live, quick.rt):
            assert calls.call_all(rt, [lambda: ran.append(1)], signal=stop.signal) == [
                Abandoned(started=False)
            ]
        assert ran == []

    def test_with_threads_off_they_run_here_in_turn(self, quick: ThinkTest):
        """In `think_test` everything is in the calling thread; a signal given by one stops the next."""
        stop = AbortController()
        results = calls.call_all(
            quick.rt, [threading.get_ident, stop.abort, threading.get_ident], signal=stop.signal
        )

        assert results == [Done(threading.get_ident()), Done(None), Abandoned(started=False)]

    def test_none(self, live: Runtime):
        """No calls, no results."""
        assert calls.call_all(live, [], signal=AbortController().signal) == []
