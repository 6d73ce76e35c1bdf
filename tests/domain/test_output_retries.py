"""``output_retries``: a final answer that does not fit is shown to the model, which answers again."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.domain.flows import Desk, begin
from tests.domain.talk import COMPLETED, ERROR, LABEL, crash_at_nth, events, now, shape, talker
from tests.providers.server import ModelServer, tool_call_frames
from tests.providers.transcripts import check
from think_celery.domain.submissions import submissions
from think_celery.domain.turns.outputs import KEPT
from think_celery.messages import ToolPart, as_messages
from think_celery.protocols import ForcedTool, ModelRequest
from think_celery.providers.openai import OpenAIModel
from think_celery.providers.scripted import answer, call, reason, say
from think_celery.schemas import check_answer

X, BAD, WORSE = {"label": "x"}, {"label": 7}, {"lable": "x"}
PINNED = ForcedTool(name="think_final_answer")


def ask(t: Any, agent: Any, *, retries: int = 0, max_steps: int | None = None) -> Any:
    """A structured turn with that many retries, as it stands when nothing is left to do."""
    structure = {"schema": LABEL, "max_steps": max_steps, "output_retries": retries}
    accepted, _ = t.rt.db.transact(
        lambda tx: submissions.accept(
            t.rt, tx, agent._ref, as_messages("Label it"), kind="submit", structure=structure
        )
    )
    t.run_until_idle()
    return now(agent, agent.inspect_submission(accepted.id))


def look() -> str:
    """Look."""
    return "seen"


def answers_in(request: ModelRequest) -> list[ToolPart]:
    """The refused answers that a request shows."""
    return [
        part
        for message in request.messages
        for part in message.parts
        if isinstance(part, ToolPart) and part.tool_name.startswith("think_final_answer")
    ]


class TestAnsweringAgain:
    def test_the_error_is_shown(self, t):
        """A13: the model sees its own answer and what is wrong with it, and answers again."""
        agent = talker()("a")
        model = t.script(agent, answer(BAD), answer(X))

        done = ask(t, agent, retries=1)

        (refused,) = answers_in(model.requests[1])
        assert done.status is COMPLETED
        assert json.loads(refused.input) == BAD
        assert "label: 7 is not of type 'string'" in refused.error_text
        assert [request.tool_choice for request in model.requests] == [PINNED, PINNED]

    def test_none_unless_asked_for(self, t):
        """A13: nothing is repaired silently: without retries the first unfit answer ends the turn."""
        agent = talker()("a")
        model = t.script(agent, answer(BAD), answer(X))

        done = ask(t, agent)

        assert (done.error_type, len(model.requests)) == ("InvalidFinalAnswer", 1)

    def test_they_end(self, t):
        """After the last retry the turn ends in error, with the problems of the last answer."""
        agent = talker()("a")
        model = t.script(agent, answer(BAD), answer(BAD), answer(WORSE), answer(X))

        done = ask(t, agent, retries=2)

        assert (done.status, done.error_type, len(model.requests)) == (ERROR, "InvalidFinalAnswer", 3)
        assert "lable" in done.error
        assert len(answers_in(model.requests[2])) == 2

    def test_they_are_recorded(self, t):
        """The transcript's metadata holds each refused answer with its problems; the conversation does not show it."""
        agent = talker()("a")
        model = t.script(agent, answer(BAD), answer("{"), answer(X), say("And on."))

        done = ask(t, agent, retries=3)
        agent.submit_messages("Next")
        t.run_until_idle()

        kept = done.message().metadata[KEPT]
        assert [each["step"] for each in kept] == [1, 2]
        assert (json.loads(kept[0]["answer"]), kept[1]["answer"]) == (BAD, "{")
        assert "not valid JSON" in kept[1]["problems"][0]
        assert [part.type for part in done.message().parts] == ["step-start"] * 3
        assert [m.text for m in model.requests[3].messages] == ["Label it", "Next"]
        assert answers_in(model.requests[3]) == []
        assert not any("think_final_answer" in json.dumps(event) for _, event in events(t, agent))

    def test_usage_counts_each(self, t):
        """Each answer costs, and is counted."""
        agent = talker()("a")
        t.script(agent, answer(BAD), answer(X))

        usage = ask(t, agent, retries=1).message().metadata["usage"]

        assert usage["output_tokens"] > 6

    def test_no_answer_at_all(self, t):
        """FR-85: prose instead of the call: one request that says what is missing; then an error."""
        agent = talker()("a")
        model = t.script(agent, say("It is x."), answer(X))

        done = ask(t, agent, retries=1)

        assert done.status is COMPLETED
        assert model.requests[1].messages[-1].role == "user"
        assert "without calling the tool think_final_answer" in model.requests[1].messages[-1].text
        assert shape(done.message()) == ["|", "It is x.", "|"]
        assert done.message().metadata[KEPT][0].keys() == {"step", "problems"}

    def test_prose_again(self, t):
        """FR-85: bounded."""
        agent = talker()("a")
        model = t.script(agent, say("It is x."), say("x, as I said."), answer(X))

        done = ask(t, agent, retries=1)

        assert (done.error_type, len(model.requests)) == ("NoFinalAnswer", 2)

    def test_other_calls_beside_a_refused_answer(self, t):
        """They are not run, as beside one that fits."""
        ran = []

        def note() -> str:
            ran.append(1)
            return "noted"

        agent = talker(note)("a")
        model = t.script(agent, [call("note"), answer(BAD)], answer(X))

        done = ask(t, agent, retries=1)

        shown = [
            part.tool_name
            for m in model.requests[1].messages
            for part in m.parts
            if isinstance(part, ToolPart)
        ]
        assert (done.status, ran, shown) == (COMPLETED, [], ["think_final_answer"])


class TestBudget:
    @pytest.mark.parametrize(
        ("max_steps", "retries", "forced"),
        [(1, 0, 1), (2, 1, 1), (3, 1, 2), (4, 2, 2), (4, 0, 4)],
    )
    def test_steps_are_kept_free_for_them(self, t, max_steps, retries, forced):
        """A14: each answer is one of the steps; the tools get those that no answer may need."""
        agent = talker(look)("a")
        model = t.script(agent, *[call("look")] * (forced - 1), *[answer(BAD)] * retries, answer(X))

        done = ask(t, agent, retries=retries, max_steps=max_steps)

        assert done.status is COMPLETED
        assert len(model.requests) == max_steps
        choices = [request.tool_choice for request in model.requests]
        assert choices == ["required"] * (forced - 1) + [PINNED] * (max_steps - forced + 1)

    def test_an_early_answer_leaves_tools_for_later(self, t):
        """Refused at the first step, the model may look once more."""
        agent = talker(look)("a")
        model = t.script(agent, answer(BAD), call("look"), answer(X))

        done = ask(t, agent, retries=1, max_steps=5)

        assert (done.status, [r.tool_choice for r in model.requests]) == (COMPLETED, ["required"] * 3)

    def test_max_steps_is_never_passed(self, t):
        """A stored turn with more retries than steps ends at its last step, with what was wrong."""
        agent = talker()("a")
        model = t.script(agent, *[answer(BAD)] * 5)

        done = ask(t, agent, retries=5, max_steps=2)

        assert (done.error_type, len(model.requests)) == ("InvalidFinalAnswer", 2)


class TestCrashes:
    def test_between_two_answers(self, t):
        """The refused answer is stored: whoever takes over shows it, and counts it."""
        agent = talker()("a")
        model = t.script(agent, answer(BAD), answer(X))
        t.crash_at("turn:answer-refused")

        done = ask(t, agent, retries=1)

        assert (done.status, len(model.requests)) == (COMPLETED, 2)
        assert len(answers_in(model.requests[1])) == 1
        assert [part.type for part in done.message().parts] == ["step-start"] * 2
        assert [each["step"] for each in done.message().metadata[KEPT]] == [1]

    @pytest.mark.parametrize("point", ["turn:before-model", "turn:streaming", "turn:before-commit"])
    def test_at_any_later_point(self, t, point):
        """No answer is counted twice, and none is forgotten."""
        agent = talker()("a")
        model = t.script(agent, answer(BAD), *[answer(X)] * 2)
        crash_at_nth(t, point, {"turn:before-model": 2, "turn:streaming": 8, "turn:before-commit": 1}[point])

        done = ask(t, agent, retries=1)

        assert t.crashes == [point]
        assert done.status is COMPLETED
        assert all(len(answers_in(request)) == 1 for request in model.requests[1:])
        assert [each["step"] for each in done.message().metadata[KEPT]] == [1]

    def test_after_prose(self, t):
        """A turn that said something and gave no answer is not taken for a whole one."""
        agent = talker()("a")
        model = t.script(agent, say("It is x."), answer(X))
        t.crash_at("turn:answer-refused")

        done = ask(t, agent, retries=1)

        assert (done.status, len(model.requests)) == (COMPLETED, 2)
        assert "without calling the tool" in model.requests[1].messages[-1].text

    def test_a_used_up_retry_stays_used_up(self, t):
        """A crash gives no further one."""
        agent = talker()("a")
        model = t.script(agent, *[answer(BAD)] * 9)
        t.crash_at("turn:answer-refused")

        done = ask(t, agent, retries=1)

        assert (done.error_type, len(model.requests)) == ("InvalidFinalAnswer", 2)

    def test_after_tools(self, t):
        """What tools have done stays, and the count of steps with it."""
        ran = []

        def note() -> str:
            ran.append(1)
            return "noted"

        agent = talker(note)("a")
        model = t.script(agent, call("note"), answer(BAD), answer(X))
        t.crash_at("turn:answer-refused")

        done = ask(t, agent, retries=1, max_steps=3)

        assert (done.status, ran, len(model.requests)) == (COMPLETED, [1], 3)
        assert [r.tool_choice for r in model.requests] == ["required", PINNED, PINNED]


class TestFences:
    @pytest.mark.parametrize(
        "text",
        [
            '{"label": "x"}',
            '```json\n{"label": "x"}\n```',
            '```\n{"label": "x"}\n```\n',
            '  ```JSON\r\n{"label": "x"}\r\n```  ',
            '```{"label": "x"}```',
        ],
    )
    def test_one_around_the_whole_text(self, t, text):
        """FR-85: a server that wraps its JSON in Markdown is understood, with one request."""
        agent = talker()("a")
        model = t.script(agent, answer(text))

        done = ask(t, agent)

        assert (done.status, len(model.requests)) == (COMPLETED, 1)

    @pytest.mark.parametrize("label", ["```x```", "```json\nx\n```", "``` ```"])
    def test_one_inside_is_left_alone(self, label):
        """FR-85: plain JSON is tried first, so a fence in a text is the text's own."""
        assert check_answer(LABEL, json.dumps({"label": label})) == ({"label": label}, [])
        assert check_answer(LABEL, f"```json\n{json.dumps({'label': label})}\n```") == ({"label": label}, [])

    @pytest.mark.parametrize(
        "text",
        [
            "Here it is:\n```json\n{}\n```",
            "```json\n{",
            "```json\n{}\n``` Done.",
            "``````",
            "```\n```",
            "It is x.",
        ],
    )
    def test_anything_else_is_no_json(self, text):
        """FR-85: no more is repaired than that."""
        _, problems = check_answer(LABEL, text)

        assert "not valid JSON" in problems[0]

    def test_digits_are_kept(self):
        """A fenced number keeps its digits where the schema has a decimal."""
        schema = {
            "type": "object",
            "properties": {"price": {"anyOf": [{"type": "number"}, {"type": "string", "format": "decimal"}]}},
        }

        assert check_answer(schema, '```json\n{"price": 1.10}\n```') == ({"price": "1.10"}, [])


class TestTheTranscript:
    @pytest.mark.parametrize(
        "first",
        [
            answer(BAD),
            answer("{"),
            answer("[1]"),
            answer('"x"'),
            answer(" "),
            say("It is x."),
            [call("look"), answer(BAD)],
            [reason("Hm."), say("So:"), answer(BAD)],
        ],
        ids=["unfit", "cut", "a list", "a text", "empty", "prose", "beside a call", "after words"],
    )
    @pytest.mark.parametrize("crash", [False, True])
    def test_is_valid_for_every_provider(self, t, first, crash):
        """FR-55: what a provider gets back of a refused answer, and the turn after it, breaks none of its rules."""
        agent = talker(look)("a")
        model = t.script(agent, call("look"), first, answer(X), say("Bye."))
        if crash:
            t.crash_at("turn:answer-refused")

        done = ask(t, agent, retries=1)
        agent.submit_messages("Next")
        t.run_until_idle()

        assert (done.status, len(model.requests)) == (COMPLETED, 4)
        check(model.requests)


class Label(BaseModel):
    label: str


class TestInAWorkflow:
    def run(self, t: Any, *answers: Any, **options: Any) -> Any:
        def work(event: Any, step: Any) -> Any:
            return step.prompt("label", prompt="Label it", output=Label, **options).label

        self.model = t.script(Desk, *answers)
        handle = begin(t, work)
        t.run_until_idle()
        t.skip(5)
        return handle

    def test_the_workflow_gets_the_second_answer(self, t):
        """A13: ``step.prompt(output_retries=…)``."""
        handle = self.run(t, answer({"label": []}), answer(X), output_retries=1)

        assert (handle.status, handle.output) == ("complete", "x")

    def test_used_up(self, t):
        """The error is the last answer's."""
        handle = self.run(t, answer({"label": []}), answer({"label": {}}), output_retries=1)

        assert (handle.status, handle.row.error_type) == ("errored", "ThinkPromptValidationError")
        assert len(self.model.requests) == 2

    @pytest.mark.parametrize("wrong", [-1, True, 1.5, "2"])
    def test_what_it_must_be(self, t, wrong):
        """A wrong number is an error at the step; nothing is submitted."""
        handle = self.run(t, output_retries=wrong)

        assert handle.row.error_type == "StepMisuse"
        assert self.model.requests == []

    def test_more_than_the_steps_allow(self, t):
        """It could never be kept, and says so at once."""
        handle = self.run(t, output_retries=2, max_steps=2)

        assert handle.row.error_type == "StepMisuse"
        assert "max_steps must be 3 at least" in handle.row.error
        assert Desk("front").list_submissions() == []


class TestOverTheWire:
    def test_the_request_is_valid(self, quick):
        """A provider gets its call back with an error as its result."""
        with ModelServer() as server:
            agent = talker()("a")
            quick.use_model(OpenAIModel("m", api_key="sk-test-0123456789", base_url=server.base_url), agent)
            server.script(
                tool_call_frames(("think_final_answer", '{"label": 7}')),
                tool_call_frames(("think_final_answer", '{"label": "x"}')),
            )

            done = ask(quick, agent, retries=1)

            first, second = server.requests
            assert done.status is COMPLETED
            said, told = second["messages"][-2:]
            assert said["tool_calls"][0]["function"] == {
                "name": "think_final_answer",
                "arguments": '{"label": 7}',
            }
            assert told["tool_call_id"] == said["tool_calls"][0]["id"]
            assert told["content"].startswith("Error: It does not fit: label")
            assert second["tool_choice"] == first["tool_choice"]
