"""``step.prompt``: a turn of an agent whose answer a workflow waits for.

Two entries: ``<name>:submit`` is stored with the submission in one transaction, ``<name>:wait`` ends with
the news of its terminal status, which comes through the outbox into the inbox. ``step.start_prompt`` stores both at
once and goes on; ``gather`` and ``wait_any`` end the second one.
"""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from think_celery import schemas, serialization
from think_celery.classes import name_if_loaded
from think_celery.domain.agents import hooks
from think_celery.domain.steps.combinators import Open
from think_celery.domain.steps.waits import Found, Settled, Wait, wait, waited_seconds
from think_celery.domain.submissions import submissions
from think_celery.domain.turns.capabilities import check_output
from think_celery.domain.workflows import inbox
from think_celery.domain.workflows.journal import Asked, Failure, failure_of, own_failure
from think_celery.domain.workflows.replay import Replay, asked_agent
from think_celery.durations import Duration, as_timedelta
from think_celery.errors import (
    DuplicateStep,
    PayloadTooLarge,
    StepMisuse,
    ThinkPromptAbortedError,
    ThinkPromptError,
    ThinkPromptSkippedError,
    ThinkPromptTimeoutError,
    ThinkPromptValidationError,
)
from think_celery.ids import AgentRef, key_part, short_hash
from think_celery.messages import Messages, as_messages
from think_celery.states import OutboxStatus, StepStatus, SubmissionStatus, TurnKind, is_terminal
from think_celery.store import events, outbox, steps
from think_celery.store import submissions as submission_rows
from think_celery.store.control import PROMPT as SUBMIT
from think_celery.store.database import Tx
from think_celery.wording import shown

logger = logging.getLogger("think_celery.workflows")

TIMED_OUT = "Workflow prompt wait timed out"
ABORTED = "Think prompt was aborted"
SKIPPED = "Think prompt was skipped"
GONE = (
    "its idempotency key belongs to a submission whose news does not come to this run any more: it was taken "
    "before, or the submission was not made by this run. Give the prompt another name or `key`"
)
EVENT_TYPE = "think-prompt-"
WAIT, OPEN = "prompt-wait", "prompt-open"
"""The kinds of the entries of the waiting, at once or later; that of the submitting is ``SUBMIT``."""

_READABLE_KEY = re.compile(r"[\w.@-]{1,40}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One prompt, ready to be submitted."""

    label: str
    key: str
    messages: list[Any]
    output: Any
    schema: dict[str, Any]
    max_steps: int | None
    output_retries: int
    agent: AgentRef
    timeout: timedelta | None
    cancel_on_timeout: bool

    @property
    def event_type(self) -> str:
        """The type of the event that carries its news."""
        return EVENT_TYPE + short_hash(self.key)


def ready(
    replay: Replay,
    name: str,
    *,
    prompt: Messages,
    output: Any,
    timeout: Duration | None,
    key: str | None,
    cancel_on_timeout: bool,
    max_steps: int | None,
    output_retries: int,
    agent: Any,
) -> Prompt:
    """A prompt that may be submitted. Raises what ``Step.prompt`` raises for what is unfit, and nothing is recorded."""
    replay.check(name)
    if key is not None and (not isinstance(key, str) or not key):
        raise StepMisuse(name, f"key={shown(key)}: a key is a text that is not empty, such as an item's id.")
    if max_steps is not None and (
        isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1
    ):
        raise StepMisuse(name, f"max_steps={shown(max_steps)}: it must be a whole number, 1 or more.")
    if isinstance(output_retries, bool) or not isinstance(output_retries, int) or output_retries < 0:
        raise StepMisuse(
            name, f"output_retries={shown(output_retries)}: it must be a whole number, 0 or more."
        )
    if (name, key) in replay.prompts:
        raise DuplicateStep(name, replay.workflow.workflow_id)
    whom = asked_agent(replay, name, agent)
    span = None if timeout is None else as_timedelta(timeout, "timeout")
    schema = schemas.output_schema(output)
    messages = as_messages(prompt)
    ready = Prompt(
        label=name if key is None else f"{name}[{key if _READABLE_KEY.fullmatch(key) else short_hash(key)}]",
        key=idempotency_key(replay, name, key),
        agent=whom,
        messages=messages,
        output=output,
        schema=schema,
        max_steps=max_steps,
        output_retries=output_retries,
        timeout=span,
        cancel_on_timeout=cancel_on_timeout,
    )
    if not replay.journal.holds(f"{ready.label}:submit", SUBMIT):
        asked = replay.rt.make_agent(whom.agent_class, whom.name)
        _check_budget(ready, asked)
        check_output(asked, schemas.type_text(output), schema)
    replay.prompts.add((name, key))
    return ready


def prompt(replay: Replay, prompt: Prompt) -> Any:
    """Let an agent answer, and return the answer; see ``Step.prompt``."""
    asked = replay.ask(f"{prompt.label}:submit", SUBMIT)
    submission_id = _submit(replay, asked, prompt)
    waiting = replay.ask(f"{prompt.label}:wait", WAIT)
    text = replay.recorded(waiting) or wait(replay, waiting, _awaited(replay, prompt, submission_id))
    return _answer(replay, waiting, prompt, submission_id, text)


def start(replay: Replay, prompt: Prompt) -> Open:
    """Let an agent answer, and go on at once; see ``Step.start_prompt``.

    The submission and both entries are one transaction: its time begins to run here.
    """
    asked = replay.ask(f"{prompt.label}:submit", SUBMIT)
    replay.recorded(asked)  # one that has failed has no second entry
    waiting = replay.ask(f"{prompt.label}:wait", OPEN)

    def open_too(tx: Tx) -> None:
        replay.must(steps.insert(tx, waiting.ref, StepStatus.WAITING, deadline=prompt.timeout))

    try:
        submission_id = _submit(replay, asked, prompt, also=open_too)
    except Exception:
        replay.journal.take_back(waiting)
        raise
    return Open(
        replay=replay,
        name=prompt.label,
        asked=waiting,
        what=_awaited(replay, prompt, submission_id),
        read=lambda text: _answer(replay, waiting, prompt, submission_id, text),
        subject=submission_id,
    )


def idempotency_key(replay: Replay, name: str, key: str | None) -> str:
    """The submission's key: ``think-workflow:<workflow>:<id>:<step>``, with a hash of *key* where there is one."""
    # The colons that tell the parts from each other are left in the id alone.
    workflow = replay.workflow
    parts = ["think-workflow", key_part(workflow.workflow), workflow.workflow_id, key_part(name)]
    return ":".join(parts if key is None else [*parts, short_hash(key)])


# --- :submit --------------------------------------------------------------------------------------


def _submit(replay: Replay, asked: Asked, ready: Prompt, also: Callable[[Tx], None] = lambda tx: None) -> str:
    """The id of the prompt's submission: recorded, or of the one that is accepted with its entry now.

    *also* is called in the transaction that accepts it.
    """
    text = replay.recorded(asked)
    if text is not None:
        return str(replay.value(asked, text)["submission_id"])
    replay.before_effect(asked)
    replay.go_to(asked, None)
    rt, workflow = replay.rt, replay.workflow
    agent = rt.make_agent(ready.agent.agent_class, ready.agent.name)
    fingerprint = _fingerprint(agent, ready)
    metadata = {
        "workflow": workflow.workflow,
        "workflow_id": workflow.workflow_id,
        "run": replay.run,
        "step": ready.label,
    }

    def store(tx: Tx, _: int) -> str | Failure:
        row, accepted = submissions.accept(
            rt,
            tx,
            ready.agent,
            ready.messages,
            kind=TurnKind.SUBMIT,
            idempotency_key=ready.key,
            metadata={"workflow": metadata},
            structure={
                "schema": ready.schema,
                "max_steps": ready.max_steps,
                "output_retries": ready.output_retries,
                "output": name_if_loaded(ready.output),
            },
            waiting=submissions.Waiting(
                workflow_key=workflow.key, run=replay.run, event_type=ready.event_type
            ),
            fingerprint=fingerprint,
            queue=type(agent).queue or rt.settings.queue,
        )
        if not accepted:
            _log_difference(replay, ready, row, fingerprint)
            if not _news_comes(tx, replay, ready, row):
                gone = own_failure(_ended(replay, ready, row.id, row.status, None, GONE))
                replay.must(steps.insert(tx, asked.ref, StepStatus.FAILED, attempts=1, **gone.columns()))
                return gone
        recorded = serialization.dumps({"submission_id": row.id}, what="the submission's id")
        replay.must(steps.insert(tx, asked.ref, StepStatus.DONE, output=recorded))
        also(tx)
        rt.failpoint(f"step:{asked.ref.step}:before-commit")
        return str(row.id)

    try:
        found = replay.write(asked, store)
    except PayloadTooLarge as error:
        replay.fail(asked, failure_of(error).for_good(), 1, recorded=False)
    rt.failpoint(f"step:{asked.ref.step}:committed")
    if isinstance(found, Failure):
        raise replay.failed(asked, found, 1)
    return found


def _check_budget(ready: Prompt, agent: Any) -> None:
    """Each answer takes a model step, the first one and each that follows a refused one."""
    if ready.output_retries and agent._overrides("on_chat_message"):
        raise StepMisuse(
            ready.label,
            f"output_retries={ready.output_retries}: {agent.agent_class} answers with a loop of its own, asked "
            "once. Leave output_retries out, and check the answer in that loop.",
        )
    if ready.output_retries and ready.output_retries >= (steps := ready.max_steps or agent.max_steps):
        raise StepMisuse(
            ready.label,
            f"output_retries={ready.output_retries} with max_steps={steps}: each answer takes a step, so max_steps "
            f"must be {ready.output_retries + 1} at least. Pass a greater max_steps, or fewer retries.",
        )


def _fingerprint(agent: Any, ready: Prompt) -> str:
    try:
        tools = sorted(tool.name for tool in hooks.all_tools(agent))
    except Exception:  # the turn will say so; this is for diagnosis only
        tools = []
    return serialization.fingerprint(
        {
            "messages": submissions.payload_fingerprint(ready.messages),
            "schema": ready.schema,
            "agent_class": agent.agent_class,
            "max_steps": ready.max_steps,
            "tools": tools,
        }
    )


def _log_difference(replay: Replay, ready: Prompt, row: Any, fingerprint: str) -> None:
    if row.fingerprint != fingerprint:
        logger.warning(
            "%s: prompt %r was submitted before with another text, schema or tools (submission %s); that one stands",
            replay.workflow,
            ready.label,
            row.id,
            extra={"think_event": "prompt.differs", "think_submission": row.id},
        )


def _news_comes(tx: Tx, replay: Replay, ready: Prompt, row: Any) -> bool:
    """Whether the end of a submission that was there already reaches this run."""
    if row.workflow_key != replay.workflow.key or row.workflow_run != replay.run:
        return False
    if row.event_type != ready.event_type:
        return False
    if not is_terminal(SubmissionStatus(row.status)):
        return True
    if events.first_unread(tx, replay.workflow.key, replay.run, ready.event_type) is not None:
        return True
    news = outbox.of_submission(tx, row.id)
    return news is not None and news.status == OutboxStatus.PENDING


# --- :wait ----------------------------------------------------------------------------------------


def _awaited(replay: Replay, ready: Prompt, submission_id: str) -> Wait:
    """What a prompt waits for."""
    return Wait(
        event_type=ready.event_type,
        timeout=ready.timeout,
        any_time=True,  # an answer that is there counts: what the deadline ends is the waiting for it
        read=lambda _, event: _judge(replay, ready, event),
        late=lambda tx, asked: _late(replay, tx, asked, ready, submission_id),
    )


def _answer(replay: Replay, asked: Asked, ready: Prompt, submission_id: str, text: str) -> Any:
    answer, problems = schemas.read_output(ready.output, replay.value(asked, text))
    if problems:  # recorded as valid; the class of today refuses it
        raise _invalid(replay, ready, submission_id, problems)
    return answer


def _judge(replay: Replay, ready: Prompt, event: Any) -> Settled:
    """How a submission's news ends the wait: with the answer's plain JSON, or with the error for its status."""
    news = serialization.loads(event.payload)
    submission_id, status = news["submission_id"], news["status"]
    if status != SubmissionStatus.COMPLETED:
        return own_failure(
            _ended(replay, ready, submission_id, status, news.get("error_type"), news.get("error"))
        )
    _, problems = schemas.read_output(ready.output, news["output"])
    if problems:
        return own_failure(_invalid(replay, ready, submission_id, problems))
    return serialization.dumps(news["output"], what="the answer")


def _ended(
    replay: Replay, ready: Prompt, submission_id: str, status: str, error_type: str | None, reason: str | None
) -> ThinkPromptError:
    cls, default = {
        SubmissionStatus.ABORTED.value: (ThinkPromptAbortedError, ABORTED),
        SubmissionStatus.SKIPPED.value: (ThinkPromptSkippedError, SKIPPED),
    }.get(status, (ThinkPromptError, "it ended without an answer"))
    if error_type == "InvalidFinalAnswer":
        cls = ThinkPromptValidationError
    return cls(submission_id, str(status), replay.workflow.workflow_id, ready.label, reason or default)


def _invalid(
    replay: Replay, ready: Prompt, submission_id: str, problems: list[str]
) -> ThinkPromptValidationError:
    reason = f"Think prompt returned invalid structured output: {'; '.join(problems)}"
    status = str(SubmissionStatus.COMPLETED)
    return ThinkPromptValidationError(submission_id, status, replay.workflow.workflow_id, ready.label, reason)


def _late(replay: Replay, tx: Tx, asked: Asked, ready: Prompt, submission_id: str) -> Settled | Found:
    """The deadline has passed: cancel the turn; if it has ended already, its answer counts.

    Nobody can deliver the news meanwhile: delivery locks the workflow's row first, and this transaction
    has it. So either it is in the inbox (and was found there), or it is in the outbox and is taken here.
    """
    if ready.cancel_on_timeout and submissions.cancel(replay.rt, tx, submission_id, TIMED_OUT):
        news = outbox.of_submission(tx, submission_id)
        if news is not None:
            outbox.settle(tx, news.id, OutboxStatus.DROPPED)
        status = str(SubmissionStatus.ABORTED)
    else:
        row = submission_rows.get(tx, submission_id)
        status = "deleted" if row is None else str(row.status)
        if row is not None and is_terminal(SubmissionStatus(row.status)):
            event = _take_news(replay, tx, ready, submission_id)
            if event is not None:
                return Found(event)
    seconds, workflow_id = waited_seconds(asked, ready.timeout), replay.workflow.workflow_id
    return own_failure(
        ThinkPromptTimeoutError(submission_id, status, workflow_id, ready.label, TIMED_OUT, seconds)
    )


def _take_news(replay: Replay, tx: Tx, ready: Prompt, submission_id: str) -> Any:
    news = outbox.of_submission(tx, submission_id)
    if news is None or news.status != OutboxStatus.PENDING or news.run != replay.run:
        return None
    inbox.take(replay.rt, tx, news)
    return events.first_unread(tx, replay.workflow.key, replay.run, ready.event_type)
