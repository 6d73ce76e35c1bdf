"""Requests to models that failed: whether, when and whom to ask again."""

import logging
import random
from typing import Any

from think_celery.domain.leases import Hold
from think_celery.domain.outcomes import PutBack
from think_celery.domain.turns.drafts import Draft
from think_celery.domain.turns.fallback import Lineup
from think_celery.errors import ModelAborted, ModelError
from think_celery.protocols import Model
from think_celery.retries import Retry, jittered
from think_celery.runtime import Runtime
from think_celery.signals import AbortSignal
from think_celery.store import submissions
from think_celery.store.database import Tx

logger = logging.getLogger("think_celery.turns")

LONGEST_WAIT_SECONDS = 30.0
"""A longer wait for the model frees the worker."""

LONGEST_PARK_SECONDS = 86_400.0
"""No wish of a provider is granted beyond this."""

MODEL_RETRY = Retry(delay=1, backoff="exponential", max_delay=60)


class Attempts:
    """How a turn asks its models: each one a few times, and the next one when the one before fails for good.

    ``failures`` counts the failed requests of the present step to the present model; it is stored with the submission.
    """

    def __init__(
        self,
        rt: Runtime,
        hold: Hold,
        draft: Draft,
        models: Lineup,
        row: Any,
        stop: AbortSignal,
    ) -> None:
        self._rt, self._hold, self._draft, self._models = rt, hold, draft, models
        self._submission_id: str = row.id
        self.failures: int = row.model_attempts
        self._stop = stop

    @property
    def model(self) -> Model:
        """The model that is asked now."""
        return self._models.model

    def after(self, error: ModelError, *, last: bool) -> None:
        """Make ready for another request after one that failed, or raise.

        With *last*, no other model may be asked: something had come of the answer, or this step is for one alone.
        What the failed attempt had stored is taken back in the same transaction.

        Raises:
            ModelError: There is none to ask any more.
            PutBack: The provider asks for a wait that frees the worker.
            ModelAborted: The turn is to stop.
        """
        seconds = self._pause(error)
        self.failures += 1
        for_good = seconds is None or seconds > LONGEST_WAIT_SECONDS
        if for_good and not last and self._models.has_next:
            self._ask_next(error)
        elif seconds is None:
            raise error
        else:
            self._wait(error, seconds)

    def _pause(self, error: ModelError) -> float | None:
        """The seconds until the same model is asked again; ``None``: it has failed for good."""
        failures = self.failures + 1
        if not error.retryable or failures >= self._rt.settings.model_attempts:
            return None
        seconds = jittered(MODEL_RETRY.delay_before(failures + 1).total_seconds(), random.Random())
        return min(max(seconds, error.retry_after_seconds or 0.0), LONGEST_PARK_SECONDS)

    def _ask_next(self, error: ModelError) -> None:
        failed, following = self.model.name, self._models.advance()
        self.failures = 0

        def change(tx: Tx) -> None:
            submissions.go_to_model(tx, self._submission_id, self._models.position)
            self._draft.unfinished(tx)

        self._draft.write(change)
        logger.warning(
            "submission %s: %s has failed for good (HTTP %s); %s is asked instead",
            self._submission_id,
            failed,
            error.status_code,
            following.name,
            extra={"think_event": "model.next", "think_submission": self._submission_id},
        )
        self._rt.failpoint("turn:next-model")

    def _wait(self, error: ModelError, seconds: float) -> None:
        logger.warning(
            "submission %s: model request %d failed (HTTP %s); trying again in %.1f s",
            self._submission_id,
            self.failures,
            error.status_code,
            seconds,
        )
        if seconds > LONGEST_WAIT_SECONDS:
            raise PutBack(seconds, self.failures)

        def change(tx: Tx) -> None:
            submissions.count_model_attempts(tx, self._submission_id, self.failures, self._draft.tokens)
            self._draft.unfinished(tx)

        self._draft.write(change)
        self._hold.heard(seconds)
        self._rt.clock.sleep(seconds, self._stop)
        if self._stop.aborted:
            raise ModelAborted("told to stop while waiting for the model")
