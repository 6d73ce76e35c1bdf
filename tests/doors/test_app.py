"""``ThinkCelery(app)``: one call, read late, and several apps in one process."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import Celery, _state, current_app

from tests.crash.model import FINAL, answer
from tests.providers.server import ModelServer
from think_celery import Think, ThinkCelery, forks
from think_celery import app as think_app
from think_celery.embedded import embedded
from think_celery.errors import ConfigurationError, InvalidSetting, InvalidValue, NotConfigured
from think_celery.runtime import Registry, agent_classes, current, set_current
from think_celery.tools import tool
from think_celery.worker.bootsteps import TickStep


class Doer(Think):
    """Does one thing, and says so."""

    @tool(idempotent=True)
    def note(self, what: str) -> str:
        """Take a note."""
        return "noted"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Each test begins in a process that has no runtime, and leaves it so."""
    before = set_current(None)
    yield
    set_current(before)


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        server.respond = answer
        yield server


def an_app(url: str, **conf: Any) -> Celery:
    made = Celery("app", broker="memory://", set_as_current=False)
    made.conf.update(
        broker_transport_options={"polling_interval": 0.02},
        think_database_url=url,
        think_lease=3,
        **conf,
    )
    return made


def an_app_with(model: ModelServer, url: str, **conf: Any) -> Celery:
    return an_app(
        url,
        think_model="openai/m",
        think_openai_api_key="sk-1",
        think_openai_base_url=model.base_url,
        **conf,
    )


def ended(submission: Any, seconds: float = 20.0) -> Any:
    """The submission once it has ended."""
    pause = threading.Event()
    for _ in range(int(seconds * 50)):
        found = Doer(submission.agent.name).inspect_submission(submission.submission_id)
        assert found is not None
        if found.status in ("completed", "error", "aborted"):
            return found
        pause.wait(0.02)
    raise AssertionError(f"{submission} has not ended after {seconds} s")


class TestMakingIt:
    def test_twice_is_once(self, sqlite_url: str) -> None:
        """Two calls with one app give the same object: a module that is imported twice does no harm."""
        app = an_app(sqlite_url)

        first, second = ThinkCelery(app), ThinkCelery(app)

        assert first is second
        assert first.runtime is second.runtime
        assert [step for step in app.steps["worker"] if step is TickStep] == [TickStep]
        assert app.think is first

    def test_settings_are_read_late(self, sqlite_url: str) -> None:
        """An app may be configured after the call, as Django projects do; it is read at the first use."""
        app = Celery("late", broker="memory://", set_as_current=False)
        think = ThinkCelery(app)

        app.conf.think_database_url = sqlite_url
        app.conf.think_lease = "7 seconds"

        assert think.runtime.settings.lease_seconds == 7.0
        assert Doer("ada").submit_messages("do:").accepted

    def test_a_setting_that_does_not_exist_is_an_error(self, sqlite_url: str) -> None:
        """With the nearest name, when the runtime is made."""
        think = ThinkCelery(an_app(sqlite_url, think_laese=3))

        with pytest.raises(InvalidSetting, match=r"think_laese.*think_lease"):
            _ = think.runtime

    def test_without_it_an_agent_says_what_to_do(self) -> None:
        """An agent in a process that has no ThinkCelery."""
        with pytest.raises(NotConfigured, match="ThinkCelery"):
            Doer("ada").submit_messages("do:")

    def test_think_imports_are_imported_with_celerys_own(self, sqlite_url: str, tmp_path: Path) -> None:
        """A worker imports the modules of `think_imports` when it imports its tasks."""
        name = "think_imports_of_a_test"
        (tmp_path / f"{name}.py").write_text("loaded = True\n")
        sys.path.insert(0, str(tmp_path))
        try:
            app = an_app(sqlite_url, think_imports=[name])
            ThinkCelery(app)
            app.loader.import_default_modules()

            assert isinstance(sys.modules.get(name), ModuleType)
        finally:
            sys.path.remove(str(tmp_path))
            sys.modules.pop(name, None)

    def test_a_module_that_does_not_exist_stops_the_worker(self, sqlite_url: str) -> None:
        """Better at its start than a worker that knows none of its classes."""
        app = an_app(sqlite_url, think_imports=["no_such_module_of_a_test"])
        ThinkCelery(app)

        with pytest.raises(ModuleNotFoundError, match="no_such_module_of_a_test"):
            app.loader.import_default_modules()


class TestAtOnce:
    """Threads of a web process come to a fresh app at one moment, and some servers fork in the middle of it."""

    def test_one_thread_wires_it_and_the_others_find_all_of_it(
        self, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever came second had been given an object without tasks, or had made another of which nobody knew."""
        app, register, others = an_app(sqlite_url), think_app.register, list[threading.Thread]()
        found: list[tuple[ThinkCelery, bool]] = []

        def come() -> None:
            think = ThinkCelery(app)
            found.append((think, "think.submission.run" in app.tasks))

        def while_others_come(*given: Any) -> None:
            if not others:
                others.extend(threading.Thread(target=come) for _ in range(3))
                for other in others:
                    other.start()
                others[0].join(0.3)  # at most: they wait for the one who wires
            register(*given)

        monkeypatch.setattr(think_app, "register", while_others_come)
        think = ThinkCelery(app)
        for other in others:
            other.join(10)

        assert found == [(think, True)] * 3
        assert app.think is think  # type: ignore[attr-defined,unused-ignore]

    def test_a_child_that_is_born_while_a_thread_makes_the_runtime_makes_its_own(
        self, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A lock that another thread held stays locked in a child: its first use of an agent hung for ever."""
        monkeypatch.setattr(forks, "PATIENCE_SECONDS", 0.05)  # longer than a fork waits for it
        think, making, go_on = ThinkCelery(an_app(sqlite_url)), threading.Event(), threading.Event()
        make, parent = ThinkCelery._make_runtime, os.getpid()

        def slowly(self: ThinkCelery) -> Any:
            making.set()
            if os.getpid() == parent:
                go_on.wait(10)
            return make(self)

        monkeypatch.setattr(ThinkCelery, "_make_runtime", slowly)
        thread = threading.Thread(target=lambda: think.runtime)
        thread.start()
        making.wait(10)

        child = os.fork()
        if child == 0:
            try:
                signal.alarm(10)  # ends this child where it hangs
                stored = Doer("a").submit_messages("Hello").accepted
                os._exit(0 if stored else 3)
            finally:
                os._exit(4)
        _, status = os.waitpid(child, 0)
        go_on.set()
        thread.join(10)

        assert status == 0
        think.close()

    def test_who_looks_while_the_runtime_is_taken_away_has_it_still(self, sqlite_url: str) -> None:
        """Or is told that there is none: a thread that outlives its test had got a TypeError."""
        runtime = ThinkCelery(an_app(sqlite_url)).runtime

        class TakenAway:
            @property
            def __class__(self) -> type:  # asked for by whoever looks what this is
                set_current(None)
                return TakenAway

            def __call__(self) -> Any:
                return runtime

        set_current(TakenAway())

        assert current() is runtime

    def test_a_name_is_never_without_its_class(self) -> None:
        """Who looks while a class is registered finds the class, or that there is none."""
        registry: Registry[type] = Registry("agent class")

        class Watched(dict[str, dict[str, type]]):
            def setdefault(self, name: str, classes: Any = None) -> Any:
                found = super().setdefault(name, classes)
                assert registry.get(name) is Doer
                return found

        registry._classes = Watched()
        registry.add("Doer", Doer)

        assert registry.names() == ["Doer"]

    def test_a_class_that_is_refused_is_not_registered(self) -> None:
        """Else a worker would go on with what its author was told can't be."""
        with pytest.raises(InvalidValue, match="version"):
            type("Unfit", (Think,), {"version": 5})

        assert "Unfit" not in agent_classes


class TestTwoApps:
    def test_each_has_its_own_database_and_tasks(self, sqlite_url: str, tmp_path: Path) -> None:
        """Agents work with the app that was wired last; tasks with their own app's runtime."""
        one = ThinkCelery(an_app(sqlite_url))
        in_one = Doer("ada").submit_messages("do:")
        two = ThinkCelery(an_app(f"sqlite:///{tmp_path / 'two.db'}"))
        in_two = Doer("ada").submit_messages("do:")

        assert one.runtime is not two.runtime
        assert one.app.tasks["think.submission.run"].app is one.app
        assert two.app.tasks["think.submission.run"].app is two.app
        assert Doer("ada").inspect_submission(in_one.submission_id) is None
        assert Doer("ada").inspect_submission(in_two.submission_id) is not None
        bound = Doer._bound_to(one.runtime, "ada")
        assert bound.inspect_submission(in_one.submission_id) is not None

    def test_wiring_the_first_again_makes_it_the_processs_own(self, sqlite_url: str, tmp_path: Path) -> None:
        """ThinkCelery(app) says which app this process's agents belong to."""
        one = ThinkCelery(an_app(sqlite_url))
        ThinkCelery(an_app(f"sqlite:///{tmp_path / 'two.db'}"))

        assert ThinkCelery(one.app) is one
        assert Doer("ada")._rt is one.runtime

    def test_closing_begins_anew(self, sqlite_url: str) -> None:
        """After close() the next use opens what it needs."""
        think = ThinkCelery(an_app(sqlite_url))
        first = think.runtime
        Doer("ada").submit_messages("do:")

        think.close()

        assert Doer("ada").submit_messages("do:").accepted
        assert think.runtime is not first


class TestEmbedded:
    def test_it_serves_and_stops(self, sqlite_url: str, model: ModelServer) -> None:
        """A worker and the tick inside this process, without a server; and again after its end."""
        think = ThinkCelery(an_app_with(model, sqlite_url))

        for name in ("ada", "bob"):
            with embedded(think, concurrency=2):
                done = ended(Doer(name).submit_messages("do: note"))
            assert done.status == "completed"
            assert Doer(name).messages[-1].text == FINAL

        names = {thread.name for thread in threading.enumerate()}
        assert not names & {"think-worker", "think-tick", "think-tick-leases", "think-monitor"}

    def test_signals_logging_and_the_default_app_stay_as_they_are(
        self, sqlite_url: str, model: ModelServer
    ) -> None:
        """It is a guest in this process."""
        think = ThinkCelery(an_app_with(model, sqlite_url))

        def state() -> list[Any]:
            numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
            return [
                [signal.getsignal(number) for number in numbers],
                list(logging.getLogger().handlers),
                logging.getLogger().level,
                (sys.stdout, sys.stderr),
                current_app._get_current_object(),
                _state.task_join_will_block(),  # as if the process were a task, where nobody may wait for a result
            ]

        before = state()
        with embedded(think):
            assert state()[:4] == before[:4]

        assert state() == before

    def test_what_it_was_doing_goes_on_the_next_time(self, sqlite_url: str, model: ModelServer) -> None:
        """Leaving the block in the middle of an answer hands it over: no attempt is used up, no word lost."""
        think = ThinkCelery(an_app_with(model, sqlite_url))
        with embedded(think):
            submission = Doer("ada").submit_messages("do: note slowly")
            model.wait_for_requests(2, seconds=15)
            threading.Event().wait(0.6)

        cut = Doer("ada").messages[-1].text
        found = Doer("ada").inspect_submission(submission.submission_id)
        assert found is not None
        assert found.status == "pending"
        assert cut
        assert FINAL.startswith(cut)
        with embedded(think):
            done = ended(submission)

        assert done.status == "completed"
        assert Doer("ada").messages[-1].text == FINAL
        assert len(model.requests) == 3

    def test_one_at_a_time(self, sqlite_url: str, model: ModelServer, tmp_path: Path) -> None:
        """Celery allows one worker in a process; a second one is refused, and the first goes on."""
        think = ThinkCelery(an_app_with(model, sqlite_url))
        other = ThinkCelery(an_app(f"sqlite:///{tmp_path / 'two.db'}"))
        ThinkCelery(think.app)

        with embedded(think):
            with pytest.raises(ConfigurationError, match="runs in this process already"):
                with embedded(other):
                    pass
            done = ended(Doer("ada").submit_messages("do: note"))

        assert done.status == "completed"

    def test_a_wrong_setting_is_raised_to_the_caller(self, sqlite_url: str) -> None:
        """As it is, and nothing is left running."""
        think = ThinkCelery(an_app(sqlite_url, think_max_attempts=0))

        with pytest.raises(InvalidSetting, match="think_max_attempts"):
            with embedded(think):
                pass
        assert "think-worker" not in {thread.name for thread in threading.enumerate()}
