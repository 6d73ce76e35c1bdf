"""The processes that are killed: a plain worker, a Celery worker on each pool, and a client.

What one does is in its environment, beside the settings (``THINK_…``):

``CRASH_KIND``: ``plain``, ``prefork``, ``threads``, ``gevent``, ``solo``,
``client``, ``submitter`` or ``demo``. ``CRASH_KILL_AT=point#n``:
SIGKILL itself when it comes to that failpoint for the n-th time. ``CRASH_DEATHS=point#n point …``: the same, but
of all workers on this stage together one dies at each of these points. ``CRASH_HOLD_AT=point#n``: stay there
until the file ``<log>.go`` exists. ``CRASH_FLUSHES=point point …``: empty the broker, a Redis, once at each of these.
``CRASH_DEAF``: no knock reaches it but the tick's. ``CRASH_ELSEWHERE``: it seems to run on another machine, so
that nobody can prove its death. ``CRASH_BROKER``, ``CRASH_QUEUE``: instead of a broker in its memory;
``CRASH_CONF``: more of Celery's settings, as JSON. ``CRASH_LISTENS``: the queue that it consumes, if not that one.
``CRASH_DO``: what a client does. Marks are files beside its log.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import redis
from celery import Celery, signals

from tests.crash import demo, load
from tests.crash.project import Saga, Scribe
from think_celery.app import ThinkCelery
from think_celery.clock import SystemClock
from think_celery.domain import leases, tick
from think_celery.domain.work import perform
from think_celery.events.sql import SqlEventLog
from think_celery.events.writer import LiveWriter
from think_celery.protocols import Knock
from think_celery.runtime import Runtime, set_current
from think_celery.settings import Settings
from think_celery.store.database import Database
from think_celery.worker.bootsteps import Ticker

LOG = "CRASH_LOG"


def mark(name: str) -> None:
    """Let the test know how far this process is: a file ``<log>.<name>`` with the time."""
    target = Path(f"{os.environ[LOG]}.{name}")
    draft = target.with_suffix(".draft")
    draft.write_text(str(time.monotonic()))
    draft.rename(target)


def arm(rt: Runtime) -> None:
    """Make this process one that dies, holds, is deaf or elsewhere, as its environment says."""
    if os.environ.get("CRASH_ELSEWHERE"):
        facts = leases.host_facts()
        leases.host_facts = lambda: {**facts, "boot": "another machine"}  # type: ignore[attr-defined]
    if os.environ.get("CRASH_DEAF"):
        knock = rt.knock
        rt.knock = lambda it: knock(it) if threading.current_thread().name.startswith("think-tick") else None
    kill, hold, deaths = Place.of("CRASH_KILL_AT"), Place.of("CRASH_HOLD_AT"), Deaths.of("CRASH_DEATHS")
    flushes = Deaths.of("CRASH_FLUSHES")

    def failpoint(point: str) -> None:
        if kill.is_it(point) or deaths.is_it(point):
            os.kill(os.getpid(), signal.SIGKILL)
        if flushes.is_it(point):
            with redis.Redis.from_url(os.environ["CRASH_BROKER"]) as broker:
                broker.flushall()
        if hold.is_it(point):
            mark("held")
            while not Path(f"{os.environ[LOG]}.go").exists():
                time.sleep(0.01)

    rt.failpoint = failpoint


class Place:
    """A failpoint and which time of coming there is meant."""

    def __init__(self, point: str, number: int) -> None:
        self._point, self._left = point, number
        self._lock = threading.Lock()

    @classmethod
    def of(cls, variable: str) -> "Place":
        """The place that this variable names; none comes there if it is not set."""
        point, _, number = os.environ.get(variable, "").partition("#")
        return cls(point, int(number or 1))

    def is_it(self, point: str) -> bool:
        """Whether this is the place, and now the time."""
        if point != self._point:
            return False
        with self._lock:
            self._left -= 1
            return self._left == 0


class Deaths:
    """Points at each of which one worker of the stage dies. What has happened is in files, for the next ones."""

    def __init__(self, folder: Path, places: list[str]) -> None:
        self._folder, self._places = folder, places

    @classmethod
    def of(cls, variable: str) -> "Deaths":
        """Those that this variable names."""
        return cls(Path(os.environ.get(LOG, "")).parent, os.environ.get(variable, "").split())

    def is_it(self, point: str) -> bool:
        """Whether the worker that comes here now is the one that dies here."""
        due = [place for place in self._places if place.partition("#")[0] == point]
        if not due:
            return False
        name = point.replace(":", ".")
        arrivals = os.open(self._folder / f"{name}.arrivals", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(arrivals, b".")
        number = os.fstat(arrivals).st_size
        os.close(arrivals)
        for place in due:
            if number >= int(place.partition("#")[2] or 1):
                try:
                    self._note(f"{place.replace(':', '.')}.death")
                except FileExistsError:
                    continue
                return True
        return False

    def _note(self, name: str) -> None:
        """Make a file that says which process dies: at once with what is in it, for another thread may kill us now."""
        draft = self._folder / f"{os.getpid()}-{threading.get_native_id()}-{name}.draft"
        draft.write_text(str(os.getpid()))
        os.link(draft, self._folder / name)


# --- a worker of its own --------------------------------------------------------------------------


def plain_runtime(knock: Any) -> Runtime:
    """What ``ThinkCelery`` makes, without Celery."""
    settings, clock = Settings.from_mapping({}, os.environ), SystemClock()
    db = Database(settings.database_url, clock)
    log = SqlEventLog(db)
    rt = Runtime(settings=settings, clock=clock, db=db, events=log, live=LiveWriter(log), knock=knock)
    set_current(rt)
    return rt


def run_plain() -> None:
    """Perform what an own loop is knocked for, one thing at a time, and tick, until SIGTERM."""
    knocks: queue.SimpleQueue[Knock] = queue.SimpleQueue()
    rt = plain_runtime(knocks.put)
    arm(rt)
    signal.signal(signal.SIGTERM, lambda *_: rt.stopping.abort("told to stop"))
    ticker = Ticker(rt)
    tick.knock_now(rt)
    ticker.start()
    mark("ready")
    while not rt.stopping.signal.aborted:
        try:
            knock = knocks.get(timeout=0.05)
        except queue.Empty:
            continue
        perform(rt, knock)
    ticker.stop()
    rt.close()


# --- Celery's -------------------------------------------------------------------------------------


def make_app() -> Celery:
    """The Celery app of a worker; its settings are in the environment."""
    app = Celery("crash", broker=os.environ.get("CRASH_BROKER", "memory://"), set_as_current=False)
    app.conf.update(
        task_default_queue=os.environ.get("CRASH_QUEUE", "celery"),
        worker_concurrency=4,
        worker_prefetch_multiplier=1,
        worker_send_task_events=False,
        broker_connection_retry_on_startup=True,
        think_imports=["tests.crash.project"],
    )
    app.conf.update(json.loads(os.environ.get("CRASH_CONF", "{}")))
    if app.conf.broker_url.startswith("memory"):
        app.conf.broker_transport_options = {"polling_interval": 0.02}
    arm(ThinkCelery(app).runtime)
    signals.worker_ready.connect(lambda **_: mark("ready"), weak=False)
    return app


POOLS = ("prefork", "threads", "gevent", "solo")


def run_celery() -> None:
    """A worker as ``celery -A … worker --pool …`` starts it."""
    quiet = ["--loglevel", "info", "--without-mingle", "--without-gossip", "--hostname", f"{os.getpid()}@%h"]
    listens = [word for queue in os.environ.get("CRASH_LISTENS", "").split() for word in ("--queues", queue)]
    make_app().worker_main(["worker", "--pool", os.environ["CRASH_KIND"], *quiet, *listens])


# --- clients --------------------------------------------------------------------------------------


def run_client() -> None:
    """Make one accepting call, and end."""
    rt = plain_runtime(lambda knock: None)
    arm(rt)
    call = json.loads(os.environ["CRASH_DO"])
    agent = Scribe._bound_to(rt, call["agent"])
    match call["do"]:
        case "submit":
            agent.submit_messages(call["prompt"], idempotency_key=call["key"])
        case "start":
            agent.run_workflow(Saga, {"prompt": call["prompt"]}, workflow_id=call["id"])
        case "send":
            agent.send_workflow_event(
                Saga, call["id"], type="go", payload=call["payload"], idempotency_key=call["key"]
            )
    mark("ready")
    rt.close()


def main() -> None:
    """Be the process that the environment asks for."""
    kinds = {
        "plain": run_plain,
        "client": run_client,
        "submitter": load.run,
        "demo": demo.run,
        **dict.fromkeys(POOLS, run_celery),
    }
    kinds[os.environ["CRASH_KIND"]]()


if __name__ == "__main__":
    sys.exit(main())
