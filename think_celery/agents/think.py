"""``Think``: the class that users subclass to make an agent."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from think_celery.agents.chat import ChatAgent
from think_celery.agents.checks import is_property
from think_celery.agents.handle import check_count
from think_celery.domain.turns.capabilities import check_tools
from think_celery.errors import InvalidValue
from think_celery.hooks.turns import (
    ModelStepContext,
    StepConfig,
    ToolCallContext,
    ToolCallDecision,
    ToolResultContext,
    TurnConfig,
    TurnContext,
)
from think_celery.protocols import Models
from think_celery.tools import Tool
from think_celery.wording import a_type


class Think(ChatAgent, abstract=True):
    """An agent: subclass it, and name one with ``TriageAgent("issue-42")``.

    Making the object is free: it is a handle on rows. Your own methods are plain methods and run where they
    are called; only turns run in a worker. What is set on the object lives as long as the object.

    ``model`` (an object, a name such as ``openai/gpt-5-mini``, or a list of them; else the setting ``think_model``)
    and ``system_prompt`` are what :meth:`get_model` and :meth:`get_system_prompt` answer. ``max_steps`` is how many
    times the model may be asked in one turn. ``queue`` is the Celery queue of its turns, else ``think_queue``.
    ``agent_class`` is the name that rows carry.
    """

    model: ClassVar[Models] = None
    system_prompt: ClassVar[str | None] = None
    max_steps: int = 10
    _has_loop: ClassVar[bool] = True
    _hooks: ClassVar[tuple[str, ...]] = (
        "get_model",
        "get_system_prompt",
        "get_tools",
        "before_turn",
        "before_step",
        "before_tool_call",
        "after_tool_call",
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the class, as every agent's is; its model object may refuse its ``@tool`` methods."""
        check_count(cls, "max_steps", "how many times the model may be asked in one turn")
        prompt: object = cls.system_prompt
        if not isinstance(prompt, str | None) and not is_property(prompt):
            raise InvalidValue(
                f"{cls.__name__}.system_prompt is {a_type(prompt)}: it must be a text. One that is worked out "
                "for each turn is what get_system_prompt(self) returns."
            )
        check_tools(cls)
        super().__init_subclass__(**kwargs)

    # --- what a turn asks of you ------------------------------------------------------------------

    def get_model(self) -> Models:
        """The model of the next turn: an object, or a name such as ``openai/gpt-5-mini``; or a list of them.

        Of a list, the next one is asked when a request to the one before fails for good before anything came of its
        answer. ``None`` falls back to the setting ``think_model``.
        """
        return self.model

    def get_system_prompt(self) -> str | None:
        """The system prompt of the next turn."""
        return self.system_prompt

    def get_tools(self) -> Sequence[Callable[..., Any] | Tool]:
        """Further tools: functions, decorated or not, or ``Tool`` objects. ``@tool`` methods need no mention.

        ``None`` is the same as none of them.
        """
        return ()

    # --- decisions on the way: what they raise ends the turn in error -----------------------------

    def before_turn(self, ctx: TurnContext) -> TurnConfig | None:
        """Decide how this turn is run: its model, system prompt, messages, tools, limits. ``None`` leaves all as it is.

        Called once each time a worker begins with the turn, so again after a crash.
        """

    def before_step(self, ctx: ModelStepContext) -> StepConfig | None:
        """Decide how the model is asked in this step. ``None`` leaves all as it is."""

    def before_tool_call(self, ctx: ToolCallContext) -> ToolCallDecision | None:
        """Allow this call (``None`` does), perhaps with other arguments; block it; or answer in the tool's place."""

    def after_tool_call(self, ctx: ToolResultContext) -> None:
        """Called when a call's result is stored. A reaction: what it raises is logged, and changes nothing."""
