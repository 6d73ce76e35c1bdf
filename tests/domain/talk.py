"""Agents for tests, made of a few functions, and what a test asks of their turns."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from think_celery.agents.think import Think
from think_celery.domain.outcomes import Outcome
from think_celery.domain.submissions import claims, submissions
from think_celery.domain.submissions.receipts import Submission
from think_celery.domain.submissions.submissions import Waiting
from think_celery.events.writer import LiveWriter
from think_celery.messages import Messages, ToolPart, UIMessage, as_messages
from think_celery.protocols import ModelRequest
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus
from think_celery.testing import ThinkTest

LABEL = {
    "type": "object",
    "properties": {"label": {"type": "string"}},
    "required": ["label"],
    "additionalProperties": False,
}


def talker(*tools: Callable[..., Any], **attributes: Any) -> type[Think]:
    """An agent class with these tools and attributes; it replaces the one before it."""

    class Talker(Think, name="Talker"):
        system_prompt = "Be brief."

        def get_tools(self) -> Sequence[Any]:
            return tools

    for name, value in attributes.items():
        setattr(Talker, name, value)
    return Talker


def ask(t: ThinkTest, agent: Think, messages: Messages = "Go", **options: Any) -> Submission:
    """Let the agent answer, and return the submission as it stands when nothing is left to do."""
    accepted = agent.submit_messages(messages, **options)
    t.run_until_idle()
    return now(agent, accepted)


def now(agent: Think, submission: Submission) -> Submission:
    """The submission as it stands now."""
    found = agent.inspect_submission(submission.submission_id)
    assert found is not None
    return found


def crash_at_nth(t: ThinkTest, point: str, number: int) -> None:
    """Let the worker die when it comes to that failpoint for the n-th time."""
    passed, original = [], t.rt.failpoint

    def failpoint(reached: str) -> None:
        if reached == point:
            passed.append(reached)
            if len(passed) == number:
                t.crash_at(point)
        original(reached)

    t.rt.failpoint = failpoint


def submit_structured(
    rt: Runtime,
    agent: Think,
    *,
    schema: dict[str, Any] = LABEL,
    max_steps: int | None = None,
    waiting: Waiting | None = None,
) -> Submission:
    """Accept a structured turn, as a workflow's prompt does."""
    row, _ = rt.db.transact(
        lambda tx: submissions.accept(
            rt,
            tx,
            agent._ref,
            as_messages("Label it"),
            kind="submit",
            structure={"schema": schema, "max_steps": max_steps},
            waiting=waiting,
        )
    )
    found = agent.inspect_submission(row.id)
    assert found is not None
    return found


def ask_structured(t: ThinkTest, agent: Think, **options: Any) -> Submission:
    """Let the agent answer in that form."""
    accepted = submit_structured(t.rt, agent, **options)
    t.run_until_idle()
    return now(agent, accepted)


def row(rt: Runtime, submission: Submission) -> Any:
    """The submission's row."""
    return submissions.get(rt, submission.submission_id)


def shape(message: UIMessage | None) -> list[Any]:
    """A message in short: texts as they are, steps as ``"|"``, calls as (name, input, output or error)."""
    assert message is not None
    short: list[Any] = []
    for part in message.parts:
        match part:
            case ToolPart():
                outcome = part.output if part.state == "output-available" else part.error_text
                short.append((part.tool_name, part.input, outcome))
            case _:
                short.append("|" if part.type == "step-start" else getattr(part, "text", part))
    return short


def calls_of(message: UIMessage | None) -> list[ToolPart]:
    """The tool calls in a message."""
    assert message is not None
    return [part for part in message.parts if isinstance(part, ToolPart)]


def roles(request: ModelRequest) -> list[str]:
    """Who says what in a request."""
    return [message.role for message in request.messages]


def events(t: Any, agent: Think) -> list[tuple[int, dict[str, Any]]]:
    """Every frame of the agent's live log: the writer's token, and the event."""
    head = t.rt.events.head(agent._ref.id)
    page = t.rt.events.read(agent._ref.id, type(head)(head.incarnation, 0), limit=10_000)
    return [(frame.token, frame.event) for frame in page.frames]


def kinds(t: Any, agent: Think) -> list[str]:
    """The types of the agent's live events."""
    return [event["type"] for _, event in events(t, agent)]


PATIENCE = 10.0


class Running:
    """A turn that runs in another thread, as in a worker."""

    def __init__(self, rt: Runtime, pool: ThreadPoolExecutor, agent_class: type[Think]) -> None:
        self.rt = rt
        rt.live = LiveWriter(rt.events, synchronous=True, limit_seconds=60)  # a slow machine loses no frame
        self.agent = agent_class._bound_to(rt, "a")
        self.submission = self.agent.submit_messages("Go")
        self.outcome: Future[Outcome] = pool.submit(claims.run, rt, self.submission.submission_id)

    def until(self, seen: Callable[[], Any]) -> None:
        """Wait until this is so."""
        for _ in range(int(PATIENCE * 200)):
            if seen():
                return
            threading.Event().wait(0.005)
        raise AssertionError("it did not come to that")

    @property
    def hold(self) -> Any:
        """What the monitor watches for the turn."""
        return self.rt.monitor._holds[0]

    @property
    def shown(self) -> str:
        """The text that listeners have got so far."""
        return "".join(event.get("delta", "") for _, event in events(self, self.agent))

    def cancel(self) -> None:
        """Cancel it, as any process does, and let the monitor look at once instead of within a second."""
        assert submissions.cancel_by_id(self.rt, self.submission.submission_id, "enough")
        self.rt.monitor.beat()

    def end(self) -> Submission:
        """The submission after its run has returned."""
        self.outcome.result(PATIENCE)
        return now(self.agent, self.submission)


COMPLETED, ABORTED, ERROR = SubmissionStatus.COMPLETED, SubmissionStatus.ABORTED, SubmissionStatus.ERROR
