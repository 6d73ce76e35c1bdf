"""The process that is measured while it reads streams: turns of ours, or plain httpx readers.

``python -m benchmarks.streamer WHO POOL STREAMS TOKENS RATE`` reads that many streams at once, each of so many
tokens, and prints what it took as JSON. WHO is ``turns`` or ``readers``, POOL ``threads`` or ``gevent``. Some are read
before, for imports, connections and caches. Its environment says where (``BENCH_MODEL``, ``BENCH_BROKER``,
``BENCH_QUEUE``, ``THINK_DATABASE_URL``).
"""

import sys

if __name__ == "__main__" and sys.argv[2] == "gevent":
    from gevent import monkey

    monkey.patch_all()

import json
import math
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from benchmarks.streamserver import TOKEN
from benchmarks.workerapp import make_app
from think_celery import Think
from think_celery.domain.submissions import claims
from think_celery.events.writer import LiveWriter
from think_celery.protocols import ModelEvent, ModelRequest, TextDelta
from think_celery.providers.openai import OpenAIModel
from think_celery.runtime import Runtime, current
from think_celery.signals import AbortSignal


def cpu() -> float:
    """Seconds of the processor that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Readers:
    """Plain httpx: lines, JSON, the text of each token, and no more."""

    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx.Client(limits=limits, timeout=120)
        self._url = f"{url}/chat/completions"

    def read(self, number: int, tokens: int, rate: float) -> float:
        """Read one stream; the seconds until its first token."""
        body = {"model": "m", "stream": True, "messages": [], "max_tokens": tokens, "top_p": rate}
        began, first = time.monotonic(), 0.0
        pieces: list[str] = []
        with self._client.stream("POST", self._url, json=body) as response:
            for line in response.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    piece = json.loads(line[6:])["choices"][0]["delta"].get("content")
                    if piece:
                        first = first or time.monotonic() - began
                        pieces.append(piece)
        if "".join(pieces) != TOKEN * tokens:
            raise RuntimeError("a reader's answer is not whole")
        return first


class _Timed:
    """Our provider, and when its first token reached the turn."""

    name = "openai/m"

    def __init__(self, url: str, tokens: int, rate: float) -> None:
        extra = {"max_tokens": tokens, "top_p": rate}
        self._model = OpenAIModel("m", api_key="k", base_url=url, extra=extra)
        self.first = 0.0

    def stream(self, request: ModelRequest, signal: AbortSignal) -> Iterator[ModelEvent]:
        """Ask, and note."""
        began = time.monotonic()
        events = self._model.stream(request, signal)
        for event in events:
            is_first = isinstance(event, TextDelta)
            if is_first:
                self.first = time.monotonic() - began
            yield event
            if is_first:
                break
        yield from events


class Streamed(Think, name="bench-streamed"):
    """Its turns stream from the server that it is told of."""

    sources: dict[str, _Timed] = {}  # noqa: RUF012 - of the process, by name

    def get_model(self) -> Any:
        """The one that was made for this agent."""
        return self.sources[self.name]


class Turns:
    """Whole turns: claimed, streamed to the live log, stored once a second and at the end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._app = make_app(os.environ["BENCH_BROKER"], os.environ["BENCH_QUEUE"])
        self.rt: Runtime = current()
        # Of a log that is slow because the machine is loaded nothing is dropped: all of the work is measured.
        self.rt.live = LiveWriter(self.rt.events, limit_seconds=math.inf)
        self._submissions: dict[int, str] = {}

    def accept(self, numbers: range, tokens: int, rate: float) -> None:
        """Store the turns that will be run: accepting is not what is measured here."""
        for number in numbers:
            name = f"{os.getpid()}-{number}"
            Streamed.sources[name] = _Timed(self._url, tokens, rate)
            agent = self.rt.make_agent("bench-streamed", name)
            self._submissions[number] = agent.submit_messages("Go on.").submission_id

    def read(self, number: int, tokens: int, rate: float) -> float:
        """Run one turn; the seconds from the request to its first token."""
        outcome = claims.run(self.rt, self._submissions[number])
        if outcome.word != "completed":
            raise RuntimeError(f"a turn ended as {outcome.word}")
        return Streamed.sources[f"{os.getpid()}-{number}"].first

    def check(self, numbers: range, tokens: int) -> None:
        """All answers are stored, and whole."""
        for number in numbers:
            agent = self.rt.make_agent("bench-streamed", f"{os.getpid()}-{number}")
            if agent.messages[-1].text != TOKEN * tokens:
                raise RuntimeError("a turn's answer is not whole")


def at_once(count: int, work: Callable[[int], float]) -> list[tuple[float, float]]:
    """Do all at the same time; of each its figure, and how long it took."""
    results: list[tuple[float, float]] = []
    barrier = threading.Barrier(count)

    def one(number: int) -> None:
        barrier.wait()
        began = time.monotonic()
        figure = work(number)
        results.append((figure, time.monotonic() - began))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(results) != count:
        raise RuntimeError(f"{count - len(results)} streams failed")
    return results


def main() -> None:
    """Measure, and print."""
    who, _, streams, tokens, rate = sys.argv[1:6]
    count, length, pace = int(streams), int(tokens), float(rate)
    url = os.environ["BENCH_MODEL"]
    reader: Any = Turns(url) if who == "turns" else Readers(url)
    if isinstance(reader, Turns):
        reader.accept(range(-2, 0), 200, 0)
        for number in (-1, -2):
            reader.read(number, 200, 0)
        reader.accept(range(count), length, pace)
    else:
        reader.read(-1, 200, 0)
    before = cpu()
    results = at_once(count, lambda number: float(reader.read(number, length, pace)))
    if isinstance(reader, Turns):
        reader.rt.live.flush(5)
    used = cpu() - before
    if isinstance(reader, Turns):
        reader.check(range(count), length)
    firsts = sorted(first for first, _ in results)
    told = {
        "per_cpu_second": count * length / used,
        "first_ms": 1000 * firsts[len(firsts) // 2],
        "slowest_s": max(took for _, took in results),
    }
    print(json.dumps(told), flush=True)
    os._exit(0)  # a client's open connections and the runtime's threads need no farewell


if __name__ == "__main__":
    main()
