"""The fence: a worker that lost its lease can't write a byte."""

import threading
from datetime import timedelta

import pytest

from tests.domain.crowd import Clerk, at_once, die, everything, line, wait_for_lock
from think_celery import tool
from think_celery.domain import recovery
from think_celery.domain.conversation import conversation
from think_celery.domain.submissions import claims
from think_celery.domain.turns import turns
from think_celery.errors import LeaseLost, ModelError
from think_celery.messages import TextPart, UIMessage
from think_celery.protocols import TextDelta
from think_celery.providers.scripted import FunctionModel, call
from think_celery.store import leases as lease_rows
from think_celery.store import lines as line_rows
from think_celery.store import messages as message_rows
from think_celery.testing import think_test


class Thief(Clerk):
    """An agent whose tool loses its worker's lease to another worker."""

    steal = staticmethod(lambda: None)

    @tool
    def rob(self) -> str:
        """Lose the lease."""
        type(self).steal()
        return "booty"


def submit(t, name="s", agent=Clerk):
    agent("a").submit_messages("Hello", submission_id=name)
    return name


class TestFence:
    @pytest.fixture
    def theft(self, t):
        """What takes the work in hand to another worker, who has claimed it; and the rows as they are then."""
        seen = []

        def steal():
            die(t.rt)
            recovery.sweep(t.rt)
            assert claims.claim(t.rt, "s").attempt == 2
            seen.append(everything(t.rt))

        Thief.steal = staticmethod(steal)
        return seen

    @pytest.mark.parametrize("write", ["store", "tool", "retry", "finish", "error", "give up", "put back"])
    def test_who_lost_the_lease_writes_nothing(self, t, theft, write):
        """At every write of a turn, a worker whose line was taken over changes no row."""

        def play(request):
            if write == "tool":
                yield from ()
            yield TextDelta("some text")
            Thief.steal()
            if write == "store":
                t.clock.advance(timedelta(seconds=2))
                yield TextDelta("more")
            if write in ("retry", "error"):
                raise ModelError("away", retryable=write == "retry")
            if write == "give up":
                t.rt.monitor._holds[0].cancel()
            if write == "put back":
                t.rt.stopping.abort("the worker stops")

        t.use_model(FunctionModel(lambda request: call("rob") if write == "tool" else play(request)), Thief)
        submit(t, agent=Thief)
        claimed = claims.claim(t.rt, "s")

        outcome = turns.run(t.rt, claimed)

        assert outcome.word == "lease-lost"
        assert [everything(t.rt)] == theft

    def test_a_fence_holds_until_the_commit(self, postgres_url):
        """Whoever takes the line away waits for a write that has begun; a check without lock would not do."""
        with think_test(database_url=postgres_url) as t:
            submit(t)
            lease = claims.claim(t.rt, "s").lease
            took = []

            def write(tx):
                lease_rows.fence(tx, lease)
                thief = threading.Thread(target=lambda: took.append(seize(t, lease)))
                thief.start()
                wait_for_lock(t.rt)
                return thief, list(took)

            thief, before = t.rt.db.transact(write)
            thief.join(10)

            assert (before, took) == ([], [True])
            with pytest.raises(LeaseLost):
                t.rt.db.transact(lambda tx: lease_rows.fence(tx, lease))

    def test_what_is_stored_now_and_then_waits_for_whoever_takes_the_line(self, postgres_url):
        """Its fence is a part of the one statement: it sees a takeover that was under way when it began."""
        with think_test(database_url=postgres_url) as t:
            submit(t)
            lease = claims.claim(t.rt, "s").lease
            message = conversation.as_row(UIMessage(id="m", role="assistant", parts=[TextPart(text="late")]))
            stored = []

            def store():
                put = lambda tx: message_rows.store_unfinished_fenced(tx, lease, message)  # noqa: E731
                stored.append(t.rt.db.single(put, repeatable=True))

            def take(tx):
                line_rows.seize_from(tx, lease)
                writer = threading.Thread(target=store)
                writer.start()
                wait_for_lock(t.rt)
                return writer

            t.rt.db.transact(take).join(10)

            assert stored == [False]
            assert "late" not in str(everything(t.rt))

    def test_a_caller_s_insert_does_not_wait_for_a_fence(self, postgres_url):
        """A turn that writes and a caller that submits to the same agent don't meet."""
        with think_test(database_url=postgres_url) as t:
            submit(t)
            lease = claims.claim(t.rt, "s").lease

            def write(tx):
                lease_rows.fence(tx, lease)
                at_once(1, lambda _: submit(t, "s2"))

            t.rt.db.transact(write)

        assert lease.token == 1

    def test_each_taking_raises_the_token(self, t):
        """Claim, takeover and reset raise it in the statement that takes the lease away."""
        submit(t)
        tokens = [claims.claim(t.rt, "s").lease.token]
        die(t.rt)
        recovery.sweep(t.rt)
        tokens.append(line(t.rt, Clerk("a")).token)
        tokens.append(claims.claim(t.rt, "s").lease.token)
        t.rt.db.transact(lambda tx: line_rows.seize_line(tx, Clerk("a")._ref.id))
        tokens.append(line(t.rt, Clerk("a")).token)

        assert tokens == [1, 2, 3, 4]


def seize(t, lease):
    return t.rt.db.transact(lambda tx: line_rows.seize_from(tx, lease))
