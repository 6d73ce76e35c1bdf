"""``think_test``: time that hops, work that is done at once, scripts, crashes and lost messages."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from think_celery import Retry, Think, ThinkWorkflow
from think_celery.domain.submissions import submissions
from think_celery.errors import ModelError, NotConfigured, WorkflowError
from think_celery.providers.openai import OpenAIModel
from think_celery.providers.scripted import FunctionModel, ScriptedModel, call, fail, say
from think_celery.runtime import current, set_current
from think_celery.signals import AbortController
from think_celery.store import submissions as submission_rows
from think_celery.testing import FakeClock, SimulatedCrash, think_test


class Archivist(Think):
    def get_tools(self) -> Any:
        return [look]


class Watchman(Think):
    pass


class AfterEnd(ThinkWorkflow):
    def run(self, event: Any, step: Any) -> str:
        return "done"


def look() -> str:
    return "seen"


@pytest.fixture
def t(database_url):
    with think_test(database_url=database_url) as t:
        yield t


def busy(seconds: float) -> Any:
    return fail(ModelError("busy", retryable=True, retry_after_seconds=seconds))


class TestRuntime:
    def test_it_is_the_processs_own_inside(self):
        """Agents need no wiring inside; outside, things are as they were."""
        before = set_current(None)
        try:
            with think_test() as t:
                assert current() is t.rt
            with pytest.raises(NotConfigured):
                current()
        finally:
            set_current(before)

    def test_nested(self):
        """The inner one ends, and the outer one goes on with its own rows."""
        with think_test(ScriptedModel(say("outer"))) as outer:
            Archivist("a").submit_messages("Hi")
            with think_test(ScriptedModel(say("inner"))) as inner:
                assert Archivist("a").messages == []
                Archivist("a").submit_messages("Hi")
                inner.run_until_idle()
                assert Archivist("a").messages[1].text == "inner"
            assert current() is outer.rt
            outer.run_until_idle()

            assert Archivist("a").messages[1].text == "outer"

    def test_it_is_restored_after_an_exception(self):
        """A failing test leaves nothing behind for the next one."""
        with think_test() as outer:
            with pytest.raises(ZeroDivisionError):
                with think_test():
                    raise ZeroDivisionError

            assert current() is outer.rt

    def test_its_files_are_gone_at_the_end(self):
        """The database is temporary, and so is the template that it is copied from."""
        code = (
            "from think_celery.testing import think_test\n"
            "from think_celery import testing\n"
            "with think_test() as t:\n"
            "    print(t.rt.db.url.database)\n"
            "print(testing._template)\n"
        )
        printed = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
        )

        files = [Path(line) for line in printed.stdout.split()]
        assert len(files) == 2
        assert not any(path.parent.exists() for path in files)

    @pytest.mark.parametrize("own", [True, False], ids=["temporary", "given"])
    @pytest.mark.parametrize(
        "call",
        [
            lambda t, _: t.run_until_idle(),
            lambda t, _: t.skip("1 day"),
            lambda t, _: t.steps("w1"),
            lambda t, _: t.replay("w1"),
            lambda t, _: t.workflow(AfterEnd, "w1"),
            lambda t, _: t.output(AfterEnd, "w1"),
            lambda t, _: t.send_event(AfterEnd, "w1", type="go"),
            lambda _, submission: submission.message(),
        ],
    )
    def test_nothing_works_after_its_end(self, own: bool, call: Any, database_url: str):
        """The error says so, and what to do; it is no error of a database whose file is gone."""
        with think_test(database_url=None if own else database_url) as t:
            t.script(Watchman, say("Hello"))
            submission = Watchman("a").submit_messages("Hi")
            Watchman("a").run_workflow(AfterEnd, workflow_id="w1")

        with pytest.raises(AssertionError, match=r"has ended.* Move this call into the block"):
            call(t, submission)

    def test_real_requests_are_forbidden(self):
        """A model on the network is refused, and the turn ends with an error that says what to write."""
        with think_test(
            OpenAIModel("gpt", api_key="sk-0123456789", base_url="https://api.openai.com/v1")
        ) as t:
            submission = Archivist("a").submit_messages("Hi")
            t.run_until_idle()

            done = Archivist("a").inspect_submission(submission.submission_id)

        assert (done.status, done.error_type) == ("error", "NoModel")
        assert "forbidden" in done.error


class TestScripts:
    def test_each_class_has_its_own(self, t):
        """A script is for one class; `think_test(model=…)` and `use_model` are for the others."""
        t.use_model(FunctionModel(lambda request: say("anyone")))
        model = t.script(Archivist, say("clerk"))
        for agent in (Archivist("a"), Watchman("a")):
            agent.submit_messages("Hi")
        t.run_until_idle()

        assert [Archivist("a").messages[1].text, Watchman("a").messages[1].text] == ["clerk", "anyone"]
        assert len(model.requests) == 1

    def test_nothing_scripted(self, t):
        """The turn ends in error, with the line to write."""
        submission = Watchman("a").submit_messages("Hi")
        t.run_until_idle()

        done = Watchman("a").inspect_submission(submission.submission_id)
        assert (done.status, done.error_type) == ("error", "NoModel")
        assert 't.script(Watchman, say("Hello"))' in done.error

    def test_a_script_that_is_too_short(self, t):
        """The error lists what was asked, so the missing answer is easily found."""
        t.script(Archivist, call("look"))
        submission = Archivist("a").submit_messages("Hi there")
        t.run_until_idle()

        done = Archivist("a").inspect_submission(submission.submission_id)
        assert "the script has 1 answers, and this is request 2" in done.error
        assert "Hi there" in done.error


class TestWork:
    def test_run_until_idle_does_all_of_it(self, t):
        """Turns of several agents, and what they lead to, in the order in which they were knocked for."""
        t.use_model(FunctionModel(lambda request: say(request.messages[-1].text.upper())))
        for name in ("a", "b", "a"):
            Watchman(name).submit_messages(name)

        t.run_until_idle()
        t.run_until_idle()

        assert [m.text for m in Watchman("a").messages] == ["a", "A", "a", "A"]
        assert [m.text for m in Watchman("b").messages] == ["b", "B"]

    @pytest.mark.parametrize(("delay", "status"), [(1, "complete"), (9, "complete"), (11, "waiting")])
    def test_what_a_worker_waits_for_itself_is_waited_out(self, t, delay: int, status: str):
        """The next attempt of a step: up to ten seconds later the worker does it, after that whoever is free then."""
        tries: list[Any] = []

        class Twice(ThinkWorkflow):
            def run(self, event: Any, step: Any) -> None:
                step.do("try", self.once, retry=Retry(delay=delay))

            def once(self) -> None:
                tries.append(t.clock.now())
                if len(tries) == 1:
                    raise OSError

        Watchman("a").run_workflow(Twice, workflow_id="w1")
        t.run_until_idle()
        assert t.workflow(Twice, "w1").status == status
        t.skip("1 minute")

        assert (tries[1] - tries[0]).total_seconds() == pytest.approx(delay, abs=0.1)

    def test_lost_messages_cost_only_time(self, t):
        """With every knock thrown away, the tick finds the work."""
        t.script(Watchman, say("Hi"))
        submission = Watchman("a").submit_messages("Hello")

        assert t.lose_messages() == 1
        t.run_until_idle()
        assert Watchman("a").inspect_submission(submission.submission_id).status == "pending"
        t.skip("3 seconds")

        assert Watchman("a").inspect_submission(submission.submission_id).status == "completed"

    def test_a_crash(self, t):
        """The worker dies once at that point, another one goes on; `crashes` lists what happened."""
        t.script(Archivist, call("look"), say("ok"))
        t.crash_at("turn:tool-stored")
        Archivist("a").submit_messages("Hi")

        t.run_until_idle()

        assert t.crashes == ["turn:tool-stored"]
        assert Archivist("a").messages[1].text == "ok"

    def test_a_crash_of_the_caller(self, t):
        """At `submit:committed` it is the test itself that would die; it gets to see that."""
        t.script(Watchman, say("Hi"))
        t.crash_at("submit:committed")

        with pytest.raises(SimulatedCrash):
            Watchman("a").submit_messages("Hello")
        t.skip(5)

        assert Watchman("a").messages[1].text == "Hi"

    def test_no_code_under_test_survives_a_crash(self, t):
        """`except Exception` in a tool does not catch it, and no other call of the step runs on."""
        ran = []

        class Unyielding(Think):
            def get_tools(self) -> Any:
                return [one, two]

        def one() -> str:
            try:
                Watchman("b").submit_messages("Hi")
            except Exception:
                ran.append("caught")
            return "one"

        def two() -> str:
            ran.append("two")
            return "two"

        t.use_model(
            FunctionModel(lambda r: [call("one"), call("two")] if len(r.messages) == 1 else say("ok"))
        )
        Unyielding("a").submit_messages("Go")
        t.crash_at("submit:committed")

        t.run_until_idle()

        assert t.crashes == ["submit:committed"]
        assert ran == []
        assert Unyielding("a").messages[1].text == "ok"


class TestSkip:
    def test_it_hops_to_each_due_instant_in_order(self, t):
        """What falls due on the way is done when it is due, the earliest first, whoever began first."""
        seen = []

        def respond(request: Any) -> Any:
            name = request.messages[0].text
            seen.append((name, t.clock.elapsed()))
            first = [each for each, _ in seen].count(name) == 1
            return busy({"slow": 7200, "quick": 3600}[name]) if first else say("ok")

        t.use_model(FunctionModel(respond))
        for name in ("slow", "quick"):
            Watchman(name).submit_messages(name)

        t.skip("3 days")

        assert [name for name, _ in seen] == ["slow", "quick", "quick", "slow"]
        assert [at // 60 for _, at in seen] == [0, 0, 60, 120]
        assert t.clock.elapsed() == pytest.approx(timedelta(days=3).total_seconds(), abs=2)

    def test_it_stops_where_it_was_told_to(self, t):
        """What is due later waits."""
        t.use_model(FunctionModel(lambda request: busy(3600)))
        Watchman("a").submit_messages("Hi")

        t.skip("59 minutes")

        assert t.clock.elapsed() == 59 * 60
        assert Watchman("a").list_submissions()[0].status == "pending"

    def test_what_can_never_be_done_here(self, t):
        """A row of a class that this process does not know is passed over, not waited for in a circle."""
        t.use_model(FunctionModel(lambda request: busy(3600)))
        submission = Watchman("a").submit_messages("Hi")
        t.run_until_idle()
        table = submission_rows.submissions
        t.rt.db.transact(lambda tx: tx.execute(table.update().values(agent_class="Gone")))

        t.skip("1 day")

        assert submissions.get(t.rt, submission.submission_id).status == "pending"
        assert t.clock.elapsed() >= 86_400

    def test_a_workflow_of_three_days(self, t):
        """A wait of days takes milliseconds; the run wakes at the instant that it waits for."""
        passes = []

        class Waiting(ThinkWorkflow):
            def run(self, event: Any, step: Any) -> Any:
                passes.append(t.clock.elapsed() // 3600)
                step.sleep("nap", "1 day")
                return step.wait_for_event("go", type="go", timeout="3 days").payload

        workflow_id = Watchman("a").run_workflow(Waiting, workflow_id="w")
        t.skip("3 days")
        assert t.workflow(Waiting, "w").status == "waiting"
        t.send_event(Waiting, workflow_id, type="go", payload={"ok": True})
        t.run_until_idle()

        assert t.output(Waiting, "w") == {"ok": True}
        assert passes == [0, 24, 72]

    def test_output_of_what_is_not_complete(self, t):
        """The error says how it stands."""

        class Stuck(ThinkWorkflow):
            def run(self, event: Any, step: Any) -> Any:
                return step.wait_for_event("go", type="go").payload

        Watchman("a").run_workflow(Stuck, workflow_id="w")
        t.run_until_idle()

        with pytest.raises(WorkflowError, match="waiting"):
            t.output(Stuck, "w")


class TestClock:
    def test_it_moves_only_when_told(self):
        """Sleeping moves it at once; a signal that has come, or a negative span, does not move it."""
        clock, controller = FakeClock(), AbortController()
        start = clock.now()
        clock.sleep(5)
        clock.sleep(-3)
        controller.abort()
        clock.sleep(5, controller.signal)

        assert clock.now() - start == timedelta(seconds=5)
        assert clock.elapsed() == 5
        assert clock.database_time is False


def test_a_crash_point_that_is_never_reached_fails_the_test():
    """A misspelled point would make a green test that tested nothing."""

    def misspelled():
        with think_test() as t:
            t.crash_at("turn:nonsense")
            t.run_until_idle()

    with pytest.raises(AssertionError, match="never came to 'turn:nonsense'"):
        misspelled()
