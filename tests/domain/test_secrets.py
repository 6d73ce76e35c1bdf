"""What users, models and tools say stands in rows, and in no log record: not where things fail either."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from tests.domain.flows import begin, flow, start
from tests.domain.talk import ask, crash_at_nth, talker
from think_celery.errors import ModelError, NonRetryableError
from think_celery.protocols import ModelRequest
from think_celery.providers.scripted import FunctionModel, call, say
from think_celery.retries import Retry
from think_celery.testing import ThinkTest
from think_celery.tools import tool

SECRET = "tulip-4711"


class Verdict(BaseModel):
    """What a prompt asks for."""

    good: bool


class Words(Exception):
    """An error of the user's code."""


def fail(*_: Any) -> Any:
    """Raise what quotes the secret, after another error that does."""
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        raise Words(f"no {SECRET}") from error


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[..., str]:
    """All that was logged, formatted as handlers do, once it is sure that the secret is not in it."""
    caplog.set_level(logging.DEBUG, "think_celery")

    def said(*needed: str) -> str:
        records = [record for record in caplog.records if record.name.startswith("think_celery")]
        text = "\n".join(logging.Formatter("%(message)s").format(record) for record in records)
        extras = "\n".join(repr(vars(record)) for record in records)
        assert SECRET not in text
        assert SECRET not in extras
        for word in needed:
            assert word in text
        return text

    return said


class TestTurns:
    def test_a_turn_that_goes_well(self, quick: ThinkTest, said: Callable[..., str]):
        """Prompt, metadata, system prompt, arguments, results and answers are in rows only."""

        def look(word: str) -> str:
            return word * 2

        agent = talker(look, system_prompt=SECRET)("a")
        quick.script(agent, [say(SECRET), call("look", {"word": SECRET})], say(SECRET))

        done = ask(quick, agent, SECRET, metadata={"note": SECRET})

        assert SECRET in repr(done.message())
        said("completed")

    @pytest.mark.parametrize("arguments", [{"word": SECRET}, f'{{"word": {SECRET}', {"words": [SECRET]}])
    def test_calls_that_fail(self, quick: ThinkTest, said: Callable[..., str], arguments: Any):
        """The tool raises, its arguments are no JSON, or they don't fit: the model is told, the log is not."""

        @tool(idempotent=False)
        def look(word: str) -> str:
            return str(fail())

        agent = talker(look)("a")
        quick.script(agent, [call("look", arguments), call(SECRET)], say("Sorry"))

        ask(quick, agent)

        said("completed")

    @pytest.mark.parametrize(
        "error", [Words(SECRET), ModelError(SECRET), ModelError(SECRET, retryable=True, status_code=503)]
    )
    def test_a_model_that_fails(self, quick: ThinkTest, said: Callable[..., str], error: Exception):
        """A provider's words may quote the prompt."""

        def answer(request: ModelRequest) -> Any:
            raise error

        agent = talker()("a")
        quick.use_model(FunctionModel(answer))

        done = ask(quick, agent, SECRET)

        assert (done.error_type, done.error) == (type(error).__name__, SECRET)
        said(type(error).__name__)

    def test_a_hook_that_fails(self, quick: ThinkTest, said: Callable[..., str]):
        """Of the user's own error the log has the type, the cause's type and the lines of code."""
        agent = talker(get_system_prompt=fail)("a")
        quick.script(agent, say("Hello"))

        done = ask(quick, agent)

        assert done.error == f"no {SECRET}"
        said("Words", "Caused by KeyError", "test_secrets.py", "in fail")

    def test_a_database_that_refuses_a_row(self, quick: ThinkTest, said: Callable[..., str]):
        """What the driver says quotes the row."""
        with quick.rt.db.engine.begin() as conn:
            conn.exec_driver_sql(
                "CREATE TRIGGER refuse BEFORE INSERT ON think_messages WHEN NEW.role = 'assistant' "
                f"BEGIN SELECT RAISE(ABORT, '{SECRET}'); END"
            )
        agent = talker()("a")
        quick.script(agent, say(SECRET))
        agent.submit_messages(SECRET)

        with pytest.raises(Exception, match=SECRET):
            quick.run_until_idle()

        said()

    def test_a_worker_that_dies(self, quick: ThinkTest, said: Callable[..., str]):
        """Recovery speaks of ids."""
        agent = talker()("a")
        quick.script(agent, say(SECRET), say(SECRET))
        crash_at_nth(quick, "turn:streaming", 1)

        ask(quick, agent, SECRET)

        said("completed")


class TestWorkflows:
    def test_a_run_that_goes_well(self, quick: ThinkTest, said: Callable[..., str]):
        """Params, values of steps, events and the output are in rows only."""

        def run(event: Any, step: Any) -> Any:
            step.do("first", lambda: SECRET)
            step.transaction("second", lambda conn: SECRET)
            return step.wait_for_event("third", type="news").payload

        handle = begin(quick, run, {"word": SECRET}, metadata={"note": SECRET})
        handle.send("news", SECRET)
        quick.run_until_idle()

        assert handle.output == SECRET
        said("Flow('w1') is queued", "Flow('w1') is complete")

    @pytest.mark.parametrize("error", [Words(SECRET), NonRetryableError(SECRET), SystemExit(SECRET)])
    @pytest.mark.parametrize("kind", ["do", "transaction"])
    def test_a_step_that_fails(
        self, quick: ThinkTest, said: Callable[..., str], kind: str, error: BaseException
    ):
        """Neither the attempts nor the end of the workflow quote it; each attempt says where it failed."""

        def effect(_: Any) -> Any:
            raise error

        def run(event: Any, step: Any) -> Any:
            getattr(step, kind)("charge", effect, retry=Retry(max_attempts=2))

        handle = begin(quick, run)
        quick.skip("1 minute")

        assert SECRET in handle.row.error
        said(f"attempt 1 of step 'charge' failed: {type(error).__name__}\n", "test_secrets.py", "in effect")

    @pytest.mark.parametrize("where", ["run", "do", "transaction", "update_agent_state", "child"])
    def test_where_code_failed(self, quick: ThinkTest, caplog: pytest.LogCaptureFixture, where: str):
        """A worker says it once, at the level at which Celery's workers log unless they are told otherwise."""
        caplog.set_level(logging.WARNING)

        def code(event: Any, step: Any) -> Any:
            match where:
                case "run":
                    fail()
                case "update_agent_state":
                    step.update_agent_state(fail)
                case "child":
                    step.run_workflow("child", flow(fail, name="Child"))
            getattr(step, where)("charge", lambda _: fail(), retry=Retry(max_attempts=1))

        handle = begin(quick, code)

        said = "\n".join(record.getMessage() for record in caplog.records)
        assert handle.status == "errored"
        assert said.count("raise Words(") == 1
        assert said.count("in code\n") == 1
        assert said.count("ended in error") == (2 if where == "child" else 1)
        assert SECRET not in said

    def test_code_between_the_steps_that_fails(self, quick: ThinkTest, said: Callable[..., str]):
        """The log has where it was raised; the row has the text."""
        handle = begin(quick, fail)

        assert (handle.row.error_type, handle.row.error) == ("Words", f"no {SECRET}")
        said("raised Words", "Caused by KeyError", "in fail")

    def test_code_that_fails_where_its_journal_goes_on(self, quick: ThinkTest, said: Callable[..., str]):
        """The run is paused for another reason than what the code raised; both are logged by type."""
        passes = []

        def run(event: Any, step: Any) -> Any:
            passes.append(1)
            if len(passes) > 1:
                fail()
            step.do("first", lambda: SECRET)
            step.sleep("second", "1 day")

        handle = begin(quick, run)
        quick.skip("1 day")

        assert handle.status == "paused"
        said("ReplayMismatch", "Words")

    def test_a_decision_that_is_none(self, quick: ThinkTest, said: Callable[..., str]):
        """What came instead of a decision."""
        handle = begin(quick, lambda event, step: step.wait_for_approval("ok"))

        handle.send("approval", {"approved": SECRET, "reason": SECRET})
        quick.run_until_idle()

        assert handle.status == "errored"
        said("StepError")

    def test_a_prompt_whose_turn_fails(self, quick: ThinkTest, said: Callable[..., str]):
        """The news of it goes through the outbox and the inbox."""

        def run(event: Any, step: Any) -> Any:
            return step.prompt("ask", prompt=SECRET, output=Verdict)

        def answer(request: ModelRequest) -> Any:
            raise Words(SECRET)

        quick.use_model(FunctionModel(answer))

        handle = begin(quick, run)

        assert SECRET in handle.row.error
        said("ThinkPromptError")

    def test_a_step_whose_entry_cannot_be_stored(self, quick: ThinkTest, said: Callable[..., str]):
        """What the driver says quotes the entry."""
        with quick.rt.db.engine.begin() as conn:
            conn.exec_driver_sql(
                "CREATE TRIGGER refuse BEFORE INSERT ON think_steps "
                f"BEGIN SELECT RAISE(ABORT, '{SECRET}'); END"
            )
        handle = start(quick.rt, lambda event, step: step.do("first", lambda: SECRET))

        handle.advance()

        said("could not store step 'first': IntegrityError")
