"""All settings, read and checked once."""

import pytest
from celery import Celery

from think_celery.errors import InvalidSetting
from think_celery.settings import Settings

SECRET = "s3cr3t-value"


def test_the_defaults_are_those_of_the_table():
    """Nothing set, everything has its documented default."""
    settings = Settings.from_mapping({}, {})

    assert settings == Settings()
    assert {name: getattr(settings, name) for name in Settings.__dataclass_fields__} == {
        "database_url": "sqlite:///think.db",
        "live_database_url": None,
        "model": None,
        "queue": None,
        "imports": (),
        "lease_seconds": 15,
        "max_attempts": 5,
        "turn_timeout_seconds": 3600,
        "connect_timeout_seconds": 10,
        "first_token_timeout_seconds": 120,
        "token_gap_timeout_seconds": 60,
        "model_attempts": 3,
        "retention_seconds": 30 * 86_400.0,
        "key_retention_seconds": 90 * 86_400.0,
        "max_payload": 1024 * 1024,
        "fail_tasks": True,
        "worker_schedules": False,
        "openai_api_key": None,
        "openai_base_url": None,
        "openai_echo": True,
        "anthropic_api_key": None,
        "anthropic_base_url": None,
        "anthropic_echo": True,
    }


class TestWhereASettingComesFrom:
    def test_celerys_configuration_wins_over_the_environment(self):
        """The first that is set wins: Celery's configuration, the environment, the default."""
        settings = Settings.from_mapping({"think_model": "a"}, {"THINK_MODEL": "b", "THINK_QUEUE": "q"})

        assert (settings.model, settings.queue, settings.max_attempts) == ("a", "q", 5)

    def test_none_and_empty_variables_are_not_set(self):
        """An empty line in an env file doesn't override anything."""
        settings = Settings.from_mapping({"think_model": None}, {"THINK_MODEL": "b", "THINK_QUEUE": ""})

        assert (settings.model, settings.queue) == ("b", None)

    @pytest.mark.parametrize(
        ("conf", "environ", "key"),
        [
            ({}, {"OPENAI_API_KEY": "vendor"}, "vendor"),
            ({}, {"OPENAI_API_KEY": "vendor", "THINK_OPENAI_API_KEY": "ours"}, "ours"),
            ({"think_openai_api_key": "conf"}, {"OPENAI_API_KEY": "vendor"}, "conf"),
            ({}, {"OPENAI_API_KEY": "vendor", "THINK_OPENAI_API_KEY": ""}, "vendor"),
        ],
    )
    def test_the_vendors_own_variable_comes_last(self, conf, environ, key):
        """Whoever has OPENAI_API_KEY set needs nothing more; our own names are nearer."""
        assert Settings.from_mapping(conf, environ).openai_api_key == key

    def test_djangos_spelling_is_read_through_celerys_own_namespace(self):
        """`CELERY_THINK_LEASE` in Django's settings is `think_lease`."""
        app = Celery("host", set_as_current=False)
        app.config_from_object({"CELERY_THINK_LEASE": "20 seconds"}, namespace="CELERY")

        assert Settings.from_mapping(app.conf, {}).lease_seconds == 20
        assert Settings.from_mapping({"CELERY_THINK_LEASE": 7}, {}).lease_seconds == 7

    def test_celerys_configuration_is_read_as_it_is(self):
        """A real app's configuration, with all of Celery's own keys, is no trouble."""
        app = Celery("host", set_as_current=False)
        app.conf.update(think_lease=4, think_imports=["shop.agents"], task_acks_late=True)

        settings = Settings.from_mapping(app.conf, {})

        assert (settings.lease_seconds, settings.imports) == (4, ("shop.agents",))


@pytest.mark.parametrize(
    ("key", "given", "name", "value"),
    [
        ("lease", 3, "lease_seconds", 3),
        ("lease", "1 minute", "lease_seconds", 60),
        ("turn_timeout", "PT2H", "turn_timeout_seconds", 7200),
        ("connect_timeout", "2.5", "connect_timeout_seconds", 2.5),
        ("first_token_timeout", "3 minutes", "first_token_timeout_seconds", 180),
        ("token_gap_timeout", 5, "token_gap_timeout_seconds", 5),
        ("max_attempts", "7", "max_attempts", 7),
        ("model_attempts", 1, "model_attempts", 1),
        ("retention", "2 weeks", "retention_seconds", 14 * 86_400.0),
        ("retention", "Never", "retention_seconds", None),
        ("key_retention", 3600, "key_retention_seconds", 3600.0),
        ("key_retention", "never", "key_retention_seconds", None),
        ("max_payload", "2 MiB", "max_payload", 2 * 1024 * 1024),
        ("max_payload", "500000", "max_payload", 500_000),
        ("fail_tasks", "no", "fail_tasks", False),
        ("fail_tasks", False, "fail_tasks", False),
        ("fail_tasks", "TRUE", "fail_tasks", True),
        ("worker_schedules", "on", "worker_schedules", True),
        ("imports", "shop.agents, shop.flows,", "imports", ("shop.agents", "shop.flows")),
        ("imports", ["a", "b"], "imports", ("a", "b")),
        ("database_url", "postgresql+psycopg://u:p@h/d", "database_url", "postgresql+psycopg://u:p@h/d"),
        ("openai_base_url", "http://127.0.0.1:8000/v1", "openai_base_url", "http://127.0.0.1:8000/v1"),
    ],
)
def test_a_value_is_read_the_same_from_code_and_environment(key, given, name, value):
    """Spans take words, sizes units, lists commas: an environment variable can say all that code can."""
    assert getattr(Settings.from_mapping({f"think_{key}": given}, {}), name) == value
    if isinstance(given, str):
        assert getattr(Settings.from_mapping({}, {f"THINK_{key}".upper(): given}), name) == value


class TestMistakes:
    @pytest.mark.parametrize(
        ("key", "nearest"),
        [
            ("think_leese", "think_lease"),
            ("THINK_QUEU", "think_queue"),
            ("CELERY_THINK_IMPORT", "think_imports"),
        ],
    )
    def test_an_unknown_key_offers_the_nearest_name(self, key, nearest):
        """A setting with a typing error must not be ignored silently."""
        with pytest.raises(InvalidSetting) as refused:
            Settings.from_mapping({key: SECRET}, {})

        assert f"Did you mean {nearest!r}?" in str(refused.value)
        assert SECRET not in str(refused.value)

    def test_a_key_that_resembles_none_is_told_all(self):
        """Whoever is far off sees the list."""
        with pytest.raises(InvalidSetting, match=r"There are: think_anthropic_api_key, .*think_turn_timeout"):
            Settings.from_mapping({"think_zzzzzzzz": 1}, {})

    def test_unknown_variables_and_other_keys_are_ignored(self):
        """They may belong to another program; Celery's own keys are none of ours."""
        assert Settings.from_mapping({"timezone": "UTC", "thinker": 1}, {"THINK_TANK": "x"}) == Settings()

    @pytest.mark.parametrize(
        ("key", "given", "rule"),
        [
            ("lease", 2.9, "3 seconds or more"),
            ("lease", "soon", "span of time, 3 seconds or more"),
            ("turn_timeout", 0, "0.001 seconds or more"),
            ("turn_timeout", True, "span of time"),
            ("max_attempts", 0, "whole number, 1 or more"),
            ("max_attempts", "2.5", "whole number"),
            ("model_attempts", True, "whole number"),
            ("retention", "always", '"never"'),
            ("key_retention", 0, '"never"'),
            ("max_payload", "many", "number of bytes"),
            ("max_payload", 0, "number of bytes"),
            ("fail_tasks", "maybe", "True or False"),
            ("fail_tasks", 2, "True or False"),
            ("fail_tasks", [], "True or False"),
            ("imports", 3, "list of module names"),
            ("imports", [3], "list of module names"),
            ("model", "  ", "not empty"),
            ("queue", 5, "a text"),
            ("openai_base_url", "api.openai.com", "http:// or https://"),
            ("openai_base_url", "http://[bad", "http:// or https://"),
        ],
    )
    def test_a_bad_value_names_setting_value_and_rule(self, key, given, rule):
        """The error alone is enough to mend it."""
        with pytest.raises(InvalidSetting) as refused:
            Settings.from_mapping({f"think_{key}": given}, {})

        text = str(refused.value)
        assert f"think_{key}" in text
        assert repr(given) in text
        assert rule in text

    def test_a_bad_variable_is_named_as_it_was_written(self):
        """One who set THINK_LEASE looks for THINK_LEASE."""
        with pytest.raises(InvalidSetting, match="'THINK_LEASE' is '1'"):
            Settings.from_mapping({}, {"THINK_LEASE": "1"})


class TestSecrets:
    @pytest.mark.parametrize("key", ["database_url", "live_database_url", "openai_api_key"])
    def test_a_bad_value_that_may_hold_a_password_is_not_shown(self, key):
        """Errors are logged, so they must not carry what was meant to be secret."""
        bad = [SECRET] if key == "openai_api_key" else SECRET

        with pytest.raises(InvalidSetting) as refused:
            Settings.from_mapping({f"think_{key}": bad}, {})

        assert f"think_{key}" in str(refused.value)
        assert SECRET not in str(refused.value) + repr(refused.value)

    def test_a_password_in_the_models_address_is_refused(self):
        """Celery doesn't mask this setting, so it must not hold one."""
        with pytest.raises(InvalidSetting, match="think_openai_api_key"):
            Settings.from_mapping({"think_openai_base_url": f"https://u:{SECRET}@host/v1"}, {})

    def test_repr_shows_none(self):
        """A settings object may end up in a log or a traceback."""
        url = f"postgresql://u:{SECRET}@h/d"
        settings = Settings(database_url=url, live_database_url=url, openai_api_key=SECRET, model="openai/m")

        assert SECRET not in repr(settings)
        assert "openai/m" in repr(settings)

    def test_celery_masks_every_setting_that_can_hold_one(self):
        """Flower's Config tab shows Celery's view of the configuration."""
        app = Celery("host", set_as_current=False)
        url = f"postgresql://u:{SECRET}@h/d"
        app.conf.update(think_database_url=url, think_live_database_url=url, think_openai_api_key=SECRET)
        app.conf.update(think_model="openai/m")

        shown = app.conf.humanize(with_defaults=False)

        assert SECRET not in shown
        assert "think_model: 'openai/m'" in shown
        hidden = {"think_database_url", "think_live_database_url", "think_openai_api_key"}
        assert hidden <= set(app.conf)
        assert all(f"{name}: '********'" in shown for name in hidden)
