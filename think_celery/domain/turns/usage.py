"""What turns have used of their models."""

from dataclasses import dataclass
from typing import Any

from think_celery.ids import AgentRef
from think_celery.runtime import Runtime
from think_celery.store import usage


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenUsage:
    """Tokens, as the providers counted them. ``total_tokens`` may be more than the two others together."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0


def of_agent(rt: Runtime, agent: AgentRef) -> TokenUsage:
    """The sum over all turns of an agent."""
    return TokenUsage(**rt.db.look(lambda tx: usage.of_agent(tx, agent.id)))


def usage_of(row: Any) -> TokenUsage:
    """What one submission has used so far; nothing, where the row was made just now."""
    return TokenUsage(**{name: getattr(row, name, 0) for name in usage.COUNTED})
