"""Submissions that can't be accepted or found."""

from think_celery.errors.root import ThinkError
from think_celery.wording import shown


class SubmissionError(ThinkError):
    """A submission could not be accepted or found."""


class EmptySubmission(SubmissionError, ValueError):
    """There is no message to answer."""

    def __str__(self) -> str:
        return (
            "There is no message to answer: the list is empty or a text is blank. Pass at least one message."
        )


class SubmissionConflict(SubmissionError):
    """The submission id and the idempotency key refer to different submissions."""

    def __init__(self, submission_id: str, idempotency_key: str | None, problem: str) -> None:
        super().__init__(submission_id, idempotency_key, problem)
        self.submission_id, self.idempotency_key, self.problem = submission_id, idempotency_key, problem

    def __str__(self) -> str:
        return (
            f"submission_id={self.submission_id!r} and idempotency_key={self.idempotency_key!r}: {self.problem}. "
            "One id and one key name one submission of one agent for good. Nothing was stored; "
            "pass only one of the two, or a fresh pair."
        )


class SubmissionNotFound(SubmissionError, LookupError):
    """No such submission."""

    def __init__(self, submission_id: str) -> None:
        super().__init__(submission_id)
        self.submission_id = submission_id

    def __str__(self) -> str:
        return f"There is no submission {shown(self.submission_id)}. Check the id; it may have been deleted."
