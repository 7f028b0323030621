/* What a hand does as another user, and through descriptors instead of names. Follows hand.c in one source. */
#include <dirent.h>
#include <grp.h>
#include <sched.h>
#include <sys/prctl.h>

/* su UID GID GROUP...: becomes that user for good, with those supplementary groups and no others. */
static void op_su(void) {
  gid_t groups[ARGS_MAX];
  size_t count = 0;
  for (int i = 3; i < argc_now; i++) groups[count++] = (gid_t)num(i);
  if (setgroups(count, groups) < 0) { done(-1); return; }
  if (setresgid((gid_t)num(2), (gid_t)num(2), (gid_t)num(2)) < 0) { done(-1); return; }
  if (setresuid((uid_t)num(1), (uid_t)num(1), (uid_t)num(1)) < 0) { done(-1); return; }
  /* A process that changed its user may not look at its own /proc/self/fd otherwise. */
  done(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0));
}

static int put_text(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t n = write(fd, text, strlen(text));
  int saved = errno;
  close(fd);
  errno = saved;
  return n < 0 ? -1 : 0;
}

/* userns: becomes root of a user namespace of its own, in which nobody else has a number. */
static void op_userns(void) {
  char uids[64], gids[64];
  snprintf(uids, sizeof uids, "0 %u 1", (unsigned)geteuid());
  snprintf(gids, sizeof gids, "0 %u 1", (unsigned)getegid());
  if (unshare(CLONE_NEWUSER) < 0) { done(-1); return; }
  prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
  if (put_text("/proc/self/setgroups", "deny") < 0) { done(-1); return; }
  if (put_text("/proc/self/uid_map", uids) < 0) { done(-1); return; }
  done(put_text("/proc/self/gid_map", gids));
}

/* list NAME: the names in a directory, each ended by a zero byte. */
static void op_list(void) {
  DIR *dir = opendir(name(1));
  if (!dir) { done(-1); return; }
  size_t len = 0, size = 65536;
  char *text = room(size);
  struct dirent *entry;
  errno = 0;
  while ((entry = readdir(dir))) {
    size_t n = strlen(entry->d_name) + 1;
    if (len + n > size) {
      size *= 2;
      text = realloc(text, size);
      if (!text) exit(90);
    }
    memcpy(text + len, entry->d_name, n);
    len += n;
    errno = 0;
  }
  int saved = errno;
  closedir(dir);
  errno = saved;
  if (saved) done(-1);
  else answer(0, text, len);
  free(text);
}

static void op_futimes(void) {
  struct timespec t[2] = { { num(2), num(3) }, { num(2), num(3) } };
  done(futimens((int)num(1), t));
}

static void op_fsetxattr(void) {
  size_t len = (size_t)num(3);
  char *data = payload(len);
  done(fsetxattr((int)num(1), name(2), data, len, 0));
  free(data);
}

static int users(void) {
  if (is("su")) op_su();
  else if (is("userns")) op_userns();
  else if (is("umask")) done(umask((mode_t)num(1)));
  else if (is("list")) op_list();
  else if (is("chown")) done(chown(name(1), (uid_t)num(2), (gid_t)num(3)));
  else if (is("fchown")) done(fchown((int)num(1), (uid_t)num(2), (gid_t)num(3)));
  else if (is("futimes")) op_futimes();
  else if (is("fsetxattr")) op_fsetxattr();
  else if (is("openat")) done(openat((int)num(1), name(2), (int)num(3), (mode_t)num(4)));
  else if (is("linkfd")) {
    char from[64];
    snprintf(from, sizeof from, "/proc/self/fd/%lld", num(1));
    done(linkat(AT_FDCWD, from, AT_FDCWD, name(2), AT_SYMLINK_FOLLOW));
  } else return 0;
  return 1;
}
