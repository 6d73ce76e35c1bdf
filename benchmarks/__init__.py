"""What the engine costs beside the floors under it, measured in one run. See README.md."""

import sys

try:  # here, for this is what `python -m benchmarks` imports first
    import psycopg  # noqa: F401
    import redis  # noqa: F401
except ImportError as error:
    sys.exit(
        f"The benchmarks need the drivers of PostgreSQL and Redis ({error}). Run: pip install -e '.[dev]'"
    )
