"""What a type checker infers of a workflow's steps. It is checked by ``test_typing``, not run."""

from datetime import datetime
from typing import Any, TypedDict, assert_type

from pydantic import BaseModel

from think_celery import PromptHandle, ReceivedEvent, Think, ThinkWorkflow, ThinkWorkflowStep, WorkflowEvent
from think_celery.workflows import Approval, StepContext


class Draft(BaseModel):
    """An answer."""

    title: str


class Labels(TypedDict):
    """Another one."""

    labels: list[str]


class Typist(Think):
    """An agent with a method of its own."""

    def count(self) -> int:
        """How many there are."""
        return 1


class TypedSteps(ThinkWorkflow[Typist, Labels]):
    """Each kind of step."""

    def run(self, event: WorkflowEvent[Labels], step: ThinkWorkflowStep) -> str:
        """Nobody calls it."""
        assert_type(event.payload, Labels)
        assert_type(self.agent, Typist)
        assert_type(step.do("a", self.agent.count), int)
        assert_type(step.do("b", self.keyed), str)
        assert_type(step.do("c", lambda: {"title": "x"}, output=Draft, queue="gpu"), Draft)
        assert_type(step.prompt("d", prompt="?", output=Draft, agent=Typist("other")), Draft)
        assert_type(step.prompt("e", prompt="?", output=Labels), Labels)
        handle = step.start_prompt("f", prompt="?", output=Draft)
        assert_type(handle, PromptHandle[Draft])
        assert_type(step.gather(handle, handle), list[Draft])
        assert_type(step.wait_any("paid", handle), ReceivedEvent)
        assert_type(step.wait_for_approval(), Approval)
        assert_type(step.now(), datetime)
        assert_type(step.version, str)
        result: Any = step.run_workflow("h", TypedSteps, {"labels": []})
        return f"{result}"

    def keyed(self, context: StepContext) -> str:
        """A step's function that takes the context."""
        return context.idempotency_key
