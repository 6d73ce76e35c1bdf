"""`save_messages`: a turn for a caller who waits for its answer."""

import threading

import pytest

from tests.domain.crowd import at_once, clerk, said, transaction, workers
from tests.domain.talk import talker
from tests.domain.till import Till
from think_celery import AbortController, SaveMessagesResult
from think_celery.domain.conversation import conversation
from think_celery.domain.submissions import submissions
from think_celery.domain.work import perform
from think_celery.errors import (
    EmptySubmission,
    InsideTransaction,
    InvalidDuration,
    InvalidValue,
    SubmissionNotFound,
    TurnStillRunning,
)
from think_celery.protocols import TextDelta
from think_celery.providers.scripted import FunctionModel, call, fail, say


class TestAnAnswer:
    def test_comes_back_stored(self, t):
        """B7: when it returns, the messages and the answer are in the conversation, and the result has it all."""
        agent = talker()("a")
        t.script("Talker", say("Hello."))

        result = agent.save_messages("Hi")

        assert isinstance(result, SaveMessagesResult)
        assert (result.status, result.text, result.error) == ("completed", "Hello.", None)
        assert [message.text for message in agent.messages] == ["Hi", "Hello."]
        assert result.message == agent.messages[-1]
        row = agent.inspect_submission(result.submission_id)
        assert result.request_id == result.submission_id == row.request_id
        assert submissions.get(t.rt, result.submission_id).kind == "save"

    def test_comes_after_all_that_was_accepted_before(self, t):
        """B7: the caller's turn takes its place in the line, and the ones before it run first."""
        agent = talker()("a")
        t.use_model(FunctionModel(lambda request: say(f"re: {request.messages[-1].text}")))
        agent.submit_messages("first")
        agent.submit_messages("second")

        result = agent.save_messages("third")

        assert result.text == "re: third"
        assert [m.text for m in agent.messages if m.role == "user"] == ["first", "second", "third"]

    def test_a_model_that_fails_raises_nothing(self, t):
        """B7: how the turn has ended is in the result; only the caller decides whether that is an error of its own."""
        agent = talker()("a")
        t.script("Talker", fail("mock says 400"))

        result = agent.save_messages("Hi")

        assert (result.status, result.error_type, result.message) == ("error", "ModelError", None)
        assert "mock says 400" in str(result.error)
        assert result.text == ""

    def test_nothing_new_and_an_answer_last_is_nothing_to_answer(self, t):
        """B7: the turn ends in error before a model is asked."""
        agent = talker()("a")
        model = t.script("Talker", say("Hello."))
        agent.save_messages(message("m1", "Hi"))

        result = agent.save_messages(message("m1", "Hi"))

        assert (result.status, result.error_type) == ("error", "NothingToAnswer")
        assert len(model.requests) == 1

    def test_a_crash_on_the_way_is_survived(self, t):
        """B7: another worker goes on, and the caller gets the answer all the same."""
        agent = talker()("a")
        t.script("Talker", say("Hello."), say("Hello again."))
        t.crash_at("turn:committed")
        t.crash_at("turn:claimed")

        assert agent.save_messages("Hi").status == "completed"
        assert len(agent.messages) == 2

    def test_a_lost_message_is_survived(self, t):
        """B7: the tick finds the turn while the caller waits."""
        agent = talker()("a")
        t.script("Talker", say("Hello."))
        knock, t.rt.knock = t.rt.knock, lambda knock: None
        began = t.clock.elapsed()

        def lose_one(left):
            t.rt.knock = knock
            meanwhile(left)

        meanwhile, t.rt.meanwhile = t.rt.meanwhile, lose_one
        assert agent.save_messages("Hi").text == "Hello."
        assert t.clock.elapsed() - began >= 2


class TestRefusals:
    @pytest.mark.parametrize("nothing", [[], lambda messages: []], ids=["a list", "a function"])
    def test_no_message(self, t, nothing):
        """B7: there is nothing to answer, so nothing is stored."""
        agent = talker()("a")

        with pytest.raises(EmptySubmission):
            agent.save_messages(nothing)
        assert agent.list_submissions() == []

    def test_a_joined_transaction(self, t):
        """What is waited for can't begin before the caller's commit, so the call would never return."""
        agent = talker()("a")

        with transaction(t.rt) as session:
            for wait in (agent.save_messages, agent.wait_for_submission):
                with pytest.raises(InsideTransaction, match="after the transaction"):
                    wait("x")
            with pytest.raises(InsideTransaction):
                agent.wait_until_stable()
            session.rollback()
        assert agent.list_submissions() == []

    def test_unfit_arguments(self, t):
        """They are refused before anything is stored, and say what to pass."""
        agent = talker()("a")

        with pytest.raises(InvalidDuration):
            agent.save_messages("Hi", timeout=-1)
        with pytest.raises(TypeError, match="AbortController"):
            agent.save_messages("Hi", signal=AbortController())
        assert agent.list_submissions() == []


class TestTime:
    def test_overdue_is_an_error_with_the_id_and_the_turn_goes_on(self, t):
        """B7: who waited can wait again, or leave it."""
        agent = talker()("a")
        t.script("Talker", say("Hello."))
        t.rt.meanwhile, kept = lambda left: t.clock.sleep(left), t.rt.meanwhile

        with pytest.raises(TurnStillRunning, match="wait_for_submission") as overdue:
            agent.save_messages("Hi", timeout="2 seconds")
        t.rt.meanwhile = kept

        ended = agent.wait_for_submission(overdue.value.submission_id, timeout=1)
        assert (ended.status, ended.message().text) == ("completed", "Hello.")
        assert overdue.value.seconds == 2

    def test_none_at_all(self, t):
        """With 0 it only looks."""
        agent = talker()("a")
        t.script("Talker", say("Hello."))

        with pytest.raises(TurnStillRunning) as overdue:
            agent.save_messages("Hi", timeout=0)

        t.run_until_idle()
        assert agent.wait_for_submission(overdue.value.submission_id, timeout=0).status == "completed"

    def test_the_deletion_of_what_is_waited_for(self, t):
        """Its end can't be told any more: that is said, instead of waiting for ever."""
        agent = talker()("a")
        submission = agent.submit_messages("Hi")

        def delete(left):
            agent.cancel_submission(submission.submission_id)
            assert agent.delete_submission(submission.submission_id)

        t.rt.meanwhile = delete
        with pytest.raises(SubmissionNotFound):
            agent.wait_for_submission(submission.submission_id)

    def test_a_wait_that_nothing_can_end_fails_the_test(self, t):
        """In `think_test` nobody else would ever do it, so it does not hang."""
        agent = talker()("a")
        agent.submit_messages("Hi")
        t.lose_messages()
        t.rt.knock = lambda knock: None

        with pytest.raises(AssertionError, match="waits for ever"):
            agent.wait_until_stable()


class TestSignals:
    def test_given_before_the_call(self, t):
        """B16: the turn is stored as aborted and never begins: no model is asked, nothing joins the conversation."""
        agent, controller = talker()("a"), AbortController()
        model = t.script("Talker", say("Hello."))
        controller.abort("no longer needed")

        result = agent.save_messages("Hi", signal=controller.signal)

        assert (result.status, result.error, result.message) == ("aborted", "no longer needed", None)
        t.run_until_idle()
        assert (model.requests, agent.messages) == ([], [])

    def test_given_while_it_streams(self, t):
        """B16: the model's request is given up, and what it had said is kept."""
        agent, controller = talker()("a"), AbortController()

        def answer(request):
            yield TextDelta("Half of it")
            controller.abort("enough")
            yield TextDelta(", and more")

        t.use_model(FunctionModel(answer))

        result = agent.save_messages("Hi", signal=controller.signal)

        assert (result.status, result.text, result.error) == ("aborted", "Half of it", "enough")
        assert [message.text for message in agent.messages] == ["Hi", "Half of it"]

    def test_given_while_it_waits_for_its_turn(self, t):
        """B16: the turn before it goes on; its own never begins."""
        agent, controller = talker()("a"), AbortController()
        t.script("Talker", call("stop", {}), say("first"))

        def stop() -> str:
            """Stop the other one."""
            controller.abort()
            return "done"

        talker(stop)
        agent.submit_messages("first")

        result = agent.save_messages("second", signal=controller.signal)
        t.run_until_idle()

        assert (result.status, result.message) == ("aborted", None)
        assert [message.text for message in agent.messages] == ["first", "first"]

    def test_given_after_its_end(self, t):
        """B16: it changes nothing."""
        agent, controller = talker()("a"), AbortController()
        t.script("Talker", say("Hello."))
        result = agent.save_messages("Hi", signal=controller.signal)

        controller.abort()

        assert agent.inspect_submission(result.submission_id).status == "completed"


class TestFunctions:
    def test_sees_the_conversation_and_adds_to_it(self, t):
        """B7: messages that are there are context, the others are added."""
        agent = talker()("a")
        t.use_model(FunctionModel(lambda request: say(f"re: {request.messages[-1].text}")))
        agent.save_messages("one")

        result = agent.save_messages(lambda messages: [*messages, f"{len(messages)} before"])

        assert result.text == "re: 2 before"
        assert [m.text for m in agent.messages] == ["one", "re: one", "2 before", "re: 2 before"]

    def test_is_called_again_where_the_conversation_went_on(self, t):
        """B7: it sees the latest messages, whatever ran between its call and its turn."""
        agent, seen = talker()("a"), []
        t.use_model(FunctionModel(lambda request: say(f"re: {request.messages[-1].text}")))
        agent.submit_messages("before")

        def add(messages):
            seen.append([message.text for message in messages])
            return [*messages, "mine"]

        result = agent.save_messages(add)

        assert seen == [[], ["before", "re: before"]]
        assert result.text == "re: mine"
        assert [m.text for m in agent.messages if m.role == "user"] == ["before", "mine"]
        skipped = [each for each in agent.list_submissions() if each.status == "skipped"]
        assert [each.error_type for each in skipped] == ["ConversationMoved"]

    def test_a_changed_message_counts_as_well(self, t):
        """B7: not only new messages make another conversation."""
        agent, seen = talker()("a"), []
        t.use_model(FunctionModel(lambda request: say("ok")))
        agent.persist_messages(message("m1", "old"))

        def add(messages):
            seen.append(messages[0].text)
            if len(seen) == 1:
                agent.persist_messages(message("m1", "new"))
            return [*messages, "mine"]

        assert agent.save_messages(add).status == "completed"
        assert seen == ["old", "new"]

    def test_nothing_added_answers_what_stands_last(self, t):
        """B7: a conversation that ends with a user's message has something to answer, else not."""
        agent = talker()("a")
        t.use_model(FunctionModel(lambda request: say(f"re: {request.messages[-1].text}")))
        agent.persist_messages("a question")

        assert agent.save_messages(lambda messages: messages).text == "re: a question"
        assert agent.save_messages(lambda messages: messages).error_type == "NothingToAnswer"

    def test_is_called_no_more_when_its_time_is_over(self, t):
        """B7: who waits on for the last attempt learns that it was skipped, and why."""
        agent = talker()("a")
        t.use_model(FunctionModel(lambda request: say("ok")))

        def add(messages):
            agent.submit_messages("faster")
            t.clock.sleep(1)
            return [*messages, "mine"]

        with pytest.raises(TurnStillRunning) as overdue:
            agent.save_messages(add, timeout=3)

        ended = agent.wait_for_submission(overdue.value.submission_id)
        assert (ended.status, ended.error_type) == ("skipped", "ConversationMoved")

    def test_a_reset_is_not_tried_again(self, t):
        """B7: what was skipped by a reset was meant to go."""
        agent, calls = talker()("a"), []
        t.use_model(FunctionModel(lambda request: say("ok")))

        def add(messages):
            calls.append(messages)
            return ["mine"]

        def reset(left):
            conversation.reset(t.rt, agent._ref)

        t.rt.meanwhile = reset
        result = agent.save_messages(add)

        assert (result.status, result.error_type, len(calls)) == ("skipped", None, 1)


class TestFunctionsRace:
    def test_each_of_eight_callers_sees_all_before_it(self, database_url):
        """B7: of callers at once, each one's turn begins with the conversation that its function has seen."""
        with workers(database_url) as rt:
            stop = threading.Event()
            serving = threading.Thread(target=serve, args=(rt, stop), daemon=True)
            serving.start()
            agent = clerk(rt)

            def save(number):
                counted = lambda messages: [*messages, f"{sum(m.role == 'user' for m in messages)}"]  # noqa: E731
                return agent.save_messages(counted, timeout=60)

            results = at_once(8, save)
            stop.set()
            serving.join(10)

            assert [result.status for result in results] == ["completed"] * 8
            assert said(agent) == [str(number) for number in range(8)]


# --- helpers --------------------------------------------------------------------------------------


def message(message_id, text):
    """A user's message of that id."""
    return {"id": message_id, "role": "user", "content": text}


def serve(rt, stop):
    """What a worker does: it takes message after message."""
    while not stop.is_set():
        try:
            knock = rt.knock.__self__.pop(0)
        except IndexError:
            stop.wait(0.002)
            continue
        perform(rt, knock)


class TestKeysAndMetadata:
    def test_a_repeat_has_the_first_ones_result(self, t):
        """A key names a job: the second call asks for no turn, and returns what the first one has got."""
        agent = talker()("a")
        model = t.script("Talker", say("once"), say("twice"))

        first = agent.save_messages("Hi", idempotency_key="job-1")
        again = agent.save_messages("Hi", idempotency_key="job-1")

        assert (again.submission_id, again.text) == (first.submission_id, "once")
        assert len(model.requests) == 1
        assert agent.save_messages("Hi", idempotency_key="job-2").text == "twice"

    def test_no_key_with_a_function(self, t):
        """What a function makes depends on the conversation, so no two calls are the same."""
        agent = talker()("a")

        with pytest.raises(InvalidValue, match="takes no idempotency_key with a function"):
            agent.save_messages(lambda messages: [*messages, "Hi"], idempotency_key="job-1")
        assert agent.list_submissions() == []

    def test_hooks_have_the_metadata(self, t):
        """It is kept with the submission of each of these calls, and hooks are told of it."""
        told = []
        agent = talker(on_chat_response=lambda self, result: told.append(result.metadata))("a")
        t.script("Talker", say("1"), say("2"), say("3"))

        first = agent.save_messages("Hi", metadata={"by": "Ann"})
        agent.save_messages(lambda messages: [*messages, "More"], metadata={"by": "Bob"})
        agent.continue_last_turn(metadata={"by": "Cleo"})
        t.run_until_idle()

        assert told == [{"by": "Ann"}, {"by": "Bob"}, {"by": "Cleo"}]
        assert agent.inspect_submission(first.submission_id).metadata == {"by": "Ann"}


class TestAResult:
    def test_says_which_calls_wait(self, t):
        """The turn is complete, and yet somebody must decide before its answer goes on."""
        till = Till()
        agent = till.agent()
        t.script(agent, call("pay", {"euros": 5}), say("Paid."))

        result = agent.save_messages("Pay Ann")

        (waits,) = result.pending_interactions
        assert (waits, result.status) == (agent.pending_interactions()[0], "completed")
        told = result.to_dict()
        assert told["pendingInteractions"] == [waits.to_dict()]
        assert (told["submissionId"], told["status"]) == (result.submission_id, "completed")
        assert told["message"] == result.message.to_dict()
        assert "errorType" not in told

    def test_of_a_plain_answer(self, t):
        """Nothing waits, and what is not set is left out."""
        agent = talker()("a")
        t.script("Talker", say("ok"))

        result = agent.save_messages("Hi")

        assert result.pending_interactions == []
        assert sorted(result.to_dict()) == ["message", "requestId", "status", "submissionId"]
