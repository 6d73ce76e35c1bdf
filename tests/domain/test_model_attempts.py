"""Failed model requests: how often they are made again, when, and what an attempt leaves behind."""

import itertools
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from tests.domain.talk import COMPLETED, ERROR, ask, crash_at_nth, events, kinds, now, row, shape, talker
from tests.providers.server import CUT_OFF, DONE, ModelServer, chunk, error_frame, json_response, text_frames
from think_celery.domain.turns.attempts import LONGEST_PARK_SECONDS
from think_celery.errors import ModelError
from think_celery.protocols import Finish, TextDelta, Usage
from think_celery.providers.openai import OpenAIModel
from think_celery.providers.scripted import FunctionModel, call, fail, say
from think_celery.settings import Settings
from think_celery.testing import think_test


@pytest.fixture
def server():
    with ModelServer() as server:
        yield server


def over_the_wire(t: Any, server: ModelServer) -> Any:
    agent = talker()("a")
    t.use_model(OpenAIModel("m", api_key="sk-test-0123456789", base_url=server.base_url), agent)
    return agent


def refusal(status: int, **headers: str) -> Any:
    return json_response({"error": {"message": f"mock says {status}"}}, status, **headers)


def busy(seconds: float | None = None) -> ModelError:
    return ModelError("busy", retryable=True, status_code=503, retry_after_seconds=seconds)


class TestHowOften:
    @pytest.mark.parametrize(("status", "requests"), [(500, 3), (429, 3), (408, 3), (400, 1), (401, 1)])
    def test_exactly(self, quick, server, status, requests):
        """FR-67: 3 requests where asking again may help, else exactly 1; the provider's words are the error."""
        agent = over_the_wire(quick, server)
        server.script(*[refusal(status)] * 9)

        done = ask(quick, agent)

        assert (done.status, done.error_type, len(server.requests)) == (ERROR, "ModelError", requests)
        assert f"mock says {status}" in done.error
        assert [m.role for m in agent.messages] == ["user"]

    def test_the_setting(self, sqlite_url):
        """`think_model_attempts` is the number of requests, the first one included."""
        with think_test(database_url=sqlite_url, settings=Settings(model_attempts=5)) as t:
            agent = talker()("a")
            model = t.script(agent, *[fail("busy", retryable=True)] * 9)

            assert ask(t, agent).status is ERROR
            assert len(model.requests) == 5

    def test_each_step_has_attempts_of_its_own(self, t):
        """A finished model step clears the count, in memory and in the row."""
        agent = talker(lambda_tool)("a")
        model = t.script(
            agent,
            fail(busy()), fail(busy()), call("lambda_tool"),
            fail(busy()), fail(busy()), call("lambda_tool"),
            fail(busy()), say("ok"),
        )  # fmt: skip

        done = ask(t, agent)

        assert (done.status, len(model.requests)) == (COMPLETED, 8)
        assert row(t.rt, done).model_attempts == 1

    def test_the_count_survives_a_crash(self, t):
        """A worker that dies between two attempts does not give the model further ones."""
        agent = talker()("a")
        model = t.script(agent, *[fail(busy())] * 9)
        crash_at_nth(t, "turn:before-model", 3)

        done = ask(t, agent)

        assert t.crashes == ["turn:before-model"]
        assert (done.status, len(model.requests)) == (ERROR, 3)


def lambda_tool() -> str:
    return "done"


class TestWhen:
    def waits(self, t: Any, *answers: Any) -> list[float]:
        agent = talker()("a")
        times: list[float] = []
        script = iter(answers)

        def respond(request: Any) -> Any:
            times.append(t.clock.elapsed())
            return next(script)

        t.use_model(FunctionModel(respond), agent)
        ask(t, agent)
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    def test_backoff_doubles(self, quick):
        """The first repeat comes after a second at least, the next after two; jitter adds a quarter at most."""
        first, second = self.waits(quick, fail(busy()), fail(busy()), say("ok"))

        assert 1 <= first <= 1.26
        assert 2 <= second <= 2.51

    def test_retry_after_is_a_floor(self, quick):
        """FR-82: never sooner than the provider asks, never sooner than our own backoff."""
        long, short = self.waits(quick, fail(busy(7)), fail(busy(0.1)), say("ok"))

        assert 7 <= long <= 7.1
        assert short >= 2

    @pytest.mark.parametrize("form", ["2", "date", "abc", "past"])
    def test_the_forms_of_the_header(self, quick, server, form):
        """FR-82: seconds and HTTP dates are honoured, what is past or can't be read means our own backoff."""
        shift = {"date": timedelta(seconds=9), "past": timedelta(seconds=-60)}.get(form)
        header = form if shift is None else format_datetime(datetime.now(UTC) + shift, usegmt=True)
        agent = over_the_wire(quick, server)
        server.script(refusal(429, retry_after=header), text_frames("ok"))
        began = quick.clock.elapsed()

        done = ask(quick, agent)

        waited = quick.clock.elapsed() - began
        assert done.status is COMPLETED
        assert {"2": 2, "date": 7}.get(form, 1) <= waited <= {"2": 2.1, "date": 9}.get(form, 1.3)

    def test_a_long_wait_frees_the_worker(self, t):
        """FR-82: beyond 30 s the turn is put back with `not_before`; the next attempt is the second one."""
        agent = talker()("a")
        model = t.script(agent, fail(busy(3600)), fail(busy()), fail(busy()), say("never asked for"))
        began = t.clock.elapsed()

        submission = ask(t, agent)

        parked = row(t.rt, submission)
        assert (submission.status, parked.model_attempts, parked.attempts) == ("pending", 1, 0)
        assert t.clock.elapsed() - began < 1
        assert parked.not_before - t.clock.now() == timedelta(hours=1)
        t.skip("59 minutes")
        assert len(model.requests) == 1
        t.skip("2 minutes")
        assert (now(agent, submission).status, len(model.requests)) == (ERROR, 3)

    def test_the_next_turn_waits_behind_it(self, t):
        """The line keeps its order while its head waits for `not_before`."""
        agent = talker()("a")
        t.script(agent, fail(busy(600)), say("first"), say("second"))

        ask(t, agent, "1")
        ask(t, agent, "2")
        assert [m.text for m in agent.messages] == ["1"]
        t.skip("11 minutes")

        assert [m.text for m in agent.messages] == ["1", "first", "2", "second"]

    def test_an_endless_wish_is_not_granted(self, quick):
        """FR-82: a huge Retry-After is capped; it neither overflows nor parks a turn for ever."""
        agent = talker()("a")
        quick.script(agent, fail(busy(10.0**15)), say("ok"))

        submission = ask(quick, agent)
        quick.skip(timedelta(seconds=LONGEST_PARK_SECONDS + 1))

        assert now(agent, submission).status is COMPLETED

    def test_cancelled_while_it_waits(self, t):
        """A parked turn is aborted at once, and the next one runs."""
        agent = talker()("a")
        t.script(agent, fail(busy(600)), say("second"))
        first = ask(t, agent, "1")

        assert agent.cancel_submission(first.submission_id, "changed my mind")
        second = ask(t, agent, "2")

        assert (now(agent, first).status, second.status) == ("aborted", COMPLETED)


class TestAllOrNothing:
    def cut(self, t: Any, *endings: Any) -> tuple[Any, FunctionModel]:
        """An agent whose model writes half an answer, is stored, and then ends so."""
        script = iter(endings)

        def respond(request: Any) -> Any:
            ending = next(script)
            if isinstance(ending, str):
                yield TextDelta(ending)
                yield Finish("stop", None, Usage())
                return
            yield TextDelta("Half ")
            t.clock.sleep(1.5)
            yield TextDelta("an ans")
            if ending is not None:
                raise ending

        agent = talker()("a")
        model = FunctionModel(respond)
        t.use_model(model, agent)
        return agent, model

    def test_listeners_get_a_reset_and_the_answer_is_the_next_attempts(self, t):
        """An attempt is all or nothing; nothing of the first one is in the answer."""
        agent, model = self.cut(t, busy(), "Whole.")

        done = ask(t, agent)

        assert (shape(done.message()), len(model.requests)) == (["|", "Whole."], 2)
        kinds_seen = kinds(t, agent)
        assert kinds_seen.index("reset") > kinds_seen.index("text-delta")
        assert [m.text for m in model.requests[1].messages] == ["Go"]

    def test_a_failed_attempt_that_parks_leaves_nothing(self, t):
        """What was stored of the failed attempt is removed, so that nobody goes on from it."""
        agent, model = self.cut(t, busy(600), "Whole.")

        submission = ask(t, agent)

        assert agent.get_message(submission.message_id) is None
        t.skip("11 minutes")
        assert [m.text for m in model.requests[1].messages] == ["Go"]
        assert now(agent, submission).message().text == "Whole."

    def test_a_failed_attempt_before_a_crash_leaves_nothing(self, t):
        """The same if the worker dies before the next attempt."""
        agent, model = self.cut(t, busy(), "Whole.")
        crash_at_nth(t, "turn:before-model", 2)

        done = ask(t, agent)

        assert t.crashes == ["turn:before-model"]
        assert [m.text for m in model.requests[1].messages] == ["Go"]
        assert shape(done.message()) == ["|", "Whole."]

    def test_a_failed_attempt_that_ends_the_turn_is_no_answer(self, t):
        """FR-79c: the partial of the last attempt is not stored as an answer."""
        agent, _ = self.cut(t, ModelError("refused"))

        done = ask(t, agent)

        assert (done.status, done.message(), len(agent.messages)) == (ERROR, None, 1)
        assert "Half" not in str([event for _, event in events(t, agent)][-2:])

    def test_steps_before_the_failed_one_are_kept(self, t):
        """All or nothing holds for the model step, not for the turn."""
        agent = talker(lambda_tool)("a")
        t.script(agent, call("lambda_tool"), fail("refused"))

        done = ask(t, agent)

        assert (done.status, shape(done.message())) == (ERROR, ["|", ("lambda_tool", {}, "done")])

    def test_a_stream_without_a_finish(self, quick, server):
        """FR-79: a finish reason or [DONE] ends an answer; neither is a failed attempt."""
        agent = over_the_wire(quick, server)
        server.script(
            [chunk({"content": "Cut"}), CUT_OFF],
            [chunk({"content": "End of file"})],
            [chunk({"content": "Marked"}), DONE],
        )

        done = ask(quick, agent)

        assert (done.status, len(server.requests)) == (COMPLETED, 3)
        assert done.message().text == "Marked"
        assert done.message().metadata["finish_reason"] == "unknown"

    def test_an_error_in_the_stream(self, quick, server):
        """FR-48: an error frame before any content is an error of the turn, without an assistant message."""
        agent = over_the_wire(quick, server)
        server.script(*[[error_frame("overloaded")]] * 3)

        done = ask(quick, agent)

        assert (done.status, len(server.requests), len(agent.messages)) == (ERROR, 3, 1)
        assert "overloaded" in done.error

    def test_a_model_object_that_yields_no_finish(self, quick):
        """Any model's stream that just ends is a failed attempt, never a short answer."""

        class Model:
            name = "own"

            def stream(self, request: Any, signal: Any) -> Any:
                yield TextDelta("Hi")

        agent = talker()("a")
        quick.use_model(Model(), agent)

        done = ask(quick, agent)

        assert (done.status, done.error) == (ERROR, "own ended its answer without a finish")
