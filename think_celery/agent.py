"""``Think``: the class that users subclass to make an agent."""

import builtins
import inspect
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, ClassVar, Literal, Self

from think_celery.domain import conversation, live, runs, submissions, workflows
from think_celery.domain.live import LiveEvent
from think_celery.domain.receipts import Submission, as_submission
from think_celery.domain.runs import WorkflowRun
from think_celery.errors import AsyncNotSupported
from think_celery.ids import AgentRef
from think_celery.messages import Messages, UIMessage
from think_celery.names import check_name
from think_celery.protocols import Model
from think_celery.runtime import Runtime, agent_classes, current
from think_celery.tools import Tool, is_tool
from think_celery.workflow import ThinkWorkflow

HOOKS = ("get_model", "get_system_prompt", "get_tools")


def _refuse_async(cls: type) -> None:
    for name in sorted({*HOOKS, *vars(cls)}):
        method = inspect.getattr_static(cls, name)
        ours = name in HOOKS or any(is_tool(vars(base).get(name)) for base in cls.__mro__)
        if ours and inspect.iscoroutinefunction(getattr(method, "__func__", method)):
            raise AsyncNotSupported(f"{cls.__name__}.{name}")


class Think:
    """An agent: subclass it, and name one with ``TriageAgent("issue-42")``.

    Making the object is free: it is a handle on rows. Your own methods are plain methods and run where they
    are called; only turns run in a worker. What is set on the object lives as long as the object.

    ``model`` (an object, or a name such as ``openai/gpt-5-mini``; else the setting ``think_model``) and
    ``system_prompt`` are what :meth:`get_model` and :meth:`get_system_prompt` answer. ``max_steps`` is how many
    times the model may be asked in one turn. ``queue`` is the Celery queue of its turns, else ``think_queue``.
    ``agent_class`` is the name that rows carry.
    """

    model: ClassVar[str | Model | None] = None
    system_prompt: ClassVar[str | None] = None
    max_steps: int = 10
    queue: ClassVar[str | None] = None
    agent_class: ClassVar[str] = "Think"

    def __init_subclass__(cls, *, name: str | None = None, **kwargs: Any) -> None:
        """Register the class under its own name, or under *name*: the one that rows and Flower carry."""
        super().__init_subclass__(**kwargs)
        _refuse_async(cls)
        steps: object = cls.max_steps
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(
                f"{cls.__name__}.max_steps is {steps!r}: it must be a whole number, 1 or more. It is how many "
                "times the model may be asked in one turn."
            )
        cls.agent_class = cls.__name__ if name is None else name
        check_name("The agent class's name", cls.agent_class, 200)
        if cls.queue is not None:
            check_name(f"{cls.agent_class}.queue", cls.queue, 200)
        agent_classes.add(cls.agent_class, cls)

    def __init__(self, name: str) -> None:
        if type(self) is Think:
            raise TypeError(
                "Think is no agent by itself. Subclass it (class TriageAgent(Think): …) and name one: "
                'TriageAgent("issue-42").'
            )
        agent_classes.get(
            self.agent_class
        )  # two of that name must not go unnoticed until a worker meets them
        check_name("name", name, 200)
        self.name = name
        self._own_rt: Runtime | None = None

    @classmethod
    def _bound_to(cls, rt: Runtime, name: str) -> Self:
        """The agent of that name, working with this runtime instead of the process's own."""
        agent = cls(name)
        agent._own_rt = rt
        return agent

    @property
    def _rt(self) -> Runtime:
        return self._own_rt or current()

    @property
    def _ref(self) -> AgentRef:
        return AgentRef(self.agent_class, self.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    # --- what a turn asks of you ------------------------------------------------------------------

    def get_model(self) -> str | Model | None:
        """The model of the next turn: an object, or a name such as ``openai/gpt-5-mini``.

        ``None`` falls back to the setting ``think_model``.
        """
        return self.model

    def get_system_prompt(self) -> str | None:
        """The system prompt of the next turn."""
        return self.system_prompt

    def get_tools(self) -> Sequence[Callable[..., Any] | Tool]:
        """Further tools: functions, decorated or not, or ``Tool`` objects. ``@tool`` methods need no mention."""
        return ()

    # --- turns ------------------------------------------------------------------------------------

    def submit_messages(
        self,
        messages: Messages,
        *,
        idempotency_key: str | None = None,
        submission_id: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Submission:
        """Accept *messages* as one turn to run later, and return at once.

        When this returns, they are stored and a crash loses nothing (inside a joined transaction: once that
        commits). The turn runs in a worker, after all that was accepted before it. Called again with the
        same *idempotency_key*, it returns the first submission with ``accepted=False``.

        Args:
            messages: A text, a ``UIMessage`` or a dict, or a list of them. They join the conversation when
                their turn starts.
            idempotency_key: Your own name for this job, such as a webhook's event id. Keys are per agent:
                a repeat must come to an agent of the same name, so let the name come from the event, too.
            submission_id: An id of your own, 1 to 200 printable ASCII characters, unique over all agents.
            metadata: JSON of yours, kept with the submission and never sent to the model.

        Raises:
            EmptySubmission: There is no message, or a blank one.
            InvalidMessage: Something is no message.
            SubmissionConflict: *submission_id* and *idempotency_key* refer to different submissions.
            PayloadTooLarge: Messages or metadata exceed ``think_max_payload``.
            NotSerializable: The metadata is not JSON.
            ValueError: An id or key is blank, too long, or begins with ``think-``.
            TypeError: An id or key is no text, or the metadata no dict.
        """
        rt = self._rt
        row, accepted, same = submissions.submit(
            rt,
            self._ref,
            messages,
            idempotency_key=idempotency_key,
            submission_id=submission_id,
            metadata=metadata,
            queue=self.queue or rt.settings.queue,
        )
        return as_submission(rt, row, accepted=accepted, same_payload=same)

    def inspect_submission(self, submission_id: str) -> Submission | None:
        """The submission as it stands now; ``None`` if this agent has none of that id."""
        row = submissions.get(self._rt, submission_id)
        return as_submission(self._rt, row) if row is not None and row.agent_id == self._ref.id else None

    def get_submission_by_key(self, idempotency_key: str) -> Submission | None:
        """The submission that was accepted with that key, or ``None``."""
        row = submissions.get_by_key(self._rt, self._ref, idempotency_key)
        return None if row is None else as_submission(self._rt, row)

    def list_submissions(
        self, *, status: str | Sequence[str] | None = None, limit: int = 100
    ) -> list[Submission]:
        """This agent's submissions, newest first.

        Raises:
            ValueError: A status is none, or *limit* is no whole number between 1 and 1000.
        """
        rows = submissions.find(self._rt, self._ref, status=status, limit=limit)
        return [as_submission(self._rt, row) for row in rows]

    def cancel_submission(self, submission_id: str, reason: str | None = None) -> bool:
        """End a submission as aborted, and say whether this call did; an ended or unknown one stays as it is.

        Works from any process. The worker of a running one stops within a second; its partial text is kept.
        """
        if self.inspect_submission(submission_id) is None:
            return False
        return submissions.cancel_by_id(self._rt, submission_id, reason)

    def delete_submission(self, submission_id: str) -> bool:
        """Delete an ended submission, and say whether there was one. The transcript keeps its messages.

        One that has not ended stays; cancel it first.
        """
        if self.inspect_submission(submission_id) is None:
            return False
        return submissions.delete(self._rt, submission_id)

    def delete_submissions(
        self, *, status: str | Sequence[str] | None = None, completed_before: datetime | None = None
    ) -> int:
        """Delete every ended submission of this agent that matches, and say how many.

        Args:
            status: Only those of this status, or of one of these; without it, of every end.
            completed_before: Only those that ended before this instant.

        Raises:
            ValueError: A status is none.
        """
        return submissions.delete_all(self._rt, self._ref, status=status, completed_before=completed_before)

    # --- the conversation -------------------------------------------------------------------------

    @property
    def messages(self) -> list[UIMessage]:
        """The conversation, read afresh. The message of a turn in progress stands last."""
        return conversation.history(self._rt, self._ref)

    def get_message(self, message_id: str) -> UIMessage | None:
        """One message of the conversation, or ``None``."""
        return conversation.get_message(self._rt, self._ref, message_id)

    def listen(self, submission_id: str | None = None) -> Iterator[LiveEvent]:
        """Follow what happens here as it happens: with *submission_id* until that turn has ended.

        Raises:
            SubmissionNotFound: There is no such submission.
            InsideTransaction: Called inside a joined transaction.
        """
        return live.listen(self._rt, self._ref, submission_id)

    # --- workflows --------------------------------------------------------------------------------

    def run_workflow(
        self,
        workflow: type[ThinkWorkflow[Any, Any]] | str,
        params: Any = None,
        *,
        workflow_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        on_conflict: Literal["return", "raise"] = "return",
    ) -> str:
        """Start a workflow with this agent as its ``self.agent``, and return its id at once.

        When this returns, the run is stored. The same *workflow_id* again gives the same run back.

        Args:
            workflow: The workflow class, or its registered name.
            params: What ``event.payload`` will be: of the class's params type, or a dict.
            workflow_id: An id of your own; without one each call starts a new run.
            metadata: JSON of yours, kept with the run.
            on_conflict: ``"return"`` the run of that id where there is one, or ``"raise"``.

        Raises:
            UnknownClass: No workflow of that name is registered.
            WorkflowExists: *workflow_id* is taken, and *on_conflict* is ``"raise"``.
            InvalidValue: *params* does not fit the workflow's params type.
            NotSerializable, PayloadTooLarge: *params* or *metadata* can't be stored.
            ValueError: *workflow_id* or *on_conflict* is unfit.
        """
        return workflows.start(
            self._rt,
            self._ref,
            workflow,
            params,
            workflow_id=workflow_id,
            metadata=metadata,
            on_conflict=on_conflict,
        )

    def send_workflow_event(
        self,
        workflow: "builtins.type[ThinkWorkflow[Any, Any]] | str",
        workflow_id: str,
        *,
        type: str,
        payload: Any = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Send an event to a workflow; one that comes before its wait, or before its run, is kept.

        Args:
            workflow: The workflow class, or its registered name.
            workflow_id: The run's id.
            type: What ``wait_for_event(type=…)`` asks for.
            payload: Any value that a step could return.
            idempotency_key: The same key twice is one event.

        Raises:
            NotSerializable, PayloadTooLarge: The payload can't be stored.
            ValueError: *type* or *idempotency_key* is not 1 to 200 printable characters, or begins with ``think-``;
                or no workflow can have that name or id.
        """
        workflows.send_event(
            self._rt,
            workflows.reference(workflow, workflow_id),
            type=type,
            payload=payload,
            idempotency_key=idempotency_key,
        )

    def get_workflow(
        self, workflow_id: str, *, workflow: type[ThinkWorkflow[Any, Any]] | str | None = None
    ) -> WorkflowRun:
        """A workflow as it stands now, with its ``output`` once it is complete. Any process may ask.

        Args:
            workflow_id: The id that :meth:`run_workflow` returned.
            workflow: The workflow class or its registered name, where several have a run of that id.

        Raises:
            WorkflowNotFound: There is none.
            AmbiguousWorkflow: Several classes have one.
        """
        return runs.look_up(self._rt, workflow_id, workflow)

    def resume_workflow(
        self, workflow_id: str, *, workflow: type[ThinkWorkflow[Any, Any]] | str | None = None
    ) -> bool:
        """Let a workflow go on that is paused (its code did not fit its journal, say); tells whether it was.

        Raises what :meth:`get_workflow` raises.
        """
        return runs.resume(self._rt, workflow_id, workflow)
