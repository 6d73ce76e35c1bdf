"""How an agent begins and ends, and what it has used."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from think_celery.agents.handle import AgentHandle
from think_celery.domain.agents import removal, starts
from think_celery.domain.turns import usage
from think_celery.domain.turns.usage import TokenUsage
from think_celery.names import check_name


class AgentLife(AgentHandle, abstract=True):
    """How an agent begins and ends."""

    version: ClassVar[str | None] = None
    autostart: ClassVar[Sequence[str] | Callable[[], Sequence[str]]] = ()
    _hooks: ClassVar[tuple[str, ...]] = ("on_start",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the class, as every agent's is."""
        if cls.version is not None:
            check_name(f"{cls.__name__}.version", cls.version, 200)
        super().__init_subclass__(**kwargs)

    def start(self) -> None:
        """Let the agent exist, and its :meth:`on_start` run soon in a worker. Returns at once.

        When this returns, its row is stored (inside a joined transaction: once that commits). An agent needs no
        start to be given work: it exists from its first accepted work, too. If this version of the class has
        started already, nothing happens.
        """
        starts.start(self._rt, self._ref, type(self).queue)

    def on_start(self) -> None:
        """Called in a worker when the agent begins: once for each agent and version of its class.

        After :meth:`start`, or before the next turn; never beside a turn of this agent. The version is the
        attribute ``version``, else a hash of the class's source. It must be safe to repeat: it runs again after
        a crash, and when workers of two versions take turns. When it raises, that is logged, the turn goes on,
        it is tried again before the next one, and ``think-celery doctor`` names the agent. When
        ``think_max_attempts`` workers in a row have died in it, it is left alone until the version changes or
        :meth:`start` is called.

        It may change the state, submit messages and start workflows. It can't wait for a turn of this agent.
        """

    def clear_messages(self) -> int:
        """Empty the conversation, and say how many turns were ended by that.

        In one transaction: the running turn is aborted and its worker can write nothing more, waiting ones are
        skipped, open approvals and client tools are withdrawn, every message is deleted. A turn that was
        accepted before and commits later is skipped. ``on_chat_response`` is not called for these turns;
        workflows that wait for one of them get ``ThinkPromptAbortedError`` or ``ThinkPromptSkippedError``. The
        state, the submissions and :meth:`usage` stay.

        Raises:
            InsideTransaction: Called inside a joined transaction.
        """
        return removal.clear_messages(self._rt, self._ref)

    def reset_turn_state(self) -> int:
        """End every turn that has not ended, and say how many that were. The conversation stays.

        As :meth:`clear_messages` does it, but no message is deleted: of the running turn's answer what is
        stored by then is kept, with a second of its text missing at most.

        Raises:
            InsideTransaction: Called inside a joined transaction.
        """
        return removal.reset_turn_state(self._rt, self._ref)

    def destroy(self) -> None:
        """Remove the agent: messages, state, turns and jobs and their keys, schedules, approvals, usage, live frames.

        Its turns end first, as :meth:`clear_messages` ends them, and what still runs can write nothing after
        it: no message, no result, no state. (An effect that is under way, such as a tool's HTTP request, can't
        be recalled.) Of a submission that a workflow waits for an empty row stays until the workflow has got
        the news. The agent's name stays for a day, so that what was accepted before the call and commits later
        does not run.

        Workflows that the agent started are not ended: they have ids and an end of their own; end them first if
        they should not go on. One that goes on may use the agent, which then begins anew. So does everybody who
        gives it work: an agent of this name begins with an empty conversation, and its :meth:`on_start` runs
        again.

        If this process dies in it, workers carry it through. Calling it again is harmless.

        Raises:
            InsideTransaction: Called inside a joined transaction.
        """
        removal.destroy(self._rt, self._ref)

    def usage(self) -> TokenUsage:
        """The tokens that all turns of this agent have used, as far as its models told.

        Of failed requests and of structured turns too. Clearing the conversation and deleting submissions
        changes nothing in it; only :meth:`destroy` does. What a single turn used is in ``Submission.usage``,
        and, with each of its steps, in the metadata of its message.
        """
        return usage.of_agent(self._rt, self._ref)
