"""For ``celery -A tests.crash.celeryapp worker``."""

from tests.crash.worker import make_app

app = make_app()
