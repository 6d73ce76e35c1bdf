"""How the offline model judges a report: by words, in English and a little German. Pure functions."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from think_celery.demo.reports import Report
from think_celery.demo.search import excerpt, most_telling

SAME_SCORE = 0.6
"""From this score on, another report is taken for one of the same thing."""

_PATTERNS: Mapping[str, str] = {
    "security": r"leak|expos|vulnerab|injection|\bxss\b|\bcsrf\b|without logging in|signature|credential|"
    r"password|other (customer|user|compan)|another (company|customer|user)",
    "data-loss": r"\b(is|are|was|were|all) gone\b|data loss|lost (my|our|the|all)|disappear|overwr|wiped|verschwunden|"
    r"gelöscht|verloren",
    "crash": r"crash|traceback|segfault|segmentation fault|kills the app|stürzt|absturz|internal server error",
    "performance": r"\bslow|stutter|takes \d+ (s|sec|min)|\d+ (seconds|minutes) to|\bhangs?\b|cpu .*100|langsam",
    "installation": r"\binstall|failed building|\bdocker\b|\bapt\b|upgrade fails|\bgcc\b",
    "documentation": r"\bdocs?\b|documentation|readme|\btypo|tutorial|the (guide|manual|reference page)",
    "interface": r"button|layout|screen|keyboard|scroll|\bfont\b|dark mode|dialog",
    "feature-request": r"would be (great|nice|good)|feature|please add|could you add|\bi wish\b|dark mode, please|"
    r"wäre (schön|toll)",
    "question": r"how (can|do|to|should)\b|is it possible|is there (a|any) way|what is the (right|best) way|wie kann",
}
_LABELS = {label: re.compile(pattern, re.IGNORECASE | re.DOTALL) for label, pattern in _PATTERNS.items()}
_BROKEN = re.compile(
    r"wrong|incorrect|fail|error|broken|hidden|can't|cannot|doesn't|does not|instead of|falsch|fehler|statt",
    re.IGNORECASE,
)
_URGENT = re.compile(
    r"urgent|asap|production|all (our )?users|everyone|everybody|by friday|dringend", re.IGNORECASE
)
_CALM = re.compile(r"not (at all )?urgent|no hurry|minor|small|nice to have", re.IGNORECASE)

_TOO_SHORT = 12  # words
_SHOUTING = re.compile(r"^(urgent|re|fwd?|help|bug|issue|docs?)\s*[:!]+\s*", re.IGNORECASE)


def labels_of(report: Report, same: Sequence[str] = ()) -> list[str]:
    """The labels of a report; *same* are reports that it seems to repeat."""
    told = f"{report.title}\n{report.text}"
    found = [label for label, pattern in _LABELS.items() if pattern.search(told)]
    wish = "feature-request" in found or "question" in found
    if "installation" in found:
        found = [label for label in found if label != "performance"]  # it is the installation that is slow
    grave = {"crash", "data-loss", "performance"} & set(found)
    if "feature-request" in found and not grave:
        found = ["feature-request"]
    if grave:
        found = [label for label in found if label != "question"]
    if grave or (_BROKEN.search(told) and not wish and found != ["documentation"]):
        found.insert(0, "bug")
    if len(told.split()) < _TOO_SHORT:
        found.append("needs-information")
    if same:
        found.append("possible-duplicate")
    return found or ["needs-information"]


def severity_of(report: Report, labels: Sequence[str]) -> str:
    """``low``, ``medium`` or ``high``."""
    told = f"{report.title}\n{report.text}"
    documented = "documentation" in labels
    if "data-loss" in labels or ("security" in labels and not documented):
        return "high"
    if "crash" in labels:
        return "high" if _URGENT.search(told) or "every" in told else "medium"
    if "feature-request" in labels or (_CALM.search(told) and "bug" not in labels):
        return "low"
    return "medium" if "bug" in labels or "installation" in labels or documented else "low"


def title_of(report: Report) -> str:
    """A title of one line; one that shouts is calmed."""
    title = " ".join((report.title or _sentences(report.text)[0]).split())
    while (calmed := _SHOUTING.sub("", title)) not in ("", title):
        title = calmed
    title = re.sub(r"[!?.]{2,}|[!.]+$", "", title).strip()
    if title.isupper() and len(title) > 5:
        title = title.lower()
    title = excerpt(title, 80)
    return title[:1].upper() + title[1:] or report.report_id


def summary_of(report: Report, same: Sequence[str] = ()) -> str:
    """The first sentences of a report, and which others seem to be about the same."""
    summary, used = "", 0
    for sentence in _sentences(report.text):
        if used and len(summary) + len(sentence) > 220:
            break
        summary, used = f"{summary} {sentence}".strip(), used + 1
        if used == 2:
            break
    summary = excerpt(summary, 280)
    if same:
        summary += f" Possibly the same as {' and '.join(same)}."
    return summary


def _sentences(text: str) -> list[str]:
    flat = " ".join(re.sub(r"^\s*(#+|[-*>])\s+", "", text, flags=re.MULTILINE).split())
    return re.split(r"(?<=[.!?])\s+(?=[\"'(]?[A-ZÄÖÜ0-9])", flat) or [flat]


def words_to_search(report: Report) -> str:
    """What to look for among the other reports."""
    return " ".join(most_telling(report.text, report.title))


def same_reports(matches: object) -> list[str]:
    """The ids of those search results that seem to be about the same thing.

    *matches* is what the search tool answered, read from JSON; anything else means that it failed.
    """
    if not isinstance(matches, list):
        return []
    found: list[Any] = [match for match in matches if isinstance(match, dict)]
    return [
        str(match["report_id"])
        for match in found
        if isinstance(match.get("score"), int | float)
        and match["score"] >= SAME_SCORE
        and match.get("report_id")
    ]


def draft_of(report: Report, matches: object) -> dict[str, Any]:
    """The whole judgement, with the fields of a ``Draft``."""
    same = same_reports(matches)
    labels = labels_of(report, same)
    return {
        "title": title_of(report),
        "summary": summary_of(report, same),
        "labels": labels,
        "severity": severity_of(report, labels),
    }
