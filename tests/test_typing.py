"""What a user's type checker makes of our annotations."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.timeout(400)  # without a cache mypy reads all libraries first
def test_a_type_checker_infers_what_steps_return():
    """A2: an answer is of the type that was asked for, a step's value of that of its function, a gather's a list."""
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", str(HERE / "typed_steps.py")],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
    )

    assert (checked.returncode, checked.stdout) == (0, "")
