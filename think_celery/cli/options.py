"""The options that commands share, in one spelling for all nouns."""

from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

import click
from celery import Celery
from celery.bin.base import CLIContext

from think_celery.domain.pages import MAX_PAGE
from think_celery.durations import as_timedelta
from think_celery.errors import InvalidDuration
from think_celery.ids import AgentRef
from think_celery.names import name_problem
from think_celery.wording import shown

F = TypeVar("F", bound=Callable[..., Any])

App = str | Celery
"""A Celery app: what ``-A`` names; or the object itself, which a program has given to ``celery``."""


# --- whose app ------------------------------------------------------------------------------------


_NAMED = "think_celery.app"
_APP_HELP = "Your Celery app, such as proj.app; its settings are used."


def app_option(*, required: bool = False) -> Callable[[F], F]:
    """Add ``--app``. Behind ``celery -A proj think``, or ``think-celery -A proj``, it need not be given again."""

    def app_of(ctx: click.Context, _: click.Parameter, given: str | None) -> App | None:
        app = _named(ctx, given)
        if required and app is None:
            raise click.UsageError("Missing option '-A' / '--app'.")
        return app

    return click.option("-A", "--app", metavar="MODULE", help=_APP_HELP, callback=app_of)


def app_of_group() -> click.Option:
    """The option ``--app`` of a group, which passes it on to its commands."""

    def keep(ctx: click.Context, _: click.Parameter, given: str | None) -> None:
        ctx.meta[_NAMED] = _named(ctx, given)

    return click.Option(["-A", "--app"], metavar="MODULE", help=_APP_HELP, callback=keep, expose_value=False)


def _named(ctx: click.Context, given: str | None) -> App | None:
    """The app that is named here, or was before."""
    celerys = celery_option(ctx)
    outer = ctx.meta.get(_NAMED, celerys)
    if given is not None and outer is not None and given != outer:
        words = "celery -A" if outer is celerys else "-A"
        raise click.UsageError(f"Two apps are named: {words} {outer}, and -A {given}. Leave one away.")
    return outer if given is None else given


def app_options(command: F) -> F:
    """Add ``--app`` and ``--database-url``."""
    command = click.option(
        "--database-url",
        metavar="URL",
        help="The database; else the setting think_database_url, else sqlite:///think.db.",
    )(command)
    return app_option()(command)


def through_celery(ctx: click.Context | None = None) -> bool:
    """Whether this is a command of ``celery think``."""
    ctx = ctx or click.get_current_context(silent=True)
    return ctx is not None and isinstance(ctx.find_root().obj, CLIContext)


def celery_option(ctx: click.Context) -> App | None:
    """The app that ``celery -A`` was given; ``None`` where it was given none, or where this is ``think-celery``."""
    return ctx.find_root().params.get("app") if through_celery(ctx) else None


def without_color() -> bool:
    """Whether ``celery --no-color`` was asked for."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and through_celery(ctx) and bool(ctx.find_root().obj.no_color)


# --- how to print, and how many --------------------------------------------------------------------


def json_option(command: F) -> F:
    """Add ``--json``."""
    return click.option("as_json", "--json", is_flag=True, help="Print JSON, for programs.")(command)


def limit_option(command: F) -> F:
    """Add ``--limit``: how many rows at most."""
    return click.option(
        "--limit", type=click.IntRange(1, MAX_PAGE), default=50, show_default=True, help="How many at most."
    )(command)


def cursor_option(command: F) -> F:
    """Add ``--cursor``: where a list goes on."""
    return click.option("--cursor", help="Go on behind a page, with the cursor that it named.")(command)


# --- which rows -----------------------------------------------------------------------------------


def status_option(statuses: type[StrEnum] | list[str]) -> Callable[[F], F]:
    """Add ``--status``, which may be given again: the command gets a list, or ``None``."""
    return click.option(
        "--status",
        type=click.Choice([str(status) for status in statuses]),
        multiple=True,
        callback=lambda _, __, given: list(given) or None,
        help="May be given again.",
    )


class AgentName(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """``CLASS:NAME``, as an :class:`AgentRef`."""

    name = "CLASS:NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AgentRef:
        """The agent of that name."""
        if isinstance(value, AgentRef):
            return value
        agent_class, _, name = str(value).partition(":")
        if not agent_class or not name:
            self.fail(f"{shown(value)} is no CLASS:NAME, such as TriageAgent:issue-42.", param, ctx)
        return _agent(agent_class, name)


def _agent(agent_class: str, name: str) -> AgentRef:
    """The agent of that class and name, which no database holds if they can't be ones."""
    for what, given in (("class", agent_class), ("name", name)):
        problem = name_problem(given, 200)
        if problem is not None:
            raise click.UsageError(f"No agent has the {what} {shown(given)}: {problem}.")
    return AgentRef(agent_class, name)


def agent_option(command: F) -> F:
    """Add ``--agent``: the command gets an :class:`AgentRef`, or ``None``."""
    return click.option(
        "--agent",
        type=AgentName(),
        metavar="CLASS:NAME",
        help="Only this agent's, such as TriageAgent:issue-42.",
    )(command)


def agent_argument(command: F) -> F:
    """Take an agent as ``CLASS:NAME``, or as ``CLASS NAME``: the command gets *agent*."""

    def agent_of(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> AgentRef:
        if len(given) == 2:
            return _agent(*given)
        if len(given) != 1:
            raise click.UsageError("Name one agent: CLASS:NAME, such as TriageAgent:issue-42.")
        return AgentName().convert(given[0], param, ctx)

    return click.argument("agent", nargs=-1, metavar="CLASS:NAME", callback=agent_of)(command)


def agents_of(given: tuple[str, ...]) -> list[AgentRef]:
    """Several agents, each as ``CLASS:NAME``; or one, as ``CLASS NAME``."""
    if len(given) == 2 and not any(":" in word for word in given):
        return [_agent(*given)]
    return [AgentName().convert(word, None, None) for word in given]


def yes_option(command: F) -> F:
    """Add ``--yes``: what can't be undone asks first, unless it is given; without a terminal it must be."""
    return click.option("--yes", is_flag=True, help="Do it without asking.")(command)


def be_sure(question: str, yes: bool) -> None:
    """Ask, unless *yes* was given; without a yes nothing is done."""
    if not yes:
        click.confirm(question, abort=True)


class Span(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A span of time: ``30 days``, ``1h30m``, or seconds."""

    name = "SPAN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """The span."""
        try:
            return value if isinstance(value, timedelta) else as_timedelta(value)
        except InvalidDuration as error:
            self.fail(str(error), param, ctx)
