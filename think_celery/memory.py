"""The broker in memory: no server, and gone with its process."""

from celery import Celery


def default_to_memory(app: Celery) -> None:
    """Let an app that names no broker (nor does ``CELERY_BROKER_URL``) have the one in memory."""
    if not app.conf.broker_url:
        app.conf.update(broker_url="memory://", broker_transport_options={"polling_interval": 0.02})


def is_in_memory(app: Celery) -> bool:
    """Whether the app's broker lives in this process."""
    return str(app.connection_for_write().transport_cls) == "memory"
