"""What an agent says to the interruption of one of its turns."""

from typing import Any, ClassVar

from think_celery.agents.handle import AgentHandle
from think_celery.errors import InvalidValue
from think_celery.hooks.recoveries import Recovery, RecoveryContext, RecoveryLimits
from think_celery.wording import a_type


class AgentRecovery(AgentHandle, abstract=True):
    """How an agent's interrupted turns go on.

    ``chat_recovery`` bounds how long they are taken up again.
    """

    chat_recovery: ClassVar[RecoveryLimits] = RecoveryLimits()
    _hooks: ClassVar[tuple[str, ...]] = ("on_chat_recovery",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the class, as every agent's is."""
        limits: object = cls.chat_recovery
        if not isinstance(limits, RecoveryLimits):
            raise InvalidValue(
                f"{cls.__name__}.chat_recovery is {a_type(limits)}: it must be a RecoveryLimits, such as "
                "RecoveryLimits(max_attempts=3)."
            )
        super().__init_subclass__(**kwargs)

    def on_chat_recovery(self, ctx: RecoveryContext) -> Recovery | None:
        """Decide what becomes of a turn that was interrupted after it had begun; called in the worker that has it now.

        A crash, a deploy, a stall: the hook is asked each time, before anything else of the turn is done. ``None``
        keeps what there is and goes on in the same message, or ends the turn where an intent to cancel is stored.
        What the hook raises is logged, and changes nothing. Like every hook it may be called again, when its worker
        dies in it.
        """
        return None
