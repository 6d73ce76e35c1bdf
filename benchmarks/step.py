"""Steps that do nothing: what recording one costs, in one run and in twenty at once."""

from collections.abc import Iterator

from benchmarks.figures import Row, Size, check, in_turn, ratio_at_least, until
from benchmarks.floors import EIGHT_THREADS, ONE_CLIENT, Floors
from benchmarks.place import Place, Scene, pools
from benchmarks.project import Answer1, Steps

AT_ONCE = 20

_RECORDED = """
    SELECT count(*) FROM think_steps JOIN think_workflows ON key = workflow_key
    WHERE agent_name = %s AND think_steps.status = 'done'
"""


def measure(place: Place, size: Size) -> Iterator[Row]:
    """In a real worker; the time is from the first run's first step to the last one's last, as the runs tell."""
    for pool, options in pools(size).items():
        with place.scene() as scene, scene.worker(options):
            single, crowd, alone, together = _taken(scene, size)
        if pool == "threads":  # one run is one thread of one process in any pool
            yield Row(
                what="no-op step.do, one run",
                unit="/s",
                ours=alone,
                floor=single,
                floor_name=ONE_CLIENT,
                budget=ratio_at_least(0.5),
            )
        yield Row(
            what=f"no-op step.do, {AT_ONCE} runs at once, {pool}",
            unit="/s",
            ours=together,
            floor=crowd,
            floor_name=EIGHT_THREADS,
            budget=ratio_at_least(0.5),
        )


def _taken(scene: Scene, size: Size) -> list[list[float]]:
    one, each, floor_count = size.pick(5, 100, 400), size.pick(2, 20, 40), size.pick(16, 400, 2000)
    floors = Floors(scene)
    return in_turn(
        size,
        lambda _: floors.commits(floor_count),
        lambda _: floors.commits(floor_count, 8),
        lambda number: rate(scene, f"one-{number}", 1, one),
        lambda number: rate(scene, f"many-{number}", AT_ONCE, each),
    )


def rate(scene: Scene, name: str, runs: int, steps: int) -> float:
    """Steps a second of so many runs at once."""
    agent = scene.agent(Answer1, name)
    started = [agent.run_workflow(Steps, {"steps": steps}, workflow_id=f"{name}-{n}") for n in range(runs)]
    done = "SELECT count(*) FROM think_workflows WHERE status = 'complete' AND agent_name = %s"
    until(lambda: scene.ask(done, name) == runs, 120, f"{runs} runs of {steps} steps")
    recorded = scene.ask(_RECORDED, name)
    check(recorded == runs * steps, f"{recorded} steps are recorded")
    outputs = [agent.get_workflow(it, workflow=Steps).output for it in started]
    seconds = max(it["ended"] for it in outputs) - min(it["began"] for it in outputs)
    return runs * steps / seconds
