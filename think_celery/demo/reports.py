"""Issue reports: read from files, all of them checked before anything is done with one."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from think_celery.errors import InvalidValue
from think_celery.messages import clean

LONGEST_TEXT, LONGEST_TITLE, LONGEST_ID = 100_000, 500, 100
JSON_LINES, MARKDOWN = {".jsonl", ".ndjson"}, {".md", ".markdown", ".txt"}
EXAMPLE = '{"id": "42", "title": "Crash on export", "text": "When I export …"}'


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """One issue report as somebody wrote it. ``title`` may be empty."""

    report_id: str
    title: str
    text: str


class InvalidReport(InvalidValue):
    """A file of reports that can't be used; nothing was started."""

    def __init__(self, place: str, problem: str, remedy: str) -> None:
        super().__init__(place, problem, remedy)
        self.place, self.problem, self.remedy = place, problem, remedy

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}. {self.remedy} Nothing was started."


_LINE = f"Each line is one report as a JSON object, such as {EXAMPLE}."
_FILES = (
    "Name a JSONL file (.jsonl: one report a line), or Markdown or text files (.md, .txt: one report each)."
)


def samples() -> list[Report]:
    """The reports that come with the package."""
    path = resources.files("think_celery.demo") / "reports.jsonl"
    return list(parse_lines(path.read_text(encoding="utf-8"), "reports.jsonl"))


def read_files(paths: Sequence[Path]) -> list[Report]:
    """Every report in these files, in their order.

    Raises:
        InvalidReport: A file or line can't be used, or two reports have one id. It names file and line.
    """
    reports: list[Report] = []
    places: dict[str, str] = {}
    for path in paths:
        for place, report in _read_file(path):
            # Results are files of that name, and some file systems don't tell "a" from "A".
            known = places.setdefault(report.report_id.casefold(), place)
            if known != place:
                raise InvalidReport(
                    place,
                    f"the id {report.report_id!r} is taken by {known}",
                    "Each report needs an id of its own.",
                )
            reports.append(report)
    return reports


def _read_file(path: Path) -> list[tuple[str, Report]]:
    kind = path.suffix.lower()
    if path.is_dir():
        raise InvalidReport(str(path), "it is a folder", _FILES)
    if kind not in JSON_LINES | MARKDOWN:
        raise InvalidReport(
            str(path), f"{kind or 'a file without an ending'} is not a kind that is read", _FILES
        )
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InvalidReport(str(path), f"it can't be read: {error.strerror or error}", _FILES) from None
    text = _decoded(raw, path)
    if not text.strip():
        raise InvalidReport(f"{path}, line 1", "the file is empty", _FILES)
    if kind in MARKDOWN:
        return [(f"{path}, line 1", parse_markdown(text, path))]
    return list(_numbered(text, str(path)))


def _decoded(raw: bytes, path: Path) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidReport(
            f"{path}, line {line}", "it is not UTF-8 text", "Save the file in that encoding."
        ) from None


def parse_lines(text: str, name: str) -> Iterator[Report]:
    """The reports of a JSONL text; *name* stands for it in errors.

    Raises:
        InvalidReport: A line is no report.
    """
    return (report for _, report in _numbered(text, name))


def _numbered(text: str, name: str) -> Iterator[tuple[str, Report]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            place = f"{name}, line {number}"
            yield place, _parse_line(line, place)


def _parse_line(line: str, place: str) -> Report:
    try:
        given: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "it is nested too deeply"
        at = f" (column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidReport(place, f"it is no JSON: {reason}{at}", _LINE) from None
    if not isinstance(given, dict):
        raise InvalidReport(place, f"it is {_kind(given)}, not an object", _LINE)
    report_id = given.get("id")
    if isinstance(report_id, int) and not isinstance(report_id, bool):
        report_id = str(report_id)
    report_id = _id_of(report_id, place)
    title = "" if given.get("title") is None else _text_of(given, "title", place, LONGEST_TITLE, blank=True)
    text = _text_of(given, "text", place, LONGEST_TEXT)
    return Report(report_id=report_id, title=title, text=text)


def _id_of(given: Any, place: str) -> str:
    report_id = _text_of({"id": given}, "id", place, LONGEST_ID)
    if not report_id.isprintable():
        raise InvalidReport(place, f"the id {report_id!r} holds characters that can't be shown", _LINE)
    return report_id


def _text_of(given: dict[str, Any], name: str, place: str, longest: int, *, blank: bool = False) -> str:
    value = given.get(name)
    if value is None:
        raise InvalidReport(place, f'"{name}" is missing', _LINE)
    if not isinstance(value, str):
        raise InvalidReport(place, f'"{name}" is {_kind(value)}, not a text', _LINE)
    value = str(clean(value)).strip()
    if not value and not blank:
        raise InvalidReport(place, f'"{name}" is blank', _LINE)
    if len(value) > longest:
        raise InvalidReport(
            place, f'"{name}" has {len(value):,} characters; {longest:,} are allowed', "Shorten the report."
        )
    return value


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def parse_markdown(text: str, path: Path) -> Report:
    """One report: its id is the file's name, its title the first heading where the text begins with one.

    Raises:
        InvalidReport: It is too long, or the file's name is no id.
    """
    place = f"{path}, line 1"
    first, _, rest = text.strip().partition("\n")
    heading = first.lstrip("#").strip() if first.startswith("#") else ""
    body = rest if heading and rest.strip() else text
    given = {"title": heading, "text": body}
    return Report(
        report_id=_id_of(path.stem, place),
        title=_text_of(given, "title", place, LONGEST_TITLE, blank=True),
        text=_text_of(given, "text", place, LONGEST_TEXT),
    )


# --- what the model is shown ----------------------------------------------------------------------

_TASK = "Triage this issue report."


def as_prompt(report: Report) -> str:
    """The report as it is put to the model."""
    title = " ".join(report.title.split())
    return f"{_TASK}\n\nReport: {report.report_id}\nTitle: {title or '(none)'}\n\n{report.text}"


def from_prompt(prompt: str) -> Report | None:
    """The report in a prompt that :func:`as_prompt` made; ``None`` if it is another text."""
    task, _, rest = prompt.partition("\n\n")
    head, _, text = rest.partition("\n\n")
    lines = head.split("\n")
    if task != _TASK or len(lines) != 2 or not lines[0].startswith("Report: "):
        return None
    title = lines[1].removeprefix("Title: ")
    return Report(
        report_id=lines[0].removeprefix("Report: "), title="" if title == "(none)" else title, text=text
    )
