"""How often an answer is read: on the cadence of the live log while it trickles, and at once where it matters."""

import json
import math
import time
from itertools import pairwise

import pytest

from tests.providers.server import DONE, Delay, ModelServer, chunk, text_frames
from think_celery.cadence import CADENCE_SECONDS
from think_celery.clock import SystemClock
from think_celery.messages import user
from think_celery.protocols import Finish, ModelRequest, ModelTimeouts, TextDelta
from think_celery.providers.openai import OpenAIModel
from think_celery.providers.openai_stream import Answer
from think_celery.providers.pace import BURST_BYTES, Pace
from think_celery.providers.reading import Reader
from think_celery.providers.toolcalls import UniqueIds
from think_celery.providers.watchdog import guard
from think_celery.signals import AbortController


def no_limit():
    """The next token may take as long as it likes."""
    return math.inf


class Watch(SystemClock):
    """A clock that is slept on without waiting."""

    def __init__(self):
        self.seconds, self.slept = 1000.0, []

    def elapsed(self):
        return self.seconds

    def sleep(self, seconds, signal=None):
        self.slept.append(seconds)
        self.seconds += seconds


def is_end(frame):
    """Whether it is the frame with the reason for the end."""
    return isinstance(frame, dict) and any(choice.get("finish_reason") for choice in frame["choices"])


@pytest.fixture
def clock():
    return Watch()


@pytest.fixture
def pace(clock):
    """That of an answer that began two seconds ago, a quarter of the way from one instant to the next."""
    pace = Pace(clock)
    pace.begin(no_limit)
    clock.seconds += 2 + CADENCE_SECONDS / 4
    return pace


class TestPace:
    def test_an_answer_that_trickles_is_read_on_the_cadence(self, clock, pace):
        """Each read rests until the next instant, whenever the one before has ended."""
        for spent in (0.0, 0.001, 0.03):
            clock.seconds += spent
            pace.rest()
            pace.took(180)

        assert clock.slept == pytest.approx([0.03, 0.039, 0.01])

    def test_an_answer_that_comes_in_a_burst_is_read_at_once(self, clock, pace):
        """What a read has brought in full is not waited for; when it trickles again, reads rest again."""
        pace.took(BURST_BYTES)
        pace.rest()
        at_once = list(clock.slept)

        pace.took(BURST_BYTES - 1)
        pace.rest()

        assert (at_once, len(clock.slept)) == ([], 1)

    def test_a_rest_is_short_beside_the_answer(self, clock):
        """A twentieth of the time that it has taken, at most: by no more is its end late, for which somebody waits."""
        pace, shares = Pace(clock), []
        pace.begin(no_limit)
        for _ in range(200):
            clock.seconds += 0.003
            began, rests = clock.seconds, len(clock.slept)
            pace.rest()
            shares += [rest / (began - 1000) for rest in clock.slept[rests:]]

        assert shares
        assert max(shares) <= 0.05

    def test_the_end_of_an_answer_is_read_at_once(self, clock):
        """From the reason for its end on: what still comes, such as the count of tokens, nobody is shown."""
        pace, frames = Pace(clock), [*text_frames("Hello"), DONE]
        slept = []

        def chunks():
            for frame in frames:
                yield frame if isinstance(frame, bytes) else b"data: " + json.dumps(frame).encode() + b"\n\n"
                clock.seconds += 2
                pace.rest()
                slept.append(len(clock.slept))

        with guard(lambda: None) as watched:
            events = list(Reader(chunks(), watched, ModelTimeouts(), Answer(UniqueIds()), pace).events())

        finished = next(at for at, frame in enumerate(frames) if is_end(frame))
        assert isinstance(events[-1], Finish)
        assert slept[finished:] == [slept[finished]] * len(slept[finished:])
        assert slept[finished - 1] == slept[finished] > 0

    @pytest.mark.parametrize(("gap", "rests"), [(60.0, True), (0.05, False)])
    def test_a_short_limit_for_the_next_token_is_no_shorter_for_the_rest(self, clock, gap, rests):
        """The watchdog can't see what came during a rest: where a rest would take most of its time, there is none.

        A token that is in time but not yet read would end the answer as overdue.
        """
        pace, slept, seen = Pace(clock), [], []

        def chunks():
            for n in range(5):
                clock.seconds += 2 + CADENCE_SECONDS / 4 - clock.seconds % CADENCE_SECONDS
                pace.rest()
                slept.append(len(clock.slept))
                yield b"data: " + json.dumps(chunk({"content": f"{n} "})).encode() + b"\n\n"

        with guard(lambda: None) as watched:
            reader = Reader(chunks(), watched, ModelTimeouts(token_gap=gap), Answer(UniqueIds()), pace)
            for _ in zip(range(5), reader.events()):  # noqa: B905
                seen.append(watched.left())

        assert seen == [math.inf] * 5, "the time of whoever reads the events is not the provider's"
        assert (slept[-1] > 0) is rests

    def test_a_rest_ends_long_before_the_limit_for_the_next_token(self, clock):
        """Keep-alives are read, too, and are no tokens: the limit comes nearer from one rest to the next."""
        pace, left = Pace(clock), 10.0
        pace.begin(lambda: left)
        clock.seconds += 2 + CADENCE_SECONDS / 4
        pace.rest()
        clock.seconds += CADENCE_SECONDS / 4
        left = 0.05
        pace.rest()

        assert clock.slept == pytest.approx([0.03])

    def test_what_is_no_text_is_read_at_once(self, clock, pace):
        """Before an answer has begun, and after its end, nothing is shown that could wait."""
        pace.end()
        pace.rest()
        Pace(clock).rest()

        assert clock.slept == []


class TestReading:
    def test_an_answer_that_trickles_is_read_in_few_reads(self):
        """Tokens that come faster than listeners are shown anything come several at a time; none is lost."""
        tokens = [piece for n in range(300) for piece in (Delay(0.005), chunk({"content": f"{n} "}))]
        came, words = [], []
        with ModelServer() as server:
            server.script([*tokens, chunk({}, "stop"), DONE])
            model = OpenAIModel("gpt-test", api_key="sk-test", base_url=server.base_url)
            asked = ModelRequest(system=None, messages=[user("Count.")])

            for event in model.stream(asked, AbortController().signal):
                if isinstance(event, TextDelta):
                    words.append(event.text)
                    came.append(time.monotonic())

        waits = sum(after - before > 0.004 for before, after in pairwise(came[-150:]))
        assert words == [f"{n} " for n in range(300)]
        assert waits < 75, "each token of the second half was waited for"
