"""What the user's agent answers when a turn asks for its model and its tools."""

from collections.abc import Sequence

from think_celery import providers
from think_celery.protocols import AgentHooks, Model
from think_celery.runtime import Runtime
from think_celery.tools import Tool, as_tools, tools_of


def model_of(rt: Runtime, agent: AgentHooks) -> Model:
    """The model object that the agent's next turn asks.

    Raises:
        NoModel: None was named, or its name can't be resolved.
    """
    if rt.stand_in is not None:
        return rt.stand_in(agent.agent_class)
    settings = rt.settings
    return providers.resolve(
        agent.get_model() or settings.model,
        openai_api_key=settings.openai_api_key,
        openai_base_url=settings.openai_base_url,
    )


def all_tools(agent: AgentHooks) -> Sequence[Tool]:
    """Every tool that the model is offered: the ``@tool`` methods, then those of ``get_tools()``.

    Raises:
        InvalidTool: One can't be a tool, or two have one name.
    """
    return as_tools([*tools_of(agent), *agent.get_tools()])
