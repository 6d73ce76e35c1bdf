"""What a workflow can ask for: ``step``, the second argument of ``run``."""

from collections.abc import Callable
from typing import Any, TypeVar, overload

from think_celery.domain import effects, prompts, waits
from think_celery.domain.replay import STEP_TIMEOUT_SECONDS, Replay, StepContext
from think_celery.domain.waits import Approval, ReceivedEvent
from think_celery.durations import Duration
from think_celery.messages import Messages
from think_celery.retries import Retry

T = TypeVar("T")
Output = TypeVar("Output")


class ThinkWorkflowStep:
    """The durable part of a workflow: everything that must not happen twice, or that waits.

    Each call is recorded in the run's journal. When the run goes on later, or in another worker, its code
    starts again from the top, and a recorded call returns (or raises) at once what it did the first time.
    So the code between the steps must ask for the same steps in the same order each time. Names need not be
    unique, but of prompts: repeats are numbered (``charge#2``).

    Steps are called in ``run()`` itself, not in another step's function nor in a thread.
    """

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    @overload
    def do(
        self,
        name: str,
        function: Callable[[], T] | Callable[[StepContext], T],
        *,
        retry: Retry | None = None,
        timeout: Duration | None = STEP_TIMEOUT_SECONDS,
    ) -> T: ...

    @overload
    def do(
        self,
        name: str,
        function: Callable[[], Any] | Callable[[StepContext], Any],
        *,
        retry: Retry | None = None,
        timeout: Duration | None = STEP_TIMEOUT_SECONDS,
        output: type[Output],
    ) -> Output: ...

    def do(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        retry: Retry | None = None,
        timeout: Duration | None = STEP_TIMEOUT_SECONDS,
        output: Any = None,
    ) -> Any:
        """Call *function* once, and return what it returned, now and on every replay.

        Once its result is stored it never runs again. A worker that dies between the effect and the storing
        of its result leaves the effect to be repeated, with the same ``idempotency_key``. The value comes
        back equal, after a round trip through storage, on the first pass, too.

        Args:
            name: What the step is called.
            function: Takes nothing, or a :class:`StepContext`. Runs in a helper thread.
            retry: How often to try; 6 attempts by default. The waits in between take no worker if they are
                longer than 10 seconds.
            timeout: After that long an attempt has failed and its function is given up (it may go on
                running). ``None``: no limit; the function runs in the calling thread.
            output: A type that the result must fit, and is returned as.

        Raises:
            StepError: The last attempt failed, or one raised ``NonRetryableError``, or the result can't be
                stored. ``error_type`` names what the function raised.
        """
        return effects.do(self._replay, name, function, retry, timeout, output)

    def transaction(
        self, name: str, function: Callable[[Any], T], *, retry: Retry | None = None, output: Any = None
    ) -> T:
        """Call *function* with the database connection on which its result is recorded: exactly once.

        What it writes through that connection is committed together with the journal's entry, or not at
        all. think_celery's own calls inside it (``submit_messages``, ``run_workflow``, …) join. It must not
        commit or roll back by itself, nor take longer than 5 seconds (on SQLite a third of ``think_lease``).

        Args:
            name: What the step is called.
            function: Takes an SQLAlchemy ``Connection`` to think_celery's database.
            retry: As for :meth:`do`. A deadlock is a failed attempt.
            output: As for :meth:`do`.

        Raises:
            StepError: As for :meth:`do`.
        """
        return effects.transaction(self._replay, name, function, retry, output)  # type: ignore[no-any-return]

    def prompt(
        self,
        name: str,
        *,
        prompt: Messages,
        output: type[Output],
        timeout: Duration | None = None,
        key: str | None = None,
        cancel_on_timeout: bool = True,
        max_steps: int | None = None,
        output_retries: int = 0,
    ) -> Output:
        """Let the workflow's agent answer *prompt*, and return its answer as an *output*.

        The agent takes a full turn: it may use its tools, and gives the answer through one more tool, which
        carries the JSON Schema of *output*. The workflow waits without a worker. The answer is validated in
        the turn, and here again with the type of today.

        Args:
            name: What the prompt is called; once a run, for it makes the submission's idempotency key.
            prompt: The message (or messages) to answer.
            output: A pydantic model, a dataclass or a TypedDict. Define it at the top of a module that the workers
                import: then the turn checks answers with its validators, too. Of a type that the turn's process
                does not have, the turn checks the JSON Schema, and the rest is found only here.
            timeout: How long to wait; ``None``: for ever.
            key: What tells prompts of one name apart, in a loop.
            cancel_on_timeout: Whether the turn is cancelled when the time is up, or left to go on.
            max_steps: The most model steps of the turn; with 1 the first one must be the answer.
            output_retries: How often the model may answer again when its answer does not fit, or when it gives
                none: it is shown what is wrong. Each answer is one of the *max_steps*, which are kept free for it.

        Raises:
            UnsupportedSchema: JSON Schema can't express *output*; nothing was submitted.
            DuplicateStep: This run has prompted under that name (and key) before.
            ThinkPromptAbortedError, ThinkPromptSkippedError: The turn was cancelled, or its conversation reset.
            ThinkPromptValidationError: The answer does not fit; the error names the paths.
            ThinkPromptTimeoutError: The time is up.
            ThinkPromptError: The turn ended in error, or otherwise without an answer.
        """
        return prompts.prompt(  # type: ignore[no-any-return]
            self._replay,
            name,
            prompt=prompt,
            output=output,
            timeout=timeout,
            key=key,
            cancel_on_timeout=cancel_on_timeout,
            max_steps=max_steps,
            output_retries=output_retries,
        )

    def wait_for_event(self, name: str, *, type: str, timeout: Duration | None = None) -> ReceivedEvent:
        """Wait, without a worker, for the next event of that type that was sent to this run.

        Events that were sent before are kept in order, and each is taken once. One that was sent at or
        before the deadline counts, however late the run wakes up.

        Args:
            name: What the step is called.
            type: What ``send_workflow_event(type=…)`` says.
            timeout: How long to wait, from the first time that the code comes here; ``None``: for ever.

        Raises:
            WorkflowTimeoutError: No such event was sent in time.
        """
        return waits.wait_for_event(self._replay, name, type, timeout)

    def wait_for_approval(self, name: str = "approval", *, timeout: Duration | None = None) -> Approval:
        """Wait for somebody's decision: an event of type ``approval`` with ``{"approved": true or false}``.

        Args:
            name: What the step is called.
            timeout: How long to wait; ``None``: for ever.

        Raises:
            WorkflowRejectedError: It was refused; ``reason`` is the event's.
            WorkflowTimeoutError: Nobody decided in time.
            StepError: The event is no decision (``error_type`` is ``InvalidApproval``).
        """
        return waits.wait_for_approval(self._replay, name, timeout)

    def sleep(self, name: str, duration: Duration) -> None:
        """Wait, without a worker, for that long from the first time that the code comes here."""
        waits.sleep(self._replay, name, duration)
