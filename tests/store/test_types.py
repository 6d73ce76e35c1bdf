"""Values come back from both databases as they went in."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, func, insert, literal_column, select

from think_celery.errors import InvalidValue
from think_celery.store.types import JsonText, UtcDateTime

things = Table(
    "things",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("at", UtcDateTime),
    Column("value", JsonText),
)

PACIFIC = timezone(timedelta(hours=-8))


@pytest.fixture
def tx(db):
    """An open transaction with a table of both types in it; both go away together."""
    with db.engine.connect() as conn:
        things.create(conn)
        yield conn


class TestInstants:
    def test_an_instant_of_another_zone_comes_back_as_the_same_instant_in_utc(self, tx):
        """FR-25: what is stored with an offset is read back aware, in UTC, not shifted and not naive."""
        tx.execute(insert(things).values(id=1, at=datetime(2027, 1, 1, 13, 30, 45, tzinfo=PACIFIC)))

        found = tx.execute(select(things.c.at)).scalar_one()

        assert found == datetime(2027, 1, 1, 21, 30, 45, tzinfo=UTC)
        assert found.tzinfo is UTC

    def test_a_naive_datetime_is_refused_as_the_value_error_that_it_is(self, tx):
        """FR-25: it names no instant; the error says so, and no database library wraps it."""
        with pytest.raises(InvalidValue, match="has no time zone, so it names no instant") as refused:
            tx.execute(insert(things).values(id=1, at=datetime(2027, 1, 1, 13, 30, 45)))

        assert isinstance(refused.value, ValueError)
        assert tx.execute(select(func.count()).select_from(things)).scalar_one() == 0

    @pytest.mark.parametrize(
        "moment",
        [
            datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            datetime(2027, 10, 31, 0, 30, 0, 1, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            None,
        ],
    )
    def test_microseconds_and_far_years_survive(self, tx, moment):
        """FR-25: an instant is an integer of microseconds, exact before 1970 and in the year 9999."""
        tx.execute(insert(things).values(id=1, at=moment))

        assert tx.execute(select(things.c.at)).scalar_one() == moment

    def test_instants_compare_in_sql_as_instants(self, tx):
        """FR-25: an earlier instant with a later wall clock is still the earlier one."""
        earlier, later = datetime(2027, 1, 1, 9, tzinfo=UTC), datetime(2027, 1, 1, 3, tzinfo=PACIFIC)
        tx.execute(insert(things), [{"id": 1, "at": later}, {"id": 2, "at": earlier}])

        assert list(tx.execute(select(things.c.id).order_by(things.c.at)).scalars()) == [2, 1]
        assert list(tx.execute(select(things.c.id).where(things.c.at < later)).scalars()) == [2]


class TestJson:
    @pytest.mark.parametrize(
        "value",
        [
            "a\x00b",
            "\ud83d",
            "👍 ü \u2028",
            {"a\x00": ["\udc00", None, True, 1.5, {}], "": []},
            2**63,
            None,
        ],
    )
    def test_any_json_value_comes_back_equal(self, tx, value):
        """A NUL and a lone surrogate, which PostgreSQL and UTF-8 refuse, are escaped and so survive."""
        tx.execute(insert(things).values(id=1, value=value))

        assert tx.execute(select(things.c.value)).scalar_one() == value

    def test_it_is_stored_as_plain_ascii(self, tx):
        """The text itself has no NUL and nothing beyond ASCII, so it passes every driver and encoding."""
        tx.execute(insert(things).values(id=1, value=["\x00", "ü", "\ud83d"]))

        stored = tx.execute(select(literal_column("value")).select_from(things)).scalar_one()

        assert stored == r'["\u0000","\u00fc","\ud83d"]'

    def test_nan_is_refused(self, tx):
        """It is no JSON: a database would keep text that no other reader of JSON accepts."""
        with pytest.raises(Exception, match="JSON compliant"):
            tx.execute(insert(things).values(id=1, value=float("nan")))
