"""Two processes count in one file under fcntl locks, each with a descriptor opened to update.

Arguments: the file, which contains "0"; "kept" (one descriptor to the end), "reopened" (one for each count)
or "mixed" (one process of each kind); the number of counts of each. Prints the last count.
"""

import fcntl
import os
import sys

path, how, times = sys.argv[1], sys.argv[2], int(sys.argv[3])


def count(file):
    fcntl.lockf(file, fcntl.LOCK_EX)
    value = int(os.pread(file.fileno(), 32, 0)) + 1
    os.pwrite(file.fileno(), b"%d" % value, 0)
    fcntl.lockf(file, fcntl.LOCK_UN)


def work(kept):
    if kept:
        with open(path, "r+b", buffering=0) as file:
            for _ in range(times):
                count(file)
        return
    for _ in range(times):
        with open(path, "r+b", buffering=0) as file:
            count(file)


ways = {"kept": (True, True), "reopened": (False, False), "mixed": (True, False)}[how]
children = []
for kept in ways:
    child = os.fork()
    if child == 0:
        try:
            work(kept)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    children.append(child)
statuses = [os.waitpid(child, 0)[1] for child in children]
if any(statuses):
    sys.exit(f"a process that counts failed: {statuses}")
with open(path) as file:
    print(file.read())
