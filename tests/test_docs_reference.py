"""The reference pages are complete: every setting, every error, every promise, and nothing besides."""

import ast
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path

import pytest

from tests.test_docs import ROOT, anchors
from think_celery import errors
from think_celery.settings import Settings

SETTINGS = ROOT / "docs" / "reference" / "settings.md"
TESTING = ROOT / "docs" / "howto" / "testing.md"
ERRORS = ROOT / "docs" / "errors.md"
FEATURES = ROOT / "docs" / "reference" / "features.md"
TESTS = ROOT / "tests"

COVERED = {
    *(f"A{n}" for n in range(1, 28)),
    *(f"B{n}" for n in (*range(1, 14), *range(15, 19), *range(20, 29))),
    *(f"C{n}" for n in (1, 2, 3, 4)),
}
"""The promises that this version keeps."""

FIELD = {f"FR-{n:02}" for n in (1, 4, 5, 7, 8, 10, 11, 12, 13, 14, 15, 26, 28, 33, 34, 35, 37, 60, 61)}
"""The accidents of servers, workers and pools; the other ones of that table are known from the tests that name them."""

NUMBER = re.compile(r"\b(?:[A-C]\d+|FR-\d+)\b")

FAMILIES = {
    "ThinkError",
    "ConfigurationError",
    "InvalidValue",
    "SubmissionError",
    "TurnError",
    "JobError",
    "InteractionError",
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
        key, default = setting.metadata["key"], setting.default
        samples = {"think_imports": "shop.agents,shop.flows"}
        if key.endswith("_base_url"):
            samples[key] = "http://127.0.0.1/v1"
        sample = samples.get(key) or ("sqlite:///a.db" if default is None else str(default))
        for name in re.findall(r"`(\w+)`", self.rows()[key][2]):
            read = getattr(Settings.from_mapping({}, {name: sample}), setting.name)

            wanted = sample if default is None else default
            assert read == (("shop.agents", "shop.flows") if key == "think_imports" else wanted)


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
    of_steps = set(re.findall(r'"step:\{[\w.]+\}:([\w-]+)"', source))
    real = {f"step:{point.rpartition(':')[2]}" for point in points if point.startswith("step:")}

    assert len(points) > 10
    assert real == {f"step:{word}" for word in of_steps}
    assert [p for p in points if not p.startswith("step:") and f'"{p}"' not in source] == []


class TestFeatures:
    def rows(self) -> dict[str, list[str]]:
        """What the page says of each promise, and of each fault."""
        page = FEATURES.read_text()
        listed = [*table_of(page, "row"), *table_of(page, "fault")]
        rows = {row[0].strip("| "): [cell.strip("| ") for cell in row[1:]] for row in listed}
        assert len(rows) == len(listed), "a row is there twice"
        return rows

    def named(self) -> set[str]:
        """The numbers that tests name in what they say of themselves."""
        told = [text for path in TESTS.rglob("*.py") for text in described_in(path).values()]
        return {number for text in told for number in NUMBER.findall(text)}

    def test_each_row_that_this_version_keeps_is_listed(self):
        """No promise is claimed that is not kept, and none that is kept is forgotten."""
        rows = set(self.rows())

        assert {row for row in rows if not row.startswith("FR-")} == COVERED
        assert rows >= FIELD

    def test_each_number_in_a_test_is_explained(self):
        """A reader of a test finds in the page what its number stands for."""
        assert self.named() - set(self.rows()) == set()

    def test_each_row_names_tests_that_exist(self):
        """A promise is kept if a test says so: itself, or the class or the file that it stands in."""
        wrong = [
            fault
            for row, (*cells, proof) in self.rows().items()
            for fault in ([] if all(cells) else [f"{row} has an empty cell"]) + unproven(row, proof)
        ]

        assert wrong == []


def unproven(row: str, proof: str) -> list[str]:
    """What is wrong with the tests that a row names."""
    named = re.findall(r"\[`(\w+)`\]\(\.\./\.\./(tests/[\w/]+\.py)\)", proof)
    if not named:
        return [f"{row} names no test"]
    told = {(path, name): described_in(ROOT / path).get(name) for name, path in named}
    wrong = [f"{row}: there is no {path}::{name}" for (path, name), text in told.items() if text is None]
    if not any(re.search(rf"\b{row}\b", text or "") for text in told.values()):
        wrong.append(f"{row}: none of its tests says so")
    return wrong


@cache
def described_in(path: Path) -> dict[str, str]:
    """The tests in a file, and what each says of itself, with what its classes and its file say."""
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module(body=[], type_ignores=[])

    def below(node: ast.Module | ast.ClassDef, said: str) -> Iterator[tuple[str, str]]:
        said += " " + (ast.get_docstring(node) or "")
        for each in node.body:
            if isinstance(each, ast.ClassDef):
                yield from below(each, said)
            elif isinstance(each, ast.FunctionDef) and each.name.startswith("test_"):
                yield each.name, f"{said} {ast.get_docstring(each) or ''}".strip()

    return dict(below(tree, ""))


def test_the_checks_find_what_is_missing(tmp_path):
    """The check itself works: a table is read cell by cell, and only tests count as tests."""
    page = "text\n\n| row | a |\n|---|---|\n| A1 | x, `y` |\n| B2 | [`t`](p) |\n\nmore\n"
    file = tmp_path / "test_x.py"
    file.write_text(
        "'B1'\nclass TestX:\n    'FR-01'\n    def test_inner(self): 'A1'\n\ndef test_outer(): pass\n\ndef aid(): 'A2'\n"
    )

    assert table_of(page, "row") == [["A1", "x, `y`"], ["B2", "[`t`](p)"]]
    assert described_in(file) == {"test_inner": "B1 FR-01 A1", "test_outer": "B1"}
    assert described_in(tmp_path / "gone.py") == {}
    assert unproven("A1", "–") == ["A1 names no test"]
    assert unproven("A1", "[`test_gone`](../../tests/test_docs_reference.py)") == [
        "A1: there is no tests/test_docs_reference.py::test_gone",
        "A1: none of its tests says so",
    ]
