/* Records which bytes of segments and of the journal a program has synced. Loaded by LD_PRELOAD.
 *
 * It stands between the program and the C library, so it sees the syncs of Python, of native code and
 * of native threads alike. Each line goes to the file that CRASH_SYNCED names:
 *
 *     synced <size> <path>           an fdatasync or fsync of a segment has succeeded; the size is that
 *                                    at its beginning, because appends continue meanwhile
 *     cut <size> <path>              a segment was truncated, or removed (size 0)
 *     begun <at>+<length> <path>     a write to a file of the journal begins
 *     stored 0+0 <path>              all that was begun before in this file of the journal is synced
 *
 * A line is written before a write begins and after a sync has ended, so a kill at any moment makes the
 * record say too little of what is on the disk, and never too much.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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
        fprintf(stderr, "recorder: the C library has no %s\n", name);
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
        fprintf(stderr, "recorder: can't write to %s: %s\n", file, strerror(errno));
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

static void begin_write(int fd, long long at, size_t length)
{
    char path[PATH_MAX], text[PATH_MAX + 96];
    find_path(fd, path);
    if (!has_end(path, ".journal")) return;
    snprintf(text, sizeof text, "begun %lld+%zu %s\n", at, length, path);
    record(text);
}

static size_t total(const struct iovec *parts, int count)
{
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    return size;
}

static int sync_with(int (*sync)(int), int fd)
{
    char path[PATH_MAX];
    struct stat status;
    find_path(fd, path);
    int is_segment = has_end(path, ".log") && fstat(fd, &status) == 0;
    int result = sync(fd), failed = errno;
    if (result == 0 && is_segment) record_size("synced", (long long)status.st_size, path);
    if (result == 0 && has_end(path, ".journal")) {
        char text[PATH_MAX + 64];
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
        begin_write(fd, at, size); \
        return ((ssize_t(*)(int, const void *, size_t, off_t))next(#name))(fd, from, size, at); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define PWRITEV(name) \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t at) \
    { \
        begin_write(fd, at, total(parts, count)); \
        return ((writev_at *)next(#name))(fd, parts, count, at); \
    }
PWRITEV(pwritev)
PWRITEV(pwritev64)

#define PWRITEV2(name) \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t at, int flags) \
    { \
        begin_write(fd, at, total(parts, count)); \
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
