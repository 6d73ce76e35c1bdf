"""Lists: filters, pages, and a cursor whose order stays."""

import base64
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import pytest
from sqlalchemy import select

from tests.domain.flows import DESK, Desk, flow
from think_celery import Fiber, Page, Think, current
from think_celery.domain.workflows import listing, workflows
from think_celery.errors import InvalidValue, NotSerializable
from think_celery.providers.scripted import ScriptedModel, say
from think_celery.store import tables
from think_celery.store.database import Tx
from think_celery.testing import ThinkTest


def make(t: ThinkTest, name: str, agent: Desk = DESK, metadata: Any = None, workflow: str = "Flow") -> None:
    workflows.start(t.rt, agent._ref, workflow, workflow_id=name, metadata=metadata)


def ids(page: Any) -> list[str]:
    return [run.workflow_id for run in page]


@pytest.fixture(autouse=True)
def _flows() -> None:
    flow(lambda event, step: step.wait_for_event("a", type="go").payload)
    flow(lambda event, step: "done", name="Quick")


class TestPages:
    def test_newest_first_and_each_once(self, t: ThinkTest):
        """A26. Pages of any size give the same list, also where many began at one moment, and while others begin."""
        for number in range(7):
            make(t, f"w{number}")
            if number % 3 == 0:
                t.skip(1)
        whole = DESK.get_workflows()
        assert (len(whole), whole.cursor) == (7, None)
        assert [set(ids(whole)[:3]), set(ids(whole)[3:6]), ids(whole)[6]] == [
            {"w4", "w5", "w6"},
            {"w1", "w2", "w3"},
            "w0",
        ]

        for size in (1, 2, 3, 7, 1000):
            seen, cursor = [], None
            while True:
                page = DESK.get_workflows(limit=size, cursor=cursor)
                seen += ids(page)
                cursor = page.cursor
                if cursor is None:
                    break
                assert len(page) == size
            assert seen == ids(whole)

        first = DESK.get_workflows(limit=2)
        t.skip(1)
        make(t, "late")
        DESK.delete_workflow(first[1].workflow_id)
        assert ids(DESK.get_workflows(cursor=first.cursor)) == ids(whole)[2:]
        assert ids(first[:1]) == ids(whole)[:1]

    def test_a_restart_keeps_its_place(self, t: ThinkTest):
        """The order is that of the first start, so nothing moves while somebody reads."""
        make(t, "old")
        t.skip(1)
        make(t, "new")
        DESK.restart_workflow("old")

        assert ids(DESK.get_workflows()) == ["new", "old"]

    @pytest.mark.parametrize("cursor", ["", "x", "!!", "MTIzOmFi", 7, "MTIzNDU2Nzg5MDEyMzQ1Njc4OTA6YQ=="])
    def test_what_is_no_cursor(self, quick: ThinkTest, cursor: Any):
        """It says so, and what to pass."""
        with pytest.raises(InvalidValue, match="Pass the cursor of the page before"):
            DESK.get_workflows(cursor=cursor)

    @pytest.mark.parametrize("limit", [0, -1, 1001, True, "5"])
    def test_what_is_no_limit(self, quick: ThinkTest, limit: Any):
        """From 1 to 1000."""
        with pytest.raises(InvalidValue, match="between 1 and 1000"):
            DESK.get_workflows(limit=limit)


class Lister(Think):
    """Has some of everything that is listed."""

    model = ScriptedModel([say("a"), say("b"), say("c"), say("d"), say("e")])

    def work(self, payload: Any = None) -> None:
        """What is queued and scheduled."""

    def walk(self, fiber: Fiber, payload: Any = None) -> None:
        """What fibers run."""


def five_of_each(t: ThinkTest) -> Lister:
    """Five submissions, queued calls and fibers; five schedules, of which two come at one instant."""
    lister = Lister("a")
    for number in range(5):
        lister.submit_messages("hello")
        lister.queue(lister.work, number)
        lister.start_fiber(lister.walk)
    for hours in (3, 1, 2, 2, 4):
        lister.schedule(timedelta(hours=hours), lister.work, hours, idempotent=False)
    return lister


class TestEveryList:
    """Submissions, jobs, fibers, schedules and slots are given in pages, as workflows are."""

    LISTS: ClassVar[dict[str, Callable[[Lister], Callable[..., Page[Any]]]]] = {
        "submissions": lambda agent: agent.list_submissions,
        "jobs": lambda agent: agent.list_jobs,
        "jobs of all": lambda agent: current().list_jobs,
        "fibers": lambda agent: agent.list_fibers,
        "schedules": lambda agent: agent.list_schedules,
        "schedules of all": lambda agent: current().list_schedules,
    }

    @pytest.mark.parametrize("which", LISTS)
    def test_pages_of_any_size_give_the_same_list(self, t: ThinkTest, which: str):
        """Each once and in its order; the last page has no cursor."""
        lists = self.LISTS[which](five_of_each(t))
        whole = lists()

        for size in (1, 2, 5, 1000):
            seen, page = list[Any](), lists(limit=size)
            while page.cursor is not None:
                assert len(page) == size
                seen += page
                page = lists(limit=size, cursor=page.cursor)
            assert page
            assert [*seen, *page] == whole
        assert len(whole) >= 5

    def test_those_that_have_ended(self, t: ThinkTest):
        """The latest first, as without pages."""
        lister = five_of_each(t)
        for schedule in lister.list_schedules():
            lister.cancel_schedule(schedule.schedule_id)
        first = lister.list_schedules(ended=True, limit=3)

        assert [*first, *lister.list_schedules(ended=True, cursor=first.cursor)] == lister.list_schedules(
            ended=True
        )

    def test_slots(self, t: ThinkTest):
        """The slots of a schedule that have come, in pages."""
        lister = Lister("b")
        beat = lister.schedule_every(60, lister.work)
        for _ in range(5):
            t.skip(60)
            t.run_until_idle()
        whole = lister.list_slots(beat.schedule_id)
        first = current().list_slots(beat.schedule_id, limit=2)

        assert len(whole) == 5
        assert [*first, *lister.list_slots(beat.schedule_id, cursor=first.cursor)] == whole

    def test_what_comes_meanwhile_moves_nothing(self, t: ThinkTest):
        """A page goes on behind the one before, whatever was added or deleted."""
        lister = five_of_each(t)
        whole = lister.list_jobs(kind="queue")
        first = lister.list_jobs(kind="queue", limit=2)
        lister.queue(lister.work, "late")
        lister.delete_job(first[1].job_id)

        assert lister.list_jobs(kind="queue", cursor=first.cursor) == whole[2:]

    @pytest.mark.parametrize("cursor", ["", "x", "MQ==", 7])
    @pytest.mark.parametrize("which", LISTS)
    def test_what_is_no_cursor(self, quick: ThinkTest, which: str, cursor: Any):
        """It says so, whichever list it is."""
        with pytest.raises(InvalidValue, match="Pass the cursor of the page before"):
            self.LISTS[which](Lister("a"))(cursor=cursor)

    @pytest.mark.parametrize("where", ["-1", "9223372036854775808", "x", "1:2", ""])
    @pytest.mark.parametrize("which", ["submissions", "jobs"])
    def test_a_cursor_of_the_list_that_names_no_place(self, quick: ThinkTest, which: str, where: str):
        """A number before the first, or too great for the database, and what is none."""
        cursor = base64.urlsafe_b64encode(f"{which}:{where}".encode()).decode()
        with pytest.raises(InvalidValue, match="Pass the cursor of the page before"):
            self.LISTS[which](Lister("a"))(cursor=cursor)

    def test_the_cursor_of_another_list(self, t: ThinkTest):
        """It is refused, also where the other's rows are numbered, or ordered by time, as well."""
        lister = five_of_each(t)
        beat = lister.schedule_every(60, lister.work)
        for name in "ab":
            make(t, name, Lister("a"))  # type: ignore[arg-type]
            t.skip(60)
        for schedule in lister.list_schedules(limit=3):
            lister.cancel_schedule(schedule.schedule_id)
        lists: list[Callable[..., Page[Any]]] = [
            lister.list_submissions,
            lister.list_jobs,
            lister.list_schedules,
            partial(lister.list_schedules, ended=True),
            partial(lister.list_slots, beat.schedule_id),
            lister.get_workflows,
        ]
        cursors = [each(limit=1).cursor for each in lists]

        assert None not in cursors
        for mine, each in enumerate(lists):
            for other, cursor in enumerate(cursors):
                if mine == other:
                    assert each(limit=1, cursor=cursor)
                    continue
                with pytest.raises(InvalidValue, match="no cursor of this list"):
                    each(cursor=cursor)


class TestFilters:
    def test_by_status_class_and_agent(self, t: ThinkTest):
        """An agent's own; by id, those of all."""
        make(t, "waits")
        make(t, "done", workflow="Quick")
        make(t, "theirs", Desk("back"), workflow="Quick")
        t.run_until_idle()

        assert ids(DESK.get_workflows(status="waiting")) == ["waits"]
        assert ids(DESK.get_workflows(status=["waiting", "complete"], workflow="Quick")) == ["done"]
        assert set(ids(current().get_workflows(workflow="Quick"))) == {"done", "theirs"}
        assert ids(DESK.get_workflows(status="paused")) == ids(DESK.get_workflows(workflow="Nobody")) == []
        assert ids(current().get_workflows(status=[])) == []
        with pytest.raises(InvalidValue, match="gone"):
            DESK.get_workflows(status="gone")

    def test_by_metadata(self, t: ThinkTest):
        """Keys with just these values: JSON as it is equal everywhere, so true is not 1, and NUL is a character."""
        odd = "\x00 \ud800 ü"
        make(t, "a", metadata={"order": 7, "tags": ["x", {"b": 1, "a": 2}], "text": odd})
        make(t, "b", metadata={"order": 7, "vip": True})
        make(t, "c", metadata={"order": 8, "vip": 1})
        make(t, "d")

        def found(**metadata: Any) -> set[str]:
            return set(ids(DESK.get_workflows(metadata=metadata)))

        assert found(order=7) == {"a", "b"}
        assert found(order=7, vip=True) == {"b"}
        assert found(vip=1) == {"c"}
        assert found(tags=["x", {"a": 2, "b": 1}]) == found(text=odd) == {"a"}
        assert found(order="7") == found(nothing=None) == found(order=None) == set()
        assert found() == {"a", "b", "c", "d"}
        with pytest.raises(TypeError, match="dict"):
            DESK.get_workflows(metadata=["order"])  # type: ignore[arg-type]
        with pytest.raises(NotSerializable):
            DESK.get_workflows(metadata={"order": object()})

    def test_pages_by_metadata(self, t: ThinkTest, monkeypatch: pytest.MonkeyPatch):
        """They are full where there is enough; a search that takes too long is a short page with a cursor."""
        monkeypatch.setattr(listing, "BATCH", 3)
        for number in range(20):
            make(t, f"w{number:02}", metadata={"even": number % 2 == 0, "first": number == 0})
            t.skip(1)
        wanted = [f"w{number:02}" for number in range(18, -1, -2)]

        for size in (1, 3, 4, 10, 11):
            seen, cursor = [], None
            while True:
                page = DESK.get_workflows(metadata={"even": True}, limit=size, cursor=cursor)
                seen += ids(page)
                cursor = page.cursor
                if cursor is None:
                    break
                assert len(page) == size
            assert seen == wanted

        monkeypatch.setattr(listing, "MOST_LOOKED_AT", 6)
        looks, cursor, found = 0, None, []
        while True:
            page = DESK.get_workflows(metadata={"first": True}, cursor=cursor)
            looks, cursor, found = looks + 1, page.cursor, found + ids(page)
            if cursor is None:
                break
        assert (looks, found) == (4, ["w00"])


def test_by_id_alone_it_is_found_by_an_index(t: ThinkTest):
    """Calls by id name no class; they cost the same however many workflows there are."""
    make(t, "w")

    def work(tx: Tx) -> str:
        row = dict(tx.execute(select(tables.workflows)).one()._mapping)
        many = [row | {"key": f"Flow:{n}", "workflow_id": f"{n}"} for n in range(2000)]
        tx.execute(tables.workflows.insert(), many)
        find = select(tables.workflows.c.key).where(tables.workflows.c.workflow_id == "1500")
        text = str(find.compile(t.rt.db.engine, compile_kwargs={"literal_binds": True}))
        if t.rt.db.on_postgres:
            tx.conn.exec_driver_sql("ANALYZE think_workflows")
        how = "EXPLAIN" if t.rt.db.on_postgres else "EXPLAIN QUERY PLAN"
        return str(tx.conn.exec_driver_sql(f"{how} {text}").all())

    plan = t.rt.db.transact(work)

    assert "uq_think_workflows_workflow_id_workflow" in plan or "(workflow_id=?)" in plan
    assert "Seq Scan" not in plan
    assert "SCAN think_workflows" not in plan
