"""Writes to a directory as XLA does for its side caches below JAX's directory: one file for each result of autotuning, and one file
of kernels that each process reads, extends and replaces as a whole.

Arguments: directory, name of this process, number of results. Prints the counts of found and new results, as HIT n MISS n. Fails
if a file is torn, as XLA does.
"""

import base64
import hashlib
import os
import random
import sys

root, name, results = sys.argv[1], sys.argv[2], int(sys.argv[3])
place = os.path.join(root, "xla_gpu_per_fusion_autotune_cache_dir")
temporaries = os.path.join(place, "tmp")
kernels = os.path.join(root, "xla_gpu_kernel_cache_file")
END = "# end"


def parse(path):
    with open(path) as file:
        text = file.read()
    assert text.endswith(END), f"{path} is torn: {text!r}"
    return text.splitlines()[:-1]


def put(temporary, path, lines):
    with open(temporary, "x") as file:
        file.write("\n".join([*lines, END]))
    os.rename(temporary, path)


os.makedirs(place, exist_ok=True)
numbers = list(range(results))
random.Random(name).shuffle(numbers)
hits = misses = 0
for number in numbers:
    key = base64.urlsafe_b64encode(hashlib.sha256(str(number).encode()).digest()).decode().rstrip("=")
    path = os.path.join(place, f"{key}.textproto")
    if os.path.exists(path):
        hits += 1
        assert parse(path)[0] == f"fusion {number}", path
    else:
        misses += 1
        os.makedirs(temporaries, exist_ok=True)
        temporary = os.path.join(temporaries, f"{key}.{name}.{random.getrandbits(64):x}")
        put(temporary, path, [f"fusion {number}", f"by {name}", "x" * 700])
    if number % 8 == 0:
        known = parse(kernels) if os.path.exists(kernels) else []
        mine = f"kernel {number}"
        if mine not in known:
            put(f"{kernels}.tmp.{random.getrandbits(64):x}", kernels, [*known, mine])
print(f"HIT {hits} MISS {misses}")
