"""What the quickstart promises beyond running once: that it can be run again, and names what listeners see."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text()
DOMAIN = ROOT / "think_celery" / "domain"


def test_the_first_script_can_be_run_again_in_its_folder(tmp_path: Path) -> None:
    """The conversation is kept between the two runs, and the second one ends as the first did."""
    blocks = re.findall(r"^```python\n(.*?)^```$", QUICKSTART, re.MULTILINE | re.DOTALL)[:2]
    (tmp_path / "hello.py").write_text("\n".join(blocks))

    ran = [
        subprocess.run([sys.executable, "hello.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        for _ in range(2)
    ]

    assert [each.returncode for each in ran] == [0, 0], ran[1].stderr
    assert [each.stdout for each in ran] == ["Paris is the capital of France.\n"] * 2


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
