"""How turns, and requests to their models, fail."""

from collections.abc import Sequence
from typing import Any

from think_celery.errors.root import ThinkError


class TurnError(ThinkError):
    """A turn ended in error."""


class ModelError(TurnError):
    """A model request failed.

    ``retryable`` says whether asking again may help; ``retry_after_seconds`` is the provider's wish. ``usage`` is what
    the request has cost all the same (a ``protocols.Usage``), where the provider told.
    """

    usage: Any = None

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        status_code: int | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.retryable = message, retryable
        self.status_code, self.retry_after_seconds = status_code, retry_after_seconds

    def __reduce__(self) -> tuple[object, ...]:
        return (
            _model_error,
            (type(self), self.message, self.retryable, self.status_code, self.retry_after_seconds),
        )


def _model_error(
    cls: type[ModelError], message: str, retryable: bool, status: int | None, after: float | None
) -> ModelError:
    return cls(message, retryable=retryable, status_code=status, retry_after_seconds=after)


class ModelAborted(ModelError):
    """A model request was given up because its turn was told to stop."""


class NoFinalAnswer(TurnError):
    """A structured turn ended without the call that carries its answer."""

    def __init__(self, tool_name: str, asked: int | None = None) -> None:
        super().__init__(tool_name, asked)
        self.tool_name, self.asked = tool_name, asked

    def __str__(self) -> str:
        return (
            f"Model ended the turn without calling the {self.tool_name} tool{_asked(self.asked)}. The model must be "
            "able to call tools while streaming and to obey a required tool choice; another model may be needed."
        )


class InvalidFinalAnswer(TurnError):
    """The arguments of the final answer do not fit its schema."""

    def __init__(self, problems: Sequence[str], asked: int | None = None) -> None:
        super().__init__(tuple(problems), asked)
        self.problems, self.asked = tuple(problems), asked

    def __str__(self) -> str:
        return (
            f"The model's final answer does not fit the output type{_asked(self.asked)}: {'; '.join(self.problems)}. "
            "It is never repaired silently: describe the fields better, or loosen the output type."
        )


def _asked(times: int | None) -> str:
    if times is None:
        return ""
    if times == 1:
        return " (it was asked once; step.prompt(output_retries=…) lets it answer again)"
    return f" (it was asked {times} times, as often as output_retries and max_steps allow)"


class NothingToAnswer(TurnError):
    """All messages are in the transcript already, and its last one is the assistant's own."""

    def __str__(self) -> str:
        return (
            "There is nothing to answer: every message of the submission is in the transcript already, and its last "
            "message is the assistant's. Submit a new message."
        )


class ConversationMoved(TurnError):
    """The messages were made by a function that saw another conversation. Seen in a submission, never raised."""

    def __str__(self) -> str:
        return (
            "The conversation has changed since the function made these messages from it, so their turn was skipped. "
            "save_messages() calls the function again by itself, as long as its timeout lasts."
        )


class TurnTimeout(TurnError):
    """The whole turn took longer than the setting ``think_turn_timeout``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return (
            f"The turn took longer than think_turn_timeout ({self.seconds:g} s) and was ended. Give the agent less "
            "to do in one turn, give its slow tools a timeout of their own, or raise the setting."
        )


class TurnStillRunning(TurnError):
    """Whoever waited for a turn has no more time. The turn goes on."""

    def __init__(self, submission_id: str, seconds: float) -> None:
        super().__init__(submission_id, seconds)
        self.submission_id, self.seconds = submission_id, seconds

    def __str__(self) -> str:
        return (
            f"Submission {self.submission_id!r} has not ended after {self.seconds:.3g} s. It goes on and is stored: "
            "wait for it with wait_for_submission(submission_id), or end it with cancel_submission(submission_id). If "
            "none ever ends, no worker takes its queue: run think-celery doctor."
        )


class NestedTurn(TurnError):
    """A turn would wait for itself: directly, or because the one that it waits for waits for it."""

    def __init__(self, call: str, circle: Sequence[str]) -> None:
        super().__init__(call, tuple(circle))
        self.call, self.circle = call, tuple(circle)

    def __str__(self) -> str:
        way = " → ".join(self.circle)
        return (
            f"{self.call} would wait for ever: {way}. An agent's turns run one at a time, so a turn can't wait for "
            "another one of its own agent. Use submit_messages() for a turn that runs after this one, or "
            "persist_messages() to add to the conversation without a turn."
        )


class ChainTooLong(TurnError):
    """``on_chat_response`` led to one turn after the other, beyond what the agent's class allows."""

    def __init__(self, agent: str, limit: int) -> None:
        super().__init__(agent, limit)
        self.agent, self.limit = agent, limit

    def __str__(self) -> str:
        return (
            f"on_chat_response of {self.agent} has asked for {self.limit} turns, one leading to the next, and may ask "
            "for no more. Let it stop asking at some point; or raise `max_chained_turns` of the class; or ask with "
            "`submit_messages`, which does not wait and makes each turn a task of its own."
        )
