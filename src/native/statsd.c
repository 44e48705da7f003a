/* The type StatsdTable: receives packets of StatsD, and aggregates them by series.
 *
 * A thread receives with Python's lock released, many packets with one system call, and parses and
 * aggregates them without it. `take` copies what an interval has, and makes objects of it afterwards,
 * so the receiver waits for the copy only.
 */
#define _GNU_SOURCE
#include "native.h"
#include "statsd_table.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define PACKET_SIZE 65536
#define PACKETS 64
#ifndef SO_RXQ_OVFL
#define SO_RXQ_OVFL 40 /* Linux; asm-generic/socket.h */
#endif

typedef struct {
    PyObject_HEAD
    pthread_mutex_t lock;
    tm_table *table;
} Table;

/* --- receiving -------------------------------------------------------------------------------- */

typedef struct {
    uint64_t packets;
    uint32_t drops; /* packets that the kernel has dropped since the socket was made */
    int has_drops;
} received;

#ifdef __linux__
typedef struct {
    uint8_t data[PACKETS][PACKET_SIZE];
    struct mmsghdr heads[PACKETS];
    struct iovec places[PACKETS];
    /* Aligned for control messages. */
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(sizeof(uint32_t))];
    } controls[PACKETS];
} arrivals;

static void note_drops(struct msghdr *head, received *of)
{
    for (struct cmsghdr *at = CMSG_FIRSTHDR(head); at; at = CMSG_NXTHDR(head, at))
        if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SO_RXQ_OVFL) {
            memcpy(&of->drops, CMSG_DATA(at), sizeof of->drops);
            of->has_drops = 1;
        }
}

/* Receive what is there. Return errno; EAGAIN if there is nothing more. */
static int receive_once(Table *on, int fd, arrivals *in, received *of)
{
    for (int i = 0; i < PACKETS; i++) {
        in->places[i] = (struct iovec){in->data[i], PACKET_SIZE};
        in->heads[i].msg_hdr = (struct msghdr){.msg_iov = &in->places[i],
                                               .msg_iovlen = 1,
                                               .msg_control = in->controls[i].bytes,
                                               .msg_controllen = sizeof in->controls[i].bytes};
    }
    int count = recvmmsg(fd, in->heads, PACKETS, MSG_DONTWAIT, NULL);
    if (count < 0) return errno;
    pthread_mutex_lock(&on->lock);
    for (int i = 0; i < count; i++) { /* only those that came: the others hold older packets */
        tm_text packet = {in->data[i], in->heads[i].msg_len};
        if (in->heads[i].msg_hdr.msg_flags & MSG_TRUNC) tm_table_cut(on->table, packet);
        else tm_table_feed(on->table, packet);
    }
    pthread_mutex_unlock(&on->lock);
    if (count) note_drops(&in->heads[count - 1].msg_hdr, of);
    of->packets += (uint64_t)count;
    return 0;
}
#else
typedef struct {
    uint8_t data[1][PACKET_SIZE];
} arrivals;

static int receive_once(Table *on, int fd, arrivals *in, received *of)
{
    ssize_t size = recv(fd, in->data[0], PACKET_SIZE, MSG_DONTWAIT);
    if (size < 0) return errno;
    pthread_mutex_lock(&on->lock);
    tm_table_feed(on->table, (tm_text){in->data[0], (size_t)size});
    pthread_mutex_unlock(&on->lock);
    of->packets++;
    return 0;
}
#endif

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Receive until the time is over. Return errno, or 0. */
static int receive_until(Table *on, int fd, int64_t end_ms, arrivals *in, received *of)
{
    struct pollfd wanted = {.fd = fd, .events = POLLIN};
    for (int64_t left = end_ms - now_ms(); left > 0; left = end_ms - now_ms()) {
        int failed = receive_once(on, fd, in, of);
        if (failed == EINTR) return 0; /* Python handles the signal */
        if (failed && failed != EAGAIN && failed != EWOULDBLOCK) return failed;
        if (failed && poll(&wanted, 1, (int)left) < 0) return errno == EINTR ? 0 : errno;
    }
    return 0;
}

static PyObject *table_receive(PyObject *self, PyObject *args)
{
    int fd, timeout_ms, failed;
    received of = {0};
    if (!PyArg_ParseTuple(args, "ii:receive", &fd, &timeout_ms)) return NULL;
    arrivals *in = malloc(sizeof *in);
    if (!in) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    failed = receive_until((Table *)self, fd, now_ms() + timeout_ms, in, &of);
    Py_END_ALLOW_THREADS
    free(in);
    if (failed) {
        errno = failed;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (!of.has_drops) return Py_BuildValue("KO", (unsigned long long)of.packets, Py_None);
    return Py_BuildValue("KI", (unsigned long long)of.packets, (unsigned int)of.drops);
}

static PyObject *give(Table *on, PyObject *packet, void (*take)(tm_table *, tm_text))
{
    Py_buffer view;
    if (PyObject_GetBuffer(packet, &view, PyBUF_SIMPLE) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&on->lock);
    take(on->table, (tm_text){view.buf, (size_t)view.len});
    pthread_mutex_unlock(&on->lock);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *table_feed(PyObject *self, PyObject *packet)
{
    return give((Table *)self, packet, tm_table_feed);
}

static PyObject *table_cut(PyObject *self, PyObject *start)
{
    return give((Table *)self, start, tm_table_cut);
}

/* --- the end of an interval ------------------------------------------------------------------- */

static int order_values(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void sort_values(tm_series *series, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (series[i].kind != TM_SET && series[i].kept > 1)
            qsort(series[i].values, series[i].kept, sizeof(double), order_values);
}

static PyObject *bytes_of(const void *at, size_t size)
{
    return PyBytes_FromStringAndSize(at, (Py_ssize_t)size);
}

static PyObject *series_tuple(const tm_series *series)
{
    size_t size = series->kind == TM_SET ? 0 : series->kept * sizeof(double);
    PyObject *key = bytes_of(series->key, series->key_size), *values = bytes_of(series->values, size);
    if (!key || !values) {
        Py_XDECREF(key);
        Py_XDECREF(values);
        return NULL;
    }
    return Py_BuildValue("iNiiKdddddIN", series->kind, key, series->is_fresh, series->is_sampled,
                         (unsigned long long)series->seen, series->total, series->weight, series->low,
                         series->high, series->squares, series->kept, values);
}

static PyObject *series_list(const tm_series *series, uint32_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (uint32_t i = 0; list && i < count; i++) {
        PyObject *item = series_tuple(&series[i]);
        if (!item || PyList_SetItem(list, (Py_ssize_t)i, item) < 0) Py_CLEAR(list);
    }
    return list;
}

static PyObject *table_take(PyObject *self, PyObject *args)
{
    Table *on = (Table *)self;
    uint32_t expiry[TM_KINDS], count = 0;
    tm_series *series;
    if (!PyArg_ParseTuple(args, "IIIIII:take", &expiry[0], &expiry[1], &expiry[2], &expiry[3],
                          &expiry[4], &expiry[5]))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&on->lock);
    series = tm_table_take(on->table, expiry, &count);
    pthread_mutex_unlock(&on->lock);
    if (series) sort_values(series, count);
    Py_END_ALLOW_THREADS
    if (!series) return PyErr_NoMemory();
    PyObject *list = series_list(series, count);
    tm_series_free(series, count);
    return list;
}

/* Copy lines out of the table, so that no object is made while the receiver waits. */
static uint8_t *copy_out(const uint8_t *from, size_t *size)
{
    uint8_t *copy = malloc(*size ? *size : 1);
    if (copy && *size) memcpy(copy, from, *size);
    return copy;
}

static PyObject *table_take_lines(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Table *on = (Table *)self;
    size_t raw_size, notices_size;
    uint8_t *raw, *notices;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&on->lock);
    raw_size = on->table->raw_size;
    notices_size = on->table->notices_size;
    raw = copy_out(on->table->raw, &raw_size);
    notices = copy_out(on->table->notices, &notices_size);
    if (raw && notices) on->table->raw_size = on->table->notices_size = 0;
    pthread_mutex_unlock(&on->lock);
    Py_END_ALLOW_THREADS
    PyObject *pair = NULL;
    if (raw && notices) {
        PyObject *one = bytes_of(raw, raw_size), *other = bytes_of(notices, notices_size);
        if (one && other) pair = PyTuple_Pack(2, one, other);
        Py_XDECREF(one);
        Py_XDECREF(other);
    } else {
        PyErr_NoMemory();
    }
    free(raw);
    free(notices);
    return pair;
}

static PyObject *malformed_list(const tm_table *table)
{
    PyObject *list = PyList_New(0);
    for (int i = 1; list && i < TM_LINE_REASONS; i++) {
        PyObject *sample = bytes_of(table->sample[i], table->sample_size[i]);
        PyObject *item = sample ? Py_BuildValue("KN", (unsigned long long)table->counts.malformed[i],
                                                sample)
                                : NULL;
        if (!item || PyList_Append(list, item) < 0) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *table_counts(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Table *on = (Table *)self;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&on->lock);
    Py_END_ALLOW_THREADS
    const tm_counts *of = &on->table->counts;
    PyObject *malformed = malformed_list(on->table), *counts = NULL;
    if (malformed)
        counts = Py_BuildValue("KKKKKIN", (unsigned long long)of->lines,
                               (unsigned long long)of->excess, (unsigned long long)of->notices,
                               (unsigned long long)of->lost_notices, (unsigned long long)of->lost_raw,
                               on->table->count, malformed);
    pthread_mutex_unlock(&on->lock);
    return counts;
}

/* --- the type --------------------------------------------------------------------------------- */

static int take_options(Table *self, PyObject *args)
{
    int dialect, name_tags;
    unsigned int limit;
    unsigned long long values, raw, notices, seeds[2];
    if (!PyArg_ParseTuple(args, "iiIKKKKK:StatsdTable", &dialect, &name_tags, &limit, &values, &raw,
                          &notices, &seeds[0], &seeds[1]))
        return -1;
    self->table = calloc(1, sizeof *self->table);
    const uint64_t seed[2] = {seeds[0], seeds[1]};
    if (!self->table ||
        tm_table_prepare(self->table, limit, values, (size_t)raw, (size_t)notices, seed) < 0) {
        PyErr_NoMemory();
        return -1;
    }
    self->table->parser->dialect = (tm_dialect)dialect;
    self->table->parser->name_tags = (tm_name_tags)name_tags;
    return 0;
}

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Table *self = (Table *)alloc(type, 0);
    if (!self) return NULL;
    pthread_mutex_init(&self->lock, NULL);
    if (take_options(self, args) < 0) Py_CLEAR(self);
    return (PyObject *)self;
}

static void table_dealloc(PyObject *self)
{
    tm_table *table = ((Table *)self)->table;
    if (table) tm_table_dispose(table);
    free(table);
    pthread_mutex_destroy(&((Table *)self)->lock);
    tm_free_object(self);
}

static PyMethodDef table_methods[] = {
    {"receive", table_receive, METH_VARARGS, "Receive packets for some milliseconds."},
    {"feed", table_feed, METH_O, "Take a packet."},
    {"cut", table_cut, METH_O, "Count a line that is too long."},
    {"take", table_take, METH_VARARGS, "End the interval; return its series."},
    {"take_lines", table_take_lines, METH_NOARGS, "Return raw lines, and events with checks."},
    {"counts", table_counts, METH_NOARGS, "Return what was counted since the start."},
    {NULL, NULL, 0, NULL},
};

int tm_add_statsd(PyObject *module)
{
    return tm_add_class(module, "tidemill._native.StatsdTable",
                        "Receives packets of StatsD, and aggregates them by series.", sizeof(Table),
                        table_new, table_dealloc, table_methods, NULL);
}
