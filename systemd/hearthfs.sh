# Points the compile caches of all logins at the mount: copy to /etc/profile.d/ and set the mount point.
# What a user has set stays. `hearthfs run` does the same for one command.

_hearthfs=/mnt/cache

# These two are one setting.
if [ -z "${OLYMPUS_COMPILATION_CACHE_DIR+set}${JAX_COMPILATION_CACHE_DIR+set}" ]; then
    export OLYMPUS_COMPILATION_CACHE_DIR="$_hearthfs/jax"
    export JAX_COMPILATION_CACHE_DIR="$_hearthfs/jax"
fi
export XLA_PERSISTENT_CACHE_PATH="${XLA_PERSISTENT_CACHE_PATH-$_hearthfs/torch_xla}"
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR-$_hearthfs/inductor}"
export TRITON_CACHE_DIR="${TRITON_CACHE_DIR-$_hearthfs/triton}"
export TRITON_DEJAVU_STORAGE="${TRITON_DEJAVU_STORAGE-$_hearthfs/triton-dejavu}"
export VLLM_CACHE_ROOT="${VLLM_CACHE_ROOT-$_hearthfs/vllm}"
export TORCH_EXTENSIONS_DIR="${TORCH_EXTENSIONS_DIR-$_hearthfs/torch_extensions}"
export NUMBA_CACHE_DIR="${NUMBA_CACHE_DIR-$_hearthfs/numba}"
# A flag says the same.
case ${NEURON_CC_FLAGS-} in
*--cache_dir*) ;;
*) export NEURON_COMPILE_CACHE_URL="${NEURON_COMPILE_CACHE_URL-$_hearthfs/neuron}" ;;
esac
# Who names a second level keeps the first on the node's own disk.
if [ -z "${CCACHE_REMOTE_STORAGE+set}${CCACHE_SECONDARY_STORAGE+set}" ]; then
    export CCACHE_DIR="${CCACHE_DIR-$_hearthfs/ccache}"
fi
export SCCACHE_DIR="${SCCACHE_DIR-$_hearthfs/sccache}"
export GOCACHE="${GOCACHE-$_hearthfs/go-build}"

unset _hearthfs
