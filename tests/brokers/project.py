"""What the workers of these tests can do beside the sagas of the crash tests."""

from typing import Any

from tests.crash.project import Draft, Saga, Scribe, effect
from think_celery import Think, ThinkWorkflow
from think_celery.protocols import Model, ModelRequest
from think_celery.providers.scripted import FunctionModel, answer, say

__all__ = ["Fan", "Instant", "Nap", "Reminded", "Saga", "Scribe"]


class Instant(Think):
    """Its model takes no time."""

    def get_model(self) -> Model:
        """Say little, or a draft where one is asked for."""

        def reply(request: ModelRequest) -> Any:
            wants_draft = any(tool.name.startswith("think_final_answer") for tool in request.tools)
            return answer({"title": "A title", "labels": []}) if wants_draft else say("Done.")

        return FunctionModel(reply)


class Reminded(Instant):
    """Asks itself something at a later time."""

    def remind(self, what: str) -> None:
        """What is scheduled: an effect, and a turn."""
        effect("remind", self.name)
        self.submit_messages(what)


class Nap(ThinkWorkflow[Scribe, dict[str, Any]]):
    """Parked for ``seconds``, between two effects."""

    def run(self, event: Any, step: Any) -> str:
        """Sleep."""
        step.do("lie-down", lambda context: effect("lie down", context.idempotency_key))
        step.sleep("nap", event.payload["seconds"])
        step.do("get-up", lambda context: effect("get up", context.idempotency_key))
        return "awake"


class Fan(ThinkWorkflow[Instant, dict[str, Any]]):
    """Asks its agent twice at once, and gathers the answers."""

    def run(self, event: Any, step: Any) -> int:
        """Ask, and count."""
        asked = [step.start_prompt(f"ask-{n}", prompt=f"Number {n}?", output=Draft) for n in range(2)]
        return len(step.gather(*asked))
