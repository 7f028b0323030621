"""Races of two processes that compile one function for two types, over all orders of index and data.

numba_races.py race SOURCES COUNT MOUNT...: each race has one function and two processes; with two mounts, one on each.
numba_races.py check SOURCES COUNT MOUNT...: new processes call all functions on each mount, twice; the second run must only hit.
Prints the findings as JSON. A wrong result is that of another process for the other type.
"""

import itertools
import json
import os
import subprocess
import sys

SOURCE = "import numba\n\n\n@numba.njit(cache=True)\ndef f(x):\n    return x + x\n"
RIGHT = {3: "6", 2.5: "5.0"}
# The orders of the two steps of both processes: each number is the process that takes a step.
ORDERS = sorted(set(itertools.permutations((0, 0, 1, 1))))


class Worker:
    def __init__(self, mount, *words):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "numba_worker.py")
        env = dict(os.environ, NUMBA_CACHE_DIR=os.path.join(mount, "numba"))
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process = subprocess.Popen([sys.executable, script, *words], env=env, **pipes)
        self.hear()

    def say(self, ask):
        self.process.stdin.write(json.dumps(ask) + "\n")
        self.process.stdin.flush()

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def call(self, path, value, gated=False):
        self.say({"call": path, "with": value, "gated": gated})
        return self.hear()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def note(found, path, value, told, where):
    found["calls"] += 1
    if "error" in told:
        found["crashes"].append([path, where, told["error"]])
    elif told["result"] != RIGHT[value]:
        found["wrong"].append([path, where, value, told["result"]])


def race(sources, count, mounts):
    found = {"calls": 0, "wrong": [], "crashes": []}
    homes = mounts * (2 // len(mounts))
    writers = [Worker(mount) for mount in homes]
    readers = [Worker(mount, "read") for mount in mounts]
    for number in range(count):
        path = os.path.join(sources, f"race_{number}.py")
        with open(path, "w") as file:
            file.write(SOURCE)
        values = (3, 2.5) if number % 2 else (2.5, 3)
        for worker, value in zip(writers, values):
            told = worker.call(path, value, gated=True)
            assert told == {"stopped": "_save_index"}, told
        for turn in ORDERS[number % len(ORDERS)]:
            writers[turn].say({"go": True})
            told = writers[turn].hear()
            if "stopped" not in told:
                note(found, path, values[turn], told, "writer")
            for worker in readers:
                for value in RIGHT:
                    note(found, path, value, worker.call(path, value), "reader")
    for worker in writers + readers:
        worker.end()
    return found


def check(sources, count, mounts):
    found = {"calls": 0, "wrong": [], "crashes": [], "late": []}
    for run in range(2):
        workers = [Worker(mount) for mount in mounts]
        for number, worker in itertools.product(range(count), workers):
            path = os.path.join(sources, f"race_{number}.py")
            for value in RIGHT:
                told = worker.call(path, value)
                note(found, path, value, told, f"run {run}")
                if run == 1 and told.get("misses") != 0:
                    found["late"].append([path, value])
        for worker in workers:
            worker.end()
    return found


what, sources, count, *mounts = sys.argv[1:]
done = race if what == "race" else check
print(json.dumps(done(sources, int(count), mounts)))
