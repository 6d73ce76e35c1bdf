"""What the commands share: whose app, how to fail. How they print is in ``printing``, their options in ``options``."""

import errno
import os
import shlex
import sqlite3
import traceback
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import click
from celery import Celery
from celery.app.utils import find_app

from think_celery.app import ThinkCelery
from think_celery.cli.options import App, app_of_group, through_celery
from think_celery.cli.printing import print_what_can_be
from think_celery.errors import ConfigurationError, InvalidValue, ThinkError
from think_celery.memory import default_to_memory
from think_celery.runtime import Runtime
from think_celery.store.database import is_away
from think_celery.wording import shown


class Group(click.Group):
    """A group whose commands print errors of ours, and that the database is away, without a traceback.

    It takes ``--app`` for them, where Celery's users write it: in front.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(app_of_group())

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        print_what_can_be()
        try:
            return super().invoke(ctx)
        except ThinkError as error:
            raise failure_of(error) from error
        except UnicodeEncodeError as error:
            text = f"What was given holds bytes that are no UTF-8: {shown(error.object)}. Write it in UTF-8."
            raise Unusable(text) from error
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise Failure(
                "The output can't be written: no space is left there. Name another place."
            ) from error
        except Exception as error:
            if is_broken_file(error):
                raise Unusable(_told_of_broken_file(ctx, error)) from error
            if not is_away(error):
                raise
            cause = getattr(error, "orig", None) or error
            raise Failure(f"The database can't be reached: {' '.join(str(cause).split())}") from error


def is_broken_file(error: BaseException) -> bool:
    """Whether what should be a SQLite database is none, or a broken one."""
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


_FILE = "think_celery.database_file"
_REMEDY = "Name another with --database-url, or put a copy that is whole in its place."


def name_database(path: object, remedy: str = _REMEDY) -> None:
    """Say which file the command opens, and what to do if it turns out to be broken."""
    click.get_current_context().meta[_FILE] = f"The database {path}", remedy


def _told_of_broken_file(ctx: click.Context, error: Exception) -> str:
    file, remedy = ctx.meta.get(_FILE, ("The database", _REMEDY))
    return f"{file} can't be used: {getattr(error, 'orig', error)}. {remedy}"


class Failure(click.ClickException):
    """As things stand it could not be done."""

    exit_code = 1


class Unusable(Failure):
    """What was given can't be used."""

    exit_code = 2


class Unsound(Unusable):
    """The app is there, and a module that its settings name is not; *think* is it, where it can be used even so."""

    def __init__(self, message: str, think: ThinkCelery | None = None) -> None:
        super().__init__(message)
        self.think = think


def failure_of(error: ThinkError) -> Failure:
    """An error of ours for the terminal."""
    given = isinstance(error, ConfigurationError | InvalidValue)
    return Unusable(str(error)) if given else Failure(str(error))


# --- whose app ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Given:
    """The app and the database that a command was given, for the commands that it tells its reader to run."""

    app: App | None = None
    database_url: str | None = None
    celery: bool = field(default_factory=through_celery)

    def command(self, words: str) -> str:
        """``think-celery`` with these *words* and the same options, to be typed as it is printed.

        Or ``celery … think``, where that was typed. A URL with a password is not printed; it is said that it
        belongs there.
        """
        option = [] if self.app is None else ["-A", self.app_name]
        command = ["celery", *option, "think", words] if self.celery else ["think-celery", words, *option]
        named = []
        if self.database_url is not None and _is_secret(self.database_url):
            named += ["(with the same --database-url)"]
        elif self.database_url is not None:
            named += ["--database-url", shlex.quote(self.database_url)]
        return " ".join([*command, *named])

    def worker(self, *queues: str) -> str:
        """The command that starts a worker of this app, for these queues or those of its settings."""
        return f"celery -A {self.app_name} worker" + (
            f" -Q {shlex.quote(','.join(queues))}" if queues else ""
        )

    @property
    def app_name(self) -> str:
        """The app's name, for a command that names it."""
        return shlex.quote(self.app) if isinstance(self.app, str) else "YOUR_APP"


def workflow_words(row: Any) -> str:
    """The workflow that a row is about, as commands take it."""
    return f"{shlex.quote(row.workflow_id)} --workflow {shlex.quote(row.workflow)}"


def _is_secret(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return True
    # Drivers take passwords from the query, too; and who knows what is in a thing that is no URL.
    return not parts.scheme or parts.password is not None or bool(parts.query)


def celery_app(name: App) -> Celery:
    """The user's Celery app of that name, or that app.

    Raises:
        Unusable: There is none.
        Unsound: Its configuration can't be loaded.
    """
    try:
        found = find_app(name) if isinstance(name, str) else name
    except Exception as error:  # whatever the user's module raises while it is imported
        raise Unusable(
            f"--app {name}: the Celery app can't be loaded: {_reason(name, error)}. Name a module that can be "
            "imported from here and holds a Celery app, such as proj.app or proj.celery:app."
        ) from error
    if not isinstance(found, Celery):
        raise Unusable(f"--app {name}: that is {type(found).__name__}, not a Celery app.")
    try:
        found.conf.broker_url  # noqa: B018 - what config_from_object names is imported at the first look
    except Exception as error:
        raise Unsound(
            f"--app {name}: its configuration can't be loaded: {type(error).__name__}: {error}. See what its "
            "config_from_object() names."
        ) from error
    return found


def _reason(name: App, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and str(name).startswith(error.name):
        return "there is no such module"
    return _raised(error)


def _raised(error: Exception) -> str:
    raised_in = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({raised_in.filename}, line {raised_in.lineno})"


def think_of(app: App | None, database_url: str | None) -> ThinkCelery:
    """The user's app with its agents, or a bare one where none was named; *database_url* wins over settings."""
    if app is not None:
        celery = celery_app(app)
        if database_url is None:
            _check_wired(app, celery)
    else:
        celery = Celery("think_celery_cli", set_as_current=False)
        default_to_memory(celery)
    if database_url is not None:
        celery.conf["think_database_url"] = database_url
    think = ThinkCelery(celery)
    settings = think.runtime.settings
    if think.runtime.db.url.get_backend_name() == "sqlite":
        name_database(think.runtime.db.url.database)
    if database_url is not None and settings.database_url != database_url:
        raise Unusable(
            f"--database-url: importing {app} has opened another database already. Set think_database_url or "
            "THINK_DATABASE_URL instead."
        )
    if app is not None:
        _import_modules(think)
    return think


def _check_wired(app: App, celery: Celery) -> None:
    """Make sure that the app has a ThinkCelery: one made here would look into a database that nobody has named.

    Raises:
        Unusable: It has none, nor do the modules that a worker of it imports make one.
    """
    if not isinstance(getattr(celery, "think", None), ThinkCelery):
        try:
            celery.loader.import_default_modules()
        except Exception as error:  # whatever a user's module raises
            raise Unusable(f"--app {app}: {_raised(error)}. Workers don't start so.") from error
    if not isinstance(getattr(celery, "think", None), ThinkCelery):
        raise Unusable(
            f"--app {app}: this Celery app has no ThinkCelery, so it names no database. Write behind it: "
            "from think_celery import ThinkCelery; think = ThinkCelery(app). Or name a database with --database-url."
        )


def _import_modules(think: ThinkCelery) -> None:
    """Import what a worker of this app would, with its agents and workflows.

    Raises:
        Unsound: A module can't be imported; the text names it, and the setting that names it.
    """
    try:
        think.app.loader.import_default_modules()  # and with them those of think_imports
    except Exception as error:  # whatever a user's module raises
        text = f"{_broken_import(think)} can't be imported: {_raised(error)}."
        raise Unsound(f"{text} Workers don't start so.", think) from error


def _broken_import(think: ThinkCelery) -> str:
    """The first module that can't be imported, and the setting that names it."""
    conf = think.app.conf
    ours = "think_imports" if conf.get("think_imports") else "THINK_IMPORTS"
    named = {ours: think.runtime.settings.imports, "imports": conf.imports, "include": conf.include}
    for setting, modules in named.items():
        for module in modules:
            try:
                think.app.loader.import_from_cwd(module)
            except Exception:
                return f"The setting {setting} names {module}, which"
    return "A module of the app"


def runtime_of(app: App | None, database_url: str | None) -> Runtime:
    """The runtime of :func:`think_of`, to look into a database that is there.

    Where neither an app nor a database is named, whoever looks is told which one that is.
    """
    rt = look_into(think_of(app, database_url), Given(app, database_url))
    context = click.get_current_context(silent=True)
    if app is None and database_url is None and context and not context.params.get("as_json", True):
        url = rt.db.url.set(query={}).render_as_string(hide_password=True)
        click.echo(f"No app is named with -A, so this is of {url}.", err=True)
    return rt


def look_into(think: ThinkCelery, given: Given) -> Runtime:
    """The runtime of *think*, whose database is there; *given* is what the command was given.

    Raises:
        Unusable: The SQLite file is not there; using it would make an empty one.
    """
    rt = think.runtime
    if missing := missing_file(rt.db.url):
        raise Unusable(
            f"There is no database {missing}. Name yours with --database-url or --app, or make one: "
            f"{given.command('db upgrade')}"
        )
    return rt


def missing_file(url: Any) -> str | None:
    """The path of a SQLite database that is not there."""
    path = url.database if url.get_backend_name() == "sqlite" else None
    return path if path and not path.startswith("file:") and not os.path.exists(path) else None
