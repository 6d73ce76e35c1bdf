"""The command line, ``think-celery``, and the same as ``celery think``."""

from think_celery.cli.main import main, think

__all__ = ["main", "think"]
