/* Sends the parts of responses, buffers and ranges of files, in one call without Python's lock.
 *
 * tidemill.net.outgoing.sending says what the results mean. Sources: sendmsg(2), sendfile(2), cachestat of
 * Linux 6.5 (mm/filemap.c).
 */
#define _GNU_SOURCE /* syscall */
#include "native.h"

#ifdef __linux__

#include <errno.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* the same on all architectures */
#endif

#define MOST_PARTS 64 /* in one call; the caller calls again */
#define FILE_PIECE ((size_t)1 << 20)
#define SHORT_BUFFER 4096

enum { MORE = 0, FULL = 1, UNCACHED = 2, CUT = 3 };

typedef struct {
    Py_buffer view; /* of a buffer */
    int fd;         /* of a file; -1 for a buffer */
    off_t position;
    size_t size;
} Part;

/* Whether all pages of a range are in the page cache; 0 if that is not known. */
static int is_cached(int fd, off_t position, size_t size)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), skipped = (uint64_t)position % page;
    struct { uint64_t off, len; } range = {(uint64_t)position - skipped, size + skipped};
    struct { uint64_t cached, dirty, writeback, evicted, recently_evicted; } found = {0};
    if (syscall(SYS_cachestat, fd, &range, &found, 0) != 0) return 0;
    return found.cached >= (range.len + page - 1) / page;
}

/* Send buffers up to the next file or the limit. Return the sent bytes, or -1 with errno. */
static ssize_t send_buffers(int to, const Part *parts, Py_ssize_t count, size_t skip, long long left)
{
    struct iovec pieces[MOST_PARTS];
    Py_ssize_t n = 0;
    for (; n < count && parts[n].fd < 0 && (!n || left > 0); n++) {
        left -= (long long)parts[n].size;
        pieces[n].iov_base = (char *)parts[n].view.buf + (n ? 0 : skip);
        pieces[n].iov_len = parts[n].size - (n ? 0 : skip);
    }
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)n};
    return sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT | (n < count ? MSG_MORE : 0));
}

/* Send what the socket takes. Return the sent bytes and set the state, or -1 with errno. */
static long long send_all(int to, const Part *parts, Py_ssize_t count, size_t skip, long long left,
                          int known, int *state)
{
    long long total = 0;
    Py_ssize_t at = 0;
    *state = MORE;
    while (at < count) {
        const Part *part = &parts[at];
        if (left <= 0 && !(part->fd < 0 && part->size < SHORT_BUFFER)) break;
        ssize_t sent;
        if (part->fd < 0) {
            sent = send_buffers(to, part, count - at, skip, left);
        } else {
            off_t position = part->position + (off_t)skip;
            size_t size = part->size - skip;
            if (size > FILE_PIECE) size = FILE_PIECE;
            if (!known && !is_cached(part->fd, position, size)) {
                *state = UNCACHED;
                break;
            }
            known = known > 1; /* a thread has read one piece only */
            sent = sendfile(to, part->fd, &position, size);
            if (sent == 0) {
                *state = CUT;
                break;
            }
        }
        if (sent < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN && errno != EWOULDBLOCK) return -1;
            *state = FULL;
            break;
        }
        total += sent;
        left -= sent;
        for (skip += (size_t)sent; at < count && skip >= parts[at].size; at++)
            skip -= parts[at].size;
    }
    return total;
}

/* Fill one part from an object. Return 0, or -1 with an error. */
static int take_part(PyObject *from, Part *part)
{
    if (PyObject_CheckBuffer(from)) {
        if (PyObject_GetBuffer(from, &part->view, PyBUF_SIMPLE) < 0) return -1;
        part->fd = -1;
        part->size = (size_t)part->view.len;
        return 0;
    }
    PyObject *fd = PyObject_GetAttrString(from, "fd");
    PyObject *position = fd ? PyObject_GetAttrString(from, "position") : NULL;
    Py_ssize_t size = position ? PyObject_Size(from) : -1;
    long number = size >= 0 ? PyLong_AsLong(fd) : -1;
    long long start = size >= 0 && !PyErr_Occurred() ? PyLong_AsLongLong(position) : -1;
    Py_XDECREF(fd);
    Py_XDECREF(position);
    if (PyErr_Occurred()) return -1;
    if (number < 0 || number > INT32_MAX || start < 0) {
        PyErr_SetString(PyExc_ValueError, "invalid range of a file");
        return -1;
    }
    part->fd = (int)number;
    part->position = (off_t)start;
    part->size = (size_t)size;
    return 0;
}

PyObject *tm_py_send_parts(PyObject *module, PyObject *args)
{
    int to, known;
    PyObject *list;
    Py_ssize_t skip;
    long long left;
    if (!PyArg_ParseTuple(args, "iO!nLi:send_parts", &to, &PyList_Type, &list, &skip, &left,
                          &known))
        return NULL;
    Part parts[MOST_PARTS];
    Py_ssize_t count = PyList_Size(list), taken = 0;
    if (count > MOST_PARTS) count = MOST_PARTS;
    PyObject *result = NULL;
    for (; taken < count; taken++) {
        PyObject *item = PyList_GetItem(list, taken);
        if (!item || take_part(item, &parts[taken]) < 0) goto done;
    }
    if (skip < 0 || (count ? (size_t)skip >= parts[0].size : skip > 0)) {
        PyErr_SetString(PyExc_ValueError, "invalid position in the first part");
        goto done;
    }
    int state;
    long long sent;
    Py_BEGIN_ALLOW_THREADS
    sent = send_all(to, parts, count, (size_t)skip, left, known, &state);
    Py_END_ALLOW_THREADS
    if (sent < 0)
        PyErr_SetFromErrno(PyExc_OSError);
    else
        result = Py_BuildValue("Li", sent, state);
done:
    for (Py_ssize_t i = 0; i < taken; i++)
        if (parts[i].fd < 0) PyBuffer_Release(&parts[i].view);
    return result;
}

#else

PyObject *tm_py_send_parts(PyObject *module, PyObject *args)
{
    PyErr_SetString(PyExc_NotImplementedError, "files are sent on Linux only");
    return NULL;
}

#endif
