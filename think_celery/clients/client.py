"""What a process can ask for by id, without knowing whose turn or workflow it is."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from think_celery import runtime
from think_celery.agents.chat import ChatAgent
from think_celery.clients.jobs import JobClient
from think_celery.clients.workflows import WorkflowClient
from think_celery.domain.conversation import decisions, interactions
from think_celery.domain.conversation.decisions import InteractionResult
from think_celery.domain.conversation.interactions import PendingInteraction
from think_celery.domain.pages import Page
from think_celery.domain.schedules import schedules
from think_celery.domain.schedules.records import Schedule, ScheduleSlot, as_schedule, as_slot
from think_celery.domain.submissions import submissions, waiting
from think_celery.domain.submissions.receipts import Submission, as_submission
from think_celery.durations import Duration
from think_celery.ids import AgentRef


class ThinkClient(WorkflowClient, JobClient):
    """The submissions, workflows and jobs of all agents, by their ids. :func:`current` gives it.

    It works with what agents of this process work with now: in ``think_test``, the test's.
    """

    # --- submissions ------------------------------------------------------------------------------

    def inspect_submission(self, submission_id: str) -> Submission | None:
        """The submission as it stands now; ``None`` if there is none of that id."""
        row = submissions.get(self._rt, submission_id)
        return None if row is None else as_submission(self._rt, row)

    def list_submissions(
        self, *, status: str | Sequence[str] | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[Submission]:
        """The submissions of all agents, newest first: a page, whose ``cursor`` gives the next one.

        Raises:
            ValueError: A status is unknown, *limit* is not between 1 and 1000, or *cursor* can't be read.
        """
        found = submissions.find(self._rt, None, status=status, limit=limit, cursor=cursor)
        return found.of(lambda row: as_submission(self._rt, row))

    def wait_for_submission(self, submission_id: str, timeout: Duration | None = None) -> Submission:
        """The submission once its turn has ended, at once if it has. Any process may wait for it.

        Raises:
            TurnStillRunning: The time is up. The turn goes on.
            SubmissionNotFound: There is none of that id, or not any more.
            NestedTurn: Called in a turn that would wait for itself.
            InsideTransaction: Called inside a joined transaction.
        """
        row = submissions.require(self._rt, submission_id)
        agent = AgentRef.of(row)
        wait = waiting.Wait(self._rt, agent, "wait_for_submission()", timeout=timeout)
        return as_submission(self._rt, wait.end_of(submission_id))

    def cancel_submission(
        self, submission_id: str, reason: str | None = None, *, if_interrupted: bool = False
    ) -> bool:
        """End a submission as aborted, and say whether this call did; an ended or unknown one stays as it is.

        With *if_interrupted* only the intent is stored: see the agent's method of this name.

        Raises:
            InvalidType: *reason* is no text.
        """
        cancel = submissions.intend_to_cancel if if_interrupted else submissions.cancel_by_id
        return cancel(self._rt, submission_id, reason)

    def delete_submission(self, submission_id: str) -> bool:
        """Delete an ended submission, and say whether there was one: see the agent's method of this name."""
        return submissions.delete(self._rt, submission_id)

    # --- calls that wait --------------------------------------------------------------------------

    def pending_interactions(
        self,
        *,
        agent_class: type[ChatAgent] | str | None = None,
        newest_first: bool = False,
        limit: int = 100,
    ) -> list[PendingInteraction]:
        """The tool calls of all agents that wait for an approval or for a client's answer, oldest first.

        Args:
            agent_class: Only those of this class, or of the class of this name.
            newest_first: The other way round.
            limit: How many at most.

        Raises:
            InvalidValue: *limit* is no whole number between 1 and 1000.
            InvalidType: *agent_class* is neither an agent class nor a name.
        """
        return interactions.pending_of_all(
            self._rt, agent_class=agent_class, newest_first=newest_first, limit=limit
        )

    def approve_tool_call(self, interaction_id: str, reason: str | None = None) -> InteractionResult:
        """Let a tool call run that needs an approval, whosever it is: see the agent's method of this name.

        Raises:
            InteractionNotFound: There is none of that ``interaction_id``.
            InteractionMismatch: A client answers the call, or it was changed since.
            InvalidType: *reason* is no text.
        """
        return decisions.approve(self._rt, None, interaction_id, reason=reason)

    def reject_tool_call(self, interaction_id: str, reason: str | None = None) -> InteractionResult:
        """Let a tool call not run that needs an approval. Raises what :meth:`approve_tool_call` raises."""
        return decisions.reject(self._rt, None, interaction_id, reason=reason)

    def provide_tool_result(
        self, interaction_id: str, output: Any = None, *, error: str | None = None
    ) -> InteractionResult:
        """Answer a call of a client's tool, whosever it is. Takes and raises what the agent's method of this name does.

        Args:
            interaction_id: Which call; see :meth:`pending_interactions`.
            output: What the client's tool returned.
            error: Why it failed, in place of an output.
        """
        return decisions.answer(self._rt, None, interaction_id, output=output, error=error)

    # --- schedules --------------------------------------------------------------------------------

    def get_schedule(self, schedule_id: str) -> Schedule | None:
        """A schedule as it stands now, whosever it is; ``None`` if there is none of that id."""
        row = schedules.get(self._rt, schedule_id)
        return None if row is None else as_schedule(row)

    def list_schedules(
        self,
        *,
        agent_class: type[ChatAgent] | str | None = None,
        kind: str | Sequence[str] | None = None,
        due_before: datetime | None = None,
        ended: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Schedule]:
        """The schedules of all agents, the one that comes next first.

        Args:
            agent_class: Only those of agents of this class, or of the class of this name.
            kind: Only ``scheduled``, ``delayed``, ``cron``, ``interval``, ``wall`` or ``declared`` ones; or several.
            due_before: Only those that come next before this instant.
            ended: Those that have ended in place of the others, the latest first.
            limit: How many at most, from 1 to 1000.
            cursor: The ``cursor`` of the page before.

        Raises:
            InvalidValue: *kind* is unknown, *limit* is out of range, or the instant is a naive datetime.
            InvalidType: *agent_class* is neither an agent class nor a name.
        """
        found = schedules.find(
            self._rt,
            agent_class=agent_class,
            kind=kind,
            due_before=due_before,
            ended=ended,
            limit=limit,
            cursor=cursor,
        )
        return found.of(as_schedule)

    def list_slots(
        self,
        schedule_id: str,
        *,
        status: str | Sequence[str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[ScheduleSlot]:
        """The slots of a schedule that have come, the latest first: see the agent's method of this name."""
        found = schedules.find_slots(self._rt, schedule_id, status=status, limit=limit, cursor=cursor)
        return found.of(as_slot)

    def cancel_schedule(self, schedule_id: str) -> bool:
        """End a schedule, whosever it is, and say whether that stopped anything: see the agent's method."""
        return schedules.cancel(self._rt, schedule_id)


def current() -> ThinkClient:
    """What this process can ask for by id.

    Raises:
        NotConfigured: Nothing has set think_celery up in this process.
    """
    runtime.current()
    return ThinkClient()
