"""Run a turn for a caller who waits for its answer."""

from collections.abc import Callable
from typing import Any

from think_celery.domain.conversation import conversation
from think_celery.domain.submissions import submissions
from think_celery.domain.submissions.waiting import SaveMessagesResult, Wait
from think_celery.domain.turns import helping
from think_celery.durations import Duration
from think_celery.errors import ConversationMoved, InvalidValue
from think_celery.ids import AgentRef
from think_celery.messages import Messages, UIMessage, as_messages
from think_celery.runtime import Runtime
from think_celery.signals import AbortSignal
from think_celery.states import SubmissionStatus, TurnKind
from think_celery.store.database import Tx

CALL = "save_messages()"

MakeMessages = Callable[[list[UIMessage]], Messages]
"""Gets the conversation, and returns it with what is to be added."""


def save(
    rt: Runtime,
    agent: AgentRef,
    given: Messages | MakeMessages,
    *,
    idempotency_key: str | None = None,
    metadata: dict[str, Any] | None = None,
    timeout: Duration | None = None,
    signal: AbortSignal | None = None,
    queue: str | None = None,
) -> SaveMessagesResult:
    """Accept a turn, wait until it has ended, and say how. See ``Think.save_messages``."""
    submissions.check_names(idempotency_key, None)
    if callable(given) and idempotency_key is not None:
        raise InvalidValue(
            "save_messages() takes no idempotency_key with a function: what it makes depends on the conversation, so "
            "no two calls ask for the same. Pass the messages themselves, or leave the key out."
        )
    wait = Wait(rt, agent, CALL, timeout=timeout, signal=signal)
    with wait.declared():  # before anything is stored
        _admit(agent)
        if callable(given):
            return _by_function(wait, given, metadata=metadata, queue=queue)
        messages = as_messages(given)
        return wait.result(
            _accept(wait, messages, idempotency_key=idempotency_key, metadata=metadata, queue=queue)
        )


def continue_last(
    rt: Runtime,
    agent: AgentRef,
    *,
    metadata: dict[str, Any] | None = None,
    timeout: Duration | None = None,
    signal: AbortSignal | None = None,
    queue: str | None = None,
) -> SaveMessagesResult:
    """Go on with the last answer, wait until that has ended, and say how. See ``Think.continue_last_turn``."""
    call = "continue_last_turn()"
    wait = Wait(rt, agent, call, timeout=timeout, signal=signal)
    with wait.declared():
        _admit(agent)
        return wait.result(_accept(wait, [], kind=TurnKind.CONTINUE, metadata=metadata, queue=queue))


def _admit(agent: AgentRef) -> None:
    """Count one more turn that an own hook asks for."""
    hook = helping.own_hook(agent.id)
    if hook is not None:
        hook.admit()


def _by_function(wait: Wait, function: MakeMessages, **options: Any) -> SaveMessagesResult:
    """The turn with what *function* adds to the conversation, as it is when the turn begins."""
    while True:
        transcript = conversation.history(wait.rt, wait.agent, finished_only=True)
        based_on = conversation.fingerprint(transcript)
        given = as_messages(function(list(transcript)))
        known = {message.id for message in transcript}
        new = [message for message in given if message.id not in known]
        result = wait.result(_accept(wait, new, based_on=based_on, **options))
        moved = result.status is SubmissionStatus.SKIPPED and result.error_type == ConversationMoved.__name__
        if not moved or wait.left == 0 or (wait.signal is not None and wait.signal.aborted):
            return result


def _accept(wait: Wait, messages: list[UIMessage], *, kind: TurnKind = TurnKind.SAVE, **options: Any) -> str:
    accepted: list[str] = []

    def work(tx: Tx) -> None:
        row, new = submissions.accept(wait.rt, tx, wait.agent, messages, kind=kind, **options)
        if not new:
            submissions.warn_if_other(row, submissions.payload_fingerprint(messages))
        accepted[:] = [row.id]
        if wait.signal is not None and wait.signal.aborted:  # its turn never begins
            submissions.cancel(wait.rt, tx, row.id, wait.signal.reason)

    with wait.cancelling(accepted):  # an eager task runs the turn in here
        wait.rt.db.transact(work)
    return accepted[0]
