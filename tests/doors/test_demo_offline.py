"""The offline model: what it answers, and that it speaks the provider's format."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from think_celery.demo.answerer import UnknownRequest, reply_to
from think_celery.demo.offline import offline_model
from think_celery.demo.reports import Report, as_prompt
from think_celery.errors import ModelError
from think_celery.messages import ToolPart, UIMessage, user
from think_celery.protocols import Finish, ModelRequest, ModelTimeouts, TextDelta, ToolCallComplete, ToolSpec
from think_celery.providers.openai import OpenAIModel
from think_celery.signals import AbortController

REPORT = Report(report_id="R-1", title="Crash on export", text="The export to PDF crashes with a discount.")
MATCHES = [{"report_id": "R-9", "title": "t", "score": 0.9, "excerpt": "e"}]
SEARCH, ANSWER = "search_reports", "think_final_answer"


def body(*messages: dict[str, Any], tools: tuple[str, ...] = (SEARCH, ANSWER), **more: Any) -> dict[str, Any]:
    offered = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]
    asked = {"role": "user", "content": as_prompt(REPORT)}
    return {"model": "m", "messages": [asked, *messages], "tools": offered, **more}


def searched(content: str) -> tuple[dict[str, Any], dict[str, Any]]:
    call = {"id": "call_1", "type": "function", "function": {"name": SEARCH, "arguments": "{}"}}
    return (
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": content},
    )


class TestAnswers:
    def test_first_it_searches_for_the_report_s_own_words(self) -> None:
        """The tool is called with words of the text, and the request is named by report and step."""
        reply = reply_to(body(tool_choice="required"))

        assert (reply.key, reply.tool) == ("R-1#1", SEARCH)
        assert reply.arguments == {"words": "export crash discount pdf"}
        assert "export crash" in reply.text

    def test_then_it_answers_and_uses_what_the_search_found(self) -> None:
        """The final answer has the draft's fields; a match becomes a likely duplicate."""
        reply = reply_to(body(*searched(json.dumps(MATCHES))))

        assert (reply.key, reply.tool) == ("R-1#2", ANSWER)
        assert reply.arguments is not None
        assert reply.arguments.keys() == {"title", "summary", "labels", "severity"}
        assert "R-9" in reply.arguments["summary"]
        assert "possible-duplicate" in reply.arguments["labels"]

    def test_a_failed_search_is_no_reason_to_search_again(self) -> None:
        """An error text of the tool counts as nothing found."""
        reply = reply_to(body(*searched("Error: the database is away")))

        assert reply.tool == ANSWER
        assert reply.arguments is not None
        assert "possible-duplicate" not in reply.arguments["labels"]

    def test_a_pinned_final_answer_is_given_at_once(self) -> None:
        """Where only the answer is offered, or it is pinned under whatever name, it comes on the first step."""
        pinned = {"type": "function", "function": {"name": f"{ANSWER}_1"}}

        assert reply_to(body(tools=(ANSWER,))).tool == ANSWER
        assert reply_to(body(tools=(SEARCH, f"{ANSWER}_1"), tool_choice=pinned)).tool == f"{ANSWER}_1"

    def test_without_a_final_answer_it_speaks(self) -> None:
        """A plain turn gets a summary as text."""
        reply = reply_to(body(tools=()))

        assert (reply.tool, reply.text) == (None, "The export to PDF crashes with a discount.")

    def test_a_cut_text_is_continued_where_it_stops(self) -> None:
        """After an interruption the rest is given, under the key of the same step."""
        whole = reply_to(body()).text
        cut = {"role": "assistant", "content": whole[:10]}

        reply = reply_to(body(cut, {"role": "user", "content": "Continue exactly there."}))

        assert (whole[:10] + reply.text, reply.key) == (whole, "R-1#1")

    @pytest.mark.parametrize(
        "unfit", [{}, {"messages": "x"}, {"messages": [{"role": "user", "content": "Hello"}]}]
    )
    def test_other_talk_is_refused(self, unfit: dict[str, Any]) -> None:
        """It says what it can do instead of making something up."""
        with pytest.raises(UnknownRequest):
            reply_to(unfit)


def ask(model: OpenAIModel, *messages: UIMessage) -> list[Any]:
    schema = {"type": "object", "properties": {}}
    request = ModelRequest(
        system="s",
        messages=[user(as_prompt(REPORT)), *messages],
        tools=[ToolSpec(name=name, description="", parameters=schema) for name in (SEARCH, ANSWER)],
        tool_choice="required",
        timeouts=ModelTimeouts(connect=5, first_token=5, token_gap=5),
    )
    return list(model.stream(request, AbortController().signal))


class TestServer:
    def test_the_provider_s_own_code_reads_it(self, tmp_path: Path) -> None:
        """Text, tool call, finish and usage come through the real provider; each request is logged once."""
        log = tmp_path / "requests.jsonl"
        called = ToolPart(
            type=f"tool-{SEARCH}",
            tool_call_id="call_1",
            state="output-available",
            input={"words": "x"},
            output=MATCHES,
        )
        with offline_model(log, pace=0) as url:
            model = OpenAIModel("offline-rules", api_key="any", base_url=url)

            first = ask(model)
            second = ask(model, UIMessage(role="assistant", parts=[called]))

        text = "".join(event.text for event in first if isinstance(event, TextDelta))
        (search,) = [event for event in first if isinstance(event, ToolCallComplete)]
        (answer,) = [event for event in second if isinstance(event, ToolCallComplete)]
        assert text == reply_to(body()).text
        assert (search.name, answer.name) == (SEARCH, ANSWER)
        assert "R-9" in json.loads(answer.arguments)["summary"]
        assert isinstance(second[-1], Finish)
        assert second[-1].usage.total_tokens > 0
        logged = [json.loads(line) for line in log.read_text().splitlines()]
        assert [each["request"] for each in logged] == ["R-1#1", "R-1#2"]

    def test_what_it_can_t_answer_is_an_error_of_the_request(self, tmp_path: Path) -> None:
        """A refused request is an HTTP error that isn't tried again, and is not logged as answered."""
        log = tmp_path / "requests.jsonl"
        request = ModelRequest(
            system=None,
            messages=[user("Hello")],
            tools=[],
            tool_choice="auto",
            timeouts=ModelTimeouts(connect=5, first_token=5, token_gap=5),
        )
        with offline_model(log, pace=0) as url:
            model = OpenAIModel("offline-rules", api_key="any", base_url=url)

            with pytest.raises(ModelError, match="only triages reports") as caught:
                list(model.stream(request, AbortController().signal))

        assert caught.value.retryable is False
        assert not log.exists()

    @pytest.mark.parametrize(
        ("path", "content", "status"),
        [
            ("/v1/models", b"{}", 404),
            ("/v1/chat/completions", b"[", 400),
            ("/v1/chat/completions", b"[]", 400),
        ],
    )
    def test_other_requests_are_refused(self, path: str, content: bytes, status: int, tmp_path: Path) -> None:
        """Another path, and a body that is no JSON object."""
        with offline_model(tmp_path / "log", pace=0) as url:
            answer = httpx.post(url.removesuffix("/v1") + path, content=content, trust_env=False)

        assert answer.status_code == status
        assert answer.json()["error"]["message"]
