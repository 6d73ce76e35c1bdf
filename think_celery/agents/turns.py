"""What an agent does with its turns: accept, look up, cancel and delete them."""

from collections.abc import Sequence
from typing import Any

from think_celery.agents.handle import AgentHandle
from think_celery.described import kept_reason
from think_celery.domain.pages import Before, Page
from think_celery.domain.submissions import submissions
from think_celery.domain.submissions.receipts import Submission, as_submission
from think_celery.messages import Messages


class AgentTurns(AgentHandle, abstract=True):
    """An agent's submissions."""

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
            InvalidValue: An id or key is blank, too long, or begins with ``think-``.
            InvalidType: An id or key is no text, or the metadata no dict.
        """
        rt = self._rt
        row, accepted, same = submissions.submit(
            rt,
            self._ref,
            messages,
            idempotency_key=idempotency_key,
            submission_id=submission_id,
            metadata=metadata,
            queue=self._celery_queue,
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
        self, *, status: str | Sequence[str] | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[Submission]:
        """This agent's submissions, newest first: a page, whose ``cursor`` gives the next one.

        Raises:
            ValueError: A status is unknown, *limit* is not between 1 and 1000, or *cursor* can't be read.
        """
        found = submissions.find(self._rt, self._ref, status=status, limit=limit, cursor=cursor)
        return found.of(lambda row: as_submission(self._rt, row))

    def cancel_submission(
        self, submission_id: str, reason: str | None = None, *, if_interrupted: bool = False
    ) -> bool:
        """End a submission as aborted, and say whether this call did; an ended or unknown one stays as it is.

        Works from any process. The worker of a running one stops within a second; its partial text is kept.

        Args:
            submission_id: Which one.
            reason: Kept as the submission's error.
            if_interrupted: Store the intent alone, and say whether it was stored. A worker goes on with the turn; when
                it is interrupted, by a crash or a deploy, nobody takes it up again: it ends as aborted with what there
                is, unless :meth:`on_chat_recovery`, which reads the intent, decides otherwise.

        Raises:
            InvalidType: *reason* is no text.
        """
        said = kept_reason(reason)
        if self.inspect_submission(submission_id) is None:
            return False
        cancel = submissions.intend_to_cancel if if_interrupted else submissions.cancel_by_id
        return cancel(self._rt, submission_id, said)

    def delete_submission(self, submission_id: str) -> bool:
        """Delete an ended submission, and say whether there was one. The transcript keeps its messages.

        One that has not ended stays; cancel it first.
        """
        if self.inspect_submission(submission_id) is None:
            return False
        return submissions.delete(self._rt, submission_id)

    def delete_submissions(
        self, *, status: str | Sequence[str] | None = None, completed_before: Before | None = None
    ) -> int:
        """Delete every ended submission of this agent that matches, and say how many.

        Args:
            status: Only those of this status, or of one of these; without it, of every end.
            completed_before: Only those that ended before that: an aware datetime, or how long ago ("90 days").

        Raises:
            InvalidValue: A status is none, or *completed_before* has no time zone or can't be read.
            InvalidType: *completed_before* is something else.
        """
        return submissions.delete_all(self._rt, self._ref, status=status, completed_before=completed_before)
