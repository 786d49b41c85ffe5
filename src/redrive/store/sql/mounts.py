"""On which kind of file system a file is: SQLite's write-ahead log cannot be shared over a network."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")

NETWORK = frozenset(
    ["afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "orangefs", "smb3", "smbfs"]
)
"""Without 9p and virtiofs, which mostly lead to a disk of the same machine."""
_FUSE = frozenset(
    ["blobfuse", "ceph", "curlftpfs", "davfs", "gcsfuse", "glusterfs", "juicefs", "rclone", "s3fs", "sshfs"],
)


def network_file_system(path: Path, mounts: Path | None = None) -> str | None:
    """The name of the network file system that ``path`` is on, or would be; None where it is local or not known."""
    try:
        lines = (mounts or MOUNTS).read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return None
    real = path.resolve()
    found, longest = "", -1
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.partition(" ")[0]
        if len(fields) < 5 or not kind:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4]))
        # Of two mounts on one place the later one counts.
        if len(point.parts) >= longest and real.is_relative_to(point):
            found, longest = kind, len(point.parts)
    name = found.removeprefix("fuse.")
    return found if found in NETWORK or (name != found and name in _FUSE) else None
