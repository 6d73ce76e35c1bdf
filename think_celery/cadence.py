"""The cadence of live text: the instants at which a process reads what models write, and just after, shows it.

Readers and the live log's writer keep to the same instants: what a reader takes sooner is shown no sooner, and what it
takes just after a write waits for the next one.
"""

CADENCE_SECONDS = 0.04


def until_next(now: float, cadence: float = CADENCE_SECONDS) -> float:
    """The seconds from *now*, by :meth:`Clock.elapsed <think_celery.clock.Clock.elapsed>`, to the next instant."""
    return cadence - now % cadence
