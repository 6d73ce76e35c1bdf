"""Several prompts at once, of several agents, and whatever comes first."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from tests.domain.flows import DESK, Desk, Handle, begin, start
from think_celery import Think
from think_celery.domain.submissions import submissions
from think_celery.domain.workflows import control, workflows
from think_celery.errors import (
    ThinkPromptAbortedError,
    ThinkPromptError,
    ThinkPromptTimeoutError,
    ThinkPromptValidationError,
    WorkflowError,
    WorkflowTimeoutError,
)
from think_celery.providers.scripted import answer, fail, say
from think_celery.testing import ThinkTest


class Verdict(BaseModel):
    """What a juror says."""

    guilty: bool


class Juror(Think):
    """Another agent than the workflow's own."""


def jury(*names: str, **options: Any) -> Any:
    """A run that asks these jurors at once, and returns what each said."""

    def run(event, step):
        handles = [
            step.start_prompt(
                "vote", prompt="Guilty?", output=Verdict, key=name, agent=Juror(name), **options
            )
            for name in names
        ]
        try:
            return [verdict.guilty for verdict in step.gather(*handles)]
        except ThinkPromptError as error:
            return [type(error).__name__, error.step]

    return run


def votes(t: ThinkTest, workflow: Handle) -> list[tuple[str, str]]:
    """Agent and status of each submission that the run has made."""
    rows = submissions.find(t.rt, None)
    return sorted((row.agent_name, row.status) for row in rows if row.workflow_key == workflow.ref.key)


class TestGather:
    def test_several_agents_are_asked_at_once(self, t: ThinkTest):
        """A2: all are submitted before the run parks, and the answers stand in the order of the arguments."""
        t.script(Juror, *[answer({"guilty": guilty}) for guilty in (True, False, True)])
        workflow = start(t.rt, jury("a", "b", "c"))
        assert workflow.advance().word == "parked"
        assert votes(t, workflow) == [("a", "pending"), ("b", "pending"), ("c", "pending")]

        t.run_until_idle()

        assert workflow.output == [True, False, True]
        assert [key for key, _ in workflow.keys] == [
            *[f"vote[{name}]:{what}" for name in "abc" for what in ("submit", "wait")],
            "gather",
        ]
        assert {status for _, status in workflow.keys} == {"done"}

    def test_the_order_in_which_they_end_changes_nothing(self, t: ThinkTest):
        """FR-64: entries are numbered by the calls, results are put together in their order."""
        t.script(Juror, *[answer({"guilty": guilty}) for guilty in (True, False, True)])
        workflow = start(t.rt, jury("a", "b", "c"))
        workflow.advance()
        for knock in reversed([knock for knock in t._knocks if "submission" in knock.task]):
            t._perform(knock)
        t.run_until_idle()

        assert workflow.output == [True, False, True]  # c was asked first, and got the first answer: True

    @pytest.mark.parametrize(
        "point",
        [
            "step:vote[a]:submit:before-commit",
            "step:vote[a]:submit:committed",
            "step:vote[b]:submit:committed",
            "step:gather:looked",
            "step:gather:before-commit",
            "step:gather:committed",
            "workflow:before-park",
            "outbox:delivered",
        ],
    )
    def test_killed_anywhere_each_is_asked_once(self, t: ThinkTest, point: str):
        """A18: whatever dies where, each agent has one submission, and one request was made for it."""
        model = t.script(Juror, answer({"guilty": True}), answer({"guilty": True}), say("once too often"))
        t.crash_at(point)
        workflow = begin(t, jury("a", "b"))
        t.skip(120)

        assert t.crashes == [point]
        assert workflow.output == [True, True]
        assert votes(t, workflow) == [("a", "completed"), ("b", "completed")]
        assert len(model.requests) == 2

    def test_the_first_error_is_raised_when_all_have_ended(self, t: ThinkTest):
        """The first in the order of the arguments, however soon the others failed; none goes on unheard."""
        t.script(Juror, answer({"guilty": True}), fail(400), answer({"guilty": "perhaps"}))
        workflow = begin(t, jury("a", "b", "c"))

        assert workflow.output == ["ThinkPromptError", "vote[b]"]
        assert [status for _, status in votes(t, workflow)] == ["completed", "error", "error"]
        assert dict(workflow.keys)["vote[c]:wait"] == "failed"

    def test_each_has_a_time_of_its_own(self, t: ThinkTest):
        """A23: a handle's timeout counts from its start; the turn is cancelled, or left to go on."""

        def run(event, step):
            short = step.start_prompt("short", prompt="?", output=Verdict, timeout=10, agent=Juror("s"))
            left = step.start_prompt(
                "left", prompt="?", output=Verdict, timeout=20, cancel_on_timeout=False, agent=Juror("l")
            )
            long = step.start_prompt("long", prompt="?", output=Verdict, agent=Juror("x"))
            try:
                step.gather(short, left, long)
            except ThinkPromptTimeoutError as error:
                return [error.step, error.seconds, error.status]

        workflow = start(t.rt, run)
        workflow.advance()
        t.lose_messages()
        due = workflow.row.wake_at
        t.clock.advance(timedelta(seconds=30))
        t.script(Juror, answer({"guilty": True}), answer({"guilty": True}))
        workflow_due = due - workflow.journal[1].created_at
        t.rt.takes = lambda knock: True
        workflows.wake_due(t.rt, 10)
        workflow.advance()
        assert votes(t, workflow) == [("l", "pending"), ("s", "aborted"), ("x", "pending")]
        t.skip(60)

        assert workflow_due == timedelta(seconds=10)
        assert workflow.output == ["short", 10.0, "aborted"]
        assert dict(workflow.keys)["left:wait"] == "failed"
        assert dict(votes(t, workflow))["l"] == "completed"

    def test_an_answer_that_came_in_time_counts_at_its_deadline(self, t: ThinkTest):
        """The turn has ended, its news is under way when the time is up: the answer is taken."""
        t.script(Juror, answer({"guilty": True}))
        workflow = start(t.rt, jury("a", timeout=10))
        workflow.advance()
        (knock,) = [knock for knock in t._knocks if "submission" in knock.task]
        t._perform(knock)
        t.lose_messages()
        t.clock.advance(timedelta(seconds=11))
        workflows.wake_due(t.rt, 10)
        workflow.advance()

        assert workflow.output == [True]

    def test_one_may_be_waited_for_twice_and_none_is_no_wait(self, t: ThinkTest):
        """What has ended is known; an empty gather is a step like any other."""
        t.script(Juror, answer({"guilty": True}))

        def run(event, step):
            handle = step.start_prompt("vote", prompt="?", output=Verdict, agent=("Juror", "j"))
            first = step.gather(handle)
            return [step.gather() == [], first == step.gather(handle, handle)[:1]]

        assert begin(t, run).output == [True, True]

    def test_cancelled_while_others_go_on(self, t: ThinkTest):
        """A19: whoever cancels one, the run learns of it."""
        t.script(Juror, answer({"guilty": True}))
        workflow = start(t.rt, jury("a", "b"))
        workflow.advance()
        first = next(row for row in submissions.find(t.rt, None) if row.agent_name == "a")
        submissions.cancel_by_id(t.rt, first.id, "not needed")
        t.run_until_idle()

        assert workflow.output == [ThinkPromptAbortedError.__name__, "vote[a]"]

    def test_an_agent_is_a_handle_or_a_class_and_a_name(self, t: ThinkTest):
        """`agent=` takes what names one; anything else is refused before something is recorded."""
        t.script(Juror, *[answer({"guilty": True})] * 3)

        def run(event, step):
            said = []
            for number, agent in enumerate([Juror("a"), (Juror, "b"), ("Juror", "c"), "c", ("Juror", ""), 5]):
                try:
                    said.append(
                        step.prompt("vote", prompt="?", output=Verdict, key=str(number), agent=agent).guilty
                    )
                except Exception as error:
                    said.append(type(error).__name__)
            return said

        assert begin(t, run).output == [True, True, True, "StepMisuse", "StepMisuse", "StepMisuse"]

    def test_an_unknown_class_takes_no_place_in_the_journal(self, t: ThinkTest):
        """What fails before anything is recorded fails alike on replay, and the next step stands in its place."""

        def run(event, step):
            try:
                step.start_prompt("vote", prompt="?", output=Verdict, agent=("Nobody", "x"))
            except Exception as error:
                said = type(error).__name__
            step.do("after", lambda: None)
            step.sleep("nap", 5)
            return said

        workflow = begin(t, run)
        t.skip(6)

        assert workflow.output == "UnknownClass"
        assert [key for key, _ in workflow.keys] == ["after", "nap"]


class TestWaitAny:
    def test_the_first_event_wins(self, t: ThinkTest):
        """FR-62: the run goes on with the first; a later one is kept, unread, and disturbs nobody."""

        def run(event, step):
            won = step.wait_any("a", "b", timeout=60, name="first")
            return [won.name, won.type, won.payload, won.sent_at == t.clock.now()]

        workflow = begin(t, run)
        workflow.send("a", {"n": 1})
        t.run_until_idle()
        assert workflow.output == ["a", "a", {"n": 1}, True]

        workflow.send("b")
        t.run_until_idle()
        assert [(event.type, event.consumed_by) for event in workflow.inbox] == [("a", "first"), ("b", None)]
        assert workflow.keys == [("first", "done")]

    def test_of_those_that_wait_already_the_one_sent_first(self, t: ThinkTest):
        """Not the order of the arguments counts, but that of the inbox."""
        workflow = start(t.rt, lambda event, step: [step.wait_any("a", "b").name for n in range(2)])
        workflow.send("b")
        workflow.send("a")
        t.run_until_idle()

        assert workflow.output == ["b", "a"]

    @pytest.mark.parametrize(
        ("own", "answered", "ends"),
        [
            (100, True, ["WorkflowTimeoutError", True]),
            (100, False, ["WorkflowTimeoutError", "ThinkPromptTimeoutError"]),
            (10, True, [True, True]),
        ],
    )
    def test_a_late_look_takes_no_answer_away(self, t: ThinkTest, own: int, answered: bool, ends: list[Any]):
        """What a handle's own deadline ends, after that of the wait, is no matter of the wait; and an answer that is
        there counts, whenever the run wakes."""
        t.script(Juror, answer({"guilty": True}))

        def run(event, step):
            handle = step.start_prompt("vote", prompt="?", output=Verdict, agent=Juror("j"), timeout=own)
            said = []
            for wait in (
                lambda: step.wait_any(handle, timeout=20, name="first").payload,
                lambda: step.gather(handle)[0],
            ):
                try:
                    said.append(wait().guilty)
                except WorkflowError as error:
                    said.append(type(error).__name__)
            return said

        workflow = start(t.rt, run)
        workflow.advance()
        control.pause(t.rt, workflow.ref)
        t.clock.advance(timedelta(seconds=50))
        if answered:
            t.run_until_idle()
        t.clock.advance(timedelta(seconds=150))
        control.resume(t.rt, workflow.ref)
        workflow.advance()
        t.run_until_idle()

        assert workflow.output == ends

    def test_an_answer_or_an_event(self, t: ThinkTest):
        """A handle's answer is the payload; the prompt that came too late may be waited for again."""
        t.script(Juror, answer({"guilty": True}), answer({"guilty": False}))
        seen: list[Any] = []

        def run(event, step):
            handle = step.start_prompt("vote", prompt="?", output=Verdict, agent=Juror("j"))
            won = step.wait_any("stop", handle, name="first")
            seen.append((won.name, won.type, won.payload))
            again = step.wait_any(handle, name="again")
            step.wait_for_event("go", type="go")
            return [again.payload.guilty, step.gather(handle)[0].guilty]

        first = begin(t, run)
        first.send("go")
        t.run_until_idle()
        assert first.output == [True, True]
        assert seen == [("vote", "prompt", Verdict(guilty=True))] * 2

        second = start(t.rt, None, id="w2")
        second.send("stop", "enough")
        second.advance()
        t.run_until_idle()
        second.send("go")
        t.run_until_idle()
        assert second.output == [False, False]
        assert set(seen[2:]) == {("stop", "stop", "enough")}

    def test_the_time_is_up(self, t: ThinkTest):
        """FR-60: the deadline is fixed at the first pass; what was sent by then wins, however late the run wakes."""

        def run(event, step):
            try:
                return step.wait_any("a", "b", timeout=60, name="first").name
            except WorkflowTimeoutError as error:
                return [error.step, error.seconds]

        late = begin(t, run)
        t.skip(61)
        assert late.output == ["first", 60.0]

        in_time = begin(t, run, id="w2")
        t.clock.advance(timedelta(seconds=59))
        in_time.send("b")
        t.lose_messages()
        t.clock.advance(timedelta(seconds=5))
        in_time.send("a")
        t.run_until_idle()
        in_time.advance()
        assert in_time.output == "b"

    def test_a_prompt_that_fails_first(self, t: ThinkTest):
        """Its error is raised, also when it is its own deadline that ends it."""
        t.script(Juror, answer({"guilty": "perhaps"}))

        def run(event, step):
            handle = step.start_prompt("vote", prompt="?", output=Verdict, timeout=30, agent=Juror("j"))
            try:
                step.wait_any("stop", handle, name="first")
            except ThinkPromptError as error:
                return type(error).__name__

        assert begin(t, run).output == ThinkPromptValidationError.__name__

        second = start(t.rt, None, id="w2")
        second.advance()
        t.lose_messages()
        t.clock.advance(timedelta(seconds=31))
        workflows.wake_due(t.rt, 10)
        second.advance()
        assert second.output == ThinkPromptTimeoutError.__name__

    @pytest.mark.parametrize(
        "point", ["step:first:looked", "step:first:before-commit", "step:first:committed", "workflow:parked"]
    )
    def test_killed_anywhere(self, t: ThinkTest, point: str):
        """One winner, whatever dies where."""
        t.script(Juror, answer({"guilty": True}), say("once too often"))

        def run(event, step):
            handle = step.start_prompt("vote", prompt="?", output=Verdict, agent=Juror("j"))
            return [step.wait_any("a", handle, name="first").name, step.gather(handle)[0].guilty]

        t.crash_at(point)
        workflow = begin(t, run)
        t.skip(120)

        assert t.crashes == [point]
        assert workflow.output == ["vote", True]

    def test_every_positional_argument_is_waited_for(self, t: ThinkTest):
        """None is taken as the step's name: that is made of what is waited for, and cut where it is long."""
        types = ["answered", "cancelled", "x" * 150]
        workflow = start(t.rt, lambda event, step: [step.wait_any(*types[:n]).name for n in (1, 2, 3)])
        for _ in range(3):
            workflow.send("answered")
        t.run_until_idle()

        assert workflow.output == ["answered"] * 3
        assert [key for key, _ in workflow.keys] == [
            "any of answered",
            "any of answered, cancelled",
            f"any of answered, cancelled, {'x' * 92}",
        ]

    def test_what_can_not_be_waited_for(self, quick: ThinkTest):
        """Nothing, one thing twice, what is no type, and a handle of another pass are refused with words."""
        kept: list[Any] = []
        quick.script(Desk, answer({"guilty": True}))

        def run(event, step):
            kept.append(step.start_prompt("vote", prompt="?", output=Verdict))
            said = []
            for waits in [(), ("a", "a"), (kept[-1], kept[-1]), ("",), (5,)]:
                try:
                    step.wait_any(*waits, name="first")
                except Exception as error:
                    said.append(str(error))
            step.sleep("nap", 5)
            try:
                step.wait_any(kept[0], name="first")
            except Exception as error:
                said.append(str(error))
            return said

        workflow = begin(quick, run)
        quick.skip(6)

        none, twice, same, blank, number, other = workflow.output
        assert "something to wait for" in none
        assert "event a twice" in twice
        assert "vote:wait twice" in same
        assert "no type" in blank
        assert "no handle" in number
        assert "another run" in other


def test_handles_are_of_the_own_agent_by_default(t: ThinkTest):
    """Turns of one agent run one after the other; all are asked all the same."""
    t.script(Desk, answer({"guilty": True}), answer({"guilty": False}))

    def run(event, step):
        handles = [step.start_prompt(f"p{n}", prompt="?", output=Verdict) for n in range(2)]
        assert [handle.name for handle in handles] == ["p0", "p1"]
        assert all(handle.submission_id in repr(handle) for handle in handles)
        return [verdict.guilty for verdict in step.gather(*handles)]

    assert begin(t, run).output == [True, False]
    assert [row.agent_name for row in submissions.find(t.rt, DESK._ref)] == ["front", "front"]
