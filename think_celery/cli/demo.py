"""``think-celery demo``."""

import sys
from pathlib import Path
from typing import Any

import click

from think_celery.cli.common import name_database


class Folder(click.Path):
    """A folder's path; none is not the one where one stands."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        if value == "":
            self.fail("it is empty. Name a folder, or leave the option away.", param, ctx)
        return super().convert(value, param, ctx)


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--state",
    type=Folder(),
    help="Keep the rows here, and go on with what lies here. Without it: a new folder.",
)
@click.option(
    "--out",
    type=Folder(),
    help="Where the results go. Without it: `results` in the state folder.",
)
@click.option(
    "--approve",
    type=click.Choice(["ask", "all", "none"]),
    help="What becomes of reports of high severity. Without it: ask on a terminal, else all.",
)
@click.option(
    "--model",
    metavar="NAME",
    help="A real model, such as openai/gpt-5-mini; needs OPENAI_API_KEY (anthropic/…: ANTHROPIC_API_KEY).",
)
@click.option("--base-url", metavar="URL", help="Another server that speaks OpenAI's chat completions.")
@click.option(
    "--concurrency", type=click.IntRange(1, 64), default=4, show_default=True, help="Turns at once."
)
@click.option(
    "--pace",
    type=click.FloatRange(0, 10),
    default=0.02,
    show_default=True,
    help="Seconds that the offline model takes for each piece of an answer.",
)
@click.pass_context
def demo(
    ctx: click.Context,
    files: tuple[Path, ...],
    state: Path | None,
    out: Path | None,
    approve: str | None,
    model: str | None,
    base_url: str | None,
    concurrency: int,
    pace: float,
) -> None:
    """Triage issue reports, with no server and no key.

    FILES are JSONL (.jsonl, one report a line: {"id": …, "title": …, "text": …}) or Markdown or plain text
    (.md, .txt, one report each); without any, the reports that come with the package, or those that lie in
    --state already.

    Reports of high severity need approval, as a person would give it in a real app: on a terminal the demo asks you,
    elsewhere, or with --approve, it decides itself.

    Kill it at any moment, even with kill -9, and start it again with the same --state: it goes on where
    it was.
    """
    if base_url and not model:
        raise click.UsageError("--base-url says where --model is; give --model openai/NAME, too.")
    from rich.console import Console

    from think_celery.demo.run import Options, run

    if state is not None:
        name_database(state / "think.db", "Choose another --state folder, or remove that file to begin anew.")
    console = Console(highlight=False)
    terminal = console.is_terminal and sys.stdin.isatty()
    options = Options(
        files=files,
        state=state,
        out=out,
        approve=approve or ("ask" if terminal else "all"),
        model=model,
        base_url=base_url,
        concurrency=concurrency,
        pace=pace,
    )
    ctx.exit(run(options, console))
