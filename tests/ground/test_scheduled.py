"""What classes declare as scheduled tasks: what is accepted, what is refused, and how that is said."""

from datetime import timedelta
from functools import partial

import pytest

from think_celery.errors import AsyncNotSupported, InvalidSchedule
from think_celery.retries import Retry
from think_celery.scheduled import ScheduledTask, read_tasks


def read(given, *, zone=None):
    """What an agent called Desk('a') returned, read."""
    return read_tasks(given, "Desk('a')", default_timezone=zone, cron_timezone="Asia/Kolkata", limit=1000)


def handle(ctx):
    """A handler."""


async def handle_later(ctx):
    """None."""


async def handle_in_pieces(ctx):
    """None, either."""
    yield ctx


def produce(ctx):
    """None that would ever run."""
    yield ctx


class Callable:
    """An object that can be called."""

    def __call__(self, ctx, more=1):
        return ctx


class Awaited:
    """An object whose call is async."""

    async def __call__(self, ctx):
        return ctx


def task(**fields):
    """A dict of a task that works, changed."""
    return {"schedule": "every hour", "prompt": "Look.", **fields}


class TestAccepted:
    def test_tasks_and_dicts_mean_the_same(self):
        """C1, C2: a ``ScheduledTask``, or a dict of its fields; ``retry`` may be a dict, too."""
        written = {
            "prompted": {
                "schedule": "every day at 09:00 in UTC",
                "prompt": "Look.",
                "metadata": {"team": "a"},
            },
            "handled": {"schedule": "0 9 * * *", "handler": handle, "retry": {"max_attempts": 5}},
        }
        as_tasks = {
            "prompted": ScheduledTask(
                schedule="every day at 09:00 in UTC", prompt="Look.", metadata={"team": "a"}
            ),
            "handled": ScheduledTask(schedule="0 9 * * *", handler=handle, retry=Retry(max_attempts=5)),
        }

        assert read(written) == read(as_tasks)
        assert read(written)["prompted"].rule.timezone == "UTC"
        assert read(written)["handled"].rule.timezone == "Asia/Kolkata"

    def test_no_task(self):
        """An empty dict and ``None`` declare none."""
        assert read({}) == read(None) == {}

    @pytest.mark.parametrize(
        "handler", [handle, Callable(), str, partial(handle), lambda ctx: None, print, len]
    )
    def test_any_callable_of_one_argument_is_a_handler(self, handler):
        """C2: functions, methods, lambdas, partials, objects, classes; what is built in, too."""
        assert read({"a": {"schedule": "every hour", "handler": handler}})["a"].task.handler is handler

    def test_the_default_zone_is_for_times_of_day(self):
        """C4: it is asked for where neither text nor task names one, and an interval minds none."""
        found = read(
            {"a": task(schedule="every day at 09:00"), "b": task(), "c": task(schedule="0 9 * * *")},
            zone="Europe/Paris",
        )

        assert [each.rule.timezone for each in found.values()] == ["Europe/Paris", None, "Europe/Paris"]

    @pytest.mark.parametrize(
        ("schedule", "spec"), [("Every hour", "Every hour"), (90, 90), (timedelta(minutes=2), 120.0)]
    )
    def test_what_is_stored_of_a_schedule(self, schedule, spec):
        """The text as it was written, or seconds."""
        assert read({"a": task(schedule=schedule)})["a"].spec == spec


class TestRefused:
    @pytest.mark.parametrize(
        ("written", "text"),
        [
            (
                task(prompt=None, handler=produce),
                "its handler is a generator, whose code would never run. Take",
            ),
            (task(handler=handle), "it has both a prompt and a handler. Give it one of the two."),
            (task(prompt=None), "it has neither a prompt nor a handler. Give it one of the two."),
            (task(prompt="  "), "its prompt is no text, or empty. Write prompt="),
            (task(prompt=7), "its prompt is no text, or empty. Write prompt="),
            (
                task(retry=Retry()),
                "it has a prompt, whose turn has its own retries, and retry= besides. Leave retry",
            ),
            (
                task(prompt=None, handler="report"),
                "its handler is a str, which can't be called. Pass a method",
            ),
            (
                task(prompt=None, handler=lambda: 0),
                "its handler can't be called with one ScheduledTaskContext alone",
            ),
            (
                task(prompt=None, handler=lambda a, b: 0),
                "its handler can't be called with one ScheduledTaskContext",
            ),
            (
                task(prompt=None, handler=handle, retry=3),
                "its retry is an int. Write retry=Retry(max_attempts=3).",
            ),
            (
                task(prompt=None, handler=handle, retry={"maxAttempts": 3}),
                "Retry has no field 'maxAttempts'. Did you",
            ),
            (
                task(prompt=None, handler=handle, retry={"max_attempts": 0}),
                "Retry(max_attempts=0): it must be",
            ),
            (task(promt="x"), "ScheduledTask has no field 'promt'. Did you mean 'prompt'?"),
            (task(cron="x"), "ScheduledTask has no field 'cron'. Its fields are schedule, prompt, handler"),
            (
                {"prompt": "Look."},
                'it has no schedule. Add "schedule": "every day at 09:00 in Europe/Paris".',
            ),
            (task(metadata={"a": {1, 2}}), "its metadata can't be kept: metadata"),
            (task(metadata=[1]), "its metadata can't be kept: metadata is a list"),
            (task(metadata={"a": "x" * 2000}), "its metadata can't be kept: the metadata takes"),
            (
                task(schedule="every 2 minute"),
                'schedule=\'every 2 minute\': "2 minute" mixes one and many. Write "every',
            ),
            (
                task(schedule="every day at 09:00"),
                "schedule='every day at 09:00': a time of day needs a time zone",
            ),
            (
                task(timezone="UTC"),
                "schedule='every hour': an interval has no time zone, and timezone='UTC' was given",
            ),
            (task(schedule="0 9 * * *", timezone="Mars/Base"), "timezone='Mars/Base': there is no time zone"),
            (task(schedule=-1), "schedule=-1 is no span of time. Use seconds"),
            (task(schedule=None), "schedule=None is no span of time. Use seconds"),
            ("every hour", "it is a str. Write ScheduledTask(schedule="),
        ],
    )
    def test_the_error_names_the_task_the_rule_and_a_right_form(self, written, text):
        """C4: nothing half: both or neither of prompt and handler, unknown fields, and all that a schedule can lack."""
        with pytest.raises(InvalidSchedule) as refused:
            read({"daily": written})

        assert str(refused.value).startswith("Desk('a'), scheduled task 'daily'")
        assert text in str(refused.value)

    @pytest.mark.parametrize("task_id", ["bad id", "", "a/b", "ü", "x" * 101, 7, None])
    def test_an_id_is_letters_digits_underscores_and_dashes(self, task_id):
        """Keys and commands carry it."""
        with pytest.raises(
            InvalidSchedule, match=r"scheduled task .*: its id can't be used. Use letters, digits"
        ):
            read({task_id: task()})

    @pytest.mark.parametrize("given", [[], "every hour", ScheduledTask(schedule="every hour", prompt="x"), 7])
    def test_it_is_a_dict_of_tasks(self, given):
        """A single task has no id."""
        with pytest.raises(
            InvalidSchedule,
            match=r"Desk\('a'\).get_scheduled_tasks\(\): it returned an? .*must return a dict",
        ):
            read(given)

    @pytest.mark.parametrize("handler", [handle_later, handle_in_pieces, Awaited(), partial(handle_later)])
    def test_an_async_handler_is_refused(self, handler):
        """As everywhere, with the remedy."""
        with pytest.raises(AsyncNotSupported, match="The handler of Desk"):
            read({"a": {"schedule": "every hour", "handler": handler}})


class TestTheConstructor:
    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            (
                {"handler": handle, "prompt": "x"},
                "it has both a prompt and a handler. Give it one of the two.",
            ),
            ({}, "it has neither a prompt nor a handler. Give it one of the two."),
            ({"prompt": "x", "schedule": "every 2 minute"}, "mixes one and many"),
            ({"prompt": "x", "timezone": "UTC"}, "an interval has no time zone"),
            ({"handler": "report"}, "its handler is a str, which can't be called"),
        ],
    )
    def test_what_is_wrong_without_an_agent_is_told_at_once(self, fields, text):
        """Where it is written, and in the words that the agent's start has for it."""
        with pytest.raises(InvalidSchedule) as refused:
            ScheduledTask(**{"schedule": "every hour", **fields})
        assert str(refused.value).startswith("ScheduledTask")
        assert text in str(refused.value)

    def test_what_only_the_agent_knows_is_told_later(self):
        """Its default zone may be that of the time of day."""
        assert ScheduledTask(schedule="every day at 09:00", prompt="x").timezone is None
