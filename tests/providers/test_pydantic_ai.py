"""Models of Pydantic AI: what applies of the contract, over OpenAI's wire and Anthropic's, and what is their own."""

from typing import Any

from pydantic_ai.models.anthropic import AnthropicModel as TheirAnthropic
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.providers.contract import (
    KEY,
    ProviderContract,
    request,
)
from tests.providers.test_anthropic import AnthropicWire, TestEcho
from tests.providers.test_openai import OpenAIWire
from think_celery.protocols import Model
from think_celery.providers.pydantic_ai import PydanticAIModel
from think_celery.signals import AbortController

TestModel.__test__ = False  # type: ignore[attr-defined]
BLOCKS = TestEcho.BLOCKS
del TestEcho


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


class OverAnthropic(AnthropicWire):
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
