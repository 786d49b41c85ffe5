"""Workers say which schedules they declare, so that one whose declaration is gone can be told from one that waits."""

import sqlalchemy as sa
from alembic import op

from redrive.store.sql import columns

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("schedules", columns.Json(), nullable=True))
