"""Any model of Pydantic AI. Needs ``pip install 'think-celery[pydantic-ai]'`` and the vendor's own package."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from think_celery import forks
from think_celery.errors import MissingExtra, ModelAborted, ModelError, NoModel

try:
    import pydantic_ai
except ImportError as error:
    raise MissingExtra("A model of Pydantic AI", "pydantic-ai") from error

from pydantic_ai import exceptions
from pydantic_ai.direct import model_request_stream
from pydantic_ai.models import infer_model

from think_celery.messages import ToolPart
from think_celery.protocols import ModelEvent, ModelRequest
from think_celery.providers import bridge, failures
from think_celery.providers.permission import check_permitted
from think_celery.providers.pydantic_ai_messages import messages_of, parameters_of, settings_of
from think_celery.providers.pydantic_ai_stream import Answer
from think_celery.providers.toolcalls import UniqueIds
from think_celery.signals import AbortSignal

_IN_MEMORY = ("pydantic_ai.models.test", "pydantic_ai.models.function")


class PydanticAIModel:
    """A model of Pydantic AI, streamed.

    All such models of a process live in one event loop, in a thread of its own, whatever the worker's pool is. A
    forked child has a loop and models of its own.

    Args:
        model: A name such as ``"google:gemini-2.5-pro"``, a function that makes a model, or a model. A name and a
            function are best: each process makes its own. A model that was used before a fork is refused after it,
            for its connections are its parent's.
        name: What to call it in logs and errors; ``pydantic-ai/<model>`` if not given.
        echo: Whether what the provider wants back (signatures of reasoning, ids) is sent back to it.
        needs_finish_reason: Whether an answer without a finish reason counts as cut. By default it does, except of
            models without an address, such as ``TestModel``.
    """

    def __init__(
        self,
        model: Any,
        *,
        name: str | None = None,
        echo: bool = True,
        needs_finish_reason: bool | None = None,
    ) -> None:
        fits = isinstance(model, str | pydantic_ai.models.Model) or callable(model)
        if not fits:
            raise NoModel(
                repr(model),
                "PydanticAIModel takes a name, a model of Pydantic AI, or a function that makes one.",
            )
        self._given, self._echo, self._needs_reason = model, echo, needs_finish_reason
        self._renew_lock()
        forks.in_child(self._renew_lock)
        self._made: tuple[int, Any] | None = None  # the process's generation, and its model
        if name is not None:
            self.name = name
        elif isinstance(model, str):
            self.name = f"pydantic-ai/{model}"
        elif isinstance(model, pydantic_ai.models.Model):
            self.name = f"pydantic-ai/{model.system}:{model.model_name}"
        else:
            self.name = f"pydantic-ai/{getattr(model, '__name__', type(model).__name__)}"

    def __repr__(self) -> str:
        return f"PydanticAIModel(name={self.name!r})"

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def check(self) -> None:
        """Make this process's model, and ask it nothing.

        Raises:
            NoModel: It can't be made: its vendor's package or key is missing.
        """
        self._model()

    def stream(self, request: ModelRequest, signal: AbortSignal) -> Iterator[ModelEvent]:
        """Ask once, and yield events until a ``Finish``. See :meth:`think_celery.protocols.Model.stream`.

        Raises:
            NoModel: The model can't be made, or real requests are forbidden here.
        """
        model = self._model()
        self._check_permitted(model)
        return self._stream(model, request, signal)

    def _stream(self, model: Any, request: ModelRequest, signal: AbortSignal) -> Iterator[ModelEvent]:
        if signal.aborted:
            raise self._aborted(signal)
        provider = f"pydantic-ai/{model.system}"
        answer = Answer(
            UniqueIds(p.tool_call_id for m in request.messages for p in m.parts if isinstance(p, ToolPart)),
            provider,
        )
        needs_reason = self._needs_reason
        if needs_reason is None:
            needs_reason = not _in_memory(model)
        limits = request.timeouts
        begun = False
        try:
            events = _events(model, request, provider if self._echo else None)
            for item in bridge.Stream(lambda: events, signal).items(limits.first_token, limits.token_gap):
                if signal.aborted:
                    raise bridge.Aborted
                if isinstance(item, _Response):
                    given = answer.end(item.response, needs_reason=needs_reason)
                else:
                    begun, given = True, answer.take(item)
                for event in given:
                    if signal.aborted:
                        raise bridge.Aborted
                    yield event
        except bridge.Aborted:
            raise self._aborted(signal) from None
        except bridge.Overdue:
            text = (
                f"no token came for {limits.token_gap:g} s in the middle of the answer"
                if begun
                else f"no token came within {limits.first_token:g} s of the request (keep-alives are no tokens)"
            )
            raise ModelError(f"{self.name}: {text}", retryable=True) from None
        except Exception as error:
            raise self._failure(error, model, request) from None

    def _model(self) -> Any:
        """This process's model: a name and a function make it anew after a fork."""
        here = bridge.generation()
        with self._lock:
            if self._made is not None and self._made[0] == here:
                return self._made[1]
            if isinstance(self._given, pydantic_ai.models.Model):
                if self._made is not None:
                    raise NoModel(
                        self.name,
                        "it was used before this process was forked, so its connections are its parent's. Give "
                        "PydanticAIModel a name or a function that makes the model.",
                    )
                model = self._given
            else:
                model = self._make()
            self._made = (here, model)
            return model

    def _make(self) -> Any:
        try:
            return infer_model(self._given if isinstance(self._given, str) else self._given())
        except ImportError as error:
            raise NoModel(self.name, f"a package of its vendor is missing: {error}") from None
        except exceptions.UserError as error:
            raise NoModel(self.name, str(error)) from None

    def _check_permitted(self, model: Any) -> None:
        if not _in_memory(model):
            check_permitted(self.name, str(getattr(model, "base_url", None) or ""))

    def _failure(self, error: Exception, model: Any, request: ModelRequest) -> Exception:
        key = getattr(getattr(model, "client", None), "api_key", None)
        words = [*request.headers.values(), key if isinstance(key, str) else ""]
        secrets = failures.secrets_in(words)

        def named(text: str, **more: Any) -> ModelError:
            return ModelError(failures.shown(f"{self.name}: {text}", secrets), **more)

        match error:
            case ModelError():
                return named(
                    error.message,
                    retryable=error.retryable,
                    status_code=error.status_code,
                    retry_after_seconds=error.retry_after_seconds,
                )
            case exceptions.ModelHTTPError():
                return self._of_status(error, named)
            case exceptions.ModelConnectionError(phase="connect"):
                url = urlsplit(str(getattr(model, "base_url", None) or ""))
                where = f"{url.hostname}:{url.port or (443 if url.scheme == 'https' else 80)}"
                return named(f"could not connect to {where}: {error}", retryable=True)
            case exceptions.ModelAPIError():
                return named(_said(error), retryable=not _is_final(error), retry_after_seconds=_wish(error))
            case exceptions.ContentFilterError() | exceptions.UserError():
                return named(str(error))
            case exceptions.UnexpectedModelBehavior():
                return named(str(error), retryable=True)
            case OSError() | TimeoutError() | EOFError():
                return named(f"the connection broke ({type(error).__name__}): {error}", retryable=True)
            case _ if type(error).__module__.split(".")[0] in ("httpx", "httpx2", "httpcore", "anyio"):
                return named(f"the connection broke ({type(error).__name__}): {error}", retryable=True)
            case _:
                return error

    def _of_status(self, error: Any, named: Callable[..., ModelError]) -> ModelError:
        status = error.status_code
        retryable = failures.may_pass(status) and not _is_final(error)
        wish = _wish(error) if retryable else None
        text = f"HTTP {status}: {_said(error)}"
        return named(text, retryable=retryable, status_code=status, retry_after_seconds=wish)

    def _aborted(self, signal: AbortSignal) -> ModelAborted:
        return ModelAborted(f"{self.name}: the request was given up: {signal.reason or 'aborted'}")


class _Response:
    """The whole response, after the last event."""

    def __init__(self, response: Any) -> None:
        self.response = response


async def _events(model: Any, request: ModelRequest, provider: str | None) -> AsyncIterator[Any]:
    """Pydantic AI's events, then the whole response. Runs in the process's loop."""
    async with model_request_stream(
        model,
        messages_of(request, provider),
        model_settings=settings_of(request),
        model_request_parameters=parameters_of(request),
    ) as stream:
        async for event in stream:
            yield event
        yield _Response(stream.get())


def _in_memory(model: Any) -> bool:
    return type(model).__module__ in _IN_MEMORY


def _said(error: Any) -> str:
    """The provider's own words, as far as they are known."""
    body = getattr(error, "body", None)
    if isinstance(body, dict):
        said = body.get("error", body)
        if isinstance(said, dict):
            said = said.get("message")
        if isinstance(said, str) and said:
            return said
    return str(body) if isinstance(body, str) and body else str(error)


def _is_final(error: Any) -> bool:
    """Whether the error says that asking again can't help."""
    words = {getattr(error, "provider_error_code", None), getattr(error, "provider_error_type", None)}
    return bool(words & failures.NOT_AGAIN)


def _wish(error: Any) -> float | None:
    wish = getattr(error, "retry_after", None)
    return float(wish) if isinstance(wish, int | float) else None
