"""What the offline model answers to a request in OpenAI's format. Pure: the same request, the same answer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from think_celery.demo.reports import Report, from_prompt
from think_celery.demo.rules import draft_of, same_reports, summary_of, words_to_search
from think_celery.protocols import FINAL_ANSWER

SEARCH = "search_reports"

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """One answer: a text, then at most one tool call.

    ``report_id`` and ``step`` say what was asked, ``step`` counting the model's answers to one prompt from 1.
    """

    report_id: str
    step: int
    text: str
    tool: str | None = None
    arguments: Json | None = None

    @property
    def key(self) -> str:
        """Names the request, whichever process makes it."""
        return f"{self.report_id}#{self.step}"


class UnknownRequest(ValueError):
    """A request that this model has no answer to; its text is for the server's client."""


def reply_to(body: Json) -> Reply:
    """The answer to a chat completions request.

    With a search tool on offer it first searches for the report's own words; then it gives the final answer,
    or a summary as plain text where no final answer is asked for.

    Raises:
        UnknownRequest: No message of it is a report to triage.
    """
    messages = _messages(body)
    at, report = _asked(messages)
    answers = [message for message in messages[at + 1 :] if message.get("role") == "assistant"]
    results = [message for message in messages[at + 1 :] if message.get("role") == "tool"]
    step = 1 + sum(1 for message in answers if message.get("tool_calls"))
    offered = _offered(body)
    final = next((name for name in offered if name.startswith(FINAL_ANSWER)), None)
    if SEARCH in offered and not results and _choice(body) != final:
        words = words_to_search(report)
        return Reply(
            report_id=report.report_id,
            step=step,
            text=_rest(f"I look whether others have reported “{words}”. ", answers),
            tool=SEARCH,
            arguments={"words": words},
        )
    matches = _matches(results)
    if final is None:
        text = summary_of(report, same_reports(matches))
        return Reply(report_id=report.report_id, step=step, text=_rest(text, answers))
    return Reply(
        report_id=report.report_id, step=step, text="", tool=final, arguments=draft_of(report, matches)
    )


def _messages(body: Json) -> list[Json]:
    given = body.get("messages")
    if not isinstance(given, list):
        raise UnknownRequest('"messages" must be a list.')
    return [message for message in given if isinstance(message, Mapping)]


def _asked(messages: Sequence[Json]) -> tuple[int, Report]:
    """The last report that was asked about, and where. Later messages may ask to go on with a cut answer."""
    for at in range(len(messages) - 1, -1, -1):
        content = messages[at].get("content")
        if messages[at].get("role") == "user" and isinstance(content, str):
            report = from_prompt(content)
            if report is not None:
                return at, report
    raise UnknownRequest(
        "The offline model of the demo only triages reports; for other talk, use a real model."
    )


def _offered(body: Json) -> list[str]:
    tools = body.get("tools")
    functions = (
        [tool.get("function") for tool in tools if isinstance(tool, Mapping)]
        if isinstance(tools, list)
        else []
    )
    return [
        str(function["name"])
        for function in functions
        if isinstance(function, Mapping) and "name" in function
    ]


def _choice(body: Json) -> str | None:
    choice = body.get("tool_choice")
    function = choice.get("function") if isinstance(choice, Mapping) else None
    return str(function.get("name")) if isinstance(function, Mapping) else None


def _matches(results: Sequence[Json]) -> object:
    if not results:
        return None
    try:
        return json.loads(str(results[-1].get("content")))
    except ValueError:
        return None  # the tool failed, and its answer is the error's text


def _rest(text: str, answers: Sequence[Json]) -> str:
    """What is left of *text* where an interruption cut it after its beginning."""
    said = answers[-1].get("content") if answers and not answers[-1].get("tool_calls") else None
    return text.removeprefix(said) if isinstance(said, str) else text
