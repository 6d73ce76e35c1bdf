"""An assistant's message while it comes into being."""

import pytest

from think_celery.domain.turns.answers import Answer
from think_celery.messages import (
    ReasoningPart,
    StepStartPart,
    TextPart,
    ToolPart,
    UIMessage,
    dump_parts,
    load_parts,
)
from think_celery.protocols import (
    Finish,
    ReasoningDelta,
    ReasoningEnd,
    StepMetadata,
    TextDelta,
    ToolCallComplete,
    ToolCallDelta,
    Usage,
)

CALL = [
    ToolCallDelta(0, "c1", "add", ""),
    ToolCallDelta(0, "c1", "add", '{"a"'),
    ToolCallDelta(0, "c1", "add", ": 1}"),
    ToolCallComplete(0, "c1", "add", '{"a": 1}'),
]


def fed(answer: Answer, *events):
    return [chunk for event in events for chunk in answer.feed(event)]


class TestFeeding:
    def test_deltas_of_one_kind_become_one_part(self):
        """Text after text grows; reasoning in between begins a new part."""
        answer = Answer()
        answer.begin_step()

        chunks = fed(answer, TextDelta("a"), TextDelta("b"), ReasoningDelta("x"), TextDelta("c"))

        kinds = [(part.type, getattr(part, "text", None)) for part in answer.so_far()]
        assert kinds == [("step-start", None), ("text", "ab"), ("reasoning", "x"), ("text", "c")]
        assert [chunk["type"] for chunk in chunks if chunk["type"].endswith("start")] == [
            "text-start",
            "reasoning-start",
            "text-start",
        ]
        assert len({chunk["id"] for chunk in chunks}) == 3

    def test_what_listeners_see_adds_up_to_what_is_stored(self):
        """The deltas of each id, joined, are the part; ids begin with a start."""
        answer = Answer()
        answer.begin_step()

        chunks = fed(answer, TextDelta("a"), *CALL, TextDelta("b"), TextDelta("c"))

        shown: dict[str, str] = {}
        for chunk in chunks:
            key = chunk.get("id") or chunk["toolCallId"]
            if chunk["type"].endswith("-start"):
                assert key not in shown
                shown[key] = ""
            else:
                shown[key] += chunk.get("delta") or chunk.get("inputTextDelta")
        assert list(shown.values()) == ["a", '{"a": 1}', "bc"]

    def test_nothing_is_whole_before_the_steps_end(self):
        """FR-55: while the step streams, each call counts as half-written and each text as cut."""
        answer = Answer()
        answer.begin_step()
        fed(answer, TextDelta("a"), *CALL)

        states = [part.state for part in answer.so_far()[1:]]
        asked = answer.end_step()

        assert states == ["streaming", "input-streaming"]
        assert [part.state for part in answer.parts[1:]] == ["done", "input-available"]
        assert [(part.tool_name, part.input) for part in asked] == [("add", '{"a": 1}')]
        assert asked[0] is answer.parts[2]

    def test_calls_by_their_index(self):
        """FR-69: fragments go to the call of their index; the order is that of the first fragments."""
        answer = Answer()
        answer.begin_step()
        fed(
            answer,
            ToolCallDelta(1, "c2", "add", "{"),
            ToolCallDelta(0, "c1", "add", "{"),
            ToolCallComplete(0, "c1", "add", '{"n": 0}'),
            ToolCallComplete(1, "c2", "add", '{"n": 1}'),
        )

        assert [(part.tool_call_id, part.input) for part in answer.end_step()] == [
            ("c2", '{"n": 1}'),
            ("c1", '{"n": 0}'),
        ]

    @pytest.mark.parametrize("given", ["c1", ""])
    def test_ids_are_unique_within_the_message(self, given):
        """FR-70: a repeated or missing id is replaced; listeners are told the same id that is stored."""
        answer = Answer()
        answer.begin_step()
        fed(answer, *CALL)
        answer.end_step()
        answer.begin_step()

        chunks = fed(answer, ToolCallComplete(0, given, "add", "{}"), ToolCallComplete(1, given, "add", "{}"))

        ids = [part.tool_call_id for part in answer.end_step()]
        assert len({"c1", "", *ids}) == 4
        assert [chunk["toolCallId"] for chunk in chunks] == ids

    def test_strings_are_cleaned(self):
        """FR-37: no lone surrogate gets into a part or to a listener."""
        answer = Answer()
        answer.begin_step()

        chunks = fed(
            answer,
            TextDelta("a\ud83c"),
            ReasoningDelta("\udf78"),
            ToolCallComplete(0, "c\ud83c", "t", '"\ud83c"'),
        )

        assert not any(0xD800 <= ord(char) < 0xE000 for char in str(chunks) + str(answer.so_far()))

    def test_a_finish_is_none_of_its_parts(self):
        """What is no part gives no chunk."""
        assert Answer().feed(Finish("stop", None, Usage())) == []


class TestSteps:
    def test_a_rewound_attempt_leaves_nothing(self):
        """All or nothing: texts, calls and a final answer of the failed attempt are gone, earlier steps stay."""
        answer = Answer(hidden="final")
        answer.begin_step()
        fed(answer, *CALL)
        answer.end_step()
        before = list(answer.parts)
        answer.begin_step()
        fed(
            answer,
            TextDelta("x"),
            ToolCallComplete(0, "c2", "add", "{}"),
            ToolCallComplete(1, "f", "final", "{}"),
        )

        answer.rewind()

        assert (answer.so_far(), answer.final, answer.steps) == (before, None, 1)
        answer.begin_step()
        fed(answer, TextDelta("y"))
        assert answer.end_step() == []
        assert [part.type for part in answer.parts] == ["step-start", "tool-add", "step-start", "text"]

    def test_a_continued_step_is_the_same_step(self):
        """What continues a cut text marks no new step, so steps are counted right."""
        answer = Answer([StepStartPart(), TextPart(text="Hel")])

        assert answer.begin_step(continues=True) == []
        fed(answer, TextDelta("lo"))
        answer.end_step()

        assert answer.steps == 1
        assert answer.begin_step() == [{"type": "start-step"}]

    def test_places_of_calls(self):
        """A call's place is its step and its position among the calls there, whatever stands between."""

        def tool(name):
            return ToolPart(type=f"tool-{name}", tool_call_id="same", state="input-available")

        a, b, c = tool("x"), tool("x"), tool("x")
        answer = Answer(
            [StepStartPart(), TextPart(text="t"), a, ReasoningPart(text="r"), b, StepStartPart(), c]
        )

        assert [answer.place_of(part) for part in (a, b, c)] == [(1, 0), (1, 1), (2, 0)]

    def test_dropping_goes_by_identity(self):
        """Of two calls that look the same, only the one that is meant is dropped."""
        call = ToolPart(type="tool-x", tool_call_id="same", state="input-available")
        twin = call.model_copy()
        answer = Answer([StepStartPart(), call, twin])

        answer.drop([twin])

        assert answer.parts[1] is call
        assert len(answer.parts) == 2


class TestHidden:
    def test_the_final_call_is_kept_apart(self):
        """A16: no part and no chunk tells of the call that carries the answer; the first one counts."""
        answer = Answer(hidden="final")
        answer.begin_step()

        chunks = fed(
            answer,
            ToolCallDelta(0, "f", "final", '{"a"'),
            ToolCallComplete(0, "f", "final", '{"a": 1}'),
            ToolCallComplete(1, "g", "final", '{"a": 2}'),
        )

        assert (chunks, answer.so_far(), answer.end_step()) == ([], [StepStartPart()], [])
        assert answer.final.arguments == '{"a": 1}'

    def test_without_one_the_name_is_nothing_special(self):
        """In a plain turn a tool of any name is a tool."""
        answer = Answer()
        answer.begin_step()
        fed(answer, ToolCallComplete(0, "f", "think_final_answer", "{}"))

        assert [part.tool_name for part in answer.end_step()] == ["think_final_answer"]


class TestWhatAProviderWantsBack:
    def test_reasoning_comes_in_blocks(self):
        """FR-83: each block is a part with what its provider wants back, also one without a text."""
        answer = Answer()
        answer.begin_step()

        chunks = fed(
            answer,
            ReasoningDelta("a"),
            ReasoningDelta("b"),
            ReasoningEnd({"p": {"signature": "S"}}),
            ReasoningEnd({"p": {"secret": "D"}}),
            ReasoningDelta("c"),
            ReasoningEnd(),
            ReasoningEnd(),
            TextDelta("d"),
        )

        answer.end_step()
        parts = [part for part in answer.parts if isinstance(part, ReasoningPart)]
        assert [(part.text, part.provider_metadata) for part in parts] == [
            ("ab", {"p": {"signature": "S"}}),
            ("", {"p": {"secret": "D"}}),
            ("c", None),
        ]
        ids = [chunk["id"] for chunk in chunks if chunk["type"] == "reasoning-end"]
        assert ids == [chunk["id"] for chunk in chunks if chunk["type"] == "reasoning-start"]
        assert len(set(ids)) == 3
        assert UIMessage(role="assistant", parts=answer.parts).text == "d"

    def test_calls_and_whole_answers(self):
        """A call's fields stand with the call, the answer's with its last part; both survive storage."""
        answer = Answer()
        answer.begin_step()
        fed(answer, TextDelta("a"), StepMetadata({"p": {"message": {"x": 1}}}))
        fed(answer, ToolCallComplete(0, "c1", "add", "{}", {"p": {"call": {"sig": "S"}}}))
        fed(answer, StepMetadata({"q": {"message": {"y": 2}}}))

        answer.end_step()
        _, text, call = load_parts(dump_parts(answer.parts))

        assert text.provider_metadata == {"p": {"message": {"x": 1}}}
        assert call.call_provider_metadata == {"p": {"call": {"sig": "S"}}, "q": {"message": {"y": 2}}}
        assert call.to_dict()["callProviderMetadata"]["p"] == {"call": {"sig": "S"}}

    def test_a_look_in_the_middle_sees_all_of_it(self):
        """What is stored while the text still grows is the text so far, and it grows on."""
        answer = Answer()
        answer.begin_step()

        seen = []
        for piece in "abc":
            fed(answer, TextDelta(piece))
            seen.append(answer.so_far()[-1].text)
        answer.rewind()
        answer.begin_step()
        fed(answer, TextDelta("x"))

        assert seen == ["a", "ab", "abc"]
        assert [part.text for part in answer.so_far()[1:]] == ["x"]
