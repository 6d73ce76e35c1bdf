"""An agent's own state, and what it tells its listeners."""

import inspect
import logging
import random
from collections.abc import Callable
from typing import Any

from think_celery import serialization
from think_celery.domain.agents.reactions import react
from think_celery.domain.conversation import live
from think_celery.domain.inhand import all_in_hand
from think_celery.errors import AsyncNotSupported, InvalidType, InvalidValue, LeaseLost, StateContended
from think_celery.ids import AgentRef
from think_celery.runtime import Runtime
from think_celery.store import agents
from think_celery.store.database import Tx
from think_celery.store.leases import TURNS, fence, is_held
from think_celery.wording import a_type

logger = logging.getLogger("think_celery.agents")

TRIES = 200
"""How often an update is tried again because somebody else was faster."""

FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.1

OnChange = Callable[[Any, str], object]
"""Called with the new state and its source, once it is committed."""


# --- state ----------------------------------------------------------------------------------------


def get_state(rt: Runtime, agent: AgentRef, initial: Any) -> Any:
    """The agent's state, read afresh; a copy of *initial* where none was stored."""
    return _read(rt, agent, initial)[0]


def _read(rt: Runtime, agent: AgentRef, initial: Any) -> tuple[Any, str | None, int]:
    text, version = rt.db.look(lambda tx: agents.state(tx, agent.id))
    value = serialization.loads(dumps(rt, initial) if text is None else text)
    return value, text, version


def dumps(rt: Runtime, value: Any) -> str:
    """A state as it is stored."""
    return serialization.dumps(value, what="state", limit=rt.settings.max_payload)


def set_state(rt: Runtime, agent: AgentRef, value: Any, on_change: OnChange, source: str = "server") -> None:
    """Store a state whatever was there, tell listeners, and call *on_change*.

    Raises:
        NotSerializable, PayloadTooLarge: The state can't be stored.
    """
    text = dumps(rt, value)

    def work(tx: Tx) -> None:
        version = agents.set_state(tx, agent, text)
        _check_still_ours(tx, agent)
        tx.after_commit(lambda: changed(rt, agent, text, version, on_change, source))

    rt.db.accept(work)


def update_state(
    rt: Runtime,
    agent: AgentRef,
    function: Callable[[Any], Any],
    initial: Any,
    on_change: OnChange,
    source: str = "server",
) -> Any:
    """Store what *function* makes of the state, which nobody has changed meanwhile, and return that.

    The function runs while nothing is locked; where somebody else was faster, it runs again on what that one
    has stored. A state that it leaves as it is isn't stored again.

    Raises:
        InvalidValue: It is no function, or returned ``None``.
        AsyncNotSupported: It is an ``async def``.
        NotSerializable, PayloadTooLarge: What it returned can't be stored.
        StateContended: Others were faster again and again.
    """
    if not callable(function):
        raise InvalidValue(
            f"update_state() takes a function of the state, not {a_type(function)}. "
            "To store a state whatever was there, call set_state()."
        )
    if inspect.iscoroutinefunction(function):
        raise AsyncNotSupported("the function of update_state")
    pause = FIRST_PAUSE
    for _ in range(TRIES):
        value, before, version = _read(rt, agent, initial)
        changed = function(value)
        if changed is None:
            raise InvalidValue(
                f"the function of update_state returned None for {agent}: it must return the new state. "
                "One that changes the state in place returns it, too; to store None, call set_state(None)."
            )
        text = dumps(rt, changed)
        if text == before or rt.db.accept(_swapping(rt, agent, version, text, on_change, source)):
            return serialization.loads(text)
        rt.clock.sleep(random.uniform(0, pause))
        pause = min(pause * 2, LONGEST_PAUSE)
    raise StateContended(str(agent), TRIES)


def _swapping(
    rt: Runtime, agent: AgentRef, seen: int, text: str, on_change: OnChange, source: str
) -> Callable[[Tx], bool]:
    def work(tx: Tx) -> bool:
        version = agents.swap_state(tx, agent, seen, text)
        if version is None:
            return False
        _check_still_ours(tx, agent)
        tx.after_commit(lambda: changed(rt, agent, text, version, on_change, source))
        return True

    return work


def _check_still_ours(tx: Tx, agent: AgentRef) -> None:
    """Refuse a change that a turn of this agent, or a job, makes which has lost its lease, by a destruction, say.

    Raises:
        LeaseLost: It has. What was changed in the transaction is undone.
    """
    leases = [work.hold.lease for work in all_in_hand()]
    mine = [lease for lease in leases if lease.kind == TURNS and lease.key == agent.id]
    if leases and leases[0].kind == "job":  # of a turn that runs in a job's place only the turn's own counts
        mine.append(leases[0])
    for lease in mine:
        if not tx.joined:
            fence(tx, lease)
        elif not is_held(tx, lease):  # a caller's transaction may not lock the line
            raise LeaseLost(str(lease))


def changed(rt: Runtime, agent: AgentRef, text: str, version: int, on_change: OnChange, source: str) -> None:
    """Tell listeners and *on_change* of a state that is committed."""
    live.show_state(rt, agent.id, text, version)
    react(f"on_state_changed of {agent}", lambda: on_change(serialization.loads(text), source))


# --- news for listeners ---------------------------------------------------------------------------


def broadcast(rt: Runtime, agent: AgentRef, message: Any) -> None:
    """Show a text or a dict to everyone who listens to the agent; in a joined transaction after its commit.

    Raises:
        InvalidType: It is neither.
        NotSerializable, PayloadTooLarge: It is no JSON, or too much.
    """
    if not isinstance(message, str | dict):
        raise InvalidType(f"broadcast() takes a text or a dict, not {a_type(message)}.")
    serialization.dumps(message, what="message")
    serialization.check_size("the message", message, rt.settings.max_payload)
    event = {"type": "broadcast", "data": message}
    if rt.db.inside_joined:
        rt.db.accept(lambda tx: tx.after_commit(lambda: live.show(rt, agent.id, event)))
    else:
        live.show(rt, agent.id, event)
