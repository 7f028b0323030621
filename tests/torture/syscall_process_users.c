/* What a syscall process does as another user, and through descriptors instead of names. Follows syscall_process.c in one source. */
#include <dirent.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

/* su UID GID GROUP...: becomes that user for good, with those supplementary groups and no others. */
static void op_su(void) {
  gid_t groups[ARGS_MAX];
  size_t count = 0;
  for (int i = 3; i < argc_now; i++) groups[count++] = (gid_t)num(i);
  if (setgroups(count, groups) < 0) { done(-1); return; }
  if (setresgid((gid_t)num(2), (gid_t)num(2), (gid_t)num(2)) < 0) { done(-1); return; }
  if (setresuid((uid_t)num(1), (uid_t)num(1), (uid_t)num(1)) < 0) { done(-1); return; }
  /* Otherwise a process that changed its user cannot read its own /proc/self/fd. */
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

/* userns: becomes root of its own user namespace, in which no other user has an id. */
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

/* The address of the process PID, in the abstract namespace: no directory decides which process may send there. */
static socklen_t mailbox(struct sockaddr_un *at, long long pid) {
  memset(at, 0, sizeof *at);
  at->sun_family = AF_UNIX;
  int n = snprintf(at->sun_path + 1, sizeof at->sun_path - 1, "hearthfs-hand-%lld", pid);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr aligned; } parcel;

static struct msghdr message(struct iovec *piece) {
  memset(&parcel, 0, sizeof parcel);
  return (struct msghdr){ .msg_iov = piece, .msg_iovlen = 1, .msg_control = parcel.bytes, .msg_controllen = sizeof parcel.bytes };
}

/* sendfd PID FD: sends a descriptor to the process PID, which has a mailbox. */
static void op_sendfd(void) {
  struct sockaddr_un at;
  char byte = 'f';
  struct iovec piece = { &byte, 1 };
  struct msghdr with = message(&piece);
  int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), fd = (int)num(2);
  with.msg_name = &at;
  with.msg_namelen = mailbox(&at, num(1));
  struct cmsghdr *head = CMSG_FIRSTHDR(&with);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(head), &fd, sizeof fd);
  ssize_t n = sendmsg(sock, &with, 0);
  int saved = errno;
  close(sock);
  errno = saved;
  done(n == 1 ? 0 : -1);
}

/* mailbox: makes one; answers its descriptor. */
static void op_mailbox(void) {
  struct sockaddr_un at;
  int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  socklen_t len = mailbox(&at, getpid());
  done(bind(sock, (struct sockaddr *)&at, len) < 0 ? -1 : sock);
}

/* recvfd MAILBOX: answers the descriptor that was sent. */
static void op_recvfd(void) {
  char byte;
  struct iovec piece = { &byte, 1 };
  struct msghdr with = message(&piece);
  int fd = -1;
  if (recvmsg((int)num(1), &with, MSG_CMSG_CLOEXEC) != 1) { done(-1); return; }
  struct cmsghdr *head = CMSG_FIRSTHDR(&with);
  errno = EBADMSG;
  if (head && head->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(head), sizeof fd);
  done(fd);
}

/* crowd COUNT OP NAME FLAGS: children that each open NAME. "flock": and wait for an exclusive lock; "hold": and keep it.
 * They live until this process ends. Answers how many have it open and ask for the lock, or are about to open it. */
static void op_crowd(void) {
  char *path = name(3);
  int is_lock = !strcmp(args[2], "flock");
  long long count = num(1);
  int begun[2];
  char byte = 1;
  fflush(stdout);
  if (pipe2(begun, O_CLOEXEC) < 0) { done(-1); return; }
  for (long long i = 0; i < count; i++) {
    pid_t pid = fork();
    if (pid < 0) { done(-1); return; }
    if (pid > 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* An open waits by itself; a lock only of a file that is open. */
    int fd = is_lock ? open(path, (int)num(4)) : -1;
    byte = !is_lock || fd >= 0;
    if (write(begun[1], &byte, 1) != 1) _exit(94);
    if (is_lock) flock(fd, LOCK_EX);
    else fd = open(path, (int)num(4));
    for (;;) pause();
  }
  close(begun[1]);
  long long heard = 0, able = 0;
  for (; heard < count && read(begun[0], &byte, 1) == 1; heard++) able += byte;
  close(begun[0]);
  done(able);
}

struct cutter { char *path; pthread_t thread; };

static void *cut_on(void *argument) {
  struct cutter *cutter = argument;
  for (long long size = 1;; size = size % 7 + 1)
    if (truncate(cutter->path, size) < 0 && errno == EACCES) pause();
  return NULL;
}

/* cutters COUNT PREFIX: threads that cut the files PREFIX0, PREFIX1 ... over and over, until this process ends. */
static void op_cutters(void) {
  long long count = num(1);
  const char *prefix = name(2);
  struct cutter *cutters = (struct cutter *)room(sizeof(struct cutter) * (size_t)count);
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 32768);
  for (long long i = 0; i < count; i++) {
    cutters[i].path = room(strlen(prefix) + 24);
    sprintf(cutters[i].path, "%s%lld", prefix, i);
    int failed = pthread_create(&cutters[i].thread, &small, cut_on, &cutters[i]);
    if (failed) { errno = failed; done(-1); return; }
  }
  done(count);
}

static void *end_at_once(void *none) { return none; }

static void *come_and_go(void *none) {
  for (;;) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, end_at_once, NULL) == 0) pthread_join(thread, NULL);
  }
  return none;
}

/* churn COUNT: so many threads that make others, each of which ends by itself, until this process ends. */
static void op_churn(void) {
  for (long long i = 0; i < num(1); i++) {
    pthread_t thread;
    int failed = pthread_create(&thread, NULL, come_and_go, NULL);
    if (failed) { errno = failed; done(-1); return; }
  }
  done(num(1));
}

static void op_touch(void) {
  struct timespec t[2] = { { 0, UTIME_NOW }, { 0, UTIME_NOW } };
  done(utimensat(AT_FDCWD, name(1), t, 0));
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
  else if (is("sendfd")) op_sendfd();
  else if (is("mailbox")) op_mailbox();
  else if (is("recvfd")) op_recvfd();
  else if (is("crowd")) op_crowd();
  else if (is("cutters")) op_cutters();
  else if (is("churn")) op_churn();
  else if (is("touch")) op_touch();
  else if (is("mknod")) done(mknod(name(1), (mode_t)num(2), makedev(1, 3)));
  else if (is("linkfd")) {
    char from[64];
    snprintf(from, sizeof from, "/proc/self/fd/%lld", num(1));
    done(linkat(AT_FDCWD, from, AT_FDCWD, name(2), AT_SYMLINK_FOLLOW));
  } else return 0;
  return 1;
}
