"""Accepting a submission, and what follows from it: its message in the broker."""

import threading
from collections.abc import Iterator

from benchmarks.figures import Row, Size, check, in_turn, per_second, ratio_at_least, until
from benchmarks.floors import COMMIT_AND_PUBLISH, Floors
from benchmarks.place import Place, Scene
from benchmarks.project import Answer1

AGENTS = 50


def measure(place: Place, size: Size) -> Iterator[Row]:
    """With no worker: rows and messages stay, and are counted. The floor commits a row and publishes, too."""
    count = size.pick(16, 400, 2000)
    with place.scene() as scene:
        floors = Floors(scene)
        accepting = Accepting(scene)
        for threads, budget in ((1, ratio_at_least(0.7)), (8, None)):
            floor, ours = in_turn(
                size,
                lambda _, threads=threads: floors.commits_and_publishes(count, threads),
                lambda _, threads=threads: accepting.rate(count, threads),
            )
            who = "one client" if threads == 1 else f"{threads} threads"
            yield Row(
                what=f"accept a submission, {who}",
                unit="/s",
                ours=ours,
                floor=floor,
                floor_name=COMMIT_AND_PUBLISH.replace("one client", who),
                budget=budget,
            )


class Accepting:
    """Submits to agents in turn, and counts what is there afterwards."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._stored = scene, 0

    def rate(self, count: int, threads: int) -> float:
        """So many submissions by so many threads at once, a second, until the last message is in the broker."""
        each = count // threads
        count = each * threads

        def submit(first: int) -> None:
            for number in range(first, first + each):
                self._scene.agent(Answer1, f"agent-{number % AGENTS}").submit_messages("Triage this report.")

        def all_of_them() -> None:
            if threads == 1:
                submit(0)
            else:
                running = [
                    threading.Thread(target=submit, args=(each * number,)) for number in range(threads)
                ]
                for thread in running:
                    thread.start()
                for thread in running:
                    thread.join()
            # Publishing goes on beside the callers; it is part of what accepting costs.
            until(lambda: self._scene.waiting() == count, 10, f"{count} messages in the broker", every=0.001)

        figure = per_second(count, all_of_them)
        self._stored += count
        rows = self._scene.ask("SELECT count(*) FROM think_submissions WHERE status = 'pending'")
        check(rows == self._stored, f"{rows} rows of {self._stored}")
        self._scene.purge()
        return figure
