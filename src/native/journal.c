/* Writes entries of the journal and syncs them, on a thread that never needs Python's lock.
 *
 * Python passes an entry to the thread with `start` and goes on. The thread copies the buffers behind
 * each other, sets the CRC, writes, syncs, and reports with eight bytes to a descriptor that the event
 * loop watches. The edition in Python is tidemill.log.journal.write_through, which has the format.
 *
 * The copy begins on a page, so Linux can write it to the disk without another copy in its cache
 * (O_DIRECT): an entry is written once and is never read while the broker runs.
 */
#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CRC_START 8
#define PAGE 4096
#define KEPT_ROOM (4 << 20) /* a larger copy is freed when its entry is written */

enum { IDLE, GIVEN, DONE };

/* What the thread and Python share. The thread may touch it while the state is GIVEN only. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    pid_t owner; /* the process that has the thread: a fork has none */
    int runs, ends, state, signal_fd;
    int fd;
    off_t position;
    Py_buffer *views;
    Py_ssize_t count;
    size_t size;
    int failed, unsynced; /* errno, or 0 */
    uint8_t *copy;
    size_t room;
} Shared;

typedef struct {
    PyObject_HEAD
    Shared *shared;
} EntryThread;

/* --- on the thread ---------------------------------------------------------------------------- */

static int copy_entry(Shared *on)
{
    if (on->room < on->size) {
        free(on->copy);
        on->copy = NULL;
        on->room = 0;
        void *copy;
        if (posix_memalign(&copy, PAGE, on->size)) return ENOMEM;
        on->copy = copy;
        on->room = on->size;
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

static int sync_data(int fd)
{
#ifdef __APPLE__
    int failed = fsync(fd);
#else
    int failed = fdatasync(fd);
#endif
    return failed ? errno : 0;
}

static void report(int fd)
{
    uint64_t one = 1;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR) continue;
}

static void *serve(void *given)
{
    Shared *on = given;
    pthread_mutex_lock(&on->lock);
    for (;;) {
        while (on->state != GIVEN && !on->ends) pthread_cond_wait(&on->changed, &on->lock);
        if (on->state != GIVEN) break;
        pthread_mutex_unlock(&on->lock);
        int unsynced = 0, failed = copy_entry(on);
        if (!failed) failed = write_all(on->fd, on->copy, on->size, on->position);
        if (!failed) unsynced = sync_data(on->fd);
        if (on->room > KEPT_ROOM) {
            free(on->copy);
            on->copy = NULL;
            on->room = 0;
        }
        pthread_mutex_lock(&on->lock);
        on->failed = failed;
        on->unsynced = unsynced;
        on->state = DONE;
        pthread_mutex_unlock(&on->lock);
        report(on->signal_fd); /* without the lock, which the event loop takes next */
        pthread_mutex_lock(&on->lock);
    }
    pthread_mutex_unlock(&on->lock);
    return NULL;
}

/* --- in Python -------------------------------------------------------------------------------- */

static int start_thread(Shared *on)
{
    sigset_t all, before;
    sigfillset(&all); /* signals are for Python's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&on->thread, NULL, serve, on);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) return failed;
    on->owner = getpid();
    on->runs = 1;
    return 0;
}

static void release(Shared *on)
{
    for (Py_ssize_t i = 0; i < on->count; i++) PyBuffer_Release(&on->views[i]);
    free(on->views);
    on->views = NULL;
    on->count = 0;
}

/* Take the buffers of an entry. Return 0, or -1 with an error and no buffer taken. */
static int take_buffers(Shared *on, PyObject *header, PyObject *buffers)
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
    Shared *on = ((EntryThread *)self)->shared;
    int fd;
    PyObject *header, *buffers;
    long long position;
    if (!PyArg_ParseTuple(args, "iOO!L:start", &fd, &header, &PyList_Type, &buffers, &position))
        return NULL;
    if (on->ends || on->state != IDLE || (on->runs && on->owner != getpid())) {
        PyErr_SetString(PyExc_RuntimeError, "the thread is closed, busy or of another process");
        return NULL;
    }
    if (take_buffers(on, header, buffers) < 0) return NULL;
    int failed = on->runs ? 0 : start_thread(on);
    if (failed) {
        release(on);
        errno = failed;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    on->fd = fd;
    on->position = (off_t)position;
    pthread_mutex_lock(&on->lock); /* the thread waits for work, so it has the lock for no time */
    on->state = GIVEN;
    pthread_mutex_unlock(&on->lock);
    pthread_cond_signal(&on->changed); /* without the lock, for which the thread would wait */
    Py_RETURN_NONE;
}

static PyObject *thread_result(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Shared *on = ((EntryThread *)self)->shared;
    if (on->runs && on->owner != getpid()) Py_RETURN_NONE;
    pthread_mutex_lock(&on->lock);
    int done = on->state == DONE;
    if (done) on->state = IDLE;
    pthread_mutex_unlock(&on->lock);
    if (!done) Py_RETURN_NONE;
    release(on);
    return Py_BuildValue("ii", on->failed, on->unsynced);
}

/* Return whether an entry was written and synced, and its result was not taken yet. */
static PyObject *thread_has_written(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Shared *on = ((EntryThread *)self)->shared;
    pthread_mutex_lock(&on->lock);
    int written = on->state == DONE && !on->failed && !on->unsynced;
    pthread_mutex_unlock(&on->lock);
    return PyBool_FromLong(written);
}

/* Let the thread finish its entry and end, and wait for that. */
static void end_thread(Shared *on)
{
    if (on->ends || (on->runs && on->owner != getpid())) return;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&on->lock);
    on->ends = 1;
    pthread_cond_signal(&on->changed);
    pthread_mutex_unlock(&on->lock);
    if (on->runs) pthread_join(on->thread, NULL);
    Py_END_ALLOW_THREADS
    on->runs = 0;
}

static PyObject *thread_close(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    end_thread(((EntryThread *)self)->shared);
    Py_RETURN_NONE;
}

static PyObject *thread_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    int signal_fd;
    if (!PyArg_ParseTuple(args, "i:EntryThread", &signal_fd)) return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    EntryThread *self = (EntryThread *)alloc(type, 0);
    if (!self) return NULL;
    Shared *on = self->shared = calloc(1, sizeof *on);
    if (!on) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    pthread_mutex_init(&on->lock, NULL);
    pthread_cond_init(&on->changed, NULL);
    on->signal_fd = signal_fd;
    return (PyObject *)self;
}

static void thread_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Shared *on = ((EntryThread *)self)->shared;
    /* After a fork, the state of lock and thread is that of another process: it is left alone. */
    if (on && !(on->runs && on->owner != getpid())) {
        end_thread(on);
        release(on);
        free(on->copy);
        pthread_cond_destroy(&on->changed);
        pthread_mutex_destroy(&on->lock);
        free(on);
    }
    freefunc release_self = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release_self(self);
    Py_DECREF(type);
}

static PyMethodDef thread_methods[] = {
    {"start", thread_start, METH_VARARGS, "Write and sync an entry on the thread."},
    {"result", thread_result, METH_NOARGS, "Return the errnos of the write and of the sync."},
    {"has_written", thread_has_written, METH_NOARGS,
     "Return whether an entry is on disk and its result was not taken yet."},
    {"close", thread_close, METH_NOARGS, "Finish the entry, and end the thread."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot thread_slots[] = {
    {Py_tp_new, thread_new},
    {Py_tp_dealloc, thread_dealloc},
    {Py_tp_methods, thread_methods},
    {Py_tp_doc, "Writes entries of the journal on a thread."},
    {0, NULL},
};
static PyType_Spec thread_spec = {
    .name = "tidemill._native.EntryThread",
    .basicsize = sizeof(EntryThread),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = thread_slots,
};

int tm_add_entry_thread(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&thread_spec);
    if (type == NULL) return -1;
    int added = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return added;
}
