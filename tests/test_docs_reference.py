"""The reference pages are complete: every setting, every error, every promise, and nothing besides."""

import ast
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from tests.test_docs import ROOT, anchors
from think_celery import errors
from think_celery.settings import Settings

SETTINGS = ROOT / "docs" / "reference" / "settings.md"
TESTING = ROOT / "docs" / "howto" / "testing.md"
ERRORS = ROOT / "docs" / "errors.md"
FEATURES = ROOT / "docs" / "reference" / "features.md"

COVERED = {
    *(f"A{n}" for n in (1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 16, 17, 18, 19, 20, 21, 22, 23)),
    *(f"B{n}" for n in (1, 2, 3, 4, 5, 6, 12)),
}
"""The promises that this version keeps."""

FAMILIES = {
    "ThinkError",
    "ConfigurationError",
    "InvalidValue",
    "SubmissionError",
    "TurnError",
    "WorkflowError",
    "TaskFailed",
    "Unwind",
}


def table_of(page: str, first_head: str) -> list[list[str]]:
    """The cells of the table whose first column has that head, without head and rule."""
    table = re.search(rf"^\| {first_head} \|.*\n\|[-| ]+\|\n(?P<rows>(?:\|.*\n)+)", page, re.MULTILINE)
    assert table is not None, f"there is no table that begins with {first_head!r}"
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table["rows"].splitlines()]


class TestSettings:
    def rows(self) -> dict[str, list[str]]:
        """What the page says of each setting."""
        return {row[0].strip("`| "): row[1:] for row in table_of(SETTINGS.read_text(), "setting")}

    def test_each_setting_is_listed_once_in_the_order_of_the_class(self):
        """A setting that is added, renamed or dropped changes the page, too."""
        listed = [row[0].strip("`| ") for row in table_of(SETTINGS.read_text(), "setting")]

        assert listed == [each.metadata["key"] for each in fields(Settings)]

    @pytest.mark.parametrize("setting", fields(Settings), ids=lambda setting: setting.metadata["key"])
    def test_default_unit_and_environment_are_the_real_ones(self, setting):
        """What a reader copies from the table is what the process does."""
        default, unit, environment, rule, decides = self.rows()[setting.metadata["key"]]

        assert setting.default is not MISSING
        shown = "none" if setting.default in (None, ()) else f"{setting.default}".removesuffix(".0")
        assert default.strip("`") == shown
        assert unit == ("seconds" if setting.name.endswith("_seconds") else unit)
        names = [setting.metadata["key"].upper(), setting.metadata["vendor"]]
        assert environment == ", ".join(f"`{name}`" for name in names if name)
        assert rule
        assert decides

    @pytest.mark.parametrize("setting", fields(Settings), ids=lambda setting: setting.metadata["key"])
    def test_the_environment_spelling_works(self, setting):
        """Each variable that the table names sets its setting, to its default's own text where it has one."""
        samples = {"think_imports": "shop.agents,shop.flows", "think_openai_base_url": "http://127.0.0.1/v1"}
        key, default = setting.metadata["key"], setting.default
        sample = samples.get(key) or ("sqlite:///a.db" if default is None else str(default))
        for name in re.findall(r"`(\w+)`", self.rows()[key][2]):
            read = getattr(Settings.from_mapping({}, {name: sample}), setting.name)

            assert read == (("shop.agents", "shop.flows") if key == "think_imports" else default or sample)


class TestErrors:
    def classes(self) -> set[str]:
        """Every error that the package has."""
        found = vars(errors).items()
        return {name for name, error in found if isinstance(error, type) and issubclass(error, BaseException)}

    def headings(self) -> list[str]:
        """The headings of the page, but its title."""
        return re.findall(r"^##+ (.*)$", ERRORS.read_text(), re.MULTILINE)

    def test_each_error_has_its_heading_and_no_other_is_there(self):
        """An error that is raised can be looked up under its name, as an anchor."""
        headings = self.headings()

        assert set(headings) == self.classes()
        assert len(headings) == len(set(headings))
        assert {name.lower() for name in self.classes()} <= anchors(ERRORS)

    def test_each_error_but_a_family_says_what_happened_and_what_to_do(self):
        """A page that only names an error helps nobody."""
        sections = re.split(r"^##+ (.*)$", ERRORS.read_text(), flags=re.MULTILINE)[1:]
        told = dict(zip(sections[::2], sections[1::2], strict=True))

        wrong = [
            name
            for name in self.classes() - FAMILIES
            if not re.search(r"\*\*What happened\.\*\* \S[^*]*\n\*\*What to do\.\*\* \S", told[name])
        ]
        assert wrong == []


def test_the_points_where_a_test_can_kill_a_worker_are_real():
    """`crash_at` with a name that no code reaches would test nothing."""
    listed = [row[0] for row in table_of(TESTING.read_text(), "point")]
    points = [point for cell in listed for point in re.findall(r"`([\w:-]+)`", cell)]
    source = "".join(path.read_text() for path in (ROOT / "think_celery").rglob("*.py"))

    assert len(points) > 10
    assert [p for p in points if f'"{p.replace("NAME", "{asked.ref.step}")}"' not in source] == []


class TestFeatures:
    def rows(self) -> dict[str, list[str]]:
        """What the page says of each promise."""
        return {row[0].strip("| "): row[1:] for row in table_of(FEATURES.read_text(), "row")}

    def test_each_row_that_this_version_keeps_is_listed(self):
        """No promise is claimed that is not kept, and none that is kept is forgotten."""
        assert set(self.rows()) == COVERED

    @pytest.mark.parametrize("row", sorted(COVERED, key=lambda row: (row[0], int(row[1:]))))
    def test_each_row_names_tests_that_exist(self, row):
        """A promise is kept if a test says so."""
        promise, spelling, proof = self.rows()[row]
        named = re.findall(r"\[`(\w+)`\]\(\.\./\.\./(tests/[\w/]+\.py)\)", proof)

        assert promise
        assert spelling
        assert named, f"{row} names no test"
        missing = [f"{path}::{name}" for name, path in named if name not in described_in(ROOT / path)]
        assert missing == []
        texts = [described_in(ROOT / path)[name] for name, path in named]
        assert any(re.search(rf"\b{row}\b", text) for text in texts), f"no test of {row} says so itself"


def described_in(path: Path) -> dict[str, str]:
    """The tests in a file, those in classes too, and what they say of themselves."""
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module(body=[], type_ignores=[])
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {each.name: ast.get_docstring(each) or "" for each in functions if each.name.startswith("test_")}


def test_the_checks_find_what_is_missing(tmp_path):
    """The check itself works: a table is read cell by cell, and only tests count as tests."""
    page = "text\n\n| row | a |\n|---|---|\n| A1 | x, `y` |\n| B2 | [`t`](p) |\n\nmore\n"
    file = tmp_path / "test_x.py"
    file.write_text(
        "class TestX:\n    def test_inner(self): 'A1'\n\ndef test_outer(): pass\n\ndef help(): 'A2'\n"
    )

    assert table_of(page, "row") == [["A1", "x, `y`"], ["B2", "[`t`](p)"]]
    assert described_in(file) == {"test_inner": "A1", "test_outer": ""}
    assert described_in(tmp_path / "gone.py") == {}
