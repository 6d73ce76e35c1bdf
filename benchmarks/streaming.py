"""Tokens that are streamed through turns, beside plain httpx readers: what a processor's second carries."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from benchmarks.figures import Row, Size, check, in_turn, ratio_at_least
from benchmarks.place import ROOT, Place, Scene

SHARE = 0.7
RATE = 50.0  # tokens a second of one stream
READERS = "plain httpx readers"
LATE = 1.1  # a stream that takes that much longer than its pace is late
ROUNDS = 3  # at most: one round of each takes ten seconds, whatever the machine

Told = dict[str, float]


def measure(place: Place, size: Size) -> Iterator[Row]:
    """Each in a process of its own; the server in another."""
    size = replace(size, rounds=min(size.rounds, ROUNDS))
    with model_server() as url, place.scene() as scene:
        for pool in ("threads",) if size.name != "full" else ("threads", "gevent"):
            yield from _bursts(pool, scene, url, size)
            yield from _paced(pool, scene, url, size)


def _bursts(pool: str, scene: Scene, url: str, size: Size) -> Iterator[Row]:
    """As fast as they come: 8 streams at once."""
    streams, tokens = size.pick(2, 8, 8), size.pick(50, 2000, 4000)
    readers, turns = _both(scene, url, size, pool, streams, tokens, 0)
    yield _row(f"tokens in bursts, {streams} streams, {pool}", readers, turns)


def _paced(pool: str, scene: Scene, url: str, size: Size) -> Iterator[Row]:
    """At a model's pace, with more and more streams, until they can't be kept up with."""
    seconds = size.pick(1, 6, 10)
    tokens = int(RATE * seconds)
    for streams in {"tiny": (2,), "quick": (25, 50), "full": (25, 50, 100, 200)}[size.name]:
        readers, turns = _both(scene, url, size, pool, streams, tokens, RATE)
        paced = f"{streams} streams at {RATE:g}/s, {pool}"
        yield _row(f"tokens, {paced}", readers, turns)
        yield Row(
            what=f"first token, {paced}: p50",
            unit="ms",
            ours=[each["first_ms"] for each in turns],
            floor=[each["first_ms"] for each in readers],
            floor_name=READERS,
        )
        slowest = max(each["slowest_s"] for each in turns)
        yield Row(what=f"slowest of {paced}, {seconds} s of tokens", unit="s", ours=[slowest])
        if slowest > seconds * LATE:
            return


def _row(what: str, readers: list[Told], turns: list[Told]) -> Row:
    return Row(
        what=what,
        unit="/CPU-s",
        ours=[each["per_cpu_second"] for each in turns],
        floor=[each["per_cpu_second"] for each in readers],
        floor_name=READERS,
        budget=ratio_at_least(SHARE),
    )


def _both(
    scene: Scene, url: str, size: Size, pool: str, streams: int, tokens: int, rate: float
) -> tuple[list[Told], list[Told]]:
    told: dict[str, list[Told]] = {"readers": [], "turns": []}

    def one(who: str, number: int) -> float:
        figures = run(scene, url, who, pool, streams, tokens, rate)
        if number:
            told[who].append(figures)
        return figures["per_cpu_second"]

    in_turn(size, partial(one, "readers"), partial(one, "turns"))
    return told["readers"], told["turns"]


def run(scene: Scene, url: str, who: str, pool: str, streams: int, tokens: int, rate: float) -> Told:
    """What one process tells of its streams."""
    environment = {
        **os.environ,
        "BENCH_MODEL": url,
        "BENCH_BROKER": scene.broker,
        "BENCH_QUEUE": scene.queue,
        "THINK_DATABASE_URL": scene.url,
    }
    command = [sys.executable, "-m", "benchmarks.streamer", who, pool, str(streams), str(tokens), str(rate)]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)
    check(ran.returncode == 0 and bool(ran.stdout.strip()), f"{who} failed: {ran.stderr[-2000:]}")
    scene.purge()
    told: Told = json.loads(ran.stdout.splitlines()[-1])
    return told


@contextmanager
def model_server() -> Iterator[str]:
    """A server of prepared answers, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.streamserver"]
    server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
    finally:
        server.stdin.close()
        server.wait(10)
        server.stdout.close()
