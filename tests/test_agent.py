"""``Think``: the class that users subclass, its names, its hooks, and the receipts that it gives."""

import json
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pytest

import think_celery
from tests.domain.flows import worker
from think_celery.agents.think import Think
from think_celery.domain.agents import hooks
from think_celery.domain.submissions import claims, submissions
from think_celery.domain.submissions.receipts import Submission
from think_celery.errors import (
    AsyncNotSupported,
    DuplicateName,
    EmptySubmission,
    InvalidTool,
    NoModel,
    NotConfigured,
    UnknownClass,
)
from think_celery.ids import AgentRef
from think_celery.providers.scripted import FunctionModel, ScriptedModel, call, say
from think_celery.runtime import agent_classes, current, set_current
from think_celery.settings import Settings
from think_celery.testing import think_test
from think_celery.tools import tool, tools_of


class Reporter(Think):
    """The agent of these tests."""

    system_prompt = "Be brief."


@pytest.fixture
def t(database_url):
    with think_test(database_url=database_url) as t:
        yield t


@pytest.fixture
def unconfigured():
    before = set_current(None)
    yield
    set_current(before)


def in_module(name: str, source: str) -> ModuleType:
    """A module made of this source."""
    module = ModuleType(name)
    module.__dict__.update(Think=Think, tool=tool)
    exec(source, module.__dict__)
    return module


class TestNames:
    @pytest.mark.parametrize("name", ["issue-42", "a", "ü" * 200, "with a blank", "a/b:c"])
    def test_good_ones(self, name):
        """A name is 1 to 200 printable characters; making the object touches nothing."""
        assert Reporter(name)._ref == AgentRef("Reporter", name)

    @pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "a\x00", "\ud800"])
    def test_bad_ones(self, name):
        """The error quotes the name and states the rule."""
        with pytest.raises(ValueError, match="1 to 200 printable characters"):
            Reporter(name)

    @pytest.mark.parametrize("name", [42, None, ["a"]])
    def test_what_is_no_text(self, name):
        """A primary key is no name; the error says which type was given, and what to pass."""
        with pytest.raises(ValueError, match=r"it is of type .*; pass a text"):
            Reporter(name)

    def test_a_class_under_another_name(self):
        """`name=` is what rows carry; a subclass has a name of its own again."""
        module = in_module("m1", "class A(Think, name='desk'): pass\nclass B(A): pass")

        assert (module.A.agent_class, module.B.agent_class) == ("desk", "B")
        assert agent_classes.get("desk") is module.A
        assert module.A("x")._ref == AgentRef("desk", "x")

    def test_two_classes_of_one_name(self):
        """Two modules with one name: refused at the first use of either, naming both and the remedy."""
        one = in_module("shop.agents", "class Twin(Think): pass")
        two = in_module("mail.agents", "class Twin(Think): pass")

        for module in (one, two):
            with pytest.raises(DuplicateName) as raised:
                module.Twin("x")
            assert all(part in str(raised.value) for part in ("shop.agents", "mail.agents", 'name="…"'))

    def test_a_module_that_defines_it_again(self, t):
        """A reload, or a notebook's cell run twice, replaces the class; its rows run in the new one."""
        source = "class Again(Think):\n    system_prompt = {0!r}"
        old = in_module("nb", source.format("old"))
        handle = old.Again("x")
        in_module("nb", source.format("new"))
        model = t.script("Again", say("Hi"))

        handle.submit_messages("Hello")
        t.run_until_idle()

        assert model.requests[0].system == "new"

    def test_think_itself_is_no_agent(self):
        """The base class can't be found by a worker, so it is refused with the remedy."""
        with pytest.raises(TypeError, match=r"class TriageAgent\(Think\)"):
            Think("x")

    def test_its_repr(self):
        """As one would write it."""
        assert repr(Reporter("issue-42")) == "Reporter('issue-42')"


class TestDefining:
    @pytest.mark.parametrize("hook", ["get_model", "get_system_prompt", "get_tools"])
    def test_async_hooks_are_refused(self, hook):
        """At the class's definition, naming the hook and the remedy."""
        with pytest.raises(AsyncNotSupported, match=f"Late.{hook}.*async_to_sync"):
            in_module("m2", f"class Late(Think):\n    async def {hook}(self): ...")

    def test_inherited_async_hooks_too(self):
        """Also those of a mixin."""
        with pytest.raises(AsyncNotSupported, match=r"Late\.get_tools"):
            in_module("m2", "class Mix:\n    async def get_tools(self): ...\nclass Late(Mix, Think): pass")

    def test_async_tools_are_refused(self):
        """At the class's definition, by the decorator and where a plain tool is overridden."""
        with pytest.raises(AsyncNotSupported, match="look"):
            in_module("m3", "class Late(Think):\n    @tool\n    async def look(self): ...")

    def test_async_overrides_of_tools_are_refused(self):
        """A subclass that overrides a tool with `async def` is refused when it is made."""
        base = "class Base(Think):\n    @tool\n    def look(self): ...\n"
        with pytest.raises(AsyncNotSupported, match="look"):
            in_module("m4", base + "class Late(Base):\n    async def look(self): ...")

    @pytest.mark.parametrize("steps", [0, -1, True, "3", None, 2.5])
    def test_max_steps(self, steps):
        """A number of steps that makes no sense is refused at the definition."""
        with pytest.raises(ValueError, match="1 or more"):
            in_module("m5", f"class Steps(Think):\n    max_steps = {steps!r}")


class TestHooks:
    def test_they_are_asked_anew_for_each_turn(self, t):
        """Prompt and tools may depend on the agent's name and the moment."""
        asked = []

        class Asking(Think):
            @tool
            def own(self) -> str:
                return f"own of {self.name}"

            def get_system_prompt(self) -> str:
                asked.append(self.name)
                return f"You are {self.name}, turn {len(asked)}."

            def get_tools(self) -> Any:
                return [further]

        def further() -> str:
            return "further"

        model = t.script(Asking, [call("own"), call("further")], say("a"), say("b"))
        agent = Asking("x")

        for text in ("1", "2"):
            agent.submit_messages(text)
            t.run_until_idle()

        assert [request.system for request in model.requests] == [
            "You are x, turn 1.",
            "You are x, turn 1.",
            "You are x, turn 2.",
        ]
        assert [spec.name for spec in model.requests[0].tools] == ["own", "further"]
        assert [p.output for p in agent.messages[1].parts if p.type.startswith("tool-")] == [
            "own of x",
            "further",
        ]

    def test_two_tools_of_one_name(self, t):
        """The turn ends in an error that says so; nothing is hidden by the order of definition."""

        class Doubled(Think):
            @tool
            def look(self) -> str:
                return ""

            def get_tools(self) -> Any:
                def look() -> str:
                    return ""

                return [look]

        t.script(Doubled, say("never asked for"))
        submission = Doubled("x").submit_messages("Hi")
        t.run_until_idle()

        done = Doubled("x").inspect_submission(submission.submission_id)
        assert (done.status, done.error_type) == ("error", InvalidTool.__name__)

    def test_a_tool_that_overrides_a_method_of_ours(self):
        """It has our docstring where it has none; a mixin's that comes behind ours is not what would be called."""

        class Mixin:
            @tool
            def queue(self, piece: str) -> str:
                """Queue a piece."""
                return piece

        class Scheduling(Think, Mixin):
            @tool
            def cancel_schedule(self, schedule_id: str) -> bool:
                return super().cancel_schedule(schedule_id)

        (offered,) = tools_of(Scheduling("x"))

        assert offered.description.startswith("End a schedule of this agent")

    def test_the_model_comes_from_the_hook_then_from_the_setting(self, sqlite_url):
        """`get_model` wins over `model`, `model` over `think_model`; a name that can't be resolved is an error."""

        class Modelled(Think):
            model = FunctionModel(lambda request: say("class"))

        class Chosen(Modelled):
            def get_model(self) -> Any:
                return FunctionModel(lambda request: say(f"hook of {self.name}"))

        class Unnamed(Think):
            pass

        with worker(sqlite_url, model="nobody/knows") as rt:
            said = []
            for cls in (Modelled, Chosen, Unnamed):
                agent = cls._bound_to(rt, "x")
                submission = agent.submit_messages("Hi")
                claims.run(rt, submission.submission_id)
                done = agent.inspect_submission(submission.submission_id)
                said.append(done.error or done.message().text)

        assert said[:2] == ["class", "hook of x"]
        assert "nobody/knows" in said[2]

    def test_no_model_at_all(self, sqlite_url):
        """The error says how to name one."""
        with worker(sqlite_url) as rt, pytest.raises(NoModel, match="think_model"):
            hooks.models_of(rt, Reporter("x"))


class TestRuntime:
    def test_not_configured(self, unconfigured):
        """Using an agent before there is a runtime names the two lines to write."""
        with pytest.raises(NotConfigured, match=r"think = ThinkCelery\(celery_app\)"):
            Reporter("x").submit_messages("Hi")
        with pytest.raises(NotConfigured):
            _ = Reporter("x").messages

    def test_bound_agents_work_with_their_own(self, t, sqlite_url):
        """An agent in a turn has its worker's runtime, whatever the process's own is."""
        with worker(sqlite_url) as rt:
            assert Reporter._bound_to(rt, "x")._rt is rt
            assert Reporter("x")._rt is t.rt is current()

    def test_an_unknown_class(self, t):
        """A class that no worker has imported: the row waits, and says so when asked for by name."""
        with pytest.raises(UnknownClass, match="Nobody"):
            t.rt.make_agent("Nobody", "x")


class TestReceipts:
    def test_a_new_one(self, t):
        """B1: what `submit_messages` returns; the request id is the submission id."""
        made = Reporter("x").submit_messages("Hi", idempotency_key="k", metadata={"a": [1, None]})

        assert (made.status, made.accepted, made.same_payload) == ("pending", True, True)
        assert (made.request_id, made.agent) == (made.submission_id, AgentRef("Reporter", "x"))
        assert (made.idempotency_key, made.metadata) == ("k", {"a": [1, None]})
        assert (made.message_id, made.error, made.started_at, made.completed_at) == (None,) * 4
        assert isinstance(made, think_celery.Submission)
        assert made.message() is None

    def test_its_dict(self, t):
        """CamelCase JSON, absent where not set, times in whole milliseconds."""
        agent = Reporter("x")
        t.script(agent, say("Hello"))
        made = agent.submit_messages("Hi", idempotency_key="k", metadata={"a": 1})
        t.run_until_idle()
        done = agent.inspect_submission(made.submission_id)

        assert made.to_dict() == {
            "submissionId": made.submission_id,
            "requestId": made.submission_id,
            "status": "pending",
            "accepted": True,
            "idempotencyKey": "k",
            "metadata": {"a": 1},
            "createdAt": int(made.created_at.timestamp() * 1000),
        }
        receipt = json.loads(json.dumps(done.to_dict()))
        assert (receipt["status"], receipt["messageId"]) == ("completed", done.message_id)
        assert {"startedAt", "completedAt"} <= receipt.keys()
        assert not {"error", "errorType"} & receipt.keys()

    def test_milliseconds_are_exact(self, t):
        """No float rounds a time down."""
        made = Reporter("x").submit_messages("Hi")
        fields = {name: getattr(made, name) for name in Submission.__dataclass_fields__}

        for micro in range(1000, 1_000_000, 7001):
            moment = datetime(2027, 3, 4, 5, 6, 7, micro, tzinfo=UTC)
            receipt = Submission(**{**fields, "created_at": moment}).to_dict()
            assert receipt["createdAt"] % 1000 == micro // 1000

    def test_an_agent_sees_its_own_only(self, t):
        """Inspecting, listing, cancelling and deleting are limited to the agent's own submissions."""
        mine, other = Reporter("mine"), Reporter("other")
        submission = mine.submit_messages("Hi", idempotency_key="k")
        theirs = other.submit_messages("Hi", idempotency_key="k")

        assert other.inspect_submission(submission.submission_id) is None
        assert other.cancel_submission(submission.submission_id) is False
        assert [s.submission_id for s in other.list_submissions()] == [theirs.submission_id]
        assert other.get_submission_by_key("k").submission_id == theirs.submission_id
        assert mine.cancel_submission(submission.submission_id, "no") is True
        assert other.delete_submission(submission.submission_id) is False
        assert other.delete_submissions() == 0
        assert mine.delete_submissions(status="aborted") == 1
        assert mine.inspect_submission(submission.submission_id) is None

    def test_errors_of_the_call(self, t):
        """What can't be accepted raises, and there is no row."""
        agent = Reporter("x")

        with pytest.raises(EmptySubmission):
            agent.submit_messages([])
        with pytest.raises(TypeError):
            agent.submit_messages(lambda messages: messages)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="between 1 and 1000"):
            agent.list_submissions(limit=0)
        with pytest.raises(ValueError, match="pending"):
            agent.list_submissions(status="done")
        assert agent.list_submissions() == []

    def test_queues(self, t):
        """The class's queue is stored with the row, else the setting's, else none."""

        class Queued(Think):
            queue = "gpu"

        made = [cls("x").submit_messages("Hi") for cls in (Queued, Reporter)]

        assert [submissions.get(t.rt, s.submission_id).queue for s in made] == ["gpu", None]

    def test_the_settings_queue(self, sqlite_url):
        """`think_queue` is for classes without one of their own."""
        with think_test(ScriptedModel(), database_url=sqlite_url, settings=Settings(queue="slow")) as t:
            made = Reporter("x").submit_messages("Hi")

            assert submissions.get(t.rt, made.submission_id).queue == "slow"
