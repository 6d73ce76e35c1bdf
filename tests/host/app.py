"""For ``celery -A tests.host.app worker`` and ``flower``, as processes that end with the one that started them."""

import ctypes
import os
import signal

from tests.host.project import make_app

PR_SET_PDEATHSIG = 1

ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
app = make_app(os.environ)
