"""What ``step.start_prompt`` returns."""

from typing import Any, Generic, TypeVar

from think_celery.domain.steps.combinators import Open

Output = TypeVar("Output")


class PromptHandle(Generic[Output]):
    """A prompt that was submitted and is waited for later: give it to ``step.gather`` or ``step.wait_any``."""

    def __init__(self, opened: Open) -> None:
        self._open = opened

    @property
    def name(self) -> str:
        """What the prompt is called, with its ``key`` in brackets where it has one."""
        return self._open.name

    @property
    def submission_id(self) -> str:
        """The id of its submission, for ``cancel_submission`` and the like."""
        return self._open.subject

    def __repr__(self) -> str:
        return f"PromptHandle({self.name!r}, submission_id={self.submission_id!r})"


def opened(given: Any) -> Any:
    """The thing that was begun, of a handle; what is no handle comes back as it is."""
    return given._open if isinstance(given, PromptHandle) else given
