# Points the compile caches of logins at the mount, if it works at this moment: copy to /etc/profile.d/ and
# set the mount point, a path without blanks. For sh, bash and zsh. Variables that a user has set stay. If the mount is
# missing, does not answer or cannot be written, nothing is set. `hearthfs run` does the same for one command.
# Made from src/namespace/profiles.toml.

_hearthfs=/mnt/cache

# The directories that this user can write. If the daemon hangs, even SIGKILL may not end a process that accesses the
# mount. So nothing here waits for that process, only for its output: first that the mount answers at all (`stat -f`,
# which the kernel never answers from memory), then the rest, which may need requests to the store.
# In parentheses, because zsh waits for the background processes of a group in braces.
_hearthfs_dirs=$(
    (
        command timeout -s KILL 1 sh -c '
            stat -f -- "$0" >/dev/null && echo && cd -P -- "$0" || exit
            top= found=
            while read -r _ _ _ _ at more; do
                if [ "$at" = "$PWD" ]; then top=$more; fi
            done </proc/self/mountinfo
            case $top in
            "ro "* | ro,* | *" ro" | *" ro,"*) exit ;;
            *" - fuse.hearthfs "* | *" - fuse hearthfs "*) ;;
            *) exit ;;
            esac
            for dir; do
                if [ -d "$dir" ] && [ -w "$dir" ] && [ -x "$dir" ]; then found="$found $dir"; fi
            done
            echo "$found "
        ' "$_hearthfs" ccache go-build inductor jax neuron numba sccache torch_extensions torch_xla triton triton-dejavu vllm &
    ) </dev/null 2>/dev/null | {
        command timeout 0.2 sh -c 'read -r _' && command timeout 1 cat
    } 2>/dev/null
) || _hearthfs_dirs=

case $_hearthfs_dirs in
*' ccache '*)
    if [ -z "${CCACHE_DIR+set}${CCACHE_REMOTE_STORAGE+set}${CCACHE_SECONDARY_STORAGE+set}" ]; then
        export CCACHE_DIR="$_hearthfs/ccache"
    fi
    ;;
esac
case $_hearthfs_dirs in
*' go-build '*)
    if [ -z "${GOCACHE+set}" ]; then
        export GOCACHE="$_hearthfs/go-build"
    fi
    ;;
esac
case $_hearthfs_dirs in
*' inductor '*)
    if [ -z "${TORCHINDUCTOR_CACHE_DIR+set}" ]; then
        export TORCHINDUCTOR_CACHE_DIR="$_hearthfs/inductor"
    fi
    ;;
esac
case $_hearthfs_dirs in
*' jax '*)
    if [ -z "${OLYMPUS_COMPILATION_CACHE_DIR+set}${JAX_COMPILATION_CACHE_DIR+set}" ]; then
        export OLYMPUS_COMPILATION_CACHE_DIR="$_hearthfs/jax"
        export JAX_COMPILATION_CACHE_DIR="$_hearthfs/jax"
    fi
    ;;
esac
case ${NEURON_CC_FLAGS-} in
*--cache_dir*) ;;
*)
    case $_hearthfs_dirs in
    *' neuron '*)
        if [ -z "${NEURON_COMPILE_CACHE_URL+set}" ]; then
            export NEURON_COMPILE_CACHE_URL="$_hearthfs/neuron"
        fi
        ;;
    esac
    ;;
esac
case $_hearthfs_dirs in
*' numba '*)
    if [ -z "${NUMBA_CACHE_DIR+set}" ]; then
        export NUMBA_CACHE_DIR="$_hearthfs/numba"
    fi
    ;;
esac
case $_hearthfs_dirs in
*' sccache '*)
    if [ -z "${SCCACHE_DIR+set}" ]; then
        export SCCACHE_DIR="$_hearthfs/sccache"
    fi
    ;;
esac
case $_hearthfs_dirs in
*' torch_extensions '*)
    if [ -z "${TORCH_EXTENSIONS_DIR+set}" ]; then
        export TORCH_EXTENSIONS_DIR="$_hearthfs/torch_extensions"
    fi
    ;;
esac
case $_hearthfs_dirs in
*' torch_xla '*)
    if [ -z "${XLA_PERSISTENT_CACHE_PATH+set}" ]; then
        export XLA_PERSISTENT_CACHE_PATH="$_hearthfs/torch_xla"
    fi
    ;;
esac
case $_hearthfs_dirs in
*' triton '*)
    if [ -z "${TRITON_CACHE_DIR+set}" ]; then
        export TRITON_CACHE_DIR="$_hearthfs/triton"
    fi
    ;;
esac
case $_hearthfs_dirs in
*' triton-dejavu '*)
    if [ -z "${TRITON_DEJAVU_STORAGE+set}" ]; then
        export TRITON_DEJAVU_STORAGE="$_hearthfs/triton-dejavu"
    fi
    ;;
esac
case $_hearthfs_dirs in
*' vllm '*)
    if [ -z "${VLLM_CACHE_ROOT+set}" ]; then
        export VLLM_CACHE_ROOT="$_hearthfs/vllm"
    fi
    ;;
esac

unset _hearthfs _hearthfs_dirs
