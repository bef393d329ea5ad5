"""The process that rewards run in: python -m groupwise.rewards.worker SOCKET BOARD

It is started once and scores batch after batch, so that no process start is paid per call, and the
parent can kill it when a function never returns. Not a multiprocessing child: those import the
user's main script again. The arguments are inherited file descriptors. It imports no torch.

In:   Load | Answers | Call
Out:  Signature | Refused for a Load; any number of Failure and one Done for a Call; else Done
"""

import os
import sys
from multiprocessing.connection import Connection
from typing import Any

from groupwise.extensions import load_object
from groupwise.rewards.base import check_usable, signature_of
from groupwise.rewards.call import Answers, Board, Call, Loaded, perform
from groupwise.rewards.messages import Done, Failure, Load, Refused


def main(socket: int, board_file: int) -> None:
    for descriptor in (socket, board_file):
        os.set_inheritable(descriptor, False)
    # What a function prints goes where errors go, line by line: standard output is the parent's.
    sys.stdout = sys.stderr
    connection, board, ours = Connection(socket), Board(board_file), os.getpid()

    def send(message: Any) -> None:
        if os.getpid() != ours:  # a function has forked: only one of the two may answer
            os._exit(0)
        try:
            connection.send(message)
        except ConnectionError:  # nobody wants to know it any more
            os._exit(0)

    rewards: list[Loaded] = []
    answers = Answers([], [], [])
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        except Exception as error:  # a column whose class this process does not know
            send(Refused(f"{type(error).__name__}: {error}"))
            continue
        match message:
            case Load():
                send(_loaded(message, rewards))
            case Answers():
                answers = message
                send(Done())
            case Call():
                perform(
                    rewards[message.reward],
                    answers,
                    message,
                    board,
                    lambda slot, what: send(Failure(slot, what)),
                )
                send(Done())


def _loaded(wanted: Load, rewards: list[Loaded]) -> Any:
    try:
        function = load_object(wanted.reference, what="reward")
        signature = signature_of(function)
        check_usable(function)
    except BaseException as error:
        return Refused(str(error))
    if wanted.keeps(signature):
        rewards.append(Loaded(function, signature, wanted.options))
    return signature


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
