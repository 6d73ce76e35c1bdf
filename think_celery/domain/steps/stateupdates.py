"""``step.update_agent_state``: a change of the agent's state that happens once, with its entry in one transaction."""

import inspect
import random
from collections.abc import Callable
from typing import Any

from think_celery import serialization
from think_celery.domain import calls
from think_celery.domain.agents import agents
from think_celery.domain.steps.effects import Outcome, encode, inside_of, raised, tried
from think_celery.domain.workflows.journal import Asked, failure_of
from think_celery.domain.workflows.replay import Replay
from think_celery.errors import AsyncNotSupported, InvalidValue, StateContended, StepMisuse
from think_celery.retries import Retry
from think_celery.states import StepStatus
from think_celery.store import agents as rows
from think_celery.store import steps
from think_celery.store.database import Tx
from think_celery.wording import a_type

STATE = "update-agent-state"
ONCE = Retry(max_attempts=1)


def update_agent_state(replay: Replay, change: Any) -> Any:
    """Change the agent's state, and return the new one; see ``Step.update_agent_state``."""
    replay.check(STATE)
    function = _function(change)
    asked = replay.ask(STATE, "state")
    return tried(replay, asked, ONCE, None, lambda _: _once(replay, asked, function))


def _function(change: Any) -> Callable[[Any], Any]:
    if isinstance(change, dict):
        return lambda state: _merged(state, change)
    if inspect.iscoroutinefunction(change):
        raise AsyncNotSupported("the function of step.update_agent_state")
    if not callable(change):
        raise StepMisuse(
            STATE,
            f"{type(change).__name__} is no change. Pass a function of the state, or a dict to merge into it.",
        )
    function: Callable[[Any], Any] = change
    return function


def _merged(state: Any, change: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(state, dict):
        raise InvalidValue(
            f"the agent's state is {a_type(state)}, and a dict can be merged into a dict only. Pass a "
            "function of the state, which returns the new one."
        )
    return {**state, **change}


def _once(replay: Replay, asked: Asked, function: Callable[[Any], Any]) -> Outcome:
    rt, ref = replay.rt, replay.agent
    agent: Any = rt.make_agent(ref.agent_class, ref.name)
    pause = agents.FIRST_PAUSE
    for _ in range(agents.TRIES):
        text, version = replay.read(asked, lambda tx: rows.state(tx, ref.id))
        value = serialization.loads(agents.dumps(rt, agent.initial_state) if text is None else text)
        result = calls.run(lambda value=value: inside_of(asked, lambda: function(value)))  # type: ignore[misc]
        if isinstance(result, calls.Failed):
            return raised(replay, asked, result.error).for_good()
        if result.value is None:
            nothing = "the function of step.update_agent_state returned None: it must return the new state."
            return failure_of(InvalidValue(nothing)).for_good()
        outcome = encode(replay, asked, result.value, None)
        if not isinstance(outcome, tuple) or _stored(replay, asked, agent, text, version, outcome[0]):
            return outcome
        rt.clock.sleep(random.uniform(0, pause))
        pause = min(pause * 2, agents.LONGEST_PAUSE)
    return failure_of(StateContended(str(ref), agents.TRIES)).for_good()


def _stored(replay: Replay, asked: Asked, agent: Any, before: str | None, seen: int, text: str) -> bool:
    """Store state and entry, if nobody has changed the state since the version *seen*; say whether that was done."""
    rt, ref = replay.rt, replay.agent

    def store(tx: Tx, _: int) -> bool:
        if text != before:
            version = rows.swap_state(tx, ref, seen, text)
            if version is None:
                return False
            tx.after_commit(lambda: agents.changed(rt, ref, text, version, agent.on_state_changed, "server"))
        replay.must(steps.insert(tx, asked.ref, StepStatus.DONE, output=text))
        rt.failpoint(f"step:{asked.ref.step}:before-commit")
        return True

    return replay.write(asked, store)
