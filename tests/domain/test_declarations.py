"""Tasks that a class declares: stored at the agent's start, fired, changed with the code, and removed with care."""

import logging
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from sqlalchemy import select, update

from tests.domain.crowd import in_processes, transaction, workers
from tests.domain.flows import flow
from think_celery import Retry, ScheduledTask, ScheduledTaskContext, Think
from think_celery.domain.agents import starts
from think_celery.domain.schedules import declarations, schedules
from think_celery.errors import InvalidSchedule, UnknownScheduledTask
from think_celery.ids import AgentRef
from think_celery.providers.scripted import FunctionModel, say
from think_celery.runtime import agent_classes
from think_celery.store import agents as agent_rows
from think_celery.store.schedule_tables import schedules as schedule_table
from think_celery.store.schedule_tables import slots as slot_table
from think_celery.testing import think_test

NOON = datetime(2027, 1, 1, 12, 0, tzinfo=UTC)  # a Friday, when the clock of each test begins
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


class Planner(Think):
    """An agent whose tasks, version and zone are a test's."""

    version = "1"
    tasks: ClassVar[Any] = {}
    zone: ClassVar[str | None] = None
    told: ClassVar[list[ScheduledTaskContext]] = []
    fails: ClassVar[int] = 0

    def get_scheduled_tasks(self):
        return self.tasks

    def get_default_timezone(self):
        return self.zone

    def handle(self, ctx: ScheduledTaskContext) -> None:
        """Fail as often as was asked, and remember what it was told."""
        Planner.told.append(ctx)
        if Planner.fails > 0:
            Planner.fails -= 1
            raise RuntimeError("not yet")


class Idle(Think):
    """An agent that declares nothing; and later it may."""


AGENT = Planner("a")


@pytest.fixture(autouse=True)
def beginning(request):
    """Nothing is declared, and every agent answers."""
    Planner.tasks, Planner.version, Planner.zone, Planner.told, Planner.fails = {}, "1", None, [], 0
    for name in ("t", "quick"):
        if name in request.fixturenames:
            request.getfixturevalue(name).use_model(FunctionModel(lambda request: say("done")))


def prompt(schedule: Any = "every hour", text: str = "Look.", **more: Any) -> ScheduledTask:
    """A task with a prompt."""
    return ScheduledTask(schedule=schedule, prompt=text, **more)


def handled(schedule: Any = "every hour", **more: Any) -> ScheduledTask:
    """A task with a handler."""
    return ScheduledTask(schedule=schedule, handler=lambda ctx: AGENT.handle(ctx), **more)


def deploy(version: str, **tasks: ScheduledTask) -> None:
    """Let the code be another version, with these tasks."""
    Planner.version, Planner.tasks = version, tasks


def begin(t, name: str = "a", **tasks: ScheduledTask) -> None:
    """Start an agent with these tasks."""
    Planner.tasks = tasks or Planner.tasks
    Planner(name).start()
    t.run_until_idle()


def rows(rt, *, ended: bool = False) -> dict[str, Any]:
    """The schedules of tasks that are declared, by their ids."""
    query = select(schedule_table).order_by(schedule_table.c.task_id)
    found = rt.db.read(lambda tx: list(tx.execute(query)))
    return {row.task_id: row for row in found if (row.ended_at is not None) == ended}


def next_runs(rt) -> dict[str, str]:
    """When each declared task comes next."""
    return {task_id: f"{row.next_run_at:%m-%d %H:%M}" for task_id, row in rows(rt).items()}


def slots(rt) -> list[tuple[str, str]]:
    """Time and status of all slots, in order."""
    found = rt.db.read(lambda tx: list(tx.execute(select(slot_table).order_by(slot_table.c.scheduled_for))))
    return [(f"{row.scheduled_for:%d %H:%M}", str(row.status)) for row in found]


def change(rt, **values: Any) -> None:
    """Change every schedule that lives behind everybody's back."""
    live = update(schedule_table).where(schedule_table.c.ended_at.is_(None))
    rt.db.transact(lambda tx: tx.execute(live.values(values)))


class TestStart:
    def test_it_declares_what_the_class_says(self, t):
        """C1: in a worker; nothing is needed but ``start``, and each slot is a turn."""
        begin(t, digest=prompt("every day at 09:00 in Europe/Paris", "Write the digest."))
        assert next_runs(t.rt) == {"digest": "01-02 08:00"}

        t.skip("2 days")
        assert slots(t.rt) == [("02 08:00", "done"), ("03 08:00", "done")]
        assert [m.text for m in AGENT.messages] == ["Write the digest.", "done"] * 2
        assert {each.metadata["task_id"] for each in AGENT.list_submissions()} == {"digest"}

    def test_the_first_work_of_an_agent_is_a_start_too(self, t):
        """Nobody has to call ``start``: an agent begins before its first turn."""
        Planner.tasks = {"digest": prompt()}
        AGENT.submit_messages("Hello")
        t.run_until_idle()

        assert next_runs(t.rt) == {"digest": "01-01 13:00"}

    def test_again_it_changes_nothing(self, t):
        """A version starts once; a new one that declares the same moves no slot, of an interval neither."""
        begin(t, hourly=prompt("every hour"))
        before = rows(t.rt)["hourly"]
        t.skip("90 minutes")
        deploy("2", hourly=prompt("every 60 minutes"))
        begin(t)

        after = rows(t.rt)["hourly"]
        assert (after.id, after.anchor_at) == (before.id, NOON)
        assert next_runs(t.rt) == {"hourly": "01-01 14:00"}
        assert slots(t.rt) == [("01 13:00", "done")]

    def test_it_adds_and_changes_but_removes_nothing(self, t):
        """What the code no longer names may be another version's, which runs beside this one."""
        begin(t, old=prompt(), moved=prompt("every day at 09:00 in UTC"))
        t.skip("11 minutes")
        deploy("2", new=prompt(), moved=prompt("every day at 10:00 in UTC"))
        begin(t)

        assert next_runs(t.rt) == {"moved": "01-02 10:00", "new": "01-01 13:11", "old": "01-01 13:00"}

    def test_one_bad_task_declares_none_and_the_work_goes_on(self, t, caplog):
        """C4: the start has failed, the log and the doctor say why, and it is tried again before the next work."""
        begin(t, good=prompt(), bad={"schedule": "every 2 minute", "prompt": "Look."})
        assert rows(t.rt) == {}
        assert "Planner('a'), scheduled task 'bad'" in caplog.text

        AGENT.submit_messages("Hello")
        t.run_until_idle()
        assert AGENT.messages[-1].text == "done"
        row = t.rt.db.read(lambda tx: agent_rows.get(tx, AGENT._ref.id))
        assert row.start_error_type == "InvalidSchedule"
        assert 'Write "every 2 minutes"' in row.start_error

        Planner.tasks = {"good": prompt()}
        AGENT.submit_messages("Hello")
        t.run_until_idle()
        assert list(rows(t.rt)) == ["good"]

    def test_an_on_start_that_fails_keeps_no_task_from_being_stored(self, t):
        """The two are apart; the start has failed all the same."""

        class Stumbling(Planner, name="Stumbling"):
            def on_start(self):
                raise RuntimeError("no disk")

        Planner.tasks = {"digest": prompt()}
        Stumbling("a").start()
        t.run_until_idle()

        row = t.rt.db.read(lambda tx: agent_rows.get(tx, Stumbling("a")._ref.id))
        assert (row.started_version, row.start_error) == (None, "no disk")
        assert list(rows(t.rt)) == ["digest"]

    def test_a_crash_anywhere_declares_once(self, t):
        """Whoever takes the start up finds all of it or nothing."""
        for point in ("start:before", "start:ran", "start:committed"):
            t.crash_at(point)
        begin(t, digest=prompt())
        for _ in range(3):
            t.skip("1 minute")

        assert t.crashes == ["start:before", "start:ran", "start:committed"]
        assert list(rows(t.rt)) == ["digest"]


class TestHandlers:
    def test_it_is_told_which_slot_it_is_called_for(self, t):
        """C2: any callable of one ``ScheduledTaskContext``, taken from the class each time; nothing of it is stored."""
        begin(t, report=handled("0 9 * * mon-fri", timezone="Europe/Paris", metadata={"team": "ops"}))
        t.skip("4 days")

        [told] = [ctx for ctx in Planner.told if ctx.scheduled_for == datetime(2027, 1, 4, 8, tzinfo=UTC)]
        assert (told.task_id, told.schedule, told.schedule_kind, told.timezone, told.metadata) == (
            "report",
            "0 9 * * mon-fri",
            "cron",
            "Europe/Paris",
            {"team": "ops"},
        )
        assert told.occurrence_key == "report:1799049600000"
        assert told.idempotency_key.endswith(told.occurrence_key)
        assert [f"{ctx.scheduled_for:%a}" for ctx in Planner.told] == ["Mon", "Tue"]

    def test_it_is_tried_again_and_a_failed_slot_blocks_none(self, t, caplog):
        """C2, C4: as often as ``retry`` says, with the same key; then the slot has failed, and the next one comes."""
        Planner.fails = 4
        begin(t, report=handled(retry=Retry(max_attempts=3, delay=1)))
        t.skip("121 minutes")

        keys = [ctx.idempotency_key for ctx in Planner.told]
        assert [keys.count(key) for key in dict.fromkeys(keys)] == [3, 2]
        assert slots(t.rt) == [("01 13:00", "failed"), ("01 14:00", "done")]

    def test_its_key_starts_a_workflow_once_a_slot(self, t):
        """C3: also when the handler fails after it has started it, and is called again."""
        Report = flow(lambda event, step: event.payload)

        def make(ctx: ScheduledTaskContext) -> None:
            AGENT.run_workflow(Report, {"day": f"{ctx.scheduled_for:%d}"}, workflow_id=ctx.idempotency_key)
            AGENT.submit_messages("Report made.", idempotency_key=ctx.idempotency_key)
            AGENT.handle(ctx)

        Planner.fails = 2
        begin(t, report=ScheduledTask(schedule="every day at 09:00 in UTC", handler=make))
        t.skip("2 days")

        ids = list(dict.fromkeys(ctx.idempotency_key for ctx in Planner.told))
        assert len(Planner.told) == 4
        assert [t.output(Report, workflow_id) for workflow_id in ids] == [{"day": "02"}, {"day": "03"}]
        assert [m.text for m in AGENT.messages if m.role == "user"] == ["Report made."] * 2

    def test_code_that_does_not_know_it_leaves_it_to_other_workers(self, t):
        """In a rolling deployment an old worker may get the slot of a new task: it counts no attempt, and waits."""
        begin(t, report=handled())
        declared, Planner.tasks = Planner.tasks, {"report": prompt()}  # it has no handler here
        t.clock.advance(HOUR)
        schedules.fire_due(t.rt)
        t.run_until_idle()
        assert (Planner.told, slots(t.rt)) == ([], [("01 13:00", "open")])

        Planner.tasks = {}
        t.skip("10 seconds")
        assert (Planner.told, slots(t.rt)) == ([], [("01 13:00", "open")])

        Planner.tasks = declared
        t.skip("5 minutes")
        assert len(Planner.told) == 1
        assert slots(t.rt) == [("01 13:00", "done")]

    def test_a_coroutine_is_refused_when_it_comes_back(self, t):
        """A lambda hides an async function until it is called; the slot has failed, and the error says what to do."""

        async def later(ctx):
            return ctx

        hidden = ScheduledTask(
            schedule="every hour", handler=lambda ctx: later(ctx), retry=Retry(max_attempts=1)
        )
        begin(t, report=hidden)
        t.skip("1 hour")

        row = t.rt.db.read(lambda tx: tx.execute(select(slot_table)).one())
        assert row.status == "failed"
        assert "scheduled task 'report', returned is an async function" in row.reason

    def test_who_asks_for_one_that_is_not_there_is_told(self, quick):
        """The error names agent and task, and what to do."""
        job = type("Row", (), {"task_id": "gone"})
        with pytest.raises(UnknownScheduledTask, match=r"Planner\('a'\) declares no scheduled task 'gone'"):
            declarations.handler_call(quick.rt, AGENT, job)


class TestReconcile:
    def test_it_adds_changes_and_removes(self, t):
        """C4: all that the class says now, and what changed is returned."""
        begin(t, old=prompt(), moved=prompt("every day at 09:00 in UTC"), same=prompt())
        Planner.tasks = {"new": prompt(), "moved": prompt("every day at 10:00 in UTC"), "same": prompt()}

        done = AGENT.reconcile_scheduled_tasks()
        assert (done.changed, done.removed, done.kept) == (("moved", "new"), ("old",), ())
        assert list(rows(t.rt)) == ["moved", "new", "same"]

        again = AGENT.reconcile_scheduled_tasks()
        assert (again.changed, again.removed, again.kept) == ((), (), ())

    def test_a_slot_that_has_not_begun_goes_with_its_task(self, t):
        """The turn that waits is skipped, and says why."""
        begin(t, old=prompt())
        t.clock.advance(HOUR)
        schedules.fire_due(t.rt)
        Planner.tasks = {}
        AGENT.reconcile_scheduled_tasks()
        t.run_until_idle()

        assert slots(t.rt) == [("01 13:00", "skipped")]
        assert [str(each.status) for each in AGENT.list_submissions()] == ["skipped"]
        t.skip("3 hours")
        assert len(slots(t.rt)) == 1

    def test_what_comes_back_runs_no_slot_twice(self, t):
        """The keys of its turns are of agent, task and instant, whichever row has made them."""
        begin(t, digest=prompt("every day at 13:00 in UTC"))
        t.skip("1 hour")
        declared, Planner.tasks = Planner.tasks, {}
        AGENT.reconcile_scheduled_tasks()
        Planner.tasks = declared
        AGENT.reconcile_scheduled_tasks()
        change(t.rt, next_run_at=NOON + HOUR, due_at=NOON + HOUR)
        t.run_until_idle()

        assert len(AGENT.list_submissions()) == 1

    def test_the_time_without_it_is_no_missed_time(self, t):
        """FR-20: taken away from 13:30 to 16:20, an hourly one comes at 17:00 next; nothing is made up for."""
        begin(t, hourly=prompt("0 * * * *", timezone="UTC"))
        t.skip("90 minutes")
        declared, Planner.tasks = Planner.tasks, {}
        AGENT.reconcile_scheduled_tasks()
        t.skip("170 minutes")
        Planner.tasks = declared
        AGENT.reconcile_scheduled_tasks()
        t.skip("39 minutes")
        meanwhile = slots(t.rt)
        t.skip("2 minutes")

        assert meanwhile == [("01 13:00", "done")]
        assert slots(t.rt) == [("01 13:00", "done"), ("01 17:00", "done")]

    def test_nothing_changes_where_one_task_is_bad(self, t):
        """All of them, or none; who called is told."""
        begin(t, old=prompt())
        Planner.tasks = {"new": prompt(), "bad": {"schedule": "every hour"}}

        with pytest.raises(InvalidSchedule, match="it has neither a prompt nor a handler"):
            AGENT.reconcile_scheduled_tasks()
        assert list(rows(t.rt)) == ["old"]

    def test_in_a_caller_s_transaction(self, t):
        """It is part of that: rolled back, nothing has changed."""
        Planner.tasks = {"digest": prompt()}
        with transaction(t.rt) as session:
            AGENT.reconcile_scheduled_tasks()
            session.rollback()
        assert rows(t.rt) == {}

        with transaction(t.rt) as session:
            AGENT.reconcile_scheduled_tasks()
            session.commit()
        assert list(rows(t.rt)) == ["digest"]

    def test_another_prompt_keeps_the_phase(self, t):
        """Only another time counts from now: a changed text, retry or metadata moves no slot."""
        begin(t, hourly=prompt(text="Look."))
        t.skip("90 minutes")
        for task in (
            prompt(text="Look again."),
            prompt(metadata={"n": 1}),
            handled(retry=Retry(max_attempts=2)),
        ):
            Planner.tasks = {"hourly": task}
            assert AGENT.reconcile_scheduled_tasks().changed == ("hourly",)
            assert next_runs(t.rt) == {"hourly": "01-01 14:00"}
        t.skip("30 minutes")
        assert [ctx.scheduled_for for ctx in Planner.told] == [NOON + 2 * HOUR]

    def test_another_zone_counts_from_now_on(self, t):
        """FR-24: monthly, on the 1st at 05:00 UTC; on the 17th its zone becomes Paris: nothing runs now, and next is
        the 1st at 05:00 in Paris. A zone that is none is an error when it is declared."""
        begin(t, monthly=prompt("0 5 1 * *", timezone="UTC"))
        t.skip("16 days")
        Planner.tasks = {"monthly": prompt("0 5 1 * *", timezone="Europe/Paris")}
        AGENT.reconcile_scheduled_tasks()
        t.run_until_idle()

        assert (slots(t.rt), next_runs(t.rt)) == ([], {"monthly": "02-01 04:00"})
        t.skip("16 days")
        assert slots(t.rt) == [("01 04:00", "done")]
        Planner.tasks = {"monthly": {"schedule": "0 5 1 * *", "prompt": "Look.", "timezone": "Mars/Base"}}
        with pytest.raises(InvalidSchedule, match="there is no time zone 'Mars/Base'"):
            AGENT.reconcile_scheduled_tasks()

    def test_the_default_zone_may_change_too(self, t):
        """It is part of what is declared."""
        Planner.zone = "UTC"
        begin(t, daily=prompt("every day at 09:00"))
        Planner.zone = "Asia/Kolkata"

        assert AGENT.reconcile_scheduled_tasks().changed == ("daily",)
        assert next_runs(t.rt) == {"daily": "01-02 03:30"}

    def test_late_ones_run_once(self, t):
        """FR-20, C4: nobody fired from 10:30 to 13:20: of an hourly task the slot of 13:00 runs, once."""
        begin(t, hourly=prompt("0 * * * *"))
        t.clock.advance(3 * HOUR + 20 * MINUTE)
        t.run_until_idle()

        assert slots(t.rt) == [("01 15:00", "done")]
        assert next_runs(t.rt) == {"hourly": "01-01 16:00"}

    def test_a_task_that_was_lost_is_armed_again(self, t):
        """FR-22: declaring finds its row and arms it; what is overdue fires once, and then it goes on."""
        begin(t, hourly=prompt("0 * * * *"))
        change(t.rt, next_run_at=None, due_at=None)
        assert AGENT.reconcile_scheduled_tasks().changed == ("hourly",)
        assert next_runs(t.rt) == {"hourly": "01-01 13:00"}

        change(t.rt, next_run_at=NOON - HOUR, due_at=NOON - HOUR)
        deploy("2", hourly=prompt("0 * * * *"))
        begin(t)
        t.skip("1 hour")
        assert slots(t.rt) == [("01 12:00", "done"), ("01 13:00", "done")]


class TestEveryAgent:
    def test_known_agents_and_those_that_have_tasks(self, t):
        """C4: at a beat's start, all agents of the class that are known, whether they were started or had work."""
        for name in ("a", "b", "c"):
            begin(t, name)
        Planner.tasks = {"digest": prompt()}
        Planner("d").reconcile_scheduled_tasks()
        Idle("x").start()
        Planner("gone").start()
        t.run_until_idle()
        Planner("gone").destroy()
        Planner.tasks = {"report": prompt()}

        assert declarations.reconcile_all(t.rt) == 4
        assert {row.agent_name for row in self._rows(t.rt, "report")} == {"a", "b", "c", "d"}
        assert self._rows(t.rt, "digest") == []
        assert declarations.reconcile_all(t.rt) == 0

    def _rows(self, rt, task_id: str) -> list[Any]:
        wanted = (schedule_table.c.task_id == task_id, schedule_table.c.ended_at.is_(None))
        return rt.db.read(lambda tx: list(tx.execute(select(schedule_table).where(*wanted))))

    def test_in_batches(self, t, monkeypatch):
        """Each agent is looked at once, in as many batches as it takes."""
        monkeypatch.setattr(declarations, "BATCH", 3)
        for number in range(10):
            begin(t, f"a{number}")
        Planner.tasks = {"digest": prompt()}

        assert declarations.reconcile_all(t.rt) == 10
        assert len(self._rows(t.rt, "digest")) == 10

    def test_what_is_as_declared_is_not_written(self, t, monkeypatch):
        """A beat that starts again over thousands of agents locks nothing of theirs."""
        begin(t, digest=prompt())
        monkeypatch.setattr(declarations, "_reconcile", None)

        assert declarations.reconcile_all(t.rt) == 0

    def test_a_class_that_declares_no_more(self, t):
        """Its tasks go, though there is no ``get_scheduled_tasks`` to ask any more."""
        begin(t, digest=prompt())
        t.skip("11 minutes")

        class Planner(Think, name="Planner"):
            version = "2"

        try:
            assert declarations.reconcile_all(t.rt) == 1
        finally:
            agent_classes._classes["Planner"] = {__name__: globals()["Planner"]}
        assert rows(t.rt) == {}

    def test_one_that_fails_hides_no_other_and_is_said_once(self, t, caplog):
        """A class whose tasks are bad is one line of the log, however many agents it has."""

        class Faulty(Planner, name="Faulty"):
            def get_scheduled_tasks(self):
                raise RuntimeError("no configuration")

        for name in ("a", "b", "c"):
            Faulty(name).start()
        begin(t, "z")
        Planner.tasks = {"digest": prompt()}
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            assert declarations.reconcile_all(t.rt) == 1

        [line] = [record.getMessage() for record in caplog.records]
        assert "and 2 more of its class can't be stored" in line
        assert "no configuration" in line

    def test_what_could_not_be_stored_is_said_to_who_asked(self, t, monkeypatch):
        """The others are stored; whoever called it calls it again, as a beat does each second."""
        for name in ("a", "b", "c"):
            begin(t, name)
        Planner.tasks, upsert = {"digest": prompt()}, schedules.upsert_declared

        def fail_once(rt, tx, agent, *given, **more):
            if agent.name == "b":
                raise OSError("the disk is full")
            return upsert(rt, tx, agent, *given, **more)

        with monkeypatch.context() as patch:
            patch.setattr(schedules, "upsert_declared", fail_once)
            with pytest.raises(OSError, match="the disk is full"):
                declarations.reconcile_all(t.rt)
        assert {row.agent_name for row in self._rows(t.rt, "digest")} == {"a", "c"}

        assert declarations.reconcile_all(t.rt) == 1
        assert {row.agent_name for row in self._rows(t.rt, "digest")} == {"a", "b", "c"}

    def test_autostart_is_a_list_or_a_classmethod(self, t):
        """The agents that it names are started by a beat, and so have their tasks."""

        class Begun(Planner, name="Begun"):
            autostart = ("a", "b")

        class Worked(Planner, name="Worked"):
            @classmethod
            def autostart(cls):
                return ["c"]

        Planner.tasks = {"digest": prompt()}
        starts.start_declared(t.rt)
        t.run_until_idle()

        found = {(row.agent_class, row.agent_name) for row in self._rows(t.rt, "digest")}
        assert found == {("Begun", "a"), ("Begun", "b"), ("Worked", "c")}


class TestRollingDeployment:
    def test_neither_version_removes_what_the_other_declared_just_now(self, t):
        """C4: old and new code run beside each other; ten minutes later the new one's word is the last."""
        begin(t, "a", both=prompt(), old=prompt())
        old = Planner.tasks
        deploy("2", both=prompt(), new=prompt())
        new = Planner.tasks

        assert AGENT.reconcile_scheduled_tasks().kept == ("old",)
        assert list(rows(t.rt)) == ["both", "new", "old"]
        t.clock.advance(5 * MINUTE)
        deploy("1", **old)
        assert AGENT.reconcile_scheduled_tasks().kept == ("new",)
        assert declarations.reconcile_all(t.rt) == 0
        assert list(rows(t.rt)) == ["both", "new", "old"]

        deploy("2", **new)
        t.clock.advance(9 * MINUTE)
        assert AGENT.reconcile_scheduled_tasks().kept == ("old",)
        t.clock.advance(2 * MINUTE)
        assert declarations.reconcile_all(t.rt) == 1
        assert list(rows(t.rt)) == ["both", "new"]

    def test_a_version_removes_its_own_at_once(self, t):
        """What this version declared itself it may take back at any time."""
        begin(t, old=prompt())
        Planner.tasks = {}

        assert AGENT.reconcile_scheduled_tasks().removed == ("old",)

    def test_starts_of_both_in_turns(self, t):
        """Workers of two versions take turns with an agent: every slot still runs once."""
        begin(t, both=prompt("0 * * * *"), old=prompt("0 * * * *"))
        for number in range(4):
            deploy("1", both=prompt("0 * * * *"), old=prompt("0 * * * *"))
            if number % 2:
                deploy("2", both=prompt("0 * * * *", "Look well."), new=prompt("0 * * * *"))
            AGENT.submit_messages("Hello")
            t.skip("1 hour")

        found = [task for task, row in rows(t.rt).items() for _ in range(self._fired(t.rt, row.id))]
        assert {task: found.count(task) for task in found} == {"both": 4, "old": 4, "new": 3}

    def _fired(self, rt, schedule_id: str) -> int:
        wanted = (slot_table.c.schedule_id == schedule_id, slot_table.c.status == "done")
        return len(rt.db.read(lambda tx: list(tx.execute(select(slot_table).where(*wanted)))))

    def test_many_processes_declare_at_once(self, database_url):
        """FR-22: one task, declared fifty times by five processes at the same moment, is one row."""
        Planner.tasks = {"digest": prompt(), "report": handled("every day at 09:00 in UTC")}

        def declare(number, ready):
            with workers(database_url) as rt:
                agent = Planner._bound_to(rt, "a")
                ready()
                for _ in range(10):
                    agent.reconcile_scheduled_tasks()
                    starts.start(rt, AgentRef("Planner", "a"))
                    declarations.reconcile_all(rt)

        in_processes(5, declare)
        with workers(database_url) as rt:
            found = rt.db.read(lambda tx: list(tx.execute(select(schedule_table))))
            assert sorted(row.task_id for row in found) == ["digest", "report"]


def test_what_is_declared_while_another_looks_stays(postgres_url):
    """Between the look at what is declared no longer and the lock of its row another version may declare it again."""
    with think_test(database_url=postgres_url) as t:
        begin(t, old=prompt())
        t.clock.advance(11 * MINUTE)
        old, look = Planner.tasks, declarations.rows.declared

        def declare_meanwhile(tx, agent_id):
            found = look(tx, agent_id)
            deploy("1", **old)
            t.rt.db.transact(
                lambda other: declarations.store(t.rt, other, AGENT, declarations.of_agent(AGENT))
            )
            deploy("2")
            return found

        deploy("2")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(declarations.rows, "declared", declare_meanwhile)
            done = AGENT.reconcile_scheduled_tasks()

        assert (done.removed, done.kept) == ((), ("old",))
        assert list(rows(t.rt)) == ["old"]
