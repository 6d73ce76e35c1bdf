"""The documentation tells the truth: its code runs, its links lead somewhere, its commands are real."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")

# Paths of one machine and words of a conversation. (The brackets keep this line from finding itself.)
FOREIGN = re.compile(r"/wor[k]/|/roo[t]/|/far[m]/|pythonhoste[d]|this sessio[n]")


def title(page: Path) -> str:
    return str(page.relative_to(ROOT))


def as_module(text: str) -> str:
    """A page's Python blocks as one module, each line at the line that it has in the page."""
    lines = [""] * (text.count("\n") + 1)
    for block in FENCE.finditer(text):
        if block["info"].strip() == "python":
            start = text.count("\n", 0, block.start("body"))
            body = textwrap.dedent(block["body"]).splitlines()
            lines[start : start + len(body)] = body
    return "\n".join(lines)


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in a link, as GitHub makes it."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def tracked() -> list[Path]:
    """The project's own files; in a copy without git, all that is not hidden."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    return [
        path for path in ROOT.rglob("*") if path.is_file() and "/." not in str(path.relative_to(ROOT.parent))
    ]


def test_code_keeps_the_lines_that_it_has_in_the_page():
    """Blocks of a page share one module, those in a list too; a traceback names the page's line."""
    page = "# Title\n```python\nx = 1\n```\n\n- item\n  ```python\n  def f():\n      return x\n  ```\n"
    page += "```text\nnot this\n```\n"

    assert as_module(page).rstrip() == "\n\nx = 1\n\n\n\n\ndef f():\n    return x"


@pytest.mark.parametrize("page", [page for page in PAGES if as_module(page.read_text()).strip()], ids=title)
def test_the_code_of_a_page_runs(page, tmp_path):
    """A page is one module, imported in an empty folder by a fresh process, as its reader would run it."""
    module = f"page_{re.sub(r'[^a-z0-9]', '_', title(page).lower())}"
    (tmp_path / f"{module}.py").write_text(as_module(page.read_text()))

    run = subprocess.run(
        [sys.executable, "-c", f"import {module}"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )

    assert run.returncode == 0, f"{title(page)} (the line numbers are the page's)\n{run.stderr}"


def test_every_python_block_is_run():
    """No block escapes: Python is marked `python` and nothing else, and every other block says what it is."""
    infos = [
        (title(page), block["info"].strip()) for page in PAGES for block in FENCE.finditer(page.read_text())
    ]

    assert [info for info in infos if re.match(r"py(?!thon$)|\{|$", info[1], re.IGNORECASE)] == []


def test_links_lead_to_a_page_and_a_heading():
    """Each relative link names a file of the project; an anchor names one of its headings."""
    broken = []
    for page in PAGES:
        for link in LINK.finditer(FENCE.sub("", page.read_text())):
            target = (page.parent / link["path"]).resolve() if link["path"] else page
            if not target.exists() or (link["anchor"] and link["anchor"] not in anchors(target)):
                broken.append((title(page), link[0]))

    assert broken == []


def test_the_readme_and_the_ci_run_the_same_tests():
    """What a contributor is told to run is what decides."""
    told = re.search(
        r"pip install -e '\.\[dev\]' && (\S*pytest.*)$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    decides = (ROOT / ".ci" / "run").read_text().splitlines()

    assert told is not None
    assert told[1] in decides


def test_no_path_of_one_machine_is_in_the_project():
    """The project reads the same wherever it is cloned."""
    found = []
    for path in tracked():
        text = path.read_bytes().decode("utf-8", "replace")
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in FOREIGN.finditer(text)]

    assert found == []
