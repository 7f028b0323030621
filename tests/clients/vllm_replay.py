"""Writes to a directory as vLLM does for the compiled graphs of one model part: artifacts of several graphs in place, one of
them a directory that is replaced, and last their list, rewritten in place.

Arguments: directory, model part, name of this process, number of graphs, and "replace" to write even if a list exists. Reads the
files first, and prints HIT if a list exists. Else it writes all files and reads them again: it prints WROTE if they are its own,
and OTHER if they are those of another process. It prints MIXED and the writers if the list and its files have several.
"""

import os
import shutil
import sys

root, part, name, graphs = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
place = os.path.join(root, "torch_compile_cache", "0123abcd", "rank_0_0", part)
os.makedirs(place, exist_ok=True)
LIST = os.path.join(place, "vllm_compile_cache.py")


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(f"{text}\n" * 200)


def read(path):
    with open(path) as file:
        lines = set(file.read().splitlines())
    assert len(lines) == 1, f"{path} is torn"
    return lines.pop()


def artifacts():
    for graph in range(graphs):
        yield os.path.join(place, f"artifact_compile_range_1_8192_subgraph_{graph}")
    yield os.path.join(place, "unpacked", "code.py")
    yield os.path.join(place, "computation_graph.py")
    yield os.path.join(place, "transformed_code.py")


def look():
    """Returns the writer of each present file; None if nothing is complete."""
    try:
        writers = {"list": read(LIST)}
    except FileNotFoundError:
        return None
    for path in artifacts():
        writers[os.path.basename(path)] = read(path)
    return writers


found = look()
said = "HIT"
if found is None or "replace" in sys.argv:
    if found is not None:
        shutil.rmtree(os.path.join(place, "unpacked"))
    for path in artifacts():
        write(path, name)
    write(LIST, name)
    found = look()
    said = "WROTE" if found is None or found["list"] == name else "OTHER"
if found is not None and len(set(found.values())) != 1:
    said = f"MIXED {found}"
print(said)
