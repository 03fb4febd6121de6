"""Commands as forks of one process that has imported fairseq, which takes seconds each time."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

COMMANDS = {
    "rbn": ("rbn_fairseq.cli", "main"),
    "fairseq-train": ("fairseq_cli.train", "cli_main"),
    "fairseq-hydra-train": ("fairseq_cli.hydra_train", "cli_main"),
}
# Hands its arguments, directory, environment and standard streams over; exits as the fork does.
CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"."], [0, 1, 2])
    server.sendall(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode())
    server.shutdown(socket.SHUT_WR)
    status = server.recv(1)
sys.exit(status[0] if status else "the forked command has no exit status")
"""


@contextmanager
def forked_commands():
    """Yield a directory for PATH with the ``COMMANDS``."""
    with tempfile.TemporaryDirectory() as directory:  # a socket's name is short
        address = os.path.join(directory, "socket")
        tools = Path(directory, "bin")
        tools.mkdir()
        for name in COMMANDS:
            (tools / name).write_text(CLIENT.format(python=sys.executable, address=address))
            (tools / name).chmod(0o755)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(address)
            listening.listen()
            server = subprocess.Popen(
                [sys.executable, __file__, str(listening.fileno())],
                pass_fds=[listening.fileno()],
                env={**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        try:
            yield tools
        finally:
            os.killpg(server.pid, signal.SIGKILL)  # commands that hang, too
            server.wait()


def serve(listening):
    """Run the command of every connection; returns in its process alone, with what to call."""
    mains = {
        name: getattr(import_module(module), main) for name, (module, main) in COMMANDS.items()
    }
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            break
        connection.close()
    _, streams, *_ = socket.recv_fds(connection, 1, 3)
    with connection.makefile() as message:
        argv, directory, environment = json.load(message)
    command = os.fork()
    if command != 0:
        ended, poll = os.pidfd_open(command), select.poll()
        poll.register(ended, select.POLLIN)
        poll.register(connection, 0)  # gone is a client that was killed
        if ended not in dict(poll.poll()):
            os.kill(command, signal.SIGKILL)
        _, status = os.waitpid(command, 0)
        connection.send(bytes([os.waitstatus_to_exitcode(status) % 256]))
        os._exit(0)
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = argv
    return mains[Path(argv[0]).name]


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    import_module("ready")
    del sys.path[1]  # this file's directory, which commands do not have
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1])))())
