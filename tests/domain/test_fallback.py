"""Several models: the next one is asked when one fails for good before anything came of its answer."""

from typing import Any

import pytest

from tests.domain.talk import COMPLETED, ERROR, Running, ask, kinds, now, row, shape, talker
from tests.providers.server import ModelServer, json_response, text_frames
from think_celery.domain.turns.fallback import Lineup, in_order
from think_celery.errors import ModelError, NoModel
from think_celery.providers.openai import OpenAIModel
from think_celery.providers.scripted import ScriptedModel, call, fail, say


def busy(seconds: float | None = None) -> ModelError:
    return ModelError("busy", retryable=True, status_code=503, retry_after_seconds=seconds)


def named(name: str, *answers: Any) -> ScriptedModel:
    return ScriptedModel(*answers, name=name)


def two(t: Any, first: Any, second: Any, **attributes: Any) -> Any:
    """An agent that asks these two models."""
    agent = talker(**attributes)("a")
    t.use_model([first, second], agent)
    return agent


class TestOrder:
    def test_the_first_that_answers(self, t):
        """The second model is not asked while the first one answers; which one did stands with the message."""
        first, second = named("m/1", say("one")), named("m/2", say("two"))
        agent = two(t, first, second)

        done = ask(t, agent)

        assert (done.message().text, done.message().metadata["model"]) == ("one", "m/1")
        assert second.requests == []

    def test_one_that_refuses(self, t):
        """A refusal is for good: the next model gets the very same request."""
        first, second = named("m/1", fail("no such model")), named("m/2", say("two"))
        agent = two(t, first, second)

        done = ask(t, agent)

        assert (done.status, done.message().text, done.message().metadata["model"]) == (
            COMPLETED,
            "two",
            "m/2",
        )
        assert first.requests == second.requests
        assert row(t.rt, done).model_position == 1

    def test_one_that_is_busy_has_its_attempts_first(self, t):
        """FR-67: three requests to the first model, then the next one; nobody asks more often than that."""
        first, second = named("m/1", *[fail(busy())] * 9), named("m/2", fail(busy()), say("two"))
        agent = two(t, first, second)

        done = ask(t, agent)

        assert (done.message().text, len(first.requests), len(second.requests)) == ("two", 3, 2)

    def test_one_that_asks_for_a_long_wait(self, t):
        """FR-82: nobody waits an hour for one model while there is another."""
        first, second = named("m/1", fail(busy(3600))), named("m/2", say("two"))
        agent = two(t, first, second)

        done = ask(t, agent)

        assert (done.status, done.message().text) == (COMPLETED, "two")
        assert row(t.rt, done).not_before is None

    def test_the_last_one_s_error_is_the_turn_s(self, t):
        """When all have failed the turn ends in error."""
        first, second = named("m/1", fail("first fault")), named("m/2", fail("second fault"))
        agent = two(t, first, second)

        done = ask(t, agent)

        assert (done.status, done.error_type, done.message()) == (ERROR, "ModelError", None)
        assert "second fault" in done.error

    def test_the_last_one_may_ask_for_a_wait(self, t):
        """Then the worker is freed, and the turn goes on with that model."""
        first, second = named("m/1", fail("no"), say("never")), named("m/2", fail(busy(60)), say("two"))
        agent = two(t, first, second)

        done = ask(t, agent)
        t.skip(70)

        assert now(agent, done).message().text == "two"
        assert (len(first.requests), len(second.requests)) == (1, 2)

    def test_a_step_that_had_begun_is_not_given_to_another(self, t):
        """Something had been streamed: this failure is the turn's own."""
        first, second = named("m/1", [say("Well"), fail("broken")]), named("m/2", say("two"))
        agent = two(t, first, second)

        done = ask(t, agent)

        assert (done.status, second.requests, kinds(t, agent)[-1]) == (ERROR, [], "done")
        assert "broken" in done.error

    def test_a_later_attempt_that_says_nothing(self, t):
        """The attempt that failed last decides: what came of an earlier one was taken back."""
        first = named("m/1", [say("Well"), fail(busy())], fail("gone"))
        agent = two(t, first, named("m/2", say("two")))

        done = ask(t, agent)

        assert (done.status, done.message().text) == (COMPLETED, "two")
        assert shape(done.message()) == ["|", "two"]

    def test_later_steps_stay_with_it(self, t):
        """The one that had failed is not tried again at each step."""

        def look() -> str:
            return "seen"

        first, second = named("m/1", fail("no")), named("m/2", call("look"), say("two"))
        agent = talker(look)("a")
        t.use_model([first, second], agent)

        done = ask(t, agent)

        assert (done.status, len(first.requests), len(second.requests)) == (COMPLETED, 1, 2)

    def test_the_next_turn_begins_with_the_first(self, t):
        """Each turn has its own order."""
        first, second = named("m/1", fail("no"), say("one")), named("m/2", say("two"))
        agent = two(t, first, second)

        assert [ask(t, agent).message().text for _ in range(2)] == ["two", "one"]

    def test_a_failure_in_the_second_step(self, t):
        """What the first model's tools have done stays; the second model goes on from there."""

        def look() -> str:
            return "seen"

        first, second = named("m/1", call("look"), fail("gone")), named("m/2", say("two"))
        agent = talker(look)("a")
        t.use_model([first, second], agent)

        done = ask(t, agent)

        assert shape(done.message()) == ["|", ("look", {}, "seen"), "|", "two"]
        assert len(second.requests) == 1


class TestNames:
    """Each name is resolved when it is needed."""

    @pytest.fixture
    def rt(self, live: Any) -> Any:
        return live

    def test_a_name_that_is_not_needed(self, live, pool):
        """An unknown name behind a model that answers is not even looked at."""
        running = Running(live, pool, talker(model=[named("m/1", say("one")), "nobody/knows"]))

        assert running.end().status is COMPLETED

    def test_a_name_that_is_needed(self, live, pool):
        """Then the turn says what is wrong with it."""
        running = Running(live, pool, talker(model=[named("m/1", fail("no")), "nobody/knows"]))

        done = running.end()

        assert (done.status, done.error_type) == (ERROR, "NoModel")
        assert "nobody/knows" in done.error

    def test_the_first_one_is_unknown(self, live, pool):
        """A mistake in the names is none of the models' failures: the next one does not hide it."""
        second = named("m/2", say("two"))
        running = Running(live, pool, talker(model=["nobody/knows", second]))

        assert (running.end().error_type, second.requests) == ("NoModel", [])

    def test_get_model_may_return_several(self, live, pool):
        """The method wins over the attribute, for several as for one."""
        second = named("m/2", say("two"))
        agent = talker(get_model=lambda self: (named("m/1", fail("no")), second))

        assert Running(live, pool, agent).end().message().text == "two"

    def test_an_empty_list(self, live, pool):
        """It names nobody, and says so."""
        done = Running(live, pool, talker(get_model=lambda self: [])).end()

        assert done.error_type == "NoModel"

    def test_a_list_that_has_become_shorter(self, live):
        """A deploy may change the list under a turn: a position that is gone means the first."""
        first, second = named("m/1"), named("m/2")

        assert Lineup(live, [first, second], 1).model is second
        assert Lineup(live, [first], 1).model is first
        with pytest.raises(NoModel):
            in_order([])
        assert in_order("openai/x") == ["openai/x"]


@pytest.fixture
def pool():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        yield pool


class TestCrashes:
    @pytest.mark.parametrize("point", ["turn:next-model", "turn:before-model", "turn:streaming"])
    def test_the_failed_one_is_not_asked_again(self, t, point):
        """Which model it has come to is stored: whoever takes over goes on with that one."""
        first, second = named("m/1", fail("no")), named("m/2", say("two"), say("two"))
        agent = two(t, first, second)
        original, passed = t.rt.failpoint, []

        def failpoint(reached: str) -> None:
            passed.append(reached)
            if reached == point and "turn:next-model" in passed and not t.crashes:
                t.crash_at(point)
            original(reached)

        t.rt.failpoint = failpoint

        done = ask(t, agent)

        assert t.crashes == [point]
        assert (done.status, done.message().text) == (COMPLETED, "two")
        assert len(first.requests) == 1
        assert len(second.requests) == (2 if point == "turn:streaming" else 1)

    def test_what_was_failing_is_forgotten(self, t):
        """The next model has all of its attempts, after a crash, too."""
        first, second = named("m/1", *[fail(busy())] * 3), named("m/2", *[fail(busy())] * 2, say("two"))
        agent = two(t, first, second)
        t.crash_at("turn:next-model")

        done = ask(t, agent)

        assert (done.message().text, len(first.requests), len(second.requests)) == ("two", 3, 3)


class TestOverTheWire:
    def test_two_servers(self, quick):
        """A server that is out of credit is left for another one, whose request is whole."""
        with ModelServer() as poor, ModelServer() as rich:
            poor.script(json_response({"error": {"message": "no credit", "code": "insufficient_quota"}}, 402))
            rich.script(text_frames("ok"))
            agent = talker()("a")
            models = [
                OpenAIModel(name, api_key="sk-test-0123456789", base_url=server.base_url)
                for name, server in (("poor", poor), ("rich", rich))
            ]
            quick.use_model(models, agent)

            done = ask(quick, agent)

            assert (done.message().text, done.message().metadata["model"]) == ("ok", "openai/rich")
            assert [len(server.requests) for server in (poor, rich)] == [1, 1]
