"""Models by name, and the switch that forbids real ones."""

import subprocess
import sys

import pytest

from tests.providers.contract import request, texts
from tests.providers.server import ModelServer, text_frames
from think_celery.errors import NoModel
from think_celery.providers import no_real_requests, resolve
from think_celery.providers.permission import is_loopback
from think_celery.providers.scripted import ScriptedModel
from think_celery.signals import AbortController


class TestResolve:
    def test_a_name_becomes_a_model_that_asks_that_server(self):
        """The name is provider/model; the rest may hold slashes itself."""
        with ModelServer() as server:
            server.script(text_frames("Hello"))
            model = resolve("openai/meta/llama-3", openai_api_key="sk-1", openai_base_url=server.base_url)

            answered = texts(list(model.stream(request(), AbortController().signal)))

        assert answered == "Hello"
        assert model.name == "openai/meta/llama-3"
        assert server.requests[0]["model"] == "meta/llama-3"

    def test_one_object_in_a_process(self):
        """The same name, key and address give the same model."""
        models = [resolve("openai/m", openai_api_key=key) for key in ("a", "a", "b")]

        assert models[0] is models[1]
        assert models[0] is not models[2]

    def test_a_model_object_is_itself(self):
        """Any object that streams."""
        model = ScriptedModel()

        assert resolve(model) is model

    @pytest.mark.parametrize("name", ["gpt-5", "openai", "openai/", "acme/gpt-5", ""])
    def test_an_unknown_name(self, name):
        """The error shows a right one and the known providers."""
        with pytest.raises(NoModel, match=r"openai/gpt-5-mini\. Known providers: openai/…"):
            resolve(name, openai_api_key="sk-1")

    def test_no_name(self):
        """The error says where to give one."""
        with pytest.raises(NoModel, match=r'model = "openai/gpt-5-mini" in the class, or set think_model'):
            resolve(None)

    def test_something_else(self):
        """The error names its type."""
        with pytest.raises(NoModel, match="dict is neither"):
            resolve({"model": "gpt-5"})  # type: ignore[arg-type]

    @pytest.mark.parametrize("key", [None, ""])
    def test_no_key(self, key):
        """The error names the setting and the variable."""
        with pytest.raises(NoModel, match="think_openai_api_key or the environment variable OPENAI_API_KEY"):
            resolve("openai/gpt-5-mini", openai_api_key=key)

    def test_resolving_nothing_loads_no_http_library(self):
        """A process that only submits work starts quickly."""
        code = (
            "import sys, think_celery.providers, think_celery.providers.scripted; "
            "print([name for name in ('httpx', 'httpcore') if name in sys.modules])"
        )

        printed = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout

        assert printed.strip() == "[]"


class TestTheSwitch:
    def test_real_requests_are_forbidden_within_the_block(self):
        """At stream(), before anything is sent; the error says what to use instead. It nests."""
        model = resolve("openai/gpt-5-mini", openai_api_key="sk-1")

        with no_real_requests():
            with no_real_requests():
                pass
            with pytest.raises(NoModel, match=r"forbidden in this process.*ScriptedModel"):
                model.stream(request(), AbortController().signal)

    def test_loopback_stays_allowed(self):
        """A server on this machine is no real provider."""
        with ModelServer() as server, no_real_requests():
            server.script(text_frames("Hello"))
            model = resolve("openai/m", openai_api_key="sk-1", openai_base_url=server.base_url)

            assert texts(list(model.stream(request(), AbortController().signal))) == "Hello"

    @pytest.mark.parametrize(
        ("url", "loopback"),
        [
            ("http://127.0.0.1:8000/v1", True),
            ("http://127.8.8.8/v1", True),
            ("http://localhost/v1", True),
            ("http://LOCALHOST/v1", True),
            ("http://[::1]:80/v1", True),
            ("https://api.openai.com/v1", False),
            ("http://localhost.example.com", False),
            ("http://127.0.0.1@example.com/v1", False),
            ("http://10.0.0.1", False),
        ],
    )
    def test_what_is_loopback(self, url, loopback):
        """By address or by its one name; names are not looked up."""
        assert is_loopback(url) is loopback

    def test_it_can_be_for_good(self):
        """For a whole test run; tried in a process of its own."""
        code = (
            "from think_celery.errors import NoModel\n"
            "from think_celery.providers import forbid_real_requests, no_real_requests, resolve\n"
            "forbid_real_requests()\n"
            "with no_real_requests(): pass\n"
            "try: resolve('openai/m', openai_api_key='k').stream(None, None)\n"
            "except NoModel as error: print('forbidden' in str(error))\n"
        )

        printed = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout

        assert printed.strip() == "True"
