"""``think-celery dev``: everything in one process, for a day's work."""

import logging
import signal
import threading

import click

from think_celery.cli.common import celery_app, think_of
from think_celery.cli.options import App, app_option
from think_celery.embedded import embedded
from think_celery.memory import default_to_memory


@click.command()
@app_option(required=True)
@click.option("--database-url", metavar="URL", help="Another database than your settings name.")
@click.option("-c", "--concurrency", type=click.IntRange(1, 256), default=4, show_default=True)
@click.option(
    "--schedules/--no-schedules",
    default=True,
    show_default=True,
    help="Whether it fires schedules, as a beat does.",
)
@click.option("-l", "--loglevel", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
def dev(app: App, database_url: str | None, concurrency: int, schedules: bool, loglevel: str) -> None:
    """Run your agents and workflows: a worker on threads, the tick and schedules, in one process.

    Where your app names no broker, memory:// is used, and no server is needed. Other processes may submit
    to the same database meanwhile; what they submit is found within seconds.
    """
    logging.basicConfig(
        level=loglevel.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    if loglevel != "debug":
        logging.getLogger("alembic").setLevel(logging.WARNING)
    celery = celery_app(app)
    default_to_memory(celery)
    think = think_of(app, database_url)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with embedded(think, concurrency=concurrency, schedules=schedules):
        broker = celery.connection_for_write().as_uri()
        click.echo(f"Ready: {celery.main or app} on {broker}, {concurrency} threads. Ctrl-C stops it.")
        stop.wait()
        click.echo("Stopping: unfinished turns are stored, and go on when a worker starts again.")
