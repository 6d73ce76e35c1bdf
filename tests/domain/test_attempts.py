"""Poison ends: what counts as an attempt, what does not, and what happens at the cap."""

from datetime import timedelta

import pytest
from sqlalchemy import update

from tests.domain.crowd import Clerk, change, die, echo, news, prompt, row, said
from think_celery import tool
from think_celery.domain import recovery
from think_celery.domain.submissions import claims
from think_celery.domain.turns import takeover, turns
from think_celery.errors import ModelError
from think_celery.providers.scripted import FunctionModel, call, fail, say
from think_celery.signals import AbortController
from think_celery.store import submissions as submission_rows
from think_celery.store import tables


class Toolbox(Clerk):
    """An agent with a tool that may be repeated."""

    @tool(idempotent=True)
    def add(self, a: int, b: int) -> int:
        """Add."""
        return a + b


def submit(name="s", agent=Clerk):
    agent("a").submit_messages("Hello", submission_id=name)
    return name


def kill(t, *names):
    """Claim, and die at once, with each of these."""
    for name in names:
        claimed = claims.claim(t.rt, name)
        assert isinstance(claimed, turns.Claim), claimed
        die(t.rt)
        recovery.sweep(t.rt)


def counters(t, name="s"):
    stored = row(t.rt, name)
    return stored.attempts, stored.takeovers, stored.model_attempts


class TestDeaths:
    def test_an_attempt_is_counted_before_the_work(self, t):
        """The claim commits it, so a worker that dies with its first breath has counted."""
        t.use_model(echo())
        t.rt.failpoint = lambda point: seen.append((point, counters(t)[0]))
        seen = []

        submit()
        t.run_until_idle()

        assert ("turn:claimed", 1) in seen
        assert ("turn:before-model", 1) in seen

    def test_five_deaths_are_the_end(self, t):
        """FR-53: error ``TooManyAttempts``, the news for the workflow, and the line goes on."""
        model = echo()
        t.use_model(model)
        poison = prompt(t.rt)
        submit("next")
        t.crash_at("turn:before-model", times=5)

        t.run_until_idle()
        t.skip(10)

        assert len(t.crashes) == 5
        assert (row(t.rt, poison).status, row(t.rt, poison).error_type) == ("error", "TooManyAttempts")
        assert "5 times" in row(t.rt, poison).error
        assert [told.submission_id for told in news(t.rt)] == [poison]
        assert row(t.rt, "next").status == "completed"
        assert len(model.requests) == 1

    def test_four_are_not(self, t):
        """The fifth attempt may still succeed."""
        t.use_model(echo())
        submit()
        t.crash_at("turn:before-model", times=4)

        t.run_until_idle()
        t.skip(10)

        assert row(t.rt, "s").status == "completed"

    def test_a_tool_that_kills_its_worker_is_poison(self, t):
        """FR-53: asking for the tool again is no progress; a settled result would be."""
        t.use_model(FunctionModel(lambda _: call("add", {"a": 1, "b": 2})), Toolbox)
        submit(agent=Toolbox)
        t.crash_at("turn:tool-ran", times=9)

        t.run_until_idle()
        t.skip(30)

        assert len(t.crashes) == 5
        assert row(t.rt, "s").error_type == "TooManyAttempts"

    def test_partial_text_takes_its_place(self, t):
        """What it had said by then stays in the transcript, before the next turn."""
        model = FunctionModel(lambda request: [say("Let me add."), call("add", {"a": 1, "b": 2})])
        t.use_model(model, Toolbox)
        submit(agent=Toolbox)
        t.crash_at("turn:tool-marked", times=5)
        t.run_until_idle()
        t.skip(30)

        t.use_model(echo(), Toolbox)
        Toolbox("a").submit_messages("next")
        t.run_until_idle()

        assert row(t.rt, "s").status == "error"
        assert [message.role for message in Toolbox("a").messages] == ["user", "assistant"] * 2
        assert said(Toolbox("a"), "assistant") == ["Let me add.", "re: next"]


class TestOrderlyEnds:
    def test_handing_over_is_no_attempt(self, t):
        """FR-53: many restarts during one turn; each hands over in order and uses nothing up."""
        t.use_model(echo())
        submit()
        for _ in range(8):
            t.rt.stopping.abort("the worker stops")
            assert claims.run(t.rt, "s").word == "handed-over"
            assert counters(t)[0] == 0
            t.rt.stopping = AbortController()

        t.run_until_idle()

        assert row(t.rt, "s").status == "completed"
        assert counters(t)[1] == 9

    def test_it_forgives_the_deaths_before(self, t):
        """Any orderly end of a claim sets attempts to 0."""
        t.use_model(echo())
        submit()
        kill(t, *["s"] * 4)
        before = counters(t)[0]
        t.rt.stopping.abort("the worker stops")

        claims.run(t.rt, "s")

        assert (before, counters(t)[0]) == (4, 0)

    def test_progress_forgives_them_too(self, t):
        """Only attempts without progress count; failed requests of the step before, neither."""
        submit()
        kill(t, *["s"] * 4)
        change(t.rt, update(tables.submissions).values(model_attempts=2))

        t.rt.db.transact(lambda tx: submission_rows.progress(tx, "s"))
        progressed = counters(t)
        kill(t, *["s"] * 4)

        assert progressed[::2] == (1, 0)
        assert claims.claim(t.rt, "s").error_type == "TooManyAttempts"

    def test_claims_without_end_end_all_the_same(self, t):
        """``takeovers`` only grows; a row that goes round in circles ends at 100."""
        t.use_model(echo())
        submit()
        change(t.rt, update(tables.submissions).values(takeovers=takeover.MAX_TAKEOVERS - 1))
        t.rt.stopping.abort("the worker stops")

        last = claims.run(t.rt, "s").word
        ended = claims.run(t.rt, "s")

        assert (last, ended.error_type) == ("handed-over", "TooManyAttempts")
        assert "100 times" in row(t.rt, "s").error

    def test_waiting_for_a_provider_frees_the_worker(self, t):
        """A wait longer than 30 s is ``not_before``: no lease, no attempt, and the turn goes on then."""
        busy = ModelError("busy", retryable=True, retry_after_seconds=40)
        t.script(Clerk, fail(busy), say("Hi"))
        submit()
        submit("next")

        t.run_until_idle()
        waiting = row(t.rt, "s")
        t.skip(39)
        early = str(row(t.rt, "s").status)
        t.skip(3)

        assert (waiting.status, waiting.attempts, waiting.model_attempts) == ("pending", 0, 1)
        assert waiting.knock_at == waiting.not_before == waiting.created_at + timedelta(seconds=40)
        assert (early, row(t.rt, "s").status) == ("pending", "completed")

    def test_failed_requests_outlive_the_wait_and_the_worker(self, t):
        """Three waits are three failed requests, whoever made them, and then the turn ends."""
        busy = ModelError("busy", retryable=True, retry_after_seconds=40)
        t.use_model(FunctionModel(lambda _: fail(busy)))
        submit()
        seen = []
        for _ in range(2):
            t.run_until_idle()
            seen.append(counters(t)[2])
            t.clock.advance(timedelta(seconds=41))
            kill(t, "s")
        t.skip(3)

        assert seen == [1, 2]
        assert row(t.rt, "s").error_type == "ModelError"

    @pytest.mark.parametrize("end", ["completed", "aborted"])
    def test_what_has_ended_is_not_claimed(self, t, end):
        """No claim, no attempt, no message."""
        t.use_model(echo())
        submit()
        if end == "completed":
            t.run_until_idle()
        else:
            Clerk("a").cancel_submission("s")
        before = row(t.rt, "s")

        assert claims.run(t.rt, "s").word == "ended-before"
        assert row(t.rt, "s") == before
