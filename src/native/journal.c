/* Writes one entry of the journal and syncs it, in one call without Python's lock.
 *
 * The edition in Python is tidemill.log.journal.write_through, which has the format. */
#include "native.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#define CRC_START 8
#define MOST_PARTS 512

/* Write all parts at a position. Changes the parts. Return 0 or an errno. */
static int write_all(int fd, struct iovec *parts, Py_ssize_t count, off_t position)
{
    while (count) {
        int batch = count < MOST_PARTS ? (int)count : MOST_PARTS;
        ssize_t written = pwritev(fd, parts, batch, position);
        if (written < 0) {
            if (errno == EINTR) continue;
            return errno;
        }
        if (written == 0) {
            size_t left = 0;
            for (int i = 0; i < batch; i++) left += parts[i].iov_len;
            if (left) return EIO;
        }
        position += written;
        while (count && (size_t)written >= parts->iov_len) {
            written -= (ssize_t)parts->iov_len;
            parts++;
            count--;
        }
        if (count && written) {
            parts->iov_base = (char *)parts->iov_base + written;
            parts->iov_len -= (size_t)written;
        }
    }
    return 0;
}

static int sync_data(int fd)
{
#ifdef __APPLE__
    int failed = fsync(fd);
#else
    int failed = fdatasync(fd);
#endif
    return failed ? errno : 0;
}

PyObject *tm_py_write_entry(PyObject *module, PyObject *args)
{
    int fd;
    PyObject *header, *buffers;
    long long position;
    if (!PyArg_ParseTuple(args, "iOO!L", &fd, &header, &PyList_Type, &buffers, &position))
        return NULL;
    Py_ssize_t count = PyList_Size(buffers) + 1, taken = 0;
    PyObject *result = NULL;
    Py_buffer *views = calloc((size_t)count, sizeof *views);
    struct iovec *parts = calloc((size_t)count, sizeof *parts);
    if (!views || !parts) {
        PyErr_NoMemory();
        goto done;
    }
    for (; taken < count; taken++) {
        PyObject *item = taken ? PyList_GetItem(buffers, taken - 1) : header;
        if (!item || PyObject_GetBuffer(item, &views[taken], taken ? PyBUF_SIMPLE : PyBUF_WRITABLE))
            goto done;
        parts[taken].iov_base = views[taken].buf;
        parts[taken].iov_len = (size_t)views[taken].len;
    }
    if (views[0].len < CRC_START || count < 2) {
        PyErr_SetString(PyExc_ValueError, "an entry has a header and zeros behind it");
        goto done;
    }
    int failed, unsynced = 0;
    Py_BEGIN_ALLOW_THREADS
    uint8_t *head = views[0].buf;
    uint32_t crc = tm_crc32c(head + CRC_START, (size_t)views[0].len - CRC_START);
    for (Py_ssize_t i = 1; i < count - 1; i++)
        crc = tm_crc32c_more(crc, views[i].buf, (size_t)views[i].len);
    for (int i = 0; i < 4; i++) head[4 + i] = (uint8_t)(crc >> (24 - 8 * i));
    failed = write_all(fd, parts, count, (off_t)position);
    if (!failed) unsynced = sync_data(fd);
    Py_END_ALLOW_THREADS
    if (failed) {
        errno = failed;
        PyErr_SetFromErrno(PyExc_OSError);
    } else {
        result = PyLong_FromLong(unsynced);
    }
done:
    for (Py_ssize_t i = 0; i < taken; i++) PyBuffer_Release(&views[i]);
    free(views);
    free(parts);
    return result;
}
