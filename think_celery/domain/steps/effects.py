"""Steps that call a function: ``step.do`` and ``step.transaction``."""

import inspect
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import FunctionType
from typing import Any, NoReturn

from think_celery import schemas, serialization
from think_celery.domain import calls
from think_celery.domain.workflows.journal import Asked, Failure, failure_of
from think_celery.domain.workflows.replay import (
    IN_PLACE_SECONDS,
    MARGIN_SECONDS,
    STEP_TIMEOUT_SECONDS,
    Replay,
    StepContext,
    inside,
)
from think_celery.durations import Duration, as_timedelta
from think_celery.errors import (
    AsyncNotSupported,
    InsideTransaction,
    InvalidValue,
    LeaseLost,
    NonRetryableError,
    StepMisuse,
    StepTimeout,
    Suspend,
    TransactionTooLong,
    TurnCancelled,
)
from think_celery.ids import key_part
from think_celery.logs import trace_of
from think_celery.names import name_problem
from think_celery.retries import Retry, check_retry
from think_celery.states import StepStatus
from think_celery.store import leases, steps
from think_celery.store.database import TransactionEnded, Tx
from think_celery.wording import shown

logger = logging.getLogger("think_celery.workflows")

NEVER = float("inf")
USUAL = Retry()
TRANSACTION_SECONDS = 5.0
"""The most that ``step.transaction`` may take; all the while it holds its row locks."""

PERMANENT = (NonRetryableError, StepMisuse, AsyncNotSupported, InsideTransaction)

Outcome = tuple[str, Any] | Failure
"""The stored text and the value of a step that succeeded, or how it failed."""


def do(
    replay: Replay,
    name: str,
    function: Callable[..., Any],
    retry: Retry | None,
    timeout: Duration | None,
    output: Any,
    queue: str | None = None,
) -> Any:
    """Run *function* once and record what it returns; see ``Step.do``."""
    replay.check(name)
    takes_context = _takes(name, function)
    seconds = None if timeout is None else as_timedelta(timeout, "timeout").total_seconds()
    problem = None if queue is None else name_problem(queue, 200)
    if problem is not None:
        raise StepMisuse(name, f"queue={shown(queue)}, the name of a Celery queue: {problem}.")
    tries = _retry_of(name, retry)
    _check_output(name, output)
    asked = replay.ask(name, "do")

    def once(attempt: int) -> Any:
        context = StepContext(
            attempt=attempt,
            idempotency_key=_idempotency_key(replay, asked),
            signal=replay.hold.signal,
        )

        def body() -> Any:
            return inside_of(asked, lambda: function(context) if takes_context else function())

        result = _watched(replay, asked, seconds, body)
        replay.rt.failpoint(f"step:{asked.ref.step}:ran")
        if isinstance(result, Failure):
            return result
        encoded = encode(replay, asked, result, output)
        if not isinstance(encoded, Failure):
            _record_done(replay, asked, encoded[0])
        return encoded

    return tried(replay, asked, tries, output, once, queue)


def transaction(
    replay: Replay, name: str, function: Callable[..., Any], retry: Retry | None, output: Any
) -> Any:
    """Run *function* in the transaction that records it; see ``Step.transaction``."""
    replay.check(name)
    if not _takes(name, function):
        raise StepMisuse(name, "the function of step.transaction takes one argument: the connection.")
    tries = _retry_of(name, retry)
    _check_output(name, output)
    asked = replay.ask(name, "transaction")
    return tried(replay, asked, tries, output, lambda _: _in_transaction(replay, asked, function, output))


def _idempotency_key(replay: Replay, asked: Asked) -> str:
    # An id may hold colons. No other part does, so no two steps share a key.
    name, step = key_part(replay.workflow.workflow), key_part(asked.ref.step)
    return f"{name}:{replay.workflow.workflow_id}:{replay.run}:{step}"


# --- trying ---------------------------------------------------------------------------------------


def _retry_of(name: str, retry: object) -> Retry:
    """How often a step is tried."""
    try:
        check_retry(retry)
    except InvalidValue as error:
        raise StepMisuse(name, str(error)) from None
    return retry if isinstance(retry, Retry) else USUAL


def _check_output(name: str, output: Any) -> None:
    """Make sure, before the step has an effect, that *output* is a type."""
    try:
        if output is not None:
            schemas.check_type(output, "the result")
    except InvalidValue as error:
        raise StepMisuse(name, f"output={shown(output)}: {error}") from None


def tried(
    replay: Replay,
    asked: Asked,
    retry: Retry,
    output: Any,
    once: Callable[[int], Outcome],
    queue: str | None = None,
) -> Any:
    """The step's value: recorded, or of the first attempt that succeeds."""
    text = replay.recorded(asked)
    if text is not None:
        return _typed(replay, asked, text, output)
    attempts, recorded = 0, asked.row is not None
    if recorded:
        attempts = asked.row.attempts
        _await_next(replay, asked)
    while True:
        replay.before_effect(asked)
        replay.go_to(asked, queue)
        replay.rt.failpoint(f"step:{asked.ref.step}:before")
        outcome = once(attempts + 1)
        if not isinstance(outcome, Failure):
            replay.rt.failpoint(f"step:{asked.ref.step}:committed")
            return outcome[1]
        attempts += 1
        logger.warning(
            "%s: attempt %d of step %r failed: %s",
            replay.workflow,
            attempts,
            asked.ref.step,
            outcome.place or outcome.error_type,
            extra={"think_event": "step.failed", "think_workflow": replay.workflow.workflow_id},
        )
        if outcome.permanent or attempts >= retry.max_attempts:
            replay.fail(asked, outcome, attempts, recorded=recorded)
        delay = retry.delay_before(attempts + 1)
        _record_attempt(replay, asked, outcome, attempts, delay, recorded)
        recorded = True
        _await_next(replay, asked, delay)


def _record_attempt(
    replay: Replay, asked: Asked, failure: Failure, attempts: int, delay: timedelta, recorded: bool
) -> None:
    changes = {"attempts": attempts, **failure.columns()}

    def store(tx: Tx, _: int) -> None:
        if not recorded:
            replay.must(
                steps.insert(tx, asked.ref, StepStatus.RETRYING, deadline=delay, took=replay.took, **changes)
            )
        else:
            replay.must(steps.try_later(tx, asked.ref, delay, **changes))

    replay.write(asked, store)


def _await_next(replay: Replay, asked: Asked, delay: timedelta | None = None) -> None:
    """Wait until the next attempt is due: with the worker if that is soon, else parked."""
    if delay is None:
        delay = replay.read(asked, lambda tx: steps.due_in(tx, asked.ref))
    if delay.total_seconds() <= IN_PLACE_SECONDS:
        replay.pause(asked, delay.total_seconds())
        return

    def look(tx: Tx, inbox: int) -> tuple[int, Any]:
        return inbox, steps.get(tx, asked.ref)

    inbox, row = replay.write(asked, look)
    replay.park(asked, inbox, row.deadline_at, replay.step_queue)


# --- one attempt ----------------------------------------------------------------------------------


def inside_of(asked: Asked, function: Callable[[], Any]) -> Any:
    """Call a step's function: no other step may be asked for in it."""
    token = inside.set(asked.ref.step)
    try:
        return function()
    finally:
        inside.reset(token)


def _watched(replay: Replay, asked: Asked, seconds: float | None, body: Callable[[], Any]) -> Any:
    """What *body* returns, or a :class:`Failure`."""
    hold = replay.hold
    hold.extend(NEVER if seconds is None else seconds + MARGIN_SECONDS)
    try:
        result = calls.attempt(replay.rt, body, timeout=seconds, signal=hold.signal, helper=replay.helper)
    except Exception:
        interrupted(replay, asked)
    finally:
        hold.extend(STEP_TIMEOUT_SECONDS + MARGIN_SECONDS)
    match result:
        case calls.Done(value):
            return value
        case calls.Failed(error):
            return raised(replay, asked, error)
        case _:
            replay.check_ours(asked)  # given up because the lease is lost: that is no failure of the step
            return failure_of(StepTimeout(seconds or 0.0))


def interrupted(replay: Replay, asked: Asked) -> NoReturn:
    """Hand over: what came is not the step's error but the worker's own, Celery's soft time limit."""
    logger.warning("%s: interrupted in step %r", replay.workflow, asked.ref.step)
    replay.halt("handed-over", asked.ref.step)


def raised(replay: Replay, asked: Asked, error: BaseException) -> Failure:
    """What a step's function raised, as its failure; work of ours that ends with it is none."""
    if isinstance(error, LeaseLost | Suspend | TurnCancelled):  # work of ours that ends in here, not the step
        replay.check_ours(asked)
        replay.halt("interrupted", asked.ref.step)
    if calls.passes(error):
        raise error
    return replace(failure_of(error), permanent=isinstance(error, PERMANENT), place=trace_of(error))


def encode(replay: Replay, asked: Asked, value: Any, output: Any) -> Outcome:
    """A step's value as text, and as its caller gets it: read back from that text, now as on replay.

    A value that can't be stored, or that does not fit *output*, is a failure which no retry can mend.
    """
    what = f"the result of step {asked.ref.step!r}"
    try:
        text = serialization.dumps(value, what=what, limit=replay.rt.settings.max_payload)
        return text, _as_output(serialization.loads(text), output, what)
    except InvalidValue as error:
        return failure_of(error).for_good()


def _as_output(value: Any, output: Any, what: str) -> Any:
    return value if output is None else schemas.as_type(output, value, what)


def _typed(replay: Replay, asked: Asked, text: str, output: Any) -> Any:
    value = replay.value(asked, text)
    try:
        return _as_output(value, output, f"the recorded result of step {asked.ref.step!r}")
    except InvalidValue as error:
        replay.halt("unfit", asked.ref.step, error=error)


def _record_done(replay: Replay, asked: Asked, text: str) -> None:
    replay.rt.failpoint(f"step:{asked.ref.step}:before-commit")
    lease, took = replay.hold.lease, replay.took
    if not replay.at_once(asked, lambda tx: steps.insert_done(tx, lease, asked.ref, text, took)):
        replay.write(asked, lambda tx, _: _store_done(tx, asked, text, took))


def _store_done(tx: Tx, asked: Asked, text: str, took: timedelta) -> None:
    values: dict[str, Any] = {"output": text, "error_type": None, "error": None, "trace": None}
    if steps.insert(tx, asked.ref, StepStatus.DONE, took=took, **values) is None:
        entry = steps.get(tx, asked.ref)
        if entry is not None and entry.status == StepStatus.DONE and entry.output == text:
            return  # stored by a statement of ours whose answer was lost
        Replay.must(steps.settle(tx, asked.ref, StepStatus.DONE, **values))


# --- step.transaction -----------------------------------------------------------------------------


def _in_transaction(replay: Replay, asked: Asked, function: Callable[..., Any], output: Any) -> Outcome:
    """One attempt: the function, its entry and, last, the fence, in one transaction that nothing repeats."""
    rt = replay.rt
    kept: list[Outcome] = []

    def work(tx: Tx) -> None:
        began, seconds = rt.clock.elapsed(), TRANSACTION_SECONDS
        if not tx.postgres:  # all other writers wait meanwhile
            seconds = min(seconds, rt.settings.lease_seconds / 3)
        tx.limit(timedelta(seconds=seconds))
        try:
            value = rt.db.lend(tx, lambda conn: inside_of(asked, lambda: function(conn)))
        except TransactionEnded:
            raise StepMisuse(
                asked.ref.step,
                "its function ended the transaction itself. The step commits it, together with its journal "
                "entry; use conn.begin_nested() for a part that may be undone.",
            ) from None
        encoded = encode(replay, asked, value, output)
        kept.append(encoded)
        if isinstance(encoded, Failure):
            raise _Undo
        _store_done(tx, asked, encoded[0], replay.took)
        rt.failpoint(f"step:{asked.ref.step}:before-commit")
        took = rt.clock.elapsed() - began
        if took > seconds:
            kept.append(failure_of(TransactionTooLong(took, seconds)))
            raise _Undo
        replay.pausing = leases.fence(tx, replay.hold.lease).pause_at is not None

    try:
        result = calls.run(lambda: rt.db.once(work))
    except Exception:
        interrupted(replay, asked)
    rt.failpoint(f"step:{asked.ref.step}:ran")
    match result:
        case calls.Done():
            return kept[-1]
        case calls.Failed(error) if isinstance(error, _Undo):
            return kept[-1]
        case calls.Failed(error):
            failure = raised(replay, asked, error)
            return _committed_after_all(replay, asked, output) or failure
    raise AssertionError("unreachable")


class _Undo(Exception):
    """Rolls the step's transaction back; the reason is kept elsewhere."""


def _committed_after_all(replay: Replay, asked: Asked, output: Any) -> Outcome | None:
    """The step's outcome if its commit, whose answer was lost with the connection, has happened."""

    def look(tx: Tx, _: int) -> Any:
        return steps.get(tx, asked.ref)

    row = replay.write(asked, look)
    if row is None or row.status != StepStatus.DONE:
        return None
    return row.output, _typed(replay, asked, row.output, output)


# --- functions ------------------------------------------------------------------------------------


def _takes(name: str, function: Callable[..., Any]) -> bool:
    """Whether the function has a parameter without a default, which gets the step's own argument.

    Raises:
        StepMisuse: It is no function, or has more of them.
        AsyncNotSupported: It is an ``async def``.
    """
    if not callable(function):
        raise StepMisuse(
            name, f"{shown(function)} is no function. Pass one that takes nothing, such as a lambda."
        )
    if inspect.iscoroutinefunction(function):
        raise AsyncNotSupported(f"The function of step {name!r}")
    if isinstance(function, FunctionType) and not function.__dict__:
        code = function.__code__
        # A lambda, most often; inspecting it takes longer.
        if code.co_argcount == code.co_kwonlyargcount == 0:
            return False
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin that doesn't tell
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty and p.kind in kinds]
    keywords = [p for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
    if len(needed) > 1 or keywords:
        missing = ", ".join(p.name for p in [*needed, *keywords])
        raise StepMisuse(
            name,
            f"its function needs arguments that a step can't pass ({missing}). Wrap it: "
            "lambda: function(first, second).",
        )
    return len(needed) == 1
