"""FR-87, FR-88: what a model can't be told is an error when it is declared, not when the model is asked."""

import pytest
from pydantic import BaseModel

from tests.domain.flows import Desk, begin
from think_celery import Think, tool
from think_celery.errors import InvalidTool, UnsupportedSchema
from think_celery.providers.openai import OpenAIModel
from think_celery.providers.scripted import answer
from think_celery.testing import ThinkTest
from think_celery.tools import as_tool

STRICT = OpenAIModel("gpt-test", api_key="k-1", schemas="strict")
INLINE = OpenAIModel("gpt-test", api_key="k-1", schemas="inline")


class Branch(BaseModel):
    """A tree."""

    name: str
    branches: list["Branch"] = []


class TestTools:
    def test_a_class_with_a_tool_that_its_model_can_not_be_told_is_refused(self):
        """When the class is defined; the error names the tool, the place and the remedy."""
        with pytest.raises(
            InvalidTool, match=r"'count'.*counts: an object with keys of any name.*'standard'"
        ):

            class CountingAgent(Think):
                model = STRICT

                @tool
                def count(self, counts: dict[str, int]) -> int:
                    """Count."""
                    return len(counts)

    def test_the_same_class_with_another_model_is_fine(self):
        """Strict mode is asked for, never put on."""

        class OtherCountingAgent(Think):
            model = OpenAIModel("gpt-test", api_key="k-1")

            @tool
            def count(self, counts: dict[str, int], note: str = "") -> int:
                """Count."""
                return len(counts)

        assert as_tool(OtherCountingAgent("a").count).parameters["required"] == ["counts"]


class TestOutputs:
    @pytest.mark.parametrize("model", [INLINE, STRICT])
    def test_a_prompt_whose_output_the_model_can_not_be_told(self, quick: ThinkTest, monkeypatch, model):
        """A12: it fails when the step is created, and nothing was submitted. Strict mode can tell a tree."""
        monkeypatch.setattr(Desk, "model", model)
        quick.script(Desk, answer({"name": "oak", "branches": []}))

        def run(event, step):
            try:
                return step.prompt("grow", prompt="Grow a tree.", output=Branch).name
            except UnsupportedSchema as error:
                return str(error)

        done = begin(quick, run)

        if model is STRICT:
            assert done.output == "oak"
        else:
            assert "output=Branch: branches[].branches[]: Branch holds itself" in done.output
            assert done.output.endswith("Change the type, or make the model with schemas='standard'.")
            assert done.keys == []
