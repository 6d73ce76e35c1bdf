"""What may stand in a log record: ids, types and places in the code, never what users, models or tools said."""

import traceback


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
