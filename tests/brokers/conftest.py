"""Scenarios with a broker of their own that is emptied, stopped, filled or frozen; many are played at once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.conftest import (
    MakeStage,
    Theatre,
    children,
    make_stage,
    model,
    pace,
    pytest_pyfunc_call,
    stage,
    theatre_of,
)

__all__ = ["children", "make_stage", "model", "pace", "pytest_pyfunc_call", "stage"]


@pytest.fixture(scope="session")
def theatre(request: pytest.FixtureRequest, make_stage: MakeStage) -> Iterator[Theatre]:
    """What plays the scenarios of this folder."""
    yield from theatre_of(Path(__file__).parent, request, make_stage)


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.services)])
def database(request: pytest.FixtureRequest) -> str:
    """On which database a scenario's stage is."""
    return str(request.param)
