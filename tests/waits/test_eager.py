"""With `task_always_eager` there is no worker: who waits runs what it waits for."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.domain.talk import shape
from tests.waits.project import Echo, Left, Right, Survey, make_app
from think_celery import AbortController, current
from think_celery.runtime import set_current

NOBODY = "redis://127.0.0.1:1/0"


@pytest.fixture
def rt(database_url: str) -> Iterator[Any]:
    """An application without a broker, on each database."""
    before = set_current(None)
    where = {"WAITS_DATABASE": database_url, "WAITS_LIVE": database_url}
    app: Any = make_app({**where, "WAITS_BROKER": NOBODY, "WAITS_QUEUE": "eager"})
    app.conf.task_always_eager = True
    yield app.think.runtime
    app.think.close()
    set_current(before)


def test_an_answer(rt: Any) -> None:
    """B7: as users of eager mode expect; nobody has to run anything."""
    assert Echo("a").save_messages("Hi", timeout=20).text == "re: Hi"
    assert Echo("a").wait_until_stable(timeout=0)


def test_what_another_process_left_in_the_line(rt: Any) -> None:
    """B7: a turn before its own that nobody runs: it runs first, right here."""
    knock, rt.knock = rt.knock, lambda knock: None
    before = Echo("a").submit_messages("before")
    rt.knock = knock

    assert Echo("a").save_messages("Hi", timeout=20).text == "re: Hi"
    assert current().wait_for_submission(before.submission_id, timeout=0).status == "completed"


def test_a_turn_that_is_still_to_run(rt: Any) -> None:
    """B11: waiting for it runs it."""
    knock, rt.knock = rt.knock, lambda knock: None
    submission = Echo("a").submit_messages("Hi")
    rt.knock = knock

    assert Echo("a").wait_until_stable(timeout=20)
    assert current().inspect_submission(submission.submission_id).status == "completed"  # type: ignore[union-attr]


def test_agents_that_ask_each_other(rt: Any) -> None:
    """B7: a tool gets the other one's answer; a circle is an error, and no recursion without an end."""
    assert Right("r").save_messages("ask l", timeout=20).text == "asked"

    result = Left("x").save_messages("ask y", timeout=20)

    assert (result.status, result.text) == ("completed", "asked")
    assert "would wait for ever" in str(shape(Right("y").messages[-1]))


def test_a_step_and_a_task_of_the_host_s(rt: Any) -> None:
    """B25: both wait inside a task that runs in the caller."""
    workflow_id = Echo("boss").run_workflow(Survey, {"name": "s"})

    assert current().get_workflow(workflow_id).output == "re: from a step"


def test_a_signal_that_comes_while_the_caller_runs_the_turn(rt: Any) -> None:
    """B16: the one who aborts cancels it at once; the partial text is in the result."""
    controller = AbortController()
    threading.Timer(0.7, controller.abort, args=("enough",)).start()

    result = Echo("a").save_messages("slow", signal=controller.signal, timeout=20)

    assert (result.status, result.text, result.error) == ("aborted", "half of it", "enough")
