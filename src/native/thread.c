/* See thread.h. */
#include "thread.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* --- on the thread ---------------------------------------------------------------------------- */

int tm_sync_data(int fd)
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
    tm_thread *on = given;
    pthread_mutex_lock(&on->lock);
    for (;;) {
        while (on->state != TM_GIVEN && !on->ends) pthread_cond_wait(&on->changed, &on->lock);
        if (on->state != TM_GIVEN) break;
        pthread_mutex_unlock(&on->lock);
        on->work(on);
        pthread_mutex_lock(&on->lock);
        on->state = TM_DONE;
        pthread_mutex_unlock(&on->lock);
        report(on->signal_fd); /* without the lock, which the event loop takes next */
        pthread_mutex_lock(&on->lock);
    }
    pthread_mutex_unlock(&on->lock);
    return NULL;
}

/* --- in Python -------------------------------------------------------------------------------- */

PyObject *tm_thread_new(PyTypeObject *type, PyObject *args, size_t size, void (*work)(tm_thread *job))
{
    int signal_fd;
    if (!PyArg_ParseTuple(args, "i", &signal_fd)) return NULL;
    tm_thread_object *self = (tm_thread_object *)PyType_GenericNew(type, NULL, NULL);
    if (!self) return NULL;
    tm_thread *on = self->job = calloc(1, size);
    if (!on) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    pthread_mutex_init(&on->lock, NULL);
    pthread_cond_init(&on->changed, NULL);
    on->signal_fd = signal_fd;
    on->work = work;
    return (PyObject *)self;
}

static int is_of_another_process(tm_thread *on) { return on->runs && on->owner != getpid(); }

int tm_thread_is_free(tm_thread *on)
{
    if (!on->ends && on->state == TM_IDLE && !is_of_another_process(on)) return 1;
    PyErr_SetString(PyExc_RuntimeError, "the thread is closed, busy or of another process");
    return 0;
}

static int create(tm_thread *on)
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

int tm_thread_start(tm_thread *on)
{
    int failed = on->runs ? 0 : create(on);
    if (failed) {
        errno = failed;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    pthread_mutex_lock(&on->lock); /* the thread waits for work, so it has the lock for no time */
    on->state = TM_GIVEN;
    pthread_mutex_unlock(&on->lock);
    pthread_cond_signal(&on->changed); /* without the lock, for which the thread would wait */
    return 0;
}

int tm_thread_is_done(tm_thread *on)
{
    if (is_of_another_process(on)) return 0;
    pthread_mutex_lock(&on->lock);
    int done = on->state == TM_DONE;
    pthread_mutex_unlock(&on->lock);
    return done;
}

int tm_thread_take(tm_thread *on)
{
    if (is_of_another_process(on)) return 0;
    pthread_mutex_lock(&on->lock);
    int done = on->state == TM_DONE;
    if (done) on->state = TM_IDLE;
    pthread_mutex_unlock(&on->lock);
    return done;
}

static void end(tm_thread *on)
{
    if (on->ends || is_of_another_process(on)) return;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&on->lock);
    on->ends = 1;
    pthread_cond_signal(&on->changed);
    pthread_mutex_unlock(&on->lock);
    if (on->runs) pthread_join(on->thread, NULL);
    Py_END_ALLOW_THREADS
    on->runs = 0;
}

PyObject *tm_thread_close(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    end(TM_JOB(tm_thread, self));
    Py_RETURN_NONE;
}

void tm_thread_dealloc(PyObject *self, void (*release)(tm_thread *job))
{
    tm_thread *on = TM_JOB(tm_thread, self);
    /* After a fork, the state of lock and thread is that of another process: it is left alone. */
    if (on && !is_of_another_process(on)) {
        end(on);
        pthread_cond_destroy(&on->changed);
        pthread_mutex_destroy(&on->lock);
        release(on);
        free(on);
    }
    tm_free_object(self);
}
