"""Starting, claiming, parking, handing over, ending and resuming workflow runs."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel

from tests.domain.flows import DESK, Desk, Handle, flow, start
from think_celery.domain import lacking
from think_celery.domain.workflows import advance, workflows
from think_celery.errors import (
    AsyncNotSupported,
    InvalidValue,
    NotSerializable,
    PayloadTooLarge,
    UnknownClass,
    WorkflowExists,
)
from think_celery.ids import AgentRef, WorkflowRef, advance_task_id
from think_celery.runtime import Registry
from think_celery.settings import Settings
from think_celery.testing import ThinkTest, think_test
from think_celery.workflow import ThinkWorkflow

T = TypeVar("T")


class Params(BaseModel):
    """What a typed workflow is started with."""

    number: int
    note: str = "none"


@dataclass
class Plain:
    """Params as a dataclass."""

    number: int


class Typed(ThinkWorkflow["Desk", Params]):
    """The agent's class is given as a text."""

    def run(self, event: Any, step: Any) -> Any:
        return [type(event.payload).__name__, event.payload.number, event.payload.note]


class WithDataclass(ThinkWorkflow[Desk, "Plain"]):
    """The params' type is given as a text."""

    def run(self, event: Any, step: Any) -> Any:
        return [type(event.payload).__name__, event.payload.number]


class Base(ThinkWorkflow[Desk, T], Generic[T]):
    """A generic class between."""

    def run(self, event: Any, step: Any) -> Any:
        return type(event.payload).__name__


class Inherited(Base[Params]):
    """Its params' type comes through the class between."""


class Further(Inherited):
    """And is inherited further."""


class Bare(ThinkWorkflow):  # type: ignore[type-arg]
    """Without types."""

    def run(self, event: Any, step: Any) -> Any:
        return [event.payload, event.metadata, event.workflow_id, event.workflow_name, repr(self.agent)]


class TestStart:
    def test_what_a_run_gets(self, t: ThinkTest):
        """A1, A4, A5: params, metadata, ids, the time, and the agent that started it."""
        workflow_id = DESK.run_workflow(Bare, {"a": 1}, metadata={"m": [1]})
        t.run_until_idle()

        assert workflow_id.startswith("wf_")
        assert t.output(Bare, workflow_id) == [{"a": 1}, {"m": [1]}, workflow_id, "Bare", "Desk('front')"]

    @pytest.mark.parametrize(
        ("cls", "params", "output"),
        [
            (Typed, {"number": "7"}, ["Params", 7, "none"]),
            (Typed, Params(number=1, note="x"), ["Params", 1, "x"]),
            (WithDataclass, {"number": 3}, ["Plain", 3]),
            (WithDataclass, Plain(4), ["Plain", 4]),
            (Inherited, {"number": 1}, "Params"),
            (Further, {"number": 1}, "Params"),
            ("Typed", {"number": 2}, ["Params", 2, "none"]),
        ],
    )
    def test_params_are_validated_at_the_start(self, t: ThinkTest, cls: Any, params: Any, output: Any):
        """A1: of the class's params type, whether given as such or as a dict, and whoever names the type."""
        workflow_id = DESK.run_workflow(cls, params)
        t.run_until_idle()

        assert t.output(cls, workflow_id) == output

    @pytest.mark.parametrize(
        ("cls", "params"), [(Typed, {}), (Typed, {"number": "x"}), (Typed, None), (Bare, [1]), (Bare, {1: 2})]
    )
    def test_unfit_params_store_nothing(self, quick: ThinkTest, cls: Any, params: Any):
        """A bad call is an error that names the path; there is no row."""
        with pytest.raises(InvalidValue):
            DESK.run_workflow(cls, params, workflow_id="w1")
        assert workflows.get(quick.rt, workflows.reference(cls, "w1")) is None

    def test_what_can_not_be_stored_stores_nothing(self, sqlite_url: str):
        """Params above the limit, metadata that is no JSON."""
        with think_test(settings=Settings(max_payload=100), database_url=sqlite_url) as t:
            with pytest.raises(PayloadTooLarge):
                DESK.run_workflow(Bare, {"a": "x" * 200}, workflow_id="w1")
            with pytest.raises(PayloadTooLarge):
                DESK.run_workflow(Bare, {}, metadata={"a": "x" * 200}, workflow_id="w1")
            for no_json in (object(), {1}, float("nan")):
                with pytest.raises(NotSerializable):
                    DESK.run_workflow(Bare, {}, metadata={"a": no_json}, workflow_id="w1")
            assert workflows.get(t.rt, workflows.reference(Bare, "w1")) is None

    def test_one_id_is_one_run(self, t: ThinkTest):
        """A5: the same id again gives the same run back, also when it has ended; `on_conflict="raise"` on request."""
        first = DESK.run_workflow(Bare, {"n": 1}, workflow_id="w1")
        again = DESK.run_workflow(Bare, {"n": 2}, workflow_id="w1")
        t.run_until_idle()
        ended = DESK.run_workflow(Bare, {"n": 3}, workflow_id="w1")
        t.run_until_idle()

        assert first == again == ended == "w1"
        assert t.output(Bare, "w1")[0] == {"n": 1}
        with pytest.raises(WorkflowExists):
            DESK.run_workflow(Bare, workflow_id="w1", on_conflict="raise")
        with pytest.raises(ValueError, match="on_conflict"):
            DESK.run_workflow(Bare, workflow_id="w1", on_conflict="replace")

    def test_the_id_is_the_classs(self, t: ThinkTest):
        """Two classes may have runs of one id."""
        DESK.run_workflow(Bare, {}, workflow_id="w1")
        DESK.run_workflow(Typed, {"number": 1}, workflow_id="w1")
        t.run_until_idle()

        assert t.output(Typed, "w1")[1] == 1
        assert t.output(Bare, "w1")[2] == "w1"

    @pytest.mark.parametrize("workflow_id", ["", "x" * 201, "a\nb", 5])
    def test_unfit_ids_are_refused(self, quick: ThinkTest, workflow_id: Any):
        """An id is 1 to 200 printable characters."""
        with pytest.raises(ValueError, match="workflow_id="):
            DESK.run_workflow(Bare, workflow_id=workflow_id)

    def test_an_unknown_name_is_refused(self, quick: ThinkTest):
        """A name that no class has registered: the error lists the known ones."""
        with pytest.raises(UnknownClass, match="Bare"):
            DESK.run_workflow("Missing")

    def test_in_a_joined_transaction(self, t: ThinkTest):
        """It is there if the caller's transaction commits, and is not if that fails."""

        def work(tx, fail):
            with t.rt.db.joining(tx):
                DESK.run_workflow(Bare, workflow_id="w1")
                assert t.workflow(Bare, "w1").status == "queued"
            if fail:
                raise RuntimeError

        with pytest.raises(RuntimeError):
            t.rt.db.transact(lambda tx: work(tx, True))
        assert workflows.get(t.rt, workflows.reference(Bare, "w1")) is None

        t.rt.db.transact(lambda tx: work(tx, False))
        t.run_until_idle()
        assert t.workflow(Bare, "w1").status == "complete"

    @pytest.mark.parametrize(
        ("own", "setting", "queue"), [("gpu", "all", "gpu"), (None, "all", "all"), (None, None, None)]
    )
    def test_its_queue(self, sqlite_url: str, own: Any, setting: Any, queue: Any):
        """The class's queue, else `think_queue`, else Celery's own; stored, and sent with each knock."""
        cls = flow(lambda event, step: None)
        cls.queue = own
        with think_test(settings=Settings(queue=setting), database_url=sqlite_url) as t:
            heard: list[Any] = []
            t.rt.knock = heard.append
            start(t.rt, None)

            assert [knock.queue for knock in heard] == [queue]
            assert workflows.get(t.rt, WorkflowRef("Flow", "w1")).queue == queue


class TestClasses:
    def test_async_run_is_refused_when_the_class_is_made(self):
        """With the remedy."""
        with pytest.raises(AsyncNotSupported, match=r"Later\.run"):

            class Later(ThinkWorkflow):  # type: ignore[type-arg]
                async def run(self, event: Any, step: Any) -> Any:
                    return 1

    @pytest.mark.parametrize("name", ["a:b", "a b", "x" * 201])
    def test_unfit_names_are_refused(self, name: str):
        """A name is part of idempotency keys, whose parts colons tell apart."""
        with pytest.raises(InvalidValue, match="workflow name"):

            class Named(ThinkWorkflow, name=name):  # type: ignore[type-arg]
                pass

    def test_an_unfit_version_is_refused(self):
        """A version is a short text."""
        with pytest.raises(InvalidValue, match="version"):

            class Versioned(ThinkWorkflow):  # type: ignore[type-arg]
                version = 2  # type: ignore[assignment]


class TestKnocks:
    def test_a_knock_names_the_run_and_its_wake(self, t: ThinkTest):
        """The task id is made of id, run and wakes, so a re-knock reuses it; the first is the root."""
        heard: list[Any] = []
        t.rt.knock = heard.append
        workflow = start(t.rt, lambda event, step: step.wait_for_event("a", type="go").payload)
        workflow.advance()
        workflow.send("go")
        first, second = heard

        assert first.kwargs == second.kwargs == {"workflow": "Flow", "workflow_id": "w1"}
        assert first.task_id == first.root_id == second.root_id == advance_task_id(workflow.ref.key, 1, 0)
        assert second.task_id == advance_task_id(workflow.ref.key, 1, 1)

    @pytest.mark.parametrize("status", ["queued", "waiting", "paused", "complete", "missing"])
    def test_a_knock_that_finds_no_work_says_why(self, t: ThinkTest, status: str):
        """Repeated and late knocks change nothing."""
        workflow = start(t.rt, lambda event, step: step.wait_for_event("a", type="go").payload)
        words = {"queued": "parked", "waiting": "waiting", "paused": "paused", "complete": "ended-before"}
        if status != "queued":
            workflow.advance()
        if status == "complete":
            workflow.send("go")
            workflow.advance()
        if status == "paused":
            t.rt.db.transact(
                lambda tx: tx.conn.exec_driver_sql("UPDATE think_workflows SET status = 'paused'")
            )
        if status == "missing":
            workflow = Handle(t.rt, WorkflowRef("Flow", "none"))

        assert workflow.advance().word == words.get(status, "not-found")

    def test_a_class_that_is_not_imported_leaves_the_run_alone(self, t: ThinkTest, caplog, monkeypatch):
        """Not claimed, no attempt counted, the import to add is logged; with it the run goes on."""
        workflow = start(t.rt, lambda event, step: "done")
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(lacking, "workflow_classes", Registry("workflow class"))
            for _ in range(3):
                assert workflow.advance().word == "unknown-class"
                t.skip(3)

        assert (workflow.row.attempts, workflow.status) == (0, "queued")
        assert "think_imports" in caplog.text
        t.skip("1 minute")
        assert workflow.output == "done"

    def test_so_does_an_agent_class_that_is_not_imported(self, t: ThinkTest):
        """The agent that started the run must be known, too: steps call it."""
        flow(lambda event, step: "done")
        workflows.start(t.rt, AgentRef("Nobody", "x"), "Flow", workflow_id="w1")

        assert advance.advance(t.rt, "Flow", "w1").word == "unknown-class"
        assert workflows.get(t.rt, WorkflowRef("Flow", "w1")).attempts == 0

    def test_another_version_is_left_to_a_worker_that_has_it(self, t: ThinkTest, caplog):
        """A run of a version that a worker lacks stays queued; with the old code it goes on."""
        workflow = start(t.rt, lambda event, step: "old")
        flow(lambda event, step: "new", version="2")
        assert workflow.advance().word == "unknown-class"
        assert "version '1'" in caplog.text

        flow(lambda event, step: "old", version="1")
        assert workflow.advance().word == "complete"
        assert workflow.output == "old"
