"""The default Celery app: ``celery -A think_celery worker`` serves the demo's agents.

The broker is ``CELERY_BROKER_URL``; without one it is ``memory://``, which lives in this process.
"""

from celery import Celery

from think_celery.app import ThinkCelery
from think_celery.memory import default_to_memory, is_in_memory

app = Celery("think_celery", set_as_current=False)
default_to_memory(app)
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_prefetch_multiplier = 1
app.conf.imports = ["think_celery.demo.agents"]
if is_in_memory(app):
    app.conf.worker_pool = "threads"

think = ThinkCelery(app)
