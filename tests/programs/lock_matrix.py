"""Tries every pair of lock kinds and ways to open in a directory, and prints one line for each.

One process opens a file and locks it; another opens it, before or after that, and tries its own lock without
waiting; then the first unlocks and the other tries again. Record locks (fcntl) of processes and of open files are
combined with each other, and `flock` with `flock`. Argument: the directory. Equal lines show that locks work alike.
"""

import errno
import fcntl
import itertools
import os
import struct
import sys

directory = sys.argv[1]
OFD_SETLK = 37
RECORDS = [f"{owner}-{kind}" for owner in ("process", "file") for kind in ("read", "write")]
FLOCKS = ["flock-shared", "flock-exclusive"]
OPENS = ["r", "r+", "a", "a+"]


def lock(file, kind, begin, length):
    """Returns "yes" or the name of the error."""
    try:
        if kind.startswith("flock"):
            wanted = fcntl.LOCK_SH if kind.endswith("shared") else fcntl.LOCK_EX
            fcntl.flock(file, wanted | fcntl.LOCK_NB)
        else:
            record(file, kind, fcntl.F_RDLCK if kind.endswith("read") else fcntl.F_WRLCK, begin, length)
        return "yes"
    except OSError as error:
        return errno.errorcode[error.errno]


def unlock(file, kind, begin, length):
    if kind.startswith("flock"):
        fcntl.flock(file, fcntl.LOCK_UN)
    else:
        record(file, kind, fcntl.F_UNLCK, begin, length)


def record(file, kind, what, begin, length):
    command = OFD_SETLK if kind.startswith("file") else fcntl.F_SETLK
    fcntl.fcntl(file, command, struct.pack("hhqqi4x", what, os.SEEK_SET, begin, length, 0))


class Other:
    """A process that opens, locks and closes on command; one line each way."""

    def __init__(self):
        mine, theirs = os.pipe(), os.pipe()
        if os.fork() == 0:
            os.close(mine[1]), os.close(theirs[0])
            self.serve(os.fdopen(mine[0]), os.fdopen(theirs[1], "w", buffering=1))
        os.close(mine[0]), os.close(theirs[1])
        self.to, self.back = os.fdopen(mine[1], "w", buffering=1), os.fdopen(theirs[0])

    def ask(self, *words):
        print(*words, file=self.to)
        return self.back.readline().strip()

    @staticmethod
    def serve(asked, answer):
        file = None
        for line in asked:
            word, *rest = line.split()
            try:
                if word == "open":
                    file = open(rest[0], rest[1] + "b", buffering=0)
                    said = "yes"
                elif word == "lock":
                    said = lock(file, rest[0], int(rest[1]), int(rest[2]))
                else:
                    file.close()
                    said = "yes"
            except OSError as error:
                said = errno.errorcode[error.errno]
            print(said, file=answer)
        os._exit(0)


other = Other()
pairs = list(itertools.product(RECORDS, RECORDS)) + list(itertools.product(FLOCKS, FLOCKS))
number = 0
for (held, tried), (first, second) in itertools.product(pairs, itertools.product(OPENS, OPENS)):
    for content, early in itertools.product(("empty", "some"), (True, False)):
        number += 1
        # Each third time the ranges do not overlap, which matters only for record locks.
        begin = 0 if number % 3 else 10
        path = os.path.join(directory, f"f{number}")
        with open(path, "wb") as made:
            made.write(b"" if content == "empty" else b"some content, enough for both ranges")
        said = [other.ask("open", path, second)] if early else []
        with open(path, first + "b", buffering=0) as file:
            said.append(lock(file, held, 0, 5))
            if not early:
                said.append(other.ask("open", path, second))
            said.append(other.ask("lock", tried, begin, 5))
            if said[1 if early else 0] == "yes":
                unlock(file, held, 0, 5)
            said.append(other.ask("lock", tried, begin, 5))
            said.append(lock(file, held, 0, 5))
        other.ask("close")
        os.unlink(path)
        print(held, tried, first, second, content, "early" if early else "late", begin, *said)
