"""What a process of these tests is: ``celery`` with the arguments that its environment names."""

import json
import os
import sys

ARGUMENTS, CLOCK = "BEAT_ARGUMENTS", "BEAT_CLOCK"


def main() -> None:
    """Be it, until it ends."""
    from celery.__main__ import main as celery

    sys.argv = ["celery", *json.loads(os.environ[ARGUMENTS])]
    celery()
