"""A ledger of an older format becomes one of today's when a run takes it over, in that commit."""

from __future__ import annotations

import secrets
import sqlite3

from unsoftmax.campaign.ledger_format import FORMAT_VERSION, SCHEMA, Totals, columns, insertion
from unsoftmax.campaign.ledger_health import TableWalk, version_of


def upgrade(db: sqlite3.Connection) -> None:
    """Rewrite the tables, whose rows get their checksums now; a file of today's is left alone."""
    version = version_of(db)
    if version == FORMAT_VERSION:
        return
    rows = {table: list(TableWalk(db, table)) for table in columns(version)}
    for table in rows:
        db.execute(f"DROP TABLE {table}")
    for statement in SCHEMA.split(";"):
        db.execute(statement)
    db.execute(*insertion("file", secrets.token_hex(8), 0, 0, *Totals()))
    for table, known in rows.items():
        for row in known:
            db.execute(*insertion(table, *row))
