"""What the model of the crash tests answers: it follows the plan in the prompt, and goes on where it was cut."""

from typing import Any

from tests.providers.server import (
    Delay,
    Piece,
    Response,
    json_response,
    stream,
    text_frames,
    tool_call_frames,
)
from think_celery.domain.turns.requests import GO_ON

FINAL = "All of it is done and nothing was done twice so far as anybody can tell from here"
ANSWER = {"title": "A title", "labels": ["one", "two"]}
PACES = {"slowly": 0.15, "slowest": 0.6, "glacially": 1.5}
"""Words of a plan that say how many seconds each word of the final text takes; what was cut goes on slowly."""


def answer(body: dict[str, Any]) -> Response:
    """The next step of the plan ``do: tool tool … #name``, at the pace that the plan says."""
    if body["model"].startswith("poor-"):
        return json_response({"error": {"message": "no credit"}}, status=402)
    messages = body["messages"]
    told = max(i for i, m in enumerate(messages) if m["role"] == "user" and text_of(m) != GO_ON)
    words = text_of(messages[told]).removeprefix("do:").split()
    pace = next((PACES[word] for word in words if word in PACES), 0.0)
    plan = [word for word in words if word not in PACES and not word.startswith("#")]
    since = messages[told + 1 :]
    results = [text_of(message) for message in since if message["role"] == "tool"]
    refused = [result for result in results if "does not fit" in result]
    done = len(results) - len(refused)
    if done < len(plan):
        return stream(*tool_call_frames((plan[done], {"what": "it"}), ids=[f"call_{done}"]))
    final = next((name for name in tools_of(body) if name.startswith("think_final_answer")), None)
    if final is not None:
        given = ANSWER if refused or "#badly" not in words else {"title": ["no", "title"]}
        return paced(tool_call_frames((final, given), ids=["call_final"]), pace)
    said = text_of(since[-2]) if since and text_of(since[-1]) == GO_ON else ""
    if not FINAL.startswith(said):
        return json_response({"error": {"message": f"{said!r} is not what was said"}}, status=400)
    return paced(text_frames(FINAL[len(said) :]), min(pace, PACES["slowly"]) if said else pace)


def paced(pieces: list[Piece], seconds: float) -> Response:
    """The answer, with that pause before each piece."""
    if not seconds:
        return stream(*pieces)
    return stream(*(part for piece in pieces for part in (Delay(seconds), piece)))


def text_of(message: dict[str, Any]) -> str:
    """The text of a message on the wire."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def tools_of(body: dict[str, Any]) -> list[str]:
    """The names of the tools that a request offers."""
    return [tool["function"]["name"] for tool in body.get("tools", [])]
