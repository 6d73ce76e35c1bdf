"""What tells one process from another, and the proof that one of this machine is gone."""

import functools
import os
from pathlib import Path
from typing import Any


def _read(path: str) -> str | None:
    try:
        return Path(path).read_bytes().decode("ascii").strip()
    except (OSError, ValueError):
        return None


@functools.cache
def _boot_id() -> str | None:
    return _read("/proc/sys/kernel/random/boot_id")


def _pid_namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _state_and_start(pid: int) -> tuple[str, str] | None:
    stat = _read(f"/proc/{pid}/stat")
    if stat is None:
        return None
    # The second field is the program's name in brackets, which may hold blanks and brackets itself.
    fields = stat.rpartition(")")[2].split()
    return fields[0], fields[19]


def host_facts() -> dict[str, Any]:
    """This process, so that another of the same machine can tell whether it still runs."""
    pid = os.getpid()
    found = _state_and_start(pid)
    started = None if found is None else found[1]
    return {"boot": _boot_id(), "namespace": _pid_namespace(), "pid": pid, "started": started}


def has_ended(pid: int) -> bool:
    """Whether a child of this process has ended, though nobody may have asked for its exit code yet."""
    found = _state_and_start(pid)
    return found is not None and found[0] in "ZX"


def known_dead(facts: dict[str, Any]) -> bool:
    """Whether it is certain that a process with these facts is gone.

    A bare look at the pid would declare live processes of other containers dead: so boot and pid
    namespace must be ours. Anything unreadable proves nothing.
    """
    boot, namespace = _boot_id(), _pid_namespace()
    if boot is None or namespace is None or facts.get("started") is None:
        return False
    if facts.get("boot") != boot or facts.get("namespace") != namespace:
        return False
    pid = facts.get("pid")
    if not isinstance(pid, int) or pid <= 0:  # kill(0) and kill(-1) mean others
        return False
    try:
        os.kill(pid, 0)  # asks the kernel; in /proc another user's process may be hidden
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it is there, and another user's
    found = _state_and_start(pid)
    # A zombie has ended, though its parent has not asked for its exit code yet.
    return found is not None and (found[0] in "ZX" or found[1] != facts["started"])
