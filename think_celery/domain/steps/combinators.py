"""Steps that wait for several things: ``step.gather`` for all of them, ``step.wait_any`` for the first one.

What is waited for was begun before, each with an entry of its own in the order of the calls. These two have one entry
each, beside those. So it does not matter in which order the things end: each result is recorded with its own entry.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from think_celery import serialization
from think_celery.domain.steps.waits import (
    Found,
    ReceivedEvent,
    Settled,
    Wait,
    refuse_duration,
    settle,
    waited_seconds,
)
from think_celery.domain.workflows.journal import Asked, own_failure
from think_celery.domain.workflows.replay import MAX_STEP_NAME, Replay
from think_celery.durations import Duration, as_timedelta
from think_celery.errors import StepMisuse, WorkflowTimeoutError
from think_celery.names import name_problem
from think_celery.states import StepStatus
from think_celery.store import events, steps
from think_celery.store.database import Tx
from think_celery.wording import shown

GATHER, ANY = "gather", "any"


@dataclass(eq=False, kw_only=True)
class Open:
    """One thing that was begun: its entry, what ends it, how its recorded text becomes the value.

    ``ended`` is the text, or the failure; ``None`` as long as it has not ended. ``subject`` is the id of what it is.
    """

    replay: Replay
    name: str
    asked: Asked
    what: Wait
    read: Callable[[str], Any]
    subject: str
    ended: Any = None

    def __post_init__(self) -> None:
        if self.asked.status is StepStatus.DONE:
            self.ended = str(self.asked.row.output)
        elif self.asked.status is StepStatus.FAILED:
            self.ended = self.asked.row

    @property
    def key(self) -> str:
        """The key of its entry."""
        return self.asked.ref.step

    @property
    def type(self) -> str:
        """The type of the event that ends it: no event that users send has it."""
        return str(self.what.event_type)

    def result(self) -> Any:
        """Its value, once it has ended; or its error is raised."""
        if isinstance(self.ended, str):
            return self.read(self.ended)
        raise self.replay.failed(self.asked, self.ended, 1)


@dataclass(frozen=True, slots=True)
class _Parked:
    inbox: int
    wake_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look has found: events to be read, and what was ended by its deadline; or nothing, until when."""

    found: Sequence[tuple[Open, Any]]
    late: Sequence[tuple[Open, Settled]]
    parked: _Parked | None


def check(replay: Replay, step: str, handles: Sequence[Any]) -> None:
    """Make sure that these are handles, of what was begun by this run, in this pass.

    Raises:
        StepMisuse: One is not.
    """
    for each in handles:
        if isinstance(each, list | tuple | set | frozenset | dict):
            call = "gather(*handles)" if step == GATHER else "wait_any(*waits)"
            raise StepMisuse(step, f"it got a {type(each).__name__}. Pass them one by one: step.{call}.")
        if not isinstance(each, Open):
            raise StepMisuse(step, f"{shown(each)} is no handle. start_prompt returns one.")
        if each.replay is not replay:
            raise StepMisuse(
                step,
                f"the handle of {each.name!r} is of another run, or of an earlier pass of this one. Handles can't be "
                "kept outside of run(): call start_prompt again there; what is recorded is not asked again.",
            )


# --- all of them ----------------------------------------------------------------------------------


def gather(replay: Replay, handles: Sequence[Open]) -> list[Any]:
    """The results of all, in the order of the arguments; see ``Step.gather``."""
    replay.check(GATHER)
    check(replay, GATHER, handles)
    asked = replay.ask(GATHER, GATHER)
    keys = json.dumps([each.key for each in handles])
    if asked.row is not None and asked.row.output != keys:
        recorded = f"gather of {asked.row.output}"
        replay.halt(
            "unfit", asked.ref.step, error=replay.journal.mismatch(asked, recorded, f"gather of {keys}")
        )
    if asked.status is not StepStatus.DONE:
        _await_all(replay, asked, handles, keys)
    return [each.result() for each in handles]


def _await_all(replay: Replay, asked: Asked, handles: Sequence[Open], keys: str) -> None:
    step = asked.ref.step
    while True:
        seen = replay.write(asked, lambda tx, inbox: _look_for_all(replay, tx, inbox, asked, handles, keys))
        replay.rt.failpoint(f"step:{step}:looked")
        _note(seen.late)
        if seen.parked is not None:
            replay.park(asked, seen.parked.inbox, seen.parked.wake_at)
        if seen.found:
            ends = [(each, event, each.what.read(each.asked, event)) for each, event in seen.found]
            left = {*_open(handles)} - {each for each, _, _ in ends}
            replay.write(asked, partial(_take_all, replay, asked, ends, None if left else keys))
            _note([(each, ended) for each, _, ended in ends])
        if not _open(handles):
            replay.rt.failpoint(f"step:{step}:committed")
            return


def _look_for_all(
    replay: Replay, tx: Tx, inbox: int, asked: Asked, handles: Sequence[Open], keys: str
) -> _Look:
    if asked.row is None and steps.get(tx, asked.ref) is None:
        replay.must(steps.insert(tx, asked.ref, StepStatus.WAITING, output=keys))
    waiting = _open(handles)
    seen = _look(replay, tx, waiting)
    late = _end_late(replay, tx, waiting, seen)
    left = len(waiting) - len(late)
    if not left:
        replay.must(steps.settle(tx, asked.ref, StepStatus.DONE, output=keys))
    found = [(each, seen.found[each.type]) for each in waiting if each.type in seen.found]
    parked = None if found or not left else _Parked(inbox, seen.next_deadline)
    return _Look(found=found, late=late, parked=parked)


def _take_all(
    replay: Replay,
    asked: Asked,
    ends: Sequence[tuple[Open, Any, Settled]],
    keys: str | None,
    tx: Tx,
    _inbox: int,
) -> None:
    """End these, and with *keys* the step itself."""
    for each, event, ended in ends:
        _take(replay, tx, each, event, ended)
    if keys is not None:
        replay.must(steps.settle(tx, asked.ref, StepStatus.DONE, output=keys))
    replay.rt.failpoint(f"step:{asked.ref.step}:before-commit")


# --- the first one --------------------------------------------------------------------------------


def wait_any(
    replay: Replay, waits: Sequence[str | Open], name: str | None, timeout: Duration | None
) -> ReceivedEvent:
    """What comes first; see ``Step.wait_any``."""
    told = "wait_any" if name is None else name
    replay.check(told)
    check(replay, told, [each for each in waits if not isinstance(each, str)])
    _check_waits(told, waits)
    name = _usual_name(waits) if name is None else name
    span = None if timeout is None else as_timedelta(timeout, "timeout")
    asked = replay.ask(name, ANY)
    labels = [_label(each) for each in waits]
    if asked.status is StepStatus.WAITING and asked.row.output != json.dumps(labels):
        _unfit(replay, asked, str(asked.row.output), labels)
    text = replay.recorded(asked)
    if text is None:
        begin = Wait(event_type=None, timeout=span)
        text = _await_first(replay, asked, begin, waits, labels)
    won = json.loads(text)
    if won["of"] != labels:
        _unfit(replay, asked, json.dumps(won["of"]), labels)
    winner = waits[won["won"]]
    sent_at = replay.value(asked, json.dumps(won["sent_at"]))
    if isinstance(winner, str):
        payload = replay.value(asked, json.dumps(won["payload"]))
        return ReceivedEvent(name=winner, type=winner, payload=payload, sent_at=sent_at)
    return ReceivedEvent(name=winner.name, type="prompt", payload=winner.result(), sent_at=sent_at)


def _unfit(replay: Replay, asked: Asked, recorded: str, labels: Sequence[str]) -> None:
    error = replay.journal.mismatch(asked, f"any of {recorded}", f"any of {json.dumps(labels)}")
    replay.halt("unfit", asked.ref.step, error=error)


def _usual_name(waits: Sequence[str | Open]) -> str:
    told = ", ".join(each if isinstance(each, str) else each.name for each in waits)
    return f"any of {told}"[:MAX_STEP_NAME].rstrip()


def _label(each: str | Open) -> str:
    return f"event {each}" if isinstance(each, str) else f"step {each.key}"


def _check_waits(name: str, waits: Sequence[str | Open]) -> None:
    if not waits:
        raise StepMisuse(name, "wait_any needs something to wait for: types of events, or handles.")
    for each in waits:
        problem = name_problem(each, 200) if isinstance(each, str) else None
        if problem is not None:
            raise StepMisuse(name, f"{shown(each)} is no type of an event: {problem}.")
        if isinstance(each, str):
            refuse_duration(name, each, "a type of an event", "timeout=.")
    labels = [_label(each) for each in waits]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise StepMisuse(name, f"wait_any got {', '.join(twice)} twice. Name each once.")


def _await_first(
    replay: Replay, asked: Asked, begin: Wait, waits: Sequence[str | Open], labels: Sequence[str]
) -> str:
    look = partial(_look_for_first, replay, asked, begin, waits, labels)
    seen = replay.write(asked, look)
    replay.rt.failpoint(f"step:{asked.ref.step}:looked")
    if isinstance(seen, _Look):
        _note(seen.late)
        if seen.parked is not None:
            replay.park(asked, seen.parked.inbox, seen.parked.wake_at)
        ((first, event),) = seen.found
        ended = first.what.read(first.asked, event)
        text = _won_text(labels, waits.index(first), event.created_at)
        replay.write(asked, lambda tx, _: _take_first(replay, tx, asked, first, event, ended, text))
        _note([(first, ended)])
    else:
        won, late = seen
        _note(late)
        if not isinstance(won, str):
            raise replay.failed(asked, won, 1)
        text = won
    replay.rt.failpoint(f"step:{asked.ref.step}:committed")
    return text


def _look_for_first(
    replay: Replay,
    asked: Asked,
    begin: Wait,
    waits: Sequence[str | Open],
    labels: Sequence[str],
    tx: Tx,
    inbox: int,
) -> _Look | tuple[Settled, Sequence[tuple[Open, Settled]]]:
    """What has come first, recorded if that can be done here: an answer must be read by code of the user's before."""
    entry: Any = asked.row or steps.get(tx, asked.ref)
    if entry is None:
        texts = json.dumps(labels)
        entry = steps.insert(tx, asked.ref, StepStatus.WAITING, deadline=begin.timeout, output=texts)
        replay.must(entry)
    handles = [each for each in waits if isinstance(each, Open)]
    for each in handles:
        if each.ended is not None:
            ended_at = steps.ended_at(tx, each.asked.ref)
            return _win(replay, tx, asked, _won_text(labels, waits.index(each), ended_at)), ()
    types = [each for each in waits if isinstance(each, str)]
    seen = _look(replay, tx, handles, types, until=entry.deadline_at)
    first = min(seen.found.values(), key=lambda event: event.seq, default=None)
    if first is not None:
        return _first_event(replay, tx, asked, waits, labels, first)
    late = _end_late(replay, tx, handles, seen)
    if late:
        ended_at = steps.ended_at(tx, late[0][0].asked.ref)
        return _win(replay, tx, asked, _won_text(labels, waits.index(late[0][0]), ended_at)), late
    if seen.found:  # by its deadline, a prompt was found to have ended
        return _first_event(replay, tx, asked, waits, labels, next(iter(seen.found.values())))
    if steps.is_due(tx, asked.ref):
        failure = own_failure(WorkflowTimeoutError(asked.ref.step, waited_seconds(asked, begin.timeout)))
        settle(replay, tx, asked, failure)
        return failure, ()
    deadlines = [at for at in (entry.deadline_at, seen.next_deadline) if at is not None]
    return _Look(found=(), late=(), parked=_Parked(inbox, min(deadlines, default=None)))


def _first_event(
    replay: Replay, tx: Tx, asked: Asked, waits: Sequence[str | Open], labels: Sequence[str], event: Any
) -> _Look | tuple[Settled, Sequence[tuple[Open, Settled]]]:
    winner = next(each for each in waits if event.type == (each.type if isinstance(each, Open) else each))
    if isinstance(winner, Open):
        return _Look(found=[(winner, event)], late=(), parked=None)
    replay.must(events.consume(tx, event.seq, asked.ref.step))
    text = _won_text(labels, waits.index(winner), event.created_at, event.payload)
    return _win(replay, tx, asked, text), ()


def _win(replay: Replay, tx: Tx, asked: Asked, text: str) -> str:
    settle(replay, tx, asked, text)
    replay.rt.failpoint(f"step:{asked.ref.step}:before-commit")
    return text


def _take_first(
    replay: Replay, tx: Tx, asked: Asked, first: Open, event: Any, ended: Settled, text: str
) -> None:
    _take(replay, tx, first, event, ended)
    _win(replay, tx, asked, text)


def _won_text(labels: Sequence[str], won: int, sent_at: datetime, payload: str = "null") -> str:
    at = serialization.dumps(sent_at, what="sent_at")
    return f'{{"of":{json.dumps(labels)},"won":{won},"sent_at":{at},"payload":{payload}}}'


# --- both -----------------------------------------------------------------------------------------


def _open(handles: Sequence[Open]) -> list[Open]:
    return list(dict.fromkeys(each for each in handles if each.ended is None))


def _note(ends: Sequence[tuple[Open, Settled]]) -> None:
    for each, ended in ends:
        each.ended = ended


@dataclass(frozen=True, slots=True)
class _Seen:
    """The first event of each type; the keys of what is due without one; when the next one will be due."""

    found: dict[str, Any]
    due: set[str]
    next_deadline: datetime | None


def _look(
    replay: Replay,
    tx: Tx,
    waiting: Sequence[Open],
    types: Sequence[str] = (),
    *,
    until: datetime | None = None,
) -> _Seen:
    """What has come for these, in two statements however many they are. The caller holds the fence.

    With *until*, what is due after it is no matter of this look; and of what was due by then, an answer that is there
    counts, whenever it came.
    """
    key, run = replay.workflow.key, replay.run
    found: dict[str, Any] = {}
    for event in events.unread_of(tx, key, run, [*(each.type for each in waiting), *types], until):
        found.setdefault(event.type, event)
    deadlines = steps.deadlines(tx, key, run, [each.key for each in waiting])
    past = {row.step for row in deadlines if row.due and (until is None or row.deadline_at <= until)}
    due = {each.key: each.type for each in waiting if each.key in past and each.type not in found}
    if due and until is not None:
        for event in events.unread_of(tx, key, run, list(due.values())):
            found.setdefault(event.type, event)
    later = [row.deadline_at for row in deadlines if not row.due]
    overdue = {step for step, type in due.items() if type not in found}
    return _Seen(found=found, due=overdue, next_deadline=min(later, default=None))


def _end_late(replay: Replay, tx: Tx, waiting: Sequence[Open], seen: _Seen) -> list[tuple[Open, Settled]]:
    """End what is overdue; what turns out to have ended in time is added to what was found."""
    late: list[tuple[Open, Settled]] = []
    for each in waiting:
        if each.key not in seen.due:
            continue
        assert each.what.late is not None
        ended = each.what.late(tx, each.asked)
        if isinstance(ended, Found):
            seen.found[each.type] = ended.event
        else:
            settle(replay, tx, each.asked, ended)
            late.append((each, ended))
    return late


def _take(replay: Replay, tx: Tx, each: Open, event: Any, ended: Settled) -> None:
    replay.must(events.consume(tx, event.seq, each.key))
    settle(replay, tx, each.asked, ended)
