"""`forebay metrics`: the state of the queues of a root, for Prometheus. Page: docs/metrics.md."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import click

from forebay.cli import exits
from forebay.cli.arguments import json_option
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.output import write_json, write_line
from forebay.cli.watching import QueueView, RootView, Watcher
from forebay.errors import ForebayError, NotInstalled
from forebay.queues.shared.forwarding import Live

# Of each queue: the name of the metric, its help, and where its value is.
GAUGES: dict[str, tuple[str, Callable[[QueueView], float | None]]] = {
    "records": ("Records that are to be taken.", lambda view: view.records),
    "bytes": ("Space that the files of the queue take.", lambda view: view.bytes),
    "leased_records": ("Records lent, leased or delivered and not settled.", lambda v: v.leased),
    "due_records": ("Items of a deadline queue that are due.", lambda view: view.due),
    "aside_records": ("Records that were buried or put aside.", lambda view: view.aside),
    "losses": ("Losses on record that nobody has marked as seen.", lambda view: view.losses),
    "oldest_timestamp_seconds": (
        "When the oldest entry of a fifo was put.",
        lambda view: None if view.oldest_ms is None else view.oldest_ms / 1000,
    ),
    "next_deadline_timestamp_seconds": (
        "When the first item of a deadline queue is due.",
        lambda view: None if view.next_ms is None else view.next_ms / 1000,
    ),
    "handles": ("Handles that clients have of the queue.", lambda view: view.handles),
    "readable": ("1 if its state can be told, otherwise 0.", lambda view: view.error is None),
}
COUNTERS: dict[str, tuple[str, Callable[[QueueView], float | None]]] = {
    "written_records": ("Records put through the server since it began.", lambda v: v.written),
    "taken_records": ("Records taken through the server since it began.", lambda v: v.taken),
}
# Of each forwarder of a queue.
FORWARDED: dict[str, tuple[str, Callable[[Live], float | None]]] = {
    "delivered_records": ("Records that the output has taken.", lambda live: live.delivered),
    "set_aside_records": ("Records that the output refused.", lambda live: live.set_aside),
    "dropped_records": ("Records dropped unsent by a limit.", lambda live: live.dropped),
    "damaged_records": ("Records that the disk destroyed unsent.", lambda live: live.damaged),
}
FORWARDING: dict[str, tuple[str, Callable[[Live], float | None]]] = {
    "lag_records": ("Records that wait for the output.", lambda live: live.lag),
    "failed_attempts": ("How often the present batch was sent in vain.", lambda v: v.attempts),
    "running": ("1 if its process runs, otherwise 0.", lambda live: live.pid is not None),
}


@click.command("metrics")
@click.argument("root", type=click.Path(file_okay=False, readable=False))
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=9464,
    show_default=True,
    help="The port to listen on; 0 takes a free one.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@json_option
def command(root: str, port: int, host: str, as_json: bool) -> int:
    """Serve the state of the queues of ROOT as metrics for Prometheus, over HTTP.

    /metrics has the metrics; /healthz answers 200 if the server of ROOT answers, otherwise 503.
    Takes no lock, and never starts a server. Prints the address when it listens. Needs the extra
    "metrics".
    """
    watcher = Watcher(root)
    # Refuses what is no root.
    watcher.look()
    application = _application(watcher)
    with make_server(host, port, application, _Server, _QuietHandler) as server:
        url = f"http://{host}:{server.server_port}/metrics"
        if as_json:
            write_json({"url": url, "port": server.server_port}, flush=True)
        else:
            write_line(url)
            sys.stdout.flush()
        with Interrupts() as interrupts:
            try:
                with interrupts.waiting():
                    server.serve_forever()
            except Interrupted as stop:
                return stop.code
    return exits.OK


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Logs nothing: a scrape every few seconds is no news."""


def _application(watcher: Watcher) -> Callable[..., Iterable[bytes]]:
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app
    except ImportError:
        raise NotInstalled(
            'forebay metrics needs prometheus-client: pip install "forebay[metrics]"'
        ) from None
    registry = CollectorRegistry()
    registry.register(_Collector(watcher))
    metrics: Any = make_wsgi_app(registry)

    def application(environment: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environment["PATH_INFO"] == "/healthz":
            status, text = _health(watcher)
            start(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [text.encode()]
        if environment["PATH_INFO"] != "/metrics":
            start("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
            return [b"there are /metrics and /healthz\n"]
        found: Iterable[bytes] = metrics(environment, start)
        return found

    return application


def _health(watcher: Watcher) -> tuple[str, str]:
    try:
        view = watcher.look()
    except (ForebayError, OSError) as error:
        return "503 Service Unavailable", f"{error}\n"
    if not view.is_served:
        return "503 Service Unavailable", f"{view.root} has no server\n"
    bad = [queue.name for queue in view.queues if queue.error is not None]
    if bad:
        return "503 Service Unavailable", f"cannot be read: {', '.join(bad)}\n"
    return "200 OK", "ok\n"


class _Collector:
    """Looks at the root when somebody asks."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def describe(self) -> Iterable[Any]:
        """Has no use: the names are known when there is something to tell."""
        return []

    def collect(self) -> Iterable[Any]:
        """Yields all metrics as they are now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        try:
            view = self._watcher.look()
        except (ForebayError, OSError):
            yield GaugeMetricFamily("forebay_up", "1 if the server answers, otherwise 0.", 0)
            return
        yield from _of_the_server(view, GaugeMetricFamily)
        for name, (text, value) in GAUGES.items():
            yield _family(GaugeMetricFamily, name, text, value, view)
        for name, (text, value) in COUNTERS.items():
            yield _family(CounterMetricFamily, name, text, value, view)
        lag = GaugeMetricFamily(
            "forebay_queue_consumer_lag_records",
            "Records of a log that a consumer or cursor has not passed.",
            labels=["queue", "kind", "consumer"],
        )
        for queue in view.queues:
            for consumer, behind in queue.lag.items():
                lag.add_metric([queue.name, queue.kind, consumer], behind)
        yield lag
        for name, (text, of) in FORWARDED.items():
            yield _forwarders(CounterMetricFamily, name, text, of, view)
        for name, (text, of) in FORWARDING.items():
            yield _forwarders(GaugeMetricFamily, name, text, of, view)


def _of_the_server(view: RootView, gauge: Any) -> Iterable[Any]:
    yield gauge("forebay_up", "1 if the server answers, otherwise 0.", int(view.is_served))
    if view.clients is not None and view.up_seconds is not None:
        yield gauge("forebay_server_clients", "Clients that are connected.", view.clients)
        yield gauge("forebay_server_uptime_seconds", "Time since it began.", view.up_seconds)


def _family(
    family: Any, name: str, text: str, value: Callable[[QueueView], float | None], view: RootView
) -> Any:
    made = family(f"forebay_queue_{name}", text, labels=["queue", "kind"])
    for queue in view.queues:
        number = value(queue)
        if number is not None:
            made.add_metric([queue.name, queue.kind], number)
    return made


def _forwarders(
    family: Any, name: str, text: str, value: Callable[[Live], float | None], view: RootView
) -> Any:
    made = family(f"forebay_forward_{name}", text, labels=["queue", "forwarder"])
    for queue in view.queues:
        for live in queue.forwarders:
            number = value(live)
            if number is not None:
                made.add_metric([queue.name, live.name], number)
    return made
