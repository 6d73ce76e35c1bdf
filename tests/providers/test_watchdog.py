"""The watchdog: limits of time that hold while a read blocks."""

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.providers.contract import SOON
from think_celery.providers.watchdog import guard
from think_celery.signals import AbortController


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets; nothing is ever sent on the first."""
    silent, reader = socket.socketpair()
    with silent, reader:
        reader.settimeout(10)
        yield silent, reader


def cutter(sock: socket.socket) -> Callable[[], None]:
    return lambda: sock.shutdown(socket.SHUT_RDWR)


class TestDeadlines:
    def test_a_blocked_read_ends_at_the_deadline(self, pair):
        """FR-12: the limit holds in a thread that blocks in a socket, without signals; the reader learns why."""
        _, reader = pair
        began = time.monotonic()

        with guard(cutter(reader)) as watched:
            watched.extend(0.2, "too slow")
            assert reader.recv(1) == b""

        assert watched.fired == "too slow"
        assert not watched.aborted
        assert 0.19 <= time.monotonic() - began < SOON

    def test_a_deadline_can_be_put_off_and_moved_nearer(self, pair):
        """The last one counts, whichever way it moved."""
        _, reader = pair
        began = time.monotonic()

        with guard(cutter(reader)) as watched:
            watched.extend(0.05, "first")
            watched.extend(30, "second")
            assert not threading.Event().wait(0.15)
            assert watched.fired is None
            watched.extend(0.1, "third")
            reader.recv(1)

        assert watched.fired == "third"
        assert time.monotonic() - began < SOON

    def test_a_paused_deadline_does_not_pass(self, pair):
        """The time that the consumer of an answer takes is not the provider's."""
        _, reader = pair

        with guard(cutter(reader)) as watched:
            watched.extend(0.05, "too slow")
            watched.pause()
            assert not threading.Event().wait(0.2)
            assert watched.fired is None
            watched.extend(0.05, "too slow")
            reader.recv(1)

        assert watched.fired == "too slow"

    def test_nothing_is_cut_after_the_block(self, pair):
        """The connection may be another request's by then."""
        cuts: list[str] = []

        with guard(lambda: cuts.append("cut")) as watched:
            watched.extend(0.05, "too slow")
        watched.extend(0.01, "late")
        assert not threading.Event().wait(0.15)

        assert cuts == []

    def test_many_guards_share_one_thread(self, pair):
        """A hundred requests need one watcher; each is cut at its own time."""
        before = set(threading.enumerate())  # other tests make watchers of their own
        fired: list[int] = []
        guards = [guard(lambda n=n: fired.append(n)) for n in range(100)]
        entered = [each.__enter__() for each in guards]

        for n, watched in enumerate(entered):
            watched.extend(0.1 + (n % 3) * 0.1, "slow")
        until = time.monotonic() + 5
        while len(fired) < 100 and time.monotonic() < until:
            threading.Event().wait(0.01)
        for each in guards:
            each.__exit__(None, None, None)

        assert sorted(fired) == list(range(100))
        assert [n % 3 for n in fired] == sorted(n % 3 for n in fired)
        begun = [thread.name for thread in threading.enumerate() if thread not in before]
        assert begun.count("think-watchdog") <= 1

    def test_a_cut_that_fails_does_not_stop_the_watcher(self, pair, caplog):
        """Every other request of the process depends on it."""
        _, reader = pair

        def broken() -> None:
            raise RuntimeError("no such socket")

        with guard(broken) as first, guard(cutter(reader)) as second:
            first.extend(0.02, "slow")
            second.extend(0.1, "slow")
            reader.recv(1)

        assert (first.fired, second.fired) == ("slow", "slow")
        assert "could not be cut" in caplog.text


class TestAborts:
    def test_a_blocked_read_ends_when_the_signal_comes(self, pair):
        """At once, and before any deadline."""
        _, reader = pair
        controller = AbortController()
        threading.Timer(0.1, controller.abort, ["enough"]).start()
        began = time.monotonic()

        with guard(cutter(reader), controller.signal) as watched:
            watched.extend(30, "too slow")
            reader.recv(1)

        assert (watched.fired, watched.aborted) == ("enough", True)
        assert time.monotonic() - began < SOON

    def test_a_signal_that_came_before_cuts_at_once(self, pair):
        """…and cuts the connection too that is made only afterwards."""
        controller = AbortController()
        controller.abort("enough")
        cuts: list[str] = []

        with guard(lambda: cuts.append("cut"), controller.signal) as watched:
            watched.reconnected()

        assert watched.aborted
        assert len(cuts) == 2

    def test_the_signal_is_left_alone_after_the_block(self, pair):
        """A long turn's signal keeps nothing of the requests that it has seen."""
        controller = AbortController()
        cuts: list[str] = []

        with guard(lambda: cuts.append("cut"), controller.signal):
            pass
        controller.abort()

        assert cuts == []


def _child(results: "multiprocessing.Queue[str | None]") -> None:
    silent, reader = socket.socketpair()
    reader.settimeout(10)
    with silent, reader, guard(cutter(reader)) as watched:
        watched.extend(0.1, "in the child")
        reader.recv(1)
    results.put(watched.fired)


class TestFork:
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
    def test_a_forked_child_gets_a_watcher_of_its_own(self, pair):
        """Celery's prefork children inherit the parent's module, but not its thread."""
        _, reader = pair
        with guard(cutter(reader)) as watched:
            watched.extend(0.02, "in the parent")
            reader.recv(1)
        context = multiprocessing.get_context("fork")
        results = context.Queue()

        child = context.Process(target=_child, args=(results,))
        child.start()

        assert results.get(timeout=10) == "in the child"
        child.join(10)
