"""The house: which room each module lives in, and what it may import. Read from the source with `ast`."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "think_celery"
LONGEST = 400  # lines; a longer module is split by noun

FLOORS = (
    "errors states messages tools approvals recurrence serialization settings protocols retries durations schemas "
    "signals signatures classes records jsontext clock ids breaker forks hosts native logs described names hooks "
    "cadence concurrency plain scheduled wording",
    "store events providers",
    "runtime domain",
    "agents workflow workflows clients",
    "tasks publictasks beat metronome mail web memory brokers publishing worker",
    "__init__ app celery cli embedded testing demo contrib",
)
NAMES = ("ground", "cellar", "domain", "porch", "doors", "hall")
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms.split()}
GROUND, DOORS, HALL = (set(FLOORS[height].split()) for height in (0, 4, 5))

ROOMS: dict[str, set[str]] = {  # a library, and the only rooms or modules that may import it
    "celery": DOORS | HALL,
    "kombu": DOORS | HALL,
    "billiard": {"worker.stops"},  # only it says whether this process is a child of the prefork pool
    "sqlalchemy": {"store", "events.sql"},
    "alembic": {"store"},
    "psycopg": {"store"},
    "httpx": {"providers"},
    "pydantic_ai": {"providers"},
    "redis": {"events.redis", "events.redis_ears"} | HALL,
    "pydantic": GROUND | {"providers", "demo"},
    "pydantic_core": GROUND | {"providers", "events.redis"},
    "jsonschema": GROUND | {"providers"},
    "cronsim": {"recurrence"},
    "pytimeparse2": {"durations"},
    "uuid_utils": {"ids"},
    "click": {"cli", "demo"},
    "rich": {"cli", "demo"},
    "starlette": {"web", "contrib"},
    "uvicorn": {"cli"},
    "flask": {"contrib.flask"},
    "django": {"contrib.django"},
}

EXCEPTIONS = {  # (module, rule): why
    (
        "store.migrations.versions.0001_first_tables",
        "size",
    ): "the tables of the first version, one after the other; no logic",
}

Fault = tuple[str, str, str]  # module, rule, what is wrong


def imports(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Each imported name, dotted, and whether only a type checker imports it. Inside functions too."""
    checks = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    ]
    for_types = {inner for check in checks for statement in check.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            dots = "." * node.level  # a relative import keeps its dots, and so belongs to no room
            yield from (
                (f"{dots}{node.module or ''}.{alias.name}", node in for_types) for alias in node.names
            )


def may_import(module: str, rooms: set[str]) -> bool:
    """Say whether *module* is one of *rooms* or lies in one."""
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def faults(module: str, source: str) -> Iterator[Fault]:
    """What is wrong with one module, named without the package: `store.tables`."""
    room, tree = module.split(".")[0], ast.parse(source)
    if room not in FLOOR:
        yield module, "floor", "it has no floor; add its room to FLOORS in tests/test_house.py"
        return
    if (lines := source.count("\n")) > LONGEST:
        yield module, "size", f"{lines} lines, at most {LONGEST}; split it by noun"
    for name, for_types in imports(tree):
        library, _, inner = name.partition(".")
        if library == "think_celery":
            target = inner.split(".")[0] if inner.split(".")[0] in FLOOR else "__init__"
            if FLOOR[target] > FLOOR[room]:
                floors = f"{NAMES[FLOOR[room]]} imports from the {NAMES[FLOOR[target]]}"
                yield module, "direction", f"{name}: the {floors}, which lies above it"
        elif library == "time" and module != "clock":
            yield module, "clock", "it imports time; only clock.py reads the time and sleeps"
        elif library not in sys.stdlib_module_names and library not in ROOMS:
            yield (
                module,
                "library",
                f"{name}: no room may import it; add it to ROOMS, with a reason in the commit",
            )
        elif library in ROOMS and not for_types and not may_import(module, ROOMS[library]):
            yield module, "library", f"{name} is out of its room ({', '.join(sorted(ROOMS[library]))})"
    for node in ast.walk(tree):
        if module != "clock" and isinstance(node, ast.Attribute) and node.attr in {"now", "utcnow", "today"}:
            owner = ast.unparse(node.value).split(".")[-1]
            if owner in {"datetime", "date"}:
                yield (
                    module,
                    "clock",
                    f"line {node.lineno} calls {owner}.{node.attr}; only clock.py reads the time",
                )


def classes_of_tests() -> dict[str, list[str]]:
    """The registered name of each agent and workflow class of the tests, with the files that define it."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(Path(__file__).parent.rglob("*.py"))}
    classes = [(p, n) for p, tree in trees.items() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    ours, before = {"ChatAgent", "Think", "ThinkWorkflow"}, 0
    while len(ours) > before:
        before = len(ours)
        ours |= {n.name for _, n in classes if any(ast.unparse(b).split("[")[0] in ours for b in n.bases)}
    found: dict[str, list[str]] = {}
    for path, node in classes:
        if any(ast.unparse(base).split("[")[0] in ours for base in node.bases):
            given = [each.value for each in node.keywords if each.arg == "name"]
            names = [each.value for each in given if isinstance(each, ast.Constant)] if given else [node.name]
            for name in names:  # one that is computed is the test's own business
                found.setdefault(str(name), []).append(path.name)
    return found


def test_no_two_tests_define_an_agent_or_workflow_of_one_name():
    """All tests share one registry of names, in which two modules' classes of one name are an error."""
    shared = {name: files for name, files in classes_of_tests().items() if len(set(files)) > 1}

    assert shared == {}


def house() -> dict[str, str]:
    """Each module's dotted name, without the package, and its source."""
    paths = {path: path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")}
    named = {path: ".".join(name.parts).removesuffix(".__init__") for path, name in paths.items()}
    return {name: path.read_text(encoding="utf-8") for path, name in named.items()}


def test_every_module_keeps_to_its_room():
    """A module imports its own floor or below, uses libraries in their room, stays short, reads no clock."""
    found = [fault for module, source in sorted(house().items()) for fault in faults(module, source)]

    wrong = [f"{module} ({rule}): {text}" for module, rule, text in found if (module, rule) not in EXCEPTIONS]
    assert not wrong, "\n" + "\n".join(wrong)
    assert EXCEPTIONS.keys() <= {(module, rule) for module, rule, _ in found}, (
        "an exception that is not needed"
    )


def test_each_rule_finds_what_breaks_it():
    """The check itself works: one line that breaks each rule, and one like it that does not."""
    breaks = {
        ("moods", "floor"): "",
        ("states", "size"): "\n" * (LONGEST + 1),
        ("store.tables", "direction"): "def f():\n    from think_celery.domain import turns",
        ("domain.turns", "direction"): "from think_celery import ThinkCelery",
        ("domain.jobs", "library"): "import celery.states",
        ("store.moves", "library"): "import requests",
        ("domain.steps", "library"): "from . import journal",
        ("domain.tick", "clock"): "from time import sleep",
        ("messages", "clock"): "import datetime as d\nd.datetime.now()",
    }
    keeps = {
        "domain.turns": "import typing as t\nif t.TYPE_CHECKING:\n    from sqlalchemy import Connection",
        "domain.jobs": "from think_celery import errors\nfrom think_celery.store import jobs",
        "events.sql": "import sqlalchemy as sa\nsa.func.now()",
        "states": "\n" * LONGEST,
        "clock": "import time\nfrom datetime import datetime\ndatetime.now()",
    }

    assert {
        (m, rule) for (m, _), source in breaks.items() for _, rule, _ in faults(m, source)
    } == breaks.keys()
    assert [fault for module, source in keeps.items() for fault in faults(module, source)] == []


def test_every_folder_of_tests_is_a_package():
    """Two test files may share a name (`store/test_messages.py`, `ground/test_messages.py`)."""
    folders = {path.parent for path in Path(__file__).parent.rglob("test_*.py")}

    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []
