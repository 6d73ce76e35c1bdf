"""Which live log a process has: what is set, else the broker's Redis, else the database."""

import json
import select
import socket
import socketserver
import subprocess
import sys
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import redis
from celery import Celery

from tests.events.contract import frame, numbers
from think_celery.app import ThinkCelery
from think_celery.errors import InvalidSetting
from think_celery.events.redis import RedisEventLog
from think_celery.events.redis_url import connection_options, is_redis_url
from think_celery.events.sql import SqlEventLog
from think_celery.runtime import set_current

SECRET = "s3cr3t"
HERE = {"username": None, "password": None}


@pytest.fixture
def log_of(sqlite_url):
    """The log of a Celery app with that broker and these settings."""
    made, before = [], set_current(None)

    def log_of(broker, **conf):
        app = Celery("choice", broker=broker, set_as_current=False)
        app.conf.update(think_database_url=sqlite_url, **conf)
        made.append(ThinkCelery(app))
        return made[-1].runtime.events

    yield log_of
    for think in made:
        think.close()
    set_current(before)


def address(log):
    """Where a log connects to, as redis-py was told."""
    assert isinstance(log, RedisEventLog)
    return log._options


class TestNotSet:
    def test_the_brokers_redis(self, log_of, redis_url, caplog):
        """Whoever has Redis as broker sets nothing more, and the frames are there."""
        log = log_of(redis_url)
        start = log.head("a")

        log.append([frame(1)])

        assert numbers(log, start) == [1]
        with redis.Redis.from_url(redis_url) as server:
            assert server.exists("think:live:a")
        assert caplog.records == []

    @pytest.mark.parametrize("broker", ["memory://", "amqp://guest@127.0.0.1//", None])
    def test_another_broker_leaves_it_in_the_database(self, log_of, broker, caplog):
        """No Redis, no live log in Redis, and no line about it."""
        assert isinstance(log_of(broker), SqlEventLog)
        assert caplog.records == []

    @pytest.mark.parametrize(
        ("broker", "conf", "told"),
        [
            (f"redis://:{SECRET}@shop/3", {}, {"host": "shop", "db": 3, "password": SECRET}),
            (
                "redis://shop",
                {"broker_use_ssl": {"ssl_ca_certs": "/ca"}},
                {"ssl": True, "ssl_ca_certs": "/ca"},
            ),
            ("rediss://shop:7?ssl_cert_reqs=required", {}, {"ssl": True, "ssl_cert_reqs": 2, "port": 7}),
            ("rediss://shop", {}, {"ssl": True, "ssl_cert_reqs": 0}),
            (f"redis+socket://:{SECRET}@/run/s?virtual_host=2", {}, {"unix_socket_path": "/run/s", "db": 2}),
        ],
    )
    def test_it_is_reached_as_celery_reaches_it(self, log_of, broker, conf, told):
        """Database, password, TLS and socket are those of the broker."""
        found = address(log_of(broker, **conf))

        assert {name: found[name] for name in told} == told

    def test_the_brokers_key_prefix_is_ours(self, log_of, redis_url):
        """A user of Redis who may only touch keys of one prefix has set it for Celery already."""
        log = log_of(redis_url, broker_transport_options={"global_keyprefix": "shop:"})

        log.append([frame(1)])

        with redis.Redis.from_url(redis_url) as server:
            assert server.keys("*") == [b"shop:think:live:a"]

    @pytest.mark.parametrize(
        ("broker", "conf", "why"),
        [
            ("sentinel://a:1;sentinel://b:2", {}, "sentinels"),
            (f"redis://:{SECRET}@a:1;redis://b:2", {}, "several addresses"),
            ([f"redis://:{SECRET}@a:1", "redis://b:2"], {}, "several addresses"),
            (f"redis://:{SECRET}@shop?unheard_of=1", {}, "Celery can't use its URL"),
            (f"redis://:{SECRET}@shop/shop", {}, "must be a number"),
            (f"redis://:{SECRET}@shop", {"broker_use_ssl": {"keyfile": "/key"}}, "keyfile"),
            (f"redis://:{SECRET}@shop?credential_provider=shop.Provider", {}, "credential provider"),
        ],
    )
    def test_a_redis_of_another_kind_leaves_it_in_the_database(self, log_of, caplog, broker, conf, why):
        """One line says why, and what to set; it holds no password."""
        assert isinstance(log_of(broker, **conf), SqlEventLog)

        lines = [r.getMessage() for r in caplog.records if r.name == "think_celery.events"]
        assert len(lines) == 1
        assert why in lines[0]
        assert "think_live_database_url" in lines[0]
        assert SECRET not in caplog.text


class TestSet:
    def test_a_redis_of_its_own(self, log_of):
        """It wins over the broker."""
        found = address(log_of("redis://broker", think_live_database_url="redis://live:7/1"))

        assert (found["host"], found["port"], found["db"]) == ("live", 7, 1)

    def test_the_database(self, log_of, sqlite_url):
        """Named explicitly it is taken, whatever the broker, and nothing is logged."""
        assert isinstance(log_of("redis://broker", think_live_database_url=sqlite_url), SqlEventLog)

    @pytest.mark.parametrize(
        "url",
        [
            "sqlite:////elsewhere/live.db",
            f"postgresql://shop:{SECRET}@db/live",
            f"mysql://shop:{SECRET}@db/live",
            f"amqp://shop:{SECRET}@mq//",
            f"sentinel://:{SECRET}@a:1",
            f"redis://:{SECRET}@shop/shop",
            f"redis://:{SECRET}@shop:port",
            f"redis://:{SECRET}@shop?tls=yes",
            f"rediss://:{SECRET}@shop?ssl_cert_reqs=maybe",
            f"unix://:{SECRET}@/",
            f"://{SECRET}",
        ],
    )
    def test_anything_else_is_refused(self, log_of, url):
        """The error names the setting and the rule, with what may be written, and shows no password."""
        with pytest.raises(InvalidSetting, match=r"think_live_database_url.*redis://host") as caught:
            log_of("memory://", think_live_database_url=url)

        assert "think_database_url" in str(caught.value)
        assert SECRET not in str(caught.value)


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "options"),
        [
            ("redis://", {"host": "127.0.0.1", "port": 6379, "db": 0}),
            ("redis://shop:7/2", {"host": "shop", "port": 7, "db": 2}),
            ("redis://shop/1?db=3", {"host": "shop", "port": 6379, "db": 3}),
            ("redis://[::1]:7/", {"host": "::1", "port": 7, "db": 0}),
            (
                "redis://us%40r:p%2Fw@shop",
                {"username": "us@r", "password": "p/w", "host": "shop", "port": 6379, "db": 0},
            ),
            ("unix:///run/redis.sock?db=4", {"unix_socket_path": "/run/redis.sock", "db": 4}),
            ("redis+socket:///run/r?virtual_host=4", {"unix_socket_path": "/run/r", "db": 4}),
            (
                "rediss://shop",
                {"host": "shop", "port": 6379, "db": 0, "ssl": True, "ssl_cert_reqs": "required"}
                | {"ssl_check_hostname": True},
            ),
            (
                "rediss://shop?ssl_cert_reqs=CERT_NONE&ssl_ca_certs=/ca",
                {"host": "shop", "port": 6379, "db": 0, "ssl": True, "ssl_cert_reqs": "none"}
                | {"ssl_check_hostname": False, "ssl_ca_certs": "/ca"},
            ),
        ],
    )
    def test_what_redis_py_is_told(self, url, options):
        """redis-py's spelling and Celery's; certificates are checked unless the URL says otherwise."""
        assert is_redis_url(url)
        assert connection_options(url) == {**HERE, **options}
        redis.Redis(**connection_options(url))  # it knows each option

    def test_a_socket_is_reached(self, redis_url, tmp_path):
        """By both spellings, and in the database that the URL names."""
        with relayed(tmp_path / "redis.sock", redis_url) as path:
            number = urlsplit(redis_url).path.strip("/")
            by_socket = RedisEventLog(f"unix://{path}?db={number}")
            as_celery = RedisEventLog(f"redis+socket://{path}?virtual_host={number}")
            start = by_socket.head("a")

            as_celery.append([frame(1)])

            assert numbers(by_socket, start) == [1]
            assert numbers(RedisEventLog(redis_url), start) == [1]
            by_socket.close()
            as_celery.close()


@contextmanager
def relayed(path, redis_url):
    """A socket behind which that Redis answers."""
    parts = urlsplit(redis_url)

    class Relay(socketserver.BaseRequestHandler):
        def handle(self):
            with socket.create_connection((parts.hostname, parts.port)) as server:
                sides = {self.request: server, server: self.request}
                while True:
                    for side in select.select(list(sides), [], [])[0]:
                        if not (data := side.recv(65536)):
                            return
                        sides[side].sendall(data)

    with socketserver.ThreadingUnixStreamServer(str(path), Relay) as relay:
        relay.daemon_threads = True
        thread = threading.Thread(target=relay.serve_forever)
        thread.start()
        yield path
        relay.shutdown()
        thread.join()


def test_redis_is_loaded_only_where_it_is_used(sqlite_url):
    """A web process without Redis pays nothing for it, with a runtime and a live log in the database too."""
    script = (
        "import sys, json; from celery import Celery; from think_celery import ThinkCelery;"
        "app = Celery('x', broker='memory://'); app.conf.think_database_url = sys.argv[1];"
        "log = ThinkCelery(app).runtime.events; log.read('a', log.head('a'));"
        "print(json.dumps('redis' in sys.modules))"
    )

    run = subprocess.run(
        [sys.executable, "-c", script, sqlite_url], check=True, capture_output=True, text=True, timeout=60
    )

    assert json.loads(run.stdout) is False
