"""Whether a model can answer a ``step.prompt``: one request, as such a turn would make it on its last step."""

from think_celery.domain.turns import finals, requests
from think_celery.errors import InvalidFinalAnswer
from think_celery.messages import user
from think_celery.protocols import (
    FINAL_ANSWER,
    Finish,
    Model,
    ModelRequest,
    ModelTimeouts,
    TextDelta,
    ToolCallComplete,
)
from think_celery.settings import Settings
from think_celery.signals import AbortController

SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "severity": {"type": "string", "enum": ["low", "high"]},
    },
    "required": ["title", "severity"],
    "additionalProperties": False,
}
QUESTION = "A user reports: 'The export is empty since this morning.' Give it a title and a severity."
LONGEST_SECONDS = 30.0
"""How long the model may take for its first token, and between two."""


def check_model(model: Model, settings: Settings) -> str | None:
    """What is wrong with this model for a ``step.prompt``; ``None`` if it is fit for one.

    It is forced to call one tool, over a stream, and its arguments are checked as those of a turn.

    Raises:
        ModelError: The request failed.
    """
    final = finals.Final(FINAL_ANSWER, SCHEMA)
    choice, tools = finals.offer(final, [], last=True)
    request = ModelRequest(
        system="You triage issue reports.",
        messages=[user(QUESTION)],
        tools=tools,
        tool_choice=choice,
        timeouts=_patience(settings),
    )
    said, calls, finished = _answer(model, request)
    mine = [call for call in calls if call.name == final.name]
    if not finished:
        return "its stream ended before its end was told, as if the connection had been cut"
    if not mine:
        how = "it answered in plain text" if said.strip() else "it answered nothing"
        return f"{how}, and did not call the tool that it was told to call: every prompt would fail"
    _, error = final.look_at(mine[0])
    if error is not None:
        problems = error.problems if isinstance(error, InvalidFinalAnswer) else [str(error)]
        return f"it called the tool, but its arguments do not fit the schema ({'; '.join(problems)})"
    return None


def _answer(model: Model, request: ModelRequest) -> tuple[str, list[ToolCallComplete], bool]:
    said, finished = "", False
    calls: list[ToolCallComplete] = []
    for event in model.stream(request, AbortController().signal):
        if isinstance(event, TextDelta):
            said += event.text
        elif isinstance(event, ToolCallComplete):
            calls.append(event)
        elif isinstance(event, Finish):
            finished = True
    return said, calls, finished


def _patience(settings: Settings) -> ModelTimeouts:
    given = requests.timeouts(settings)
    return ModelTimeouts(
        connect=min(given.connect, LONGEST_SECONDS),
        first_token=min(given.first_token, LONGEST_SECONDS),
        token_gap=min(given.token_gap, LONGEST_SECONDS),
    )
