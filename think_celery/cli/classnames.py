"""Names of classes as they are typed: one that nobody knows is told, with the one that may be meant."""

import click

from think_celery.names import meant_by
from think_celery.runtime import workflow_classes


def tell_unknown(workflow: str) -> None:
    """Say on standard error that no workflow class of this name is registered here, and which are.

    Where no class is known at all, as without ``-A``, nothing can be said.
    """
    known = workflow_classes.names()
    if not known or workflow in known:
        return
    near = meant_by(workflow, known)
    click.echo(
        f"No workflow class {workflow!r} is registered here. "
        + (f"Did you mean {near}? " if near else "")
        + f"There are: {', '.join(known)}.",
        err=True,
    )
