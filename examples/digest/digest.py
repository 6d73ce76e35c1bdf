"""A digest each working day: a cron rule, made in on_start, however often that runs."""

from celery import Celery

from think_celery import Think, ThinkCelery

app = Celery("digest", broker="redis://localhost:6379/0")
app.conf.timezone = "Europe/Berlin"  # that of cron rules which name none
app.conf.beat_scheduler = "think_celery.beat:ThinkScheduler"
think = ThinkCelery(app)


class DigestAgent(Think):
    model = "openai/gpt-5-mini"
    system_prompt = "You write a digest of what is new. Three sentences at most."
    autostart = ("newsroom",)

    def on_start(self) -> None:
        """The same rule again is the schedule that is there, so this may run after each deploy."""
        self.schedule("0 8 * * 1-5", self.write_digest)

    def write_digest(self) -> None:
        """Called in a worker when the time has come. The answer joins the conversation.

        The call may come twice, if a worker dies in it; its schedule's open slot makes the key that both have.
        """
        slots = [
            slot
            for each in self.list_schedules()
            for slot in self.list_slots(each.schedule_id, status="open")
        ]
        key = (
            f"digest-{slots[0].scheduled_for:%Y-%m-%d}" if slots else None
        )  # none where somebody else calls it
        self.submit_messages("Write the digest of today.", idempotency_key=key)
