"""A turn's answer in the database while it comes into being, written under the turn's lease."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from think_celery.domain.conversation import conversation, interactions
from think_celery.domain.leases import Hold
from think_celery.domain.patience import patiently
from think_celery.domain.submissions import lines
from think_celery.domain.turns import outputs
from think_celery.domain.turns.answers import Answer
from think_celery.domain.turns.eventchecks import counted
from think_celery.domain.turns.snapshots import Snapshot
from think_celery.errors import InvalidFinalAnswer, LeaseLost, NoFinalAnswer
from think_celery.messages import Part, ToolPart, UIMessage, dump_parts, load_parts
from think_celery.protocols import Finish, ToolCallComplete, Usage
from think_celery.runtime import Runtime
from think_celery.states import SubmissionStatus
from think_celery.store import lines as line_rows
from think_celery.store import messages as message_rows
from think_celery.store import submissions
from think_celery.store.database import Tx, is_away
from think_celery.store.endings import TurnEnd
from think_celery.store.leases import fence
from think_celery.store.usage import COUNTED

logger = logging.getLogger("think_celery.turns")

T = TypeVar("T")

CACHE_COUNTS = ("cache_read_tokens", "cache_write_tokens")
"""Of the model's cache: kept only where the provider tells of them."""


class Draft:
    """One turn's message: its parts (``answer``), what is known about them, and its row.

    Tools store their results from threads of their own; they take turns in doing so (see ``toolcalls``). One that is
    written *in place* is an earlier turn's: it keeps its place in the order.
    """

    def __init__(
        self,
        rt: Runtime,
        hold: Hold,
        agent_id: str,
        claimed: Any,
        message_id: str,
        *,
        in_place: bool = False,
    ) -> None:
        self._in_place = in_place
        self._rt, self._hold, self._agent_id = rt, hold, agent_id
        self._claimed, self._submission_id, self.message_id = claimed, claimed.id, message_id
        self.tokens = {name: int(getattr(claimed, name)) for name in COUNTED}
        self.answer = Answer()
        self.metadata: dict[str, Any] = {}
        self._due_at = rt.snapshots.next_after(rt.clock.elapsed())
        self._snapshot: Snapshot | None = None

    @property
    def says_something(self) -> bool:
        """Whether there is anything to store."""
        return conversation.says_something(self.answer.so_far()) or outputs.KEPT in self.metadata

    @property
    def refused(self) -> list[outputs.Refused]:
        """The final answers that were refused so far."""
        return outputs.refused_in(self.metadata)

    @property
    def was_refused(self) -> bool:
        """Whether the final answer of the last step was."""
        return outputs.was_refused(self.refused, self.answer.steps)

    def refuse(self, error: NoFinalAnswer | InvalidFinalAnswer, given: ToolCallComplete | None) -> None:
        """Note that the final answer of the last step was refused."""
        outputs.keep(self.metadata, self.answer.steps, error, given)

    def take_up(self, parts: list[Part]) -> None:
        """Go on with these parts of an interrupted answer."""
        self.answer.parts = outputs.with_steps(parts, self.refused)

    def load(self) -> None:
        """Take up what an earlier worker stored of this message."""

        def look() -> Any:
            return self._rt.db.read(lambda tx: message_rows.get(tx, self._agent_id, self.message_id))

        stored = patiently(self._rt, self._hold, look)
        if stored is not None:
            self.answer.parts = load_parts(stored.parts)
            self.metadata = dict(stored.metadata or {})

    def note(self, finish: Finish, model: str | None = None) -> None:
        """Keep what a finished model step cost, why it ended, and which model made it, if one of ours did."""
        if model is not None:
            self.metadata["model"] = model
        usage = counted(finish.usage)
        step = {name: getattr(usage, name) for name in COUNTED}
        step |= {name: tokens for name in CACHE_COUNTS if (tokens := getattr(usage, name))}
        total = self.metadata.setdefault("usage", {})
        for name, tokens in step.items():
            total[name] = total.get(name, 0) + tokens
        self.metadata.setdefault("step_usage", []).append(step)
        self.spend(finish.usage)
        raw = finish.raw_reason
        self.metadata["finish_reason"] = finish.reason
        self.metadata["raw_finish_reason"] = raw if raw and raw.replace("_", "-") != finish.reason else None

    def spend(self, usage: Usage | None) -> None:
        """Count what a request has cost, also one that failed: it is stored with the submission, not the message."""
        if usage is not None:
            cost = counted(usage)
            self.tokens = {name: self.tokens[name] + getattr(cost, name) for name in COUNTED}

    # --- writing ----------------------------------------------------------------------------------

    def write(self, change: Callable[[Tx], T]) -> T:
        """Make this change under the fence; while the database is away, wait for it.

        Raises:
            LeaseLost: The work is another worker's now; nothing is written.
        """

        def work(tx: Tx) -> T:
            fence(tx, self._hold.lease)
            return change(tx)

        self._settle()
        written = patiently(self._rt, self._hold, lambda: self._rt.db.transact(work))
        self._hold.heard()
        return written

    def write_last(self, change: Callable[[Tx], T]) -> T:
        """The same with the turn's last change: it gives the line back, which is the fence, too.

        Nobody can take the line before the commit. The next head is expected and, after the commit, knocked.
        """
        lease = self._hold.lease

        def work(tx: Tx) -> T:
            if not line_rows.free_line(tx, lease):
                raise LeaseLost(str(lease))
            result = change(tx)
            lines.expect_next_on(self._rt, tx, lease.key)
            return result

        self._settle()
        return patiently(self._rt, self._hold, lambda: self._rt.db.transact(work))

    def end(
        self,
        row: Any,
        status: SubmissionStatus,
        *,
        deliver: lines.Deliver,
        keep: bool = False,
        waiting: Sequence[ToolPart] = (),
        error_type: str | None = None,
        error: str | None = None,
        output: Any = None,
    ) -> bool:
        """End the turn with what there is of its message, as ``lines.finish`` does in one transaction.

        From then on, somebody may decide on the calls that are *waiting*. With *keep* the line stays held.
        """
        if status == SubmissionStatus.COMPLETED:
            self.answer.complete()
        if not waiting:
            self.answer.parts = interactions.without_requests(self.answer.parts)
        end = TurnEnd(
            lease=self._hold.lease,
            seq=row.seq,
            status=status,
            message_id=self.message_id,
            message=self._row() if self.says_something else None,
            keep=keep,
            error_type=error_type,
            error=error,
            tokens=self.tokens,
        )

        def finish(tx: Tx) -> bool:
            ended = lines.finish(self._rt, tx, row, end, output=output, deliver=deliver)
            if ended:
                interactions.ask(tx, row, self.message_id, waiting)
            elif waiting and not _ended_so(tx, row, status):  # cancelled at the last moment: nobody is asked
                parts = dump_parts(interactions.without_requests(self.answer.parts))
                message_rows.update_parts(tx, end.lease.key, self.message_id, parts)
            self._rt.failpoint("turn:before-commit")
            return ended

        def attempt() -> bool:
            ended = None
            if not waiting:
                ended = lines.finish_at_once(self._rt, row, end, output=output, deliver=deliver)
            return self._rt.db.transact(finish) if ended is None else ended

        self._settle()
        return patiently(self._rt, self._hold, attempt)

    def store_now_and_then(self, now: float) -> None:
        """Store the message so far if that was not done for a second before *now*.

        A courtesy to whoever may have to take over: a database that is away doesn't stop the model.
        """
        snapshots, snapshot = self._rt.snapshots, self._snapshot
        if snapshot is not None and snapshot.failed:
            self._store_alone()
        elif now < self._due_at:
            return
        elif snapshots.together and self.says_something and not self._in_place:  # nearly always
            if snapshot is None or not snapshots.is_open(snapshot):
                self._due_at = snapshots.next_after(now)
                self._snapshot = snapshots.put(self._hold.lease, self._row())
        else:
            self._due_at = snapshots.next_after(now)
            self._store_alone()

    def _settle(self) -> None:
        """What is on its way into the database comes before what is written now, or not at all."""
        if self._snapshot is not None:
            self._rt.snapshots.settle(self._snapshot)
            self._snapshot = None  # only now: whoever is interrupted while waiting has yet to wait

    def _store_alone(self) -> None:
        self._settle()
        try:
            self._store_so_far()
        except Exception as error:
            if not is_away(error):
                raise
            logger.warning(
                "submission %s: its text so far could not be stored (%s)",
                self._submission_id,
                type(error).__name__,
            )

    def _store_so_far(self) -> None:
        lease = self._hold.lease
        if self.says_something and not self._in_place:  # nearly always
            put = partial(message_rows.store_unfinished_fenced, lease=lease, message=self._row())
            if not self._rt.db.single(put, repeatable=True):
                raise LeaseLost(str(lease))
            return

        def work(tx: Tx) -> None:
            fence(tx, lease)
            self.unfinished(tx)

        self._rt.db.transact(work)

    def store_step(self, *, progress: bool) -> None:
        """Store the message at the end of a model step, or with a tool's result, which is durable *progress*."""

        def change(tx: Tx) -> None:
            if progress:
                submissions.progress(tx, self._submission_id, self.tokens)
            else:
                submissions.count_model_attempts(tx, self._submission_id, 0, self.tokens)
            self.unfinished(tx)

        self.write(change)

    def unfinished(self, tx: Tx) -> None:
        """Store the message so far in this transaction: exactly that, so a failed attempt leaves nothing."""
        if self._in_place:
            message_rows.update_parts(tx, self._agent_id, self.message_id, dump_parts(self.answer.parts))
        elif self.says_something:
            message_rows.store_unfinished(tx, self._agent_id, self._row())
        else:
            message_rows.remove(tx, self._agent_id, self.message_id)

    def count(self, tx: Tx) -> None:
        """Store in this transaction what the turn has used so far."""
        submissions.count_used(tx, self._claimed, self.tokens)

    def finished(self, tx: Tx) -> None:
        """Store the message for good in this transaction, at its place in the transcript; or none of it."""
        self.answer.parts = interactions.without_requests(self.answer.parts)
        self.count(tx)
        if self.says_something:
            message_rows.store_finished(tx, self._agent_id, self._row())
        else:
            message_rows.remove(tx, self._agent_id, self.message_id)

    def message(self) -> UIMessage:
        """The message so far."""
        known = {key: value for key, value in self.metadata.items() if value is not None}
        return UIMessage(
            id=self.message_id, role="assistant", parts=self.answer.so_far(), metadata=known or None
        )

    def _row(self) -> dict[str, Any]:
        return conversation.as_row(self.message())


def _ended_so(tx: Tx, row: Any, status: SubmissionStatus) -> bool:
    """Whether a row that had ended before had done so by this very end: its commit's answer was lost."""
    now = submissions.get(tx, row.id)
    return now is not None and now.status == status
