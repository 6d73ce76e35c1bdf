"""Values of hooks and classes that can't be used: each is refused, or logged, with the hook's or class's name."""

import re
from typing import Any

import pytest
from pydantic import BaseModel

from tests.domain.flows import worker
from tests.domain.talk import COMPLETED, ERROR, ask, talker
from think_celery import Recovery, StepConfig, Think, ThinkWorkflow, TurnConfig, step_count_is
from think_celery.domain.submissions import claims
from think_celery.errors import InvalidClass, InvalidValue, NotSerializable
from think_celery.providers.scripted import FunctionModel, fail, say
from think_celery.runtime import workflow_classes
from think_celery.testing import ThinkTest


class TestAnswersOfHooks:
    @pytest.mark.parametrize(
        ("hook", "given", "says"),
        [
            ("get_tools", 3, r"Talker\.get_tools returned an int. Return a list"),
            ("get_tools", "add", r"Talker\.get_tools returned a str"),
            ("get_tools", ask, r"Talker\.get_tools returned a function"),
            ("get_system_prompt", 3, r"Talker\.get_system_prompt returned an int. Return a text"),
            ("before_turn", 3, r"Talker\.before_turn returned an int"),
        ],
    )
    def test_what_is_unfit_ends_the_turn(self, quick: ThinkTest, hook: str, given: Any, says: str) -> None:
        """In an error that names class and hook; the model is not asked."""
        agent = talker(**{hook: lambda self, *told: given})("a")
        model = quick.script(agent, say("never asked for"))

        done = ask(quick, agent)

        assert (done.status, done.error_type, model.requests) == (ERROR, "InvalidValue", [])
        assert re.search(says, done.error)

    @pytest.mark.parametrize(
        ("config", "given", "says"),
        [
            (TurnConfig, {"modle": "m/a"}, "TurnConfig has no modle. Did you mean model?"),
            (TurnConfig, {"nothing_like_it": 1}, "TurnConfig has no nothing_like_it. It has model, system, "),
            (
                StepConfig,
                {"stop_when": step_count_is(2)},
                "StepConfig has no stop_when. It has model, system, ",
            ),
        ],
    )
    def test_a_name_that_a_config_has_not(
        self, quick: ThinkTest, config: Any, given: dict[str, Any], says: str
    ) -> None:
        """It is our error, with the name that may be meant; in a hook it ends the turn."""
        with pytest.raises(InvalidValue) as error:
            config(**given)
        assert says in str(error.value)

        agent = talker(before_turn=lambda self, ctx: config(**given))("a")
        model = quick.script(agent, say("never asked for"))
        done = ask(quick, agent)

        assert (done.status, done.error_type, model.requests) == (ERROR, "InvalidValue", [])
        assert says in done.error

    def test_no_further_tools(self, quick: ThinkTest) -> None:
        """`None` from `get_tools` is what it is from any hook: as it would be without."""
        agent = talker(get_tools=lambda self: None)("a")
        model = quick.script(agent, say("Hi"))

        assert ask(quick, agent).status == COMPLETED
        assert list(model.requests[0].tools) == []

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ([], "the list of models is empty"),
            ([FunctionModel(lambda request: say("Hi")), 3], "item 1 of the list"),
        ],
    )
    def test_models(self, sqlite_url: str, given: Any, says: str) -> None:
        """An empty list is not `think_model`; one with what is no model is refused before any is asked."""
        agent = talker(get_model=lambda self: given)
        with worker(sqlite_url, model="openai/never-asked") as rt:
            bound = agent._bound_to(rt, "a")
            submission_id = bound.submit_messages("Go").submission_id
            claims.run(rt, submission_id)
            done = bound.inspect_submission(submission_id)

        assert (done.status, done.error_type) == (ERROR, "NoModel")
        assert says in done.error

    def test_an_error_that_is_none(self, quick: ThinkTest, caplog: pytest.LogCaptureFixture) -> None:
        """`on_chat_error` returned a text: that is logged, and the error itself stands."""
        agent = talker(on_chat_error=lambda self, error, ctx: "Sorry")("a")
        quick.script(agent, fail("no such model"))

        assert "no such model" in ask(quick, agent).error
        assert "on_chat_error of submission" in caplog.text
        assert "returned a str, which is no exception" in caplog.text

    @pytest.mark.parametrize("wrong", [{"resume": "no"}, {"persist": 1}, {"resume": None}, {"reason": 3}])
    def test_recoveries(self, wrong: dict[str, Any]) -> None:
        """A text is no bool: `resume="no"` would resume."""
        with pytest.raises(InvalidValue, match=next(iter(wrong))):
            Recovery(**wrong)


class TestValuesOfClasses:
    def test_a_prompt_is_a_text(self) -> None:
        """Or what is worked out in a property."""
        with pytest.raises(InvalidValue, match=r"Valued\.system_prompt is a list.*get_system_prompt"):
            type("Valued", (Think,), {"system_prompt": ["Be brief."]})
        type("Valued", (Think,), {"system_prompt": property(lambda self: self.name)})

    def test_a_first_state_that_cannot_be_stored(self) -> None:
        """It is refused when the class is made, not when somebody first reads it."""
        with pytest.raises(NotSerializable, match=r"Valued\.initial_state"):
            type("Valued", (Think,), {"initial_state": {"seen": {1, 2}}, "__module__": __name__})

    def test_a_first_state_of_a_class_inside(self) -> None:
        """Its class has no name yet, and will have one."""
        assert Ledger("a").initial_state == Ledger.Page(total=0)

    def test_the_state_is_not_assigned(self, t: ThinkTest) -> None:
        """The error names what to call."""
        with pytest.raises(
            AttributeError, match=r"Ledger\('a'\) can't be assigned. Call set_state.*update_state"
        ):
            Ledger("a").state = {}

    def test_a_workflow_without_run(self, t: ThinkTest) -> None:
        """It is refused, unless it is a base of others, which is none by itself."""
        with pytest.raises(InvalidClass, match=r"Idle can't be used: it has no run.*abstract=True"):
            type("Idle", (ThinkWorkflow,), {})
        base = type("IdleBase", (ThinkWorkflow,), {}, abstract=True)
        type("Busy", (base,), {"run": lambda self, event, step: 1})

        with pytest.raises(InvalidValue, match="IdleBase is a base of workflows"):
            Ledger("a").run_workflow(base)
        assert [name in workflow_classes for name in ("Idle", "IdleBase", "Busy")] == [False, False, True]


class Ledger(Think):
    """An agent with a state of a class of its own."""

    class Page(BaseModel):
        """The state."""

        total: int

    initial_state = Page(total=0)
