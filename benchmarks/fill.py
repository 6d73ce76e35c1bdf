"""Fill a database quickly with rows such as the engine makes: each is a copy of one that it made.

Only what tells one from another is replaced, and computed as the engine computes it, so that what is filled in
can be worked on: a parked workflow takes its event, an agent's transcript is continued.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks.figures import check, until
from benchmarks.place import Scene
from benchmarks.project import Answer1, Clerk, Nobodys, Replayed, Waiter
from benchmarks.wake import park
from think_celery.ids import AgentRef, WorkflowRef, new_id

BEHIND = 1000
"""How many submissions wait behind one that nobody can run."""

PER_AGENT = 100
"""How many messages a transcript has."""


def parked_id(number: int) -> str:
    """The id of a parked workflow that was filled in."""
    return f"parked-{number}"


def parked(scene: Scene, count: int) -> None:
    """So many workflows that wait for an event. A worker must be there to park the first."""
    park(scene, "model", 1)
    key = WorkflowRef(Waiter.workflow_name, "model-0").key
    ids = [parked_id(number) for number in range(count)]
    _given(
        scene,
        ((WorkflowRef(Waiter.workflow_name, it).key, it, f"parked-agent-{it}") for it in ids),
        "key",
        "id",
        "agent",
    )
    _copied(
        scene,
        "think_workflows",
        "key = %s",
        key,
        {"key": "g.key", "workflow_id": "g.id", "agent_name": "g.agent"},
    )
    _copied(scene, "think_steps", "workflow_key = %s", key, {"workflow_key": "g.key"})
    made = scene.ask("SELECT count(*) FROM think_workflows JOIN think_steps ON workflow_key = key")
    check(made == count + 1, f"{made} parked workflows")


def recorded(scene: Scene, count: int) -> WorkflowRef:
    """A run that has recorded so many steps and waits for an event. A worker must be there to record the first."""
    name = f"recorded-{count}"
    scene.agent(Answer1, "recorder").run_workflow(Replayed, {"steps": 1}, workflow_id=name)
    ref = WorkflowRef(Replayed.workflow_name, name)
    status = "SELECT status FROM think_workflows WHERE key = %s"
    until(lambda: scene.ask(status, ref.key) == "waiting", 60, "a workflow that waits", every=0.002)
    params = scene.ask("SELECT params FROM think_workflows WHERE key = %s", ref.key)
    more = params.replace("1", str(count))
    check(more == f'{{"steps":{count}}}', f"the params are {params}")
    scene.run("UPDATE think_workflows SET params = %s WHERE key = %s", more, ref.key)
    scene.run("UPDATE think_steps SET position = %s WHERE workflow_key = %s AND step = 'go'", count, ref.key)
    _given(scene, ((f"step-{number}",) for number in range(1, count)), "step")
    where = "step = 'step-0' AND m.workflow_key = %s"
    _copied(scene, "think_steps", where, ref.key, {"step": "g.step", "position": "g.n + 1"})
    made = scene.ask("SELECT count(*) FROM think_steps WHERE workflow_key = %s", ref.key)
    check(made == count + 1, f"{made} recorded steps")
    return ref


def schedules(scene: Scene, count: int) -> None:
    """So many schedules, each of an agent of its own, that are due in the next thirty days, and none just now."""
    model = scene.agent(Clerk, "model")
    made = model.schedule("3 days", model.note, "it").schedule_id
    _given(
        scene,
        (
            (new_id(), AgentRef(Clerk.agent_class, name).id, name)
            for name in (f"clerk-of-{n}" for n in range(count))
        ),
        "id",
        "agent",
        "name",
    )
    later = "m.next_run_at + g.n * 2592000000000 / (SELECT count(*) FROM given)"  # evenly over thirty days
    fresh = {"id": "g.id", "key": "g.id", "agent_id": "g.agent", "agent_name": "g.name"}
    _copied(scene, "think_schedules", "id = %s", made, {**fresh, "next_run_at": later, "due_at": later})
    stored = scene.ask("SELECT count(*) FROM think_schedules WHERE due_at IS NOT NULL AND ended_at IS NULL")
    check(stored == count + 1, f"{stored} schedules")


def history(scene: Scene, count: int) -> list[str]:
    """So many messages, in transcripts of 100; returns the agents' names. A worker must be there."""
    agent = scene.agent(Answer1, "talker")
    submission_id = agent.submit_messages("Triage this report.").submission_id
    until(lambda: agent.inspect_submission(submission_id).status == "completed", 60, "a turn")
    mine = AgentRef(Answer1.agent_class, "talker").id
    user, assistant = (
        scene.ask("SELECT seq FROM think_messages WHERE agent_id = %s AND role = %s", mine, role)
        for role in ("user", "assistant")
    )
    names = [f"talker-{number}" for number in range(max(1, count // PER_AGENT))]
    refs = [AgentRef(Answer1.agent_class, name) for name in names]
    _given(scene, ((ref.id, ref.name, "") for ref in refs), "id", "name", "nothing")
    _copied(scene, "think_agents", "id = %s", mine, {"id": "g.id", "name": "g.name"})
    _copied(scene, "think_lines", "agent_id = %s", mine, {"agent_id": "g.id"})
    first = scene.ask("SELECT min(position) FROM think_messages WHERE agent_id = %s", mine)
    for turn in range(PER_AGENT // 2):
        for at, seq in ((0, user), (1, assistant)):
            fresh = {
                "agent_id": "g.id",
                "message_id": "gen_random_uuid()::text",
                "position": str(first + 2 * turn + at),
            }
            _copied(scene, "think_messages", "seq = %s", seq, fresh, without="seq")
    made = scene.ask("SELECT count(*) FROM think_messages JOIN given ON id = agent_id")
    check(made == len(names) * PER_AGENT, f"{made} messages")
    return names


def waiting_behind(scene: Scene, count: int) -> None:
    """So many pending submissions, each thousandth at the head of a line, for a class that no worker has.

    The tick has looked at each: one behind a head expects no knock, a head is knocked for every five minutes.
    """
    fresh = {
        "agent_class": "'Gone'",
        "queue": "NULL",
        "knock_at": f"CASE WHEN mod(g.n, {BEHIND}) = 0 THEN m.knock_at + {_FIVE_MINUTES} END",
        "knocks": f"CASE WHEN mod(g.n, {BEHIND}) = 0 THEN {SETTLED_KNOCKS} ELSE 0 END",
    }
    _waiting(scene, "Gone", (f"gone-{number // BEHIND}" for number in range(count)), fresh)


def waiting_heads(scene: Scene, count: int) -> None:
    """So many agents with one pending submission each, for a queue that no worker serves.

    Each is knocked for every five minutes, at a time of its own.
    """
    fresh = {
        "queue": f"'{nobodys_queue(scene)}'",
        "knock_at": f"m.knock_at + {_FIVE_MINUTES}",
        "knocks": str(SETTLED_KNOCKS),
    }
    _waiting(scene, Nobodys.agent_class, (f"nobodys-{number}" for number in range(count)), fresh)


def nobodys_queue(scene: Scene) -> str:
    """The queue of a scene that no worker serves."""
    return f"{scene.queue}-nobody"


SETTLED_KNOCKS = 9
"""From the eighth on the tick knocks every five minutes; at each power of two, whatever waits in the queue."""

_FIVE_MINUTES = "(random() * 300000000)::bigint"


def _waiting(scene: Scene, agent_class: str, names: Iterable[str], fresh: dict[str, str]) -> None:
    """Pending submissions of these agents, copies of one that was just accepted."""
    model = scene.agent(Nobodys, "model").submit_messages("Triage this report.").submission_id
    _given(scene, ((new_id(), AgentRef(agent_class, name).id, name) for name in names), "id", "agent", "name")
    (message,) = json.loads(scene.ask("SELECT messages FROM think_submissions WHERE id = %s", model))
    fresh = {
        "id": "g.id",
        "agent_id": "g.agent",
        "agent_name": "g.name",
        "messages": f"replace(m.messages, '{message['id']}', g.id)",
        **fresh,
    }
    _copied(scene, "think_submissions", "id = %s", model, fresh, without="seq")
    scene.run("DELETE FROM think_submissions WHERE id = %s", model)
    made = "SELECT count(*) FROM think_submissions WHERE agent_class = %s AND status = 'pending'"
    count = scene.ask("SELECT count(*) FROM given")
    check(scene.ask(made, agent_class) == count, "waiting submissions are missing")


def _given(scene: Scene, rows: Iterable[Sequence[str]], *names: str) -> None:
    """A temporary table ``given`` with these columns of text, and ``n``, which counts from 0."""
    columns = ", ".join(f"{name} text" for name in names)
    scene.run("DROP TABLE IF EXISTS given")
    scene.run(f"CREATE TEMP TABLE given (n bigint, {columns})")
    with scene.conn.cursor().copy(b"COPY given FROM STDIN") as copy:
        for number, row in enumerate(rows):
            copy.write_row((number, *row))
    scene.run("ANALYZE given")


def _copied(
    scene: Scene, table: str, where: str, value: Any, fresh: dict[str, str], *, without: str | None = None
) -> None:
    """A copy of that row for each row of ``given``; *fresh* says which columns are different, in SQL."""
    columns = [name for name in _columns(scene, table) if name != without]
    missing = sorted(set(fresh) - set(columns))
    check(not missing, f"{table} has no {', '.join(missing)}")
    values = ", ".join(fresh.get(name, f"m.{name}") for name in columns)
    names = ", ".join(columns)
    scene.run(
        f"INSERT INTO {table} ({names}) SELECT {values} FROM given g CROSS JOIN {table} m WHERE m.{where} ORDER BY g.n",
        value,
    )


def _columns(scene: Scene, table: str) -> Iterator[str]:
    found = scene.conn.execute(
        b"SELECT column_name FROM information_schema.columns WHERE table_name = %s ORDER BY ordinal_position",
        (table,),
    )
    return (name for (name,) in found.fetchall())
