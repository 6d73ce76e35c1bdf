"""Answers that go on: where a decision's result goes, what the model is told meanwhile, what becomes of the rest."""

import threading
from datetime import timedelta
from typing import Any

import pytest

from tests.domain.crowd import at_once, transaction, wait_for_lock
from tests.domain.flows import worker
from tests.domain.talk import ABORTED, COMPLETED, ask, calls_of, now, shape, talker
from tests.domain.till import Till, forge, interaction_rows, only, stored
from tests.providers import transcripts
from think_celery import AbortController, Think
from think_celery.agents.chat import ChatAgent
from think_celery.domain import retention
from think_celery.domain.conversation import conversation
from think_celery.domain.conversation.conversation import DENIED, INTERRUPTED, UNKNOWN_OUTCOME
from think_celery.domain.conversation.interactions import (
    WAITS_FOR_APPROVAL,
    WAITS_FOR_CLIENT,
    WILL_RUN,
    WITHDRAWN,
)
from think_celery.domain.submissions import claims, submissions
from think_celery.domain.turns import drafts
from think_celery.domain.turns.continuations import CONTINUE, DECIDED, NOTHING_TO_CONTINUE, STILL_WAITS
from think_celery.domain.turns.requests import GO_ON
from think_celery.errors import InsideTransaction
from think_celery.hooks.turns import TurnConfig
from think_celery.protocols import ModelRequest, TextDelta, ToolCallComplete
from think_celery.providers.scripted import FunctionModel, call, fail, say
from think_celery.store import processes
from think_celery.testing import SimulatedCrash
from think_celery.tools import Tool


@pytest.fixture
def till() -> Till:
    """A till whose every payment needs an approval."""
    return Till()


def told(request: ModelRequest) -> list[tuple[str, Any]]:
    """The calls in a request, and what the model is told came of each."""
    calls = [part for message in request.messages for part in calls_of(message)]
    return [(part.tool_name, part.output if part.error_text is None else part.error_text) for part in calls]


def texts(messages: Any) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in messages]


class TestWhileItWaits:
    def test_a_new_message_is_answered(self, t, till):
        """FR-55: the model is told that the call waits; the call goes on waiting, and its message stays as it is."""
        agent = till.agent()
        model = t.script(agent, [call("pay", {"euros": 5}), call("locate")], say("Sure."))
        asked = ask(t, agent)
        before = asked.message().to_dict()

        answered = ask(t, agent, "Are you there?")

        assert answered.message().text == "Sure."
        assert told(model.requests[-1]) == [("pay", WAITS_FOR_APPROVAL), ("locate", WAITS_FOR_CLIENT)]
        assert len(agent.pending_interactions()) == 2
        assert asked.message().to_dict() == before
        transcripts.check(model.requests)

    def test_a_decision_after_other_turns(self, t, till):
        """The result takes its place where the call was made, and what follows from it is a new message."""
        agent = till.agent()
        model = t.script(
            agent, [say("Paying."), call("pay", {"euros": 5})], say("Sure."), say("Paid by now.")
        )
        asked = ask(t, agent, "Pay")
        other = ask(t, agent, "Are you there?")

        decided = agent.approve_tool_call(only(agent).tool_call_id)
        t.run_until_idle()

        going_on = agent.inspect_submission(decided.continuation_id)
        assert (going_on.status, till.paid) == (COMPLETED, [5])
        assert shape(asked.message()) == ["|", "Paying.", ("pay", {"euros": 5}, "paid 5 to Ann")]
        assert texts(agent.messages) == [
            ("user", "Pay"),
            ("assistant", "Paying."),
            ("user", "Are you there?"),
            ("assistant", "Sure."),
            ("assistant", "Paid by now."),
        ]
        assert agent.messages[-1].id == going_on.message_id != other.message_id
        assert model.requests[-1].messages[-1].text == DECIDED
        assert DECIDED not in [message.text for message in agent.messages]
        transcripts.check(model.requests)

    @pytest.mark.parametrize("between", [False, True])
    def test_a_tool_of_that_turn_alone(self, t, till, between):
        """A tool that `before_turn` offers is known to the turn that goes on, wherever its call stands."""
        pay = till.tools[0]

        def before_turn(agent: Any, ctx: Any) -> TurnConfig:
            return TurnConfig(tools=[pay])

        agent = talker(before_turn=before_turn)("a")
        answers = [call("pay", {"euros": 5}), *([say("Sure.")] if between else []), say("Paid.")]
        model = t.script(agent, *answers)
        asked = ask(t, agent)
        if between:
            ask(t, agent, "Are you there?")

        agent.approve_tool_call(only(agent).tool_call_id)
        t.run_until_idle()

        assert till.paid == [5]
        assert calls_of(asked.message())[0].output == "paid 5 to Ann"
        assert told(model.requests[-1]) == [("pay", "paid 5 to Ann")]
        transcripts.check(model.requests)

    @pytest.mark.parametrize(
        "given",
        [
            {"x": 1e22, "y": 0.1, "z": 1.0, "n": 2**70, "none": None, "list": [1, [True, "Zoë \u2028 \0"]]},
            {},
            {"nested": {"b": {"a": [{}]}, "a": -0.0}},
        ],
    )
    def test_any_arguments_are_what_was_approved(self, t, given):
        """Whatever JSON a call has for arguments: stored and read again they are the same, and so is what runs."""
        ran: list[Any] = []

        def note(**arguments: Any) -> str:
            ran.append(arguments)
            return "noted"

        made = Tool(
            name="note", description="", parameters={"type": "object"}, function=note, needs_approval=True
        )
        agent = talker(made)("a")
        t.script(agent, call("note", given), say("Done."))
        ask(t, agent)
        shown = only(agent)

        agent.approve_tool_call(shown.tool_call_id)
        t.run_until_idle()

        assert ran == [given] == [shown.input]

    def test_listeners_see_both_messages(self, t, till):
        """What is done in the older message is shown under its id, the answer under its own."""
        agent = till.agent()
        t.script(agent, call("pay", {"euros": 5}), say("Sure."), say("Paid by now."))
        asked = ask(t, agent)
        ask(t, agent, "Are you there?")
        heard = agent.listen()

        decided = agent.approve_tool_call(only(agent).tool_call_id)
        t.run_until_idle()

        seen = []
        for event in heard:
            seen.append((event.message_id == asked.message_id, event.type))
            if event.type == "done":
                break
        new_id = agent.inspect_submission(decided.continuation_id).message_id
        assert event.message_id == new_id != asked.message_id
        told = [
            "message",
            "reset",
            "snapshot",
            "tool-output-available",
        ]  # the decision, and then what it led to
        assert [kind for old, kind in seen if old] == told

    def test_a_listener_hears_of_an_answer_that_goes_on(self, t, till):
        """Whoever has seen an answer end sees it go on, in the same message."""
        agent = till.agent()
        t.script(agent, call("pay", {"euros": 5}), say("Paid."))
        heard = agent.listen()
        asked = ask(t, agent)

        agent.approve_tool_call(only(agent).tool_call_id)
        t.run_until_idle()

        kinds: list[str] = []
        for event in heard:
            assert event.message_id == asked.message_id
            kinds.append(event.type)
            if kinds.count("done") == 2:
                break
        last = kinds[kinds.index("done") + 1 :]
        assert last[:4] == ["message", "start", "reset", "snapshot"]
        assert "tool-output-available" in last
        assert "text-delta" in last

    def test_a_turn_between_the_decision_and_its_turn(self, t, till):
        """A turn that was accepted before the decision runs before it; the model is told that the call will be made."""
        agent = till.agent()
        model = t.script(agent, call("pay", {"euros": 5}), say("Sure."), say("Paid."))
        ask(t, agent)
        agent.submit_messages("Are you there?")

        agent.approve_tool_call(only(agent).tool_call_id)
        t.run_until_idle()

        assert told(model.requests[1]) == [("pay", WILL_RUN)]
        assert told(model.requests[2]) == [("pay", "paid 5 to Ann")]
        transcripts.check(model.requests)

    def test_two_answers_that_wait(self, t, till):
        """Each answer has its own calls, and its own turn that goes on."""
        agent = till.agent()
        model = t.script(
            agent,
            call("pay", {"euros": 1}, tool_call_id="call_0"),
            call("pay", {"euros": 2}, tool_call_id="call_0"),
            say("The second is paid."),
            say("The first is paid."),
        )
        one, two = ask(t, agent, "1"), ask(t, agent, "2")
        first, second = agent.pending_interactions()
        assert first.tool_call_id != second.tool_call_id

        agent.approve_tool_call(second.tool_call_id)
        t.run_until_idle()
        agent.approve_tool_call(first.tool_call_id)
        t.run_until_idle()

        assert till.paid == [2, 1]
        assert shape(one.message()) == ["|", ("pay", {"euros": 1}, "paid 1 to Ann")]
        assert two.message().text == "The second is paid."
        assert texts(agent.messages)[-1] == ("assistant", "The first is paid.")
        transcripts.check(model.requests)

    def test_the_same_id_from_a_provider_in_each_turn(self, t, till):
        """FR-70: an id that a provider gives again and again names one call of the conversation only."""
        agent = till.agent()
        t.use_model(
            FunctionModel(lambda request: iter([ToolCallComplete(0, "call_0", "pay", '{"euros": 1}')])), agent
        )

        ask(t, agent, "1")
        ask(t, agent, "2")

        assert len({waiting.tool_call_id for waiting in agent.pending_interactions()}) == 2


class TestWithdrawn:
    def test_a_reset(self, t, till):
        """What waits in a conversation that is cleared waits no more; a late decision is told so."""
        agent = till.agent()
        t.script(agent, call("pay", {"euros": 5}))
        ask(t, agent)
        call_id = only(agent).tool_call_id

        conversation.reset(t.rt, agent._ref)
        late = agent.approve_tool_call(call_id)
        t.run_until_idle()

        assert (late.taken, late.status, late.continuation_id) == (False, "withdrawn", None)
        assert (agent.pending_interactions(), agent.messages, till.paid) == ([], [], [])

    def test_a_reset_of_the_turns_alone(self, t, till):
        """Where the conversation stays, its calls say that they were withdrawn, and so is the model told."""
        agent = till.agent()
        model = t.script(agent, [call("pay", {"euros": 5}), call("locate")], say("I see."))
        ask(t, agent)

        agent.reset_turn_state()

        assert agent.pending_interactions() == []
        assert calls_of(agent.messages[-1])[0].error_text == WITHDRAWN
        ask(t, agent, "And now?")
        assert told(model.requests[-1]) == [("pay", WITHDRAWN), ("locate", WITHDRAWN)]
        transcripts.check(model.requests)

    def test_a_destroyed_agent(self, t, till):
        """Nothing of its calls is left."""
        agent = till.agent()
        t.script(agent, [call("pay", {"euros": 5}), call("locate")])
        ask(t, agent)

        agent.destroy()
        t.run_until_idle()

        assert interaction_rows(t) == []

    def test_retention(self, t, till):
        """Decisions go with age, once the turn that acts on them has ended; what waits stays for ever."""
        agent = till.agent()
        two = [call("pay", {"euros": 1}), call("pay", {"euros": 2})]
        t.script(agent, call("pay", {"euros": 3}), say("Paid."), two, call("pay", {"euros": 4}))
        for text in ("acted on", "half decided", "undone"):
            ask(t, agent, text)
            agent.approve_tool_call(agent.pending_interactions()[-1].tool_call_id)
            if text != "undone":
                t.run_until_idle()
        t.lose_messages()  # the last one's turn does not begin
        t.clock.advance(timedelta(days=40))

        for _ in range(2):  # the first look begins to count the minutes between two
            retention.apply(t.rt, 500)
            t.clock.advance(timedelta(minutes=1))

        assert sorted(row.status for row in interaction_rows(t)) == ["approved", "approved", "open"]
        assert till.paid == [3]

    def test_a_reset_after_the_decision(self, t, till):
        """An approval whose turn has not begun goes with the conversation: nothing runs."""
        agent = till.agent()
        t.script(agent, call("pay", {"euros": 5}))
        ask(t, agent)
        decided = agent.approve_tool_call(only(agent).tool_call_id)

        conversation.reset(t.rt, agent._ref)
        t.run_until_idle()

        assert agent.inspect_submission(decided.continuation_id).status == "skipped"
        assert till.paid == []

    def test_deleting_the_submission_that_asked(self, t, till):
        """The transcript stays, and says that the call was withdrawn; so is the model told."""
        agent = till.agent()
        model = t.script(agent, [call("pay", {"euros": 5}), call("locate")], say("I see."))
        asked = ask(t, agent)
        pay, locate = agent.pending_interactions()

        assert agent.delete_submission(asked.submission_id)

        assert agent.pending_interactions() == []
        assert calls_of(agent.messages[-1])[0].error_text == WITHDRAWN
        assert agent.approve_tool_call(pay.tool_call_id).status == "withdrawn"
        assert agent.provide_tool_result(locate.tool_call_id, 1).status == "withdrawn"
        ask(t, agent, "And now?")
        assert told(model.requests[-1]) == [("pay", WITHDRAWN), ("locate", WITHDRAWN)]
        transcripts.check(model.requests)

    @pytest.mark.parametrize("way", ["delete", "reset"])
    def test_one_that_was_approved_while_another_waited(self, t, till, way):
        """No turn would ever make it: it is withdrawn with the other, says so, and goes with age as that does."""
        agent = till.agent()
        calls = [call("pay", {"euros": 1}), call("pay", {"euros": 2}), call("locate")]
        model = t.script(agent, calls, say("I see."))
        asked = ask(t, agent)
        first, second, _ = agent.pending_interactions()
        agent.approve_tool_call(first.tool_call_id)
        agent.reject_tool_call(second.tool_call_id)

        _ = agent.delete_submission(asked.submission_id) if way == "delete" else agent.reset_turn_state()

        assert [part.error_text for part in calls_of(agent.messages[-1])] == [WITHDRAWN, None, None]
        assert sorted(row.status for row in interaction_rows(t)) == ["rejected", "withdrawn", "withdrawn"]
        assert agent.approve_tool_call(first.tool_call_id).status == "withdrawn"
        ask(t, agent, "And now?")
        assert [result for _, result in told(model.requests[-1])] == [WITHDRAWN, DENIED, WITHDRAWN]
        assert till.paid == []
        t.clock.advance(timedelta(days=40))
        retention.apply(t.rt, 500)
        t.clock.advance(timedelta(minutes=1))
        retention.apply(t.rt, 500)
        assert interaction_rows(t) == []

    def test_deleting_another_submission(self, t, till):
        """What others asked for goes on waiting."""
        agent = till.agent()
        t.script(agent, say("Hello."), call("pay", {"euros": 5}))
        first = ask(t, agent, "1")
        ask(t, agent, "2")

        agent.delete_submission(first.submission_id)

        assert agent.has_pending_interaction

    def test_cancelling_the_turn_that_would_ask(self, t, till):
        """A turn that is cancelled before its end asks nobody; its call says that it was withdrawn."""
        agent = till.agent()
        model = t.script(agent, [call("pay", {"euros": 5}), call("look", {"what": "it"})], say("Hm."))
        submission = agent.submit_messages("Go")

        def failpoint(point: str) -> None:
            if point == "turn:tool-stored":
                agent.cancel_submission(submission.submission_id)

        t.rt.failpoint = failpoint
        t.run_until_idle()

        assert now(agent, submission).status is ABORTED
        assert (agent.pending_interactions(), interaction_rows(t)) == ([], [])
        assert calls_of(submission.message())[0].error_text == WITHDRAWN
        ask(t, agent, "And now?")
        transcripts.check(model.requests)

    def test_cancelled_in_the_last_moment(self, t, till):
        """Nor does one that is cancelled just before its end is stored."""
        agent = till.agent()
        t.script(agent, call("pay", {"euros": 5}))
        submission = agent.submit_messages("Go")
        other = type(agent)("a")

        def end(*args: Any, **kwargs: Any) -> Any:
            other.cancel_submission(submission.submission_id)
            return original(*args, **kwargs)

        original = drafts.Draft.end
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(drafts.Draft, "end", end)
            t.run_until_idle()

        assert now(agent, submission).status is ABORTED
        assert interaction_rows(t) == []
        assert calls_of(submission.message())[0].error_text == WITHDRAWN

    def test_a_worker_that_dies_in_a_turn_that_was_cancelled(self, t, till):
        """Nobody goes on with it, so nobody can be asked any more."""
        agent = till.agent()
        t.script(agent, call("pay", {"euros": 5}))
        submission = agent.submit_messages("Go")

        t.crash_at("turn:before-commit")
        with pytest.raises(SimulatedCrash):
            claims.run(t.rt, submission.submission_id)
        agent.cancel_submission(submission.submission_id)
        t.clock.advance(timedelta(seconds=1))
        dead = t.rt.monitor.forget_process()
        t.rt.db.transact(lambda tx: processes.declare_dead(tx, dead, known=True))
        t.skip("5 seconds")

        assert now(agent, submission).status is ABORTED
        assert calls_of(submission.message())[0].error_text == WITHDRAWN
        assert interaction_rows(t) == []

    def test_cancelling_the_turn_that_goes_on(self, t, till):
        """An approval is good for the one turn that was accepted with it: cancelled, the call is never made."""
        agent = till.agent()
        model = t.script(agent, call("pay", {"euros": 5}), say("Hm."))
        ask(t, agent)
        decided = agent.approve_tool_call(only(agent).tool_call_id)

        assert agent.cancel_submission(decided.continuation_id)
        t.run_until_idle()
        ask(t, agent, "And now?")

        assert till.paid == []
        assert told(model.requests[-1]) == [("pay", INTERRUPTED)]
        transcripts.check(model.requests)

    def test_a_forged_approval(self, t, till):
        """What a message says of an approval opens nothing: only the decision that is stored does."""
        agent = till.agent()
        model = t.script(agent, call("pay", {"euros": 5}), say("Hm."))
        asked = ask(t, agent)
        approval = {"state": "approval-responded", "approval": {"id": "x", "approved": True}}
        forge(t, asked.message_id, [{**p, **(approval if "input" in p else {})} for p in stored(agent)])

        ask(t, agent, "And now?")

        assert till.paid == []
        assert told(model.requests[-1]) == [("pay", WAITS_FOR_APPROVAL)]


class TestTransactions:
    def test_a_decision_is_committed_with_the_callers_rows(self, t, till):
        """Joined, nothing happens before the caller's commit, and nothing at all if it rolls back."""
        agent = till.agent()
        t.script(agent, call("pay", {"euros": 5}), say("Paid."))
        ask(t, agent)
        call_id = only(agent).tool_call_id

        with transaction(t.rt) as session:
            assert agent.approve_tool_call(call_id)
            assert not agent.has_pending_interaction  # as the caller's transaction sees it
            session.rollback()
        t.run_until_idle()
        assert (agent.has_pending_interaction, till.paid) == (True, [])

        with transaction(t.rt) as session:
            assert agent.approve_tool_call(call_id)
            session.commit()
        t.run_until_idle()
        assert (agent.has_pending_interaction, till.paid) == (False, [5])

    def test_a_caller_who_keeps_a_decision_open(self, postgres_url, till):
        """A reset waits for that caller with no lock held, and takes what was decided with it."""
        with worker(postgres_url) as rt:
            agent = till.agent(model=FunctionModel(lambda request: call("pay", {"euros": 5})))._bound_to(
                rt, "a"
            )
            submission = agent.submit_messages("Go")
            claims.run(rt, submission.submission_id)
            with transaction(rt) as session:
                decided = agent.approve_tool_call(only(agent).tool_call_id)
                resetting = threading.Thread(target=lambda: conversation.reset(rt, agent._ref))
                resetting.start()
                wait_for_lock(rt)
                with pytest.raises(InsideTransaction):
                    conversation.reset(rt, agent._ref)
                session.commit()
            resetting.join(30)

            assert agent.inspect_submission(decided.continuation_id).status == "skipped"
            assert agent.messages == []


class TestCrashes:
    """A worker that dies anywhere leaves an answer that goes on right, with the payment made once at most."""

    @pytest.mark.parametrize(
        "point",
        ["turn:claimed", "turn:before-model", "turn:tool-stored", "turn:before-commit", "turn:committed"],
    )
    def test_while_it_asks(self, t, till, point):
        """FR-55: killed in the turn that asks, the call waits once, in one message."""
        agent = till.agent()
        model = FunctionModel(self.answer)
        t.use_model(model, agent)
        t.crash_at(point)

        asked = ask(t, agent)

        assert t.crashes == [point]
        assert asked.status is COMPLETED
        waiting = only(agent)
        assert [part.state for part in calls_of(asked.message())] == [
            "approval-requested",
            "output-available",
        ]
        assert [m.id for m in agent.messages[1:]] == [asked.message_id]
        agent.approve_tool_call(waiting.tool_call_id)
        t.run_until_idle()
        assert (till.paid, asked.message().text) == ([5], "Done.")
        transcripts.check(model.requests)

    @pytest.mark.parametrize("between", [False, True])
    @pytest.mark.parametrize(
        ("point", "paid", "known"),
        [
            ("turn:claimed", 1, True),
            ("turn:tool-marked", 0, False),
            ("turn:tool-ran", 1, False),
            ("turn:tool-stored", 1, True),
            ("turn:before-model", 1, True),
            ("turn:streaming", 1, True),
            ("turn:before-commit", 1, True),
            ("turn:committed", 1, True),
        ],
    )
    def test_while_it_goes_on(self, t, till, point, paid, known, between):
        """FR-54: an approved call runs once at most; where nobody knows whether it did, the model is told so."""
        agent = till.agent()
        model = FunctionModel(self.answer)
        t.use_model(model, agent)
        asked = ask(t, agent)
        if between:
            ask(t, agent, "Are you there?")
        t.crash_at(point)

        decided = agent.approve_tool_call(only(agent).tool_call_id)
        t.run_until_idle()

        going_on = agent.inspect_submission(decided.continuation_id)
        pay = calls_of(asked.message())[0]
        assert t.crashes == [point]
        assert (going_on.status, till.paid) == (COMPLETED, [5] * paid)
        assert (pay.output if known else pay.error_text) == ("paid 5 to Ann" if known else UNKNOWN_OUTCOME)
        assert going_on.message().text == "Done."
        assert (going_on.message_id == asked.message_id) is not between
        assert len(agent.messages) == (5 if between else 2)
        transcripts.check(model.requests)

    @pytest.mark.parametrize("point", ["turn:tool-ran", "turn:tool-stored"])
    def test_an_idempotent_one_is_repeated(self, t, point):
        """FR-54: one that may be repeated runs again, with the same key, and its outcome is known."""
        till = Till(idempotent=True)
        agent = till.agent()
        t.use_model(FunctionModel(self.answer), agent)
        asked = ask(t, agent)
        t.crash_at(point)

        agent.approve_tool_call(only(agent).tool_call_id)
        t.run_until_idle()

        assert till.paid == [5] * (2 if point == "turn:tool-ran" else 1)
        assert calls_of(asked.message())[0].output == "paid 5 to Ann"

    def test_the_decider_dies_after_the_commit(self, t, till):
        """The decision and its turn are one transaction: the tick knocks for what nobody knocked for."""
        agent = till.agent()
        t.use_model(FunctionModel(self.answer), agent)
        asked = ask(t, agent)
        t.crash_at("submit:committed")

        with pytest.raises(SimulatedCrash):
            agent.approve_tool_call(only(agent).tool_call_id)
        t.skip("5 seconds")

        assert (till.paid, asked.message().text) == ([5], "Done.")

    def test_the_model_fails_after_the_approved_call(self, t, till):
        """The result is stored; the turn ends in error, and nothing of it is lost or done twice."""
        agent = till.agent()
        model = t.script(agent, call("pay", {"euros": 5}), fail("no"), say("Paid before."))
        asked = ask(t, agent)

        decided = agent.approve_tool_call(only(agent).tool_call_id)
        t.run_until_idle()

        assert agent.inspect_submission(decided.continuation_id).status == "error"
        assert calls_of(asked.message())[0].output == "paid 5 to Ann"
        ask(t, agent, "Well?")
        assert told(model.requests[-1]) == [("pay", "paid 5 to Ann")]
        assert till.paid == [5]
        transcripts.check(model.requests)

    def answer(self, request: ModelRequest) -> Any:
        """Ask to pay and look at once; answer another question; then say that it is done."""
        parts = [part for message in request.messages for part in calls_of(message)]
        if not parts:
            return [call("pay", {"euros": 5}), call("look", {"what": "it"})]
        return say("Yes.") if parts[0].error_text == WAITS_FOR_APPROVAL else say("Done.")


class TestRaces:
    def waiting(self, rt: Any, till: Till, *calls: Any) -> Think:
        """An agent on a worker's runtime that has asked for these calls."""

        def answer(request: ModelRequest) -> Any:
            return list(calls) if len(request.messages) == 1 else say("Done.")

        agent: Think = till.agent(model=FunctionModel(answer))._bound_to(rt, "a")
        submission = agent.submit_messages("Go")
        claims.run(rt, submission.submission_id)
        return agent

    def test_many_decide_on_one_call(self, live, till):
        """One takes the decision, whatever the others wanted; one turn goes on."""
        for _ in range(3):
            conversation.reset(live, till.agent()._ref)
            agent = self.waiting(live, till, call("pay", {"euros": 5}))
            call_id = only(agent).tool_call_id

            def decide(number: int, agent: Think = agent, call_id: str = call_id) -> Any:
                if number % 2:
                    return agent.approve_tool_call(call_id)
                return agent.reject_tool_call(call_id)

            results = at_once(8, decide)

            (won,) = [each for each in results if each.taken]
            assert {each.status for each in results} == {won.status}
            assert {each.continuation_id for each in results} == {won.continuation_id}
            assert len(agent.list_submissions(status="pending")) == 1

    def test_many_decide_on_the_calls_of_one_answer(self, live, till):
        """Whoever decides last, in whatever order they commit: one turn goes on, with all decisions."""
        for _ in range(3):
            conversation.reset(live, till.agent()._ref)
            agent = self.waiting(live, till, *[call("pay", {"euros": n}) for n in range(6)])
            waiting = agent.pending_interactions()

            def decide(number: int, agent: Think = agent, waiting: Any = waiting) -> Any:
                return agent.approve_tool_call(waiting[number].tool_call_id)

            results = at_once(6, decide)

            assert all(each.taken for each in results)
            assert sum(each.continuation_id is not None for each in results) == 1
            (pending,) = agent.list_submissions(status="pending")
            till.paid.clear()
            claims.run(live, pending.submission_id)
            assert sorted(till.paid) == list(range(6))

    def test_a_decision_meets_a_delete(self, live, till):
        """Either the call is decided, or it was withdrawn with the submission that asked."""
        for _ in range(3):
            conversation.reset(live, till.agent()._ref)
            agent = self.waiting(live, till, call("pay", {"euros": 5}))
            waiting = only(agent)

            def act(number: int, agent: Think = agent, waiting: Any = waiting) -> Any:
                if number:
                    return agent.delete_submission(waiting.submission_id)
                return agent.approve_tool_call(waiting.tool_call_id)

            decided, deleted = at_once(2, act)

            assert deleted
            assert decided.status == ("approved" if decided.taken else "withdrawn")
            assert len(agent.list_submissions(status="pending")) == decided.taken
            (part,) = calls_of(agent.messages[-1])
            assert part.state == ("approval-responded" if decided.taken else "output-error")

    def test_a_caller_who_decides_holds_up_nobody(self, postgres_url, till):
        """While a caller keeps its decision uncommitted, other turns of the agent are claimed and run."""
        with worker(postgres_url) as rt:
            agent = self.waiting(rt, till, call("pay", {"euros": 5}))
            with transaction(rt):
                assert agent.approve_tool_call(only(agent).tool_call_id)

                def others(_: int) -> Any:
                    submission = agent.submit_messages("Are you there?")
                    word = claims.run(rt, submission.submission_id).word
                    row, _ = rt.db.transact(
                        lambda tx: submissions.accept(rt, tx, agent._ref, [], kind="continue")
                    )
                    return word, claims.run(rt, row.id).word

                assert at_once(1, others) == [("completed", "completed")]
            assert agent.has_pending_interaction

    def test_a_decision_meets_a_reset(self, live, till):
        """Either the decision goes with the conversation, or it comes too late; nothing runs."""
        for _ in range(3):
            agent = self.waiting(live, till, call("pay", {"euros": 5}))
            call_id = only(agent).tool_call_id

            def act(number: int, agent: Think = agent, call_id: str = call_id) -> Any:
                if number:
                    return conversation.reset(live, agent._ref)
                return agent.approve_tool_call(call_id)

            decided, _ = at_once(2, act)

            assert decided.status == ("approved" if decided.taken else "withdrawn")
            assert not agent.has_pending_interaction
            assert agent.list_submissions(status=["pending", "running"]) == []
            assert till.paid == []


class TestContinueLastTurn:
    """B16: `continue_last_turn` goes on in the last answer."""

    def test_it_goes_on_in_the_last_answer(self, t, till):
        """B16: the same message grows; the wish to continue is not stored."""
        agent = till.agent()
        model = t.script(agent, say("Once upon a time"), say(" there was a whale."))
        asked = ask(t, agent)

        result = agent.continue_last_turn()

        assert (result.status, result.text) == ("completed", "Once upon a time there was a whale.")
        assert result.message.id == asked.message_id
        assert result.submission_id != asked.submission_id
        assert texts(agent.messages) == [("user", "Go"), ("assistant", result.text)]
        assert texts(model.requests[-1].messages)[-1] == ("user", CONTINUE)
        assert shape(result.message) == ["|", "Once upon a time", "|", " there was a whale."]
        transcripts.check(model.requests)

    def test_an_answer_that_ran_out_of_steps(self, t, till):
        """It ends with a tool's result, so the model is just asked again, with steps of its own."""
        agent = till.agent(max_steps=1)
        model = t.script(agent, call("look", {"what": "it"}), say("I see it."))
        ask(t, agent)

        result = agent.continue_last_turn()

        assert result.text == "I see it."
        assert [m.role for m in model.requests[-1].messages] == ["user", "assistant"]
        transcripts.check(model.requests)

    def test_conditions_count_its_own_steps(self, t, till):
        """A stop condition is told the steps of the turn that goes on, not those that were there before."""
        told: list[int] = []

        def stop(steps: Any) -> bool:
            told.append(len(steps))
            return len(steps) == 1

        agent = till.agent(before_turn=lambda self, ctx: TurnConfig(stop_when=stop))
        t.script(agent, *[call("look", {"what": str(n)}) for n in range(3)])
        ask(t, agent)

        result = agent.continue_last_turn()

        assert (result.status, till.looked, told) == ("completed", ["0", "1"], [1, 1])

    def test_an_agent_with_a_loop_of_its_own(self, t):
        """It is asked to go on with the conversation that ends in its own answer and the wish to continue."""
        asked: list[Any] = []

        class OwnLoop(ChatAgent):
            def on_chat_message(self, ctx: Any) -> str:
                asked.append(texts(ctx.messages))
                return f"part {len(asked)}. "

        agent = OwnLoop("a")
        agent.submit_messages("Go")
        t.run_until_idle()

        result = agent.continue_last_turn()

        assert (result.status, result.text) == ("completed", "part 1. part 2. ")
        assert asked[1] == [("user", "Go"), ("assistant", "part 1. "), ("user", CONTINUE)]

    def test_an_answer_that_was_cut(self, t, till):
        """FR-49: a cancelled answer goes on exactly where it was cut, in the same step."""
        agent = till.agent()
        submission = agent.submit_messages("Go")

        def cut(request: ModelRequest) -> Any:
            yield TextDelta("Hel")
            agent.cancel_submission(submission.submission_id)
            t.rt.monitor.beat()
            yield TextDelta("xx")

        t.use_model(FunctionModel(cut), agent)
        t.run_until_idle()
        assert now(agent, submission).status is ABORTED
        model = t.script(agent, say("lo."))

        result = agent.continue_last_turn()

        assert (result.text, result.message.id) == ("Hello.", submission.message().id)
        assert model.requests[-1].messages[-1].text == GO_ON
        transcripts.check(model.requests)

    def test_what_a_cancelled_turn_left_open_does_not_run(self, t, till):
        """Going on is no approval and no second try: a call that was never made stays so, and the model knows."""
        agent = till.agent()
        t.script(agent, call("pay", {"euros": 5}))
        ask(t, agent)
        decided = agent.approve_tool_call(only(agent).tool_call_id)
        agent.cancel_submission(decided.continuation_id)
        model = t.script(agent, say("Shall I?"))

        result = agent.continue_last_turn()

        assert (result.status, till.paid) == ("completed", [])
        assert told(model.requests[-1]) == [("pay", INTERRUPTED)]
        transcripts.check(model.requests)

    def test_nothing_to_continue(self, t, till):
        """B16: where the last message is not an answer, the turn is skipped, and nothing is asked."""
        agent = till.agent()
        model = t.script(agent)

        result = agent.continue_last_turn()

        assert (result.status, result.error, result.message) == ("skipped", NOTHING_TO_CONTINUE, None)
        assert model.requests == []

    def test_calls_that_wait(self, t, till):
        """An answer whose calls wait for somebody goes on when that is decided, and not before."""
        agent = till.agent()
        t.script(agent, call("pay", {"euros": 5}))
        asked = ask(t, agent)
        before = asked.message().to_dict()

        result = agent.continue_last_turn()

        assert (result.status, result.error) == ("skipped", STILL_WAITS)
        assert asked.message().to_dict() == before
        assert agent.has_pending_interaction

    def test_it_waits_for_the_turns_before_it(self, t, till):
        """What is last is seen when its turn comes."""
        agent = till.agent()
        t.use_model(FunctionModel(lambda request: say(f"re: {request.messages[-1].text} ")), agent)
        agent.submit_messages("1")
        second = agent.submit_messages("2")

        result = agent.continue_last_turn()

        assert result.message.id == second.message().id
        assert result.text == f"re: 2 re: {CONTINUE} "

    def test_a_signal(self, t, till):
        """B16: given before, no model is asked; the result is aborted."""
        agent = till.agent()
        model = t.script(agent, say("Hello."))
        ask(t, agent)
        controller = AbortController()
        controller.abort("enough")

        result = agent.continue_last_turn(signal=controller.signal)

        assert (result.status, result.error) == ("aborted", "enough")
        assert len(model.requests) == 1

    def test_a_signal_while_it_streams(self, t, till):
        """B16: the turn is aborted, and what had come of the rest is kept, in the same message."""
        agent, controller = till.agent(), AbortController()
        t.script(agent, say("Once "))
        asked = ask(t, agent)

        def respond(request: ModelRequest) -> Any:
            yield TextDelta("upon a")
            controller.abort("enough")
            yield TextDelta(" time")

        t.use_model(FunctionModel(respond), agent)

        result = agent.continue_last_turn(signal=controller.signal)

        assert (result.status, result.error, result.text) == ("aborted", "enough", "Once upon a")
        assert result.message.id == asked.message_id
        assert texts(agent.messages) == [("user", "Go"), ("assistant", "Once upon a")]

    def test_in_a_transaction_of_the_callers(self, t, till):
        """Like everything that waits, it can't be joined."""
        agent = till.agent()
        with transaction(t.rt), pytest.raises(InsideTransaction, match="continue_last_turn"):
            agent.continue_last_turn()

    @pytest.mark.parametrize(
        "point", ["turn:claimed", "turn:before-model", "turn:streaming", "turn:before-commit"]
    )
    def test_a_crash(self, t, till, point):
        """FR-49: whoever takes over goes on in the same message, and what was there stays."""
        agent = till.agent()
        model = FunctionModel(lambda request: say("More." if len(request.messages) > 1 else "First. "))
        t.use_model(model, agent)
        asked = ask(t, agent)
        t.crash_at(point)

        result = agent.continue_last_turn()

        assert t.crashes == [point]
        assert (result.status, result.text, result.message.id) == (
            "completed",
            "First. More.",
            asked.message_id,
        )
        assert len(agent.messages) == 2
        transcripts.check(model.requests)
