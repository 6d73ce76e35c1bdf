"""What a worker says of its broker's configuration when it starts, and what ``doctor`` says of it."""

import ast
import logging
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.concurrency import solo, thread

from think_celery import brokers
from think_celery.app import ThinkCelery
from think_celery.runtime import set_current

ROOT = Path(__file__).parent.parent.parent

GOOD: dict[str, Any] = {
    "worker_prefetch_multiplier": 1,
    "broker_channel_error_retry": True,
    "broker_transport_options": {
        "visibility_timeout": 3720,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
}


@pytest.fixture(autouse=True)
def current_as_before() -> Any:
    """Whoever wires an app makes it the process's own."""
    before = set_current(None)
    yield
    set_current(before)


def an_app(broker: str, **conf: Any) -> Celery:
    app = Celery("advice", broker=broker, set_as_current=False)
    app.conf.update(conf)
    ThinkCelery(app)
    return app


REDIS, RABBITMQ = "redis://127.0.0.1:1/0", "amqp://127.0.0.1:1//"


@pytest.mark.parametrize("broker", [REDIS, RABBITMQ, "sentinel://127.0.0.1:1", "rediss://127.0.0.1:1/0"])
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", None])
def test_our_own_configuration_needs_none(broker: str, pool: str | None) -> None:
    """``celeryconfig.py`` is what the advice asks for, on each broker and pool; nothing is connected for it."""
    ours = runpy.run_path(str(ROOT / "celeryconfig.py"))
    conf = {name: value for name, value in ours.items() if not name.startswith("_") and name.islower()}
    conf.pop("os")

    assert brokers.advice(an_app(broker, **conf), pool) == []


def test_nor_does_what_the_documentation_says() -> None:
    """What the tables of `docs/howto/brokers.md` set is all that is asked for."""
    page = (ROOT / "docs" / "howto" / "brokers.md").read_text()
    cells = re.findall(r"^\| (`\w+ = [^|]*)\|", page, re.MULTILINE)
    told = {name: ast.literal_eval(value) for name, value in re.findall(r"`(\w+) = (\w+)`", " ".join(cells))}
    conf = {name: told.pop(name) for name in list(told) if name.startswith(("broker_", "worker_"))}

    assert told
    assert brokers.advice(an_app(REDIS, **conf, broker_transport_options=told), "prefork") == []


def test_celerys_defaults_get_some() -> None:
    """Each sentence names a setting; Redis's own come with Redis only, and a broker in memory needs none."""
    on_redis = brokers.advice(an_app(REDIS))
    on_rabbitmq = brokers.advice(an_app(RABBITMQ))

    assert [text.partition("Set ")[2] for text in on_redis] == [
        "worker_prefetch_multiplier = 1.",
        "broker_channel_error_retry = True.",
        'broker_transport_options["visibility_timeout"] = 3720.',
        'broker_transport_options["unacked_restore_interval"] = 1 and '
        'broker_transport_options["unacked_restore_throttle"] = 1.',
    ]
    assert on_rabbitmq == on_redis[:2]
    assert brokers.advice(an_app("memory://")) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"worker_prefetch_multiplier": 4}, "takes 4 messages ahead"),
        ({"worker_prefetch_multiplier": 0}, "takes all messages that there are ahead"),
        ({"broker_channel_error_retry": False}, "ends the worker"),
        ({"visibility_timeout": 60}, "visibility_timeout is 60 s, and a turn may take 3720 s"),
        ({"visibility_timeout": 86_400}, "visibility_timeout is 86400 s: so long a message waits"),
        ({"unacked_restore_interval": 10}, ""),
        ({"unacked_restore_interval": 10, "unacked_restore_throttle": 10}, "up to 100 s after"),
        ({"unacked_restore_interval": 60}, "up to 60 s after"),
    ],
)
def test_each_of_them_alone(change: dict[str, Any], said: str) -> None:
    """One thing that is not as it should be gets one sentence."""
    options = {name: value for name, value in change.items() if name in OPTIONS}
    conf = {**GOOD, **{name: value for name, value in change.items() if name not in OPTIONS}}
    conf["broker_transport_options"] = {**GOOD["broker_transport_options"], **options}

    found = brokers.advice(an_app(REDIS, **conf), "threads")

    assert len(found) == bool(said)
    assert said in "".join(found)


OPTIONS = {"visibility_timeout", "unacked_restore_interval", "unacked_restore_throttle"}


def test_the_longest_turn_counts() -> None:
    """A visibility timeout is too short or too long for ``think_turn_timeout``, not in itself."""
    short = an_app(REDIS, **GOOD, think_turn_timeout=60)
    long = an_app(REDIS, **GOOD, think_turn_timeout=7200)

    [too_long], [too_short] = brokers.advice(short), brokers.advice(long)
    assert '["visibility_timeout"] = 180, or as long as your own longest task' in too_long
    assert '["visibility_timeout"] = 7320.' in too_short


def test_without_prefetching_the_multiplier_does_not_matter() -> None:
    """``worker_disable_prefetch`` is as good."""
    app = an_app(REDIS, **{**GOOD, "worker_prefetch_multiplier": 4, "worker_disable_prefetch": True})

    assert brokers.advice(app) == []


def test_a_worker_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    """Each sentence is one warning, with the pool that the worker really has."""
    app = an_app(REDIS, **GOOD)

    brokers.warn(app, thread.TaskPool)
    quiet = caplog.messages.copy()
    brokers.warn(app, solo.TaskPool)

    assert quiet == []
    [told] = caplog.records
    assert (told.levelno, told.name) == (logging.WARNING, "think_celery.brokers")
    assert "Start it with --pool threads or --pool prefork." in told.getMessage()
