"""A reactive queue: each answer takes the next topic from the list in the agent's state."""

from typing import Any

from celery import Celery

from think_celery import ChatResponseResult, Think, ThinkCelery

app = Celery("reactive_queue", broker="redis://localhost:6379/0")
think = ThinkCelery(app)


class Researcher(Think):
    model = "openai/gpt-5-mini"
    system_prompt = "You sum up what is known on a topic, in two sentences."
    initial_state = {"topics": [], "done": []}

    def add_topic(self, key: str, topic: str) -> None:
        """Put a topic at the end of the list. The same key again is the same topic, also when it is done."""

        def add(state: dict[str, Any]) -> dict[str, Any]:
            known = [each["key"] for each in state["topics"]] + state["done"]
            if key in known:
                return state
            return {**state, "topics": [*state["topics"], {"key": key, "text": topic}]}

        self.update_state(add)
        self.go_on()

    def on_chat_response(self, result: ChatResponseResult) -> None:
        """An answer has ended, however: the next topic begins."""
        self.go_on()

    def go_on(self) -> None:
        """Ask for the topic at the head of the list. Its key makes it one turn, however often this is called."""
        while topics := self.state["topics"]:
            head = topics[0]
            turn = self.submit_messages(f"Sum up: {head['text']}", idempotency_key=head["key"])
            if turn.completed_at is None:
                return  # on_chat_response goes on from here
            self.update_state(lambda state, key=head["key"]: self._without(state, key))

    @staticmethod
    def _without(state: dict[str, Any], key: str) -> dict[str, Any]:
        """Take a topic from the list, once: whoever comes second finds it gone."""
        if not any(each["key"] == key for each in state["topics"]):
            return state
        rest = [each for each in state["topics"] if each["key"] != key]
        return {"topics": rest, "done": [*state["done"], key]}
