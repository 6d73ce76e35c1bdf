"""The demo as a user runs it: a command in a process of its own, without services and keys."""

import fcntl
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from think_celery.demo.offline import offline_model
from think_celery.demo.reports import samples
from think_celery.demo.show import Screen, most_interesting
from think_celery.demo.watch import Phase, Standing, said_after

HIGH = {
    "id": "H-1",
    "text": "Half of my time entries are gone after the sync. They were all there yesterday evening.",
}
LOW = {
    "id": "L-1",
    "text": "How can I invite my tax adviser? She should read all invoices and change nothing.",
}


def start(*arguments: object, stdin: Any = subprocess.DEVNULL, **environ: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "think_celery.cli", "demo", *map(str, arguments)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200", **environ},
    )


def run(*arguments: object, said: str | None = None, **environ: str) -> "subprocess.CompletedProcess[str]":
    process = start(*arguments, stdin=subprocess.DEVNULL if said is None else subprocess.PIPE, **environ)
    out, errors = process.communicate(said, timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def given(folder: Path, *reports: dict[str, str]) -> Path:
    path = folder / "given.jsonl"
    path.write_text("".join(json.dumps(report) + "\n" for report in reports))
    return path


def result(state: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((state / "results" / f"{name}.json").read_text())
    return found


@pytest.mark.services
class TestCommand:
    def test_with_nothing_given_it_triages_the_samples(self, tmp_path: Path) -> None:
        """The README's first command: no file, no server, no key; a table, and where the results lie (A1-A4)."""
        ran = run("--pace", "0", TMPDIR=str(tmp_path))

        assert (ran.returncode, ran.stderr) == (0, "")
        (state,) = tmp_path.glob("think-demo-*")
        drafts = {each.report_id: result(state, each.report_id) for each in samples()}
        assert {draft["outcome"] for draft in drafts.values()} == {"applied"}
        assert drafts["INK-102"]["severity"] == "high"
        assert "INK-103" in drafts["INK-101"]["summary"]
        assert f"Results: {state}/results" in ran.stdout
        assert all(each.report_id in ran.stdout for each in samples())

    def test_the_settings_of_the_user_s_own_apps_don_t_reach_it(self, tmp_path: Path) -> None:
        """A broker, database, model, key or proxy of another application is not used."""
        foreign = {
            "CELERY_BROKER_URL": "redis://127.0.0.1:1/0",
            "THINK_DATABASE_URL": "postgresql://127.0.0.1:1/none",
            "THINK_MODEL": "openai/none",
            "THINK_QUEUE": "elsewhere",
            "OPENAI_BASE_URL": "http://127.0.0.1:1",
            "HTTP_PROXY": "http://127.0.0.1:1",
            "ALL_PROXY": "http://127.0.0.1:1",
        }

        ran = run(given(tmp_path, LOW), "--state", tmp_path / "state", "--pace", "0", **foreign)

        assert (ran.returncode, ran.stderr) == (0, "")
        assert result(tmp_path / "state", "L-1")["labels"] == ["question"]

    def test_markdown_files_and_a_folder_for_the_results(self, tmp_path: Path) -> None:
        """Each Markdown file is a report; --out says where the results go."""
        (tmp_path / "crash.md").write_text(
            "# Crash on start\n\nIt crashes for all users since today. Nobody can work.\n"
        )

        ran = run(
            tmp_path / "crash.md", "--state", tmp_path / "state", "--out", tmp_path / "out", "--pace", "0"
        )

        assert ran.returncode == 0, ran.stderr
        assert json.loads((tmp_path / "out" / "crash.json").read_text())["title"] == "Crash on start"

    def test_what_is_refused_gets_a_result_that_says_so(self, tmp_path: Path) -> None:
        """--approve none: no label is applied where the severity is high; the others go on (A24)."""
        ran = run(
            given(tmp_path, HIGH, LOW), "--state", tmp_path / "state", "--approve", "none", "--pace", "0"
        )

        assert ran.returncode == 0, ran.stderr
        refused = result(tmp_path / "state", "H-1")
        assert (refused["outcome"], refused["labels"]) == ("rejected", [])
        assert refused["reason"] == "refused by --approve none (the demo itself, in place of a person)"
        assert "data-loss" in refused["proposed_labels"]
        assert result(tmp_path / "state", "L-1")["outcome"] == "applied"
        assert "1 applied, 1 rejected." in ran.stdout

    def test_asked_questions_are_answered_on_standard_input(self, tmp_path: Path) -> None:
        """--approve ask: the draft is shown; what is neither yes nor no is asked again."""
        second = {**HIGH, "id": "H-2"}

        ran = run(
            given(tmp_path, HIGH, second),
            *("--state", tmp_path / "state", "--approve", "ask", "--pace", "0"),
            said="maybe\nyes\nn\n",
        )

        assert ran.returncode == 0, ran.stderr
        outcomes = [result(tmp_path / "state", name)["outcome"] for name in ("H-1", "H-2")]
        assert sorted(outcomes) == ["applied", "rejected"]
        assert "Answer y or n." in ran.stdout

    def test_with_nobody_to_ask_it_stops_and_says_how_to_go_on(self, tmp_path: Path) -> None:
        """Nothing is decided without an answer; what waits is asked again by the next start."""
        files = given(tmp_path, HIGH)

        ran = run(files, "--state", tmp_path / "state", "--approve", "ask", "--pace", "0", said="")
        again = run("--state", tmp_path / "state", "--approve", "all")

        assert ran.returncode == 2
        assert "--approve all" in ran.stdout
        assert again.returncode == 0, again.stderr
        assert result(tmp_path / "state", "H-1")["outcome"] == "applied"

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(self, number: int, tmp_path: Path) -> None:
        """The worker hands over what is under way; the printed command goes on, without the files."""
        state = tmp_path / "state"
        process = start(given(tmp_path, HIGH, LOW), "--state", state, "--pace", "0.1")
        assert process.stdout is not None
        for line in process.stdout:
            if "working" in line:
                break
        process.send_signal(number)
        out, errors = process.communicate(timeout=60)

        again = run("--state", state, "--pace", "0")

        assert (process.returncode, errors) == (130, "")
        assert re.search(
            r"^Stopping… (2 of 2 reports are|1 of 2 reports is) not done; nothing is lost\.$", out, re.M
        )
        assert f"think-celery demo --state {state}" in out
        assert again.returncode == 0, again.stderr
        assert "2 applied." in again.stdout

    def test_a_model_that_can_t_be_reached_fails_its_reports(self, tmp_path: Path) -> None:
        """--model and --base-url lead to another server; its errors are shown, and the exit code is 1."""
        ran = run(
            given(tmp_path, LOW),
            *("--state", tmp_path / "state", "--model", "openai/none", "--base-url", "http://127.0.0.1:1/v1"),
            OPENAI_API_KEY="sk-test-key",
        )

        assert ran.returncode == 1
        assert "could not connect to 127.0.0.1:1" in ran.stdout
        assert "Triaging 1 report with" in ran.stdout
        assert "1 failed." in ran.stdout
        state = tmp_path / "state"
        assert (
            f"think-celery demo {state}/reports.jsonl --state {state}-again --model openai/none" in ran.stdout
        )
        assert "sk-test-key" not in ran.stdout + (tmp_path / "state" / "demo.log").read_text()

    def test_a_reader_that_leaves_is_no_error_to_tell(self, tmp_path: Path) -> None:
        """`| head -2` ends the demo in order; nothing is said about it."""
        process = start(given(tmp_path, HIGH, LOW), "--state", tmp_path / "state", "--pace", "0.05")
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()

        errors = process.stderr.read()
        process.stderr.close()

        assert process.wait(timeout=60) == 1
        assert errors == ""


class TestRefusals:
    def test_a_broken_database_is_named_in_one_line(self, tmp_path: Path) -> None:
        """Which file, and what to do; exit code 2 and no traceback."""
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "think.db").write_text("This is no database. " * 100)

        ran = run(given(tmp_path, LOW), "--state", tmp_path / "state")

        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.startswith(
            f"Error: The database {tmp_path}/state/think.db can't be used: file is not"
        )
        assert "another --state folder" in ran.stderr
        assert ran.stderr.count("\n") == 1

    @pytest.mark.parametrize("option", ["--state", "--out"])
    def test_an_empty_folder_name_is_no_folder(self, option: str, tmp_path: Path) -> None:
        """Such as an unset variable in a script: it does not mean the folder where one stands."""
        ran = run(option, "")

        assert ran.returncode == 2
        assert "it is empty. Name a folder" in " ".join(ran.stderr.split())

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            ('{"id": 1, "text": "x"}\nno json\n', "given.jsonl, line 2: it is no JSON"),
            ("", "given.jsonl, line 1: the file is empty"),
            (
                '{"id": 1, "text": "x"}\n{"id": "1", "text": "y"}\n',
                "given.jsonl, line 2: the id '1' is taken by",
            ),
        ],
    )
    def test_unusable_reports_start_nothing(self, content: str, told: str, tmp_path: Path) -> None:
        """The error names file and line, the exit code is 2, and there is no state folder afterwards."""
        (tmp_path / "given.jsonl").write_text(content)

        ran = run(tmp_path / "given.jsonl", "--state", tmp_path / "state")

        assert (ran.returncode, ran.stdout) == (2, "")
        assert told in ran.stderr
        assert "Traceback" not in ran.stderr
        assert not (tmp_path / "state").exists()

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (["missing.jsonl"], "missing.jsonl: it can't be read: No such file or directory"),
            (["--model", "openai/gpt-5-mini"], "OPENAI_API_KEY"),
            (["--model", "gpt-5-mini"], "a name is provider/model"),
            (["--base-url", "http://127.0.0.1:1"], "give --model openai/NAME, too"),
            (["--approve", "maybe"], "is not one of"),
        ],
    )
    def test_other_unusable_input_is_told_with_its_remedy(
        self, arguments: list[str], told: str, tmp_path: Path
    ) -> None:
        """A missing key says what to set; a missing file is named."""
        ran = run(*arguments, "--state", tmp_path / "state")

        assert (ran.returncode, ran.stdout) == (2, "")
        assert told in " ".join(ran.stderr.split())
        assert not (tmp_path / "state").exists()


@pytest.mark.services
@pytest.mark.parametrize(("key", "code"), [(b"\x03", 130), (b"\x04", 2)], ids=["ctrl-c", "ctrl-d"])
def test_leaving_the_question_leaves_its_box_whole(key: bytes, code: int, tmp_path: Path) -> None:
    """Nothing of the draft is erased, and what is said next begins on a line of its own."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "think_celery.cli", "demo", str(given(tmp_path, HIGH))),
            *("--state", str(tmp_path / "state"), "--pace", "0"),
        ],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"},
        preexec_fn=own_terminal,
    )
    os.close(terminal)
    killer = threading.Timer(60, process.kill)
    killer.start()
    shown, pressed = "", False
    try:
        while data := _read(controller):
            shown += data
            if not pressed and "[y/n]" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown):
                os.write(controller, key)
                pressed = True
        ended = process.wait()
    finally:
        killer.cancel()
        os.close(controller)

    after = shown[shown.index("H-1 needs approval") :]
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", after).replace("\r", "").split("\n")
    assert ended == code, shown
    assert not re.search(r"\x1b\[\d*[AJK]|\x1b\[2K", after)  # up, or erase
    said = "Stopping… 1 of 1 report is not done" if code == 130 else "A report needs approval"
    assert any(line.startswith(said) for line in lines)


def own_terminal() -> None:
    """Make standard input the terminal that sends Ctrl-C to this process."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_what_a_row_says_of_a_turn() -> None:
    """A row tells what the model does: each event of the turn leads to the next line."""
    found = [{"report_id": "H-2"}, {"report_id": "H-3"}]
    events = [
        {"type": "start"},
        {"type": "tool-input-available", "input": {"words": "crash on start"}},
        {"type": "tool-output-available", "output": found},
        {"type": "finish-step"},
        {"type": "text-delta", "delta": "It "},
        {"type": "text-delta", "delta": "crashes."},
        {"type": "reset"},
        {"type": "tool-output-available", "output": []},
        {"type": "tool-output-error", "errorText": "no"},
    ]

    assert list(accumulate(events, said_after, initial="")) == [
        "",
        "reads the report",
        "searches the other reports: crash on start",
        *["drafts; similar reports: H-2, H-3"] * 2,
        "It ",
        "It crashes.",
        "reads the report",
        "drafts; similar reports: none",
        "drafts; the search failed",
    ]


@pytest.mark.services
def test_on_a_terminal_it_shows_progress_and_asks(tmp_path: Path) -> None:
    """Live rows while it works, the draft of a grave report with its question, the table at the end."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "think_celery.cli", "demo", str(given(tmp_path, HIGH, LOW))),
            *("--state", str(tmp_path / "state"), "--pace", "0.01"),
        ],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"},
    )
    os.close(terminal)
    killer = threading.Timer(100, process.kill)
    killer.start()
    shown, answered = "", False
    try:
        while data := _read(controller):
            shown += data
            if not answered and "Apply these labels?" in shown:
                os.write(controller, b"y\n")
                answered = True
        code = process.wait()
    finally:
        killer.cancel()
        os.close(controller)

    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert code == 0, plain
    assert "Triaging 2 reports" in plain
    assert re.search("reads the report|searches the other reports: |drafts; similar reports: ", plain)
    assert "H-1 needs approval" in plain
    assert "2 applied." in plain
    assert result(tmp_path / "state", "H-1")["outcome"] == "applied"


HOW_TO = Path(__file__).parents[2] / "docs" / "howto" / "docker.md"


def told_in_the_how_to() -> str:
    """The lines that start a demo workflow from another process."""
    (block,) = re.findall(r"python -c '\n(import think_celery\.celery.*?)'$", HOW_TO.read_text(), re.M | re.S)
    return str(block)


@pytest.mark.services
def test_a_celery_worker_serves_the_demo_s_classes(tmp_path: Path) -> None:
    """`celery -A think_celery worker`, without a broker: what another process starts as the how-to says is done."""
    with offline_model(tmp_path / "log", pace=0) as url:
        environ = {
            **os.environ,
            "THINK_DATABASE_URL": f"sqlite:///{tmp_path / 'think.db'}",
            "THINK_DEMO_STATE": str(tmp_path / "desk"),
            "THINK_MODEL": "openai/offline",
            "THINK_OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": "any",
        }
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "think_celery", "worker", "--concurrency", "2"],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            begun = subprocess.run(
                [sys.executable, "-c", told_in_the_how_to()],
                env=environ,
                capture_output=True,
                text=True,
                timeout=60,
            )
            done = tmp_path / "desk" / "results" / "7.json"
            until = time.monotonic() + 60
            while not done.exists() and worker.poll() is None and time.monotonic() < until:
                time.sleep(0.1)
        finally:
            worker.terminate()
            worker.wait(timeout=60)

    assert begun.stdout == "7\n", begun.stderr
    assert json.loads(done.read_text())["labels"] == ["question"]


def _read(descriptor: int) -> str:
    try:
        return os.read(descriptor, 65536).decode("utf-8", "replace")
    except OSError:  # the other end was closed
        return ""


def test_only_the_detail_gives_way_on_a_narrow_terminal() -> None:
    """At 80 x 24 ids and phases stand whole and in one column, however long the details are."""
    out = io.StringIO()
    console = Console(file=out, width=80, height=24, force_terminal=True, color_system=None)
    details = ["", "short", "a long sentence of the model " * 20, "x" * 500]
    standing = {
        f"INK-{101 + at}": Standing(phase=phase, detail=details[at % 4])
        for at, phase in enumerate([*Phase, *Phase])
    }

    console.print(Screen(console)._board(standing))

    rows = [line for line in out.getvalue().splitlines() if "INK-" in line]
    assert [row[3:10] for row in rows] == list(standing)
    assert [row[11:25].rstrip() for row in rows] == [each.phase for each in standing.values()]
    assert max(len(row.rstrip()) for row in rows) <= 80
    assert sum(row.rstrip().endswith("…") for row in rows) == 6


def test_with_more_reports_than_lines_those_at_work_are_shown() -> None:
    """A long list keeps its order, and what has ended makes room first."""
    standing = {f"R-{number}": Standing(phase=Phase.APPLIED) for number in range(9)}
    standing |= {"R-3": Standing(phase=Phase.WORKING), "R-8": Standing(phase=Phase.WAITING)}

    assert most_interesting(standing, 3) == ["R-0", "R-3", "R-8"]
    assert most_interesting(standing, 9) == list(standing)
