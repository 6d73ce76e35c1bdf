"""Delivering news: once, for ever until it succeeds, and not to a run that it is not for."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import select

from tests.domain.crowd import Watch
from tests.domain.flows import Desk, Handle, begin, start
from think_celery.domain import outbox
from think_celery.domain.submissions import claims, submissions
from think_celery.ids import WorkflowRef
from think_celery.providers.scripted import FunctionModel, answer
from think_celery.store import outbox as rows
from think_celery.store import tables
from think_celery.testing import ThinkTest


class Draft(BaseModel):
    """Some answer."""

    title: str


def waiting(event: Any, step: Any) -> Any:
    return step.wait_for_event("a", type="news").payload


def store(t: ThinkTest, workflow: Handle, *, run: int = 1, key: str = "k", payload: str = '"hello"') -> str:
    """News for a workflow, stored as a change of ours stores it."""
    found = t.rt.db.transact(
        lambda tx: rows.insert(
            tx, dedupe_key=key, workflow_key=workflow.ref.key, run=run, event_type="news", payload=payload
        )
    )
    assert found is not None
    return found


def row(t: ThinkTest, outbox_id: str) -> Any:
    return t.rt.db.read(lambda tx: rows.get(tx, outbox_id))


class TestDelivery:
    def test_once(self, t: ThinkTest):
        """A18, A20: delivered, emptied, and the workflow goes on; delivering again changes nothing."""
        workflow = begin(t, waiting)
        news = store(t, workflow)

        assert outbox.deliver(t.rt, news).word == "delivered"
        assert outbox.deliver(t.rt, news).word == "ended-before"
        t.run_until_idle()
        assert workflow.output == "hello"
        assert (row(t, news).status, row(t, news).payload, row(t, news).knock_at) == ("delivered", None, None)

    def test_cut_by_celerys_soft_time_limit(self, t: ThinkTest):
        """It goes on upwards, and is no failure of the workflow's: nothing is counted, no distance grows."""

        class SoftTimeLimitExceeded(Exception):
            pass

        def cut(point: str) -> None:
            if point == "outbox:before-delivery":
                raise SoftTimeLimitExceeded

        workflow = begin(t, waiting)
        news = store(t, workflow)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(t.rt, "failpoint", cut)
            with pytest.raises(SoftTimeLimitExceeded):
                outbox.deliver(t.rt, news)

        found = row(t, news)
        assert (found.status, found.attempts, found.last_error) == ("pending", 0, None)
        assert outbox.deliver(t.rt, news).word == "delivered"

    def test_cut_after_a_turn_that_the_agent_wants_to_hear_of(self, t: ThinkTest):
        """The turn has ended and stays so; its line is given back, and the news reaches the workflow by the tick."""

        class SoftTimeLimitExceeded(Exception):
            pass

        heard: list[Any] = []

        class Cut(Desk, name="CutAfterwards"):
            def on_chat_response(self, result: Any) -> None:
                heard.append(result.status)

        workflow = start(
            t.rt, lambda event, step: step.prompt("ask", prompt="?", output=Draft, agent=Cut("cut")).title
        )
        workflow.advance()
        prompt = Cut("cut").list_submissions()[0].submission_id
        t.script(Cut, answer({"title": "T"}))
        with pytest.MonkeyPatch.context() as patch:

            def cut(point: str) -> None:
                if point == "outbox:before-delivery":
                    raise SoftTimeLimitExceeded

            patch.setattr(t.rt, "failpoint", cut)
            outcome = claims.run(t.rt, prompt)
        line = t.rt.db.read(
            lambda tx: tx.execute(
                select(tables.lines.c.process_id).where(tables.lines.c.agent_id == Cut("cut")._ref.id)
            ).scalar()
        )

        assert (outcome.word, outcome.ended, line, heard) == ("completed", True, None, [])
        t.skip("1 minute")
        assert workflow.output == "T"

    def test_the_same_news_is_stored_once(self, t: ThinkTest):
        """Two changes that store one piece of news store it once."""
        workflow = begin(t, waiting)
        store(t, workflow)

        with pytest.raises(AssertionError):
            store(t, workflow)

    def test_it_is_sent_when_it_was_stored(self, t: ThinkTest):
        """A deadline counts from when the news was stored, however long its delivery took."""
        workflow = begin(t, lambda event, step: step.wait_for_event("a", type="news", timeout=10).payload)
        news = store(t, workflow)
        t.clock.advance(timedelta(hours=1))
        outbox.deliver(t.rt, news)
        t.run_until_idle()

        assert workflow.output == "hello"

    @pytest.mark.parametrize("why", ["gone", "ended", "another run", "a later run"])
    def test_news_for_nobody_is_dropped(self, t: ThinkTest, why: str):
        """The workflow is gone, has ended, or is in another run: dropped and emptied, no event."""
        workflow = begin(t, (lambda event, step: "done") if why == "ended" else waiting)
        target = Handle(t.rt, WorkflowRef("Flow", "none")) if why == "gone" else workflow
        news = store(t, target, run={"another run": 2, "a later run": 1}.get(why, 1))
        if why == "a later run":
            t.rt.db.transact(lambda tx: tx.conn.exec_driver_sql("UPDATE think_workflows SET run = 2"))
        outcome = outbox.deliver(t.rt, news)

        assert (outcome.word, outcome.ended) == ("dropped", True)
        assert (row(t, news).status, row(t, news).payload) == ("dropped", None)
        assert workflow.inbox == []
        assert (
            t.rt.db.read(lambda tx: tx.conn.exec_driver_sql("SELECT count(*) FROM think_events").scalar())
            == 0
        )

    def test_unknown_news(self, quick: ThinkTest):
        """A knock for news that is gone says so."""
        assert outbox.deliver(quick.rt, "none").word == "not-found"


class TestRetries:
    def test_a_failure_is_tried_again_until_it_succeeds(self, t: ThinkTest):
        """FR-42: raises twice, then succeeds: delivered once, attempts 3, at 1 s, then 2 s; the error is kept."""
        workflow = begin(t, waiting)
        news = store(t, workflow)
        failures = [ConnectionError("first"), ConnectionError("second \x00")]

        def fails(point: str) -> None:
            if point == "outbox:before-delivery" and failures:
                raise failures.pop(0)

        t.rt.failpoint = fails
        stored = t.clock.now()
        assert outbox.deliver(t.rt, news).word == "failed-delivery"
        assert row(t, news).last_error == "ConnectionError: first"
        assert row(t, news).knock_at == stored + timedelta(seconds=1)
        assert outbox.deliver(t.rt, news).word == "failed-delivery"
        assert row(t, news).knock_at == stored + timedelta(seconds=2)
        for _ in range(4):
            t.skip(1)

        assert workflow.output == "hello"
        assert row(t, news).attempts == 3
        assert len(workflow.inbox) == 1

    def test_the_turn_has_ended_all_the_same(self, t: ThinkTest):
        """Whoever ran a turn delivers its news; where that fails, the turn stays ended, and the tick delivers it."""
        t.use_model(FunctionModel(lambda request: answer({"title": "an answer"})))
        failures = [ConnectionError("once")]

        def fails(point: str) -> None:
            if point == "outbox:before-delivery" and failures:
                raise failures.pop(0)

        t.rt.failpoint = fails
        workflow = begin(t, lambda event, step: step.prompt("ask", prompt="x", output=Draft).title)
        (turn,) = submissions.find(t.rt, None)
        assert (turn.status, workflow.status) == ("completed", "waiting")

        t.skip(1)
        t.skip(1)

        assert workflow.output == "an answer"

    def test_the_distance_grows_to_five_minutes(self, t: ThinkTest):
        """1 s · 2ⁿ, at most 5 min, and for ever."""
        workflow = begin(t, waiting)
        news = store(t, workflow)

        def fails(point: str) -> None:
            raise ConnectionError(point)

        t.rt.failpoint = fails
        waits = []
        for _ in range(12):
            outbox.deliver(t.rt, news)
            waits.append((row(t, news).knock_at - t.clock.now()).total_seconds())

        assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
        assert row(t, news).status == "pending"

    @pytest.mark.parametrize("point", ["outbox:before-delivery", "outbox:delivered"])
    def test_a_crash_in_it(self, t: ThinkTest, point: str):
        """FR-42: killed before or after: delivered once all the same."""
        workflow = begin(t, waiting)
        store(t, workflow)
        t.crash_at(point)
        for _ in range(2):
            t.skip("1 minute")

        assert t.crashes == [point]
        assert workflow.output == "hello"
        assert len(workflow.inbox) == 1

    @pytest.mark.parametrize("watched", [True, False])
    def test_lost_knocks_are_made_up_for(self, t: ThinkTest, watched: bool):
        """The tick knocks 2 s after the news was stored, then at doubling distances.

        A minute at most where nobody would notice that the broker was emptied.
        """
        t.rt.sentinel = Watch(watching=watched)
        workflow = begin(t, waiting)
        news = store(t, workflow)
        heard: list[int] = []
        for second in range(1, 200):
            t.clock.advance(timedelta(seconds=1))
            if outbox.knock_missed(t.rt, 10):
                heard.append(second)
        t.lose_messages()

        assert heard == [2, 4, 8, 16, 32, 64, *([128] if watched else [124, 184])]
        assert outbox.deliver(t.rt, news).word == "delivered"
        assert workflow.status == "queued"
