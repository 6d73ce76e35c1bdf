"""Alembic's way into the package. ``store.migrate`` hands it the connection, and with it the transaction."""

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
