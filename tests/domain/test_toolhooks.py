"""`before_tool_call` and `after_tool_call`: what an agent may decide about a call, and what it is told of it."""

from typing import Any

import pytest

from tests.domain.talk import COMPLETED, ask, ask_structured, calls_of, shape, talker
from tests.domain.till import Till, only
from tests.providers import transcripts
from think_celery.errors import InvalidValue
from think_celery.hooks.turns import ToolCallContext, ToolCallDecision, ToolResultContext
from think_celery.providers.scripted import answer, call, say
from think_celery.tools import tool


class Watched:
    """An agent with a tool, whose hooks are given, and what was told and done in what order."""

    def __init__(self, decide: Any = None, *, after: Any = None, **options: Any) -> None:
        self.log: list[Any] = []
        self.told: list[ToolCallContext] = []
        self.results: list[ToolResultContext] = []

        @tool(**options)
        def add(a: int, b: int = 1) -> int:
            self.log.append(("run", a, b))
            return a + b

        def before_tool_call(agent: Any, ctx: ToolCallContext) -> Any:
            self.log.append(("before", ctx.input.get("a")))
            self.told.append(ctx)
            return decide(ctx) if decide else None

        def after_tool_call(agent: Any, ctx: ToolResultContext) -> None:
            self.log.append(("after", ctx.input.get("a")))
            self.results.append(ctx)
            if after:
                after(ctx)

        self.agent = talker(add, before_tool_call=before_tool_call, after_tool_call=after_tool_call)("a")


class TestDecisions:
    """B23: what `before_tool_call` answers."""

    def test_nothing_lets_it_run(self, t):
        """B23: it is told of the call as it would run, and then of its result, each once and in this order."""
        watched = Watched()
        t.script(watched.agent, call("add", {"a": 1}), say("Done."))

        done = ask(t, watched.agent)

        (told,), (result,) = watched.told, watched.results
        assert watched.log == [("before", 1), ("run", 1, 1), ("after", 1)]
        assert (told.tool_name, told.input, told.step) == ("add", {"a": 1}, 0)
        assert (told.submission_id, told.message_id) == (done.submission_id, done.message_id)
        assert told.tool_call_id == calls_of(done.message())[0].tool_call_id
        assert (result.output, result.error, result.action, result.succeeded) == (2, None, "allow", True)
        assert result.idempotency_key == told.idempotency_key
        assert result.seconds == 0

    def test_other_arguments_are_stored_before_the_call(self, t):
        """B23: what runs is what is stored, and it is checked like the model's own arguments."""
        watched = Watched(lambda ctx: ToolCallDecision.allow({**ctx.input, "a": 10}))
        model = t.script(watched.agent, call("add", {"a": 1}), say("Done."))
        seen = []

        def failpoint(point: str) -> None:
            if point == "turn:tool-marked":
                seen.append(calls_of(watched.agent.messages[-1])[0].input)

        t.rt.failpoint = failpoint
        done = ask(t, watched.agent)

        assert seen == [{"a": 10}]
        assert shape(done.message())[1] == ("add", {"a": 10}, 11)
        assert watched.results[0].input == {"a": 10}
        transcripts.check(model.requests)

    def test_other_arguments_that_do_not_fit(self, t):
        """The model is told, as of its own unfit ones; nothing runs."""
        watched = Watched(lambda ctx: ToolCallDecision.allow({"a": "x"}))
        t.script(watched.agent, call("add", {"a": 1}), say("Done."))

        done = ask(t, watched.agent)

        assert "a:" in calls_of(done.message())[0].error_text
        assert watched.log == [("before", 1), ("after", "x")]

    def test_a_blocked_call(self, t):
        """B23: the tool does not run; the model is told the reason, and goes on."""
        watched = Watched(lambda ctx: ToolCallDecision.block("not on Sundays"))
        model = t.script(watched.agent, call("add", {"a": 1}), say("Sorry."))

        done = ask(t, watched.agent)

        assert (done.status, shape(done.message())[1]) == (COMPLETED, ("add", {"a": 1}, "not on Sundays"))
        assert watched.log == [("before", 1), ("after", 1)]
        assert (watched.results[0].action, watched.results[0].error) == ("block", "not on Sundays")
        assert calls_of(done.message())[0].started is False
        transcripts.check(model.requests)

    def test_a_substitute(self, t):
        """B23: the hook's own output is the result; the tool does not run."""
        watched = Watched(lambda ctx: ToolCallDecision.substitute({"from": "a cache"}))
        t.script(watched.agent, call("add", {"a": 1}), say("Done."))

        done = ask(t, watched.agent)

        assert shape(done.message())[1] == ("add", {"a": 1}, {"from": "a cache"})
        assert watched.log == [("before", 1), ("after", 1)]
        assert watched.results[0].action == "substitute"

    @pytest.mark.parametrize(
        ("decide", "error_type"),
        [
            (lambda ctx: 1 / 0, "ZeroDivisionError"),
            (lambda ctx: "yes", "InvalidValue"),
            (lambda ctx: False, "InvalidValue"),
            (lambda ctx: {"action": "block"}, "InvalidValue"),
            (lambda ctx: (yield), "InvalidValue"),
            (lambda ctx: ToolCallDecision, "InvalidValue"),
            (lambda ctx: ToolCallDecision(action="deny"), "InvalidValue"),
            (lambda ctx: ToolCallDecision.substitute(object()), "InvalidToolResult"),
        ],
    )
    def test_a_hook_that_fails_ends_the_turn(self, t, decide, error_type):
        """A decision that can't be had is none: the turn ends in error, and no tool runs."""
        watched = Watched(decide)
        t.script(watched.agent, call("add", {"a": 1}), say("Done."))

        done = ask(t, watched.agent)

        assert (done.status, done.error_type) == ("error", error_type)
        assert error_type != "InvalidToolResult" or "The result of the tool add, an object, has" in done.error
        assert watched.log == [("before", 1)]

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            ({"action": "deny"}, r"action='deny'.*allow, block and substitute"),
            ({"action": None}, "is no decision"),
            ({"action": ["allow"]}, "is no decision"),
            ({"action": "allow", "input": "a=1"}, "input is a str"),
            ({"action": "block", "input": {}}, "only a call that is allowed"),
            ({"action": "block", "reason": 3}, "reason is an int"),
        ],
    )
    def test_what_is_no_decision_is_refused_where_it_is_written(self, wrong, says):
        """No unknown action can let a tool run."""
        with pytest.raises(InvalidValue, match=says):
            ToolCallDecision(**wrong)

    def test_calls_that_cannot_be_made_are_not_asked_about(self, t):
        """Unknown tools and unfit arguments are answered without the hook."""
        watched = Watched()
        t.script(watched.agent, [call("sub"), call("add", {"a": "x"})], say("Sorry."))

        ask(t, watched.agent)

        assert watched.log == []

    def test_several_calls(self, t):
        """All are asked about in the order of the calls before any runs, and told of when all have run."""
        watched = Watched(lambda ctx: ToolCallDecision.block("no") if ctx.input["a"] == 2 else None)
        t.script(watched.agent, [call("add", {"a": n}) for n in (1, 2, 3)], say("Done."))

        ask(t, watched.agent)

        assert [what for what, *_ in watched.log] == ["before"] * 3 + ["run"] * 2 + ["after"] * 3
        assert [result.input["a"] for result in watched.results] == [1, 2, 3]

    def test_a_reaction_that_fails_changes_nothing(self, t, caplog):
        """`after_tool_call` is told; what it raises is logged."""
        watched = Watched(after=lambda ctx: 1 / 0)
        t.script(watched.agent, call("add", {"a": 1}), say("Done."))

        done = ask(t, watched.agent)

        assert (done.status, shape(done.message())[1]) == (COMPLETED, ("add", {"a": 1}, 2))
        assert "after_tool_call of submission" in caplog.text

    def test_a_tool_that_fails(self, t):
        """`after_tool_call` gets the error that the model gets."""
        watched = Watched()

        @tool
        def boom() -> None:
            raise RuntimeError("boom")

        type(watched.agent).get_tools = lambda self: (boom,)
        t.script(watched.agent, call("boom"), say("Oh."))

        ask(t, watched.agent)

        (result,) = watched.results
        assert (result.succeeded, result.error, result.output) == (False, "boom", None)


class TestApprovals:
    def agent(self, till: Till, decide: Any) -> Any:
        """An agent with a till, and what its hooks were told."""
        log: list[Any] = []

        def before_tool_call(agent: Any, ctx: ToolCallContext) -> Any:
            log.append(("before", ctx.input))
            return decide(ctx)

        def after_tool_call(agent: Any, ctx: ToolResultContext) -> None:
            log.append(("after", ctx.output))

        agent = till.agent(before_tool_call=before_tool_call, after_tool_call=after_tool_call)
        return agent, log

    def test_what_the_hook_decided_is_what_is_approved(self, t):
        """The hook comes first, once: somebody is asked about the arguments that it left, and just those run."""
        till = Till()
        agent, log = self.agent(till, lambda ctx: ToolCallDecision.allow({"euros": 7}))
        t.script(agent, call("pay", {"euros": 5}), say("Paid."))
        ask(t, agent)
        assert log == [("before", {"euros": 5})]
        assert only(agent).input == {"euros": 7}

        agent.approve_tool_call(only(agent).tool_call_id)
        t.run_until_idle()

        assert till.paid == [7]
        assert log == [("before", {"euros": 5}), ("after", "paid 7 to Ann")]

    def test_nobody_is_asked_about_a_blocked_call(self, t):
        """A call that does not run needs no approval; nor does one in whose place the hook answered."""
        till = Till()
        decisions = iter([ToolCallDecision.block("no"), ToolCallDecision.substitute("paid already")])
        agent, _ = self.agent(till, lambda ctx: next(decisions))
        t.script(agent, [call("pay", {"euros": 1}), call("pay", {"euros": 2})], say("Done."))

        done = ask(t, agent)

        assert not agent.has_pending_interaction
        assert [shape(done.message())[1][2], shape(done.message())[2][2]] == ["no", "paid already"]

    def test_a_structured_turn(self, t):
        """There the hook may answer what would have to wait."""
        till = Till()
        agent, _ = self.agent(till, lambda ctx: ToolCallDecision.substitute("home"))
        t.script(agent, call("locate"), answer({"label": "x"}))

        done = ask_structured(t, agent)

        assert calls_of(done.message())[0].output == "home"
