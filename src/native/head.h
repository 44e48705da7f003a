/* What native code and Python share of a partition, as structs.
 *
 * A `Head` has what an append, a round of the journal and a check of clients' batches need of one
 * partition; a segment, its file, its index and a producer have their numbers in structs of their own,
 * because they live longer or shorter. Python reads and sets the members as attributes, and native code
 * as fields: it looks up no attribute by its name. tidemill._native.pyi says what each member means.
 *
 * The objects of a struct come first, so that they can be visited and released together.
 */
#ifndef TIDEMILL_HEAD_H
#define TIDEMILL_HEAD_H

#include "native.h"

#include <sys/uio.h>

#define TM_LOG_BYTES (256 << 10)   /* most unsynced bytes of a partition that go to the journal */
#define TM_STREAM_BYTES (32 << 10) /* the same, once there were more, until a sync found fewer */
#define TM_WINDOW 5                /* batches that a producer's state keeps */

/* Bounds what is kept for the journal; CopiesFields. */
typedef struct {
    PyObject_HEAD
    int64_t used, limit;
} tm_copies;

/* A file of a log; FileFields. */
typedef struct {
    PyObject_HEAD
    int64_t size;
    int fd; /* -1: it is not open, or not a file of the system */
    char dirty, broken, retired, releasing, used;
} tm_file;

/* A segment; SegmentFields. */
typedef struct {
    PyObject_HEAD
    PyObject *log_file, *table, *first_timestamp;
    int64_t base_offset, size, end_offset, max_timestamp, created_ms;
    char named;
} tm_segment;

/* The index of a segment that is written; IndexTable. */
typedef struct {
    int64_t relative, position;
} tm_recent;
typedef struct {
    PyObject_HEAD
    PyObject *offsets, *times; /* bytearrays */
    int64_t last_relative, last_position, max_timestamp, max_relative, written_offsets, written_times,
        since_entry;
    tm_recent *recent;
    size_t count, capacity;
} tm_index;

/* A producer; ProducerFields. */
typedef struct {
    PyObject_HEAD
    PyObject *batches; /* a list */
    int64_t epoch, known_sequences, last_offset, last_timestamp_ms, txn_first_offset;
} tm_producer;

/* A partition; Head. */
typedef struct {
    PyObject_HEAD
    PyObject *segment, *end_segment, *config, *copies, *closed, *topic_id, *memory, *producers,
        *refused, *ended, *settle;
    int64_t partition, start_offset, end_offset, leader_epoch, bytes_since, high_watermark, end_position,
        copied, copied_from, copied_limit, segment_bytes, segment_ms, index_bytes, index_interval;
    char changed, is_offline, new_folder;
} tm_head;

/* What a client writes to; Target. */
typedef struct {
    PyObject_HEAD
    PyObject *tp, *topic_id, *log, *head, *appender, *config, *limits;
} tm_target;

extern PyTypeObject *tm_copies_type, *tm_file_type, *tm_segment_type, *tm_index_type,
    *tm_producer_type, *tm_head_type, *tm_target_type;

/* Return the struct of an object; NULL, without an error, if it is of another type. */
#define TM_AS(kind, object)                                                                      \
    ((object) && PyObject_TypeCheck((PyObject *)(object), kind##_type) ? (kind *)(object) : NULL)
/* Return the struct of an object; NULL with an error if it is of another type. */
tm_head *tm_as_head(PyObject *object);

static inline int tm_is_none(PyObject *object) { return !object || object == Py_None; }

/* Replace an object of a struct by another one, whose reference is taken over. */
static inline void tm_replace(PyObject **place, PyObject *by)
{
    PyObject *old = *place;
    *place = by;
    Py_XDECREF(old);
}

/* Whether the journal can take all that is unsynced of a partition; head.c has the rules. */
int tm_fits_journal(const tm_head *head);
/* Keep a copy of appended bytes for the journal, if they are few enough. Return 0, or -1. */
int tm_keep(tm_head *head, const struct iovec *parts, Py_ssize_t count, int64_t size);
/* Drop the copies. Those from an offset on can be kept then; -1: none. Return 0, or -1. */
int tm_drop_copies(tm_head *head, int64_t from_offset);

/* index.c */
int tm_index_add(tm_index *table, int64_t relative, int64_t position, int64_t size, int64_t latest,
                 int64_t interval);
int tm_index_is_full(const tm_index *table, int64_t more, int64_t most_bytes);

/* producers.c */
/* Return the sequence behind the last stored batch of a producer; -1 if it has none. */
int64_t tm_next_sequence(const tm_producer *entry);
/* Add the next batch of a producer's epoch. Return 0, or -1 with an error. */
int tm_producer_add(tm_producer *entry, int64_t first_sequence, int64_t last_offset, int64_t delta,
                    int64_t timestamp);

/* Define how the garbage collector goes through a struct, and how it is released: first its objects,
 * which come first. */
#define TM_OBJECTS(kind, count)                                                                  \
    static int kind##_traverse(PyObject *self, visitproc visit, void *arg)                       \
    {                                                                                            \
        PyObject **objects = (PyObject **)(self + 1);                                            \
        Py_VISIT(Py_TYPE(self));                                                                 \
        for (int i = 0; i < (count); i++) Py_VISIT(objects[i]);                                  \
        return 0;                                                                                \
    }                                                                                            \
    static int kind##_clear(PyObject *self)                                                      \
    {                                                                                            \
        PyObject **objects = (PyObject **)(self + 1);                                            \
        for (int i = 0; i < (count); i++) Py_CLEAR(objects[i]);                                  \
        return 0;                                                                                \
    }                                                                                            \
    static void kind##_dealloc(PyObject *self)                                                   \
    {                                                                                            \
        if (PyObject_GC_IsTracked(self)) PyObject_GC_UnTrack(self);                              \
        kind##_clear(self);                                                                      \
        tm_free_object(self);                                                                    \
    }

#endif
