/* Loops that race: one process rewrites a file, others read it. Follows syscall_process.c in one source.
 *
 * The processes share a page outside the mount, so that no answer to the test stands between a close and the
 * reads that begin after it. A version is its number, repeated; its length follows from its number.
 */
#include <stdatomic.h>

struct race {
  _Atomic uint64_t closed;  /* the last version whose close has returned */
  _Atomic uint64_t over;    /* the writer has ended */
  _Atomic uint64_t left;    /* readers that have read enough */
};

enum { WORDS_MIN = 40, WORDS_MAX = 1600 };

static struct race *race_at(const char *path) {
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(struct race)) < 0) exit(93);
  void *at = mmap(NULL, sizeof(struct race), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) exit(93);
  close(fd);
  return at;
}

static size_t words_of(uint64_t version, int same) {
  return same ? 600 : WORDS_MIN + (size_t)(version * 7919 % (WORDS_MAX - WORDS_MIN));
}

static long long now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static int write_version(const char *path, int flags, uint64_t version, int same) {
  static uint64_t words[WORDS_MAX];
  size_t count = words_of(version, same);
  for (size_t i = 0; i < count; i++) words[i] = version;
  int fd = open(path, flags | O_CLOEXEC, 0644);
  if (fd < 0) return -1;
  /* In two pieces, so that a reader can see unclosed bytes. */
  long long n = write_all(fd, (char *)words, count * 8, count * 4, 0);
  int saved = errno;
  if (close(fd) < 0) return -1;
  errno = saved;
  return n < 0 ? -1 : 0;
}

/* rewrite NAME FLAGS RACE MS READERS TEMPORARY: new versions until MS have passed or all readers have enough; at least
 * one. With TEMPORARY each is written there and renamed. Without O_TRUNC all have one length. Answers their number. */
static void op_rewrite(void) {
  char *path = name(1), *temporary = name(6);
  struct race *race = race_at(name(3));
  int flags = (int)num(2), same = !(flags & O_TRUNC);
  long long until = now_ms() + num(4), made = 0;
  uint64_t version = atomic_load(&race->closed);
  int failed = 0;
  do {
    version++;
    failed = write_version(*temporary ? temporary : path, flags, version, same);
    if (!failed && *temporary) failed = rename(temporary, path);
    if (failed) break;
    atomic_store(&race->closed, version);
    made++;
  } while (now_ms() < until && atomic_load(&race->left) < (uint64_t)num(5));
  int saved = errno;
  if (num(5)) atomic_store(&race->over, 1);
  errno = saved;
  done(failed ? -1 : made);
}

/* reread NAME RACE SAME READS: reads until the writer has ended, READS times at most.
 * Answers "reads torn stale missing failed errno": how many, and how many of them were wrong in which way. */
static void op_reread(void) {
  static uint64_t words[WORDS_MAX + 1];
  const char *path = name(1);
  struct race *race = race_at(name(2));
  int same = (int)num(3), last_errno = 0;
  long long reads = 0, torn = 0, stale = 0, missing = 0, failed = 0;
  while (reads < num(4) && !atomic_load(&race->over)) {
    uint64_t before = atomic_load(&race->closed);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    reads++;
    if (fd < 0) {
      last_errno = errno;
      if (errno == ENOENT) missing++;
      else failed++;
      continue;
    }
    ssize_t n = read(fd, words, sizeof words);
    if (n < 0) { last_errno = errno; failed++; close(fd); continue; }
    close(fd);
    size_t count = (size_t)n / 8;
    int whole = count > 0 && (size_t)n == words_of(words[0], same) * 8;
    for (size_t i = 0; whole && i < count; i++) whole = words[i] == words[0];
    if (!whole) torn++;
    else if (words[0] < before) stale++;
  }
  atomic_fetch_add(&race->left, 1);
  char text[256];
  int len = snprintf(text, sizeof text, "%lld %lld %lld %lld %lld %d", reads, torn, stale, missing, failed, last_errno);
  answer(0, text, (size_t)len);
}

static int races(void) {
  if (is("rewrite")) op_rewrite();
  else if (is("reread")) op_reread();
  else return 0;
  return 1;
}
