"""A process among greenlets: says in which threads of the system a cancelled turn is renewed and told of it."""

from gevent import monkey

monkey.patch_all()

import json  # noqa: E402 - patched before anything else
import sys  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402

from sqlalchemy import event  # noqa: E402

from tests.domain.crowd import clerk, workers  # noqa: E402
from think_celery.domain.submissions import claims  # noqa: E402

this_thread = monkey.get_original("_thread", "get_ident")


def main(url: str) -> None:
    """Cancel a turn in hand, and print who did what."""
    told: list[int] = []
    renewing: list[int] = []
    with workers(url) as rt:
        submission = clerk(rt).submit_messages("Hello").submission_id
        claimed = claims.claim(rt, submission)
        assert isinstance(claimed, claims.Claim)
        event.listen(rt.monitor.db.engine, "begin", lambda conn: renewing.append(this_thread()))
        with rt.monitor.hold(claimed.lease, submission_id=submission, seconds=60) as hold:
            came = threading.Event()
            hold.signal.on_abort(lambda: told.append(this_thread()))
            hold.signal.on_abort(came.set)
            clerk(rt).cancel_submission(submission)
            began = time.monotonic()
            came.wait(10)
            waited = time.monotonic() - began
        renewed = rt.monitor._renewed
        while time.monotonic() < began + waited + 3:  # no other greenlet gets to run
            pass
        renewed_meanwhile = rt.monitor._renewed - renewed
    here = this_thread()
    print(
        json.dumps(
            {
                "waited": waited,
                "told here": told == [here],
                "renewed elsewhere": bool(renewing) and here not in renewing,
                "renewed meanwhile": renewed_meanwhile,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
