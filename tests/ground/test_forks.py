"""What a forked child forgets, and who is asked to."""

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

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


SLOW = """
import pathlib, time
pathlib.Path({begun!r}).touch()
time.sleep(0.5)
"""


@pytest.mark.parametrize("_", range(3))
def test_a_child_born_while_a_thread_imports_can_import_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _: int
) -> None:
    """The lock of a module that is imported stays locked in a child: so the fork waits until no thread of ours imports.

    Such a child of Celery's pool hung in its first task, and its worker at the end waited for it for ever.
    """
    name, begun = f"slow_{tmp_path.name.replace('-', '_')}", tmp_path / "begun"
    (tmp_path / f"{name}.py").write_text(SLOW.format(begun=str(begun)))
    monkeypatch.syspath_prepend(str(tmp_path))

    def work() -> None:
        with forks.uncut():
            import_module(name)

    thread = threading.Thread(target=work)
    thread.start()
    while not begun.exists():
        threading.Event().wait(0.005)

    def imports() -> list[str]:
        signal.alarm(10)  # ends this child where it hangs
        return [import_module(name).__name__]

    assert in_a_child(imports) == [name]
    thread.join(10)


def test_a_fork_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs, as on a database that does not answer, holds up a fork for its patience alone; all goes on after."""
    monkeypatch.setattr(forks, "PATIENCE_SECONDS", 0.05)
    let_go = threading.Event()
    seen: list[str] = []

    def hangs() -> None:
        with forks.uncut():
            let_go.wait(10)

    thread = threading.Thread(target=hangs)
    thread.start()

    def begins_anew() -> list[str]:
        with forks.uncut():
            return ["anew"]

    assert in_a_child(begins_anew) == ["anew"]
    with forks.uncut():
        seen.append("goes on")
    let_go.set()
    thread.join(10)
    assert seen == ["goes on"]


def test_what_a_thread_has_in_hand_is_one_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of it begin while a fork waits for its end, and whoever forks does not wait for itself."""
    monkeypatch.setattr(forks, "PATIENCE_SECONDS", 10.0)
    inside, seen = threading.Event(), []

    def in_parts() -> None:
        with forks.uncut():
            inside.set()
            while not forks._uncut.forks:
                threading.Event().wait(0.005)
            with forks.uncut():
                seen.append("a part")
            seen.append("all")

    thread = threading.Thread(target=in_parts)
    thread.start()
    inside.wait(10)
    began = time.monotonic()

    with forks.uncut():
        assert in_a_child(lambda: list(seen)) == ["a part", "all"]

    thread.join(10)
    assert time.monotonic() - began < 5
    assert not forks._uncut.in_hand


def test_a_child_that_is_born_inside_ends_nothing_of_its_parents() -> None:
    """Another thread may have had the lock of what is in hand at that moment; the child had waited for it for ever."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with forks._uncut.changed:
            held.set()
            over.wait(10)

    def begin_to_hold() -> None:
        threading.Thread(target=hold).start()
        held.wait(10)

    forks.around(before=begin_to_hold, in_parent=over.set)
    with forks.uncut():
        child = os.fork()
        if child == 0:
            signal.alarm(10)  # ends this child where it hangs
    if child == 0:
        os._exit(0)

    assert os.waitpid(child, 0)[1] == 0
    assert not forks._uncut.in_hand
