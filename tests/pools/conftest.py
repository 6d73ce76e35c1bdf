"""Real Celery workers of each pool, several scenarios at a time, each on a stage of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.conftest import (
    MakeStage,
    Theatre,
    children,
    make_stage,
    pace,
    pytest_pyfunc_call,
    redis_url,
    stage,
    theatre_of,
)
from tests.crash.model import answer, text_of
from tests.providers.server import (
    DONE,
    HANG,
    Delay,
    Hang,
    ModelServer,
    Response,
    chunk,
    json_response,
    stream,
)

__all__ = ["children", "make_stage", "pace", "pytest_pyfunc_call", "redis_url", "stage"]


FAULTS = {
    "silent": stream(HANG),
    "pinging": stream(Hang(ping=b": keep-alive\n\n")),
    "halting": stream(chunk({"content": "Well"}), HANG),
    "busy": json_response({"error": {"message": "later"}}, 429, retry_after="3600"),
    "trickling": stream(
        *(piece for n in range(1500) for piece in (Delay(0.02), chunk({"content": f"{n} "}))), DONE
    ),
}
"""Nothing after the headers, only keep-alives, nothing after the first word, a wish to be asked in an hour, and half a
minute of tokens that come so fast that nearly every moment is a rest before the next read."""


def reply(body: dict[str, Any]) -> Response:
    """What the model of the crash tests says, but where the prompt is one word of :data:`FAULTS`."""
    words = " ".join(text_of(message) for message in body["messages"]).split()
    return next((FAULTS[word] for word in words if word in FAULTS), None) or answer(body)


@pytest.fixture(scope="session")
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        server.respond = reply
        yield server


@pytest.fixture(scope="session")
def theatre(request: pytest.FixtureRequest, make_stage: MakeStage) -> Iterator[Theatre]:
    yield from theatre_of(Path(__file__).parent, request, make_stage)


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.services)])
def database(request: pytest.FixtureRequest) -> str:
    """Where a test does not say otherwise, its stage is on PostgreSQL."""
    return str(request.param)
