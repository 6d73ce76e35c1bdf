"""Turns beside schedules, queued calls and fibers: from each of them, what it asks an agent for works."""

from typing import Any

from tests.domain.flows import flow
from tests.domain.talk import talker
from think_celery import ScheduledTask
from think_celery.providers.scripted import FunctionModel, say


def echo(t: Any) -> None:
    """Agents repeat what they are told last."""
    t.use_model(FunctionModel(lambda request: say(f"re: {request.messages[-1].text}")))


def asked(agent: Any) -> list[str]:
    return [message.text for message in agent.messages if message.role == "user"]


class TestASchedule:
    def test_submits_a_turn_at_each_slot(self, t):
        """B25: the turn is accepted when the time has come, behind what others asked for before."""
        agent = talker(remind=lambda self, text: self.submit_messages(text))("a")
        echo(t)
        agent.schedule_every("1 hour", "remind", "How is it going?")
        agent.submit_messages("before")
        t.skip("130 minutes")

        assert asked(agent) == ["before", "How is it going?", "How is it going?"]
        assert agent.messages[-1].text == "re: How is it going?"

    def test_saves_a_turn_and_tells_listeners_of_its_answer(self, t):
        """B25: in its job the turn runs right there, and the answer can be used at once."""
        answers = []

        def review(self):
            answers.append(self.save_messages("Look back.").text)
            self.broadcast({"reviewed": answers[-1]})

        agent = talker(review=review)("a")
        echo(t)
        events = agent.listen()
        agent.schedule("1 minute", "review")
        t.skip("2 minutes")

        assert answers == ["re: Look back."]
        broadcast = next(event for event in events if event.type == "broadcast")
        assert broadcast.data["data"] == {"reviewed": "re: Look back."}

    def test_starts_a_workflow_once_a_slot(self, t):
        """B25: by a declared task's handler, whose context has the slot's key (C3)."""
        flow(lambda event, step: step.do("work", lambda: event.payload["slot"]), name="SlotFlow")

        def begin(self, ctx):
            self.run_workflow("SlotFlow", {"slot": ctx.scheduled_for}, workflow_id=ctx.idempotency_key)

        def get_scheduled_tasks(self):
            return {"report": ScheduledTask(schedule="every hour", handler=self.begin)}

        agent = talker(begin=begin, get_scheduled_tasks=get_scheduled_tasks)("a")
        agent.start()
        t.run_until_idle()
        t.crash_at("workflow:started")
        t.skip("125 minutes")

        runs = agent.get_workflows(workflow="SlotFlow")
        assert [run.status for run in runs] == ["complete", "complete"]
        assert len({run.output for run in runs}) == 2


class TestAQueuedCall:
    def test_saves_turns_one_after_the_other(self, t):
        """B25: queued calls keep their order, and each turn is done when its call goes on."""
        seen = []

        def answer(self, question):
            seen.append(self.save_messages(question, idempotency_key=question).text)

        agent = talker(answer=answer)("a")
        echo(t)
        for question in ("one", "two"):
            agent.queue("answer", question)
        agent.submit_messages("between")
        t.run_until_idle()

        assert seen == ["re: one", "re: two"]
        assert sorted(asked(agent)) == ["between", "one", "two"]

    def test_repeated_after_a_crash_it_asks_once(self, t):
        """B25: a queued call is made again, and a turn with a key is the same turn."""

        def answer(self, question):
            text = self.save_messages(question, idempotency_key=f"q-{question}").text
            self.update_state(lambda state: {**(state or {}), question: text})

        agent = talker(answer=answer)("a")
        echo(t)
        agent.queue("answer", "one")
        t.crash_at("turn:committed")
        t.run_until_idle()
        t.skip("1 minute")

        assert t.crashes == ["turn:committed"]
        assert agent.state == {"one": "re: one"}
        assert asked(agent) == ["one"]


class TestAFiber:
    def test_asks_keeps_and_tells(self, t):
        """B25: a turn within a fiber, the answer in its snapshot, listeners told; its caller waits for all of it."""

        def reply(self, fiber, text):
            fiber.stash({"answer": self.save_messages(text, idempotency_key=fiber.fiber_id).text})
            self.broadcast(fiber.snapshot)
            return fiber.snapshot["answer"]

        agent = talker(reply=reply)("a")
        echo(t)
        events = agent.listen()
        run = agent.start_fiber("reply", "Hi", wait_for_completion=True)

        assert (run.status, run.output) == ("completed", "re: Hi")
        broadcast = next(event for event in events if event.type == "broadcast")
        assert broadcast.data["data"] == {"answer": "re: Hi"}

    def test_starts_a_workflow_and_ends_before_it(self, t):
        """B25: what takes long is the workflow's; the fiber has its id."""
        flow(lambda event, step: step.sleep("nap", "1 hour") or "rested", name="FiberFlow")

        def begin(self, fiber):
            return self.run_workflow("FiberFlow", workflow_id=f"nap-{fiber.idempotency_key}")

        agent = talker(begin=begin)("a")
        fiber = agent.start_fiber("begin", idempotency_key="k")
        t.skip("2 hours")

        ended = agent.inspect_fiber(fiber.fiber_id)
        assert (ended.status, ended.output) == ("completed", "nap-k")
        assert agent.get_workflow("nap-k").output == "rested"
