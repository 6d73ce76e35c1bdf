"""The default Celery app: ``celery -A think_celery worker`` serves the demo's agents, or those of ``THINK_IMPORTS``.

The broker is ``CELERY_BROKER_URL``; without one it is ``memory://``, which lives in this process. A ``celeryconfig.py``
in the working folder configures the app, as it configures Celery's own default app.
"""

from pathlib import Path

from celery import Celery
from celery.utils.imports import cwd_in_path

from think_celery.app import ThinkCelery
from think_celery.memory import default_to_memory, is_in_memory

CONFIGURATION = "celeryconfig"

app = Celery("think_celery", set_as_current=False)
app.add_defaults(
    lambda: {
        "broker_connection_retry_on_startup": True,
        "worker_prefetch_multiplier": 1,
        "imports": ["think_celery.demo.agents"],
    }
)
if Path(f"{CONFIGURATION}.py").is_file():
    with cwd_in_path():
        app.config_from_object(CONFIGURATION, force=True)
default_to_memory(app)
if is_in_memory(app):
    app.conf.worker_pool = "threads"

think = ThinkCelery(app)
