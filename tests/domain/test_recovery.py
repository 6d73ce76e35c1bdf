"""What becomes of an answer whose worker died: the rules, and a crash at every point where one can happen."""

from typing import Any

import pytest

from tests.domain.talk import (
    COMPLETED,
    ask,
    ask_structured,
    calls_of,
    events,
    now,
    roles,
    row,
    shape,
    talker,
)
from think_celery.domain.conversation.conversation import UNKNOWN_OUTCOME
from think_celery.domain.recovery import decide
from think_celery.domain.submissions import claims
from think_celery.domain.turns.requests import GO_ON
from think_celery.errors import ModelAborted
from think_celery.messages import Part, ReasoningPart, StepStartPart, TextPart, ToolPart
from think_celery.protocols import Finish, ModelRequest, ReasoningDelta, TextDelta, ToolCallDelta, Usage
from think_celery.providers.scripted import FunctionModel, answer, call, say
from think_celery.signals import AbortController
from think_celery.testing import SimulatedCrash
from think_celery.tools import tool

STEP = StepStartPart()
SAID, CUT = TextPart(text="Done."), TextPart(text="Hel", state="streaming")
NOTHING = TextPart(text=" ", state="streaming")
THOUGHT, THINKING = ReasoningPart(text="Hm."), ReasoningPart(text="Hm", state="streaming")


def tool_call(name: str, state: Any, **fields: Any) -> ToolPart:
    return ToolPart(type=f"tool-{name}", tool_call_id=f"{name}-1", state=state, **fields)


WRITTEN = tool_call("mail", "input-streaming")
FRESH = tool_call("mail", "input-available", input={})
BEGUN = tool_call("mail", "input-available", input={}, started=True)
SAFE = tool_call("look", "input-available", input={})
SETTLED = tool_call("mail", "output-available", input={}, output=1, started=True)


def short(parts: list[Part]) -> list[str]:
    """Parts in short: ``Hel``, ``|``, ``mail:output-available``."""
    names = {"step-start": "|"}
    return [
        f"{part.tool_name}:{part.state}" if isinstance(part, ToolPart) else names.get(part.type) or part.text
        for part in parts
    ]


class TestDecide:
    @pytest.mark.parametrize(
        ("stored", "kept", "to_run", "continues", "complete"),
        [
            pytest.param([], [], [], False, False, id="nothing streamed: the same again"),
            pytest.param([STEP], [], [], False, False, id="a step that only began"),
            pytest.param([STEP, CUT], ["|", "Hel"], [], True, False, id="cut text goes on"),
            pytest.param([STEP, NOTHING], [], [], False, False, id="blank text is nothing"),
            pytest.param([STEP, THINKING], [], [], False, False, id="cut reasoning is dropped"),
            pytest.param(
                [STEP, THINKING, CUT], ["|", "Hel"], [], True, False, id="reasoning before cut text"
            ),
            pytest.param([STEP, WRITTEN], [], [], False, False, id="FR-55: a half-written call never runs"),
            pytest.param([STEP, CUT, WRITTEN], ["|", "Hel"], [], True, False, id="text, then half a call"),
            pytest.param([STEP, SAID], ["|", "Done."], [], False, True, id="a whole answer is complete"),
            pytest.param([STEP, THOUGHT], ["|", "Hm."], [], False, False, id="whole reasoning is no answer"),
            pytest.param(
                [STEP, FRESH],
                ["|", "mail:input-available"],
                ["mail"],
                False,
                False,
                id="a call that had not begun",
            ),
            pytest.param(
                [STEP, BEGUN], ["|", "mail:output-error"], [], False, False, id="FR-54: begun, not idempotent"
            ),
            pytest.param(
                [STEP, SAFE], ["|", "look:input-available"], ["look"], False, False, id="FR-54: idempotent"
            ),
            pytest.param(
                [STEP, SETTLED, SAFE, BEGUN],
                ["|", "mail:output-available", "look:input-available", "mail:output-error"],
                ["look"],
                False,
                False,
                id="each call by its own state",
            ),
            pytest.param(
                [STEP, SETTLED, STEP],
                ["|", "mail:output-available"],
                [],
                False,
                False,
                id="the next step had begun",
            ),
            pytest.param(
                [STEP, SETTLED, STEP, WRITTEN],
                ["|", "mail:output-available"],
                [],
                False,
                False,
                id="a half-written call of the second step",
            ),
            pytest.param(
                [STEP, SAID, SETTLED, STEP, CUT],
                ["|", "Done.", "mail:output-available", "|", "Hel"],
                [],
                True,
                False,
                id="cut text of the second step",
            ),
            pytest.param(
                [STEP, SETTLED, STEP, SAID],
                ["|", "mail:output-available", "|", "Done."],
                [],
                False,
                True,
                id="complete after tools",
            ),
        ],
    )
    def test_table(self, stored, kept, to_run, continues, complete):
        """Every state in which an answer can be stored, and how it goes on."""
        before = [part.model_copy(deep=True) for part in stored]

        found = decide(stored, lambda name: name == "look")

        assert short(found.parts) == kept
        assert [part.tool_name for part in found.to_run] == to_run
        assert all(any(part is each for each in found.parts) for part in found.to_run)
        assert (found.continues, found.complete) == (continues, complete)
        again = decide(found.parts, lambda name: False)  # by the next worker, before anything more has come
        assert (again.continues, again.complete) == (continues, complete)
        assert short(again.parts) == short(found.parts)
        assert stored == before

    def test_an_unknown_outcome_is_said(self):
        """The model is told that nobody knows whether the tool took effect."""
        found = decide([STEP, BEGUN], lambda name: False)

        assert found.parts[1].error_text == UNKNOWN_OUTCOME


class Probe:
    """A model that calls a tool and then answers, and the tool, both counted."""

    def __init__(self, *, idempotent: bool) -> None:
        self.ran: list[int] = []

        @tool(idempotent=idempotent)
        def add(a: int, b: int) -> int:
            self.ran.append(a + b)
            return a + b

        self.agent = talker(add)("a")
        self.model = FunctionModel(self._answer)

    def _answer(self, request: ModelRequest) -> Any:
        told = [part for part in request.messages[-1].parts if isinstance(part, ToolPart)]
        return say("It is 3.") if told else call("add", {"a": 1, "b": 2})


class TestCrashes:
    @pytest.mark.parametrize(
        ("point", "requests", "runs", "known"),
        [
            ("turn:claimed", 2, 1, True),
            ("turn:before-model", 2, 1, True),
            ("turn:streaming", 3, 1, True),
            ("turn:tool-marked", 2, 0, False),
            ("turn:tool-ran", 2, 1, False),
            ("turn:tool-stored", 2, 1, True),
            ("turn:before-commit", 3, 1, True),
            ("turn:committed", 2, 1, True),
        ],
    )
    @pytest.mark.parametrize("idempotent", [False, True])
    def test_at_every_point(self, t, point, requests, runs, known, idempotent):
        """Issue's list: a worker that dies anywhere leaves a turn that ends right, each effect counted."""
        probe = Probe(idempotent=idempotent)
        t.use_model(probe.model, probe.agent)
        t.crash_at(point)

        done = ask(t, probe.agent)

        if idempotent and not known:  # FR-54: run again, with the same outcome
            runs, known = runs + 1, True
        told = ("add", {"a": 1, "b": 2}, 3 if known else UNKNOWN_OUTCOME)
        assert t.crashes == [point]
        assert done.status is COMPLETED
        assert [m.role for m in probe.agent.messages] == ["user", "assistant"]
        assert shape(done.message()) == ["|", told, "|", "It is 3."]
        assert (len(probe.model.requests), probe.ran) == (requests, [3] * runs)
        assert row(t.rt, done).takeovers == (1 if point == "turn:committed" else 2)

    def test_the_caller_dies_after_accepting(self, t):
        """What was committed is done, although nobody knocked."""
        probe = Probe(idempotent=False)
        t.use_model(probe.model, probe.agent)
        t.crash_at("submit:committed")
        with pytest.raises(SimulatedCrash):
            probe.agent.submit_messages("Go", submission_id="s")

        t.skip("5 seconds")

        assert probe.agent.inspect_submission("s").status is COMPLETED

    def test_every_worker_dies(self, t):
        """At the cap the turn ends in error, with each death counted."""
        probe = Probe(idempotent=False)
        t.use_model(probe.model, probe.agent)
        cap = t.rt.settings.max_attempts
        t.crash_at("turn:before-model", times=cap + 3)

        done = ask(t, probe.agent)

        assert (done.status, done.error_type, len(t.crashes)) == ("error", "TooManyAttempts", cap)
        assert probe.model.requests == []

    def test_the_next_turn_waits_for_the_one_that_is_recovered(self, t):
        """The interrupted turn ends first; the transcripts of two turns never mix."""
        probe = Probe(idempotent=False)
        t.use_model(probe.model, probe.agent)
        t.crash_at("turn:tool-stored")
        first, second = probe.agent.submit_messages("1"), probe.agent.submit_messages("2")

        t.run_until_idle()

        assert [m.role for m in probe.agent.messages] == ["user", "assistant"] * 2
        assert now(probe.agent, first).message_id == probe.agent.messages[1].id
        assert now(probe.agent, second).message_id == probe.agent.messages[3].id


class TestPartialText:
    def stream(self, t: Any, *pieces: Any, then: Any) -> tuple[Any, FunctionModel]:
        """An agent whose first request dies after these pieces, one a second and a half."""
        requests = iter([pieces])

        def respond(request: ModelRequest) -> Any:
            for piece in next(requests, ()):
                t.clock.sleep(1.5)
                yield piece
                last = piece is pieces[-1]
                if last:
                    t.clock.sleep(1.5)
                    t.crash_at("turn:streaming")
                    yield TextDelta("") if isinstance(piece, TextDelta) else ReasoningDelta("")
            yield from then(request)

        agent = talker()("a")
        model = FunctionModel(respond)
        t.use_model(model, agent)
        return agent, model

    def test_the_answer_goes_on_where_it_was_cut(self, t):
        """FR-49: the takeover asks to continue, in the same message; the request to do so is not stored."""
        rest = [TextDelta("lo."), Finish("stop", None, Usage(1, 1, 2))]
        agent, model = self.stream(t, TextDelta("Hel"), then=lambda request: rest)
        t.use_model(FunctionModel(lambda request: say("Earlier.")), agent)
        ask(t, agent, "u1")
        earlier = agent.messages
        t.use_model(model, agent)

        done = ask(t, agent, "u2")

        assert t.crashes == ["turn:streaming"]
        asked = model.requests[1].messages
        assert [m.text for m in asked] == ["u1", "Earlier.", "u2", "Hel", GO_ON]
        assert [m.text for m in agent.messages] == ["u1", "Earlier.", "u2", "Hello."]
        assert agent.messages[:2] == earlier
        assert asked[3].id == done.message_id == agent.messages[3].id
        assert sum(part.type == "step-start" for part in done.message().parts) == 1

    @pytest.mark.parametrize("pieces", [[], [ToolCallDelta(0, "c", "weather", '{"ci')]], ids=["text", "call"])
    def test_it_is_handed_over_before_anything_more_has_come(self, t, pieces):
        """Workers stop one after another, as in a deployment: what the second stores is no whole answer."""

        def respond(request):
            if request.messages[-1].text == GO_ON:
                yield from [TextDelta("lo."), Finish("stop", None, Usage())]
                return
            yield from [TextDelta("Hel"), *pieces]
            t.rt.stopping.abort("the worker stops")
            raise ModelAborted("stopped")

        agent = talker()("a")
        t.use_model(FunctionModel(respond), agent)
        agent.submit_messages("Go", submission_id="s")

        stopped = [claims.run(t.rt, "s").word for _ in range(2)]
        t.rt.stopping = AbortController()
        t.run_until_idle()

        assert stopped == ["handed-over"] * 2
        assert [m.text for m in agent.messages] == ["Go", "Hello."]
        assert all(part.state == "done" for part in agent.messages[1].parts if part.type == "text")

    def test_reasoning_alone_is_asked_for_again(self, t):
        """Nothing that a listener saw as text: the step is asked for again, with the same request."""
        rest = [TextDelta("Yes."), Finish("stop", None, Usage())]
        agent, model = self.stream(t, ReasoningDelta("Hm"), then=lambda request: rest)

        done = ask(t, agent)

        assert [roles(request) for request in model.requests] == [["user"], ["user"]]
        assert shape(done.message()) == ["|", "Yes."]

    def test_half_written_arguments_never_run(self, t):
        """FR-55: killed after ``{"ci``, the resumed turn completes and no tool ran on that."""
        ran = []

        def weather(city: str) -> str:
            ran.append(city)
            return "sunny"

        agent, model = self.stream(
            t,
            TextDelta("Let me look."),
            ToolCallDelta(0, "c", "weather", '{"ci'),
            then=lambda request: [TextDelta(" It is sunny."), Finish("stop", None, Usage())],
        )
        talker(weather)

        done = ask(t, agent)

        assert (done.status, ran, len(model.requests)) == (COMPLETED, [], 2)
        assert [part.type for part in model.requests[1].messages[1].parts] == ["step-start", "text"]
        assert done.message().text == "Let me look. It is sunny."
        assert calls_of(done.message()) == []

    def test_listeners_get_a_reset_on_every_takeover(self, t):
        """Recovery reads only what is stored: what was shown beyond it is void, even if nothing was stored."""
        agent = talker()("a")
        t.script(agent, say("Hello"), say("Hello"))
        t.crash_at("turn:streaming")

        ask(t, agent)

        (first, second) = sorted({token for token, _ in events(t, agent)})
        shown = [event for token, event in events(t, agent) if token == second]
        assert second > first
        assert [event["type"] for event in shown[:3]] == ["start", "reset", "restored"]
        assert shown[2]["parts"] == []

    def test_usage_of_the_steps_before_is_not_lost(self, t):
        """What finished steps cost is stored with them, and added to by whoever goes on."""
        probe = Probe(idempotent=False)
        t.use_model(probe.model, probe.agent)
        ask(t, probe.agent)
        expected = probe.agent.messages[-1].metadata
        other = type(probe.agent)("b")
        t.crash_at("turn:tool-stored")

        done = ask(t, other)

        assert done.message().metadata == expected

    def test_a_structured_turn_keeps_its_final_answer_tool(self, t):
        """The schema is stored with the submission and offered again on recovery."""
        probe = Probe(idempotent=False)
        model = t.script(probe.agent, call("add", {"a": 1, "b": 2}), answer({"label": "x"}))
        t.crash_at("turn:tool-stored")

        done = ask_structured(t, probe.agent)

        assert done.status is COMPLETED
        assert [spec.name for spec in model.requests[1].tools] == ["add", "think_final_answer"]
