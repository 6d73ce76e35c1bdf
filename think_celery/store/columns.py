"""What the tables are made of: their metadata, and the types that many columns have."""

from sqlalchemy import BigInteger, Index, Integer, MetaData, String, text

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Name = String(200)
Id = String(200)
Sequence = BigInteger().with_variant(Integer, "sqlite")


def partial(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """An index of the rows for which *where* holds."""
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))
