/*
 * Lets the daemon run under valgrind. Loaded into it by LD_PRELOAD.
 *
 * Two things are not what the program expects there. The kernel's own answer to PR_GET_AUXV describes
 * valgrind and not the program, so the request is refused, and the caller reads /proc/self/auxv, which is
 * right. And /proc/self/exe is valgrind, so a program that starts itself is started by its path.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/prctl.h>
#include <linux/seccomp.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef PR_GET_AUXV
#define PR_GET_AUXV 0x41555856
#endif

__attribute__((constructor)) static void refuse_auxv(void)
{
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_GET_AUXV, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = { sizeof steps / sizeof *steps, steps };
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) != 0)
        perror("seccomp");
}

static const char *program(const char *path)
{
    const char *real = getenv("HEARTHFS_PROGRAM");
    return real != NULL && strcmp(path, "/proc/self/exe") == 0 ? real : path;
}

int posix_spawnp(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const argv[], char *const env[])
{
    int (*next)(pid_t *, const char *, const posix_spawn_file_actions_t *,
                const posix_spawnattr_t *, char *const *, char *const *) =
        dlsym(RTLD_NEXT, "posix_spawnp");
    return next(pid, program(path), actions, attributes, argv, env);
}

int execvp(const char *path, char *const argv[])
{
    int (*next)(const char *, char *const *) = dlsym(RTLD_NEXT, "execvp");
    return next(program(path), argv);
}
