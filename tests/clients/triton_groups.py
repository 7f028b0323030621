"""Puts and gets groups of files with Triton's own cache, without compiling. The content of a file names its writer.

triton_groups.py put DIR KEYS FIRST NAME: goes through the keys from FIRST. It writes a group of eight files for a key that has
none, else it reads the group. Processes that start together reach each key at almost the same moment.
triton_groups.py watch DIR KEYS SECONDS: reads groups as they appear. triton_groups.py list DIR KEYS: checks the final files.
Prints the numbers of groups written and read, and all faults, as JSON.
"""

import json
import os
import random
import sys
import time

import triton
from triton.runtime.cache import FileCacheManager

NAMES = ["k.ttir", "k.ttgir", "k.llir", "k.ptx", "k.json", "k.source", "k.cubin"]
found = {"wrote": 0, "read": 0, "bad": []}


def manager(number):
    return FileCacheManager(f"{number:08x}" * 8)


def read(number, group):
    """Reads a group as Triton does, by the paths in it."""
    held = {}
    for name in NAMES:
        if name not in group:
            found["bad"].append([number, f"{name} is missing"])
            continue
        try:
            with open(group[name]) as file:
                held[name] = file.read().split()[0]
        except OSError as error:
            found["bad"].append([number, repr(error)])
    if len(set(held.values())) > 1:
        found["bad"].append([number, held])
    found["read"] += 1


def put(number, writer):
    cache, group = manager(number), {}
    for name in NAMES:
        group[name] = cache.put(f"{writer} {name} " + "x" * 2000, name, binary=False)
    cache.put_group("k.json", group)
    for path in group.values():
        with open(path) as file:
            file.read()
    found["wrote"] += 1


def get(number):
    return manager(number).get_group("k.json")


what, root, keys = sys.argv[1], sys.argv[2], int(sys.argv[3])
triton.knobs.cache.dir = root
if what == "put":
    first, name = int(sys.argv[4]), sys.argv[5]
    for number in range(first, first + keys):
        try:
            group = get(number)
            put(number, f"{name}.{number}") if group is None else read(number, group)
        except Exception as error:
            found["bad"].append([number, repr(error)])
elif what == "watch":
    end = time.monotonic() + float(sys.argv[4])
    while time.monotonic() < end:
        number = random.randrange(keys)
        if os.path.isdir(os.path.join(root, f"{number:08x}" * 8)):
            group = get(number)
            if group is not None:
                read(number, group)
else:
    for number in range(keys):
        directory = os.path.join(root, f"{number:08x}" * 8)
        names = sorted(os.listdir(directory))
        if names != sorted(NAMES + ["__grp__k.json"]):
            found["bad"].append([number, names])
        read(number, get(number) or {})
print(json.dumps(found))
