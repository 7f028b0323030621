"""Compiles one Triton kernel for a GPU that the machine lacks, and prints whether it was a hit."""

import json
import os
from collections import Counter

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def scale(source, target, count, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(target + at, tl.load(source + at, mask=inside) * factor, mask=inside)


compilations = Counter()


def count(*, cache_hit, **_):
    compilations[cache_hit] += 1


triton.knobs.compilation.listener = count


def entries():
    found = {}
    for folder, _, names in os.walk(os.environ["TRITON_CACHE_DIR"]):
        for name in names:
            path = os.path.join(folder, name)
            found[path] = os.stat(path).st_mtime_ns
    return found


before = entries()
kernel = triton.compile(
    ASTSource(
        fn=scale,
        signature={
            "source": "*fp32",
            "target": "*fp32",
            "count": "i32",
            "factor": "fp32",
            "BLOCK": "constexpr",
        },
        constexprs={"BLOCK": 512},
    ),
    target=GPUTarget("cuda", 80, 32),
)
after = entries()
print(
    json.dumps(
        {
            "new": sorted(os.path.basename(path) for path in after if before.get(path) != after[path]),
            "files": len(after),
            "hits": compilations[True],
            "misses": compilations[False],
            "cubin": len(kernel.asm["cubin"]),
        }
    )
)
