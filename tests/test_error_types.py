"""What rows hold as an error's type can be looked up: it is a class, or stands on the page of errors."""

import ast
from collections.abc import Iterable, Iterator

from tests.test_docs import ROOT
from tests.test_docs_reference import ERRORS, table_of
from think_celery import errors

NAME = "error_type"


def test_each_type_that_no_class_has_stands_on_the_page():
    """A word that the code stores as an error's type by itself is an error's name, or is explained."""
    words = literal_types([ast.parse(path.read_text()) for path in (ROOT / "think_celery").rglob("*.py")])
    explained = {row[0].strip("`| ") for row in table_of(ERRORS.read_text(), "word")}

    assert {word for word in words if not hasattr(errors, word)} == explained


def literal_types(trees: Iterable[ast.Module]) -> set[str]:
    """The texts that code gives, assigns or compares as ``error_type``: as they are, or as a module's constant."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    constants = dict(pair for node in nodes for pair in constant(node))
    places = {
        node.name: [arg.arg for arg in node.args.args if arg.arg not in ("self", "cls")].index(NAME)
        for node in nodes
        if isinstance(node, ast.FunctionDef) and NAME in [arg.arg for arg in node.args.args]
    }
    return {text for node in nodes for value in given(node, places) for text in texts(value, constants)}


def constant(node: ast.AST) -> Iterator[tuple[str, str]]:
    if (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        yield from ((each.id, node.value.value) for each in node.targets if isinstance(each, ast.Name))


def given(node: ast.AST, places: dict[str, int]) -> Iterator[ast.expr]:
    """What is given as ``error_type`` there."""
    if isinstance(node, ast.Call):
        yield from (each.value for each in node.keywords if each.arg == NAME)
        place = places.get(word(node.func))
        if place is not None:
            yield from node.args[place : place + 1]
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        yield from (value for key, value in pairs if isinstance(key, ast.Constant) and key.value == NAME)
    elif isinstance(node, ast.Assign) and NAME in map(word, node.targets):
        yield node.value
    elif isinstance(node, ast.Compare) and NAME in map(word, [node.left, *node.comparators]):
        yield from (node.left, *node.comparators)


def word(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def texts(value: ast.expr, constants: dict[str, str]) -> Iterator[str]:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.IfExp | ast.BoolOp):
        parts = [value.body, value.orelse] if isinstance(value, ast.IfExp) else value.values
        yield from (text for each in parts for text in texts(each, constants))
    elif word(value) in constants and word(value).isupper():
        yield constants[word(value)]


def test_the_check_finds_each_way_to_give_one():
    """By name, by place, in a dict, by a condition, by a constant; nothing else."""
    code = """
GONE = "Gone"
def end(row, error_type): ...
end(1, "Placed"); end(1, error_type=other.GONE)
told = {"error_type": "Kept" if failed else None, "error": "Text"}
error_type = "Set"
news.error_type == "Seen"
"""
    assert literal_types([ast.parse(code)]) == {"Placed", "Gone", "Kept", "Set", "Seen"}
