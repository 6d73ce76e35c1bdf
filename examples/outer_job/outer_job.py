"""A fiber as the outer job: a chat's message is accepted once, answered, and the reply is posted where it came from."""

from typing import Any

from celery import Celery

from think_celery import Fiber, FiberRecovery, FiberRecoveryContext, FiberRun, Think, ThinkCelery

app = Celery("outer_job", broker="redis://localhost:6379/0")
think = ThinkCelery(app)

POSTED: dict[str, str] = {}


def post(channel: str, text: str, key: str) -> None:
    """Post to the chat. Like most of their interfaces it knows a post by its key, and shows it once."""
    POSTED.setdefault(f"{channel}/{key}", text)


class ChatBot(Think):
    model = "openai/gpt-5-mini"
    system_prompt = "You answer questions of a team in its chat."

    def receive(self, event: dict[str, Any]) -> FiberRun:
        """Take the chat's webhook: accepted once for each event, however often it comes."""
        return self.start_fiber(self.reply, event, idempotency_key=event["id"])

    def reply(self, fiber: Fiber, event: dict[str, Any]) -> str:
        """Say that it is being looked at, ask the model, post the answer; go on where another worker stopped."""
        done = fiber.snapshot or {}
        if "noticed" not in done:
            post(event["channel"], "I am looking into it.", f"{event['id']}:notice")
            fiber.stash(done := {"noticed": True})
        if "answer" not in done:
            result = self.save_messages(event["text"], idempotency_key=event["id"])
            answer = result.text if result.status == "completed" else "I could not find an answer."
            fiber.stash(done := {**done, "answer": answer})
        post(event["channel"], done["answer"], f"{event['id']}:answer")
        return str(done["answer"])

    def on_fiber_recovered(self, ctx: FiberRecoveryContext) -> FiberRecovery:
        """A worker died in it. Twice it goes on; after the third death somebody is told."""
        if ctx.attempt <= 3:
            return FiberRecovery(status="retry")
        post(ctx.payload["channel"], "Something is wrong with me.", f"{ctx.payload['id']}:sorry")
        return FiberRecovery(status="error", error="three workers died in it")
