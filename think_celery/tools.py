"""A function as a tool: what a model is told of it, how its arguments are checked, how it is called."""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from pydantic import ValidationError

from think_celery import approvals
from think_celery.approvals import NeedsApproval
from think_celery.durations import Duration, as_timedelta
from think_celery.errors import AsyncNotSupported, InvalidTool, InvalidToolArguments, InvalidToolResult
from think_celery.jsontext import JsonSchema, read_json, schema_problems, unfit_schema
from think_celery.messages import clean, json_value
from think_celery.schemas import output_schema, validation_problems
from think_celery.signals import AbortSignal
from think_celery.signatures import Signature, read_signature

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__think_tool__"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    """What a tool may know of the call it answers. Ask for it by annotating a parameter with this class.

    ``idempotency_key`` is the same whenever this very call is repeated after a crash, whatever id the
    model gave it; pass it on to systems that take one. ``attempt`` counts from 1. ``signal`` comes when
    the turn is cancelled.
    """

    agent_name: str
    submission_id: str
    message_id: str
    tool_call_id: str
    idempotency_key: str
    attempt: int
    signal: AbortSignal


@dataclass(frozen=True, kw_only=True, slots=True)
class _Options:
    """What ``@tool`` was told."""

    name: str | None = None
    description: str | None = None
    idempotent: bool = False
    timeout_seconds: float | None = None
    needs_approval: NeedsApproval = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """A function that a model may ask for. Made by :func:`tools_of` and :func:`as_tool`, or by hand.

    ``parameters`` is the JSON Schema of its arguments. ``idempotent`` says that a call whose outcome a
    crash made unknown may be made again. ``timeout_seconds`` is how long one call may take. ``needs_approval``
    says whether a call waits for somebody's approval. A tool made by hand, for a schema that came from
    elsewhere, gets the arguments just as the model wrote them; one without a function is run by a client
    (see :func:`client_tool`).
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Any] | None = None
    idempotent: bool = False
    timeout_seconds: float | None = None
    needs_approval: NeedsApproval = False
    signature: Signature | None = None

    def __post_init__(self) -> None:
        if self.function is None:
            _check_name(self.name)
        else:
            _check_function(self.function, self.name)
        if self.signature is None:
            problem = unfit_schema(self.parameters)
            if problem:
                raise InvalidTool(self.name, problem, 'Pass a JSON Schema with "type": "object".')
        approvals.check(self.name, self.needs_approval, self._parameter_names(), is_client=self.is_client)

    def _parameter_names(self) -> set[str]:
        if self.signature is not None:
            return set(self.signature.fields.values())
        return set(self.parameters.get("properties", ()))

    @property
    def is_client(self) -> bool:
        """Whether a client runs it: it has no function here."""
        return self.function is None

    def asks_first(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether a call with what :meth:`validate` returned needs somebody's approval.

        What the function raises goes through.
        """
        names = self._parameter_names()
        return self.function is not None and approvals.needed(
            self.name, self.needs_approval, self.function, names, kwargs
        )

    @property
    def takes_context(self) -> bool:
        """Whether the function asks for a :class:`ToolContext`."""
        return self.signature is not None and self.signature.context_parameter is not None

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments that the function takes, made from a model's *arguments*.

        Those that the model left out stay out, so that the function's own defaults hold.

        Raises:
            InvalidToolArguments: They don't fit. Its text is meant for the model and names the paths.
        """
        given = dict(arguments)
        if self.signature is None:
            problems = schema_problems(self.parameters, given)
            if problems:
                raise InvalidToolArguments(self.name, problems)
            return given
        try:  # as JSON, for strict types take a text for a date only there
            checked = self.signature.arguments.model_validate_json(json.dumps(json_value(given)))
        except ValidationError as error:
            raise InvalidToolArguments(self.name, validation_problems(error)) from None
        return {
            name: getattr(checked, field)
            for field, name in self.signature.fields.items()
            if field in checked.model_fields_set
        }

    def call(self, kwargs: Mapping[str, Any], context: ToolContext) -> Any:
        """Call the function with what :meth:`validate` returned, and return what it returns.

        What the function raises goes through.

        Raises:
            AsyncNotSupported: It returned a coroutine.
        """
        wanted = self.signature.context_parameter if self.signature else None
        assert self.function is not None, "a client runs this tool"
        result = self.function(**kwargs, **({wanted: context} if wanted else {}))
        if inspect.iscoroutine(result):
            result.close()
            raise AsyncNotSupported(f"What the tool {self.name!r} returned")
        return result


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    timeout: Duration | None = None,
    needs_approval: NeedsApproval = False,
) -> Callable[[F], F]: ...


def tool(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    timeout: Duration | None = None,
    needs_approval: NeedsApproval = False,
) -> Any:
    """Offer a method or a function to the model. Used bare (``@tool``) or with options.

    The function itself is returned: called directly, it is what it was. Its docstring is the description,
    its annotations are the schema; ``self`` and a parameter annotated :class:`ToolContext` are not in it.
    Parameters are described by ``Annotated[str, Field(description="…")]`` or an ``Args:`` section. A
    subclass that overrides the method keeps offering it, with these options, unless it decorates its own or
    sets the name to ``None``.

    Args:
        name: What the model calls it; by default the function's name. ``a-z A-Z 0-9 _ -``, 64 at most.
        description: What the model is told; by default the docstring.
        idempotent: A repeated call does no harm, so one whose outcome a crash made unknown is made again.
            Otherwise the model is told that the outcome is unknown.
        timeout: How long one call may take.
        needs_approval: ``True``: each call waits until ``approve_tool_call`` or ``reject_tool_call`` decides on it,
            and the turn ends meanwhile. Or a function that takes some of the arguments by name and says whether
            this call waits. It must be quick and have no effects. Where it raises, or returns anything but
            ``False``, the call waits.

    Raises:
        AsyncNotSupported: The function is ``async def``.
        InvalidTool: The name is unfit, or what was decorated is no function.
        InvalidDuration: *timeout* is no span of time.
    """
    seconds = None if timeout is None else as_timedelta(timeout, "timeout").total_seconds()
    options = _Options(
        name=name,
        description=description,
        idempotent=idempotent,
        timeout_seconds=seconds,
        needs_approval=needs_approval,
    )

    def mark(given: Any) -> Any:
        plain = given.__func__ if isinstance(given, staticmethod | classmethod) else given
        _check_function(plain, name)
        setattr(plain, _MARK, options)
        return given

    return mark if function is None else mark(function)


def client_tool(name: str, description: str, parameters: "JsonSchema | type[Any] | None" = None) -> Tool:
    """A tool that a client runs, such as a browser that knows where its user is. Return it from ``get_tools()``.

    When the model calls it, the turn ends; the client learns of the call from ``listen()`` or
    ``pending_interactions()``, and answers with ``provide_tool_result``. Then the turn goes on.

    Args:
        name: What the model calls it. ``a-z A-Z 0-9 _ -``, 64 at most.
        description: What the model is told.
        parameters: A JSON Schema of an object, or a pydantic model, dataclass or TypedDict; without it the tool
            takes no arguments.

    Raises:
        InvalidTool: The name or the schema is unfit.
        UnsupportedSchema: *parameters* is a type that JSON Schema can't express.
    """
    if parameters is None:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    schema = output_schema(parameters) if isinstance(parameters, type) else dict(parameters)
    return Tool(name=name, description=description, parameters=schema)


def tools_of(owner: object) -> list[Tool]:
    """The ``@tool`` methods of an object, bound to it, in the order in which they were defined.

    Those of its base classes come first, each at the place of its first definition. A method that
    overrides a tool is one too: its signature and docstring are its own (the docstring of the base where
    it has none), its options those of the nearest ``@tool``. One overridden by something that is no method,
    such as ``None``, is left out.

    Raises:
        InvalidTool: A method can't be a tool, or two have one name.
        AsyncNotSupported: An overriding method is ``async def``.
    """
    classes = type(owner).__mro__
    # Those under every agent have hundreds of methods, and none is a tool; users' may override them by one.
    theirs = [cls for cls in reversed(classes) if not cls.__module__.startswith("think_celery.agents.")]
    offered = {name for cls in theirs for name, attribute in vars(cls).items() if is_tool(attribute)}
    tools = []
    for name in dict.fromkeys(name for cls in theirs for name in vars(cls) if name in offered):
        chain = [_plain(vars(cls)[name]) for cls in classes if name in vars(cls)]
        marks = [mark for mark in map(_mark_of, chain) if mark is not None]
        if not inspect.isfunction(chain[0]):
            continue
        docs = [inspect.getdoc(function) for function in chain if inspect.isfunction(function)]
        tools.append(_make(getattr(owner, name), marks[0], next(filter(None, docs), "")))
    return _unique(tools)


def is_tool(given: object) -> bool:
    """Whether ``@tool`` has marked this function or method."""
    return _mark_of(_plain(given)) is not None


def may_wait(owner: type, name: str) -> bool:
    """Whether the class has a tool of that method's name, calls of which may wait for somebody's approval."""
    chain = [_plain(vars(cls)[name]) for cls in owner.__mro__ if name in vars(cls)]
    marks = [mark for mark in map(_mark_of, chain) if mark is not None]
    return bool(marks) and inspect.isfunction(chain[0]) and marks[0].needs_approval is not False


def as_tool(given: "Callable[..., Any] | Tool") -> Tool:
    """A function or bound method as a tool, decorated or not; a ``Tool`` is returned as it is.

    Raises:
        InvalidTool: It can't be one.
        AsyncNotSupported: It is ``async def``.
    """
    if isinstance(given, Tool):
        return given
    return _make(given, _mark_of(given) or _Options(), inspect.getdoc(given) or "")


def as_tools(given: "Iterable[Callable[..., Any] | Tool]") -> list[Tool]:
    """Several functions or tools as tools, in their order.

    Raises:
        InvalidTool: One can't be a tool, or two have one name.
    """
    return _unique([as_tool(item) for item in given])


def parse_arguments(
    given: "str | Mapping[str, Any] | None", parameters: JsonSchema | None = None
) -> dict[str, Any]:
    """The arguments of a call as a model wrote them: JSON text, empty text for none, or an object already.

    Strings come back clean. With the tool's *parameters*, a number for a decimal becomes a string of the
    same digits, so that none is lost.

    Raises:
        InvalidToolArguments: The text is no JSON, or not an object. Its text is meant for the model.
    """
    if given is None or (isinstance(given, str) and not given.strip()):
        return {}
    value: Any = given
    try:
        value = read_json(given, parameters) if isinstance(given, str) else clean(given)
    except ValueError as error:
        raise InvalidToolArguments(None, [f"they are not valid JSON: {error}"]) from None
    if not isinstance(value, dict):
        raise InvalidToolArguments(None, [f"they must be a JSON object, not {_json_kind(value)}"])
    return value


def dump_result(value: Any, tool: str | None = None) -> Any:
    """What the *tool* returned, as JSON values with clean strings: anything that pydantic can dump.

    Numbers that JSON doesn't have become the texts "NaN", "Infinity" and "-Infinity"; bytes become base64.

    Raises:
        InvalidToolResult: Something in it has no JSON form.
    """
    try:
        return json_value(value)
    except ValueError as error:
        raise InvalidToolResult(type(value).__name__, str(error.__cause__), tool) from error


# --- reading a function ---------------------------------------------------------------------------


def _plain(attribute: Any) -> Any:
    return attribute.__func__ if isinstance(attribute, staticmethod | classmethod) else attribute


def _mark_of(given: Any) -> _Options | None:
    mark = getattr(given, _MARK, None) if inspect.isroutine(given) else None
    return mark if isinstance(mark, _Options) else None


def _check_function(given: Any, wanted_name: str | None) -> str:
    """Refuse what can't be a tool, and return the name that the model will know."""
    name = str(getattr(given, "__name__", type(given).__name__) if wanted_name is None else wanted_name)
    if not (inspect.isfunction(given) or inspect.ismethod(given)):
        raise InvalidTool(name, f"{type(given).__name__} is no function", "Wrap it in a `def` of its own.")
    if inspect.iscoroutinefunction(given) or inspect.isasyncgenfunction(given):
        raise AsyncNotSupported(f"The tool {name!r}")
    if inspect.isgeneratorfunction(given):
        raise InvalidTool(name, "it is a generator", "Return a list instead of yielding.")
    return _check_name(name)


def _check_name(name: str) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        remedy = 'Use 1 to 64 of a-z A-Z 0-9 _ -, such as @tool(name="look_up").'
        raise InvalidTool(str(name), "that is no name for a tool", remedy)
    return name


def _make(function: Callable[..., Any], options: _Options, doc: str) -> Tool:
    name = _check_function(function, options.name)
    signature = read_signature(function, name, doc, ToolContext)
    return Tool(
        name=name,
        description=signature.description if options.description is None else options.description,
        parameters=signature.parameters,
        function=function,
        idempotent=options.idempotent,
        timeout_seconds=options.timeout_seconds,
        needs_approval=options.needs_approval,
        signature=signature,
    )


def _unique(tools: list[Tool]) -> list[Tool]:
    seen: set[str] = set()
    for each in tools:
        if each.name in seen:
            raise InvalidTool(each.name, "another tool has this name", 'Rename one of them: @tool(name="…").')
        seen.add(each.name)
    return tools


# --- JSON -----------------------------------------------------------------------------------------


def _json_kind(value: Any) -> str:
    kinds = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
