"""The servers of the tests keep their promises: apart from each other, and gone at the end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import redis

from tests import servers

ROOT = Path(__file__).parent.parent


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.services
class TestDatabases:
    def test_each_test_gets_a_fresh_database_that_earlier_ones_can_not_reach(self):
        """What a test wrote is gone in the next, what a migration wrote is back, an old url is dead."""
        with servers.postgres(self.migrate) as postgres:
            first = servers.plain_url(postgres.migrated())
            left_open = psycopg.connect(first, autocommit=True)
            left_open.execute("INSERT INTO parent VALUES (2, 'two'); INSERT INTO child (parent) VALUES (2)")
            left_open.execute("UPDATE parent SET name = 'changed' WHERE id = 1")

            second = servers.plain_url(postgres.migrated())

            with psycopg.connect(second) as conn:
                assert conn.execute("SELECT * FROM parent").fetchall() == [(1, "o\nne")]
                assert conn.execute("SELECT * FROM child").fetchall() == []
            with pytest.raises(psycopg.OperationalError):
                left_open.execute("SELECT 1")
            with pytest.raises(psycopg.OperationalError, match="does not exist"):
                psycopg.connect(first)

        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(second)

    @staticmethod
    def migrate(url: str) -> None:
        with psycopg.connect(servers.plain_url(url)) as conn:
            conn.execute("CREATE TABLE parent (id int PRIMARY KEY, name text)")
            conn.execute("CREATE TABLE child (parent int REFERENCES parent)")
            conn.execute("INSERT INTO parent VALUES (1, E'o\nne')")

    def test_two_runs_on_one_redis_get_two_databases(self):
        """A reserved database is not given twice, and one that holds somebody's data is never given."""
        with servers.own_redis() as server:
            redis.Redis.from_url(servers.numbered(server.url, 15)).set("somebody's", "data")

            assert [servers.reserve(server.url, token) for token in ("one", "two")] == [14, 13]


@pytest.mark.services
class TestTheEnd:
    def test_servers_of_our_own_stop_and_leave_no_folder(self):
        """The wheels' servers answer inside the block; after it, process and data are gone."""
        with servers.own_redis() as a_redis, servers.own_postgres() as a_postgres:
            pids, folders = [a_redis.pid, a_postgres.pid], [a_redis.folder, a_postgres.folder]
            assert redis.Redis.from_url(a_redis.url).ping()
            with psycopg.connect(servers.plain_url(a_postgres.url)) as conn:
                assert conn.execute("SHOW fsync").fetchone() == ("off",)

        assert all(gone(pid) for pid in pids)
        assert not any(folder.exists() for folder in folders)

    def test_a_killed_pytest_leaves_nothing_behind(self):
        """SIGKILL of the process that made them: servers stop, folders and databases go all the same."""
        script = (
            "import os, signal; from tests import servers\n"
            "with servers.own_redis() as server, servers.postgres(lambda url: None) as databases:\n"
            "    databases.empty()\n"
            "    print(server.pid, server.folder, flush=True)\n"
            "    os.kill(os.getpid(), signal.SIGKILL)"
        )
        with servers.own_postgres() as shared:
            environ = {**os.environ, "TEST_POSTGRES_URL": shared.url, "THINK_TEST_SERVERS": ""}
            # The processes that undo things inherit the output, so this returns when they are done.
            ended = subprocess.run(
                [sys.executable, "-c", script],
                cwd=ROOT,
                env=environ,
                stdout=subprocess.PIPE,
                text=True,
                timeout=30,
            )
            with psycopg.connect(servers.plain_url(shared.url)) as conn:
                left = conn.execute("SELECT datname FROM pg_database WHERE datname LIKE 'think%'").fetchall()

        pid, folder = ended.stdout.split()
        assert ended.returncode == -signal.SIGKILL
        assert gone(int(pid))
        assert not Path(folder).exists()
        assert left == []


def test_more_rounds_of_the_races_can_be_asked_for():
    """THINK_ROUNDS reaches the tests; all else whose name begins so is a developer's own, and does not."""
    script = (
        "import os, tests.conftest; from tests.domain import test_control_races, test_fanout_races, test_finish_line;"
        "races = (test_control_races, test_fanout_races, test_finish_line);"
        "print({each.ROUNDS for each in races}, 'THINK_MODEL' in os.environ)"
    )
    given = {**os.environ, "THINK_ROUNDS": "7", "THINK_MODEL": "openai/x"}

    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=given, capture_output=True, text=True, timeout=60
    )

    assert (ran.stdout.strip(), ran.stderr) == ("{7} False", "")
