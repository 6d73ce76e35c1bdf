"""``think-celery`` and its commands; ``celery think``, by the entry point ``celery.commands``, has the same."""

from importlib.metadata import version

import click

from think_celery.cli.agents import agents
from think_celery.cli.common import Group
from think_celery.cli.database import db, tick
from think_celery.cli.demo import demo
from think_celery.cli.dev import dev
from think_celery.cli.doctor import doctor
from think_celery.cli.export import export
from think_celery.cli.jobs import jobs
from think_celery.cli.outbox import outbox
from think_celery.cli.schedules import schedules
from think_celery.cli.submissions import submissions
from think_celery.cli.workflows import workflows


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("think-celery"), prog_name="think-celery")
def main() -> None:
    """Durable agent turns and durable workflows on Celery.

    Start with `think-celery demo`: it needs no server and no key.
    """


for command in (demo, dev, doctor, db, tick, agents, submissions, workflows, jobs, schedules, outbox):
    main.add_command(command)

workflows.add_command(export)


@click.group(cls=Group, commands=main.commands, context_settings=main.context_settings)
def think() -> None:
    """Agents, submissions, workflows: the commands of think-celery, for the app that -A names."""
