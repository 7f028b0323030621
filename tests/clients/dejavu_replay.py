"""Writes to a directory as triton-dejavu does: one JSON file for each kernel, ten levels down. The first
access writes it empty, and each new result rewrites it in place.

Arguments: directory, kernel, and the keys to look up. Prints the counts of HIT and MISS.
"""

import json
import os
import sys

root, kernel, keys = sys.argv[1], sys.argv[2], sys.argv[3:]
assert os.access(root, os.W_OK)
place = root
levels = ["dejavu_0.7", "triton_3.5.0", "cuda_12.8", "gpu_none", kernel]
levels += [f"{part}-{part[0] * 64}" for part in ("autotune_config", "code_version", "tune_features", "kernel_configs")]
for level in [*levels, "default"]:
    place = os.path.join(place, level)
    if not os.path.exists(place):
        try:
            os.mkdir(place)
        except FileExistsError:
            continue
        os.chmod(place, 0o777)
path = os.path.join(place, "cache.json")


def store(content):
    with open(path, "w") as file:
        json.dump(content, file, indent=4)
    os.chmod(path, 0o777)


def load():
    if not os.path.isfile(path):
        store({"kernel": kernel, "results": {}})
    with open(path) as file:
        return json.load(file)


hits = misses = 0
for key in keys:
    content = load()
    assert content["kernel"] == kernel, content
    if key in content["results"]:
        hits += 1
    else:
        misses += 1
        content["results"][key] = {"BLOCK": 128, "warps": 4, "note": "x" * 500}
        store(content)
print(f"HIT {hits} MISS {misses}")
