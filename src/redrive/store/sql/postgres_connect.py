"""How PostgreSQL is connected to: the parameters of a URL, several hosts, poolers in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.pq import TransactionStatus
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import URL

from .postgres_pool import Hot
from .urls import Pooler

# A peer that is gone without a word (a host that died, a firewall that forgot) is noticed within half a minute, where
# the system would take hours.
DEFAULTS: Mapping[str, Any] = {
    "application_name": "redrive",
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


def parameters(url: URL) -> dict[str, Any]:
    """What the driver is given; what the URL says beats our defaults."""
    given: dict[str, Any] = PGDialect_psycopg().create_connect_args(url)[1]  # type: ignore[no-untyped-call]
    known = dict(DEFAULTS)
    if "," in str(given.get("host", "")):
        known["target_session_attrs"] = "read-write"  # after a failover the new primary, wherever it is in the list
    return known | given


def pooled(connection: Hot, pooler: Pooler) -> bool:
    """Whether statements of this connection may run on different server connections.

    A pooler in between (PgBouncer and its like) makes up the process id that it tells its clients; the server tells
    the true one. A pooler's mode cannot be seen: that of transactions is assumed unless ``pooler`` says otherwise.
    """
    if pooler != "auto":
        return pooler == "transaction"
    told = connection.info.backend_pid
    ((true,),) = connection.execute("SELECT pg_backend_pid()").fetchall()
    if connection.info.transaction_status != TransactionStatus.IDLE:
        connection.rollback()
    return bool(told != true)
