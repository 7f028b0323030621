/* A syscall process in another process.
 *
 * The tests need processes with their own pid that do exactly one system call on request, report its
 * result and errno, and can be killed at any point. This program reads requests from stdin and answers
 * on stdout:
 *
 *   request:  op arg arg ... \n  [raw bytes, their number is the last argument of ops that take them]
 *   answer:   result errno length \n  [length raw bytes]
 *
 * Names are hexadecimal, so that any byte may occur in them. Numbers are decimal.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>
#include <dlfcn.h>

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#define RENAME_EXCHANGE 2
#endif

enum { ARGS_MAX = 8, MAPS_MAX = 16, LINE_MAX_BYTES = 32768 };

static struct { char *at; size_t len; } maps[MAPS_MAX];
static char *args[ARGS_MAX];
static int argc_now;

static void answer(long long result, const void *data, size_t len) {
  int saved = errno;
  printf("%lld %d %zu\n", result, result < 0 ? saved : 0, len);
  if (len) fwrite(data, 1, len, stdout);
  fflush(stdout);
}

static void done(long long result) { answer(result, NULL, 0); }

static int from_hex(char c) { return c <= '9' ? c - '0' : (c | 32) - 'a' + 10; }

/* Decodes an argument in place. "-" stands for the empty name. */
static char *name(int i) {
  char *text = args[i];
  if (text[0] == '-') { text[0] = 0; return text; }
  size_t n = strlen(text) / 2;
  for (size_t k = 0; k < n; k++) text[k] = (char)(from_hex(text[2 * k]) << 4 | from_hex(text[2 * k + 1]));
  text[n] = 0;
  return text;
}

static long long num(int i) { return strtoll(args[i], NULL, 10); }

static char *room(size_t len) {
  char *p = malloc(len ? len : 1);
  if (!p) { fprintf(stderr, "hand: no memory for %zu bytes\n", len); exit(90); }
  return p;
}

static char *payload(size_t len) {
  char *p = room(len);
  if (fread(p, 1, len, stdin) != len) exit(91);
  return p;
}

static void pause_us(long long us) {
  struct timespec t = { us / 1000000, (us % 1000000) * 1000 };
  if (us > 0) nanosleep(&t, NULL);
}

static long long write_all(int fd, const char *data, size_t len, size_t chunk, long long delay_us) {
  size_t at = 0;
  while (at < len) {
    size_t want = len - at < chunk ? len - at : chunk;
    ssize_t n = write(fd, data + at, want);
    if (n < 0) return -1;
    at += (size_t)n;
    pause_us(delay_us);
  }
  return (long long)at;
}

/* put NAME FLAGS MODE CHUNK DELAY_US LEN: open, write all, close; the errno of the step that failed. */
static void op_put(void) {
  size_t len = (size_t)num(6);
  char *data = payload(len);
  int fd = open(name(1), (int)num(2) | O_CLOEXEC, (mode_t)num(3));
  long long result = fd;
  if (fd >= 0) {
    result = write_all(fd, data, len, (size_t)num(4), num(5));
    int saved = errno;
    if (close(fd) < 0) { result = -1; saved = errno; }
    errno = saved;
  }
  done(result);
  free(data);
}

/* get NAME CHUNK DELAY_US: open, read to the end in pieces, close. */
static void op_get(void) {
  int fd = open(name(1), O_RDONLY | O_CLOEXEC);
  if (fd < 0) { done(-1); return; }
  size_t chunk = (size_t)num(2), len = 0, size = chunk + 65536;
  char *data = room(size);
  ssize_t n;
  for (;;) {
    if (size - len < chunk) {
      size *= 2;
      data = realloc(data, size);
      if (!data) exit(90);
    }
    n = read(fd, data + len, chunk);
    if (n <= 0) break;
    len += (size_t)n;
    pause_us(num(3));
  }
  if (n < 0) { int saved = errno; close(fd); errno = saved; done(-1); }
  else { close(fd); answer(0, data, len); }
  free(data);
}

/* mapget NAME DELAY_US: the same through a private read-only mapping, touched after a pause. */
static void op_mapget(void) {
  int fd = open(name(1), O_RDONLY | O_CLOEXEC);
  struct stat st;
  if (fd < 0 || fstat(fd, &st) < 0) { done(-1); if (fd >= 0) close(fd); return; }
  void *at = st.st_size ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
  if (at == MAP_FAILED) { done(-1); close(fd); return; }
  close(fd);
  pause_us(num(2));
  answer(0, at, (size_t)st.st_size);
  if (at) munmap(at, (size_t)st.st_size);
}

static void answer_stat(int failed, const struct stat *st) {
  char text[256];
  if (failed) { done(-1); return; }
  int n = snprintf(text, sizeof text, "%lld %u %lu %llu %lld %lld %u %u %lld",
                   (long long)st->st_size, (unsigned)st->st_mode, (unsigned long)st->st_nlink,
                   (unsigned long long)st->st_ino, (long long)st->st_mtim.tv_sec, (long long)st->st_mtim.tv_nsec,
                   (unsigned)st->st_uid, (unsigned)st->st_gid, (long long)st->st_blocks);
  answer(0, text, (size_t)n);
}

static void op_stat(int follow) {
  struct stat st;
  answer_stat(follow ? stat(name(1), &st) : lstat(name(1), &st), &st);
}

static void op_read(void) {
  size_t len = (size_t)num(3);
  char *data = room(len);
  ssize_t n = pread(num(1), data, len, num(2));
  answer(n, data, n > 0 ? (size_t)n : 0);
  free(data);
}

static void op_pwrite(void) {
  size_t len = (size_t)num(3);
  char *data = payload(len);
  done(pwrite((int)num(1), data, len, num(2)));
  free(data);
}

/* write FD LEN: at the descriptor's own position. */
static void op_write(void) {
  size_t len = (size_t)num(2);
  char *data = payload(len);
  done(write((int)num(1), data, len));
  free(data);
}

/* fill FD LEN CHUNK DELAY_US: LEN bytes of 'x'; answers "started" first, so that the caller can interrupt it. */
static void op_fill(void) {
  size_t len = (size_t)num(2);
  char *data = room(len);
  memset(data, 'x', len);
  printf("0 0 0\n");
  fflush(stdout);
  done(write_all((int)num(1), data, len, (size_t)num(3), num(4)));
  free(data);
}

/* directwrite FD OFF LEN BYTE: one aligned write, for O_DIRECT. */
static void op_directwrite(void) {
  void *data;
  size_t len = (size_t)num(3);
  if (posix_memalign(&data, 4096, len)) exit(90);
  memset(data, (int)num(4), len);
  done(pwrite((int)num(1), data, len, num(2)));
  free(data);
}

static void op_map(void) {
  for (int i = 0; i < MAPS_MAX; i++) {
    if (maps[i].at) continue;
    int prot = PROT_READ | (num(3) ? PROT_WRITE : 0);
    void *at = mmap(NULL, (size_t)num(2), prot, num(4) ? MAP_SHARED : MAP_PRIVATE, (int)num(1), 0);
    if (at == MAP_FAILED) { done(-1); return; }
    maps[i].at = at;
    maps[i].len = (size_t)num(2);
    done(i);
    return;
  }
  errno = EMFILE;
  done(-1);
}

static void op_mapwrite(void) {
  size_t len = (size_t)num(3);
  char *data = payload(len);
  memcpy(maps[num(1)].at + num(2), data, len);
  done((long long)len);
  free(data);
}

static void op_unmap(void) {
  long long i = num(1);
  int result = munmap(maps[i].at, maps[i].len);
  maps[i].at = NULL;
  done(result);
}

/* setlk FD TYPE(0 read, 1 write, 2 unlock) OFF LEN: POSIX record lock, not waiting. */
static void op_setlk(void) {
  static const short types[] = { F_RDLCK, F_WRLCK, F_UNLCK };
  struct flock lock = { .l_type = types[num(2)], .l_whence = SEEK_SET, .l_start = num(3), .l_len = num(4) };
  done(fcntl((int)num(1), F_SETLK, &lock));
}

/* forkhold: a child that keeps every descriptor open until it is killed. */
static void op_forkhold(void) {
  pid_t pid = fork();
  if (pid == 0) for (;;) pause();
  done(pid);
}

/* heir FD LEN: a child that waits for SIGUSR1, writes LEN bytes to what it inherited, and stays until it is killed. */
static void op_heir(void) {
  size_t len = (size_t)num(2);
  char *data = payload(len);
  sigset_t go;
  int which;
  sigemptyset(&go);
  sigaddset(&go, SIGUSR1);
  sigprocmask(SIG_BLOCK, &go, NULL);
  pid_t pid = fork();
  if (pid == 0) {
    /* It must not outlive the test. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigwait(&go, &which);
    if (write_all((int)num(1), data, len, len, 0) < 0) _exit(93);
    for (;;) pause();
  }
  sigprocmask(SIG_UNBLOCK, &go, NULL);
  done(pid);
  free(data);
}

/* spawn CODE: a child that leaves by exit(CODE) with every descriptor open. Answers its status. */
static void op_spawn(void) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) _exit((int)num(1));
  int status = 0;
  waitpid(pid, &status, 0);
  done(status);
}

static void caught(int signal_number) { (void)signal_number; }

/* catch SIGNAL RESTART: handles a signal by doing nothing. Calls that it interrupts go on, or fail. */
static void op_catch(void) {
  struct sigaction action = { .sa_handler = caught, .sa_flags = num(2) ? SA_RESTART : 0 };
  done(sigaction((int)num(1), &action, NULL));
}

/* freeze TID: stops one thread of another process until this process ends. */
static void op_freeze(void) {
  pid_t tid = (pid_t)num(1);
  int status;
  if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) < 0 || ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) < 0) { done(-1); return; }
  done(waitpid(tid, &status, __WALL) == tid ? 0 : -1);
}

/* call NAME SYMBOL: dlopen, call an int function without arguments, keep the library open. */
static void op_call(void) {
  void *lib = dlopen(name(1), RTLD_NOW | RTLD_LOCAL);
  int (*function)(void) = lib ? (int (*)(void))(intptr_t)dlsym(lib, name(2)) : NULL;
  if (!function) { errno = ELIBACC; done(-1); return; }
  done(function());
}

static void op_recall(void) {
  void *lib = dlopen(name(1), RTLD_NOW | RTLD_NOLOAD);
  int (*function)(void) = lib ? (int (*)(void))(intptr_t)dlsym(lib, name(2)) : NULL;
  if (!function) { errno = ELIBACC; done(-1); return; }
  done(function());
}

static void op_cwd(void) {
  char text[4096];
  if (!getcwd(text, sizeof text)) { done(-1); return; }
  answer(0, text, strlen(text));
}

static void op_readlink(void) {
  char text[4096];
  ssize_t n = readlink(name(1), text, sizeof text);
  answer(n, text, n > 0 ? (size_t)n : 0);
}

static void op_getxattr(void) {
  char text[65536];
  ssize_t n = getxattr(name(1), name(2), text, sizeof text);
  answer(n, text, n > 0 ? (size_t)n : 0);
}

static void op_listxattr(void) {
  char text[65536];
  ssize_t n = listxattr(name(1), text, sizeof text);
  answer(n, text, n > 0 ? (size_t)n : 0);
}

static void op_setxattr(void) {
  size_t len = (size_t)num(4);
  char *data = payload(len);
  done(setxattr(name(1), name(2), data, len, (int)num(3)));
  free(data);
}

static void op_utimes(void) {
  struct timespec t[2] = { { num(2), num(3) }, { num(2), num(3) } };
  done(utimensat(AT_FDCWD, name(1), t, 0));
}

static void die(int signal_number) {
  struct rlimit none = { 0, 0 };
  setrlimit(RLIMIT_CORE, &none);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

static int is(const char *op) { return strcmp(args[0], op) == 0; }

static int files(void) {
  struct stat st;
  if (is("open")) done(open(name(1), (int)num(2), (mode_t)num(3)));
  else if (is("close")) done(close((int)num(1)));
  else if (is("dup")) done(dup((int)num(1)));
  else if (is("put")) op_put();
  else if (is("get")) op_get();
  else if (is("mapget")) op_mapget();
  else if (is("read")) op_read();
  else if (is("write")) op_write();
  else if (is("pwrite")) op_pwrite();
  else if (is("fill")) op_fill();
  else if (is("directwrite")) op_directwrite();
  else if (is("lseek")) done(lseek((int)num(1), num(2), (int)num(3)));
  else if (is("stat")) op_stat(1);
  else if (is("lstat")) op_stat(0);
  else if (is("fstat")) answer_stat(fstat((int)num(1), &st), &st);
  else if (is("ftruncate")) done(ftruncate((int)num(1), num(2)));
  else if (is("truncate")) done(truncate(name(1), num(2)));
  else if (is("fallocate")) done(fallocate((int)num(1), (int)num(2), num(3), num(4)));
  else if (is("fsync")) done(fsync((int)num(1)));
  else if (is("fchmod")) done(fchmod((int)num(1), (mode_t)num(2)));
  else return 0;
  return 1;
}

static int names(void) {
  if (is("unlink")) done(unlink(name(1)));
  else if (is("rename")) { char *from = name(1); done(renameat2(AT_FDCWD, from, AT_FDCWD, name(2), (unsigned)num(3))); }
  else if (is("link")) { char *from = name(1); done(link(from, name(2))); }
  else if (is("symlink")) { char *to = name(1); done(symlink(to, name(2))); }
  else if (is("readlink")) op_readlink();
  else if (is("mkdir")) done(mkdir(name(1), (mode_t)num(2)));
  else if (is("rmdir")) done(rmdir(name(1)));
  else if (is("chmod")) done(chmod(name(1), (mode_t)num(2)));
  else if (is("utimes")) op_utimes();
  else if (is("chdir")) done(chdir(name(1)));
  else if (is("cwd")) op_cwd();
  else if (is("access")) done(access(name(1), (int)num(2)));
  else if (is("getxattr")) op_getxattr();
  else if (is("setxattr")) op_setxattr();
  else if (is("listxattr")) op_listxattr();
  else if (is("removexattr")) { char *path = name(1); done(removexattr(path, name(2))); }
  else return 0;
  return 1;
}

static int processes(void) {
  if (is("flock")) done(flock((int)num(1), (int)num(2)));
  else if (is("setlk")) op_setlk();
  else if (is("map")) op_map();
  else if (is("mapread")) answer(0, maps[num(1)].at + num(2), (size_t)num(3));
  else if (is("mapwrite")) op_mapwrite();
  else if (is("msync")) done(msync(maps[num(1)].at, maps[num(1)].len, MS_SYNC));
  else if (is("unmap")) op_unmap();
  else if (is("forkhold")) op_forkhold();
  else if (is("heir")) op_heir();
  else if (is("spawn")) op_spawn();
  else if (is("catch")) op_catch();
  else if (is("freeze")) op_freeze();
  else if (is("call")) op_call();
  else if (is("recall")) op_recall();
  else if (is("pid")) done(getpid());
  else if (is("exit")) exit((int)num(1));
  else if (is("_exit")) _exit((int)num(1));
  else if (is("die")) die((int)num(1));
  else return 0;
  return 1;
}

/* Defined in syscall_process_users.c and syscall_process_races.c, which follow in the same source. */
static int users(void);
static int races(void);

int main(void) {
  static char line[LINE_MAX_BYTES];
  /* A test may send these. If a shell runs the tests in the background, they ignore them, and this process inherits that. */
  signal(SIGINT, SIG_DFL);
  signal(SIGQUIT, SIG_DFL);
  while (fgets(line, sizeof line, stdin)) {
    argc_now = 0;
    for (char *at = strtok(line, " \n"); at && argc_now < ARGS_MAX; at = strtok(NULL, " \n")) args[argc_now++] = at;
    if (argc_now == 0) continue;
    if (!files() && !names() && !processes() && !users() && !races()) {
      fprintf(stderr, "syscall process: unknown request %s\n", args[0]);
      return 92;
    }
  }
  return 0;
}
