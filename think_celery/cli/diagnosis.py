"""What ``think-celery doctor`` looks at: the database, the broker, the workers, and what waits for them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from celery import Celery
from kombu import Connection

from think_celery import brokers
from think_celery.app import ThinkCelery
from think_celery.cli import checks, jobchecks, schedulechecks
from think_celery.cli.checks import Finding, ok, problem, warning
from think_celery.cli.common import Given, missing_file
from think_celery.clock import SystemClock
from think_celery.domain import knocks
from think_celery.errors import ThinkError
from think_celery.memory import is_in_memory
from think_celery.runtime import agent_classes, workflow_classes
from think_celery.store.database import Database, is_away
from think_celery.worker import inspection
from think_celery.worker.inspection import Worker, Workers

T = TypeVar("T")

FIRST_LOOK_SECONDS = 4.5
"""How long the database's first answer and the workers' may take."""
ROWS_SECONDS = 2.0
PING_SECONDS = 2.0
"""How long a worker may take to answer a ping."""
LAST_READ_SECONDS = 1.0
"""How long it may take after that to read that none has."""
CONNECT_SECONDS = 2.0
POLL_SECONDS = 0.1

_clock = SystemClock()


# --- one check ------------------------------------------------------------------------------------


class _NoAnswer(Exception):
    """It did not come to an end in its time."""


class _Unreachable(Exception):
    """The broker can't be reached; the text says why."""


class Attempt(Generic[T]):
    """Something that may hang, tried in a thread that is left behind if it does."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work, self._ended = work, threading.Event()
        self._value: list[T] = []
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="think-doctor", daemon=True).start()

    def _run(self) -> None:
        try:
            self._value.append(self._work())
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()

    def result(self, until: float) -> T:
        """What it gave, which must come until then."""
        if not self._ended.wait(max(until - _clock.elapsed(), 0)):
            raise _NoAnswer
        if self._error is not None:
            raise self._error
        return self._value[0]


def checked(check: str, seconds: float, look: Callable[[], list[Finding]]) -> list[Finding]:
    """What a check finds that may hang."""
    return begun(check, seconds, look)()


def begun(check: str, seconds: float, look: Callable[[], list[Finding]]) -> Callable[[], list[Finding]]:
    """Begin a check that may hang, beside others; the result waits for what it finds until its time is over."""
    attempt, until = Attempt(look), _clock.elapsed() + seconds
    return lambda: _found(check, seconds, lambda: attempt.result(until))


def _found(check: str, seconds: float, look: Callable[[], list[Finding]]) -> list[Finding]:
    """What a check finds; that it failed itself is a problem, too, and hides no other."""
    try:
        return look()
    except _NoAnswer:
        return [
            problem(check, f"There was no answer within {seconds:g} seconds: it hangs, or is overloaded.")
        ]
    except (ThinkError, _Unreachable) as error:
        return [problem(check, str(error))]
    except Exception as error:
        if is_away(error):
            return [problem(check, f"The database can't be reached: {getattr(error, 'orig', error)}")]
        return [problem(check, f"This could not be checked: {type(error).__name__}, {_place(error)}.")]


def _place(error: BaseException) -> str:
    trace, place = error.__traceback__, "nowhere"
    while trace is not None:
        place = f"{trace.tb_frame.f_globals.get('__name__')}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


def no_database(missing: str, given: Given) -> str:
    """What is said of a SQLite file that is not there."""
    return f"There is no database {missing}. Run: {given.command('db upgrade')}"


# --- all checks -----------------------------------------------------------------------------------


def reach(app: Celery) -> list[Finding]:
    """Whether the broker answers: all that can be known where the settings are unfit."""

    def look() -> list[Finding]:
        if found := _not_asked(app):
            return found
        with _connected(app) as connection:
            return [_answers(connection)]

    return checked("broker", FIRST_LOOK_SECONDS, look)


class Diagnosis:
    """The checks of one app, its database and its broker. What hangs is left behind after its time.

    With the name of a *worker* it is about that worker alone, and says nothing of the rows.
    """

    def __init__(self, think: ThinkCelery, given: Given, worker: str | None = None) -> None:
        self._think, self._app, self._worker, self._given = think, think.app, worker, given
        self._findings: list[Finding] = []

    def findings(self) -> list[Finding]:
        """All of them, in the order in which they help to read each other."""
        until = _clock.elapsed() + FIRST_LOOK_SECONDS
        asked = Attempt(self._ask_broker)
        db = self._database(until)
        workers = self._asked(asked, until)
        if db is not None:
            if self._worker is None:
                self._rows(db, workers)
            self._pings(db, workers)
            db.dispose()
        return self._findings

    def of_beat(self) -> list[Finding]:
        """What the database says of who fires schedules, and nothing else."""
        db = self._database(_clock.elapsed() + FIRST_LOOK_SECONDS)
        if db is not None:
            self._findings += checked(
                "schedules", ROWS_SECONDS, lambda: schedulechecks.looked_at(db, self._given)
            )
            db.dispose()
        return self._findings

    def _add(self, check: str, seconds: float, look: Callable[[], list[Finding]]) -> bool:
        """Make a check, and say whether it found no problem."""
        found = _found(check, seconds, look)
        self._findings += found
        return not any(each.level == "problem" for each in found)

    def _database(self, until: float) -> Database | None:
        """The database, if it can be asked further."""
        made: list[Database] = []

        def look() -> list[Finding]:
            rt = self._think.runtime
            if missing := missing_file(rt.db.url):
                return [problem("database", no_database(missing, self._given))]
            # Not the runtime's own, which would migrate SQLite first.
            db = Database(rt.db.url, _clock, busy_timeout=rt.settings.busy_timeout)
            found = checks.schema(db, self._given)
            made.append(db)
            return found

        attempt = Attempt(look)
        fine = self._add("database", FIRST_LOOK_SECONDS, lambda: attempt.result(until))
        return made[0] if fine and made else None

    def _rows(self, db: Database, workers: Workers) -> None:
        until = _clock.elapsed() + ROWS_SECONDS
        looks: dict[str, Callable[[], list[Finding]]] = {
            "clock": lambda: checks.clocks(db, _clock),
            "ticks": lambda: checks.passes(db),
            "leases": lambda: checks.leases(db),
            "waiting": lambda: checks.waiting(db, workers, self._given),
            "attempts": lambda: checks.dying(db, self._think.runtime.settings.max_attempts),
            "paused": lambda: checks.paused(db, self._given),
            "fibers": lambda: jobchecks.interrupted(db, self._given),
            "news": lambda: checks.undelivered(db),
            "starts": lambda: checks.unstarted(db, self._given),
            "schedules": lambda: [
                *schedulechecks.fired(db, self._given),
                *schedulechecks.unserved(db, workers),
            ],
        }
        for check, look in looks.items():
            self._add(check, ROWS_SECONDS, lambda look=look: Attempt(look).result(until))  # type: ignore[misc]

    # --- the broker and its workers ---------------------------------------------------------------

    def _ask_broker(self) -> tuple[list[Finding], list[Worker] | None]:
        if found := _not_asked(self._app):
            return found, None
        with _connected(self._app) as connection:
            return [_answers(connection)], inspection.ask_workers(self._app, connection)

    def _asked(self, asked: Attempt[tuple[list[Finding], list[Worker] | None]], until: float) -> Workers:
        """The workers that answered, once all that they say of themselves is told."""
        answered: list[Worker] | None = None

        def look() -> list[Finding]:
            nonlocal answered
            found, answered = asked.result(until)
            return found

        fine = self._add("broker", FIRST_LOOK_SECONDS, look)
        workers = Workers(answered=answered, route=lambda task: inspection.route(self._app, task))
        if not fine:
            return workers
        if self._worker is None:
            self._add("broker", 0, lambda: self._advice(workers))
        if answered is not None or self._worker is not None:
            self._add("workers", 0, lambda: self._workers(workers))
        if self._meant(workers):
            self._add("queues", 0, lambda: self._queues(workers))
        return workers

    def _meant(self, workers: Workers) -> list[Worker]:
        """Those that it is about."""
        return list(workers.answered or ()) if self._worker is None else workers.called(self._worker)

    def _advice(self, workers: Workers) -> list[Finding]:
        pools = {each.pool for each in workers.answered or () if each.knows_us} or {None}
        told = [text for pool in sorted(pools, key=str) for text in brokers.advice(self._app, pool)]
        return [warning("broker", text) for text in dict.fromkeys(told)]

    def _workers(self, answered: Workers) -> list[Finding]:
        workers = self._meant(answered)
        if not workers and not self._app.conf.worker_enable_remote_control:
            text = "worker_enable_remote_control is off, so workers can't be asked. Ticks and rows show how it goes."
            return [warning("workers", text)]
        if answered.answered is None:
            return [problem("workers", f"{self._worker} can't be asked through this broker.")]
        if not workers and self._worker is not None:
            return [problem("workers", f"{self._worker} does not answer through this broker. Restart it.")]
        if not workers:
            text = f"No worker answers through this broker. Start one: {self._given.worker()}"
            return [problem("workers", f"{text} (One in the solo pool answers only between two tasks.)")]
        found = [
            problem(
                "workers",
                f"{each.name} listens to {', '.join(sorted(each.queues & self._used()))}, and does not know our "
                "tasks: it throws our messages away. Let its app call ThinkCelery(app), or give it other queues.",
            )
            for each in workers
            if not each.knows_us and each.queues & self._used()
        ]
        names = [each.name for each in workers]
        for name in sorted({name for name in names if names.count(name) > 1}):
            text = f"{names.count(name)} workers are called {name}. Give each a name of its own, with the option -n."
            found.append(warning("workers", text))
        ours = [each.name for each in workers if each.knows_us]
        if not ours:
            text = f"None of {', '.join(names)} knows our tasks. Start one whose app calls ThinkCelery(app)."
            return found if any(each.level == "problem" for each in found) else [problem("workers", text)]
        return [*found, ok("workers", f"{', '.join(ours)} answered.")]

    def _used(self) -> set[str]:
        """The queues that this app's code sends to."""
        tasks = (knocks.RUN_SUBMISSION, knocks.ADVANCE_WORKFLOW, knocks.DELIVER_NEWS)
        named = [
            registry.get(name).queue
            for registry in (agent_classes, workflow_classes)
            for name in registry.names()
        ]
        own = self._think.runtime.settings.queue
        defaults = {own} if own is not None else {inspection.route(self._app, task) for task in tasks}
        return defaults | {queue for queue in named if queue is not None}

    def _queues(self, workers: Workers) -> list[Finding]:
        used, meant = sorted(self._used()), self._meant(workers)
        heard = [queue for queue in used if any(each.knows_us and queue in each.queues for each in meant)]
        deaf = [queue for queue in used if queue not in heard]
        who = "Workers listen" if self._worker is None else f"{self._worker} listens"
        if not deaf or (heard and self._worker is not None):
            return [ok("queues", f"{who} to {', '.join(heard)}.")]
        if self._worker is not None:
            text = f"{self._worker} listens to none of {', '.join(deaf)}. Start it with: worker -Q {','.join(deaf)}"
            return [problem("queues", text)]
        text = (
            f"No worker that answered listens to {', '.join(deaf)}: what is sent there waits. Start one: "
            f"{self._given.worker(*deaf)}"
        )
        return [warning("queues", text) if heard else problem("queues", text)]

    # --- pings ------------------------------------------------------------------------------------

    def _pings(self, db: Database, workers: Workers) -> None:
        if workers.answered is None:
            return
        mute = not workers.answered and not self._app.conf.worker_enable_remote_control
        meant = self._meant(workers)
        queues = [
            queue
            for queue in sorted(self._used())
            if mute or any(each.knows_us and queue in each.queues for each in meant)
        ]
        if queues:
            seconds = PING_SECONDS + LAST_READ_SECONDS
            self._findings += checked("ping", seconds, lambda: self._ping(db, workers, queues))

    def _ping(self, db: Database, workers: Workers, queues: list[str]) -> list[Finding]:
        """Send a message through each queue, and see whether a worker takes it."""
        until, since = _clock.elapsed() + PING_SECONDS, checks.database_now(db)
        with _connected(self._app) as connection:
            for queue in queues:
                inspection.send_ping(self._app, connection, queue)
        left = list(queues)
        while (left := checks.unanswered(db, left, since)) and _clock.elapsed() < until:
            _clock.sleep(POLL_SECONDS)
        if left:
            return [self._silence(queue, workers) for queue in left]
        names = {each.name for queue in queues for each in workers.listening_to(queue)}
        who = " or ".join(sorted(names)) if self._worker is not None and names else "a worker"
        return [ok("ping", f"A message through {', '.join(queues)} was taken by {who}.")]

    def _silence(self, queue: str, workers: Workers) -> Finding:
        listeners = workers.listening_to(queue)
        names = ", ".join(each.name for each in listeners)
        if listeners and all(each.full for each in listeners):
            text = f"A message through {queue} is not taken: all slots of {names} are busy."
            return warning("ping", f"{text} Start more workers, or wait.")
        late = f"A message through {queue} was not taken within {PING_SECONDS:g} seconds, though"
        who = self._worker or names or "a worker"
        faults = "consumes nothing (restart it), or works on another database (compare think_database_url)"
        rivals = [
            each for each in workers.answered or () if queue in each.queues and each.name != self._worker
        ]
        if self._worker is not None and rivals:
            others = ", ".join(sorted({each.name for each in rivals}))
            text = f"{late} {who} listens to it: it {faults}. Or another that listens does ({others})."
            return warning("ping", f"{text} One may also hold the message behind a long turn.")
        return problem("ping", f"{late} {who} listens to it: it is connected and {faults}.")


def _not_asked(app: Celery) -> list[Finding]:
    """Why the broker can't be asked, if it can't."""
    if app.conf.task_always_eager:
        text = "task_always_eager is on: turns run in whoever submits them, with no broker and no worker."
        return [warning("broker", text)]
    if _is_in_memory(app):
        text = "memory:// lives in the process that works, so nobody else can ask it."
        return [ok("broker", f"{text} If yours is another, name your app with --app.")]
    return []


def _answers(connection: Connection) -> Finding:
    return ok("broker", f"{connection.as_uri()} answers.")


def _is_in_memory(app: Celery) -> bool:
    try:
        return is_in_memory(app)
    except (KeyError, ImportError) as error:
        text = "The broker's URL begins with a name that Celery does not know, or whose package is not installed."
        raise _Unreachable(text) from error


@contextmanager
def _connected(app: Celery) -> Iterator[Connection]:
    connection = brokers.connection(app, CONNECT_SECONDS)
    try:
        try:
            connection.connect()
        except (*connection.connection_errors, *connection.channel_errors) as error:
            cause = " ".join(str(error).split()) or type(error).__name__
            raise _Unreachable(f"{connection.as_uri()} can't be reached: {cause}") from error
        yield connection
    finally:
        brokers.release(connection)
