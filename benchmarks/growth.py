"""Does one more operation cost more with 100,000 rows than with 1,000? And what do they cost an idle worker?"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from benchmarks import fill
from benchmarks.figures import Budget, Row, Size, at_most, check, p50, ratio_at_most, sampled, until
from benchmarks.place import Place, Scene, Worker, threads
from benchmarks.processes import cpu_seconds
from benchmarks.project import Answer1, Waiter
from benchmarks.turn import turn
from think_celery.domain import tick

GROWTH = ratio_at_most(1.3)
_SUBMISSION = "SELECT status FROM think_submissions WHERE id = %s"
_RUN = "SELECT status FROM think_workflows WHERE workflow_id = %s"


@dataclass(kw_only=True)
class Side:
    """The small or the large database, with its worker, and what was taken from it so far."""

    scene: Scene
    worker: Worker
    rows: int
    talkers: tuple[str, ...] = ()
    woken: int = 0


def measure(place: Place, size: Size) -> Iterator[Row]:
    """Two databases and two workers, filled kind by kind; each operation is measured on both in turn."""
    counts = size.pick(20, 1000, 1000), size.pick(200, 20_000, 100_000)
    with (
        place.scene() as one,
        place.scene() as other,
        one.worker(threads(size)) as first,
        other.worker(threads(size)) as second,
    ):
        small = Side(scene=one, worker=first, rows=counts[0])
        large = Side(scene=other, worker=second, rows=counts[1])
        told = f"{large.rows:,}"
        for side in (small, large):
            fill.parked(side.scene, side.rows)
        yield from _compared(size, small, large, f"{told} parked workflows", {"event → end": _wake})
        for side in (small, large):
            side.talkers = tuple(fill.history(side.scene, side.rows))
        in_transcript = {f"turn of an agent with {fill.PER_AGENT} messages": _talk}
        yield from _compared(size, small, large, f"and {told} messages", in_transcript)
        for side in (small, large):
            fill.waiting_behind(side.scene, side.rows)
        yield from _compared(
            size, small, large, f"and {told} submissions behind heads", {"event → end": _wake}
        )
        held = f"{told} parked, {told} messages, {told} behind heads"
        if size.name != "tiny":  # each takes three seconds; one is enough to try the code
            yield _lost(size, small, large, held)
        yield from _idle(size, small, large, held, at_most(0, "messages"))
        for side in (small, large):
            fill.waiting_heads(side.scene, side.rows)
        # The tick has work now, so its pass takes as long as it may; what counts is what others notice.
        yield from _compared(
            size, small, large, f"and {told} heads of a queue without worker", {}, tick_budget=None
        )
        held = f"the same and {told} heads"
        yield _lost(size, small, large, held)
        yield from _idle(size, small, large, held, None)


Operation = Callable[[Side, str], float]


def _compared(
    size: Size,
    small: Side,
    large: Side,
    held: str,
    more: dict[str, Operation],
    tick_budget: Budget | None = GROWTH,
) -> Iterator[Row]:
    operations: dict[str, Operation] = {"turn": _turn, "workflow start → park → event → end": _flow, **more}
    for side in (small, large):
        side.scene.run("ANALYZE")  # as autovacuum does a minute after so many rows were inserted
    for what, operation in operations.items():
        yield compared(f"{what}, {held}", size, operation, size.pick(1, 8, 15), small, large)
    passes = compared(f"pass of the tick, {held}", size, _tick, size.pick(1, 5, 10), small, large)
    yield replace(passes, budget=tick_budget)


def compared(what: str, size: Size, operation: Operation, each: int, small: Side, large: Side) -> Row:
    """The operation in both databases, in turn, *each* times in a round."""
    floor, ours = sampled(
        size,
        each,
        lambda name: operation(small, f"{what}-{name}"),
        lambda name: operation(large, f"{what}-{name}"),
    )
    return Row(
        what=f"{what}: p50",
        unit="ms",
        ours=p50(ours),
        floor=p50(floor),
        floor_name=f"with {small.rows:,}",
        budget=GROWTH,
    )


# --- operations, in milliseconds ------------------------------------------------------------------


def _turn(side: Side, name: str) -> float:
    """A turn of a new agent."""
    return turn(side.scene, 1, name)


def _talk(side: Side, name: str) -> float:
    """A turn of an agent whose transcript was filled in."""
    *others, talker = side.talkers
    side.talkers = (talker, *others)
    agent = side.scene.agent(Answer1, talker)
    before, began = len(agent.messages), time.perf_counter()
    submission_id = agent.submit_messages("Triage this report.").submission_id
    ended = until(
        lambda: side.scene.ask(_SUBMISSION, submission_id) == "completed", 30, "a turn", every=0.0005
    )
    check(len(agent.messages) == before + 2, "the answer is not there")
    return (ended - began) * 1000


def _flow(side: Side, name: str) -> float:
    """A workflow from its start to its end, with an event sent as soon as it waits."""
    agent, began = side.scene.agent(Answer1, "flow"), time.perf_counter()
    agent.run_workflow(Waiter, workflow_id=name)
    until(lambda: side.scene.ask(_RUN, name) == "waiting", 30, "a workflow that waits", every=0.0005)
    agent.send_workflow_event(Waiter, name, type="go")
    ended = until(lambda: side.scene.ask(_RUN, name) == "complete", 30, "a workflow", every=0.0005)
    return (ended - began) * 1000


def _wake(side: Side, name: str) -> float:
    """The end of a parked workflow that was filled in, from its event on."""
    workflow_id, side.woken = fill.parked_id(side.woken), side.woken + 1
    began = time.perf_counter()
    side.scene.agent(Answer1, "waker").send_workflow_event(Waiter, workflow_id, type="go")
    ended = until(lambda: side.scene.ask(_RUN, workflow_id) == "complete", 30, "a workflow", every=0.0005)
    return (ended - began) * 1000


def _tick(side: Side, name: str) -> float:
    """A whole pass of the tick, made by this process: admitted as if the last one had been long ago."""
    side.scene.run("UPDATE think_ticks SET last_at = 0")
    began = time.perf_counter()
    tick.run(side.scene.rt)
    return (time.perf_counter() - began) * 1000


# --- what only the tick finds ---------------------------------------------------------------------


def _lost(size: Size, small: Side, large: Side, held: str) -> Row:
    """A turn whose message never came to the broker, so the tick has to find it: seconds, both sides at once.

    One that is not found in time counts with all the time that was waited.
    """
    taken = [_found_by_the_tick((small, large)) for _ in range(size.pick(1, 1, 4))]
    return Row(
        what=f"turn whose message was lost, {held}",
        unit="s",
        ours=[ours for _, ours in taken],
        floor=[floor for floor, _ in taken],
        floor_name=f"with {small.rows:,}",
        budget=at_most(LOST_SECONDS, "s"),
    )


LOST_SECONDS = 3.2
"""Two seconds until a message counts as missed, a tick, and the turn."""

PATIENCE_SECONDS = 30.0


def _found_by_the_tick(sides: tuple[Side, Side]) -> list[float]:
    waiting: dict[str, tuple[Side, float]] = {}
    for side in sides:
        knock, side.scene.rt.knock = side.scene.rt.knock, lambda _: None
        began = time.perf_counter()
        submitted = side.scene.agent(Answer1, f"lost-{began}").submit_messages("Triage this report.")
        side.scene.rt.knock = knock
        waiting[submitted.submission_id] = side, began
    took = dict.fromkeys(waiting, 0.0)

    def all_found() -> bool:
        for submission_id, (side, began) in waiting.items():
            done = side.scene.ask(_SUBMISSION, submission_id) == "completed"
            if done and not took[submission_id]:
                took[submission_id] = time.perf_counter() - began
        return all(took.values())

    give_up_at = time.perf_counter() + PATIENCE_SECONDS
    while not all_found() and time.perf_counter() < give_up_at:
        time.sleep(0.01)
    return [seconds or PATIENCE_SECONDS for seconds in took.values()]


# --- doing nothing --------------------------------------------------------------------------------


def _idle(size: Size, small: Side, large: Side, held: str, most_messages: Budget | None) -> Iterator[Row]:
    """CPU of the workers and of their database sessions while nothing is asked of them, and the broker's length."""
    seconds = size.pick(200, 4_000, 20_000) / 1000
    for side in (small, large):
        side.scene.redis.delete(side.scene.queue, fill.nobodys_queue(side.scene))
    before = [_used(side) for side in (small, large)]
    time.sleep(seconds)
    after = [_used(side) for side in (small, large)]
    for at, who in enumerate(("worker", "its database sessions")):
        floor, ours = ((now[at] - was[at]) / seconds * 100 for was, now in zip(before, after, strict=True))
        yield Row(
            what=f"idle CPU, {who}, {held}",
            unit="% of a core",
            ours=[ours],
            floor=[floor],
            floor_name=f"with {small.rows:,}",
        )
    yield Row(
        what=f"messages in the broker after {seconds:g} idle seconds, {held}",
        unit="messages",
        ours=[_messages(large)],
        budget=most_messages,
    )


def _used(side: Side) -> tuple[float, float]:
    sessions = side.scene.conn.execute(
        b"SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    )
    return cpu_seconds([side.worker.pid]), cpu_seconds(pid for (pid,) in sessions.fetchall())


def _messages(side: Side) -> int:
    unserved = side.scene.redis.llen(fill.nobodys_queue(side.scene))
    return side.scene.waiting() + int(unserved)  # type: ignore[arg-type]
