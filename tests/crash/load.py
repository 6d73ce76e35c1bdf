"""What the soak lets go through: turns and workflows, submitted by processes of their own, which log what they did.

The plan is the same for a seed. Some turns are submitted by two processes at once, some are cancelled; some
events are sent before their workflow is started, and some twice.
"""

import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from celery import Celery

from tests.crash.project import SAGA, Saga, Scribe
from think_celery.app import ThinkCelery

PROMPTS = ("do: note", "do: note", "do: note post", "do:", "do: slowly")
AGENTS_PER_100 = 4
PATIENCE = 100
"""Times that a call is repeated."""


@dataclass(frozen=True, kw_only=True)
class Op:
    """One call that a submitting process makes, that many seconds after its start."""

    at: float
    do: str
    agent: str
    key: str
    prompt: str = ""


def plan(seed: int, seconds: float, turns: int, sagas: int) -> list[Op]:
    """All calls, in order of time."""
    dice = random.Random(seed)
    agents = max(4, (turns + sagas) * AGENTS_PER_100 // 100)
    ops = []
    for number in range(turns):
        key, at = f"turn-{number}", dice.uniform(0, seconds)
        agent = f"agent-{dice.randrange(agents)}"
        prompt = f"{dice.choice(PROMPTS)} #{key}"
        again = [0.0] * dice.choice([0, 0, 0, 1, 3])
        ops += [Op(at=at, do="submit", agent=agent, key=key, prompt=prompt) for _ in (at, *again)]
        if dice.random() < 0.1:
            ops.append(Op(at=at + dice.choice([0.0, 0.2, 2.0]), do="cancel", agent=agent, key=key))
    for number in range(sagas):
        key, at = f"saga-{number}", dice.uniform(0, seconds)
        agent = f"agent-{dice.randrange(agents)}"
        send = Op(at=at + dice.choice([-1.0, 0.0, 1.0, 5.0]), do="send", agent=agent, key=key)
        ops += [Op(at=at, do="start", agent=agent, key=key, prompt=f"do: note #{key}"), send]
        if dice.random() < 0.3:
            ops.append(send)
    return sorted(ops, key=lambda op: (op.at, op.key, op.do))


def share(ops: list[Op], number: int, of: int) -> Iterator[Op]:
    """Those of one process: calls for one key at one time are different processes', so that they race."""
    yield from (op for at, op in enumerate(ops) if at % of == number)


# --- the process ----------------------------------------------------------------------------------


def run() -> None:
    """Make the calls of ``CRASH_DO``, each at its time, and log how each went; then end."""
    from tests.crash.worker import mark

    given = json.loads(os.environ["CRASH_DO"])
    app = Celery("soak", broker=os.environ["CRASH_BROKER"], set_as_current=False)
    app.conf.task_default_queue = os.environ["CRASH_QUEUE"]
    think = ThinkCelery(app)
    ops = plan(given["seed"], given["seconds"], given["turns"], given["sagas"])
    Scribe("nobody").get_submission_by_key("nothing")  # so that the first call is like the others
    mark("ready")
    with Path(given["log"]).open("a", buffering=1) as log:
        for op in share(ops, given["number"], given["of"]):
            time.sleep(max(0.0, given["began"] + op.at - time.monotonic()))
            log.write(json.dumps({**asdict(op), **perform(op)}) + "\n")
    think.close()


def perform(op: Op) -> dict[str, Any]:
    """Make one call until it is accepted; when that began and ended, what came of it, and how often it raised.

    A call may raise while a connection dies at its commit: then it may have happened, or not, and whoever
    needs to know repeats it.
    """
    began, raised = time.monotonic(), 0
    while True:
        try:
            return {**_call(op), "raised": raised, "began": began, "ended": time.monotonic()}
        except Exception:
            raised += 1
            if raised == PATIENCE:
                raise
            time.sleep(0.2)


def _call(op: Op) -> dict[str, Any]:
    agent = Scribe(op.agent)
    match op.do:
        case "submit":
            receipt = agent.submit_messages(op.prompt, idempotency_key=op.key)
            return {"accepted": receipt.accepted, "id": receipt.submission_id}
        case "cancel":
            found = agent.get_submission_by_key(op.key)
            return {"won": found is not None and agent.cancel_submission(found.submission_id, "soak")}
        case "start":
            return {"id": agent.run_workflow(Saga, {"prompt": op.prompt}, workflow_id=op.key)}
    agent.send_workflow_event(Saga, op.key, type="go", payload=SAGA["go"], idempotency_key=f"go:{op.key}")
    return {}
