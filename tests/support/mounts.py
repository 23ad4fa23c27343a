"""Real file systems for tests: the machine's own, tmpfs, and images that root can mount.

An image is mounted in a mount namespace of this process and its children alone: when they end,
whichever way, the kernel takes the mount and its loop device back. What cannot be had here is told
by `Unavailable`, with the reason.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = "here"
KINDS = (HERE, "tmpfs", "ext4", "xfs", "btrfs", "overlay")
# The least that each of them can be: the image is sparse, and mostly stays so.
_IMAGE_BYTES = {"ext4": 64 << 20, "xfs": 300 << 20, "btrfs": 128 << 20}
_MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-m", "0"],
    "xfs": ["mkfs.xfs", "-q"],
    "btrfs": ["mkfs.btrfs", "-q"],
}
_CLONE_NEWNS = 0x00020000


class Unavailable(Exception):
    """A file system that this machine or this user cannot have."""


def mount(kind: str, folder: Path) -> Path:
    """Mounts an empty file system somewhere in an empty folder; returns where.

    The machine's own is a directory elsewhere: the folder may be in memory.
    """
    if kind == HERE:
        return _folder_on_disk()
    _enter_namespace()
    target = folder / "mount"
    target.mkdir()
    if kind == "tmpfs":
        _run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(target))
    elif kind == "overlay":
        _mount_overlay(folder, target)
    else:
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(_IMAGE_BYTES[kind])
        _run(*_MAKE[kind], str(image))
        _run("mount", "-t", kind, "-o", "loop", str(image), str(target))
    return target


def _folder_on_disk() -> Path:
    """Makes a directory that is not in memory, as that of `tmp_path` is; it goes at the exit."""
    made = tempfile.TemporaryDirectory(prefix="forebay-here-")
    atexit.register(made.cleanup)
    return Path(made.name)


def _mount_overlay(folder: Path, target: Path) -> None:
    """Puts the layers on a tmpfs: one overlay does not take the directories of another."""
    layers = folder / "layers"
    layers.mkdir()
    _run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(layers))
    for name in ("lower", "upper", "work"):
        (layers / name).mkdir()
    options = f"lowerdir={layers}/lower,upperdir={layers}/upper,workdir={layers}/work"
    _run("mount", "-t", "overlay", "-o", options, "overlay", str(target))


@functools.cache
def _enter_namespace() -> None:
    """Returns this process mounts of its own, which go when it ends."""
    if os.geteuid() != 0:
        raise Unavailable("only root can mount a file system")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        raise Unavailable(f"no mount namespace: {errno.errorcode[ctypes.get_errno()]}")
    _run("mount", "--make-rprivate", "/")


def _run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        raise Unavailable(f"{command[0]} is not installed")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise Unavailable(f"{' '.join(command)}: {result.stderr.strip()}")
