"""An event for a workflow that waits: from the call that sends it until the workflow's code goes on."""

import random
import time
from collections.abc import Iterator
from functools import partial

from benchmarks.figures import Row, Size, check, p50, p99, ratio_at_most, sampled, until
from benchmarks.floors import START, start
from benchmarks.place import Place, Scene, Worker, pools
from benchmarks.project import Answer1, Waiter

PHASE_SECONDS = 0.05


def measure(place: Place, size: Size) -> Iterator[Row]:
    """One event at a time, at random moments, to an idle worker; a workflow of its own for each."""
    for pool, options in pools(size).items():
        with place.scene() as scene, scene.worker(options) as worker:
            floor, woken = sampled(
                size, size.pick(2, 20, 60), partial(_start, scene, worker), partial(wake, scene)
            )
        for what, ours, limit in (("p50", p50(woken), 2), ("p99", p99(woken), 4)):
            yield Row(
                what=f"event → workflow goes on, {pool}: {what}",
                unit="ms",
                ours=ours,
                floor=p50(floor),
                floor_name=f"{START}: p50",
                budget=ratio_at_most(limit),
            )


def _start(scene: Scene, worker: Worker, name: str) -> float:
    return start(scene, worker)


def park(scene: Scene, name: str, count: int) -> None:
    """Start so many workflows that wait for an event, and return once all of them do."""
    for number in range(count):
        scene.agent(Answer1, name).run_workflow(Waiter, workflow_id=f"{name}-{number}")
    waiting = "SELECT count(*) FROM think_workflows WHERE status = 'waiting' AND agent_name = %s"
    until(lambda: scene.ask(waiting, name) == count, 300, f"{count} parked workflows", every=0.002)


def wake(scene: Scene, name: str) -> float:
    """Milliseconds from sending an event until its workflow went on."""
    park(scene, name, 1)
    agent, workflow_id = scene.agent(Answer1, name), f"{name}-0"
    time.sleep(random.random() * PHASE_SECONDS)
    sent_at = time.monotonic()
    agent.send_workflow_event(Waiter, workflow_id, type="go")
    until(lambda: _complete(scene, workflow_id), 30, "a workflow that goes on", every=0.002)
    went_on = agent.get_workflow(workflow_id, workflow=Waiter).output["went_on"]
    check(went_on > sent_at, "it went on before the event")
    return float(went_on - sent_at) * 1000


def _complete(scene: Scene, workflow_id: str) -> bool:
    return bool(
        scene.ask("SELECT status FROM think_workflows WHERE workflow_id = %s", workflow_id) == "complete"
    )
