"""OpenAI's chat completions, and any server that speaks them (vLLM, Ollama, OpenRouter, gateways)."""

from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from think_celery.errors import ModelError, NoModel
from think_celery.protocols import ModelEvent, ModelRequest, ToolSpec
from think_celery.providers.endpoint import Endpoint
from think_celery.providers.openai_request import RESERVED, request_body
from think_celery.providers.openai_stream import Answer
from think_celery.providers.options import checked_options
from think_celery.providers.profiles import Profile, checked_profile, fitted, relaxing
from think_celery.signals import AbortSignal

OPENAI_URL = "https://api.openai.com/v1"
_OPENAI_HOST = "api.openai.com"
_NEW_FIELD_HOSTS = (_OPENAI_HOST, ".openai.azure.com")


class OpenAIModel:
    """A model behind OpenAI's chat completions, streamed.

    Making one is cheap and connects to nothing. It may be shared between threads and used after a fork;
    connections are kept per process and server, never per object.

    Args:
        model: The provider's name of the model.
        api_key: Sent as a bearer token; ``None`` sends none. It is never part of an error or a log.
        base_url: Where ``/chat/completions`` is.
        headers: More headers; they win over our own.
        name: What to call it in logs and errors; ``openai/<model>`` if not given.
        client: Your own ``httpx.Client`` (HTTP/1.1), for a transport of yours. Each request then opens a connection
            of its own, for only of a new one is the socket known before the server answers.
        extra: More fields of the request's body, such as ``{"temperature": 0}``; a request's own win.
        provider: Whose fields the model's answers carry: reasoning, signatures and fields unknown here are sent
            back to the same provider only. By default ``openai``, of another server its host.
        echo: Whether such fields are sent back at all. Some servers refuse them.
        schemas: How tools' schemas are told. ``standard``: as they are. ``strict``: in OpenAI's strict mode, in which
            arguments always fit. ``inline``: without references, for servers that don't follow them. A tool whose
            schema can't be told that way is an error when it is declared.
        max_tokens_field: The field for ``max_output_tokens``. By default ``max_completion_tokens`` at OpenAI and
            Azure, and ``max_tokens`` elsewhere.

    Raises:
        NoModel: ``base_url`` is no http(s) URL, the key or a header can't be sent, or ``extra`` holds a field that
            is the engine's.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None,
        base_url: str = OPENAI_URL,
        headers: Mapping[str, str] | None = None,
        name: str | None = None,
        client: httpx.Client | None = None,
        extra: Mapping[str, Any] | None = None,
        provider: str | None = None,
        echo: bool = True,
        schemas: Profile = "standard",
        max_tokens_field: str | None = None,
    ) -> None:
        self._model = model
        self._endpoint = Endpoint(
            name or f"openai/{model}",
            base_url=base_url,
            path="/chat/completions",
            example=OPENAI_URL,
            key_header=("Authorization", "Bearer "),
            api_key=api_key,
            own_headers={},
            headers=headers,
            client=client,
        )
        try:
            self._extra = checked_options(extra or {}, RESERVED)
        except ModelError as error:
            raise NoModel(self.name, error.message) from None
        host = self._endpoint.host
        self._provider = provider or ("openai" if host == _OPENAI_HOST else host)
        self._echo, self._schemas = echo, checked_profile(self.name, schemas)
        new_field = host.endswith(_NEW_FIELD_HOSTS)
        self._max_tokens = max_tokens_field or ("max_completion_tokens" if new_field else "max_tokens")

    def __repr__(self) -> str:
        return f"OpenAIModel({self._model!r}, name={self.name!r})"

    @property
    def name(self) -> str:
        """What to call it in logs, such as ``openai/gpt-5``."""
        return self._endpoint.name

    def check_tool(self, spec: ToolSpec) -> None:
        """Refuse a tool that this model can't be offered; see :class:`think_celery.protocols.ChecksTools`."""
        fitted(self._schemas, spec)

    def stream(self, request: ModelRequest, signal: AbortSignal) -> Iterator[ModelEvent]:
        """Ask once, and yield events until a ``Finish``. See :meth:`think_celery.protocols.Model.stream`."""
        events = self._endpoint.stream(
            request, signal, lambda: self._body(request), lambda ids: Answer(ids, self._provider)
        )
        return relaxing(request.tools, events) if self._schemas == "strict" else events

    def _body(self, request: ModelRequest) -> bytes:
        return request_body(
            self._model,
            request,
            self._extra,
            provider=self._provider if self._echo else None,
            max_tokens_field=self._max_tokens,
            schemas=self._schemas,
        )
