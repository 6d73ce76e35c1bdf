"""``python -m think_celery.cli``: the command line, where no script was installed."""

from think_celery.cli.main import main

main(prog_name="think-celery")
