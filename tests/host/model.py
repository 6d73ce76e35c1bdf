"""What the model of these tests answers: the words of a prompt say how it goes."""

from typing import Any

from tests.crash.model import paced, text_of, tools_of
from tests.host.project import MARK
from tests.providers.server import HANG, Response, json_response, stream, text_frames, tool_call_frames


def answer(body: dict[str, Any]) -> Response:
    """``tool``: call one first. ``slow``: take two seconds. ``hold``: don't end. ``fail``: refuse."""
    messages = body["messages"]
    told = max(i for i, message in enumerate(messages) if message["role"] == "user")
    words = text_of(messages[told]).split()
    if "fail" in words:
        return json_response({"error": {"message": f"no: {MARK}-error-of-the-model"}}, status=400)
    if "tool" in words and not any(message["role"] == "tool" for message in messages[told:]):
        return stream(*tool_call_frames(("note", {"what": f"{MARK}-tool-argument"})))
    final = next((name for name in tools_of(body) if name.startswith("think_final_answer")), None)
    if final is not None:
        return stream(*tool_call_frames((final, {"good": True, "why": f"{MARK}-final-answer"})))
    frames = text_frames(f"All of it is done, and here you are: {MARK}-answer")
    if "hold" in words:
        return stream(*frames[:8], HANG)
    return paced(frames, 0.2 if "slow" in words else 0.0)
