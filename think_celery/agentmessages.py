"""An agent's conversation: reading it, and following it as it happens."""

from collections.abc import Iterator

from think_celery.agenthandle import AgentHandle
from think_celery.domain import conversation, live
from think_celery.domain.live import LiveEvent
from think_celery.messages import UIMessage


class AgentMessages(AgentHandle, abstract=True):
    """An agent's conversation."""

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
