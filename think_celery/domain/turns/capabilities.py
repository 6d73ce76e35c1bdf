"""What is declared against what a model can be told, before anything is asked."""

from collections.abc import Sequence
from typing import Any

from think_celery.errors import InvalidTool, ThinkError, UnsupportedSchema
from think_celery.protocols import FINAL_ANSWER, AgentHooks, ChecksTools, JsonSchema, ToolSpec
from think_celery.tools import tools_of


def check_tools(cls: type[Any]) -> None:
    """Refuse a class of agents one of whose models can't be told one of its ``@tool`` methods.

    A model that is only named, or chosen in the turn, is not known here; then the turn says it. So does it of a
    method that can't be a tool at all, for its annotations may name what is defined later.

    Raises:
        InvalidTool: It can't be told.
    """
    models = _choosy(cls.model)
    if not models:
        return
    try:
        tools = tools_of(object.__new__(cls))
    except ThinkError:
        return
    for each in tools:
        spec = ToolSpec(name=each.name, description=each.description, parameters=each.parameters)
        for model in models:
            model.check_tool(spec)


def check_output(agent: AgentHooks, name: str, schema: JsonSchema) -> None:
    """Refuse an output that one of the class's models can't be told, before anything is submitted.

    A model that is only named, or chosen in the turn, is not known here; then the turn says it.

    Raises:
        UnsupportedSchema: It can't be told.
    """
    for model in _choosy(getattr(type(agent), "model", None)):
        try:
            model.check_tool(ToolSpec(name=FINAL_ANSWER, description="", parameters=schema))
        except InvalidTool as error:
            raise UnsupportedSchema(name, error.problem, error.remedy) from None


def _choosy(given: Any) -> list[ChecksTools]:
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return [model for model in several if isinstance(model, ChecksTools)]
