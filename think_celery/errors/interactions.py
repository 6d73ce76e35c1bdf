"""Calls that wait for somebody, and can't be decided on like this."""

from think_celery.errors.root import ThinkError
from think_celery.wording import shown


class InteractionError(ThinkError):
    """A call that waits for an approval, or for a client's answer, can't be decided on like this."""


class InteractionNotFound(InteractionError, LookupError):
    """No call of that id waits, or ever did. Without an ``agent`` it was looked for by the id of its interaction."""

    def __init__(self, agent: str | None, tool_call_id: str) -> None:
        super().__init__(agent, tool_call_id)
        self.agent, self.tool_call_id = agent, tool_call_id

    def __str__(self) -> str:
        if self.agent is None:
            return (
                f"No agent has an interaction {shown(self.tool_call_id)}. Without an agent the interaction_id says "
                "which call is meant, not its tool_call_id: current().pending_interactions() lists both. A call waits "
                "from the end of its turn on."
            )
        return (
            f"{self.agent} has no tool call {shown(self.tool_call_id)} that waits for an approval or for a client's "
            "answer. Check the agent's name and the id: pending_interactions() lists the calls that wait. A call "
            "waits from the end of its turn on."
        )


class InteractionMismatch(InteractionError):
    """The call waits for something else than what came."""

    def __init__(self, tool_call_id: str, problem: str, remedy: str) -> None:
        super().__init__(tool_call_id, problem, remedy)
        self.tool_call_id, self.problem, self.remedy = tool_call_id, problem, remedy

    def __str__(self) -> str:
        return f"The tool call {self.tool_call_id!r} can't be decided on like this: {self.problem}. {self.remedy}"
