/* Writes entries of the journal and syncs them, on a thread that never needs Python's lock.
 *
 * Python passes an entry to the thread with `start` and goes on. The thread copies the buffers behind
 * each other, sets the CRC, writes, syncs, and reports with eight bytes to a descriptor that the event
 * loop watches. tidemill.log.journal.entry has the format.
 *
 * The copy begins on a page, so Linux can write it to the disk without another copy in its cache
 * (O_DIRECT): an entry is written once and is never read while the broker runs.
 */
#define _GNU_SOURCE
#include "thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define CRC_START 8
#define PAGE 4096
#define KEPT_CAPACITY (4 << 20) /* a larger copy is freed when its entry is written */

/* What the thread and Python share. */
typedef struct {
    tm_thread thread;
    int fd;
    off_t position;
    Py_buffer *views;
    Py_ssize_t count;
    size_t size;
    int failed, unsynced; /* errno, or 0 */
    uint8_t *copy;
    size_t capacity;
} Entry;

/* --- on the thread ---------------------------------------------------------------------------- */

static int copy_entry(Entry *on)
{
    if (on->capacity < on->size) {
        free(on->copy);
        on->copy = NULL;
        on->capacity = 0;
        void *copy;
        if (posix_memalign(&copy, PAGE, on->size)) return ENOMEM;
        on->copy = copy;
        on->capacity = on->size;
    }
    uint8_t *to = on->copy;
    for (Py_ssize_t i = 0; i < on->count; i++) {
        memcpy(to, on->views[i].buf, (size_t)on->views[i].len);
        to += on->views[i].len;
    }
    size_t covered = on->size - (size_t)on->views[on->count - 1].len - CRC_START;
    uint32_t crc = tm_crc32c(on->copy + CRC_START, covered);
    for (int i = 0; i < 4; i++) on->copy[4 + i] = (uint8_t)(crc >> (24 - 8 * i));
    return 0;
}

/* Let writes go around the page cache if `direct`; return whether that changed something. */
static int set_direct(int fd, int direct)
{
#ifdef O_DIRECT
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || !(flags & O_DIRECT) == !direct) return 0;
    return fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
#else
    return 0;
#endif
}

static int write_all(int fd, const uint8_t *from, size_t size, off_t position)
{
    int direct = size % PAGE == 0 && position % PAGE == 0;
    set_direct(fd, direct);
    while (size) {
        ssize_t written = pwrite(fd, from, size, position);
        if (written < 0) {
            if (errno == EINTR) continue;
            int failed = errno;
            /* A file system can accept the flag and refuse the write. */
            if (failed == EINVAL && direct && set_direct(fd, 0)) {
                direct = 0;
                continue;
            }
            return failed;
        }
        if (written == 0) return EIO;
        from += written;
        position += written;
        size -= (size_t)written;
        if (direct && written % PAGE) { /* the rest does not begin on a page */
            set_direct(fd, 0);
            direct = 0;
        }
    }
    return 0;
}

static void write_entry(tm_thread *given)
{
    Entry *on = (Entry *)given;
    on->unsynced = 0;
    on->failed = copy_entry(on);
    if (!on->failed) on->failed = write_all(on->fd, on->copy, on->size, on->position);
    if (!on->failed) on->unsynced = tm_sync_data(on->fd);
    if (on->capacity > KEPT_CAPACITY) {
        free(on->copy);
        on->copy = NULL;
        on->capacity = 0;
    }
}

/* --- in Python -------------------------------------------------------------------------------- */

static void release(Entry *on)
{
    for (Py_ssize_t i = 0; i < on->count; i++) PyBuffer_Release(&on->views[i]);
    free(on->views);
    on->views = NULL;
    on->count = 0;
}

/* Take the buffers of an entry. Return 0, or -1 with an error and no buffer taken. */
static int take_buffers(Entry *on, PyObject *header, PyObject *buffers)
{
    Py_ssize_t count = PyList_Size(buffers) + 1;
    on->views = calloc((size_t)count, sizeof *on->views);
    if (!on->views) {
        PyErr_NoMemory();
        return -1;
    }
    on->size = 0;
    for (; on->count < count; on->count++) {
        PyObject *item = on->count ? PyList_GetItem(buffers, on->count - 1) : header;
        if (!item || PyObject_GetBuffer(item, &on->views[on->count], PyBUF_SIMPLE) < 0) break;
        on->size += (size_t)on->views[on->count].len;
    }
    if (on->count == count && count > 1 && on->views[0].len >= CRC_START) return 0;
    if (on->count == count)
        PyErr_SetString(PyExc_ValueError, "an entry has a header and zeros behind it");
    release(on);
    return -1;
}

static PyObject *thread_start(PyObject *self, PyObject *args)
{
    Entry *on = TM_JOB(Entry, self);
    int fd;
    PyObject *header, *buffers;
    long long position;
    if (!PyArg_ParseTuple(args, "iOO!L:start", &fd, &header, &PyList_Type, &buffers, &position))
        return NULL;
    if (!tm_thread_is_free(&on->thread) || take_buffers(on, header, buffers) < 0) return NULL;
    on->fd = fd;
    on->position = (off_t)position;
    if (tm_thread_start(&on->thread) < 0) {
        release(on);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *thread_result(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Entry *on = TM_JOB(Entry, self);
    if (!tm_thread_take(&on->thread)) Py_RETURN_NONE;
    release(on);
    return Py_BuildValue("ii", on->failed, on->unsynced);
}

/* Return whether an entry was written and synced, and its result was not taken yet. */
static PyObject *thread_has_written(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Entry *on = TM_JOB(Entry, self);
    return PyBool_FromLong(tm_thread_is_done(&on->thread) && !on->failed && !on->unsynced);
}

static PyObject *thread_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    return tm_thread_new(type, args, sizeof(Entry), write_entry);
}

static void free_entry(tm_thread *job)
{
    release((Entry *)job);
    free(((Entry *)job)->copy);
}

static void thread_dealloc(PyObject *self) { tm_thread_dealloc(self, free_entry); }

static PyMethodDef thread_methods[] = {
    {"start", thread_start, METH_VARARGS, "Write and sync an entry on the thread."},
    {"result", thread_result, METH_NOARGS, "Return the errnos of the write and of the sync."},
    {"has_written", thread_has_written, METH_NOARGS,
     "Return whether an entry is on disk and its result was not taken yet."},
    {"close", tm_thread_close, METH_NOARGS, "Finish the entry, and end the thread."},
    {NULL, NULL, 0, NULL},
};

int tm_add_entry_thread(PyObject *module)
{
    return tm_add_class(module, "tidemill._native.EntryThread", "Writes entries of the journal on a thread.",
                        sizeof(tm_thread_object), thread_new, thread_dealloc, thread_methods, NULL);
}
