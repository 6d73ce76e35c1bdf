"""Run commands of ``think-celery`` in this process."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from click.testing import CliRunner, Result

from think_celery import runtime
from think_celery.cli import main
from think_celery.errors import ThinkError


def run(*arguments: str, input: str | None = None) -> Result:
    """What a command printed, and its exit code."""
    return CliRunner().invoke(main, arguments, prog_name="think-celery", input=input)


def as_json(*arguments: str) -> Any:
    """What a command tells a program."""
    ran = run(*arguments, "--json")
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


@contextmanager
def own_runtime() -> Iterator[None]:
    """The commands make a runtime the process's own; tests share a process with others."""
    before = runtime.set_current(None)
    runtime.set_current(before)
    yield
    made = runtime.set_current(before)
    if made is not None and made is not before and not isinstance(made, runtime.Runtime):
        with suppress(ThinkError):  # a command that could not make one
            made().close()
