"""Turns with a model that answers at once, and workflows with one prompt: from accepting to the end."""

import time
from collections.abc import Iterator
from functools import partial

from benchmarks.figures import Row, Size, at_least, at_most, check, in_turn, p50, sampled, until
from benchmarks.floors import START, drain, start
from benchmarks.place import Place, Scene, Worker, pools
from benchmarks.project import ANSWERS, CHUNK, Answer1, Answer20, Asker

P50 = {1: 10.0, 20: 12.0, 200: 25.0}  # milliseconds, by chunks
AGENTS = 20

_STATUS = b"SELECT status FROM think_submissions WHERE id = %s"
_RUN = b"SELECT status FROM think_workflows WHERE workflow_id = %s"
_ENDED = b"SELECT count(*) FROM think_submissions WHERE status = 'completed' AND agent_name LIKE %s"
_COMPLETE = b"SELECT count(*) FROM think_workflows WHERE status = 'complete' AND agent_name LIKE %s"
LOOK_SECONDS = 0.0005


def measure(place: Place, size: Size) -> Iterator[Row]:
    """In a real worker of each pool. The caller looks for the end every half millisecond."""
    for pool, options in pools(size).items():
        with place.scene() as scene, scene.worker(options) as worker:
            yield from _one_at_a_time(pool, scene, worker, size)
            yield from _many(pool, scene, worker, size)


def _one_at_a_time(pool: str, scene: Scene, worker: Worker, size: Size) -> Iterator[Row]:
    floor, *turns, prompts = sampled(
        size,
        size.pick(2, 10, 30),
        lambda _: start(scene, worker),
        *(partial(turn, scene, chunks) for chunks in ANSWERS),
        partial(prompt, scene),
    )
    for chunks, samples in zip(ANSWERS, turns, strict=True):
        yield Row(
            what=f"turn, {chunks} {'chunk' if chunks == 1 else 'chunks'}, {pool}: p50",
            unit="ms",
            ours=p50(samples),
            floor=p50(floor),
            floor_name=START,
            budget=at_most(P50[chunks], "ms"),
        )
    yield Row(
        what=f"workflow with one prompt, {pool}: p50",
        unit="ms",
        ours=p50(prompts),
        floor=p50(floor),
        floor_name=START,
        budget=at_most(25, "ms"),
    )


def turn(scene: Scene, chunks: int, name: str) -> float:
    """Milliseconds of one turn of a new agent, from the call that accepts it until anybody can read its end."""
    agent = scene.agent(ANSWERS[chunks], name)
    began = time.perf_counter()
    submission_id = agent.submit_messages("Triage this report.").submission_id
    ended = until(lambda: _is(scene, _STATUS, submission_id, "completed"), 30, "a turn", every=LOOK_SECONDS)
    check(agent.messages[-1].text == CHUNK * chunks, "the answer is not whole")
    return (ended - began) * 1000


def prompt(scene: Scene, name: str) -> float:
    """Milliseconds of one workflow with one prompt, from the call that starts it to its end."""
    agent = scene.agent(Answer1, name)
    began = time.perf_counter()
    agent.run_workflow(Asker, workflow_id=name)
    ended = until(lambda: _is(scene, _RUN, name, "complete"), 30, "a workflow", every=LOOK_SECONDS)
    check(agent.get_workflow(name, workflow=Asker).output == "A title", "the output is another")
    return (ended - began) * 1000


def _is(scene: Scene, sql: bytes, key: str, status: str) -> bool:
    row = scene.conn.execute(sql, (key,)).fetchone()
    if row is None or row[0] in ("error", "errored"):
        raise RuntimeError(f"{key} ended with {row}")
    return bool(row[0] == status)


def _many(pool: str, scene: Scene, worker: Worker, size: Size) -> Iterator[Row]:
    each, runs, tasks = size.pick(1, 5, 10), size.pick(5, 60, 100), size.pick(20, 300, 600)
    floor, turns, prompts = in_turn(
        size,
        lambda _: drain(scene, worker, tasks),
        lambda number: turns_at_once(scene, f"many-{number}", each),
        lambda number: prompts_at_once(scene, f"flow-{number}", runs),
    )
    named = "no-op tasks"
    yield Row(
        what=f"turns of {AGENTS} agents at once, 20 chunks, {pool}",
        unit="/s",
        ours=turns,
        floor=floor,
        floor_name=named,
        budget=at_least(150, "/s"),
    )
    yield Row(
        what=f"workflows with one prompt, {AGENTS} at once, {pool}",
        unit="/s",
        ours=prompts,
        floor=floor,
        floor_name=named,
        budget=at_least(100, "/s"),
    )


def turns_at_once(scene: Scene, name: str, each: int) -> float:
    """Turns a second, accepted meanwhile: *each* of every agent."""
    count, began = AGENTS * each, time.perf_counter()
    for number in range(count):
        scene.agent(Answer20, f"{name}-{number % AGENTS}").submit_messages("Triage this report.")
    ended = until(lambda: scene.ask(_ENDED.decode(), f"{name}-%") == count, 120, f"{count} turns")
    stored = "SELECT count(*) FROM think_messages JOIN think_agents a ON a.id = agent_id WHERE a.name LIKE %s"
    check(scene.ask(stored, f"{name}-%") == 2 * count, "messages are missing")
    return count / (ended - began)


def prompts_at_once(scene: Scene, name: str, count: int) -> float:
    """Workflows with one prompt a second: a new one starts when one ends, so that 20 are under way."""
    began, started, complete = time.perf_counter(), 0, 0
    while complete < count:
        while started < min(count, complete + AGENTS):
            scene.agent(Answer1, f"{name}-{started}").run_workflow(Asker, workflow_id=f"{name}-{started}")
            started += 1
        before = complete
        until(lambda before=before: scene.ask(_COMPLETE.decode(), f"{name}-%") > before, 60, "a workflow")
        complete = scene.ask(_COMPLETE.decode(), f"{name}-%")
    return count / (time.perf_counter() - began)
