/* Syncs files, one after the other, on a thread that never needs Python's lock.
 *
 * A thread of Python has to take the lock before a sync and after it, from an event loop that is busy
 * with the next requests. SyncTicket.run in tidemill.log.partition.sync does what needs more than this.
 */
#define _GNU_SOURCE /* fallocate */
#include "thread.h"

#include <fcntl.h>
#include <stdlib.h>

/* A file to sync, and the range behind its end for which blocks are allocated before. */
typedef struct {
    int fd;
    long long position, length;
} File;

/* What the thread and Python share. */
typedef struct {
    tm_thread thread;
    File *files;
    Py_ssize_t count;
    Py_ssize_t synced; /* files; the next one failed, if it is not all of them */
    int failed;        /* errno, or 0 */
} Files;

/* Allocate blocks if that is possible. If not, the file can still be appended to and synced. */
static void allocate(const File *file)
{
#ifdef __linux__
    if (file->length) (void)fallocate(file->fd, FALLOC_FL_KEEP_SIZE, file->position, file->length);
#else
    (void)file;
#endif
}

static void sync_files(tm_thread *given)
{
    Files *on = (Files *)given;
    on->failed = 0;
    for (Py_ssize_t i = 0; i < on->count; i++) allocate(&on->files[i]);
    for (on->synced = 0; on->synced < on->count; on->synced++) {
        on->failed = tm_sync_data(on->files[on->synced].fd);
        if (on->failed) break;
    }
}

/* Take the descriptors and ranges. Return 0, or -1 with an error. */
static int take_files(Files *on, PyObject *list)
{
    Py_ssize_t count = PyList_Size(list);
    File *files = count ? calloc((size_t)count, sizeof *files) : NULL;
    if (!files) {
        if (count) PyErr_NoMemory();
        else PyErr_SetString(PyExc_ValueError, "there is no file to sync");
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        File *file = &files[i];
        PyObject *given = PyList_GetItem(list, i);
        if (!PyTuple_Check(given))
            PyErr_SetString(PyExc_TypeError, "a file needs a tuple");
        else if (PyArg_ParseTuple(given, "iLL:start", &file->fd, &file->position, &file->length) &&
                 (file->fd < 0 || file->position < 0 || file->length < 0))
            PyErr_SetString(PyExc_ValueError, "a descriptor or a range is negative");
        if (PyErr_Occurred()) {
            free(files);
            return -1;
        }
    }
    free(on->files);
    on->files = files;
    on->count = count;
    return 0;
}

static PyObject *sync_start(PyObject *self, PyObject *list)
{
    Files *on = TM_JOB(Files, self);
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "start() needs a list of descriptors and ranges");
        return NULL;
    }
    if (!tm_thread_is_free(&on->thread) || take_files(on, list) < 0) return NULL;
    if (tm_thread_start(&on->thread) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *sync_result(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Files *on = TM_JOB(Files, self);
    if (!tm_thread_take(&on->thread)) Py_RETURN_NONE;
    return Py_BuildValue("ni", on->synced, on->failed);
}

/* Return whether all files were synced, and the result was not taken yet. */
static PyObject *sync_has_synced(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Files *on = TM_JOB(Files, self);
    return PyBool_FromLong(tm_thread_is_done(&on->thread) && !on->failed);
}

static PyObject *sync_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    return tm_thread_new(type, args, sizeof(Files), sync_files);
}

static void free_files(tm_thread *job) { free(((Files *)job)->files); }

static void sync_dealloc(PyObject *self) { tm_thread_dealloc(self, free_files); }

static PyMethodDef sync_methods[] = {
    {"start", sync_start, METH_O, "Sync files, whose descriptors stay open, on the thread."},
    {"result", sync_result, METH_NOARGS,
     "Return how many files were synced, and the errno of the next one."},
    {"has_synced", sync_has_synced, METH_NOARGS,
     "Return whether all files were synced and the result was not taken yet."},
    {"close", tm_thread_close, METH_NOARGS, "Finish the syncs, and end the thread."},
    {NULL, NULL, 0, NULL},
};

int tm_add_sync_thread(PyObject *module)
{
    return tm_add_class(module, "tidemill._native.SyncThread", "Syncs files on a thread.",
                        sizeof(tm_thread_object), sync_new, sync_dealloc, sync_methods, NULL);
}
