"""The only access to the disk, mapped memory included.

Owns every system call that touches a file. All other modules use `Filesystem`, `Directory` and
`File`, so that the tests can substitute a file system that forgets what was not synced, tears and
reorders writes, fails and fills up.

Files are opened relative to a directory descriptor, never through a symbolic link, and must be
regular files with one link: a name in a queue directory that is anything else is rejected.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import pwd
import stat
import struct
import warnings
from collections.abc import Callable
from typing import Protocol

from forebay.errors import InvalidOption, Locked, NotAQueue

_SHARING = "close it there first, or open it with shared=True in every process"
_NO_NAMES = (b"", b".", b"..")
# The kernel lists locks a page at a time: a lock may be missed if others come and go meanwhile.
_LOOKS = 4
_IN_MODIFY, _IN_MOVED_TO, _IN_CREATE = 0x02, 0x80, 0x100
# The watch, the event, a cookie, and the length of the name that follows (see inotify(7)).
_INOTIFY_EVENT = struct.Struct("iIII")
assert _INOTIFY_EVENT.size == 16
# A lock on a range of bytes: type, whence, start, length, process (see F_OFD_SETLK in fcntl(2)).
_RANGE_LOCK = struct.Struct("hhqqi4x")
assert _RANGE_LOCK.size == 32
# File systems on which a store to an allocated, mapped file always has its block, even if the disk
# is full: ext2 to ext4, XFS, tmpfs (see statfs(2)). On a file system that copies on write, a store
# needs a new block, and if there is none the system kills the process.
_MAPPED_STORES = {0xEF53, 0x58465342, 0x01021994}

# See mallopt(3).
_M_ARENA_MAX = -8

Buffer = bytes | bytearray | memoryview
Mapping = mmap.mmap | bytearray


class File(Protocol):
    """An open file.

    After `close` everything except `close` raises `OSError` with EBADF. An error of the system is
    raised unchanged, as an `OSError` with its number. Any thread may call it.
    """

    def pread(self, size: int, position: int) -> bytes:
        """Reads `size` bytes, with as many system calls as it takes; fewer only at the end."""
        ...

    def pwrite(self, data: Buffer, position: int) -> int:
        """Writes some of `data` and returns how many bytes; `write_all` writes all.

        A gap between the old end and `position` is filled with zeros. What was written survives the
        process, and after `sync` a power cut.
        """
        ...

    def sync(self) -> None:
        """Makes content and size durable (`fdatasync`), as they are when it starts; not the name.

        After an error it is unknown what is on the disk: a second try proves nothing.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cuts or extends to `size`; the extension is zeros, never what was cut before."""
        ...

    def allocate(self, position: int, size: int) -> None:
        """Reserves space on the disk; extends the file with zeros and changes none of its content.

        On a full disk it raises, and may leave the file longer than it was.
        """
        ...

    def size(self) -> int:
        """Returns the size in bytes."""
        ...

    def map(self, size: int) -> Mapping:
        """Maps the first `size` bytes for reading and writing; the file must have them.

        The mapping and the file show the same bytes at any time, and a store survives the process.
        Only for allocated files, where `Directory.maps` is true.
        """
        ...

    def lock(self, *, shared: bool = False) -> bool:
        """Takes the lock of the file, if it is free; `close` and the end of the process free it.

        Excludes all other handles, including those of this process. A shared lock excludes only
        exclusive ones.
        """
        ...

    def close(self) -> None:
        """Closes the file; a second call does nothing. A handle that is dropped closes itself."""
        ...


class Directory(Protocol):
    """An open directory.

    Names are plain names in it: a path raises `NotAQueue`, a missing name `FileNotFoundError`.
    After `close` everything except `close` raises `OSError` with EBADF.
    """

    path: str

    @property
    def maps(self) -> bool:
        """Whether a store to an allocated, mapped file cannot fail here.

        Elsewhere a store on a full disk kills the process: use `pwrite` instead.
        """
        ...

    def names(self) -> list[str]:
        """Lists its names, in no particular order.

        The list has every name that was created before the call, and none that was removed before
        it, even by another process and even if other threads list at the same time.
        """
        ...

    def open(self, name: str, *, write: bool = False) -> File:
        """Opens a regular file with one link; anything else raises `NotAQueue`."""
        ...

    def create(self, name: str) -> File:
        """Creates a file for reading and writing; `FileExistsError` if the name is taken."""
        ...

    def rename(self, source: str, target: str, into: Directory | None = None) -> None:
        """Renames atomically, replacing an existing target; `into` moves it to another directory.

        Also moves what is not a regular file. Durable after `sync` of both directories.
        """
        ...

    def unlink(self, name: str) -> None:
        """Removes a name; a process that has the file open keeps it."""
        ...

    def sync(self) -> None:
        """Makes the names durable, as they are when it starts."""
        ...

    def check_there(self) -> None:
        """Raises `FileNotFoundError` if the directory itself was removed: nothing in it lasts."""
        ...

    def directory(self, name: str, *, create: bool = False) -> Directory:
        """Opens a directory in it; anything else, including a link, raises `NotAQueue`."""
        ...

    def lock(self) -> None:
        """Takes the exclusive lock of the directory, or raises `Locked`.

        `close` and the end of the process free it.
        """
        ...

    def close(self) -> None:
        """Closes the directory; a second call does nothing. A dropped handle closes itself."""
        ...


class Filesystem(Protocol):
    """A machine with a disk.

    The tests in `tests/filesystems/` check every implementation against these docstrings.
    """

    def open_directory(
        self, path: str, *, create: bool = False, group_readable: bool = False
    ) -> Directory:
        """Opens a directory; `create` creates it, durably, if it is missing."""
        ...

    def boot_id(self) -> bytes:
        """Returns 16 bytes that change whenever the machine restarts."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """Returns unpredictable bytes."""
        ...


def plain_name(name: str) -> str:
    """Returns the name if it is the plain name of a directory entry; rejects anything else."""
    try:
        plain = "/" not in name and "\0" not in name and os.fsencode(name) not in _NO_NAMES
    except UnicodeEncodeError:
        plain = False
    if not plain:
        raise NotAQueue(f"{name!r} is not the plain name of a file")
    return name


def unmap(mapping: Mapping) -> None:
    """Ends a mapping; if a pending exception still holds a view of it, it ends with that view."""
    if isinstance(mapping, mmap.mmap):
        with contextlib.suppress(BufferError):
            mapping.close()


def write_all(file: File, data: Buffer, position: int) -> None:
    """Writes all of `data`; an `OSError` may leave a part of it written.

    A full disk first shows as a short write: the next call raises the reason.
    """
    written = file.pwrite(data, position)
    if written == len(data):
        return
    rest = memoryview(data)
    while written < len(data):
        count = file.pwrite(rest[written:], position + written)
        if count == 0:
            raise OSError(errno.EIO, "the disk accepted no bytes and reported no error")
        written += count


def _check_open(descriptor: int) -> int:
    if descriptor < 0:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return descriptor


def _close_forgotten(
    handle: DiskFile | DiskDirectory,
    descriptor: int,
    path: str,
    warn: Callable[..., None] = warnings.warn,
) -> None:
    """Closes a handle that was never closed and is unreachable; issues a `ResourceWarning`.

    `warn` is bound here: at the end of the process the module may be gone.
    """
    if descriptor >= 0:
        handle.close()
        warn(f"{path} was not closed", ResourceWarning, stacklevel=3, source=handle)


class DiskFile:
    """A file on a real disk."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        # One system call reads at most 2 GiB, and may return less for other reasons.
        if len(data) == size or not data:
            return data
        parts = [data]
        while data and (size := size - len(data)):
            position += len(data)
            data = os.pread(self._descriptor, size, position)
            parts.append(data)
        return b"".join(parts)

    def pwrite(self, data: Buffer, position: int) -> int:
        return os.pwrite(self._descriptor, data, position)

    def sync(self) -> None:
        os.fdatasync(self._open_descriptor())

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def allocate(self, position: int, size: int) -> None:
        os.posix_fallocate(self._descriptor, position, size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def map(self, size: int) -> mmap.mmap:
        return mmap.mmap(self._open_descriptor(), size)

    def lock(self, *, shared: bool = False) -> bool:
        try:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(self._open_descriptor(), kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        # Cleared first, so that a second call cannot close what another thread opened meanwhile.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        _close_forgotten(self, self._descriptor, self._path)

    def _open_descriptor(self) -> int:
        # To `mmap`, -1 means memory that belongs to no file: stores would be lost.
        return _check_open(self._descriptor)


class DiskDirectory:
    """A directory on a real disk."""

    def __init__(self, descriptor: int, path: str, file_mode: int) -> None:
        self._descriptor = descriptor
        self.path = path
        self._file_mode = file_mode

    @property
    def maps(self) -> bool:
        return _filesystem_type(self._descriptor) in _MAPPED_STORES

    def names(self) -> list[str]:
        # Opened for this listing: btrfs shows the names that existed when the directory was opened
        # or rewound, and two threads would share the position in the listing.
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        descriptor = os.open(".", flags, dir_fd=self._descriptor)
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    def open(self, name: str, *, write: bool = False) -> DiskFile:
        flags = os.O_RDWR if write else os.O_RDONLY
        # Without O_NONBLOCK, opening a FIFO that poses as a segment would block indefinitely.
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = os.open(plain_name(name), flags, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotAQueue(f"{self.path}/{name} is a symbolic link; not followed") from None
            if error.errno in (errno.ENXIO, errno.EISDIR):
                raise NotAQueue(f"{self.path}/{name} is not a regular file") from None
            raise
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(descriptor)
            what = "has several hard links" if stat.S_ISREG(status.st_mode) else "is not a file"
            raise NotAQueue(f"{self.path}/{name} {what}; refused")
        return DiskFile(descriptor, f"{self.path}/{name}")

    def create(self, name: str) -> DiskFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(plain_name(name), flags, self._file_mode, dir_fd=self._descriptor)
        return DiskFile(descriptor, f"{self.path}/{name}")

    def rename(self, source: str, target: str, into: Directory | None = None) -> None:
        other = into._descriptor if isinstance(into, DiskDirectory) else self._descriptor
        names = plain_name(source), plain_name(target)
        os.rename(*names, src_dir_fd=self._descriptor, dst_dir_fd=other)

    def unlink(self, name: str) -> None:
        os.unlink(plain_name(name), dir_fd=self._descriptor)

    def sync(self) -> None:
        os.fsync(_check_open(self._descriptor))

    def check_there(self) -> None:
        if os.fstat(self._descriptor).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "removed while it was open", self.path)

    def directory(self, name: str, *, create: bool = False) -> DiskDirectory:
        plain_name(name)
        if create:
            try:
                mode = 0o750 if self._file_mode & 0o040 else 0o700
                os.mkdir(name, mode, dir_fd=self._descriptor)
            except FileExistsError:
                pass
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise NotAQueue(f"{self.path}/{name} is not a directory; refused") from None
            raise
        return DiskDirectory(descriptor, f"{self.path}/{name}", self._file_mode)

    def lock(self) -> None:
        descriptor = _check_open(self._descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Locked(self.path, _listed_owner(self.path), _SHARING) from None
        # A `flock` cannot be tested without taking it, and the kernel's list of locks takes
        # milliseconds to read. This second lock excludes nobody; readers test it: `is_owned`.
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _first_byte(fcntl.F_RDLCK))

    def check_safe(self) -> None:
        """Rejects a directory that another user could change."""
        status = os.fstat(self._descriptor)
        if status.st_uid != os.geteuid():
            raise NotAQueue(f"{self.path} {whose(status.st_uid)}")
        if status.st_mode & 0o022:
            mode = stat.S_IMODE(status.st_mode)
            raise NotAQueue(
                f"{self.path} has mode {mode:04o}: other users can write to it; chmod go-w it first"
            )

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        _close_forgotten(self, self._descriptor, self.path)


class Doorbell:
    """Wakes a thread that sleeps in a poll; any thread or signal handler may ring.

    It stays open as long as the process runs: a late ring must not write to another file that has
    received its descriptor number.
    """

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def ring(self) -> None:
        """Wakes the thread, now or at its next sleep."""
        # If it is full, it is ringing already.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """Resets it to not rung."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)

    def replace(self) -> None:
        """Replaces it with a new one, in the child of a fork."""
        os.close(self.descriptor)
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


class Watcher:
    """Reports new names in directories, or writes to their files, to one thread (inotify)."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def create(cls) -> Watcher | None:
        """Returns a new watcher; None if the system has none left."""
        try:
            descriptor = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, AttributeError):
            return None
        return None if descriptor < 0 else cls(descriptor)

    def add(self, directory: Directory, *, writes: bool = False) -> int | None:
        """Watches a directory for names, or also for `writes` to its files.

        Returns the number that `read` reports for it, None if it cannot be watched.
        """
        if not isinstance(directory, DiskDirectory):
            return None
        path = f"/proc/self/fd/{directory._descriptor}".encode()
        mask = _IN_CREATE | _IN_MOVED_TO | (_IN_MODIFY if writes else 0)
        number = _libc().inotify_add_watch(self.descriptor, path, mask)
        return None if number < 0 else int(number)

    def remove(self, number: int) -> None:
        """Stops watching a directory."""
        _libc().inotify_rm_watch(self.descriptor, number)

    def read(self) -> set[int]:
        """Returns the numbers of the directories with changes since the last call."""
        try:
            data = os.read(self.descriptor, 65_536)
        except BlockingIOError:
            return set()
        numbers, position = set(), 0
        while position < len(data):
            number, _, _, size = _INOTIFY_EVENT.unpack_from(data, position)
            numbers.add(number)
            position += _INOTIFY_EVENT.size + size
        return numbers

    def close(self) -> None:
        """Closes it and stops watching all directories."""
        os.close(self.descriptor)


class DiskFilesystem:
    """The machine this process runs on."""

    def open_directory(
        self, path: str, *, create: bool = False, group_readable: bool = False
    ) -> DiskDirectory:
        if "://" in path:
            raise NotAQueue(f"{path.partition('?')[0]} is an address, not a directory")
        path = os.path.abspath(path)
        if create:
            _make_directory(path, 0o750 if group_readable else 0o700)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except NotADirectoryError:
            raise NotAQueue(f"{path} is a file; a queue is a directory") from None
        directory = DiskDirectory(descriptor, path, 0o640 if group_readable else 0o600)
        if create:
            try:
                directory.check_safe()
            except NotAQueue:
                directory.close()
                raise
        return directory

    def boot_id(self) -> bytes:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)


def _make_directory(path: str, mode: int) -> None:
    """Creates the directory and its missing parents; each name is durable on return."""
    if os.path.exists(path) and (not os.path.isdir(path) or _holds_something(path)):
        return
    parent = os.path.dirname(path)
    _make_directory(parent, 0o777)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    # An empty one may be left by a crash before its name was synced.
    descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _holds_something(path: str) -> bool:
    with os.scandir(path) as entries:
        return next(entries, None) is not None


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _filesystem_type(descriptor: int) -> int | None:
    """Returns the magic number of a descriptor's file system, if it can be determined."""
    try:
        # The buffer is larger than the structure on any system; the type is its first word.
        status = ctypes.create_string_buffer(512)
        if _libc().fstatfs(descriptor, status) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return ctypes.c_ulong.from_buffer(status).value & 0xFFFFFFFF


def read_private(path: str, size_max: int) -> bytes:
    """Returns the content of a small secret file; rejects one that other users can read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidOption(f"{path} is not a file")
        if status.st_mode & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise InvalidOption(
                f"{path} has mode {mode:04o}: other users can read it; chmod 600 it first"
            )
        if status.st_size > size_max:
            raise InvalidOption(f"{path} has {status.st_size} bytes; at most {size_max}")
        return os.pread(descriptor, size_max, 0)
    finally:
        os.close(descriptor)


def is_owned(path: str) -> bool | None:
    """Returns whether a process holds the lock of a directory; None if that is unknown.

    True also for a process in another container. False is no proof: an older Forebay does not take
    the lock that is tested here.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _first_byte(fcntl.F_WRLCK))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    kind: int = _RANGE_LOCK.unpack(found)[0]
    return kind != fcntl.F_UNLCK


def _first_byte(kind: int) -> bytes:
    return _RANGE_LOCK.pack(kind, os.SEEK_SET, 0, 1, 0)


def check_memory(size_bytes: int) -> None:
    """Raises `MemoryError` if the system would not give so much memory now; takes none."""
    try:
        mmap.mmap(-1, size_bytes).close()
    except OSError as error:
        raise MemoryError(f"{size_bytes} bytes of memory are not to be had") from error


def share_memory() -> None:
    """Has all threads of this process take their memory from one pool.

    By default the C library reserves 64 MiB of address space for nearly every thread that it sees.
    """
    # Other C libraries than glibc have no such pools.
    with contextlib.suppress(AttributeError):
        _libc().mallopt(_M_ARENA_MAX, 1)


def whose(user: int) -> str:
    """Returns a hint that something belongs to another user, and how to act as that user."""
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = f"#{user}"
    return f'belongs to user {name}: try "sudo -u {name}"'


def real_path(path: str) -> str:
    """Returns where a path leads, with all symbolic links followed."""
    return os.path.realpath(path)


def inode(path: str) -> int:
    """Returns the number that tells a file from a copy of it; 0 if there is no such file."""
    try:
        return os.stat(path, follow_symlinks=False).st_ino
    except OSError:
        return 0


def disk_bytes(path: str) -> int:
    """Returns how much disk space a file takes; 0 if it is gone."""
    try:
        return os.stat(path, follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return 0


def lock_owner(path: str) -> int | None:
    """Returns the process that holds the lock of a directory; None if none does, or none is seen.

    Processes in other containers are not seen.
    """
    return None if is_owned(path) is False else _listed_owner(path)


def _listed_owner(path: str) -> int | None:
    """Looks up the owner in the kernel's list of locks, which has them by device and inode."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        wanted = f"{_lock_device(descriptor)}:{os.fstat(descriptor).st_ino}"
    finally:
        os.close(descriptor)
    for _ in range(_LOOKS):
        try:
            with open("/proc/locks", encoding="ascii") as file:
                rows = [row.split() for row in file]
        except OSError:
            return None
        held = (row for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5] == wanted)
        owners = [int(row[4]) for row in held]
        if owners:
            return owners[0] if owners[0] > 0 else None
    return None


def _lock_device(descriptor: int) -> str:
    """Returns the device in the list of locks: that of the mount, which `stat` hides on btrfs."""
    status = os.fstat(descriptor)
    device = (os.major(status.st_dev), os.minor(status.st_dev))
    with contextlib.suppress(OSError, ValueError):
        with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
            mount = next((line.split()[1] for line in file if line.startswith("mnt_id")), "")
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            rows = (line.split(None, 3) for line in file)
            numbers = next((row[2] for row in rows if row[0] == mount), "")
        major, _, minor = numbers.partition(":")
        device = (int(major), int(minor))
    return f"{device[0]:02x}:{device[1]:02x}"
