"""How an agent comes to life: `start()`, `on_start` once for each version, and what happens when that fails."""

import os
import signal
import threading
from collections import deque
from typing import ClassVar

import pytest

from tests.domain.crowd import FORK, change, count, drain, in_processes, line, transaction, workers
from tests.domain.talk import ask
from think_celery import Think
from think_celery.domain import tick
from think_celery.domain.agents import starts
from think_celery.domain.work import perform
from think_celery.errors import AsyncNotSupported, InvalidValue, UnknownClass
from think_celery.ids import AgentRef
from think_celery.providers.scripted import say
from think_celery.store import tables
from think_celery.store.agents import get
from think_celery.store.health import failed_starts


class Starter(Think):
    """An agent that notes each of its starts."""

    version = "1"
    autostart = ("daily", "weekly")
    started: ClassVar[list] = []

    def on_start(self):
        Starter.started.append(self.name)


class Calm(Think):
    """An agent without an `on_start`."""


@pytest.fixture(autouse=True)
def beginning(request):
    """Nothing has started yet, and every agent can answer."""
    Starter.started, Starter.version = [], "1"
    for name in ("t", "quick"):
        if name in request.fixturenames:
            t = request.getfixturevalue(name)
            t.script(Starter, *[say("Hello")] * 10)
            t.script(Calm, *[say("Hello")] * 10)


def row(rt, agent):
    return rt.db.read(lambda tx: get(tx, agent._ref.id))


class TestStart:
    def test_it_stores_the_row_and_a_worker_runs_on_start(self, t):
        """The call itself runs nothing of the agent's."""
        Starter("a").start()
        assert Starter.started == []
        assert row(t.rt, Starter("a")).created_at == t.clock.now()

        t.run_until_idle()
        assert Starter.started == ["a"]
        assert row(t.rt, Starter("a")).started_version == "1"
        assert line(t.rt, Starter("a")).process_id is None

    def test_again_it_does_nothing(self, t):
        """Once for each version, however often it is asked for."""
        for _ in range(3):
            Starter("a").start()
            t.run_until_idle()

        assert Starter.started == ["a"]

    def test_several_asked_for_at_once_are_one(self, t):
        """Their messages are hints: the first one starts the agent, the others find it started."""
        for _ in range(3):
            Starter("a").start()
        t.run_until_idle()

        assert Starter.started == ["a"]

    def test_a_new_version_starts_again(self, t):
        """The version is the class's attribute."""
        Starter("a").start()
        t.run_until_idle()

        Starter.version = "2"
        Starter("a").start()
        t.run_until_idle()

        assert Starter.started == ["a", "a"]
        assert row(t.rt, Starter("a")).started_version == "2"

    def test_without_an_on_start_only_the_row_is_made(self, t):
        """No message is sent, no line is made."""
        Calm("a").start()

        assert t.lose_messages() == 0
        assert row(t.rt, Calm("a")).knock_at is None

    def test_a_lost_message_is_sent_again(self, t):
        """By the tick, like every other."""
        Starter("a").start()
        t.lose_messages()

        t.skip("5 seconds")

        assert Starter.started == ["a"]
        assert row(t.rt, Starter("a")).knock_at is None

    def test_in_a_caller_s_transaction(self, t):
        """It exists once that is committed, and never if it is rolled back."""
        with transaction(t.rt) as session:
            Starter("a").start()
            session.rollback()
        t.skip("5 seconds")
        assert (Starter.started, count(t.rt, tables.agents)) == ([], 0)

        with transaction(t.rt) as session:
            Starter("a").start()
            session.commit()
        t.run_until_idle()
        assert Starter.started == ["a"]

    def test_while_a_turn_has_the_line(self, t):
        """It waits until the line is free: on_start never runs beside a turn of the agent."""

        class Onlooker(Think):
            version = "1"
            log: ClassVar[list] = []

            def on_start(self):
                Onlooker.log.append("start")

            def get_system_prompt(self):
                Onlooker.log.append("turn")
                Onlooker.version = "2"  # a deployment in the middle of it
                self.start()
                t.run_until_idle()
                Onlooker.log.append("turn ends")
                return "Be brief."

        t.script(Onlooker, say("Hello"))
        ask(t, Onlooker("a"))
        assert Onlooker.log == ["start", "turn", "turn ends"]

        t.skip("5 seconds")
        assert Onlooker.log == ["start", "turn", "turn ends", "start"]

    def test_a_class_that_is_not_known_here(self, t, caplog):
        """A worker without it leaves it to others and says what to import; nothing is counted."""
        with pytest.raises(UnknownClass):
            starts.start(t.rt, AgentRef("Nobody", "a"))
        Starter("a").start()
        t.lose_messages()
        change(t.rt, tables.agents.update().values(agent_class="Elsewhere"))

        assert starts.run(t.rt, "Elsewhere", "a").word == "not-found"  # the id is made of the name
        t.skip("5 seconds")
        assert Starter.started == []


class TestBeforeTheNextWork:
    def test_on_start_comes_before_the_first_turn(self, t):
        """An agent exists from its first accepted work, too; and before a second turn it does not come again."""
        assert ask(t, Starter("a")).status == "completed"
        assert Starter.started == ["a"]
        assert row(t.rt, Starter("a")).started_version == "1"

        ask(t, Starter("a"))
        assert Starter.started == ["a"]

    def test_and_before_the_first_turn_of_a_new_version(self, t):
        """After a deployment each agent starts anew with its next work."""
        ask(t, Starter("a"))
        Starter.version = "2"
        ask(t, Starter("a"))

        assert Starter.started == ["a", "a"]

    def test_a_turn_and_a_start_at_once(self, t):
        """Whichever comes first starts the agent; the other finds it started."""
        Starter("a").submit_messages("Go")
        Starter("a").start()
        t.run_until_idle()

        assert Starter.started == ["a"]
        assert row(t.rt, Starter("a")).knock_at is None

    def test_what_on_start_may_do(self, t):
        """It changes the state, and submits work, which runs after the turn that it came before."""

        class Busy(Think):
            version = "1"

            def on_start(self):
                self.set_state({"ready": True})
                self.submit_messages("Later", idempotency_key="first")

        t.script(Busy, say("Hello"), say("Then"))
        ask(t, Busy("a"))

        assert Busy("a").state == {"ready": True}
        assert [message.text for message in Busy("a").messages] == ["Go", "Hello", "Later", "Then"]


class TestVersions:
    def test_without_a_version_the_source_counts(self):
        """Another body is another version, the same body is not; and so it is with a base of yours."""

        def make(body, base=Think):
            space = {}
            source = f"class Sourced(Base):\n    def on_start(self):\n        {body}\n"
            exec(compile(source, "<made>", "exec"), {"Base": base, "__name__": __name__}, space)
            return space["Sourced"]

        one, same, other = make("x = 1"), make("x = 1"), make("x = 2")

        assert starts.version_of(one) == starts.version_of(same)
        assert starts.version_of(one) != starts.version_of(other)
        assert len(starts.version_of(one)) <= 200

    def test_a_class_with_source(self):
        """Its text counts; an explicit version wins over it."""
        assert len(starts.version_of(Calm)) == 32
        assert starts.version_of(Calm) != starts.version_of(Starter)
        assert starts.version_of(Starter) == "1"

    def test_a_class_s_version_is_a_name(self):
        """It is stored, so it must be one."""
        with pytest.raises(InvalidValue, match="version"):

            class Unversioned(Think):
                version = 7

    def test_async_hooks_are_refused(self):
        """When the class is made."""
        with pytest.raises(AsyncNotSupported, match="on_start"):

            class AsyncStarter(Think):
                async def on_start(self):
                    pass


class TestFailure:
    def test_the_work_goes_on_and_it_is_tried_again(self, t, caplog):
        """What it raised is logged without its words, noted for the doctor, and gone after a success."""

        class Failing(Think):
            version = "1"
            fails = True
            tried = 0

            def on_start(self):
                Failing.tried += 1
                if Failing.fails:
                    raise RuntimeError(" ".join(["secret", "words"]))

        t.script(Failing, say("One"), say("Two"), say("Three"))
        assert ask(t, Failing("a")).status == "completed"
        told = t.rt.db.read(lambda tx: failed_starts(tx, 5))
        assert [(each.name, each.start_error_type) for each in told] == [("a", "RuntimeError")]
        assert row(t.rt, Failing("a")).start_error == "secret words"
        assert "secret words" not in caplog.text

        Failing.fails = False
        assert ask(t, Failing("a")).status == "completed"
        assert Failing.tried == 2
        assert t.rt.db.read(lambda tx: failed_starts(tx, 5)) == []

        ask(t, Failing("a"))
        assert Failing.tried == 2

    def test_after_start_it_is_tried_again_with_the_next_work_only(self, t):
        """The tick does not try it again and again."""

        class Refusing(Think):
            version = "1"
            tried = 0

            def on_start(self):
                Refusing.tried += 1
                raise RuntimeError

        t.script(Refusing, say("One"))
        Refusing("a").start()
        t.run_until_idle()
        t.skip("1 hour")
        assert Refusing.tried == 1

        ask(t, Refusing("a"))
        assert Refusing.tried == 2


class TestCrashes:
    @pytest.mark.parametrize("point", ["start:claimed", "start:before", "start:ran", "start:committed"])
    def test_killed_after_start(self, t, point):
        """Wherever the worker dies, another one carries the start through, and the line is free."""
        t.crash_at(point)
        Starter("a").start()
        t.run_until_idle()
        t.skip("20 seconds")

        assert row(t.rt, Starter("a")).started_version == "1"
        assert len(Starter.started) == (2 if point == "start:ran" else 1)
        assert line(t.rt, Starter("a")).process_id is None

    @pytest.mark.parametrize("point", ["start:before", "start:ran", "start:committed"])
    def test_killed_before_a_turn(self, t, point):
        """The turn is taken over as ever, and the agent has started before it."""
        t.crash_at(point)
        submitted = ask(t, Starter("a"))
        t.skip("20 seconds")

        assert Starter("a").inspect_submission(submitted.submission_id).status == "completed"
        assert row(t.rt, Starter("a")).started_version == "1"
        assert len(Starter.started) == (2 if point == "start:ran" else 1)

    def test_a_start_that_kills_every_worker(self, t):
        """After `think_max_attempts` deaths in a row it is left alone; a new version or start() tries again."""
        t.crash_at("start:before", times=t.rt.settings.max_attempts)
        Starter("a").start()
        t.run_until_idle()
        for _ in range(10):
            t.skip("1 minute")

        assert Starter.started == []
        stored = row(t.rt, Starter("a"))
        assert (stored.start_error_type, stored.knock_at) == ("TooManyAttempts", None)

        assert ask(t, Starter("a")).status == "completed"
        assert Starter.started == []
        Starter("a").start()
        t.run_until_idle()
        assert Starter.started == ["a"]
        assert row(t.rt, Starter("a")).start_error_type is None

    def test_a_lease_that_is_lost_in_it(self, t):
        """What it did stays done, and that it has started is not noted: another worker runs it again."""

        class Slow(Think):
            version = "1"
            runs = 0

            def on_start(self):
                Slow.runs += 1
                if Slow.runs == 1:
                    t.rt.db.transact(
                        lambda tx: tx.execute(
                            tables.lines.update().values(process_id=None, token=tables.lines.c.token + 1)
                        )
                    )

        Slow("a").start()
        t.run_until_idle()
        assert row(t.rt, Slow("a")).started_version is None

        t.skip("10 seconds")
        assert (Slow.runs, row(t.rt, Slow("a")).started_version) == (2, "1")


class TestAutostart:
    def test_the_names_that_classes_give(self, t):
        """A list, or a classmethod that makes one; each is started once."""

        class Listed(Think):
            @classmethod
            def autostart(cls):
                return [f"tenant-{number}" for number in range(2)]

        try:
            declared = [agent for agent in starts.start_declared(t.rt) if agent.agent_class == "Listed"]
        finally:
            Listed.autostart = ()
        t.run_until_idle()

        assert [agent.name for agent in declared] == ["tenant-0", "tenant-1"]
        assert sorted(Starter.started) == ["daily", "weekly"]

    @pytest.mark.parametrize("given", ["daily", 7, [""], [7]])
    def test_what_is_no_list_of_names(self, given):
        """Is refused, naming the class."""

        class Odd(Think):
            autostart = given

        try:
            with pytest.raises(InvalidValue, match=r"Odd\.autostart"):
                starts.autostart_names(Odd)
        finally:
            Odd.autostart = ()


class TestRaces:
    def test_five_processes_start_one_agent(self, database_url):
        """on_start runs once for the version, whoever comes first."""

        def work(number, ready):
            with workers(database_url) as rt:
                knocks = []
                rt.knock = knocks.append
                ready()
                Starter._bound_to(rt, "a").start()
                for knock in knocks:
                    perform(rt, knock)
                tick.run(rt)
                return len(Starter.started)

        assert [sum(in_processes(5, work)) for _ in range(2)] == [1, 0]
        with workers(database_url) as rt:
            assert row(rt, Starter("a")).started_version == "1"


def test_kill_9_in_on_start(database_url):
    """A real one: the next worker proves the death, frees the line and runs `on_start` again."""

    def die():
        with workers(database_url) as rt:
            knocks = []
            rt.knock = knocks.append
            rt.failpoint = lambda point: (
                os.kill(os.getpid(), signal.SIGKILL) if point == "start:ran" else None
            )
            Starter._bound_to(rt, "a").start()
            perform(rt, knocks[0])

    child = FORK.Process(target=die)
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL

    with workers(database_url) as rt:
        knocks = deque()
        rt.knock = knocks.append
        assert line(rt, Starter("a")).process_id is not None
        for _ in range(200):
            tick.run(rt)
            drain(rt, knocks)
            if row(rt, Starter("a")).started_version is not None:
                break
            threading.Event().wait(0.1)
        assert row(rt, Starter("a")).started_version == "1"
        assert line(rt, Starter("a")).process_id is None
    assert Starter.started == ["a"]
