"""Celery's configuration for a worker that recovers quickly, read by ``celery -A think_celery …`` in this folder.

    CELERY_BROKER_URL=redis://localhost:6379/0 celery -A think_celery worker --pool threads --concurrency 8
    CELERY_BROKER_URL=redis://localhost:6379/0 celery -A think_celery beat

The second fires schedules; any number of either may run.

Always with ``-A``: a plain ``celery worker`` reads this file, too, but for an app of Celery's own, which has none of
think_celery's tasks and throws their messages away (``think-celery doctor`` says so). An app of yours reads it by
``app.config_from_object("celeryconfig")``.

Correctness depends on nothing here. Rows in the database say what is to be done, and each worker looks once a second
at what is due or lost.

Environment variables that this file reads, with what counts where they are not set:

CELERY_VISIBILITY_TIMEOUT (3720)
    Seconds after which Redis gives the message of a worker that was killed to another. Longer than your longest
    task: one that runs for longer is delivered a second time. 3720 is think_turn_timeout and the two minutes that
    think_celery's own time limits add; raise both together.
CELERY_SOFT_SHUTDOWN_TIMEOUT (10)
    Seconds that work in hand may take to store itself and hand over, when the worker gets SIGQUIT (or SIGTERM with
    REMAP_SIGTERM=SIGQUIT). Give containers that long and a little more before they are killed.
CELERY_RESULT_EXPIRES (3600)
    Seconds for which results of tasks of your own are kept, if you name a result backend. think_celery needs none.

Others read these:

CELERY_BROKER_URL
    Read by Celery. Without it the broker is memory://, which serves one process.
CELERY_RESULT_BACKEND
    Read by Celery. Leave it out.
THINK_DATABASE_URL, THINK_MODEL, THINK_IMPORTS, THINK_LEASE, …
    Read by think_celery: every setting of docs/reference/settings.md, in capitals. The same setting written below
    in small letters would win over its variable.
OPENAI_API_KEY, OPENAI_BASE_URL
    Read by think_celery, for models named openai/….
"""

import os

# --- messages -------------------------------------------------------------------------------------

task_serializer = "json"
result_serializer = "json"
accept_content = ["json"]
result_expires = int(os.environ.get("CELERY_RESULT_EXPIRES", "3600"))

# --- the broker -----------------------------------------------------------------------------------

broker_connection_retry_on_startup = True
broker_connection_max_retries = None  # a worker outlives any outage of its broker,
broker_channel_error_retry = True  # and one that refuses for a while, such as a Redis whose memory is full
broker_heartbeat = 30  # RabbitMQ: a connection that is dead without saying so is noticed

broker_transport_options = {
    # Redis. By default what a killed worker had taken comes back an hour and up to 100 seconds later.
    "visibility_timeout": int(os.environ.get("CELERY_VISIBILITY_TIMEOUT", "3720")),
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    "health_check_interval": 10,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
}

# --- the worker -----------------------------------------------------------------------------------

worker_prefetch_multiplier = 1  # a turn is long: no message waits behind one while another worker is idle
worker_soft_shutdown_timeout = float(os.environ.get("CELERY_SOFT_SHUTDOWN_TIMEOUT", "10"))
worker_cancel_long_running_tasks_on_connection_loss = False  # rows and leases go on without the broker

# --- the beat -------------------------------------------------------------------------------------

# It fires the schedules of agents, and sends your own entries: beat_schedule = {...}. Where you want another scheduler
# (say, django-celery-beat's), let that one send think.tick each second instead:
#   beat_schedule = {"think-tick": {"task": "think.tick", "kwargs": {"schedules": True}, "schedule": 1.0,
#                                   "options": {"expires": 2}}}
beat_scheduler = "think_celery.beat:ThinkScheduler"

# --- what Flower shows ----------------------------------------------------------------------------

worker_send_task_events = True
task_send_sent_event = True
