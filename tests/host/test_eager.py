"""With ``task_always_eager``, and all else of the hostile configuration: work runs in the caller, after its commit."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tests.host.model import answer
from tests.host.project import Chore, Lodger, make_app
from tests.providers.server import ModelServer
from think_celery import ThinkCelery
from think_celery.domain.workflows import runs
from think_celery.runtime import set_current

NOBODY = "redis://127.0.0.1:1/0"


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(params=[False, True], ids=["", "propagates"])
def think(
    request: pytest.FixtureRequest, database_url: str, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ThinkCelery]:
    """The host, without a broker, a result backend or a worker."""
    model.respond = answer
    monkeypatch.setenv("HOST_CALLS", "/dev/null")
    before = set_current(None)
    app = make_app(
        {
            "HOST_QUEUE": "eager",
            "HOST_BROKER": NOBODY,
            "HOST_RESULTS": NOBODY,
            "HOST_LIVE": database_url,
            "HOST_DATABASE": database_url,
            "HOST_MODEL": model.base_url,
        },
        task_always_eager=True,
        task_eager_propagates=request.param,
        task_store_eager_result=True,
    )
    made: ThinkCelery = app.think  # type: ignore[attr-defined]
    yield made
    made.close()
    set_current(before)


class TestOutsideATransaction:
    def test_a_turn_has_ended_when_the_call_returns(self, think: ThinkCelery) -> None:
        """As users of eager mode expect, with its tools."""
        submission = Lodger("a").submit_messages("tool")

        found = Lodger("a").inspect_submission(submission.submission_id)
        assert found is not None
        assert found.status == "completed"
        assert [message.role for message in Lodger("a").messages] == ["user", "assistant"]

    def test_a_failing_turn_fails_no_call(self, think: ThinkCelery) -> None:
        """It was accepted; how it went is in its row, also where eager errors propagate."""
        submission = Lodger("a").submit_messages("fail")

        found = Lodger("a").inspect_submission(submission.submission_id)
        assert found is not None
        assert (found.status, found.error_type) == ("error", "ModelError")

    def test_a_workflow_runs_as_far_as_it_can(self, think: ThinkCelery) -> None:
        """Step, prompt and news one after the other; then it waits for its event, and ends with that."""
        workflow_id = Lodger("a").run_workflow(Chore, {"prompt": "tool"})
        waiting = runs.look_up(think.runtime, workflow_id, Chore)

        Lodger("a").send_workflow_event(Chore, workflow_id, type="go", payload=1)

        ended = runs.look_up(think.runtime, workflow_id, Chore)
        assert (waiting.status, ended.status) == ("waiting", "complete")
        assert ended.output == {"good": True, "go": 1, "booked": 42}


class TestInATransaction:
    @pytest.fixture
    def session(self, think: ThinkCelery) -> Iterator[Session]:
        engine = create_engine(think.runtime.db.url)
        with Session(engine) as made:
            yield made
        engine.dispose()

    def test_work_runs_after_the_outermost_commit(
        self, think: ThinkCelery, session: Session, model: ModelServer
    ) -> None:
        """Never inside the transaction, which would be open for as long as a model takes, and hold its locks."""
        in_use: list[int] = []
        pool: Any = session.get_bind().engine.pool

        def look(body: Any) -> Any:
            in_use.append(pool.checkedout())
            return answer(body)

        model.respond = look
        with think.joined(session):
            with session.begin_nested():
                Lodger("a").submit_messages("first")
            Lodger("a").submit_messages("second")
            assert (in_use, pool.checkedout()) == ([], 1)

            session.commit()

        assert in_use == [0, 0]
        said = [message.text.split()[0] for message in Lodger("a").messages if message.role == "user"]
        assert said == ["first", "second"]

    def test_what_is_rolled_back_never_runs(
        self, think: ThinkCelery, session: Session, model: ModelServer
    ) -> None:
        """Neither with the whole transaction nor with a savepoint."""
        asked = len(model.requests)
        with think.joined(session):
            savepoint = session.begin_nested()
            Lodger("a").submit_messages("with the savepoint")
            savepoint.rollback()
            Lodger("a").submit_messages("with all of it")
            session.rollback()

        assert len(model.requests) == asked
        assert Lodger("a").list_submissions() == []
