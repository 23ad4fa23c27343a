"""A logging handler that keeps every line on the local disk.

When to use it:
    Your program must not wait for the log server, nor lose its log when one of them crashes.
    Your program must not wait for a log server, nor lose its log when one of the two crashes.
    Another process reads the log at its own pace: here a consumer named "shipper" does.

Run it: python examples/spooling_logger.py /tmp/spool
"""

from __future__ import annotations

import logging
import sys

import forebay


class SpoolHandler(logging.Handler):
    """Appends each log line to a durable log of at most 100 MB; the oldest lines make room."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.log = forebay.Log(
            path,
            sync="interval",
            segment_bytes=10_000_000,
            max_bytes=100_000_000,
            when_full="drop_oldest",
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Appends one line."""
        try:
            self.log.append(self.format(record).encode())
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Makes all lines durable."""
        self.log.close()
        super().close()


def main(directory: str) -> None:
    """Logs some lines, then reads them as a shipper would."""
    handler = SpoolHandler(f"{directory}/log")
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("door")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    logger.info("opened by %s", "alice")
    logger.warning("open for %d minutes", 10)

    shipper = handler.log.consumer("shipper")
    for line in shipper.read(1000):
        print(line.offset, line.value.decode())
    shipper.commit()  # from here on these lines may be trimmed
    handler.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
