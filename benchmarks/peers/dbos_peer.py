"""DBOS Transact, measured in its own process: ``dbos_peer.py DATABASE_URL``."""

import random
import sys
import time
import uuid

from dbos import DBOS, DBOSClient
from serving import serve, until

AT_ONCE = 20
URL = sys.argv[1]
DBOS(
    config={
        "name": "bench",
        "system_database_url": URL,
        "log_level": "ERROR",
        "application_version": "1",
        "executor_id": "bench",
    }
)
went_on: dict[str, float] = {}


@DBOS.step()
def nothing(number: int) -> int:
    """A step that does nothing."""
    return number


@DBOS.workflow()
def steps(count: int) -> list[float]:
    """So many of them; when the first began and the last was stored."""
    began = time.monotonic()
    for number in range(count):
        nothing(number)
    return [began, time.monotonic()]


@DBOS.workflow()
def waiter(name: str) -> None:
    """Wait for one message."""
    DBOS.recv("go", timeout_seconds=600)
    went_on[name] = time.monotonic()


def accept(count: int) -> list[float]:
    """Workflows enqueued a second, to a queue that nobody serves."""
    began = time.monotonic()
    for _ in range(count):
        client.enqueue({"queue_name": "unserved", "workflow_name": "steps"}, 1)
    return [count / (time.monotonic() - began)]


def one(count: int) -> list[float]:
    """Steps a second of one workflow."""
    began, ended = steps(count)
    return [count / (ended - began)]


def many(count: int) -> list[float]:
    """Steps a second of twenty workflows at once, with *count* each."""
    handles = [DBOS.start_workflow(steps, count) for _ in range(AT_ONCE)]
    times = [handle.get_result(polling_interval_sec=0.02) for handle in handles]
    return [AT_ONCE * count / (max(it[1] for it in times) - min(it[0] for it in times))]


def wake(count: int) -> list[float]:
    """Milliseconds from sending a message until its workflow goes on."""
    delays = []
    for _ in range(count):
        name = uuid.uuid4().hex
        handle = DBOS.start_workflow(waiter, name)
        time.sleep(0.05 + random.random() * 0.05)
        sent_at = time.monotonic()
        DBOS.send(handle.workflow_id, "go", "go")
        until(lambda name=name: name in went_on)
        delays.append((went_on[name] - sent_at) * 1000)
    return delays


DBOS.launch()
client = DBOSClient(system_database_url=URL)
serve({"accept": accept, "one": one, "many": many, "wake": wake})
client.destroy()
DBOS.destroy()
