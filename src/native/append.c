/* Appends batches to logs: stamps them, writes those of one log together, and records them.
 *
 * `append` takes batches that Python has decided about. `append_run` takes those that clients have
 * sent together, for many logs. It appends what has no producer, or continues the sequences of one,
 * and stops at any other batch, which tidemill.log.partition.append decides about. Both end in `put`.
 *
 * What needs Python is called at the appender of the log: `prepare` opens an index, `roll` starts a
 * segment, `write` writes what is long, or goes to a file that is closed or not one of the system, and
 * `lose` lets the partition go offline. Shorter writes are done here. Python's lock is held meanwhile,
 * so no thread can close the file.
 */
#define _GNU_SOURCE
#include "head.h"

#include <unistd.h>

#define WRITE_BYTES (256 << 10)
#define MOST_BATCHES 128 /* that are written together */
#define HEADER_SIZE 61

/* One batch of the log that is appended to. */
typedef struct {
    uint8_t *data;
    int64_t size, records, latest;
    tm_producer *producer; /* the entry of an idempotent one, if its state is to be updated */
    int32_t sequence;      /* of its first record */
} Batch;

/* The log that is appended to, and batches that are written together. */
typedef struct {
    PyObject *appender;
    tm_head *head;
    tm_segment *segment;
    tm_index *table;
    Py_ssize_t count, views; /* of batches, and of the buffers that have them */
    Batch *batches;
    Py_buffer *buffers;
    int64_t now_ms, end, total, latest;
} Append;

static void start(Append *on)
{
    on->count = on->views = 0;
    on->end = on->head->end_offset;
    on->total = 0;
    on->latest = -1;
}

/* Return whether the log has offsets for a batch behind the others: the end of the log is one, too. */
static int has_offsets(const Append *on, int64_t records)
{
    return records >= 1 && records <= INT64_MAX - on->end;
}

static void add(Append *on, const Batch *batch)
{
    on->batches[on->count++] = *batch;
    on->total += batch->size;
    on->end += batch->records;
    if (batch->latest > on->latest) on->latest = batch->latest;
}

static void release(Append *on)
{
    for (Py_ssize_t i = 0; i < on->count; i++) Py_XDECREF((PyObject *)on->batches[i].producer);
    for (Py_ssize_t i = 0; i < on->views; i++) PyBuffer_Release(&on->buffers[i]);
    on->count = on->views = 0;
}

/* --- the place ------------------------------------------------------------------------------------ */

/* Find the segment. Return whether it has an index, and what decides when the next one starts. */
static int find_segment(Append *on)
{
    on->segment = TM_AS(tm_segment, on->head->segment);
    on->table = on->segment ? TM_AS(tm_index, on->segment->table) : NULL;
    return on->table && !on->head->is_offline &&
           (!on->segment->size || !tm_is_none(on->segment->first_timestamp));
}

/* Return whether the batches go into the segment, as LogSegment.shouldRoll of Kafka decides it. An
 * empty segment takes any first batch. */
static int fits_segment(const Append *on)
{
    const tm_head *head = on->head;
    const tm_segment *segment = on->segment;
    if (!segment->size && on->count == 1) return 1;
    if (segment->size + on->total > head->segment_bytes ||
        on->end - 1 - segment->base_offset > INT32_MAX ||
        tm_index_is_full(on->table, on->count, head->index_bytes))
        return 0;
    /* As in Kafka, the records' time counts if there is one. So replayed history gets the same
     * segments as it got live. */
    int64_t oldest =
        segment->size ? PyLong_AsLongLong(segment->first_timestamp) : on->batches[0].latest;
    int64_t age = oldest >= 0 && on->latest >= 0 ? on->latest - oldest
                                                 : on->now_ms - segment->created_ms;
    return age <= head->segment_ms;
}

/* Find the segment that the batches go to; return 0, or -1 with an error. */
static int find_place(Append *on)
{
    PyObject *done = Py_NewRef(Py_None);
    if (!find_segment(on)) {
        tm_replace(&done, PyObject_CallMethod(on->appender, "prepare", NULL));
        if (done && !find_segment(on)) {
            PyErr_SetString(PyExc_RuntimeError, "the active segment is not prepared");
            Py_CLEAR(done);
        }
    }
    if (done && !fits_segment(on)) {
        tm_replace(&done, PyObject_CallMethod(on->appender, "roll", "L", (long long)on->now_ms));
        if (done) find_segment(on);
    }
    Py_XDECREF(done);
    return done ? 0 : -1;
}

PyObject *tm_py_make_room(PyObject *module, PyObject *args)
{
    long long size, records, latest, now_ms;
    Append on = {.count = 1};
    if (!PyArg_ParseTuple(args, "OO!LLLL:make_room", &on.appender, tm_head_type, &on.head, &size,
                          &records, &latest, &now_ms))
        return NULL;
    on.end = on.head->end_offset;
    if (!has_offsets(&on, records)) {
        PyErr_SetString(PyExc_ValueError, "the log has no offsets left");
        return NULL;
    }
    on.end += records;
    on.total = size;
    on.latest = latest;
    on.now_ms = now_ms;
    if (find_place(&on) < 0) return NULL;
    Py_RETURN_NONE;
}

/* --- the write ------------------------------------------------------------------------------------ */

static void stamp(const Append *on)
{
    int64_t offset = on->head->end_offset;
    for (Py_ssize_t i = 0; i < on->count; i++) {
        const Batch *batch = &on->batches[i];
        tm_put_big_endian(batch->data, (uint64_t)offset, 8);
        tm_put_big_endian(batch->data + 8, (uint64_t)batch->size - 12, 4);
        tm_put_big_endian(batch->data + 12, (uint64_t)on->head->leader_epoch, 4);
        offset += batch->records;
    }
}

/* Return whether the file is open, one of the system, and as the segment says. */
static int is_direct(const Append *on, const tm_file *file)
{
    return file && file->fd >= 0 && !file->broken && !file->retired && !file->releasing &&
           file->size == on->segment->size && on->total <= WRITE_BYTES;
}

/* Write with Python; it writes again what a full disk took of it. Return 0, or -1 with an error. */
static int write_with_python(const Append *on)
{
    PyObject *buffers = PyTuple_New(on->views), *none = NULL;
    int failed = !buffers;
    for (Py_ssize_t i = 0; !failed && i < on->views; i++)
        failed = PyTuple_SetItem(buffers, i, Py_NewRef(on->buffers[i].obj)) < 0;
    if (!failed) none = PyObject_CallMethod(on->appender, "write", "(O)", buffers);
    Py_XDECREF(buffers);
    Py_XDECREF(none);
    return none ? 0 : -1;
}

/* Write the batches completely or not at all; return 0, or -1 with an error. */
static int write_batches(const Append *on, struct iovec *parts)
{
    tm_file *file = TM_AS(tm_file, on->segment->log_file);
    if (!is_direct(on, file) ||
        pwritev(file->fd, parts, (int)on->views, (off_t)file->size) != on->total)
        return write_with_python(on);
    file->size += on->total;
    file->dirty = file->used = 1;
    return 0;
}

/* --- behind the write: a function returns 0, or -1 with an error --------------------------------- */

/* Record one batch. */
static int record_batch(const Append *on, const Batch *batch, int64_t first)
{
    tm_segment *segment = on->segment;
    int64_t delta = batch->records - 1, last = first + delta;
    if (tm_index_add(on->table, last - segment->base_offset, segment->size, batch->size, batch->latest,
                     on->head->index_interval) < 0)
        return -1;
    if (batch->producer) {
        if (tm_producer_add(batch->producer, batch->sequence, last, delta, on->now_ms) < 0) return -1;
        batch->producer->last_timestamp_ms = on->now_ms;
    }
    segment->size += batch->size;
    segment->end_offset = last + 1;
    return 0;
}

/* Record what was written. */
static int record(const Append *on, const struct iovec *parts)
{
    tm_head *head = on->head;
    tm_segment *segment = on->segment;
    if (!segment->size && tm_is_none(segment->first_timestamp)) {
        PyObject *first = PyLong_FromLongLong(on->batches[0].latest);
        if (!first) return -1;
        tm_replace(&segment->first_timestamp, first);
    }
    for (Py_ssize_t i = 0; i < on->count; i++) {
        if (record_batch(on, &on->batches[i], head->end_offset) < 0) return -1;
        head->end_offset += on->batches[i].records;
    }
    segment->max_timestamp = on->table->max_timestamp;
    head->changed = 1;
    head->bytes_since += on->total;
    return tm_keep(head, parts, on->views, on->total);
}

/* Take the error that is set, if there is one. */
static PyObject *take_error(void)
{
    PyObject *type = NULL, *error = NULL, *trace = NULL;
    PyErr_Fetch(&type, &error, &trace);
    if (type) PyErr_NormalizeException(&type, &error, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return error;
}

/* Let the partition go offline with the present error, and its file end where it did before: of what is
 * written, perhaps only a part is recorded. */
static void lose(const Append *on)
{
    PyObject *error = take_error();
    on->head->is_offline = 1; /* also if there is no memory for the call */
    Py_XDECREF(PyObject_CallMethod(on->appender, "lose", "(O)", error ? error : Py_None));
    Py_XDECREF(error);
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "batches could not be recorded");
}

/* Append the batches. Return 0, or -1 with an error: then nothing is appended, or the partition is
 * offline. */
static int put(Append *on)
{
    struct iovec parts[MOST_BATCHES];
    for (Py_ssize_t i = 0; i < on->views; i++)
        parts[i] = (struct iovec){on->buffers[i].buf, (size_t)on->buffers[i].len};
    if (find_place(on) < 0) return -1;
    stamp(on);
    tm_segment *segment = (tm_segment *)Py_NewRef((PyObject *)on->segment);
    PyObject *table = Py_NewRef((PyObject *)on->table);
    const int64_t end = on->head->end_offset, size = segment->size, segment_end = segment->end_offset;
    int failed = write_batches(on, parts);
    if (!failed && (failed = record(on, parts)) < 0) {
        on->head->end_offset = end;
        segment->size = size;
        segment->end_offset = segment_end;
        lose(on);
    }
    Py_DECREF(segment);
    Py_DECREF(table);
    return failed;
}

/* --- batches that Python has decided about -------------------------------------------------------- */

/* Read (size, records, latest timestamp) of each batch in one buffer; return 0, or -1 with an error. */
static int read_given(Append *on, PyObject *given)
{
    uint8_t *data = on->buffers[0].buf;
    for (Py_ssize_t i = 0; i < PyList_Size(given); i++) {
        Batch batch = {data + on->total};
        long long size, records, latest;
        PyObject *one = PyList_GetItem(given, i);
        if (!PyTuple_Check(one) || !PyArg_ParseTuple(one, "LLL", &size, &records, &latest)) return -1;
        if (size < HEADER_SIZE || size > on->buffers[0].len - on->total || !has_offsets(on, records))
            break;
        batch.size = size;
        batch.records = records;
        batch.latest = latest;
        add(on, &batch);
    }
    if (on->count && on->count == PyList_Size(given) && on->total == on->buffers[0].len) return 0;
    PyErr_SetString(PyExc_ValueError,
                    "the sizes are not those of the batches, or the log has no offsets left");
    return -1;
}

PyObject *tm_py_append(PyObject *module, PyObject *args)
{
    PyObject *given;
    Py_buffer view;
    long long now_ms;
    Append on = {0};
    if (!PyArg_ParseTuple(args, "OO!w*O!L:append", &on.appender, tm_head_type, &on.head, &view,
                          &PyList_Type, &given, &now_ms))
        return NULL;
    start(&on);
    on.buffers = &view;
    on.views = 1;
    on.now_ms = now_ms;
    on.batches = PyMem_Malloc((size_t)(PyList_Size(given) + 1) * sizeof *on.batches);
    if (!on.batches) PyErr_NoMemory();
    int failed = !on.batches || read_given(&on, given) < 0 || put(&on) < 0;
    release(&on);
    PyMem_Free(on.batches);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* --- a run ---------------------------------------------------------------------------------------- */

/* Return whether a batch of an idempotent producer is the next one; see log.partition.producers. */
static int is_next(const Append *on, Batch *batch, int64_t id)
{
    PyObject *producers = on->head->producers, *refused = on->head->refused;
    if (tm_is_none(producers) || !refused || !PyDict_Check(refused) || PyDict_Size(refused)) return 0;
    PyObject *key = PyLong_FromLongLong(id);
    if (!key) return -1;
    tm_producer *entry = TM_AS(tm_producer, PyDict_GetItemWithError(producers, key));
    Py_DECREF(key);
    if (!entry) return PyErr_Occurred() ? -1 : 0;
    if (entry->epoch != (int16_t)tm_big_endian(batch->data + 51, 2) || entry->txn_first_offset >= 0)
        return 0;
    int64_t next = tm_next_sequence(entry);
    for (const Batch *other = on->batches; next >= 0 && other < on->batches + on->count; other++)
        if (other->producer == entry) next = (other->sequence + other->records) & INT32_MAX;
    batch->sequence = (int32_t)tm_big_endian(batch->data + 53, 4);
    if (batch->sequence != next) return 0;
    batch->producer = (tm_producer *)Py_NewRef((PyObject *)entry);
    return 1;
}

/* Add one batch of the run, (target, data, facts), to those that are written together. Return 1; 0 if
 * it can't be written with them, or Python has to look at it; or -1 with an error. */
static int read_batch(Append *on, PyObject *write)
{
    PyObject *data = PyTuple_GetItem(write, 1), *facts = PyTuple_GetItem(write, 2);
    if (!data || !facts) return -1;
    Py_buffer *view = &on->buffers[on->views];
    if (PyObject_GetBuffer(data, view, PyBUF_WRITABLE) < 0) return -1;
    on->views++;
    Batch batch = {view->buf, view->len};
    batch.records = PyLong_AsLongLong(PyTuple_GetItem(facts, 0));
    batch.latest = PyLong_AsLongLong(PyTuple_GetItem(facts, 1));
    int64_t producer = PyLong_AsLongLong(PyTuple_GetItem(facts, 4));
    if (PyErr_Occurred()) return -1;
    if (batch.size < HEADER_SIZE || !has_offsets(on, batch.records)) return 0;
    int taken = producer < 0 ? 1 : is_next(on, &batch, producer);
    if (taken > 0) add(on, &batch);
    return taken;
}

/* Read the batches from a place on that are written together; return 0, or -1 with an error. */
static int read_series(Append *on, PyObject *run, PyObject *places, Py_ssize_t at, Py_ssize_t most)
{
    start(on);
    int is_known = find_segment(on); /* otherwise the first batch goes alone, and finds it */
    for (; on->count < most && at < PyList_Size(places); at++) {
        const Append before = *on;
        Py_ssize_t place = PyLong_AsSsize_t(PyList_GetItem(places, at));
        PyObject *write = PyErr_Occurred() ? NULL : PyList_GetItem(run, place);
        if (write && !PyTuple_Check(write)) PyErr_SetString(PyExc_TypeError, "not a batch of a run");
        int taken = write && !PyErr_Occurred() ? read_batch(on, write) : -1;
        if (taken < 0) return -1;
        if (taken && (!before.count ||
                      (is_known && on->total <= WRITE_BYTES && fits_segment(on))))
            continue;
        /* The batch is left. */
        if (taken) Py_XDECREF((PyObject *)on->batches[before.count].producer);
        PyBuffer_Release(&on->buffers[before.views]);
        *on = before;
        break;
    }
    return 0;
}

/* Set the results of the batches: their offsets, or the error that is set. Return 0, or -1 with another
 * error. */
static int set_results(const Append *on, PyObject *places, Py_ssize_t at, PyObject *results)
{
    PyObject *error = take_error();
    int64_t offset = on->head->end_offset;
    for (Py_ssize_t i = 0; !error && i < on->count; i++) offset -= on->batches[i].records;
    int failed = 0;
    for (Py_ssize_t i = 0; !failed && i < on->count; i++) {
        PyObject *result = error ? Py_NewRef(error)
                                 : Py_BuildValue("LiL", (long long)offset, -1,
                                                 (long long)on->head->start_offset);
        Py_ssize_t place = PyLong_AsSsize_t(PyList_GetItem(places, at + i));
        failed = !result || PyList_SetItem(results, place, result) < 0;
        offset += on->batches[i].records;
    }
    Py_XDECREF(error);
    return failed ? -1 : 0;
}

/* Append batches from a place on, those that are written together. Return how many; 0 if the first one
 * failed, or Python has to look at it; or -1 with an error. */
static Py_ssize_t append_series(Append *on, PyObject *run, PyObject *places, Py_ssize_t at,
                                PyObject *results, Py_ssize_t most)
{
    if (read_series(on, run, places, at, most) < 0) return -1;
    if (!on->count) return 0;
    int failed = put(on) < 0;
    if (failed && on->count > 1 && !on->head->is_offline) {
        /* As many as fit on the disk are appended, one by one. */
        PyErr_Clear();
        release(on);
        return append_series(on, run, places, at, results, 1);
    }
    if (set_results(on, places, at, results) < 0) return -1;
    return failed ? 0 : on->count;
}

/* Append the batches of one log, up to the first one that fails or that Python has to look at. Return
 * how many were appended, or -1 with an error. */
static Py_ssize_t append_to(Append *on, PyObject *given, PyObject *run, PyObject *places,
                            PyObject *results)
{
    const tm_target *target = TM_AS(tm_target, given);
    on->head = target ? TM_AS(tm_head, target->head) : NULL;
    if (!on->head || !PyList_Check(places)) {
        PyErr_SetString(PyExc_TypeError, "not a target and its places");
        return -1;
    }
    on->appender = target->appender;
    for (Py_ssize_t done = 0, count;; done += count) {
        if (done == PyList_Size(places)) return done;
        count = append_series(on, run, places, done, results, MOST_BATCHES);
        release(on);
        if (count <= 0) return count < 0 ? -1 : done;
    }
}

PyObject *tm_py_append_run(PyObject *module, PyObject *args)
{
    PyObject *run, *targets, *results, *target, *places;
    long long now_ms;
    if (!PyArg_ParseTuple(args, "O!O!O!L:append_run", &PyList_Type, &run, &PyDict_Type, &targets,
                          &PyList_Type, &results, &now_ms))
        return NULL;
    Append on = {.now_ms = now_ms};
    on.batches = PyMem_Malloc((MOST_BATCHES + 1) * sizeof *on.batches);
    on.buffers = PyMem_Malloc((MOST_BATCHES + 1) * sizeof *on.buffers);
    PyObject *counts = on.batches && on.buffers ? PyList_New(0) : PyErr_NoMemory();
    Py_ssize_t at = 0;
    while (counts && PyDict_Next(targets, &at, &target, &places)) {
        Py_ssize_t done = append_to(&on, target, run, places, results);
        PyObject *count = done < 0 ? NULL : PyLong_FromSsize_t(done);
        if (!count || PyList_Append(counts, count) < 0) Py_CLEAR(counts);
        Py_XDECREF(count);
    }
    PyMem_Free(on.batches);
    PyMem_Free(on.buffers);
    return counts;
}
