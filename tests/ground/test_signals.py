"""A wish to stop that one piece of code hands to another."""

import threading

import pytest

from think_celery.signals import AbortController


def test_a_signal_comes_once_and_stays():
    """The first reason counts; a second call changes nothing."""
    controller = AbortController()
    signal = controller.signal
    assert (signal.aborted, signal.reason, signal.wait(0)) == (False, None, False)

    controller.abort("no longer needed")
    controller.abort("another")

    assert (signal.aborted, signal.reason, signal.wait(0)) == (True, "no longer needed", True)


def test_callbacks_are_called_once_in_order_and_late_ones_at_once():
    """Whoever comes late is told too."""
    controller, calls = AbortController(), []
    controller.signal.on_abort(lambda: calls.append("a"))
    remove = controller.signal.on_abort(lambda: calls.append("b"))
    controller.signal.on_abort(lambda: calls.append("c"))

    remove()
    remove()
    controller.abort()
    controller.abort()
    controller.signal.on_abort(lambda: calls.append("late"))()

    assert calls == ["a", "c", "late"]


def test_a_callback_that_fails_keeps_no_other_from_being_called():
    """One listener's mistake must not leave another's connection open."""
    controller, calls = AbortController(), []
    controller.signal.on_abort(lambda: calls.append(1 // 0))
    controller.signal.on_abort(lambda: calls.append("b"))

    with pytest.raises(ZeroDivisionError):
        controller.abort()

    assert calls == ["b"]
    assert controller.signal.aborted


def test_a_callback_may_ask_the_signal():
    """It is set before anyone is told, with its reason."""
    controller, seen = AbortController(), []
    controller.signal.on_abort(lambda: seen.append((controller.signal.aborted, controller.signal.reason)))
    controller.signal.on_abort(lambda: controller.signal.on_abort(lambda: seen.append("inner")))

    controller.abort("why")

    assert seen == [(True, "why"), "inner"]


def test_every_callback_is_called_exactly_once_when_threads_race():
    """Registering and aborting at the same moment loses none and repeats none."""
    for _ in range(50):
        controller, calls, start = AbortController(), [], threading.Barrier(5)

        def register(number, controller=controller, calls=calls, start=start):
            start.wait()
            controller.signal.on_abort(lambda: calls.append(number))

        threads = [threading.Thread(target=register, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        start.wait()
        controller.abort()
        for thread in threads:
            thread.join(10)

        assert sorted(calls) == [0, 1, 2, 3]


def test_a_waiting_thread_is_woken():
    """Waiting ends with the signal, not with its time."""
    controller, came = AbortController(), []
    thread = threading.Thread(target=lambda: came.append(controller.signal.wait(30)))
    thread.start()

    controller.abort()
    thread.join(10)

    assert came == [True]
