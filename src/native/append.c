/* Appends a run of checked batches to logs in one call.
 *
 * It works on the attributes of Python's objects, and takes a log if nothing but an ordinary append is
 * to be done: to a file that is open, in a segment that has records and space, with producers whose
 * sequences continue. It leaves any other log to RunAppender._append in tidemill.engine.records.append_runs, and
 * has changed nothing of it then but the base offsets in the batches and bytes behind the end of the
 * file, which Python writes again. What both do must be the same.
 *
 * Python's lock is held all the time, so no thread can close a file in between. That is why a write
 * has at most WRITE_BYTES.
 */
#define _GNU_SOURCE
#include "attributes.h"
#include "native.h"

#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define WRITE_BYTES (256 << 10)
#define MOST_BATCHES 128
#define WINDOW 5           /* batches that a producer's state keeps; see log.partition.producers */

enum {
    LOG, APPENDER, CHAIN, SYNC, POINT, PRODUCERS, CONFIG, SEGMENTS, SEGMENT, TABLE, FILE_, ENV, POOL,
    OPEN, COPIES, STATES, ENTRIES, REFUSED, PARTS
};

/* The attributes that are read or set. */
#define NAMES(X) \
    X(_appender) X(_chain) X(_copied) X(_copies) X(_entries) X(_fd) X(_file) X(_from_offset) \
    X(_limit) X(_lock) X(_open) X(_point) X(_pool) X(_producers) X(_sync) X(_table) X(acquire) \
    X(base_offset) X(batches) X(broken) X(bytes_since) X(changed) X(config) X(copies) X(dirty) \
    X(drop_copies) X(end_offset) X(env) X(epoch) X(failure) X(first) X(first_timestamp) \
    X(index_interval_bytes) X(known_sequences) X(last_offset) X(last_timestamp_ms) X(leader_epoch) \
    X(limit) X(loaded) X(log) X(max_compaction_lag_ms) X(max_segment_ms) X(max_timestamp) \
    X(move_to_end) X(offsets) X(refused) X(release) X(releasing) X(retired) \
    X(segment_bytes) X(segment_index_bytes) X(segment_jitter_ms) X(segment_ms) X(segments) \
    X(size) X(start_offset) \
    X(times) X(txn_first_offset) X(used)
NAMES(TM_DECLARE)

static PyObject *real_file, *stored_batch; /* types */

/* One batch of the log that is appended to. */
typedef struct {
    Py_buffer view;
    Py_ssize_t place;
    int64_t records, latest;
    PyObject *producer; /* the entry of an idempotent one; NULL without */
    int32_t sequence;   /* of its first record */
} Batch;

/* The log that is appended to, and what was read of it. */
typedef struct {
    PyObject *part[PARTS];
    Py_ssize_t count;
    Batch batches[MOST_BATCHES];
    int64_t now_ms, stream_bytes, first, end, start, size, base, epoch, total, latest;
    int fd;
} Append;

/* --- before the write: a function returns 1, or 0 if the log is not taken ------------------------ */

/* Read a part of the log; return -1 if there is none. */
static int fetch(Append *on, int to, int from, tm_attribute *name)
{
    on->part[to] = get_attribute(on->part[from], name);
    return on->part[to] && on->part[to] != Py_None ? 0 : -1;
}

static int read_parts(Append *on)
{
    if (fetch(on, APPENDER, LOG, s__appender) < 0 || fetch(on, CHAIN, APPENDER, s__chain) < 0 ||
        fetch(on, SYNC, APPENDER, s__sync) < 0 || fetch(on, POINT, APPENDER, s__point) < 0 ||
        fetch(on, CONFIG, APPENDER, s_config) < 0 || fetch(on, ENV, CHAIN, s_env) < 0 ||
        fetch(on, SEGMENTS, CHAIN, s_segments) < 0 || !PyList_Check(on->part[SEGMENTS]))
        return 0;
    Py_ssize_t last = PyList_Size(on->part[SEGMENTS]) - 1;
    if (last < 0 || is_none(on->part[CHAIN], s_failure) != 1) return 0;
    on->part[SEGMENT] = Py_XNewRef(PyList_GetItem(on->part[SEGMENTS], last));
    return on->part[SEGMENT] && fetch(on, TABLE, SEGMENT, s__table) == 0 &&
           fetch(on, FILE_, SEGMENT, s__file) == 0 && fetch(on, POOL, FILE_, s__pool) == 0 &&
           fetch(on, OPEN, POOL, s__open) == 0 && fetch(on, COPIES, ENV, s_copies) == 0 &&
           get_number(on->part[CHAIN], s_end_offset, &on->first) == 0 &&
           get_number(on->part[CHAIN], s_start_offset, &on->start) == 0 &&
           get_number(on->part[SEGMENT], s_size, &on->size) == 0 &&
           get_number(on->part[SEGMENT], s_base_offset, &on->base) == 0 &&
           get_number(on->part[APPENDER], s_leader_epoch, &on->epoch) == 0;
}

/* Find the descriptor of the file, which must be open, of the system, and as the segment says. */
static int find_file(Append *on)
{
    PyObject *file = on->part[FILE_];
    if (is_true(file, s_broken) || is_true(file, s_retired) || is_true(file, s_releasing) ||
        !PyDict_Check(on->part[OPEN]))
        return 0;
    PyObject *raw = PyDict_GetItemWithError(on->part[OPEN], file);
    int64_t fd, size;
    if (!raw || (PyObject *)Py_TYPE(raw) != real_file || get_number(raw, s__fd, &fd) < 0) return 0;
    on->fd = (int)fd;
    return get_number(file, s_size, &size) == 0 && size == on->size;
}

/* Return whether the segment is not too old for the batches; see LogConfig.max_segment_ms, which is
 * asked only if the segment could be. */
static int is_young(Append *on)
{
    PyObject *config = on->part[CONFIG];
    int64_t usual, compacted, most, oldest;
    if (get_number(on->part[SEGMENT], s_first_timestamp, &oldest) < 0 || oldest < 0 ||
        get_number(config, s_segment_ms, &usual) < 0 ||
        get_number(config, s_max_compaction_lag_ms, &compacted) < 0)
        return 0;
    int64_t age = on->latest - oldest;
    if (age <= usual && age <= compacted) return 1;
    return get_number(config, s_max_segment_ms, &most) == 0 && age <= most;
}

/* Return whether the batches fit into the segment; see log.partition.rolling. */
static int fits_segment(Append *on)
{
    PyObject *config = on->part[CONFIG], *table = on->part[TABLE];
    int64_t most, index_bytes, jitter;
    if (!on->size || get_number(config, s_segment_bytes, &most) < 0 || on->size + on->total > most)
        return 0;
    if (on->end - 1 - on->base > INT32_MAX || is_none(on->part[SEGMENT], s_first_timestamp)) return 0;
    if (get_number(config, s_segment_index_bytes, &index_bytes) < 0 ||
        get_number(config, s_segment_jitter_ms, &jitter) < 0 || jitter || !is_young(on))
        return 0;
    PyObject *offsets = get_attribute(table, s_offsets), *times = get_attribute(table, s_times);
    int fits = offsets && times && PyObject_Size(offsets) + 2 * TM_OFFSET_ENTRY <= index_bytes &&
               PyObject_Size(times) + 2 * TM_TIME_ENTRY <= index_bytes;
    Py_XDECREF(offsets);
    Py_XDECREF(times);
    return fits;
}

/* Return the sequence behind the last stored batch of a producer; -1 if it has none. */
static int64_t next_sequence(PyObject *entry)
{
    int64_t last = -1;
    PyObject *batches = get_attribute(entry, s_batches);
    Py_ssize_t count = batches && PyList_Check(batches) ? PyList_Size(batches) : 0;
    PyObject *newest = count ? PyList_GetItem(batches, count - 1) : NULL;
    PyObject *sequence = newest ? PyTuple_GetItem(newest, 0) : NULL;
    if (sequence) last = PyLong_AsLongLong(sequence);
    Py_XDECREF(batches);
    return last < 0 ? -1 : (last + 1) & INT32_MAX;
}

/* Return whether a batch of an idempotent producer is the next one; see log.partition.producers. */
static int is_next(Append *on, Batch *batch, int64_t id)
{
    const uint8_t *data = batch->view.buf;
    if (!on->part[ENTRIES] &&
        (fetch(on, PRODUCERS, APPENDER, s__producers) < 0 ||
         fetch(on, STATES, PRODUCERS, s_loaded) < 0 || fetch(on, ENTRIES, STATES, s__entries) < 0 ||
         fetch(on, REFUSED, APPENDER, s_refused) < 0 || is_true(on->part[REFUSED], s_first)))
        return 0;
    PyObject *key = PyLong_FromLongLong(id);
    if (!key) return 0;
    PyObject *entry = PyDict_GetItemWithError(on->part[ENTRIES], key);
    Py_DECREF(key);
    if (!entry) return 0;
    batch->producer = Py_NewRef(entry);
    int64_t epoch, transaction, next = next_sequence(entry);
    if (get_number(entry, s_epoch, &epoch) < 0 || epoch != (int16_t)tm_big_endian(data + 51, 2) ||
        get_number(entry, s_txn_first_offset, &transaction) < 0 || transaction >= 0)
        return 0;
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
    on->end = on->first;
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
    struct iovec parts[MOST_BATCHES];
    int64_t offset = on->first;
    for (Py_ssize_t i = 0; i < on->count; i++) {
        Batch *batch = &on->batches[i];
        uint8_t *data = batch->view.buf;
        tm_put_big_endian(data, (uint64_t)offset, 8);
        tm_put_big_endian(data + 8, (uint64_t)batch->view.len - 12, 4);
        tm_put_big_endian(data + 12, (uint64_t)on->epoch, 4);
        offset += batch->records;
        parts[i] = (struct iovec){data, (size_t)batch->view.len};
    }
    return pwritev(on->fd, parts, (int)on->count, (off_t)on->size) == on->total;
}

/* --- behind the write: a function returns 0, or -1 with an error --------------------------------- */

static int index_batches(Append *on)
{
    PyObject *segment = on->part[SEGMENT], *table = on->part[TABLE];
    int64_t interval, latest, offset = on->first, position = on->size;
    if (get_number(on->part[CONFIG], s_index_interval_bytes, &interval) < 0) return -1;
    for (Py_ssize_t i = 0; i < on->count; i++) {
        const Batch *batch = &on->batches[i];
        offset += batch->records;
        if (tm_index_batch(table, offset - 1 - on->base, position, batch->view.len, batch->latest,
                           interval) < 0)
            return -1;
        position += batch->view.len;
    }
    if (get_number(table, s_max_timestamp, &latest) < 0) return -1;
    return set_number(segment, s_end_offset, offset) < 0 ||
                   set_number(segment, s_max_timestamp, latest) < 0 ||
                   set_number(segment, s_size, position) < 0
               ? -1
               : 0;
}

/* Keep a copy for the journal; see SyncState.keep. */
static int keep_copy(Append *on)
{
    PyObject *sync = on->part[SYNC], *copies = on->part[COPIES];
    int64_t from, copied, most, used, limit;
    if (get_number(sync, s__from_offset, &from) < 0) return -1;
    if (from < 0) return 0;
    if (get_number(sync, s__copied, &copied) < 0 || get_number(sync, s__limit, &most) < 0 ||
        get_number(copies, s_used, &used) < 0 || get_number(copies, s_limit, &limit) < 0)
        return -1;
    if (copied + on->total > most && set_number(sync, s__limit, on->stream_bytes) < 0) return -1;
    if (copied + on->total > most || used + on->total > limit)
        return call(sync, s_drop_copies, NULL);
    PyObject *copy = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)on->total);
    PyObject *list = copy ? get_attribute(sync, s__copies) : NULL;
    if (list) {
        char *to = PyBytes_AsString(copy);
        for (Py_ssize_t i = 0; i < on->count; i++) {
            memcpy(to, on->batches[i].view.buf, (size_t)on->batches[i].view.len);
            to += on->batches[i].view.len;
        }
    }
    int failed = !list || PyList_Append(list, copy) < 0 ||
                 set_number(sync, s__copied, copied + on->total) < 0 ||
                 set_number(copies, s_used, used + on->total) < 0;
    Py_XDECREF(list);
    Py_XDECREF(copy);
    return failed ? -1 : 0;
}

/* Record the batch of a producer; see ProducerStates.update. */
static int update_producer(Append *on, const Batch *batch, int64_t first)
{
    PyObject *entry = batch->producer;
    int64_t delta = batch->records - 1, last = first + delta;
    PyObject *stored = tm_new_tuple(
        stored_batch, Py_BuildValue("((LLLL))", (long long)((batch->sequence + delta) & INT32_MAX),
                                    (long long)last, (long long)delta, (long long)on->now_ms));
    PyObject *batches = stored ? get_attribute(entry, s_batches) : NULL;
    int failed = !batches || PyList_Append(batches, stored) < 0;
    Py_ssize_t over = failed ? 0 : PyList_Size(batches) - WINDOW;
    failed = failed || (over > 0 && PyList_SetSlice(batches, 0, over, NULL) < 0) ||
             add_number(entry, s_known_sequences, batch->records) < 0 ||
             set_number(entry, s_last_offset, last) < 0 ||
             set_number(entry, s_last_timestamp_ms, on->now_ms) < 0;
    Py_XDECREF(stored);
    Py_XDECREF(batches);
    return failed ? -1 : 0;
}

/* Make the file the last one to be closed; see HandlePool.pin. A thread that has the pool's lock can be
 * going through the files, so their order must stay then. */
static int mark_used(Append *on)
{
    PyObject *lock = get_attribute(on->part[POOL], s__lock);
    PyObject *has = lock ? PyObject_CallMethodObjArgs(lock, s_acquire->text, Py_False, NULL) : NULL;
    int failed = !has;
    if (has == Py_True) {
        failed = call(on->part[OPEN], s_move_to_end, on->part[FILE_]) < 0;
        failed = call(lock, s_release, NULL) < 0 || failed;
    }
    Py_XDECREF(has);
    Py_XDECREF(lock);
    return failed ? -1 : 0;
}

/* Record what was written, as Python's Segment.append and Appender.append do. */
static int record(Append *on, PyObject *results)
{
    PyObject *file = on->part[FILE_], *chain = on->part[CHAIN];
    if (set_number(file, s_size, on->size + on->total) < 0 ||
        set_attribute(file, s_dirty, Py_True) < 0 ||
        mark_used(on) < 0 || index_batches(on) < 0 ||
        set_number(chain, s_end_offset, on->end) < 0 ||
        set_attribute(chain, s_changed, Py_True) < 0 || keep_copy(on) < 0 ||
        add_number(on->part[POINT], s_bytes_since, on->total) < 0)
        return -1;
    int64_t offset = on->first;
    for (Py_ssize_t i = 0; i < on->count; i++) {
        const Batch *batch = &on->batches[i];
        if (batch->producer && update_producer(on, batch, offset) < 0) return -1;
        PyObject *result = Py_BuildValue("LiL", (long long)offset, -1, (long long)on->start);
        if (!result || PyList_SetItem(results, batch->place, result) < 0) return -1;
        offset += batch->records;
    }
    return 0;
}

/* --- a run --------------------------------------------------------------------------------------- */

/* Append the batches of one log. Return 1, 0 if the log is not taken, or -1 with an error. */
static int append_to(Append *on, PyObject *target, PyObject *run, PyObject *places, PyObject *results)
{
    memset(on->part, 0, sizeof on->part);
    on->count = on->total = 0;
    on->part[LOG] = get_attribute(target, s_log);
    int taken = on->part[LOG] && read_parts(on) && read_batches(on, run, places) &&
                fits_segment(on) && find_file(on) && write_batches(on);
    if (!taken) PyErr_Clear(); /* Python meets the same error, and has the words for it */
    int done = taken && record(on, results) < 0 ? -1 : taken;
    for (int i = 0; i < PARTS; i++) Py_CLEAR(on->part[i]);
    for (Py_ssize_t i = 0; i < on->count; i++) {
        PyBuffer_Release(&on->batches[i].view);
        Py_CLEAR(on->batches[i].producer);
    }
    return done;
}

PyObject *tm_py_append_run(PyObject *module, PyObject *args)
{
    PyObject *run, *targets, *results, *target, *places;
    long long now_ms, stream_bytes;
    if (!PyArg_ParseTuple(args, "O!O!O!LL:append_run", &PyList_Type, &run, &PyDict_Type, &targets,
                          &PyList_Type, &results, &now_ms, &stream_bytes))
        return NULL;
    Append *on = PyMem_Malloc(sizeof *on);
    PyObject *ends = on ? PyList_New(0) : PyErr_NoMemory();
    if (ends) {
        on->now_ms = now_ms;
        on->stream_bytes = stream_bytes;
    }
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

/* Give the types of files and of a producer's batches, before the first run. */
PyObject *tm_py_prepare_append(PyObject *module, PyObject *args)
{
    PyObject *file, *batch;
    if (!PyArg_ParseTuple(args, "OO:prepare_append", &file, &batch)) return NULL;
    Py_XDECREF(real_file);
    Py_XDECREF(stored_batch);
    real_file = Py_NewRef(file);
    stored_batch = Py_NewRef(batch);
    Py_RETURN_NONE;
}

int tm_prepare_append_names(void)
{
    NAMES(TM_INTERN)
    return 0;
}
