"""Where triage happens: a folder with the reports, and the folder of the results.

Every write replaces a whole file at once, so that whoever reads one, or starts again after a kill, never
meets half of it.
"""

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from think_celery.demo.reports import InvalidReport, Report, parse_lines

VARIABLE = "THINK_DEMO_STATE"
_PARTIAL = ".partial"


@dataclass(frozen=True, kw_only=True, slots=True)
class Desk:
    """The reports in ``folder``, and the results in ``out``."""

    folder: Path
    out: Path

    @property
    def reports_file(self) -> Path:
        """The reports that were taken in."""
        return self.folder / "reports.jsonl"

    @property
    def database_url(self) -> str:
        """The rows of everything that was begun here."""
        return f"sqlite:///{self.folder / 'think.db'}"

    @property
    def request_log(self) -> Path:
        """One line for each request to the offline model."""
        return self.folder / "requests.jsonl"

    def reports(self) -> list[Report]:
        """Every report that was taken in."""
        try:
            text = self.reports_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return list(parse_lines(text, str(self.reports_file)))

    def take_in(self, given: Iterable[Report]) -> list[Report]:
        """Add reports to those that lie here, and return all of them.

        Raises:
            InvalidReport: One lies here already with another text.
        """
        known = {report.report_id.casefold(): report for report in self.reports()}
        for report in given:
            if known.setdefault(report.report_id.casefold(), report) != report:
                raise InvalidReport(
                    f"report {report.report_id!r}",
                    f"{self.folder} already holds a report of this id with another text",
                    "Give the report another id, or choose another --state folder.",
                )
        lines = [
            json.dumps({"id": each.report_id, "title": each.title, "text": each.text}, ensure_ascii=False)
            for each in known.values()
        ]
        write_whole(self.reports_file, "".join(f"{line}\n" for line in lines))
        return list(known.values())

    def result_file(self, report_id: str) -> Path:
        """Where the result of a report lies."""
        return self.out / f"{file_name(report_id)}.json"

    def result(self, report_id: str) -> dict[str, Any] | None:
        """The result of a report, or ``None`` as long as there is none."""
        try:
            found: dict[str, Any] = json.loads(self.result_file(report_id).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return found

    def put_result(self, report_id: str, result: dict[str, Any], idempotency_key: str) -> str:
        """Write a report's result once, and return its path.

        Called again with the same key, as a step is whose worker was killed between the effect and its
        record, it leaves the file as it is.
        """
        path = self.result_file(report_id)
        known = self.result(report_id)
        if known is None or known.get("idempotency_key") != idempotency_key:
            whole = {"report": report_id, **result, "idempotency_key": idempotency_key}
            write_whole(path, json.dumps(whole, ensure_ascii=False, indent=2) + "\n")
        return str(path)


_PLAIN_ID = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]|\.(?!\.))*")
_OTHERS = re.compile(r"[^\w-]+")
_LONGEST_WORDS = 40


def file_name(report_id: str) -> str:
    """A visible name for files about a report, in this folder whatever the id is; no two ids share one.

    It is the id itself where that is plain, else the words of it and a mark made of the whole.
    """
    if _PLAIN_ID.fullmatch(report_id):
        return report_id
    words = _OTHERS.sub("-", report_id).strip("-")[:_LONGEST_WORDS] or "report"
    return f"{words}~{hashlib.sha256(report_id.encode()).hexdigest()[:10]}"


def open_desk(folder: Path, out: Path | None = None) -> Desk:
    """The desk in that folder, made if there is none. Results keep the folder that they were first given.

    Raises:
        InvalidReport: A folder can't be used, or *out* is another one than that of this desk's results.
    """
    folder = _made(folder, "--state")
    settings = folder / "desk.json"
    kept = _kept_out(settings) if settings.exists() else None
    if kept is not None and out is not None and kept != out.resolve():
        raise InvalidReport(
            f"--out {out}",
            f"the results of {folder} lie in {kept}",
            "Leave --out away to go on there, or choose another --state folder.",
        )
    desk = Desk(folder=folder, out=_made(kept or out or folder / "results", "--out"))
    if kept is None:
        write_whole(settings, json.dumps({"out": str(desk.out)}) + "\n")
    _remove_leftovers(desk.folder)
    _remove_leftovers(desk.out)
    return desk


def _made(folder: Path, option: str) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"the folder can't be made: {error.strerror or error}"
        raise InvalidReport(f"{option} {folder}", problem, "Name one that you may write to.") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidReport(
            f"{option} {folder}", "the folder can't be written to", "Name one that you may write to."
        )
    return folder.resolve()


def _kept_out(settings: Path) -> Path:
    try:
        return Path(json.loads(settings.read_text(encoding="utf-8"))["out"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidReport(
            str(settings), "it can't be read as what the demo wrote there", "Choose another --state folder."
        ) from None


def _remove_leftovers(folder: Path) -> None:
    """Remove what writers left behind that were killed."""
    for path in folder.glob(f".*{_PARTIAL}"):
        process = path.name.removesuffix(_PARTIAL).split(".")[-2]
        if process.isdecimal() and not _is_alive(int(process)):
            path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    if os.name != "posix":  # elsewhere a signal 0 is not harmless
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}{_PARTIAL}")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    if os.name == "posix":  # the new name, too, must last
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# --- this process's desk --------------------------------------------------------------------------

_desk: Desk | None = None


def use(desk: Desk | None) -> None:
    """Let the agents of this process work at that desk."""
    global _desk
    _desk = desk


def current() -> Desk:
    """This process's desk: the one in use, else the folder that ``THINK_DEMO_STATE`` names, else ``./think-demo``."""
    if _desk is not None:
        return _desk
    return open_desk(Path(os.environ.get(VARIABLE) or "think-demo"))
