"""Callers cancel and delete turns of one agent at once, in transactions of their own, beside the tick and a worker.

Most messages are lost, so every turn that is left must be found from the rows alone.
"""

import random
import threading
from collections.abc import Callable
from datetime import timedelta

from sqlalchemy.exc import DBAPIError

from tests.domain.crowd import Clerk, echo, row, transaction
from think_celery.domain import tick
from think_celery.domain.work import perform
from think_celery.testing import ThinkTest, think_test

ROUNDS, CALLERS, PATIENCE = 5, 3, 30.0
"""How many rounds one run makes. What they look for is rare: make a hundred when the order of turns is changed."""

DEADLOCK = "40P01"
"""What PostgreSQL tells one of two callers who cancel the same turns in another order."""

UNFINISHED = ("pending", "running")


def pause(longest: float, dice: random.Random) -> None:
    threading.Event().wait(dice.random() * longest)


def call(t: ThinkTest, agent: str, names: list[str], dice: random.Random) -> None:
    """One caller: cancels some turns, alone or in a transaction that it keeps open, and deletes one at times."""
    mine = dice.sample(names, dice.choice([1, 1, 2, 3]))
    if dice.random() < 0.4:
        Clerk(agent).cancel_submission(mine[0])
        if dice.random() < 0.5:
            Clerk(agent).delete_submission(mine[0])
        return
    with transaction(t.rt) as session:
        for name in mine:
            Clerk(agent).cancel_submission(name)
            pause(0.03, dice)
        if dice.random() < 0.2:
            Clerk(agent).delete_submission(dice.choice(names))
        pause(0.25, dice)
        end = session.commit if dice.random() < 0.6 else session.rollback
        end()


class Round:
    """One agent with seven turns, and everybody at once."""

    def __init__(self, t: ThinkTest, number: int, seed: int) -> None:
        self.t, self.agent, self.seed = t, f"a{number}", seed + number
        self.names = [f"{number}-{place}" for place in range(7)]
        self.failures: list[str] = []
        self._over = threading.Event()

    def run(self) -> list[str]:
        """The turns that nobody finds when all callers are gone, and what failed meanwhile."""
        dice = random.Random(self.seed)
        for name in self.names:
            Clerk(self.agent).submit_messages(name, submission_id=name)
        self.t.lose_messages()
        if dice.random() < 0.6:  # the tick has seen who stands behind the head
            self.t.clock.advance(timedelta(seconds=3))
            tick.run(self.t.rt)
        helpers = [self._thread(self._tick)]
        if dice.random() < 0.7:
            helpers.append(self._thread(self._work))
        callers = [self._thread(self._call, random.Random(dice.random())) for _ in range(CALLERS)]
        self._join(callers)
        self._over.set()
        self._join(helpers)
        self.t.lose_messages()
        for _ in range(12):
            self.t.clock.advance(timedelta(seconds=3))
            tick.run(self.t.rt)
            self.t.run_until_idle()
        rows = [row(self.t.rt, name) for name in self.names]
        return [each.id for each in rows if each is not None and each.status in UNFINISHED] + self.failures

    def _thread(self, work: Callable[..., None], *arguments: random.Random) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*arguments)
            except Exception as error:
                self.failures.append(f"{work.__name__}: {error!r}")

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def _join(self, threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"seed {self.seed}: a thread hangs"

    def _call(self, dice: random.Random) -> None:
        for _ in range(2):
            try:
                call(self.t, self.agent, self.names, dice)
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) != DEADLOCK:
                    raise

    def _tick(self) -> None:
        dice = random.Random(self.seed)
        while not self._over.is_set():
            self.t.clock.advance(timedelta(seconds=1.1))
            tick.run(self.t.rt)
            pause(0.02, dice)

    def _work(self) -> None:
        dice = random.Random(self.seed)
        while not self._over.is_set():
            if self.t._knocks and dice.random() < 0.3:
                perform(self.t.rt, self.t._knocks.popleft())
            else:
                self.t.lose_messages()
                pause(0.005, dice)


def test_no_turn_is_forgotten(postgres_url: str) -> None:
    """R1: whoever ends, keeps or deletes what, in whatever order: every turn that is left has its turn soon."""
    seed = random.randrange(10**9)
    with think_test(echo(), database_url=postgres_url) as t:
        for number in range(ROUNDS):
            assert Round(t, number, seed).run() == [], f"seed {seed}, round {number}"
