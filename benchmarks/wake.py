"""An event for a workflow that waits: from the call that sends it until the workflow's code goes on."""

import random
import time
from collections.abc import Iterator

from benchmarks.figures import Row, Size, check, in_turn, percentile, ratio_at_most, until
from benchmarks.floors import START, starts
from benchmarks.place import Place, Scene, pools
from benchmarks.project import Answer1, Waiter

PHASE_SECONDS = 0.05


def measure(place: Place, size: Size) -> Iterator[Row]:
    """One event at a time, at random moments, to an idle worker; a workflow of its own for each."""
    each = size.pick(2, 20, 60)
    for pool, options in pools(size).items():
        delays: dict[int, list[float]] = {}
        with place.scene() as scene, scene.worker(options) as worker:

            def wake_some(
                number: int, scene: Scene = scene, delays: dict[int, list[float]] = delays
            ) -> float:
                delays[number] = wakes(scene, f"waiter-{number}", each)
                return percentile(delays[number], 50)

            floor, p50 = in_turn(
                size,
                lambda _, scene=scene, worker=worker: percentile(starts(scene, worker, each), 50),
                wake_some,
            )
        p99 = percentile([delay for number, part in delays.items() if number for delay in part], 99)
        for what, ours, limit in (("p50", p50, 2), ("p99", [p99], 4)):
            yield Row(
                what=f"event → workflow goes on, {pool}: {what}",
                unit="ms",
                ours=ours,
                floor=floor,
                floor_name=f"{START}: p50",
                budget=ratio_at_most(limit),
            )


def park(scene: Scene, name: str, count: int) -> None:
    """Start so many workflows that wait for an event, and return once all of them do."""
    for number in range(count):
        scene.agent(Answer1, name).run_workflow(Waiter, workflow_id=f"{name}-{number}")
    waiting = "SELECT count(*) FROM think_workflows WHERE status = 'waiting' AND agent_name = %s"
    until(lambda: scene.ask(waiting, name) == count, 300, f"{count} parked workflows")


def wakes(scene: Scene, name: str, count: int) -> list[float]:
    """Milliseconds until each of so many workflows went on."""
    park(scene, name, count)
    agent, delays = scene.agent(Answer1, name), []
    for number in range(count):
        time.sleep(random.random() * PHASE_SECONDS)
        workflow_id, sent_at = f"{name}-{number}", time.monotonic()
        agent.send_workflow_event(Waiter, workflow_id, type="go")
        until(lambda it=workflow_id: _complete(scene, it), 30, "a workflow that goes on", every=0.002)
        went_on = agent.get_workflow(workflow_id, workflow=Waiter).output["went_on"]
        check(went_on > sent_at, "it went on before the event")
        delays.append((went_on - sent_at) * 1000)
    return delays


def _complete(scene: Scene, workflow_id: str) -> bool:
    return bool(
        scene.ask("SELECT status FROM think_workflows WHERE workflow_id = %s", workflow_id) == "complete"
    )
