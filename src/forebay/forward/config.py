"""What a forwarder is made of, as the command line and its files say it.

A file has a table `[forward.NAME]` for each forwarder, with the fields of `ForwardConfig`. Paths in
it count from the directory of the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from forebay.clock import BootClock, SystemClock
from forebay.errors import InvalidOption
from forebay.forward.forwarder import Forwarder
from forebay.forward.manager import state_path
from forebay.forward.options import ForwardOptions
from forebay.forward.outputs import Output
from forebay.forward.sources import BeatsFiles, Source, open_source, refusal_of
from forebay.forward.state import State
from forebay.kernels.buffers import crc32
from forebay.queues.kinds import sure_kind_of
from forebay.storage.filesystem import real_path

_PATHS = ("queue", "state", "key_file", "ca_file", "certificate_file", "certificate_key_file")
_OF_HTTP = (
    *("format", "headers", "header_files", "header_environment", "timeout_seconds"),
    *("ca_file", "certificate_file", "certificate_key_file"),
)
_OF_FILES = ("rotate_bytes", "rotate_seconds")
_OF_A_QUEUE = ("max_bytes", "when_full")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardConfig:
    """A forwarder: a queue, where it goes, and how.

    - `queue`, `to`: the directory, and `http://…`, `https://…`, `…/_bulk` or `file:DIR`.
    - `name`: of its consumer and its state.
    - `state`: the state directory; None: see `state_of`.
    - `take`: own a Beats queue and acknowledge its events, instead of only reading its files.
    - `key_file`: the key of an encrypted Beats queue.
    - `max_bytes`, `when_full`: the bound of a log; only if this program is the first to open it.
    - The others are those of the output, and of `ForwardOptions`.
    """

    queue: str
    to: str
    name: str = "forward"
    state: str | None = None
    take: bool = False
    key_file: str | None = None
    format: Literal["json", "raw"] | None = None
    index: str | None = None
    headers: Mapping[str, str] | None = None
    header_files: Mapping[str, str] | None = None
    header_environment: Mapping[str, str] | None = None
    timeout_seconds: float | None = None
    ca_file: str | None = None
    certificate_file: str | None = None
    certificate_key_file: str | None = None
    rotate_bytes: int | None = None
    rotate_seconds: float | None = None
    max_bytes: int | None = None
    when_full: Literal["block", "reject", "drop_oldest"] | None = None
    options: ForwardOptions = field(default_factory=ForwardOptions)

    @contextlib.contextmanager
    def open(
        self, *, limit: int | None = None, clock: BootClock | None = None
    ) -> Iterator[Forwarder]:
        """Opens the queue, the state and the output; closes them at the end of the block."""
        clock = clock or SystemClock()
        with contextlib.ExitStack() as opened:
            output = self.output()
            # A queue that cannot be closed at once must not keep a request alive.
            source = self._source(opened)
            if self._only_reads() and self.state is None:
                os.makedirs(os.path.dirname(self.state_of()), mode=0o700, exist_ok=True)
            state = State(self.state_of(), clock)
            opened.callback(state.close)
            opened.callback(output.close)
            yield Forwarder(
                *(source, output, state, self.options, clock), name=self.name, limit=limit
            )

    def output(self) -> Output:
        """Makes the output; refuses fields that have no meaning for it."""
        if self.to.startswith("file:"):
            from forebay.forward.files import FilesOutput

            self._refuse((*_OF_HTTP, "index"), "files")
            return FilesOutput(self.to.removeprefix("file:"), **self._given(_OF_FILES))
        self._refuse(_OF_FILES, "HTTP")
        if self.to.partition("?")[0].endswith("/_bulk"):
            from forebay.forward.bulk import BulkOutput

            self._refuse(("format",), "_bulk")
            return BulkOutput(self.to, index=self.index, **self._given(_OF_HTTP))
        from forebay.forward.http import HttpOutput

        self._refuse(("index",), "HTTP")
        return HttpOutput(self.to, **self._given(_OF_HTTP))

    def state_of(self) -> str:
        """Returns the state directory.

        Without `state` it is in the directory of the queue; for a Beats queue that is only read, in
        `~/.local/state/forebay`, under a name that belongs to the path of the queue.
        """
        if self.state is not None:
            return self.state
        if not self._only_reads():
            return state_path(self.queue, self.name)
        home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        path = real_path(self.queue)
        return f"{home}/forebay/{self.name}-{crc32(os.fsencode(path)):08x}"

    def _only_reads(self) -> bool:
        return sure_kind_of(self.queue).name == "beats" and not self.take

    def _source(self, opened: contextlib.ExitStack) -> Source:
        kind = sure_kind_of(self.queue)
        if kind.name == "deadline":
            raise refusal_of(self.queue)
        if kind.name != "beats" and (self.take or self.key_file is not None):
            raise InvalidOption(f"take and key_file have no meaning for {kind.title}")
        if kind.name != "log" and self._given(_OF_A_QUEUE):
            raise InvalidOption(f"max_bytes and when_full have no meaning here for {kind.title}")
        if self._only_reads():
            files = BeatsFiles(self.queue, key_file=self.key_file)
            opened.callback(files.close)
            return files
        options: dict[str, Any] = self._given(_OF_A_QUEUE)
        if kind.name == "beats":
            options = {} if self.key_file is None else {"key_file": self.key_file}
        else:
            # Producers in other processes share it as well.
            options["shared"] = True
        queue = opened.enter_context(kind.open_queue(self.queue, **options))
        source = open_source(queue, self.name)
        opened.callback(source.close)
        return source

    def _given(self, names: tuple[str, ...]) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def _refuse(self, names: tuple[str, ...], output: str) -> None:
        for name in self._given(names):
            raise InvalidOption(
                f"{name} has no meaning for the output of forwarder {self.name!r}, {output}"
            )


_OPTIONS = {each.name for each in dataclasses.fields(ForwardOptions)}
_FIELDS = {each.name for each in dataclasses.fields(ForwardConfig)} - {"options", "name"}


def config_of(name: str, given: Mapping[str, Any], folder: str = ".") -> ForwardConfig:
    """Makes a configuration of named values; raises `InvalidOption` for what it does not know."""
    for key in given:
        if key not in _FIELDS | _OPTIONS:
            known = ", ".join(sorted(_FIELDS | _OPTIONS))
            raise InvalidOption(f"forwarder {name!r} has no field {key!r}; it has {known}")
    for key in ("queue", "to"):
        if not isinstance(given.get(key), str):
            raise InvalidOption(f"forwarder {name!r}: {key} must be a text")
    fields = {key: value for key, value in given.items() if key in _FIELDS}
    options = {key: value for key, value in given.items() if key in _OPTIONS}
    for key in _PATHS:
        if fields.get(key) is not None:
            fields[key] = os.path.join(folder, os.path.expanduser(fields[key]))
    if "header_files" in fields:
        files = fields["header_files"]
        fields["header_files"] = {each: os.path.join(folder, path) for each, path in files.items()}
    if fields["to"].startswith("file:"):
        fields["to"] = "file:" + os.path.join(folder, fields["to"].removeprefix("file:"))
    return ForwardConfig(name=name, options=ForwardOptions(**options), **fields)


def read_configs(path: str) -> list[ForwardConfig]:
    """Returns the forwarders of a file."""
    with open(path, "rb") as file:
        try:
            document = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidOption(f"{path}: not TOML: {error}") from None
    tables = document.get("forward")
    if not isinstance(tables, dict) or not tables:
        raise InvalidOption(f"{path}: it has no table [forward.NAME]")
    folder = os.path.dirname(os.path.abspath(path))
    found = []
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise InvalidOption(f"{path}: forward.{name} must be a table")
        try:
            found.append(config_of(name, table, folder))
        except InvalidOption as error:
            raise InvalidOption(f"{path}: {error}") from None
    return found
