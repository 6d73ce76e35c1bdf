"""Frames that differ in their text alone are not parsed one by one: what comes out is what parsing each would give."""

import json
import random

import pytest

from tests.providers.server import chunk, error_frame, usage
from think_celery.errors import ModelError
from think_celery.protocols import Finish, ReasoningDelta, TextDelta
from think_celery.providers import openai_stream
from think_celery.providers.openai_stream import Answer
from think_celery.providers.sse import ServerSentEvent
from think_celery.providers.toolcalls import UniqueIds

WORDS = (
    *("a", "gpt-test", "content", "assistant", "another text", "chat.completion.chunk", "0", "null", " "),
    *("ß", "日本", "😀", 'say "no"', "back\\slash", "\\", '"', "\n", "two\nlines", "\u2028", "\x7f"),
    *('"}}],"error":{"message":"x"}', "</s>"),
)


def events_of(frames, answer=None):
    answer, events = answer or Answer(UniqueIds()), []
    for frame in frames:
        data = frame if isinstance(frame, str) else json.dumps(frame, ensure_ascii=False)
        events += answer.take(ServerSentEvent("message", data))
    return events


def text_of(events):
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@pytest.fixture
def parsed(monkeypatch):
    """The frames that were parsed."""
    frames = []
    parse = openai_stream.frame_of

    def noted(event):
        frames.append(event.data)
        return parse(event)

    monkeypatch.setattr(openai_stream, "frame_of", noted)
    return frames


def test_frames_that_are_alike_are_parsed_once(parsed):
    """All that differs is the text."""
    events = events_of(chunk({"content": f"word {n} "}) for n in range(100))

    assert text_of(events) == "".join(f"word {n} " for n in range(100))
    assert len(parsed) == 1


@pytest.mark.parametrize("first", WORDS)
def test_each_text_comes_as_it_is(first):
    """Also where the first text stands elsewhere in its frame, and texts with quotes, escapes and line ends."""
    texts = [first, *WORDS, "", *WORDS]

    for ascii_only in (False, True):
        frames = [json.dumps(chunk({"content": text}), ensure_ascii=ascii_only) for text in texts]
        assert text_of(events_of(frames)) == "".join(texts)


def test_what_comes_between_is_seen():
    """Reasoning, the reason for the end, the count of tokens and errors are frames that are not alike."""
    alike = [chunk({"content": text}) for text in ("one ", "two ", "three ")]
    answer = Answer(UniqueIds())

    end = chunk({"content": "four"}, "stop")
    events = events_of([*alike, chunk({"reasoning": "hm"}), *alike, end, usage()], answer)

    assert text_of(events) == "one two three one two three four"
    assert sum(isinstance(event, ReasoningDelta) for event in events) == 1
    finish = answer.end()[-1]
    assert isinstance(finish, Finish)
    assert (finish.reason, finish.usage.total_tokens > 0) == ("stop", True)
    with pytest.raises(ModelError, match="overloaded"):
        events_of([*alike, error_frame()])


def test_a_text_between_two_alike_frames_counts_for_nothing_but_itself():
    """A key that is there twice, and a text where another stands for it, are told apart by trying."""
    twice = '{"choices":[{"index":0,"delta":{"content":"%s","content":"%s"}}]}'
    named = '{"model":"%s","choices":[{"index":0,"delta":{"content":"%s"}}]}'

    for text in ("a", "another text"):
        for frame in (twice, named):
            frames = [frame % (text, text), frame % ("b", text), frame % ("b", "c")]
            assert text_of(events_of(frames)) == f"{text}{text}c"


def test_frames_that_differ_in_more_are_parsed_each(parsed):
    """A server may number its frames, or fill them up with what nobody reads: that costs hardly more than parsing."""
    numbered = [json.dumps({**chunk({"content": "x"}), "created": n}) for n in range(50)]
    filled = [json.dumps({**chunk({"content": "x"}), "obfuscation": "y" * (n % 7)}) for n in range(50)]

    assert text_of(events_of([*numbered, *filled])) == "x" * 100
    assert len(parsed) > 80


def test_any_mixture_gives_what_parsing_each_gives():
    """Whatever was learnt from one frame, each frame says what it says."""
    dice = random.Random(7)
    for _ in range(300):
        texts = [dice.choice(WORDS) * dice.randint(0, 2) for _ in range(dice.randint(1, 12))]
        models = dice.choice((["m"], ["m", "a"], [text or "m" for text in texts]))
        frames = [{**chunk({"content": text}), "model": dice.choice(models)} for text in texts]
        assert text_of(events_of(frames)) == "".join(texts)
