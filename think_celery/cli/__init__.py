"""The command line, ``think-celery``."""

from think_celery.cli.main import main

__all__ = ["main"]
