"""What a worker does for ``think-celery doctor``."""

from think_celery.runtime import Runtime
from think_celery.store import health as rows


def answer_ping(rt: Runtime, queue: str) -> None:
    """Note that a ping came through this queue."""
    rt.db.transact(lambda tx: rows.answer(tx, queue))
