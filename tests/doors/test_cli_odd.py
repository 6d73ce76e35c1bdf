"""What people and scripts give the command line by mistake, and where its output may go: no traceback of it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doors.commands import own_runtime, run
from tests.test_docs import ROOT
from think_celery import Think
from think_celery.testing import ThinkTest, think_test

BYTES = "\udcff\udc80"
"""Bytes that are no UTF-8, as Python has them in its arguments."""

DEEP = "[" * 100_000


class OddAgent(Think):
    """An agent for these tests."""


@pytest.fixture
def t(sqlite_url: str) -> Iterator[ThinkTest]:
    with think_test(database_url=sqlite_url) as test, own_runtime():
        yield test


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("agents", "show", f"OddAgent:{BYTES}"), "No agent has the name"),
        (("agents", "show", "OddAgent", "x" * 201), "1 to 200 printable"),
        (("agents", "start", f"{BYTES}:a"), "No agent has the class"),
        (("submissions", "list", "--agent", f"OddAgent:{BYTES}"), "No agent has the name"),
        (("jobs", "list", "--agent", "OddAgent:  "), "No agent has the name"),
        (("agents", "list", "--class", BYTES), "no UTF-8"),
        (("workflows", "send-event", "w", "--workflow", BYTES, "--type", "t"), "1 to 200 printable"),
        (("workflows", "send-event", "w", "--type", "t", "--payload", DEEP), "it is no JSON"),
        (("workflows", "approve", "w", "--metadata", DEEP), "it is no JSON"),
    ],
)
def test_what_can_not_be_used_is_told(
    t: ThinkTest, sqlite_url: str, words: tuple[str, ...], told: str
) -> None:
    """With the exit code for what can't be used."""
    done = run(*words, "--database-url", sqlite_url)

    assert (done.exit_code, told in done.stderr) == (2, True), done.output[-500:]
    assert isinstance(done.exception, SystemExit)


def test_metadata_that_is_nested_too_deep_is_a_text(t: ThinkTest, sqlite_url: str) -> None:
    """As is what else is no JSON: nothing has it."""
    done = run("workflows", "list", "--metadata", f"a={DEEP}", "--database-url", sqlite_url)

    assert (done.exit_code, done.stdout) == (0, "There are no such workflows.\n")


def command(url: str, *words: str, **environ: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-m", "think_celery.cli", *words, "--database-url", url],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        timeout=60,
    )


def test_an_encoding_that_lacks_a_character(t: ThinkTest, sqlite_url: str) -> None:
    """A list shows an escape, and JSON stays JSON."""
    OddAgent("漢").submit_messages("Hi")

    shown = command(sqlite_url, "submissions", "list", PYTHONIOENCODING="latin-1")
    told = command(sqlite_url, "submissions", "list", "--json", PYTHONIOENCODING="latin-1")

    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"OddAgent:\\u6f22" in shown.stdout
    assert json.loads(told.stdout)[0]["agent_name"] == "漢"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
def test_a_disk_that_is_full(t: ThinkTest, sqlite_url: str) -> None:
    """It was tried, and failed."""
    arguments: dict[str, Any] = {"cwd": ROOT, "stderr": subprocess.PIPE, "timeout": 60}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "think_celery.cli", "agents", "list", "--database-url", sqlite_url],
            stdout=full,
            **arguments,
        )

    assert (done.returncode, b"no space" in done.stderr, b"Traceback" in done.stderr) == (1, True, False)
