"""Which reports speak of the same thing: a small search by words, rare ones counting more."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from think_celery.demo.reports import Report

_WORD = re.compile(r"[^\W_]+(?:[._'’-][^\W_]+)*")
_COMMON_TEXT = """
a about after all also am an and any are as at be been but by can could did do does for from get had has
have how i if in into is it its just me my no not of on only one or our out please since so than that the
their them then there they this to too up us was we were what when where which while who why will with would
you your aber als am an auch auf aus bei das dass dem den der des die ein eine einem einen einer er es für
hat ich im in ist mich mir mit nach nicht noch nur oder sich sie sind so und uns vom von war weil wenn wir
zu zum zur
"""
_COMMON = frozenset(_COMMON_TEXT.split())
_ENDINGS = {"ies": "y", "shes": "sh", "ches": "ch", "xes": "x", "ings": "", "ing": "", "ed": "", "s": ""}


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """A report that shares words with what was searched for.

    ``score`` is between 0 and 1: the share of the searched words that it holds, weighted by their rarity.
    """

    report_id: str
    title: str
    score: float
    excerpt: str


def words_of(text: str) -> list[str]:
    """The telling words of a text, in their order, in lower case and without their endings."""
    return [_stem(word) for word in _telling(text)]


def _telling(text: str) -> list[str]:
    found = (word.casefold() for word in _WORD.findall(text))
    return [word for word in found if word not in _COMMON and len(word) > 1]


def _stem(word: str) -> str:
    for ending, instead in _ENDINGS.items():
        stem = word.removesuffix(ending) + instead
        if word.isalpha() and word.endswith(ending) and len(stem) >= 4 and not word.endswith("ss"):
            return stem
    return word


def most_telling(text: str, title: str = "", count: int = 6) -> list[str]:
    """Up to *count* words that say most about *text*: those of its title, then repeated and long ones."""
    spelled: dict[str, str] = {}
    for word in _telling(f"{title} {text}"):
        spelled.setdefault(_stem(word), word)
    counted = Counter(words_of(text))
    first = set(words_of(title))

    def weight(stem: str) -> tuple[bool, int, int]:
        return stem in first, counted[stem], min(len(stem), 8)

    best = sorted(spelled, key=weight, reverse=True)
    return [spelled[stem] for stem in best[:count]]


def search(reports: Sequence[Report], words: str, limit: int = 3) -> list[Match]:
    """The reports that hold most of these words, best first; those that share nothing are left out."""
    wanted = set(words_of(words))
    held = {report.report_id: set(words_of(f"{report.title} {report.text}")) for report in reports}
    spread = Counter(word for words in held.values() for word in words)
    rarity = {word: math.log(1 + len(reports) / (1 + spread[word])) for word in wanted}
    total = sum(rarity.values())
    matches = []
    for report in reports:
        shared = wanted & held[report.report_id]
        if shared:
            score = sum(rarity[word] for word in shared) / total
            matches.append(
                Match(
                    report_id=report.report_id,
                    title=report.title or excerpt(report.text, 80),
                    score=round(score, 2),
                    excerpt=excerpt(report.text, 160),
                )
            )
    return sorted(matches, key=lambda match: (-match.score, match.report_id))[:limit]


def excerpt(text: str, length: int) -> str:
    """The beginning of a text on one line, cut between words."""
    flat = " ".join(text.split())
    if len(flat) <= length:
        return flat
    return flat[: length - 1].rsplit(" ", 1)[0].rstrip(",;:. ") + "…"
