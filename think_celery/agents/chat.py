"""``ChatAgent``: an agent without the loop. ``Think`` is this, with the loop given."""

from collections.abc import Iterable
from typing import Any, ClassVar

from think_celery.agents.checks import check_loop
from think_celery.agents.control import AgentControl
from think_celery.agents.fibers import AgentFibers
from think_celery.agents.handle import check_count
from think_celery.agents.interactions import AgentInteractions
from think_celery.agents.jobs import AgentJobs
from think_celery.agents.life import AgentLife
from think_celery.agents.messages import AgentMessages
from think_celery.agents.recovery import AgentRecovery
from think_celery.agents.schedules import AgentSchedules
from think_celery.agents.state import AgentState
from think_celery.agents.tasks import AgentTasks
from think_celery.agents.turns import AgentTurns
from think_celery.agents.waiting import AgentWaiting
from think_celery.agents.workflows import AgentWorkflows
from think_celery.hooks.turns import (
    ChatContext,
    ChatErrorContext,
    ChatResponseResult,
    ChunkContext,
    StatusChange,
    StepResult,
)
from think_celery.protocols import ModelEvent, ToolResult


class ChatAgent(
    AgentTurns,
    AgentWaiting,
    AgentInteractions,
    AgentMessages,
    AgentState,
    AgentRecovery,
    AgentWorkflows,
    AgentControl,
    AgentSchedules,
    AgentTasks,
    AgentJobs,
    AgentFibers,
    AgentLife,
    abstract=True,
):
    """An agent with a loop of your own: subclass it, write :meth:`on_chat_message`, name one with ``Helper("a")``.

    Making the object is free: it is a handle on rows. Your own methods are plain methods and run where they
    are called; only turns run in a worker. What is set on the object lives as long as the object.

    ``queue`` is the Celery queue of its turns, else ``think_queue``. ``agent_class`` is the name that rows carry.
    ``message_concurrency`` is what becomes of a client's message while the agent is busy (see
    :meth:`receive_messages`). ``max_chained_turns`` is how many turns :meth:`on_chat_response` may ask for, one leading
    to the next.
    """

    max_chained_turns: int = 50
    _has_loop: ClassVar[bool] = False
    _hooks: ClassVar[tuple[str, ...]] = (
        "on_chat_message",
        "on_chunk",
        "on_step_finish",
        "on_chat_error",
        "on_chat_response",
        "on_submission_status",
    )

    def __init_subclass__(cls, *, abstract: bool = False, **kwargs: Any) -> None:
        """Register the class, as every agent's is."""
        check_loop(cls, ChatAgent.__subclasses__(), abstract=abstract)
        check_count(cls, "max_chained_turns", "how many turns on_chat_response may ask for")
        super().__init_subclass__(abstract=abstract, **kwargs)

    def on_chat_message(self, ctx: ChatContext) -> "str | Iterable[str | ModelEvent | ToolResult] | None":
        """Yours to write: the answer to ``ctx.messages``, as a text or, piece by piece, as a generator.

        What is yielded is streamed, stored and recovered like a model's own answer: texts, or the events of a model
        (``TextDelta``, ``ReasoningDelta``, ``ToolCallComplete``, ``Finish``, …), which any SDK's stream can be turned
        into, and a ``ToolResult`` for each call that you have made. A ``Finish`` ends a model step. After a crash this
        is called again: see ``ctx.partial``. When the turn is cancelled, ``ctx.signal`` comes, and the generator is
        closed. What it raises ends the turn in error.
        """
        raise NotImplementedError(f"{type(self).__name__} has no on_chat_message(self, ctx). Write one.")

    # --- reactions: what they raise is logged, and changes nothing ---------------------------------

    def on_chunk(self, ctx: ChunkContext) -> None:
        """Called with each event of the model, after listeners have got it. Many times a second: be quick."""

    def on_step_finish(self, result: StepResult) -> None:
        """Called when a model step is over: answered, its tool calls made, and all of it stored."""

    def on_chat_error(self, error: BaseException, ctx: ChatErrorContext) -> BaseException | None:
        """Called once with the error that is about to end a turn; the error that it returns takes its place.

        Not with one that is found before a turn begins: too many attempts, nothing to answer.
        """

    def on_chat_response(self, result: ChatResponseResult) -> None:
        """Called after every turn that a worker had, whoever asked for it: when its answer, or its error, is stored.

        Listeners have seen that it is done. The next turn waits until this has returned. ``save_messages`` may be
        called here: it runs a turn and returns its answer; this hook is called for that turn when it has returned from
        this call. If the process dies here, this call is lost, and nothing else.
        """

    def on_submission_status(self, change: StatusChange) -> None:
        """Called when a submission is pending, is running, and when it has ended, after that was committed.

        It is called by whoever made it so: where it was accepted, reset, or cancelled before it ran, else in a worker.
        A process that has not imported this class calls nothing.
        """
