"""Calls functions with numba's file cache, and saves compiled code only on request.

Each line of JSON on stdin gets one line as its answer. {"call": FILE, "with": X, "gated": BOOL} loads a source file again and
calls its function `f`. With a gate, the call stops before numba writes the index and before it writes the data; {"go": true}
continues it. The answer is "stopped" at each stop, and the result at the end. With the argument "read" it saves nothing.
"""

import importlib.util
import json
import os
import queue
import sys
import threading

from numba.core import caching

go, said = queue.Queue(), queue.Queue()
gated = False


def gate(save):
    def stop_first(*args):
        if gated:
            said.put({"stopped": save.__name__})
            go.get()
        return save(*args)

    return stop_first


if "read" in sys.argv:
    caching.IndexDataCacheFile.save = lambda *_: None
for name in ("_save_index", "_save_data"):
    kind = caching.IndexDataCacheFile
    setattr(kind, name, gate(getattr(kind, name)))


def call(path, value):
    try:
        # The cache of numba names the module, which must be found again.
        name = os.path.splitext(os.path.basename(path))[0]
        spec = importlib.util.spec_from_file_location(name, path)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        result = module.f(value)
        stats = module.f.stats
        hits, misses = sum(stats.cache_hits.values()), sum(stats.cache_misses.values())
        said.put({"result": repr(result), "hits": hits, "misses": misses})
    except BaseException as error:  # the driver gets every error
        said.put({"error": repr(error)})


print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    ask = json.loads(line)
    if "call" in ask:
        gated = ask["gated"]
        threading.Thread(target=call, args=(ask["call"], ask["with"]), daemon=True).start()
    else:
        go.put(True)
    print(json.dumps(said.get()), flush=True)
