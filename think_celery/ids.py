"""Names of things: agents, submissions, workflow runs and their Celery tasks."""

import hashlib
import uuid
from dataclasses import dataclass
from typing import Any, Self

try:
    from uuid import uuid7 as _uuid7  # type: ignore[attr-defined,unused-ignore]
except ImportError:  # below Python 3.14
    from uuid_utils.compat import uuid7 as _uuid7

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:think-celery")


def new_id() -> str:
    """A new id that sorts by the time at which it was made (UUID version 7)."""
    return str(_uuid7())


def named_id(*parts: object) -> str:
    """The one id (UUID version 5) that these parts always give."""
    return str(uuid.uuid5(NAMESPACE, "\x1f".join(str(part) for part in parts)))


def short_hash(text: str) -> str:
    """22 characters that stand for *text* in a key."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:22]


def key_part(text: str) -> str:
    """*text* as a part of a key whose parts are told from each other by colons: it has none left."""
    return text.replace("%", "%25").replace(":", "%3A")


@dataclass(frozen=True, slots=True)
class AgentRef:
    """Which agent: the registered name of its class, and its own name."""

    agent_class: str
    name: str

    @classmethod
    def of(cls, row: Any) -> Self:
        """The agent that a row is about."""
        return cls(row.agent_class, row.agent_name)

    @property
    def id(self) -> str:
        """The agent's id in every table."""
        return named_id("agent", self.agent_class, self.name)

    def __str__(self) -> str:
        return f"{self.agent_class}({self.name!r})"


@dataclass(frozen=True, slots=True)
class WorkflowRef:
    """Which workflow: the registered name of its class, and the id it was started under."""

    workflow: str
    workflow_id: str

    @classmethod
    def of(cls, row: Any) -> Self:
        """The workflow that a row is about."""
        return cls(row.workflow, row.workflow_id)

    @property
    def key(self) -> str:
        """The workflow's key in every table."""
        return named_id("workflow", self.workflow, self.workflow_id)

    def __str__(self) -> str:
        return f"{self.workflow}({self.workflow_id!r})"


def submission_id_for(agent: AgentRef, idempotency_key: str) -> str:
    """The id that a submission with this key gets, in whatever process it is accepted."""
    return named_id("submission", agent.agent_class, agent.name, idempotency_key)


def advance_task_id(workflow_key: str, run: int, wakes: int) -> str:
    """The Celery task id of one `advance`, so that a repeated knock reuses it. That of 0 wakes is the run's root."""
    return named_id("advance", workflow_key, run, wakes)
