"""The room of the models: one vendor's stream as our model events.

``resolve("openai/gpt-5-mini", …)`` makes a model of its name; ``providers.scripted`` holds the models for tests.
"""

from collections.abc import Callable
from functools import lru_cache

from think_celery.errors import NoModel
from think_celery.protocols import Model
from think_celery.providers.permission import forbid_real_requests, no_real_requests

__all__ = ["forbid_real_requests", "no_real_requests", "resolve"]


def resolve(
    model: str | Model | None,
    *,
    openai_api_key: str | None = None,
    openai_base_url: str | None = None,
) -> Model:
    """The model of that name, such as ``openai/gpt-5-mini``; a model object is given back as it is.

    Models of the same name, key and address are one object in a process.

    Raises:
        NoModel: No name was given, it can't be resolved, or its API key is missing.
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
        "openai": lambda: _openai(model, rest, openai_api_key, openai_base_url),
    }
    if provider not in makers or not rest:
        known = ", ".join(f"{prefix}/…" for prefix in makers)
        raise NoModel(model, f"a name is provider/model, such as openai/gpt-5-mini. Known providers: {known}")
    return makers[provider]()


def _openai(name: str, model: str, api_key: str | None, base_url: str | None) -> Model:
    if not api_key:
        raise NoModel(
            name,
            "there is no API key. Set think_openai_api_key or the environment variable OPENAI_API_KEY "
            "(for a server that asks for no key, set it to any text).",
        )
    return _shared_openai(name, model, api_key, base_url)


@lru_cache(maxsize=64)
def _shared_openai(name: str, model: str, api_key: str, base_url: str | None) -> Model:
    # Imported here: it loads httpx, which a process that only submits work never needs.
    from think_celery.providers.openai import OPENAI_URL, OpenAIModel

    return OpenAIModel(model, api_key=api_key, base_url=base_url or OPENAI_URL, name=name)
