"""Structured turns: the extra tool whose call carries the answer."""

import json
from typing import Any

import pytest

from tests.domain.talk import (
    COMPLETED,
    ERROR,
    LABEL,
    ask,
    ask_structured,
    calls_of,
    events,
    kinds,
    row,
    shape,
    submit_structured,
    talker,
)
from tests.providers.server import ModelServer, text_frames, tool_call_frames
from think_celery.domain.submissions import claims
from think_celery.domain.submissions.submissions import Waiting
from think_celery.domain.turns import finals
from think_celery.protocols import ForcedTool, ToolSpec
from think_celery.providers.openai import OpenAIModel
from think_celery.providers.scripted import answer, call, say
from think_celery.store.tables import outbox as outbox_table
from think_celery.tools import as_tool

X = {"label": "x"}


def search(text: str) -> str:
    """Search."""
    return f"found {text}"


def news(t: Any) -> list[Any]:
    """What the outbox holds: the stored news of each submission's end."""
    return t.rt.db.read(lambda tx: list(tx.execute(outbox_table.select())))


class TestOffer:
    FINAL = finals.Final("think_final_answer", LABEL)
    SEARCH = ToolSpec(name="search", description="", parameters={})

    @pytest.mark.parametrize(
        ("final", "specs", "last", "choice", "offered"),
        [
            (None, [], False, "auto", []),
            (None, [SEARCH], True, "auto", ["search"]),
            (FINAL, [], False, ForcedTool(name="think_final_answer"), ["think_final_answer"]),
            (FINAL, [SEARCH], False, "required", ["search", "think_final_answer"]),
            (FINAL, [SEARCH], True, ForcedTool(name="think_final_answer"), ["think_final_answer"]),
        ],
    )
    def test_choice_and_tools(self, final, specs, last, choice, offered):
        """A15: required where there are tools, pinned where there are none, alone on the last permitted step."""
        found, tools = finals.offer(final, specs, last=last)

        assert (found, [tool.name for tool in tools]) == (choice, offered)

    @pytest.mark.parametrize(
        ("taken", "name"),
        [
            ([], "think_final_answer"),
            (["think_final_answer"], "think_final_answer_1"),
            (["think_final_answer", "think_final_answer_1"], "think_final_answer_2"),
        ],
    )
    def test_the_name_evades_the_agents_own_tools(self, taken, name):
        """A16: an agent's tool of that name keeps it; ours gets a suffix."""
        final = finals.for_turn({"schema": LABEL}, dict.fromkeys(taken, object()))

        assert final is not None
        assert final.name == name

    def test_a_plain_turn_has_none(self):
        """Without a stored structure there is no extra tool."""
        assert finals.for_turn(None, {}) is None


class TestTurn:
    def test_the_answer_in_the_first_step(self, t):
        """A14, B: the call's arguments are the output; nothing of it is stored in the transcript."""
        agent = talker()("a")
        model = t.script(agent, answer(X))

        done = ask_structured(t, agent)

        assert done.status is COMPLETED
        assert (done.message(), [m.role for m in agent.messages]) == (None, ["user"])
        assert model.requests[0].tool_choice == ForcedTool(name="think_final_answer")
        assert model.requests[0].tools[0].parameters == LABEL

    def test_the_output_is_in_the_news(self, t):
        """A20: the output travels in the notification, stored in the transaction that ends the turn."""
        agent = talker()("a")
        t.script(agent, answer({"label": "ü"}))
        waiting = Waiting(workflow_key="w", run=1, event_type="think-x")

        submission = submit_structured(t.rt, agent, waiting=waiting)
        found = []
        t.rt.failpoint = lambda point: found.extend(news(t)) if point == "outbox:before-delivery" else None
        claims.run(t.rt, submission.submission_id)

        stored = found[0]
        assert json.loads(stored.payload)["output"] == {"label": "ü"}
        assert json.loads(stored.payload)["status"] == "completed"

    def test_tools_first(self, t):
        """A9: tools run over several steps, then the answer; only the tools stand in the transcript."""
        agent = talker(search)("a")
        model = t.script(agent, call("search", {"text": "a"}), [say("I have it."), answer(X)], say("And?"))

        done = ask_structured(t, agent)
        ask(t, agent, "Next")

        assert done.status is COMPLETED
        assert shape(done.message()) == ["|", ("search", {"text": "a"}, "found a"), "|", "I have it."]
        assert [r.tool_choice for r in model.requests] == ["required", "required", "auto"]
        assert [s.name for s in model.requests[2].tools] == ["search"]
        assert "think_final_answer" not in str(model.requests[2].messages)
        assert "think_final_answer" not in str(events(t, agent))

    def test_the_last_permitted_step_offers_only_the_answer(self, quick):
        """A14: with `max_steps=1` the first step is forced; with 2, tools may run once."""
        agent = talker(search)("a")
        model = quick.script(agent, answer(X), call("search", {"text": "a"}), answer(X))

        ask_structured(quick, agent, max_steps=1)
        ask_structured(quick, agent, max_steps=2)

        forced = ForcedTool(name="think_final_answer")
        assert [r.tool_choice for r in model.requests] == [forced, "required", forced]

    def test_text_instead_of_the_answer(self, t):
        """A13, A17: a model that answers in words ends the turn in error; its words stay in the transcript."""
        agent = talker()("a")
        t.script(agent, say("It is x."))

        done = ask_structured(t, agent)

        assert (done.status, done.error_type) == (ERROR, "NoFinalAnswer")
        assert done.error.startswith("Model ended the turn without calling the think_final_answer tool")
        assert done.message().text == "It is x."

    def test_tools_until_the_steps_are_used_up(self, quick):
        """A13: the same error when the model never gives its answer."""
        agent = talker(search)("a")
        quick.script(agent, call("search", {"text": "a"}), call("search", {"text": "b"}))

        done = ask_structured(quick, agent, max_steps=2)

        assert done.error_type == "NoFinalAnswer"

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            ({"label": 7}, ["label:", "7 is not of type 'string'"]),
            ({}, ["'label' is a required property"]),
            ({"label": "x", "more": 1}, ["more"]),
            ('{"label": "x"', ["not valid JSON"]),
            ("", ["'label' is a required property"]),
        ],
    )
    def test_invalid_arguments(self, quick, arguments, named):
        """A13: an answer that does not fit is never repaired; the error names the paths."""
        agent = talker()("a")
        quick.script(agent, answer(arguments))

        done = ask_structured(quick, agent)

        assert (done.status, done.error_type, done.message()) == (ERROR, "InvalidFinalAnswer", None)
        assert all(part in done.error for part in named)

    def test_other_calls_beside_the_answer(self, quick):
        """The answer ends the turn: calls of the same step are neither run nor kept, and listeners are told."""
        ran = []

        def note(text: str) -> None:
            ran.append(text)

        agent = talker(note)("a")
        quick.script(
            agent, [say("Done."), call("note", {"text": "a"}), answer(X), call("note", {"text": "b"})]
        )

        done = ask_structured(quick, agent)

        assert (done.status, ran) == (COMPLETED, [])
        assert shape(done.message()) == ["|", "Done."]
        assert kinds(quick, agent)[-3:] == ["reset", "restored", "done"]

    def test_two_answers(self, quick):
        """The first one counts."""
        agent = talker()("a")
        quick.script(agent, [answer(X), answer({"label": 7})])

        assert ask_structured(quick, agent).status is COMPLETED

    def test_a_tool_of_that_name_is_an_ordinary_tool(self, quick):
        """A16: the agent's own `think_final_answer` runs and is kept; ours is offered under a suffix."""
        own = as_tool(search)
        own = type(own)(name="think_final_answer", description="", parameters=own.parameters, function=search)
        agent = talker(own)("a")
        model = quick.script(
            agent, call("think_final_answer", {"text": "a"}), call("think_final_answer_1", X)
        )

        done = ask_structured(quick, agent)

        assert done.status is COMPLETED
        assert [part.tool_name for part in calls_of(done.message())] == ["think_final_answer"]
        assert [s.name for s in model.requests[0].tools] == ["think_final_answer", "think_final_answer_1"]

    def test_with_a_real_provider(self, quick):
        """A10: the same over the wire, streamed in fragments; a later request holds nothing of it."""
        with ModelServer() as server:
            agent = talker(search)("a")
            quick.use_model(OpenAIModel("m", api_key="sk-test-0123456789", base_url=server.base_url), agent)
            server.script(
                tool_call_frames(("search", {"text": "a"})),
                tool_call_frames(("think_final_answer", X), text="Here."),
                text_frames("Sure"),
            )

            done = ask_structured(quick, agent)
            ask(quick, agent, "Next")

            assert done.status is COMPLETED
            assert server.requests[0]["tool_choice"] == "required"
            assert "think_final_answer" not in json.dumps(server.requests[2])
            assert server.requests[2]["tool_choice"] == "auto"

    def test_the_schema_stays_with_the_row(self, t):
        """A8: the JSON Schema is stored with the submission; no class is needed to offer it again."""
        agent = talker()("a")
        submission = submit_structured(t.rt, agent, max_steps=3)

        assert row(t.rt, submission).structure == {"schema": LABEL, "max_steps": 3}
