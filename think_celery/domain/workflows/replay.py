"""One pass of a workflow's code over its journal: what every kind of step shares.

A pass that stops (to wait, to hand over, because its lease is gone or its journal does not fit) stops for
good: from then on every step raises the same ``Suspend``, so that a ``finally`` or ``except`` of the user's
can't act as if the code had come there.
"""

import logging
import math
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, NoReturn, TypeVar

from think_celery import serialization
from think_celery.domain import calls
from think_celery.domain.leases import Hold
from think_celery.domain.patience import patiently
from think_celery.domain.workflows.journal import Asked, Failure, Journal, recorded_error
from think_celery.errors import (
    LeaseLost,
    ReplayMismatch,
    StepMisuse,
    Suspend,
    ThinkError,
    UnreadableValue,
)
from think_celery.ids import AgentRef, WorkflowRef
from think_celery.logs import trace_of
from think_celery.names import can_be_a_name, name_problem
from think_celery.runtime import Runtime
from think_celery.signals import AbortSignal
from think_celery.states import StepStatus
from think_celery.store import leases, steps, workflows
from think_celery.store.database import Tx
from think_celery.wording import shown

logger = logging.getLogger("think_celery.workflows")

T = TypeVar("T")

STEP_TIMEOUT_SECONDS = 600.0
MARGIN_SECONDS = 60.0
"""How much longer than the running step's timeout a run may keep its lease."""

IN_PLACE_SECONDS = 10.0
"""Up to this long a step waits for its next attempt with the worker; longer waits give it back."""

MAX_STEP_NAME = 120
_SLICE_SECONDS = 0.2

inside: ContextVar[str | None] = ContextVar("think_inside_step", default=None)
"""The step whose function runs in this context."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepContext:
    """What a step function learns about its call if it takes one argument.

    ``attempt`` is 1 plus the attempts that raised; it repeats after a crash. ``idempotency_key`` is the same
    for every attempt of the step: pass it to whom you call. ``signal`` comes when the result is no longer
    wanted.
    """

    attempt: int
    idempotency_key: str
    signal: AbortSignal


Why = Literal["waiting", "paused", "moved", "lost", "handed-over", "interrupted", "unfit"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """Why a pass has stopped. ``inbox`` is the count of events that its last look at the inbox was based on.

    ``queue`` is where it goes on, if that is not the run's own.
    """

    why: Why
    step: str
    inbox: int = 0
    wake_at: datetime | None = None
    queue: str | None = None
    error: ThinkError | None = None


@dataclass(kw_only=True)
class Replay:
    """The state of one pass. ``attempts`` is the claim's; it falls to 1 when the pass makes progress.

    ``version`` is that of the class which started the run; ``queue`` is the run's own, ``step_queue`` another one in
    which it is now for a step. ``pausing`` says that somebody was seen to want the run to pause.
    """

    rt: Runtime
    workflow: WorkflowRef
    run: int
    agent: AgentRef
    hold: Hold
    journal: Journal
    attempts: int
    version: str = "1"
    queue: str | None = None
    step_queue: str | None = None
    stop: Stop | None = None
    pausing: bool = False
    began: float = math.inf
    thread: int = field(default_factory=threading.get_ident)
    prompts: set[tuple[str, str | None]] = field(default_factory=set)
    helper: calls.Helper = field(default_factory=calls.Helper)

    # --- stopping ---------------------------------------------------------------------------------

    def halt(self, why: Why, step: str, **details: Any) -> NoReturn:
        """Stop the pass for good."""
        if self.stop is None:
            self.stop = Stop(why=why, step=step, **details)
        self.suspend()

    def suspend(self) -> NoReturn:
        """Unwind the workflow's code."""
        assert self.stop is not None
        raise Suspend(self.stop.step)

    # --- beginning a step -------------------------------------------------------------------------

    def check(self, name: Any) -> None:
        """Make sure that a step may be asked for here and now.

        Raises:
            StepMisuse: Within another step's function, or from another thread; or the name is unfit.
            Suspend: The pass has stopped.
        """
        outer, told = inside.get(), step_told(name)
        if outer is not None:
            raise StepMisuse(
                told,
                f"it was asked for inside the function of step {outer!r}. A step can't hold another: what it would "
                "record has no place of its own. Call it in run(), before or after that step.",
            )
        if threading.get_ident() != self.thread:
            raise StepMisuse(
                told,
                "it was asked for in another thread than the one of run(). Steps are recorded in the order of "
                "run()'s own calls; start threads inside a step's function instead.",
            )
        if self.stop is not None:
            self.suspend()
        problem = name_problem(name, MAX_STEP_NAME)
        if problem is not None:
            raise StepMisuse(told, f"that is no name of a step: {problem}.")

    def ask(self, name: str, kind: str) -> Asked:
        """The journal's entry for the step that the code asks for.

        Raises:
            Suspend: The journal holds another one here: the run stops resumably, and nothing is done.
        """
        try:
            return self.journal.ask(name, kind)
        except ReplayMismatch as error:
            self.halt("unfit", name, error=error)

    def recorded(self, asked: Asked) -> str | None:
        """The text of the step's value, ``None`` if it has none yet; a recorded failure is raised again."""
        if asked.status is StepStatus.FAILED:
            raise self.failed(asked, asked.row, asked.row.attempts)
        return str(asked.row.output) if asked.status is StepStatus.DONE else None

    def failed(self, asked: Asked, failure: Failure | Any, attempts: int) -> Exception:
        """The error that a failed entry raises."""
        try:
            return recorded_error(asked.ref.step, failure, attempts)
        except UnreadableValue as error:
            self.halt("unfit", asked.ref.step, error=error)

    def value(self, asked: Asked, text: str) -> Any:
        """A recorded value.

        Raises:
            Suspend: It can't be read by the code of today: the run stops resumably.
        """
        try:
            return serialization.loads(text)
        except UnreadableValue as error:
            self.halt("unfit", asked.ref.step, error=error)

    @property
    def took(self) -> timedelta:
        """How long it is since the effect of the step in hand began."""
        return timedelta(seconds=max(self.rt.clock.elapsed() - self.began, 0.0))

    def before_effect(self, asked: Asked) -> None:
        """Make sure, where a step that is not recorded yet begins, that the run is ours to take on."""
        self.began = self.rt.clock.elapsed()
        self.check_ours(asked)

    def check_ours(self, asked: Asked) -> None:
        """Make sure, within a step that is not recorded yet, that the run is still ours to take on."""
        step = asked.ref.step
        if self.rt.stopping.signal.aborted:
            self.halt("handed-over", step)
        if self.pausing:
            self.halt("paused", step)
        try:
            self.hold.check()
        except LeaseLost:
            self.halt("lost", step)
        except Exception as error:
            logger.error("could not look after the lease of %s: %s", self.workflow, trace_of(error))
            self.halt("interrupted", step)
        if self.hold.overdue:
            self.halt("interrupted", step)

    def go_to(self, asked: Asked, queue: str | None) -> None:
        """Make sure that a step which is about to act does so in its queue; ``None``: in the run's own.

        Raises:
            Suspend: This is another one: a worker of that queue goes on.
        """
        wanted = None if queue == self.queue else queue
        if wanted != self.step_queue:
            self.halt("moved", asked.ref.step, queue=wanted)

    # --- writing ----------------------------------------------------------------------------------

    def write(self, asked: Asked, work: Callable[[Tx, int], T]) -> T:
        """Run *work* in a fenced transaction. It gets the count of events stored so far, too.

        Raises:
            Suspend: The lease is lost, or the database stays away: nothing is stored.
            ThinkError: *work* raised it.
        """
        # An effect may have happened: its result waits for a database that is away for a moment.
        act = partial(self.rt.db.transact, lambda tx: self.fenced(tx, work))
        result = self.guarded(asked, lambda: patiently(self.rt, self.hold, act))
        self.attempts = min(self.attempts, 1)
        return result

    def at_once(self, asked: Asked, work: Callable[[Tx], T | None]) -> T | None:
        """Run *work*, one statement that holds its own fence and commits by itself: the fast way to write.

        What is not true means that nothing was written, or that it was written before and its answer was lost:
        :meth:`write` then does it, or finds it, or says why it can't be done.

        Raises:
            Suspend: The database stays away: nothing is stored.
        """
        if self.attempts > 1:  # the run's row has to be written, too
            return None
        act = partial(self.rt.db.single, work, repeatable=True)
        return self.guarded(asked, lambda: patiently(self.rt, self.hold, act))

    def read(self, asked: Asked, work: Callable[[Tx], T]) -> T:
        """Run *work*, which only reads.

        Raises:
            Suspend: The database stays away.
        """
        return self.guarded(asked, lambda: patiently(self.rt, self.hold, partial(self.rt.db.read, work)))

    def fenced(self, tx: Tx, work: Callable[[Tx, int], T]) -> T:
        """The body of a holder's transaction: the fence first, then *work*."""
        held = leases.fence(tx, self.hold.lease)
        self.pausing = held.pause_at is not None
        result = work(tx, held.inbox)
        if self.attempts > 1:
            workflows.progress(tx, self.workflow.key)
        return result

    def guarded(self, asked: Asked, act: Callable[[], T]) -> T:
        """Call what uses the database: what goes wrong there is not the step's failure."""
        try:
            return act()
        except LeaseLost:
            self.halt("lost", asked.ref.step)
        except ThinkError:
            raise
        except Exception as error:
            logger.error("%s: could not store step %r: %s", self.workflow, asked.ref.step, trace_of(error))
            self.halt("interrupted", asked.ref.step)

    def fail(self, asked: Asked, failure: Failure, attempts: int, *, recorded: bool) -> NoReturn:
        """Record that the step has failed for good, and raise what every replay will raise.

        *recorded* says whether the step has an entry already, which waits or is tried again.
        """
        changes = {"attempts": attempts, **failure.columns()}

        def store(tx: Tx, _: int) -> None:
            if recorded:
                self.must(steps.settle(tx, asked.ref, StepStatus.FAILED, **changes))
            else:
                self.must(steps.insert(tx, asked.ref, StepStatus.FAILED, took=self.took, **changes))

        self.write(asked, store)
        raise self.failed(asked, failure, attempts)

    @staticmethod
    def must(done: object) -> None:
        """Make sure that a write of the only one who writes here has changed something."""
        if not done:
            raise RuntimeError("the journal holds an entry that this pass has not seen")

    # --- waiting ----------------------------------------------------------------------------------

    def park(self, asked: Asked, inbox: int, wake_at: datetime | None, queue: str | None = None) -> NoReturn:
        """Give the worker back until *wake_at*, or until another event than the *inbox* counted ones comes.

        The run goes on in that *queue*, if not in its own.
        """
        self.halt("waiting", asked.ref.step, inbox=inbox, wake_at=wake_at, queue=queue)

    def pause(self, asked: Asked, seconds: float) -> None:
        """Wait with the worker, unless it is to stop or the run is no longer ours."""
        clock, stopping = self.rt.clock, self.rt.stopping.signal
        until = clock.elapsed() + seconds
        while (left := until - clock.elapsed()) > 0:
            if stopping.aborted or self.hold.signal.aborted:
                self.check_ours(asked)
            clock.sleep(min(left, _SLICE_SECONDS), self.hold.signal)


def step_told(name: Any) -> str:
    """What was given as a step's name, for an error."""
    return (name if isinstance(name, str) else shown(name))[:MAX_STEP_NAME]


def asked_agent(replay: Replay, step: str, agent: Any) -> AgentRef:
    """Which agent is meant: the workflow's own, a handle's, or that of a class and a name.

    Raises:
        StepMisuse: It is none of these.
    """
    if agent is None:
        return replay.agent
    own = getattr(agent, "_ref", None)
    if isinstance(own, AgentRef):
        return own
    if isinstance(agent, tuple) and len(agent) == 2:
        cls, name = agent
        class_name = cls if isinstance(cls, str) else getattr(cls, "agent_class", None)
        if can_be_a_name(class_name, 200) and can_be_a_name(name, 200):
            return AgentRef(str(class_name), name)
    raise StepMisuse(
        step,
        f"agent={shown(agent)} is no agent. Pass a handle, such as Reviewer('r1'), or its class and name: "
        "(Reviewer, 'r1').",
    )
