"""The same in every pool: work is done, deadlines hold, and a worker that stops hands over and signs off."""

import re
import signal
import time
from collections import Counter

import pytest

from tests.crash.model import FINAL
from tests.crash.stage import BOUND, Stage
from tests.crash.test_celery_worker import publisher
from tests.crash.worker import POOLS
from tests.pools.scenes import alive, begin, connect, ended, hand, queue_of, row_of
from tests.pools.talker import Chronicler, Correspondent, Itinerary, Relay
from think_celery.domain.jobs import runs
from think_celery.store import tables

READY = re.compile(r"(\d+@\S+) ready")
EVERY_POOL = pytest.mark.parametrize("pool", POOLS)


@EVERY_POOL
class TestEveryPool:
    def test_work_is_done_and_nothing_is_left(self, stage: Stage, redis_url: str, pool: str) -> None:
        """FR-11: a workflow and three turns in a row, whose tool has an HTTP client; then the worker signs off.

        A9: the workflow's prompt has a tool call before its final answer.
        B22: a fiber that it has in hand and that looks is handed over, with its snapshot; that counts as no attempt.
        """
        # One child, for all turns; among greenlets Celery looks only every two seconds for a slot that is free again.
        worker = begin(stage, pool, redis_url, {"worker_concurrency": 4 if pool == "gevent" else 1})
        connect(stage, redis_url)

        stage.start_saga("do: note")
        stage.send_go()
        agent = hand(stage)
        turns = [agent.submit_messages("do: visit").submission_id for _ in range(3)]
        stage.until(lambda: stage.saga_ended() and ended(stage, *turns), BOUND, what="ended")

        stage.check_saga("do: note", None)
        assert {row_of(stage, turn).status for turn in turns} == {"completed"}
        visits = [line["pid"] for line in stage.effects() if line["what"] == "visit"]
        assert len(visits) == 3
        assert len(set(visits)) == 1
        assert len(alive(stage)) == 1
        walker = Correspondent._bound_to(stage.rt, "ann")
        fiber = walker.start_fiber("walk", "far").fiber_id
        stage.until(lambda: stage.effects()[-1]["what"] == "walks far", BOUND, what="begun")
        worker.signal(signal.SIGTERM)
        assert worker.wait(20) == 0, worker.output()
        assert alive(stage) == []
        assert "ERROR/" not in worker.output()
        (handed_over,) = stage.rows(tables.jobs)
        assert (handed_over.status, handed_over.attempts, handed_over.process_id) == ("pending", 0, None)
        assert runs.run(stage.rt, fiber).word == "completed"
        assert [each.output for each in walker.list_fibers()] == ["walked half of far"]

    def test_every_kind_of_step(self, stage: Stage, redis_url: str, pool: str) -> None:
        """A2, A25: fan-out, the first of two, a child, times, state and news, with one slot for all of it."""
        begin(stage, pool, redis_url, {"worker_concurrency": 4 if pool == "gevent" else 1})
        connect(stage, redis_url)
        agent = Chronicler._bound_to(stage.rt, "ann")

        it = agent.run_workflow(Itinerary, {})

        def told() -> list[str]:
            return [line["what"] for line in stage.effects() if line["key"] == it]

        stage.until(
            lambda: len(told()) == 2 and agent.get_workflow(it).completed_at is not None,
            2 * BOUND,
            what="told of",
        )
        assert agent.get_workflow(it).output == ["bob", "cid", "ask[dan]", "dan", "errand done", 1]
        assert told() == ["event {'type': 'half', 'payload': 'errand done'}", "complete nearly"]
        assert agent.state["journeys"] == 1
        assert {step.status for step in stage.rows(tables.steps)} == {"done"}

    def test_a_step_for_workers_of_another_queue(self, stage: Stage, redis_url: str, pool: str) -> None:
        """Design 7: `do(queue=)` runs in a worker of that queue and in no other, with its retries; all before and after
        it in one of the class's own queue, and what was recorded is not run again there."""
        far = f"{queue_of(stage)}-far"
        conf = {"worker_concurrency": 4 if pool == "gevent" else 1}
        begin(stage, pool, redis_url, conf)
        begin(stage, pool, redis_url, conf, listens=far)
        connect(stage, redis_url)
        agent = Correspondent._bound_to(stage.rt, "ann")

        runs = [agent.run_workflow(Relay, {"queue": far}) for _ in range(3)]

        def ended() -> bool:
            return all(agent.get_workflow(each).completed_at is not None for each in runs)

        stage.until(ended, 3 * BOUND, what="ended")
        assert [agent.get_workflow(each).output for each in runs] == [["here done", "there", "back done"]] * 3
        done = stage.effects()
        assert Counter(line["what"] for line in done) == {"here": 3, "there": 6, "back": 3}
        pids = {
            what: {line["pid"] for line in done if line["what"] == what} for what in ("here", "there", "back")
        }
        assert not (pids["here"] | pids["back"]) & pids["there"]

    def test_a_silent_server_meets_the_deadline(self, stage: Stage, redis_url: str, pool: str) -> None:
        """FR-12: headers, then silence: within five seconds the turn ends in error, and its slot is free."""
        stage.environment["THINK_TURN_TIMEOUT"] = "3"
        begin(stage, pool, redis_url)
        connect(stage, redis_url)

        silent = hand(stage, "silent").submit_messages("do: silent").submission_id
        stage.until(lambda: len(stage.requests()) == 1, BOUND, what="asked")
        asked_at = time.monotonic()
        after = hand(stage, "after").submit_messages("do:").submission_id
        ended_at = stage.until(lambda: ended(stage, silent), BOUND, what="ended")
        stage.until(lambda: ended(stage, after), BOUND, what="followed by the next turn")

        assert stage.took(asked_at, ended_at) <= 5.0
        assert (row_of(stage, silent).status, row_of(stage, silent).error_type) == ("error", "TurnTimeout")
        assert row_of(stage, after).status == "completed"

    def test_the_limits_of_a_model(self, stage: Stage, redis_url: str, pool: str) -> None:
        """FR-81, FR-82: silence, keep-alives and a halt each end at their own limit; a long wait frees the one slot."""
        limits = {"FIRST_TOKEN_TIMEOUT": "1", "TOKEN_GAP_TIMEOUT": "1.5", "MODEL_ATTEMPTS": "2"}
        stage.environment.update({f"THINK_{name}": value for name, value in limits.items()})
        begin(stage, pool, redis_url, {"worker_concurrency": 4 if pool == "gevent" else 1})
        connect(stage, redis_url)
        began_at = time.monotonic()

        faults = ("busy", "silent", "pinging", "halting")
        turns = {word: hand(stage, word).submit_messages(word).submission_id for word in faults}
        after = hand(stage, "after").submit_messages("do:").submission_id
        failed = [turns[word] for word in faults[1:]]
        ended_at = stage.until(lambda: ended(stage, *failed, after), 3 * BOUND, what="ended")

        assert stage.took(began_at, ended_at) <= 3 * 5.0  # two attempts each, one turn after the other
        errors = {word: row_of(stage, turns[word]).error for word in faults[1:]}
        assert "no token came within 1 s" in errors["silent"]
        assert "no token came within 1 s" in errors["pinging"]
        assert "no token came for 1.5 s in the middle" in errors["halting"]
        assert row_of(stage, after).status == "completed"
        assert (row_of(stage, turns["busy"]).status, row_of(stage, turns["busy"]).attempts) == ("pending", 0)


class TestHandingOver:
    """A worker stops in the middle of an answer: another goes on there, and nobody waits for a lease."""

    def play(self, stage: Stage, redis_url: str, pool: str, how: str) -> None:
        """Stop the worker that streams, and see what the one beside it makes of it."""
        first = begin(stage, pool, redis_url)
        connect(stage, redis_url)
        submission = stage.submit("do: note glacially").submission_id
        stage.until(lambda: len(stage.requests()) == 2, BOUND, what="streaming")
        begin(stage, "threads", redis_url)
        stage.until(lambda: len(stage.messages()[-1].text) > 5, BOUND, what="stored in part")

        told_at = time.monotonic()
        if how == "control":
            app, name = publisher(redis_url, queue_of(stage))._app, READY.search(first.output())
            assert name
            app.control.shutdown(destination=[name[1]], connection=app.connection_for_write())
        else:
            first.signal(getattr(signal, how))
        taken_at = stage.until(stage.taken_over, BOUND, what="taken over")
        cut = stage.messages()[-1].text
        first.wait(30)

        assert stage.took(told_at, taken_at) <= 2.0
        assert stage.took(first.ended_at, taken_at) <= 1.0, stage.report()
        assert cut
        assert FINAL.startswith(cut)
        stage.until(stage.turn_ended, 3 * BOUND, what="ended")
        stage.check_answer("do: note glacially", stage.submission().message_id)
        # That of the second worker; the first one's does not count.
        assert stage.submission().attempts == 1, stage.report()
        assert stage.counts() == {"note": 1}
        assert len(stage.requests()) == 3
        log = "\n".join(worker.output() for worker in stage.workers)
        assert log.count(f"submission {submission} is ") == 1
        assert len(alive(stage)) == 1  # the other one's

    @EVERY_POOL
    @pytest.mark.parametrize("how", ["SIGTERM", "SIGQUIT"])
    def test_a_signal(self, stage: Stage, redis_url: str, pool: str, how: str) -> None:
        """FR-07: after SIGTERM and SIGQUIT the part is stored, and taken up within a second of the worker's end."""
        self.play(stage, redis_url, pool, how)

    @pytest.mark.parametrize("pool", ["prefork", "threads"])
    def test_a_command(self, stage: Stage, redis_url: str, pool: str) -> None:
        """``app.control.shutdown()`` sends no signal at all, and does the same."""
        self.play(stage, redis_url, pool, "control")
