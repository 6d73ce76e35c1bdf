"""The room of the models: one vendor's stream as our model events.

``resolve("openai/gpt-5-mini", …)`` makes a model of its name; ``providers.openai``, ``providers.anthropic`` and
``providers.pydantic_ai`` hold the classes, ``providers.scripted`` the models for tests.
"""

from collections.abc import Callable
from functools import lru_cache

from think_celery.errors import NoModel
from think_celery.protocols import Model
from think_celery.providers.permission import forbid_real_requests, no_real_requests
from think_celery.settings import Settings

__all__ = ["forbid_real_requests", "no_real_requests", "of_settings", "resolve"]


def resolve(
    model: str | Model | None,
    *,
    openai_api_key: str | None = None,
    openai_base_url: str | None = None,
    openai_echo: bool = True,
    anthropic_api_key: str | None = None,
    anthropic_base_url: str | None = None,
    anthropic_echo: bool = True,
) -> Model:
    """The model of that name, such as ``openai/gpt-5-mini``; a model object is given back as it is.

    Models of the same name, key and address are one object in a process.

    Raises:
        NoModel: No name was given, it can't be resolved, or its API key is missing.
        MissingExtra: It needs an optional dependency.
    """
    if model is None:
        raise NoModel(
            None, 'none was named. Write model = "openai/gpt-5-mini" in the class, or set think_model.'
        )
    if not isinstance(model, str):
        if callable(getattr(model, "stream", None)):
            return model
        raise NoModel(
            repr(model),
            f"{type(model).__name__} is neither a name such as openai/gpt-5-mini nor a model object.",
        )
    provider, _, rest = model.partition("/")
    makers: dict[str, Callable[[], Model]] = {
        "openai": lambda: _shared_openai(
            model, rest, _key(model, "openai", openai_api_key), openai_base_url, openai_echo
        ),
        "anthropic": lambda: _shared_anthropic(
            model, rest, _key(model, "anthropic", anthropic_api_key), anthropic_base_url, anthropic_echo
        ),
        "pydantic-ai": lambda: _shared_pydantic_ai(model, rest),
    }
    if provider not in makers or not rest:
        known = ", ".join(f"{prefix}/…" for prefix in makers)
        raise NoModel(model, f"a name is provider/model, such as openai/gpt-5-mini. Known providers: {known}")
    return makers[provider]()


def of_settings(model: str | Model | None, settings: Settings) -> Model:
    """The model of that name with the keys and addresses of *settings*; see :func:`resolve`."""
    return resolve(
        model,
        openai_api_key=settings.openai_api_key,
        openai_base_url=settings.openai_base_url,
        openai_echo=settings.openai_echo,
        anthropic_api_key=settings.anthropic_api_key,
        anthropic_base_url=settings.anthropic_base_url,
        anthropic_echo=settings.anthropic_echo,
    )


def _key(name: str, vendor: str, api_key: str | None) -> str:
    if not api_key:
        raise NoModel(
            name,
            f"there is no API key. Set think_{vendor}_api_key or the environment variable {vendor.upper()}_API_KEY "
            "(for a server that asks for no key, set it to any text).",
        )
    return api_key


# Imported where they are made: they load httpx, which a process that only submits work never needs.


@lru_cache(maxsize=64)
def _shared_openai(name: str, model: str, api_key: str, base_url: str | None, echo: bool) -> Model:
    from think_celery.providers.openai import OPENAI_URL, OpenAIModel

    return OpenAIModel(model, api_key=api_key, base_url=base_url or OPENAI_URL, name=name, echo=echo)


@lru_cache(maxsize=64)
def _shared_anthropic(name: str, model: str, api_key: str, base_url: str | None, echo: bool) -> Model:
    from think_celery.providers.anthropic import ANTHROPIC_URL, AnthropicModel

    return AnthropicModel(model, api_key=api_key, base_url=base_url or ANTHROPIC_URL, name=name, echo=echo)


@lru_cache(maxsize=64)
def _shared_pydantic_ai(name: str, model: str) -> Model:
    from think_celery.providers.pydantic_ai import PydanticAIModel

    return PydanticAIModel(model, name=name)
