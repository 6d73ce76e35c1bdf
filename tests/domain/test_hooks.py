"""The hooks of a turn: their order, what they may decide, and that reactions change nothing. (B23)"""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.domain.flows import worker
from tests.domain.talk import (
    ABORTED,
    COMPLETED,
    ERROR,
    Running,
    ask,
    ask_structured,
    calls_of,
    crash_at_nth,
    row,
    shape,
    talker,
)
from think_celery import (
    ChatAgent,
    ForcedTool,
    StepConfig,
    ToolCallDecision,
    TurnConfig,
    has_tool_call,
    step_count_is,
    tool,
)
from think_celery.agents.think import Think
from think_celery.domain.submissions import claims
from think_celery.errors import AsyncNotSupported, InvalidValue
from think_celery.messages import user
from think_celery.protocols import Finish, TextDelta, Usage
from think_celery.providers.scripted import FunctionModel, answer, call, fail, say
from think_celery.testing import ThinkTest

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "hooks.md"
HOOKS = sorted({hook for base in Think.__mro__ for hook in vars(base).get("_hooks", ())})


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def mul(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def recorder(calls: list[str], **attributes: Any) -> type[Think]:
    """An agent class that notes each call of a hook."""

    class Recorder(Think, name="Recorder"):
        def get_tools(self):
            calls.append("get_tools")
            return [add]

        def get_model(self):
            calls.append("get_model")

        def get_system_prompt(self):
            calls.append("get_system_prompt")

        def on_submission_status(self, change):
            calls.append(f"on_submission_status {change.status}")

    def note(hook):
        def method(self, told):
            step = getattr(told, "step", None)
            calls.append(hook if step is None else f"{hook} {step}")

        return method

    for hook in {name for name, _ in documented()[0]} - vars(Recorder).keys():
        setattr(Recorder, hook, note(hook))
    for name, value in attributes.items():
        setattr(Recorder, name, value)
    return Recorder


def documented() -> list[list[tuple[str, str]]]:
    """The hooks of the page's two tables, and what stands beside each name."""
    rows = r"^\| `(\w+)`( [\w]+)? \| (?:decides|reacts) \|"
    tables = [re.findall(rows, part, re.MULTILINE) for part in PAGE.read_text().split("\n\n")]
    return [table for table in tables if table]


def once(calls: list[str]) -> list[str]:
    """The calls without those that repeat the one before."""
    return [each for before, each in zip(["", *calls], calls, strict=False) if each != before]


class TestOrder:
    def test_it_is_that_of_the_page(self, t: ThinkTest) -> None:
        """B23: a turn with one tool call calls its hooks in the order of the reference page's table."""
        told, calls = [f"{name}{rest}" for name, rest in documented()[0]], []
        agent = recorder(calls)
        # a stand-in needs no name, so the model is not asked for in a test
        t.script(agent, call("add", {"a": 1, "b": 2}), say("3"))

        done = ask(t, agent("a"))

        assert done.status == COMPLETED
        assert once(calls) == [each for each in told if each != "get_model"]
        assert len(told) == 16

    def test_of_a_turn_that_goes_wrong(self, t: ThinkTest) -> None:
        """B23: so does one that begins its agent, is interrupted, and fails: the page's second table."""
        told, calls = [f"{name}{rest}" for name, rest in documented()[1]], []

        def on_start(self: Any) -> None:
            calls.append("on_start")
            self.set_state({"begun": True})

        agent = recorder(
            calls,
            on_start=on_start,
            on_state_changed=lambda self, state, source: calls.append("on_state_changed"),
            on_chat_recovery=lambda self, ctx: calls.append("on_chat_recovery"),
            on_chat_error=lambda self, error, ctx: calls.append("on_chat_error"),
        )
        t.script(agent, call("add", {"a": 1, "b": 2}), fail("no such model"))
        crash_at_nth(t, "turn:before-model", 2)

        done = ask(t, agent("a"))

        assert (done.status, t.crashes) == (ERROR, ["turn:before-model"])
        assert once(calls) == [each for each in told if each != "get_model"]
        assert len(told) == 23

    def test_the_model_is_asked_for_after_the_tools(self, sqlite_url: str) -> None:
        """Outside tests `get_model` stands between the tools and the system prompt."""
        calls: list[str] = []
        model = FunctionModel(lambda request: say("Hi"))
        agent = recorder(calls, get_model=lambda self: calls.append("get_model") or model)
        with worker(sqlite_url) as rt:
            claims.run(rt, agent._bound_to(rt, "a").submit_messages("Go").submission_id)

        asked = [each for each in calls if each.startswith("get_")]
        assert asked == ["get_tools", "get_model", "get_system_prompt"]

    def test_several_calls_of_one_step(self, quick: ThinkTest) -> None:
        """All are asked about before any is made, and told of in their order when all have ended."""
        seen: list[Any] = []

        def slow(n: int) -> int:
            """Run."""
            seen.append(("ran", n))
            return n

        agent = talker(
            slow,
            before_tool_call=lambda self, ctx: seen.append(("before", ctx.input["n"])),
            after_tool_call=lambda self, ctx: seen.append(("after", ctx.output)),
        )("a")
        quick.script(agent, [call("slow", {"n": 1}), call("slow", {"n": 2})], say("Done"))

        ask(quick, agent)

        assert seen == [("before", 1), ("before", 2), ("ran", 1), ("ran", 2), ("after", 1), ("after", 2)]

    def test_after_a_crash_the_turn_begins_again(self, t: ThinkTest) -> None:
        """Another worker asks the hooks of the turn again; a step that is stored is not asked about again."""
        calls: list[str] = []
        agent = recorder(calls)
        t.script(agent, call("add", {"a": 1, "b": 2}), say("3"))
        crash_at_nth(t, "turn:before-model", 2)

        done = ask(t, agent("a"))

        assert (done.status, t.crashes) == (COMPLETED, ["turn:before-model"])
        assert calls.count("before_turn") == 2
        assert calls.count("before_step 0") == 1
        assert calls.count("before_step 1") == 2
        assert calls.count("before_tool_call 0") == 1
        assert calls.count("on_chat_response") == 1

    @pytest.mark.parametrize("hook", HOOKS)
    def test_async_ones_are_refused(self, hook: str) -> None:
        """At the class's definition, naming the hook and the remedy."""

        async def late(self: Any, *told: Any) -> None: ...

        with pytest.raises(AsyncNotSupported, match=rf"Late\.{hook}.*async_to_sync"):
            type("Late", (ChatAgent if hook == "on_chat_message" else Think,), {hook: late})

    def test_each_is_told_of(self) -> None:
        """A hook that is added is documented."""
        pages = "".join(page.read_text() for page in PAGE.parents[1].rglob("*.md"))

        assert [hook for hook in HOOKS if f"`{hook}" not in pages] == []


class TestBeforeTurn:
    def test_everything_that_it_may_decide(self, t: ThinkTest) -> None:
        """B23: prompt, messages, tools, choice, limits and options of each request; nothing of it is stored."""
        config = TurnConfig(
            system="Be exact.",
            messages=[user("Something else")],
            tools=[mul],
            active_tools=["mul"],
            tool_choice="required",
            max_steps=1,
            temperature=0.2,
            max_output_tokens=50,
            headers={"x-tenant": "7"},
            provider_options={"openai": {"seed": 1}},
        )
        agent = talker(add, before_turn=lambda self, ctx: config)("a")
        model = t.script(agent, call("mul", {"a": 2, "b": 3}))

        done = ask(t, agent, "Go")

        (request,) = model.requests
        assert (request.system, request.messages[0].text) == ("Be exact.", "Something else")
        assert ([spec.name for spec in request.tools], request.tool_choice) == (["mul"], "required")
        assert (request.temperature, request.max_output_tokens) == (0.2, 50)
        assert (request.headers, request.provider_options) == ({"x-tenant": "7"}, {"openai": {"seed": 1}})
        assert done.status == COMPLETED
        assert shape(done.message()) == ["|", ("mul", {"a": 2, "b": 3}, 6)]
        assert agent.messages[0].text == "Go"

    def test_what_it_is_told(self, quick: ThinkTest) -> None:
        """What the turn would do without it, and which turn it is."""
        told: list[Any] = []
        agent = talker(add, before_turn=lambda self, ctx: told.append(ctx), max_steps=4)("a")
        quick.script(agent, say("Hi"))

        done = ask(quick, agent, "Go", metadata={"tenant": 7})

        (ctx,) = told
        assert (ctx.submission_id, ctx.request_id) == (done.submission_id, done.submission_id)
        assert (ctx.message_id, ctx.kind, ctx.continuation, ctx.attempt) == (
            done.message_id,
            "submit",
            False,
            1,
        )
        assert (ctx.metadata, ctx.system, ctx.max_steps) == ({"tenant": 7}, "Be brief.", 4)
        assert ([m.text for m in ctx.messages], [tool.name for tool in ctx.tools]) == (["Go"], ["add"])
        assert (ctx.final_answer, ctx.signal.aborted) == (None, False)

    def test_another_model(self, quick: ThinkTest) -> None:
        """The model that it names is asked; a name in a test is the stand-in."""
        own = FunctionModel(lambda request: say("Own"))
        agent = talker(before_turn=lambda self, ctx: TurnConfig(model=own))("a")
        named = type("Named", (Think,), {"before_turn": lambda self, ctx: TurnConfig(model="openai/x")})("a")
        quick.script(agent, say("never asked for"))
        quick.script(named, say("Stand-in"))

        assert ask(quick, agent).message().text == "Own"
        assert ask(quick, named).message().text == "Stand-in"

    @pytest.mark.parametrize(
        ("condition", "steps"), [(step_count_is(2), 2), (has_tool_call("mul"), 3), ([], 4)]
    )
    def test_conditions_to_stop(self, quick: ThinkTest, condition: Any, steps: int) -> None:
        """The turn ends, complete, after the step for which one holds."""
        agent = talker(add, mul, before_turn=lambda self, ctx: TurnConfig(stop_when=condition))("a")
        one = {"a": 1, "b": 1}
        model = quick.script(agent, call("add", one), call("add", one), call("mul", one), say("End"))

        done = ask(quick, agent)

        assert (done.status, len(model.requests)) == (COMPLETED, steps)

    def test_conditions_know_the_steps_of_a_dead_worker(self, t: ThinkTest) -> None:
        """What was made before a crash counts, and is told of."""
        seen: list[Any] = []

        def condition(steps: Any) -> bool:
            seen.append([[part.tool_name for part in step.tool_calls] for step in steps])
            return len(steps) == 2

        agent = talker(add, before_turn=lambda self, ctx: TurnConfig(stop_when=condition))("a")
        model = t.script(agent, *[call("add", {"a": 1, "b": 1})] * 3)
        crash_at_nth(t, "turn:before-model", 2)

        assert ask(t, agent).status == COMPLETED
        assert (len(model.requests), seen) == (2, [[["add"]], [["add"]], [["add"], ["add"]]])

    @pytest.mark.parametrize(
        ("answer_", "says"),
        [
            ({"max_steps": 3}, "returned a dict. Return a TurnConfig"),
            (TurnConfig(active_tools=["nope"]), r"before_turn named the tool 'nope'.*There are: add"),
            (TurnConfig(tool_choice=ForcedTool(name="nope")), "named the tool 'nope'"),
        ],
    )
    def test_what_can_not_be_done(self, quick: ThinkTest, answer_: Any, says: str) -> None:
        """The turn ends in an error that names the hook and the remedy."""
        agent = talker(add, before_turn=lambda self, ctx: answer_)("a")
        model = quick.script(agent, say("never asked for"))

        done = ask(quick, agent)

        assert (done.status, done.error_type) == (ERROR, InvalidValue.__name__)
        assert re.search(says, done.error)
        assert model.requests == []

    @pytest.mark.parametrize(
        "wrong",
        [
            {"max_steps": 0},
            {"tool_choice": "x"},
            {"active_tools": "add"},
            {"active_tools": 3},
            {"temperature": "warm"},
            {"max_output_tokens": 1.5},
            {"headers": []},
            {"provider_options": {1: 2}},
            {"stop_when": [3]},
            {"messages": "Hello"},
            {"messages": [{"role": "user"}]},
            {"system": 3},
            {"tools": 3},
            {"stop_when": 3},
        ],
    )
    def test_values_are_checked_where_they_are_written(self, wrong: dict[str, Any]) -> None:
        """The error comes at the line that made the value."""
        with pytest.raises(InvalidValue, match=next(iter(wrong))):
            TurnConfig(**wrong)


class TestStructuredTurns:
    @pytest.mark.parametrize("choice", ["auto", "none"])
    def test_a15_a_tool_choice_of_ones_own_stands(self, t: ThinkTest, choice: Any) -> None:
        """A15: the choice that `before_turn` names is sent, and a turn without the answer fails."""
        agent = talker(before_turn=lambda self, ctx: TurnConfig(tool_choice=choice))("a")
        model = t.script(agent, say("Just text"))

        done = ask_structured(t, agent)

        assert model.requests[0].tool_choice == choice
        assert (done.status, done.error_type) == (ERROR, "NoFinalAnswer")

    def test_a_tool_that_is_not_offered_is_not_forced(self, quick: ThinkTest) -> None:
        """On the last step only the answer is offered, whatever was chosen for the turn."""
        forced = ForcedTool(name="add")
        agent = talker(add, before_turn=lambda self, ctx: TurnConfig(tool_choice=forced))("a")
        model = quick.script(agent, call("add", {"a": 1, "b": 1}), answer({"label": "x"}))

        done = ask_structured(quick, agent, max_steps=2)

        assert done.status == COMPLETED
        assert [request.tool_choice for request in model.requests] == [
            forced,
            ForcedTool(name="think_final_answer"),
        ]

    def test_it_is_told_of_the_final_answer(self, quick: ThinkTest) -> None:
        """And a further tool of that name lets the answer evade it."""
        told: list[Any] = []

        def think_final_answer() -> str:
            """Not the answer."""
            return ""

        def before_turn(self: Any, ctx: Any) -> TurnConfig:
            told.append(ctx.final_answer.name)
            return TurnConfig(tools=[think_final_answer])

        agent = talker(before_turn=before_turn)("a")
        model = quick.script(agent, call("think_final_answer_1", {"label": "x"}))

        done = ask_structured(quick, agent)

        assert (done.status, told) == (COMPLETED, ["think_final_answer"])
        assert [spec.name for spec in model.requests[0].tools] == [
            "think_final_answer",
            "think_final_answer_1",
        ]


class TestBeforeStep:
    def test_it_changes_one_request(self, quick: ThinkTest) -> None:
        """B23: and no other."""

        def before_step(self: Any, ctx: Any) -> StepConfig | None:
            if ctx.step == 1:
                return StepConfig(
                    system="Now sum up.", active_tools=[], temperature=0.0, messages=[user("Sum up")]
                )
            return None

        agent = talker(add, before_step=before_step)("a")
        model = quick.script(agent, call("add", {"a": 1, "b": 2}), say("3"))

        ask(quick, agent)

        first, second = model.requests
        assert (first.system, len(first.tools), first.temperature) == ("Be brief.", 1, None)
        assert (second.system, second.tools, second.tool_choice) == ("Now sum up.", [], "auto")
        assert ([m.text for m in second.messages], second.temperature) == (["Sum up"], 0.0)

    def test_a_tool_that_the_step_was_not_offered(self, quick: ThinkTest) -> None:
        """A call of it is answered with an error; it does not run."""
        agent = talker(add, mul, before_step=lambda self, ctx: StepConfig(active_tools=["mul"]))("a")
        quick.script(agent, call("add", {"a": 1, "b": 2}), say("Hm"))

        done = ask(quick, agent)

        (made,) = calls_of(done.message())
        assert made.error_text == "There is no tool 'add'. Available tools: mul."

    def test_what_it_is_told(self, quick: ThinkTest) -> None:
        """The request that would be made, and the steps before it."""
        told: list[Any] = []
        agent = talker(add, before_step=lambda self, ctx: told.append(ctx))("a")
        quick.script(agent, call("add", {"a": 1, "b": 2}), say("3"))

        ask(quick, agent)

        assert [(ctx.step, len(ctx.steps), ctx.tool_choice) for ctx in told] == [
            (0, 0, "auto"),
            (1, 1, "auto"),
        ]
        (before,) = told[1].steps
        assert (before.finish_reason, before.tool_calls[0].output) == ("tool-calls", 3)
        assert told[1].messages[-1].role == "assistant"

    @pytest.mark.parametrize("config", [StepConfig(active_tools=["nope"]), TurnConfig(max_steps=1), 3])
    def test_unfit_answers(self, quick: ThinkTest, config: Any) -> None:
        """A tool that does not exist, or no StepConfig: the turn ends in error."""
        agent = talker(add, before_step=lambda self, ctx: config)("a")
        quick.script(agent, say("Hi"))

        done = ask(quick, agent)

        assert (done.status, "Talker.before_step" in done.error) == (ERROR, True)


class TestToolCalls:
    def test_blocked_substituted_changed(self, t: ThinkTest) -> None:
        """B23: the model gets the reason, the output, or the result on the other arguments."""
        ran: list[Any] = []

        def look(n: int) -> int:
            """Look."""
            ran.append(n)
            return n

        def before_tool_call(self: Any, ctx: Any) -> ToolCallDecision | None:
            return {
                1: ToolCallDecision.block("Not today."),
                2: ToolCallDecision.substitute({"cached": True}),
                3: ToolCallDecision.allow({"n": 30}),
            }.get(ctx.input["n"])

        after: list[Any] = []
        agent = talker(
            look, before_tool_call=before_tool_call, after_tool_call=lambda self, ctx: after.append(ctx)
        )("a")
        t.script(agent, [call("look", {"n": n}) for n in (1, 2, 3, 4)], say("Done"))

        done = ask(t, agent)

        assert shape(done.message())[1:5] == [
            ("look", {"n": 1}, "Not today."),
            ("look", {"n": 2}, {"cached": True}),
            ("look", {"n": 30}, 30),
            ("look", {"n": 4}, 4),
        ]
        assert ran == [30, 4]
        assert [(ctx.action, ctx.output, ctx.error, ctx.succeeded) for ctx in after] == [
            ("block", None, "Not today.", False),
            ("substitute", {"cached": True}, None, True),
            ("allow", 30, None, True),
            ("allow", 4, None, True),
        ]

    def test_one_that_raises_ends_the_turn(self, quick: ThinkTest) -> None:
        """Nothing runs, and the call stays without a result."""
        ran: list[int] = []

        def look() -> None:
            """Look."""
            ran.append(1)

        def before_tool_call(self: Any, ctx: Any) -> None:
            raise PermissionError("no")

        agent = talker(look, before_tool_call=before_tool_call)("a")
        quick.script(agent, call("look"), say("never asked for"))

        done = ask(quick, agent)

        assert (done.status, done.error_type, ran) == (ERROR, "PermissionError", [])


class TestExceptions:
    @pytest.mark.parametrize("hook", ["get_tools", "get_system_prompt", "before_turn", "before_step"])
    def test_of_those_that_decide(self, t: ThinkTest, hook: str) -> None:
        """They end the turn in error, before the model is asked; the line is free again."""

        def raises(self: Any, *told: Any) -> None:
            raise LookupError("no such tenant")

        agent = talker(**{hook: raises})("a")
        model = t.script(agent, say("never asked for"))

        done = ask(t, agent)

        assert (done.status, done.error_type, done.error) == (ERROR, "LookupError", "no such tenant")
        assert model.requests == []

    def test_of_the_one_that_names_the_model(self, live: Any) -> None:
        """The same of `get_model`, in a worker: in a test a stand-in answers, and it is not asked."""

        def raises(self: Any) -> None:
            raise LookupError("no such tenant")

        bound = talker(get_model=raises)._bound_to(live, "a")
        first, second = bound.submit_messages("One"), bound.submit_messages("Two")

        words = [claims.run(live, each.submission_id).word for each in (first, second)]

        done = bound.inspect_submission(first.submission_id)
        assert words == ["error", "error"]
        assert (done.status, done.error_type, done.error) == (ERROR, "LookupError", "no such tenant")

    @pytest.mark.parametrize("error", [ValueError("secret"), SystemExit(3)], ids=["Exception", "SystemExit"])
    @pytest.mark.parametrize(
        "hook",
        [
            "on_submission_status",
            "on_chunk",
            "after_tool_call",
            "on_step_finish",
            "on_chat_response",
        ],
    )
    def test_of_those_that_react(
        self, t: ThinkTest, caplog: pytest.LogCaptureFixture, hook: str, error: BaseException
    ) -> None:
        """They are logged with the turn's id and without their text, and change nothing."""

        def raises(self: Any, *told: Any) -> None:
            raise error

        agent = talker(add, **{hook: raises})("a")
        t.script(agent, call("add", {"a": 1, "b": 2}), say("3"))

        done = ask(t, agent)

        assert (done.status, done.message().text) == (COMPLETED, "3")
        logged = [each.getMessage() for each in caplog.records if "changes nothing" in each.getMessage()]
        assert logged
        assert all(hook in text and done.submission_id in text and "secret" not in text for text in logged)


class TestOnChatError:
    @pytest.mark.parametrize("why", ["model", "hook", "tools", "step limit of a prompt"])
    def test_it_sees_every_error_of_a_turn(self, t: ThinkTest, why: str) -> None:
        """B23: once, with what there is of the answer."""
        seen: list[Any] = []

        def boom(self: Any, *told: Any) -> None:
            raise KeyError("x")

        hooks: dict[str, Any] = {"on_chat_error": lambda self, error, ctx: seen.append((error, ctx))}
        if why == "hook":
            hooks["before_turn"] = boom
        if why == "tools":
            hooks["get_tools"] = boom
        agent = talker(**hooks)("a")
        t.script(agent, fail("no such model") if why == "model" else say("Text"))

        done = ask_structured(t, agent) if "prompt" in why else ask(t, agent)

        ((error, ctx),) = seen
        assert (done.status, done.error_type) == (ERROR, type(error).__name__)
        assert (ctx.submission_id, ctx.partial.role) == (done.submission_id, "assistant")

    def test_it_may_replace_it(self, t: ThinkTest) -> None:
        """What it returns is what is stored, and what `on_chat_response` is told."""
        told: list[Any] = []
        agent = talker(
            on_chat_error=lambda self, error, ctx: RuntimeError("Please try again later."),
            on_chat_response=lambda self, result: told.append((result.status, result.error)),
        )("a")
        t.script(agent, fail("key sk-123 is invalid"))

        done = ask(t, agent)

        assert (done.error_type, done.error) == ("RuntimeError", "Please try again later.")
        assert told == [(ERROR, "Please try again later.")]

    @pytest.mark.parametrize("answer_", [ValueError, "a text", None])
    def test_else_the_error_stands(self, quick: ThinkTest, answer_: Any) -> None:
        """If it raises, or returns something else."""

        def on_chat_error(self: Any, error: BaseException, ctx: Any) -> Any:
            if answer_ is ValueError:
                raise ValueError("in the hook")
            return answer_

        agent = talker(on_chat_error=on_chat_error)("a")
        quick.script(agent, fail("no such model"))

        assert "no such model" in ask(quick, agent).error

    def test_not_for_what_the_turn_survives(self, quick: ThinkTest) -> None:
        """A request that is tried again, or a tool that fails, ends nothing."""
        seen: list[Any] = []

        def bad() -> None:
            """Fail."""
            raise ValueError("no")

        agent = talker(bad, on_chat_error=lambda self, error, ctx: seen.append(error))("a")
        quick.script(agent, fail("busy", retryable=True), call("bad"), say("Hi"))

        assert ask(quick, agent).status == COMPLETED
        assert seen == []


class TestSteps:
    def test_results(self, quick: ThinkTest) -> None:
        """What a step said, called, cost, and why it ended."""
        seen: list[Any] = []
        agent = talker(on_step_finish=lambda self, result: seen.append(result))("a")
        events = [TextDelta("Hel"), TextDelta("lo"), Finish("stop", "end_turn", Usage(1, 2, 3))]
        quick.use_model(FunctionModel(lambda request: iter(events)), agent)

        ask(quick, agent)

        (result,) = seen
        assert (result.step, result.text, result.reasoning, list(result.tool_calls)) == (0, "Hello", "", [])
        assert (result.finish_reason, result.raw_finish_reason) == ("stop", "end_turn")
        assert result.usage == Usage(1, 2, 3)

    def test_chunks_come_as_the_model_gives_them(self, quick: ThinkTest) -> None:
        """Each event of the model, after listeners have got it."""
        seen: list[Any] = []
        agent = talker(on_chunk=lambda self, ctx: seen.append(ctx.event))("a")
        events = [TextDelta("Hel"), TextDelta("lo"), Finish("stop", "stop", Usage())]
        quick.use_model(FunctionModel(lambda request: iter(events)), agent)

        ask(quick, agent)

        assert seen == events[:2]

    def test_a_crash_between_a_result_and_its_step_s_end(self, t: ThinkTest) -> None:
        """The step is over for the worker that takes over; it does not know what it cost."""
        seen: list[Any] = []
        agent = talker(add, on_step_finish=lambda self, result: seen.append(result))("a")
        t.script(agent, call("add", {"a": 1, "b": 2}), say("3"))
        t.crash_at("turn:tool-marked")

        ask(t, agent)

        assert [(result.step, result.usage is None) for result in seen][-1] == (1, False)


class TestOneThatDoesNotComeBack:
    """No pool has a slot to spare for a hook that hangs."""

    @pytest.mark.parametrize("hook", ["before_turn", "on_step_finish"])
    def test_a_cancel_ends_the_turn(self, live: Any, hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is given up, whether it decides or reacts."""
        monkeypatch.setattr("think_celery.domain.calls.GRACE_SECONDS", 0.05)
        entered, release = threading.Event(), threading.Event()

        def hangs(self: Any, told: Any) -> None:
            entered.set()
            release.wait(20)

        agent = talker(**{hook: hangs, "get_model": lambda self: FunctionModel(lambda r: say("Hi"))})
        with ThreadPoolExecutor() as pool:
            turn = Running(live, pool, agent)
            assert entered.wait(10)
            turn.cancel()
            done = turn.end()
            release.set()

        assert done.status == ABORTED

    def test_a_question_whether_to_ask(self, live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """The function that says whether a call needs an approval is given up likewise."""
        monkeypatch.setattr("think_celery.domain.calls.GRACE_SECONDS", 0.05)
        entered, release = threading.Event(), threading.Event()

        def hangs(euros: int) -> bool:
            entered.set()
            return release.wait(20)

        @tool(needs_approval=hangs)
        def pay(euros: int) -> str:
            return "paid"

        agent = talker(pay, get_model=lambda self: FunctionModel(lambda r: call("pay", {"euros": 1})))
        with ThreadPoolExecutor() as pool:
            turn = Running(live, pool, agent)
            assert entered.wait(10)
            turn.cancel()
            done = turn.end()
            release.set()

        assert done.status == ABORTED

    def test_the_deadline_ends_the_turn(self, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """As one that took too long; the line is free for the next one."""
        monkeypatch.setattr("think_celery.domain.calls.GRACE_SECONDS", 0.05)
        release = threading.Event()
        agent = talker(
            before_turn=lambda self, ctx: release.wait(20) and None,
            get_model=lambda self: FunctionModel(lambda r: say("Hi")),
        )
        with worker(sqlite_url, turn_timeout_seconds=0.2) as rt, ThreadPoolExecutor() as pool:
            turn = Running(rt, pool, agent)
            turn.until(lambda: rt.monitor._holds)
            turn.until(lambda: rt.monitor.beat() or turn.outcome.done())
            done = turn.end()
            release.set()
            assert row(rt, done).status == ERROR

        assert done.error_type == "TurnTimeout"


def test_a_hook_s_thread_holds_no_connection(live: Any) -> None:
    """B23, FR-34: no transaction is open and no connection is out while a hook runs."""
    seen: dict[str, Any] = {}

    def look(hook: str) -> Any:
        def method(self: Any, told: Any) -> None:
            pool = live.db._engine.pool if hasattr(live.db, "_engine") else None
            seen[hook] = (threading.current_thread().name, None if pool is None else pool.checkedout())

        return method

    hooks = ["before_turn", "before_step", "on_step_finish", "on_chat_response"]
    agent = talker(
        **{hook: look(hook) for hook in hooks},
        get_model=lambda self: FunctionModel(lambda r: say("Hi")),
    )
    claims.run(live, agent._bound_to(live, "a").submit_messages("Go").submission_id)

    assert sorted(seen) == sorted(hooks)
    assert {name for name, _ in seen.values()} == {"think-call"}
    assert {out for _, out in seen.values()} <= {0, None}


def test_in_a_test_they_run_in_the_calling_thread(quick: ThinkTest) -> None:
    """So that a test may raise, look at and change what it likes in them."""
    threads: set[Any] = set()
    hooks = [
        "before_turn",
        "before_step",
        "on_chunk",
        "on_step_finish",
        "on_chat_response",
        "on_submission_status",
    ]
    agent = talker(**{hook: lambda self, told: threads.add(threading.current_thread()) for hook in hooks})(
        "a"
    )
    quick.script(agent, say("Hi"))

    ask(quick, agent)

    assert threads == {threading.current_thread()}
