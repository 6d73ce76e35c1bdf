"""Whoever drives schedules: our beat beside the app's own entries, Celery's default one, django-celery-beat's; and what
each does while something is away.
"""

import os
import re
import subprocess
import sys
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from tests.beat.stand import Stand

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.services

SECOND = timedelta(seconds=1)
OWN = {"own": {"task": "own.tock", "schedule": 1.0}}
TICK = {
    "tick": {"task": "think.tick", "kwargs": {"schedules": True}, "schedule": 1.0, "options": {"expires": 2}}
}


def test_entries_of_the_app_are_sent_at_their_times(stand: Stand) -> None:
    """Once a second each, as by Celery's own scheduler, while schedules fire beside them at theirs."""
    stand.pulse("beside").schedule_every(1, "note")
    beat = stand.beat(beat_schedule=OWN)
    stand.until(lambda: len(stand.effects("own entry")) >= 5, what="the app's entry done five times")
    stand.end(beat)

    times = [line["at"] for line in stand.effects("own entry")]
    assert all(0.5 < later - earlier < 1.9 for earlier, later in pairwise(times)), times
    slots = stand.settled("beside")
    assert len(slots) >= 4
    late = [row.created_at - row.scheduled_for for row in slots]
    assert sorted(late)[len(late) // 2] < timedelta(seconds=0.3), late


@pytest.mark.parametrize("stand", ["sqlite"], indirect=True)
def test_celery_s_own_scheduler_sends_ticks(stand: Stand) -> None:
    """`think.tick` with `schedules=True` each second fires what is due, in a worker."""
    stand.pulse("ticked").schedule_every(1, "note")
    beat = stand.beat("celery.beat:PersistentScheduler", beat_schedule=TICK)
    stand.until(lambda: len(stand.effects("ticked")) >= 3, what="three slots done")
    stand.end(beat)
    slots = stand.settled("ticked")

    assert all(timedelta(0) <= row.created_at - row.scheduled_for < 3 * SECOND for row in slots), slots
    assert len(stand.effects("ticked")) == sum(row.status == "done" for row in slots)


def manage(environment: dict[str, str], *arguments: str) -> None:
    """``python manage.py`` with these arguments."""
    command = [sys.executable, "-m", "django", *arguments]
    there = {**os.environ, **environment}
    ran = subprocess.run(command, cwd=ROOT, env=there, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def shell_of_the_page() -> str:
    """What docs/howto/beat.md tells to run in ``manage.py shell``."""
    page = (ROOT / "docs" / "howto" / "beat.md").read_text()
    found = re.search(r"manage\.py shell -c '\n(.*?)'\n```", page, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("stand", ["postgresql"], indirect=True)
def test_two_workers_that_may_fire(stand: Stand) -> None:
    """With `think_worker_schedules` no beat is needed; each slot is fired by one of them."""
    workers = [stand.worker(think_worker_schedules=True) for _ in range(2)]
    stand.pulse("by workers").schedule_every(1, "note")
    stand.until(lambda: len(stand.effects("by workers")) >= 3, what="three slots done")
    stand.end(*workers)
    slots = stand.settled("by workers")

    assert len({row.scheduled_for for row in slots}) == len(slots)
    assert len(stand.effects("by workers")) == sum(row.status == "done" for row in slots)


@pytest.mark.parametrize("stand", ["postgresql"], indirect=True)
def test_django_celery_beat_sends_ticks(stand: Stand) -> None:
    """The real package reads the entry, made as the page says, from Django's database."""
    there = {
        "DJANGO_SETTINGS_MODULE": "tests.beat.djangosettings",
        "BEAT_DJANGO": str(stand.folder / "django.db"),
    }
    manage(there, "migrate", "--verbosity", "0")
    manage(there, "shell", "-c", shell_of_the_page())
    stand.pulse("django").schedule_every(1, "note")
    beat = stand.start(
        *("beat", "-S", "django_celery_beat.schedulers:DatabaseScheduler", "--loglevel", "info"),
        ready="beat: Starting...",
        environment=there,
    )
    stand.until(lambda: len(stand.effects("django")) >= 3, what="three slots done")
    stand.end(beat)
    slots = stand.settled("django")

    assert len({row.scheduled_for for row in slots}) == len(slots)
    assert len(stand.effects("django")) == sum(row.status == "done" for row in slots)


def test_a_beat_survives_its_database(stand: Stand) -> None:
    """It starts while the database is away, and fires once it is back; connections that the server ends cost nothing
    (FR-13). The app's own entries are sent meanwhile."""
    stand.pulse("outlives").schedule_every(1, "note")
    before = len(stand.effects("own entry"))
    with stand.away() as environment:
        beat = stand.beat(environment=environment, beat_schedule=OWN)
        stand.until(lambda: len(stand.effects("own entry")) >= before + 2, what="the app's entry done twice")
        assert "the database can't be read now" in beat.output()
        assert stand.effects("outlives") == []
    stand.until(lambda: stand.effects("outlives"), what="a slot done")
    done = len(stand.effects("outlives"))
    if stand.on_postgres:
        stand.end_sessions()
    stand.until(lambda: len(stand.effects("outlives")) >= done + 2, what="two more slots done")
    assert beat.running
    stand.end(beat)
    assert "this process can fire schedules again" in beat.output()


def test_a_clock_that_steps(stand: Stand) -> None:
    """Forward and back: no slot is fired twice, and the beat goes on (FR-19).

    On PostgreSQL the beat's clock has no say: slots come each second of the database's. On SQLite it is the
    database's clock: a step forward fires the latest slot, once, and after the step back nothing fires until
    the next one has come.
    """
    clock = stand.wrong_clock(0)
    stand.pulse("stepped").schedule_every(1, "note")
    beat = stand.beat(clock=clock)
    stand.until(lambda: len(stand.effects("stepped")) >= 2, what="two slots done")
    clock.write_text("6.5")
    stand.until(lambda: len(stand.slots("stepped")) >= 5, what="slots after the step forward")
    clock.write_text("0")
    count = len(stand.slots("stepped"))
    stand.nap(1.5)
    meanwhile = len(stand.slots("stepped")) - count
    clock.write_text("6.5")
    stand.until(lambda: len(stand.slots("stepped")) >= count + 3, what="slots at the right time again")
    stand.end(beat)
    slots = stand.settled("stepped")

    if not stand.on_postgres:
        assert meanwhile == 0
        assert any(
            (later.scheduled_for - earlier.scheduled_for) > 4 * SECOND for earlier, later in pairwise(slots)
        )
    else:
        assert meanwhile >= 1
        assert all(
            (later.scheduled_for - earlier.scheduled_for) <= 2 * SECOND for earlier, later in pairwise(slots)
        )
    assert len(stand.effects("stepped")) == sum(row.status == "done" for row in slots)
