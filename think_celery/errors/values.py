"""What was passed, or is stored, can't be used."""

from collections.abc import Sequence

from think_celery.errors.root import ThinkError
from think_celery.wording import agree, with_article


class InvalidValue(ThinkError, ValueError):
    """A value that was passed can't be used."""


class InvalidType(InvalidValue, TypeError):
    """A value that was passed is of another type than is taken."""


class InvalidMessage(InvalidValue, TypeError):
    """Something that was passed as a message is none."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.problem}. A message is a text, a UIMessage, or a dict such as "
            '{"role": "user", "parts": [{"type": "text", "text": "Hello"}]}.'
        )


class InvalidDuration(InvalidValue):
    """Not a span of time, or one that is too long."""

    def __init__(self, given: str, longest: str | None = None) -> None:
        super().__init__(given, longest)
        self.given, self.longest = given, longest

    def __str__(self) -> str:
        if self.longest is not None:
            return f"{self.given} is too long a span of time: {self.longest} is the most. Pass a shorter one."
        return (
            f"{self.given} is no span of time. Use seconds (30, never negative), a timedelta, or words such as "
            '"10 seconds", "3 days" or "1 week".'
        )


class InvalidSchedule(InvalidValue):
    """Not a schedule, or one whose time zone is unknown, missing or in doubt."""

    def __init__(self, given: str, problem: str, remedy: str) -> None:
        super().__init__(given, problem, remedy)
        self.given, self.problem, self.remedy = given, problem, remedy

    def __str__(self) -> str:
        return f"{self.given}: {self.problem}. {self.remedy}"


class NotSerializable(InvalidValue, TypeError):
    """A value that would not come back equal from storage."""

    def __init__(self, path: str, problem: str, remedy: str) -> None:
        super().__init__(path, problem, remedy)
        self.path, self.problem, self.remedy = path, problem, remedy

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}. What is stored must come back equal. {self.remedy}"


class UnreadableValue(InvalidValue):
    """A stored value can't be read back by the code that runs now."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(what, problem)
        self.what, self.problem = what, problem

    def __str__(self) -> str:
        return (
            f"{self.what} can't be read back: {self.problem}. Keep the names and required fields of stored classes, "
            "or import the old name where it was, until what was stored with it has ended."
        )


class PayloadTooLarge(InvalidValue):
    """A value is larger than the setting ``think_max_payload`` allows."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(what, size, limit)
        self.what, self.size, self.limit = what, size, limit

    def __str__(self) -> str:
        takes = f"{self.what} {agree(self.what, 'takes', 'take')} {self.size:,} bytes as JSON"
        return (
            f"{takes}; think_max_payload allows {self.limit:,}. Store the data elsewhere and pass a reference to "
            "it, or raise the setting."
        )


class InvalidToolArguments(InvalidValue):
    """What a model passed to a tool does not fit it. The text is meant for the model."""

    def __init__(self, tool: str | None, problems: Sequence[str]) -> None:
        super().__init__(tool, tuple(problems))
        self.tool, self.problems = tool, tuple(problems)

    def __str__(self) -> str:
        of = f" of the tool {self.tool}" if self.tool else ""
        return (
            f"The arguments{of} do not fit, so it was not called: {'; '.join(self.problems)}. "
            "Call it again with a JSON object that fits its schema."
        )


class InvalidToolResult(InvalidValue, TypeError):
    """What a tool returned has no JSON form, so no model can be told of it."""

    def __init__(self, given: str, problem: str, tool: str | None = None) -> None:
        super().__init__(given, problem, tool)
        self.given, self.problem, self.tool = given, problem, tool

    def __str__(self) -> str:
        of = f"of the tool {self.tool}" if self.tool else "of a tool"
        return (
            f"The result {of}, {with_article(self.given)}, has no JSON form: {self.problem}. Return JSON values, "
            "dates, decimals, dataclasses or pydantic models."
        )


class UnsupportedSchema(InvalidValue, TypeError):
    """An output type that JSON Schema, or what the model takes of it, can't express, or that is no object."""

    def __init__(self, given: str, problem: str, remedy: str | None = None) -> None:
        super().__init__(given, problem, remedy)
        self.given, self.problem, self.remedy = given, problem, remedy

    def __str__(self) -> str:
        if self.remedy is not None:
            return f"output={self.given}: {self.problem}. {self.remedy}"
        return (
            f"output={self.given}: {self.problem}. An answer must be a JSON object; wrap the type in a model:\n"
            "    class Answer(pydantic.BaseModel):\n"
            f"        value: {self.given}"
        )
