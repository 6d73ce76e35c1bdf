"""What a test asks of the journals of workflow runs: what was recorded, and whether today's code still fits it."""

import json
from pathlib import Path
from typing import Any

from think_celery.agents.arguments import Workflow
from think_celery.domain.workflows import recordedruns, replayer
from think_celery.domain.workflows.recordedruns import StepRecord
from think_celery.domain.workflows.replayer import Replayed
from think_celery.errors import InvalidJournal
from think_celery.runtime import Runtime


class Journals:
    """The journals of a test's runs, and those that were exported."""

    rt: Runtime

    def steps(self, workflow_id: str, *, workflow: Workflow | None = None) -> list[StepRecord]:
        """What a run has recorded so far, in the order in which its code asked for it.

        Args:
            workflow_id: The id that ``run_workflow`` returned.
            workflow: The workflow class or its registered name, where several have a run of that id.

        Raises:
            WorkflowNotFound: There is none.
            AmbiguousWorkflow: Several classes have one.
        """
        return list(recordedruns.of_run(self.rt, workflow_id, workflow).steps)

    def replay(self, journal: str | Path, *, workflow: Workflow | None = None) -> Replayed:
        """Run the workflow's class of today over a recorded journal, and make sure that it fits.

        Nothing happens: no step's function is called, no prompt is submitted, no event is taken, nothing is stored.
        (Plain code between the steps runs, as on every replay.) It ends at the first step without a recorded end,
        where the run waits or would go on, or where ``run`` ends.

        Args:
            journal: The id of a run of this test; or the path of an exported one, which ends with ``.json``.
            workflow: The workflow class or its registered name, where several have a run of that id.

        Raises:
            ReplayMismatch: The code asks for another step than is recorded, for one less, or, where the run was
                complete, for one more.
            InvalidJournal: The file holds no journal; or the class is of a version that leaves this run alone.
            UnreadableValue: A recorded value can't be read by the code of today.
            SuspendSwallowed: The code went on where it had to stop.
            UnknownClass: The workflow's class, or its agent's, is not imported.
            WorkflowNotFound, AmbiguousWorkflow: As for :meth:`steps`.
            Exception: What ``run`` raised now, where the recorded run did not.
        """
        if isinstance(journal, Path) or journal.endswith(".json"):
            source = str(journal)
            return replayer.replay_run(self.rt, recordedruns.from_dict(_read(Path(journal)), source), source)
        run = recordedruns.of_run(self.rt, journal, workflow)
        return replayer.replay_run(self.rt, run, str(run.ref))

    def record(self, workflow_id: str, path: str | Path, *, workflow: Workflow | None = None) -> None:
        """Write the journal of a run to a file, in the form in which ``think-celery workflows export`` prints it.

        Raises what :meth:`steps` raises.
        """
        exported = recordedruns.to_dict(recordedruns.of_run(self.rt, workflow_id, workflow))
        text = json.dumps(exported, ensure_ascii=False, indent=2)
        try:
            written = text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair is in it
            written = json.dumps(exported, indent=2).encode()
        Path(path).write_bytes(written + b"\n")


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidJournal(str(path), "there is no such file") from None
    except ValueError as error:
        raise InvalidJournal(str(path), f"it is no JSON ({error})") from None
