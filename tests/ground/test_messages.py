"""Chat messages as plain data, in the shape that browsers know."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from think_celery.errors import EmptySubmission, InvalidMessage
from think_celery.messages import (
    FilePart,
    OtherPart,
    ReasoningPart,
    StepStartPart,
    TextPart,
    ToolPart,
    UIMessage,
    as_messages,
    clean,
    dump_parts,
    json_value,
    load_parts,
    system,
    user,
)

FROM_A_BROWSER = {
    "id": "msg_1",
    "role": "assistant",
    "createdAt": "2026-03-01T12:00:00.000Z",
    "metadata": {"model": "m", "nested": {"n": None}},
    "parts": [
        {"type": "step-start"},
        {"type": "reasoning", "text": "Hm.", "state": "done", "providerMetadata": {"signature": "x"}},
        {"type": "text", "text": "Hello", "state": "done"},
        {"type": "text", "text": " there", "state": "streaming"},
        {
            "type": "tool-look_up",
            "toolCallId": "call_1",
            "state": "output-error",
            "input": {"order": None},
            "errorText": "no such order",
            "started": True,
            "providerExecuted": False,
        },
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AA==", "filename": "a.png"},
        {"type": "data-weather", "id": "w", "data": None},
        {"type": "source-url", "sourceId": "s", "url": "https://example.com"},
        {"type": "dynamic-tool", "toolName": "x", "toolCallId": "c", "state": "input-available", "input": {}},
    ],
}


class TestSpelling:
    def test_a_browsers_message_comes_back_as_it_was(self):
        """JavaScript spelling is taken and given; parts and fields of kinds unknown here are kept."""
        message = UIMessage.model_validate(FROM_A_BROWSER)

        assert {**message.to_dict(), "createdAt": FROM_A_BROWSER["createdAt"]} == FROM_A_BROWSER
        assert UIMessage.model_validate(json.loads(json.dumps(message.to_dict()))) == message

    def test_pythons_spelling_is_taken_too(self):
        """Fields by their Python names, parts as objects."""
        call = ToolPart(type="tool-look_up", tool_call_id="c", state="output-available", output=None)
        message = UIMessage(role="assistant", parts=[call], created_at=datetime(2026, 3, 1, tzinfo=UTC))

        assert message.to_dict() == {
            "id": message.id,
            "role": "assistant",
            "parts": [
                {"type": "tool-look_up", "toolCallId": "c", "state": "output-available", "started": False}
            ],
            "createdAt": "2026-03-01T00:00:00Z",
        }

    def test_the_parts_are_of_their_kinds(self):
        """Known types become their classes, `tool-…` a ToolPart, the rest OtherPart."""
        kinds = [type(part) for part in UIMessage.model_validate(FROM_A_BROWSER).parts]

        assert kinds == [
            StepStartPart,
            ReasoningPart,
            TextPart,
            TextPart,
            ToolPart,
            FilePart,
            OtherPart,
            OtherPart,
            OtherPart,
        ]

    def test_stored_parts_come_back(self):
        """What is stored is what was there."""
        parts = UIMessage.model_validate(FROM_A_BROWSER).parts

        assert load_parts(json.loads(json.dumps(dump_parts(parts)))) == parts
        assert dump_parts(parts) == FROM_A_BROWSER["parts"]

    def test_fields_of_a_clients_own_on_the_message_are_dropped(self):
        """`metadata` is the place for them."""
        message = UIMessage.model_validate({**FROM_A_BROWSER, "revision": 3})

        assert "revision" not in message.to_dict()


class TestFields:
    def test_all_but_role_and_parts_have_defaults(self):
        """A new id, no metadata, the present time."""
        before = datetime.now(UTC)
        one, other = user("Hello"), system("Be kind.")

        assert (one.role, one.text, one.metadata) == ("user", "Hello", None)
        assert (other.role, other.text) == ("system", "Be kind.")
        assert one.id != other.id
        assert before <= one.created_at <= datetime.now(UTC)

    def test_text_joins_the_visible_text(self):
        """Reasoning, tools and files are not in it."""
        assert UIMessage.model_validate(FROM_A_BROWSER).text == "Hello there"

    def test_a_tool_part_knows_its_tool_and_whether_it_is_settled(self):
        """Settled means that the call has its result, good or bad."""
        states = ["input-streaming", "input-available", "output-available", "output-error"]
        parts = [ToolPart(type="tool-a-b", tool_call_id="c", state=state) for state in states]

        assert [part.settled for part in parts] == [False, False, True, True]
        assert parts[0].tool_name == "a-b"

    def test_a_time_is_kept_in_utc(self):
        """Whatever zone it was written in."""
        noon = datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=2)))

        message = UIMessage(role="user", parts=[], created_at=noon)

        assert message.created_at == noon
        assert message.created_at.tzinfo is UTC

    @pytest.mark.parametrize(
        "changes",
        [
            {"created_at": datetime(2026, 3, 1)},
            {"createdAt": "2026-03-01T12:00:00"},
            {"role": "tool"},
            {"id": ""},
            {"id": "x" * 201},
            {"id": "a\x00b"},
            {"metadata": [1]},
            {"parts": None},
            {"parts": [{"text": "no type"}]},
            {"parts": [{"type": "text"}]},
            {"parts": [{"type": "tool-x", "state": "input-available"}]},
            {"parts": [{"type": "tool-x", "toolCallId": "c", "state": "unheard-of"}]},
            {"parts": [{"type": "tool-", "toolCallId": "c", "state": "input-available"}]},
        ],
    )
    def test_what_fits_no_message_is_refused(self, changes):
        """A naive time names no instant, and is refused as everywhere else."""
        with pytest.raises(ValidationError):
            UIMessage.model_validate({"role": "user", "parts": [], **changes})


class TestCleaning:
    @pytest.mark.parametrize(
        ("given", "cleaned"),
        [
            ("plain ☃ \x00", "plain ☃ \x00"),
            ("a\ud83cb", "a\ufffdb"),
            ("\ud83c\udf78", "\U0001f378"),
            ("\udf78\ud83c", "\ufffd\ufffd"),
            ("\ud83c\ud83c\udf78", "\ufffd\U0001f378"),
            ({"k\ud83c": ("\ud83c", [1, None])}, {"k\ufffd": ["\ufffd", [1, None]]}),
            (b"\xff", b"\xff"),
        ],
    )
    def test_strings_become_valid_unicode(self, given, cleaned):
        """FR-37: pairs are joined, lone halves replaced, everywhere inside."""
        assert clean(given) == cleaned

    def test_every_string_of_a_message_is_cleaned_where_it_enters(self):
        """FR-37: one half character in the history would make every later request fail."""
        bad = "x\ud83c"
        message = UIMessage.model_validate(
            {
                "id": bad,
                "role": "user",
                "metadata": {bad: [bad]},
                "parts": [
                    {"type": "text", "text": bad, "providerMetadata": {bad: bad}},
                    {"type": "reasoning", "text": bad},
                    {"type": "file", "mediaType": bad, "url": bad, "filename": bad},
                    {
                        "type": f"tool-{bad}",
                        "toolCallId": bad,
                        "state": "output-error",
                        "input": bad,
                        "errorText": bad,
                    },
                    {"type": f"data-{bad}", "data": {bad: [bad]}},
                ],
            }
        )

        text = json.dumps(message.to_dict(), ensure_ascii=False)

        assert text.encode("utf-8").decode("utf-8").count("x\ufffd") == 17

    def test_values_of_a_users_own_become_json(self):
        """What is seen in this process is what is stored: dates are texts, NaN is a text."""
        at = datetime(2026, 3, 1, tzinfo=UTC)
        part = ToolPart(
            type="tool-x", tool_call_id="c", state="output-available", input={"at": at}, output=float("nan")
        )

        assert (part.input, part.output) == ({"at": "2026-03-01T00:00:00Z"}, "NaN")
        with pytest.raises(ValueError, match="no JSON form"):
            json_value(object())


class Loud(UIMessage):
    """A subclass, as some make for their own helpers."""


class TestAsMessages:
    def test_text_message_dict_and_lists_of_them_are_taken(self):
        """Wherever messages are taken: `str | UIMessage | dict`, alone or in a list."""
        given: list[Any] = [
            "Hello",
            user("Hello"),
            {"role": "user", "parts": [{"type": "text", "text": "Hello"}]},
            {"role": "user", "content": "Hello"},
        ]

        alone = [as_messages(each) for each in given]

        assert [message.text for message in as_messages(given)] == ["Hello"] * 4
        assert [message.text for message in as_messages(tuple(given))] == ["Hello"] * 4
        assert [(len(messages), messages[0].text) for messages in alone] == [(1, "Hello")] * 4
        assert {message.role for message in as_messages(given)} == {"user"}

    def test_messages_are_copied(self):
        """What their owner does to them later changes nothing that was accepted."""
        given = Loud(role="user", parts=[TextPart(text="Hello")], metadata={"a": [1]})
        (taken,) = as_messages(given)

        given.parts[0].text = "Good\ud83cbye"
        given.metadata["a"].append(2)

        assert (taken.text, taken.metadata, taken.id) == ("Hello", {"a": [1]}, given.id)
        assert as_messages(given)[0].text == "Good\ufffdbye"

    def test_content_and_parts_together_mean_the_parts(self):
        """Older clients send both."""
        message = {"role": "user", "content": "old", "parts": [{"type": "text", "text": "new"}]}

        assert as_messages(message)[0].text == "new"

    @pytest.mark.parametrize(
        "given",
        [
            [],
            (),
            "",
            " \n",
            ["Hello", ""],
            {"role": "user", "content": " "},
            {"role": "user", "parts": []},
            UIMessage(role="user", parts=[TextPart(text=" ")]),
        ],
    )
    def test_nothing_to_answer_is_refused(self, given):
        """An empty list, and a user's message that says nothing."""
        with pytest.raises(EmptySubmission):
            as_messages(given)

    def test_a_file_alone_says_something(self):
        """A picture may be the whole question; others than the user may be silent."""
        picture = {"type": "file", "mediaType": "image/png", "url": "data:,"}

        assert (
            len(as_messages([{"role": "user", "parts": [picture]}, {"role": "assistant", "parts": []}])) == 2
        )

    @pytest.mark.parametrize(
        ("given", "path", "problem"),
        [
            (3, "messages", "int is no message and no list"),
            (None, "messages", "NoneType is no message"),
            (b"Hello", "messages", "bytes is no message"),
            ({"Hello"}, "messages", "set is no message"),
            ((text for text in ["Hello"]), "messages", "generator is no message"),
            (["Hello", 3], "messages[1]", "int is no message"),
            ([["Hello"]], "messages[0]", "list is no message"),
            ({"parts": []}, "messages.role", "required"),
            ([{"role": "user"}], "messages[0].parts", "required"),
            ([{"role": "user", "content": [1]}], "messages[0].parts", "required"),
            ({"role": "robot", "content": "x"}, "messages.role", "'user', 'assistant' or 'system'"),
            (
                [{"role": "user", "parts": [{"type": "text", "text": 3}]}],
                "messages[0].parts[0].text",
                "string",
            ),
            (
                ["x", {"role": "assistant", "parts": [{"type": "tool-x", "state": "output-error"}]}],
                "messages[1].parts[0].toolCallId",
                "required",
            ),
            (
                {"role": "user", "content": "x", "created_at": datetime(2026, 1, 1)},
                "messages.created_at",
                "timezone",
            ),
            (
                {"role": "user", "content": "x", "metadata": {"a": object()}},
                "messages.metadata.a",
                "it has no JSON form",
            ),
        ],
    )
    def test_what_is_no_message_is_named_by_its_path(self, given, path, problem):
        """The error shows where it is, and what a message looks like."""
        with pytest.raises(InvalidMessage) as refused:
            as_messages(given)

        assert refused.value.path == path
        assert problem in refused.value.problem
        assert '{"role": "user"' in str(refused.value)

    @pytest.mark.parametrize("given", [lambda: "Hello", [lambda: "Hello"], UIMessage])
    def test_functions_are_refused(self, given):
        """They can't be stored and called later; save_messages takes one, and calls it at once."""
        with pytest.raises(TypeError, match="function"):
            as_messages(given)
