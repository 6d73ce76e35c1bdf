"""An agent's state: set, updated by a function, read from anywhere, and told of."""

from datetime import UTC, datetime
from typing import ClassVar

import pytest
from pydantic import BaseModel

from tests.domain.crowd import at_once, count, in_processes, transaction, workers
from tests.domain.talk import ask, talker
from think_celery import Think, tool
from think_celery.domain.agents import agents as domain
from think_celery.errors import (
    AsyncNotSupported,
    InvalidValue,
    NotSerializable,
    PayloadTooLarge,
    StateContended,
)
from think_celery.providers.scripted import call, say
from think_celery.settings import Settings
from think_celery.store import tables
from think_celery.testing import think_test


class Cart(BaseModel):
    """A state with a type."""

    items: list[str] = []
    paid_at: datetime | None = None


class Shop(Think):
    """An agent that keeps what it is told of changes."""

    told: ClassVar[list] = []

    def on_state_changed(self, state, source):
        self.told.append((state, source))


class Counter(Think):
    """An agent that counts."""

    initial_state: ClassVar = {"count": 0, "seen": []}


@pytest.fixture(autouse=True)
def nothing_told():
    """Each test begins with an empty list."""
    Shop.told = []


def add(number):
    return lambda state: {**state, "count": state["count"] + number}


class TestState:
    def test_b24_what_was_set_is_there_for_everybody(self, t):
        """B24: another handle, another process, later: they read what was stored last."""
        Counter("a").set_state({"count": 7})

        assert Counter("a").state == {"count": 7}
        assert Counter("b").state == {"count": 0, "seen": []}

    def test_initial_state_is_a_copy_each_time(self, t):
        """As long as nothing is stored, it is the class's; changing what was read changes neither."""
        Counter("a").state["seen"].append("x")

        assert Counter("a").state == {"count": 0, "seen": []}
        assert Counter.initial_state == {"count": 0, "seen": []}
        assert Shop("a").state == {}

    def test_values_come_back_as_what_they_were(self, t):
        """A pydantic model, dates and None are stored like a step's value."""
        cart = Cart(items=["tea"], paid_at=datetime(2027, 1, 1, tzinfo=UTC))

        Shop("a").set_state(cart)
        Shop("b").set_state(None)

        assert Shop("a").state == cart
        assert type(Shop("a").state) is Cart
        assert Shop("b").state is None

    @pytest.mark.parametrize("value", [{"tags": {1, 2}}, (1, 2), {1: "x"}, float("nan")])
    def test_what_would_not_come_back_equal_is_refused(self, quick, value):
        """At the call, naming the path; nothing is stored."""
        with pytest.raises(NotSerializable, match="state"):
            Counter("a").set_state(value)

        assert Counter("a").state == {"count": 0, "seen": []}

    def test_its_size_is_limited(self, sqlite_url):
        """By `think_max_payload`, for set and for update."""
        with think_test(database_url=sqlite_url, settings=Settings(max_payload=100)):
            with pytest.raises(PayloadTooLarge, match="state"):
                Counter("a").set_state("x" * 100)
            with pytest.raises(PayloadTooLarge):
                Counter("a").update_state(lambda state: {**state, "text": "x" * 100})

            assert Counter("a").state == {"count": 0, "seen": []}

    def test_any_text_can_be_stored(self, t):
        """NUL, half characters and emoji come back."""
        Counter("a").set_state({"text": "a\x00b \ud800 \N{PILE OF POO}"})

        assert Counter("a").state == {"text": "a\x00b \ud800 \N{PILE OF POO}"}

    def test_accepting_work_makes_no_row_and_state_does(self, t):
        """A second caller of a new agent must not wait for the first one's transaction."""
        Counter("a").submit_messages("hi")
        assert count(t.rt, tables.agents) == 0

        Counter("a").set_state({"count": 1})
        assert count(t.rt, tables.agents) == 1


class TestUpdate:
    def test_it_returns_the_new_state(self, t):
        """From the initial state, and from what was stored."""
        assert Counter("a").update_state(add(2)) == {"count": 2, "seen": []}
        assert Counter("a").update_state(add(3)) == {"count": 5, "seen": []}
        assert Counter("a").state["count"] == 5

    def test_a_function_may_change_its_copy(self, t):
        """It returns it, too."""

        def change(state):
            state["seen"].append("x")
            return state

        assert Counter("a").update_state(change)["seen"] == ["x"]

    def test_none_is_a_mistake(self, t):
        """A function that changes in place and returns nothing is told so, and nothing is stored."""
        with pytest.raises(InvalidValue, match="must return the new state"):
            Counter("a").update_state(lambda state: state["seen"].append("x"))

        assert Counter("a").state["seen"] == []

    def test_what_it_raises_goes_through(self, t):
        """And nothing is stored."""
        with pytest.raises(ZeroDivisionError):
            Counter("a").update_state(lambda state: 1 / 0)

    def test_a_state_is_no_function(self, quick):
        """With the remedy."""
        with pytest.raises(InvalidValue, match="set_state"):
            Counter("a").update_state({"n": 1})

    def test_async_functions_are_refused(self, quick):
        """With the remedy."""

        async def change(state):
            return state

        with pytest.raises(AsyncNotSupported, match="update_state"):
            Counter("a").update_state(change)

    def test_somebody_else_was_faster(self, t):
        """The function runs again, on what the other one has stored; nothing is lost."""
        seen = []

        def change(state):
            seen.append(state["count"])
            if len(seen) == 1:
                Counter("a").update_state(add(10))
            return add(1)(state)

        assert Counter("a").update_state(change)["count"] == 11
        assert seen == [0, 10]

    def test_also_when_the_other_one_set_it(self, t):
        """A state that was set in the meantime is not written over."""
        seen = []

        def change(state):
            seen.append(state["count"])
            if len(seen) == 1:
                Counter("a").set_state({"count": 100, "seen": []})
            return add(1)(state)

        assert Counter("a").update_state(change)["count"] == 101

    def test_nothing_is_locked_while_it_runs(self, live):
        """Another process can change the state while a function runs, however long that takes."""
        agent = Counter._bound_to(live, "a")
        agent.set_state({"count": 0})
        calls = []

        def slow(state):
            calls.append(state["count"])
            if len(calls) == 1:
                at_once(1, lambda _: agent.update_state(add(1)))
            return add(1)(state)

        assert agent.update_state(slow)["count"] == 2

    def test_without_end_somebody_is_faster(self, t, monkeypatch):
        """After many tries it raises; nothing of this call is stored."""
        monkeypatch.setattr(domain, "TRIES", 5)

        def change(state):
            Counter("a").update_state(add(10))
            return add(1)(state)

        with pytest.raises(StateContended, match="5 tries"):
            Counter("a").update_state(change)

        assert Counter("a").state["count"] == 50

    def test_an_update_that_changes_nothing_tells_nobody(self, t):
        """It stores nothing either."""
        Shop("a").set_state({"x": 1})
        Shop.told.clear()

        assert Shop("a").update_state(lambda state: state) == {"x": 1}
        assert Shop.told == []


class TestOnStateChanged:
    def test_it_is_told_after_the_commit_where_the_change_was_made(self, t):
        """B24: the new state and the source; a copy, so that changing it changes nothing."""
        Shop("a").set_state({"x": 1})
        Shop("a").update_state(lambda state: {**state, "y": 2})

        assert Shop.told == [({"x": 1}, "server"), ({"x": 1, "y": 2}, "server")]

    def test_it_sees_what_is_stored(self, t):
        """A reader in the hook reads the new state."""
        seen = []

        class Reader(Think):
            def on_state_changed(self, state, source):
                seen.append((self.name, self.state == state))

        Reader("r").set_state({"x": 1})

        assert seen == [("r", True)]

    def test_what_it_raises_changes_nothing(self, t, caplog):
        """It is logged, without what the error says."""

        class Failer(Think):
            def on_state_changed(self, state, source):
                raise RuntimeError(" ".join(["secret", "words"]))

        Failer("a").set_state({"x": 1})

        assert Failer("a").state == {"x": 1}
        assert "on_state_changed of Failer('a') failed" in caplog.text
        assert "secret words" not in caplog.text

    def test_in_a_caller_s_transaction_it_comes_after_the_commit(self, t):
        """And never where that is rolled back."""
        with transaction(t.rt) as session:
            Shop("a").set_state({"x": 1})
            assert (Shop("a").state, Shop.told) == ({"x": 1}, [])
            session.commit()
        assert Shop.told == [({"x": 1}, "server")]

        with transaction(t.rt) as session:
            Shop("a").update_state(lambda state: {"x": 2})
            session.rollback()
        assert Shop("a").state == {"x": 1}
        assert Shop.told == [({"x": 1}, "server")]


class TestInTurns:
    def test_a_tool_changes_it(self, t):
        """B24: in a turn, in a worker."""

        class NoteTaker(Think):
            initial_state: ClassVar = {"notes": []}

            @tool
            def note(self, text: str) -> str:
                """Keep a note."""
                self.update_state(lambda state: {"notes": [*state["notes"], text]})
                return "kept"

        t.script(NoteTaker, call("note", {"text": "buy tea"}), say("Done"))
        ask(t, NoteTaker("a"))

        assert NoteTaker("a").state == {"notes": ["buy tea"]}

    def test_it_needs_no_turn(self, t):
        """An agent with a state and no turn answers like any other."""
        Talker = talker()
        t.script(Talker, say("Hello"))
        Talker("a").set_state({"x": 1})

        assert ask(t, Talker("a")).status == "completed"
        assert Talker("a").state == {"x": 1}


class TestRaces:
    def test_threads_count_exactly(self, live):
        """Eight threads add one at a time: not one is lost."""
        agent = Counter._bound_to(live, "a")
        for number in range(1, 4):

            def work(_):
                for _ in range(5):
                    agent.update_state(add(1))

            at_once(8, work)
            assert agent.state["count"] == number * 40

    def test_processes_count_exactly(self, database_url):
        """Eight processes, each with connections of its own."""

        def work(number, ready):
            with workers(database_url) as rt:
                agent = Counter._bound_to(rt, "a")
                ready()
                for _ in range(5):
                    agent.update_state(add(1))

        in_processes(8, work)
        with workers(database_url) as rt:
            assert Counter._bound_to(rt, "a").state["count"] == 40

    def test_set_and_update_at_once(self, live):
        """An update is made on what was there, before or after the set; never on half of either."""
        for number in range(20):
            agent = Counter._bound_to(live, f"a{number}")
            agent.set_state({"count": 1})
            at_once(
                2,
                lambda who, agent=agent: (
                    agent.set_state({"count": 100}) if who else agent.update_state(add(1))
                ),
            )
            assert agent.state["count"] in (100, 101)

    def test_the_first_state_of_an_agent_is_made_once(self, live):
        """Several processes that all begin with the initial state lose none of their changes."""
        for number in range(10):
            agent = Counter._bound_to(live, f"n{number}")
            at_once(6, lambda _, agent=agent: agent.update_state(add(1)))
            assert agent.state["count"] == 6
