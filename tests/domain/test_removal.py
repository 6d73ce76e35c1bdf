"""Clear a conversation, reset an agent's turns, destroy it: what goes, what stays, and who can't write after it."""

import threading
from collections import deque
from datetime import timedelta

import pytest
from sqlalchemy import select

from tests.domain.crowd import (
    Clerk,
    at_once,
    change,
    count,
    drain,
    echo,
    line,
    news,
    prompt,
    row,
    said,
    transaction,
)
from tests.domain.talk import ask
from think_celery import Think, tool
from think_celery.domain import tick
from think_celery.domain.agents.removal import SKIPPED_BY_DESTROY
from think_celery.domain.conversation.conversation import SKIPPED_BY_RESET
from think_celery.domain.submissions import claims
from think_celery.errors import InsideTransaction, LeaseLost
from think_celery.protocols import TextDelta
from think_celery.providers.scripted import FunctionModel, call, say
from think_celery.store import tables
from think_celery.store.agents import find, is_there

OF_AGENTS = (
    tables.messages,
    tables.submissions,
    tables.live,
    tables.live_heads,
    tables.past_usage,
    tables.interactions,
)


@pytest.fixture(autouse=True)
def model(request):
    """Every agent repeats what it is told."""
    if "t" in request.fixturenames:
        request.getfixturevalue("t").use_model(echo())


def submit(*names, agent="a"):
    for name in names:
        Clerk(agent).submit_messages(name, submission_id=name)


def rows(rt, agent, *tables_):
    """How many rows of an agent these tables have."""
    return [
        rt.db.read(
            lambda tx, table=table: len(
                list(tx.execute(select(table).where(table.c.agent_id == agent._ref.id)))
            )
        )
        for table in tables_
    ]


class TestClearMessages:
    def test_b28_the_conversation_is_empty_and_turns_have_ended(self, t):
        """B28: running becomes aborted, waiting skipped; the next one runs as ever; the state stays."""
        Clerk("a").set_state({"x": 1})
        submit("done")
        t.run_until_idle()
        submit("running", "waiting")
        claims.claim(t.rt, "running")

        assert Clerk("a").clear_messages() == 2

        assert Clerk("a").messages == []
        assert (row(t.rt, "running").status, row(t.rt, "running").error) == ("aborted", None)
        assert (row(t.rt, "waiting").status, row(t.rt, "waiting").error) == ("skipped", SKIPPED_BY_RESET)
        assert Clerk("a").state == {"x": 1}
        submit("next")
        t.run_until_idle()
        assert said(Clerk("a")) == ["next"]

    def test_no_hook_for_these_turns(self, t):
        """`on_chat_response` is not called: there is no answer any more."""
        told = []

        class Told(Think):
            def on_chat_response(self, result):
                told.append(result.status)

        def play(request):
            yield TextDelta("some text")
            Told("a").clear_messages()
            t.clock.advance(timedelta(seconds=2))
            yield TextDelta("more")

        t.use_model(FunctionModel(play))
        Told("a").submit_messages("one")
        t.run_until_idle()

        assert told == []
        assert Told("a").messages == []

    def test_not_inside_a_caller_s_transaction(self, t):
        """None of the three: the line's lock waits for nobody."""
        for method in (Clerk("a").clear_messages, Clerk("a").reset_turn_state, Clerk("a").destroy):
            with transaction(t.rt), pytest.raises(InsideTransaction):
                method()


class TestResetTurnState:
    def test_b28_turns_end_and_the_transcript_stays(self, t):
        """B28: also the part of the running turn's answer that was stored."""
        submit("done")
        t.run_until_idle()

        def play(request):
            yield TextDelta("some text")
            t.clock.advance(timedelta(seconds=2))
            yield TextDelta(" stored")
            assert Clerk("a").reset_turn_state() == 2
            yield TextDelta(" lost")
            t.clock.advance(timedelta(seconds=2))
            yield TextDelta(" more")

        t.use_model(FunctionModel(play))
        submit("running", "waiting")
        assert claims.run(t.rt, "running").word == "lease-lost"

        texts = [message.text for message in Clerk("a").messages]
        assert texts == ["done", "re: done", "running", "some text stored"]
        assert [str(row(t.rt, name).status) for name in ("running", "waiting")] == ["aborted", "skipped"]
        assert line(t.rt, Clerk("a")).process_id is None

    def test_the_next_turn_goes_on_from_there(self, t):
        """In the conversation as it stands."""
        submit("one", "two")
        claims.claim(t.rt, "one")
        Clerk("a").reset_turn_state()
        submit("three")
        t.run_until_idle()

        assert said(Clerk("a")) == ["one", "three"]


class TestDestroy:
    def test_b28_nothing_of_the_agent_is_left(self, t):
        """B28: messages, state, submissions, keys, frames; other agents keep theirs."""
        Clerk("a").set_state({"x": 1})
        Clerk("a").submit_messages("keyed", idempotency_key="k")
        submit("other", agent="b")
        t.run_until_idle()
        Clerk("a").delete_submissions(status="completed")
        submit("done", "waiting")
        claims.claim(t.rt, "done")

        Clerk("a").destroy()

        left = rows(t.rt, Clerk("a"), *OF_AGENTS)
        assert left == [0, 0, 1, 1, 0, 0]  # of frames only the one that tells listeners to forget
        assert Clerk("a").state == {}
        assert Clerk("a").messages == []
        assert Clerk("a").usage().total_tokens == 0
        assert said(Clerk("b")) == ["other"]
        assert rows(t.rt, Clerk("b"), tables.submissions) == [1]

    def test_it_is_gone_from_the_list(self, t):
        """And there again with its next work, as a new one."""
        submit("one")
        t.run_until_idle()
        Clerk("a").destroy()
        assert [each.name for each in t.rt.db.read(find)] == []

        submit("two")
        t.run_until_idle()
        assert [each.name for each in t.rt.db.read(find)] == ["a"]
        assert said(Clerk("a")) == ["two"]
        t.skip("2 days")
        assert [each.name for each in t.rt.db.read(find)] == ["a"]

    def test_it_is_there_from_its_first_work_to_its_end(self, t):
        """A submission that no worker has begun is enough, and nothing that a destroyed agent leaves behind is."""
        agent = Clerk._bound_to(t.rt, "fresh")

        def there():
            return t.rt.db.read(lambda tx: is_there(tx, agent._ref.id))

        seen = [there()]
        for work in (
            lambda: agent.submit_messages("Hello"),
            agent.destroy,
            lambda: agent.set_state(1),
            agent.destroy,
        ):
            work()
            seen.append(there())

        assert seen == [False, True, False, True, False]

    def test_its_keys_are_new_again(self, t):
        """The same key is another submission then."""
        first = Clerk("a").submit_messages("one", idempotency_key="k")
        t.run_until_idle()
        Clerk("a").destroy()

        second = Clerk("a").submit_messages("two", idempotency_key="k")
        t.run_until_idle()

        assert second.accepted
        assert first.accepted
        assert said(Clerk("a")) == ["two"]

    def test_on_start_runs_again_in_a_new_life(self, t):
        """The old one's start is forgotten with it."""

        class Reborn(Think):
            version = "1"
            started = 0

            def on_start(self):
                Reborn.started += 1

        ask(t, Reborn("a"))
        Reborn("a").destroy()
        ask(t, Reborn("a"))

        assert Reborn.started == 2

    def test_a_workflow_gets_its_news(self, t):
        """The row of a prompt stays, empty, until then; the workflow's turn ends as in a reset."""
        running, waiting = prompt(t.rt, key="think-1"), prompt(t.rt, key="think-2")
        claims.claim(t.rt, running)

        Clerk("a").destroy()

        assert {told.submission_id for told in news(t.rt)} == {running, waiting}
        kept = row(t.rt, waiting)
        assert (kept.status, kept.idempotency_key, kept.metadata, kept.error) == ("skipped", None, None, None)
        assert any(SKIPPED_BY_DESTROY in told.payload for told in news(t.rt))

        t.run_until_idle()
        t.skip("2 minutes")
        assert count(t.rt) == 0

    def test_the_row_goes_after_a_day(self, t):
        """Until then what was accepted before and commits late finds that its time is over."""
        submit("one")
        t.run_until_idle()
        Clerk("a").destroy()
        t.skip("23 hours")
        assert count(t.rt, tables.agents) == 1

        t.skip("2 hours")
        assert (count(t.rt, tables.agents), count(t.rt, tables.lines)) == (0, 0)

    def test_of_an_agent_that_was_never_there(self, t):
        """Harmless, and again."""
        for _ in range(2):
            Clerk("nobody").destroy()

        t.skip("2 days")
        assert count(t.rt, tables.agents) == 0

    def test_killed_in_the_middle(self, t):
        """The tick removes what the dead process has left."""
        submit("one", "two")
        t.run_until_idle()
        Clerk("a").set_state({"x": 1})
        t.crash_at("agent:destroyed")
        with pytest.raises(BaseException, match="agent:destroyed"):
            Clerk("a").destroy()
        assert count(t.rt) == 2
        assert Clerk("a").state == {}

        t.skip("2 minutes")
        assert count(t.rt) == 0

    def test_more_rows_than_one_batch(self, quick):
        """They go in several transactions."""
        Clerk("a").submit_messages("one")
        quick.use_model(echo())
        quick.run_until_idle()
        one = row_values(quick.rt)
        many = [{**one, "id": f"x{number}", "seq": 1000 + number} for number in range(1200)]
        change(quick.rt, tables.submissions.insert().values(many))

        Clerk("a").destroy()

        assert count(quick.rt) == 0

    def test_a_submit_that_commits_after_it_is_skipped(self, postgres_url):
        """It was accepted before, so it does not run after."""
        from think_celery.testing import think_test

        with think_test(echo(), database_url=postgres_url) as t:
            submit("first")
            t.run_until_idle()
            with transaction(t.rt) as session:
                submit("open")
                at_once(1, lambda _: Clerk("a").destroy())
                session.commit()
            t.run_until_idle()

            assert row(t.rt, "open").status == "skipped"
            assert Clerk("a").messages == []


def row_values(rt):
    """The one submission there is, as values."""
    found = rt.db.read(lambda tx: tx.execute(select(tables.submissions)).one())
    return dict(found._mapping)


class TestWhatStillRuns:
    def test_a_tool_of_a_destroyed_agent_can_not_change_its_state(self, t):
        """Its turn has lost the lease: the change is refused, and so is everything that it would store."""
        refused = []

        class Writer(Think):
            @tool
            def work(self) -> str:
                """Work on after the end."""
                Writer("a").destroy()
                for change_ in (
                    lambda: self.set_state({"x": 1}),
                    lambda: self.update_state(lambda s: {"x": 2}),
                ):
                    try:
                        change_()
                    except LeaseLost as error:
                        refused.append(type(error).__name__)
                return "done"

        t.script(Writer, call("work", {}), say("Done"))
        Writer("a").submit_messages("Go")
        t.run_until_idle()

        assert refused == ["LeaseLost"] * 2
        assert Writer("a").state == {}
        assert rows(t.rt, Writer("a"), tables.messages, tables.submissions) == [0, 0]

    def test_against_a_running_turn(self, live):
        """50 rounds at once: whoever comes first, nothing of the turn is left after the destruction."""
        model = echo()
        live.stand_in = lambda _: model
        for number in range(50):
            agent = Clerk._bound_to(live, f"r{number}")
            knocks = deque()
            live.knock = knocks.append
            agent.submit_messages("Go", submission_id=f"r{number}")
            barrier = threading.Barrier(2)

            def act(who, agent=agent, number=number, barrier=barrier):
                barrier.wait(10)
                if who:
                    agent.destroy()
                else:
                    claims.run(live, f"r{number}")

            at_once(2, act)
            drain(live, knocks)
            tick.run(live)
            assert rows(live, agent, tables.messages, tables.submissions) == [0, 0]
            assert agent.messages == []
