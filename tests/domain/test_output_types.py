"""A13: what JSON Schema can't say of an answer is found in the turn, too, so that the model can answer again."""

import dataclasses
import logging
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

import pytest
from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator
from typing_extensions import TypedDict

from tests.domain.flows import DESK, Desk, begin
from tests.domain.talk import talker
from think_celery.classes import find_loaded, name_if_loaded
from think_celery.domain.submissions import claims, submissions
from think_celery.messages import as_messages
from think_celery.providers.scripted import FunctionModel, answer
from think_celery.schemas import loaded_output, output_schema
from think_celery.testing import ThinkTest

Item = TypeVar("Item")


class Day(BaseModel):
    v: date


class Moment(BaseModel):
    v: datetime


class Hour(BaseModel):
    v: time


class Span(BaseModel):
    v: timedelta


class Ident(BaseModel):
    v: UUID


class Positive(BaseModel):
    v: Decimal = Field(gt=0)


class Cents(BaseModel):
    v: Decimal = Field(decimal_places=2, max_digits=4)


class Short(BaseModel):
    v: str

    @field_validator("v")
    @classmethod
    def short(cls, v: str) -> str:
        if len(v) > 3:
            raise ValueError("longer than 3")
        return v


class Stay(BaseModel):
    v: date
    until: date = date(2027, 12, 31)

    @model_validator(mode="after")
    def in_order(self) -> "Stay":
        if self.v > self.until:
            raise ValueError("it ends before it begins")
        return self


@dataclasses.dataclass
class Dated:
    v: date


class Typed(TypedDict):
    v: date


class Human(BaseModel):
    """It reads more than the format that its schema names."""

    v: Annotated[date, BeforeValidator(lambda v: "2027-01-01" if v == "tomorrow" else v)]


class Several(BaseModel):
    v: date
    n: int
    parts: list[Short]


class Buggy(BaseModel):
    v: str

    @field_validator("v")
    @classmethod
    def look_up(cls, v: str) -> str:
        return {"known": v}[v]


class Slow(BaseModel):
    v: str

    @field_validator("v")
    @classmethod
    def look_up(cls, v: str) -> str:
        entered.set()
        release.wait(20)
        return v


class Box(BaseModel, Generic[Item]):
    v: Item


entered, release = threading.Event(), threading.Event()

DAY = date(2027, 1, 1)
CASES = [
    (Day, "tomorrow", "2027-01-01", DAY),
    (Day, "2027-02-30", "2027-02-28", date(2027, 2, 28)),
    (Moment, "noon", "2027-01-01T12:00:00Z", datetime(2027, 1, 1, 12, tzinfo=UTC)),
    (Hour, "25:00", "23:00:00", time(23)),
    (Span, "a while", "PT90S", timedelta(seconds=90)),
    (Ident, "7", "12345678-1234-5678-1234-567812345678", UUID("12345678-1234-5678-1234-567812345678")),
    (Positive, "-1", "1.10", Decimal("1.10")),
    (Positive, -1, 1.5, Decimal("1.5")),
    (Cents, "1.123", "1.12", Decimal("1.12")),
    (Cents, "123.45", "12.34", Decimal("12.34")),
    (Short, "long", "abc", "abc"),
    (Stay, "2028-01-01", "2027-01-01", DAY),
    (Dated, "tomorrow", "2027-01-01", DAY),
    (Typed, "tomorrow", "2027-01-01", DAY),
    (Human, "someday", "tomorrow", DAY),
]
IDS = [f"{case[0].__name__}-{case[1]}" for case in CASES]


def read(found: Any) -> Any:
    return found["v"] if isinstance(found, dict) else found.v


def prompted(t: ThinkTest, output: Any, *answers: Any, **options: Any) -> Any:
    """A workflow that asks once for such an output: what it got or raised, the model, and the submission."""
    seen: list[Any] = []

    def run(event: Any, step: Any) -> None:
        try:
            seen.append(step.prompt("x", prompt="When?", output=output, **options))
        except Exception as error:
            seen.append(error)

    model = t.script(Desk, *answers)
    begin(t, run)
    (found,) = seen
    (row,) = submissions.find(t.rt, DESK._ref)
    return found, model, DESK.inspect_submission(row.id)


class TestAnsweringAgain:
    @pytest.mark.parametrize(("output", "bad", "good", "value"), CASES, ids=IDS)
    def test_the_model_sees_it(self, t: ThinkTest, output: Any, bad: Any, good: Any, value: Any) -> None:
        """With a retry the second answer is the workflow's, as the type that was asked for."""
        found, model, done = prompted(t, output, answer({"v": bad}), answer({"v": good}), output_retries=1)

        assert (read(found), type(read(found))) == (value, type(value))
        assert (str(done.status), len(model.requests)) == ("completed", 2)
        assert "It does not fit: " in str(model.requests[1].messages)

    @pytest.mark.parametrize(("output", "bad"), [case[:2] for case in CASES], ids=IDS)
    def test_without_retries_the_turn_fails(self, quick: ThinkTest, output: Any, bad: Any) -> None:
        """The submission is in error, not completed; the workflow's error names the path."""
        found, model, done = prompted(quick, output, answer({"v": bad}))

        assert (str(done.status), done.error_type) == ("error", "InvalidFinalAnswer")
        assert (type(found).__name__, len(model.requests)) == ("ThinkPromptValidationError", 1)
        assert ("(the whole): " if bad == "2028-01-01" else " v: ") in str(found)
        assert "asked once; step.prompt(output_retries=…)" in str(found)

    def test_all_problems_at_once(self, quick: ThinkTest) -> None:
        """What the schema and what the type find, each once."""
        bad = {"v": "tomorrow", "n": "x", "parts": [{"v": "abc"}, {"v": "long"}, {}]}

        found, *_ = prompted(quick, Several, answer(bad))

        assert "n: 'x' is not of type 'integer'; parts[2]: 'v' is a required property; v: Input" in str(found)
        assert "; parts[1].v: Value error, longer than 3." in str(found)

    def test_used_up(self, quick: ThinkTest) -> None:
        """The error says how often the model was asked, and what bounds it."""
        found, model, _ = prompted(
            quick, Day, *[answer({"v": "tomorrow"})] * 3, answer({"v": "2027-01-01"}), output_retries=2
        )

        assert len(model.requests) == 3
        assert "(it was asked 3 times, as often as output_retries and max_steps allow): v: " in str(found)

    def test_an_empty_answer(self, quick: ThinkTest) -> None:
        """It is checked as an object without fields."""
        found, *_ = prompted(quick, Day, answer(""), answer({"v": "2027-01-01"}), output_retries=1)

        assert found == Day(v=DAY)

    def test_nothing_of_it_is_logged(self, quick: ThinkTest, caplog: pytest.LogCaptureFixture) -> None:
        """Neither the answer nor what a validator says of it."""
        with caplog.at_level(logging.DEBUG):
            prompted(quick, Buggy, answer({"v": "sesame"}), answer({"v": "sesame"}), output_retries=1)

        assert "refused" in caplog.text
        assert "sesame" not in caplog.text


class TestUsersValidators:
    def test_one_with_a_fault(self, t: ThinkTest) -> None:
        """What it raises beside a ValidationError is a problem of the answer, as where the workflow reads it."""
        found, model, _ = prompted(t, Buggy, answer({"v": "x"}), answer({"v": "known"}), output_retries=1)

        assert found == Buggy(v="known")
        assert "its validation failed: KeyError" in str(model.requests[1].messages)

    def test_one_that_hangs(self, live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is given up like a hook: a cancel ends the turn."""
        monkeypatch.setattr("think_celery.domain.calls.GRACE_SECONDS", 0.05)
        entered.clear()
        release.clear()
        agent = talker(get_model=lambda self: FunctionModel(lambda r: answer({"v": "x"})))("slow")
        structure = {"schema": output_schema(Slow), "output": name_if_loaded(Slow)}
        row, _ = live.db.transact(
            lambda tx: submissions.accept(
                live, tx, agent._ref, as_messages("Go"), kind="submit", structure=structure
            )
        )
        with ThreadPoolExecutor() as pool:
            turn = pool.submit(claims.run, live, row.id)
            assert entered.wait(10)
            live.db.transact(lambda tx: submissions.cancel(live, tx, row.id, "enough"))
            live.monitor.beat()
            outcome = turn.result(20)
            release.set()

        assert outcome.word == "aborted"


class TestWhichTypeDecides:
    def test_one_of_a_function_is_not_known_there(self, quick: ThinkTest) -> None:
        """The schema decides alone, with the formats that it names; the rest is found where the workflow reads it."""

        class Local(Stay):
            """Another process could not import it."""

        bad, late, good = ({"v": v} for v in ("tomorrow", "2028-01-01", "2027-01-01"))
        found, model, done = prompted(quick, Local, answer(bad), answer(late), answer(good), output_retries=2)

        assert (str(done.status), len(model.requests)) == ("completed", 2)
        assert "v: 'tomorrow' is not a 'date'" in str(model.requests[1].messages)
        assert type(found).__name__ == "ThinkPromptValidationError"
        assert "it ends before it begins" in str(found)

    def test_the_one_of_today(self, t: ThinkTest, monkeypatch: pytest.MonkeyPatch) -> None:
        """After a deploy the turn checks with the class that this worker has, beside the stored schema."""

        class Later(Short):
            @field_validator("v")
            @classmethod
            def known(cls, v: str) -> str:
                if v != "new":
                    raise ValueError("not new")
                return v

        structure = {"schema": output_schema(Short), "output": name_if_loaded(Short), "output_retries": 1}
        row, _ = t.rt.db.transact(
            lambda tx: submissions.accept(
                t.rt, tx, DESK._ref, as_messages("?"), kind="submit", structure=structure
            )
        )
        monkeypatch.setattr(sys.modules[__name__], "Short", Later)
        model = t.script(Desk, answer({"v": "old"}), answer({"v": "new"}))
        t.run_until_idle()

        assert "v: Value error, not new" in str(model.requests[1].messages)
        done = DESK.inspect_submission(row.id)
        assert done is not None
        assert str(done.status) == "completed"

    @pytest.mark.parametrize(
        "stored", ["no.such.module:Day", f"{__name__}:Nothing", f"{__name__}:CASES", "x"]
    )
    def test_one_that_is_gone_fails_no_turn(self, quick: ThinkTest, stored: str) -> None:
        """Nothing is imported for it; the stored schema decides."""
        assert loaded_output(stored, output_schema(Day)) is None
        assert "no.such.module" not in sys.modules

    def test_what_is_stored(self) -> None:
        """The name of a class that it leads back to, and of nothing else."""

        class Local(BaseModel):
            v: int

        assert name_if_loaded(Day) == f"{__name__}:Day"
        assert [name_if_loaded(each) for each in (Local, Box[int], list[int], 7, None)] == [None] * 5
        assert find_loaded(f"{__name__}:Day") is Day

    def test_no_code_of_a_module_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One that makes its names when they are asked for is not asked."""
        module = types.ModuleType("lazy_outputs")
        module.__getattr__ = lambda name: pytest.fail("it was asked")  # type: ignore[method-assign]
        monkeypatch.setitem(sys.modules, "lazy_outputs", module)

        assert find_loaded("lazy_outputs:Day") is None

    def test_the_started_scripts_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A class of ``__main__`` counts in a process whose ``__main__`` has the very same, and in no other."""
        main = sys.modules["__main__"]
        here = type("Mine", (BaseModel,), {"__module__": "__main__", "__annotations__": {"v": date}})
        monkeypatch.setattr(main, "Mine", here, raising=False)
        stored = name_if_loaded(here)

        assert stored == "__main__:Mine"
        assert loaded_output(stored, output_schema(here)) is here
        assert loaded_output(stored, output_schema(Short)) is None
