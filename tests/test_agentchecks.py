"""What a class of agents may not define, what it is warned of, and that its own helpers are left alone."""

import warnings
from typing import Any

import pytest

from think_celery import ChatAgent, MisspeltName, Think, ThinkWorkflow, tool
from think_celery.errors import InvalidClass
from think_celery.runtime import agent_classes

LOOP_HOOKS = [
    "get_model",
    "get_system_prompt",
    "get_tools",
    "before_turn",
    "before_step",
    "before_tool_call",
    "after_tool_call",
]


def made(base: type, *mixins: type, **members: Any) -> type:
    """A class of agents with these members."""
    return type("Checked", (*mixins, base), members)


def answer(self: Any, ctx: Any) -> str:
    """A loop of one's own."""
    return "Hi"


def hook(self: Any, *told: Any) -> None:
    """Any hook."""


@tool
def named_like_ours(self: Any) -> None:
    """A tool, whatever its name."""


class TestLoops:
    @pytest.mark.parametrize("name", LOOP_HOOKS)
    def test_a_loop_of_ones_own_has_no_hooks_of_the_other(self, name: str) -> None:
        """Nobody would call it: a rule that forbids something there would forbid nothing."""
        assert tuple(LOOP_HOOKS) == vars(Think)["_hooks"]
        with pytest.raises(InvalidClass, match=rf"Checked can't be used: it defines {name}.*Subclass Think"):
            made(ChatAgent, on_chat_message=answer, **{name: hook})

    def test_a_mixin_counts(self) -> None:
        """What a class inherits is named with its base; an abstract base is checked itself."""
        mixin = type("Careful", (), {"before_turn": hook})

        with pytest.raises(InvalidClass, match="Careful, which it inherits, defines before_turn"):
            made(ChatAgent, mixin, on_chat_message=answer)
        made(Think, mixin)

        class CheckedBase(ChatAgent, abstract=True):
            on_chat_message = answer

        with pytest.raises(InvalidClass, match="defines before_turn"):
            made(CheckedBase, mixin)

    def test_think_has_a_loop_already(self) -> None:
        """Both at once, or by a mixin: refused, for only one of the two loops could run."""
        mixin = type("Answering", (), {"on_chat_message": answer})
        both = made(ChatAgent, on_chat_message=answer)

        for bases in [(Think,), (mixin, Think), (Think, both)]:
            with pytest.raises(InvalidClass, match="Subclass ChatAgent in place of Think"):
                type("Checked", bases, {"on_chat_message": answer} if bases == (Think,) else {})

    def test_tools_of_a_loop_of_ones_own(self) -> None:
        """It may call what it likes; approvals are what nobody would ask for."""

        class Paying:
            @tool(needs_approval=lambda euros: euros > 5)
            def pay(self, euros: int) -> None:
                """Pay."""

            @tool
            def look(self) -> None:
                """Look."""

        with pytest.raises(InvalidClass, match=r"its tool pay has needs_approval.*Subclass Think"):
            made(ChatAgent, Paying, on_chat_message=answer)
        made(ChatAgent, Paying, on_chat_message=answer, pay=None)
        made(ChatAgent, on_chat_message=answer, look=Paying.look, model="my own business")
        made(Think, Paying)

    def test_a_refused_class_is_not_registered(self) -> None:
        """The name stays free."""
        with pytest.raises(InvalidClass):
            type("NeverChecked", (ChatAgent,), {"on_chat_message": answer, "before_turn": hook})

        assert "NeverChecked" not in agent_classes


class TestShadows:
    @pytest.mark.parametrize(
        ("name", "value"),
        [("messages", []), ("state", {}), ("has_pending_interaction", False), ("state", lambda self: {})],
    )
    def test_a_value_in_place_of_a_property(self, name: str, value: Any) -> None:
        """What is read from the database can't be a class attribute, or a method."""
        with pytest.raises(InvalidClass, match=f"its {name} takes the place of the agent's own {name}"):
            made(Think, **{name: value})

    @pytest.mark.parametrize(("name", "value"), [("get_tools", [hook]), ("before_turn", None), ("start", 1)])
    def test_a_value_in_place_of_a_method(self, name: str, value: Any) -> None:
        """A list of tools is no `get_tools`."""
        with pytest.raises(InvalidClass, match=rf"{name} is a method. Write def {name}\(self"):
            made(Think, **{name: value})

    def test_what_is_read_with_code_may_stand_there(self) -> None:
        """A property, and a method that calls ours."""
        made(Think, state=property(lambda self: {}), start=hook)


class TestNearMisses:
    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("before_trun", "before_turn"),
            ("on_chat_respons", "on_chat_response"),
            ("beforeTurn", "before_turn"),
            ("onChatResponse", "on_chat_response"),
            ("sytem_prompt", "system_prompt"),
            ("systemPrompt", "system_prompt"),
            ("max_step", "max_steps"),
            ("inital_state", "initial_state"),
            ("chat_recovry", "chat_recovery"),
            ("autoStart", "autostart"),
            ("modle", "model"),
            ("models", "model"),
            ("queeu", "queue"),
        ],
    )
    def test_one_is_warned_of(self, name: str, meant: str) -> None:
        """At the line that makes the class, with the name that was meant."""
        with pytest.warns(MisspeltName, match=rf"Checked\.{name} looks like {meant}") as caught:
            made(Think, **{name: hook})

        assert [warning.filename for warning in caught] == [__file__]

    def test_once_for_a_mixin(self) -> None:
        """Where it is first mixed in; a subclass of that is not warned of again."""
        mixin = type("Careless", (), {"before_trun": hook})
        with pytest.warns(MisspeltName, match=r"Careless\.before_trun"):
            base = made(Think, mixin)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made(base)

    @pytest.mark.parametrize(
        "members",
        [
            {"before_turns": hook, "before_turn": hook},
            {"_before_trun": hook},
            {"submit_message": hook, "list_messages": hook, "refund": hook, "title": "x", "turn": 3},
            {"get_tool": named_like_ours},
            {"models": {"fast": "openai/x"}, "queues": {}},
            {"modal": True, "modem": "x", "note": "x"},
        ],
    )
    def test_own_names_are_left_alone(self, members: dict[str, Any]) -> None:
        """Helpers, private names, tools, and what stands beside the real one."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made(Think, **members)

    def test_it_can_be_silenced(self) -> None:
        """By its category."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", MisspeltName)
            made(Think, before_trun=hook)


class TestConstructors:
    def test_what_a_worker_could_not_make_is_refused(self) -> None:
        """A worker knows an agent's name and nothing else: its turn would end in Python's own TypeError."""

        def init(self: Any, name: str, tenant: str) -> None:
            """As one that takes more than a name."""

        with pytest.raises(InvalidClass, match=r"makes each agent from its name alone: Checked\(name\)"):
            made(Think, __init__=init)

    def test_one_that_takes_more_if_it_is_given(self) -> None:
        """As in tests of one's own, where a client is passed in."""

        def init(self: Any, name: str, client: Any = None) -> None:
            Think.__init__(self, name)
            self.client = client

        assert made(Think, __init__=init)("a", "client").client == "client"

    def test_one_that_forgets_its_base_is_told_so(self) -> None:
        """At its first use, in words, not by an attribute of ours that nobody has heard of."""

        def init(self: Any, name: str) -> None:
            self.cache = name

        with pytest.raises(InvalidClass, match=r"__init__ has not called super\(\)\.__init__\(name\)"):
            made(Think, __init__=init)("a").submit_messages("Hi")

    def test_a_workflow_is_made_without_arguments(self) -> None:
        """Anew each time its run goes on: what a run needs is in its params."""

        def init(self: Any, client: Any) -> None:
            """As one that takes something."""

        def run(self: Any, event: Any, step: Any) -> None:
            """Nothing."""

        with pytest.raises(InvalidClass, match=r"can't be called without arguments.*event\.payload"):
            type("Checked", (ThinkWorkflow,), {"__init__": init, "run": run})
