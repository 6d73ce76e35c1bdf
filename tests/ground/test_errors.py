"""Every error: its fields survive pickle and JSON, its text says what happened and what to do."""

import copy
import inspect
import json
import pickle
import re
from typing import Any

import pytest

from think_celery import errors

PROMPT = ("s-1", "error", "w-1", "triage", "no model")

SAMPLES: dict[str, tuple[tuple[Any, ...], str]] = {
    # name: (its arguments, what its text must tell the reader to do or where to look)
    "NotConfigured": ((), "think = ThinkCelery(celery_app)"),
    "InvalidSetting": (
        ("think_lease", "1", "it must be 3 seconds or more."),
        "it must be 3 seconds or more.",
    ),
    "DuplicateName": (("agent", "Triage", ("a.b", "c.d")), 'class Triage(…, name="…")'),
    "AsyncNotSupported": (("The tool 'x'",), "plain `def`"),
    "InvalidClass": (("Triage", "it lacks x", "Write one."), "Write one."),
    "UnknownClass": (("agent", "Triage", ("Other",)), "think_imports"),
    "UnknownScheduledTask": (("Digest('a')", "report"), "reconcile_scheduled_tasks()"),
    "MissingExtra": (("PostgreSQL", "postgres"), "pip install 'think-celery[postgres]'"),
    "SchemaOutdated": ((None, "3"), "think-celery db upgrade"),
    "CannotJoin": (("it is no connection; pass one",), "pass one"),
    "NoModel": (("openai/x", "set think_openai_api_key"), "set think_openai_api_key"),
    "InvalidTool": (("x", "it is odd", "Change it."), "Change it."),
    "InvalidType": (("idempotency_key=77: pass a text.",), "pass a text"),
    "InvalidMessage": (("messages[0]", "int is no message"), 'dict such as {"role": "user"'),
    "InvalidDuration": (("'soon'",), '"3 days"'),
    "InvalidSchedule": (
        ("schedule='soon'", "it can't be read", 'Write "every hour".'),
        'Write "every hour".',
    ),
    "NotSerializable": (("result.a", "a set has no JSON form", "Return sorted(…)."), "Return sorted(…)."),
    "UnreadableValue": (("A stored a:B", "it is gone"), "Keep the names"),
    "PayloadTooLarge": (("The payload", 2_000_000, 1_048_576), "raise the setting"),
    "InvalidToolArguments": (("look_up", ("order: required",)), "Call it again"),
    "InvalidToolResult": (("object", "unknown type"), "Return JSON values"),
    "UnsupportedSchema": (("int", "it is no model"), "class Answer(pydantic.BaseModel):"),
    "EmptySubmission": ((), "Pass at least one message"),
    "SubmissionConflict": (("s-1", "key", "they name two submissions"), "pass only one of the two"),
    "SubmissionNotFound": (("s-1",), "Check the id"),
    "ModelError": (("the server said no",), "the server said no"),
    "ModelAborted": (("stopped",), "stopped"),
    "NoFinalAnswer": (("think_final_answer",), "another model may be needed"),
    "InvalidFinalAnswer": ((("total: 'x' is not a number",),), "loosen the output type"),
    "NothingToAnswer": ((), "Submit a new message"),
    "TurnTimeout": ((3600.0,), "raise the setting"),
    "ChainTooLong": (("Asker('a')", 50), "max_chained_turns"),
    "InteractionNotFound": (("Helpdesk('42')", "call_1"), "pending_interactions()"),
    "InteractionMismatch": (
        ("call_1", "it waits for an approval", "Call approve_tool_call()."),
        "Call approve_tool_call().",
    ),
    "TurnStillRunning": (("s-1", 2.0), "wait_for_submission(submission_id)"),
    "NestedTurn": (("save_messages()", ("A('a')", "B('b')", "A('a')")), "A('a') → B('b') → A('a')"),
    "ConversationMoved": ((), "calls the function again"),
    "StateContended": (("TriageAgent('issue-42')", 200), "sooner"),
    "TooManyAttempts": (("Submission s-1", 5), "workers' logs"),
    "NoProgress": (("Submission s-1", 90.0, 60.0), "allow more time"),
    "StepError": (("charge", "PaymentDeclined", "no funds", 3), "PaymentDeclined: no funds"),
    "NonRetryableError": (("no such card",), "no such card"),
    "DuplicateStep": (("triage", "w-1"), "key=item_id"),
    "ReplayMismatch": (("w-1", 2, "step 'a'", "step 'b'"), "step.do()"),
    "InvalidJournal": (("journals/a.json", "it is no JSON"), "think-celery workflows export"),
    "SuspendSwallowed": (("w-1", "wait"), "Catch `Exception` instead"),
    "StepMisuse": (("a", "it is within step 'b'; call it after."), "call it after"),
    "WorkflowNotFound": (("w-1", "Triage"), "run_workflow()"),
    "AmbiguousWorkflow": (("w-1", ("A", "B")), "workflow=…"),
    "WorkflowExists": (("Triage", "w-1"), "Leave it out"),
    "WorkflowRejectedError": (("approval", "too dear"), "too dear"),
    "WorkflowTimeoutError": (("approval", 60.0), "timeout="),
    "ThinkPromptError": (PROMPT, "no model"),
    "ThinkPromptAbortedError": (PROMPT, "no model"),
    "ThinkPromptSkippedError": (PROMPT, "no model"),
    "ThinkPromptValidationError": (PROMPT, "no model"),
    "ThinkPromptTimeoutError": ((*PROMPT, 60.0), "no model"),
    "InvalidMethod": (("queue()", "A.b", "it is odd", "Pass self.my_method."), "Pass self.my_method"),
    "JobNotFound": (("j-1",), "Check the id"),
    "JobTimeout": ((60.0,), "it may still be running"),
    "JobStillRunning": (("j-1", 5.0), "think-celery doctor"),
    "NestedJob": (("wait_for_job()", "j-2", "j-1"), "'j-2' begins when job 'j-1' has ended"),
    "NotInFiber": (("stash()",), "start_fiber()"),
    "JobFailed": (("job j-1", "ValueError"), "ValueError"),
    "LeaseLost": (("Submission s-1",), "think_lease"),
    "InsideTransaction": (("save_messages()",), "Call it after the transaction"),
    "TaskFailed": (("submission s-1", "ModelError"), "ModelError"),
    "TaskInterrupted": (("submission s-1", "OperationalError"), "tried again by itself"),
    "TurnFailed": (("submission s-1", "ModelError"), "ModelError"),
    "WorkflowFailed": (("workflow w-1", "StepError"), "StepError"),
    "CallTimeout": ((60.0,), "it may still be running"),
    "StepTimeout": ((60.0,), "it may still be running"),
    "TransactionTooLong": ((7.5, 5.0), "Do slow work in a step.do before it"),
    "ChildWorkflowError": (
        ("pack", "Pack", "w-2", "errored", "KeyError", "'box'"),
        "child workflow Pack 'w-2'",
    ),
    "ChildWorkflowTimeoutError": (("pack", "Pack", "w-2", "running", 60.0), "its parent waited 60 s"),
    "InvalidApproval": (("'approved' is missing",), '{"approved": true}'),
    "Suspend": (("wait",), "wait"),
    "TurnCancelled": (("by the user",), "by the user"),
}

FAMILIES = {
    "ThinkError",
    "ConfigurationError",
    "InvalidValue",
    "SubmissionError",
    "TurnError",
    "JobError",
    "InteractionError",
    "WorkflowError",
    "Unwind",
}

CLASSES = {
    name: item
    for name, item in vars(errors).items()
    if inspect.isclass(item)
    and issubclass(item, BaseException)
    and item.__module__.startswith(errors.__name__)
}


def fields(error: BaseException) -> dict[str, Any]:
    return {name: value for name, value in vars(error).items() if not name.startswith("_")}


def test_every_error_is_tried_here():
    """A new error must get its row above."""
    assert set(CLASSES) - FAMILIES == set(SAMPLES)


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes():
    """The docstring draws every class, once in each place where it belongs, and none that isn't there."""
    drawn = list[tuple[str, str]]()
    parents: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        branch = re.match(r"    ((?:│   |    |├── |└── )*)([A-Z]\w+(?:, [A-Z]\w+)*)", line)
        if branch is None:
            continue
        depth = len(branch[1]) // 4
        names = branch[2].split(", ")
        drawn += [(name, parents[depth - 1]) for name in names] if depth else []
        parents[depth:] = [names[-1]]

    real = [
        (name, base.__name__)
        for name, item in CLASSES.items()
        for base in item.__bases__
        if base.__name__ in CLASSES or base is BaseException
    ]
    assert sorted(drawn) == sorted(real)


@pytest.mark.parametrize("name", SAMPLES)
class TestEachError:
    def made(self, name: str) -> BaseException:
        return CLASSES[name](*SAMPLES[name][0])

    def test_its_fields_survive_pickle_copy_and_celerys_json(self, name):
        """The arguments are the fields, so the class called with them again is the same error."""
        error = self.made(name)

        returned = [
            pickle.loads(pickle.dumps(error)),
            copy.copy(error),
            CLASSES[name](*json.loads(json.dumps(error.args))),  # what Celery's JSON backends do
        ]

        for other in returned:
            assert type(other) is type(error)
            assert fields(other) == fields(error)
            assert str(other) == str(error)

    def test_its_text_says_what_happened_and_what_to_do(self, name):
        """What happened, with the ids to look for; then the rule; then what to do."""
        arguments, remedy = SAMPLES[name]

        text = str(self.made(name))

        assert remedy in text
        assert "None" not in text
        for argument in arguments:
            if isinstance(argument, str):
                assert argument in text or name.startswith("ThinkPrompt")
        assert not re.search(r"\.\.|\w {2,}\w", text)

    def test_except_exception_catches_it_unless_it_unwinds(self, name):
        """What unwinds must pass a user's `except Exception`; all others must not."""
        error = self.made(name)

        assert isinstance(error, errors.ThinkError) is not isinstance(error, errors.Unwind)
        assert isinstance(error, Exception) is isinstance(error, errors.ThinkError)


def test_a_model_errors_keywords_survive_pickle():
    """Whether it may be retried, and after how long, decides what the turn does next."""
    error = errors.ModelError("busy", retryable=True, status_code=429, retry_after_seconds=2.5)

    returned = pickle.loads(pickle.dumps(error))

    assert (returned.message, returned.retryable) == ("busy", True)
    assert (returned.status_code, returned.retry_after_seconds) == (429, 2.5)


def test_a_step_error_is_compared_by_name():
    """The original class may not be there when it is read from the journal."""

    class PaymentDeclined(Exception):
        pass

    error = errors.StepError("charge", "PaymentDeclined", "no funds", 1)

    assert error.is_a(PaymentDeclined)
    assert not error.is_a(ValueError)
    assert "once" in str(error)


def test_texts_without_their_optional_fields_read_well():
    """No `None` in a sentence."""
    for error in [
        errors.NoModel(None, "name one"),
        errors.UnknownClass("agent", "Triage", ()),
        errors.WorkflowNotFound("w-1"),
        errors.WorkflowRejectedError("approval", None),
        errors.InvalidToolArguments(None, ["x"]),
        errors.InvalidSetting("think_x", "", "there is no such setting."),
    ]:
        assert "None" not in str(error)
        assert "  " not in str(error)
