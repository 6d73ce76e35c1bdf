"""A queue of one's own: a list in the agent's state, worked off by a queued call, one item after the other."""

from typing import Any

from celery import Celery

from think_celery import Think, ThinkCelery

app = Celery("own_queue", broker="redis://localhost:6379/0")
think = ThinkCelery(app)


class Clerk(Think):
    model = "openai/gpt-5-mini"
    system_prompt = "You answer letters to a bookshop, briefly."
    initial_state = {"waiting": [], "in_hand": None, "answered": {}}

    def receive(self, letter_id: str, text: str, *, urgent: bool = False) -> None:
        """Take a letter in: urgent ones come first, which no line of Celery's would do."""
        letter = {"id": letter_id, "text": text}

        def add(state: dict[str, Any]) -> dict[str, Any]:
            waiting = [letter, *state["waiting"]] if urgent else [*state["waiting"], letter]
            return {**state, "waiting": waiting}

        self.update_state(add)
        self.queue(self.work_off)

    def work_off(self) -> None:
        """Called in a worker, once for each letter, and again if that one dies: what is in hand goes on."""
        while (letter := self.take()) is not None:
            result = self.save_messages(letter["text"], idempotency_key=letter["id"])
            self.put_away(letter, result.text)

    def take(self) -> dict[str, str] | None:
        """The letter in hand; where there is none, the next one becomes it."""

        def take(state: dict[str, Any]) -> dict[str, Any]:
            if state["in_hand"] is not None or not state["waiting"]:
                return state
            first, *rest = state["waiting"]
            return {**state, "waiting": rest, "in_hand": first}

        letter: dict[str, str] | None = self.update_state(take)["in_hand"]
        return letter

    def put_away(self, letter: dict[str, str], answer: str) -> None:
        """The letter in hand is answered."""
        self.update_state(
            lambda state: {
                **state,
                "in_hand": None,
                "answered": {**state["answered"], letter["id"]: answer},
            }
        )
