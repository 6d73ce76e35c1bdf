"""Following a turn while it happens: what listeners see, in which order, and what they are never told."""

import sys
import threading
from collections.abc import Callable
from itertools import islice, pairwise
from typing import Any

import pytest

from tests.domain.flows import worker
from tests.domain.talk import ask, now, shape, talker
from think_celery.domain.conversation import listening
from think_celery.domain.conversation.live import LiveEvent, LiveTurn
from think_celery.domain.submissions import claims
from think_celery.errors import InsideTransaction, SubmissionNotFound
from think_celery.events.writer import LiveWriter
from think_celery.protocols import Cursor, Finish, Frame, Page, TextDelta, Usage
from think_celery.providers.scripted import FunctionModel, call, fail, say
from think_celery.store import messages as message_rows
from think_celery.store.joined import joined
from think_celery.store.tables import live as frames_table
from think_celery.store.tables import submissions as submission_rows


def listen(t: Any, agent: Any, submission_id: str | None = None) -> Any:
    return listening.listen(t.rt, agent._ref, submission_id)


def frame(
    t: Any, agent: Any, n: int, event: dict[str, Any], *, token: int = 1, first: int | None = None, **ids: str
) -> None:
    """Put one frame into the log, as a writer may."""
    named = {"submission_id": "s", "message_id": "m", **ids}
    first = n if first is None else first
    t.rt.live.put(Frame(agent_id=agent._ref.id, token=token, first=first, n=n, event=event, **named))


def delta(text: str) -> dict[str, Any]:
    return {"type": "text-delta", "id": "text-1", "delta": text}


def said(events: list[LiveEvent]) -> str:
    """The text as a listener shows it: a snapshot or a reset voids what was shown before."""
    text = ""
    for event in events:
        text = event.text if event.type in ("snapshot", "reset") else text + event.text
    return text


class TestOneTurn:
    def test_from_the_first_frame_to_done(self, t):
        """`listen(submission_id)` gives the frames in order, and ends with done and the status."""
        agent = talker(add)("a")
        t.script(agent, call("add", {"a": 1, "b": 2}), say("It is 3."))
        submission = agent.submit_messages("Go")
        following = listen(t, agent, submission.submission_id)
        t.run_until_idle()

        events = list(following)

        assert events[-1].type == "done"
        assert events[-1].data["status"] == "completed"
        assert said(events) == "It is 3."
        assert [e.type for e in events if e.type.startswith("tool")][-1] == "tool-output-available"
        assert {e.message_id for e in events} == {now(agent, submission).message_id}

    def test_after_its_end(self, t):
        """Whoever comes late gets the stored answer and the end."""
        agent = talker()("a")
        t.script(agent, say("Hello"))
        done = ask(t, agent)

        events = list(listen(t, agent, done.submission_id))

        assert [(e.type, e.text) for e in events] == [("snapshot", "Hello"), ("done", "")]

    def test_of_a_turn_that_never_began(self, t):
        """A cancelled one has no frame at all; its end comes from the database."""
        agent = talker()("a")
        submission = agent.submit_messages("Go")
        following = listen(t, agent, submission.submission_id)
        agent.cancel_submission(submission.submission_id)

        assert [(e.type, e.data["status"]) for e in following] == [("done", "aborted")]

    def test_when_the_log_lost_everything(self, t):
        """The log may lose frames; the text and the end come from the database within 5 s."""
        agent = talker()("a")
        t.script(agent, say("Hello"))
        submission = agent.submit_messages("Go")
        following = listen(t, agent, submission.submission_id)
        t.run_until_idle()
        t.rt.db.transact(lambda tx: tx.execute(frames_table.delete()))
        began = t.clock.elapsed()

        events = list(following)

        assert [(e.type, e.text) for e in events] == [("snapshot", "Hello"), ("done", "")]
        assert t.clock.elapsed() - began <= 5.1

    @pytest.mark.parametrize("when", ["as listening begins", "when the log has lost something"])
    def test_what_was_stored_before_its_frames_are_read_is_not_shown_twice(self, t, when, monkeypatch):
        """A look into the database may find more than the log has told by then; at the end, the text is whole."""
        agent = talker()("a")
        t.script(agent, say("Hello"))
        submission = agent.submit_messages("Go")
        read, head = t.rt.events.read, t.rt.events.head

        def read_after_a_loss(agent_id: str, cursor: Cursor) -> Page:
            monkeypatch.setattr(t.rt.events, "read", read)
            lost = Page((), head(agent_id), lost=True)
            t.run_until_idle()
            return lost

        def head_before_the_turn(agent_id: str) -> Cursor:
            before = head(agent_id)
            t.run_until_idle()
            return before

        monkeypatch.setattr(listening, "_ended", lambda *_: None)  # its end is stored just after each look
        if when == "as listening begins":
            monkeypatch.setattr(t.rt.events, "head", head_before_the_turn)
        following = listen(t, agent, submission.submission_id)
        if when == "when the log has lost something":
            monkeypatch.setattr(t.rt.events, "read", read_after_a_loss)

        events = list(following)

        assert [event.type for event in events].count("text-delta") >= 1
        assert ("snapshot" in {event.type for event in events}) is (when != "as listening begins")
        assert (said(events), events[-1].type) == ("Hello", "done")

    def test_when_only_its_end_is_lost_and_the_agent_goes_on(self, t):
        """The frames of later turns do not hide that this one has ended."""
        agent = talker()("a")

        def respond(request: Any) -> Any:
            yield TextDelta(request.messages[-1].text)
            yield Finish("stop", None, Usage())

        t.use_model(FunctionModel(respond), agent)
        first, second = agent.submit_messages("1"), agent.submit_messages("2")
        following = listen(t, agent, first.submission_id)
        assert t.rt.db.read(lambda tx: message_rows.of(tx, agent._ref.id)) == []
        lost, put = [], t.rt.live.put

        def lossy(each: Frame) -> None:
            is_end = each.event["type"] == "done" and each.submission_id == first.submission_id
            (lost.append if is_end else put)(each)

        t.rt.live.put = lossy
        t.run_until_idle()
        endless = threading.Event()

        def chatter(seconds: float, signal: Any = None, sleep: Callable[..., None] = t.clock.sleep) -> None:
            sleep(seconds)
            assert not endless.is_set()
            if t.clock.elapsed() > 60:
                endless.set()
            n = int(t.clock.elapsed() * 1000)
            put(Frame(agent_id=agent._ref.id, submission_id=second.submission_id, message_id="x", token=9,
                      first=n, n=n, event=delta("…")))  # fmt: skip

        t.clock.sleep = chatter

        events = list(following)

        assert len(lost) == 1
        assert said(events) == "1"
        assert events[-1].data["status"] == "completed"

    def test_of_another_agent(self, t):
        """The submission must be the agent's own; nobody waits in the wrong log for ever."""
        agent = talker()
        submission = agent("a").submit_messages("Go")

        for wrong in (submission.submission_id, "nothing"):
            with pytest.raises(SubmissionNotFound):
                listen(t, agent("b"), wrong)

    def test_inside_a_joined_transaction(self, t):
        """What it waits for can't begin before the caller commits."""
        with t.rt.db.engine.begin() as connection, joined(t.rt.db, connection):
            with pytest.raises(InsideTransaction):
                listen(t, talker()("a"))

    def test_retries_void_what_was_shown(self, t):
        """After a failed attempt a listener who obeys resets shows only the answer."""
        agent = talker()("a")
        t.script(agent, [say("Half an"), fail("busy", retryable=True)], say("Whole"))
        submission = agent.submit_messages("Go")
        following = listen(t, agent, submission.submission_id)
        t.run_until_idle()

        events = list(following)

        assert said(events) == "Whole"
        assert "reset" in [e.type for e in events]

    def test_a_takeover_voids_what_was_shown(self, t):
        """Recovery reads only what is stored; listeners that obey show that."""
        agent = talker()("a")
        t.script(agent, say("Hello"), say("Hello again"))
        t.crash_at("turn:streaming")
        submission = agent.submit_messages("Go")
        following = listen(t, agent, submission.submission_id)
        t.run_until_idle()

        assert said(list(following)) == "Hello again"


def add(a: int, b: int) -> int:
    return a + b


class TestFrames:
    """What a reader makes of a log in which anything may be missing, late or another writer's."""

    @pytest.fixture
    def agent(self, quick):
        agent = talker()("a")
        quick.script(agent, say("stored"))
        self.done = ask(quick, agent)
        return agent

    def test_lower_tokens_are_dropped(self, quick, agent):
        """A worker that was taken over from may still write frames; nobody sees them."""
        following = listen(quick, agent)
        frame(quick, agent, 1, delta("a"), token=2)
        frame(quick, agent, 7, delta("ghost"), token=1)
        frame(quick, agent, 2, delta("b"), token=2)
        frame(quick, agent, 1, delta("c"), token=3)
        frame(quick, agent, 3, delta("ghost"), token=2)
        frame(quick, agent, 2, delta("d"), token=3)

        assert [e.text for e in islice(following, 4)] == ["a", "b", "c", "d"]

    def test_repeated_frames_are_dropped(self, quick, agent):
        """A frame that is in the log twice is shown once."""
        following = listen(quick, agent)
        for n, text in [(1, "a"), (1, "a"), (2, "b")]:
            frame(quick, agent, n, delta(text))

        assert [e.text for e in islice(following, 2)] == ["a", "b"]

    def test_merged_frames_are_no_gap(self, quick, agent):
        """A frame spans `first` to `n`."""
        following = listen(quick, agent)
        frame(quick, agent, 1, delta("a"))
        frame(quick, agent, 4, delta("bcd"), first=2)
        frame(quick, agent, 5, delta("e"))

        assert [e.type for e in islice(following, 3)] == ["text-delta"] * 3

    @pytest.mark.parametrize("ended", [False, True])
    @pytest.mark.parametrize("token", [1, 2])
    def test_a_gap_gives_a_snapshot(self, quick, agent, token, ended):
        """Missing numbers mean lost frames, also at the beginning of a takeover: the stored message is shown.

        If the turn has ended, that is all of it.
        """
        if not ended:
            runs = submission_rows.update().values(status="running")
            quick.rt.db.transact(lambda tx: tx.execute(runs))
            quick.rt.events.forget(agent._ref.id)
        ids = {"submission_id": self.done.submission_id, "message_id": self.done.message_id}
        following = listen(quick, agent)
        frame(quick, agent, 1, delta("a"), **ids)
        frame(quick, agent, 5, delta("e"), token=token, **ids)

        assert [(e.type, e.text) for e in islice(following, 3)] == [
            ("text-delta", "a"),
            ("snapshot", "stored"),
            ("done", "") if ended else ("text-delta", "e"),
        ]

    def test_the_end_of_a_turn_that_nobody_has_heard_of(self, quick, agent):
        """Its last words come without what was before them, for it had ended: its listener gets the stored text."""
        ids = {"submission_id": self.done.submission_id, "message_id": self.done.message_id}
        following = listen(quick, agent)
        frame(quick, agent, 3, delta("in the middle"), **ids)
        frame(quick, agent, 4, {"type": "done", "status": "completed"}, **ids)
        agent.broadcast("next")

        assert [(e.type, e.text) for e in islice(following, 3)] == [
            ("snapshot", "stored"),
            ("done", ""),
            ("broadcast", "next"),
        ]

    def test_after_a_gap_the_end_brings_the_whole_text(self, quick, agent, monkeypatch):
        """Whatever was lost: at `done` a listener shows what is stored."""
        ids = {"submission_id": self.done.submission_id, "message_id": self.done.message_id}
        monkeypatch.setattr(listening, "_ended", lambda *_: None)  # it ends just after the look
        following = listen(quick, agent)
        frame(quick, agent, 3, delta("in the middle"), **ids)
        frame(quick, agent, 4, {"type": "done", "status": "completed"}, **ids)

        events = list(islice(following, 4))

        assert [e.type for e in events] == ["snapshot", "text-delta", "snapshot", "done"]
        assert said(events) == "stored"

    def test_nothing_follows_the_end(self, quick, agent):
        """Late frames of an ended message are dropped, whoever writes them."""
        following = listen(quick, agent)
        frame(quick, agent, 1, {"type": "done", "status": "completed"})
        frame(quick, agent, 2, delta("ghost"))
        frame(quick, agent, 1, delta("next"), message_id="m2", submission_id="s2")

        assert [e.type for e in islice(following, 2)] == ["done", "text-delta"]

    def test_an_agents_listener_gets_the_end_of_a_silent_turn(self, quick, agent):
        """A message that is open and silent for 5 s is asked for in the database."""
        ids = {"submission_id": self.done.submission_id, "message_id": self.done.message_id}
        following = listen(quick, agent)
        frame(quick, agent, 1, delta("a"), **ids)

        events = list(islice(following, 3))

        assert [e.type for e in events] == ["text-delta", "snapshot", "done"]
        assert said(events) == "stored"

    def test_what_was_told_whole_is_not_told_again(self, quick, agent):
        """The log has lost no more than the end of the turn: that is told, and the text not a second time."""
        ids = {"submission_id": self.done.submission_id, "message_id": self.done.message_id}
        following = listen(quick, agent)
        frame(quick, agent, 1, delta("sto"), **ids)
        frame(quick, agent, 2, delta("red"), **ids)

        assert [(e.type, e.text) for e in islice(following, 3)] == [
            ("text-delta", "sto"),
            ("text-delta", "red"),
            ("done", ""),
        ]

    def test_frames_that_come_after_what_is_stored(self, quick, agent, monkeypatch):
        """They were long on their way, and begin at the beginning: what was told before is void."""
        ids = {"submission_id": self.done.submission_id, "message_id": self.done.message_id}
        monkeypatch.setattr(listening, "_ended", lambda *_: None)  # as a turn that runs
        quick.rt.events.forget(agent._ref.id)
        following = listen(quick, agent, self.done.submission_id)
        told = [next(following)]
        for n, text in enumerate(("sto", "red"), 1):
            frame(quick, agent, n, delta(text), **ids)
        frame(quick, agent, 3, {"type": "done", "status": "completed"}, **ids)
        told += following

        assert [e.type for e in told] == ["snapshot", "reset", "text-delta", "text-delta", "done"]
        assert said(told) == "stored"

    def test_a_trimmed_log(self, quick, agent):
        """A cursor below the edge gets a new snapshot, never silence."""
        submission = agent.submit_messages("More")
        following = listen(quick, agent, submission.submission_id)
        quick.script(agent, say("new"))
        quick.run_until_idle()
        quick.clock.sleep(3600)
        quick.rt.events.trim()
        began = quick.clock.elapsed()

        assert said(list(following)) == "new"
        assert quick.clock.elapsed() - began < 1

    def test_numbers_count_up_over_threads(self, quick, agent):
        """Tools write from threads of their own: each frame has a number of its own, in the order of the log."""
        frames: list[Frame] = []
        quick.rt.live.put = frames.append
        broadcast = LiveTurn(quick.rt, agent._ref.id, "s", "m", 1)
        threads = [
            threading.Thread(target=lambda: [broadcast.put(delta("x")) for _ in range(500)]) for _ in range(8)
        ]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)

        assert [each.n for each in frames] == list(range(1, 4001))

    def test_text_that_grows_and_results_of_tools_are_numbered_in_their_order(self, quick, agent):
        """Text goes into the frame that waits, results stand between: no number twice, none missing, no text lost."""
        frames: list[Frame] = []

        class Log:
            append = staticmethod(frames.extend)

        quick.rt.live = LiveWriter(Log(), gather_seconds=0.001, limit_seconds=60)
        turn = LiveTurn(quick.rt, agent._ref.id, "s", "m", 1)

        def write() -> None:
            for n in range(3000):
                turn.put(delta(f"{n} "))

        def show(tool: int) -> None:
            for n in range(300):
                turn.put({"type": "shown", "of": [tool, n]}, {"type": "shown again", "of": [tool, n]})

        threads = [threading.Thread(target=show, args=(tool,)) for tool in range(3)]
        threads.append(threading.Thread(target=write))
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
            assert quick.rt.live.close(30)

        spans = [(each.first, each.n) for each in frames]
        assert all(after[0] == before[1] + 1 for before, after in pairwise(spans))
        assert (spans[0][0], spans[-1][1]) == (1, 3000 + 3 * 300 * 2)
        assert "".join(each.event.get("delta", "") for each in frames).split() == [
            str(n) for n in range(3000)
        ]
        shown = [each.event["of"] for each in frames if "of" in each.event]
        assert shown[::2] == shown[1::2], "something came between what was put together"


@pytest.mark.parametrize("rounds", [100])
def test_done_means_visible(database_url, rounds):
    """FR-56: whoever sees `done` finds the answer, over another connection, each of 100 times on each database."""
    with worker(database_url) as rt, worker(database_url) as reader:
        rt.live = LiveWriter(rt.events, synchronous=True, limit_seconds=60)  # no frame is given up
        agent = talker(model=FunctionModel(lambda request: say(f"answer to {request.messages[-1].text}")))(
            "a"
        )
        here, there = agent._bound_to(rt, "a"), agent._bound_to(reader, "a")
        accepted = [here.submit_messages(f"q{n}", submission_id=f"s{n}") for n in range(rounds)]
        wrong: list[Any] = []
        ready = threading.Event()

        def follow() -> None:
            ended = 0
            following = there.listen()
            ready.set()
            for event in following:
                if event.type != "done":
                    continue
                found = there.inspect_submission(event.submission_id)
                answer = there.messages[2 * ended + 1 : 2 * ended + 2]
                expected = ["|", f"answer to q{ended}"]
                if found.status != "completed" or not answer or shape(answer[0]) != expected:
                    wrong.append((event, found.status, answer))
                ended += 1
                if ended == rounds:
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        ready.wait(5)
        words = [claims.run(rt, submission.submission_id).word for submission in accepted]
        thread.join(60)

        assert words == ["completed"] * rounds
        assert not thread.is_alive()
        assert wrong == []


def test_a_whole_turn_while_the_log_is_away(t):
    """Whoever listens to the agent hears of it from the database: its answer, and that it is done; once."""
    agent = talker()("a")
    t.script("Talker", say("Hello"), say("Again"))
    listener, put = agent.listen(), t.rt.live.put
    t.rt.live.put = lambda frame: None
    first = ask(t, agent)
    t.rt.live.put = put

    shown, done = next(listener), next(listener)
    assert (shown.type, shown.text) == ("snapshot", "Hello")
    assert (done.type, done.submission_id, done.data["status"]) == ("done", first.submission_id, "completed")

    second = ask(t, agent)
    rest = []
    for event in listener:
        rest.append(event)
        if event.type == "done":
            break
    assert rest[-1].submission_id == second.submission_id
    assert {event.submission_id for event in rest} == {second.submission_id}
