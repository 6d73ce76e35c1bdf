"""The demo from its options to its end: one process with a worker, the tick and a model in it."""

import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery
from rich.console import Console
from rich.text import Text

from think_celery import providers
from think_celery.app import ThinkCelery
from think_celery.clock import SystemClock
from think_celery.demo import surroundings
from think_celery.demo.agents import TriageAgent, TriageWorkflow
from think_celery.demo.desk import Desk, open_desk
from think_celery.demo.offline import MODEL, offline_model
from think_celery.demo.reports import Report, read_files, samples
from think_celery.demo.show import Screen, count, show_results
from think_celery.demo.watch import Phase, Watch
from think_celery.embedded import embedded
from think_celery.memory import default_to_memory
from think_celery.runtime import Runtime
from think_celery.settings import Settings

LOOK_SECONDS = 0.05
QUEUE = "think-demo"
AHEAD = 2
"""How many reports are under way beyond those whose turns can run at once."""

BUSY = {Phase.QUEUED, Phase.WORKING}
OK, FAILED, UNUSABLE, STOPPED = 0, 1, 2, 130
"""Exit codes; the last is what shells expect of a process that Ctrl-C ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the demo is asked for. ``state`` and ``out`` are made up where they are not given.

    ``approve`` is ``ask``, ``all`` or ``none``. ``model`` is a name such as ``openai/gpt-5-mini``; without
    one the offline model answers, which takes ``pace`` seconds for each piece of an answer.
    """

    files: Sequence[Path] = ()
    state: Path | None = None
    out: Path | None = None
    approve: str = "all"
    model: str | None = None
    base_url: str | None = None
    concurrency: int = 4
    pace: float = 0.02


def run(options: Options, console: Console) -> int:
    """Triage the reports, show how it goes, and return the exit code.

    Raises:
        InvalidReport: A report or folder can't be used; nothing was started.
        NoModel, InvalidSetting: The named model can't be used; nothing was started.
    """
    given = read_files(options.files)
    model = _model_settings(options, os.environ)
    desk = open_desk(options.state or Path(tempfile.mkdtemp(prefix="think-demo-")), options.out)
    reports = desk.take_in(given or ([] if desk.reports() else samples()))
    with ExitStack() as stack:
        stack.enter_context(surroundings.own_environment())
        stack.enter_context(surroundings.logging_into(desk.folder / "demo.log"))
        stack.enter_context(surroundings.at_desk(desk))
        stack.enter_context(surroundings.without_warnings_to_root())
        stack.enter_context(surroundings.terminated_like_ctrl_c())
        if not model:
            url = stack.enter_context(offline_model(desk.request_log, pace=options.pace))
            model = _settings(MODEL, "offline", url)
        think = ThinkCelery(_celery_app(desk, model))
        try:
            return Demo(think.runtime, desk, reports, options, console).run(think)
        finally:
            think.runtime.close()


def _model_settings(options: Options, environ: Mapping[str, str]) -> dict[str, Any]:
    """The settings of the model that was named, checked; none where the offline one shall answer."""
    if options.model is None:
        return {}
    of_models = {name: value for name, value in environ.items() if "OPENAI_" in name or "ANTHROPIC_" in name}
    checked = Settings.from_mapping(_settings(options.model, None, options.base_url), of_models)
    providers.of_settings(checked.model, checked)
    vendor = _vendor(options.model)
    key, url = getattr(checked, f"{vendor}_api_key"), getattr(checked, f"{vendor}_base_url")
    return _settings(checked.model, key, url)


def _settings(model: str | None, key: str | None, url: str | None) -> dict[str, Any]:
    vendor = _vendor(model)
    return {"think_model": model, f"think_{vendor}_api_key": key, f"think_{vendor}_base_url": url}


def _vendor(model: str | None) -> str:
    return "anthropic" if (model or "").startswith("anthropic/") else "openai"


def _celery_app(desk: Desk, model: Mapping[str, Any]) -> Celery:
    app = Celery("think_celery_demo", set_as_current=False)
    default_to_memory(app)
    app.conf.update(
        worker_prefetch_multiplier=1,
        task_default_queue=QUEUE,
        think_queue=QUEUE,
        think_database_url=desk.database_url,
        **model,
    )
    return app


class Demo:
    """One run: starts what has not been started, answers what is asked, and shows it."""

    def __init__(
        self, rt: Runtime, desk: Desk, reports: Sequence[Report], options: Options, console: Console
    ) -> None:
        self._rt, self._desk, self._reports = rt, desk, reports
        self._options, self._console = options, console
        self._watch = Watch(rt, desk, reports)
        self._started: set[str] = set()
        self._decided: set[str] = set()
        self._clock = SystemClock()

    def run(self, think: ThinkCelery) -> int:
        """From the first look to the table; returns the exit code."""
        try:
            self._watch.look(everything=True)
            if self._watch.unfinished:
                self._greet()
                with embedded(think, concurrency=self._options.concurrency):
                    return self._work()
            return self._conclude()
        except KeyboardInterrupt:  # while the worker starts, or again while it stops
            self._tell(f"Stopped. Go on with: {self._command()}")
            return STOPPED

    def _work(self) -> int:
        try:
            self._follow()
            return self._conclude()
        except KeyboardInterrupt:
            left = len(self._watch.unfinished)
            total, are = count(len(self._reports), "report"), "is" if left == 1 else "are"
            self._tell(f"Stopping… {left} of {total} {are} not done; nothing is lost.")
            self._tell(f"Go on with: {self._command()}")
            return STOPPED
        except EOFError:
            self._tell("A report needs approval, and nobody is there to answer: standard input has ended.")
            self._tell(f"Go on with: {self._command()} --approve all    (or none)")
            return UNUSABLE

    def _conclude(self) -> int:
        show_results(self._console, self._desk, self._watch.standing)
        self._tell(f"Results: {self._desk.out}")
        self._tell(f"State:   {self._desk.folder} (show it again: {self._command()})")
        failed = any(standing.phase is Phase.FAILED for standing in self._watch.standing.values())
        if failed:
            self._tell("What failed stays so in this folder. To try again, go on in another one:")
            self._tell(f"  {self._command(again=True)}")
        return FAILED if failed else OK

    def _follow(self) -> None:
        with Screen(self._console) as screen:
            while self._watch.unfinished:
                self._start_some()
                self._watch.look()
                screen.update(self._watch.standing)
                for report_id, standing in list(self._watch.standing.items()):
                    if standing.phase is Phase.WAITING and report_id not in self._decided:
                        self._decide(report_id, screen)
                self._clock.sleep(LOOK_SECONDS)
            screen.update(self._watch.standing)

    def _start_some(self) -> None:
        """Start as many as keep the worker busy, so that approvals are not asked behind everybody's first turn."""
        busy = sum(1 for name in self._started if self._watch.standing[name].phase in BUSY)
        for report in self._reports:
            name = report.report_id
            if busy >= self._options.concurrency + AHEAD:
                return
            if name not in self._started and name in self._watch.unfinished:
                TriageAgent._bound_to(self._rt, name).triage(report)  # finds the run of an earlier time
                self._started.add(name)
                busy += 1

    def _decide(self, report_id: str, screen: Screen) -> None:
        mode = self._options.approve
        approved = screen.ask(report_id, self._watch.drafts[report_id]) if mode == "ask" else mode == "all"
        where = (
            "at the terminal"
            if mode == "ask"
            else f"by --approve {mode} (the demo itself, in place of a person)"
        )
        reason = f"{'approved' if approved else 'refused'} {where}"
        TriageAgent._bound_to(self._rt, report_id).send_workflow_event(
            TriageWorkflow,
            report_id,
            type="approval",
            payload={"approved": approved, "reason": reason},
            idempotency_key="decision",
        )
        self._decided.add(report_id)

    # --- words ------------------------------------------------------------------------------------

    def _greet(self) -> None:
        model = self._options.model or "the offline model (rules, no network)"
        reports = count(len(self._reports), "report")
        self._tell(f"Triaging {reports} with {model}; the rows are in {self._desk.folder}")

    def _command(self, *, again: bool = False) -> str:
        """What goes on here, or takes the reports to a new folder *again*."""
        folder = str(self._desk.folder)
        words = ["think-celery", "demo"]
        words += (
            [str(self._desk.reports_file), "--state", f"{folder}-again"] if again else ["--state", folder]
        )
        if self._options.model:
            words += ["--model", self._options.model]
        if self._options.base_url:
            words += ["--base-url", self._options.base_url]
        return shlex.join(words)

    def _tell(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)
