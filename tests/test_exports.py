"""What `import think_celery` offers, and what it does not load."""

import json
import subprocess
import sys

import think_celery

FIRST_WORDS = {
    "Approval",
    "NonRetryableError",
    "ReceivedEvent",
    "StepContext",
    "StepError",
    "Think",
    "ThinkCelery",
    "ThinkError",
    "ThinkWorkflow",
    "ThinkWorkflowStep",
    "UIMessage",
    "WorkflowEvent",
    "tool",
}


def test_every_exported_name_exists_and_is_listed_once():
    """`from think_celery import *` works, and what the first examples use is there."""
    names = think_celery.__all__

    assert [name for name in names if not hasattr(think_celery, name)] == []
    assert len(names) == len(set(names))
    assert set(names) >= FIRST_WORDS


def test_exported_names_are_in_order():
    """Constants, then classes, then functions, each by the alphabet: a name is found at a glance."""

    def order(name: str) -> tuple[int, str]:
        return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

    assert list(think_celery.__all__) == sorted(think_celery.__all__, key=order)


def test_importing_the_package_loads_no_optional_library():
    """A web process pays for no vendor, web, terminal or migration library that it does not use."""
    unwanted = [
        "alembic",
        "anthropic",
        "django",
        "flask",
        "openai",
        "psycopg",
        "redis",
        "rich",
        "starlette",
        "uvicorn",
    ]
    script = (
        "import sys, json, kombu.utils.json; before = set(sys.modules)\n"  # kombu takes a look at Django by itself
        f"import think_celery; print(json.dumps([x for x in {unwanted} if x in set(sys.modules) - before]))"
    )

    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )

    assert json.loads(loaded.stdout) == []
