"""Jobs: calls that are made later, in order, again where they fail, and once more where their worker dies."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from tests.domain.crowd import change, transaction
from tests.domain.flows import worker_dies
from tests.domain.porter import Hauler, Parcel, porter, row, run
from think_celery import JobStatus, NonRetryableError, Retry, current
from think_celery.domain import tick
from think_celery.domain.jobs import jobs
from think_celery.errors import (
    AsyncNotSupported,
    InvalidMethod,
    InvalidValue,
    JobError,
    JobNotFound,
    LeaseLost,
    NestedJob,
    NotSerializable,
    PayloadTooLarge,
)
from think_celery.providers.scripted import say
from think_celery.store import jobs as rows
from think_celery.store import tables
from think_celery.testing import ThinkTest

Did = list[Any]
Set = Callable[[Callable[..., Any]], None]


@pytest.fixture
def did(monkeypatch: pytest.MonkeyPatch) -> Did:
    """What the porters have carried, in order; an exception as a payload is raised."""
    done: Did = []

    def carry(agent: Hauler, payload: Any) -> Any:
        done.append(payload)
        if payload == "fail":
            raise ValueError("it is heavy")
        if payload == "give up":
            raise NonRetryableError("it is glued to the floor")
        return payload

    monkeypatch.setattr(Hauler, "carries", staticmethod(carry))
    return done


@pytest.fixture
def carries(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Set what the porters do."""
    return lambda carry: monkeypatch.setattr(Hauler, "carries", staticmethod(carry))


class TestQueueing:
    def test_calls_are_made_in_order_with_what_they_were_given(self, t: ThinkTest, did: Did):
        """B21: queue() stores the call and returns; a worker makes it, after all that were queued before."""
        agent = porter(t.rt)
        accepted = [agent.queue(agent.carry, {"n": n}) for n in range(5)]
        assert did == []
        assert {job.status for job in accepted} == {JobStatus.PENDING}

        t.run_until_idle()

        assert did == [{"n": n} for n in range(5)]
        ended = [agent.get_job(job.job_id) for job in accepted]
        assert [(job.status, job.output, job.attempts) for job in ended if job] == [
            ("completed", {"n": n}, 1) for n in range(5)
        ]

    def test_methods_are_named_or_bound_and_take_one_payload_or_none(self, t: ThinkTest, did: Did):
        """B21: `method(payload)`, or `method()`; a model where the parameter asks for one, also from a dict."""
        agent = porter(t.rt)
        agent.queue("rest")
        agent.queue(agent.carry)
        agent.queue(agent.deliver, Parcel(label="a", weight=2))
        agent.queue("deliver", {"label": "b"})
        agent.queue(agent.carry, datetime(2027, 1, 1, tzinfo=UTC))

        t.run_until_idle()

        parcels = [Parcel(label="a", weight=2), Parcel(label="b")]
        assert did == ["rest", None, *parcels, datetime(2027, 1, 1, tzinfo=UTC)]

    def test_a_method_of_another_handle_on_the_same_agent_is_the_agents(self, t: ThinkTest, did: Did):
        """B21: handles are made wherever they are needed, so `Hauler("a").queue(Hauler("a").carry, …)` is usual."""
        agent = porter(t.rt)
        agent.queue(porter(t.rt).carry, 1)

        t.run_until_idle()

        assert did == [1]

    @pytest.mark.parametrize(
        ("method", "payload", "problem"),
        [
            (lambda payload: payload, 1, "no method of this agent"),
            (print, 1, "no method of this agent"),
            ("carried", 1, "has no such method"),
            ("__init__", "b", "has no such method"),
            ("agent_class", 1, "has no such method"),
            (Hauler.carry, 1, "no method of this agent"),
            (Hauler("b").carry, 1, r"belongs to Hauler\('b'\)"),
            ("two", 1, r"two\(one: int, other: int\)"),
            ("rest", 1, r"called as rest\(payload\)"),
            ("deliver", None, "does not fit Parcel"),
            ("each", 1, "generator"),
        ],
    )
    def test_what_can_t_be_called_later_is_refused_at_once(
        self, quick: ThinkTest, method: Any, payload: Any, problem: str
    ):
        """B21: an unsuitable method is an error of the caller's, not of a worker's at night."""
        agent = porter(quick.rt)
        with pytest.raises(ValueError, match=problem) as refused:
            agent.queue(method, payload)

        assert isinstance(refused.value, InvalidMethod | InvalidValue)
        assert agent.list_jobs() == []

    def test_unfit_arguments_are_refused_at_once(self, quick: ThinkTest):
        """Payloads, keys and limits that can't be stored store nothing."""
        agent = porter(quick.rt)
        with pytest.raises(AsyncNotSupported):
            agent.queue(agent.later, 1)
        with pytest.raises(NotSerializable):
            agent.queue(agent.carry, object())
        with pytest.raises(PayloadTooLarge):
            agent.queue(agent.carry, "x" * 2_000_000)
        with pytest.raises(InvalidValue, match="label"):
            agent.queue(agent.deliver, {"weight": 1})
        with pytest.raises(InvalidValue, match="idempotency_key"):
            agent.queue(agent.carry, 1, idempotency_key=" ")
        with pytest.raises(ValueError, match="time_limit"):
            agent.queue(agent.carry, 1, time_limit=0)
        with pytest.raises(TypeError, match="Retry"):
            agent.queue(agent.carry, 1, retry=3)
        with pytest.raises(TypeError, match=r"\.queue\(\) takes"):  # by the name that was called
            agent.queue(agent.carry, 1, 2)

        assert agent.list_jobs() == []

    def test_the_same_key_is_one_call(self, t: ThinkTest, did: Did):
        """B21: a repeat gives the first call back, also when it has ended; another agent's key is another."""
        agent, other = porter(t.rt), porter(t.rt, "b")
        first = agent.queue(agent.carry, 1, idempotency_key="k", metadata={"from": "here"})
        again = agent.queue(agent.carry, 2, idempotency_key="k")
        other.queue(other.carry, 3, idempotency_key="k")
        t.run_until_idle()

        assert (first.accepted, again.accepted, again.job_id) == (True, False, first.job_id)
        assert sorted(did) == [1, 3]
        ended = agent.get_job_by_key("k")
        assert ended is not None
        assert (ended.status, ended.metadata) == ("completed", {"from": "here"})
        assert ended.to_dict()["jobId"] == first.job_id

    def test_a_rolled_back_caller_has_queued_nothing(self, t: ThinkTest, did: Did):
        """Accepted in a joined transaction means: once that commits. The knock follows the commit."""
        agent = porter(t.rt)
        with transaction(t.rt) as session:
            agent.queue(agent.carry, "lost")
            session.rollback()
            agent.queue(agent.carry, "kept")
            assert isinstance(session, Session)
            session.commit()
        t.run_until_idle()

        assert did == ["kept"]

    def test_the_class_has_its_queue_and_the_agent_its_method(self, quick: ThinkTest):
        """`queue = "gpu"` in a class or a mixin names the Celery queue, and hides no method."""

        class Loaded:
            queue = "gpu"

        class Lift(Loaded, Hauler):
            pass

        lift = Lift._bound_to(quick.rt, "a")
        job = lift.queue(lift.carry, 1)
        assert Lift.queue == "gpu"
        assert Hauler.queue is None
        assert row(quick.rt, job.job_id).queue == "gpu"


class TestFailing:
    def test_it_is_tried_again_and_holds_its_lane_up(self, t: ThinkTest, did: Did):
        """B21: FIFO with retries: the one behind waits until the first has ended, for good or not."""
        agent = porter(t.rt)
        agent.queue(agent.carry, "fail", retry=Retry(max_attempts=2, delay="1 minute"))
        agent.queue(agent.carry, "next")

        t.run_until_idle()
        assert did == ["fail"]
        waiting = agent.list_jobs(status="pending")[-1]
        assert (waiting.error_type, waiting.attempts) == ("ValueError", 1)
        t.skip(50)
        assert did == ["fail"]
        t.skip(15)

        assert did == ["fail", "fail", "next"]
        failed = agent.list_jobs(status="error")[0]
        assert (failed.error_type, failed.error, failed.attempts) == ("ValueError", "it is heavy", 2)

    def test_a_non_retryable_error_ends_it_at_once(self, t: ThinkTest, did: Did):
        """B21: as in a step."""
        agent = porter(t.rt)
        job = agent.queue(agent.carry, "give up")
        t.run_until_idle()

        assert did == ["give up"]
        assert row(t.rt, job.job_id).status == "error"

    def test_an_unkeepable_result_is_no_failure(self, quick: ThinkTest, monkeypatch: pytest.MonkeyPatch):
        """The method has done its work; to do it again would not help."""
        monkeypatch.setattr(Hauler, "carries", staticmethod(lambda agent, payload: object()))
        agent = porter(quick.rt)
        job = agent.queue(agent.carry, 1)
        quick.run_until_idle()

        ended = agent.get_job(job.job_id)
        assert ended is not None
        assert (ended.status, ended.output) == ("completed", None)

    def test_what_a_hook_raises_changes_nothing(self, t: ThinkTest, did: Did):
        """A job of kind "hook" is a reaction: it completes; its payload are its arguments."""
        agent = porter(t.rt)
        insert = {"kind": "hook", "lane": jobs.HOOK, "method": "carry", "payload_text": '["fail"]'}
        accepted = t.rt.db.transact(lambda tx: jobs.insert(t.rt, tx, agent._ref, **insert))
        t.run_until_idle()

        assert did == ["fail"]
        assert row(t.rt, accepted.id).status == "completed"

    def test_a_payload_that_no_longer_fits_is_not_tried_again(self, quick: ThinkTest, did: Did):
        """A later attempt would meet the same payload."""
        agent = porter(quick.rt)
        job = agent.queue(agent.deliver, {"label": "a"})
        change(quick.rt, update(tables.jobs).values(payload='{"weight":1}'))
        quick.run_until_idle()

        ended = row(quick.rt, job.job_id)
        assert (ended.status, ended.error_type, did) == ("error", "UnreadableValue", [])


class TestDying:
    @pytest.mark.parametrize("point", ["job:committed", "job:claimed", "job:before-call"])
    def test_killed_before_the_call_it_is_made_once(self, t: ThinkTest, did: Did, point: str):
        """Accepted means stored: whoever dies around the call, it is made."""
        agent = porter(t.rt)
        t.crash_at(point)
        if point == "job:committed":
            with pytest.raises(BaseException, match=point):
                agent.queue(agent.carry, 1)
            t.skip(5)
        else:
            agent.queue(agent.carry, 1)
            t.run_until_idle()

        assert did == [1]
        assert agent.list_jobs()[0].status == "completed"

    @pytest.mark.parametrize("point", ["job:called", "job:before-end"])
    def test_killed_after_the_call_it_is_made_again(self, t: ThinkTest, did: Did, point: str):
        """At least once: the result was not stored, so nobody knows that it was made. The next one waits its turn."""
        agent = porter(t.rt)
        t.crash_at(point)
        agent.queue(agent.carry, 1)
        agent.queue(agent.carry, 2)
        t.run_until_idle()

        assert did == [1, 1, 2]
        assert [job.status for job in agent.list_jobs()] == ["completed", "completed"]

    def test_killed_after_its_end_the_next_one_runs_all_the_same(self, t: ThinkTest, did: Did):
        """The transaction of the end lets the tick expect the next one of the lane."""
        agent = porter(t.rt)
        agent.queue(agent.carry, 1)
        agent.queue(agent.carry, 2)
        t.crash_at("job:ended")
        t.run_until_idle()
        t.lose_messages()
        t.skip(5)

        assert did == [1, 2]

    def test_poison_ends(self, t: ThinkTest, did: Did):
        """Claims that died are counted before the work, and the cap ends the row in an error that names them."""
        agent = porter(t.rt)
        job = agent.queue(agent.carry, 1)
        agent.queue(agent.carry, 2)
        t.crash_at("job:called", times=t.rt.settings.max_attempts)
        t.run_until_idle()

        ended = row(t.rt, job.job_id)
        assert (ended.status, ended.error_type) == ("error", "TooManyAttempts")
        assert did == [1] * t.rt.settings.max_attempts + [2]

    def test_all_knocks_lost(self, t: ThinkTest, did: Did):
        """Rows are the truth: with every message thrown away the tick finds each, in order."""
        agent = porter(t.rt)
        for n in range(3):
            agent.queue(agent.carry, n)
        for _ in range(12):
            t.lose_messages()
            t.clock.advance(timedelta(seconds=2))
            tick.run(t.rt)
            knock = [each for each in t._knocks if each.task == "think.job.run"][:1]
            t.lose_messages()
            for each in knock:
                run(t.rt, each.task_id)

        assert did == [0, 1, 2]

    def test_a_flushed_broker(self, t: ThinkTest, did: Did):
        """knock_now lets the next pass knock for each head, however far its next knock was away."""
        agent, other = porter(t.rt), porter(t.rt, "b")
        agent.queue(agent.carry, 1)
        agent.queue(agent.carry, 2)
        other.queue(other.carry, 3)
        t.lose_messages()
        change(t.rt, update(tables.jobs).values(knock_at=datetime(2030, 1, 1, tzinfo=UTC)))
        tick.knock_now(t.rt)
        tick.run(t.rt)

        assert sorted(each.task_id for each in t._knocks) == sorted(
            job.job_id for job in (agent.list_jobs()[1], other.list_jobs()[0])
        )
        t.run_until_idle()
        assert sorted(did) == [1, 2, 3]


class TestInHand:
    def test_a_job_may_ask_its_own_agent(self, t: ThinkTest, monkeypatch: pytest.MonkeyPatch):
        """B21: jobs and turns overlap: save_messages and submit_messages work inside, in one worker."""
        t.script("Hauler", say("one"), say("two"))

        def ask(agent: Hauler, payload: Any) -> str:
            agent.submit_messages("later")
            return agent.save_messages("now").text

        monkeypatch.setattr(Hauler, "carries", staticmethod(ask))
        agent = porter(t.rt)
        job = agent.queue(agent.carry, 1)
        t.run_until_idle()

        ended = agent.get_job(job.job_id)
        assert ended is not None
        assert (ended.status, ended.output) == ("completed", "two")

    def test_the_agent_starts_first(self, t: ThinkTest, did: Did):
        """`on_start` runs once, before the first work of whatever kind."""

        class EagerHauler(Hauler):
            version = "1"

            def on_start(self) -> None:
                did.append("start")

        agent = EagerHauler._bound_to(t.rt, "a")
        agent.queue(agent.carry, 1)
        agent.queue(agent.carry, 2)
        t.run_until_idle()

        assert did == ["start", 1, 2]

    def test_a_second_worker_finds_it_busy_and_one_behind_not_its_turn(self, t: ThinkTest, did: Did):
        """Each run that does not end its row says why, in a word."""
        agent, words = porter(t.rt), []

        def look(agent: Hauler, payload: Any) -> None:
            words.extend([run(t.rt, first.job_id).word, run(t.rt, second.job_id).word])

        Hauler.carries, before = staticmethod(look), Hauler.carries
        try:
            first, second = agent.queue(agent.carry, 1), agent.queue(agent.rest)
            run(t.rt, first.job_id)
        finally:
            Hauler.carries = staticmethod(before)
        words += [run(t.rt, first.job_id).word, run(t.rt, "nobody").word]

        assert words == ["busy", "not-head", "ended-before", "not-found"]

    def test_a_worker_without_the_class_or_the_method_leaves_it(
        self, quick: ThinkTest, did: Did, caplog: pytest.LogCaptureFixture
    ):
        """It is not claimed, no attempt counts, and the log names what is missing."""
        agent = porter(quick.rt)
        job = agent.queue(agent.carry, 1)
        change(quick.rt, update(tables.jobs).values(method="lift"))
        assert run(quick.rt, job.job_id).word == "unknown-method"
        change(quick.rt, update(tables.jobs).values(agent_class="ImportedNowhere"))
        assert run(quick.rt, job.job_id).word == "unknown-class"

        assert (row(quick.rt, job.job_id).attempts, row(quick.rt, job.job_id).status) == (0, "pending")
        assert "lift" in caplog.text
        assert "think_imports" in caplog.text


class TestLookingAndChanging:
    def test_cancel_delete_and_retry(self, t: ThinkTest, did: Did):
        """B21: inspect and delete; what has ended stays as it is, and is begun again as another job."""
        agent = porter(t.rt)
        jobs_ = [agent.queue(agent.carry, n, idempotency_key=f"k{n}") for n in range(4)]
        assert agent.cancel_job(jobs_[0].job_id, "no need")
        assert not agent.cancel_job(jobs_[0].job_id)
        assert agent.delete_job(jobs_[1].job_id)
        assert not porter(t.rt, "b").cancel_job(jobs_[2].job_id)
        t.run_until_idle()

        assert did == [2, 3]
        assert agent.get_job(jobs_[1].job_id) is None
        assert [(job.status, job.error) for job in agent.list_jobs(status=["aborted", "completed"])] == [
            ("completed", None),
            ("completed", None),
            ("aborted", "no need"),
        ]
        again = agent.retry_job(jobs_[2].job_id)
        assert again.job_id != jobs_[2].job_id
        t.run_until_idle()
        assert did == [2, 3, 2]
        with pytest.raises(JobNotFound):
            agent.retry_job(jobs_[1].job_id)

    def test_those_that_have_ended_are_deleted_by_status_kind_and_age(self, t: ThinkTest, did: Did):
        """B21: of this agent, or by the client of all; what goes on stays, and asking for that is an error."""
        agent, other = porter(t.rt), porter(t.rt, "b")
        for n in range(3):
            agent.queue(agent.carry, n)
        other.queue(other.carry, 3)
        t.run_until_idle()
        moment = t.clock.now()
        t.skip(10)
        agent.queue(agent.carry, 4)
        t.run_until_idle()
        waiting = agent.queue(agent.carry, 5)

        assert agent.delete_jobs(kind="fiber") == agent.delete_jobs(status="error") == 0
        assert agent.delete_jobs(status=[]) == 0
        assert agent.delete_jobs(completed_before=moment + timedelta(seconds=1)) == 3
        assert (agent.delete_jobs(status="completed", kind=["queue"]), len(other.list_jobs())) == (1, 1)
        assert current().delete_jobs(completed_before=moment) == 0  # strictly before
        assert current().delete_jobs() == 1
        assert [job.job_id for job in agent.list_jobs()] == [waiting.job_id]
        for unfit in (
            {"status": "pending"},
            {"kind": "x"},
            {"completed_before": moment.replace(tzinfo=None)},
            {"limit": 0},
        ):
            with pytest.raises(ValueError, match=r"cancel_job|none of|time zone|limit"):
                agent.delete_jobs(**unfit)

    def test_so_many_at_most_are_deleted(self, t: ThinkTest, did: Did):
        """Those that were accepted first, as with fibers."""
        agent = porter(t.rt)
        jobs_ = [agent.queue(agent.carry, n) for n in range(4)]
        t.run_until_idle()

        assert (agent.delete_jobs(limit=1), current().delete_jobs(limit=2)) == (1, 2)
        assert [job.job_id for job in agent.list_jobs()] == [jobs_[3].job_id]

    def test_one_of_a_declared_task_is_not_queued_again(self, t: ThinkTest, did: Did):
        """B21: `retry_job` of its ended job is refused, and says that the next slot comes by itself; nor is one begun
        again that a worker has."""
        agent = porter(t.rt)
        job = agent.queue(agent.carry, 1)
        t.run_until_idle()
        change(t.rt, update(tables.jobs).values(task_id="daily", kind="scheduled"))
        with pytest.raises(JobError, match="next slot comes by itself"):
            agent.retry_job(job.job_id)
        assert len(agent.list_jobs()) == 1
        change(t.rt, update(tables.jobs).values(status="running"))
        with pytest.raises(JobError, match=r"end it with cancel_job\(\)"):
            current().retry_job(job.job_id)

    def test_one_that_waits_to_be_tried_again_can_be_tried_now(self, t: ThinkTest, did: Did):
        """`retry_job` of a pending one lets it wait no longer."""
        agent = porter(t.rt)
        job = agent.queue(
            agent.carry, "fail", retry=Retry(max_attempts=2, delay="1 hour", max_delay="1 hour")
        )
        t.run_until_idle()
        agent.retry_job(job.job_id)
        t.run_until_idle()

        assert did == ["fail", "fail"]

    def test_lists_are_filtered(self, t: ThinkTest, did: Did):
        """Newest first; unknown statuses and kinds are errors that name those there are."""
        agent = porter(t.rt)
        for n in range(3):
            agent.queue(agent.carry, n)
        agent.queue(agent.rest)

        assert [job.payload for job in agent.list_jobs(method=agent.carry, limit=2)] == [2, 1]
        assert len(agent.list_jobs(kind="queue", status="pending")) == 4
        assert agent.list_jobs(kind=["fiber", "hook"]) == []
        assert porter(t.rt, "b").list_jobs() == []
        for unfit in ({"status": "lost"}, {"kind": "task"}, {"limit": 0}, {"limit": 1001}):
            with pytest.raises(ValueError, match=r"none of|between"):
                agent.list_jobs(**unfit)

    def test_a_destroyed_agent_s_jobs_are_gone_also_those_that_commit_late(self, t: ThinkTest, did: Did):
        """What was accepted before `destroy` does not run after it."""
        agent = porter(t.rt)
        agent.queue(agent.carry, 1)
        agent.queue(agent.carry, 2)
        agent.destroy()
        assert agent.list_jobs() == []
        late = agent.queue(agent.carry, 3)
        change(t.rt, update(tables.jobs).values(created_at=t.clock.now() - timedelta(seconds=1)))
        t.run_until_idle()

        assert did == []
        assert row(t.rt, late.job_id).status == "aborted"
        agent.queue(agent.carry, 4)
        t.skip(1)
        assert did == [4]

    def test_what_is_queued_after_a_destruction_runs_whatever_the_clock_says(self, t: ThinkTest, did: Did):
        """In the very instant of `destroy`, and after the clock was set back; what committed late in it does not."""
        agent = porter(t.rt)
        agent.queue(agent.carry, 0)
        agent.destroy()
        jobs = [agent.queue(agent.carry, 1), agent.queue(agent.carry, 2)]
        agent.schedule("every minute", "carry", 5)
        t.clock.advance(timedelta(hours=-1))
        jobs.append(agent.queue(agent.carry, 3))
        t.run_until_idle()
        assert (did, [row(t.rt, job.job_id).status for job in jobs]) == ([1, 2, 3], ["completed"] * 3)

        t.skip("1 hour")
        assert not agent.list_schedules(ended=True)
        agent.destroy()
        late = agent.queue(agent.carry, 4)
        destroyed = t.rt.db.read(lambda tx: tx.execute(select(tables.agents.c.jobs_since)).scalar())
        change(t.rt, update(tables.jobs).values(created_at=destroyed))
        t.run_until_idle()
        assert row(t.rt, late.job_id).status == "aborted"

    def test_a_queued_call_that_waits_for_the_next_one(self, t: ThinkTest, carries: Set):
        """It is told so at once, as a turn is that waits for itself, with a time limit of its own or without; also
        from what runs in its place. The other runs afterwards, and waiting for another agent's job is fine."""
        client, ids, said = current(), dict[str, str](), []

        def carry(agent: Hauler, payload: Any) -> Any:
            if payload == "waits":
                ids["next"] = agent.queue("carry", "next").job_id
                for timeout in (None, 5):
                    with pytest.raises(NestedJob) as nested:
                        client.wait_for_job(ids["next"], timeout)
                    said.append((nested.value.job_id, nested.value.own_id))
                ids["other"] = porter(t.rt, "b").queue("carry", "helps").job_id
                return client.wait_for_job(ids["other"]).output
            if payload == "helps":
                for job_id in (ids["next"], ids["first"], ids["other"]):
                    with pytest.raises(NestedJob, match="would wait for ever") as nested:
                        client.wait_for_job(job_id)
                    said.append((nested.value.job_id, nested.value.own_id))
            return payload

        carries(carry)
        ids["first"] = porter(t.rt).queue("carry", "waits").job_id
        began = t.clock.now()
        t.run_until_idle()

        first, following, other = ids["first"], ids["next"], ids["other"]
        assert said == [
            *[(following, first)] * 2,
            *((following, first), (first, first), (other, other)),
        ]
        found = [row(t.rt, each) for each in (first, following, other)]
        assert [(each.status, each.attempts) for each in found] == [("completed", 1)] * 3
        assert (found[0].output, t.clock.now() - began < timedelta(seconds=5)) == ('"helps"', True)

    def test_a_queued_call_may_wait_for_what_is_in_no_lane_and_for_what_has_ended(
        self, t: ThinkTest, carries: Set
    ):
        """Neither waits for the caller's end."""
        client, seen = current(), []

        def carry(agent: Hauler, payload: Any) -> Any:
            if payload == "waits":
                following = agent.queue("carry", "cancelled")
                agent.cancel_job(following.job_id)
                before = client.wait_for_job(done.job_id)
                seen.extend([before.status, client.wait_for_job(following.job_id).status])
            return payload

        carries(carry)
        done = porter(t.rt).queue("carry", "done")
        porter(t.rt).queue("carry", "waits")
        t.run_until_idle()
        assert seen == ["completed", "aborted"]

    def test_retention_removes_what_ended_long_ago(self, t: ThinkTest, did: Did):
        """Ended jobs go after `think_retention`; what has not ended stays."""
        agent = porter(t.rt)
        agent.queue(agent.carry, 1)
        t.run_until_idle()
        left = agent.queue(
            agent.carry, "fail", retry=Retry(max_attempts=9, delay="90 days", max_delay="90 days")
        )
        t.run_until_idle()
        t.skip("31 days")
        t.skip("2 minutes")

        assert [job.job_id for job in agent.list_jobs()] == [left.job_id]

    def test_the_next_due_instant_is_known(self, t: ThinkTest, did: Did):
        """think_test skips to it, and beat sleeps until it."""
        agent = porter(t.rt)
        agent.queue(agent.carry, "fail", retry=Retry(max_attempts=2, delay=30))
        t.run_until_idle()

        assert tick.next_due(t.rt) == t.clock.now() + timedelta(seconds=30)


class TestTheFence:
    def test_a_worker_that_lost_its_job_writes_nothing(self, t: ThinkTest, did: Did):
        """Whoever takes a job away raises its token; the one before can neither end it nor put it back."""
        agent, found = porter(t.rt), []

        def stall(agent: Hauler, payload: Any) -> str:
            if not found:
                found.append("stalled")
                worker_dies(t)
                assert run(t.rt, job.job_id).word == "completed"
                return "late"
            return "first"

        Hauler.carries, before = staticmethod(stall), Hauler.carries
        try:
            job = agent.queue(agent.carry, 1)
            assert run(t.rt, job.job_id).word == "lease-lost"
        finally:
            Hauler.carries = staticmethod(before)

        ended = agent.get_job(job.job_id)
        assert ended is not None
        assert (ended.output, ended.attempts) == ("first", 2)

    def test_the_job_of_a_destroyed_agent_writes_nothing_more(
        self, t: ThinkTest, did: Did, monkeypatch: pytest.MonkeyPatch
    ):
        """No state and no result: its row is gone, and its lease with it."""

        def carry(agent: Hauler, payload: Any) -> None:
            agent.set_state({"before": 1})
            agent.destroy()
            with pytest.raises(LeaseLost):
                agent.set_state({"after": 1})

        monkeypatch.setattr(Hauler, "carries", staticmethod(carry))
        agent = porter(t.rt)
        job = agent.queue(agent.carry, 1)
        assert run(t.rt, job.job_id).word == "lease-lost"
        assert (agent.state, agent.get_job(job.job_id)) == (agent.initial_state, None)

    def test_cancelled_while_it_runs_it_ends_at_once_and_its_lane_waits(self, t: ThinkTest, did: Did):
        """The row is `aborted` when the call returns; the next one begins when the method has stopped."""
        agent, seen = porter(t.rt), []

        def cancel(agent: Hauler, payload: Any) -> str:
            assert agent.cancel_job(first.job_id, "enough")
            seen.append((row(t.rt, first.job_id).status, run(t.rt, second.job_id).word))
            return "dropped"

        Hauler.carries, before = staticmethod(cancel), Hauler.carries
        try:
            first, second = agent.queue(agent.carry, 1), agent.queue(agent.rest)
            outcome = run(t.rt, first.job_id)
        finally:
            Hauler.carries = staticmethod(before)
        t.run_until_idle()

        assert seen == [("aborted", "not-head")]
        assert (outcome.word, outcome.ended) == ("aborted", True)
        ended = row(t.rt, first.job_id)
        assert (ended.status, ended.output, ended.error) == ("aborted", None, "enough")
        assert (ended.process_id, ended.lane) == (None, None)
        assert did == ["rest"]

    def test_a_cancelled_job_whose_worker_died_leaves_its_lane(self, t: ThinkTest, did: Did):
        """The sweep gives up what a dead process had, also where the row had ended."""
        agent = porter(t.rt)

        def cancel_and_die(agent: Hauler, payload: Any) -> None:
            agent.cancel_job(first.job_id)
            t.rt.failpoint("user:here")

        t.crash_at("user:here")
        Hauler.carries, before = staticmethod(cancel_and_die), Hauler.carries
        try:
            first = agent.queue(agent.carry, 1)
            t.run_until_idle()
        finally:
            Hauler.carries = staticmethod(before)
        agent.queue(agent.carry, 2)
        t.run_until_idle()

        assert did == [2]
        assert t.rt.db.read(lambda tx: rows.get(tx, first.job_id)).lane is None


def test_what_jobs_carry_is_in_no_log_record(t: ThinkTest, did: Did, caplog: pytest.LogCaptureFixture):
    """Payloads, keys, metadata and the words of errors stand in rows, and nowhere else."""
    secret = "tulip-4711"
    caplog.set_level(logging.DEBUG, "think_celery")
    agent = porter(t.rt)
    told = {"idempotency_key": secret, "metadata": {"note": secret}}
    agent.queue(agent.carry, "fail", retry=Retry(max_attempts=1))
    agent.queue(agent.carry, {"secret": secret}, **told)
    agent.queue(agent.deliver, {"label": secret})
    cancelled = agent.queue(agent.carry, secret)
    agent.cancel_job(cancelled.job_id, secret)
    t.crash_at("job:called")
    t.run_until_idle()

    assert {"label": secret, "weight": 1.0} in [job.payload for job in agent.list_jobs()]
    said = "".join(repr(record.__dict__) for record in caplog.records) + caplog.text
    assert "completed" in said
    assert secret not in said
