"""A process that follows turns through Redis and, as soon as each is done, reads the history from the database."""

import json
import sys

from tests.domain.flows import worker
from tests.domain.talk import shape, talker
from think_celery.events.redis import RedisEventLog


def main(database_url: str, redis_url: str) -> None:
    """Follow the turns whose agent and id come in, a line each; print that one is followed, then what is found."""
    agents = talker()
    with worker(database_url) as rt:
        rt.events = RedisEventLog(redis_url)
        for line in sys.stdin:
            name, submission_id = line.split()
            agent = agents._bound_to(rt, name)
            following = agent.listen(submission_id)
            print("listens", flush=True)
            *_, done = following
            found = agent.inspect_submission(submission_id)
            last = agent.messages[-1]
            print(json.dumps([found.status, last.id == done.message_id, shape(last)]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
