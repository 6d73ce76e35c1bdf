"""Tool calls out of fragments, beyond what an orderly server sends."""

import json
from typing import Any

import pytest

from think_celery.errors import ModelError
from think_celery.providers.toolcalls import Joiner, ToolCalls, UniqueIds


def assemble(*fragments: dict[str, Any], taken: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    """Id, name and arguments of the calls that these fragments make."""
    calls = ToolCalls(UniqueIds(taken))
    for fragment in fragments:
        calls.add(fragment)
    return [(call.tool_call_id, call.name, call.arguments) for call in calls.complete(cut_short=False)]


def frag(
    index: int | None = None, call_id: str | None = None, name: str | None = None, arguments: Any = ""
) -> Any:
    fragment: dict[str, Any] = {"function": {"name": name, "arguments": arguments}, "id": call_id}
    return fragment if index is None else {**fragment, "index": index}


class TestWhichCall:
    def test_a_lone_open_call_takes_what_says_nothing(self):
        """FR-69: arguments on an unknown index without an id belong to the only open call."""
        assert assemble(frag(0, "a", "w", '{"x"'), frag(5, arguments=":1}")) == [("a", "w", '{"x":1}')]
        assert assemble(frag(0, "a", "w", "{}"), frag(1, "b", "w", '{"x"'), frag(None, arguments=":1}")) == [
            ("a", "w", "{}"),
            ("b", "w", '{"x":1}'),
        ]

    def test_where_several_are_open_it_is_an_error(self):
        """FR-69: and so it is where none has begun; both may be retried."""
        for fragments in (
            [frag(0, "a", "w", "{"), frag(1, "b", "w", "{"), frag(2, arguments="}")],
            [frag(0)],
        ):
            with pytest.raises(ModelError) as failed:
                assemble(*fragments)
            assert failed.value.retryable

    def test_an_index_that_is_used_again(self):
        """Servers that send every call under index 0: another id, with a name, is another call."""
        assert assemble(
            frag(0, "a", "v", '{"x":1}'), frag(0, "b", "w", '{"y"'), frag(0, arguments=":2}")
        ) == [("a", "v", '{"x":1}'), ("b", "w", '{"y":2}')]

    def test_an_id_and_name_that_are_repeated_in_each_fragment(self):
        """Other servers repeat both all the way: one call."""
        assert assemble(frag(0, "a", "w", '{"x"'), frag(0, "a", "w", ":1}"), frag(0, "a", "w", "")) == [
            ("a", "w", '{"x":1}')
        ]

    def test_a_new_id_in_each_fragment_without_a_name(self):
        """A few make up an id per fragment; the index and the missing name say that it is one call."""
        assert assemble(frag(0, "a", "w", '{"x"'), frag(0, "b", None, ":1}")) == [("a", "w", '{"x":1}')]

    def test_no_index_at_all(self):
        """The id tells the calls apart, and without one the name begins a call."""
        assert assemble(
            frag(None, "a", "w", '{"x"'), frag(None, "b", "w", "{}"), frag(None, "a", None, ":1}")
        ) == [("a", "w", '{"x":1}'), ("b", "w", "{}")]
        assert [call[1:] for call in assemble(frag(None, None, "v", "{}"), frag(None, None, "w", "{}"))] == [
            ("v", "{}"),
            ("w", "{}"),
        ]

    def test_a_name_that_comes_late(self):
        """Nothing is told before the call has a name; then all that came before."""
        calls = ToolCalls(UniqueIds())

        assert calls.add(frag(0, "a", None, '{"x"')) is None
        delta = calls.add(frag(0, None, "w", ":1}"))

        assert delta is not None
        assert (delta.name, delta.arguments) == ("w", '{"x":1}')

    def test_a_call_without_a_name_is_an_error(self):
        """There is nothing to run, and nothing to leave out silently."""
        with pytest.raises(ModelError, match="without a name"):
            assemble(frag(0, "a", None, "{}"))


class TestIds:
    def test_two_calls_with_the_same_id_both_count(self):
        """FR-70: by index, or by a second whole text of arguments; the second id is changed."""
        expected = [("c", "w", '{"x":1}'), ("c_2", "w", '{"x":2}')]

        assert assemble(frag(0, "c", "w", '{"x":1}'), frag(1, "c", "w", '{"x":2}')) == expected
        assert assemble(frag(None, "c", "w", '{"x":1}'), frag(None, "c", "w", '{"x":2}')) == expected

    def test_an_id_of_an_earlier_turn_is_changed(self):
        """FR-70: two rounds that both say call_0 are two calls."""
        assert assemble(frag(0, "call_0", "w", "{}"), taken=("call_0", "call_0_2")) == [
            ("call_0_3", "w", "{}")
        ]

    def test_a_missing_id_is_made(self):
        """FR-70: unique, and short enough for every server."""
        calls = assemble(frag(0, "", "w", "{}"), frag(1, None, "w", "{}"))

        ids = {call_id for call_id, _, _ in calls}
        assert len(ids) == 2
        assert all(0 < len(call_id) <= 40 for call_id in ids)


class TestTexts:
    def test_a_pair_of_surrogates_in_two_fragments(self):
        """FR-37: one character in the end, whether as characters or as escapes in the JSON text."""
        halves = assemble(frag(0, "a", "w", '{"x":"\ud83c'), frag(0, None, None, '\udf78"}'))
        escapes = assemble(frag(0, "a", "w", '{"x":"\\ud83c'), frag(0, None, None, '\\udf78"}'))

        assert json.loads(halves[0][2]) == json.loads(escapes[0][2]) == {"x": "\U0001f378"}

    def test_a_half_that_stays_alone_is_replaced(self):
        """Neither a database nor a request could carry it."""
        joiner = Joiner()

        assert joiner.feed("a\ud83c") == "a"
        assert joiner.feed("b\ud83c") == "\ufffdb"
        assert joiner.end() == "\ufffd"
        assert joiner.end() == ""
