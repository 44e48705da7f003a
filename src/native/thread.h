/* A thread that does one job at a time and never needs Python's lock.
 *
 * Python starts a job and goes on. When the job is done, the thread writes eight bytes to a descriptor
 * that the event loop watches, and Python takes the result. The job belongs to the thread in between.
 */
#ifndef TIDEMILL_THREAD_H
#define TIDEMILL_THREAD_H

#include "native.h"

#include <pthread.h>
#include <sys/types.h>

enum { TM_IDLE, TM_GIVEN, TM_DONE };

typedef struct tm_thread tm_thread;
struct tm_thread {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    pid_t owner; /* the process that has the thread: a fork has none */
    int runs, ends, state, signal_fd;
    void (*work)(tm_thread *job);
};

/* An object of Python with a job, a struct that begins with its thread. */
typedef struct {
    PyObject_HEAD
    tm_thread *job;
} tm_thread_object;
#define TM_JOB(kind, self) ((kind *)((tm_thread_object *)(self))->job)

/* All of these are called with Python's lock. */
/* Return a new object with a job of so many bytes, which are zero; its argument is the descriptor. */
PyObject *tm_thread_new(PyTypeObject *type, PyObject *args, size_t size, void (*work)(tm_thread *job));
/* Release an object. `release` frees what the job has; not in a fork, where a thread may still use it. */
void tm_thread_dealloc(PyObject *self, void (*release)(tm_thread *job));
/* The method `close`: let the thread finish its job and end, and wait for that. */
PyObject *tm_thread_close(PyObject *self, PyObject *ignored);
/* Return whether a job can be started. If not, RuntimeError is set. */
int tm_thread_is_free(tm_thread *on);
/* Start the job; the thread is created for the first one. Return 0, or -1 with OSError. */
int tm_thread_start(tm_thread *on);
/* Return whether the job is done and was not taken. */
int tm_thread_is_done(tm_thread *on);
/* Take a job that is done; return whether there was one. */
int tm_thread_take(tm_thread *on);

/* Make the written bytes of a file durable; return errno, or 0. Needs no lock. */
int tm_sync_data(int fd);

#endif
