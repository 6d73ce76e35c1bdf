"""Run a turn for a caller who waits for its answer."""

from collections.abc import Callable

from think_celery.domain import conversation, helping, submissions
from think_celery.domain.waiting import SaveMessagesResult, Wait
from think_celery.durations import Duration
from think_celery.errors import ConversationMoved
from think_celery.ids import AgentRef
from think_celery.messages import Messages, UIMessage, as_messages
from think_celery.runtime import Runtime
from think_celery.signals import AbortSignal
from think_celery.states import SubmissionStatus
from think_celery.store.database import Tx

CALL = "save_messages()"

MakeMessages = Callable[[list[UIMessage]], Messages]
"""Gets the conversation, and returns it with what is to be added."""


def save(
    rt: Runtime,
    agent: AgentRef,
    given: Messages | MakeMessages,
    *,
    timeout: Duration | None = None,
    signal: AbortSignal | None = None,
    queue: str | None = None,
) -> SaveMessagesResult:
    """Accept a turn, wait until it has ended, and say how. See ``Think.save_messages``."""
    wait = Wait(rt, agent, CALL, timeout=timeout, signal=signal)
    with wait.declared():  # before anything is stored
        _admit(agent)
        if callable(given):
            return _by_function(wait, given, queue)
        return wait.result(_accept(wait, as_messages(given), queue, based_on=None))


def continue_last(
    rt: Runtime,
    agent: AgentRef,
    *,
    timeout: Duration | None = None,
    signal: AbortSignal | None = None,
    queue: str | None = None,
) -> SaveMessagesResult:
    """Go on with the last answer, wait until that has ended, and say how. See ``Think.continue_last_turn``."""
    call = "continue_last_turn()"
    wait = Wait(rt, agent, call, timeout=timeout, signal=signal)
    with wait.declared():
        _admit(agent)
        return wait.result(_accept(wait, [], queue, based_on=None, kind="continue"))


def _admit(agent: AgentRef) -> None:
    """Count one more turn that an own hook asks for."""
    hook = helping.own_hook(agent.id)
    if hook is not None:
        hook.admit()


def _by_function(wait: Wait, function: MakeMessages, queue: str | None) -> SaveMessagesResult:
    """The turn with what *function* adds to the conversation, as it is when the turn begins."""
    while True:
        transcript = conversation.history(wait.rt, wait.agent, finished_only=True)
        based_on = conversation.fingerprint(transcript)
        given = as_messages(function(list(transcript)))
        known = {message.id for message in transcript}
        new = [message for message in given if message.id not in known]
        result = wait.result(_accept(wait, new, queue, based_on=based_on))
        moved = result.status is SubmissionStatus.SKIPPED and result.error_type == ConversationMoved.__name__
        if not moved or wait.left == 0 or (wait.signal is not None and wait.signal.aborted):
            return result


def _accept(
    wait: Wait, messages: list[UIMessage], queue: str | None, *, based_on: str | None, kind: str = "save"
) -> str:
    accepted: list[str] = []

    def work(tx: Tx) -> None:
        row, _ = submissions.accept(
            wait.rt, tx, wait.agent, messages, kind=kind, queue=queue, based_on=based_on
        )
        accepted[:] = [row.id]
        if wait.signal is not None and wait.signal.aborted:  # its turn never begins
            submissions.cancel(wait.rt, tx, row.id, wait.signal.reason)

    with wait.cancelling(accepted):  # an eager task runs the turn in here
        wait.rt.db.transact(work)
    return accepted[0]
