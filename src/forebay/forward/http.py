"""Sends batches by HTTP: lines of JSON, or one stored body a request.

The library is urllib3 (the extra `forward`): HTTP, TLS and the checks of certificates are its. What
this adds is the judgement of an answer: only a 2xx that was read to its end means "delivered".
"""

from __future__ import annotations

import contextlib
import email.utils
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from forebay.errors import InvalidOption, NotInstalled
from forebay.forward import encoding
from forebay.forward.outputs import Again, Answer, Batch, Context, Delivered, Gap, Record, Refused

if TYPE_CHECKING:
    import urllib3

KEY_HEADER = "Idempotency-Key"
_REFUSALS = (400, 413, 422)
_TOO_LARGE = 413
# Of an answer that is only shown; an answer that is read is bounded by its output.
_WORDS_BYTES = 64 << 10
_WORDS_MAX = 300
# The slowest a body may go; slower means that nobody reads.
_BYTES_PER_SECOND_MIN = 8192
_PART_BYTES = 64 << 10


class HttpOutput:
    """Sends each batch as one POST.

    - `url`: `http://…` or `https://…`; a password in it is refused: give a header from a file.
    - `format`: "json", a line for each record; or "raw", one record a request, as it is stored.
    - `headers`: further headers. Their values are secrets: they appear in no message.
    - `header_files`, `header_environment`: headers whose values are in files, which only their
      owner may read, or in variables of the environment.
    - `key_header`: the header of the idempotency key; None: it is not sent, so `in_flight` is 1.
    - `timeout_seconds`: how long to wait for a connection and for each part of an answer; the whole
      takes at most that, and what the body takes at 8 KiB a second.
    - `ca_file`: certificates that are trusted instead of those of the system.
    - `certificate_file`, `certificate_key_file`: the certificate that this side shows.
    """

    records_max: int | None = None

    def __init__(
        self,
        url: str,
        *,
        format: Literal["json", "raw"] = "json",
        headers: Mapping[str, str] | None = None,
        header_files: Mapping[str, str] | None = None,
        header_environment: Mapping[str, str] | None = None,
        key_header: str | None = KEY_HEADER,
        timeout_seconds: float = 30.0,
        ca_file: str | None = None,
        certificate_file: str | None = None,
        certificate_key_file: str | None = None,
    ) -> None:
        if format not in ("json", "raw"):
            raise InvalidOption(f"format = {format!r}: must be 'json' or 'raw'")
        if not timeout_seconds > 0:
            raise InvalidOption(f"timeout_seconds = {timeout_seconds!r}: must be above 0")
        self.name, self._host, self._port, self._target, secure = _parts_of(url)
        self._format = format
        self._key_header = key_header
        self.takes_key = key_header is not None
        if format == "raw":
            self.records_max = 1
        self._timeout_seconds = timeout_seconds
        self._headers = {"Content-Type": self._content_type(), "User-Agent": "forebay"}
        self._headers |= _secrets(headers or {}, header_files or {}, header_environment or {})
        self._watch = _Watch()
        tls: dict[str, Any] = {
            "ca_certs": ca_file,
            "cert_file": certificate_file,
            "key_file": certificate_key_file,
        }
        if not secure and any(tls.values()):
            raise InvalidOption(f"certificates have no meaning for {self.name}: it is not https")
        self._pool = self._pool_for(tls if secure else None)

    def encode(self, records: Sequence[Record], context: Context) -> bytes:
        """Returns lines of JSON, or the one record."""
        if self._format == "raw":
            return records[0].value
        return encoding.json_lines(records)

    def encode_gap(self, gap: Gap, context: Context) -> bytes | None:
        """Returns a line of JSON; None if bodies go as they are."""
        return None if self._format == "raw" else encoding.gap_document(gap, context) + b"\n"

    def send(self, batch: Batch) -> Answer:
        """Sends a batch and judges the answer."""
        status, headers, words = self._exchange(batch.body, batch.key, _WORDS_BYTES)
        return judge(status, headers, words)

    def close(self) -> None:
        """Ends all connections."""
        self._watch.close()
        self._pool.close()

    def _content_type(self) -> str:
        return "application/x-ndjson" if self._format == "json" else "application/octet-stream"

    def _exchange(self, body: bytes, key: str, most: int) -> tuple[int, Mapping[str, str], bytes]:
        """Sends a body; returns status, headers and the answer, up to `most` bytes, read whole."""
        headers = dict(self._headers)
        if self._key_header is not None:
            headers[self._key_header] = key
        seconds = self._timeout_seconds + len(body) / _BYTES_PER_SECOND_MIN
        with self._watch.limit(seconds) as watched:
            try:
                response = self._pool.urlopen(
                    *("POST", self._target, body, headers),
                    retries=False,
                    redirect=False,
                    preload_content=False,
                    timeout=self._timeout_seconds,
                )
            except Exception as error:
                watched.check()
                raise ConnectionError(_words_of(error)) from error
            try:
                words = bytearray()
                for part in response.stream(_PART_BYTES, decode_content=True):
                    words += part
                    if len(words) > most:
                        # Enough to know; the connection is not used again.
                        response.close()
                        break
                watched.check()
                if self._key_header is not None:
                    answered = response.headers.get(self._key_header, key)
                    if answered != key:
                        # What comes on this connection is not for this request.
                        response.close()
                        raise OSError(f"the answer is for another key, {answered[:100]!r}")
                return response.status, response.headers, bytes(words)
            finally:
                response.release_conn()

    def _pool_for(self, tls: dict[str, Any] | None) -> urllib3.HTTPConnectionPool:
        try:
            import urllib3
            from urllib3 import connection
        except ImportError:
            raise NotInstalled(
                f"sending to {self.name} needs urllib3: install the extra 'forward' "
                '(pip install "forebay[forward]")'
            ) from None
        watch = self._watch

        class _Plain(connection.HTTPConnection):
            def connect(self) -> None:
                super().connect()
                watch.own(self)

            def request(self, *arguments: Any, **options: Any) -> None:
                watch.own(self)
                super().request(*arguments, **options)

        class _Secure(connection.HTTPSConnection):
            def connect(self) -> None:
                watch.own(self)
                super().connect()

            def request(self, *arguments: Any, **options: Any) -> None:
                watch.own(self)
                super().request(*arguments, **options)

        class _PlainPool(urllib3.HTTPConnectionPool):
            ConnectionCls = _Plain

        class _SecurePool(urllib3.HTTPSConnectionPool):
            ConnectionCls = _Secure

        if tls is None:
            return _PlainPool(self._host, self._port, maxsize=16)
        return _SecurePool(self._host, self._port, maxsize=16, cert_reqs="CERT_REQUIRED", **tls)


def _words_of(error: Exception) -> str:
    """Returns what is wrong with a connection, without the names of classes."""
    if error.args and isinstance(error.args[0], tuple):
        # urllib3 puts a text and what caused it together.
        return ": ".join(str(each) for each in error.args[0])
    text = str(error)
    return text.partition(": ")[2] or text if text.startswith("_") else text


def judge(status: int, headers: Mapping[str, str], words: bytes) -> Answer:
    """Returns what a status means for a whole batch."""
    if 200 <= status < 300:
        return Delivered()
    text = " ".join(words.decode("utf-8", "replace").split())[:_WORDS_MAX]
    reason = f"HTTP {status}" + (f": {text}" if text else "")
    if status in _REFUSALS:
        return Refused(reason, too_large=status == _TOO_LARGE)
    if 300 <= status < 400:
        reason = (
            f"HTTP {status} to {headers.get('Location', '?')!r:.200}: redirects are not followed"
        )
    return Again(reason, _retry_after(headers.get("Retry-After")))


def _retry_after(value: str | None) -> float | None:
    """Returns the seconds that an output asks for, which may be a date."""
    if value is None:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - time.time())


class _Watch:
    """Cuts connections that take too long as a whole, whatever trickles in meanwhile."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._changed = threading.Condition()
        self._limits: set[_Limit] = set()
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextlib.contextmanager
    def limit(self, seconds: float) -> Iterator[_Limit]:
        """Ends the connection that this thread uses in the block, after some seconds."""
        limit = _Limit(time.monotonic() + seconds, seconds)
        self._local.limit = limit
        with self._changed:
            self._limits.add(limit)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="forebay-http", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            yield limit
        except Exception:
            limit.check()
            raise
        finally:
            self._local.limit = None
            with self._changed:
                self._limits.discard(limit)

    def own(self, connection: Any) -> None:
        """Notes the connection that this thread uses."""
        limit = getattr(self._local, "limit", None)
        if limit is not None:
            limit.connection = connection

    def close(self) -> None:
        """Cuts all of them."""
        with self._changed:
            self._closed = True
            for limit in self._limits:
                limit.cut()
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                for limit in [each for each in self._limits if each.at <= now]:
                    limit.cut()
                    self._limits.discard(limit)
                soonest = min((each.at for each in self._limits), default=None)
                self._changed.wait(None if soonest is None else max(0.0, soonest - now))


class _Limit:
    """The time that one exchange may take."""

    def __init__(self, at: float, seconds: float) -> None:
        self.at = at
        self.connection: Any = None
        self._seconds = seconds
        self._cut = False

    def cut(self) -> None:
        """Ends the connection: what waits for it fails at once."""
        self._cut = True
        socket = getattr(self.connection, "sock", None)
        if socket is not None:
            with contextlib.suppress(OSError):
                socket.shutdown(2)

    def check(self) -> None:
        """Raises if it was cut."""
        if self._cut:
            raise TimeoutError(f"no whole answer within {self._seconds:.0f} s") from None


def _parts_of(url: str) -> tuple[str, str, int, str, bool]:
    """Returns the address for messages, the host, the port, the target, and whether it is TLS."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidOption(f"the address is not valid: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidOption(f"{parts.scheme or url!r:.50} is not http:// or https:// with a host")
    if parts.username is not None or parts.password is not None:
        raise InvalidOption(
            f"the address of {parts.hostname} has a user or a password in it; give a header from a "
            "file instead (header_files, --header-file)"
        )
    secure = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # Of a query the messages show nothing: it may hold a token.
    shown = f"{parts.scheme}://{parts.netloc}{parts.path}" + ("?…" if parts.query else "")
    return shown, parts.hostname, port or (443 if secure else 80), target, secure


def _secrets(
    headers: Mapping[str, str], files: Mapping[str, str], variables: Mapping[str, str]
) -> dict[str, str]:
    """Returns headers with their values, wherever these are kept."""
    found = dict(headers)
    for name, path in files.items():
        with open(path, encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if status.st_mode & 0o077:
                raise InvalidOption(
                    f"{path}: others may read it (mode {status.st_mode & 0o777:04o}); "
                    f"run: chmod 600 {path}"
                )
            found[name] = file.read().strip()
    for name, variable in variables.items():
        if variable not in os.environ:
            raise InvalidOption(f"{variable} is not set in the environment (for header {name})")
        found[name] = os.environ[variable]
    for name, value in found.items():
        if any(sign in name + value for sign in "\r\n\0"):
            raise InvalidOption(f"header {name!r}: its value is not one line")
    return found
