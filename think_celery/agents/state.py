"""An agent's state, and what it tells its listeners beside its turns."""

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from think_celery.agents.checks import check_first_state
from think_celery.agents.handle import AgentHandle
from think_celery.domain.agents import agents


class AgentState(AgentHandle, abstract=True):
    """An agent's state."""

    initial_state: ClassVar[Any] = {}
    _hooks: ClassVar[tuple[str, ...]] = ("on_state_changed",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the class, as every agent's is."""
        check_first_state(cls)
        super().__init_subclass__(**kwargs)

    @property
    def state(self) -> Any:
        """The agent's state, read afresh: a copy, so changing it changes nothing. Store it with :meth:`update_state`.

        ``initial_state`` as long as none was stored. It comes back as it was stored: JSON values, dates, decimals,
        and pydantic models and dataclasses that can be imported.
        """
        return agents.get_state(self._rt, self._ref, self.initial_state)

    @state.setter
    def state(self, state: NoReturn) -> None:
        raise AttributeError(
            f"the state of {self!r} can't be assigned. Call set_state(…) to store one, or update_state(function) to "
            "change what is there."
        )

    def set_state(self, state: Any) -> None:
        """Store the state, whatever it was before, and tell listeners and :meth:`on_state_changed`.

        Two that set it at once: the last one stands. To change what is there, use :meth:`update_state`. In a joined
        transaction it is stored with your commit, and other changes of this agent's state wait for that.

        Args:
            state: Any value that a step could return: JSON values, dates, models, …

        Raises:
            NotSerializable: Something in it would not come back equal.
            PayloadTooLarge: It exceeds ``think_max_payload``.
        """
        agents.set_state(self._rt, self._ref, state, self.on_state_changed)

    def update_state(self, function: Callable[[Any], Any]) -> Any:
        """Change the state by a function of what is there, and return the new state. No change of others is lost.

        The function must be pure: where somebody else has changed the state meanwhile, it is called again with that.
        Nothing is locked while it runs. If it leaves the state as it is, nothing is stored and nobody is told.

        Args:
            function: Takes a copy of the state, which it may change, and returns the new state.

        Raises:
            InvalidValue: The function returned ``None``.
            NotSerializable, PayloadTooLarge: What it returned can't be stored.
            StateContended: Others were faster again and again.
        """
        return agents.update_state(self._rt, self._ref, function, self.initial_state, self.on_state_changed)

    def on_state_changed(self, state: Any, source: str) -> None:
        """Called when a change of the state is committed, in the process that made it.

        What it raises is logged and changes nothing. If the process dies before it, this call is lost. A bare Core
        connection tells nobody of its commit: of a change that was joined to one it is not called.

        Args:
            state: The new state. A later one may be stored already.
            source: ``"server"``: your own code changed it, in whatever process.
        """

    def broadcast(self, message: str | dict[str, Any]) -> None:
        """Show a text or a dict to everyone who listens to this agent now.

        They get a ``LiveEvent`` of the type ``broadcast``. Nothing is stored: who does not listen, or whose live log is
        away, misses it. In a joined transaction it is shown after your commit (after that of a bare Core connection,
        which tells nobody, it is not).

        Raises:
            InvalidType: It is neither a text nor a dict.
            NotSerializable, PayloadTooLarge: It is no JSON, or exceeds ``think_max_payload``.
        """
        agents.broadcast(self._rt, self._ref, message)
