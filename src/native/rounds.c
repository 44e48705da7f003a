/* Takes what a round of the journal writes from many logs, encodes it, and finishes the round, each in
 * one call.
 *
 * It works on the attributes of Python's objects. tidemill.log.rounds says what the results mean,
 * tidemill.log.journal.entry and tidemill.log.journal.extent have the formats.
 */
#include "attributes.h"
#include "native.h"

#include <string.h>

#define PIECE_FIELDS 8
#define PIECE_BYTES 56
#define TOPIC_ID_BYTES 16
#define PROMISE_BYTES 28

enum { TOPIC_ID, PARTITION, SEGMENT_BASE, POSITION, FIRST_OFFSET, END_OFFSET, SIZE, BUFFERS };

/* The attributes that are read or set. */
#define NAMES(X) \
    X(_closed) X(_copied) X(_copies) X(_ended) X(_from_offset) X(_limit) X(_new_folder) X(_producers) \
    X(_sync) X(_topic_id) X(base_offset) X(chain) X(copies) X(end_offset) X(end_position) \
    X(end_segment) X(env) X(failure) X(high_watermark) X(loaded) X(named) X(partition) X(segments) \
    X(settle) X(size) X(tp) X(unstable) X(used)
NAMES(TM_DECLARE)

/* Return the length of an attribute; -1 with an error. */
static Py_ssize_t length_of(PyObject *of, tm_attribute *name)
{
    PyObject *value = get_attribute(of, name);
    Py_ssize_t length = value ? PyObject_Size(value) : -1;
    Py_XDECREF(value);
    return length;
}

/* --- taking -------------------------------------------------------------------------------------- */

/* The parts of a log. */
typedef struct {
    PyObject *chain, *sync, *segment, *env, *copies, *tp;
    int64_t copied, from, end, size;
} Log;

static int read_log(PyObject *log, Log *to)
{
    memset(to, 0, sizeof *to);
    if (!(to->chain = get_attribute(log, s_chain)) || !(to->sync = get_attribute(log, s__sync)) ||
        !(to->env = get_attribute(to->chain, s_env)) ||
        !(to->copies = get_attribute(to->env, s_copies)) ||
        !(to->tp = get_attribute(to->chain, s_tp)))
        return -1;
    PyObject *segments = get_attribute(to->chain, s_segments);
    Py_ssize_t count = segments ? PyList_Size(segments) : -1;
    to->segment = count > 0 ? Py_XNewRef(PyList_GetItem(segments, count - 1)) : NULL;
    Py_XDECREF(segments);
    if (count == 0) PyErr_SetString(PyExc_IndexError, "a chain without segments");
    return to->segment && get_number(to->sync, s__copied, &to->copied) == 0 &&
                   get_number(to->sync, s__from_offset, &to->from) == 0 &&
                   get_number(to->chain, s_end_offset, &to->end) == 0 &&
                   get_number(to->segment, s_size, &to->size) == 0
               ? 0
               : -1;
}

static void drop_log(Log *log)
{
    Py_XDECREF(log->chain);
    Py_XDECREF(log->sync);
    Py_XDECREF(log->segment);
    Py_XDECREF(log->env);
    Py_XDECREF(log->copies);
    Py_XDECREF(log->tp);
}

/* Return whether the journal can take what is unsynced; see SyncState.fits_journal. -1: an error. */
static int fits(const Log *log)
{
    int64_t watermark;
    if (log->copied <= 0 || log->from < 0) return 0;
    int works = is_none(log->chain, s_failure);
    if (works != 1) return works;
    Py_ssize_t length = length_of(log->sync, s__topic_id);
    if (length <= 0) return (int)length;
    if (get_number(log->sync, s_high_watermark, &watermark) < 0) return -1;
    if (watermark <= 0) return 0;
    int is_new = is_true(log->sync, s__new_folder);
    if (is_new) return is_new < 0 ? -1 : 0;
    length = length_of(log->sync, s__closed);
    if (length) return length < 0 ? -1 : 0;
    return is_true(log->segment, s_named);
}

/* Return a Piece, which is a tuple. */
static PyObject *make_piece(const Log *log, PyObject *type)
{
    PyObject *id = get_attribute(log->sync, s__topic_id);
    PyObject *number = id ? get_attribute(log->tp, s_partition) : NULL;
    PyObject *base = number ? get_attribute(log->segment, s_base_offset) : NULL;
    PyObject *buffers = base ? get_attribute(log->sync, s__copies) : NULL;
    PyObject *piece = NULL;
    if (buffers)
        piece = tm_new_tuple(
            type, Py_BuildValue("((OOOLLLLO))", id, number, base,
                                (long long)(log->size - log->copied), (long long)log->from,
                                (long long)log->end, (long long)log->copied, buffers));
    Py_XDECREF(buffers);
    Py_XDECREF(base);
    Py_XDECREF(number);
    Py_XDECREF(id);
    return piece;
}

/* Begin to keep copies again, behind those that were taken; see SyncState.drop_copies. */
static int begin_copies(const Log *log, int64_t limit)
{
    PyObject *none = PyList_New(0);
    int failed = !none || add_number(log->copies, s_used, -log->copied) < 0 ||
                 set_attribute(log->sync, s__copies, none) < 0 ||
                 set_number(log->sync, s__copied, 0) < 0 ||
                 set_number(log->sync, s__from_offset, log->end) < 0 ||
                 set_number(log->sync, s__limit, limit) < 0;
    Py_XDECREF(none);
    return failed ? -1 : 0;
}

/* Return (piece, segment), or None if the journal can't take what is unsynced. */
static PyObject *take_piece(PyObject *log, PyObject *type, int64_t limit, int64_t *size)
{
    Log parts;
    PyObject *taken = NULL;
    int fitting = read_log(log, &parts) < 0 ? -1 : fits(&parts);
    if (fitting == 0) taken = Py_NewRef(Py_None);
    PyObject *piece = fitting > 0 ? make_piece(&parts, type) : NULL;
    if (piece && begin_copies(&parts, limit) == 0) {
        taken = PyTuple_Pack(2, piece, parts.segment);
        *size += parts.copied;
    }
    Py_XDECREF(piece);
    drop_log(&parts);
    return taken;
}

PyObject *tm_py_take_pieces(PyObject *module, PyObject *args)
{
    PyObject *logs, *type;
    long long most, limit;
    if (!PyArg_ParseTuple(args, "O!LO!L:take_pieces", &PyList_Type, &logs, &most, &PyType_Type, &type,
                          &limit))
        return NULL;
    PyObject *found = PyList_New(0);
    int64_t size = 0;
    for (Py_ssize_t i = 0; found && size < most && i < PyList_Size(logs); i++) {
        PyObject *taken = take_piece(PyList_GetItem(logs, i), type, limit, &size);
        if (!taken || PyList_Append(found, taken) < 0) Py_CLEAR(found);
        Py_XDECREF(taken);
    }
    return found;
}

/* --- encoding ------------------------------------------------------------------------------------ */

static int read_field(PyObject *piece, int field, uint64_t most, uint64_t *to)
{
    PyObject *value = PyTuple_GetItem(piece, field);
    if (!value) return -1;
    *to = PyLong_AsUnsignedLongLong(value);
    if (PyErr_Occurred()) return -1;
    if (*to <= most) return 0;
    PyErr_SetString(PyExc_OverflowError, "a field of a piece is too large");
    return -1;
}

/* Append what comes before the batches of a piece, and the batches; return 0, or -1. */
static int encode_piece(PyObject *piece, PyObject *buffers)
{
    if (!PyTuple_Check(piece) || PyTuple_Size(piece) != PIECE_FIELDS) {
        PyErr_SetString(PyExc_TypeError, "not a piece");
        return -1;
    }
    PyObject *id = PyTuple_GetItem(piece, TOPIC_ID), *batches = PyTuple_GetItem(piece, BUFFERS);
    if (!PyBytes_Check(id) || PyBytes_Size(id) != TOPIC_ID_BYTES) {
        PyErr_SetString(PyExc_ValueError, "a topic id has 16 bytes");
        return -1;
    }
    uint8_t head[PIECE_BYTES], *to = head + TOPIC_ID_BYTES;
    memcpy(head, PyBytes_AsString(id), TOPIC_ID_BYTES);
    for (int field = PARTITION; field <= SIZE; field++) {
        int bytes = field == PARTITION || field == SIZE ? 4 : 8;
        uint64_t value;
        if (read_field(piece, field, bytes == 4 ? UINT32_MAX : UINT64_MAX, &value) < 0) return -1;
        tm_put_big_endian(to, value, bytes);
        to += bytes;
    }
    PyObject *encoded = PyBytes_FromStringAndSize((const char *)head, PIECE_BYTES);
    int failed = !encoded || PyList_Append(buffers, encoded) < 0;
    Py_XDECREF(encoded);
    PyObject *each = NULL, *all = failed ? NULL : PyObject_GetIter(batches);
    while (all && (each = PyIter_Next(all))) {
        failed = PyList_Append(buffers, each) < 0;
        Py_DECREF(each);
        if (failed) break;
    }
    Py_XDECREF(all);
    return failed || PyErr_Occurred() ? -1 : 0;
}

PyObject *tm_py_encode_pieces(PyObject *module, PyObject *pieces)
{
    PyObject *buffers = PyList_Check(pieces) ? PyList_New(0) : NULL;
    if (!buffers && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "pieces must be a list");
    for (Py_ssize_t i = 0; buffers && i < PyList_Size(pieces); i++)
        if (encode_piece(PyList_GetItem(pieces, i), buffers) < 0) Py_CLEAR(buffers);
    return buffers;
}

/* --- finishing ----------------------------------------------------------------------------------- */

/* Raise the high watermark to the end of a piece; return whether it was below, or -1. */
static int raise_watermark(PyObject *sync, PyObject *piece, PyObject *segment, int64_t *watermark)
{
    uint64_t end, position, size;
    if (read_field(piece, END_OFFSET, INT64_MAX, &end) < 0 ||
        read_field(piece, POSITION, INT64_MAX, &position) < 0 ||
        read_field(piece, SIZE, UINT32_MAX, &size) < 0 ||
        get_number(sync, s_high_watermark, watermark) < 0)
        return -1;
    if ((int64_t)end <= *watermark) return 0;
    *watermark = (int64_t)end;
    return set_number(sync, s_high_watermark, (int64_t)end) < 0 ||
                   set_attribute(sync, s_end_segment, segment) < 0 ||
                   set_number(sync, s_end_position, (int64_t)(position + size)) < 0
               ? -1
               : 1;
}

/* Release transactions whose markers are synced; see LazyProducers.settle. */
static int settle(PyObject *log, int64_t watermark)
{
    PyObject *producers = get_attribute(log, s__producers), *unstable = NULL;
    PyObject *states = producers ? get_attribute(producers, s_loaded) : NULL;
    int failed = !states;
    if (states && states != Py_None) {
        unstable = get_attribute(states, s_unstable);
        Py_ssize_t ended = unstable ? length_of(unstable, s__ended) : -1;
        failed = ended < 0 || (ended > 0 && call_with_number(unstable, s_settle, watermark) < 0);
    }
    Py_XDECREF(unstable);
    Py_XDECREF(states);
    Py_XDECREF(producers);
    return failed ? -1 : 0;
}

/* Return (whether the high watermark rose, whether the log has more behind it). */
static PyObject *finish_piece(PyObject *log, PyObject *taken)
{
    PyObject *piece = PyTuple_GetItem(taken, 0), *segment = PyTuple_GetItem(taken, 1), *result = NULL;
    if (!piece || !segment) return NULL;
    PyObject *sync = get_attribute(log, s__sync);
    PyObject *chain = sync ? get_attribute(log, s_chain) : NULL;
    int64_t watermark = 0, end;
    int risen = chain ? raise_watermark(sync, piece, segment, &watermark) : -1;
    if (risen >= 0 && get_number(chain, s_end_offset, &end) == 0 &&
        (!risen || settle(log, watermark) == 0))
        result = PyTuple_Pack(2, risen ? Py_True : Py_False, watermark < end ? Py_True : Py_False);
    Py_XDECREF(chain);
    Py_XDECREF(sync);
    return result;
}

PyObject *tm_py_finish_pieces(PyObject *module, PyObject *args)
{
    PyObject *logs, *taken;
    if (!PyArg_ParseTuple(args, "O!O!:finish_pieces", &PyList_Type, &logs, &PyList_Type, &taken))
        return NULL;
    if (PyList_Size(logs) != PyList_Size(taken)) {
        PyErr_SetString(PyExc_ValueError, "each log has a piece");
        return NULL;
    }
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found && i < PyList_Size(logs); i++) {
        PyObject *one = finish_piece(PyList_GetItem(logs, i), PyList_GetItem(taken, i));
        if (!one || PyList_Append(found, one) < 0) Py_CLEAR(found);
        Py_XDECREF(one);
    }
    return found;
}

/* --- promises ------------------------------------------------------------------------------------ */

/* Write topic id, partition and high watermark of a log to `to`. Return how many bytes that are: none
 * without a topic id; -1 with an error. */
static int put_promise(PyObject *log, uint8_t *to)
{
    int64_t watermark, number;
    int size = -1;
    PyObject *sync = get_attribute(log, s__sync);
    PyObject *chain = sync ? get_attribute(log, s_chain) : NULL;
    PyObject *tp = chain ? get_attribute(chain, s_tp) : NULL;
    PyObject *id = tp ? get_attribute(sync, s__topic_id) : NULL;
    if (id && get_number(sync, s_high_watermark, &watermark) == 0 &&
        get_number(tp, s_partition, &number) == 0) {
        if (!PyBytes_Check(id) || PyBytes_Size(id) != TOPIC_ID_BYTES) {
            size = 0;
        } else {
            memcpy(to, PyBytes_AsString(id), TOPIC_ID_BYTES);
            tm_put_big_endian(to + TOPIC_ID_BYTES, (uint64_t)number, 4);
            tm_put_big_endian(to + TOPIC_ID_BYTES + 4, (uint64_t)watermark, 8);
            size = PROMISE_BYTES;
        }
    }
    Py_XDECREF(id);
    Py_XDECREF(tp);
    Py_XDECREF(chain);
    Py_XDECREF(sync);
    return size;
}

PyObject *tm_py_promised_ends(PyObject *module, PyObject *logs)
{
    if (!PyList_Check(logs)) {
        PyErr_SetString(PyExc_TypeError, "logs must be a list");
        return NULL;
    }
    Py_ssize_t count = PyList_Size(logs), size = 0;
    uint8_t *data = PyMem_Malloc((size_t)count * PROMISE_BYTES + 1);
    if (!data) return PyErr_NoMemory();
    int put = 0;
    for (Py_ssize_t i = 0; put >= 0 && i < count; i++) {
        put = put_promise(PyList_GetItem(logs, i), data + size);
        if (put > 0) size += put;
    }
    PyObject *found = put < 0 ? NULL : PyBytes_FromStringAndSize((const char *)data, size);
    PyMem_Free(data);
    return found;
}

int tm_prepare_round_names(void)
{
    NAMES(TM_INTERN)
    return 0;
}
