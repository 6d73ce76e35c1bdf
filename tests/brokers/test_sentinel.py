"""A key in the broker's Redis tells that its messages are gone: after a flush, a restart, a failover."""

import gc
import logging
import os
import socket
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from sqlalchemy import make_url

from tests.brokers.place import Broker
from think_celery import brokers
from think_celery.app import ThinkCelery
from think_celery.brokers import RedisSentinel
from think_celery.clock import SystemClock
from think_celery.domain import tick
from think_celery.runtime import set_current
from think_celery.testing import FakeClock


def sentinel(url: str, database: str = "shop", **options: Any) -> RedisSentinel:
    app = Celery("sentinel", broker=url, set_as_current=False)
    app.conf.broker_transport_options = options
    return RedisSentinel(app, database, SystemClock())


@pytest.fixture
def server(redis_url: str) -> Iterator[redis.Redis]:
    """Redis, as somebody else sees it."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


class Losses:
    """Counts them; ``fails`` makes the next one raise."""

    def __init__(self) -> None:
        self.count, self.fails = 0, False

    def __call__(self) -> None:
        if self.fails:
            self.fails = False
            raise ConnectionError("the database is away")
        self.count += 1


def losses_seen(watch: RedisSentinel) -> int:
    """How many one look finds."""
    seen = Losses()
    watch.look(seen)
    return seen.count


class TestLosses:
    def test_a_flush_is_noticed_once(self, redis_url: str, server: redis.Redis) -> None:
        """The first look knows nothing and assumes a loss; then each flush is one."""
        watch = sentinel(redis_url)

        first = [losses_seen(watch), losses_seen(watch)]
        server.flushdb()
        then = [losses_seen(watch), losses_seen(watch)]

        assert (first, then) == ([1, 0], [1, 0])
        assert watch.watching

    def test_of_all_processes_one_notices(self, redis_url: str, server: redis.Redis) -> None:
        """They share a key, for one pass that knocks for everything is enough."""
        one, other = sentinel(redis_url), sentinel(redis_url)

        assert losses_seen(one) + losses_seen(other) == 1

    def test_each_database_has_a_key_of_its_own(self, redis_url: str, server: redis.Redis) -> None:
        """Two applications that share a broker both notice that it was emptied."""
        shop, school = sentinel(redis_url, "shop"), sentinel(redis_url, "school")
        losses_seen(shop), losses_seen(school)
        server.flushdb()

        assert (losses_seen(shop), losses_seen(school)) == (1, 1)
        assert len(server.keys("think:sentinel:*")) == 2  # type: ignore[arg-type]

    def test_what_could_not_be_done_about_it_is_done_at_the_next_look(
        self, redis_url: str, server: redis.Redis
    ) -> None:
        """The database was away just then: the loss is not forgotten."""
        watch, losses = sentinel(redis_url), Losses()
        losses.fails = True

        with pytest.raises(ConnectionError):
            watch.look(losses)
        watch.look(losses)
        watch.look(losses)

        assert losses.count == 1

    def test_a_process_that_dies_over_it_leaves_it_to_the_next(
        self, redis_url: str, server: redis.Redis
    ) -> None:
        """Its key would say that all is well, and nobody would send what is lost for minutes."""

        def dies() -> None:
            raise SystemExit

        with pytest.raises(SystemExit):
            sentinel(redis_url).look(dies)

        assert losses_seen(sentinel(redis_url)) == 1

    def test_the_key_has_the_brokers_prefix_and_expires(self, redis_url: str, server: redis.Redis) -> None:
        """With ``global_keyprefix`` it is among the broker's other keys; it does not stay for ever."""
        watch = sentinel(redis_url, global_keyprefix="shop-")

        assert [losses_seen(watch), losses_seen(watch)] == [1, 0]

        [key] = server.keys("*")  # type: ignore[misc]
        assert key.startswith(b"shop-think:sentinel:")
        assert 0 < server.ttl(key) <= 86_400  # type: ignore[operator]

    def test_a_forked_child_asks_for_itself(self, redis_url: str, server: redis.Redis) -> None:
        """It shares no connection with its parent, and no lock: also if the fork came in the middle of a look."""
        watch = sentinel(redis_url)
        losses_seen(watch)
        server.flushdb()

        watch._lock.acquire()
        child = os.fork()
        if child == 0:
            os._exit(40 + losses_seen(watch))
        watch._lock.release()
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 41
        assert losses_seen(watch) == 0

    def test_a_forked_child_leaves_its_parents_connection_alone(self, redis_url: str) -> None:
        """It is kept there unused: what some libraries do with a connection that nobody has ends it for both."""
        watch = sentinel(redis_url)
        losses_seen(watch)
        of_parent = weakref.ref(watch._connection)

        child = os.fork()
        if child == 0:
            gc.collect()
            os._exit(0 if watch._connection is None and of_parent() is not None else 1)

        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.services
class TestServers:
    def test_a_restart_is_noticed_though_the_key_is_there_again(self) -> None:
        """A server that came back with an old snapshot has an old key, and has lost what came after that."""
        with Broker() as broker:
            watch = sentinel(broker.url)
            losses_seen(watch)
            [key] = broker.client.keys("*")  # type: ignore[misc]
            saved = broker.client.hgetall(key)
            broker.restart()
            broker.client.hset(key, mapping=saved)  # type: ignore[arg-type]

            assert [losses_seen(watch), losses_seen(watch)] == [1, 0]

    def test_without_the_right_to_ask_for_the_server_a_flush_is_noticed(self) -> None:
        """``INFO`` is often forbidden; what is left of the sentinel then works."""
        with Broker() as broker:
            broker.client.execute_command("ACL SETUSER limited on >tulip ~* &* +@all -info")
            watch = sentinel(broker.url.replace("redis://", "redis://limited:tulip@"))

            first = [losses_seen(watch), losses_seen(watch)]
            broker.client.flushall()

            assert (first, losses_seen(watch)) == ([1, 0], 1)

    def test_one_that_is_away_is_asked_again_later(self, caplog: pytest.LogCaptureFixture) -> None:
        """It costs a pass nothing: one warning, five seconds' rest, and then it is asked again."""
        caplog.set_level(logging.INFO)
        clock = FakeClock()
        with Broker() as broker:
            app = Celery("sentinel", broker=broker.url, set_as_current=False)
            watch = RedisSentinel(app, "shop", clock)
            losses_seen(watch)
            broker.stop()

            away = [losses_seen(watch) for _ in range(3)]
            clock.sleep(brokers.REST_SECONDS + 1)
            away.append(losses_seen(watch))
            known = watch.watching
            broker.start()
            resting = losses_seen(watch)
            clock.sleep(brokers.REST_SECONDS + 1)
            back = losses_seen(watch)

        assert (away, known, resting, back, watch.watching) == ([0] * 4, False, 0, 1, True)
        assert sum("can't be asked" in message for message in caplog.messages) == 1

    def test_one_that_never_answers_holds_a_pass_up_for_a_moment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The tick goes on: each try ends at its limit; and it is asked once in five seconds."""
        asked: list[float] = []
        connect = brokers.connection
        monkeypatch.setattr(
            brokers, "connection", lambda app, seconds: (asked.append(seconds), connect(app, seconds))[1]
        )
        with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
            url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
            watch = RedisSentinel(Celery("sentinel", broker=url, set_as_current=False), "shop", FakeClock())

            assert [losses_seen(watch) for _ in range(10)] == [0] * 10

        assert (asked, watch.watching) == ([brokers.LOOK_SECONDS], False)


@pytest.fixture
def wired() -> Iterator[Callable[..., ThinkCelery]]:
    """What wires an app, without changing the process's own."""
    before, made = set_current(None), []

    def wire(broker: str, **conf: Any) -> ThinkCelery:
        app = Celery("wired", broker=broker, set_as_current=False)
        app.conf.update(conf)
        made.append(ThinkCelery(app))
        return made[-1]

    yield wire
    for each in made:
        each.close()
    set_current(before)


class TestWiring:
    def test_it_is_in_the_broker_wherever_the_live_log_is(
        self, wired: Callable[..., ThinkCelery], redis_url: str, server: redis.Redis, sqlite_url: str
    ) -> None:
        """The pass over the work asks the broker's own Redis, under a name that has no password in it."""
        think = wired(redis_url, think_database_url=sqlite_url, think_live_database_url=sqlite_url)

        tick.work(think.runtime)

        assert think.runtime.broker_is_watched
        [key] = server.keys("*")  # type: ignore[misc]
        assert key.startswith(b"think:sentinel:")

    @pytest.mark.parametrize("broker", ["memory://", "amqp://127.0.0.1:1//", "nonsense://here"])
    def test_other_brokers_have_none(
        self, wired: Callable[..., ThinkCelery], broker: str, sqlite_url: str
    ) -> None:
        """RabbitMQ can't tell; the tick knocks once a minute there."""
        think = wired(broker, think_database_url=sqlite_url, think_live_database_url=sqlite_url)

        assert think.runtime.sentinel is None
        assert not think.runtime.broker_is_watched

    def test_what_tells_databases_apart(self) -> None:
        """Not the password, which may change; for a local one the machine, as another has one of that name."""
        one = brokers.identity(make_url("postgresql+psycopg://shop:secret@db.internal/shop"))

        assert one == brokers.identity(make_url("postgresql+psycopg://shop:new@db.internal/shop"))
        assert one != brokers.identity(make_url("postgresql+psycopg://shop:secret@db.internal/school"))
        assert "secret" not in one
        assert socket.gethostname() not in one
        for local in (
            "sqlite:////tmp/think.db",
            "postgresql://localhost/shop",
            "postgresql:///shop?host=/run",
        ):
            assert socket.gethostname() in brokers.identity(make_url(local))
