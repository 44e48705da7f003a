/* Finds and encodes rows in the messages of PostgreSQL's output plugin pgoutput.
 *
 * scan_pgoutput() says how many messages are complete rows that need nothing else. The other ones,
 * and rows whose values are stored out of line and were not sent, are left to Python.
 *
 * Sources: PostgreSQL's documentation, "Streaming Replication Protocol" (XLogData) and "Logical
 * Replication Message Formats".
 */
#include "changes.h"

enum { LSN_AT = 1, KIND_AT = 25, TABLE_AT = 26, ROW_AT = 30 };

typedef struct {
    const uint8_t *data;
    size_t size;
} Message;

static inline uint32_t u16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }
static inline uint32_t u32(const uint8_t *p) { return u16(p) << 16 | u16(p + 2); }
static inline uint64_t u64(const uint8_t *p) { return (uint64_t)u32(p) << 32 | u32(p + 4); }

/* Take the values of a tuple, at most `count`, into `cells` unless it is NULL. Return whether it is
 * complete: its number of columns is `count`, and all of its values are text or NULL. */
static int take_tuple(const Message *message, size_t *at, Py_ssize_t count, Cell *cells)
{
    const uint8_t *data = message->data;
    size_t left = message->size - *at, i = *at;
    if (left < 2 || u16(data + i) != (uint32_t)count) return 0;
    i += 2;
    for (Py_ssize_t n = 0; n < count; n++) {
        if (i >= message->size) return 0;
        if (data[i] == 'n') {
            if (cells) cells[n] = (Cell){0};
            i++;
            continue;
        }
        if (data[i] != 't' || message->size - i < 5) return 0;
        size_t length = u32(data + i + 1);
        i += 5;
        if (length > message->size - i) return 0;
        if (cells) cells[n] = (Cell){.text = data + i, .size = (Py_ssize_t)length};
        i += length;
    }
    *at = i;
    return 1;
}

/* Take a row message. `before` has cells only if *old is K or O, `after` unless it is a delete. */
static int take_row(const Message *message, Py_ssize_t count, Cell *before, Cell *after, char *old)
{
    const uint8_t *data = message->data;
    size_t at = ROW_AT;
    *old = 0;
    if (at >= message->size) return 0;
    if (data[at] == 'K' || data[at] == 'O') {
        *old = (char)data[at++];
        if (data[KIND_AT] == 'I' || !take_tuple(message, &at, count, before)) return 0;
    }
    if (data[KIND_AT] == 'D') return *old != 0;
    if (at >= message->size || data[at++] != 'N') return 0;
    return take_tuple(message, &at, count, after);
}

static int is_row(const Message *message)
{
    if (message->size <= ROW_AT) return 0;
    uint8_t kind = message->data[KIND_AT];
    return kind == 'I' || kind == 'U' || kind == 'D';
}

static int message_at(PyObject *list, Py_ssize_t place, Message *to)
{
    char *data;
    Py_ssize_t size;
    PyObject *item = PyList_GetItem(list, place);
    if (item == NULL || PyBytes_AsStringAndSize(item, &data, &size) < 0) return -1;
    *to = (Message){(const uint8_t *)data, (size_t)size};
    return 0;
}

/* The last table that was looked up. */
typedef struct {
    uint32_t oid;
    PyObject *found;
} Lookup;

static PyObject *look_up(Lookup *last, PyObject *tables, uint32_t oid)
{
    if (last->found != NULL && last->oid == oid) return last->found;
    PyObject *number = PyLong_FromUnsignedLong(oid);
    if (number == NULL) return NULL;
    last->oid = oid;
    last->found = PyDict_GetItemWithError(tables, number);
    Py_DECREF(number);
    return last->found;
}

/* scan_pgoutput(number of columns by table, messages, begin)
 *   -> (end, LSN of the last row, how many of the last rows have it, bytes of the messages) */
PyObject *tm_py_scan_pgoutput(PyObject *module, PyObject *args)
{
    PyObject *tables, *messages;
    Py_ssize_t begin, bytes = 0, same = 0;
    if (!PyArg_ParseTuple(args, "OOn", &tables, &messages, &begin)) return NULL;
    if (!PyDict_Check(tables) || !PyList_Check(messages) || begin < 0) {
        PyErr_SetString(PyExc_TypeError, "a dict, a list and a place are expected");
        return NULL;
    }
    Py_ssize_t end = begin, count = 0, size = PyList_Size(messages);
    unsigned long long lsn = 0;
    Lookup last = {0};
    for (; end < size; end++) {
        Message message;
        char old;
        if (message_at(messages, end, &message) < 0) return NULL;
        if (!is_row(&message)) break;
        PyObject *before = last.found;
        PyObject *found = look_up(&last, tables, u32(message.data + TABLE_AT));
        if (found == NULL) {
            if (PyErr_Occurred()) return NULL;
            break;
        }
        if (found != before) count = PyLong_AsSsize_t(found);
        if (count == -1 && PyErr_Occurred()) return NULL;
        if (!take_row(&message, count, NULL, NULL, &old)) break;
        uint64_t here = u64(message.data + LSN_AT);
        same = here == lsn && end > begin ? same + 1 : 1;
        lsn = here;
        bytes += (Py_ssize_t)message.size;
    }
    return Py_BuildValue("(nKnn)", end, lsn, same, bytes);
}

static int encode_row(PyObject *encoders, Lookup *last, const Message *message,
                      const char *tail, Py_ssize_t tail_size, const Moment *moment)
{
    char old;
    PyObject *found = is_row(message) ? look_up(last, encoders, u32(message->data + TABLE_AT)) : NULL;
    if (found == NULL) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_KeyError, "the table has no encoder");
        return -1;
    }
    ChangeEncoder *e = tm_change_encoder(found);
    if (e == NULL) return -1;
    if (!take_row(message, e->count, e->before, e->after, &old)) {
        PyErr_SetString(PyExc_ValueError, "invalid row of pgoutput");
        return -1;
    }
    unsigned long long lsn = u64(message->data + LSN_AT);
    if (tm_put_more(e, ",\"lsn\":", lsn, tail, (size_t)tail_size) < 0) return -1;
    uint8_t kind = message->data[KIND_AT];
    char op = kind == 'I' ? 'c' : kind == 'U' ? 'u' : 'd';
    return tm_put_change(e, op, old ? e->before : NULL, old == 'K', op == 'd' ? NULL : e->after,
                         moment);
}

/* encode_pgoutput(encoders by table, messages, begin, end, time of the commit, end of the block
 * source, time of processing) */
PyObject *tm_py_encode_pgoutput(PyObject *module, PyObject *args)
{
    PyObject *encoders, *messages, *tail;
    Py_ssize_t begin, end, size;
    char *bytes;
    Moment moment = {.snapshot = "false"};
    if (!PyArg_ParseTuple(args, "OOnnLSL", &encoders, &messages, &begin, &end, &moment.ts_ms, &tail,
                          &moment.stamp_ms))
        return NULL;
    if (PyBytes_AsStringAndSize(tail, &bytes, &size) < 0) return NULL;
    if (!PyDict_Check(encoders) || !PyList_Check(messages) || begin < 0) {
        PyErr_SetString(PyExc_TypeError, "a dict, a list and two places are expected");
        return NULL;
    }
    Lookup last = {0};
    long long records = 0;
    for (Py_ssize_t i = begin; i < end; i++) {
        Message message;
        if (message_at(messages, i, &message) < 0) return NULL;
        int count = encode_row(encoders, &last, &message, bytes, size, &moment);
        if (count < 0) return NULL;
        records += count;
    }
    return PyLong_FromLongLong(records);
}
