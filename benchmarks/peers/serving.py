"""What a peer's script does: it answers one order a line, in its own virtual environment.

An order is ``{"do": "accept", "count": 300}``, an answer ``{"figures": [1234.5]}``. Imported by the scripts, which run
without this project beside them.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping


def serve(orders: Mapping[str, Callable[[int], list[float]]]) -> None:
    """Say that it is ready, then answer until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what the peer prints is no answer
    print(json.dumps({"figures": []}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        figures = orders[order["do"]](order["count"])
        print(json.dumps({"figures": figures}), file=answers, flush=True)


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until *true*."""
    give_up_at = time.monotonic() + seconds
    while not true():
        if time.monotonic() > give_up_at:
            raise TimeoutError
        time.sleep(0.001)
