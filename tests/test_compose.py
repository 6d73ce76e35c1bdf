"""`docker-compose.yml` is valid, and what its containers run works, as it is written, on servers of this machine."""

import copy
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import servers
from think_celery.demo.offline import offline_model
from think_celery.settings import Settings

ROOT = Path(__file__).parent.parent
FILE = ROOT / "docker-compose.yml"
PATIENCE = 120.0
VARIABLE = re.compile(r"\$\$|\$\{(?P<name>\w+):-(?P<default>[^}]*)\}")

SUBMIT = """
import think_celery.celery
from think_celery.demo.agents import TriageAgent
from think_celery.demo.reports import Report
text = "How can I invite my tax adviser? She should read all invoices and change nothing."
print(TriageAgent("7").triage(Report(report_id="7", title="", text=text)))
"""


def composed(**variables: str) -> Any:
    """The file as Compose reads it, with these variables of the shell."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found["name"], "") or found["default"]

    def interpolated(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: interpolated(inner) for name, inner in part.items()}
        if isinstance(part, list):
            return [interpolated(inner) for inner in part]
        return VARIABLE.sub(value, part) if isinstance(part, str) else part

    return interpolated(yaml.safe_load(FILE.read_text()))


class TestTheFile:
    @pytest.mark.parametrize(("broken", "code"), [(False, 0), (True, 1)])
    def test_it_is_valid_against_the_schema_of_compose(self, tmp_path: Path, broken: bool, code: int) -> None:
        """That of the Compose specification; a key that it does not know would be found."""
        given = tmp_path / "docker-compose.yml"
        given.write_text(
            FILE.read_text().replace("stop_grace_period", "stop_grace" if broken else "stop_grace_period")
        )

        checked = subprocess.run(
            [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(given)],
            capture_output=True,
            text=True,
        )

        assert checked.returncode == code, checked.stdout

    def test_no_variable_stays_open(self) -> None:
        """Each has a default, so that `docker compose up` needs none."""
        assert "$" not in VARIABLE.sub("", FILE.read_text())

    def test_each_command_that_starts_it_finds_the_key(self) -> None:
        """Compose makes containers anew whose variables have changed: a key that one command alone was given is gone
        from the workers with the next."""
        pages = (FILE, ROOT / "docs" / "howto" / "docker.md", ROOT / "README.md")
        starts = [
            line for page in pages for line in page.read_text().splitlines() if "docker compose up" in line
        ]
        written = [page.name for page in pages if "echo OPENAI_API_KEY=… > .env" in page.read_text()]

        assert len(starts) >= 4
        assert [line for line in starts if re.search(r"[A-Z_]+=\S* docker compose", line)] == []
        assert written[:2] == ["docker-compose.yml", "docker.md"]

    def test_the_image_is_built_from_files_that_are_here(self) -> None:
        """From this checkout, by a user that is not root, without secrets."""
        builds = [service["build"] for service in composed()["services"].values() if "build" in service]
        recipe = builds[0]["dockerfile_inline"]
        copied = [name for line in re.findall(r"^COPY (.*) \S+$", recipe, re.M) for name in line.split()]

        assert all(build == builds[0] for build in builds)
        assert {"pyproject.toml", "README.md", "LICENSE", "think_celery", "celeryconfig.py"} == set(copied)
        assert [name for name in copied if not (ROOT / name).exists()] == []
        assert recipe.rstrip().splitlines()[-1] == "USER think"

    def test_each_waits_for_what_it_needs(self) -> None:
        """The tables are made once, before anything works; every server and worker has a health check."""
        services = composed()["services"]
        ready = {
            name: {other: how["condition"] for other, how in service.get("depends_on", {}).items()}
            for name, service in services.items()
        }

        assert set(services) == {"redis", "postgres", "migrate", "worker", "beat", "flower"}
        assert ready["migrate"] == {"postgres": "service_healthy"}
        assert ready["worker"] == {"migrate": "service_completed_successfully", "redis": "service_healthy"}
        assert ready["beat"] == {"migrate": "service_completed_successfully"}
        assert ready["flower"] == {"redis": "service_healthy"}
        assert {name for name, service in services.items() if "healthcheck" not in service} == {"migrate"}

    def test_its_variables_are_ones_that_somebody_reads(self) -> None:
        """A misspelt one would be ignored in silence."""
        known = {each.upper() for each in Settings.__dataclass_fields__}
        given = composed()["services"]["worker"]["environment"]
        ours = {name.removeprefix("THINK_") for name in given if name.startswith("THINK_")} - {"DEMO_STATE"}

        assert ours <= known
        assert set(given) - {f"THINK_{name}" for name in ours} == {
            "CELERY_BROKER_URL",
            "OPENAI_API_KEY",
            "OPENAI_BASE_URL",
            "THINK_DEMO_STATE",
        }


# --- what the containers run ----------------------------------------------------------------------


@dataclass(frozen=True)
class Containers:
    """The file's services as processes: their commands and variables, with other addresses."""

    services: Any
    folder: Path
    addresses: dict[str, str]

    def _here(self, text: str) -> str:
        there = "|".join(map(re.escape, self.addresses))
        return re.sub(there, lambda found: self.addresses[found[0]], text)

    def environment(self, service: str) -> dict[str, str]:
        """What a container of this service sees."""
        given = {name: self._here(text) for name, text in self.services[service]["environment"].items()}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self.folder), "HOSTNAME": socket.gethostname(), **given}

    def command(self, service: str) -> list[str]:
        """Its command."""
        return shlex.split(self._here(self.services[service]["command"]))

    def run(self, service: str, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        """Run something in it to its end."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(service),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def check(self, service: str) -> "subprocess.CompletedProcess[str]":
        """Its health check."""
        how, *words = [self._here(word) for word in self.services[service]["healthcheck"]["test"]]
        return self.run(service, ["/bin/sh", "-c", words[0]] if how == "CMD-SHELL" else words)

    @contextmanager
    def started(self, service: str) -> Iterator["subprocess.Popen[str]"]:
        """It, until the end of the block."""
        with (self.folder / f"{service}.log").open("w") as log:
            process = subprocess.Popen(
                self.command(service),
                cwd=self.folder,
                env=self.environment(service),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )
            try:
                yield process
            finally:
                process.kill()
                process.wait(10)

    def healthy(self, service: str, process: "subprocess.Popen[str]", says: str) -> None:
        """Return once its health check says so, which is not asked before the service *says* that it is there."""
        give_up_at = time.monotonic() + PATIENCE
        while says not in (self.folder / f"{service}.log").read_text() and time.monotonic() < give_up_at:
            assert process.poll() is None, (self.folder / f"{service}.log").read_text()
            time.sleep(0.05)
        while (checked := self.check(service)).returncode:
            log = (self.folder / f"{service}.log").read_text()
            assert process.poll() is None, log
            assert time.monotonic() < give_up_at, f"{checked.stdout}\n{checked.stderr}\n{log}"


def free_port() -> int:
    """A port of the loopback that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def containers(postgres: servers.Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    folder = tmp_path_factory.mktemp("container")
    shutil.copy(ROOT / "celeryconfig.py", folder)  # as the image has it in its working folder
    with ExitStack() as stack:
        redis = stack.enter_context(servers.own_redis())
        model = stack.enter_context(offline_model(folder / "requests", pace=0))
        services = composed(
            THINK_MODEL="openai/offline", OPENAI_API_KEY="any", OPENAI_BASE_URL=model, WORKER_CONCURRENCY="2"
        )["services"]
        addresses = {
            "redis://redis:6379/0": redis.url,
            "postgresql+psycopg://think:think@postgres:5432/think": postgres.empty(),
            "/var/lib/think": str(folder / "demo"),
            "0.0.0.0": "127.0.0.1",
            "5555": str(free_port()),
        }
        yield Containers(copy.deepcopy(services), folder, addresses)


@pytest.mark.services
@pytest.mark.timeout(300)  # some ten programs are started, one after the other
class TestTheContainers:
    """Without Docker, in the order in which Compose starts them."""

    def test_migrate_makes_the_tables_and_may_run_again(self, containers: Containers) -> None:
        """It exits with 0, on which the others wait, at the second `docker compose up`, too."""
        before = containers.check("worker")
        ran = [containers.run("migrate", containers.command("migrate")) for _ in range(2)]

        assert [each.returncode for each in ran] == [0, 0], ran[0].stderr
        assert "is at version" in ran[1].stdout
        assert before.returncode == 1
        assert "has no tables of ours" in before.stdout

    def test_a_worker_is_healthy_while_it_works(self, containers: Containers) -> None:
        """While it serves the demo, and not once it has ended. SIGTERM ends it in order."""
        containers.run("migrate", containers.command("migrate"))
        with containers.started("worker") as worker:
            containers.healthy("worker", worker, " ready.")
            submitted = containers.run("worker", [sys.executable, "-c", SUBMIT])
            result = containers.folder / "demo" / "results" / "7.json"
            give_up_at = time.monotonic() + PATIENCE
            while not result.exists():
                assert time.monotonic() < give_up_at, (containers.folder / "worker.log").read_text()
                time.sleep(0.05)
            worker.send_signal(signal.SIGTERM)
            code = worker.wait(PATIENCE)
        after = containers.check("worker")

        assert after.returncode == 1
        assert "does not answer" in after.stdout
        assert (submitted.stdout, code) == ("7\n", 0), submitted.stderr

    def test_a_beat_is_healthy_while_it_fires(self, containers: Containers) -> None:
        """And not before. SIGTERM ends it in order, and it may start again with what it has kept."""
        containers.run("migrate", containers.command("migrate"))
        (containers.folder / "demo").mkdir(exist_ok=True)  # the image has it
        before = containers.check("beat")
        codes = []
        for _ in range(2):
            with containers.started("beat") as beat:
                containers.healthy("beat", beat, "beat: Starting...")
                beat.send_signal(signal.SIGTERM)
                codes.append(beat.wait(PATIENCE))
        banner = (containers.folder / "beat.log").read_text()

        assert before.returncode == 1
        assert "Nobody has looked at schedules ever" in before.stdout
        assert codes == [0, 0], banner
        assert "no agent has a schedule yet" in banner

    def test_flower_is_healthy(self, containers: Containers) -> None:
        """It starts on the broker alone, and knows neither the database nor a key."""
        assert set(containers.services["flower"]["environment"]) == {"CELERY_BROKER_URL"}
        before = containers.check("flower")
        with containers.started("flower") as flower:
            containers.healthy("flower", flower, "Visit me at")

        assert before.returncode != 0
