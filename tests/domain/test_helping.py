"""Who waits in a worker helps: it runs the turns that it waits for. And who would wait for itself is told so."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from tests.domain.crowd import workers
from tests.domain.flows import begin, flow, start
from tests.domain.talk import crash_at_nth, shape, talker
from think_celery import Think
from think_celery.domain.submissions import claims
from think_celery.domain.turns import helping
from think_celery.domain.workflows import advance
from think_celery.errors import NestedTurn, TurnStillRunning
from think_celery.protocols import TextDelta
from think_celery.providers.scripted import FunctionModel, call, say
from think_celery.store import waiting
from think_celery.tools import tool

GO = threading.Event


class Asker(Think):
    """An agent whose one tool asks another agent, and waits for it."""

    whom: "type[Think]"

    @tool(idempotent=True)
    def ask(self, name: str) -> str:
        """Ask another agent."""
        return type(self).whom._bound_to(self._rt, name).save_messages(f"{self.name} asks", timeout=30).text


class Asked(Asker):
    """One that may ask back."""


Asker.whom, Asked.whom = Asked, Asker


class TestInATool:
    def test_another_agent_s_turn_runs_in_its_place(self, t):
        """B7: a tool that asks another agent gets its answer, in one worker, with nobody else to run it."""
        t.script("Asker", call("ask", {"name": "b"}), say("they said so"))
        t.script("Asked", say("yes"))

        result = Asker("a").save_messages("Hi")

        assert result.text == "they said so"
        assert shape(Asker("a").messages[-1])[1] == ("ask", {"name": "b"}, "yes")
        assert [message.text for message in Asked("b").messages] == ["a asks", "yes"]

    def test_its_own_agent_s_turn_would_never_begin(self, t):
        """B7: the error is the tool's result, and says what to use instead; both work."""
        said = []

        def save(self) -> str:
            with pytest.raises(NestedTurn, match="submit_messages") as nested:
                self.save_messages("again")
            said.append(nested.value.circle)
            self.persist_messages("a note")
            self.submit_messages("later")
            return "did so"

        agent = talker(lambda: None, get_tools=lambda self: [named("save", lambda: save(self))])("a")
        t.script("Talker", call("save"), say("ok"), say("later, too"))

        assert agent.save_messages("Hi").text == "ok"
        assert agent.wait_until_stable(timeout=10)
        assert said == [("Talker('a')", "Talker('a')")]
        assert [m.text for m in agent.messages] == ["Hi", "a note", "ok", "later", "later, too"]

    def test_waiting_for_one_of_its_own_is_refused_unless_it_has_ended(self, t):
        """An ended turn can be looked at from anywhere; the one in hand, and those behind it, can't be waited for."""
        found = []

        def look(self) -> str:
            found.append(self.wait_for_submission(before.submission_id).status)
            for other in self.list_submissions(status=["running", "pending"]):
                with pytest.raises(NestedTurn):
                    self.wait_for_submission(other.submission_id, timeout=5)
                found.append(other.status)
            return "looked"

        agent = talker(get_tools=lambda self: [named("look", lambda: look(self))])("a")
        t.script("Talker", say("first"), call("look"), say("second"), say("third"))
        before = agent.save_messages("first")
        agent.submit_messages("second")
        agent.submit_messages("third")
        t.run_until_idle()

        assert found == ["completed", "pending", "running"]

    def test_a_circle_in_one_worker_is_named(self, t):
        """Two agents whose tools ask each other: the second one's tool gets an error, and both turns end."""
        t.script("Asker", call("ask", {"name": "b"}), say("end of a"))
        t.script("Asked", call("ask", {"name": "a"}), say("end of b"))

        result = Asker("a").save_messages("Hi")

        assert result.text == "end of a"
        text = shape(Asked("b").messages[-1])[1][2]
        assert "Asker('a') → Asked('b') → Asker('a')" in text
        assert waits(t.rt) == {}
        assert len(Asker("a").list_submissions()) == 1  # nothing of the refused call was stored

    def test_never_deeper_than_three(self, t):
        """Each turn inside another one takes a part of the stack; from the fourth on another worker has to run it."""
        depths = []

        def down(self) -> str:
            depths.append(helping.may_help(t.rt))
            if not helping.may_help(t.rt):
                return "the bottom"
            return chain(f"{int(self.name) + 1}").save_messages("down", timeout=5).text

        chain = talker(get_tools=lambda self: [named("down", lambda: down(self))])
        t.use_model(
            FunctionModel(lambda r: say("up") if r.messages[-1].role == "assistant" else call("down"))
        )

        assert chain("0").save_messages("down").text == "up"
        assert depths == [True, True, True, False]


class TestAtTheSameTime:
    def test_a_circle_between_two_workers_is_found(self, database_url):
        """Each waits for the other, in lines of its own worker: one of them, or both, get the error, and none hangs."""
        both = threading.Barrier(2)

        def answer(request):
            if request.messages[-1].role == "assistant":
                return say("the end")
            if request.messages[-1].text != "go":
                return say("yes")
            both.wait(20)
            return call("ask", {"name": "x"})

        model = FunctionModel(answer)
        with workers(database_url) as one, workers(database_url) as two, ThreadPoolExecutor(2) as pool:
            for rt in (one, two):
                rt.stand_in, rt.takes = (lambda _: model), (lambda knock: True)
            asker, asked = Asker._bound_to(one, "x"), Asked._bound_to(two, "x")
            first, second = asker.submit_messages("go"), asked.submit_messages("go")
            runs = [
                pool.submit(claims.run, one, first.submission_id),
                pool.submit(claims.run, two, second.submission_id),
            ]

            assert [run.result(60).word for run in runs] == ["completed", "completed"]
            texts = [str(shape(agent.messages[1])[1][2]) for agent in (asker, asked)]
            assert any("would wait for ever" in text for text in texts), texts
            assert waits(one) == {}

    def test_a_longer_circle_is_named_in_order(self, t):
        """Through lines that other workers hold, however many there are between."""
        rt = t.rt
        agents = [talker()(name) for name in "abc"]
        for agent in agents:
            agent.submit_messages("Hi", submission_id=agent.name)
        held = [claims.claim(rt, agent.name) for agent in agents]
        for claim, target in zip(held[1:], [agents[2], agents[0]], strict=True):
            rt.db.transact(
                lambda tx, claim=claim, target=target: waiting.wait_for(tx, claim.lease, target._ref.id)
            )

        from think_celery.domain import inhand

        with rt.monitor.hold(held[0].lease, seconds=60) as hold, inhand.doing(hold, agents[0]._ref):
            with pytest.raises(NestedTurn) as nested, helping.waits_for(rt, agents[1]._ref, "a call"):
                pass

        assert nested.value.circle == tuple(f"Talker('{name}')" for name in "abca")
        assert agents[0]._ref.id not in waits(rt)

    def test_several_tools_of_one_turn_wait_at_once(self, t):
        """The line names all of them, and forgets each with its own wait."""
        agent = talker()("a")
        agent.submit_messages("Hi", submission_id="a")
        lease = claims.claim(t.rt, "a").lease
        change = t.rt.db.transact

        change(lambda tx: waiting.wait_for(tx, lease, "x"))
        change(lambda tx: waiting.wait_for(tx, lease, "y"))
        change(lambda tx: waiting.wait_for(tx, lease, "x"))
        change(lambda tx: waiting.wait_no_more(tx, lease, "x"))

        assert waits(t.rt) == {agent._ref.id: ["y", "x"]}
        change(lambda tx: waiting.wait_no_more(tx, lease, "x"))
        change(lambda tx: waiting.wait_no_more(tx, lease, "y"))
        assert waits(t.rt) == {}

    def test_whoever_takes_the_line_over_waits_for_nobody(self, t):
        """What a dead worker's turn waited for is not what the next one waits for."""
        agent = talker()("a")
        agent.submit_messages("Hi", submission_id="a")
        lease = claims.claim(t.rt, "a").lease
        t.rt.db.transact(lambda tx: waiting.wait_for(tx, lease, "x"))
        t._restart()

        assert claims.claim(t.rt, "a").lease.token > lease.token
        assert waits(t.rt) == {}

    def test_a_turn_that_is_cancelled_waits_no_longer(self, database_url):
        """Its tool is told at once; the turn that it waited for goes on, for that is not its own."""
        asked = threading.Event()
        with workers(database_url) as rt, ThreadPoolExecutor(1) as pool:
            rt.stand_in = lambda _: FunctionModel(lambda request: call("ask", {"name": "b"}))
            agent = Asker._bound_to(rt, "a")
            rt.failpoint = lambda point: asked.set() if point == "submit:committed" else None
            submission = agent.submit_messages("go")
            asked.clear()
            running = pool.submit(claims.run, rt, submission.submission_id)
            assert asked.wait(20)
            agent.cancel_submission(submission.submission_id, "enough")
            rt.monitor.beat()

            assert running.result(4).word == "aborted"  # a tool that does not answer is waited for longer
            assert [s.status for s in Asked._bound_to(rt, "b").list_submissions()] == ["pending"]
            assert waits(rt) == {}


class TestInAStep:
    def test_a_saved_turn_is_a_step_s_own(self, t):
        """A4, B25: `self.agent.save_messages` in `step.do`; its result is the step's, and comes once."""
        saved = []

        def run(event, step):
            def ask():
                saved.append(1)
                return DESK().save_messages("from a step").text

            return step.do("ask", ask)

        t.script("Desk", say("answer"))
        handle = begin(t, run)

        assert (handle.status, handle.output, len(saved)) == ("complete", "answer", 1)

    def test_a_full_pool_does_not_stand_still(self, database_url):
        """B7, B25: two slots, twenty workflows whose steps wait for twenty agents, and nobody else to run a turn."""
        with workers(database_url) as rt, ThreadPoolExecutor(2) as pool:
            rt.takes = lambda knock: True

            def run(event, step):
                return step.do(
                    "ask", lambda: DESK(event.payload["name"], rt).save_messages("Hi", timeout=60).text
                )

            flow(run)
            handles = [start(rt, None, {"name": f"n{number}"}, id=f"w{number}") for number in range(20)]
            runs = [pool.submit(advance.advance, rt, "Flow", f"w{number}") for number in range(20)]

            assert [each.result(90).word for each in runs] == ["complete"] * 20
            assert {handle.output for handle in handles} == {"re: Hi"}

    def test_a_queue_that_this_worker_does_not_consume_is_left_alone(self, database_url):
        """A turn that is meant for other workers is waited for, and not run here."""
        with workers(database_url) as rt:
            asked = []
            rt.takes = lambda knock: bool(asked.append(knock.queue))

            def run(event, step):
                return step.do("ask", lambda: str(Distant._bound_to(rt, "e").wait_until_stable(timeout=0.3)))

            Distant._bound_to(rt, "e").submit_messages("Hi")
            handle = start(rt, run)
            assert handle.advance().word == "complete"

            assert handle.output == "False"
            assert set(asked) == {"gpu"}

    def test_a_step_in_a_transaction_may_not_wait(self, t):
        """Its transaction is open: what it would wait for could need its locks."""
        handle = begin(t, lambda event, step: step.transaction("x", lambda conn: DESK().save_messages("Hi")))

        assert handle.status == "errored"
        assert "InsideTransaction" in handle.journal[0].error_type
        assert DESK().list_submissions() == []


class TestInAHook:
    def test_three_turns_that_follow_from_one_another(self, t):
        """B10: each save in `on_chat_response` returns its answer; the hook is told of that turn afterwards."""
        told = []

        def on_chat_response(self, result):
            text = result.message.text
            inside = self.save_messages(f"after {text}").text if len(told) < 3 else None
            told.append((text, inside))

        agent = talker(on_chat_response=on_chat_response)("a")
        t.script("Talker", say("1"), say("2"), say("3"), say("4"))

        assert agent.save_messages("Hi").text == "1"
        t.run_until_idle()

        assert told == [("1", "2"), ("2", "3"), ("3", "4"), ("4", None)]
        assert [m.text for m in agent.messages if m.role == "user"] == ["Hi", "after 1", "after 2", "after 3"]

    def test_waiting_for_all_of_its_own_agent(self, t):
        """B10, B11: what was submitted meanwhile runs inside the hook, and then nothing is left to run."""
        found = []

        def on_chat_response(self, result):
            if not found:
                found.append(None)
                self.submit_messages("more")
                last = self.submit_messages("and more")
                found.append(self.wait_until_stable(timeout=30))
                found.append(self.wait_for_submission(last.submission_id).status)

        agent = talker(on_chat_response=on_chat_response)("a")
        t.use_model(FunctionModel(lambda request: say("ok")))
        agent.save_messages("Hi")
        t.run_until_idle()

        assert found == [None, True, "completed"]

    def test_another_agent_whose_tool_asks_back(self, t):
        """The hook holds its agent's line: whoever waits for that agent, and is waited for, is told of the circle."""
        answers = []

        class Hooked(Asker, name="Hooked"):
            whom = Asked

            def on_chat_response(self, result):
                if not answers:
                    answers.append(None)
                    answers.append(Asked._bound_to(self._rt, "b").save_messages("go", timeout=30).text)

        kept, Asked.whom = Asked.whom, Hooked
        t.script("Hooked", say("hooked"))
        t.script("Asked", call("ask", {"name": "a"}), say("end of b"))
        try:
            Hooked("a").save_messages("Hi")
            t.run_until_idle()
        finally:
            Asked.whom = kept

        assert answers == [None, "end of b"]
        assert "would wait for ever" in shape(Asked("b").messages[-1])[1][2]


class TestTheEndOfTheWorker:
    def test_it_dies_in_a_turn_that_it_runs_for_another_one(self, t):
        """B7: both turns go on in another worker; a tool that may be repeated asks again, and nobody waits any more."""
        t.script("Asker", call("ask", {"name": "b"}), say("they said so"))
        t.script("Asked", say("yes"), say("yes again"))
        crash_at_nth(t, "turn:claimed", 2)

        result = Asker("a").save_messages("Hi", timeout=60)
        t.skip(10)

        assert (result.status, t.crashes) == ("completed", ["turn:claimed"])
        assert {each.status for each in Asked("b").list_submissions()} == {"completed"}
        assert waits(t.rt) == {}

    def test_a_step_that_waits_hands_over_at_once(self, database_url):
        """B7: it waits for a turn that may need another worker; the turn goes on there, and the error has its id."""
        errors = []
        with workers(database_url) as rt, ThreadPoolExecutor(1) as pool:

            def ask():
                try:
                    return Distant._bound_to(rt, "e").save_messages("Hi").text
                except TurnStillRunning as error:
                    errors.append(error)
                    raise

            handle = start(rt, lambda event, step: step.do("ask", ask))
            running = pool.submit(handle.advance)
            while not Distant._bound_to(rt, "e").list_submissions():
                threading.Event().wait(0.01)
            rt.stopping.abort("the worker stops")

            assert running.result(5).word == "handed-over"
            (submission,) = Distant._bound_to(rt, "e").list_submissions()
            assert (submission.status, errors[0].submission_id) == ("pending", submission.submission_id)

    def test_it_runs_no_turn_for_others_any_more(self, database_url):
        """B7: one that it began would be handed over again and again."""
        with workers(database_url) as rt:
            rt.takes, rt.in_task = (lambda knock: True), (lambda: True)
            rt.stopping.abort("the worker stops")

            with pytest.raises(TurnStillRunning):
                DESK("front", rt).save_messages("Hi")
            (submission,) = DESK("front", rt).list_submissions()
            assert (submission.status, submission.started_at) == ("pending", None)

    def test_celery_s_soft_time_limit_is_the_caller_s(self, database_url):
        """B7: a task of the host's runs a turn, and its own limit comes: the turn is put back, and the task is told."""

        def answer(request):
            yield TextDelta("half of it")
            raise SoftTimeLimitExceeded

        with workers(database_url) as rt:
            rt.takes, rt.in_task = (lambda knock: True), (lambda: True)
            rt.stand_in = lambda _: FunctionModel(answer)

            with pytest.raises(SoftTimeLimitExceeded):
                DESK("front", rt).save_messages("Hi")
            (submission,) = DESK("front", rt).list_submissions()
            assert (submission.status, submission.message().text) == ("pending", "half of it")


# --- helpers --------------------------------------------------------------------------------------


class Distant(Think):
    """Its turns are for other workers."""

    queue = "gpu"


def DESK(name="front", rt=None):
    """The agent of the workflows' tests."""
    from tests.domain.flows import Desk

    return Desk(name) if rt is None else Desk._bound_to(rt, name)


def named(name, function):
    """A function as a tool of that name."""

    def wrapped() -> str:
        """Do it."""
        return function()

    wrapped.__name__ = name
    return wrapped


def waits(rt):
    """Which agents' turns wait, and for whom."""
    from sqlalchemy import select

    from think_celery.store import tables

    columns = tables.lines.c
    rows = rt.db.read(lambda tx: list(tx.execute(select(columns.agent_id, columns.waits_for))))
    return {row.agent_id: row.waits_for for row in rows if row.waits_for is not None}
