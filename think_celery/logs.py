"""What may stand in a log record: ids, types and places in the code, never what users, models or tools said."""

import threading
import traceback
from collections import OrderedDict


def trace_of(error: BaseException) -> str:
    """An error for the log: its type and where it was raised, and the same of its causes.

    Its text is left out, for users' words and arguments may be in it. The row of the work has it.
    """
    parts: list[str] = []
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        parts.append(f"{type(cause).__name__}\n{''.join(traceback.format_tb(cause.__traceback__))}")
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "Caused by ".join(parts).rstrip()


class Once:
    """What this process has said already, and need not say again: of the last thousand things."""

    MOST = 1000

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: OrderedDict[tuple[object, ...], None] = OrderedDict()

    def is_new(self, *what: object) -> bool:
        """Whether this was not asked before; it is counted as said."""
        with self._lock:
            new = what not in self._said
            self._said[what] = None
            self._said.move_to_end(what)
            if len(self._said) > self.MOST:
                self._said.popitem(last=False)
            return new
