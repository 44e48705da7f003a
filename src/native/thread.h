/* A thread that does one job at a time and never needs Python's lock.
 *
 * Python starts a job and goes on. When the job is done, the thread writes eight bytes to a descriptor
 * that the event loop watches, and Python takes the result. The job belongs to the thread in between.
 */
#ifndef TIDEMILL_THREAD_H
#define TIDEMILL_THREAD_H

#include <pthread.h>
#include <sys/types.h>

enum { TM_IDLE, TM_GIVEN, TM_DONE };

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    pid_t owner; /* the process that has the thread: a fork has none */
    int runs, ends, state, signal_fd;
    void (*work)(void *job);
    void *job;
} tm_thread;

/* All of these are called with Python's lock. */
void tm_thread_prepare(tm_thread *on, int signal_fd, void (*work)(void *job), void *job);
/* Return whether a job can be started. If not, RuntimeError is set. */
int tm_thread_is_free(tm_thread *on);
/* Start the job; the thread is created for the first one. Return 0, or -1 with OSError. */
int tm_thread_start(tm_thread *on);
/* Return whether the job is done and was not taken. */
int tm_thread_is_done(tm_thread *on);
/* Take a job that is done; return whether there was one. */
int tm_thread_take(tm_thread *on);
/* Let the thread finish its job and end, and wait for that. */
void tm_thread_end(tm_thread *on);
/* Free what belongs to the thread. Return 0 in a fork, where the job can't be freed either. */
int tm_thread_dispose(tm_thread *on);

/* Make the written bytes of a file durable; return errno, or 0. Needs no lock. */
int tm_sync_data(int fd);

#endif
