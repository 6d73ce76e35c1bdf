"""Values of the wrong kind in the calls of ``step``, in params and payloads: refused by name, before an effect."""

import dataclasses
from dataclasses import InitVar, dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Any

import pytest

from tests.domain.flows import begin
from think_celery import FiberRecovery, Think, ThinkWorkflow, current
from think_celery.errors import InvalidValue, NotSerializable
from think_celery.providers.scripted import say
from think_celery.testing import ThinkTest


class Unreadable:
    """What can't even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def nested(depth: int) -> list[Any]:
    """A list in a list in a list …"""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@dataclass
class Item:
    count: int


@dataclass
class Order:
    """Checks nothing, as dataclasses do; a second ``__post_init__`` would change it."""

    price: int
    item: Item | None = None
    items: list[Item] = field(default_factory=list)
    factor: InitVar[int] = 2

    def __post_init__(self, factor: int) -> None:
        if isinstance(self.price, int):
            self.price *= factor


@dataclass
class Priced:
    """What it is made with is not kept, and has no default."""

    price: int
    factor: InitVar[int]

    def __post_init__(self, factor: int) -> None:
        self.price *= factor


class Seller(Think):
    """An agent for these tests."""

    def sell(self, order: Order) -> int:
        return order.price

    def work(self, fiber: Any) -> None:
        pass


class Purchase(ThinkWorkflow[Seller, Order]):
    def run(self, event: Any, step: Any) -> Any:
        return event.payload


class PurchasePriced(ThinkWorkflow[Seller, Priced]):
    def run(self, event: Any, step: Any) -> Any:
        return event.payload


SHOWN = [10**5000, Unreadable(), nested(100_000), "x" * 100_000]
CALLS = {
    "name": lambda step, unfit: step.do(unfit, lambda: 1),
    "function": lambda step, unfit: step.do("a", unfit),
    "queue": lambda step, unfit: step.do("a", lambda: 1, queue=unfit),
    "key": lambda step, unfit: step.prompt("a", prompt="Hi", output=Item, key=[unfit]),
    "output": lambda step, unfit: step.do("a", lambda: 1, output=unfit),
    "output of a prompt": lambda step, unfit: step.prompt("a", prompt="Hi", output=unfit),
    "max_steps": lambda step, unfit: step.prompt("a", prompt="Hi", output=Item, max_steps=[unfit]),
    "agent": lambda step, unfit: step.prompt("a", prompt="Hi", output=Item, agent=unfit),
    "handle": lambda step, unfit: step.gather([unfit][0] if not isinstance(unfit, list) else Unreadable()),
    "type": lambda step, unfit: step.wait_for_event("a", type=unfit),
    "name of a wait": lambda step, unfit: step.wait_for_approval(unfit),
    "instant": lambda step, unfit: step.sleep_until("a", unfit),
    "event": lambda step, unfit: step.send_event(unfit, 1),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_can_not_be_shown_is_refused_all_the_same(quick: ThinkTest, call: Any):
    """The error is ours, and not as long as what was given."""
    for number, unfit in enumerate(SHOWN):
        handle = begin(quick, lambda event, step, unfit=unfit: call(step, unfit), id=f"w{number}")

        assert handle.status == "errored"
        assert handle.row.error_type in ("StepMisuse", "UnsupportedSchema")
        assert len(handle.row.error) < 1000


@pytest.mark.parametrize("unfit", [{"a": 1}, "Item", "\ud800", Item(1), 7, lambda: 1])
@pytest.mark.parametrize("call", ["do", "transaction"])
def test_an_output_that_is_no_type_is_refused_before_the_effect(quick: ThinkTest, call: str, unfit: Any):
    """It was noticed with the result in hand, and a transaction was tried six times."""
    done = []
    handle = begin(
        quick, lambda event, step: getattr(step, call)("a", lambda given: done.append(1), output=unfit)
    )

    assert (handle.status, handle.row.error_type, done) == ("errored", "StepMisuse", [])
    assert "Use a pydantic model" in handle.row.error


class Broken(tzinfo):
    """A time zone that can't tell."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        raise RuntimeError("no")


def test_a_value_that_can_not_be_read(quick: ThinkTest):
    """As the result of a step, of a run, and as params."""
    unfit = datetime(2027, 1, 1, tzinfo=Broken())
    step = begin(quick, lambda event, step: step.do("a", lambda: unfit), id="step")
    run = begin(quick, lambda event, step: unfit, id="run")

    assert (step.status, step.row.error_type) == ("errored", "StepError")
    assert (run.status, run.row.error_type) == ("errored", "NotSerializable")
    with pytest.raises(NotSerializable, match="reading it raised RuntimeError"):
        Seller("s").set_state(unfit)


@pytest.mark.parametrize(
    ("unfit", "path"),
    [
        (Order("much"), "price"),
        (Order(1, Item("many")), "item.count"),
        (Order(1, None, [Item(1), Item("two")]), "items[1].count"),
    ],
)
def test_a_dataclass_with_a_field_of_another_type(quick: ThinkTest, unfit: Any, path: str):
    """It is refused as a dict with such a field is, and the path is the same."""
    seller = Seller("s")
    said = []
    for given in (unfit, dataclasses.asdict(unfit)):
        with pytest.raises(InvalidValue) as refused:
            seller.run_workflow(Purchase, given)
        said.append(str(refused.value))
    with pytest.raises(InvalidValue):
        seller.queue(seller.sell, unfit)

    assert said[0] == said[1]
    assert path in said[0]
    assert seller.get_workflows() == seller.list_jobs() == []


def test_a_dataclass_that_fits_comes_as_it_was_made(quick: ThinkTest):
    """Looking at it changes nothing, and what it was made with and has not kept is not asked for."""
    given: dict[Any, Any] = {Purchase: Order(5, Item(1), [Item(2)]), PurchasePriced: Priced(5, 2)}
    ids = {workflow: Seller("s").run_workflow(workflow, params) for workflow, params in given.items()}
    quick.run_until_idle()

    assert {workflow: quick.output(workflow, ids[workflow]) for workflow in given} == given
    assert given[Purchase].price == given[PurchasePriced].price == 10


def test_unfit_words_of_calls(quick: ThinkTest):
    """They are shown as far as they can be."""
    seller: Any = Seller("s")
    for unfit in (10**5000, Unreadable(), nested(100_000)):
        for call in (
            lambda unfit=unfit: seller.submit_messages("Hi", idempotency_key=unfit),
            lambda unfit=unfit: seller.persist_messages("Hi", unfit),
            lambda unfit=unfit: seller.approve_tool_call(unfit),
            lambda unfit=unfit: seller.run_workflow(Purchase, Order(1), on_conflict=unfit),
            lambda unfit=unfit: seller.get_workflow(unfit),
            lambda unfit=unfit: seller.schedule(60, seller.sell, Order(1), timezone=unfit),
            lambda unfit=unfit: current().list_schedules(agent_class=unfit),
            lambda unfit=unfit: FiberRecovery(status=unfit),
        ):
            with pytest.raises((TypeError, ValueError, LookupError)) as refused:
                call()
            assert type(refused.value) is not RecursionError
            assert "4300" not in str(refused.value)
            assert len(str(refused.value)) < 1000


def test_what_all_agents_have_is_listed_and_deleted_by_id(t: ThinkTest):
    """Without a class or a name, as workflows, jobs and schedules are."""
    t.script(Seller, say("Sold."), say("Sold."))
    ids = [Seller(name).submit_messages("Hi").submission_id for name in "ab"]
    fibers = [Seller(name).start_fiber(Seller(name).work).fiber_id for name in "ab"]
    Seller("a").queue("sell", Order(1))
    t.run_until_idle()
    think = current()

    page = think.list_submissions(status="completed", limit=1)
    assert [
        page[0].submission_id,
        *(each.submission_id for each in think.list_submissions(cursor=page.cursor)),
    ] == [*reversed(ids)]
    assert [each.fiber_id for each in think.list_fibers()] == [*reversed(fibers)]
    assert think.list_fibers(status="error") == []
    assert [think.delete_submission(each) for each in (ids[0], ids[0], "none")] == [True, False, False]
    assert [each.submission_id for each in think.list_submissions()] == [ids[1]]
