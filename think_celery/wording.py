"""Small words of error texts: articles, verbs that agree with what is named, and values that callers have given."""

import reprlib

LONGEST_SHOWN = 200

_brief = reprlib.Repr()
_brief.maxstring, _brief.maxother, _brief.maxlong = 80, 120, 60
_brief.maxdict = _brief.maxlist = _brief.maxtuple = _brief.maxset = _brief.maxfrozenset = 8


def shown(value: object) -> str:
    """A value that somebody has given, as code would have it; of a long one its beginning and its end."""
    try:
        text = _brief.repr(value)
    except Exception:  # a number of more digits than Python tells
        return a_type(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def a_type(value: object) -> str:
    """The type of a value with its article: ``an int``, ``a list``."""
    return with_article(type(value).__name__)


def with_article(name: str) -> str:
    """A name behind ``a`` or ``an``."""
    return f"{'an' if name[:1].lower() in tuple('aeiou') else 'a'} {name}"


def agree(what: str, one: str, many: str) -> str:
    """The verb for *what*: *many* for ``the params of Kid``, *one* for ``the payload`` and ``the news``."""
    head = what.split(" of ", 1)[0]
    return many if head.endswith("s") and not head.endswith("news") else one
