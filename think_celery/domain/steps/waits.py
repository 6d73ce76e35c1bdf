"""Steps that wait: for an event, an approval, or a time.

A wait takes no worker. Its deadline is fixed by the database's clock at the first pass. An event that was
sent at or before it wins, however late the run wakes up; a later one stays in the inbox.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from think_celery import serialization
from think_celery.domain.workflows.journal import Asked, Failure, failure_of, own_failure
from think_celery.domain.workflows.replay import MAX_STEP_NAME, Replay, step_told
from think_celery.durations import Duration, as_timedelta
from think_celery.errors import (
    InvalidApproval,
    InvalidDuration,
    StepMisuse,
    UnreadableValue,
    WorkflowRejectedError,
    WorkflowTimeoutError,
)
from think_celery.names import name_problem
from think_celery.states import StepStatus
from think_celery.store import events, steps
from think_celery.store.database import Tx
from think_celery.wording import shown

APPROVAL = "approval"
END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedEvent:
    """An event that a step has taken. ``sent_at`` is when it was sent, by the database's clock.

    Of ``step.wait_any`` it has a ``name``: the type of the event, or the name of the prompt, that came first. A
    prompt's ``type`` is ``"prompt"``, its ``payload`` the answer.
    """

    type: str
    payload: Any
    sent_at: datetime
    name: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Approval:
    """A granted approval, with what was said with it."""

    reason: str | None = None
    metadata: Any = None


Settled = str | Failure
"""How a wait ended: with the text of its value, or with an error."""


@dataclass(frozen=True, slots=True)
class Found:
    """The event that ends a wait."""

    event: Any


@dataclass(frozen=True, slots=True)
class _Parked:
    inbox: int
    wake_at: datetime | None


def refuse_duration(step: str, given: object, what: str, instead: str) -> None:
    """Make sure that what is *what* was not meant as a span of time, which *instead* takes.

    Raises:
        StepMisuse: It is a span, or a text that reads as one, such as "3 days". One of digits only is a name.
    """
    if isinstance(given, str) and not (given[:1].isalnum() and any(map(str.isalpha, given))):
        return
    if isinstance(given, str | timedelta | int | float):
        with suppress(InvalidDuration):
            as_timedelta(given)
            raise StepMisuse(
                step,
                f"{str(given)[:MAX_STEP_NAME]!r} is {what} here, and reads as a span of time. Pass that as {instead}",
            )


def _check(replay: Replay, name: Any, instead: str = 'timeout=, such as timeout="3 days".') -> None:
    """Make sure that a wait of that name may be asked for here, and that the name is not meant as its span."""
    refuse_duration(step_told(name), name, "the step's name", instead)
    replay.check(name)


# --- events ---------------------------------------------------------------------------------------


def wait_for_event(replay: Replay, name: str, type: str, timeout: Duration | None) -> ReceivedEvent:
    """Wait for the next event of a type; see ``Step.wait_for_event``."""
    _check(replay, name)
    problem = name_problem(type, 200)
    if problem is not None:
        raise StepMisuse(name, f"type={shown(type)}, an event's type: {problem}.")
    span = None if timeout is None else as_timedelta(timeout, "timeout")
    asked = replay.ask(name, "event")
    text = replay.recorded(asked) or wait(replay, asked, Wait(event_type=type, timeout=span))
    return ReceivedEvent(**replay.value(asked, text))


def _event_text(_: Asked, event: Any) -> str:
    # The payload's text is put in as it is: decoding it here could fail for a class of the user's.
    sent_at = serialization.dumps(event.created_at, what="sent_at")
    return f'{{"type":{json.dumps(event.type)},"payload":{event.payload},"sent_at":{sent_at}}}'


# --- approvals ------------------------------------------------------------------------------------


def wait_for_approval(replay: Replay, name: str, timeout: Duration | None) -> Approval:
    """Wait for somebody's decision; see ``Step.wait_for_approval``."""
    _check(replay, name)
    span = None if timeout is None else as_timedelta(timeout, "timeout")
    asked = replay.ask(name, "approval")
    decision = Wait(event_type=APPROVAL, timeout=span, read=_decision)
    text = replay.recorded(asked) or wait(replay, asked, decision)
    return Approval(**replay.value(asked, text))


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
    _check(replay, name, 'the second argument: step.sleep("pause", "3 days").')
    span = as_timedelta(duration, "duration")
    asked = replay.ask(name, "sleep")
    if replay.recorded(asked) is None:
        wait(replay, asked, Wait(timeout=span, late=lambda _, __: "null"))


def sleep_until(replay: Replay, name: str, when: datetime) -> None:
    """Wait for an instant; see ``Step.sleep_until``."""
    _check(
        replay, name, 'a duration of step.sleep("pause", "3 days"); sleep_until takes a name and an instant.'
    )
    if not isinstance(when, datetime) or when.utcoffset() is None:
        raise StepMisuse(
            name,
            f"when={shown(when)} is no instant: it must be a datetime with a time zone, such as "
            'datetime(2027, 3, 1, 9, tzinfo=ZoneInfo("Europe/Paris")).',
        )
    if when >= END_OF_TIME:
        raise StepMisuse(name, f"when={when!r}: it must be before the year 9999; dates end with that.")
    asked = replay.ask(name, "sleep-until")
    if replay.recorded(asked) is None:
        left = timedelta(0)
        if asked.row is None:  # else its deadline stands
            left = max(when - replay.read(asked, steps.clock), left)
        wait(replay, asked, Wait(timeout=left, late=lambda _, __: "null"))


def now(replay: Replay) -> datetime:
    """The time, as it was at the first pass; see ``Step.now``."""
    replay.check("now")
    asked = replay.ask("now", "now")
    text = replay.recorded(asked)
    if text is None:
        text = replay.write(asked, lambda tx, _: _store_now(replay, tx, asked))
        replay.rt.failpoint(f"step:{asked.ref.step}:committed")
    moment: datetime = replay.value(asked, text)
    return moment


def _store_now(replay: Replay, tx: Tx, asked: Asked) -> str:
    text = serialization.dumps(steps.clock(tx), what="the time")
    replay.must(steps.insert(tx, asked.ref, StepStatus.DONE, output=text))
    return text


# --- the wait itself ------------------------------------------------------------------------------


def waited_seconds(asked: Asked, timeout: timedelta | None) -> float:
    """How long a wait that is overdue has taken: as recorded, for today's code may ask for another timeout."""
    if asked.row is not None:
        return float(asked.row.timeout_seconds or 0)
    return 0.0 if timeout is None else timeout.total_seconds()


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """What a step waits for.

    The first unread event of ``event_type`` (``None``: of no type) that was sent by the deadline, ``timeout``
    after the first pass, ends it; with ``any_time`` a later one does, too. ``read`` says how; it may run code
    of the user's, and so it is called between two transactions. ``late`` is called in the transaction that
    finds the deadline passed, and says how the wait ends, or finds the event after all.
    """

    event_type: str | None = None
    timeout: timedelta | None
    any_time: bool = False
    read: Callable[[Asked, Any], Settled] = _event_text
    late: Callable[[Tx, Asked], Settled | Found] | None = None


def wait(replay: Replay, asked: Asked, what: Wait) -> str:
    """Wait, and return the text of the recorded value.

    Raises:
        Suspend: Neither the event nor the deadline has come.
        WorkflowError: The recorded failure.
    """
    found: Settled | Found | _Parked | None = _quick_look(replay, asked, what)
    ended: Settled
    if found is None:
        found = replay.write(asked, lambda tx, inbox: _look(replay, tx, inbox, asked, what))
    replay.rt.failpoint(f"step:{asked.ref.step}:looked")
    match found:
        case _Parked(inbox, wake_at):
            replay.park(asked, inbox, wake_at)
        case Found(event):
            ended = what.read(asked, event)
            _take(replay, asked, event, ended)
        case _:
            ended = found
    replay.rt.failpoint(f"step:{asked.ref.step}:committed")
    if isinstance(ended, Failure):
        raise replay.failed(asked, ended, 1)
    return ended


def _told(asked: Asked, what: Wait) -> str | None:
    """What an entry says of the event that it waits for: for those who look at the run."""
    return json.dumps(what.event_type) if asked.ref.kind == "event" else None


def _quick_look(replay: Replay, asked: Asked, what: Wait) -> Found | _Parked | None:
    """Look without a lock; ``None`` where that can't decide: the time is up, or the lease is gone.

    The inbox is counted at the moment of the look, so that parking sees what comes after it.
    """
    lease = replay.hold.lease

    def begin(tx: Tx) -> Any:
        return events.begin_wait(tx, lease, asked.ref, what.event_type, what.timeout, _told(asked, what))

    def look(tx: Tx) -> Any:
        return events.look(tx, lease, asked.ref, what.event_type, any_time=what.any_time)

    seen = replay.at_once(asked, begin) if asked.row is None else replay.read(asked, look)
    if seen is None:
        return None
    if seen.seq is not None:
        return Found(seen)
    return None if seen.due else _Parked(seen.inbox, seen.deadline_at)


def _look(replay: Replay, tx: Tx, inbox: int, asked: Asked, what: Wait) -> Settled | Found | _Parked:
    entry: Any = asked.row or steps.get(tx, asked.ref)
    if entry is None:
        told = _told(asked, what)
        entry = steps.insert(tx, asked.ref, StepStatus.WAITING, deadline=what.timeout, output=told)
        replay.must(entry)
    if what.event_type is not None:
        until = None if what.any_time else entry.deadline_at
        event = events.first_unread(tx, asked.ref.workflow_key, asked.ref.run, what.event_type, until)
        if event is not None:
            return Found(event)
    if entry.deadline_at is None or not steps.is_due(tx, asked.ref):
        return _Parked(inbox, entry.deadline_at)
    if what.late is not None:
        ended = what.late(tx, asked)
    else:
        ended = own_failure(WorkflowTimeoutError(asked.ref.step, waited_seconds(asked, what.timeout)))
    if not isinstance(ended, Found):
        settle(replay, tx, asked, ended)
    return ended


def _take(replay: Replay, asked: Asked, event: Any, ended: Settled) -> None:
    lease, (status, columns) = replay.hold.lease, _columns(ended)
    if replay.at_once(asked, lambda tx: events.take(tx, lease, asked.ref, event.seq, status, **columns)):
        return

    def store(tx: Tx, _: int) -> None:
        entry = steps.get(tx, asked.ref)
        if entry is not None and entry.status == status:
            return  # stored by a statement of ours whose answer was lost
        replay.must(events.consume(tx, event.seq, asked.ref.step))
        settle(replay, tx, asked, ended)

    replay.write(asked, store)


def settle(replay: Replay, tx: Tx, asked: Asked, ended: Settled) -> None:
    """End an entry in this transaction."""
    status, columns = _columns(ended)
    replay.must(steps.settle(tx, asked.ref, status, **columns))


def _columns(ended: Settled) -> tuple[StepStatus, dict[str, Any]]:
    if isinstance(ended, Failure):
        return StepStatus.FAILED, {"attempts": 1, **ended.columns()}
    return StepStatus.DONE, {"output": ended}
