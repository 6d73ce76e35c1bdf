"""An agent that moves money only with somebody's approval, for the tests of calls that wait."""

from typing import Any

from tests.domain.talk import talker
from think_celery import Think
from think_celery.store import tables
from think_celery.testing import ThinkTest
from think_celery.tools import client_tool, tool

LOCATION = client_tool("locate", "Where the user is.")


class Till:
    """A tool that moves money, and needs somebody's approval for it; another that needs none; a client's."""

    def __init__(self, needs_approval: Any = True, **options: Any) -> None:
        self.paid: list[int] = []
        self.looked: list[str] = []

        @tool(needs_approval=needs_approval, **options)
        def pay(euros: int, to: str = "Ann") -> str:
            self.paid.append(euros)
            return f"paid {euros} to {to}"

        @tool
        def look(what: str) -> str:
            self.looked.append(what)
            return f"seen: {what}"

        self.tools = (pay, look, LOCATION)

    def agent(self, name: str = "a", **attributes: Any) -> Think:
        """An agent with these tools."""
        return talker(*self.tools, **attributes)(name)


def only(agent: Think) -> Any:
    """The one call that waits."""
    (waiting,) = agent.pending_interactions()
    return waiting


def interaction_rows(t: ThinkTest) -> list[Any]:
    """Every row of a call that waits or did."""
    return t.rt.db.read(lambda tx: list(tx.execute(tables.interactions.select())))


def stored(agent: Think) -> list[dict[str, Any]]:
    """The parts of the agent's last message, as they are stored."""
    parts: list[dict[str, Any]] = agent.messages[-1].to_dict()["parts"]
    return parts


def forge(t: ThinkTest, message_id: str, parts: list[dict[str, Any]]) -> None:
    """Change what a stored message says, past every rule."""
    change = tables.messages.update().where(tables.messages.c.message_id == message_id).values(parts=parts)
    t.rt.db.transact(lambda tx: tx.execute(change))
