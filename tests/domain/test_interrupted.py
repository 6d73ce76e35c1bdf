"""Whatever cuts a turn: the next request is one that every provider takes, and the answer stays one message."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.domain.talk import ask, calls_of, crash_at_nth, now, talker
from tests.domain.till import LOCATION
from tests.providers import anthropic_frames as frames
from tests.providers import transcripts
from tests.providers.server import ModelServer, json_response, text_frames, tool_call_frames
from think_celery import AbortController, Think
from think_celery.domain.conversation import conversation
from think_celery.domain.submissions.receipts import Submission
from think_celery.domain.work import perform
from think_celery.protocols import (
    Finish,
    ModelEvent,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from think_celery.providers.anthropic import AnthropicModel
from think_celery.providers.openai import OpenAIModel
from think_celery.providers.scripted import FunctionModel, call, fail, say
from think_celery.testing import ThinkTest
from think_celery.tools import tool


@dataclass
class Scene:
    """A turn that is cut, and all that the model was asked from then on."""

    t: ThinkTest
    first: Any
    """What the model answers at first: an answer, or a function of this scene that yields events."""
    submission: Submission | None = None
    ran: list[str] = field(default_factory=list)
    act: Callable[["Scene"], None] = lambda scene: None
    """What the tools do beside their work."""

    def __post_init__(self) -> None:
        @tool(needs_approval=True)
        def pay(euros: int) -> str:
            return self._run(f"pay {euros}")

        @tool(idempotent=True)
        def look(what: str) -> str:
            return self._run(f"look {what}")

        @tool
        def post(to: str) -> str:
            return self._run(f"post {to}")

        self.agent: Think = talker(pay, look, post, LOCATION)("a")
        self.model = FunctionModel(self._answer)
        self.t.use_model(self.model, self.agent)

    def _run(self, what: str) -> str:
        self.ran.append(what)
        self.act(self)
        return what

    def _answer(self, request: ModelRequest) -> Any:
        if len(self.model.requests) > 1:
            return say(" More.")
        return self.first(self) if callable(self.first) else self.first

    def play(self) -> None:
        """Submit the turn, and let it come to where nothing is left to do, by as many workers as it takes."""
        self.submission = self.agent.submit_messages("Go")
        while self.t._knocks:
            perform_or_restart(self.t)
            if self.t.rt.stopping.signal.aborted:  # that worker has ended; another starts
                self.t.rt.stopping = AbortController()
        self.t.run_until_idle()

    @property
    def id(self) -> str:
        """The submission's id."""
        assert self.submission is not None
        return self.submission.submission_id

    def check(self) -> None:
        """The next message is answered, every request was one that providers take, and each turn has one answer."""
        assert self.submission is not None
        before = now(self.agent, self.submission)
        stored = self.agent.messages
        ask(self.t, self.agent, "And now?")
        transcripts.check(self.model.requests)
        answers = [message.id for message in self.agent.messages if message.role == "assistant"]
        assert len(answers) == len(set(answers))
        if any(message.role == "assistant" for message in stored):
            assert before.message_id in answers
        assert [m.id for m in self.agent.messages[: len(stored)]] == [m.id for m in stored]


def perform_or_restart(t: ThinkTest) -> None:
    """Let a worker take the next message; if it dies at that, another one starts."""
    t._perform(t._knocks.popleft())


def streaming(
    *events: ModelEvent, then: Callable[[Scene], None] | None = None
) -> Callable[[Scene], Iterator[Any]]:
    """An answer whose pieces come a second and a half apart; after them *then* happens, and no more comes."""

    def play(scene: Scene) -> Iterator[Any]:
        for event in events:
            yield event
            scene.t.clock.sleep(1.5)
        yield type(events[-1])("") if not isinstance(events[-1], ToolCallDelta) else HALF_MORE
        if then is not None:
            then(scene)
        yield TextDelta(" never seen")
        yield Finish("stop", None, Usage())

    return play


def crash(scene: Scene) -> None:
    scene.t.crash_at("turn:streaming")


def cancel(scene: Scene) -> None:
    scene.agent.cancel_submission(scene.id, "enough")
    scene.t.rt.monitor.beat()


def stop(scene: Scene) -> None:
    scene.t.rt.stopping.abort("a deployment")


def reset(scene: Scene) -> None:
    conversation.reset(scene.t.rt, scene.agent._ref)
    scene.t.rt.monitor.beat()


TEXT, THOUGHT = TextDelta("Let me see."), ReasoningDelta("Hm.")
HALF, HALF_MORE = ToolCallDelta(0, "c1", "post", '{"t'), ToolCallDelta(0, "c1", "post", "o")
CUTS = {
    "text": (TEXT,),
    "reasoning": (THOUGHT,),
    "reasoning and text": (THOUGHT, TEXT),
    "half a call": (HALF,),
    "text and half a call": (TEXT, HALF),
}


class TestInAStream:
    """FR-49, FR-55: cut while the model writes."""

    @pytest.mark.parametrize("how", [crash, cancel, stop, reset])
    @pytest.mark.parametrize("what", CUTS)
    def test_cut(self, quick, what, how):
        """FR-49, FR-55: text, reasoning, a call in the making: by a crash, a cancel, a deployment or a reset."""
        scene = Scene(quick, streaming(*CUTS[what], then=how))

        scene.play()

        ends = {crash: "completed", stop: "completed", cancel: "aborted", reset: "aborted"}
        assert (now(scene.agent, scene.submission).status, scene.ran) == (ends[how], [])
        assert quick.crashes == (["turn:streaming"] if how is crash else [])
        scene.check()
        roles = [message.role for message in scene.agent.messages]
        assert roles == ["user", "assistant"] * (1 if how is reset else 2)

    @pytest.mark.parametrize("what", CUTS)
    def test_cut_in_the_second_step(self, quick, what):
        """FR-55: the calls of the step before, with their results, stay as they were."""

        def play(scene: Scene) -> Any:
            return [call("post", {"to": "Ann"}), call("look", {"what": "it"})]

        scene = Scene(quick, play)
        rest = streaming(*CUTS[what], then=crash)
        scene.model._function = lambda request: {1: play, 2: rest}.get(
            len(scene.model.requests), lambda scene: say(" More.")
        )(scene)

        scene.play()

        assert (quick.crashes, sorted(scene.ran)) == (["turn:streaming"], ["look it", "post Ann"])
        scene.check()

    @pytest.mark.parametrize("what", CUTS)
    def test_a_request_that_fails(self, quick, what):
        """What a failed request had brought is forgotten: the one after it asks as if it had not been."""

        def play(scene: Scene) -> Iterator[Any]:
            yield from CUTS[what]
            scene.t.clock.sleep(1.5)
            raise fail("overloaded", retryable=True).error

        scene = Scene(quick, play)

        scene.play()

        assert scene.model.requests[0].messages == scene.model.requests[1].messages
        scene.check()


class TestInACall:
    """FR-54, FR-55: cut in or around the calls of tools."""

    @pytest.mark.parametrize("point", ["turn:tool-marked", "turn:tool-ran", "turn:tool-stored"])
    @pytest.mark.parametrize("number", [1, 2])
    @pytest.mark.parametrize("tools", ["post post", "look look", "look post", "post look"])
    def test_killed(self, quick, tools, point, number):
        """FR-54, FR-55: of two calls either may have begun, ended, or not: each has one result, right after it."""
        first, second = tools.split()
        arguments = {"post": {"to": "Ann"}, "look": {"what": "it"}}
        scene = Scene(quick, [say("I do."), call(first, arguments[first]), call(second, arguments[second])])
        if not (point == "turn:tool-marked" and number == 2):
            crash_at_nth(quick, point, number)

        scene.play()

        assert scene.ran.count("post Ann") <= tools.split().count("post")
        scene.check()

    @pytest.mark.parametrize("how", [cancel, stop, reset])
    @pytest.mark.parametrize("name", ["post", "look"])
    def test_ended_from_outside(self, quick, name, how):
        """FR-55: cancelled, handed over or reset while a tool runs: it ran once, and is answered once."""
        arguments = {"post": {"to": "Ann"}, "look": {"what": "it"}}
        scene = Scene(quick, [call(name, arguments[name]), call("post", {"to": "Bob"})])
        scene.act = how

        scene.play()
        scene.act = lambda scene: None

        assert len(scene.ran) == len(set(scene.ran))
        scene.check()

    def test_arguments_that_are_no_json(self, quick):
        """FR-55, FR-73: what a model wrote for arguments is sent back as an object, whatever it was."""
        scene = Scene(
            quick, [call("post", '{"to": '), call("post", "[1]"), call("gone", {}), call("look", "null")]
        )

        scene.play()

        assert scene.ran == []
        scene.check()


class TestApprovals:
    """FR-55: the states in which a call waits, or was decided on."""

    CALLS = (
        call("pay", {"euros": 1}),
        call("look", {"what": "it"}),
        call("pay", {"euros": 2}),
        call("locate"),
    )

    def asked(self, t: ThinkTest) -> Scene:
        scene = Scene(t, [say("I need a yes."), *self.CALLS])
        scene.play()
        return scene

    def test_open(self, quick):
        """FR-55: three calls wait; the one beside them has run."""
        scene = self.asked(quick)

        assert len(scene.agent.pending_interactions()) == 3
        scene.check()

    @pytest.mark.parametrize("decided", [1, 2, 3])
    def test_decided(self, quick, decided):
        """FR-55: some or all of them are decided on, before and after another turn."""
        scene = self.asked(quick)
        first, second, locate = scene.agent.pending_interactions()
        decisions = [
            lambda: scene.agent.reject_tool_call(first.tool_call_id, "no"),
            lambda: scene.agent.provide_tool_result(locate.tool_call_id, error="no GPS"),
            lambda: scene.agent.approve_tool_call(second.tool_call_id),
        ]
        for decide in decisions[:decided]:
            decide()
        quick.run_until_idle()
        scene.check()
        for decide in decisions[decided:]:
            decide()
        quick.run_until_idle()

        assert scene.ran == ["look it", "pay 2"]
        scene.check()
        results = [part.state for part in calls_of(scene.submission.message())]
        assert results == ["output-denied", "output-available", "output-available", "output-error"]

    @pytest.mark.parametrize("how", [cancel, stop, reset])
    def test_the_approved_call_is_cut(self, quick, how):
        """FR-55: cancelled, handed over or reset while the approved call runs."""
        scene = self.asked(quick)
        first, second, locate = scene.agent.pending_interactions()
        scene.agent.provide_tool_result(locate.tool_call_id, {"lat": 1})
        scene.agent.reject_tool_call(first.tool_call_id)

        def act(scene: Scene) -> None:
            if how is cancel:
                scene.agent.cancel_submission(decided.continuation_id)
                quick.rt.monitor.beat()
            else:
                how(scene)

        scene.act = act
        decided = scene.agent.approve_tool_call(second.tool_call_id)
        while quick._knocks:
            perform(quick.rt, quick._knocks.popleft())
            if quick.rt.stopping.signal.aborted:
                quick.rt.stopping = AbortController()
        quick.skip("5 seconds")
        scene.act = lambda scene: None

        assert scene.ran == ["look it", "pay 2"]
        scene.check()


class TestOnTheWire:
    def test_two_vendors(self, quick):
        """FR-55: asked for an approval through one vendor, gone on through the other: both get whole conversations."""
        ran: list[int] = []

        @tool(needs_approval=True)
        def pay(euros: int) -> str:
            ran.append(euros)
            return f"paid {euros}"

        with ModelServer() as openai, ModelServer() as anthropic:
            gone = json_response({"error": {"message": "no credit", "code": "insufficient_quota"}}, 402)
            two = [("pay", {"euros": 1}), ("pay", {"euros": 2})]
            openai.script(
                tool_call_frames(*two, text="I need a yes."), text_frames("Soon."), gone, text_frames("Bye.")
            )
            anthropic.script(frames.message(frames.text_block("All done.")))
            agent = talker(pay)("a")
            key = "sk-test-0123456789"
            quick.use_model(
                [
                    OpenAIModel("m", api_key=key, base_url=openai.base_url),
                    AnthropicModel("m", api_key=key, base_url=anthropic.base_url),
                ],
                agent,
            )
            asked = ask(quick, agent)
            ask(quick, agent, "And?")
            first, second = agent.pending_interactions()
            agent.reject_tool_call(first.tool_call_id, "no")
            decided = agent.approve_tool_call(second.tool_call_id)
            quick.run_until_idle()
            ask(quick, agent, "Thanks.")

            assert ran == [2]
            assert [part.state for part in calls_of(asked.message())] == ["output-denied", "output-available"]
            going_on = agent.inspect_submission(decided.continuation_id)
            assert going_on.message().text == "All done."
            assert (len(openai.requests), len(anthropic.requests)) == (4, 1)
            assert [transcripts.openai_problems(body) for body in openai.requests] == [[]] * 4
            assert [transcripts.anthropic_problems(body) for body in anthropic.requests] == [[]]
