"""Test agents and workflows without a worker, a broker or a model, in milliseconds.

::

    with think_test() as t:
        t.script(TriageAgent, answer({"title": "Crash", "labels": ["bug"]}))
        workflow_id = TriageAgent("issue-42").triage_issue(42)
        t.run_until_idle()
        t.skip("3 days")
"""

import atexit
import math
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

from think_celery import providers
from think_celery.agents.arguments import Workflow
from think_celery.agents.think import Think
from think_celery.domain import tick
from think_celery.domain.schedules import schedules
from think_celery.domain.work import perform
from think_celery.domain.workflows import runs, workflows
from think_celery.domain.workflows.recordedruns import StepRecord
from think_celery.domain.workflows.replayer import Replayed
from think_celery.domain.workflows.runs import WorkflowRun
from think_celery.durations import Duration, as_timedelta
from think_celery.errors import NoModel, Unwind
from think_celery.events.sql import SqlEventLog
from think_celery.events.writer import LiveWriter
from think_celery.protocols import Knock, Model
from think_celery.providers.scripted import Scripted, ScriptedModel
from think_celery.runtime import Runtime, set_current
from think_celery.settings import Settings
from think_celery.signals import AbortSignal
from think_celery.store import migrate, processes
from think_celery.store.database import Database
from think_celery.testing.journals import Journals

__all__ = ["FakeClock", "Replayed", "SimulatedCrash", "StepRecord", "ThinkTest", "think_test"]

MOST_ROUNDS = 100_000
"""Work that goes on for longer than this never becomes idle."""


WAIT_SECONDS = 1.0
"""How much time passes at a time while a call waits and nobody has anything to do."""

PATIENCE_SECONDS = 60.0
"""For how long a call without a timeout waits while nothing happens, and nothing is due at a later time."""


class FakeClock:
    """A clock that moves only when it is told to, or when the code under test sleeps."""

    database_time = False

    def __init__(self, start: datetime = datetime(2027, 1, 1, 12, 0, tzinfo=UTC)) -> None:
        self._start = self._now = start

    def now(self) -> datetime:
        """The present instant."""
        return self._now

    def elapsed(self) -> float:
        """Seconds since the clock was made."""
        return (self._now - self._start).total_seconds()

    def sleep(self, seconds: float, signal: AbortSignal | None = None) -> None:
        """Move the clock by that much, at once; not at all if *signal* has come."""
        if signal is None or not signal.aborted:
            self.advance(timedelta(seconds=max(seconds, 0)))

    def advance(self, by: timedelta) -> None:
        """Move the clock."""
        self._now += by


class SimulatedCrash(Unwind):
    """The worker died here. Not an ``Exception``: nothing of the code under test may handle it."""


class ThinkTest(Journals):
    """A runtime under a test's control. See :func:`think_test`."""

    def __init__(
        self,
        rt: Runtime,
        clock: FakeClock,
        knocks: deque[Knock],
        model: Model | Sequence[Model] | None = None,
    ) -> None:
        self.rt, self.clock, self._knocks = rt, clock, knocks
        self.crashes: list[str] = []
        """The points at which the worker was made to crash, in order."""
        self._crash_points: list[str] = []
        self._models: dict[str, Model | Sequence[Model]] = {}
        self._default_model = model
        rt.failpoint, rt.stand_in = self._failpoint, self._model_for
        rt.takes, rt.meanwhile = lambda knock: True, self._meanwhile
        self._at_work, self._idle_seconds = False, 0.0

    # --- models -----------------------------------------------------------------------------------

    def script(self, agent: type[Think] | str, *answers: Scripted) -> ScriptedModel:
        """Let agents of this class get these answers, in order; returns the model, whose ``requests`` it kept."""
        model = ScriptedModel(*answers)
        self._models[agent if isinstance(agent, str) else agent.agent_class] = model
        return model

    def use_model(self, model: Model | Sequence[Model], agent: type[Think] | str | None = None) -> None:
        """Let agents of this class (without one: all without a script) ask this model, or these one after the other."""
        if agent is None:
            self._default_model = model
        else:
            self._models[agent if isinstance(agent, str) else agent.agent_class] = model

    def _model_for(self, agent_class: str) -> Model | Sequence[Model]:
        model = self._models.get(agent_class) or self._default_model
        if model is None:
            raise NoModel(
                None,
                f"this is a test, and nothing was scripted for {agent_class}. Write "
                f't.script({agent_class}, say("Hello")), or pass think_test(model=…).',
            )
        return model

    # --- time and work ----------------------------------------------------------------------------

    def run_until_idle(self) -> None:
        """Do all the work that can be done now, as workers would, and return when nothing is left.

        What a worker waits for itself, it waits for here, too, and the clock moves on: for the next attempt of a step
        where that is due within 10 seconds, of a request to the model within 30.
        A crash asked for with :meth:`crash_at` kills the worker at that point; another one goes on.
        """
        for _ in range(MOST_ROUNDS):
            if self._knocks:
                self._perform(self._knocks.popleft())
            elif not self._fire():
                return
        raise AssertionError(
            f"the work was not done after {MOST_ROUNDS} rounds: something starts itself again"
        )

    def skip(self, span: Duration) -> None:
        """Let that much time pass, and do what falls due on the way when it does."""
        target = self.clock.now() + as_timedelta(span)
        self.run_until_idle()
        while (due := tick.next_due(self.rt)) is not None and due <= target:
            late = due <= self.clock.now()
            self.clock.advance(max(due - self.clock.now(), timedelta(0)))
            if not self._tick_until_idle() and late:
                break  # it can't be done in this process: its class is unknown
        self.clock.advance(max(target - self.clock.now(), timedelta(0)))
        self._tick_until_idle()

    def _tick_until_idle(self) -> int:
        """Make a pass and do what it finds; returns how many rows it moved or knocked for."""
        moved = self._tick()
        self.run_until_idle()
        if tick.is_due(self.rt):  # the pass had been made less than a second ago
            self.clock.advance(tick.EVERY)
            moved += self._tick()
            self.run_until_idle()
        return moved

    def _tick(self) -> int:
        try:
            return tick.run(self.rt) + schedules.fire_due(self.rt)
        except SimulatedCrash:
            self._restart()
            return 1

    def _fire(self) -> int:
        due = schedules.next_due(self.rt)
        if due is None or due > self.clock.now():
            return 0
        try:
            return schedules.fire_due(self.rt)
        except SimulatedCrash:
            self._restart()
            return 1

    def _perform(self, knock: Knock) -> None:
        self._at_work, before, self._idle_seconds = True, self._at_work, 0.0
        try:
            perform(self.rt, knock)
        except SimulatedCrash:
            self._restart()
        finally:
            self._at_work = before

    def _meanwhile(self, left: float | None) -> None:
        """A part of what workers would do while the test waits, for *left* seconds; in work itself time passes."""
        if self._knocks and not self._at_work:
            self._perform(self._knocks.popleft())
            return
        due = tick.next_due(self.rt)
        if due is not None and due > self.clock.now() and not self._at_work:
            soon = (due - self.clock.now()).total_seconds()
            self.clock.advance(timedelta(seconds=soon if left is None else min(soon, left)))
            self._tick()
            return
        if left is None and self._idle_seconds >= PATIENCE_SECONDS:
            raise AssertionError(
                "This call waits for ever: there is nothing left to do, and it has no timeout. Does it wait for an "
                "approval, or for an answer that nobody gives?"
            )
        span = min(WAIT_SECONDS, WAIT_SECONDS if left is None else left)
        self._idle_seconds += span
        self.clock.advance(timedelta(seconds=span))
        if not self._at_work:
            self._tick()

    # --- crashes and lost messages ----------------------------------------------------------------

    def crash_at(self, point: str, *, times: int = 1) -> None:
        """Kill the worker at the named failpoint, the next time (or *times*) that it gets there.

        A point that is never reached fails the test when ``think_test`` ends: it would have tested nothing.
        """
        self._crash_points += [point] * times

    def _failpoint(self, point: str) -> None:
        if point in self._crash_points:
            self._crash_points.remove(point)
            self.crashes.append(point)
            raise SimulatedCrash(point)

    def _check_crash_points(self) -> None:
        missed = sorted(set(self._crash_points) - set(self.crashes))
        if missed:
            points = ", ".join(map(repr, missed))
            raise AssertionError(
                f"The worker never came to {points}, where crash_at() was to kill it. Check the spelling "
                "(docs/howto/testing.md lists the points), and that the work was done inside think_test."
            )

    def _restart(self) -> None:
        """Another worker starts. The dead one's end is proven, as it is on one machine."""
        dead = self.rt.monitor.forget_process()
        if dead is not None:
            self.rt.db.transact(lambda tx: processes.declare_dead(tx, dead, known=True))
        self.clock.advance(tick.EVERY)
        self._tick()

    def lose_messages(self) -> int:
        """Throw away every broker message that is under way, and say how many there were."""
        lost = len(self._knocks)
        self._knocks.clear()
        return lost

    # --- what users send --------------------------------------------------------------------------

    def send_event(
        self,
        workflow: Workflow,
        workflow_id: str,
        *,
        type: str,
        payload: Any = None,
    ) -> bool:
        """Send an event to a workflow, as ``send_workflow_event`` does."""
        reference = workflows.reference(workflow, workflow_id)
        return workflows.send_event(self.rt, reference, type=type, payload=payload)

    def workflow(self, workflow: Workflow, workflow_id: str) -> WorkflowRun:
        """A workflow as it stands now, as ``get_workflow`` gives it.

        Raises:
            WorkflowNotFound: There is none.
        """
        return runs.look_up(self.rt, workflow_id, workflow)

    def output(self, workflow: Workflow, workflow_id: str) -> Any:
        """What a workflow that is complete returned.

        Raises:
            WorkflowNotFound: There is none.
            WorkflowError: It is not complete; the text says how it stands, and why.
        """
        return self.workflow(workflow, workflow_id).output


_template: Path | None = None


def _fresh_database(folder: Path) -> str:
    """A migrated SQLite file. Migrations run once a process; after that a copy is made."""
    global _template
    if _template is None or not _template.exists():
        kept = Path(tempfile.mkdtemp(prefix="think-template-")) / "template.db"
        atexit.register(shutil.rmtree, kept.parent, ignore_errors=True)
        migrate.upgrade(f"sqlite:///{kept}")
        _template = kept
    target = folder / "think.db"
    shutil.copyfile(_template, target)
    return f"sqlite:///{target}"


@contextmanager
def think_test(
    model: Model | Sequence[Model] | None = None,
    *,
    settings: Settings | None = None,
    database_url: str | None = None,
    timezone: str = "UTC",
) -> Iterator[ThinkTest]:
    """A runtime on a temporary database with a fake clock; inside, it is the process's own.

    Tools, steps and hooks run in the calling thread. Requests to real models are refused.

    Args:
        model: The model of every agent that has no script of its own; or a list, asked one after the other.
        settings: Other settings than the defaults.
        database_url: A migrated database to use instead of a temporary SQLite file.
        timezone: What the Celery app's ``timezone`` is in production: that of cron rules which name none.
    """
    with tempfile.TemporaryDirectory(prefix="think-test-") as folder:
        url = database_url or _fresh_database(Path(folder))
        clock, knocks, over = FakeClock(), deque[Knock](), Event()
        db = Database(url, clock, durable=False, prepare=lambda _: _refuse(over))
        log = SqlEventLog(db)
        rt = Runtime(
            settings=replace(settings or Settings(), database_url=url),
            clock=clock,
            db=db,
            events=log,
            live=LiveWriter(log, synchronous=True, limit_seconds=math.inf),  # a slow machine loses no frame
            knock=knocks.append,
            timezone=timezone,
            threads=False,
        )
        test = ThinkTest(rt, clock, knocks, model)
        before = set_current(rt)
        try:
            with providers.no_real_requests():
                yield test
            test._check_crash_points()
        finally:
            set_current(before)
            rt.close()
            over.set()


def _refuse(over: Event) -> None:
    """Let nobody open the database of a test that is over. (A given ``database_url`` would still open.)"""
    if over.is_set():
        raise AssertionError(
            "this think_test() has ended, and with it its worker, its clock and its database: t, and what was made "
            "inside of it, such as an agent or a submission, work inside the `with` block only. Move this call into "
            "the block, or read there what you need after it."
        )
