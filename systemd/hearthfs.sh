# Points the compile caches of all logins at the mount: copy to /etc/profile.d/ and set the mount point.
# What a user has set stays. `hearthfs run` does the same for one command.
# Made of src/namespace/profiles.toml.

_hearthfs=/mnt/cache

if [ -z "${CCACHE_DIR+set}${CCACHE_REMOTE_STORAGE+set}${CCACHE_SECONDARY_STORAGE+set}" ]; then
    export CCACHE_DIR="$_hearthfs/ccache"
fi
export GOCACHE="${GOCACHE-$_hearthfs/go-build}"
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR-$_hearthfs/inductor}"
if [ -z "${OLYMPUS_COMPILATION_CACHE_DIR+set}${JAX_COMPILATION_CACHE_DIR+set}" ]; then
    export OLYMPUS_COMPILATION_CACHE_DIR="$_hearthfs/jax"
    export JAX_COMPILATION_CACHE_DIR="$_hearthfs/jax"
fi
case ${NEURON_CC_FLAGS-} in
*--cache_dir*) ;;
*)
    if [ -z "${NEURON_COMPILE_CACHE_URL+set}" ]; then
        export NEURON_COMPILE_CACHE_URL="$_hearthfs/neuron"
    fi
    ;;
esac
export NUMBA_CACHE_DIR="${NUMBA_CACHE_DIR-$_hearthfs/numba}"
export SCCACHE_DIR="${SCCACHE_DIR-$_hearthfs/sccache}"
export TORCH_EXTENSIONS_DIR="${TORCH_EXTENSIONS_DIR-$_hearthfs/torch_extensions}"
export XLA_PERSISTENT_CACHE_PATH="${XLA_PERSISTENT_CACHE_PATH-$_hearthfs/torch_xla}"
export TRITON_CACHE_DIR="${TRITON_CACHE_DIR-$_hearthfs/triton}"
export TRITON_DEJAVU_STORAGE="${TRITON_DEJAVU_STORAGE-$_hearthfs/triton-dejavu}"
export VLLM_CACHE_ROOT="${VLLM_CACHE_ROOT-$_hearthfs/vllm}"

unset _hearthfs
