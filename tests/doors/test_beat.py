"""``ThinkScheduler``, and what keeps schedules going in a worker: what they do with errors, time and classes."""

import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from celery import Celery
from celery.beat import PersistentScheduler, Service
from sqlalchemy import update

from think_celery import Think, ThinkCelery, metronome
from think_celery.beat import ThinkScheduler, listing
from think_celery.domain.schedules import declarations, drivers, schedules
from think_celery.embedded import embedded
from think_celery.errors import ConfigurationError
from think_celery.memory import default_to_memory
from think_celery.metronome import Metronome, SilenceWatch
from think_celery.runtime import Runtime, set_current
from think_celery.store import agents, processes
from think_celery.store.schedule_tables import schedules as table
from think_celery.testing import ThinkTest, think_test

PATIENCE = 20.0
EVERY_SECOND = {
    "own": {"task": "own.tock", "schedule": 1.0, "kwargs": {"x": 1}, "options": {"queue": "slow"}}
}


class Drummer(Think):
    """An agent with schedules."""

    version = "1"
    autostart: ClassVar[Any] = ()

    def drum(self, payload: Any) -> None:
        """What it does."""


@pytest.fixture
def t(database_url: str) -> Iterator[ThinkTest]:
    with think_test(database_url=database_url) as test:
        yield test


@pytest.fixture
def app(sqlite_url: str) -> Iterator[Celery]:
    """A wired app on SQLite, with an entry of its own."""
    before = set_current(None)
    made = Celery("drums", set_as_current=False)
    default_to_memory(made)
    made.conf.update(beat_schedule=EVERY_SECOND, think_database_url=sqlite_url)
    think = ThinkCelery(made)
    yield made
    think.close()
    set_current(before)


@pytest.fixture
def scheduler_of(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """What makes a scheduler with a file of its own. At the end none runs, whatever became of the test."""
    made: list[Any] = []

    def make(app: Celery, kind: type[PersistentScheduler] = ThinkScheduler, **options: Any) -> Any:
        made.append(kind(app, schedule_filename=str(tmp_path / kind.__name__), **options))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.close()


def wait_for(true: Callable[[], Any]) -> None:
    """Until it is so."""
    for _ in range(int(PATIENCE / 0.01)):
        if true():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come to be so")


class TestTheSchedulerOfAnApp:
    def test_its_own_entries_are_those_of_celery(self, app: Celery, scheduler_of: Any) -> None:
        """The same entries with the same options are sent, in the same order and at the same times, and are kept in
        the same way."""
        ours, theirs = (scheduler_of(app, kind) for kind in (ThinkScheduler, PersistentScheduler))
        sent: dict[Any, list[Any]] = {ours: [], theirs: []}
        for each in (ours, theirs):
            each.apply_async = lambda entry, each=each, **_: sent[each].append(
                (entry.name, entry.task, dict(entry.kwargs), dict(entry.options))
            )
        waits = [[each.tick() for _ in range(2)] for each in (ours, theirs)]
        for each in (ours, theirs):
            each._heap = [event._replace(time=event.time - 5) for event in each._heap]
            each.schedule["own"].last_run_at -= timedelta(seconds=5)
        waits += [[each.tick() for _ in range(2)] for each in (ours, theirs)]
        kept = [sorted(each.schedule) for each in (ours, theirs)]
        ours.close()
        theirs.close()

        assert waits[0] == pytest.approx(waits[1], abs=0.2)
        assert waits[2] == pytest.approx(waits[3], abs=0.2)
        assert sent[ours] == sent[theirs] == [("own", "own.tock", {"x": 1}, {"queue": "slow"})]
        assert kept[0] == kept[1]

    def test_it_sleeps_for_a_second_at_most(self, app: Celery, scheduler_of: Any) -> None:
        """Also where no entry of the app's is due for long; Celery's own interval is not touched."""
        app.conf.beat_schedule = {}
        scheduler = scheduler_of(app)
        wait = scheduler.tick()
        scheduler.close()

        assert wait == 1.0
        assert scheduler.max_interval == PersistentScheduler.max_interval

    def test_its_short_name(self, app: Celery, tmp_path: Path) -> None:
        """`celery beat -S think_celery`."""
        service = Service(app, scheduler_cls="think_celery", schedule_filename=str(tmp_path / "file"))

        assert isinstance(service.get_scheduler(lazy=True), ThinkScheduler)

    def test_an_app_without_agents_is_told_so(self, scheduler_of: Any) -> None:
        """It would fire nothing, and nobody would know."""
        with pytest.raises(ConfigurationError, match="'bare' has no agents"):
            scheduler_of(Celery("bare", set_as_current=False))

    def test_closing_ends_its_threads(self, app: Celery, scheduler_of: Any) -> None:
        """It may be closed twice, as Celery does when it is told to end."""
        scheduler = scheduler_of(app)
        running = threads()
        scheduler.close()
        scheduler.close()

        assert running == {"think-schedules", "think-declarations"}
        assert threads() == set()

    def test_threads_that_have_ended_are_started_again(self, app: Celery, scheduler_of: Any) -> None:
        """As in a process that was forked after they began."""
        scheduler = scheduler_of(app)
        scheduler._metronome.stop()
        scheduler.tick()
        running = threads()
        scheduler.close()

        assert running == {"think-schedules", "think-declarations"}

    def test_while_the_broker_hangs_slots_are_fired(self, app: Celery, scheduler_of: Any) -> None:
        """Celery's part waits for the broker, ours does not need it."""
        hangs, goes_on = threading.Event(), threading.Event()

        def send(entry: Any, **_: Any) -> None:
            hangs.set()
            assert goes_on.wait(PATIENCE)

        Drummer("hung").schedule(timedelta(seconds=0.5), "drum")
        app.conf.beat_schedule = {"own": {"task": "own.tock", "schedule": 0.01}}
        scheduler = scheduler_of(app)
        scheduler.apply_async = send

        def beat() -> None:
            while not goes_on.is_set():
                scheduler.tick()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        assert hangs.wait(PATIENCE)
        (schedule,) = schedules.find(app.think.runtime, Drummer("hung")._ref)  # type: ignore[attr-defined]
        wait_for(lambda: schedules.find_slots(app.think.runtime, schedule.id))  # type: ignore[attr-defined]
        goes_on.set()
        thread.join(PATIENCE)
        scheduler.close()


def threads() -> set[str]:
    """Those of ours that run."""
    names = {"think-schedules", "think-declarations"}
    return {thread.name for thread in threading.enumerate() if thread.name in names}


class TestTheBanner:
    def test_the_next_slots_are_listed(self, app: Celery, scheduler_of: Any) -> None:
        """Below the file of the app's entries: when, whose, what; five of them."""
        for n in range(7):
            Drummer(f"a{n}").schedule(timedelta(days=n + 1), "drum")
        scheduler = scheduler_of(app, lazy=True)
        first, *lines = scheduler.info.splitlines()

        assert first.startswith("    . db -> ")
        assert lines[0].startswith("    . next slots -> ")
        assert [f"Z  Drummer:a{n}  drum" in line for n, line in enumerate(lines[:5])] == [True] * 5
        assert lines[5].endswith("and more: think-celery schedules list")
        assert len(lines) == 6

    def test_where_there_is_none(self, t: ThinkTest) -> None:
        """It says so."""
        assert listing(t.rt).endswith("-> no agent has a schedule yet")

    def test_a_database_that_is_away(self, tmp_path: Path, scheduler_of: Any) -> None:
        """The beat starts all the same."""
        app = Celery("away", set_as_current=False)
        default_to_memory(app)
        (tmp_path / "think.db").symlink_to(tmp_path / "nowhere" / "think.db")
        app.conf.think_database_url = f"sqlite:///{tmp_path / 'think.db'}"
        before = set_current(None)
        try:
            think = ThinkCelery(app)
            scheduler = scheduler_of(app, lazy=True)
            said = scheduler.info
            think.close()
        finally:
            set_current(before)

        assert "the database can't be read now (OperationalError)" in said


class TestFiring:
    def test_on_time_waits_until_the_next_slot(self, t: ThinkTest) -> None:
        """Not longer than a second: a schedule may be added at any time."""
        nothing = drivers.on_time(t.rt)
        Drummer("a").schedule(timedelta(seconds=10), "drum")
        far = drivers.on_time(t.rt)
        t.clock.advance(timedelta(seconds=9.7))
        near = drivers.on_time(t.rt)
        t.clock.advance(timedelta(seconds=0.3))
        (schedule,) = schedules.find(t.rt, Drummer("a")._ref)
        drivers.on_time(t.rt)

        assert (nothing, far) == (1.0, 1.0)
        assert near == pytest.approx(0.3, abs=0.001)
        assert len(schedules.find_slots(t.rt, schedule.id)) == 1

    def test_a_slot_that_fails_is_not_tried_without_a_pause(
        self, t: ThinkTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is due and can't be fired, or is in another's hand, is looked at again a second later."""
        monkeypatch.setattr(schedules, "fire_due", lambda rt, limit: 0)
        monkeypatch.setattr(schedules, "next_due", lambda rt: rt.clock.now() - timedelta(seconds=3))

        assert drivers.on_time(t.rt) == 1.0

    def test_more_than_one_batch(self, t: ThinkTest, monkeypatch: pytest.MonkeyPatch) -> None:
        """All that is due is fired, batch by batch, for a second at most."""
        left = [500, 500, 7]

        def fire(rt: Runtime, limit: int) -> int:
            rt.clock.sleep(0.1)
            return left.pop(0) if left else 0

        monkeypatch.setattr(schedules, "fire_due", fire)
        fired = drivers.once_a_second(t.rt)
        left[:] = [500] * 100
        t.clock.advance(timedelta(seconds=1))
        many = drivers.once_a_second(t.rt)

        assert fired == 1007
        assert 5 * 500 <= many <= 12 * 500

    def test_of_many_workers_one_looks_each_second(
        self, t: ThinkTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Per database. A beat looks whatever others have done."""
        looks = []
        monkeypatch.setattr(schedules, "fire_due", lambda rt, limit: looks.append(1) or 0)
        for _ in range(5):
            drivers.once_a_second(t.rt)
        once = len(looks)
        for _ in range(5):
            drivers.on_time(t.rt)

        assert (once, len(looks)) == (1, 6)


class TestAMetronome:
    def test_errors_are_said_once_and_end_nothing(
        self, t: ThinkTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The database may be away for as long as it likes; that it is back is said, too (FR-13)."""
        caplog.set_level(logging.INFO)
        monkeypatch.setattr(metronome, "RETRY_SECONDS", 0.005)
        passes: list[int] = []

        def fire(rt: Runtime) -> float:
            passes.append(1)
            if len(passes) < 6:
                raise ConnectionError("the " + "secret"[::-1])
            return 0.005

        runs = Metronome(t.rt, fire)
        runs.start()
        wait_for(lambda: len(passes) > 8)
        runs.stop()

        assert caplog.text.count("can't fire schedules and tries again each second: ConnectionError") == 1
        assert caplog.text.count("this process can fire schedules again") == 1
        assert "terces" not in caplog.text

    def test_declarations_are_compared_at_start_and_when_classes_change(
        self, t: ThinkTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not at each look; and every quarter of an hour, for other code may have declared other tasks meanwhile."""
        compared: list[int] = []
        monkeypatch.setattr(declarations, "reconcile_all", lambda rt: compared.append(1))
        beats = Metronome(t.rt, lambda rt: 1.0)
        counts = []

        def look() -> None:
            beats._declare()
            counts.append(len(compared))

        look()
        look()
        type("DrumNewcomer", (Think,), {"__module__": __name__})
        look()
        look()
        t.clock.advance(timedelta(minutes=16))
        look()

        assert counts == [1, 1, 2, 2, 3]

    def test_one_that_failed_is_tried_again(self, t: ThinkTest, monkeypatch: pytest.MonkeyPatch) -> None:
        """The database was away when the beat began."""
        away = [True]

        def reconcile(rt: Runtime) -> None:
            if away.pop() if away else False:
                raise ConnectionError

        monkeypatch.setattr(declarations, "reconcile_all", reconcile)
        beats = Metronome(t.rt, lambda rt: 1.0)
        with pytest.raises(ConnectionError):
            beats._declare()

        assert beats._declare() == 1.0
        assert away == []

    def test_agents_of_autostart_are_started(
        self, t: ThinkTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A class whose list can't be had does not hold up the others, nor what they declare."""

        class Broken(Drummer, name="ADrummerThatIsBroken"):
            @classmethod
            def autostart(cls) -> list[str]:  # type: ignore[override]
                raise LookupError

        compared: list[int] = []
        monkeypatch.setattr(declarations, "reconcile_all", lambda rt: compared.append(1))
        monkeypatch.setattr(Drummer, "autostart", ["snare"])
        Metronome(t.rt, lambda rt: 1.0)._declare()
        Broken.autostart = ()  # type: ignore[method-assign,assignment]

        found = t.rt.db.read(lambda tx: agents.find(tx, agent_class="Drummer", limit=9))
        assert [row.name for row in found] == ["snare"]
        assert compared == [1]
        assert "autostart of ADrummerThatIsBroken can't be used: LookupError" in caplog.text


class TestAWorkerThatSeesNobodyFire:
    @pytest.fixture
    def watch(self, t: ThinkTest, caplog: pytest.LogCaptureFixture) -> SilenceWatch:
        caplog.set_level(logging.WARNING)
        Drummer("a").schedule_every("1 hour", "drum")
        return SilenceWatch(t.rt)

    def test_says_so_once(self, t: ThinkTest, watch: SilenceWatch, caplog: pytest.LogCaptureFixture) -> None:
        """When there are schedules and nothing has fired them for a minute; with what to do. Again when it comes to be
        so again."""

        def told_after(**span: float) -> int:
            t.clock.advance(timedelta(**span))
            watch.look()
            return caplog.text.count("nothing has fired them for a minute")

        counts = [told_after(seconds=11), told_after(minutes=2), told_after(minutes=2)]
        drivers.once_a_second(t.rt)
        counts += [told_after(seconds=60), told_after(minutes=2)]

        assert counts == [0, 1, 1, 1, 2]
        assert "celery -A YOUR_APP beat -S think_celery.beat:ThinkScheduler" in caplog.text
        assert "think.tick with schedules=True" in caplog.text

    def test_says_nothing_where_something_looks(
        self, t: ThinkTest, watch: SilenceWatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A beat, a worker or a task: each leaves a trace that it looked."""
        for _ in range(5):
            t.clock.advance(timedelta(minutes=2))
            drivers.once_a_second(t.rt)
            watch.look()

        assert caplog.text == ""

    def test_says_nothing_where_there_is_no_schedule(
        self, t: ThinkTest, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Most installations have none, and need no beat."""
        watch = SilenceWatch(t.rt)
        for _ in range(3):
            t.clock.advance(timedelta(minutes=2))
            watch.look()

        assert caplog.text == ""


def test_the_pass_has_a_kind_of_its_own(t: ThinkTest) -> None:
    """Passes over other work don't count for it, nor it for them."""
    drivers.once_a_second(t.rt)
    kinds = t.rt.db.transact(
        lambda tx: [processes.admit(tx, kind, timedelta(seconds=1)) for kind in ("work", "leases")]
    )

    assert kinds == [True, True]


class TestInAWorker:
    def test_one_in_this_process_fires_schedules(self, app: Celery) -> None:
        """As `think-celery dev` does: no beat is needed, and the agents of `autostart` are started."""
        Drummer("dev").schedule(timedelta(seconds=0.2), "drum")
        rt = app.think.runtime  # type: ignore[attr-defined]
        (schedule,) = schedules.find(rt, Drummer("dev")._ref)
        with embedded(app.think, concurrency=1):  # type: ignore[attr-defined]
            wait_for(lambda: [slot.status for slot in schedules.find_slots(rt, schedule.id)] == ["done"])
            running = threads()

        assert running == {"think-schedules", "think-declarations"}
        assert threads() == set()

    def test_one_that_does_not_fire_warns(
        self, app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A worker that is ready looks whether somebody fires the schedules that there are."""
        monkeypatch.setattr(SilenceWatch, "FIRST_SECONDS", 0.01)
        Drummer("old").schedule_every("1 hour", "drum")
        rt = app.think.runtime  # type: ignore[attr-defined]
        long_ago = {"created_at": rt.clock.now() - timedelta(minutes=2)}
        rt.db.transact(lambda tx: tx.execute(update(table).values(long_ago)))
        with embedded(app.think, concurrency=1, schedules=False):  # type: ignore[attr-defined]
            wait_for(lambda: "nothing has fired them for a minute" in caplog.text)
            running = threads()

        assert running == set()

    def test_the_task_for_other_schedulers(self, app: Celery) -> None:
        """`think.tick` fires with `schedules=True` alone; one that nobody takes expires by itself."""
        Drummer("ticked").schedule(timedelta(0), "drum")
        rt = app.think.runtime  # type: ignore[attr-defined]
        (schedule,) = schedules.find(rt, Drummer("ticked")._ref)
        tick = app.tasks["think.tick"]
        tick.run()
        without = schedules.find_slots(rt, schedule.id)
        told = tick.run(schedules=True)

        assert without == []
        assert len(schedules.find_slots(rt, schedule.id)) == 1
        assert told == "1 rows"
        assert tick.expires == 2

    def test_that_task_lets_go_of_a_runtime_that_was_closed(self, app: Celery) -> None:
        """What compares declarations belongs to one runtime: the next one has its own, and the last one is not kept."""
        think: Any = app.think  # type: ignore[attr-defined]
        app.tasks["think.tick"].run(schedules=True)
        before = weakref.ref(think.runtime)
        think.close()
        app.tasks["think.tick"].run(schedules=True)
        gc.collect()

        assert before() is None

    def test_that_task_stores_what_classes_declare(
        self, app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """C4: where no beat of ours ever ran, too: agents of `autostart` begin, and what is declared no more goes. Not
        at each tick, and not without `schedules=True`; what fails is said once, and tried again."""
        rt, tick, looks = app.think.runtime, app.tasks["think.tick"], 0  # type: ignore[attr-defined]
        reconcile_all = declarations.reconcile_all

        def counted(given: Any) -> int:
            nonlocal looks
            looks += 1
            if looks <= 2:
                raise OSError("the database is away")
            return reconcile_all(given)

        monkeypatch.setattr(declarations, "reconcile_all", counted)
        monkeypatch.setattr(Drummer, "autostart", ["first"])
        task = {"roll-call": {"schedule": "every day at 06:00 in UTC", "prompt": "Call the roll."}}
        monkeypatch.setattr(Drummer, "get_scheduled_tasks", lambda self: task)
        tick.run()
        assert (looks, schedules.find(rt, Drummer("first")._ref)) == (0, [])

        for _ in range(5):
            tick.run(schedules=True)

        assert looks == 3
        assert caplog.text.count("scheduled tasks can't be reconciled") == 1
        assert [row.task_id for row in schedules.find(rt, Drummer("first")._ref)] == ["roll-call"]
