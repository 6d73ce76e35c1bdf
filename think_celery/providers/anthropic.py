"""Anthropic's Messages, and servers that speak them."""

from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from think_celery.errors import ModelError, NoModel
from think_celery.protocols import ModelEvent, ModelRequest, ToolSpec
from think_celery.providers.anthropic_request import RESERVED, request_body
from think_celery.providers.anthropic_stream import Answer
from think_celery.providers.endpoint import Endpoint
from think_celery.providers.options import checked_options
from think_celery.providers.profiles import Profile, checked_profile, fitted
from think_celery.signals import AbortSignal

ANTHROPIC_URL = "https://api.anthropic.com"
MAX_TOKENS = 8192
VERSION = "2023-06-01"
_ANTHROPIC_HOST = "api.anthropic.com"


class AnthropicModel:
    """A model behind Anthropic's Messages, streamed.

    Making one is cheap and connects to nothing. It may be shared between threads and used after a fork;
    connections are kept per process and server, never per object.

    Args:
        model: The provider's name of the model.
        api_key: Sent as ``x-api-key``; ``None`` sends none. It is never part of an error or a log.
        base_url: The server's address, with ``/v1`` or without.
        headers: More headers, such as ``{"anthropic-beta": "…"}``; they win over our own.
        name: What to call it in logs and errors; ``anthropic/<model>`` if not given.
        client: Your own ``httpx.Client`` (HTTP/1.1), for a transport of yours. Each request then opens a connection
            of its own, for only of a new one is the socket known before the server answers.
        max_tokens: The most tokens of an answer where a request does not say it; the vendor demands one. A
            ``budget_tokens`` for thinking is added to it.
        extra: More fields of the request's body, such as ``{"thinking": {"type": "enabled", "budget_tokens": 4096}}``
            (left out where a tool is forced: the vendor refuses both together); a request's own win.
        provider: Whose fields the model's answers carry: thinking is signed, and is sent back to the same provider
            only. By default ``anthropic``, of another server its host.
        echo: Whether such fields are sent back at all.
        schemas: How tools' schemas are told: ``standard``, or ``inline`` for servers that don't follow references.

    Raises:
        NoModel: ``base_url`` is no http(s) URL, the key or a header can't be sent, or ``extra`` holds a field that
            is the engine's.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None,
        base_url: str = ANTHROPIC_URL,
        headers: Mapping[str, str] | None = None,
        name: str | None = None,
        client: httpx.Client | None = None,
        max_tokens: int = MAX_TOKENS,
        extra: Mapping[str, Any] | None = None,
        provider: str | None = None,
        echo: bool = True,
        schemas: Profile = "standard",
    ) -> None:
        self._model, self._max_tokens = model, max_tokens
        self._endpoint = Endpoint(
            name or f"anthropic/{model}",
            base_url=base_url,
            path="/v1/messages",
            example=ANTHROPIC_URL,
            key_header=("x-api-key", ""),
            api_key=api_key,
            own_headers={"anthropic-version": VERSION},
            headers=headers,
            client=client,
        )
        try:
            self._extra = checked_options(extra or {}, RESERVED)
        except ModelError as error:
            raise NoModel(self.name, error.message) from None
        if schemas == "strict":
            raise NoModel(self.name, "schemas='strict' is OpenAI's mode. Use 'standard' or 'inline'.")
        host = self._endpoint.host
        self._provider = provider or ("anthropic" if host == _ANTHROPIC_HOST else host)
        self._echo, self._schemas = echo, checked_profile(self.name, schemas)

    def __repr__(self) -> str:
        return f"AnthropicModel({self._model!r}, name={self.name!r})"

    @property
    def name(self) -> str:
        """What to call it in logs, such as ``anthropic/claude-sonnet-4-5``."""
        return self._endpoint.name

    def check_tool(self, spec: ToolSpec) -> None:
        """Refuse a tool that this model can't be offered; see :class:`think_celery.protocols.ChecksTools`."""
        fitted(self._schemas, spec)

    def stream(self, request: ModelRequest, signal: AbortSignal) -> Iterator[ModelEvent]:
        """Ask once, and yield events until a ``Finish``. See :meth:`think_celery.protocols.Model.stream`."""
        return self._endpoint.stream(
            request, signal, lambda: self._body(request), lambda ids: Answer(ids, self._provider)
        )

    def _body(self, request: ModelRequest) -> bytes:
        return request_body(
            self._model,
            request,
            self._extra,
            max_tokens=self._max_tokens,
            provider=self._provider if self._echo else None,
            schemas=self._schemas,
        )
