"""The default Celery app: ``celery -A think_celery worker`` serves the demo's agents, or those of ``THINK_IMPORTS``.

The broker is ``CELERY_BROKER_URL``; without one it is ``memory://``, which lives in this process. A ``celeryconfig.py``
in the working folder configures the app, as it configures Celery's own default app.
"""

from pathlib import Path
from types import ModuleType

from celery import Celery
from celery.utils.imports import import_from_cwd

from think_celery.app import ThinkCelery
from think_celery.errors import ConfigurationError
from think_celery.memory import default_to_memory, is_in_memory

CONFIGURATION = "celeryconfig"

DEFAULTS = {
    "beat_scheduler": "think_celery.beat:ThinkScheduler",
    "broker_connection_retry_on_startup": True,
    "worker_prefetch_multiplier": 1,
    "imports": ["think_celery.demo.agents"],
}
"""What counts where the configuration says nothing."""


def _configuration() -> ModuleType | None:
    """The ``celeryconfig.py`` of the working folder."""
    if not Path(f"{CONFIGURATION}.py").is_file():
        return None
    try:
        found: ModuleType = import_from_cwd(CONFIGURATION)
    except ImportError as error:  # Celery would take it for a sign that there is no app here
        raise ConfigurationError(f"{CONFIGURATION}.py in this folder can't be imported: {error}") from error
    return found


app = Celery("think_celery", set_as_current=False)
if (configuration := _configuration()) is not None:
    app.config_from_object(configuration)
app.conf.update({name: value for name, value in DEFAULTS.items() if not hasattr(configuration, name)})
default_to_memory(app)
if is_in_memory(app):
    app.conf.worker_pool = "threads"

think = ThinkCelery(app)
