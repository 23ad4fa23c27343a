"""`forebay serve`: serves all queues of a root; `forebay unit` prints a unit for systemd."""

from __future__ import annotations

import os
import shutil
import sys

import click

from forebay.cli import exits
from forebay.cli.arguments import json_option
from forebay.cli.output import plural, talk, write_json, write_line
from forebay.client import queues as client
from forebay.client.finding import bind, claimed
from forebay.errors import NotAQueue
from forebay.queues.root import definitions
from forebay.queues.shared.names import SOCKET
from forebay.serve import service
from forebay.serve.config import Config, read_config
from forebay.serve.notifying import passed_socket

_SERVICE = """\
[Unit]
Description=Forebay queues in {root}
Documentation=man:systemd.service(5)

[Service]
Type=notify
ExecStart={command}
Restart=on-failure
WatchdogSec=30
TimeoutStopSec=60
LimitNOFILE=524288
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ReadWritePaths={root}

[Install]
WantedBy=multi-user.target
"""
_SOCKET = """\
[Unit]
Description=Socket of the Forebay queues in {root}

[Socket]
ListenStream={root}/{socket}
SocketMode={mode:04o}
DirectoryMode=0700
RemoveOnStop=yes

[Install]
WantedBy=sockets.target
"""


def _root_argument(command: click.decorators.FC) -> click.decorators.FC:
    return click.argument("root", type=click.Path(file_okay=False, readable=False))(command)


def _config_option(command: click.decorators.FC) -> click.decorators.FC:
    return click.option(
        "--config",
        "config_file",
        type=click.Path(dir_okay=False, readable=False),
        help="A TOML file: limits, queues, and who may use them.",
    )(command)


@click.command("serve")
@_root_argument
@_config_option
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How messages look, on stderr.",
)
@json_option
def serve(root: str, config_file: str | None, log_format: service.LogFormat, as_json: bool) -> int:
    """Serve all queues in ROOT until SIGTERM or Ctrl-C; a new directory becomes a root.

    Programs open a queue with forebay.open("ROOT/NAME", shared=True) and need not know of this
    server: without it, one starts in the background. It takes over from such a server. All queues
    are recovered before the first answer. A queue is made when a program first opens it with a
    class and options, or when the TOML file has it.

    When it is ready it prints a line on stdout, with --json {"root","queues","process"}.
    """
    config = Config() if config_file is None else read_config(config_file)
    root = os.path.abspath(root)

    def ready(count: int) -> None:
        if as_json:
            write_json({"root": root, "queues": count, "process": os.getpid()}, flush=True)
        else:
            write_line(f"serving {root}: {plural(count, 'queue')}")
            sys.stdout.flush()

    queues = service.prepare(root, config, log_format)
    try:
        with claimed(root, lambda: client.retire(root)) as directory:
            _free(root)
            listener = passed_socket(os.environ)
            owns_socket = listener is None
            mode = service.SOCKET_MODE_OTHERS if config.access.others else service.SOCKET_MODE
            with listener or bind(directory, mode) as listener:
                service.serve(directory, listener, queues, config, ready, owns_socket=owns_socket)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    return exits.OK


@click.command("unit")
@_root_argument
@_config_option
@click.option(
    "--socket",
    "as_socket",
    is_flag=True,
    help="Print the unit of the socket: systemd then holds it while the server restarts.",
)
@json_option
def unit(root: str, config_file: str | None, as_socket: bool, as_json: bool) -> int:
    """Print a unit for systemd that serves ROOT.

    Save it as /etc/systemd/system/NAME.service, with --socket as NAME.socket; "systemctl enable
    --now NAME" then starts it. "systemctl edit NAME" sets User= to the owner of ROOT.
    """
    root = os.path.abspath(root)
    config = Config() if config_file is None else read_config(config_file)
    if as_socket:
        mode = service.SOCKET_MODE_OTHERS if config.access.others else service.SOCKET_MODE
        text = _SOCKET.format(root=root, socket=SOCKET, mode=mode)
    else:
        program = shutil.which("forebay") or f"{sys.executable} -m forebay"
        words = [program, "serve", _quoted(root), "--log-format", "json"]
        if config_file is not None:
            words += ["--config", _quoted(os.path.abspath(config_file))]
        text = _SERVICE.format(root=root, command=" ".join(words))
    if as_json:
        write_json({"root": root, "socket": as_socket, "unit": text})
    else:
        write_line(text.rstrip("\n"))
    return exits.OK


def _free(root: str) -> None:
    """Ends the servers that programs have started for single queues before this was a root."""
    try:
        names = list(definitions(root))
    except NotAQueue:
        return
    for name in names:
        path = f"{root}/{name}"
        if os.path.exists(f"{path}/{SOCKET}") and not client.retire(path):
            talk(f"forebay: {path} has a server of its own, which does not end")


def _quoted(path: str) -> str:
    """Returns a path as systemd takes it: with quotes, and without specifiers."""
    text = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"' if any(each in text for each in ' \t"\\') else text
