"""What the database says of how the work goes: who looks after it, what waits and why, what needs somebody.

Each check answers in findings, which ``think-celery doctor`` shows. Looking changes nothing.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from think_celery.cli.common import Given, workflow_words
from think_celery.clock import Clock
from think_celery.domain import knocks
from think_celery.domain.jobs import attempts
from think_celery.domain.turns import takeover
from think_celery.domain.workflows import advance
from think_celery.ids import AgentRef, WorkflowRef
from think_celery.store import health as rows
from think_celery.store import jobhealth, migrate, processes
from think_celery.store.database import Database
from think_celery.worker.inspection import Worker, Workers

PASSES = (processes.LIVENESS, "work")
"""The kinds of passes that every worker makes, once a second."""

SILENT = timedelta(seconds=10)
"""Passes further back than this mean that no worker looks."""

SKEW = timedelta(seconds=1)
LATE = timedelta(minutes=1)
OFTEN_KNOCKED = 5
MANY_ATTEMPTS, MANY_DELIVERIES = 3, 100
SHOWN = 5
"""How many rows of one kind are named."""

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a diagnosis. A problem stays until somebody acts; a warning only makes things worse than they
    could be."""

    check: str
    level: Level
    text: str


def ok(check: str, text: str) -> Finding:
    """A finding that all is as it should be."""
    return Finding(check, "ok", text)


def warning(check: str, text: str) -> Finding:
    """A finding of what could be better."""
    return Finding(check, "warning", text)


def problem(check: str, text: str) -> Finding:
    """A finding that needs somebody."""
    return Finding(check, "problem", text)


# --- the database itself --------------------------------------------------------------------------


def schema(db: Database, given: Given) -> list[Finding]:
    """Whether the database answers, and has the tables that this release needs."""
    found, needed = migrate.current(db.engine), migrate.head()
    where = f"{'PostgreSQL' if db.on_postgres else 'SQLite'}, {db.url.render_as_string(hide_password=True)}"
    if found is None:
        return [problem("database", f"{where}: it has no tables of ours. Run: {given.command('db upgrade')}")]
    if found < needed:
        text = f"{where}: schema {found} is older than {needed}, so workers do nothing. Run:"
        return [problem("database", f"{text} {given.command('db upgrade')}")]
    if found > needed:
        text = f"{where}: schema {found} is newer than {needed}. It serves; upgrade think-celery here, too."
        return [warning("database", text)]
    return [ok("database", f"{where}; schema {found} is up to date.")]


def clocks(db: Database, clock: Clock) -> list[Finding]:
    """Whether the database's clock, by which leases and due times go, is this machine's."""
    if not db.on_postgres:
        return [ok("clock", "SQLite goes by this machine's clock.")]
    before = clock.now()
    theirs = db.read(rows.now)
    ours = before + (clock.now() - before) / 2
    skew = theirs - ours
    if abs(skew) <= SKEW:
        return [ok("clock", f"The database's differs from this machine's by {_seconds(abs(skew))}.")]
    how = "ahead of" if skew > timedelta(0) else "behind"
    text = (
        f"The database's clock is {_seconds(abs(skew))} {how} this machine's. Leases and due times go by the "
        "database's; let both machines set their clocks by NTP."
    )
    return [warning("clock", text)]


# --- who works ------------------------------------------------------------------------------------


def passes(db: Database) -> list[Finding]:
    """Whether some worker looks, each second, at what is due or lost."""
    now, last = db.read(lambda tx: (rows.now(tx), rows.last_passes(tx)))
    missing = [kind for kind in PASSES if kind not in last]
    if missing:
        return [problem("ticks", "No worker has ever looked after this database. Start a worker.")]
    kind, at = min(((kind, last[kind]) for kind in PASSES), key=lambda pair: pair[1])
    if now - at <= SILENT:
        return [ok("ticks", f"Workers look after what is due or lost; the last look is {ago(now, at)} old.")]
    text = (
        f"No worker has looked after what is due or lost for {ago(now, at)} (pass {kind!r}). Start a worker."
    )
    return [problem("ticks", text)]


def leases(db: Database) -> list[Finding]:
    """Whether leases are held by processes that live."""
    now, alive, lost = db.read(lambda tx: (rows.now(tx), rows.count_alive(tx), rows.lost(tx)))
    if not lost:
        return [ok("leases", f"All are held by processes that live ({alive} have worked).")]
    old = [lease for lease, until in lost if until is None or now - until > LATE]
    if not old:
        text = f"The process that holds {_names(lease for lease, _ in lost)} is gone or frozen."
        return [warning("leases", f"{text} A worker that runs takes over within seconds.")]
    text = (
        f"{_names(old)}: held for more than a minute by a process that is gone. Any running worker frees that; if "
        'one runs, its log says why it could not (look for "free the work of a dead process").'
    )
    return [problem("leases", text)]


# --- what waits -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """Rows of one kind that wait for one sort of worker."""

    what: str
    queue: str
    row: Any
    serves: Callable[[Worker], bool]
    lacks: str


def waiting(db: Database, workers: Workers, given: Given) -> list[Finding]:
    """What waits for a worker, and which of it waits in vain."""
    now, turns, runs, jobs, news = db.read(
        lambda tx: (
            rows.now(tx),
            rows.waiting_turns(tx, LATE),
            rows.waiting_runs(tx, LATE),
            jobhealth.waiting_jobs(tx, LATE),
            rows.waiting_news(tx, LATE),
        )
    )
    groups = [
        *(_of_turns(row, workers) for row in turns),
        *(_of_runs(row, workers) for row in runs),
        *(_of_jobs(row, workers) for row in jobs),
        *(_of_news(row, workers) for row in news),
    ]
    found = [finding for group in groups if (finding := _why(group, workers, now, given)) is not None]
    total = sum(group.row.count for group in groups)
    return found or [ok("waiting", f"{count(total, 'row')} for a worker, none of them in vain.")]


def _of_turns(row: Any, workers: Workers) -> _Group:
    return _Group(
        what=f"{count(row.count, 'turn')} of {row.agent_class}",
        queue=row.queue or workers.route(knocks.RUN_SUBMISSION),
        row=row,
        serves=lambda worker: row.agent_class in worker.agents,
        lacks=f"has imported {row.agent_class}. Add its module to think_imports, and restart the workers",
    )


def _of_runs(row: Any, workers: Workers) -> _Group:
    def serves(worker: Worker) -> bool:
        return row.version in worker.workflows.get(row.workflow, ()) and row.agent_class in worker.agents

    return _Group(
        what=f"{count(row.count, 'run')} of {row.workflow}, version {row.version!r},",
        queue=row.queue or workers.route(knocks.ADVANCE_WORKFLOW),
        row=row,
        serves=serves,
        lacks=(
            f"has that version of {row.workflow} (and the agent {row.agent_class}). Add its module to think_imports; "
            "where its code has a new version, name the old one in also_runs, or keep a worker with the old code until "
            "the old runs have ended"
        ),
    )


def _of_jobs(row: Any, workers: Workers) -> _Group:
    called = row.agent_class if row.method is None else f"{row.agent_class}.{row.method}"
    return _Group(
        what=f"{count(row.count, 'call')} of {called}",
        queue=row.queue or workers.route(knocks.RUN_JOB),
        row=row,
        serves=lambda worker: worker.has(row.agent_class, row.method),
        lacks=(
            f"has {called}. Add its module to think_imports, and restart the workers; for what a new release no "
            "longer has, start one with the old code, or cancel the call"
        ),
    )


def _of_news(row: Any, workers: Workers) -> _Group:
    return _Group(
        what=f"{count(row.count, 'piece')} of news",
        queue=row.queue or workers.route(knocks.DELIVER_NEWS),
        row=row,
        serves=lambda worker: True,
        lacks="",
    )


def _why(group: _Group, workers: Workers, now: datetime, given: Given) -> Finding | None:
    """Why these rows wait in vain; ``None`` where they don't."""
    row = group.row
    head = f"{group.what} {'waits' if row.count == 1 else 'wait'} in the queue {group.queue!r}"
    tail = f" (the oldest for {ago(now, row.oldest)}; one is {row.example})."
    if workers.answered is not None:
        listeners = workers.listening_to(group.queue)
        if not listeners:
            remedy = f"no worker that answered listens to it. Start one: {given.worker(group.queue)}"
            return problem("waiting", f"{head}, and {remedy}{tail}")
        able = [each for each in listeners if group.serves(each)]
        if not able:
            return problem("waiting", f"{head}, and no worker that listens to it {group.lacks}{tail}")
        if row.knocks >= OFTEN_KNOCKED and all(each.full for each in able):
            slots = sum(each.slots for each in able)
            text = f"{head}, and all {slots} slots of its workers are busy. Start more workers, or wait{tail}"
            return warning("waiting", text)
    if row.forgotten:
        late = f"{row.forgotten} should have been knocked for more than a minute ago"
        text = f"{head}; {late}. Start a worker; if one runs, see its log"
        return problem("waiting", f"{text}{tail}")
    if row.knocks >= OFTEN_KNOCKED:
        text = f"{head}, knocked for {row.knocks} times, and no worker took it. See what the workers' logs say of it"
        return problem("waiting", f"{text}{tail}")
    return None


# --- what needs somebody --------------------------------------------------------------------------


def dying(db: Database, most: int) -> list[Finding]:
    """Turns, runs and jobs that don't come forward: at *most* attempts, or some number of claims, they end in error."""
    limit = SHOWN + 1
    turns, runs, jobs = db.read(
        lambda tx: (
            rows.dying_turns(tx, MANY_ATTEMPTS, takeover.MAX_TAKEOVERS // 2, limit),
            rows.dying_runs(tx, MANY_ATTEMPTS, advance.MAX_TAKEOVERS // 2, limit),
            jobhealth.dying_jobs(tx, MANY_ATTEMPTS, attempts.MAX_TAKEOVERS // 2, limit),
        )
    )
    told = [
        _restless(f"Submission {row.id} of {AgentRef.of(row)}", row, most, takeover.MAX_TAKEOVERS)
        for row in turns
    ]
    told += [_restless(f"Workflow {WorkflowRef.of(row)}", row, most, advance.MAX_TAKEOVERS) for row in runs]
    told += [
        _restless(f"Job {row.id} of {AgentRef.of(row)}", row, most, attempts.MAX_TAKEOVERS) for row in jobs
    ]
    found = [warning("attempts", text) for text in told]
    return some(found, "attempts") or [ok("attempts", "No turn, workflow or job kills its workers.")]


def _restless(name: str, row: Any, most: int, most_takeovers: int) -> str:
    """What is said of work that does not come forward."""
    if row.attempts >= MANY_ATTEMPTS:
        return (
            f"{name} was begun {row.attempts} times in a row without progress: its workers die in it. After {most} it "
            "ends in error; the workers' logs and memory limits may say why."
        )
    return (
        f"{name} was taken by a worker {row.takeovers} times; orderly hand-overs count, too. At {most_takeovers} it "
        "ends in error. See whether workers are started anew again and again."
    )


def paused(db: Database, given: Given) -> list[Finding]:
    """Workflows that have stopped with an error until somebody resumes them."""
    found = [
        problem(
            "paused",
            f"Workflow {WorkflowRef.of(row)} is paused ({row.error_type}). Deploy "
            f"code that fits its journal ({given.command(f'workflows show {workflow_words(row)}')}), then run: "
            f"{given.command(f'workflows resume {workflow_words(row)}')}",
        )
        for row in db.read(lambda tx: rows.paused_runs(tx, SHOWN + 1))
    ]
    return some(found, "paused") or [ok("paused", "No workflow has stopped with an error.")]


def undelivered(db: Database) -> list[Finding]:
    """News that fails to be delivered, again and again."""
    found = [
        problem(
            "news",
            f"News {row.id} could not be delivered in {row.attempts} attempts; they go on. The last error: "
            f"{row.last_error or 'none was noted'}",
        )
        for row in db.read(lambda tx: rows.undelivered(tx, MANY_DELIVERIES, SHOWN + 1))
    ]
    return some(found, "news") or [ok("news", "All news for workflows comes to its place.")]


def unstarted(db: Database, given: Given) -> list[Finding]:
    """Agents whose start fails: ``on_start``, or what they declare as scheduled tasks."""
    now, failed = db.read(lambda tx: (rows.now(tx), rows.failed_starts(tx, SHOWN + 1)))
    found = [
        problem(
            "starts",
            f"the start of {AgentRef(row.agent_class, row.name)} failed {ago(now, row.start_failed_at)} ago "
            f"({row.start_error_type}); it is tried again before the agent's next turn. See: "
            f"{given.command(f'agents show {shlex.quote(row.agent_class)} {shlex.quote(row.name)}')}",
        )
        for row in failed
    ]
    return some(found, "starts") or [ok("starts", "No start of an agent has failed.")]


# --- pings ----------------------------------------------------------------------------------------


def unanswered(db: Database, queues: Sequence[str], since: datetime) -> list[str]:
    """The queues from which no worker has taken a ping since then, by the database's clock."""

    def silent(queue: str) -> bool:
        at = db.read(lambda tx: rows.answered_at(tx, queue))
        return at is None or at < since

    return [queue for queue in queues if silent(queue)]


def database_now(db: Database) -> datetime:
    """The present instant by the database's clock."""
    return db.read(rows.now)


# --- words ----------------------------------------------------------------------------------------


def some(found: list[Finding], check: str) -> list[Finding]:
    """The first of these, and that there are more."""
    if len(found) <= SHOWN:
        return found
    return [*found[:SHOWN], Finding(check, found[0].level, "There are more of these.")]


def _names(things: Any) -> str:
    named = [str(each) for each in things]
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return ", ".join(named[:SHOWN]) + more


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.3f} s" if span < timedelta(seconds=10) else _span(span)


def ago(now: datetime, at: datetime) -> str:
    return _span(max(now - at, timedelta(0)))


def _span(span: timedelta) -> str:
    seconds = span.total_seconds()
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} seconds"
