"""`think-celery doctor`: what it finds on real servers and workers, in words that say what to do, in ten seconds."""

import ctypes
import importlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from celery import Celery
from click.testing import CliRunner

from tests import servers
from tests.crash.pace import measured_pace
from tests.providers import anthropic_frames
from tests.providers.server import ModelServer, Response, json_response, stream, text_frames, tool_call_frames
from think_celery import Think, runtime
from think_celery.agents import handle
from think_celery.cli import checks, diagnosis, main
from think_celery.cli.checks import Finding
from think_celery.cli.doctor import lines
from think_celery.errors import ThinkError
from think_celery.protocols import FINAL_ANSWER
from think_celery.store.migrate import upgrade
from think_celery.testing import think_test
from think_celery.worker import inspection

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 60.0
SECRET = "tulip"


SETTINGS_SHOP = """
from celery import Celery
from think_celery import ThinkCelery
app = Celery("{name}", broker="memory://", set_as_current=False)
{line}
ThinkCelery(app)
"""


class DoctorAgent(Think):
    """No worker of these tests has this class."""


@pytest.fixture(autouse=True)
def own_default() -> Iterator[None]:
    """The command makes a runtime the process's own; these tests share a process with others."""
    before = runtime.set_current(None)
    runtime.set_current(before)
    yield
    made = runtime.set_current(before)
    if made is not None and made is not before and not isinstance(made, runtime.Runtime):
        with suppress(ThinkError, ImportError):  # a command that could not make one
            made().close()


@dataclass(frozen=True)
class Diagnosed:
    """What the doctor said."""

    exit_code: int
    output: str

    @property
    def findings(self) -> dict[str, list[tuple[str, str]]]:
        """Level and text of each finding, by the check."""
        found: dict[str, list[tuple[str, str]]] = {}
        for each in json.loads(self.output)["findings"]:
            found.setdefault(each["check"], []).append((each["level"], each["text"]))
        return found

    def level(self, check: str) -> str:
        """The worst that a check found; empty where it was not made."""
        found = [level for level, _ in self.findings.get(check, [])]
        return max(found, key=["ok", "warning", "problem"].index, default="")

    def text(self, check: str) -> str:
        """All that a check said."""
        return " ".join(text for _, text in self.findings.get(check, []))


def doctor(*arguments: str, broker: str | None = None) -> Diagnosed:
    """What it says of that database, over that broker."""
    given: dict[str, str | None] = {name: None for name in os.environ if name.startswith("CELERY_")}
    if broker is not None:
        given["CELERY_BROKER_URL"] = broker
    ran = CliRunner().invoke(main, ["doctor", "--json", *arguments], env=given, prog_name="think-celery")
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    assert ran.stdout, ran.stderr
    return Diagnosed(ran.exit_code, ran.stdout)


Seen = TypeVar("Seen")


def until(look: Callable[[], Seen], holds: Callable[[Seen], bool]) -> Seen:
    """The first diagnosis, or other look, for which that holds; a slow machine may need a second one."""
    give_up_at = time.monotonic() + PATIENCE
    while not holds(said := look()):
        assert time.monotonic() < give_up_at, getattr(said, "output", said)
    return said


# --- without a worker -----------------------------------------------------------------------------


class TestWhatItSays:
    def test_a_fresh_database_needs_a_worker(self, sqlite_url: str) -> None:
        """For people: a line for each check, with its level; exit code 1 as long as something needs somebody."""
        ran = CliRunner().invoke(main, ["doctor", "--database-url", sqlite_url])

        lines = ran.stdout.splitlines()
        assert ran.exit_code == 1
        assert any(line.startswith("ok       database") for line in lines)
        assert any(line.startswith("problem  ticks") and "Start a worker" in line for line in lines)
        assert {line.split()[0] for line in lines} == {"ok", "problem"}

    def test_a_missing_file_is_not_made(self, tmp_path: Path) -> None:
        """Looking changes nothing."""
        said = doctor("--database-url", f"sqlite:///{tmp_path / 'none.db'}")

        assert (said.exit_code, said.level("database")) == (1, "problem")
        assert "think-celery db upgrade" in said.text("database")
        assert not list(tmp_path.iterdir())

    def test_a_schema_that_is_too_old_is_left_so(self, tmp_path: Path) -> None:
        """The doctor migrates nothing, not even SQLite, which a worker would."""
        (tmp_path / "empty.db").touch()

        said = doctor("--database-url", f"sqlite:///{tmp_path / 'empty.db'}")

        with closing(sqlite3.connect(tmp_path / "empty.db")) as conn:
            tables = conn.execute("SELECT name FROM sqlite_master").fetchall()

        assert (said.level("database"), tables) == ("problem", [])

    @pytest.mark.parametrize(
        ("variable", "value", "url"),
        [("THINK_LEASE", "soon", None), ("THINK_DATABASE_URL", "sqlite:///think.db", "mysql://db/x")],
    )
    def test_a_setting_that_is_wrong_is_told_once_and_hides_no_broker(
        self, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, url: str | None
    ) -> None:
        """What can be looked at without it is looked at; another database than the one that was named is not."""
        monkeypatch.setenv(variable, value)

        said = doctor("--database-url", url or sqlite_url, broker="redis://127.0.0.1:1/0")

        assert (said.exit_code, said.level("settings"), said.level("broker")) == (1, "problem", "problem")
        assert (url or variable).split(":")[0] in said.text("settings")
        assert "can't be reached" in said.text("broker")
        assert list(said.findings) == (["settings", "broker"] if url else ["settings", "database", "broker"])
        assert said.level("database") == ("" if url else "ok")

    def test_all_settings_that_are_wrong_are_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One look is enough to mend them: each with its rule, those of the database and of the live log, too."""
        line = (
            "app.conf.update(think_lease='soon', think_modle='x', think_database_url='mysql://db/x',\n"
            "    think_retention='later')"
        )
        (tmp_path / "wrongshop.py").write_text(SETTINGS_SHOP.format(name="wrongshop", line=line))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("THINK_MAX_ATTEMPTS", "0")

        said = doctor("-A", "wrongshop")
        monkeypatch.setenv("THINK_LIVE_DATABASE_URL", "redis://:port/x")
        live = doctor("-A", "wrongshop", "--database-url", f"sqlite:///{tmp_path / 'none.db'}")

        told = [text for _, text in said.findings["settings"]]
        for name in (
            "think_modle",
            "think_lease",
            "think_retention",
            "THINK_MAX_ATTEMPTS",
            "think_database_url",
        ):
            assert sum(name in text for text in told) == 1, told
        assert "database" not in said.findings
        assert "think_live_database_url" in live.text("settings")
        assert "There is no database" in live.text("database")

    @pytest.mark.usefixtures("only_these")
    def test_an_autostart_that_can_not_be_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else only the beat's log would say so; what the user's code raised is told by its type alone."""
        (tmp_path / "autoshop.py").write_text(
            SETTINGS_SHOP.format(name="autoshop", line="")
            + f"""
from think_celery import Think


class One(Think, name="AutoshopOne"):
    model, autostart = "openai/gpt-5-mini", "one"


class Odd(Think, name="AutoshopOdd"):
    model, autostart = "openai/gpt-5-mini", ["fine", 7]


class Broken(Think, name="AutoshopBroken"):
    model = "openai/gpt-5-mini"

    @classmethod
    def autostart(cls):
        raise LookupError({SECRET!r})


class Good(Think, name="AutoshopGood"):
    model, autostart = "openai/gpt-5-mini", ["a"]
"""
        )
        monkeypatch.syspath_prepend(str(tmp_path))

        said = doctor("-A", "autoshop", "--database-url", f"sqlite:///{tmp_path / 'none.db'}")

        assert said.level("autostart") == "problem"
        told = said.text("autostart")
        assert "That of AutoshopOne can't be used" in told
        assert "it must be a list of agents' names" in told
        assert "AutoshopOdd.autostart=7" in told
        assert "it raised LookupError" in told
        assert "AutoshopGood" not in told
        assert SECRET not in said.output

    def test_a_module_of_the_environment_is_named_with_its_variable(
        self, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One finds it where it is set; other commands say it in one line, too."""
        (tmp_path / "envshop.py").write_text(SETTINGS_SHOP.format(name="envshop", line=""))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("THINK_IMPORTS", "nosuch.mod")

        said = doctor("-A", "envshop", "--database-url", sqlite_url)
        other = CliRunner().invoke(main, ["db", "upgrade", "-A", "envshop", "--database-url", sqlite_url])

        assert "THINK_IMPORTS names nosuch.mod" in said.text("settings")
        assert (other.exit_code, other.stderr.count("\n")) == (2, 1)
        assert "THINK_IMPORTS names nosuch.mod" in other.stderr

    def test_a_configuration_that_can_not_be_loaded_is_one_finding(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Celery imports what config_from_object names at the first look into its settings, and may fail there."""
        line = "app.config_from_object('nosuch.conf')"
        (tmp_path / "confshop.py").write_text(SETTINGS_SHOP.format(name="confshop", line=line))
        monkeypatch.syspath_prepend(str(tmp_path))

        said = doctor("-A", "confshop")
        other = CliRunner().invoke(main, ["db", "current", "-A", "confshop"])

        assert (said.exit_code, list(said.findings)) == (1, ["settings"])
        assert "No module named 'nosuch'" in said.text("settings")
        assert (other.exit_code, other.stderr.count("\n")) == (2, 1)

    def test_what_it_tells_to_run_names_the_app(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Typed as it is printed, it meets this app's database and not another."""
        line = f"app.conf.think_database_url = 'sqlite:///{tmp_path / 'none.db'}'"
        (tmp_path / "toldshop.py").write_text(SETTINGS_SHOP.format(name="toldshop", line=line))
        monkeypatch.syspath_prepend(str(tmp_path))

        said = doctor("-A", "toldshop")

        assert said.text("database").endswith("Run: think-celery db upgrade -A toldshop")

    def test_a_module_that_can_not_be_imported_hides_nothing(self, sqlite_url: str, tmp_path: Path) -> None:
        """The settings are valid, so the database that was named is looked at."""
        (tmp_path / "importshop.py").write_text(
            "from celery import Celery\nfrom think_celery import ThinkCelery\n"
            "app = Celery('importshop', broker='memory://', set_as_current=False)\n"
            "app.conf.think_imports = ['no_such_module_of_the_shop']\nThinkCelery(app)\n"
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(tmp_path))
            said = doctor("-A", "importshop", "--database-url", sqlite_url)

        assert (said.level("settings"), said.level("database")) == ("problem", "ok")
        assert "think_imports names no_such_module_of_the_shop" in said.text("settings")
        assert sqlite_url.removeprefix("sqlite:///") in said.text("database")

    def test_a_check_that_fails_itself_is_a_problem_and_hides_no_other(
        self, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is told by its type and place, for its text may hold what a row holds."""

        def broken(db: Any, given: Any) -> Any:
            raise RuntimeError(SECRET)

        monkeypatch.setattr(checks, "paused", broken)
        with think_test(database_url=sqlite_url):
            pass

        said = doctor("--database-url", sqlite_url)

        assert said.level("paused") == "problem"
        assert "RuntimeError" in said.text("paused")
        assert SECRET not in said.output
        assert (said.level("news"), said.level("attempts")) == ("ok", "ok")

    def test_a_broker_that_celery_does_not_know(self, sqlite_url: str) -> None:
        """A misspelt URL is told of as one, and without its password."""
        said = doctor("--database-url", sqlite_url, broker=f"redsi://:{SECRET}@127.0.0.1:1/0")

        assert "a name that Celery does not know" in said.text("broker") + said.text("settings")
        assert SECRET not in said.output

    def test_passwords_are_not_shown(self) -> None:
        """Neither the database's nor the broker's, whatever goes wrong with them."""
        said = doctor(
            "--database-url",
            f"postgresql+psycopg://user:{SECRET}@127.0.0.1:1/name",
            broker=f"redis://:{SECRET}@127.0.0.1:1/0",
        )

        assert (said.level("database"), said.level("broker")) == ("problem", "problem")
        assert "127.0.0.1" in said.text("broker")
        assert SECRET not in said.output

    def test_it_ends_in_ten_seconds_where_everything_hangs(self) -> None:
        """A database and a broker that accept and never answer cost their time, once, and are told of.

        On a machine that is free; without a limit each of them would hang for minutes.
        """
        with socket.create_server(("127.0.0.1", 0), backlog=50) as deaf, measured_pace() as pace:
            port = deaf.getsockname()[1]
            began = time.monotonic()
            said = doctor(
                "--database-url",
                f"postgresql+psycopg://u@127.0.0.1:{port}/x",
                broker=f"redis://127.0.0.1:{port}/0",
            )
            took = (time.monotonic() - began) / pace.stretch(began)

        assert took < 10
        assert (said.exit_code, said.level("database"), said.level("broker")) == (1, "problem", "problem")
        assert "no answer within" in said.text("database")

    def test_turns_that_run_in_their_callers_need_no_worker(self, sqlite_url: str, tmp_path: Path) -> None:
        """With task_always_eager there is no broker to ask, and that is said."""
        (tmp_path / "eagershop.py").write_text(
            "from celery import Celery\nfrom think_celery import ThinkCelery\n"
            "app = Celery('eagershop', broker='redis://127.0.0.1:1/0', set_as_current=False)\n"
            "app.conf.task_always_eager = True\nThinkCelery(app)\n"
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(tmp_path))
            said = doctor("-A", "eagershop", "--database-url", sqlite_url)

        assert said.level("broker") == "warning"
        assert "workers" not in said.findings

    def test_a_worker_that_nobody_can_ask_is_not_called_well(self, sqlite_url: str) -> None:
        """Over memory:// a health check of one worker would know nothing, and says so."""
        said = doctor("--database-url", sqlite_url, "--worker", "celery@here")

        assert (said.exit_code, said.level("broker"), said.level("workers")) == (1, "ok", "problem")

    def test_an_app_that_is_not_there_is_no_diagnosis(self) -> None:
        """Exit code 2: what was given can't be used."""
        assert CliRunner().invoke(main, ["doctor", "-A", "no.such.app"]).exit_code == 2


PAGE = (ROOT / "docs" / "howto" / "doctor.md").read_text()


def names_in_the_code() -> list[str]:
    """The name of each check, in the order in which they are made."""
    sources = [
        (ROOT / "think_celery" / "cli" / f"{name}.py").read_text()
        for name in ("doctor", "diagnosis", "checks", "jobchecks", "schedulechecks")
    ]
    calls = r'\b(?:ok|warning|problem|checked|self\._add)\(\s*"(\w+)"|^ +"(\w+)": lambda: \w*checks\.'
    found = [one or other for source in sources for one, other in re.findall(calls, source, re.MULTILINE)]
    return [name for name in dict.fromkeys(found) if name != "model"]


def test_the_how_to_lists_every_check() -> None:
    """Each name that stands in a line of the doctor's has a row that says what is a problem there."""
    table = PAGE[PAGE.index("| check |") : PAGE.index("The ping is")]
    told = re.findall(r"^\| ([a-z]+) \|", table, re.MULTILINE)[1:]

    assert sorted(told) == sorted(names_in_the_code())


def test_the_sample_of_the_how_to_is_what_it_prints(sqlite_url: str) -> None:
    """In its columns, with all its checks, and in the order in which it makes them."""
    sample = re.search(r"```text\n(.*?)\n```", PAGE, re.DOTALL)
    assert sample is not None
    shown = sample[1].splitlines()
    found = [Finding(check, level, text) for level, check, text in (line.split(maxsplit=2) for line in shown)]  # type: ignore[arg-type]
    levels = {each.check: each.level for each in found if each.check in ("queues", "waiting")}
    order = list(doctor("--database-url", sqlite_url).findings)

    assert shown == lines(found)
    assert {each.check for each in found} == set(names_in_the_code())
    assert [name for name in dict.fromkeys(each.check for each in found) if name in order] == order
    assert levels == {"queues": "warning", "waiting": "problem"}


# --- a model --------------------------------------------------------------------------------------

GOOD = {"title": "The export is empty", "severity": "high"}


@pytest.fixture
def only_these(monkeypatch: pytest.MonkeyPatch) -> runtime.Registry[Any]:
    """A process in which no agent class was imported yet."""
    fresh: runtime.Registry[Any] = runtime.Registry("agent class")
    monkeypatch.setattr(handle, "agent_classes", fresh)
    # `think_celery.cli.main` has put the command over its module.
    monkeypatch.setattr(importlib.import_module("think_celery.cli.doctor"), "agent_classes", fresh)
    return fresh


class TestModelsOfClasses:
    """Turns that must fail are told of before anybody submits one."""

    SHOP = (
        "\nfrom think_celery import Think\n"
        "class Nameless(Think):\n    pass\n"
        "class Keyless(Think):\n    model = 'openai/some-model'\n"
        "class Chooses(Think):\n    def get_model(self):\n        raise RuntimeError\n"
    )

    @pytest.fixture
    def shop(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_these: Any) -> str:
        name = f"modelshop{tmp_path.name.replace('-', '_')}"
        (tmp_path / f"{name}.py").write_text(SETTINGS_SHOP.format(name=name, line="") + self.SHOP)
        monkeypatch.syspath_prepend(str(tmp_path))
        return name

    def test_each_class_without_one_is_warned_of(self, shop: str, sqlite_url: str) -> None:
        """None was named, or its key is missing here; a class that chooses in its turns is not asked."""
        said = doctor("-A", shop, "--database-url", sqlite_url)

        assert [level for level, _ in said.findings["models"]] == ["warning", "warning"]
        keyless, nameless = (text for _, text in said.findings["models"])
        assert ("Keyless" in keyless, "OPENAI_API_KEY" in keyless) == (True, True)
        assert ("Nameless" in nameless, "think_model" in nameless) == (True, True)
        assert "Chooses" not in said.text("models")
        assert "that of the workers may differ" in keyless

    def test_the_settings_of_all_classes_count(
        self, shop: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """think_model for those that name none, and the key."""
        monkeypatch.setenv("THINK_MODEL", "openai/another")
        monkeypatch.setenv("OPENAI_API_KEY", SECRET)

        said = doctor("-A", shop, "--database-url", sqlite_url)

        assert (said.level("models"), SECRET in said.output) == ("ok", False)

    def test_models_that_only_follow_others(
        self, shop: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where the first can be asked, no turn fails for the second; it would be missed where the first one fails."""
        monkeypatch.setenv("OPENAI_API_KEY", SECRET)
        monkeypatch.setenv("THINK_MODEL", "openai/another")
        importlib.import_module(shop).Keyless.model = ["openai/a", "nowhere/b"]

        text = doctor("-A", shop, "--database-url", sqlite_url).text("models")

        assert "Turns of Keyless would fail where the models before this one do" in text
        assert "Every turn" not in text

    def test_a_vendors_package_that_is_missing(
        self, shop: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A model of Pydantic AI is made, too: without its vendor's package every turn would fail."""
        made = pytest.importorskip("think_celery.providers.pydantic_ai")

        def missing(name: str) -> None:
            raise ImportError(f"install the package of {name}")

        monkeypatch.setattr(made, "infer_model", missing)
        monkeypatch.setenv("THINK_MODEL", "pydantic-ai/anthropic:some-model")

        text = doctor("-A", shop, "--database-url", sqlite_url).text("models")

        assert "Every turn of Nameless would fail" in text
        assert "install the package of anthropic:some-model" in text

    def test_without_an_app_nothing_is_said_of_classes(self, sqlite_url: str) -> None:
        """None were imported, so none are known."""
        assert "models" not in doctor("--database-url", sqlite_url).findings


class TestAModel:
    @pytest.mark.parametrize(
        ("answer", "exit_code", "words"),
        [
            (stream(*tool_call_frames((FINAL_ANSWER, GOOD))), 0, "can answer a step.prompt"),
            (stream(*text_frames("It is rather bad.")), 1, "answered in plain text"),
            (stream(*tool_call_frames(("other", GOOD))), 1, "answered nothing"),
            (stream(*tool_call_frames((FINAL_ANSWER, {"title": "x", "severity": "huge"}))), 1, "severity"),
            (json_response({"error": {"message": "Incorrect API key"}}, status=401), 1, "Incorrect API key"),
        ],
    )
    def test_it_is_asked_as_a_prompt_asks(
        self, answer: Response, exit_code: int, words: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One streamed request with the tool forced; nothing but the model is looked at (A17)."""
        with ModelServer() as server:
            server.script(answer)
            monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
            monkeypatch.setenv("OPENAI_API_KEY", SECRET)
            said = doctor("--model", "openai/some-model", broker="redis://127.0.0.1:1/0")
            (request,) = server.requests

        assert said.exit_code == exit_code
        assert list(said.findings) == ["model"]
        assert words in said.text("model")
        assert ".." not in said.text("model")
        assert SECRET not in said.output
        assert request["stream"] is True
        assert request["tool_choice"]["function"]["name"] == FINAL_ANSWER
        assert [each["function"]["name"] for each in request["tools"]] == [FINAL_ANSWER]

    def test_one_of_anthropic(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same request in its wire format, with its own key and address (A17)."""
        with ModelServer() as server:
            block = anthropic_frames.call_block(0, FINAL_ANSWER, GOOD)
            server.script(anthropic_frames.message(block, reason="tool_use"))
            monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url)
            monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
            said = doctor("--model", "anthropic/some-model", broker="redis://127.0.0.1:1/0")
            (request,) = server.requests

        assert (said.exit_code, "can answer a step.prompt" in said.text("model")) == (0, True)
        assert request["tool_choice"] == {"type": "tool", "name": FINAL_ANSWER}
        assert SECRET not in said.output

    def test_one_of_pydantic_ai(self) -> None:
        """Models in memory need no key; what this one makes up by the schema fits it (A17)."""
        said = doctor("--model", "pydantic-ai/test", broker="redis://127.0.0.1:1/0")

        assert said.level("model") == "ok"
        assert "pydantic-ai/test" in said.text("model")

    def test_one_without_a_key_is_told_of(self) -> None:
        """Nothing is asked."""
        said = doctor("--model", "openai/some-model")

        assert (said.exit_code, "OPENAI_API_KEY" in said.text("model")) == (1, True)


# --- with workers ---------------------------------------------------------------------------------

SHOP = """
import time
from celery import Celery
from think_celery import Think, ThinkCelery
app = Celery("shop", set_as_current=False)
app.conf.worker_prefetch_multiplier = 1
app.conf.task_acks_late = True
ThinkCelery(app)
@app.task(name="shop.nap")
def nap(seconds):
    time.sleep(seconds)
"""


@dataclass(frozen=True)
class Place:
    """A worker of the shop's, with one slot, on servers that are these tests' own."""

    process: subprocess.Popen[str]
    broker: str
    database_url: str
    name: str

    def look(self, *arguments: str) -> Diagnosed:
        """What the doctor says of it."""
        return doctor("--database-url", self.database_url, *arguments, broker=self.broker)

    @property
    def child(self) -> int:
        """The process of its one slot."""
        (child,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(child)


PR_SET_PDEATHSIG, LIBC = 1, ctypes.CDLL(None)


def dies_with_parent() -> None:
    """Let the kernel end this process when its parent ends, however that comes."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def worker(folder: Path, log: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A real worker process, once it is ready."""
    command = [sys.executable, "-m", "celery", *arguments, "--loglevel", "info"]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            preexec_fn=dies_with_parent,
        )
        try:
            give_up_at = time.monotonic() + PATIENCE
            while " ready." not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < give_up_at, log.read_text()
                time.sleep(0.05)
            yield process
        finally:
            process.kill()
            process.wait(10)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(SHOP)
    url = f"sqlite:///{folder / 'think.db'}"
    upgrade(url)
    with ExitStack() as stack:
        broker = stack.enter_context(servers.own_redis()).url
        name = f"shop@{socket.gethostname()}"
        process = stack.enter_context(
            worker(
                folder,
                folder / "log",
                *("-A", "shop", "worker", "-c", "1", "-n", "shop@%h", "--without-mingle", "--without-gossip"),
                THINK_DATABASE_URL=url,
                CELERY_BROKER_URL=broker,
            )
        )
        yield Place(process, broker, url, name)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no answer will come, half a second is as good as the usual time."""
    monkeypatch.setattr(diagnosis, "PING_SECONDS", 0.5)


class TestAsking:
    def test_who_is_late_at_first_is_asked_once_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Though others have answered already; two of one name count as two if they did so at either time."""
        app = Celery("asking", broker="memory://", set_as_current=False)
        celery, slow = [{"name": "celery"}], [{"name": "slow"}]
        times = [[{"a": celery}, {"twin": celery}, {"twin": celery}], [{"b": slow}, {"twin": celery}]]

        def broadcast(command: str, destination: list[str] | None = None, **options: Any) -> list[Any]:
            if command == "active_queues":
                return times.pop(0)
            return [{name: {"agents": []}} for name in destination or ()]

        monkeypatch.setattr(app.control, "broadcast", broadcast)

        found = inspection.ask_workers(app, app.connection_for_write())

        assert [(each.name, sorted(each.queues)) for each in found] == [
            ("a", ["celery"]),
            ("b", ["slow"]),
            ("twin", ["celery"]),
            ("twin", ["celery"]),
        ]


@pytest.mark.services
class TestAWorker:
    """FR-14: health means that it consumes, not that it is connected."""

    def test_all_is_well(self, place: Place) -> None:
        """Exit code 0; a message went through the queue, a worker took it, and its answer is in the database."""
        said = until(place.look, lambda said: said.exit_code == 0)

        assert place.name in said.text("workers")
        assert (said.level("ping"), said.level("ticks"), said.level("waiting")) == ("ok", "ok", "ok")
        assert "visibility_timeout" in said.text("broker")  # it is no problem, and could be better
        assert said.level("broker") == "warning"

    def test_one_worker_alone(self, place: Place) -> None:
        """For the health check of a container: it says nothing of rows, and another worker does not count."""
        with think_test(database_url=place.database_url):
            stuck = DoctorAgent("a").submit_messages("Hello")
            mine = until(lambda: place.look("--worker", place.name), lambda said: said.exit_code == 0)
            none = place.look("--worker", "other@nowhere")
            DoctorAgent("a").cancel_submission(stuck.submission_id)

        assert (mine.level("workers"), mine.level("ping")) == ("ok", "ok")
        assert f"was taken by {place.name}." in mine.text("ping")  # no other listens
        assert mine.text("queues") == f"{place.name} listens to celery."
        assert "waiting" not in mine.findings
        assert (none.exit_code, "does not answer" in none.text("workers")) == (1, True)

    def test_a_class_that_no_worker_has(self, place: Place) -> None:
        """A turn of it is not lost; which module is missing is said."""
        with think_test(database_url=place.database_url):
            waits = DoctorAgent("b").submit_messages("Hello")
            said = until(place.look, lambda said: "imported" in said.text("waiting"))
            DoctorAgent("b").cancel_submission(waits.submission_id)

        assert (said.exit_code, said.level("waiting")) == (1, "problem")
        assert "has imported DoctorAgent" in said.text("waiting")
        assert waits.submission_id in said.text("waiting")

    def test_a_worker_that_is_connected_and_consumes_nothing(
        self, place: Place, impatient: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It answers, and does not work: its slot is frozen, so nothing takes the message. That the last read of it
        takes its time is not said to be a hanging database."""
        unanswered = checks.unanswered

        def slowly(*given: Any) -> Any:
            time.sleep(0.4)
            return unanswered(*given)

        monkeypatch.setattr(checks, "unanswered", slowly)
        os.kill(place.child, signal.SIGSTOP)
        try:
            said = until(place.look, lambda said: "consumes nothing" in said.text("ping"))
            alone = until(
                lambda: place.look("--worker", place.name), lambda said: said.level("workers") == "ok"
            )
        finally:
            os.kill(place.child, signal.SIGCONT)

        assert (said.exit_code, said.level("workers"), said.level("ping")) == (1, "ok", "problem")
        assert "consumes nothing" in said.text("ping")
        assert (alone.exit_code, alone.level("ping")) == (1, "problem")
        assert place.name in alone.text("ping")

    def test_one_of_two_is_not_blamed_for_the_other(
        self, place: Place, impatient: None, tmp_path: Path, sqlite_url: str
    ) -> None:
        """Asked for one worker: a message that nobody took may have been taken by another that listens, such as one
        that works on another database. Which one takes it is the broker's choice."""
        twin = (
            "-A",
            "shop",
            "worker",
            "--pool",
            "solo",
            "-n",
            "twin@here",
            "--without-mingle",
            "--without-gossip",
        )
        (tmp_path / "shop.py").write_text(SHOP)
        environment = {"THINK_DATABASE_URL": sqlite_url, "CELERY_BROKER_URL": place.broker}
        with worker(tmp_path, tmp_path / "log", *twin, **environment):
            said = until(
                lambda: place.look("--worker", place.name),
                lambda said: said.level("ping") == "warning" and said.level("workers") == "ok",
            )

        assert said.exit_code == 0
        assert "twin@here" in said.text("ping")
        assert place.name in said.text("workers")
        assert "twin@here" not in said.text("workers")

    def test_a_worker_that_has_stopped_to_listen(self, place: Place) -> None:
        """The queue that we send to is named."""
        app = Celery("control", broker=place.broker, set_as_current=False)
        asked = {"destination": [place.name], "reply": True}
        until(lambda: app.control.cancel_consumer("celery", **asked), bool)  # a new worker may not listen yet
        try:
            said = until(place.look, lambda said: "queues" in said.findings and said.level("workers") == "ok")
        finally:
            app.control.add_consumer("celery", **asked)

        assert (said.exit_code, said.level("workers"), said.level("queues")) == (1, "ok", "problem")
        assert re.search(
            r"worker -Q (\w+,)*celery\b", said.text("queues")
        )  # other tests' classes name queues, too

    def test_a_worker_of_another_database(self, place: Place, sqlite_url: str, impatient: None) -> None:
        """It takes the message, and its answer is not here."""
        said = until(
            lambda: doctor("--database-url", sqlite_url, broker=place.broker),
            lambda said: said.level("ping") == "problem",
        )

        assert (said.exit_code, said.level("ping")) == (1, "problem")
        assert "think_database_url" in said.text("ping")

    def test_a_worker_that_does_not_know_us(self, place: Place, tmp_path: Path) -> None:
        """A plain `celery worker` takes our messages from the queue and throws them away."""
        broker = servers.numbered(place.broker, 1)
        with worker(tmp_path, tmp_path / "log", "-b", broker, "worker", "--pool", "solo", "--without-mingle"):
            said = until(
                lambda: doctor("--database-url", place.database_url, broker=broker),
                lambda said: "does not know our tasks" in said.text("workers"),
            )

        assert (said.exit_code, said.level("workers"), said.level("queues")) == (1, "problem", "problem")

    def test_a_worker_that_is_busy_is_not_ill(self, place: Place, impatient: None) -> None:
        """All slots busy is a warning, and exit code 0: work waits its turn."""
        app = Celery("caller", broker=place.broker, set_as_current=False)
        app.send_task("shop.nap", args=[600])  # the next test kills it
        said = until(place.look, lambda said: said.level("ping") == "warning")

        assert (said.exit_code, said.level("ping")) == (0, "warning")
        assert "busy" in said.text("ping")

    def test_a_message_that_nobody_takes(self, place: Place) -> None:
        """No worker lives: a turn that was accepted and knocked for is named, with the way to have it run."""
        place.process.kill()
        place.process.wait(10)
        app = Celery("client", broker=place.broker, set_as_current=False)
        with think_test(database_url=place.database_url) as t:
            waits = DoctorAgent("c").submit_messages("Hello")
            t.lose_messages()
            app.send_task("think.submission.run", kwargs={"submission_id": waits.submission_id})

        said = place.look()

        assert (said.exit_code, said.level("workers"), said.level("waiting")) == (1, "problem", "problem")
        assert "Start one" in said.text("workers")
        assert "no worker that answered listens to it" in said.text("waiting")
