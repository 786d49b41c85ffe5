"""The one door for driver errors of SQLite: what happened, and what to do next."""

from __future__ import annotations

import errno
import sqlite3

from redrive.domain.errors import Conflict, NotMigrated, RedriveError, Unavailable

FULL = "the disk is full; nothing was changed. Free some space, then repeat"
_FULL_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def translate(error: sqlite3.Error, path: str) -> RedriveError:
    """The error as callers know it. SQLite's extended codes tell apart what its texts do not."""
    text, code = str(error), getattr(error, "sqlite_errorcode", 0)
    # What could not be written is a disk that is full, or a limit on the size of files; SQLite has rolled back.
    if code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_WRITE:
        return Unavailable(f"{path}: {FULL} ({text})", cause="disk-full")
    if "UNIQUE constraint failed" in text:
        return Conflict(f"{path}: {text}")
    if "no such table" in text or "no such column" in text:
        return NotMigrated(f"{path}: {text}; run `redrive db upgrade`")
    if "readonly" in text:
        return Unavailable(
            f"{path}: {text}; make the file and its folder writable for this user, and the file system too",
            cause="read-only",
        )
    if "unable to open" in text:
        return Unavailable(f"{path}: {text}; check that the folder exists and is writable", cause="file")
    if "locked" in text or "busy" in text:
        return Unavailable(f"{path}: {text}; another program holds the file's lock", cause="busy")
    if "disk I/O" in text:
        return Unavailable(f"{path}: {text}; look into the system's log for what the disk said", cause="file")
    if "not a database" in text or "malformed" in text:
        return Unavailable(f"{path}: {text}; this file is damaged or is no SQLite database", cause="file")
    return RedriveError(f"{path}: {type(error).__name__}: {text}")


def of_system(error: OSError, path: str) -> Unavailable:
    """What the system refused beside the database itself: the files of the turnstile."""
    if error.errno in _FULL_NUMBERS:
        return Unavailable(f"{path}: {FULL}", cause="disk-full")
    cause = "read-only" if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) else "file"
    return Unavailable(f"{path}: {error.strerror}; check that the folder exists and is writable", cause=cause)
