"""The tokens that turns have used: of each step, of each submission, and of the agent, for good."""

from sqlalchemy import select

from tests.domain.talk import ask, ask_structured, talker
from think_celery.errors import ModelError
from think_celery.protocols import Finish, TextDelta, ToolCallComplete, Usage
from think_celery.providers.scripted import FunctionModel
from think_celery.store import tables


def speaking(*answers):
    """A model with these answers: lists of events, or an error to raise after them."""
    left = iter(answers)

    def play(request):
        for event in next(left):
            if isinstance(event, Exception):
                raise event
            yield event

    return FunctionModel(play)


def done(*usage, text="Hi"):
    return [TextDelta(text), Finish("stop", "stop", Usage(*usage))]


def failing(usage=None):
    error = ModelError("overloaded", retryable=True)
    error.usage = usage
    return [error]


class TestUsage:
    def test_b27_the_sum_over_all_turns(self, t):
        """B27: of the submission, of the agent, and of no other agent."""
        Talker = talker()
        t.use_model(speaking(done(1, 2, 3), done(10, 20, 31)), Talker)
        first, second = ask(t, Talker("a")), ask(t, Talker("a"))

        assert (first.usage.total_tokens, second.usage.total_tokens) == (3, 31)
        total = Talker("a").usage()
        assert (total.input_tokens, total.output_tokens, total.total_tokens) == (11, 22, 34)
        assert Talker("b").usage().total_tokens == 0

    def test_a_structured_turn_stores_no_message_and_counts(self, t):
        """Nothing of it is in the transcript, all of it is in the sum."""
        Talker = talker()
        answer = ToolCallComplete(0, "c", "think_final_answer", '{"label": "bug"}')
        t.use_model(speaking([answer, Finish("tool-calls", None, Usage(5, 6, 11))]), Talker)

        ended = ask_structured(t, Talker("a"))

        assert (str(ended.status), ended.message()) == ("completed", None)
        assert ended.usage.total_tokens == 11
        assert Talker("a").usage().total_tokens == 11

    def test_a_failed_request_counts_where_the_provider_told(self, t):
        """With the submission; the message says what its own steps cost."""
        Talker = talker()
        t.use_model(speaking(failing(Usage(4, 0, 4)), failing(None), done(1, 2, 3)), Talker)

        ended = ask(t, Talker("a"))

        assert ended.usage.total_tokens == 7
        assert ended.message().metadata["usage"]["total_tokens"] == 3

    def test_a_turn_that_ends_in_error_counts(self, t):
        """What it cost until then."""
        Talker = talker()
        t.use_model(speaking(*[failing(Usage(1, 1, 2))] * 3), Talker)

        ended = ask(t, Talker("a"))

        assert (str(ended.status), ended.usage.total_tokens) == ("error", 6)

    def test_across_a_crash(self, t):
        """What was stored before it is not counted again, nor lost."""

        def add(a: int) -> int:
            """Add one."""
            return a + 1

        Talker = talker(add)
        step = [ToolCallComplete(0, "c", "add", '{"a": 1}'), Finish("tool-calls", None, Usage(1, 1, 2))]
        t.use_model(speaking(step, done(10, 10, 20), done(10, 10, 20)), Talker)
        t.crash_at("turn:before-commit")

        accepted = ask(t, Talker("a"))
        t.skip("20 seconds")

        ended = Talker("a").inspect_submission(accepted.submission_id)
        assert (str(ended.status), ended.usage.total_tokens) == ("completed", 22)

    def test_clearing_and_deleting_change_nothing(self, t):
        """Only destroy forgets: tokens are spent, whatever becomes of the rows."""
        Talker = talker()
        t.use_model(speaking(done(1, 2, 3), done(10, 20, 30)), Talker)
        first, _ = ask(t, Talker("a")), ask(t, Talker("a"))
        Talker("a").clear_messages()
        assert Talker("a").usage().total_tokens == 33

        Talker("a").delete_submission(first.submission_id)
        assert Talker("a").usage().total_tokens == 33
        Talker("a").delete_submissions()
        assert Talker("a").usage().total_tokens == 33
        assert t.rt.db.read(lambda tx: tx.execute(select(tables.submissions)).first()) is None

        Talker("a").destroy()
        assert Talker("a").usage().total_tokens == 0
