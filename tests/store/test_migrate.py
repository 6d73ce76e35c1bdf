"""The schema: made by migrations, once, by any number of processes, and never apart from `tables.py`."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import DBAPIError

from think_celery.clock import SystemClock
from think_celery.errors import ConfigurationError, SchemaOutdated
from think_celery.store import migrate
from think_celery.store.database import Database
from think_celery.store.tables import metadata

UPGRADE = """
import sys
from think_celery.store.migrate import upgrade
print("ready", flush=True)
sys.stdin.readline()
upgrade(sys.argv[1])
"""

DUMP = {
    "sqlite": "SELECT tbl_name, type, name, sql FROM sqlite_master WHERE tbl_name LIKE 'think_%'",
    "postgresql": """
        SELECT table_name, column_name, data_type, character_maximum_length::text, is_nullable,
               column_default, is_identity, ordinal_position::text
        FROM information_schema.columns WHERE table_name LIKE 'think_%'
        UNION ALL
        SELECT tablename, 'index', indexname, indexdef, '', '', '', '' FROM pg_indexes
        WHERE tablename LIKE 'think_%'
        UNION ALL
        SELECT conrelid::regclass::text, 'constraint', conname, pg_get_constraintdef(oid), '', '', '', ''
        FROM pg_constraint WHERE conrelid::regclass::text LIKE 'think_%'
    """,
}


@pytest.fixture
def empty(empty_database_url):
    """A `Database` without tables."""
    database = Database(empty_database_url, SystemClock())
    yield database
    database.dispose()


def dump(engine):
    """Everything that the database knows of our tables, as sorted lines."""
    with engine.connect() as conn:
        rows = conn.execute(text(DUMP[engine.dialect.name])).all()
    return sorted(_comparable(row) for row in rows if row[0] != migrate.VERSION_TABLE)


def _comparable(row):
    # SQLite keeps the text of CREATE TABLE, where the order of constraints means nothing.
    *names, last = row
    lines = sorted(line.strip(" ,\t") for line in (last or "").splitlines())
    return f"{names}: {'; '.join(lines)}"


def our_tables(engine):
    return {name for name in inspect(engine).get_table_names() if name.startswith("think_")}


class TestSchema:
    def test_migrations_make_exactly_the_tables(self, empty):
        """Column for column and index for index, their conditions too, as SQLAlchemy would from `tables.py`."""
        migrate.upgrade(empty.engine)
        migrated = dump(empty.engine)

        metadata.drop_all(empty.engine)
        metadata.create_all(empty.engine)

        assert migrated == dump(empty.engine)

    def test_alembic_finds_nothing_to_change(self, db):
        """What `alembic revision --autogenerate` would write is empty."""
        with db.engine.connect() as conn:
            options = {"version_table": migrate.VERSION_TABLE, "compare_server_default": True}
            changes = compare_metadata(MigrationContext.configure(conn, opts=options), metadata)

        assert [change for change in changes if "think_" in str(change)] == []

    def test_the_head_is_the_newest_script(self):
        """`head()` costs no Alembic, so it is written down; this holds it to the scripts."""
        config = Config()
        config.set_main_option("script_location", str(migrate.MIGRATIONS))

        assert ScriptDirectory.from_config(config).get_current_head() == migrate.head()


class TestUpgrade:
    def test_eight_processes_at_once_make_one_schema(self, empty_database_url):
        """FR-35: on an empty database, eight real processes all succeed; there is one version row."""
        command = [sys.executable, "-c", UPGRADE, empty_database_url]
        root = Path(__file__).parents[2]
        children = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root
            )
            for _ in range(8)
        ]
        for child in children:
            assert child.stdout.readline() == b"ready\n"
        for child in children:
            child.stdin.write(b"\n")
            child.stdin.flush()

        errors = [child.communicate(timeout=60)[1].decode() for child in children]

        assert [child.returncode for child in children] == [0] * 8, errors
        engine = create_engine(Database(empty_database_url, SystemClock()).url)
        with engine.connect() as conn:
            versions = conn.execute(text(f"SELECT version_num FROM {migrate.VERSION_TABLE}")).scalars().all()
        assert versions == [migrate.head()]
        assert set(metadata.tables) <= our_tables(engine)
        engine.dispose()

    def test_threads_of_one_process_do_not_meet_either(self, tmp_path):
        """Alembic's context is shared by the whole process; two databases upgraded at once both get theirs."""
        engines = [create_engine(f"sqlite:///{tmp_path / str(number)}.db") for number in range(4)]

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(migrate.upgrade, engines))

        assert [migrate.current(engine) for engine in engines] == [migrate.head()] * 4
        for engine in engines:
            engine.dispose()

    def test_it_is_all_or_nothing(self, empty):
        """A migration that fails in the middle leaves no table of ours and no version."""
        with empty.engine.begin() as conn:
            conn.execute(text("CREATE TABLE mine (it INTEGER)"))
            conn.execute(text("CREATE INDEX ix_think_workflows_created ON mine (it)"))

        with pytest.raises(DBAPIError, match="already exists"):
            migrate.upgrade(empty.engine)

        assert our_tables(empty.engine) == set()
        assert migrate.current(empty.engine) is None

    @pytest.mark.parametrize(
        ("damage", "told"),
        [
            ("UPDATE {table} SET version_num = '0000'", "version '0000'"),
            ("UPDATE {table} SET version_num = ''", "does not say which version"),
            ("DELETE FROM {table}", "does not say which version"),
            ("DROP TABLE {table}", "does not say which version"),
        ],
    )
    def test_a_version_that_can_not_be_trusted_is_told(self, empty, damage, told):
        """Made up, empty or gone while the tables are there: nothing is changed, and it says what to do."""
        migrate.upgrade(empty.engine)
        with empty.engine.begin() as conn:
            conn.execute(text(damage.format(table=migrate.VERSION_TABLE)))
        before = dump(empty.engine)

        with pytest.raises(ConfigurationError, match=told) as refused:
            migrate.upgrade(empty.engine)

        assert "Restore" in str(refused.value)
        assert dump(empty.engine) == before

    def test_a_second_upgrade_changes_nothing(self, db):
        """It may be run at every start."""
        before = dump(db.engine)

        migrate.upgrade(db.engine)

        assert dump(db.engine) == before

    def test_a_plain_engine_of_the_callers_will_do(self, empty):
        """A management command or a test passes its own engine; on SQLite its driver begins no transaction."""
        engine = create_engine(empty.url)

        migrate.upgrade(engine)

        assert migrate.current(engine) == migrate.head()
        engine.dispose()

    def test_other_tables_and_another_alembic_are_left_alone(self, empty):
        """The host's own migrations keep their version table, and its tables are none of our business."""
        with empty.engine.begin() as conn:
            conn.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
            conn.execute(text("INSERT INTO alembic_version VALUES ('theirs')"))

        migrate.upgrade(empty.engine)

        with empty.engine.connect() as conn:
            assert conn.execute(text("SELECT version_num FROM alembic_version")).scalars().all() == ["theirs"]


class TestEnsure:
    def test_a_database_without_our_schema_is_named_with_the_remedy(self, empty):
        """Without leave to migrate, it says what is missing and what to run, and changes nothing."""
        with pytest.raises(SchemaOutdated, match=r"at version none.*think-celery db upgrade -A YOUR_APP"):
            migrate.ensure(empty.engine, migrate=False)

        assert our_tables(empty.engine) == set()

    def test_an_older_schema_is_too(self, empty):
        """The version that was found and the one that is needed are both named."""
        migrate.upgrade(empty.engine)
        with empty.engine.begin() as conn:
            conn.execute(text(f"UPDATE {migrate.VERSION_TABLE} SET version_num = '0000'"))

        with pytest.raises(SchemaOutdated, match=f"version 0000, this package needs {migrate.head()}"):
            migrate.ensure(empty.engine, migrate=False)

    def test_with_leave_it_migrates(self, empty):
        """The embedded default: the first use makes the file's tables."""
        migrate.ensure(empty.engine, migrate=True)

        assert migrate.current(empty.engine) == migrate.head()
        migrate.ensure(empty.engine, migrate=False)

    def test_a_newer_schema_serves(self, empty):
        """While a release is rolled out, its older workers go on beside the newer schema."""
        migrate.upgrade(empty.engine)
        with empty.engine.begin() as conn:
            conn.execute(text(f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'"))

        migrate.ensure(empty.engine, migrate=False)
        migrate.ensure(empty.engine, migrate=True)

        assert migrate.current(empty.engine) == "9999"

    def test_looking_loads_no_alembic_and_takes_no_lock(self, database_url):
        """An up-to-date database costs one SELECT, also while another process holds SQLite's write lock."""
        db = Database(database_url, SystemClock())
        code = (
            "import sys; from think_celery.store.migrate import ensure; from think_celery.clock import SystemClock\n"
            "from think_celery.store.database import Database\n"
            "ensure(Database(sys.argv[1], SystemClock()).engine, migrate=True)\n"
            "print('alembic' in sys.modules)"
        )

        def look(tx):
            done = subprocess.run(
                [sys.executable, "-c", code, database_url],
                capture_output=True,
                text=True,
                cwd=Path(__file__).parents[2],
            )
            return done.stdout, done.stderr

        assert db.transact(look) == ("False\n", "")
        db.dispose()
