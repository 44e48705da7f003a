/* Takes what a round of the journal writes from many logs, encodes it, and finishes the round, each in
 * one call.
 *
 * It works on the heads of partitions. tidemill.log.rounds says what the results mean,
 * tidemill.log.journal.entry and tidemill.log.journal.extent have the formats.
 */
#include "head.h"


#define PIECE_FIELDS 8
#define PIECE_BYTES 56
#define TOPIC_ID_BYTES 16
#define PROMISE_BYTES 28

enum { TOPIC_ID, PARTITION, SEGMENT_BASE, POSITION, FIRST_OFFSET, END_OFFSET, SIZE, BUFFERS };

/* --- taking -------------------------------------------------------------------------------------- */

/* Return (piece, segment), or None if the journal can't take what is unsynced. */
static PyObject *take_piece(tm_head *head, PyTypeObject *type, int64_t *size)
{
    if (!tm_fits_journal(head)) Py_RETURN_NONE;
    const tm_segment *segment = (tm_segment *)head->segment;
    PyObject *piece = tm_new_tuple(
        type, Py_BuildValue("((OLLLLLLO))", head->topic_id, (long long)head->partition,
                            (long long)segment->base_offset,
                            (long long)(segment->size - head->copied), (long long)head->copied_from,
                            (long long)head->end_offset, (long long)head->copied, head->copies));
    PyObject *taken = piece ? PyTuple_Pack(2, piece, head->segment) : NULL;
    Py_XDECREF(piece);
    int64_t copied = head->copied;
    if (!taken || tm_drop_copies(head, head->end_offset) < 0) {
        Py_XDECREF(taken);
        return NULL;
    }
    head->copied_limit = TM_LOG_BYTES;
    *size += copied;
    return taken;
}

PyObject *tm_py_take_pieces(PyObject *module, PyObject *args)
{
    PyObject *heads, *type;
    long long most;
    if (!PyArg_ParseTuple(args, "O!LO!:take_pieces", &PyList_Type, &heads, &most, &PyType_Type, &type))
        return NULL;
    PyObject *found = PyList_New(0);
    int64_t size = 0;
    for (Py_ssize_t i = 0; found && size < most && i < PyList_Size(heads); i++) {
        tm_head *head = tm_as_head(PyList_GetItem(heads, i));
        PyObject *taken = head ? take_piece(head, (PyTypeObject *)type, &size) : NULL;
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
static int raise_watermark(tm_head *head, PyObject *piece, PyObject *segment)
{
    uint64_t end, position, size;
    if (read_field(piece, END_OFFSET, INT64_MAX, &end) < 0 ||
        read_field(piece, POSITION, INT64_MAX, &position) < 0 ||
        read_field(piece, SIZE, UINT32_MAX, &size) < 0)
        return -1;
    if ((int64_t)end <= head->high_watermark) return 0;
    head->high_watermark = (int64_t)end;
    tm_replace(&head->end_segment, Py_NewRef(segment));
    head->end_position = (int64_t)(position + size);
    return 1;
}

/* Release transactions whose markers are synced; see UnstableTransactions.settle. */
static int settle(const tm_head *head)
{
    if (tm_is_none(head->ended) || tm_is_none(head->settle)) return 0;
    Py_ssize_t ended = PyObject_Size(head->ended);
    if (ended <= 0) return (int)ended;
    PyObject *watermark = PyLong_FromLongLong(head->high_watermark);
    PyObject *none = watermark ? PyObject_CallFunctionObjArgs(head->settle, watermark, NULL) : NULL;
    Py_XDECREF(watermark);
    Py_XDECREF(none);
    return none ? 0 : -1;
}

/* Return (whether the high watermark rose, whether the log has more behind it). */
static PyObject *finish_piece(tm_head *head, PyObject *taken)
{
    PyObject *piece = PyTuple_GetItem(taken, 0), *segment = PyTuple_GetItem(taken, 1);
    int risen = piece && segment ? raise_watermark(head, piece, segment) : -1;
    if (risen < 0 || (risen && settle(head) < 0)) return NULL;
    int more = head->high_watermark < head->end_offset;
    return PyTuple_Pack(2, risen ? Py_True : Py_False, more ? Py_True : Py_False);
}

PyObject *tm_py_finish_pieces(PyObject *module, PyObject *args)
{
    PyObject *heads, *taken;
    if (!PyArg_ParseTuple(args, "O!O!:finish_pieces", &PyList_Type, &heads, &PyList_Type, &taken))
        return NULL;
    if (PyList_Size(heads) != PyList_Size(taken)) {
        PyErr_SetString(PyExc_ValueError, "each log has a piece");
        return NULL;
    }
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found && i < PyList_Size(heads); i++) {
        tm_head *head = tm_as_head(PyList_GetItem(heads, i));
        PyObject *one = head ? finish_piece(head, PyList_GetItem(taken, i)) : NULL;
        if (!one || PyList_Append(found, one) < 0) Py_CLEAR(found);
        Py_XDECREF(one);
    }
    return found;
}

/* --- promises ------------------------------------------------------------------------------------ */

/* Write topic id, partition and high watermark to `to`. Return how many bytes that are: none without a
 * topic id. */
static int put_promise(const tm_head *head, uint8_t *to)
{
    PyObject *id = head->topic_id;
    if (!id || !PyBytes_Check(id) || PyBytes_Size(id) != TOPIC_ID_BYTES) return 0;
    memcpy(to, PyBytes_AsString(id), TOPIC_ID_BYTES);
    tm_put_big_endian(to + TOPIC_ID_BYTES, (uint64_t)head->partition, 4);
    tm_put_big_endian(to + TOPIC_ID_BYTES + 4, (uint64_t)head->high_watermark, 8);
    return PROMISE_BYTES;
}

PyObject *tm_py_promised_ends(PyObject *module, PyObject *heads)
{
    if (!PyList_Check(heads)) {
        PyErr_SetString(PyExc_TypeError, "heads must be a list");
        return NULL;
    }
    Py_ssize_t count = PyList_Size(heads), size = 0;
    uint8_t *data = PyMem_Malloc((size_t)count * PROMISE_BYTES + 1);
    if (!data) return PyErr_NoMemory();
    Py_ssize_t at = 0;
    for (; at < count; at++) {
        tm_head *head = tm_as_head(PyList_GetItem(heads, at));
        if (!head) break;
        size += put_promise(head, data + size);
    }
    PyObject *found = at < count ? NULL : PyBytes_FromStringAndSize((const char *)data, size);
    PyMem_Free(data);
    return found;
}
