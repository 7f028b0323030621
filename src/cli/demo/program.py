"""A few small programs as a training job has them, compiled by JAX and run once each.

Prints one line of JSON: the seconds that it took, what JAX says about its compilation cache, and a
number that depends on every result, so that a wrong entry in the cache would show.
"""

import json
import time
from collections import Counter

import jax
import jax.numpy as jnp
import numpy
from jax import lax
from jax._src import monitoring

events = Counter()
monitoring.register_event_listener(lambda name, **_: events.update([name]))

WIDTH = 64


def convolve(images, kernel):
    dims = ("NHWC", "HWIO", "NHWC")
    out = lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=dims)
    return lax.reduce_window(jax.nn.relu(out), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def attend(x, weights):
    q, k, v = (x @ w for w in weights[:3])
    heads = [t.reshape(x.shape[0], x.shape[1], 4, -1).swapaxes(1, 2) for t in (q, k, v)]
    scores = heads[0] @ heads[1].swapaxes(-1, -2) / jnp.sqrt(WIDTH / 4.0)
    mixed = jax.nn.softmax(scores, axis=-1) @ heads[2]
    return x + mixed.swapaxes(1, 2).reshape(x.shape) @ weights[3]


def block(x, layer):
    x = attend(x, layer["attention"])
    centred = x - x.mean(-1, keepdims=True)
    normal = centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return x + jax.nn.gelu(normal @ layer["up"]) @ layer["down"]


def loss(layers, x, target):
    for layer in layers:
        x = block(x, layer)
    return ((x - target) ** 2).mean()


def train(layers, x, target):
    value, slopes = jax.value_and_grad(loss)(layers, x, target)
    return jax.tree.map(lambda p, g: p - 0.01 * g, layers, slopes), value


def recur(state, inputs):
    def step(carry, item):
        carry = jnp.tanh(carry * 0.9 + item)
        return carry, carry.sum()

    return lax.scan(step, state, inputs)[1].sum()


def solve(matrix):
    spread = matrix @ matrix.T + WIDTH * jnp.eye(WIDTH)
    return jnp.linalg.slogdet(spread)[1] + jnp.linalg.solve(spread, jnp.ones(WIDTH)).sum()


def fill(*shape):
    """Numbers without a program of their own: each node compiles the same few."""
    count = int(numpy.prod(shape))
    return jax.device_put(numpy.sin(numpy.arange(count, dtype=numpy.float32)).reshape(shape) * 0.1)


def main():
    started = time.monotonic()
    layer = {
        "attention": [fill(WIDTH, WIDTH) for _ in range(4)],
        "up": fill(WIDTH, 4 * WIDTH),
        "down": fill(4 * WIDTH, WIDTH),
    }
    layers = [layer, layer]
    images, kernel = fill(4, 32, 32, 3), fill(3, 3, 3, 16)
    words, target = fill(2, 16, WIDTH), fill(2, 16, WIDTH)
    jobs = [
        ("convolve", jax.jit(convolve), (images, kernel)),
        ("convolve backwards", jax.jit(jax.grad(lambda i, k: convolve(i, k).sum(), 1)), (images, kernel)),
        ("attend", jax.jit(attend), (words, layer["attention"])),
        ("block", jax.jit(block), (words, layer)),
        ("loss", jax.jit(loss), (layers, words, target)),
        ("train", jax.jit(train), (layers, words, target)),
        ("recur", jax.jit(recur), (fill(WIDTH), fill(32, WIDTH))),
        ("solve", jax.jit(solve), (fill(WIDTH, WIDTH),)),
        ("sort", jax.jit(lambda x: jnp.sort(x, axis=-1)[:, ::7]), (fill(32, 128),)),
    ]
    answer = 0.0
    for _, function, arguments in jobs:
        for leaf in jax.tree.leaves(function(*arguments)):
            answer += float(numpy.abs(numpy.asarray(leaf, dtype=numpy.float64)).sum())
    seconds = time.monotonic() - started
    of_cache = {name.rsplit("/", 1)[-1]: count for name, count in events.items() if "compilation_cache" in name}
    print(
        json.dumps(
            {
                "seconds": seconds,
                "programs": len(jobs),
                "hits": of_cache.get("cache_hits", 0),
                "misses": of_cache.get("cache_misses", 0),
                "answer": repr(answer),
            }
        ),
        flush=True,
    )


main()
