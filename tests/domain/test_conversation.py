"""The transcript as a model may be asked with: repaired, without changing what is stored."""

import copy

import pytest

from tests.domain.talk import ask, now, shape, talker
from tests.providers.server import ModelServer, text_frames
from think_celery.domain.conversation import conversation
from think_celery.domain.conversation.conversation import (
    INTERRUPTED,
    UNKNOWN_OUTCOME,
    repaired,
    says_something,
)
from think_celery.messages import (
    FilePart,
    OtherPart,
    ReasoningPart,
    StepStartPart,
    TextPart,
    ToolPart,
    UIMessage,
    user,
)
from think_celery.providers import scripted
from think_celery.providers.openai import OpenAIModel

STEP, TEXT = StepStartPart(), TextPart(text="t")


def call(state, **fields):
    return ToolPart(type="tool-x", tool_call_id="c", state=state, **fields)


def assistant(*parts):
    return UIMessage(role="assistant", parts=list(parts))


def outcomes(message):
    return [
        (part.state, part.output if part.state == "output-available" else part.error_text)
        for part in message.parts
        if isinstance(part, ToolPart)
    ]


class TestRepair:
    @pytest.mark.parametrize(
        ("part", "outcome"),
        [
            (call("output-available", output=1), ("output-available", 1)),
            (call("output-error", error_text="denied"), ("output-error", "denied")),
            (call("input-available", input={}), ("output-error", INTERRUPTED)),
            (call("input-available", input={}, started=True), ("output-error", UNKNOWN_OUTCOME)),
        ],
    )
    def test_each_call_has_one_result(self, part, outcome):
        """FR-55: a settled call keeps its result, an open one gets an error that says what is known."""
        (message,) = repaired([assistant(STEP, part)])

        assert outcomes(message) == [outcome]

    def test_a_half_written_call_is_left_out(self):
        """FR-55: nobody may take half of its arguments for the whole."""
        (message,) = repaired([assistant(STEP, TEXT, call("input-streaming", input='{"ci'))])

        assert message.parts == [STEP, TEXT]

    @pytest.mark.parametrize(
        "parts",
        [[], [STEP], [STEP, TextPart(text="")], [STEP, call("input-streaming")], [ReasoningPart(text="")]],
    )
    def test_an_assistants_message_that_says_nothing_is_left_out(self, parts):
        """Providers refuse empty assistant messages."""
        assert repaired([user("Hi"), assistant(*parts), user("Still there?")])[1].text == "Still there?"

    def test_only_the_copy_is_changed(self):
        """The stored messages stay as they are."""
        messages = [user("Hi"), assistant(STEP, call("input-available")), assistant(call("input-streaming"))]
        before = copy.deepcopy(messages)

        assert repaired(messages)[0] is messages[0]
        assert messages == before

    def test_other_roles_go_through(self):
        """What users and systems said is never changed."""
        system = UIMessage(role="system", parts=[TextPart(text="")])

        assert repaired([system, user("Hi")])[0] is system

    def test_of_a_long_history(self):
        """Each message for itself: open calls in the middle do not touch what comes after."""
        open_call = assistant(STEP, call("input-available", input={"n": 1}))
        fit = repaired([user("1"), open_call, user("2"), assistant(STEP, TEXT)])

        assert [m.role for m in fit] == ["user", "assistant", "user", "assistant"]
        assert outcomes(fit[1]) == [("output-error", INTERRUPTED)]


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (STEP, False),
        (TextPart(text=""), False),
        (TEXT, True),
        (ReasoningPart(text="r"), True),
        (call("input-streaming"), True),
        (FilePart(media_type="image/png", url="data:,"), True),
        (OtherPart(type="data-chart"), True),
    ],
)
def test_what_says_something(part, says):
    """A message of markers alone is not worth a row."""
    assert says_something([STEP, part]) is says


class TestHistory:
    def test_a_cancelled_turn_does_not_spoil_the_next_request(self, quick):
        """FR-55: after a turn was cut in a call, the provider gets a valid conversation."""
        with ModelServer() as server:
            agent = talker()("a")
            quick.use_model(OpenAIModel("m", api_key="sk-test-0123456789", base_url=server.base_url), agent)
            server.script(text_frames("ok"))
            cut = assistant(
                STEP, TEXT, call("input-available", input={}, started=True), call("input-streaming")
            )

            done = ask(quick, agent, [user("Hi"), cut, user("Go on")])

            wire = server.requests[0]["messages"]
            assert done.status == "completed"
            assert [m["role"] for m in wire] == ["system", "user", "assistant", "tool", "user"]
            assert len(wire[2]["tool_calls"]) == 1
            assert "outcome is unknown" in wire[3]["content"]

    def test_the_message_of_a_turn_in_progress_stands_last(self, t):
        """B12: `messages` is a fresh read; what is written meanwhile stands before the unfinished answer."""
        agent = talker(look)("a")
        seen = []
        t.script(agent, [scripted.say("Let me look."), scripted.call("look")], scripted.say("Done."))
        submission = agent.submit_messages("Go")

        def failpoint(point: str) -> None:
            if point == "turn:tool-ran":
                seen.append([shape(m) for m in agent.messages])
                seen.append(len(conversation.history(t.rt, agent._ref, finished_only=True)))

        t.rt.failpoint = failpoint
        t.run_until_idle()

        assert seen == [[["Go"], ["|", "Let me look.", ("look", {}, None)]], 1]
        assert agent.get_message(now(agent, submission).message_id).text == "Let me look.Done."
        assert agent.get_message("nothing") is None


def look() -> str:
    return "seen"
