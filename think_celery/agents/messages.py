"""An agent's conversation: reading it, and following it as it happens."""

from collections.abc import Iterator

from think_celery.agents.handle import AgentHandle
from think_celery.domain.conversation import additions, conversation, listening
from think_celery.domain.conversation.live import LiveEvent
from think_celery.messages import Messages, UIMessage


class AgentMessages(AgentHandle, abstract=True):
    """An agent's conversation."""

    @property
    def messages(self) -> list[UIMessage]:
        """The conversation, read afresh. The message of a turn in progress stands last."""
        return conversation.history(self._rt, self._ref)

    def get_message(self, message_id: str) -> UIMessage | None:
        """One message of the conversation, or ``None``."""
        return conversation.get_message(self._rt, self._ref, message_id)

    def persist_messages(self, messages: Messages, mode: additions.Mode = "upsert") -> list[str]:
        """Add to the conversation, or change what is there, without a turn; listeners are told.

        Messages of any role, in their order, at the end of the conversation. The answer of a turn that has not ended
        stays as it is. Inside a joined transaction they are part of that.

        Args:
            messages: A text, a ``UIMessage`` or a dict, or a list of them.
            mode: A message whose id is there replaces that one (``"upsert"``) or is left out (``"append"``).

        Returns:
            The ids of those that were added or changed.

        Raises:
            EmptySubmission, InvalidMessage, PayloadTooLarge: As for ``submit_messages``.
            ValueError: *mode* is none.
        """
        return additions.persist(self._rt, self._ref, messages, mode)

    def listen(self, submission_id: str | None = None) -> Iterator[LiveEvent]:
        """Follow what happens here as it happens: with *submission_id* until that turn has ended.

        Raises:
            SubmissionNotFound: There is no such submission.
            InsideTransaction: Called inside a joined transaction.
        """
        return listening.listen(self._rt, self._ref, submission_id)
