"""What an agent offers to whoever waits for its turns, or speaks for a client."""

from collections.abc import Callable
from typing import Any, ClassVar

from think_celery.agents.handle import AgentHandle
from think_celery.concurrency import MessageConcurrency, check_concurrency
from think_celery.domain.submissions import chats, saves, waiting
from think_celery.domain.submissions.receipts import Submission, as_submission
from think_celery.domain.submissions.waiting import SaveMessagesResult
from think_celery.durations import Duration
from think_celery.messages import Messages, UIMessage
from think_celery.signals import AbortSignal


class AgentWaiting(AgentHandle, abstract=True):
    """An agent's turns for whoever waits for them."""

    message_concurrency: ClassVar[MessageConcurrency] = "queue"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Check what becomes of a client's overlapping messages."""
        check_concurrency(f"{cls.__name__}.message_concurrency", cls.message_concurrency)
        super().__init_subclass__(**kwargs)

    def save_messages(
        self,
        messages: Messages | Callable[[list[UIMessage]], Messages],
        *,
        idempotency_key: str | None = None,
        metadata: dict[str, Any] | None = None,
        timeout: Duration | None = None,
        signal: AbortSignal | None = None,
    ) -> SaveMessagesResult:
        """Run a turn with *messages*, and return when its answer is stored, however the turn ended.

        A model's error is not raised: look at ``status`` and ``error``. In a script or a web process this waits for
        the turn that a worker runs. In a worker (a step, a hook, another agent's tool, a task of yours) the turn runs
        right here if the agent is free, so a pool full of callers does not stand still.

        Args:
            messages: As for :meth:`submit_messages`. Or a function: it gets the conversation and returns it with what
                is to be added. Messages that are there already are context, the others are added. Where the
                conversation has gone on before the turn begins, the function is called again; so it must be safe to
                repeat.
            idempotency_key: Your own name for this job, as for :meth:`submit_messages`: a repeat asks for no other
                turn, but waits for the first one's end and returns its result. Not with a function.
            metadata: JSON of yours, kept with the submission and never sent to the model; hooks have it as
                ``ctx.metadata``.
            timeout: How long to wait; ``None``: as long as it takes.
            signal: An ``AbortController().signal``: when it comes, the turn is cancelled, and its partial text kept.

        Raises:
            TurnStillRunning: The time is up. The turn goes on; its id is in the error.
            NestedTurn: Called in a turn that would wait for itself, such as in a tool of the same agent.
            InsideTransaction: Called inside a joined transaction.
            EmptySubmission, InvalidMessage, PayloadTooLarge: As for :meth:`submit_messages`; so are ValueError,
                InvalidType and NotSerializable for an unfit key or metadata.
        """
        return saves.save(
            self._rt,
            self._ref,
            messages,
            idempotency_key=idempotency_key,
            metadata=metadata,
            timeout=timeout,
            signal=signal,
            queue=self._celery_queue,
        )

    def continue_last_turn(
        self,
        *,
        metadata: dict[str, Any] | None = None,
        timeout: Duration | None = None,
        signal: AbortSignal | None = None,
    ) -> SaveMessagesResult:
        """Let the model go on with its last answer, in the same message, and return when that is stored.

        For an answer that was cut (cancelled, failed, out of steps) or is to become longer. It waits as
        :meth:`save_messages` does. Where the conversation does not end with an answer when the turn begins, or that
        answer has tool calls which wait for somebody, the result's ``status`` is ``skipped``, and ``error`` says why.

        Args:
            metadata: JSON of yours, as for :meth:`save_messages`.
            timeout: How long to wait; ``None``: as long as it takes.
            signal: An ``AbortController().signal``: when it comes, the turn is cancelled, and its partial text kept.

        Raises:
            TurnStillRunning, NestedTurn, InsideTransaction: As for :meth:`save_messages`.
            InvalidType, NotSerializable, PayloadTooLarge: The metadata is no dict, no JSON, or too large.
        """
        return saves.continue_last(
            self._rt,
            self._ref,
            metadata=metadata,
            timeout=timeout,
            signal=signal,
            queue=self._celery_queue,
        )

    def wait_for_submission(self, submission_id: str, timeout: Duration | None = None) -> Submission:
        """The submission once its turn has ended, at once if it has. Any process may wait for it.

        Raises:
            TurnStillRunning: The time is up. The turn goes on.
            SubmissionNotFound: This agent has none of that id, or not any more.
            NestedTurn: Called in a turn that would wait for itself.
            InsideTransaction: Called inside a joined transaction.
        """
        call = "wait_for_submission()"
        wait = waiting.Wait(self._rt, self._ref, call, timeout=timeout)
        return as_submission(self._rt, wait.end_of(submission_id))

    def wait_until_stable(self, timeout: Duration | None = None) -> bool:
        """Wait until no turn of this agent runs or waits, no hook after one is in progress, and no tool call waits.

        (A call that waits is one for a client or an approval.) True at once if that is so, else as soon as it is; False
        when *timeout* is over. So it waits for the whole chain where :meth:`on_chat_response` asks for more turns. In
        that hook itself it runs what else there is, and does not wait for the hook.

        Raises:
            NestedTurn: Called in a turn of this agent, without a timeout: it would wait for itself.
            InsideTransaction: Called inside a joined transaction.
        """
        return waiting.Wait(self._rt, self._ref, "wait_until_stable()", timeout=timeout).stable()

    def receive_messages(
        self,
        messages: Messages,
        *,
        idempotency_key: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Submission:
        """Accept what a client of this agent says, as the class's ``message_concurrency`` wants it, and return at once.

        While nothing of the agent's runs or waits, that is one turn. What overlaps depends on the strategy: ``queue``
        lets each have its own turn; ``drop`` skips it (``status`` is ``skipped``); ``latest`` lets only the newest of
        those that wait have a turn, which begins with the messages of all of them; ``merge`` makes them one message;
        ``Debounce(seconds)`` is ``latest`` once no further message has come for so long. A turn that could begin
        already is never replaced. Only messages that come in here are: no submitted, saved or scheduled ones.

        Raises:
            InsideTransaction: Called inside a joined transaction, with another strategy than ``queue``.
            ValueError, InvalidType: As for :meth:`submit_messages`.
        """
        rt = self._rt
        row, accepted, same = chats.receive(
            rt,
            self._ref,
            messages,
            self.message_concurrency,
            idempotency_key=idempotency_key,
            metadata=metadata,
            queue=self._celery_queue,
        )
        return as_submission(rt, row, accepted=accepted, same_payload=same)
