"""Forks a process for every grammar, from one that has the tokenizer loaded.

    python -m service.grammars.fork_server SOCKET TOKENIZER VOCABULARY END_IDS

It is sent sockets; each is the connection of a new process, which serves it (`serving`) within
limits. Whatever a grammar does to its process, the others and those who asked for them go on. This
one ends when its own socket is closed, the others when their clients go.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from llguidance import LLTokenizer

from service.grammars.serving import Tokens, serve
from service.grammars.unique_names import Vocabulary


def main() -> None:
    fd, file, vocabulary, end_ids = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this ends it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes
    tokenizer = LLTokenizer(
        Path(file).read_text(encoding="utf-8"),
        n_vocab=int(vocabulary) or None,
        eos_token=json.loads(end_ids) or None,  # None: as tokenizer.json has it
    )
    tokens = Tokens(tokenizer, Vocabulary(tokenizer))
    gc.freeze()  # so that no process has to copy what all of them share
    with socket.socket(fileno=int(fd)) as requests:
        while True:
            message, fds, _, _ = socket.recv_fds(requests, 1, 1)
            if not message:
                return
            if os.fork() == 0:
                requests.close()
                _become(fds[0], tokens)
            os.close(fds[0])


def _become(fd: int, tokens: Tokens) -> NoReturn:
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what the library prints when it panics
        serve(Connection(fd), tokens)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
