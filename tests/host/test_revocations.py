"""What one worker does with Celery's list of revoked ids, look by look, and which messages it drops."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, signals
from celery.worker import state
from celery.worker.control import Panel
from kombu import Connection
from sqlalchemy.exc import OperationalError

from tests.domain.crowd import broken, transaction
from think_celery import Think
from think_celery.domain.knocks import ADVANCE_WORKFLOW, DELIVER_NEWS, RUN_SUBMISSION
from think_celery.domain.submissions import submissions
from think_celery.providers.scripted import say
from think_celery.tasks import TICK, register
from think_celery.testing import ThinkTest, think_test
from think_celery.worker.revoked import Revocations, ThinkRequest


class Revokee(Think):
    """Answers what its script says."""


@pytest.fixture
def t(sqlite_url: str) -> Iterator[ThinkTest]:
    with think_test(database_url=sqlite_url) as test:
        yield test
    state.revoked.clear()


def make_app(t: ThinkTest) -> Celery:
    """A Celery app with our tasks."""
    app = Celery("revoked", broker="memory://", set_as_current=False)
    register(app, lambda: t.rt)
    return app


@pytest.fixture
def app(t: ThinkTest) -> Celery:
    return make_app(t)


@pytest.fixture
def worker(t: ThinkTest, app: Celery) -> Iterator[Revocations]:
    made = Revocations(app, t.rt)
    made.start()
    yield made
    made.stop()


def submit(name: str, key: str = "k") -> Any:
    """Submit a turn."""
    return Revokee(name).submit_messages("Hello", idempotency_key=key)


def status(t: ThinkTest, submission: Any) -> str:
    """How it stands now."""
    return str(submissions.get(t.rt, submission.submission_id).status)


def drop(app: Celery, task_id: str, name: str = RUN_SUBMISSION, signum: str | int | None = None) -> None:
    """Say what Celery says when it drops a message, or of what a process that was ended had in hand."""
    task, terminated = app.tasks[name], signum is not None
    request = type("Context", (), {"id": task_id})
    signals.task_revoked.send(task, request=request, terminated=terminated, signum=signum, expired=False)


def revoke(app: Celery, *task_ids: str, command: str = "revoke", **options: Any) -> None:
    """Do what a worker does that is told to."""
    panel = type("Panel", (), {"app": app, "hostname": "worker@here"})
    Panel.data[command](panel, task_id=list(task_ids), **options)


class TestALook:
    def test_cancels_what_was_revoked(self, t: ThinkTest, app: Celery, worker: Revocations) -> None:
        """And only that: ids of the host's own tasks, of other submissions and of ended ones change nothing."""
        t.script(Revokee, say("Good morning."))
        ended = submit("ended")
        t.run_until_idle()
        revoked, other = submit("revoked"), submit("other")
        revoke(app, "of-the-host's", "\x00", ended.submission_id, revoked.submission_id)
        revoke(make_app(t), other.submission_id)

        worker.look()

        rows = [submissions.get(t.rt, each.submission_id) for each in (ended, revoked, other)]
        assert [(row.status, row.error) for row in rows] == [
            ("completed", None),
            ("aborted", "revoked in Celery"),
            ("pending", None),
        ]

    def test_cancels_what_was_terminated(self, t: ThinkTest, app: Celery, worker: Revocations) -> None:
        """`celery control terminate` is a command of its own, which revokes as well."""
        ended = submit("ended")
        revoke(app, ended.submission_id, command="terminate", signal="TERM")

        worker.look()

        assert status(t, ended) == "aborted"
        assert ended.submission_id in state.revoked  # Celery has had its own command

    def test_leaves_alone_what_was_revoked_before(self, t: ThinkTest, worker: Revocations) -> None:
        """A worker that starts or connects again is told what others remember, or reads it from its statedb. Who
        ran when it was revoked has acted; what has that id today was deleted and accepted anew."""
        anew = submit("ada")
        state.revoked.update([anew.submission_id])

        worker.look()

        assert status(t, anew) == "pending"

    def test_that_failed_is_made_again(
        self, t: ThinkTest, app: Celery, worker: Revocations, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The database may be away: no revoke is forgotten for that."""

        def fail(*_: Any, **__: Any) -> None:
            raise OperationalError("UPDATE", None, Exception())

        revoked = submit("revoked")
        revoke(app, revoked.submission_id)
        with monkeypatch.context() as patch:
            patch.setattr(submissions, "cancel", fail)
            with pytest.raises(OperationalError):
                worker.look()

        worker.look()

        assert status(t, revoked) == "aborted"

    def test_goes_on_where_one_of_many_can_not_be_cancelled(
        self, t: ThinkTest, app: Celery, worker: Revocations, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It hides no other, and is tried again when whatever stands in its way is gone."""
        broken_one, other, dropped = submit("broken"), submit("other"), submit("dropped")
        revoke(app, broken_one.submission_id, other.submission_id)
        drop(app, dropped.submission_id)
        with broken(t.rt, "think_submissions", f"OLD.id = '{broken_one.submission_id}'"):
            worker.look()
            before = [status(t, each) for each in (broken_one, other, dropped)]

        worker.look()

        assert before == ["pending", "aborted", "aborted"]
        assert f"could not cancel {broken_one.submission_id}, which was revoked" in caplog.text
        assert status(t, broken_one) == "aborted"

    def test_cancels_what_was_dropped_and_is_not_in_the_list(
        self, t: ThinkTest, app: Celery, worker: Revocations
    ) -> None:
        """Celery revokes by stamps, too, of which its list of ids knows nothing."""
        revoked, other = submit("revoked"), submit("other")
        drop(app, revoked.submission_id)
        drop(app, other.submission_id, TICK)
        drop(make_app(t), other.submission_id)

        worker.look()

        assert (status(t, revoked), status(t, other)) == ("aborted", "pending")

    def test_is_the_last_thing_that_a_worker_does(
        self,
        t: ThinkTest,
        app: Celery,
        worker: Revocations,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """FR-08: told to stop right after a revoke, it must not be the only one that has heard of it."""
        revoked = submit("revoked")
        revoke(app, revoked.submission_id)

        worker.stop()

        assert status(t, revoked) == "aborted"
        worker.start()
        revoke(app, submit("another").submission_id)
        monkeypatch.setattr(worker, "look", lambda: 1 / 0)
        worker.stop()  # a database that is away does not keep it from ending
        assert "could not look at what was revoked last" in caplog.text

    def test_goes_through_a_long_list_in_parts(
        self, t: ThinkTest, app: Celery, worker: Revocations, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever revokes thousands at once must not hold up the tick; at its end a worker looks at all of them."""
        monkeypatch.setattr("think_celery.worker.revoked.AT_ONCE", 2)
        all_of_them = [submit(f"{number}") for number in range(5)]
        revoke(app, *(each.submission_id for each in all_of_them))
        left = []

        for look in (worker.look, worker.stop):
            look()
            left.append(sum(status(t, each) == "pending" for each in all_of_them))

        assert left == [3, 0]

    def test_that_comes_to_a_dropped_message_before_its_revoke(
        self, t: ThinkTest, app: Celery, worker: Revocations, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is further down in that list: its messages are dropped until it is cancelled."""
        monkeypatch.setattr("think_celery.worker.revoked.AT_ONCE", 1)
        first, second = submit("first"), submit("second")
        revoke(app, first.submission_id, second.submission_id)
        drop(app, second.submission_id)

        worker.look()
        before = (status(t, first), status(t, second), second.submission_id in state.revoked)
        worker.look()

        assert (before, status(t, second)) == (("aborted", "pending", True), "aborted")


class TestLocked:
    """A submission that a caller's open transaction has changed: on PostgreSQL a cancel would wait for that."""

    @pytest.fixture
    def t(self, postgres_url: str) -> Iterator[ThinkTest]:
        with think_test(database_url=postgres_url) as test:
            yield test
        state.revoked.clear()

    def ends(self, work: Callable[[], None]) -> bool:
        """Whether this work comes to an end."""
        working = threading.Thread(target=work, daemon=True)
        working.start()
        working.join(10)
        return not working.is_alive()

    @pytest.mark.parametrize("told", [revoke, drop])
    def test_is_left_for_the_next_look(
        self, t: ThinkTest, app: Celery, worker: Revocations, told: Callable[[Celery, str], None]
    ) -> None:
        """A look goes on with the others, and the tick with its work; no revoke is forgotten for that."""
        locked, other = submit("locked"), submit("other")
        told(app, locked.submission_id)
        told(app, other.submission_id)
        with transaction(t.rt) as session:
            Revokee("locked").cancel_submission(locked.submission_id)

            assert self.ends(worker.look)
            assert self.ends(worker.look)

            session.rollback()
        before = (status(t, locked), status(t, other))
        worker.look()

        assert (before, status(t, locked)) == (("pending", "aborted"), "aborted")

    def test_has_its_messages_dropped_until_it_is_cancelled(
        self, t: ThinkTest, app: Celery, worker: Revocations
    ) -> None:
        """Whoever is ended in its midst hands it over, and has it locked for that. What it then knocks for is not
        let through, as it is for what was accepted anew: the next process would go on with it, and end it."""
        handed_over = submit("handed over")
        revoke(app, handed_over.submission_id)
        drop(app, handed_over.submission_id, signum=15)
        sent: list[str] = []
        t.rt.knock = lambda knock: sent.append(knock.task_id)
        with transaction(t.rt) as session:
            Revokee("handed over").cancel_submission(handed_over.submission_id)

            assert self.ends(worker.look)

            session.rollback()
        assert (handed_over.submission_id in state.revoked, sent) == (True, [])
        worker.look()

        assert status(t, handed_over) == "aborted"

    def test_does_not_keep_a_worker_from_stopping(
        self, t: ThinkTest, app: Celery, worker: Revocations, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its last looks come to an end, and say what could not be cancelled."""
        locked = submit("locked")
        revoke(app, locked.submission_id)
        with transaction(t.rt):
            Revokee("locked").cancel_submission(locked.submission_id)

            assert self.ends(worker.stop)

        said = f"revoked, but not cancelled, for somebody has them locked: {locked.submission_id}"
        assert said in caplog.messages


class TestAcceptedAnew:
    """A submission that was revoked and deleted; its key, and so its id, is then used again."""

    @pytest.fixture
    def again(self, t: ThinkTest, app: Celery, worker: Revocations) -> Any:
        first = submit("ada")
        revoke(app, first.submission_id)
        worker.look()
        assert Revokee("ada").delete_submission(first.submission_id)
        t.run_until_idle()
        again = submit("ada")
        assert again.submission_id == first.submission_id
        return again

    def test_it_is_not_cancelled_once_more(self, t: ThinkTest, worker: Revocations, again: Any) -> None:
        """A revoke is for what was there when it came."""
        worker.look()

        assert status(t, again) == "pending"

    def test_it_runs_although_its_first_message_is_dropped(
        self, t: ThinkTest, app: Celery, worker: Revocations, again: Any
    ) -> None:
        """Else it would wait, and its agent with it, for as long as Celery remembers: three hours."""
        sent: list[str] = []
        knock, t.rt.knock = t.rt.knock, lambda knock: sent.append(knock.task_id)
        drop(app, again.submission_id)

        worker.look()

        t.rt.knock = knock
        assert again.submission_id not in state.revoked
        assert (sent, status(t, again)) == ([again.submission_id], "pending")

    def test_it_can_be_revoked_again(
        self, t: ThinkTest, app: Celery, worker: Revocations, again: Any
    ) -> None:
        """Then it is cancelled, as anything else."""
        drop(app, again.submission_id)
        worker.look()

        revoke(app, again.submission_id)
        worker.look()

        assert status(t, again) == "aborted"


class TestAProcessThatIsEnded:
    """Celery ends the process that runs a task; by then it may run the turn after it."""

    @pytest.mark.parametrize(("signum", "ends_as"), [("SIGTERM", "pending"), (15, "aborted")])
    def test_what_it_had_in_hand(
        self, t: ThinkTest, app: Celery, worker: Revocations, signum: str | int, ends_as: str
    ) -> None:
        """That was not revoked, and is taken over; one that was ended by a stamp is named with the signal's number."""
        submission = submit("a")

        drop(app, submission.submission_id, signum=signum)
        worker.look()

        assert status(t, submission) == ends_as


class TestMessages:
    def request(self, app: Celery, name: str, **options: Any) -> ThinkRequest:
        """A message as a worker gets it, by way of a broker in memory."""
        app.tasks[name].apply_async(task_id="id-1", kwargs={}, **options)
        connection: Connection = app.connection_for_read()
        with connection:
            message = app.amqp.queues["celery"](connection.default_channel).get(no_ack=True)
        task = app.tasks[name]
        return ThinkRequest(
            message, app=app, task=task, body=message.body, headers=message.headers, decoded=False
        )

    def test_a_workflow_and_news_are_not_dropped(self, app: Celery) -> None:
        """Their knocks keep their ids until the row has moved; the id in the list would hold them up for hours."""
        state.revoked.add("id-1")

        dropped = {
            name: self.request(app, name).revoked()
            for name in (RUN_SUBMISSION, ADVANCE_WORKFLOW, DELIVER_NEWS)
        }

        assert dropped == {RUN_SUBMISSION: True, ADVANCE_WORKFLOW: False, DELIVER_NEWS: False}

    def test_knocks_do_not_expire(self, app: Celery) -> None:
        """A time that some middleware of the host's gave it ends no row; a tick that waited is useless."""
        past = datetime.now(UTC) - timedelta(seconds=5)

        expired = {
            name: self.request(app, name, expires=past).revoked()
            for name in (RUN_SUBMISSION, ADVANCE_WORKFLOW, TICK)
        }

        assert expired == {RUN_SUBMISSION: False, ADVANCE_WORKFLOW: False, TICK: True}
