"""Alembic's way into the package: the connection, and with it the transaction, comes from ``store.migrate``."""

from alembic import context

from think_celery.store.migrate import VERSION_TABLE
from think_celery.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
