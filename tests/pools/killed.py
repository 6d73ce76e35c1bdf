"""A process among greenlets, some of which end in the middle of a statement: says how the others fare."""

from gevent import monkey

monkey.patch_all()

import json  # noqa: E402 - patched before anything else
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402
from sqlalchemy import func, select, text  # noqa: E402

from think_celery.clock import SystemClock  # noqa: E402
from think_celery.store.database import Database  # noqa: E402

WAYS = ("transact", "single", "read")
SLEEPS = select(func.pg_sleep(30).label("slept"))
SLEEPING = "FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"


def until_asleep(beside: Database, then: Callable[[], object]) -> None:
    """Do that as soon as the server sleeps in a statement of another greenlet's, which is ended then."""
    with gevent.Timeout(20):
        while beside.read(lambda tx: tx.execute(text(f"SELECT 1 {SLEEPING}")).first()) is None:
            gevent.sleep(0.01)
    then()
    beside.read(lambda tx: tx.execute(text(f"SELECT pg_terminate_backend(pid, 5000) {SLEEPING}")).all())


def main(url: str) -> None:
    """End greenlets by each way, and print what came of it."""
    db, beside = Database(url, SystemClock()), Database(url, SystemClock())
    ends: dict[str, list[str]] = {}

    def sleep(way: str) -> None:
        try:
            getattr(db, way)(lambda tx: tx.execute(SLEEPS).all())
        except BaseException as error:
            ends.setdefault(way, []).append(type(error).__name__)

    def works() -> Any:
        return [getattr(db, way)(lambda tx: tx.execute(text("SELECT 1")).scalar()) for way in WAYS]

    worked = []
    for way in WAYS:
        for _ in range(2):  # by SQLAlchemy's way, and by ours
            for error in (gevent.GreenletExit, gevent.Timeout):
                sleeper = gevent.spawn(sleep, way)
                until_asleep(beside, lambda sleeper=sleeper, error=error: sleeper.kill(error))  # type: ignore[misc]
                worked.append(works())
    print(json.dumps({"ends": ends, "worked": worked, "kept": db.engine.pool.checkedout()}))  # type: ignore[attr-defined]
    for each in (db, beside):
        each.dispose()


if __name__ == "__main__":
    main(sys.argv[1])
