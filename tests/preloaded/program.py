"""The small program that stands for an interpreter: see tests/preloaded/__init__.py.

It is copied into a folder with `socket`, where the forking process listens, and `interpreter`, a
link to the real one. It writes the child's process id into a file named after its own.
"""

import array
import json
import os
import signal
import socket
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
FORKED = (["-m", "kvstitch.service.cli"], ["-m", "kvstitch.service.worker"])
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main():
    if sys.argv[1:3] not in FORKED:
        real = os.readlink(f"{FOLDER}/interpreter")
        os.execv(real, [real, *sys.argv[1:]])
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(f"{FOLDER}/socket")
    wanted = {"argv": sys.argv[2:], "environment": dict(os.environ), "folder": os.getcwd()}
    streams = array.array("i", [0, 1, 2]).tobytes()
    connection.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    connection.sendall(json.dumps(wanted).encode() + b"\n")

    def forward(number, frame):
        connection.sendall(bytes([number]))

    replies = connection.makefile("r")
    named = f"{FOLDER}/{os.getpid()}"
    with open(f"{named}.new", "w") as file:
        file.write(replies.readline().strip())
    os.rename(f"{named}.new", named)  # whoever finds it finds it whole
    for number in PASSED_ON:
        signal.signal(number, forward)
    # The streams are the child's: nobody may wait for this process to close them.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    status = int(replies.readline() or signal.SIGKILL)
    if os.WIFSIGNALED(status):
        killed_by = os.WTERMSIG(status)
        signal.signal(killed_by, signal.SIG_DFL) if killed_by != signal.SIGKILL else None
        os.kill(os.getpid(), killed_by)
    os._exit(os.WEXITSTATUS(status))


main()
