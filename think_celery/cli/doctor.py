"""``think-celery doctor``: what is wrong, and what to do about it."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click
from celery import Celery

from think_celery import providers
from think_celery.agents.think import Think
from think_celery.app import ThinkCelery, configuration_of
from think_celery.cli import checks
from think_celery.cli.checks import Finding, ok, problem, warning
from think_celery.cli.common import (
    Failure,
    Given,
    Unsound,
    celery_app,
    missing_file,
    think_of,
)
from think_celery.cli.diagnosis import FIRST_LOOK_SECONDS, Diagnosis, begun, checked, no_database, reach
from think_celery.cli.options import App, app_options, json_option
from think_celery.cli.printing import print_json
from think_celery.clock import SystemClock
from think_celery.domain.agents import starts
from think_celery.domain.turns.fallback import in_order
from think_celery.domain.turns.modelcheck import check_model
from think_celery.errors import InvalidSetting, ModelError, ThinkError
from think_celery.events.choice import Broker, event_log
from think_celery.memory import default_to_memory
from think_celery.runtime import agent_classes
from think_celery.settings import Settings
from think_celery.store.database import Database

MODEL_SECONDS = 90.0

_clock = SystemClock()


@click.command()
@app_options
@json_option
@click.option(
    "--worker",
    metavar="NAME",
    help="Look at this worker alone, such as celery@host: for the health check of its container.",
)
@click.option(
    "--beat",
    is_flag=True,
    help="Look at schedules alone, whether somebody fires them: for the health check of a beat's container.",
)
@click.option(
    "--model",
    metavar="NAME",
    help="Look at this model alone, such as openai/gpt-5-mini: whether it can answer a step.prompt.",
)
@click.pass_context
def doctor(
    ctx: click.Context,
    app: App | None,
    database_url: str | None,
    as_json: bool,
    worker: str | None,
    beat: bool,
    model: str | None,
) -> None:
    """Say what is wrong, and what to do about it; within ten seconds, whatever hangs.

    Each line is ok, a warning (it works, and could be better) or a problem (something stays undone until
    somebody acts). Exits with 1 if there is a problem, else with 0. With --model it makes one request to that
    model, and to nothing else.
    """
    think, found = _wired(app, database_url)
    if think is None:
        pass  # without its configuration nothing of it is known
    elif model is not None:
        found = [each for each in found if each.level == "problem"] or checked(
            "model", MODEL_SECONDS, lambda: _look_at_model(model, think.runtime.settings)
        )
    elif beat:
        found = [each for each in found if each.level == "problem"] or Diagnosis(
            think, Given(app, database_url)
        ).of_beat()
    elif _is_usable(think):
        autostart: Callable[[], list[Finding]] = list
        if app is not None and worker is None:
            found += _look_at_classes(think.runtime.settings)
            autostart = begun("autostart", FIRST_LOOK_SECONDS, _look_at_autostart)
        found += Diagnosis(think, Given(app, database_url), worker).findings() + autostart()
    else:
        found += _look_at_database(think.app, Given(app, database_url)) + reach(think.app)
    ill = any(each.level == "problem" for each in found)
    if as_json:
        print_json({"healthy": not ill, "findings": [asdict(each) for each in found]})
    else:
        click.echo("\n".join(lines(found)))
    ctx.exit(Failure.exit_code if ill else 0)


def lines(found: Sequence[Finding]) -> list[str]:
    """Findings for people: level, check and text in columns."""
    width = max(len(each.check) for each in found)
    return [f"{each.level:<7}  {each.check:<{width}}  {' '.join(each.text.split())}" for each in found]


def _wired(app: App | None, database_url: str | None) -> tuple[ThinkCelery | None, list[Finding]]:
    """The app with its settings and modules; a fault in those is a finding like any other."""
    try:
        return think_of(app, database_url), [ok("settings", "All settings are valid.")]
    except Unsound as error:
        return error.think, [problem("settings", error.message)]
    except click.ClickException:  # there is no such app, or not that database: nothing to look at
        raise
    except ThinkError as error:
        celery = Celery("think_celery_cli", set_as_current=False) if app is None else celery_app(app)
        default_to_memory(celery)
        if database_url is not None:  # else another database would be looked at
            celery.conf["think_database_url"] = database_url
        faults = [error, *_settings(celery)[1]]  # of the settings it is the first
        return ThinkCelery(celery), [problem("settings", text) for text in dict.fromkeys(map(str, faults))]


def _is_usable(think: ThinkCelery) -> bool:
    """Whether its settings are valid; why they are not is told already."""
    try:
        return think.runtime is not None
    except ThinkError:
        return False


def _settings(celery: Celery) -> tuple[Settings, list[ThinkError]]:
    """The settings, with the default for each unfit one, and what is wrong with them."""
    values, unfit = Settings.read(configuration_of(celery), os.environ)
    settings, faults = Settings(**values), list[ThinkError](unfit)
    if not any(each.name.lower() in ("think_database_url", "think_live_database_url") for each in unfit):
        try:
            event_log(settings, Database(settings.database_url, _clock), Broker(url=""))
        except ThinkError as error:
            faults.append(error)
    return settings, faults


def _look_at_database(celery: Celery, given: Given) -> list[Finding]:
    """Whether the database can serve, where another setting than its URL is unfit."""
    settings, faults = _settings(celery)
    if any(isinstance(each, InvalidSetting) and each.name.lower() == "think_database_url" for each in faults):
        return []  # the default is not the one that is meant

    def look() -> list[Finding]:
        db = Database(settings.database_url, _clock)
        try:
            if missing := missing_file(db.url):
                return [problem("database", no_database(missing, given))]
            return checks.schema(db, given)
        finally:
            db.dispose()

    return checked("database", FIRST_LOOK_SECONDS, look)


# --- classes ---------------------------------------------------------------------------------------


def _look_at_classes(settings: Settings) -> list[Finding]:
    """Whether each agent class that the app imports has a model; one that chooses it in a turn can't be asked."""
    faulty: dict[str, list[str]] = {}
    fallbacks: dict[str, list[str]] = {}  # what is wrong with a model that only follows another one
    for name in agent_classes.names():
        try:
            cls = agent_classes.get(name)
            if getattr(cls, "get_model", None) is Think.get_model and not cls._overrides("on_chat_message"):
                first, *others = in_order(cls.model or settings.model)
                _make(first, settings)
                for fault in _faults(others, settings):
                    fallbacks.setdefault(fault, []).append(name)
        except ThinkError as error:
            faulty.setdefault(str(error), []).append(name)
    if not agent_classes.names():
        return []
    found = [
        warning(
            "models",
            f"Every turn of {', '.join(names)} would fail in this environment (that of the workers may differ). "
            f"{fault}",
        )
        for fault, names in faulty.items()
    ]
    found += [
        warning(
            "models",
            f"Turns of {', '.join(names)} would fail where the models before this one do, in this environment (that of "
            f"the workers may differ). {fault}",
        )
        for fault, names in fallbacks.items()
    ]
    return found or [ok("models", "Each agent class that the app imports has one.")]


def _look_at_autostart() -> list[Finding]:
    """Classes whose ``autostart`` can't be used: whoever fires schedules starts none of their agents."""
    found = []
    for name, cls in agent_classes.usable().items():
        try:
            starts.autostart_names(cls)
        except Exception as error:  # of the user's own code; its text may hold anything
            why = str(error) if isinstance(error, ThinkError) else f"it raised {type(error).__name__}."
            found.append(
                problem("autostart", f"That of {name} can't be used, so none of its agents is started: {why}")
            )
    return found or [ok("autostart", "That of each class can be used.")]


def _make(given: Any, settings: Settings) -> None:
    """Make that model, with all that it needs but an answer.

    Raises:
        ThinkError: It can't be made.
    """
    model = providers.of_settings(given, settings)
    # An object of somebody else's has names of its own.
    check = getattr(model, "check", None) if isinstance(given, str) else None
    if check is not None:
        check()


def _faults(given: Sequence[Any], settings: Settings) -> Iterator[str]:
    for each in given:
        try:
            _make(each, settings)
        except ThinkError as error:
            yield str(error)


def _look_at_model(name: str, settings: Settings) -> list[Finding]:
    model = providers.of_settings(name, settings)
    began = _clock.elapsed()
    try:
        fault = check_model(model, settings)
    except ModelError as error:
        return [problem("model", f"{name} could not be asked: {error}")]
    if fault is not None:
        return [
            problem("model", f"{name} can't answer a step.prompt: {fault}. Choose another model for prompts.")
        ]
    took = _clock.elapsed() - began
    return [ok("model", f"{name} can answer a step.prompt; it took {took:.1f} s.")]
