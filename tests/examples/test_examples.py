"""The examples: each folder is a small app whose own tests pass; two are tried on real workers and a beat, too."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.providers.server import ModelServer, Response, stream, tool_call_frames
from tests.test_docs import ROOT
from think_celery.protocols import FINAL_ANSWER

EXAMPLES = ROOT / "examples"
FOLDERS = sorted({path.parent for path in EXAMPLES.glob("*/*.py")})


def test_each_folder_is_a_small_app() -> None:
    """One module of the folder's name, its test, and a page that says how to start it."""
    for folder in FOLDERS:
        assert (folder / f"{folder.name}.py").exists()
        assert (folder / f"test_{folder.name}.py").exists()
        assert f"celery -A {folder.name} worker" in (folder / "README.md").read_text()
    listed = (EXAMPLES / "README.md").read_text()
    assert [folder.name for folder in FOLDERS if f"({folder.name}/README.md)" not in listed] == []


def test_their_own_tests_pass() -> None:
    """As their readers run them: no worker, no broker, no key (B13: four of them are its patterns)."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-o",
        "addopts=",
        "-p",
        "no:cacheprovider",
        str(EXAMPLES),
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)

    assert ran.returncode == 0, ran.stdout + ran.stderr


# --- on real workers ------------------------------------------------------------------------------


@contextmanager
def running(folder: Path, environ: dict[str, str], log: Path, *words: str) -> Iterator[None]:
    """A process of the app in that folder, stopped in order at the end."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", folder.name, *words],
            cwd=folder,
            env=environ,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=30)
            finally:
                process.kill()
                print(log.read_text())


def script(folder: Path, environ: dict[str, str], code: str) -> Any:
    """What a process of the same app prints as JSON."""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environ, capture_output=True, text=True, timeout=90
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture
def environ(redis_url: str, tmp_path: Path) -> dict[str, str]:
    """A broker, a database, a model's server: what production names in its environment."""
    return {
        **os.environ,
        "CELERY_BROKER_URL": redis_url,
        "THINK_DATABASE_URL": f"sqlite:///{tmp_path / 'think.db'}",
        "OPENAI_API_KEY": "sk-test",
    }


TRIAGE = """
import json, time
from triage import TriageAgent

agent = TriageAgent("issue-42")
workflow_id = agent.triage_issue(42, "I log in, and am asked to log in again.")
while not agent.messages:
    time.sleep(0.05)
agent.approve(42, by="Ada")
while (run := agent.get_workflow(workflow_id)).completed_at is None:
    time.sleep(0.05)
print(json.dumps([run.output, agent.state["labels"]]))
"""


@pytest.mark.once
def test_triage_with_a_worker(environ: dict[str, str], tmp_path: Path) -> None:
    """Prompt, approval by an event from another process, labels: as its README tells it (A7, A24)."""
    draft = {"title": "Login loops", "labels": ["bug"], "severity": "high"}
    folder = EXAMPLES / "triage"
    with ModelServer() as server:
        server.respond = lambda body: answered(body, draft)
        environ["OPENAI_BASE_URL"] = server.base_url
        with running(folder, environ, tmp_path / "worker.log", "worker", "-P", "threads", "-c", "2"):
            told = script(folder, environ, TRIAGE)

    assert told == ["Login loops: bug", ["bug"]]


def answered(body: dict[str, Any], value: dict[str, Any]) -> Response:
    """The structured answer to a prompt."""
    assert FINAL_ANSWER in [tool["function"]["name"] for tool in body["tools"]]
    return stream(*tool_call_frames((FINAL_ANSWER, value)))


REPORT = """
import json, time
from daily_report import ReportAgent, think
from sqlalchemy import text

agent = ReportAgent("shop")
while not agent.list_schedules():  # beat starts whom `autostart` names
    time.sleep(0.05)
week = 7 * 86_400 * 1_000_000
earlier = text(f"UPDATE think_schedules SET next_run_at = next_run_at - {week}, due_at = due_at - {week}")
think.runtime.db.transact(lambda tx: tx.conn.execute(earlier))
while not (runs := agent.get_workflows()) or runs[0].completed_at is None:
    time.sleep(0.05)
print(json.dumps([[run.output for run in runs], list(agent.state["reports"].values())]))
"""


@pytest.mark.once
def test_daily_report_with_a_worker_and_a_beat(environ: dict[str, str], tmp_path: Path) -> None:
    """Beat starts the agent and fires its slot, a worker calls the handler and runs the workflow (C2, C3).

    The slot of the next working day is moved to a week before, so that nobody waits for it.
    """
    folder = EXAMPLES / "daily_report"
    beat = ("beat", "-s", str(tmp_path / "beat.schedule"))
    with ModelServer() as server:
        server.respond = lambda body: answered(body, {"headline": "Books again", "text": "Twelve."})
        environ["OPENAI_BASE_URL"] = server.base_url
        with (
            running(folder, environ, tmp_path / "worker.log", "worker", "-P", "threads", "-c", "2"),
            running(folder, environ, tmp_path / "beat.log", *beat),
        ):
            told = script(folder, environ, REPORT)

    assert told == [["Books again"], ["Books again"]]
