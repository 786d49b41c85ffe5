"""What a database URL may be beyond what SQLAlchemy reads; needs no driver."""

from __future__ import annotations

import re
from typing import Literal

Pooler = Literal["auto", "transaction", "session"]
"""What stands before a PostgreSQL server: to be found out, or what it does if the user says so."""

_LISTED = re.compile(r"^([a-z0-9+]+://(?:[^@/?]*@)?)([^@/?]*,[^@/?]*)(/[^?]*)?(?:\?(.*))?$", re.DOTALL)
_HOST = re.compile(r"^(\[[^\]]*\]|[^:]*)(?::(\d+))?$")


def listed(url: str) -> str:
    """``postgresql://user@one:5432,two:5433/name``, as libpq knows it, in the form that SQLAlchemy reads.

    Any other URL is returned as it is.
    """
    whole = _LISTED.match(url)
    if whole is None or not url.startswith("postgres"):
        return url
    hosts = [_HOST.match(host) for host in whole[2].split(",")]
    if not all(hosts):
        return url  # for its reader to refuse
    names = ",".join(found[1].strip("[]") for found in hosts if found)
    ports = ",".join(found[2] or "5432" for found in hosts if found)
    query = f"host={names}&port={ports}" + (f"&{whole[4]}" if whole[4] else "")
    return f"{whole[1]}{whole[3] or '/'}?{query}"
