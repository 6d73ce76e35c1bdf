"""Which fibers wait for somebody's decision, as ``think-celery doctor`` shows it."""

from think_celery.cli.checks import SHOWN, Finding, ok, some, warning
from think_celery.cli.common import Given
from think_celery.ids import AgentRef
from think_celery.store import jobhealth as rows
from think_celery.store.database import Database


def interrupted(db: Database, given: Given) -> list[Finding]:
    """Fibers that were interrupted, and that nobody has decided on."""
    found = [
        warning(
            "fibers",
            f"Fiber {row.id} of {AgentRef.of(row)} was interrupted in {row.method}"
            f"{'' if row.error_type is None else f' (on_fiber_recovered: {row.error_type})'}, and nobody has decided "
            f"on it. Look at it ({given.command(f'jobs show {row.id}')}), then call resolve_fiber, or begin it anew: "
            f"{given.command(f'jobs retry {row.id}')}",
        )
        for row in db.read(lambda tx: rows.interrupted(tx, SHOWN + 1))
    ]
    return some(found, "fibers") or [ok("fibers", "No interrupted fiber waits for a decision.")]
