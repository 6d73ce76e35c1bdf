"""Names that users give."""

import pytest

from think_celery.errors import InvalidValue
from think_celery.names import check_name, name_problem


@pytest.mark.parametrize("value", ["a", "issue 42", "ü", "x" * 20, "think-"])
def test_names(value: str):
    """Any printable text that is not too long."""
    check_name("id", value, 20)


@pytest.mark.parametrize("value", ["", " ", "a\nb", "a\x00b", "\ud800", "x" * 21])
def test_what_is_no_name(value: object):
    """The text says what was given and the rule; it is a ValueError."""
    with pytest.raises(InvalidValue, match=r"^id=.*: it must be 1 to 20 printable characters, and not blank"):
        check_name("id", value, 20)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (5, r"^id=5: it is of type int; pass a text, such as '5'\.$"),
        (None, r"^id=None: it is of type NoneType; pass a text\.$"),
        (b"a", r"^id=b'a': it is of type bytes; pass a text\.$"),
    ],
)
def test_what_is_no_text(value: object, told: str):
    """A primary key is what most often is given instead of a text: the error shows the text to pass."""
    with pytest.raises(InvalidValue, match=told):
        check_name("id", value, 20)


def test_beginnings_that_are_reserved_and_characters_of_ids():
    """Two rules that hold for some names only."""
    with pytest.raises(InvalidValue, match="reserved"):
        check_name("type", "think-x", 20, reserved=True)
    assert "ASCII" in str(name_problem("ü", 20, ascii_only=True))
