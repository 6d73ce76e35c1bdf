"""``step.do``: once, with retries, the same on the first pass and on replay."""

import contextlib
import contextvars
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from tests.domain.flows import begin, flow, start
from think_celery import hosts
from think_celery.errors import (
    AsyncNotSupported,
    NonRetryableError,
    StepError,
    StepMisuse,
    StepTimeout,
)
from think_celery.retries import Retry
from think_celery.runtime import Runtime
from think_celery.settings import Settings
from think_celery.testing import ThinkTest, think_test

ONCE = Retry(max_attempts=1)
SOON = Retry(max_attempts=3, delay=2, backoff="constant")


class PaymentDeclined(NonRetryableError):
    """A card is refused: no retry helps."""


class Receipt(BaseModel):
    """What a step returns."""

    number: int
    paid: Decimal
    day: date


@dataclass
class Line:
    """A plain record."""

    text: str


class TestOnce:
    def test_a_recorded_step_never_runs_again(self, t: ThinkTest):
        """A3, FR-66: what was stored before a wait is returned from storage after it."""
        ran: list[str] = []

        def run(event, step):
            first = step.do("first", lambda: ran.append("first") or 1)
            step.wait_for_event("go", type="go")
            return [first, step.do("second", lambda: ran.append("second") or 2)]

        workflow = begin(t, run)
        workflow.send("go")
        t.run_until_idle()

        assert workflow.output == [1, 2]
        assert ran == ["first", "second"]

    @pytest.mark.parametrize(
        ("point", "times"),
        [("before", 1), ("ran", 2), ("before-commit", 2), ("committed", 1)],
    )
    def test_a_crash_repeats_only_what_was_not_stored(self, t: ThinkTest, point: str, times: int):
        """A worker that dies after the effect and before the commit has it done again, with the same key."""
        keys: list[str] = []

        def run(event, step):
            return step.do("charge", lambda context: keys.append(context.idempotency_key) or len(keys))

        t.crash_at(f"step:charge:{point}")
        workflow = begin(t, run)

        assert t.crashes == [f"step:charge:{point}"]
        assert workflow.output == times
        assert keys == ["Flow:w1:1:charge"] * times

    def test_repeats_of_a_name_are_numbered(self, t: ThinkTest):
        """`step.do` with one name twice runs both; keys count in call order and never collide."""

        def run(event, step):
            return [step.do(name, lambda: object.__name__) for name in ("a", "a#2", "a", "a")]

        workflow = begin(t, run)

        assert [key for key, _ in workflow.keys] == ["a", "a#2", "a#3", "a#4"]

    def test_the_key_of_a_repeat_is_its_own(self, t: ThinkTest):
        """Each call of a step has an idempotency key of its own."""

        def run(event, step):
            return [step.do("charge", lambda context: context.idempotency_key) for _ in range(2)]

        assert begin(t, run).output == ["Flow:w1:1:charge", "Flow:w1:1:charge#2"]

    def test_no_two_steps_share_a_key(self, t: ThinkTest):
        """Ids and names may hold colons: what they make of a key is told apart all the same."""

        def run(event, step):
            return step.do(event.payload["name"], lambda context: context.idempotency_key)

        first = begin(t, run, {"name": "1:charge"}, id="order")
        second = begin(t, run, {"name": "charge"}, id="order:1")

        assert [first.output, second.output] == ["Flow:order:1:1%3Acharge", "Flow:order:1:1:charge"]


class TestValues:
    def test_the_first_pass_gets_what_a_replay_gets(self, t: ThinkTest):
        """A value makes a round trip through the codec on the first pass, too."""
        value = {
            "at": datetime(2027, 1, 2, 3, 4, tzinfo=UTC),
            "day": date(2027, 1, 2),
            "sum": Decimal("1.10"),
            "id": UUID(int=5),
            "raw": b"\x00\xff",
            "receipt": Receipt(number=1, paid=Decimal("2.50"), day=date(2027, 1, 2)),
            "line": Line("a\x00b"),
        }
        seen: list[Any] = []

        def run(event, step):
            got = step.do("value", lambda: value)
            seen.append(got)
            step.wait_for_event("go", type="go")
            return

        workflow = begin(t, run)
        workflow.send("go")
        t.run_until_idle()

        assert seen == [value, value]
        assert seen[0] is not value
        assert seen[0]["line"] is not value["line"]

    @pytest.mark.parametrize("value", [(1, 2), {1, 2}, {1: "a"}, float("nan"), object()])
    def test_what_would_not_come_back_equal_is_refused_at_once(self, t: ThinkTest, value: Any):
        """No retry can mend it, so the step fails after one attempt, naming the path."""
        ran: list[int] = []

        def run(event, step):
            step.do("bad", lambda: ran.append(1) or [value])

        workflow = begin(t, run)

        assert workflow.status == "errored"
        assert workflow.row.error_type == "StepError"
        assert "NotSerializable: the result of step 'bad'[0]" in workflow.row.error
        assert ran == [1]

    def test_a_result_that_is_too_large_fails_for_good(self, sqlite_url: str):
        """A result above `think_max_payload` is a permanent failure: one attempt, and the size in the text."""
        ran: list[int] = []

        def run(event, step):
            try:
                step.do("big", lambda: ran.append(1) or "x" * 2000)
            except StepError as error:
                return [error.error_type, error.attempts]

        with think_test(settings=Settings(max_payload=1000), database_url=sqlite_url) as t:
            assert begin(t, run).output == ["PayloadTooLarge", 1]
        assert ran == [1]

    def test_output_validates_on_the_way_back(self, t: ThinkTest):
        """`output=Model` gives an instance, now and on replay; a result that does not fit fails for good."""
        kinds: list[str] = []

        def run(event, step):
            got = step.do(
                "read", lambda: {"number": "7", "paid": "1.10", "day": "2027-01-02"}, output=Receipt
            )
            kinds.append(f"{type(got).__name__} {got.number!r} {got.paid}")
            step.wait_for_event("go", type="go")
            try:
                step.do("misread", lambda: {"number": "many"}, output=Receipt)
            except StepError as error:
                return [error.error_type, error.attempts, "number" in error.message]

        workflow = begin(t, run)
        workflow.send("go")
        t.run_until_idle()

        assert kinds == ["Receipt 7 1.10"] * 2
        assert workflow.output == ["InvalidValue", 1, True]


class TestRetries:
    def test_attempts_are_counted_and_the_last_error_is_raised(self, t: ThinkTest):
        """FR-67: exactly max_attempts calls, attempt 1, 2, 3, then StepError, the same on replay."""
        attempts: list[int] = []
        seen: list[StepError] = []

        def fail(context):
            attempts.append(context.attempt)
            raise ValueError(f"no {context.attempt}")

        def run(event, step):
            try:
                step.do("flaky", fail, retry=SOON)
            except StepError as error:
                seen.append(error)
            step.wait_for_event("go", type="go")

        workflow = begin(t, run)
        workflow.send("go")
        t.run_until_idle()

        assert attempts == [1, 2, 3]
        assert workflow.status == "complete"
        first, replayed = seen
        assert first.args == replayed.args == ("flaky", "ValueError", "no 3", 3)
        assert first.is_a(ValueError)
        assert not first.is_a(KeyError)
        assert "no 3" in workflow.journal[0].trace

    def test_a_short_wait_is_made_in_place(self, t: ThinkTest):
        """Up to 10 s a retry waits with the worker: one claim, no park."""
        tries: list[float] = []

        def flaky():
            tries.append(t.clock.elapsed())
            if len(tries) < 3:
                raise OSError("down")
            return "up"

        workflow = begin(t, lambda event, step: step.do("call", flaky, retry=SOON))

        assert workflow.output == "up"
        assert [round(at, 6) for at in tries] == [0, 2, 4]
        assert workflow.row.wakes == 0

    def test_a_long_wait_gives_the_worker_back(self, t: ThinkTest):
        """Above 10 s the run parks until the next attempt; attempts are kept."""
        tries: list[tuple[float, int]] = []

        def flaky(context):
            tries.append((t.clock.elapsed(), context.attempt))
            if len(tries) < 2:
                raise OSError("down")
            return "up"

        workflow = begin(t, lambda event, step: step.do("call", flaky, retry=Retry(delay=60)))

        assert workflow.status == "waiting"
        assert workflow.row.process_id is None
        assert workflow.keys == [("call", "retrying")]
        t.skip(59)
        assert len(tries) == 1
        t.skip(2)
        assert workflow.output == "up"
        assert [attempt for _, attempt in tries] == [1, 2]
        assert tries[1][0] == pytest.approx(60, abs=1)

    def test_what_is_usual(self, t: ThinkTest):
        """Without `retry=` six attempts, 10 s apart, then twice as long each time."""
        tries: list[float] = []

        def fail():
            tries.append(t.clock.elapsed())
            raise OSError("down")

        workflow = begin(t, lambda event, step: step.do("call", fail))
        t.skip(400)

        assert tries == pytest.approx([0, 10, 30, 70, 150, 310], abs=1)
        assert workflow.status == "errored"

    @pytest.mark.parametrize(
        ("given", "seconds", "said"),
        [({}, 599, "ok"), ({}, 601, "StepTimeout"), ({"timeout": None}, 601, "ok")],
    )
    def test_an_attempt_has_ten_minutes(self, t: ThinkTest, given: Any, seconds: float, said: str):
        """If not said otherwise; with `timeout=None` as long as it takes."""

        def run(event, step):
            try:
                step.do("call", lambda: t.clock.sleep(seconds), retry=ONCE, **given)
            except StepError as error:
                return error.error_type
            return "ok"

        assert begin(t, run).output == said

    @pytest.mark.parametrize("kind", ["do", "transaction"])
    @pytest.mark.parametrize("tries", [1, 2])
    def test_a_step_began_with_its_first_attempt(self, t: ThinkTest, kind: str, tries: int):
        """Also where that one was given up: in the journal its times span all attempts, and the pauses between."""
        given: dict[str, Any] = {"timeout": 2} if kind == "do" else {}

        def slow(_: Any):
            t.clock.sleep(3)
            if not given:
                raise OSError("down")

        def run(event, step):
            getattr(step, kind)("hang", slow, retry=Retry(max_attempts=tries, delay=1), **given)

        workflow = begin(t, run)

        assert workflow.status == "errored"
        (entry,) = workflow.journal
        seconds = (entry.completed_at - entry.created_at).total_seconds()
        assert entry.created_at - workflow.row.started_at < timedelta(seconds=0.01)
        assert seconds == pytest.approx(3 * tries + (tries - 1), abs=0.3)

    def test_an_event_does_not_shorten_the_wait(self, t: ThinkTest):
        """A run that an event wakes before the next attempt is due parks again."""
        tries: list[int] = []

        def flaky():
            tries.append(1)
            raise OSError("down")

        workflow = begin(t, lambda event, step: step.do("call", flaky, retry=Retry(delay=60)))
        workflow.send("other")
        t.run_until_idle()

        assert workflow.status == "waiting"
        assert tries == [1]

    def test_a_crash_while_waiting_forgets_no_attempt(self, t: ThinkTest):
        """The count of attempts and the due time are in the journal before the wait begins."""
        seen: list[int] = []

        def flaky(context):
            seen.append(context.attempt)
            raise OSError("down")

        t.crash_at("step:call:ran", times=1)
        workflow = begin(t, lambda event, step: step.do("call", flaky, retry=SOON))

        assert seen == [1, 1, 2, 3]
        assert workflow.row.error_type == "StepError"
        assert "3 times" in workflow.row.error

    def test_a_non_retryable_error_ends_it_at_once(self, t: ThinkTest):
        """`NonRetryableError` and its subclasses: one attempt; the class that was raised keeps its name."""

        def decline():
            raise PaymentDeclined("no money")

        def run(event, step):
            try:
                step.do("charge", decline)
            except StepError as error:
                return [error.error_type, error.message, error.attempts, error.is_a(PaymentDeclined)]

        assert begin(t, run).output == ["PaymentDeclined", "no money", 1, True]

    def test_errors_of_any_shape_can_be_stored(self, t: ThinkTest):
        """NUL, half characters, huge texts, a `__str__` that fails, `sys.exit`: each is a failed attempt."""

        class Odd(Exception):
            def __str__(self):
                raise RuntimeError("no text")

        errors: list[BaseException] = [
            ValueError("a\x00b\ud800c"),
            ValueError("x" * 100_000),
            Odd(),
            SystemExit("bye"),
        ]

        def throw(error):
            raise error

        def run(event, step):
            found = []
            for error in errors:
                try:
                    step.do("odd", lambda error=error: throw(error), retry=ONCE)
                except StepError as failure:
                    found.append([failure.error_type, failure.message])
            step.wait_for_event("go", type="go")
            return found

        workflow = begin(t, run)
        workflow.send("go")
        t.run_until_idle()

        (_, first), (_, second), (odd, third), (exit_, fourth) = workflow.output
        assert first == "a\N{SYMBOL FOR NULL}b\N{REPLACEMENT CHARACTER}c"
        assert second.startswith("xxx")
        assert len(second) == 20_000
        assert odd == "Odd"
        assert "can't be made" in third
        assert (exit_, fourth) == ("SystemExit", "bye")


class TestMisuse:
    def test_a_step_inside_a_step_is_refused(self, t: ThinkTest):
        """What an inner step would record has no place: StepMisuse, permanent, and nothing of it runs."""
        ran: list[int] = []

        def run(event, step):
            step.do("outer", lambda: step.do("inner", lambda: ran.append(1)))

        workflow = begin(t, run)

        assert workflow.row.error_type == "StepError"
        assert "StepMisuse" in workflow.row.error
        assert "once" in workflow.row.error
        assert [key for key, _ in workflow.keys] == ["outer"]
        assert ran == []

    def test_another_thread_may_not_ask_for_steps(self, t: ThinkTest):
        """Steps are recorded in the order of run()'s own calls, which threads would shuffle."""
        raised: list[BaseException] = []

        def run(event, step):
            def other():
                try:
                    step.do("x", lambda: 1)
                except StepMisuse as error:
                    raised.append(error)

            thread = threading.Thread(target=other)
            thread.start()
            thread.join()

        workflow = begin(t, run)

        assert "another thread" in str(raised[0])
        assert workflow.keys == []

    @pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 121, 5, None])
    def test_unfit_names_are_refused(self, quick: ThinkTest, name: Any):
        """A step's name is 1 to 120 printable characters."""
        workflow = begin(quick, lambda event, step: step.do(name, lambda: 1))

        assert workflow.row.error_type == "StepMisuse"
        assert workflow.keys == []

    def test_unfit_functions_are_refused_before_anything_runs(self, quick: ThinkTest):
        """Async functions, non-functions, and ones that need arguments which a step can't pass."""

        async def later():
            return 1

        def run(event, step):
            found = []
            for function in (later, 5, lambda a, b: 1, lambda *, a: 1):
                try:
                    step.do("x", function)
                except (AsyncNotSupported, StepMisuse) as error:
                    found.append(type(error).__name__)
            return [*found, step.do("y", lambda a=1, *b, **c: a), step.do("z", int)]

        workflow = begin(quick, run)

        assert workflow.output == ["AsyncNotSupported", "StepMisuse", "StepMisuse", "StepMisuse", 1, 0]


WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who")


def until_gone(thread: int) -> None:
    """Wait for that thread's end."""
    for _ in range(1000):
        if thread not in {one.ident for one in threading.enumerate()}:
            return
        threading.Event().wait(0.01)
    raise AssertionError("the thread is still there")


class TestThreads:
    def test_a_step_that_overruns_is_given_up_and_counts(self, live: Runtime):
        """A function that does not return in time is abandoned; the attempt has failed; its late result is dropped."""
        hang, attempts = threading.Event(), []

        def slow(context):
            attempts.append(context.attempt)
            if context.attempt == 1:
                hang.wait(20)
                return "late"
            return "in time"

        retry = Retry(max_attempts=2, delay=0)
        workflow = start(live, lambda event, step: step.do("slow", slow, timeout=0.2, retry=retry))
        outcome = workflow.advance()
        hang.set()

        assert outcome.word == "complete"
        assert workflow.output == "in time"
        assert attempts == [1, 2]

    def test_its_error_says_so(self, live: Runtime):
        """The recorded type is StepTimeout, and the text says that the function may still be running."""
        hang, caught = threading.Event(), []

        def run(event, step):
            try:
                step.do("slow", lambda: hang.wait(20), timeout=0.1, retry=ONCE)
            except StepError as error:
                caught.append(error)
                raise

        workflow = start(live, run)
        workflow.advance()
        hang.set()

        assert caught[0].is_a(StepTimeout)
        assert workflow.row.error_type == "StepError"
        assert "StepTimeout" in workflow.row.error
        assert "may still be running" in workflow.row.error

    def test_an_abandoned_function_can_ask_for_no_step(self, live: Runtime):
        """A thread that was given up acts for nobody: `step` refuses it."""
        hang, tried, refused = threading.Event(), threading.Event(), []

        def run(event, step):
            def slow():
                hang.wait(20)
                try:
                    step.do("stolen", lambda: 1)
                except StepMisuse as error:
                    refused.append(str(error))
                tried.set()

            try:
                step.do("slow", slow, timeout=0.1, retry=ONCE)
            except StepError:
                hang.set()
                tried.wait(20)

        workflow = start(live, run)
        outcome = workflow.advance()

        assert outcome.word == "complete"
        assert len(refused) == 1
        assert [key for key, _ in workflow.keys] == ["slow"]

    def test_context_variables_are_there(self, live: Runtime):
        """A step function runs in a copy of the caller's context variables, in a thread of its own."""
        WHO.set("me")
        here = threading.get_ident()

        def look():
            seen = [WHO.get(), threading.get_ident() == here]
            WHO.set("you")
            return seen

        workflow = start(
            live, lambda event, step: [step.do("a", look), WHO.get(), step.do("b", look, timeout=None)]
        )
        workflow.advance()

        assert workflow.output == [["me", False], "me", ["me", True]]

    def test_the_steps_of_a_pass_share_a_thread(self, live: Runtime, monkeypatch):
        """It is kept while the run goes on, and ends with the pass; each step has a context of its own, all the same.

        What the host keeps for each thread is closed after each step.
        """
        WHO.set("me")
        closed: list[int] = []
        monkeypatch.setattr(hosts, "_added", [lambda: closed.append(threading.get_ident())])

        def look():
            seen = [threading.get_ident(), WHO.get(), len(closed)]
            WHO.set("you")
            return seen

        workflow = start(live, lambda event, step: [step.do(name, look) for name in "abc"])
        workflow.advance()

        (thread, _, _), *_ = workflow.output
        assert thread != threading.get_ident()
        assert workflow.output == [[thread, "me", 0], [thread, "me", 1], [thread, "me", 2]]
        assert closed == [thread] * 3
        until_gone(thread)

    def test_a_step_that_was_given_up_keeps_the_thread(self, live: Runtime):
        """The next step gets another thread at once; the old one ends when its function returns."""
        hang, kept = threading.Event(), []

        def slow():
            kept.append(threading.get_ident())
            hang.wait(20)

        def run(event, step):
            first = step.do("a", threading.get_ident)
            with contextlib.suppress(StepError):
                step.do("slow", slow, timeout=0.1, retry=ONCE)
            return [first, step.do("b", threading.get_ident)]

        workflow = start(live, run)
        outcome = workflow.advance()
        first, second = workflow.output
        hang.set()

        assert outcome.word == "complete"
        assert [first] == kept
        assert second != first
        until_gone(first)
        until_gone(second)

    def test_celerys_soft_time_limit_hands_over(self, quick: ThinkTest):
        """SoftTimeLimitExceeded counts as SIGTERM: no failed attempt; another worker runs the step."""

        class SoftTimeLimitExceeded(Exception):
            """Named as Celery's is."""

        ran: list[int] = []

        def step_function(context):
            ran.append(context.attempt)
            if len(ran) == 1:
                raise SoftTimeLimitExceeded
            return "done"

        workflow = begin(quick, lambda event, step: step.do("long", step_function))

        assert workflow.output == "done"
        assert ran == [1, 1]
        assert workflow.row.wakes == 1

    def test_an_unknown_result_class_stops_the_run_until_it_is_back(self, quick: ThinkTest):
        """A stored value whose class is gone pauses the run (UnreadableValue); with the class back it goes on."""

        def run(event, step):
            got = step.do("value", lambda: Line("kept"))
            step.wait_for_event("go", type="go")
            return got.text

        workflow = begin(quick, run)
        kept = globals().pop("Line")
        try:
            workflow.send("go")
            quick.run_until_idle()
            assert (workflow.status, workflow.row.error_type) == ("paused", "UnreadableValue")
        finally:
            globals()["Line"] = kept
        from think_celery.domain.workflows import control

        assert control.resume(quick.rt, workflow.ref)
        quick.run_until_idle()
        assert workflow.output == "kept"


def test_flow_replaces_the_one_before(quick: ThinkTest):
    """The helper of these tests: the newest function is the one that runs."""
    flow(lambda event, step: 1)

    assert begin(quick, lambda event, step: 2).output == 2


def test_values_come_back_typed_or_are_refused_by_path(t: ThinkTest):
    """FR-29: what a step, an event and a child return is equal on each pass; a user's own marks are no marks."""
    value = {
        "a": Decimal("1.10"),
        "b": UUID("12345678123456781234567812345678"),
        "c": datetime(2027, 1, 1, 12, tzinfo=UTC),
        "d": timedelta(days=2),
        "e": {"__type__": "datetime", "__value__": "x", "$think": "dict"},
    }
    seen: list[Any] = []

    def run(event, step):
        seen.append(step.do("typed", lambda: value))
        try:
            step.do("refused", lambda: {"d": {1, 2}})
        except StepError as error:
            seen.append((error.error_type, error.attempts, error.message))
        step.sleep("nap", 5)

    begin(t, run)
    t.skip(6)

    assert seen[:2] == seen[2:]
    assert seen[0] == value
    assert {key: type(item) for key, item in seen[2].items()} == {
        key: type(item) for key, item in value.items()
    }
    assert seen[1][:2] == ("NotSerializable", 1)
    assert '["d"]' in seen[1][2]
