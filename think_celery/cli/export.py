"""``think-celery workflows export``."""

import click

from think_celery.cli.common import runtime_of
from think_celery.cli.options import App, app_options
from think_celery.cli.printing import print_json
from think_celery.domain.workflows import recordedruns


@click.command()
@click.argument("workflow_id")
@click.option("--workflow", metavar="NAME", help="The workflow's class, where several have the id.")
@app_options
def export(workflow_id: str, workflow: str | None, app: App | None, database_url: str | None) -> None:
    """Print a run with its journal as JSON, to be replayed by t.replay() in a test.

    It holds what the workflow was given and what its steps gave. Look at it before you put it into a repository.
    """
    run = recordedruns.of_run(runtime_of(app, database_url), workflow_id, workflow)
    print_json(recordedruns.to_dict(run))
