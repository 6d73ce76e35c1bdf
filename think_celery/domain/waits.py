"""Steps that wait: for an event, an approval, or a time.

A wait takes no worker. Its deadline is fixed by the database's clock at the first pass. An event that was
sent at or before it wins, however late the run wakes up; a later one stays in the inbox.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from think_celery import serialization
from think_celery.domain.journal import Asked, Failure, failure_of, own_failure
from think_celery.domain.replay import Replay
from think_celery.durations import Duration, as_timedelta
from think_celery.errors import (
    InvalidApproval,
    StepMisuse,
    UnreadableValue,
    WorkflowRejectedError,
    WorkflowTimeoutError,
)
from think_celery.states import StepStatus
from think_celery.store import events, steps
from think_celery.store.database import Tx

APPROVAL = "approval"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedEvent:
    """An event that a step has taken. ``sent_at`` is when it was sent, by the database's clock."""

    type: str
    payload: Any
    sent_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Approval:
    """A granted approval, with what was said with it."""

    reason: str | None = None
    metadata: Any = None


@dataclass(frozen=True, slots=True)
class _Parked:
    inbox: int
    wake_at: datetime | None


Settled = str | Failure
"""How a wait ended: with the text of its value, or with an error."""


# --- events ---------------------------------------------------------------------------------------


def wait_for_event(replay: Replay, name: str, type: str, timeout: Duration | None) -> ReceivedEvent:
    """Wait for the next event of a type; see ``Step.wait_for_event``."""
    replay.check(name)
    if not isinstance(type, str) or not 1 <= len(type) <= 200 or not type.isprintable():
        raise StepMisuse(name, f"type={type!r}: an event's type is 1 to 200 printable characters.")
    span = None if timeout is None else as_timedelta(timeout, "timeout")
    asked = replay.ask(name, "event")
    if not replay.is_done(asked):
        return _received(
            replay, asked, wait(replay, asked, type, span, take=_event_text, late=overdue(asked, span))
        )
    return _received(replay, asked, asked.row.output)


def _event_text(event: Any) -> str:
    # The payload's text is put in as it is: decoding it here could fail for a class of the user's.
    sent_at = serialization.dumps(event.created_at, what="sent_at")
    return f'{{"type":{json.dumps(event.type)},"payload":{event.payload},"sent_at":{sent_at}}}'


def _received(replay: Replay, asked: Asked, text: str) -> ReceivedEvent:
    return ReceivedEvent(**replay.value(asked, text))


def overdue(asked: Asked, span: timedelta | None) -> Callable[[Tx], Settled]:
    """What to record when a wait's deadline passes."""

    def late(_: Tx) -> Failure:
        seconds = asked.row.timeout_seconds if asked.row is not None else span and span.total_seconds()
        return own_failure(WorkflowTimeoutError(asked.ref.step, seconds or 0.0))

    return late


# --- approvals ------------------------------------------------------------------------------------


def wait_for_approval(replay: Replay, name: str, timeout: Duration | None) -> Approval:
    """Wait for somebody's decision; see ``Step.wait_for_approval``."""
    replay.check(name)
    span = None if timeout is None else as_timedelta(timeout, "timeout")
    asked = replay.ask(name, "approval")
    if not replay.is_done(asked):
        text = wait(
            replay, asked, APPROVAL, span, judge=lambda e: _decision(asked, e), late=overdue(asked, span)
        )
        return Approval(**replay.value(asked, text))
    return Approval(**replay.value(asked, asked.row.output))


def _decision(asked: Asked, event: Any) -> Settled:
    problem: str | None = None
    payload: Any = None
    try:
        payload = serialization.loads(event.payload)
    except UnreadableValue as error:
        problem = str(error)
    if problem is None:
        problem = _unfit(payload)
    if problem is not None:
        return failure_of(InvalidApproval(problem))
    if not payload["approved"]:
        return own_failure(WorkflowRejectedError(asked.ref.step, payload.get("reason")))
    said = {"reason": payload.get("reason"), "metadata": payload.get("metadata")}
    return serialization.dumps(said, what="the approval")


def _unfit(payload: Any) -> str | None:
    if not isinstance(payload, dict):
        return f"the payload is {type(payload).__name__}, no dict"
    if not isinstance(payload.get("approved"), bool):
        return "'approved' is missing, or neither true nor false"
    if not isinstance(payload.get("reason"), str | None):
        return "'reason' is no text"
    return None


# --- times ----------------------------------------------------------------------------------------


def sleep(replay: Replay, name: str, duration: Duration) -> None:
    """Wait for a time; see ``Step.sleep``."""
    replay.check(name)
    span = as_timedelta(duration, "duration")
    asked = replay.ask(name, "sleep")
    if replay.is_done(asked):
        return
    wait(replay, asked, None, span, late=lambda _: "null")


# --- the wait itself ------------------------------------------------------------------------------


def wait(
    replay: Replay,
    asked: Asked,
    event_type: str | None,
    timeout: timedelta | None,
    *,
    late: Callable[[Tx], Any],
    take: Callable[[Any], Settled] | None = None,
    judge: Callable[[Any], Settled] | None = None,
    any_time: bool = False,
) -> str:
    """Wait for an event of that type or the deadline, and return the text of the recorded value.

    Args:
        replay: The pass.
        asked: The wait's entry.
        event_type: Whose first unread event ends the wait; ``None``: only the deadline does.
        timeout: The deadline, counted from the first pass.
        late: Called in the transaction that finds the deadline passed: how the wait ends, or an event row.
        take: How an event ends the wait; runs no code of the user's, and so in the same transaction.
        judge: The same for what may run such code: called between two transactions.
        any_time: Whether an event counts that was sent after the deadline, too.

    Raises:
        Suspend: Neither has come.
        WorkflowError: The recorded failure.
    """

    def look(tx: Tx, inbox: int) -> Any:
        entry = asked.row
        if entry is None:
            entry = steps.insert(tx, asked.ref, StepStatus.WAITING, deadline=timeout)
            replay.must(entry)
        event = None
        if event_type is not None:
            until = None if any_time else entry.deadline_at
            event = events.first_unread(tx, asked.ref.workflow_key, asked.ref.run, event_type, until)
        if event is None and entry.deadline_at is not None and steps.is_due(tx, asked.ref):
            ended = late(tx)
            if isinstance(ended, str | Failure):
                _settle(replay, tx, asked, ended)
                return ended
            event = ended
        if event is None:
            return _Parked(inbox, entry.deadline_at)
        if take is None:
            return event
        ended = take(event)
        _consume(replay, tx, asked, event, ended)
        return ended

    found = replay.write(asked, look)
    replay.rt.failpoint(f"step:{asked.ref.step}:looked")
    if isinstance(found, _Parked):
        replay.park(asked, found.inbox, found.wake_at)
    if not isinstance(found, str | Failure):
        assert judge is not None
        ended = judge(found)
        replay.write(asked, lambda tx, _: _consume(replay, tx, asked, found, ended))
        found = ended
    replay.rt.failpoint(f"step:{asked.ref.step}:committed")
    if isinstance(found, Failure):
        raise replay.failed(asked, found, 1)
    return found


def _consume(replay: Replay, tx: Tx, asked: Asked, event: Any, ended: Settled) -> None:
    replay.must(events.consume(tx, event.seq, asked.ref.step))
    _settle(replay, tx, asked, ended)


def _settle(replay: Replay, tx: Tx, asked: Asked, ended: Settled) -> None:
    if isinstance(ended, Failure):
        replay.must(steps.settle(tx, asked.ref, StepStatus.FAILED, attempts=1, **ended.columns()))
    else:
        replay.must(steps.settle(tx, asked.ref, StepStatus.DONE, output=ended))
