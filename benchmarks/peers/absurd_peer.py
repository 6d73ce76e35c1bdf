"""Absurd, measured in its own process: ``absurd_peer.py DATABASE_URL``. Its workers are threads here."""

import os
import random
import subprocess
import sys
import threading
import time
import uuid

from absurd_sdk import Absurd
from serving import serve, until

AT_ONCE = 20
WORKERS = 4
POLL_SECONDS = 0.05
URL = sys.argv[1]

times: dict[str, tuple[float, float]] = {}
went_on: dict[str, float] = {}


def worker(queue: str, slots: int) -> Absurd:
    """A worker with a connection of its own, which knows the tasks."""
    app = Absurd(URL, queue_name=queue)

    @app.register_task(name="steps")
    def steps(params, context):
        began = time.monotonic()
        for number in range(params["count"]):
            context.step(f"step-{number}", lambda: None)
        times[params["name"]] = (began, time.monotonic())

    @app.register_task(name="waiter")
    def waiter(params, context):
        context.await_event(params["name"], timeout=600)
        went_on[params["name"]] = time.monotonic()

    threading.Thread(
        target=app.start_worker, kwargs={"concurrency": slots, "poll_interval": POLL_SECONDS}, daemon=True
    ).start()
    return app


def accept(count: int) -> list[float]:
    """Tasks spawned a second, to a queue that nobody serves."""
    began = time.monotonic()
    for _ in range(count):
        caller.spawn("steps", {"count": 1, "name": ""}, queue="unserved")
    return [count / (time.monotonic() - began)]


def one(count: int) -> list[float]:
    """Steps a second of one task."""
    return _steps(1, count)


def many(count: int) -> list[float]:
    """Steps a second of twenty tasks at once, with *count* each."""
    return _steps(AT_ONCE, count)


def _steps(tasks: int, count: int) -> list[float]:
    names = [uuid.uuid4().hex for _ in range(tasks)]
    for name in names:
        caller.spawn("steps", {"count": count, "name": name}, queue="served")
    until(lambda: all(name in times for name in names))
    mine = [times[name] for name in names]
    return [tasks * count / (max(it[1] for it in mine) - min(it[0] for it in mine))]


def wake(count: int) -> list[float]:
    """Milliseconds from emitting an event until its task goes on."""
    delays = []
    for _ in range(count):
        name = uuid.uuid4().hex
        caller.spawn("waiter", {"name": name}, queue="served")
        time.sleep(0.1 + random.random() * POLL_SECONDS * 2)
        sent_at = time.monotonic()
        caller.emit_event(name, {}, queue_name="served")
        until(lambda name=name: name in went_on)
        delays.append((went_on[name] - sent_at) * 1000)
    return delays


made = subprocess.run(
    [os.path.join(os.path.dirname(sys.executable), "absurdctl"), "init", "-d", URL], stdout=subprocess.DEVNULL
)
if made.returncode:
    sys.exit("absurdctl init failed")
caller = Absurd(URL, queue_name="served")
for name in ("served", "unserved"):
    caller.create_queue(name)
workers = [worker("served", AT_ONCE // WORKERS) for _ in range(WORKERS)]
serve({"accept": accept, "one": one, "many": many, "wake": wake})
os._exit(0)  # its workers' threads would go on
