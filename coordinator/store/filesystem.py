"""Refuses directories on filesystems where locks and fsync cannot be trusted."""

import os
import re
from pathlib import Path

from onceward.coordinator.store.errors import StoreUnusableError

__all__ = ["filesystem_of", "refuse_network_filesystem"]

_MOUNTS = Path("/proc/self/mounts")

# 9p and virtiofs are not listed: sandboxes and virtual machines use them to give a guest its own local disk. WSL shows
# folders of Windows by 9p, and names their driver.
_NETWORK = frozenset(
    "nfs nfs4 cifs smb smbfs smb3 afs ncpfs ncp coda ceph glusterfs lustre gpfs beegfs orangefs pvfs2 ocfs2 gfs2 "
    "fuse.sshfs fuse.glusterfs fuse.ceph fuse.s3fs fuse.gcsfuse fuse.rclone fuse.davfs davfs fuse.juicefs drvfs "
    # folders of the host: VirtualBox, Parallels, Docker Desktop
    "vboxsf prl_fs fuse.grpcfuse fuse.osxfs fakeowner".split()
)
_WINDOWS = re.compile(r"(^|[,;])aname=drvfs\b")


def filesystem_of(directory: Path, mounts: str) -> str | None:
    """Type of the filesystem that holds ``directory``, from the text of ``/proc/mounts``; None if not listed."""
    place = os.path.realpath(directory)
    best, kind = "", None
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # a later mount on the same point hides the earlier one
            best, kind = point, fields[2]
            if kind == "9p" and len(fields) > 3 and _WINDOWS.search(fields[3]):
                kind = "drvfs"
    return kind


def refuse_network_filesystem(directory: Path, mounts: str | None = None) -> None:
    """Raise StoreUnusableError if ``directory`` is on a network filesystem. Accepts every directory if the system has
    no list of mounts."""
    if mounts is None:
        try:
            mounts = _MOUNTS.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
    kind = filesystem_of(directory, mounts)
    if kind in _NETWORK:
        raise StoreUnusableError(
            f"The directory {directory} is on a network filesystem ({kind}), where locks and flushed writes cannot be "
            "trusted: a decision could be lost or made twice. Nothing was started. Put the store on a local disk."
        )
