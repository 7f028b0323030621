"""Compiles a few small programs with JAX and prints what its persistent cache did.

Prints one line of JSON: hits, misses, the results, and every warning. The environment names the
cache, as for a user. Arguments: a number that selects the programs, and the MiB of constant data
in one of them (0 for none).
"""

import json
import sys
import warnings
from collections import Counter

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax._src import monitoring

    events = Counter()

    def count(name, **_):
        if "compilation_cache" in name:
            events[name.rsplit("/", 1)[-1]] += 1

    monitoring.register_event_listener(count)

    variant, constant_mib = int(sys.argv[1]), int(sys.argv[2])
    x = jnp.asarray(np.arange(64.0, dtype=np.float32).reshape(8, 8))
    results = []
    for k in range(3):
        scale = float(variant * 10 + k + 1)
        program = jax.jit(lambda a, s=scale: jnp.tanh(a @ a / 1000.0) * s)
        results.append(float(program(x).sum()))
    if constant_mib:
        random = np.random.default_rng(variant)
        table = random.standard_normal(constant_mib << 18).astype(np.float32)
        program = jax.jit(lambda a: a.sum() + jnp.asarray(table).sum())
        results.append(float(program(x)))

print(
    json.dumps(
        {
            "hits": events["cache_hits"],
            "misses": events["cache_misses"],
            "results": results,
            "warnings": [str(w.message) for w in caught if "ache" in str(w.message)],
        }
    )
)
