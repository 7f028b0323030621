"""Compiles two signatures of one function with numba's file cache, and prints its hits and misses."""

import json

import numba


@numba.njit(cache=True)
def double_and_one(x):
    return x * 2 + 1


results = [double_and_one(3), double_and_one(2.5)]
stats = double_and_one.stats
print(
    json.dumps(
        {
            "hits": sum(stats.cache_hits.values()),
            "misses": sum(stats.cache_misses.values()),
            "results": results,
        }
    )
)
