"""Answers in the making that are stored for all turns of a process together: each as if its turn did it by itself."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, select, update

from tests.domain.crowd import at_once, clerk, line, row, workers
from tests.events.away import wait_until
from think_celery.domain.conversation import conversation
from think_celery.domain.submissions import claims
from think_celery.domain.turns import snapshots
from think_celery.domain.turns.snapshots import STORE_SECONDS, Snapshot
from think_celery.messages import TextPart, UIMessage
from think_celery.protocols import Finish, TextDelta, Usage
from think_celery.runtime import Runtime
from think_celery.store import lines as line_rows
from think_celery.store import messages as message_rows
from think_celery.store import tables
from think_celery.store.leases import Lease

AGENTS = ("a", "b", "c")


@pytest.fixture
def rt(postgres_url: str, by_hand: None) -> Iterator[Runtime]:
    with workers(postgres_url) as made:
        yield made


@pytest.fixture
def leases(rt: Runtime) -> dict[str, Lease]:
    """The lease of a claimed turn of each agent."""
    claimed = {}
    for name in AGENTS:
        claim = claims.claim(rt, clerk(rt, name).submit_messages("hi").submission_id)
        assert claim is not None
        claimed[name] = claim.lease
    return claimed


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """The statement for all turns tells that it has begun, and waits until it may go on."""
    begun, go_on = threading.Event(), threading.Event()
    real = message_rows.store_all_unfinished_fenced

    def slow(tx: Any, given: Any) -> set[str]:
        begun.set()
        assert go_on.wait(30)
        return real(tx, given)

    monkeypatch.setattr(message_rows, "store_all_unfinished_fenced", slow)
    return begun, go_on


def put(rt: Runtime, lease: Lease, text: str = "so far \0 \U0001f642") -> Snapshot:
    message = UIMessage(id="m", role="assistant", parts=[TextPart(text=text)], metadata={"model": "x"})
    return rt.snapshots.put(lease, conversation.as_row(message))


def put_all(rt: Runtime, leases: dict[str, Lease]) -> dict[str, Snapshot]:
    """Put one of each turn, and wait until they are stored or left."""
    snapshots = {name: put(rt, lease) for name, lease in leases.items()}
    wait_until(lambda: not any(rt.snapshots.is_open(each) for each in snapshots.values()))
    return snapshots


def stored(rt: Runtime, lease: Lease) -> Any:
    return rt.db.read(lambda tx: message_rows.get(tx, lease.key, "m"))


@contextmanager
def puttings(rt: Runtime) -> Iterator[list[str]]:
    """The statements that put messages."""
    seen: list[str] = []

    def note(conn: Any, cursor: Any, text: str, *rest: Any) -> None:
        if "INSERT INTO think_messages" in text:
            seen.append(text)

    event.listen(rt.db.engine, "before_cursor_execute", note)
    yield seen
    event.remove(rt.db.engine, "before_cursor_execute", note)


def locking(of: str) -> Callable[[Any, Lease], Any]:
    """What locks the row of a turn's line, or of its message."""
    lines, messages = tables.lines, tables.messages
    query = {
        "line": lambda lease: select(lines.c.token).where(lines.c.agent_id == lease.key),
        "message": lambda lease: select(messages.c.seq).where(messages.c.agent_id == lease.key),
    }[of]
    return lambda tx, lease: tx.execute(query(lease).with_for_update()).all()


class TestTogether:
    def test_they_are_stored_by_one_statement(self, rt, leases):
        """Row for row what each turn's own statement stores, anew and again."""
        with puttings(rt) as seen:
            first = put_all(rt, leases)
            again = put_all(rt, leases)
        by_one = [dict(stored(rt, lease)._mapping) for lease in leases.values()]
        for lease in leases.values():
            message = conversation.as_row(
                UIMessage(
                    id="m",
                    role="assistant",
                    parts=[TextPart(text="so far \0 \U0001f642")],
                    metadata={"model": "x"},
                )
            )
            assert rt.db.single(
                lambda tx, lease=lease, message=message: message_rows.store_unfinished_fenced(
                    tx, lease, message
                )
            )

        assert len(seen) == 2
        assert not [each for each in (*first.values(), *again.values()) if each.failed]
        assert by_one == [dict(stored(rt, lease)._mapping) for lease in leases.values()]

    def test_whose_lease_is_lost_writes_nothing(self, rt, leases):
        """Each is under its own fence: the others are stored, and the turn of that one finds out."""
        rt.db.transact(lambda tx: line_rows.seize_from(tx, leases["b"]))

        snapshots = put_all(rt, leases)

        assert {name: each.failed for name, each in snapshots.items()} == {"a": False, "b": True, "c": False}
        assert stored(rt, leases["b"]) is None

    def test_a_single_one_is_left_to_its_turn(self, rt, leases):
        """Whose statement commits by itself."""
        with puttings(rt) as seen:
            only = put_all(rt, {"a": leases["a"]})

        assert only["a"].failed
        assert not seen

    @pytest.mark.parametrize("of", ["line", "message"])
    def test_what_somebody_has_locked_holds_up_nobody(self, rt, leases, of):
        """A caller's slow transaction keeps its own turn's answer, and at most for a moment those of the others."""
        put_all(rt, leases)

        def look(tx):
            locking(of)(tx, leases["a"])
            began = time.monotonic()
            return put_all(rt, leases), time.monotonic() - began

        snapshots, took = rt.db.transact(look)

        assert took < 5
        assert snapshots["a"].failed
        assert snapshots["b"].failed == snapshots["c"].failed == (of == "message")

    def test_a_database_that_is_away_leaves_them_to_their_turns(self, rt, leases, monkeypatch, caplog):
        """Each of which says so, once; and so does what never should happen, which stops no thread."""

        def broken(tx, given):
            raise LookupError("a bug")

        monkeypatch.setattr(message_rows, "store_all_unfinished_fenced", broken)
        failed = put_all(rt, leases)
        monkeypatch.undo()
        then = put_all(rt, leases)

        assert all(each.failed for each in failed.values())
        assert not any(each.failed for each in then.values())
        assert "could not be stored together" in caplog.text

    def test_a_process_that_may_have_no_more_threads(self, rt, leases, monkeypatch):
        """They are left to their turns, and later ones are stored together again."""
        start = threading.Thread.start

        def refused(thread: threading.Thread) -> None:
            if thread.name == "think-snapshots":
                raise RuntimeError("can't start new thread")
            start(thread)

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            alone = put_all(rt, leases)
        then = put_all(rt, leases)

        assert all(each.failed for each in alone.values())
        assert not any(each.failed for each in then.values())


class TestSettling:
    def test_what_waits_is_not_stored_any_more(self, rt, leases):
        """What its turn stores next is the last that is stored."""
        mine = put(rt, leases["a"])
        rt.snapshots.settle(mine)
        put_all(rt, {name: leases[name] for name in "bc"})

        assert not rt.snapshots.is_open(mine)
        assert stored(rt, leases["a"]) is None

    def test_what_is_being_stored_is_waited_for(self, rt, leases, held_up):
        """It comes before what its turn stores next, never after it."""
        (begun, go_on), settled = held_up, threading.Event()
        mine, _ = put(rt, leases["a"]), put(rt, leases["b"])
        assert begun.wait(30)
        waiter = threading.Thread(target=lambda: (rt.snapshots.settle(mine), settled.set()))
        waiter.start()
        early = settled.wait(0.3)
        go_on.set()
        waiter.join(30)

        assert not early
        assert settled.is_set()
        assert stored(rt, leases["a"]) is not None

    def test_what_hangs_is_not_waited_for_and_is_undone(self, rt, leases, held_up, monkeypatch):
        """Its connection is dead, and the turn's is not: the turn goes on, and what was to come before is no more."""
        monkeypatch.setattr(snapshots, "HANGS_SECONDS", 0.05)
        begun, go_on = held_up
        mine, other = put(rt, leases["a"]), put(rt, leases["b"])
        assert begun.wait(30)
        rt.snapshots.settle(mine)
        together = rt.snapshots.together
        last = UIMessage(id="m", role="assistant", parts=[TextPart(text="all of it")])
        rt.db.transact(lambda tx: message_rows.store_finished(tx, leases["a"].key, conversation.as_row(last)))
        go_on.set()
        wait_until(lambda: not rt.snapshots.is_open(mine))

        assert not together
        assert rt.snapshots.together
        assert mine.failed
        assert other.failed
        assert stored(rt, leases["b"]) is None
        assert stored(rt, leases["a"]).status == "done"

    def test_those_of_a_process_are_due_at_once(self, rt):
        """Once a second each, whenever their turns began."""
        due = {round(rt.snapshots.next_after(at / 100), 6) for at in range(250)}

        first, *_, last = sorted(due)
        assert len(due) in (3, 4)
        assert last - first == pytest.approx((len(due) - 1) * STORE_SECONDS)
        assert 0 < first <= STORE_SECONDS


class Slow:
    """A model that writes a word each hundredth of a second, until it is told that all is seen."""

    name = "slow"

    def __init__(self) -> None:
        self.enough = threading.Event()

    def stream(self, request: Any, signal: Any) -> Iterator[Any]:
        for number in range(3000):
            yield TextDelta(f"{number} ")
            if self.enough.wait(0.01):
                break
        yield Finish("stop", "stop", Usage())


class TestTurns:
    @pytest.fixture
    def model(self, rt: Runtime) -> Slow:
        model = Slow()
        rt.stand_in = lambda _: model
        return model

    def test_answers_in_the_making_are_stored_each_second(self, rt, model):
        """Of turns that run at the same time by one statement; and what is stored at the end is whole, and the last."""
        names = [clerk(rt, name).submit_messages("hi").submission_id for name in AGENTS]
        unfinished = select(tables.messages.c.parts).where(tables.messages.c.status == "streaming")
        lengths = []

        def look():
            rows = rt.db.read(lambda tx: tx.execute(unfinished).all())
            lengths.append([len(str(each.parts)) for each in rows])
            return len({tuple(each) for each in lengths if len(each) == len(AGENTS)}) >= 3

        def work(number):
            if number < len(names):
                return claims.run(rt, names[number]).word
            wait_until(look)
            model.enough.set()
            return "seen"

        with puttings(rt) as seen:
            words = at_once(len(names) + 1, work)

        assert words == ["completed"] * 3 + ["seen"]
        assert any("json_to_recordset" in each for each in seen)
        for name in AGENTS:
            last = clerk(rt, name).messages[-1]
            numbers = last.text.split()
            assert numbers == [str(number) for number in range(len(numbers))]
            assert last.parts[-1].state == "done"

    def test_a_turn_that_lost_its_lease_ends(self, rt, model):
        """It writes no more, and the others go on."""
        lost, kept = (clerk(rt, name).submit_messages("hi").submission_id for name in "ab")

        def work(number):
            if number < 2:
                word = claims.run(rt, (lost, kept)[number]).word
                if number == 0:
                    model.enough.set()
                return word
            wait_until(lambda: row(rt, lost).status == row(rt, kept).status == "running")
            lines = tables.lines
            held = lines.c.agent_id == clerk(rt, "a")._ref.id
            rt.db.transact(lambda tx: tx.execute(update(lines).where(held).values(token=lines.c.token + 1)))
            return line(rt, clerk(rt, "a")).token

        words = at_once(3, work)

        assert words[:2] == ["lease-lost", "completed"]

    def test_a_turn_ends_after_what_is_being_stored_of_it(self, rt, model, held_up):
        """Else its answer could be in the making again when it has ended."""
        names = [clerk(rt, name).submit_messages("hi").submission_id for name in "ab"]
        begun, go_on = held_up

        def work(number):
            if number < 2:
                return claims.run(rt, names[number]).word
            assert begun.wait(30)
            model.enough.set()
            time.sleep(0.3)
            early = [row(rt, name).status for name in names]
            go_on.set()
            return early

        *words, early = at_once(3, work)

        assert early == ["running"] * 2
        assert words == ["completed"] * 2
        assert [message.parts[-1].state for name in "ab" for message in clerk(rt, name).messages[-1:]] == [
            "done"
        ] * 2
