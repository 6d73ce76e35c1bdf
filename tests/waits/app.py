"""For ``celery -A tests.waits.app worker``, in a process that ends with the one that started it."""

import ctypes
import os
import signal

from tests.waits.project import make_app

PR_SET_PDEATHSIG = 1

ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
app = make_app(os.environ)
