"""Races between those who queue, claim, end, cancel and sweep: real threads, on both databases.

Each of these rounds loses or doubles something without the rule that its docstring names.
"""

import random
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby
from typing import Any

import pytest
from sqlalchemy import select, update

from tests.domain.crowd import at_once, change, die
from tests.domain.flows import worker
from tests.domain.porter import Hauler, porter, row, run
from think_celery.domain import recovery
from think_celery.domain.jobs import jobs, runs
from think_celery.domain.outcomes import Outcome
from think_celery.domain.work import perform
from think_celery.errors import LeaseLost
from think_celery.protocols import Knock
from think_celery.runtime import Runtime
from think_celery.states import JobStatus
from think_celery.store import joblanes, tables
from think_celery.testing import SimulatedCrash

pytestmark = [
    pytest.mark.timeout(300),  # a busy machine takes its time for so many rounds
    pytest.mark.usefixtures("by_hand"),
]

ROUNDS = 25
UNFINISHED = select(tables.jobs.c.id).where(tables.jobs.c.completed_at.is_(None))
PATIENCE = 120.0


@pytest.fixture
def carries(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set what the haulers do."""
    return lambda carry: monkeypatch.setattr(Hauler, "carries", staticmethod(carry))


def test_the_same_key_from_many(live: Runtime):
    """The unique key decides: one of those who queue at once has stored the call, the others get it back."""
    agent = porter(live)
    for number in range(5):
        found = at_once(8, lambda _, n=number: agent.queue(agent.carry, n, idempotency_key=f"k{n}"))

        assert sum(job.accepted for job in found) == 1
        assert len({job.job_id for job in found}) == 1


def test_claims_at_once(live: Runtime):
    """One conditional UPDATE: of those who claim a job at once one has it."""
    agent = porter(live)
    for _ in range(ROUNDS):
        job = agent.queue(agent.carry, 1)
        found = at_once(6, lambda _, j=job: runs.claim(live, j.job_id))
        claims = [each for each in found if isinstance(each, runs.Claim)]

        assert len(claims) == 1
        assert {each.word for each in found if isinstance(each, Outcome)} <= {"busy"}
        jobs.end(live, claims[0].lease, claims[0].row, JobStatus.COMPLETED)


def test_claims_of_a_lane_at_once(live: Runtime):
    """Only the first of a lane can be taken, whoever looks when; each end makes way for exactly one more."""
    agent = porter(live)
    queued = [agent.queue(agent.carry, number).job_id for number in range(ROUNDS)]
    for first, expected in enumerate(queued):
        some = [queued[(first + n) % ROUNDS] for n in range(4)]
        found = at_once(4, lambda n, some=some: runs.claim(live, some[n]))
        claims = [each for each in found if isinstance(each, runs.Claim)]
        assert [claim.row.id for claim in claims] == [expected]
        jobs.end(live, claims[0].lease, claims[0].row, JobStatus.COMPLETED)


def test_an_end_and_a_cancel(live: Runtime, carries: Any):
    """Exactly one of the two moves the row, the loser changes nothing, and the lane goes on either way."""
    gate: dict[str, threading.Event] = {}

    def carry(agent: Hauler, payload: Any) -> Any:
        gate[payload].set()
        return payload

    carries(carry)
    agent, won = porter(live), []
    for number in range(ROUNDS):
        gate[str(number)] = threading.Event()
        job = agent.queue(agent.carry, str(number))

        def cancel(job_id: str = job.job_id, name: str = str(number)) -> bool:
            gate[name].wait(30)
            return agent.cancel_job(job_id, "late")

        outcome, cancelled = at_once(2, lambda n, j=job, c=cancel: c() if n else run(live, j.job_id))
        ended = row(live, job.job_id)
        won.append(cancelled)
        assert (ended.status, outcome.word) == (("aborted",) * 2 if cancelled else ("completed",) * 2)
        assert (ended.output is None) == cancelled
        assert (ended.process_id, ended.lane) == (None, None)


def test_an_end_and_a_sweep(live: Runtime):
    """Taking a lease away raises its token: either the end is stored, or the sweep has it and the end is refused."""
    agent = porter(live)
    for _ in range(ROUNDS):
        job = agent.queue(agent.carry, 1)
        claim = runs.claim(live, job.job_id)
        assert isinstance(claim, runs.Claim)

        def end(claim: runs.Claim = claim) -> bool:
            try:
                jobs.end(live, claim.lease, claim.row, JobStatus.COMPLETED)
            except LeaseLost:
                return False
            return True

        def sweep(claim: runs.Claim = claim) -> bool:
            return live.db.transact(lambda tx: jobs.free(live, tx, claim.lease))

        ended, swept = at_once(2, lambda n, e=end, s=sweep: s() if n else e())
        assert ended != swept
        assert row(live, job.job_id).status == ("completed" if ended else "running")
        if swept:
            assert run(live, job.job_id).word == "completed"


def test_an_end_and_a_tick_that_forgets_those_behind(live: Runtime):
    """A job behind the first of its lane is looked at by nobody; its end sees to the next one all the same.

    The tick forgets those under the lock of the first one's row. Without it, it may do so between the end's look at
    the next one and its commit, and nobody ever knocks again.
    """
    agent = porter(live)
    for _ in range(ROUNDS):
        first = agent.queue(agent.carry, 1)
        claim = runs.claim(live, first.job_id)
        assert isinstance(claim, runs.Claim)
        second = agent.queue(agent.carry, 2)
        change(
            live,
            update(tables.jobs).where(tables.jobs.c.id == second.job_id).values(knock_at=live.clock.now()),
        )

        def end(claim: runs.Claim = claim) -> None:
            jobs.end(live, claim.lease, claim.row, JobStatus.COMPLETED)

        at_once(3, lambda n, e=end: jobs.knock_missed(live, 100) if n else e())

        assert row(live, second.job_id).knock_at is not None
        assert run(live, second.job_id).word == "completed"


@contextmanager
def runners(url: str, count: int, knocks: deque[Knock]) -> Iterator[list[Runtime]]:
    """That many workers, who hear each other's knocks."""
    with ExitStack() as stack:
        found = [stack.enter_context(worker(url, max_attempts=100)) for _ in range(count)]
        for rt in found:
            rt.knock = knocks.append
        yield found


def test_order_with_eight_producers_and_four_runners_that_die(database_url: str, carries: Any):
    """Promise 4 for queued calls: one at a time, in the order in which they were accepted, whoever dies when.

    A call whose runner died before its end was stored is made again, before the next one.
    """
    made: list[tuple[str, Any]] = []
    busy: dict[str, int] = {}
    guard, done = threading.Lock(), threading.Event()

    def carry(agent: Hauler, payload: Any) -> Any:
        with guard:
            busy[agent.name] = busy.get(agent.name, 0) + 1
            assert busy[agent.name] == 1, "two calls of one agent at once"
            made.append((agent.name, payload))
        threading.Event().wait(0.001)
        with guard:
            busy[agent.name] -= 1
        return payload

    carries(carry)
    knocks: deque[Knock] = deque()
    each = 6
    with runners(database_url, 4, knocks) as rts:
        chance = random.Random(4)

        def crash(point: str) -> None:
            if point.startswith("job:") and point != "job:committed" and chance.random() < 0.04:
                raise SimulatedCrash(point)

        for rt in rts:
            rt.failpoint = crash

        def produce(number: int) -> None:
            agent = porter(rts[number % 4], "ab"[number % 2])
            for n in range(each):
                agent.queue(agent.carry, [number, n])

        def consume(number: int) -> None:
            rt, until = rts[number], rts[number].clock.elapsed() + PATIENCE
            while not done.is_set() and rt.clock.elapsed() < until:
                try:
                    if knocks and chance.random() < 0.8:
                        perform(rt, knocks.popleft())
                        continue
                    recovery.sweep(rt)
                    rt.db.transact(joblanes.knock_now)
                    jobs.knock_missed(rt, 100)
                    if len(made) >= 8 * each and not rt.db.read(lambda tx: list(tx.execute(UNFINISHED))):
                        done.set()
                except IndexError:
                    continue
                except SimulatedCrash:
                    die(rt)

        at_once(12, lambda n: produce(n) if n < 8 else consume(n - 8), PATIENCE + 30)
        stored = rts[0].db.read(
            lambda tx: list(
                tx.execute(select(tables.jobs.c.agent_name, tables.jobs.c.output).order_by(tables.jobs.c.seq))
            )
        )

    assert done.is_set()
    for name in "ab":
        seen = [f"[{payload[0]},{payload[1]}]" for agent, payload in made if agent == name]
        assert [text for text, _ in groupby(seen)] == [text for agent, text in stored if agent == name]
