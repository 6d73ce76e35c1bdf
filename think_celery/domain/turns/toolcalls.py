"""Run the calls of one model step: each once, also after a crash."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from think_celery.described import describe
from think_celery.domain import calls
from think_celery.domain.agents.hooks import Hooks
from think_celery.domain.conversation.interactions import interaction_id
from think_celery.domain.leases import Hold
from think_celery.domain.patience import patiently
from think_celery.domain.turns.answers import input_chunk, request_chunk, settled_chunk
from think_celery.domain.turns.continuations import is_approved
from think_celery.domain.turns.drafts import Draft
from think_celery.errors import InvalidToolArguments, TurnCancelled
from think_celery.hooks.turns import ToolCallContext, ToolCallDecision, ToolResultContext
from think_celery.logs import trace_of
from think_celery.messages import ToolPart
from think_celery.runtime import Runtime
from think_celery.serialization import check_size
from think_celery.tools import Tool, ToolContext, dump_result, parse_arguments

logger = logging.getLogger("think_celery.tools")

CHANGED = "The call was not made: it is not the one that was approved. Call the tool again."


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What the calls of a step share. ``show`` lets listeners see what happens.

    ``about`` are the fields of :class:`~think_celery.hooks.turns.TurnInfo`. ``approved`` are the calls that somebody
    has approved, and what they were approved as. In a ``structured`` turn nobody can be waited for.
    """

    rt: Runtime
    hold: Hold
    draft: Draft
    hooks: Hooks
    tools: Mapping[str, Tool]
    agent_id: str
    agent_name: str
    about: Mapping[str, Any]
    show: Callable[..., None]
    approved: Mapping[str, str] = field(default_factory=dict)
    structured: bool = False


@dataclass
class _Call:
    part: ToolPart
    tool: Tool
    kwargs: Mapping[str, object]
    context: ToolContext
    told: ToolCallContext
    decision: ToolCallDecision
    seconds: float = 0.0


def execute(scene: Scene, parts: Sequence[ToolPart]) -> list[ToolPart]:
    """Run these calls, several at once, and settle each part with its result; returns those that wait for somebody.

    A call that can't be made (unknown tool, unfit arguments) is settled with an error for the model. A
    tool that may not be repeated is stored as started before it is called. Each result is stored as
    soon as it is there. A call that needs an approval, or that a client makes, is stored as such, and is not made.

    Raises:
        LeaseLost, TurnCancelled: The work is no longer ours; results that come later are dropped.
    """
    prepared = [_Preparation(scene, part) for part in parts]
    made = [each.call for each in prepared if each.call is not None]
    ready = [call for call in made if not call.part.settled]
    waiting = [each.part for each in prepared if each.waits]
    for each in prepared:
        scene.show(*each.chunks())
    scene.draft.store_step(progress=any(part.settled for part in parts))
    if ready:
        _run(scene, ready)
    for call in made:
        if call.part.settled:
            scene.hooks.react("after_tool_call", _result(call))
    return waiting


def _run(scene: Scene, ready: Sequence[_Call]) -> None:
    scene.rt.failpoint("turn:tool-marked")
    try:
        patiently(scene.rt, scene.hold, scene.hold.check)
    except TurnCancelled:
        _not_begun(ready)
        raise
    runs = _Runs(scene)
    try:
        results = calls.call_all(
            scene.rt, [partial(runs.run, call) for call in ready], signal=scene.hold.signal
        )
    finally:
        runs.close()
    for call, result in zip(ready, results, strict=True):
        if isinstance(result, calls.Failed):
            raise result.error
        if isinstance(result, calls.Abandoned) and result.started:
            logger.warning(
                "tool %s of submission %s did not stop in time and was given up",
                call.tool.name,
                call.context.submission_id,
            )
        elif isinstance(result, calls.Abandoned):
            _not_begun([call])
    patiently(scene.rt, scene.hold, scene.hold.check)


def _not_begun(ready: Sequence[_Call]) -> None:
    for call in ready:
        call.part.started = False


def _result(call: _Call) -> ToolResultContext:
    told = {name: getattr(call.told, name) for name in call.told.__dataclass_fields__}
    return ToolResultContext(
        **{**told, "input": call.part.input},
        action=call.decision.action,
        output=call.part.output,
        error=call.part.error_text if call.part.state == "output-error" else None,
        seconds=call.seconds,
    )


class _Preparation:
    """What is to be done with one call: it is made (``call``), it ``waits`` for somebody, or it is settled already."""

    def __init__(self, scene: Scene, part: ToolPart) -> None:
        self._scene, self.part = scene, part
        self._was_approved = part.state == "approval-responded"
        self.call: _Call | None = None
        # Stored so by a worker that died before the turn ended.
        self.waits = part.state == "approval-requested"
        if not self.waits:
            self._prepare()

    def chunks(self) -> list[dict[str, Any]]:
        """What listeners see of it."""
        chunks = [] if self._was_approved else [input_chunk(self.part)]
        if self.part.state == "approval-requested":
            chunks.append(request_chunk(self.part))
        return [*chunks, settled_chunk(self.part)] if self.part.settled else chunks

    def _prepare(self) -> None:
        part, tool = self.part, self._scene.tools.get(self.part.tool_name)
        if self._was_approved and not is_approved(part, self._scene.approved):
            _settle_error(part, CHANGED)
            return
        try:
            part.input = parse_arguments(part.input, None if tool is None else tool.parameters)
            kwargs = {} if tool is None else tool.validate(part.input)
        except InvalidToolArguments as error:
            if tool is not None:
                _settle_error(part, str(error))
                return
        if tool is None:
            available = ", ".join(self._scene.tools) or "none"
            _settle_error(part, f"There is no tool {part.tool_name!r}. Available tools: {available}.")
            return
        call = self._made(tool, kwargs)
        if not self._was_approved:
            self._ask_hook(call)
            if not part.settled:
                self.waits = self._must_wait(call)
        if part.settled or not self.waits:
            self.call = call
            part.started = not part.settled and not tool.idempotent

    def _made(self, tool: Tool, kwargs: Mapping[str, object]) -> _Call:
        scene, part = self._scene, self.part
        step, position = scene.draft.answer.place_of(part)
        key = f"{scene.about['submission_id']}:{step}:{position}"
        context = ToolContext(
            agent_name=scene.agent_name,
            submission_id=scene.about["submission_id"],
            message_id=scene.draft.message_id,
            tool_call_id=part.tool_call_id,
            idempotency_key=key,
            attempt=scene.about["attempt"],
            signal=scene.hold.signal,
        )
        told = ToolCallContext(
            **{**scene.about, "message_id": scene.draft.message_id},
            step=step - 1,
            tool_name=tool.name,
            tool_call_id=part.tool_call_id,
            input=part.input,
            idempotency_key=key,
        )
        return _Call(part, tool, kwargs, context, told, ToolCallDecision.allow())

    def _ask_hook(self, call: _Call) -> None:
        """Let the agent allow the call, block it, or answer in the tool's place. What it decides is stored first."""
        decision = self._scene.hooks.config("before_tool_call", ToolCallDecision, call.told)
        if decision is None:
            return
        call.decision = decision
        match decision.action:
            case "block":
                _settle_error(call.part, (decision.reason or "").strip() or "The call was blocked.")
            case "substitute":
                call.part.output = _storable(self._scene.rt, call.tool.name, decision.output)
                call.part.state = "output-available"
            case "allow":
                if decision.input is None:
                    return
                try:
                    call.part.input = parse_arguments(decision.input, call.tool.parameters)
                    call.kwargs = call.tool.validate(call.part.input)
                except InvalidToolArguments as error:
                    _settle_error(call.part, str(error))

    def _must_wait(self, call: _Call) -> bool:
        """Whether somebody must be asked first. In a structured turn, which can't wait, the model is told so."""
        tool, part = call.tool, call.part
        if not tool.is_client and not self._needs_approval(call):
            return False
        if self._scene.structured:
            who = "a client answers it" if tool.is_client else "it needs somebody's approval"
            _settle_error(
                part,
                f"The tool {tool.name!r} can't be called here: {who}, and a workflow's prompt does not wait for that. "
                "Answer without it; the workflow itself can ask, with step.wait_for_approval.",
            )
            return False
        if not tool.is_client:
            part.state = "approval-requested"
            part.approval = {"id": interaction_id(self._scene.agent_id, self._scene.draft.message_id, part)}
        return True

    def _needs_approval(self, call: _Call) -> bool:
        if not callable(call.tool.needs_approval):
            return call.tool.asks_first(call.kwargs)
        result = self._scene.hooks.attempt("needs_approval", lambda: call.tool.asks_first(call.kwargs))
        if isinstance(result, calls.Done):
            return result.value
        if calls.passes(result.error):
            raise result.error
        logger.error(
            "needs_approval of tool %s failed in submission %s, so somebody is asked: %s",
            call.tool.name,
            call.context.submission_id,
            trace_of(result.error),
        )
        return True


class _Runs:
    """The runs of one step's calls. They store their results one at a time."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._lock = scene, threading.Lock()
        self._broken = self._over = False

    def close(self) -> None:
        """The turn goes on: what a tool that was given up still returns is dropped, though the line may be held."""
        with self._lock:
            self._over = True

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
        began = scene.rt.clock.elapsed()
        try:
            output = self._output(call)
        except BaseException as error:
            if calls.passes(error):
                raise
            logger.info(
                "tool %s of submission %s raised %s",
                call.tool.name,
                call.context.submission_id,
                trace_of(error),
            )
            error_text = describe(error)[1].strip() or type(error).__name__
        scene.rt.failpoint("turn:tool-ran")
        with self._lock:
            if self._over or scene.hold.lost or scene.hold.cancelled:
                logger.warning(
                    "the result of tool %s of submission %s came after its turn had ended; it is dropped",
                    call.tool.name,
                    call.context.submission_id,
                )
                return
            call.seconds = scene.rt.clock.elapsed() - began
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
        return _storable(scene.rt, call.tool.name, value)


def _storable(rt: Runtime, tool: str, value: Any) -> Any:
    output = dump_result(value, tool)
    check_size("The tool's result", output, rt.settings.max_payload)
    return output


def _settle_error(part: ToolPart, text: str) -> None:
    part.error_text, part.state = text, "output-error"
