"""Calls that wait for a person or for a client: the turn ends, somebody decides, and the answer goes on."""

import pytest

from tests.domain.talk import (
    COMPLETED,
    ask,
    ask_structured,
    calls_of,
    events,
    kinds,
    row,
    shape,
)
from tests.domain.till import Till, forge, interaction_rows, only, stored
from tests.providers import transcripts
from think_celery.clock import to_milliseconds
from think_celery.domain import tick
from think_celery.domain.conversation.conversation import DENIED
from think_celery.errors import InteractionMismatch, InteractionNotFound, InvalidToolResult, PayloadTooLarge
from think_celery.providers.scripted import answer, call, say


@pytest.fixture
def till() -> Till:
    """A till whose every payment needs an approval."""
    return Till()


class TestAsking:
    def test_the_turn_ends_and_the_call_waits(self, t, till):
        """B26: nothing runs and nobody polls until somebody decides; the other calls of the step run as usual."""
        agent = till.agent()
        model = t.script(agent, [call("pay", {"euros": 5}), call("look", {"what": "it"})])

        done = ask(t, agent)

        waiting = only(agent)
        pay, look = calls_of(done.message())
        assert (done.status, till.paid, till.looked) == (COMPLETED, [], ["it"])
        assert (pay.state, pay.approval) == ("approval-requested", {"id": waiting.interaction_id})
        assert look.output == "seen: it"
        assert (waiting.tool_name, waiting.input, waiting.kind) == ("pay", {"euros": 5}, "approval")
        assert (waiting.message_id, waiting.submission_id) == (done.message_id, done.submission_id)
        assert (waiting.tool_call_id, waiting.created_at) == (pay.tool_call_id, t.clock.now())
        assert waiting.to_dict()["createdAt"] == to_milliseconds(t.clock.now())  # as in all receipts
        assert agent.has_pending_interaction
        assert tick.next_due(t.rt) is None
        t.skip("3 days")
        assert len(model.requests) == 1

    def test_listeners_are_told(self, t, till):
        """The request is shown in the shape of a UI message chunk, before the turn is done."""
        agent = till.agent()
        t.script(agent, call("pay", {"euros": 5}))

        ask(t, agent)

        request = next(event for _, event in events(t, agent) if event["type"] == "tool-approval-request")
        waiting = only(agent)
        assert request == {
            "type": "tool-approval-request",
            "approvalId": waiting.interaction_id,
            "toolCallId": waiting.tool_call_id,
        }
        assert kinds(t, agent)[-3:] == ["tool-input-available", "tool-approval-request", "done"]

    def test_a_clients_tool(self, t, till):
        """B26: a tool without a function is run by a client; its call is whole, and has no result."""
        agent = till.agent()
        t.script(agent, call("locate"))

        done = ask(t, agent)

        (locate,) = calls_of(done.message())
        assert (only(agent).kind, only(agent).input) == ("client", {})
        assert (locate.state, locate.approval, locate.started) == ("input-available", None, False)
        assert kinds(t, agent)[-2:] == ["tool-input-available", "done"]

    def test_what_a_row_holds(self, t, till):
        """The row names agent, turn, message and call; the arguments stand in the message, their fingerprint here."""
        agent = till.agent()
        t.script(agent, call("pay", {"euros": 5}))

        done = ask(t, agent)

        (kept,) = interaction_rows(t)
        assert (kept.agent_id, kept.agent_class, kept.agent_name) == (agent._ref.id, "Talker", "a")
        assert (kept.submission_id, kept.message_id) == (done.submission_id, done.message_id)
        assert (kept.tool, kept.kind, kept.status, len(kept.fingerprint)) == ("pay", "approval", "open", 64)
        assert "5" not in str(kept.output) + str(kept.reason)

    @pytest.mark.parametrize(("euros", "asks"), [(99, False), (100, True)])
    def test_a_function_of_the_arguments_decides(self, t, euros, asks):
        """A function gets the arguments that it names, with the tool's defaults for those that were left out."""
        told = []

        def large(euros: int, to: str) -> bool:
            told.append((euros, to))
            return euros >= 100

        till = Till(needs_approval=large)
        agent = till.agent()
        t.script(agent, call("pay", {"euros": euros}), say("Done."))

        ask(t, agent)

        assert told == [(euros, "Ann")]
        assert (till.paid == [], agent.has_pending_interaction) == (asks, asks)

    def test_a_function_without_an_answer_asks(self, t):
        """A forgotten `return` lets no money go."""
        till = Till(needs_approval=lambda euros: None)
        agent = till.agent()
        t.script(agent, call("pay", {"euros": 1}))

        ask(t, agent)

        assert (till.paid, agent.has_pending_interaction) == ([], True)

    def test_a_function_that_fails_asks(self, t, caplog):
        """A rule that can't be read means that somebody must look; what it raised is in the log."""
        till = Till(needs_approval=lambda euros: 1 / 0)
        agent = till.agent()
        t.script(agent, call("pay", {"euros": 1}))

        ask(t, agent)

        assert (till.paid, agent.has_pending_interaction) == ([], True)
        assert "needs_approval of tool pay failed" in caplog.text
        assert "ZeroDivisionError" in caplog.text

    def test_unfit_arguments_ask_nobody(self, t, till):
        """Nobody is asked about a call that can't be made: the model is told at once."""
        agent = till.agent()
        t.script(agent, call("pay", {"euros": "many"}), say("Sorry."))

        done = ask(t, agent)

        assert not agent.has_pending_interaction
        assert "euros" in calls_of(done.message())[0].error_text

    @pytest.mark.parametrize("name", ["pay", "locate"])
    def test_a_structured_turn_cannot_wait(self, t, till, name):
        """In a workflow's prompt the model is told that it can't, and where the workflow can ask."""
        agent = till.agent()
        model = t.script(agent, call(name, {"euros": 5} if name == "pay" else {}), answer({"label": "x"}))

        done = ask_structured(t, agent)

        (refused,) = calls_of(done.message())
        assert (done.status, till.paid, agent.has_pending_interaction) == (COMPLETED, [], False)
        assert (refused.state, "step.wait_for_approval" in refused.error_text) == ("output-error", True)
        transcripts.check(model.requests)


class TestDeciding:
    def test_an_approved_call_runs_and_the_answer_goes_on(self, t, till):
        """B26: with exactly the stored arguments, in the same message, before the model is asked again."""
        agent = till.agent()
        model = t.script(agent, [say("Paying."), call("pay", {"euros": 5})], say("Paid."))
        asked = ask(t, agent)

        decided = agent.approve_tool_call(only(agent).tool_call_id, reason="fine")

        assert (bool(decided), decided.taken, decided.status) == (True, True, "approved")
        assert calls_of(asked.message())[0].state == "approval-responded"
        assert not agent.has_pending_interaction
        t.run_until_idle()
        going_on = agent.inspect_submission(decided.continuation_id)
        assert (going_on.status, going_on.message_id) == (COMPLETED, asked.message_id)
        assert row(t.rt, going_on).kind == "continue"
        assert till.paid == [5]
        assert shape(asked.message()) == [
            "|",
            "Paying.",
            ("pay", {"euros": 5}, "paid 5 to Ann"),
            "|",
            "Paid.",
        ]
        assert [m.role for m in agent.messages] == ["user", "assistant"]
        (paid,) = calls_of(asked.message())
        assert (paid.approval["approved"], paid.approval["reason"]) == (True, "fine")
        transcripts.check(model.requests)

    def test_a_rejected_call_is_denied(self, t, till):
        """FR-55: it never runs; the model gets a result that says so, with the reason, and goes on."""
        agent = till.agent()
        model = t.script(agent, call("pay", {"euros": 5}), say("I won't."))
        asked = ask(t, agent)

        decided = agent.reject_tool_call(only(agent).tool_call_id, "too much")
        t.run_until_idle()

        (denied,) = calls_of(asked.message())
        assert (decided.taken, decided.status, till.paid) == (True, "rejected", [])
        assert (denied.state, denied.approval["approved"]) == ("output-denied", False)
        assert denied.approval["reason"] == "too much"
        (told,) = calls_of(model.requests[-1].messages[-1])
        assert (told.state, told.error_text) == ("output-error", f"{DENIED} Reason: too much")
        assert asked.message().text == "I won't."
        transcripts.check(model.requests)

    @pytest.mark.parametrize(
        ("given", "state", "told"),
        [
            ({"output": {"lat": 1}}, "output-available", {"lat": 1}),
            ({"output": None}, "output-available", None),
            ({"error": "no GPS"}, "output-error", "no GPS"),
        ],
    )
    def test_a_clients_answer(self, t, till, given, state, told):
        """B26: the client's output, or why it failed, is the call's result."""
        agent = till.agent()
        model = t.script(agent, call("locate"), say("I see."))
        asked = ask(t, agent)

        decided = agent.provide_tool_result(only(agent).tool_call_id, **given)
        t.run_until_idle()

        (part,) = calls_of(asked.message())
        assert (decided.taken, decided.status) == (True, "answered")
        assert (part.state, part.error_text if "error" in given else part.output) == (state, told)
        assert asked.message().text == "I see."
        transcripts.check(model.requests)

    def test_the_last_decision_starts_the_turn(self, t, till):
        """Of several calls that wait, each is decided on by itself; one turn acts on all of them."""
        agent = till.agent()
        model = t.script(
            agent,
            [call("pay", {"euros": 1}), call("pay", {"euros": 2}), call("locate"), call("pay", {"euros": 3})],
            say("Done."),
        )
        asked = ask(t, agent)
        first, second, locate, third = agent.pending_interactions()

        early = [
            agent.approve_tool_call(third.tool_call_id),
            agent.reject_tool_call(first.tool_call_id),
            agent.provide_tool_result(locate.tool_call_id, "home"),
        ]
        t.run_until_idle()
        assert [each.continuation_id for each in early] == [None] * 3
        assert len(model.requests) == 1
        last = agent.approve_tool_call(second.tool_call_id)
        t.run_until_idle()

        assert till.paid == [2, 3]
        assert [part.state for part in calls_of(asked.message())] == [
            "output-denied",
            "output-available",
            "output-available",
            "output-available",
        ]
        assert agent.inspect_submission(last.continuation_id).status is COMPLETED
        assert len(agent.list_submissions()) == 2
        transcripts.check(model.requests)

    def test_a_decision_is_taken_once(self, t, till):
        """Whoever comes later is told how the call stands; nothing is changed and nothing runs twice."""
        agent = till.agent()
        t.script(agent, call("pay", {"euros": 5}), say("Paid."))
        ask(t, agent)
        call_id = only(agent).tool_call_id

        first = agent.approve_tool_call(call_id)
        late = [agent.reject_tool_call(call_id, "no"), agent.approve_tool_call(call_id)]
        t.run_until_idle()
        late.append(agent.reject_tool_call(call_id))

        assert [bool(each) for each in late] == [False] * 3
        assert {(each.status, each.continuation_id) for each in late} == {("approved", first.continuation_id)}
        assert (till.paid, len(agent.list_submissions())) == ([5], 2)

    def test_what_cannot_be_decided(self, t, till):
        """An unknown call, another agent's, the wrong kind of decision: errors, and nothing changes."""
        agent = till.agent()
        t.script(agent, [call("pay", {"euros": 5}), call("locate")])
        ask(t, agent)
        pay, locate = agent.pending_interactions()

        for wrong in ("nothing", "", "a\0b", 7):
            with pytest.raises(InteractionNotFound, match="pending_interactions"):
                agent.approve_tool_call(wrong)
        with pytest.raises(InteractionNotFound):
            type(agent)("b").approve_tool_call(pay.tool_call_id)
        with pytest.raises(InteractionMismatch, match="provide_tool_result"):
            agent.approve_tool_call(locate.tool_call_id)
        with pytest.raises(InteractionMismatch, match="approve_tool_call"):
            agent.provide_tool_result(pay.tool_call_id, "paid, honestly")
        with pytest.raises(ValueError, match="not both"):
            agent.provide_tool_result(locate.tool_call_id, 1, error="x")
        with pytest.raises(InvalidToolResult):
            agent.provide_tool_result(locate.tool_call_id, object())
        with pytest.raises(PayloadTooLarge):
            agent.provide_tool_result(locate.tool_call_id, "x" * t.rt.settings.max_payload)
        with pytest.raises(TypeError, match="reason"):
            agent.reject_tool_call(pay.tool_call_id, 7)

        assert len(agent.pending_interactions()) == 2

    def test_a_call_before_its_turn_has_ended(self, t, till):
        """Nobody decides on a call whose turn still runs: it waits from the end of the turn on."""
        agent, seen = till.agent(), []
        t.script(agent, call("pay", {"euros": 5}), say("Paid."))

        def failpoint(point: str) -> None:
            if point == "turn:before-commit" and not seen:
                seen.append(agent.pending_interactions())

        t.rt.failpoint = failpoint
        ask(t, agent)

        assert seen == [[]]
        assert agent.approve_tool_call(only(agent).tool_call_id)

    def test_arguments_that_were_changed_since(self, t, till):
        """An approval is for one call with its arguments: where the stored ones differ, it can't be given."""
        agent = till.agent()
        t.script(agent, call("pay", {"euros": 5}))
        asked = ask(t, agent)
        parts = [{**part, **({"input": {"euros": 500}} if "input" in part else {})} for part in stored(agent)]
        forge(t, asked.message_id, parts)

        with pytest.raises(InteractionMismatch, match="changed since"):
            agent.approve_tool_call(only(agent).tool_call_id)

        assert agent.has_pending_interaction

    def test_arguments_that_were_changed_after_the_approval(self, t, till):
        """The worker compares, too: what it would call must be what was approved."""
        agent = till.agent()
        t.script(agent, call("pay", {"euros": 5}), say("Hm."))
        asked = ask(t, agent)
        agent.approve_tool_call(only(agent).tool_call_id)
        parts = [{**part, **({"input": {"euros": 500}} if "input" in part else {})} for part in stored(agent)]
        forge(t, asked.message_id, parts)

        t.run_until_idle()

        assert till.paid == []
        assert calls_of(asked.message())[0].state == "output-error"

    def test_a_second_approval_in_the_same_answer(self, t, till):
        """The turn that goes on may ask again; each decision has its own turn, all in one message."""
        agent = till.agent()
        model = t.script(agent, call("pay", {"euros": 1}), call("pay", {"euros": 2}), say("Both paid."))
        asked = ask(t, agent)

        for _ in range(2):
            agent.approve_tool_call(only(agent).tool_call_id)
            t.run_until_idle()

        assert till.paid == [1, 2]
        assert shape(asked.message())[-1] == "Both paid."
        assert len(agent.messages) == 2
        assert len(agent.list_submissions()) == 3
        transcripts.check(model.requests)

    def test_steps_are_counted_for_each_turn(self, t, till):
        """An approval that came with the last permitted step leaves the turn that goes on steps of its own."""
        agent = till.agent(max_steps=1)
        t.script(agent, call("pay", {"euros": 1}), say("Paid."))
        asked = ask(t, agent)

        agent.approve_tool_call(only(agent).tool_call_id)
        t.run_until_idle()

        assert asked.message().text == "Paid."
