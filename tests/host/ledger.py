"""A Django project whose agents use the ORM wherever they may, and a worker in threads; prints which thread has opened
how many connections of Django's, and how many of them are open at the end."""

import json
import sys
import threading
import time
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

import django
from celery import Celery
from django.conf import settings
from django.db import connection, models
from django.db.backends.signals import connection_created
from django.test import TestCase

FOLDER = Path(sys.argv[1])
settings.configure(
    SECRET_KEY="of a test",
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": FOLDER / "ledger.sqlite3",
            "CONN_MAX_AGE": None if "keep" in sys.argv else 0,
        }
    },
    CELERY_BROKER_URL="memory://",
    CELERY_THINK_DATABASE_URL=f"sqlite:///{FOLDER / 'think.db'}",
)
django.setup()

from think_celery import ScheduledTask, Think, ThinkCelery, ThinkWorkflow, tool  # noqa: E402
from think_celery.domain import calls  # noqa: E402
from think_celery.embedded import embedded  # noqa: E402
from think_celery.errors import CallTimeout  # noqa: E402
from think_celery.providers.scripted import ScriptedModel, call, say  # noqa: E402
from think_celery.testing import think_test  # noqa: E402

app = Celery("ledger", set_as_current=False)
app.config_from_object("django.conf:settings", namespace="CELERY")
think = ThinkCelery(app)
opened: list[tuple[str, Any]] = []
told: list[str] = []


class Line(models.Model):
    """A row of the host."""

    text = models.TextField()

    class Meta:
        app_label = "ledger"


def note(text: str) -> str:
    """Store a row, and say so."""
    Line.objects.create(text=text)
    told.append(text)
    return text


class LedgerClerk(Think):
    """Notes everything."""

    @classmethod
    def autostart(cls) -> list[str]:
        """Asked by whatever fires schedules."""
        note("autostart")
        return ["started"]

    def get_model(self) -> Any:
        """Two tools at once, then an answer."""
        return ScriptedModel([call("book", {"text": "tool"}), call("book", {"text": "tool"})], say("Noted."))

    def get_scheduled_tasks(self) -> dict[str, Any]:
        """One that comes at once."""
        note("get_scheduled_tasks")
        return {"tidy": ScheduledTask(schedule=1, handler=lambda _: note("handler"))}

    def on_start(self) -> None:
        """Before the first work."""
        note("on_start")

    def before_turn(self, ctx: Any) -> None:
        """Before each turn."""
        note("before_turn")

    def on_chat_response(self, result: Any) -> None:
        """After each turn."""
        note("on_chat_response")

    @tool
    def book(self, text: str) -> str:
        """Note it."""
        return note(text)

    def job(self) -> str:
        """A queued call."""
        return note("job")

    def walk(self, fiber: Any) -> str:
        """A fiber."""
        return note("fiber")


class LedgerRun(ThinkWorkflow):
    """Notes in two steps."""

    def run(self, event: Any, step: Any) -> Any:
        """Do it."""
        return [step.do("a", lambda: note("step")), step.do("b", lambda: note("step"))]


WANTED = {
    *("autostart", "get_scheduled_tasks", "handler", "on_start", "before_turn", "on_chat_response", "tool"),
    *("job", "fiber", "step", "abandoned"),
}


def main() -> None:
    """Let it all happen, and look at what is left."""
    connection_created.connect(
        lambda connection, **_: opened.append((threading.current_thread().name, connection)), weak=False
    )
    free = threading.Event()
    with embedded(think):
        clerk = LedgerClerk("anna")
        clerk.submit_messages("Note it.")
        clerk.queue(clerk.job)
        clerk.start_fiber(clerk.walk)
        clerk.run_workflow(LedgerRun, {})
        try:
            calls.call(think.runtime, lambda: (free.wait(20), note("abandoned")), timeout=0.05)
        except CallTimeout:
            free.set()
        until = time.monotonic() + 30
        while not told or WANTED - set(told):
            assert time.monotonic() < until, WANTED - set(told)
            time.sleep(0.05)
        until = time.monotonic() + 5  # what has just noted closes in a moment
        while time.monotonic() < until and any(left().values()):
            time.sleep(0.05)
        print(json.dumps({"opened": Counter(name for name, _ in opened), "left": left()}))


class Kept(TestCase):
    """A test of the host's, whose transaction is never committed."""

    def test_a_tool_is_in_the_transaction_of_the_test(self) -> None:
        """Its connection stays open, and what the tool stores is there."""
        with think_test() as t:
            t.script(LedgerClerk, call("book", {"text": "tool"}), say("Noted."))
            LedgerClerk("anna").submit_messages("Note it.")
            t.run_until_idle()
            texts = set(Line.objects.values_list("text", flat=True))
        assert {"before_turn", "tool"} <= texts, texts
        assert connection.connection is not None
        assert connection.in_atomic_block


def left() -> dict[str, int]:
    """How many connections each kind of thread has open."""
    return dict(Counter(name for name, each in list(opened) if each.connection is not None))


if __name__ == "__main__":
    with connection.schema_editor() as editor:
        editor.create_model(Line)
    if "test" in sys.argv:
        unittest.main(argv=["ledger"])
    connection.close()
    main()
