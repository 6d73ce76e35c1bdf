"""``step.prompt``: a turn whose answer a workflow waits for, and every way in which it can end otherwise."""

import logging
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from tests.domain.flows import DESK, Desk, Handle, begin, flow, start
from think_celery import Think
from think_celery.domain import outbox
from think_celery.domain.conversation import conversation
from think_celery.domain.steps.prompts import EVENT_TYPE
from think_celery.domain.submissions import claims, submissions
from think_celery.domain.workflows import workflows
from think_celery.errors import (
    ThinkPromptAbortedError,
    ThinkPromptError,
    ThinkPromptSkippedError,
    ThinkPromptTimeoutError,
    ThinkPromptValidationError,
    WorkflowTimeoutError,
)
from think_celery.ids import short_hash
from think_celery.providers.scripted import FunctionModel, answer, fail, say
from think_celery.store import outbox as outbox_rows
from think_celery.testing import ThinkTest
from think_celery.tools import tool

KEY = "think-workflow:Flow:w1:triage"


class Draft(BaseModel):
    """What the model fills in."""

    title: str
    price: Decimal = Decimal(0)


class Picky(BaseModel):
    """A rule that JSON Schema does not know."""

    title: str

    @field_validator("title")
    @classmethod
    def short(cls, title: str) -> str:
        if len(title) > 3:
            raise ValueError("longer than 3")
        return title


class Enumerator(Think):
    """Another class of agents."""


@tool
def look_up(words: str) -> str:
    """What is known."""
    return words


def prompting(seen: list[Any] | None = None, **options: Any) -> Any:
    """A run that prompts once, then waits for an event, and says what came of the prompt."""

    def run(event, step):
        try:
            given = {"prompt": "Triage this.", "output": Draft, **options}
            result: Any = step.prompt("triage", **given)
        except ThinkPromptError as error:
            result = error
        if seen is not None:
            seen.append(result)
        step.wait_for_event("go", type="go")
        return [type(result).__name__, *map(str, getattr(result, "args", ()))]

    return run


def submission(t: ThinkTest, key: str = KEY) -> Any:
    return submissions.get_by_key(t.rt, DESK._ref, key)


def go_on(t: ThinkTest, workflow: Handle) -> None:
    """Let the run be replayed once more."""
    workflow.send("go")
    t.run_until_idle()


def forget_journal(t: ThinkTest) -> None:
    """As after a restore of the workflow's rows: the submission is there, its entry is not."""
    t.rt.db.transact(lambda tx: tx.conn.exec_driver_sql("DELETE FROM think_steps"))


class TestAnswer:
    def test_the_way_of_an_answer(self, t: ThinkTest):
        """A2, A18: `:submit` → the turn → news → delivered → `:wait` → a Draft, on the first pass and on replay."""
        seen: list[Any] = []
        t.script(Desk, answer('{"title": "Crash", "price": 1.10}'))

        workflow = begin(t, prompting(seen))
        assert workflow.keys == [("triage:submit", "done"), ("triage:wait", "done"), ("go", "waiting")]
        go_on(t, workflow)

        assert seen == [Draft(title="Crash", price=Decimal("1.10"))] * 2
        assert str(seen[1].price) == "1.10"
        assert workflow.status == "complete"

    def test_where_everything_is_kept(self, t: ThinkTest):
        """A8, A20, A21, A22: key, schema, metadata, fingerprint with the submission; the output only in the event."""
        t.script(Desk, answer({"title": "Crash"}))

        workflow = begin(t, prompting(max_steps=2))
        row = submission(t)
        news = t.rt.db.read(lambda tx: outbox_rows.of_submission(tx, row.id))
        stored = row.metadata["workflow"]

        assert row.structure["max_steps"] == 2
        assert row.structure["schema"]["required"] == ["title"]
        assert stored == {"workflow": "Flow", "workflow_id": "w1", "run": 1, "step": "triage"}
        assert len(row.fingerprint) > 20
        assert row.event_type == EVENT_TYPE + short_hash(KEY)
        assert (news.status, news.payload) == ("delivered", None)
        assert "output" not in row._mapping
        assert [event.consumed_by for event in workflow.inbox] == ["triage:wait"]

    def test_its_news_comes_on_the_workflows_queue(self, t: ThinkTest):
        """The queue is read from the workflow's row, not from what users see with the submission."""
        t.script(Desk, answer({"title": "Crash"}))
        flow(prompting()).queue = "slow"

        start(t.rt, None)
        t.run_until_idle()

        news = t.rt.db.read(lambda tx: outbox_rows.of_submission(tx, submission(t).id))
        assert (news.status, news.queue) == ("delivered", "slow")

    def test_nothing_is_held_while_the_turn_waits(self, t: ThinkTest):
        """With no worker to run the turn, the workflow is a waiting row."""
        workflow = start(t.rt, prompting())
        assert workflow.advance().word == "parked"

        assert (workflow.status, workflow.row.process_id) == ("waiting", None)
        assert submission(t).status == "pending"

    @pytest.mark.parametrize(
        "point",
        [
            "step:triage:submit:before-commit",
            "step:triage:submit:committed",
            "outbox:stored",
            "outbox:before-delivery",
            "outbox:delivered",
            "step:triage:wait:looked",
            "step:triage:wait:committed",
            "workflow:before-park",
            "workflow:parked",
            "workflow:ended",
        ],
    )
    def test_a_crash_anywhere_asks_the_model_once(self, t: ThinkTest, point: str):
        """A18: whatever dies where, there is one submission and one answer. One request…

        …but for a crash before the turn's end is committed: then the model was asked for nothing that is stored.
        """
        model = t.script(Desk, answer({"title": "Crash"}), answer({"title": "Crash"}))
        t.crash_at(point)

        workflow = begin(t, lambda event, step: step.prompt("triage", prompt="x", output=Draft).title)
        t.skip("10 minutes")

        assert t.crashes == [point]
        assert workflow.output == "Crash"
        assert len(submissions.find(t.rt, DESK._ref)) == 1
        assert len(model.requests) == (2 if point == "outbox:stored" else 1)

    def test_lost_messages_cost_time_only(self, t: ThinkTest):
        """With every knock thrown away the tick finds each row."""
        t.script(Desk, answer({"title": "Crash"}))
        workflow = start(t.rt, lambda event, step: step.prompt("triage", prompt="x", output=Draft).title)
        for _ in range(20):
            t.lose_messages()
            t.skip(3)

        assert workflow.output == "Crash"


class TestNames:
    def test_one_name_twice_is_refused(self, t: ThinkTest):
        """A repeated name without `key` is an error at once that names the remedy; one turn was made."""
        model = t.script(Desk, answer({"title": "1"}))

        def run(event, step):
            step.prompt("triage", prompt="1", output=Draft)
            step.prompt("triage", prompt="2", output=Draft)

        workflow = begin(t, run)

        assert workflow.row.error_type == "DuplicateStep"
        assert "key=" in workflow.row.error
        assert len(model.requests) == 1

    def test_keys_tell_prompts_of_one_name_apart(self, t: ThinkTest):
        """A21: `key` for loops; a readable one shows in the journal, and its hash is in the idempotency key."""
        t.script(Desk, *(answer({"title": name}) for name in "abc"))
        keys = ["7", "a b", "x" * 300]

        def run(event, step):
            return [step.prompt("triage", prompt="p", output=Draft, key=key).title for key in keys]

        workflow = begin(t, run)

        assert workflow.output == ["a", "b", "c"]
        assert [step for step, _ in workflow.keys][::2] == [
            "triage[7]:submit",
            f"triage[{short_hash('a b')}]:submit",
            f"triage[{short_hash('x' * 300)}]:submit",
        ]
        assert submission(t, f"{KEY}:{short_hash('7')}").status == "completed"

    def test_the_same_key_twice_is_refused(self, quick: ThinkTest):
        """The same `key` again would be the first prompt again."""
        quick.script(Desk, answer({"title": "1"}))
        workflow = begin(
            quick,
            lambda event, step: [step.prompt("triage", prompt="p", output=Draft, key="k") for _ in range(2)],
        )

        assert workflow.row.error_type == "DuplicateStep"

    def test_a_colon_in_a_name_makes_no_other_prompts_key(self, t: ThinkTest):
        """Two runs whose ids and step names have the same text when joined have keys of their own."""
        t.script(Desk, answer({"title": "1"}), answer({"title": "2"}))

        def run(event, step):
            return step.prompt(event.payload["name"], prompt="p", output=Draft).title

        first = begin(t, run, {"name": "b:c"}, id="a")
        second = start(t.rt, None, {"name": "c"}, id="a:b")
        t.run_until_idle()

        assert (first.output, second.output) == ("1", "2")

    def test_another_text_is_the_same_prompt_and_is_logged(self, t: ThinkTest, caplog):
        """A22: the text is not in the key; a differing fingerprint is logged, and the first submission stands."""
        model = t.script(Desk, answer({"title": "1"}))
        workflow = start(t.rt, prompting(prompt="first text"))
        workflow.advance()
        forget_journal(t)
        flow(prompting(prompt="second text"))

        with caplog.at_level(logging.WARNING):
            go_on(t, workflow)

        assert workflow.output[0] == "Draft"
        assert [message.text for request in model.requests for message in request.messages] == ["first text"]
        assert "was submitted before with another text" in caplog.text

    def test_the_fingerprint_tells_what_was_asked(self, t: ThinkTest, monkeypatch: pytest.MonkeyPatch):
        """A22: text, schema, steps, tools and the agent's class: another one of these is another fingerprint; nothing
        else is. It is found with the submission, beside the step that asked."""
        t.use_model(FunctionModel(lambda request: answer({"title": "1"})))
        asked: dict[str, tuple[dict[str, Any], list[Any]]] = {
            "first": ({}, []),
            "again": ({"timeout": 60, "key": "k"}, []),
            "of another agent": ({"agent": Desk("back")}, []),
            "text": ({"prompt": "Triage that."}, []),
            "schema": ({"output": Picky}, []),
            "steps": ({"max_steps": 3}, []),
            "tools": ({}, [look_up]),
            "class": ({"agent": Enumerator("front")}, []),
        }
        found: dict[str, str] = {}
        for name, (options, tools) in asked.items():
            monkeypatch.setattr(Desk, "get_tools", lambda self, tools=tools: tools)
            begin(t, prompting(**options), id=name)
            for made in options.get("agent", DESK).list_submissions():
                assert made.metadata is not None
                found[made.metadata["workflow"]["workflow_id"]] = made.fingerprint

        same = {found.pop(name) for name in ("first", "again", "of another agent")}
        assert len(same) == 1
        assert len({*found.values()} | same) == 1 + len(found) == 6


class TestRefusedBefore:
    @pytest.mark.parametrize("output", [int, list[str], dict[str, int], object])
    def test_what_has_no_schema_submits_nothing(self, t: ThinkTest, output: Any):
        """A12: UnsupportedSchema when the step is created; no submission is made, nothing is recorded."""
        workflow = begin(t, prompting(output=output))

        assert workflow.row.error_type == "UnsupportedSchema"
        assert f"output={output.__name__ if isinstance(output, type) else output}: " in workflow.row.error
        assert workflow.keys == []
        assert submission(t) is None

    @pytest.mark.parametrize(
        "options",
        [{"key": ""}, {"key": 5}, {"max_steps": 0}, {"timeout": "soon"}, {"prompt": ""}, {"prompt": []}],
    )
    def test_unfit_arguments_submit_nothing(self, quick: ThinkTest, options: dict[str, Any]):
        """A bad argument is an error of the call."""
        workflow = begin(quick, prompting(**options))

        assert workflow.status == "errored"
        assert workflow.keys == []
        assert submission(quick) is None


class TestOtherEnds:
    def check(self, t: ThinkTest, seen: list[Any], workflow: Handle, kind: type, status: str) -> Any:
        """What every failed prompt shows: the same error on replay, with its fields."""
        go_on(t, workflow)
        first, replayed = seen
        assert type(first) is type(replayed) is kind
        assert first.args == replayed.args
        assert (first.submission_id, first.status) == (submission(t).id, status)
        assert (first.workflow_id, first.step) == ("w1", "triage")
        return first

    @pytest.mark.parametrize(
        ("given", "kind"),
        [
            (answer({}), ThinkPromptValidationError),
            (answer("not json"), ThinkPromptValidationError),
            (answer({"title": 5}), ThinkPromptValidationError),
            (say("Just a crash."), ThinkPromptError),
            (fail("mock says 400"), ThinkPromptError),
        ],
    )
    def test_the_turn_fails(self, t: ThinkTest, given: Any, kind: type):
        """A13, A17, A19: invalid or no final answer, or a model error: typed, and never repaired silently."""
        seen: list[Any] = []
        model = t.script(Desk, given)

        workflow = begin(t, prompting(seen))
        error = self.check(t, seen, workflow, kind, "error")

        assert len(model.requests) == 1
        assert error.reason == submission(t).error

    def test_the_model_refuses_what_the_schema_can_not_say(self, t: ThinkTest):
        """A11: the answer fits the schema, and the original model refuses it in the turn, with the path."""
        seen: list[Any] = []
        t.script(Desk, answer({"title": "too long"}))

        workflow = begin(t, prompting(seen, output=Picky))
        error = self.check(t, seen, workflow, ThinkPromptValidationError, "error")

        assert "title: Value error, longer than 3" in error.reason

    def test_or_on_resume(self, t: ThinkTest):
        """A11: where the turn's process does not know the type, the turn completes; the workflow refuses it."""

        class Local(Picky):
            """No other process can import it."""

        seen: list[Any] = []
        t.script(Desk, answer({"title": "too long"}))

        workflow = begin(t, prompting(seen, output=Local))
        error = self.check(t, seen, workflow, ThinkPromptValidationError, "completed")

        assert "title: Value error, longer than 3" in error.reason

    def test_what_was_refused_stays_refused(self, t: ThinkTest):
        """The refusal is recorded: a model that would take the answer today does not turn the replay round."""
        seen: list[Any] = []
        t.script(Desk, answer({"title": "too long"}))
        workflow = begin(t, prompting(seen, output=Picky))
        flow(prompting(seen, output=Draft))
        go_on(t, workflow)

        assert [type(each) for each in seen] == [ThinkPromptValidationError] * 2

    def test_a_model_that_changed_refuses_a_recorded_answer(self, t: ThinkTest):
        """A11: a recorded answer is validated on every resume."""
        seen: list[Any] = []
        t.script(Desk, answer({"title": "long enough"}))
        workflow = begin(t, prompting(seen))
        flow(prompting(seen, output=Picky))
        go_on(t, workflow)

        assert [type(each) for each in seen] == [Draft, ThinkPromptValidationError]

    def test_cancelled_by_hand(self, t: ThinkTest):
        """A19: ThinkPromptAbortedError with the reason that was given."""
        seen: list[Any] = []
        workflow = start(t.rt, prompting(seen))
        workflow.advance()
        DESK.cancel_submission(submission(t).id, "changed my mind")
        t.run_until_idle()

        error = self.check(t, seen, workflow, ThinkPromptAbortedError, "aborted")
        assert error.reason == "changed my mind"

    def test_without_a_reason(self, t: ThinkTest):
        """The default text is `Think prompt was aborted`."""
        seen: list[Any] = []
        workflow = start(t.rt, prompting(seen))
        workflow.advance()
        DESK.cancel_submission(submission(t).id)
        t.run_until_idle()

        assert (
            self.check(t, seen, workflow, ThinkPromptAbortedError, "aborted").reason
            == "Think prompt was aborted"
        )

    def test_the_conversation_is_reset(self, t: ThinkTest):
        """Queued when the chat is cleared: ThinkPromptSkippedError."""
        seen: list[Any] = []
        workflow = start(t.rt, prompting(seen))
        workflow.advance()
        conversation.reset(t.rt, DESK._ref)
        t.run_until_idle()

        error = self.check(t, seen, workflow, ThinkPromptSkippedError, "skipped")
        assert error.reason == conversation.SKIPPED_BY_RESET

    def test_not_caught_it_is_the_runs_error(self, t: ThinkTest):
        """Type and text are two fields."""
        t.script(Desk, fail("mock says 400"))
        workflow = begin(t, lambda event, step: step.prompt("triage", prompt="x", output=Draft))

        assert (workflow.status, workflow.row.error_type) == ("errored", "ThinkPromptError")
        assert "mock says 400" in workflow.row.error


class TestTimeout:
    def test_it_cancels_the_turn(self, t: ThinkTest):
        """A23: the submission is aborted in the same transaction; its own news is not news."""
        seen: list[Any] = []
        workflow = start(t.rt, prompting(seen, timeout=10))
        workflow.advance()
        t.lose_messages()
        t.clock.advance(timedelta(seconds=11))
        workflows.wake_due(t.rt, 10)
        workflow.advance()
        row = submission(t)
        news = t.rt.db.read(lambda tx: outbox_rows.of_submission(tx, row.id))

        assert (row.status, row.error) == ("aborted", "Workflow prompt wait timed out")
        assert news.status == "dropped"
        go_on(t, workflow)
        first, replayed = seen
        assert type(first) is ThinkPromptTimeoutError
        assert isinstance(first, WorkflowTimeoutError)
        assert first.args == replayed.args
        assert (first.status, first.seconds) == ("aborted", 10.0)
        assert [event.type for event in workflow.inbox] == ["go"]

    def test_or_lets_it_go_on(self, t: ThinkTest):
        """A23: `cancel_on_timeout=False`: the turn goes on to its own end; its late news is not taken."""
        seen: list[Any] = []
        t.script(Desk, answer({"title": "late"}))
        workflow = start(t.rt, prompting(seen, timeout=10, cancel_on_timeout=False))
        workflow.advance()
        t.lose_messages()
        t.clock.advance(timedelta(seconds=11))
        workflows.wake_due(t.rt, 10)
        workflow.advance()

        assert seen[0].status == submission(t).status == "pending"
        t.skip(10)
        assert submission(t).status == "completed"
        go_on(t, workflow)
        assert workflow.output[0] == "ThinkPromptTimeoutError"

    @pytest.mark.parametrize("cancel", [True, False])
    def test_an_answer_that_is_there_counts(self, t: ThinkTest, cancel: bool):
        """At the deadline a terminal submission's news is taken from the outbox there and then."""
        seen: list[Any] = []
        t.script(Desk, answer({"title": "in time"}))
        workflow = start(t.rt, prompting(seen, timeout=10, cancel_on_timeout=cancel))
        workflow.advance()
        claims.run(t.rt, submission(t).id)
        t.lose_messages()
        t.clock.advance(timedelta(days=2))
        workflows.wake_due(t.rt, 10)
        workflow.advance()
        row = t.rt.db.read(lambda tx: outbox_rows.of_submission(tx, submission(t).id))

        assert seen == [Draft(title="in time")]
        assert (row.status, row.payload) == ("delivered", None)
        assert outbox.deliver(t.rt, row.id).word == "ended-before"
        assert len(workflow.inbox) == 1

    def test_one_in_the_inbox_counts_however_late_it_came(self, t: ThinkTest):
        """The same for news that was delivered after the deadline, before the run woke."""
        seen: list[Any] = []
        t.script(Desk, answer({"title": "late"}))
        workflow = start(t.rt, prompting(seen, timeout=10))
        workflow.advance()
        t.lose_messages()
        t.clock.advance(timedelta(days=2))
        claims.run(t.rt, submission(t).id)
        t.run_until_idle()

        assert seen == [Draft(title="late")]

    @pytest.mark.parametrize("point", ["step:triage:wait:looked", "step:triage:wait:committed"])
    def test_a_crash_at_the_deadline_times_out_once(self, t: ThinkTest, point: str):
        """The cancel and the recorded timeout are one transaction; taken news survives a crash before it is used."""
        seen: list[Any] = []
        t.script(Desk, answer({"title": "in time"}))
        workflow = start(t.rt, prompting(seen, timeout=10))
        workflow.advance()
        claims.run(t.rt, submission(t).id)
        t.lose_messages()
        t.clock.advance(timedelta(seconds=20))
        t.crash_at(point)
        t.skip("1 minute")

        assert t.crashes == [point]
        assert workflow.keys[1] == ("triage:wait", "done")
        assert seen[-1] == Draft(title="in time")


class TestNewsThatIsGone:
    def test_a_submission_that_another_made_is_not_waited_for(self, t: ThinkTest):
        """Where the end of the key's submission can't reach this run, the prompt raises and names it."""
        t.script(Desk, say("Done."))
        made, _ = t.rt.db.transact(
            lambda tx: submissions.accept(
                t.rt, tx, DESK._ref, submissions.as_messages("x"), kind="submit", idempotency_key=KEY
            )
        )
        t.run_until_idle()
        seen: list[Any] = []

        workflow = begin(t, prompting(seen))
        go_on(t, workflow)

        assert [type(error) for error in seen] == [ThinkPromptError] * 2
        assert seen[0].args == seen[1].args
        assert seen[0].submission_id == made.id
        assert workflow.keys[0] == ("triage:submit", "failed")

    def test_nor_one_whose_news_was_taken(self, t: ThinkTest):
        """The same when the news came to this run and is used up."""
        t.script(Desk, answer({"title": "1"}))
        workflow = begin(t, prompting())
        forget_journal(t)
        go_on(t, workflow)

        assert workflow.keys[0] == ("triage:submit", "failed")
        assert submission(t).id in workflow.journal[0].error

    def test_one_that_still_comes_is_waited_for(self, t: ThinkTest):
        """A submission of this run that has not ended, or whose news is still under way, is simply waited for."""
        model = t.script(Desk, answer({"title": "1"}))
        workflow = start(t.rt, prompting())
        workflow.advance()
        forget_journal(t)
        t.run_until_idle()
        go_on(t, workflow)

        assert workflow.output[0] == "Draft"
        assert len(model.requests) == 1
