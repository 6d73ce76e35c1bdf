"""Turns beside the other primitives: from each place where code of yours runs, what it asks an agent for works."""

from pydantic import BaseModel

from tests.domain.crowd import transaction
from tests.domain.flows import DESK, begin
from tests.domain.talk import talker
from think_celery.domain.workflows import runs, workflows
from think_celery.providers.scripted import FunctionModel, answer, call, say


class Label(BaseModel):
    """What a workflow asks for."""

    label: str


def echo(t):
    """Agents repeat what they are told last."""
    t.use_model(FunctionModel(lambda request: say(f"re: {request.messages[-1].text}")))


class TestAWorkflow:
    def test_saves_in_a_step_and_goes_on_with_the_answer(self, t):
        """B25: the step's value is the answer; replayed, no model is asked again."""
        agent = talker()("a")
        model = t.script("Talker", say("Hello."))

        def run(event, step):
            text = step.do("greet", lambda: agent.save_messages("Hi").text)
            step.sleep("a while", "1 hour")
            return f"{text} And good-bye."

        handle = begin(t, run)
        t.skip("2 hours")

        assert (handle.output, len(model.requests)) == ("Hello. And good-bye.", 1)

    def test_submits_in_a_step_and_does_not_wait(self, t):
        """B25: with the step's own key, a step that is repeated after a crash submits once."""
        agent = talker()("a")
        echo(t)

        def submit(context):
            return agent.submit_messages("Hi", idempotency_key=context.idempotency_key).submission_id

        t.crash_at("step:ask:ran")
        handle = begin(t, lambda event, step: step.do("ask", submit))
        t.run_until_idle()

        assert [each.submission_id for each in agent.list_submissions()] == [handle.output]
        assert agent.messages[-1].text == "re: Hi"

    def test_prompts_between_turns_that_others_ask_for(self, t):
        """B25: a prompt is one more turn in the agent's line, in its order."""
        agent = DESK
        structured = FunctionModel(
            lambda r: answer({"label": "bug"}) if r.tool_choice != "auto" else say("ok")
        )
        t.use_model(structured)

        def run(event, step):
            agent.submit_messages("behind", idempotency_key="k")
            return step.prompt("label", prompt="Label it", output=Label).label

        agent.submit_messages("before")
        handle = begin(t, run)

        assert handle.output == "bug"
        said = [message.text for message in agent.messages if message.role == "user"]
        assert said == ["before", "behind", "Label it"]

    def test_adds_to_the_conversation_and_tells_listeners(self, t):
        """B25: without a turn, from a step; whoever listens sees it, and what is broadcast beside it."""
        agent = talker()("a")
        events = agent.listen()

        def add():
            agent.persist_messages("a note from the workflow")
            agent.broadcast("noted")

        begin(t, lambda event, step: step.do("note", add))

        assert [(event.type, event.text) for event in (next(events), next(events))] == [
            ("message", "a note from the workflow"),
            ("broadcast", "noted"),
        ]


class TestATool:
    def test_starts_a_workflow_that_asks_its_agent_again(self, t):
        """B25: the workflow's turn comes after the turn whose tool has started it."""
        started = []

        def research() -> str:
            """Start the research."""
            started.append(workflows.start(t.rt, agent._ref, "Flow", None, workflow_id="w"))
            return "started"

        agent = talker(research)("a")

        def answers(request):
            last = request.messages[-1]
            if last.role == "user":
                return call("research") if last.text == "Go" else say(f"re: {last.text}")
            return say("It has begun.")

        t.use_model(FunctionModel(answers))
        begin(
            t,
            lambda event, step: step.do("ask", lambda: agent.save_messages("from the workflow").text),
            id="w0",
        )
        agent.save_messages("Go")
        t.run_until_idle()

        assert started == ["w"]
        assert runs.look_up(t.rt, "w").output == "re: from the workflow"
        assert agent.messages[-1].text == "re: from the workflow"

    def test_changes_the_state_and_broadcasts(self, t):
        """B25: both are seen while the turn goes on, before its end."""
        agent_class = talker()

        def count() -> str:
            """Count."""
            agent = agent_class("a")
            agent.set_state({"count": 1})
            agent.broadcast({"progress": 50})
            return "counted"

        agent_class = talker(count)
        agent = agent_class("a")
        t.script("Talker", call("count"), say("done"))
        events = agent.listen()
        agent.save_messages("Go")

        seen = []
        for event in events:
            seen.append(event.type)
            if event.type == "done":
                break
        assert agent.state == {"count": 1}
        assert [kind for kind in seen if kind in ("state", "broadcast", "done")] == [
            "state",
            "broadcast",
            "done",
        ]


class TestAHook:
    def test_submits_what_follows(self, t):
        """B25: a queue that reacts: each answer asks for the next piece of work, and the hook is called for each."""
        work = ["two", "three"]

        def on_chat_response(self, result):
            if work:
                self.submit_messages(work.pop(0))

        agent = talker(on_chat_response=on_chat_response)("a")
        echo(t)
        agent.submit_messages("one")
        t.run_until_idle()

        assert [m.text for m in agent.messages if m.role == "user"] == ["one", "two", "three"]

    def test_tells_everybody_when_the_answer_is_stored(self, t):
        """B25: what it broadcasts comes after `done`, and whoever reads then finds the answer."""

        def on_chat_response(self, result):
            self.broadcast({"stored": len(self.messages)})

        agent = talker(on_chat_response=on_chat_response)("a")
        echo(t)
        events = agent.listen()
        agent.save_messages("Hi")
        t.run_until_idle()

        seen = []
        for event in events:
            seen.append(event)
            if event.type == "broadcast":
                break
        assert seen[-1].data["data"] == {"stored": 2}
        assert "done" in [event.type for event in seen]


class TestATransaction:
    def test_holds_a_message_a_turn_and_a_workflow(self, t):
        """B25: all three with the caller's own rows, or none of them."""
        agent = talker()("a")
        echo(t)
        begin(t, lambda event, step: "ran", id="w0")
        for commit in (False, True):
            with transaction(t.rt) as session:
                agent.persist_messages("a note")
                agent.submit_messages("Hi")
                workflows.start(t.rt, agent._ref, "Flow", None, workflow_id="w1")
                if commit:
                    session.commit()
                else:
                    session.rollback()
            t.skip(5)
            if not commit:
                assert (agent.messages, agent.list_submissions()) == ([], [])

        assert [message.text for message in agent.messages] == ["a note", "Hi", "re: Hi"]
        assert runs.look_up(t.rt, "w1").output == "ran"
