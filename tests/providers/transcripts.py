"""What providers refuse in a conversation, checked on the wire: a request that breaks a rule here would get a 400."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from think_celery.errors import ModelError
from think_celery.protocols import ModelRequest
from think_celery.providers.anthropic_request import request_body as anthropic_body
from think_celery.providers.openai_request import request_body as openai_body

Json = dict[str, Any]


def problems(request: ModelRequest) -> list[str]:
    """What each provider would refuse of this request."""
    found = []
    for name, check_body in CHECKS.items():
        try:
            found += [f"{name}: {problem}" for problem in check_body(request)]
        except ModelError as error:
            found.append(f"{name}: {error}")
    return found


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


# --- Anthropic's Messages -------------------------------------------------------------------------


def anthropic_problems(body: Json) -> list[str]:
    """What Anthropic refuses of this body."""
    found: list[str] = []
    messages = body["messages"]
    ids: set[str] = set()
    expected: list[str] = []
    for at, message in enumerate(messages):
        role, blocks = message.get("role"), message.get("content")
        here = f"messages[{at}] ({role})"
        if role != ("assistant" if at % 2 else "user"):
            found.append(f"{here}: the user begins, and roles alternate")
        if not isinstance(blocks, list) or not blocks:
            found.append(f"{here} has no content")
            continue
        found += [
            f"{here}: {each} says nothing" for each in blocks if each["type"] == "text" and not _text(each)
        ]
        kinds = [each["type"] for each in blocks]
        results = [each.get("tool_use_id") for each in blocks if each["type"] == "tool_result"]
        if sorted(results) != sorted(expected):
            found.append(f"{here}: the calls before it are {expected}, the results in it {results}")
        if kinds != sorted(kinds, key=lambda kind: kind != "tool_result"):
            found.append(f"{here}: results must stand first")
        if role == "user" and {"tool_use", "thinking", "redacted_thinking"} & set(kinds):
            found.append(f"{here}: these are the assistant's blocks: {kinds}")
        calls = [each for each in blocks if each["type"] == "tool_use"]
        found += [f"{here}: {problem}" for each in calls for problem in _tool_use_problems(each, ids)]
        expected = [each["id"] for each in calls]
    if expected:
        found.append(f"the calls {expected} at the end have no result")
    if not messages or messages[-1]["role"] != "user":
        found.append("the last message is not the user's")
    if ids and not body.get("tools"):
        found.append("there are calls, and no tools")
    if "system" in body and not body["system"].strip():
        found.append("the system prompt is blank")
    return found


def _text(block: Json) -> str:
    return str(block.get("text", "")).strip()


def _tool_use_problems(call: Json, ids: set[str]) -> Iterable[str]:
    call_id = str(call.get("id"))
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call_id):
        yield f"the id {call_id!r} is unfit"
    if call_id in ids:
        yield f"the id {call_id!r} is there twice"
    ids.add(call_id)
    if not call.get("name") or not isinstance(call.get("input"), dict):
        yield f"the call {call_id!r} has no name, or no object as its input"


CHECKS: dict[str, Callable[[ModelRequest], list[str]]] = {
    "openai": lambda request: openai_problems(json.loads(openai_body("m", request, {}))),
    "anthropic": lambda request: anthropic_problems(
        json.loads(anthropic_body("m", request, {}, max_tokens=1000))
    ),
}
