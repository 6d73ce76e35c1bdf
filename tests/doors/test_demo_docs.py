"""What the quickstart promises beyond running once: that it can be run again, and names what listeners see."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text()
DOMAIN = ROOT / "think_celery" / "domain"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", QUICKSTART, re.MULTILINE | re.DOTALL)

HELD_BACK = """
import threading
from think_celery.protocols import TextDelta
from think_celery.providers.scripted import FunctionModel

begun, joined = threading.Event(), threading.Event()


def answer(request):
    yield TextDelta("Paris is the capital ")
    begun.set()
    assert joined.wait(30)
    yield TextDelta("of France.")


"""
"""A model whose answer ends when somebody has joined."""


def run(folder: Path, script: str) -> "subprocess.CompletedProcess[str]":
    (folder / "hello.py").write_text(script)
    return subprocess.run(
        [sys.executable, "hello.py"], cwd=folder, capture_output=True, text=True, timeout=60
    )


def changed(script: str, old: str, new: str) -> str:
    assert script.count(old) == 1
    return script.replace(old, new)


@pytest.fixture(params=["database", pytest.param("redis", marks=pytest.mark.services)])
def first_script(request: pytest.FixtureRequest) -> str:
    """The quickstart's first script, with its live log in the database, as it is, or in a Redis."""
    if request.param == "database":
        return BLOCKS[0]
    app = 'app = Celery("hello", broker="memory://")\n'
    url = request.getfixturevalue("redis_url")
    return changed(BLOCKS[0], app, f"{app}app.conf.think_live_database_url = {url!r}\n")


def test_the_first_script_can_be_run_again_in_its_folder(tmp_path: Path) -> None:
    """The conversation is kept between the two runs, and the second one ends as the first did."""
    ran = [run(tmp_path, "\n".join(BLOCKS[:2])) for _ in range(2)]

    assert [each.returncode for each in ran] == [0, 0], ran[1].stderr
    assert [each.stdout for each in ran] == ["Paris is the capital of France.\n"] * 2


def test_the_first_script_s_listener_comes_while_the_turn_runs(tmp_path: Path, first_script: str) -> None:
    """It prints the answer once, as it does for a listener who was there before."""
    model = 'ScriptedModel("Paris is the capital of France.")'
    script = HELD_BACK + changed(first_script, model, "FunctionModel(answer)")
    script = changed(
        script,
        '    for event in Guide("ada").listen(submission.submission_id):\n',
        """    assert begun.wait(30)
    listener = Guide("ada").listen(submission.submission_id)
    joined.set()
    for event in listener:
""",
    )

    ran = run(tmp_path, script)

    assert (ran.returncode, ran.stdout) == (0, "Paris is the capital of France.\n"), ran.stderr


def test_the_first_script_s_listener_comes_as_the_turn_begins(tmp_path: Path, first_script: str) -> None:
    """As soon as the turn is claimed, or shortly after; it may have ended by then."""
    listens = "    for event in Guide"
    waits = """    import time
    while Guide("ada").inspect_submission(submission.submission_id).status == "pending":
        time.sleep(0.002)
"""

    ran = [run(tmp_path, changed(first_script, listens, waits + listens)) for _ in range(2)]

    assert {(each.returncode, each.stdout) for each in ran} == {(0, "Paris is the capital of France.\n")}


def test_every_type_that_a_listener_gets_is_in_its_table() -> None:
    """The types that the source of events writes are those of the quickstart's table, and no others."""
    rooms = {
        "turns": ("answers", "turns", "state", "loops", "ownloops"),
        "conversation": ("live", "additions"),
        "agents": ("agents", "removal"),
    }
    source = "".join((DOMAIN / room / f"{name}.py").read_text() for room in rooms for name in rooms[room])
    written = set(re.findall(r'"type": f?"([^"]+)"', source)) - {"restored"}  # listeners get it as a snapshot
    for kind in ("text", "reasoning"):
        written |= {each.replace("{name}", kind) for each in written if "{name}" in each}
    written = {each for each in written if "{" not in each} | {"snapshot", "message"}

    listen = QUICKSTART.split("## Listen\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in listen.splitlines() if line.startswith("| `")]
    told = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)} - {"type"}

    assert told == written
