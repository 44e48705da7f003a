/* Appends a run of checked batches to logs in one call.
 *
 * It takes a log if nothing but an ordinary append is to be done: to a file that is open, in a segment
 * that has records and space, with producers whose sequences continue. It leaves any other log to
 * RunAppender._append in tidemill.engine.records.append_runs, and has changed nothing of it then but the
 * base offsets in the batches and bytes behind the end of the file, which Python writes again. What both
 * do must be the same.
 *
 * Python's lock is held all the time, so no thread can close a file in between. That is why a write
 * has at most WRITE_BYTES.
 */
#define _GNU_SOURCE
#include "head.h"

#include <string.h>
#include <unistd.h>

#define WRITE_BYTES (256 << 10)
#define MOST_BATCHES 128

static PyTypeObject *stored_batch; /* the type of a batch in the state of a producer */

/* One batch of the log that is appended to. */
typedef struct {
    Py_buffer view;
    Py_ssize_t place;
    int64_t records, latest;
    tm_producer *producer; /* the entry of an idempotent one; NULL without */
    int32_t sequence;      /* of its first record */
} Batch;

/* The log that is appended to. */
typedef struct {
    tm_head *head;
    tm_segment *segment;
    tm_file *file;
    tm_index *table;
    Py_ssize_t count;
    Batch batches[MOST_BATCHES];
    struct iovec parts[MOST_BATCHES];
    int64_t now_ms, end, total, latest;
} Append;

/* --- before the write: a function returns 1, or 0 if the log is not taken ------------------------ */

/* Find the parts of a log. The file must be open, of the system, and as the segment says. */
static int find_parts(Append *on, const tm_target *target)
{
    on->head = TM_AS(tm_head, target->head);
    if (!on->head || on->head->is_offline) return 0;
    on->segment = TM_AS(tm_segment, on->head->segment);
    on->file = on->segment ? TM_AS(tm_file, on->segment->log_file) : NULL;
    on->table = on->segment ? TM_AS(tm_index, on->segment->table) : NULL;
    const tm_file *file = on->file;
    return file && on->table && file->fd >= 0 && !file->broken && !file->retired &&
           !file->releasing && file->size == on->segment->size;
}

/* Return whether the batches fit into the segment, as must_roll of log.partition.append decides it. */
static int fits_segment(const Append *on)
{
    const tm_head *head = on->head;
    const tm_segment *segment = on->segment;
    if (!segment->size || segment->size + on->total > head->segment_bytes || head->is_jittered ||
        on->end - 1 - segment->base_offset > INT32_MAX || tm_is_none(segment->first_timestamp) ||
        tm_index_is_full(on->table, head->index_bytes))
        return 0;
    int64_t oldest = PyLong_AsLongLong(segment->first_timestamp);
    return oldest >= 0 && on->latest - oldest <= head->segment_ms;
}

/* Return the sequence behind the last stored batch of a producer; -1 if it has none. */
static int64_t next_sequence(const tm_producer *entry)
{
    PyObject *batches = entry->batches;
    Py_ssize_t count = batches && PyList_Check(batches) ? PyList_Size(batches) : 0;
    PyObject *newest = count ? PyList_GetItem(batches, count - 1) : NULL;
    PyObject *sequence = newest ? PyTuple_GetItem(newest, 0) : NULL;
    int64_t last = sequence ? PyLong_AsLongLong(sequence) : -1;
    return last < 0 ? -1 : (last + 1) & INT32_MAX;
}

/* Return whether a batch of an idempotent producer is the next one; see log.partition.producers. */
static int is_next(Append *on, Batch *batch, int64_t id)
{
    const uint8_t *data = batch->view.buf;
    PyObject *producers = on->head->producers, *refused = on->head->refused;
    if (tm_is_none(producers) || !refused || !PyDict_Check(refused) || PyDict_Size(refused)) return 0;
    PyObject *key = PyLong_FromLongLong(id);
    if (!key) return 0;
    tm_producer *entry = TM_AS(tm_producer, PyDict_GetItemWithError(producers, key));
    Py_DECREF(key);
    if (!entry) return 0;
    batch->producer = (tm_producer *)Py_NewRef((PyObject *)entry);
    if (entry->epoch != (int16_t)tm_big_endian(data + 51, 2) || entry->txn_first_offset >= 0) return 0;
    int64_t next = next_sequence(entry);
    for (Batch *other = on->batches; next >= 0 && other < batch; other++)
        if (other->producer == entry) next = (other->sequence + other->records) & INT32_MAX;
    batch->sequence = (int32_t)tm_big_endian(data + 53, 4);
    return batch->sequence == next;
}

/* Read one batch of the run: (target, data, facts). */
static int read_batch(Append *on, PyObject *write, Py_ssize_t place)
{
    PyObject *data = PyTuple_GetItem(write, 1), *facts = PyTuple_GetItem(write, 2);
    if (!data || !facts || !PyTuple_Check(facts) || PyTuple_Size(facts) != 5) return 0;
    Batch *batch = &on->batches[on->count];
    memset(batch, 0, sizeof *batch);
    if (PyObject_GetBuffer(data, &batch->view, PyBUF_WRITABLE) < 0) return 0;
    on->count++;
    batch->place = place;
    batch->records = PyLong_AsLongLong(PyTuple_GetItem(facts, 0));
    batch->latest = PyLong_AsLongLong(PyTuple_GetItem(facts, 1));
    int64_t producer = PyLong_AsLongLong(PyTuple_GetItem(facts, 4));
    if (PyErr_Occurred() || batch->view.len < 61) return 0;
    on->total += batch->view.len;
    on->end += batch->records;
    if (batch->latest > on->latest) on->latest = batch->latest;
    return on->total <= WRITE_BYTES && (producer < 0 || is_next(on, batch, producer));
}

static int read_batches(Append *on, PyObject *run, PyObject *places)
{
    Py_ssize_t count = PyList_Check(places) ? PyList_Size(places) : 0;
    if (count < 1 || count > MOST_BATCHES) return 0;
    on->end = on->head->end_offset;
    on->latest = -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t place = PyLong_AsSsize_t(PyList_GetItem(places, i));
        PyObject *write = PyErr_Occurred() ? NULL : PyList_GetItem(run, place);
        if (!write || !PyTuple_Check(write) || !read_batch(on, write, place)) return 0;
    }
    return 1;
}

/* Stamp the batches, and write them behind each other; return whether all of them are written. */
static int write_batches(Append *on)
{
    int64_t offset = on->head->end_offset;
    for (Py_ssize_t i = 0; i < on->count; i++) {
        Batch *batch = &on->batches[i];
        uint8_t *data = batch->view.buf;
        tm_put_big_endian(data, (uint64_t)offset, 8);
        tm_put_big_endian(data + 8, (uint64_t)batch->view.len - 12, 4);
        tm_put_big_endian(data + 12, (uint64_t)on->head->leader_epoch, 4);
        offset += batch->records;
        on->parts[i] = (struct iovec){data, (size_t)batch->view.len};
    }
    off_t position = (off_t)on->segment->size;
    return pwritev(on->file->fd, on->parts, (int)on->count, position) == on->total;
}

/* --- behind the write: a function returns 0, or -1 with an error --------------------------------- */

/* Record the batch of a producer; see ProducerStates.update. */
static int update_producer(const Append *on, const Batch *batch, int64_t first)
{
    tm_producer *entry = batch->producer;
    int64_t delta = batch->records - 1, last = first + delta;
    PyObject *stored = tm_new_tuple(
        stored_batch, Py_BuildValue("((LLLL))", (long long)((batch->sequence + delta) & INT32_MAX),
                                    (long long)last, (long long)delta, (long long)on->now_ms));
    int failed = !stored || PyList_Append(entry->batches, stored) < 0;
    Py_XDECREF(stored);
    Py_ssize_t over = failed ? 0 : PyList_Size(entry->batches) - TM_WINDOW;
    if (failed || (over > 0 && PyList_SetSlice(entry->batches, 0, over, NULL) < 0)) return -1;
    entry->known_sequences += batch->records;
    entry->last_offset = last;
    entry->last_timestamp_ms = on->now_ms;
    return 0;
}

/* Record one batch, and its result, in what was read of the log. */
static int record_batch(Append *on, const Batch *batch, int64_t first, PyObject *results)
{
    tm_segment *segment = on->segment;
    if (tm_index_add(on->table, first + batch->records - 1 - segment->base_offset, segment->size,
                     batch->view.len, batch->latest, on->head->index_interval) < 0 ||
        (batch->producer && update_producer(on, batch, first) < 0))
        return -1;
    segment->size += batch->view.len;
    segment->end_offset = first + batch->records;
    PyObject *result =
        Py_BuildValue("LiL", (long long)first, -1, (long long)on->head->start_offset);
    return result ? PyList_SetItem(results, batch->place, result) : -1;
}

/* Record what was written, as Python's Segment.append and Appender.append do. */
static int record(Append *on, PyObject *results)
{
    tm_head *head = on->head;
    int64_t offset = head->end_offset;
    on->file->size += on->total;
    on->file->dirty = on->file->used = 1;
    for (Py_ssize_t i = 0; i < on->count; i++) {
        if (record_batch(on, &on->batches[i], offset, results) < 0) return -1;
        offset += on->batches[i].records;
    }
    on->segment->max_timestamp = on->table->max_timestamp;
    head->end_offset = offset;
    head->changed = 1;
    head->bytes_since += on->total;
    return tm_keep(head, on->parts, on->count, on->total);
}

/* --- a run --------------------------------------------------------------------------------------- */

/* Append the batches of one log. Return 1, 0 if the log is not taken, or -1 with an error. */
static int append_to(Append *on, PyObject *given, PyObject *run, PyObject *places, PyObject *results)
{
    on->count = on->total = 0;
    const tm_target *target = TM_AS(tm_target, given);
    int taken = target && find_parts(on, target) && read_batches(on, run, places) &&
                fits_segment(on) && write_batches(on);
    if (!taken) PyErr_Clear(); /* Python meets the same error, and has the words for it */
    int done = taken && record(on, results) < 0 ? -1 : taken;
    for (Py_ssize_t i = 0; i < on->count; i++) {
        PyBuffer_Release(&on->batches[i].view);
        Py_CLEAR(on->batches[i].producer);
    }
    return done;
}

PyObject *tm_py_append_run(PyObject *module, PyObject *args)
{
    PyObject *run, *targets, *results, *target, *places;
    long long now_ms;
    if (!PyArg_ParseTuple(args, "O!O!O!L:append_run", &PyList_Type, &run, &PyDict_Type, &targets,
                          &PyList_Type, &results, &now_ms))
        return NULL;
    Append *on = PyMem_Malloc(sizeof *on);
    PyObject *ends = on ? PyList_New(0) : PyErr_NoMemory();
    if (ends) on->now_ms = now_ms;
    Py_ssize_t at = 0;
    while (ends && PyDict_Next(targets, &at, &target, &places)) {
        int done = append_to(on, target, run, places, results);
        PyObject *end = done < 0 ? NULL : PyLong_FromLongLong(done ? on->end : -1);
        if (!end || PyList_Append(ends, end) < 0) Py_CLEAR(ends);
        Py_XDECREF(end);
    }
    PyMem_Free(on);
    return ends;
}

/* Give the type of a producer's batches, before the first run. */
PyObject *tm_py_prepare_append(PyObject *module, PyObject *batch)
{
    if (!PyType_Check(batch) || !PyType_IsSubtype((PyTypeObject *)batch, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "not the type of a named tuple");
        return NULL;
    }
    Py_XDECREF((PyObject *)stored_batch);
    stored_batch = (PyTypeObject *)Py_NewRef(batch);
    Py_RETURN_NONE;
}
