"""What the database says of schedules: whether somebody fires them, and which are late nevertheless."""

from datetime import datetime, timedelta
from typing import Any

from think_celery.cli.checks import SHOWN, SILENT, Finding, ago, count, ok, problem, some
from think_celery.cli.common import Given
from think_celery.domain.schedules import drivers
from think_celery.ids import AgentRef
from think_celery.metronome import remedies
from think_celery.store import health as rows
from think_celery.store import schedules
from think_celery.store.database import Database
from think_celery.worker.inspection import Workers

CHECK = "schedules"
LATE = timedelta(minutes=1)


def fired(db: Database, given: Given) -> list[Finding]:
    """Whether somebody fires schedules, where there are any."""
    now, armed, last = db.read(
        lambda tx: (rows.now(tx), rows.armed_schedules(tx), rows.last_passes(tx).get(drivers.KIND))
    )
    if armed.count == 0:
        return [ok(CHECK, "There are none." if last is None else f"There are none; {_looked(now, last)}.")]
    if last is None or now - last > drivers.SILENT:
        silent = "has ever fired any" if last is None else f"has fired any for {ago(now, last)}"
        text = f"{count(armed.count, 'schedule')} may fire, and nothing {silent}. {_remedies(given)}"
        new = now - armed.oldest < drivers.SILENT  # its beat may just be starting
        return [ok(CHECK, text) if new else problem(CHECK, text)]
    failing, late = db.read(
        lambda tx: (schedules.failing(tx, SHOWN + 1), rows.late_schedules(tx, LATE, SHOWN + 1))
    )
    if not failing and not late:
        return [ok(CHECK, f"{count(armed.count, 'schedule')} may fire, none is late; {_looked(now, last)}.")]
    return [
        *some([_failing(row, given) for row in failing], CHECK),
        *some([_late(now, row) for row in late], CHECK),
    ]


def unserved(db: Database, workers: Workers) -> list[Finding]:
    """Schedules whose agent's class, or whose method, no worker has: what they fire will wait in vain."""
    able = [each for each in workers.answered or () if each.knows_us]
    if not able:
        return []  # that nobody works is told elsewhere
    found = []
    for row in db.read(rows.called_by_schedules):
        if any(each.has(row.agent_class, row.method) for each in able):
            continue
        called = row.agent_class if row.method is None else f"{row.agent_class}.{row.method}"
        text = (
            f"{count(row.count, 'schedule')} will fire for {called}, which no worker that answered has; one is "
            f"{row.example}. Add its module to think_imports, and restart the workers; or cancel what is not wanted "
            "any more."
        )
        found.append(problem(CHECK, text))
    return some(found, CHECK)


def _failing(row: Any, given: Given) -> Finding:
    times = "once" if row.failures == 1 else f"{row.failures} times in a row"
    text = f"{_named(row)} could not be fired, {times}: {row.error_type}: {row.error}. It is tried again."
    return problem(CHECK, f"{text} See: {given.command(f'schedules show {row.id}')}")


def _late(now: datetime, row: Any) -> Finding:
    text = f"{_named(row)} is {ago(now, row.due_at)} late, though somebody looks. It may be too much for one:"
    return problem(CHECK, f"{text} start another beat, or see the log of the one that runs.")


def _named(row: Any) -> str:
    return f"Schedule {row.id} of {AgentRef.of(row)}"


def looked_at(db: Database, given: Given) -> list[Finding]:
    """Whether somebody has looked at schedules within the last seconds, as a beat does also where there are none."""
    now, last = db.read(lambda tx: (rows.now(tx), rows.last_passes(tx).get(drivers.KIND)))
    if last is not None and now - last <= SILENT:
        return [ok(CHECK, f"{_looked(now, last).capitalize()}.")]
    since = "ever" if last is None else f"for {ago(now, last)}"
    return [problem(CHECK, f"Nobody has looked at schedules {since}. {_remedies(given)}")]


def _looked(now: datetime, last: datetime) -> str:
    return f"the last look for what is due is {ago(now, last)} old"


def _remedies(given: Given) -> str:
    return remedies(given.app_name)
