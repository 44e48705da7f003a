/* A disk for tests: it records what a program has synced, and fails as it is told. Loaded by LD_PRELOAD.
 *
 * It stands between the program and the C library, so it sees the calls of Python, of native code and of
 * native threads alike. Each line of the record goes to the file that CRASH_SYNCED names:
 *
 *     synced <size> <path>           an fdatasync or fsync of a segment has succeeded; the size is that
 *                                    at its beginning, because appends continue meanwhile
 *     cut <size> <path>              a segment was truncated, or removed (size 0)
 *     begun <at>+<length> <path>     a write to a file of the journal begins
 *     stored 0+0 <path>              all that was begun before in this file of the journal is synced
 *
 * A line is written before a write begins and after a sync has ended, so a kill at any moment makes the
 * record say too little of what is on the disk, and never too much.
 *
 * While the file that CRASH_FAULTS names exists, it says what fails: with "enospc" in it, each write to
 * a segment or to the journal stores half of the data and fails with ENOSPC, with "journal" those to the
 * journal only; with "fsync", each sync of them fails with EIO. CRASH_REFUSED ("b-0 1 7") names a
 * partition, and which of the writes to its segments fail like that.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

typedef ssize_t writev_at(int, const struct iovec *, int, off_t);
typedef ssize_t writev_at2(int, const struct iovec *, int, off_t, int);

static void *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "test disk: the C library has no %s\n", name);
        abort();
    }
    return found;
}

static int has_end(const char *path, const char *end)
{
    size_t length = strlen(path), of_end = strlen(end);
    return length >= of_end && strcmp(path + length - of_end, end) == 0;
}

static void record(const char *text)
{
    const char *file = getenv("CRASH_SYNCED");
    if (!file) return;
    int fd = open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    size_t size = strlen(text);
    if (fd < 0 || write(fd, text, size) != (ssize_t)size) {
        fprintf(stderr, "test disk: can't write to %s: %s\n", file, strerror(errno));
        abort();
    }
    close(fd);
}

static void record_size(const char *kind, long long size, const char *path)
{
    char text[PATH_MAX + 64];
    snprintf(text, sizeof text, "%s %lld %s\n", kind, size, path);
    record(text);
}

/* Put the path of an open file into `path`; it is empty if there is none. */
static void find_path(int fd, char path[PATH_MAX])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
}

/* --- faults --------------------------------------------------------------------------------------- */

/* Return whether a fault is switched on. */
static int is_active(const char *fault)
{
    char text[256];
    const char *name = getenv("CRASH_FAULTS");
    FILE *file = name ? fopen(name, "r") : NULL;
    if (!file) return 0;
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    return strstr(text, fault) != NULL;
}

/* Return whether CRASH_REFUSED has the number of this write.
 *
 * Native code passes an append whose write has failed to Python, which writes it again at the same
 * place. That is the same write: `native` says who writes.
 */
static int is_refused(const char *path, long long at, int native)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int writes;
    static long long again_at = -1;
    char folder[NAME_MAX + 3], numbers[256];
    const char *refused = getenv("CRASH_REFUSED");
    const char *space = refused ? strchr(refused, ' ') : NULL;
    if (!space || !has_end(path, ".log")) return 0;
    snprintf(folder, sizeof folder, "/%.*s/", (int)(space - refused), refused);
    if (!strstr(path, folder)) return 0;
    snprintf(numbers, sizeof numbers, "%s ", space);
    pthread_mutex_lock(&lock);
    int result = !native && at == again_at;
    again_at = -1;
    if (!result) {
        char number[32];
        snprintf(number, sizeof number, " %d ", ++writes);
        result = strstr(numbers, number) != NULL;
        if (result && native) again_at = at;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* --- the calls ------------------------------------------------------------------------------------ */

static size_t total(const struct iovec *parts, int count)
{
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    return size;
}

/* Write half of the data, as a disk that becomes full. */
static void write_half(int fd, const struct iovec *parts, int count, off_t at)
{
    size_t left = total(parts, count) / 2;
    for (int i = 0; i < count && left; i++) {
        size_t size = parts[i].iov_len < left ? parts[i].iov_len : left;
        ssize_t written = ((ssize_t(*)(int, const void *, size_t, off_t))next("pwrite64"))(
            fd, parts[i].iov_base, size, at);
        if (written < 0) return; /* it goes around the page cache, so half of a page can't be written */
        at += written;
        left -= (size_t)written;
    }
}

/* Note a write; return whether it fails. */
static int fails(int fd, const struct iovec *parts, int count, off_t at, int native)
{
    char path[PATH_MAX], text[PATH_MAX + 96];
    find_path(fd, path);
    int is_journal = has_end(path, ".journal");
    if (!is_journal && !has_end(path, ".log")) return 0;
    if (is_journal) {
        size_t size = total(parts, count);
        snprintf(text, sizeof text, "begun %lld+%zu %s\n", (long long)at, size, path);
        record(text);
    }
    int is_full = is_active("enospc") || (is_journal && is_active("journal"));
    if (!is_refused(path, at, native) && !is_full) return 0;
    write_half(fd, parts, count, at);
    errno = ENOSPC;
    return 1;
}

static int sync_with(int (*sync)(int), int fd)
{
    char path[PATH_MAX], text[PATH_MAX + 64];
    struct stat status;
    find_path(fd, path);
    int is_segment = has_end(path, ".log") && fstat(fd, &status) == 0;
    int is_journal = has_end(path, ".journal");
    if ((is_segment || is_journal) && is_active("fsync")) {
        errno = EIO;
        return -1;
    }
    int result = sync(fd), failed = errno;
    if (result == 0 && is_segment) record_size("synced", (long long)status.st_size, path);
    if (result == 0 && is_journal) {
        snprintf(text, sizeof text, "stored 0+0 %s\n", path);
        record(text);
    }
    errno = failed;
    return result;
}

int fdatasync(int fd) { return sync_with((int (*)(int))next("fdatasync"), fd); }
int fsync(int fd) { return sync_with((int (*)(int))next("fsync"), fd); }

#define PWRITE(name) \
    ssize_t name(int fd, const void *from, size_t size, off_t at) \
    { \
        struct iovec part = {(void *)from, size}; \
        if (fails(fd, &part, 1, at, 0)) return -1; \
        return ((ssize_t(*)(int, const void *, size_t, off_t))next(#name))(fd, from, size, at); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

/* Python has pwritev2 for its writes; the extension has this one. */
#define PWRITEV(name) \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t at) \
    { \
        if (fails(fd, parts, count, at, 1)) return -1; \
        return ((writev_at *)next(#name))(fd, parts, count, at); \
    }
PWRITEV(pwritev)
PWRITEV(pwritev64)

#define PWRITEV2(name) \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t at, int flags) \
    { \
        if (fails(fd, parts, count, at, 0)) return -1; \
        return ((writev_at2 *)next(#name))(fd, parts, count, at, flags); \
    }
PWRITEV2(pwritev2)
PWRITEV2(pwritev64v2)

#define FTRUNCATE(name) \
    int name(int fd, off_t size) \
    { \
        char path[PATH_MAX]; \
        int result = ((int (*)(int, off_t))next(#name))(fd, size), failed = errno; \
        find_path(fd, path); \
        if (result == 0 && has_end(path, ".log")) record_size("cut", (long long)size, path); \
        errno = failed; \
        return result; \
    }
FTRUNCATE(ftruncate)
FTRUNCATE(ftruncate64)

int unlink(const char *path)
{
    int result = ((int (*)(const char *))next("unlink"))(path), failed = errno;
    if (result == 0 && has_end(path, ".log")) record_size("cut", 0, path);
    errno = failed;
    return result;
}
