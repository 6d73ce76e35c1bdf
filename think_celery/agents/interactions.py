"""An agent's tool calls that wait for a person or for a client: seeing them, and deciding on them."""

from typing import Any

from think_celery.agents.handle import AgentHandle
from think_celery.domain.conversation import decisions, interactions
from think_celery.domain.conversation.decisions import InteractionResult
from think_celery.domain.conversation.interactions import PendingInteraction


class AgentInteractions(AgentHandle, abstract=True):
    """The calls that wait. All of this works from any process, with no worker running."""

    def pending_interactions(self) -> list[PendingInteraction]:
        """The tool calls that wait for an approval or for a client's answer, oldest first."""
        return interactions.pending(self._rt, self._ref)

    @property
    def has_pending_interaction(self) -> bool:
        """Whether a tool call waits for an approval or for a client's answer."""
        return interactions.any_open(self._rt, self._ref)

    def approve_tool_call(self, tool_call_id: str, reason: str | None = None) -> InteractionResult:
        """Let a tool call run that needs an approval; the result is true if this call decided it.

        A call is decided once, whoever comes first. It runs with just the arguments that
        :meth:`pending_interactions` shows, once, in a turn that is accepted in this same transaction when no
        other call of the same answer waits any more. Then the model goes on. Joins the caller's transaction.

        Args:
            tool_call_id: Which call: its id, or its ``interaction_id``.
            reason: A note of yours, kept with the call.

        Raises:
            InteractionNotFound: The agent has no such call that waits, or ever did.
            InteractionMismatch: A client answers the call, or it was changed since.
            InvalidType: *reason* is no text.
        """
        return decisions.approve(self._rt, self._ref, tool_call_id, reason=reason, queue=self._celery_queue)

    def reject_tool_call(self, tool_call_id: str, reason: str | None = None) -> InteractionResult:
        """Let a tool call not run that needs an approval; the result is true if this call decided it.

        The model is told that it was denied, and *reason*, and goes on when no other call of the same answer waits
        any more. Raises what :meth:`approve_tool_call` raises.
        """
        return decisions.reject(self._rt, self._ref, tool_call_id, reason=reason, queue=self._celery_queue)

    def provide_tool_result(
        self, tool_call_id: str, output: Any = None, *, error: str | None = None
    ) -> InteractionResult:
        """Answer a call of a client's tool; the result is true if this call's answer was taken.

        The first answer counts. The model goes on with it when no other call of the same answer waits any more.

        Args:
            tool_call_id: Which call: its id, or its ``interaction_id``.
            output: What the client's tool returned: anything that a tool may return.
            error: Why it failed, in place of an output; the model is told.

        Raises:
            InteractionNotFound: The agent has no such call that waits, or ever did.
            InteractionMismatch: The call waits for an approval, or was changed since.
            InvalidToolResult: The output has no JSON form.
            PayloadTooLarge: It exceeds ``think_max_payload``.
            ValueError: Both an output and an error were given.
        """
        return decisions.answer(
            self._rt, self._ref, tool_call_id, output=output, error=error, queue=self._celery_queue
        )
