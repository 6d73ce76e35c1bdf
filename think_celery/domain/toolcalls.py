"""Run the calls of one model step: each once, also after a crash."""

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from think_celery.described import describe
from think_celery.domain import calls
from think_celery.domain.answers import input_chunk, settled_chunk
from think_celery.domain.drafts import Draft
from think_celery.domain.leases import Hold
from think_celery.domain.patience import patiently
from think_celery.errors import InvalidToolArguments, PayloadTooLarge, TurnCancelled
from think_celery.messages import ToolPart
from think_celery.runtime import Runtime
from think_celery.tools import Tool, ToolContext, dump_result, parse_arguments

logger = logging.getLogger("think_celery.tools")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What the calls of a step share. ``show`` lets listeners see what happens."""

    rt: Runtime
    hold: Hold
    draft: Draft
    tools: Mapping[str, Tool]
    agent_name: str
    submission_id: str
    attempt: int
    show: Callable[..., None]


@dataclass(frozen=True)
class _Call:
    part: ToolPart
    tool: Tool
    kwargs: Mapping[str, object]
    context: ToolContext


def execute(scene: Scene, parts: Sequence[ToolPart]) -> None:
    """Run these calls, several at once, and settle each part with its result.

    A call that can't be made (unknown tool, unfit arguments) is settled with an error for the model. A
    tool that may not be repeated is stored as started before it is called. Each result is stored as
    soon as it is there.

    Raises:
        LeaseLost, TurnCancelled: The work is no longer ours; results that come later are dropped.
    """
    ready = [call for part in parts if (call := _prepare(scene, part))]
    for part in parts:
        scene.show(input_chunk(part), *([settled_chunk(part)] if part.settled else []))
    scene.draft.store_step(progress=any(part.settled for part in parts))
    if not ready:
        return
    scene.rt.failpoint("turn:tool-marked")
    try:
        patiently(scene.rt, scene.hold, scene.hold.check)
    except TurnCancelled:
        _not_begun(ready)
        raise
    runs = _Runs(scene)
    results = calls.call_all(scene.rt, [partial(runs.run, call) for call in ready], signal=scene.hold.signal)
    for call, result in zip(ready, results, strict=True):
        if isinstance(result, calls.Failed):
            raise result.error
        if isinstance(result, calls.Abandoned) and result.started:
            logger.warning(
                "tool %s of submission %s did not stop in time and was given up",
                call.tool.name,
                scene.submission_id,
            )
        elif isinstance(result, calls.Abandoned):
            _not_begun([call])
    patiently(scene.rt, scene.hold, scene.hold.check)


def _prepare(scene: Scene, part: ToolPart) -> _Call | None:
    tool = scene.tools.get(part.tool_name)
    try:
        part.input = parse_arguments(part.input, None if tool is None else tool.parameters)
        kwargs = {} if tool is None else tool.validate(part.input)
    except InvalidToolArguments as error:
        if tool is not None:
            _settle_error(part, str(error))
            return None
    if tool is None:
        available = ", ".join(scene.tools) or "none"
        _settle_error(part, f"There is no tool {part.tool_name!r}. Available tools: {available}.")
        return None
    part.started = not tool.idempotent
    step, position = scene.draft.answer.place_of(part)
    context = ToolContext(
        agent_name=scene.agent_name,
        submission_id=scene.submission_id,
        message_id=scene.draft.message_id,
        tool_call_id=part.tool_call_id,
        idempotency_key=f"{scene.submission_id}:{step}:{position}",
        attempt=scene.attempt,
        signal=scene.hold.signal,
    )
    return _Call(part, tool, kwargs, context)


def _not_begun(ready: Sequence[_Call]) -> None:
    for call in ready:
        call.part.started = False


class _Runs:
    """The runs of one step's calls. They store their results one at a time."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._lock = scene, threading.Lock()
        self._broken = False

    def run(self, call: _Call) -> None:
        """Call the tool, settle its part, and store the message with it."""
        if self._broken:  # the lease is gone, or (in a test) the worker died in the call before
            return
        try:
            self._run(call)
        except BaseException:
            self._broken = True
            raise

    def _run(self, call: _Call) -> None:
        scene, output, error_text = self._scene, None, None
        try:
            output = self._output(call)
        except BaseException as error:
            if calls.passes(error):
                raise
            logger.info(
                "tool %s of submission %s raised %s",
                call.tool.name,
                scene.submission_id,
                type(error).__name__,
            )
            error_text = describe(error)[1].strip() or type(error).__name__
        scene.rt.failpoint("turn:tool-ran")
        with self._lock:
            if scene.hold.lost or scene.hold.cancelled:
                logger.warning(
                    "the result of tool %s of submission %s came after its turn had ended; it is dropped",
                    call.tool.name,
                    scene.submission_id,
                )
                return
            if error_text is None:
                call.part.output, call.part.state = output, "output-available"
            else:
                _settle_error(call.part, error_text)
            scene.draft.store_step(progress=True)
        scene.show(settled_chunk(call.part))
        scene.rt.failpoint("turn:tool-stored")

    def _output(self, call: _Call) -> object:
        scene = self._scene
        if call.tool.timeout_seconds is None:
            value = call.tool.call(call.kwargs, call.context)
        else:
            value = calls.call(
                scene.rt,
                lambda: call.tool.call(call.kwargs, call.context),
                timeout=call.tool.timeout_seconds,
            )
        output = dump_result(value)
        size, limit = len(json.dumps(output)), scene.rt.settings.max_payload
        if size > limit:
            raise PayloadTooLarge("The tool's result", size, limit)
        return output


def _settle_error(part: ToolPart, text: str) -> None:
    part.error_text, part.state = text, "output-error"
