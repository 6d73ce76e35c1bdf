"""Waiting for a turn, or for a conversation at rest, from where no worker is."""

import threading

import pytest
from sqlalchemy.exc import OperationalError

from tests.domain.crowd import clerk, in_processes, workers
from tests.domain.talk import talker
from think_celery import Think
from think_celery.domain import poller
from think_celery.domain.submissions import claims, waiting
from think_celery.domain.submissions.waiting import Wait
from think_celery.errors import NestedTurn, SubmissionNotFound, TurnStillRunning
from think_celery.protocols import TextDelta
from think_celery.providers.scripted import FunctionModel, call, say
from think_celery.store import interactions


@pytest.fixture
def live(database_url):
    """A worker's runtime whose agents echo."""
    with workers(database_url) as rt:
        yield rt


class TestASubmission:
    def test_waits_time_out_and_may_be_repeated(self, database_url):
        """FR-52: a wait that is over leaves the turn alone; the next one gets its end, and then each one at once."""
        with workers(database_url) as rt:
            go = threading.Event()
            rt.stand_in = lambda _: FunctionModel(lambda request: (go.wait(20), say("done"))[1])
            agent = clerk(rt)
            submission = agent.submit_messages("Hi")
            running = threading.Thread(target=claims.run, args=(rt, submission.submission_id))
            running.start()

            with pytest.raises(TurnStillRunning):
                agent.wait_for_submission(submission.submission_id, timeout=0.2)
            assert agent.inspect_submission(submission.submission_id).status != "aborted"
            go.set()
            ended = agent.wait_for_submission(submission.submission_id, timeout=20)
            again = agent.wait_for_submission(submission.submission_id, timeout=0)

            running.join(10)
            assert (ended.status, again.status, ended.message().text) == ("completed", "completed", "done")

    def test_from_another_process(self, database_url):
        """FR-52: whoever knows the id may wait, wherever the turn runs, and however it came to be there."""
        with workers(database_url) as rt:
            submission_id = clerk(rt).submit_messages("Hi").submission_id

            def one(number, ready):
                with workers(database_url) as own:
                    ready()
                    if number == 0:
                        return claims.run(own, submission_id).word
                    return str(clerk(own).wait_for_submission(submission_id, timeout=30).status)

            assert in_processes(3, one) == ["completed"] * 3

    def test_one_that_nobody_knows(self, t):
        """There is nothing to wait for, and that is said at once; another agent's is not this one's, either."""
        other = talker()("b").submit_messages("Hi")

        for unknown in ("never", "a\0b", other.submission_id):
            with pytest.raises(SubmissionNotFound):
                talker()("a").wait_for_submission(unknown)

    def test_what_is_cancelled_has_its_partial_text(self, live):
        """A cancelled turn has ended at once; its worker stores the text soon, and the result has it."""
        streaming, agent = threading.Event(), clerk(live)

        def answer(request):
            yield TextDelta("Half of it")
            streaming.set()
            threading.Event().wait(0.7)
            yield TextDelta(", and more")

        live.stand_in = lambda _: FunctionModel(answer)
        submission_id = agent.submit_messages("Hi").submission_id
        running = threading.Thread(target=claims.run, args=(live, submission_id))
        running.start()
        streaming.wait(10)
        agent.cancel_submission(submission_id, "enough")
        live.monitor.beat()

        result = Wait(live, agent._ref, "a test", timeout=20).result(submission_id)

        running.join(10)
        assert (result.status, result.text, result.error) == ("aborted", "Half of it", "enough")


class TestNobodyTakesIt:
    def test_whoever_waits_is_told_where_to_look(self, database_url, monkeypatch, caplog):
        """Where no worker runs, a call without a timeout would be silent for ever: the log says so, once."""
        monkeypatch.setattr(waiting, "WARN_SECONDS", 0.1)
        monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.05)
        with workers(database_url) as rt, pytest.raises(TurnStillRunning) as late:
            clerk(rt).save_messages("Hi", timeout=0.5)

        (told,) = [each for each in caplog.records if "no worker has taken" in each.message]
        assert late.value.submission_id in told.message
        assert "think-celery doctor" in told.message
        assert told.think_event == "waiting.no_worker"


class TestAtRest:
    def test_at_once_when_idle(self, t):
        """B11: there is nothing to wait for, also for an agent that never ran."""
        before = t.clock.elapsed()

        assert talker()("a").wait_until_stable(timeout=0) is True
        assert talker()("a").wait_until_stable() is True
        assert t.clock.elapsed() == before

    def test_false_when_the_time_is_over(self, live):
        """B11: a turn that goes on for longer than the wait; 200 ms are about that."""
        agent = clerk(live)
        agent.submit_messages("Hi")
        began = live.clock.elapsed()

        assert agent.wait_until_stable(timeout=0.2) is False
        assert 0.2 <= live.clock.elapsed() - began < 20

    def test_true_when_the_last_turn_has_ended(self, t):
        """B11: the one that runs and all that wait behind it."""
        agent = talker()("a")
        t.use_model(FunctionModel(lambda request: say("ok")))
        accepted = [agent.submit_messages(f"{number}") for number in range(3)]

        assert agent.wait_until_stable(timeout=60) is True
        assert [agent.inspect_submission(each.submission_id).status for each in accepted] == ["completed"] * 3

    def test_an_open_call_is_no_rest(self, t):
        """B11: a tool call that waits for a client or for an approval will go on."""
        agent = talker()("a")
        t.rt.db.transact(lambda tx: waits_for_approval(tx, agent))

        assert agent.has_pending_interaction is True
        assert agent.wait_until_stable(timeout=1) is False
        assert talker()("b").has_pending_interaction is False

    def test_a_hook_in_progress_is_no_rest(self, live):
        """B11: `on_chat_response` may ask for one more turn, so a chain is over only when its last hook is."""
        begun, go, told = threading.Event(), threading.Event(), []

        class Chained(Think, name="Chained"):
            def on_chat_response(self, result):
                begun.set()
                go.wait(20)
                told.append(result.message.text)
                if len(told) == 1:
                    told.append(
                        self.wait_until_stable()
                    )  # nothing else is there: it does not wait for itself
                    self.save_messages("second")

        agent = Chained._bound_to(live, "a")
        submission_id = agent.submit_messages("first").submission_id
        running = threading.Thread(target=claims.run, args=(live, submission_id))
        running.start()
        assert begun.wait(20)

        assert agent.inspect_submission(submission_id).status == "completed"
        assert agent.wait_until_stable(timeout=0.3) is False
        go.set()
        assert agent.wait_until_stable(timeout=30) is True

        assert told == ["re: first", True, "re: second"]
        running.join(10)

    def test_inside_a_turn_of_the_same_agent(self, t):
        """B11: with a timeout it is False when that is over; without one it would wait for itself."""
        found = []

        def look() -> str:
            """Look."""
            agent = talker(look)("a")
            before = t.clock.elapsed()
            found.append((agent.wait_until_stable(timeout=2), t.clock.elapsed() - before >= 2))
            with pytest.raises(NestedTurn, match="would wait for ever"):
                agent.wait_until_stable()
            return "looked"

        agent = talker(look)("a")
        t.script("Talker", call("look"), say("ok"))

        assert agent.save_messages("Hi").status == "completed"
        assert found == [(False, True)]


class TestThePoller:
    def test_one_query_serves_all_who_wait(self, live):
        """However many wait, each look is one statement, and none of them holds a connection."""
        agents = [clerk(live, f"a{number}") for number in range(30)]
        ids = [agent.submit_messages("Hi").submission_id for agent in agents]
        looks = Counted(live)
        results = []

        def wait(agent, submission_id):
            results.append(Wait(live, agent._ref, "a test", timeout=30).result(submission_id).status)

        threads = [threading.Thread(target=wait, args=each) for each in zip(agents, ids, strict=True)]
        for thread in threads:
            thread.start()
        looks.settle()
        before = looks.count
        threading.Event().wait(1.0)
        during = looks.count - before
        assert live.db.engine.pool.checkedout() <= 1
        for submission_id in ids:
            claims.run(live, submission_id)
        for thread in threads:
            thread.join(30)

        assert results == ["completed"] * 30
        assert (
            1 <= during <= 1.0 / poller.FIRST_SECONDS + 1
        )  # 30 who ask by themselves would be ten times that

    def test_looks_come_less_often_with_age(self):
        """20 ms at first, half a second for whoever waits for long."""
        ages = (0, 0.1, 0.5, 2, 5, 1000)

        assert [round(poller.distance(age), 3) for age in ages] == [0.02, 0.02, 0.05, 0.2, 0.5, 0.5]

    def test_its_thread_ends_when_nobody_waits(self, live, monkeypatch):
        """It costs nothing then, and begins again with the next who waits."""
        monkeypatch.setattr(poller, "IDLE_SECONDS", 0.05)
        agent = clerk(live)

        for _ in range(2):
            submission_id = agent.submit_messages("Hi").submission_id
            timer = threading.Timer(0.05, claims.run, args=(live, submission_id))
            timer.start()
            assert agent.wait_for_submission(submission_id, timeout=20).status == "completed"
            timer.join()
            threading.Event().wait(0.3)
            assert live.poller._thread is None

    def test_a_database_that_is_away_is_waited_for(self, live, monkeypatch):
        """Whoever waits learns of the end when it is back."""
        agent = clerk(live)
        submission_id = agent.submit_messages("Hi").submission_id
        wait, failures = Wait(live, agent._ref, "a wait", timeout=20), []
        look = wait._ended

        def away(each):
            if len(failures) < 3 and wait.left < 19.95:
                failures.append(each)
                raise broken_connection()
            return look(each)

        monkeypatch.setattr(wait, "_ended", away)
        timer = threading.Timer(0.3, claims.run, args=(live, submission_id))
        timer.start()

        assert wait.result(submission_id).status == "completed"
        timer.join()
        assert len(failures) >= 1


# --- helpers --------------------------------------------------------------------------------------


def waits_for_approval(tx, agent):
    """A call of the agent's that waits for somebody."""
    assert interactions.insert(
        tx,
        id="i1",
        agent_id=agent._ref.id,
        agent_class="Talker",
        agent_name=agent.name,
        submission_id="s1",
        message_id="m1",
        tool_call_id="c1",
        tool="delete",
        kind="approval",
        fingerprint="f",
    )


def broken_connection():
    """What SQLAlchemy raises when the server is gone."""
    return OperationalError("SELECT 1", {}, Exception("gone"), connection_invalidated=True)


class Counted:
    """Counts the statements of the poller."""

    def __init__(self, rt):
        self.count = 0
        look = rt.poller._look

        def counted(watches):
            self.count += 1
            look(watches)

        rt.poller._look = counted

    def settle(self):
        """Until everybody waits."""
        threading.Event().wait(0.3)
