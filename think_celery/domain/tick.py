"""One pass over everything that is due or lost. Recovery is this repeated look, never a one-shot at start-up."""

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from think_celery.domain import knocks, outbox, recovery, retention
from think_celery.domain.agents import removal, starts
from think_celery.domain.jobs import jobs
from think_celery.domain.passes import ROWS, SECONDS, batches, each_row, worth_a_knock
from think_celery.domain.submissions import lines
from think_celery.domain.workflows import workflows
from think_celery.logs import trace_of
from think_celery.retries import LONGEST_UNWATCHED, MISSED_AFTER, knock_again_after
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus, is_terminal
from think_celery.store import agents as agent_rows
from think_celery.store import heads, joblanes, processes, submissions, wakes
from think_celery.store import lines as line_rows
from think_celery.store import outbox as outbox_rows
from think_celery.store import schedules as schedule_rows
from think_celery.store.database import Tx

logger = logging.getLogger("think_celery.tick")

EVERY = timedelta(seconds=1)
DEAD_KEPT = timedelta(days=1)


def run(rt: Runtime) -> int:
    """Make the passes that are due in this database, and say how many rows were moved or knocked for.

    Any number of processes may call this at any time: each kind of pass is admitted once a second.
    """
    return watch(rt) + work(rt)


def watch(rt: Runtime) -> int:
    """Look after processes and leases, if that pass is due."""
    if not _admitted(rt, processes.LIVENESS):
        return 0
    return _guarded(rt, "leases", _renew_and_sweep)


def _renew_and_sweep(rt: Runtime, limit: int) -> int:
    rt.monitor.beat()  # a process that was held up renews itself before it judges others
    return recovery.sweep(rt, limit)


def work(rt: Runtime) -> int:
    """Look for all other work that is due or lost, if that pass is due.

    The kinds take turns. One that its share of the time was too short for comes again, until the next pass is due.
    """
    if not _admitted(rt, "work"):
        return 0
    _guarded(rt, "the broker", _mind_the_broker)
    done, began, kinds = 0, rt.clock.elapsed(), list(KINDS)
    while kinds and rt.clock.elapsed() - began < EVERY.total_seconds():
        cut = []
        for kind in kinds:
            before = rt.clock.elapsed()
            done += _guarded(rt, kind, KINDS[kind])
            if rt.clock.elapsed() - before > SECONDS:
                cut.append(kind)
        kinds = cut
    return done


def _admitted(rt: Runtime, kind: str) -> bool:
    return rt.db.transact(lambda tx: processes.admit(tx, kind, EVERY))


def _guarded(rt: Runtime, kind: str, work: Callable[[Runtime, int], int]) -> int:
    try:
        return work(rt, ROWS)
    except Exception as error:
        logger.error("the tick's work on %s failed; the next pass tries again: %s", kind, trace_of(error))
        return 0


def _mind_the_broker(rt: Runtime, limit: int) -> int:
    if rt.sentinel is not None:
        rt.sentinel.look(when_lost=lambda: knock_now(rt))
    return 0


def knock_missed_heads(rt: Runtime, limit: int) -> int:
    """Knock again for heads whose knock seems lost; a row behind a head needs none until it is one.

    The distance doubles with each knock, from 2 seconds to 5 minutes (to one minute where nobody would notice
    that the broker has lost all messages). Returns how many rows were looked
    after. One that fails is put off.
    """

    def work(tx: Tx, waiting: Sequence[Any]) -> int:
        return _knock_missed(rt, tx, waiting)

    def put_off(tx: Tx, waiting: Sequence[Any]) -> int:
        return sum(_knock_again(rt, tx, row) for row in waiting)

    return each_row(rt, "knock for an agent", _missed_by_agent(rt, limit), work, otherwise=put_off)


def _missed_by_agent(rt: Runtime, limit: int) -> Iterator[Sequence[Any]]:
    """The submissions that seem to be forgotten, each agent's at once; again while there are more."""
    for due in batches(rt, lambda tx: heads.missed(tx, limit), limit):
        by_agent: dict[str, list[Any]] = {}
        for row in worth_a_knock(rt, due, knocks.for_submission, "id", heads.put_off_knocked):
            by_agent.setdefault(row.agent_id, []).append(row)
        yield from by_agent.values()


def _knock_missed(rt: Runtime, tx: Tx, waiting: Sequence[Any]) -> int:
    head = heads.head(tx, waiting[0].agent_id)
    seen = next((row for row in waiting if head is not None and row.id == head.id), None)
    others = [row for row in waiting if row is not seen]
    expected = False
    if seen is not None:
        expected = _knock_again(rt, tx, seen)
    elif head is not None and head.due and not (head.held or head.expected):
        # Nobody expects the head: whoever should have made it so has lost it, or found it locked.
        expected = heads.expect_again(tx, head.id, MISSED_AFTER)
    changed = int(expected)
    if others:
        ids, until = [row.id for row in others], max(row.knock_at for row in waiting)
        if expected or _is_looked_after(tx, head, others):
            changed += heads.expect_none(tx, ids, until)
        elif head is not None and head.held:
            # A turn that ends may keep its line locked for long, and its agent's rows may not hide others' meanwhile.
            changed += heads.put_off(tx, ids, until, LONGEST_UNWATCHED)
    if expected and head is not None and not head.held:
        tx.after_commit(lambda: rt.knock(knocks.for_submission(head)))
    return changed


def _is_looked_after(tx: Tx, head: Any, others: Sequence[Any]) -> bool:
    """Whether a head that was not knocked for will be found again without these rows of its line.

    Among them may be one that has ended when a caller had the head locked, and that remembers it since. That
    caller may end the head without a look at the next one, for it was no head when they began; and what is
    expected of it ends with it. As long as it is locked, the line remembers it.
    """
    if head is None:
        return True
    if head.held:  # whoever holds the line looks when it gives it back
        return lines.remind(tx, head.agent_id)
    if head.expected and not any(is_terminal(SubmissionStatus(row.status)) for row in others):
        return True
    found = submissions.lock(tx, head.id, patient=False)
    if found is None:
        lines.look_later(tx, head)
        return True
    return found.knock_at is not None  # else it was claimed or ended meanwhile: the next pass sees more


def _knock_again(rt: Runtime, tx: Tx, row: Any) -> bool:
    after = knock_again_after(row.knocks, watched=rt.broker_is_watched)
    return heads.knock_again(tx, row.id, row.knock_at, after, row.knocks + 1)


def look_at_lines(rt: Runtime, limit: int) -> int:
    """Look again at lines whose head a caller had locked; returns how many were free."""
    found = rt.db.read(lambda tx: line_rows.to_look_at(tx, limit))
    return each_row(rt, "look at a line", found, lambda tx, agent_id: lines.look_at(rt, tx, agent_id))


def forget_dead_processes(rt: Runtime, limit: int) -> int:
    """Delete processes that died a day ago."""
    return rt.db.transact(lambda tx: processes.forget_dead(tx, DEAD_KEPT, limit))


def trim_live_log(rt: Runtime, limit: int) -> int:
    """Drop old frames of the live log."""
    return rt.events.trim()


KINDS: dict[str, Callable[[Runtime, int], int]] = {
    "heads": knock_missed_heads,
    "lines": look_at_lines,
    "due workflows": workflows.wake_due,
    "unread events": workflows.wake_unread,
    "queued workflows": workflows.knock_missed,
    "early events": workflows.adopt_early,
    "jobs": jobs.knock_missed,
    "news": outbox.knock_missed,
    "agents to start": starts.knock_missed,
    "dead processes": forget_dead_processes,
    "live log": trim_live_log,
    "destroyed agents": removal.sweep,
    "retention": retention.apply,
}


def knock_now(rt: Runtime) -> None:
    """Treat every knock as lost: the broker is new or was emptied. The next pass knocks for all that waits."""
    for rows in (wakes, heads, joblanes, outbox_rows, agent_rows):
        rt.db.transact(rows.knock_now)


def next_due(rt: Runtime) -> datetime | None:
    """The next instant at which waiting work falls due by itself, or a schedule does; ``None`` if none does."""
    looks = (wakes.next_wake, heads.next_not_before, joblanes.next_due, schedule_rows.next_due)
    return rt.db.read(lambda tx: earliest(*(look(tx) for look in looks)))


def is_due(rt: Runtime) -> bool:
    """Whether waiting work is due now."""
    due = next_due(rt)
    return due is not None and due <= rt.clock.now()


def earliest(*moments: datetime | None) -> datetime | None:
    """The first of those that are set."""
    return min((moment for moment in moments if moment is not None), default=None)
