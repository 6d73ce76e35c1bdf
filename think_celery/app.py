"""``ThinkCelery``: wires agents and workflows to a Celery app."""

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from celery import Celery, current_task, signals

from think_celery import brokers, forks, hosts, publishing
from think_celery.clients.client import ThinkClient
from think_celery.clock import SystemClock
from think_celery.events.choice import Broker, event_log
from think_celery.events.redis_url import is_redis_url
from think_celery.events.writer import LiveWriter
from think_celery.protocols import Knock
from think_celery.publishing import Publisher
from think_celery.runtime import Runtime, current, set_current
from think_celery.settings import Settings
from think_celery.store import migrate
from think_celery.store.database import Database
from think_celery.store.joined import joined
from think_celery.tasks import register
from think_celery.worker import inspection
from think_celery.worker.bootsteps import TickStep

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.orm import Session


ThreadCall = TypeVar("ThreadCall", bound=Callable[[], Any])

_wiring = threading.RLock()


def _renew_lock() -> None:
    global _wiring
    _wiring = threading.RLock()


forks.in_child(_renew_lock)


class ThinkCelery(ThinkClient):
    """Gives a Celery app its agents and workflows, and becomes this process's own.

    Two calls with one app give the same object. Settings are read from the app's configuration and the
    environment when the first agent is used or a worker starts, so the app may be configured after this.
    """

    app: Celery
    consumes: frozenset[str]
    """The queues that the worker of this process consumes; none where there is no worker."""
    fires_schedules: bool
    """Whether a worker of this process fires schedules, although no setting says so."""

    def __new__(cls, app: Celery) -> "ThinkCelery":
        # Of threads that come at once one wires it, and the others find all of it; so does a child that is born then.
        with forks.uncut(), _wiring:
            made = getattr(app, "think", None)
            if not isinstance(made, ThinkCelery):
                made = cls._wired(app)
            set_current(lambda: made.runtime)
            return made

    @classmethod
    def _wired(cls, app: Celery) -> "ThinkCelery":
        self = super().__new__(cls)
        self.app = app
        self._renew_lock()
        forks.in_child(self._renew_lock)
        self._runtime = None
        self.consumes = frozenset()
        self.fires_schedules = False
        register(app, lambda: self.runtime)
        inspection.register(app, lambda: self.runtime)
        app.steps["worker"].add(TickStep)
        signals.import_modules.connect(self._import_classes, sender=app, weak=False)
        signals.worker_shutdown.connect(self._end, weak=False)
        signals.worker_process_shutdown.connect(self._end_child, weak=False)
        app.think = self  # type: ignore[attr-defined,unused-ignore]
        return self

    _lock: threading.RLock
    _runtime: Runtime | None
    _publisher: Publisher
    _lengths: brokers.Lengths

    def _renew_lock(self) -> None:
        # A thread of the parent that made the runtime when the child was born would hold it for ever.
        self._lock = threading.RLock()

    @property
    def runtime(self) -> Runtime:
        """What agents and workflows of this app work with; made at its first use.

        Raises:
            InvalidSetting: A setting is unknown or unfit.
        """
        made = self._runtime
        if made is not None:
            return made
        with forks.uncut(), self._lock:
            if self._runtime is None:
                self._runtime = self._make_runtime()
            return self._runtime

    def _make_runtime(self) -> Runtime:
        settings = Settings.from_mapping(configuration_of(self.app), os.environ)
        clock = SystemClock()
        db = Database(
            settings.database_url,
            clock,
            busy_timeout=settings.busy_timeout,
            prepare=_prepare,
        )
        log = event_log(settings, db, _broker(self.app))
        self._publisher = Publisher(self.app, clock)
        self._lengths = brokers.Lengths(self.app, clock)
        return Runtime(
            settings=settings,
            clock=clock,
            db=db,
            events=log,
            live=LiveWriter(log),
            knock=self._publisher,
            sentinel=brokers.sentinel(self.app, brokers.identity(db.url), clock),
            waiting=self._waiting,
            timezone=str(self.app.conf.timezone or "UTC"),
            takes=self._takes,
            in_task=self._in_task,
        )

    def _takes(self, knock: Knock) -> bool:
        if self.app.conf.task_always_eager:
            return True
        return bool(self.consumes) and publishing.queue_of(self.app, knock) in self.consumes

    def _waiting(self, knock: Knock) -> int | None:
        queue = None if self.app.conf.task_always_eager else publishing.queue_of(self.app, knock)
        return None if queue is None else self._lengths.unserved(queue)

    def _in_task(self) -> bool:
        return bool(self.app.conf.task_always_eager or current_task)

    def joined(self, session_or_connection: "Session | Connection") -> AbstractContextManager[None]:
        """Inside, what you submit, start and send becomes part of this SQLAlchemy transaction.

        It exists once you commit, and never if you roll back; the id is known at once. Nothing is committed,
        rolled back or flushed for you. The work begins right after the commit of a ``Session``, and within
        two seconds and a tick after that of a bare ``Connection``.

        Joined is the database that agents of this process use now: in ``think_test``, the test's.

        Raises:
            CannotJoin: The transaction is in another database, or there is none to join.
        """
        return joined(current().db, session_or_connection)

    def at_thread_end(self, call: ThreadCall) -> ThreadCall:
        """Make this call wherever a thread of ours has run code of yours, in that thread; returns it.

        Tools, hooks and steps run in such threads, of which Celery's ``task_postrun`` and your framework's signals
        know nothing. Give what closes what is kept for each thread, such as ``Session.remove`` of a scoped session; it
        is called where there is nothing to close, too.
        Django's connections need no such call. In ``think_test`` all runs in the test's own thread, and nothing is
        called.
        """
        return hosts.at_thread_end(call)

    def _import_classes(self, **_: Any) -> None:
        for module in self.runtime.settings.imports:
            self.app.loader.import_task_module(module)

    def close(self) -> None:
        """Give back what this process holds here: threads, connections, its row. The next use begins anew."""
        with self._lock:
            runtime, self._runtime = self._runtime, None
            held = () if runtime is None else (runtime, self._publisher, self._lengths)
        for each in held:
            each.close()

    def stop(self) -> None:
        """Have the work in hand handed over, and take no more: this worker stops."""
        runtime = self._runtime
        if runtime is not None:
            runtime.stopping.abort("the worker is shutting down")

    def _end_child(self, **_: Any) -> None:
        self.close()  # of the prefork pool: without it the child would look as if it had crashed

    def _end(self, sender: Any = None, **_: Any) -> None:
        if getattr(sender, "app", None) is self.app:
            self.close()


def configuration_of(app: Celery) -> dict[str, Any]:
    """All that the app is configured with."""
    found: dict[str, Any] = {}
    for key in app.conf:
        with suppress(KeyError):  # of Django's settings.configure(), Celery lists names that are no settings
            found[str(key)] = app.conf[key]
    return found


def _broker(app: Celery) -> Broker:
    configured = app.conf.broker_write_url or ""
    url = configured if isinstance(configured, str) else ";".join(configured)
    if not is_redis_url(url):
        return Broker(url=url)
    try:
        tls = app.connection_for_write().ssl
    except Exception as error:  # publishing will say so, too; what is submitted is stored all the same
        return Broker(url=url, problem=f"Celery can't use its URL: {type(error).__name__}")
    return Broker(
        url=url,
        tls=tls if isinstance(tls, Mapping) else None,  # as kombu's Redis transport takes it
        key_prefix=(app.conf.broker_transport_options or {}).get("global_keyprefix", ""),
    )


def _prepare(engine: "Engine") -> None:
    # SQLite is the embedded default, where nobody runs a migration by hand.
    migrate.ensure(engine, migrate=engine.dialect.name == "sqlite")
