"""What a forked child forgets, and who is asked to."""

import gc
import os
import weakref
from collections.abc import Callable

from think_celery import forks


class Thing:
    """Notes what it is asked to do."""

    def __init__(self, seen: list[str], name: str = "thing") -> None:
        self.seen, self.name = seen, name

    def before(self) -> None:
        """Called before a fork."""
        self.seen.append(f"{self.name} before")

    def in_parent(self) -> None:
        """Called after it."""
        self.seen.append(f"{self.name} in parent")

    def in_child(self) -> None:
        """Called in the child."""
        self.seen.append(f"{self.name} in child")


def in_a_child(work: Callable[[], list[str]]) -> list[str]:
    """What *work* returns in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, "\n".join(work()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        told = pipe.read().splitlines()
    os.waitpid(child, 0)
    return told


def test_each_call_is_made_in_its_process() -> None:
    """`before` and `in_parent` in the process that forks, `in_child` in the child alone, before its own code."""
    seen: list[str] = []
    thing = Thing(seen)
    forks.in_child(thing.in_child)
    forks.around(before=thing.before, in_parent=thing.in_parent)

    told = in_a_child(lambda: seen)

    assert told == ["thing before", "thing in child"]
    assert seen == ["thing before", "thing in parent"]


def test_objects_are_not_kept_alive() -> None:
    """A method is called as long as its object lives; two methods of one object are two calls."""
    seen: list[str] = []
    kept, gone = Thing(seen, "kept"), Thing(seen, "gone")
    for thing in (kept, gone):
        forks.in_child(thing.in_child)
        forks.in_child(thing.in_parent)
    lives = weakref.ref(gone)
    del thing, gone
    gc.collect()

    told = in_a_child(lambda: seen)

    assert sorted(told) == ["kept in child", "kept in parent"]
    assert lives() is None
    assert all(reference() is not None for reference in forks._in_child)


def test_a_function_is_called_too() -> None:
    """What a module keeps for the whole process is renewed by a function of it."""
    seen: list[str] = []

    def renew() -> None:
        seen.append("renewed")

    forks.in_child(renew)

    assert in_a_child(lambda: seen) == ["renewed"]
    assert seen == []
