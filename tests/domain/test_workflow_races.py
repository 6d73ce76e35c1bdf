"""Races between those who send, start and run: real threads, on both databases, many rounds each.

Each of these rounds loses or doubles something without the rule that its docstring names.
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import update

from tests.domain.crowd import change
from tests.domain.flows import DESK, Desk, Handle, flow, seize_of, start
from think_celery.domain import outbox, tick
from think_celery.domain.submissions import claims, submissions
from think_celery.domain.workflows import control, workflows
from think_celery.errors import ThinkPromptTimeoutError, WorkflowTimeoutError
from think_celery.ids import WorkflowRef
from think_celery.providers.scripted import FunctionModel, answer
from think_celery.runtime import Runtime
from think_celery.store import events, tables, wakes
from think_celery.store import outbox as outbox_rows


class Draft(BaseModel):
    """Some answer."""

    title: str


pytestmark = pytest.mark.timeout(400)  # a busy machine takes its time for so many rounds

ROUNDS = 400  # of the races whose loss nothing would ever repair
FEWER = 100
Work = Callable[[int], Any]


@contextmanager
def together(*works: Work, rounds: int = ROUNDS) -> Iterator[list[BaseException]]:
    """Run these once a round, each in a thread of its own, begun at one moment."""
    barrier, raised = threading.Barrier(len(works)), []

    def run(work: Work) -> None:
        for number in range(rounds):
            barrier.wait(60)
            try:
                work(number)
            except BaseException as error:
                raised.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(380)
    yield raised
    assert raised == []


def handle(rt: Runtime, number: int, name: str = "Flow") -> Handle:
    return Handle(rt, WorkflowRef(name, f"w{number}"))


def drain(workflow: Handle) -> None:
    """Run what is queued, as the knocks that were sent would."""
    for _ in range(20):
        if workflow.status != "queued":
            return
        workflow.advance()


def test_an_event_and_a_park(live: Runtime):
    """Parking is conditional on the inbox count that was looked at, and storing an event always counts it.

    With a check on one side only, hundreds of these events are never seen.
    """

    def run(event, step):
        first = step.wait_for_event("a", type="go").payload
        return [first, step.wait_for_event("b", type="go").payload]

    flow(run)
    flows = [start(live, None, id=f"w{number}") for number in range(ROUNDS)]

    with together(
        lambda number: flows[number].advance(),
        lambda number: flows[number].send("go", 1),
        lambda number: flows[number].send("go", 2),
    ):
        for workflow in flows:
            drain(workflow)

    assert [sorted(workflow.output) for workflow in flows] == [[1, 2]] * ROUNDS
    assert live.db.read(lambda tx: wakes.unread(tx, 10)) == []


def test_a_start_and_an_early_event(live: Runtime):
    """Both look after their own commits, so the later of the two finds what the other has stored."""
    flow(lambda event, step: step.wait_for_event("a", type="go").payload)

    with together(
        lambda number: workflows.start(live, DESK._ref, "Flow", workflow_id=f"w{number}"),
        lambda number: workflows.send_event(
            live, WorkflowRef("Flow", f"w{number}"), type="go", payload=number
        ),
        lambda number: handle(live, number).advance(),
    ):
        for number in range(ROUNDS):
            drain(handle(live, number))

    assert [handle(live, number).output for number in range(ROUNDS)] == list(range(ROUNDS))
    assert live.db.read(lambda tx: events.adoptable(tx, 10)) == []


def test_an_event_and_a_deadline(live: Runtime):
    """A rule, not a race: what was stored at or before the deadline is taken, however the threads fell."""

    def run(event, step):
        try:
            return step.wait_for_event("a", type="go", timeout=event.payload["timeout"]).payload
        except WorkflowTimeoutError:
            return "late"

    flow(run)
    rounds = ROUNDS
    delays = [random.random() * 0.02 for _ in range(rounds)]
    flows = [start(live, None, {"timeout": 0.01}, id=f"w{number}") for number in range(rounds)]

    def advance(number: int) -> None:
        workflow = flows[number]
        for _ in range(200):
            workflow.advance()
            if workflow.status == "complete":
                return
            threading.Event().wait(0.001)
            workflows.wake_due(live, 10)

    def send(number: int) -> None:
        threading.Event().wait(delays[number])
        flows[number].send("go", "in time")

    with together(advance, send, rounds=rounds):
        for workflow in flows:
            drain(workflow)

    found = {"late": 0, "in time": 0}
    for workflow in flows:
        (entry,), (event,) = workflow.journal, workflow.inbox
        in_time = event.created_at <= entry.deadline_at
        assert (workflow.output == "in time") == (event.consumed_by is not None) == in_time
        found[workflow.output] += 1
    assert min(found.values()) > 0, found


def test_two_who_resume(live: Runtime):
    """A26: a paused run is resumed by one of those who resume it at once, is queued once, and goes on once."""
    ran: list[int] = []
    flow(lambda event, step: step.do("once", lambda: ran.append(event.payload["n"]) or event.payload["n"]))
    flows = [start(live, None, {"n": number}, id=f"w{number}") for number in range(ROUNDS)]
    table, stopped = tables.workflows, {"status": "paused", "knock_at": None}
    change(live, update(table).values(**stopped, error_type="ReplayMismatch", error="changed"))
    resumed: list[int] = []

    def resume(number: int) -> None:
        if control.resume(live, flows[number].ref):
            resumed.append(number)
        flows[number].advance()

    with together(resume, resume):
        for workflow in flows:
            drain(workflow)

    assert sorted(resumed) == list(range(ROUNDS))
    assert sorted(ran) == list(range(ROUNDS))
    assert {(flow.status, flow.row.wakes, flow.row.error_type) for flow in flows} == {("complete", 1, None)}


def test_one_event_for_two_runs_of_the_code(live: Runtime):
    """Of workers that are knocked at once, one claims; each step runs once and each event is taken once."""
    ran: list[int] = []
    flow(lambda event, step: step.do("once", lambda: ran.append(event.payload["n"]) or event.payload["n"]))
    flows = [start(live, None, {"n": number}, id=f"w{number}") for number in range(FEWER)]
    words: list[str] = []

    with together(*[lambda number: words.append(flows[number].advance().word)] * 3, rounds=FEWER):
        pass

    assert sorted(ran) == list(range(FEWER))
    assert words.count("complete") == FEWER
    assert [workflow.output for workflow in flows] == list(range(FEWER))


def test_two_starts_of_one_id(live: Runtime):
    """A5: any number of callers that start one id get one run."""
    flow(lambda event, step: event.payload["who"])
    ids: list[str] = []

    def begin(who: str) -> Work:
        return lambda number: ids.append(
            workflows.start(live, DESK._ref, "Flow", {"who": who}, workflow_id=f"w{number}")
        )

    with together(begin("a"), begin("b"), begin("c"), rounds=FEWER):
        for number in range(FEWER):
            drain(handle(live, number))

    assert len(ids) == 3 * FEWER
    assert {handle(live, number).output for number in range(FEWER)} <= {"a", "b", "c"}
    assert {handle(live, number).row.takeovers for number in range(FEWER)} == {1}


def test_one_key_sent_by_many(live: Runtime):
    """FR-61: the same event sent by several at once is one event."""
    flow(lambda event, step: [step.wait_for_event(f"e{n}", type="go").payload for n in range(2)])
    flows = [start(live, None, id=f"w{number}") for number in range(FEWER)]

    def send(number: int) -> None:
        flows[number].send("go", "same", idempotency_key="k")

    with together(send, send, lambda number: flows[number].advance(), rounds=len(flows)):
        for workflow in flows:
            drain(workflow)

    assert {workflow.status for workflow in flows} == {"waiting"}
    assert {len(workflow.inbox) for workflow in flows} == {1}


def test_a_takeover_and_the_one_that_stalled(live: Runtime):
    """Of a stalled worker and the one that took over, exactly one stores the step, and it's the latter."""

    def run(event, step):
        return step.do("who", lambda: threading.current_thread().name, timeout=None)

    flow(run)
    flows = [start(live, None, id=f"w{number}") for number in range(FEWER)]
    process = live.monitor.process_id()
    words: list[str] = []

    def stalls(number: int) -> None:
        words.append(flows[number].advance().word)

    def takes_over(number: int) -> None:
        workflow = flows[number]
        for _ in range(100):
            if live.db.transact(lambda tx: seize_of(tx, workflow.ref.key, process)) is not None:
                break
            if workflow.status == "complete":
                return
        workflow.advance()

    with together(stalls, takes_over, rounds=len(flows)):
        for workflow in flows:
            drain(workflow)

    assert {workflow.status for workflow in flows} == {"complete"}
    assert {len(workflow.journal) for workflow in flows} == {1}
    for workflow in flows:
        assert workflow.journal[0].output == workflow.row.output
    assert set(words) <= {"complete", "lease-lost", "busy", "ended-before"}


def test_news_delivered_by_many(live: Runtime):
    """A18: news that several workers deliver at once arrives once."""
    flow(lambda event, step: step.wait_for_event("a", type="go").payload)
    flows = [start(live, None, id=f"w{number}") for number in range(FEWER)]
    news = []
    for workflow in flows:
        workflow.advance()
        news.append(
            live.db.transact(
                lambda tx, key=workflow.ref.key: outbox_rows.insert(
                    tx, dedupe_key=f"n:{key}", workflow_key=key, run=1, event_type="go", payload="1"
                )
            )
        )
    words: list[str] = []

    def deliver(number: int) -> None:
        words.append(outbox.deliver(live, news[number]).word)

    with together(deliver, deliver, deliver, rounds=len(flows)):
        for workflow in flows:
            drain(workflow)

    assert {workflow.output for workflow in flows} == {1}
    assert {len(workflow.inbox) for workflow in flows} == {1}
    assert words.count("delivered") == len(flows)
    assert set(words) == {"delivered", "ended-before"}


def test_a_prompts_end_and_its_deadline(live: Runtime):
    """The cancel and the recorded timeout are one transaction; an answer that was first counts: never neither."""
    live.stand_in = lambda agent_class: FunctionModel(lambda request: answer({"title": "in time"}))

    def run(event, step):
        try:
            return step.prompt("p", prompt="x", output=Draft, timeout=0.01).title
        except ThinkPromptTimeoutError as error:
            return error.status

    flow(run)
    rounds = FEWER
    flows = []
    for number in range(rounds):
        agent = Desk._bound_to(live, f"desk{number}")
        workflows.start(live, agent._ref, "Flow", workflow_id=f"w{number}")
        flows.append((handle(live, number), agent))

    def advance(number: int) -> None:
        for _ in range(400):
            flows[number][0].advance()
            if flows[number][0].status == "complete":
                return
            threading.Event().wait(0.001)
            tick.run(live)
            workflows.wake_due(live, 10)

    def turn(number: int) -> None:
        _, agent = flows[number]
        key = f"think-workflow:Flow:w{number}:p"
        for _ in range(400):
            row = submissions.get_by_key(live, agent._ref, key)
            if row is not None:
                claims.run(live, row.id)
                return
            threading.Event().wait(0.001)

    with together(advance, turn, rounds=rounds):
        pass

    for number, (workflow, agent) in enumerate(flows):
        row = submissions.get_by_key(live, agent._ref, f"think-workflow:Flow:w{number}:p")
        assert (workflow.output, row.status) in [("in time", "completed"), ("aborted", "aborted")]
