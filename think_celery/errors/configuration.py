"""Something must be set up differently."""

from collections.abc import Sequence

from think_celery.errors.root import ThinkError


class ConfigurationError(ThinkError):
    """Something must be set up differently before this can work."""


class NotConfigured(ConfigurationError):
    """An agent or workflow was used before the process had a runtime."""

    def __str__(self) -> str:
        return (
            "think_celery is not set up in this process. Agents and workflows need a runtime, which comes "
            "with your Celery app. Write these two lines where the app is made:\n"
            "    from think_celery import ThinkCelery\n"
            "    think = ThinkCelery(celery_app)"
        )


class InvalidSetting(ConfigurationError):
    """A setting is unknown, or its value is unfit."""

    def __init__(self, name: str, value: str, problem: str) -> None:
        super().__init__(name, value, problem)
        self.name, self.value, self.problem = name, value, problem

    def __str__(self) -> str:
        shown = f" is {self.value}" if self.value else ""
        return f"The setting {self.name!r}{shown}: {self.problem}"


class DuplicateName(ConfigurationError):
    """Two classes of different modules are registered under one name."""

    def __init__(self, kind: str, name: str, modules: Sequence[str]) -> None:
        super().__init__(kind, name, tuple(modules))
        self.kind, self.name, self.modules = kind, name, tuple(modules)

    def __str__(self) -> str:
        return (
            f"There is more than one {self.kind} named {self.name!r}: in {', '.join(self.modules)}. Rows in the "
            f"database carry this name, so it must be unique. Give one of them another: "
            f'class {self.name}(…, name="…").'
        )


class AsyncNotSupported(ConfigurationError, TypeError):
    """A tool, hook, step or ``run`` was written as ``async def``."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where

    def __str__(self) -> str:
        return (
            f"{self.where} is an async function. Turns and workflows run synchronously in Celery workers. "
            "Write it as a plain `def`, and call async code in it through asgiref.sync.async_to_sync or asyncio.run."
        )


class InvalidClass(ConfigurationError, TypeError):
    """A class of agents or workflows defines what would not work, or lacks what it needs."""

    def __init__(self, name: str, problem: str, remedy: str) -> None:
        super().__init__(name, problem, remedy)
        self.name, self.problem, self.remedy = name, problem, remedy

    def __str__(self) -> str:
        return f"The class {self.name} can't be used: {self.problem}. {self.remedy}"


class UnknownClass(ConfigurationError, LookupError):
    """No class of this name is registered in this process."""

    def __init__(self, kind: str, name: str, known: Sequence[str]) -> None:
        super().__init__(kind, name, tuple(known))
        self.kind, self.name, self.known = kind, name, tuple(known)

    def __str__(self) -> str:
        known = ", ".join(self.known) or "none"
        return (
            f"This process knows no {self.kind} named {self.name!r} (known: {known}). Classes register when their "
            "module is imported: add it to `think_imports` or to Celery's `imports`."
        )


class UnknownScheduledTask(ConfigurationError, LookupError):
    """A slot of a scheduled task has come, and the agent's class declares no handler for it here."""

    def __init__(self, agent: str, task_id: str) -> None:
        super().__init__(agent, task_id)
        self.agent, self.task_id = agent, task_id

    def __str__(self) -> str:
        return (
            f"{self.agent} declares no scheduled task {self.task_id!r} with a handler in this process. Run workers "
            "whose code has it; or, if it is gone for good, reconcile_scheduled_tasks() removes its schedule."
        )


class MissingExtra(ConfigurationError, ImportError):
    """An optional dependency is needed and not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(what, extra)
        self.what, self.extra = what, extra

    def __str__(self) -> str:
        return (
            f"{self.what} needs an optional dependency. Install it: pip install 'think-celery[{self.extra}]'"
        )


class SchemaOutdated(ConfigurationError):
    """The database's schema is not the one that this version needs."""

    def __init__(self, found: str | None, needed: str) -> None:
        super().__init__(found, needed)
        self.found, self.needed = found, needed

    def __str__(self) -> str:
        return (
            f"The database's think_celery schema is at version {self.found or 'none'}, this package needs "
            f"{self.needed}. Run: think-celery db upgrade -A YOUR_APP (or, in place of -A, with THINK_DATABASE_URL set "
            "to this database)"
        )


class CannotJoin(ConfigurationError):
    """A transaction was to be joined that can't hold our rows."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"This can't be joined: {self.problem}. What think_celery stores inside `joined(…)` is committed "
            "together with the caller's own rows, so both must be in one transaction of one database."
        )


class NoModel(ConfigurationError):
    """No model could be made for a turn."""

    def __init__(self, name: str | None, problem: str) -> None:
        super().__init__(name, problem)
        self.name, self.problem = name, problem

    def __str__(self) -> str:
        asked = f"The model {self.name!r}" if self.name else "The agent's model"
        return f"{asked} can't be used: {self.problem}"


class InvalidTool(ConfigurationError, TypeError):
    """A function can't be offered to a model as a tool."""

    def __init__(self, name: str, problem: str, remedy: str) -> None:
        super().__init__(name, problem, remedy)
        self.name, self.problem, self.remedy = name, problem, remedy

    def __str__(self) -> str:
        return f"The tool {self.name!r} can't be offered to a model: {self.problem}. {self.remedy}"
