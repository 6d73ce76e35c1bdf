"""A BaseException of the user's own code is that code's failure: it ends its row, and never the worker."""

import asyncio
from typing import Any

import pytest

from think_celery import Think, ThinkWorkflow, tool
from think_celery.providers.scripted import FunctionModel, call, say
from think_celery.testing import think_test


class OwnEnd(BaseException):
    """A library's own base exception."""


class BrokenText(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


RAISED = [asyncio.CancelledError("tulip"), SystemExit(2), GeneratorExit(), OwnEnd(), BrokenText()]


class Abrupt(Think):
    """Raises where its name says, what the test says."""

    error: BaseException = OwnEnd()

    def _raise_in(self, place: str) -> None:
        if self.name == place:
            raise self.error

    def get_system_prompt(self) -> str | None:
        self._raise_in("prompt")
        return None

    def get_tools(self) -> list[Any]:
        self._raise_in("tools")
        return []

    @tool
    def act(self) -> str:
        """Act."""
        self._raise_in("tool")
        return "done"


class AbruptRun(ThinkWorkflow[Abrupt, dict[str, Any]]):
    """Raises where its params say."""

    def run(self, event: Any, step: Any) -> str:
        def fail(*_: Any) -> None:
            raise Abrupt.error

        match event.payload["where"]:
            case "run":
                fail()
            case "do":
                step.do("a", fail)
            case "transaction":
                step.transaction("a", lambda conn: fail())
        return "done"


@pytest.fixture(params=RAISED, ids=lambda error: type(error).__name__)
def raised(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> BaseException:
    monkeypatch.setattr(Abrupt, "error", request.param)
    return request.param


def acting(request: Any) -> Any:
    return say("Done.") if request.messages[-1].role == "assistant" else call("act", {})


@pytest.mark.parametrize("place", ["prompt", "tools", "model"])
def test_a_turn_ends_in_that_error(raised: BaseException, place: str):
    """Poison ends: at the first attempt, with the error's type; the next turn runs."""

    def model(request: Any) -> Any:
        if place == "model":
            raise raised
        return say("Hello.")

    with think_test(model=FunctionModel(model)) as t:
        first = Abrupt(place).submit_messages("Hello?")
        t.run_until_idle()
        place = "none"
        second = Abrupt("other").submit_messages("Hello?")
        t.run_until_idle()

        ended = Abrupt(first.agent.name).inspect_submission(first.submission_id)
        assert (ended.status, ended.error_type) == ("error", type(raised).__name__)
        assert Abrupt("other").inspect_submission(second.submission_id).status == "completed"


def test_a_tool_that_raises_it_tells_the_model(raised: BaseException):
    """It is the tool's failure, like any other; the turn goes on."""
    with think_test(model=FunctionModel(acting)) as t:
        submission = Abrupt("tool").submit_messages("Act!")
        t.run_until_idle()

        assert submission.message().text == "Done."
        assert submission.message().parts[1].state == "output-error"


@pytest.mark.parametrize("where", ["run", "do", "transaction"])
def test_a_workflow_ends_in_that_error(raised: BaseException, where: str):
    """`run` and the functions of steps, the first pass and every retry: the run ends, and its step says why."""
    with think_test() as t:
        workflow_id = Abrupt("any").run_workflow(AbruptRun, {"where": where})
        t.run_until_idle()
        t.skip("1 hour")

        run = t.workflow(AbruptRun, workflow_id)
        assert run.status == "errored"
        assert type(raised).__name__ in f"{run.error_type}: {run.error}"
