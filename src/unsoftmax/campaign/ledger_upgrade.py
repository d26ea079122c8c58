"""A ledger of format 1 becomes one of format 2, in the commit of the run that takes it over."""

from __future__ import annotations

import secrets
import sqlite3

from unsoftmax.campaign.ledger_format import FORMAT_1, SCHEMA, Totals, insertion
from unsoftmax.campaign.ledger_health import TableWalk, is_old


def upgrade(db: sqlite3.Connection) -> None:
    """Rewrite the tables, whose rows get their checksums now; a file of today's is left alone."""
    if not is_old(db):
        return
    rows = {table: list(TableWalk(db, table)) for table in FORMAT_1}
    for table in FORMAT_1:
        db.execute(f"DROP TABLE {table}")
    for statement in SCHEMA.split(";"):
        db.execute(statement)
    db.execute(*insertion("file", secrets.token_hex(8), 0, 0, *Totals()))
    for table, known in rows.items():
        for row in known:
            db.execute(*insertion(table, *row))
