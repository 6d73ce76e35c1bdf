"""What a workflow can ask for: ``step``, the second argument of ``run``."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload

from think_celery.domain.steps import childruns, combinators, effects, prompts, reports, stateupdates, waits
from think_celery.domain.steps.prompthandles import PromptHandle, opened
from think_celery.domain.steps.waits import Approval, ReceivedEvent
from think_celery.domain.workflows.replay import STEP_TIMEOUT_SECONDS, Replay, StepContext
from think_celery.durations import Duration
from think_celery.messages import Messages
from think_celery.names import meant_by
from think_celery.retries import Retry

T = TypeVar("T")
Output = TypeVar("Output")

ON_THE_WORKFLOW = ("report_progress", "broadcast_to_clients", "agent")


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

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say where it is what a workflow itself has, and not ``step``; of what is misspelt, what is meant."""
            hint = f" It is on the workflow: self.{name}." if name in ON_THE_WORKFLOW else ""
            if not hint and (near := meant_by(name, dir(type(self)))):
                hint = f" Did you mean step.{near}?"
            raise AttributeError(f"step has no {name!r}.{hint}", name=name, obj=self)

    @property
    def version(self) -> str:
        """The ``version`` of the class that started this run: an older one where that is among ``also_runs``."""
        return self._replay.version

    @overload
    def do(
        self,
        name: str,
        function: Callable[[], T] | Callable[[StepContext], T],
        *,
        retry: Retry | None = None,
        timeout: Duration | None = STEP_TIMEOUT_SECONDS,
        queue: str | None = None,
    ) -> T: ...

    @overload
    def do(
        self,
        name: str,
        function: Callable[[], Any] | Callable[[StepContext], Any],
        *,
        retry: Retry | None = None,
        timeout: Duration | None = STEP_TIMEOUT_SECONDS,
        queue: str | None = None,
        output: type[Output],
    ) -> Output: ...

    def do(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        retry: Retry | None = None,
        timeout: Duration | None = STEP_TIMEOUT_SECONDS,
        queue: str | None = None,
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
            queue: The Celery queue whose workers run this step. The workflow goes there as a message of its own, and
                back for the next step that acts; what is recorded is replayed there, nothing is pickled.
            output: A type that the result must fit, and is returned as.

        Raises:
            StepError: The last attempt failed, or one raised ``NonRetryableError``, or the result can't be
                stored. ``error_type`` names what the function raised.
        """
        return effects.do(self._replay, name, function, retry, timeout, output, queue)

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
        agent: Any = None,
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
            agent: Another agent than the workflow's: a handle, ``Reviewer("r1")``, or class and name,
                ``("Reviewer", "r1")``.

        Raises:
            UnsupportedSchema: JSON Schema can't express *output*; nothing was submitted.
            DuplicateStep: This run has prompted under that name (and key) before.
            ThinkPromptAbortedError, ThinkPromptSkippedError: The turn was cancelled, or its conversation reset.
            ThinkPromptValidationError: The answer does not fit; the error names the paths.
            ThinkPromptTimeoutError: The time is up.
            ThinkPromptError: The turn ended in error, or otherwise without an answer.
            StepError: The messages exceed ``think_max_payload``.
        """
        ready = prompts.ready(
            self._replay,
            name,
            prompt=prompt,
            output=output,
            timeout=timeout,
            key=key,
            cancel_on_timeout=cancel_on_timeout,
            max_steps=max_steps,
            output_retries=output_retries,
            agent=agent,
        )
        return prompts.prompt(self._replay, ready)  # type: ignore[no-any-return]

    def start_prompt(
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
        agent: Any = None,
    ) -> PromptHandle[Output]:
        """Submit a prompt as :meth:`prompt` does, and go on at once: :meth:`gather` or :meth:`wait_any` waits for it.

        Turns of one agent run one after the other; with *agent* several agents answer at once. The *timeout* counts
        from here. A handle belongs to ``run``: don't keep it elsewhere. The arguments are those of :meth:`prompt`.

        Raises:
            UnsupportedSchema, DuplicateStep, ThinkPromptError, StepError: As for :meth:`prompt`, of what is wrong now.
                How the turn ends is raised where it is waited for.
        """
        ready = prompts.ready(
            self._replay,
            name,
            prompt=prompt,
            output=output,
            timeout=timeout,
            key=key,
            cancel_on_timeout=cancel_on_timeout,
            max_steps=max_steps,
            output_retries=output_retries,
            agent=agent,
        )
        return PromptHandle(prompts.start(self._replay, ready))

    def gather(self, *handles: PromptHandle[Output]) -> list[Output]:
        """Wait, without a worker, until all these prompts have ended; their answers in the order of the arguments.

        Raises:
            ThinkPromptError: The first one, in the order of the arguments, that ended without an answer. It is raised
                when all have ended, so none goes on unheard.
            StepMisuse: A handle is not of this run and pass.
        """
        return combinators.gather(self._replay, [opened(handle) for handle in handles])

    def wait_any(
        self, *waits: str | PromptHandle[Any], name: str | None = None, timeout: Duration | None = None
    ) -> ReceivedEvent:
        """Wait, without a worker, for the first of several things: events of these types, prompts of these handles.

        What comes later waits for nobody: a later event stays in the inbox, for another wait or unread; a prompt
        goes on, and its handle may be waited for again. The run does not wait for the losers.

        Args:
            waits: Types of events, and handles of :meth:`start_prompt`, one by one.
            name: What the step is called; if not said, ``any of`` and what is waited for.
            timeout: How long to wait, from the first time that the code comes here; ``None``: for ever.

        Returns:
            What came first: its ``name`` is the type of the event, or the name of the prompt, whose ``payload`` is the
            answer.

        Raises:
            WorkflowTimeoutError: Nothing came in time.
            ThinkPromptError: A prompt was the first to end, without an answer.
        """
        return combinators.wait_any(self._replay, [opened(each) for each in waits], name, timeout)

    def run_workflow(
        self,
        name: str,
        workflow: Any,
        params: Any = None,
        *,
        workflow_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        timeout: Duration | None = None,
        cancel_on_timeout: bool = True,
        agent: Any = None,
    ) -> Any:
        """Start another workflow, wait for its end without a worker, and return what it returned.

        It is this one's child: where this one is terminated, deleted or started anew, the child is terminated.

        Args:
            name: What the step is called.
            workflow: The workflow class, or its registered name.
            params: As for ``run_workflow`` of an agent.
            workflow_id: An id of your own, which nobody else has used; without one the child gets a new one.
            metadata: JSON of yours, kept with the child.
            timeout: How long to wait; ``None``: for ever.
            cancel_on_timeout: Whether the child is terminated when the time is up, or let go, to be nobody's child.
            agent: The child's agent, if not this workflow's: as for :meth:`prompt`.

        Raises:
            ChildWorkflowError: The child ended in error, was terminated or deleted, or its id is taken.
            ChildWorkflowTimeoutError: The time is up.
            UnknownClass, InvalidValue, NotSerializable, PayloadTooLarge: As for ``run_workflow`` of an agent; nothing
                was started.
        """
        return childruns.run_workflow(
            self._replay,
            name,
            workflow,
            params,
            workflow_id=workflow_id,
            metadata=metadata,
            timeout=timeout,
            cancel_on_timeout=cancel_on_timeout,
            agent=agent,
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

    def sleep_until(self, name: str, when: datetime) -> None:
        """Wait, without a worker, until that instant; not at all if it has passed when the code first comes here.

        Args:
            name: What the step is called.
            when: With a time zone. What the first pass gave stands.

        Raises:
            StepMisuse: *when* is no datetime, has no time zone, or is not before the year 9999.
        """
        waits.sleep_until(self._replay, name, when)

    def now(self) -> datetime:
        """The time at which the code first came here, in UTC, by the database's clock; the same on every replay."""
        return waits.now(self._replay)

    def update_agent_state(self, change: Callable[[Any], Any] | dict[str, Any]) -> Any:
        """Change the state of the workflow's agent, once, and return the new state. No change of others is lost.

        The change and its record are one transaction. Listeners and ``on_state_changed`` are told, as for
        ``update_state`` of the agent.

        Args:
            change: A function that takes a copy of the state and returns the new one; it must be pure, for it is called
                again where somebody else was faster. Or a dict to merge into the state.

        Raises:
            StepError: The function raised, or returned ``None`` or what can't be stored; or others were faster again
                and again. It is not tried again.
        """
        return stateupdates.update_agent_state(self._replay, change)

    def report_complete(self, result: Any = None) -> None:
        """Tell the agent of the result now, once: ``on_workflow_complete`` is called soon, in a worker.

        Each run calls that hook once: of its end the agent is then not told again. The run goes on.

        Raises:
            StepError: *result* can't be stored.
        """
        reports.report_complete(self._replay, result)

    def report_error(self, error: BaseException | str) -> None:
        """Tell the agent of an error now, once: ``on_workflow_error`` is called soon, as for :meth:`report_complete`.

        For what the run has caught and goes on from. Each run calls that hook once: where it ends in another error
        later, the agent is not told of that.
        """
        reports.report_error(self._replay, error)

    def send_event(self, type: str, payload: Any = None) -> None:
        """Tell the agent of something, once: ``on_workflow_event`` is called soon, in a worker.

        Args:
            type: A word of yours for what it is.
            payload: Any value that a step could return.

        Raises:
            StepError: *payload* can't be stored.
        """
        reports.send_event(self._replay, type, payload)
