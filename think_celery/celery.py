"""The default Celery app: ``celery -A think_celery worker`` serves the demo's agents.

The broker is ``CELERY_BROKER_URL``; without one it is ``memory://``, which lives in this process.
"""

import os

from celery import Celery

from think_celery.app import ThinkCelery

broker = os.environ.get("CELERY_BROKER_URL") or "memory://"
app = Celery("think_celery", broker=broker, set_as_current=False)
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_prefetch_multiplier = 1
app.conf.imports = ["think_celery.demo.agents"]
if broker.startswith("memory:"):
    app.conf.worker_pool = "threads"
    app.conf.broker_transport_options = {"polling_interval": 0.02}

think = ThinkCelery(app)
