"""To which chain of tasks a message belongs, whoever sends it: Flower draws a run by the roots of its tasks."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from think_celery import Think, ThinkWorkflow
from think_celery.domain import tick
from think_celery.domain.work import perform
from think_celery.errors import WorkflowError
from think_celery.ids import WorkflowRef, advance_task_id
from think_celery.protocols import Knock
from think_celery.providers.scripted import call, say
from think_celery.testing import ThinkTest, think_test


class Mood(BaseModel):
    """What the workflow asks for."""

    good: bool


class Linked(Think):
    """Is asked by a workflow, and by others."""


class Link(ThinkWorkflow[Linked, dict[str, Any]]):
    """Asks its agent."""

    def run(self, event: Any, step: Any) -> bool:
        """Ask."""
        return bool(step.prompt("ask", prompt="How is it?", output=Mood).good)


ROOT = advance_task_id(WorkflowRef("Link", "w").key, 1, 0)


@pytest.fixture
def t(sqlite_url: str) -> Iterator[ThinkTest]:
    with think_test(database_url=sqlite_url) as test:
        yield test


def roots(sent: list[Knock]) -> dict[str, set[str | None]]:
    """The roots that the messages of each task, or of each submission, had."""
    found: dict[str, set[str | None]] = {}
    for knock in sent:
        found.setdefault(knock.kwargs.get("submission_id", knock.task), set()).add(knock.root_id)
    return found


@pytest.mark.parametrize("lost", [False, True])
def test_a_run_is_one_chain_whoever_knocks(t: ThinkTest, lost: bool) -> None:
    """Its agent is busy, so the end of another turn knocks for its prompt; or all is lost, and the tick knocks."""
    t.script(Linked, say("One."), call("think_final_answer", {"good": True}), say("Three."))
    sent: list[Knock] = []
    knock = t.rt.knock
    t.rt.knock = lambda it: (sent.append(it), None if lost else knock(it))[1]

    first = Linked("a").submit_messages("first").submission_id
    Linked("a").run_workflow(Link, {}, workflow_id="w")
    if lost:
        work_on_what_the_tick_sends(t, sent)
    t.run_until_idle()

    assert t.output(Link, "w") is True
    found = roots(sent)
    [prompt] = found.keys() - {first, "think.workflow.advance"}
    assert found == {first: {first}, prompt: {ROOT}, "think.workflow.advance": {ROOT}}


def test_the_news_of_a_turn_that_a_caller_ended(t: ThinkTest) -> None:
    """Whoever runs a turn delivers the news of its end; that of a cancel has a message, which belongs to the run."""
    sent: list[Knock] = []
    knock = t.rt.knock
    t.rt.knock = lambda it: (sent.append(it), knock(it))[1]
    Linked("a").run_workflow(Link, {}, workflow_id="w")
    perform(t.rt, sent[0])
    prompt = sent[1].kwargs["submission_id"]

    Linked("a").cancel_submission(prompt)
    t.run_until_idle()

    assert roots(sent) == {prompt: {ROOT}, "think.workflow.advance": {ROOT}, "think.outbox.deliver": {ROOT}}
    with pytest.raises(WorkflowError, match="ThinkPromptAbortedError"):
        t.output(Link, "w")


def work_on_what_the_tick_sends(t: ThinkTest, sent: list[Knock]) -> None:
    """Do what it finds to be missed, pass by pass, until it finds nothing."""
    quiet = 0
    while quiet < 3:
        t.clock.advance(timedelta(seconds=3))
        before = len(sent)
        tick.run(t.rt)
        found = sent[before:]
        for knock in found:
            perform(t.rt, knock)
        quiet = 0 if found else quiet + 1
