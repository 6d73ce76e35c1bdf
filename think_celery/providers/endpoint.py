"""Where a provider is asked: one address with its headers, one request at a time, one kind of error for all."""

from collections.abc import Callable, Iterator, Mapping

import httpx

from think_celery.errors import ModelAborted, ModelError, NoModel
from think_celery.messages import ToolPart
from think_celery.protocols import ModelEvent, ModelRequest, Usage
from think_celery.providers import failures
from think_celery.providers.connections import Connection, connections
from think_celery.providers.options import checked_headers
from think_celery.providers.permission import check_permitted
from think_celery.providers.reading import Answer, Reader, read_some
from think_celery.providers.toolcalls import UniqueIds
from think_celery.providers.watchdog import Guard, guard
from think_celery.signals import AbortSignal


class Endpoint:
    """One vendor's address, for one model. Cheap, connects to nothing, may be shared between threads and forks.

    Args:
        name: What to call the model in errors.
        base_url: The vendor's address; ``path`` is put after its own path.
        example: A right base_url, for the error.
        key_header: The header that carries the key, and what stands before the key in it.
        api_key: ``None`` sends none. It is never part of an error or a log.
        own_headers: The vendor's further headers.
        headers: The user's; they win.
        client: The user's own client; see :class:`~think_celery.providers.openai.OpenAIModel`.

    Raises:
        NoModel: ``base_url`` is no http(s) URL, or the key or a header can't be sent.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str,
        path: str,
        example: str,
        key_header: tuple[str, str],
        api_key: str | None,
        own_headers: Mapping[str, str],
        headers: Mapping[str, str] | None,
        client: httpx.Client | None,
    ) -> None:
        self.name, self._client = name, client
        self.url = _address_of(name, base_url, path, example)
        key = (api_key or "").strip()
        if not key.isascii() or not key.isprintable():
            raise NoModel(name, "its API key holds characters that no HTTP header can carry")
        self._headers = httpx.Headers(
            {
                "Content-Type": "application/json",
                "Accept": "text/event-stream, application/json",
                "Accept-Encoding": "identity",  # compression holds back what should be seen at once
                "User-Agent": "think-celery",
                **own_headers,
            }
        )
        if key:
            self._headers[key_header[0]] = key_header[1] + key
        if client is not None:
            self._headers["Connection"] = "close"
        try:
            given = checked_headers(headers or {})
        except ModelError as error:
            raise NoModel(name, error.message) from None
        self._headers.update(given)
        self._secrets = failures.secrets_in([key, *given.values()])

    @property
    def host(self) -> str:
        """The server's host, with its port where it is not the usual one."""
        return httpx.URL(self.url).netloc.decode("ascii")

    def stream(
        self,
        request: ModelRequest,
        signal: AbortSignal,
        content: Callable[[], bytes],
        answer: Callable[[UniqueIds], Answer],
    ) -> Iterator[ModelEvent]:
        """Ask once: *content* makes the body, *answer* what reads the answer. See ``Model.stream``.

        Raises:
            NoModel: Real requests are forbidden here.
        """
        check_permitted(self.name, self.url)
        return self._stream(request, signal, content, answer)

    def _stream(
        self,
        request: ModelRequest,
        signal: AbortSignal,
        content: Callable[[], bytes],
        answer: Callable[[UniqueIds], Answer],
    ) -> Iterator[ModelEvent]:
        if signal.aborted:
            raise self._aborted(signal.reason)
        try:
            body, headers = content(), self._headers_for(request)
        except ModelError as error:
            raise self._named(error, self._secrets) from None
        ids = UniqueIds(
            part.tool_call_id
            for message in request.messages
            for part in message.parts
            if isinstance(part, ToolPart)
        )
        if self._client is not None:
            yield from self._ask(Connection(self._client), body, headers, request, signal, answer(ids))
        else:
            with connections().borrowed(self.url) as connection:
                yield from self._ask(connection, body, headers, request, signal, answer(ids))

    def _headers_for(self, request: ModelRequest) -> httpx.Headers:
        if not request.headers:
            return self._headers
        headers = self._headers.copy()
        headers.update(checked_headers(request.headers))
        return headers

    def _ask(
        self,
        connection: Connection,
        content: bytes,
        headers: httpx.Headers,
        request: ModelRequest,
        signal: AbortSignal,
        answer: Answer,
    ) -> Iterator[ModelEvent]:
        limits = request.timeouts
        waiting = f"no token came within {limits.first_token:g} s of the request (keep-alives are no tokens)"
        secrets = self._secrets + failures.secrets_in(request.headers.values())
        with guard(connection.cut, signal) as watched:
            try:
                with connection.post(
                    self.url,
                    headers=headers,
                    content=content,
                    timeouts=limits,
                    guard=watched,
                    waiting_for=waiting,
                ) as response:
                    if not response.is_success:
                        body = read_some(response, watched)
                        raise failures.of_status(response.status_code, response.headers, body)
                    chunks = connection.body(response)
                    yield from Reader(chunks, watched, limits, answer, connection.pace).events()
            except Exception as error:
                failure = self._failure(error, watched, secrets)
                if isinstance(failure, ModelError) and answer.usage != Usage():
                    failure.usage = answer.usage
                raise failure from None

    def _failure(self, error: Exception, watched: Guard, secrets: list[str]) -> Exception:
        """The error to raise. What *watched* did comes first: all else may only be its consequence."""
        if watched.aborted:
            return self._aborted(watched.fired)
        refused = isinstance(error, ModelError) and error.status_code is not None
        if watched.fired is not None and not refused:
            return self._named(ModelError(watched.fired, retryable=True), secrets)
        match error:
            case ModelError():
                return self._named(error, secrets)
            case httpx.ConnectError() | httpx.ConnectTimeout():
                where = _host_and_port(httpx.URL(self.url))
                text = f"could not connect to {where}: {error or type(error).__name__}"
                return self._named(ModelError(text, retryable=True), secrets)
            case httpx.UnsupportedProtocol() | httpx.LocalProtocolError():
                return self._named(ModelError(f"the request could not be sent: {error}"), secrets)
            case httpx.HTTPError():
                text = f"the connection broke ({type(error).__name__}): {error}"
                return self._named(ModelError(text, retryable=True), secrets)
            case RecursionError():  # what was nested just not too deep to be parsed is, to be worked with
                deep = ModelError("the provider's answer is nested too deep", retryable=True)
                return self._named(deep, secrets)
            case _:
                return error

    def _named(self, error: ModelError, secrets: list[str]) -> ModelError:
        return ModelError(
            failures.shown(f"{self.name}: {error.message}", secrets),
            retryable=error.retryable,
            status_code=error.status_code,
            retry_after_seconds=error.retry_after_seconds,
        )

    def _aborted(self, reason: str | None) -> ModelAborted:
        return ModelAborted(f"{self.name}: the request was given up: {reason or 'aborted'}")


def _address_of(name: str, base_url: str, path: str, example: str) -> str:
    try:
        url = httpx.URL(base_url.strip())
        if url.scheme in ("http", "https") and url.host:
            above = url.path.rstrip("/")
            if path.startswith("/v1/"):  # an address is known with its version and without
                above = above.removesuffix("/v1")
            return str(url.copy_with(path=above + path))
    except (httpx.InvalidURL, TypeError):
        pass
    raise NoModel(name, f"its base_url must be an http(s) URL such as {example}")


def _host_and_port(url: httpx.URL) -> str:
    return f"{url.host}:{url.port or (443 if url.scheme == 'https' else 80)}"
