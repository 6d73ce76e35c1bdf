"""Models of Pydantic AI: what applies of the contract, over OpenAI's wire and Anthropic's, and what is their own."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic_ai.models.anthropic import AnthropicModel as TheirAnthropic
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel as TheirTestModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.providers import test_anthropic
from tests.providers.anthropic_frames import message, text_block
from tests.providers.contract import (
    KEY,
    WEATHER,
    ProviderContract,
    finish,
    reasonings,
    request,
    texts,
    whole_calls,
)
from tests.providers.server import HANG, Delay, ModelServer, stream, text_frames
from tests.providers.test_openai import OpenAIWire
from think_celery.errors import ModelError, NoModel
from think_celery.messages import user
from think_celery.protocols import ForcedTool, Model
from think_celery.providers import no_real_requests, resolve
from think_celery.providers.pydantic_ai import PydanticAIModel
from think_celery.signals import AbortController

BLOCKS = test_anthropic.TestEcho.BLOCKS


def over_openai(base_url: str) -> PydanticAIModel:
    return PydanticAIModel(
        lambda: OpenAIChatModel("gpt-test", provider=OpenAIProvider(base_url=base_url, api_key=KEY)),
        name="pydantic-ai/gpt-test",
    )


def over_anthropic(base_url: str, **options: Any) -> PydanticAIModel:
    url = base_url.removesuffix("/v1")
    return PydanticAIModel(
        lambda: TheirAnthropic("claude-test", provider=AnthropicProvider(base_url=url, api_key=KEY)),
        name="pydantic-ai/claude-test",
        **options,
    )


class OverOpenAI(OpenAIWire):
    def model(self, base_url: str) -> Model:
        return over_openai(base_url)

    def forced_tool(self, body: Any) -> str | None:
        (name, *others) = self.offered_tools(body)
        return name if body["tool_choice"] == "required" and not others else None


class OverAnthropic(test_anthropic.AnthropicWire):
    def model(self, base_url: str) -> Model:
        return over_anthropic(base_url)

    def forced_tool(self, body: Any) -> str | None:
        (name, *others) = self.offered_tools(body)
        return name if body["tool_choice"] == {"type": "any"} and not others else None


class Contract(ProviderContract):
    """What of the suite applies: all but that a redirect is refused, for the vendors' packages follow it."""

    statuses = tuple(each for each in ProviderContract.statuses if each[0] != 307)


class TestContractOverOpenAI(Contract):
    """Pydantic AI's OpenAI model passes the suite, too."""

    wire = OverOpenAI()
    every = 40


class TestContractOverAnthropic(Contract):
    """The same for its Anthropic model."""

    wire = OverAnthropic()
    every = 80


def ask(model: Model, *messages: Any, **options: Any) -> list[Any]:
    return list(model.stream(request(*messages, **options), AbortController().signal))


async def _says(messages: list[Any], info: AgentInfo):
    """Thinks, says something, and calls two tools at once."""
    yield {0: DeltaThinkingPart(content="hm"), 1: DeltaThinkingPart(content="")}
    yield "Let me "
    yield "see."
    yield {2: DeltaToolCall(name="weather", json_args='{"ci', tool_call_id="a")}
    yield {3: DeltaToolCall(name="weather", json_args='{"city": "Rome"}', tool_call_id="b")}
    yield {2: DeltaToolCall(json_args='ty": "Oslo"}')}


class TestInMemoryModels:
    def test_a_function_model_answers(self):
        """Text, reasoning and several calls of a model without a network."""
        events = ask(PydanticAIModel(FunctionModel(stream_function=_says)), tools=[WEATHER])

        assert texts(events) == "Let me see."
        assert reasonings(events) == "hm"
        assert [(name, json.loads(given)) for name, given in whole_calls(events)] == [
            ("weather", {"city": "Oslo"}),
            ("weather", {"city": "Rome"}),
        ]
        assert finish(events).reason == "tool-calls"

    def test_their_test_model_calls_each_tool(self):
        """It makes arguments up by the schema."""
        events = ask(PydanticAIModel(TheirTestModel()), tools=[WEATHER])

        assert [name for name, _ in whole_calls(events)] == ["weather"]

    @pytest.mark.parametrize("choice", ["required", ForcedTool(name="weather"), "none", "auto"])
    def test_the_choice_of_tool_is_told(self, choice):
        """As their setting of that name."""
        told: list[Any] = []

        async def answer(messages: list[Any], info: AgentInfo):
            told.append(info.model_settings)
            yield "x"

        ask(PydanticAIModel(FunctionModel(stream_function=answer)), tools=[WEATHER], tool_choice=choice)

        assert told[0]["tool_choice"] == (["weather"] if isinstance(choice, ForcedTool) else choice)
        assert told[0]["max_retries"] == 0, "retries are the turn's"

    def test_the_conversation_is_told(self):
        """Each step is a response, its results the next request; roles alternate, and the user begins."""
        told: list[Any] = []

        async def answer(messages: list[Any], info: AgentInfo):
            told.extend(messages)
            yield "x"

        model = PydanticAIModel(FunctionModel(stream_function=answer))
        stored = test_anthropic.taken_in(
            ask(PydanticAIModel(FunctionModel(stream_function=_says)), tools=[WEATHER])
        )

        ask(model, stored, user("And now?"), tools=[WEATHER])

        shape = [[part.part_kind for part in message.parts] for message in told]
        assert shape == [
            ["system-prompt", "user-prompt"],
            ["thinking", "text", "tool-call", "tool-call"],
            ["tool-return", "tool-return", "user-prompt"],
        ] or shape == [
            ["system-prompt", "user-prompt"],
            ["text", "tool-call", "tool-call"],
            ["tool-return", "tool-return", "user-prompt"],
        ]


class TestEcho:
    def sent(self, server: ModelServer, asked: Model) -> list[str]:
        server.script(message(*BLOCKS, reason="tool_use"), message(text_block("Fine")))
        stored = test_anthropic.taken_in(ask(over_anthropic(server.base_url), tools=[WEATHER]))
        ask(asked, user("Hello"), stored, user("And now?"), tools=[WEATHER])
        blocks = [each["content"] for each in server.requests[1]["messages"] if each["role"] == "assistant"]
        return [block["type"] for content in blocks for block in content]

    def test_thinking_goes_back_with_its_signature(self):
        """FR-83: as with our own provider."""
        with ModelServer() as server:
            kinds = self.sent(server, over_anthropic(server.base_url))

            assistant = next(each for each in server.requests[1]["messages"] if each["role"] == "assistant")
            signatures = [block.get("signature") for block in assistant["content"]]
        assert kinds == ["thinking", "redacted_thinking", "thinking", "text", "tool_use"]
        assert signatures == ["sig-1", None, "sig-2", None, None]

    def test_it_can_be_switched_off(self):
        """FR-83: then neither thinking nor signatures are sent."""
        with ModelServer() as server:
            assert self.sent(server, over_anthropic(server.base_url, echo=False)) == ["text", "tool_use"]


class TestProcesses:
    """FR-11: an asynchronous client belongs to one event loop, and none is brought through a fork."""

    def test_turn_after_turn_in_one_thread_and_in_many(self):
        """Each request works, on whatever thread, with the same model object."""
        with ModelServer() as server:
            server.respond = lambda body: stream(*text_frames(str(body["messages"][-1]["content"])))
            model = over_openai(server.base_url)

            one_after_another = [texts(ask(model, user(f"q{n}"))) for n in range(3)]
            with ThreadPoolExecutor(8) as pool:
                at_once = list(pool.map(lambda n: texts(ask(model, user(f"q{n}"))), range(32)))

        assert one_after_another == ["q0", "q1", "q2"]
        assert at_once == [f"q{n}" for n in range(32)]

    def test_a_forked_child_has_its_own(self):
        """A name or a function makes the child's own model, also where the parent has used its own."""
        with ModelServer() as server:
            server.respond = lambda body: stream(*text_frames(str(body["messages"][-1]["content"])))
            model = over_openai(server.base_url)
            ask(model)
            context = multiprocessing.get_context("fork")
            results = context.Queue()

            child = context.Process(target=lambda: results.put([texts(ask(model)) for _ in range(3)]))
            child.start()
            in_child = results.get(timeout=20)
            child.join(10)

            assert in_child == ["Hello"] * 3
            assert texts(ask(model)) == "Hello"

    def test_a_child_that_is_born_while_a_thread_makes_the_model_makes_its_own(self):
        """Making one imports its vendor's package, which takes a while; the child had waited for ever for its lock."""
        making, go_on, parent = threading.Event(), threading.Event(), os.getpid()

        def make():
            making.set()
            if os.getpid() == parent:
                go_on.wait(10)
            return TheirTestModel()

        model = PydanticAIModel(make)
        thread = threading.Thread(target=model.check)
        thread.start()
        making.wait(10)

        child = multiprocessing.get_context("fork").Process(target=model.check)
        child.start()
        child.join(10)
        child.kill()
        go_on.set()
        thread.join(10)

        assert child.exitcode == 0

    def test_a_model_that_was_used_before_a_fork_is_refused(self):
        """Its connections are its parent's; the error says what to give instead."""
        model = PydanticAIModel(TheirTestModel())
        ask(model)
        context = multiprocessing.get_context("fork")
        results = context.Queue()

        def try_it() -> None:
            try:
                ask(model)
            except NoModel as error:
                results.put(str(error))

        child = context.Process(target=try_it)
        child.start()
        said = results.get(timeout=20)
        child.join(10)

        assert "before this process was forked" in said
        assert "a function that makes the model" in said

    def test_greenlets(self):
        """Under gevent the loop runs beside the greenlets, which go on while one waits for its model."""
        code = """
from gevent import monkey; monkey.patch_all()
import gevent, sys, time
from tests.providers.contract import request
from tests.providers.test_pydantic_ai import ask, over_openai, texts
from think_celery.errors import ModelAborted
from think_celery.messages import user
from think_celery.protocols import ModelTimeouts
from think_celery.signals import AbortController
model, patient = over_openai(sys.argv[1]), ModelTimeouts(first_token=30, token_gap=30)
jobs = [gevent.spawn(lambda n=n: texts(ask(model, user(f"q{n}"), timeouts=patient))) for n in range(5)]
gevent.joinall(jobs, timeout=50)
print([job.value for job in jobs] == [f"q{n} is fine" for n in range(5)])
controller, ticks = AbortController(), []
def tick():
    while not controller.signal.aborted:
        ticks.append(1); gevent.sleep(0.01)
gevent.spawn(tick)
gevent.spawn_later(0.5, controller.abort)
try: list(model.stream(request(user("hang"), timeouts=patient), controller.signal))
except ModelAborted: print(len(ticks) > 5)
"""
        with ModelServer() as server:
            server.respond = _slowly
            ran = subprocess.run(
                [sys.executable, "-c", code, server.base_url], capture_output=True, text=True, timeout=110
            )

        assert ran.stdout.split() == ["True", "True"], ran.stderr[-3000:]


def _slowly(body: Any) -> Any:
    asked = body["messages"][-1]["content"]
    if asked == "hang":
        return stream(*text_frames("Hel")[:2], HANG)
    pieces = [piece for frame in text_frames(f"{asked} is fine") for piece in (frame, Delay(0.02))]
    return stream(*pieces)


class TestMaking:
    def test_by_name(self):
        """`pydantic-ai/` before their name."""
        model = resolve("pydantic-ai/test")

        assert model.name == "pydantic-ai/test"
        assert finish(ask(model)).reason in ("stop", "unknown")
        assert resolve("pydantic-ai/test") is model

    def test_a_name_that_they_do_not_know(self):
        """Their word on it."""
        with pytest.raises(NoModel, match="acme"):
            ask(resolve("pydantic-ai/acme:x"))

    def test_something_else(self):
        """Said when it is made."""
        with pytest.raises(NoModel, match="takes a name"):
            PydanticAIModel(7)

    def test_real_requests_can_be_forbidden(self):
        """As for every other provider; models without a network are no real ones."""
        with ModelServer() as server, no_real_requests():
            server.script(text_frames("Hello"))
            assert texts(ask(over_openai(server.base_url))) == "Hello"
            assert ask(PydanticAIModel(TheirTestModel()))
            with pytest.raises(NoModel, match="forbidden"):
                ask(over_openai("https://api.example.com/v1"))

    def test_without_the_package(self):
        """The error says which extra to install; nothing else needs it."""
        code = (
            "import sys\n"
            "sys.modules['pydantic_ai'] = None\n"
            "from think_celery.errors import MissingExtra\n"
            "from think_celery.providers import resolve\n"
            "try: resolve('pydantic-ai/openai:gpt-5')\n"
            "except MissingExtra as error: print(error)\n"
        )

        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

        assert "pip install 'think-celery[pydantic-ai]'" in ran.stdout

    def test_a_function_that_fails(self):
        """What it raises is the turn's error."""
        with pytest.raises(ZeroDivisionError):
            ask(PydanticAIModel(lambda: 1 / 0))

    def test_an_answer_of_nothing(self):
        """Their function models refuse to say nothing; that is an error, not a hang."""

        async def nothing(messages: list[Any], info: AgentInfo):
            return
            yield

        with pytest.raises((ModelError, ValueError)):
            ask(PydanticAIModel(FunctionModel(stream_function=nothing)))
