"""``think-celery db`` and ``think-celery tick``."""

import click

from think_celery.cli.common import (
    Failure,
    Given,
    Group,
    Unusable,
    look_into,
    missing_file,
    think_of,
)
from think_celery.cli.options import App, app_options, json_option
from think_celery.cli.printing import print_json
from think_celery.clock import SystemClock
from think_celery.domain import tick as ticks
from think_celery.memory import is_in_memory
from think_celery.store import migrate
from think_celery.store.database import Database


@click.group(cls=Group)
def db() -> None:
    """The database's schema."""


@db.command()
@app_options
def upgrade(app: App | None, database_url: str | None) -> None:
    """Bring the schema to the version that this package needs. Any number of processes may do so at once."""
    database = think_of(app, database_url).runtime.db
    migrate.upgrade(database.url)
    found, ours = _version(database), migrate.head()
    newer = "" if found == ours else f", newer than this package's {ours}. It serves; nothing was done"
    click.echo(f"{database.url.render_as_string(hide_password=True)} is at version {found}{newer}.")


@db.command()
@app_options
@json_option
@click.pass_context
def current(ctx: click.Context, app: App | None, database_url: str | None, as_json: bool) -> None:
    """Show the schema's version; exits with 1 if it is too old."""
    found, needed = _version(think_of(app, database_url).runtime.db), migrate.head()
    enough = found is not None and found >= needed
    if as_json:
        print_json({"version": found, "needed": needed, "up_to_date": enough})
    else:
        click.echo(f"{found or 'no schema'} ({_state(found, needed, Given(app, database_url))})")
    ctx.exit(0 if enough else Failure.exit_code)


def _state(found: str | None, needed: str, given: Given) -> str:
    if found is None or found < needed:
        return f"{needed} is needed; run: {given.command('db upgrade')}"
    return "up to date" if found == needed else f"newer than {needed}, which this package needs; it serves"


def _version(database: Database) -> str | None:
    """The schema's version. Looked up on a fresh engine, for the runtime's own would migrate SQLite first."""
    if missing_file(database.url):
        return None  # connecting would make the file
    plain = Database(database.url, SystemClock())
    try:
        return migrate.current(plain.engine)
    finally:
        plain.dispose()


@click.command()
@app_options
@json_option
def tick(app: App | None, database_url: str | None, as_json: bool) -> None:
    """Look once after what is due or lost, and knock for it. Workers do this by themselves each second."""
    think = think_of(app, database_url)
    rt = look_into(think, Given(app, database_url))
    if is_in_memory(think.app):
        raise Unusable(
            "A tick knocks for work through the broker, and memory:// ends with this command. Name your app with "
            "--app, or set CELERY_BROKER_URL."
        )
    rows = ticks.run(rt)
    if as_json:
        print_json({"rows": rows})
    else:
        click.echo(f"{rows} {'row was' if rows == 1 else 'rows were'} moved or knocked for.")
