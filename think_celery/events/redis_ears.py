"""Hears of turns that end, from the streams of many agents at once."""

from collections.abc import Callable, Collection
from typing import Any

import redis

_DONE = b'"type":"done"'
"""In the text of a frame: what is inside of other texts has its quotes escaped."""

AT_ONCE = 500
"""Entries of one stream that are looked at in one answer."""


class RedisEars:
    """An :class:`~think_celery.protocols.Ears`. It has a connection of its own: others would wait for it."""

    def __init__(self, connect: Callable[[], "redis.Redis"], key: Callable[[str], str]) -> None:
        """*connect* makes the connection, whose answers may take longer than a call listens."""
        self._connect, self._key = connect, key
        self._client: redis.Redis | None = None
        self._places: dict[str, bytes] = {}

    def listen(self, agent_ids: Collection[str], seconds: float) -> set[str]:
        """Wait for the end of a turn of one of these agents, and say of which ones it has come."""
        if self._client is None:
            self._client = self._connect()
        self._find(self._client, agent_ids)
        asked: dict[Any, Any] = {self._key(agent_id): place for agent_id, place in self._places.items()}
        agents = {self._key(agent_id).encode(): agent_id for agent_id in self._places}
        ended = set()
        found: Any = self._client.xread(asked, count=AT_ONCE, block=max(1, int(seconds * 1000)))
        for key, entries in found or ():
            agent_id = agents[key]
            self._places[agent_id] = entries[-1][0]
            if any(_DONE in fields[b"frame"] for _, fields in entries):
                ended.add(agent_id)
        return ended

    def _find(self, client: "redis.Redis", agent_ids: Collection[str]) -> None:
        """Forget whoever is not asked for any more; begin, for who is new, at the end of the stream."""
        self._places = {agent_id: place for agent_id, place in self._places.items() if agent_id in agent_ids}
        new = [agent_id for agent_id in agent_ids if agent_id not in self._places]
        if not new:
            return
        pipe = client.pipeline(transaction=False)
        for agent_id in new:
            pipe.xrevrange(self._key(agent_id), count=1)
        for agent_id, newest in zip(new, pipe.execute(), strict=True):
            self._places[agent_id] = newest[0][0] if newest else b"0-0"

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
