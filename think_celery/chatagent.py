"""``ChatAgent``: an agent without the loop. ``Think`` is this, with the loop given."""

from think_celery.agentmessages import AgentMessages
from think_celery.agentturns import AgentTurns
from think_celery.agentworkflows import AgentWorkflows


class ChatAgent(AgentTurns, AgentMessages, AgentWorkflows, abstract=True):
    """An agent: subclass it, and name one with ``TriageAgent("issue-42")``.

    Making the object is free: it is a handle on rows. Your own methods are plain methods and run where they
    are called; only turns run in a worker. What is set on the object lives as long as the object.

    ``queue`` is the Celery queue of its turns, else ``think_queue``. ``agent_class`` is the name that rows carry.
    """
