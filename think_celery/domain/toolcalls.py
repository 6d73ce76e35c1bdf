"""Run the calls of one model step: each once, also after a crash."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from think_celery.domain import calls
from think_celery.domain.answers import input_chunk, settled_chunk
from think_celery.domain.leases import Hold
from think_celery.errors import InvalidToolArguments, LeaseLost
from think_celery.messages import ToolPart, clean
from think_celery.tools import Tool, ToolContext, dump_result, parse_arguments

if TYPE_CHECKING:
    from think_celery.runtime import Runtime

logger = logging.getLogger("think_celery.tools")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What the calls of a step share. ``store`` writes the message so far under the turn's fence."""

    rt: "Runtime"
    hold: Hold
    tools: Mapping[str, Tool]
    agent_name: str
    submission_id: str
    message_id: str
    step: int
    attempt: int
    store: Callable[[], None]
    show: Callable[..., None]


def execute(scene: Scene, parts: Sequence[ToolPart]) -> None:
    """Run these calls, several at once, and settle each part with its result.

    A call that can't be made (unknown tool, unfit arguments) is settled with an error for the model. A
    tool that may not be repeated is stored as started before it is called. Each result is stored as
    soon as it is there.

    Raises:
        LeaseLost, TurnCancelled: The work is no longer ours; results that come later are dropped.
    """
    ready = [call for position, part in enumerate(parts) if (call := _prepare(scene, part, position))]
    for part in parts:
        scene.show(input_chunk(part), *([settled_chunk(part)] if part.settled else []))
    scene.store()
    if not ready:
        return
    scene.rt.failpoint("turn:tool-marked")
    scene.hold.check()
    lock = threading.Lock()
    runs = [lambda call=call: _run(scene, call, lock) for call in ready]
    for result in calls.call_all(scene.rt, runs, signal=scene.hold.signal):
        if isinstance(result, calls.Failed):
            raise result.error
        if isinstance(result, calls.Abandoned) and result.started:
            logger.warning(
                "a tool of submission %s did not stop in time and was given up", scene.submission_id
            )
    scene.hold.check()


@dataclass(frozen=True)
class _Call:
    part: ToolPart
    tool: Tool
    kwargs: Mapping[str, object]
    context: ToolContext


def _prepare(scene: Scene, part: ToolPart, position: int) -> _Call | None:
    tool = scene.tools.get(part.tool_name)
    if tool is None:
        available = ", ".join(scene.tools) or "none"
        _settle_error(part, f"There is no tool {part.tool_name!r}. Available tools: {available}.")
        return None
    try:
        part.input = parse_arguments(part.input)
        kwargs = tool.validate(part.input)
    except InvalidToolArguments as error:
        _settle_error(part, str(error))
        return None
    part.started = not tool.idempotent
    key = f"{scene.submission_id}:{scene.step}:{position}"
    context = ToolContext(
        agent_name=scene.agent_name,
        submission_id=scene.submission_id,
        message_id=scene.message_id,
        tool_call_id=part.tool_call_id,
        idempotency_key=key,
        attempt=scene.attempt,
        signal=scene.hold.signal,
    )
    return _Call(part, tool, kwargs, context)


def _run(scene: Scene, call: _Call, lock: threading.Lock) -> None:
    output, error_text = None, None
    try:
        if call.tool.timeout_seconds is None:
            value = call.tool.call(call.kwargs, call.context)
        else:
            value = calls.call(
                scene.rt,
                lambda: call.tool.call(call.kwargs, call.context),
                timeout=call.tool.timeout_seconds,
            )
        output = dump_result(value)
    except LeaseLost:
        raise
    except Exception as error:
        logger.info(
            "tool %s of submission %s raised %s", call.tool.name, scene.submission_id, type(error).__name__
        )
        error_text = clean(str(error)) or type(error).__name__
    scene.rt.failpoint("turn:tool-ran")
    with lock:
        if scene.hold.lost or scene.hold.cancelled:
            logger.warning(
                "the result of tool %s came after its turn had ended; it is dropped", call.tool.name
            )
            return
        if error_text is None:
            call.part.output, call.part.state = output, "output-available"
        else:
            _settle_error(call.part, error_text)
        scene.store()
    scene.show(settled_chunk(call.part))
    scene.rt.failpoint("turn:tool-stored")


def _settle_error(part: ToolPart, text: str) -> None:
    part.error_text, part.state = text, "output-error"
