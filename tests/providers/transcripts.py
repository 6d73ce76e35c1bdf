"""What providers refuse in a conversation, checked on the wire: a request that breaks a rule here would get a 400."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from think_celery.protocols import ModelRequest
from think_celery.providers.openai_request import request_body as openai_body

Json = dict[str, Any]


def problems(request: ModelRequest) -> list[str]:
    """What each provider would refuse of this request."""
    return [f"{name}: {problem}" for name, check in CHECKS.items() for problem in check(request)]


def check(requests: Iterable[ModelRequest]) -> None:
    """Make sure that every provider takes each of these requests."""
    wrong = [f"request {number}: {each}" for number, r in enumerate(requests, 1) for each in problems(r)]
    assert wrong == [], "\n".join(wrong)


# --- OpenAI's chat completions --------------------------------------------------------------------


def openai_problems(body: Json) -> list[str]:
    """What OpenAI and the strictest of the servers that speak its language refuse of this body."""
    found: list[str] = []
    messages = body["messages"]
    ids: set[str] = set()
    expected: list[str] = []
    for at, message in enumerate(messages):
        role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
        here = f"messages[{at}] ({role})"
        if role != "tool" and expected:
            found.append(f"{here}: the calls {expected} before it have no result")
            expected = []
        match role:
            case "system" | "user":
                if not content:
                    found.append(f"{here} says nothing")
                if isinstance(content, list):
                    found += [f"{here}: {part} says nothing" for part in content if not _says(part)]
            case "assistant":
                if not content and not calls:
                    found.append(f"{here} has neither content nor calls")
                if content == "" or (calls is not None and not calls):
                    found.append(f"{here} has an empty field")
                for call in calls or ():
                    found += [f"{here}: {problem}" for problem in _call_problems(call, ids)]
                    expected.append(call.get("id"))
            case "tool":
                if message.get("tool_call_id") not in expected:
                    found.append(f"{here} answers no call just before it: {message.get('tool_call_id')!r}")
                else:
                    expected.remove(message["tool_call_id"])
                if not isinstance(content, str) or not content:
                    found.append(f"{here} has no text")
            case _:
                found.append(f"{here}: no such role")
    if expected:
        found.append(f"the calls {expected} at the end have no result")
    if not messages or messages[-1]["role"] == "system":
        found.append("there is nothing to answer")
    if messages and messages[-1]["role"] == "assistant":
        found.append("the last message is the assistant's own")
    return found


def _says(part: Json) -> bool:
    return bool(part.get("text") or part.get("image_url") or part.get("file"))


def _call_problems(call: Json, ids: set[str]) -> Iterable[str]:
    call_id, function = call.get("id"), call.get("function") or {}
    if not call_id or len(call_id) > 40:
        yield f"the id {call_id!r} is unfit"
    if call_id in ids:
        yield f"the id {call_id!r} is there twice"
    ids.add(str(call_id))
    if call.get("type") != "function" or not function.get("name"):
        yield f"the call {call_id!r} has no function"
    try:
        arguments = json.loads(function.get("arguments", ""))
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        yield f"the arguments of {call_id!r} are no JSON object: {function.get('arguments')!r}"


CHECKS: dict[str, Callable[[ModelRequest], list[str]]] = {
    "openai": lambda request: openai_problems(json.loads(openai_body("m", request, {}))),
}
