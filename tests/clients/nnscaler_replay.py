"""Writes to a directory as `parallelize` of nnscaler does, without torch.

Rank 0 finds exactly the expected files or writes all of them in place, the generated code in two
steps. Then it imports the code. Arguments: directory, ranks, and `import` for another rank, which looks
at the directory, waits on stdin as at its barrier, and then imports.
Prints GENERATED, REUSED or IMPORTED.
"""

import importlib
import os
import pickle
import sys
from pathlib import Path

root, ranks = Path(sys.argv[1]), int(sys.argv[2])
rank = int(os.environ.get("RANK", "0"))
home = root / "_parallel_modules" / "model" / "Block" / "_"
code = [f"gencode{n}.py" for n in range(ranks)]
data = ["fullmodel.pt.0", "dist_param_map.pt", "graph.ckp", "forward_args.pkl", "origin_module_metadata.pt"]
wanted = {"compute_config.pt", *code, *data}


def generate():
    for stale in home.iterdir():
        if stale.is_file():
            stale.unlink()
    (home / "compute_config.pt").write_bytes(pickle.dumps({"ranks": ranks}))
    for name in data:
        (home / name).write_bytes(os.urandom(150_000))
    for n, name in enumerate(code):
        with (home / name).open("w") as file:
            file.write(f"RANK = {n}\n")
        with (home / name).open("a") as file:
            file.write("def step():\n    return RANK + 1\n")


def matches():
    found = {path.name for path in home.glob("*") if path.is_file()}
    if found != wanted:
        return False
    return pickle.loads((home / "compute_config.pt").read_bytes()) == {"ranks": ranks}


home.mkdir(parents=True, exist_ok=True)
sys.path.insert(0, str(root))
if len(sys.argv) > 3:
    # The importer caches the directory as it is before the code exists.
    importlib.invalidate_caches()
    try:
        importlib.import_module(f"_parallel_modules.model.Block._.gencode{rank}")
        sys.exit("the code existed before it was generated")
    except ModuleNotFoundError:
        pass
    print("LOOKED", flush=True)
    sys.stdin.readline()
    word = "IMPORTED"
elif matches():
    word = "REUSED"
else:
    found = sorted(path.name for path in home.glob("*"))
    if any(name.endswith(".py") for name in found):
        sys.exit(f"the directory is not empty and does not match: {found}")
    generate()
    word = "GENERATED"
module = importlib.import_module(f"_parallel_modules.model.Block._.gencode{rank}")
assert module.step() == rank + 1
print(word)
