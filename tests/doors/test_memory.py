"""The broker in memory: who gets it, and how it is recognised."""

import pytest
from celery import Celery

from think_celery.memory import default_to_memory, is_in_memory


def test_an_app_that_names_no_broker_gets_it() -> None:
    """And looks often whether there is a message: it has no server that would wake it."""
    app = Celery("none", set_as_current=False)

    default_to_memory(app)

    assert app.conf.broker_url == "memory://"
    assert app.conf.broker_transport_options["polling_interval"] < 0.1
    assert is_in_memory(app)


def test_one_that_names_another_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its configuration or in Celery's own variable."""
    configured = Celery("configured", broker="redis://127.0.0.1:1/0", set_as_current=False)
    default_to_memory(configured)
    assert configured.conf.broker_url == "redis://127.0.0.1:1/0"
    assert not is_in_memory(configured)
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://127.0.0.1:1/1")
    by_variable = Celery("variable", set_as_current=False)
    default_to_memory(by_variable)

    assert by_variable.conf.broker_url == "redis://127.0.0.1:1/1"
    assert not is_in_memory(by_variable)
