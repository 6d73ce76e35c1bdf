"""A process that waits until pytest ends, however it ends, and then undoes one thing that the tests made.

`servers.py` starts it as a script. Its input is a pipe: first come the arguments, then the pipe's end (or a
line) is the sign.
"""

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def undone_at_the_end(action: str, *arguments: str) -> Iterator[None]:
    """Have one of the `ACTIONS` undone after the block, or as soon as this process is gone."""
    process = subprocess.Popen(
        [sys.executable, __file__, action], stdin=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(arguments).encode() + b"\n")  # not as arguments: a url may hold a password
    process.stdin.flush()
    try:
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"\n")  # a forked child may still hold the pipe, so closing it is not enough
            process.stdin.close()
        process.wait(30)


def as_user(uid: int | None) -> dict[str, Any]:
    """The arguments with which `subprocess` runs something as another user; none for `None`."""
    return {} if uid is None else {"user": uid, "group": pwd.getpwuid(uid).pw_gid, "extra_groups": []}


def plain_environment() -> dict[str, str]:
    """An environment in which no `PG*` variable and no language of this machine changes a server."""
    return {"PATH": os.defpath, "LC_ALL": "C"}


def serve(folder: str, stop_signal: str, user: str, *command: str) -> None:
    """Run a server; at the end stop it and remove its folder."""
    try:
        with Path(folder, "log").open("ab") as log:
            server = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=plain_environment(),
                **as_user(int(user) if user else None),
            )
        try:
            Path(folder, "pid").write_text(str(server.pid))
            sys.stdin.readline()
        finally:
            server.send_signal(int(stop_signal))
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def drop(admin_url: str, prefix: str) -> None:
    """At the end drop the PostgreSQL databases whose name begins with *prefix*."""
    import psycopg
    from psycopg import sql

    sys.stdin.readline()
    with psycopg.connect(admin_url, autocommit=True) as conn:
        found = "SELECT datname FROM pg_database WHERE starts_with(datname, %s)"
        for (name,) in conn.execute(found, [prefix]).fetchall():
            conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def release(lobby_url: str, url: str, key: str, token: str) -> None:
    """At the end empty a Redis database and give up its reservation, if that is still ours."""
    import redis

    sys.stdin.readline()
    with redis.Redis.from_url(lobby_url, decode_responses=True) as lobby:
        if lobby.get(key) == token:
            with redis.Redis.from_url(url) as ours:
                ours.flushdb()
            lobby.delete(key)


ACTIONS: dict[str, Callable[..., None]] = {"serve": serve, "drop": drop, "release": release}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ACTIONS[sys.argv[1]](*json.loads(sys.stdin.readline()))
