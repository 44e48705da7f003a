/* Decodes ordinary Produce requests, and checks ordinary batches, each in one call.
 *
 * Python's editions are tidemill.protocols.kafka.codec.hot and tidemill.log.format.validate. Both
 * functions return None for whatever they don't take: Python then looks at it, and has the words for
 * what is wrong. Sources: ProduceRequest.json of Apache Kafka 4.3; KIP-98 (the format of a batch).
 */
#include "native.h"

#define MOST_PARTITIONS 64
#define HEADER_SIZE 61
#define CRC_START 21
#define TRANSACTIONAL 0x10
#define SMALLEST_RECORD 7
#define MOST_RECORDS 8192
#define LARGEST_DELTA ((uint64_t)1 << 48)

static uint64_t big_endian(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value = value << 8 | at[i];
    return value;
}
static int64_t read_i64(const uint8_t *at) { return (int64_t)big_endian(at, 8); }
static int32_t read_i32(const uint8_t *at) { return (int32_t)big_endian(at, 4); }
static int16_t read_i16(const uint8_t *at) { return (int16_t)big_endian(at, 2); }

/* --- the request ------------------------------------------------------------------------------ */

typedef struct {
    const uint8_t *data;
    size_t size, at;
    int compact, ok;
} Reader;

/* Return the start of the next bytes, and go behind them; NULL if they are not there. */
static const uint8_t *take(Reader *from, size_t count)
{
    if (!from->ok || count > from->size - from->at) {
        from->ok = 0;
        return NULL;
    }
    const uint8_t *start = from->data + from->at;
    from->at += count;
    return start;
}

/* Read the length of a string, of an array or of records; -1 is null. `bytes` is for old versions. */
static int64_t read_length(Reader *from, int bytes)
{
    if (!from->compact) {
        const uint8_t *at = take(from, (size_t)bytes);
        if (!at) return -1;
        int64_t length = bytes == 2 ? read_i16(at) : read_i32(at);
        if (length < -1) from->ok = 0;
        return length;
    }
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 35; shift += 7) {
        const uint8_t *at = take(from, 1);
        if (!at) return -1;
        value |= (uint64_t)(*at & 0x7F) << shift;
        if (*at < 128) {
            if (value > (uint64_t)INT32_MAX) break;
            return (int64_t)value - 1;
        }
    }
    from->ok = 0;
    return -1;
}

/* Skip the tagged fields of a compact version, of which there must be none. */
static void skip_no_tags(Reader *from)
{
    if (!from->compact) return;
    const uint8_t *at = take(from, 1);
    if (at && *at) from->ok = 0;
}

/* Return a string, None for null, or NULL with an error or with `ok` unset. */
static PyObject *read_text(Reader *from)
{
    int64_t length = read_length(from, 2);
    if (from->ok && length < 0) Py_RETURN_NONE;
    const uint8_t *at = from->ok ? take(from, (size_t)length) : NULL;
    if (!at) return NULL;
    PyObject *text = PyUnicode_DecodeUTF8((const char *)at, (Py_ssize_t)length, NULL);
    if (!text && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        PyErr_Clear();
        from->ok = 0;
    }
    return text;
}

/* Return the length of an array, which can't be longer than the bytes that are left. */
static int64_t read_count(Reader *from)
{
    int64_t count = read_length(from, 4);
    if (count < 0 || (uint64_t)count > from->size - from->at) from->ok = 0;
    return from->ok ? count : 0;
}

/* Append the partitions of one topic as (index, start, end); -1 is no records. */
static PyObject *read_partitions(Reader *from, int *room)
{
    int64_t count = read_count(from);
    if (count > *room) from->ok = 0;
    PyObject *list = from->ok ? PyList_New(0) : NULL;
    if (!list) return NULL;
    *room -= (int)count;
    for (; count > 0; count--) {
        const uint8_t *index = take(from, 4);
        int64_t length = index ? read_length(from, 4) : -1;
        Py_ssize_t start = (Py_ssize_t)from->at;
        if (!from->ok || (length > 0 && !take(from, (size_t)length))) break;
        Py_ssize_t end = length < 0 ? -1 : (Py_ssize_t)from->at;
        skip_no_tags(from);
        if (!from->ok) break;
        PyObject *item = Py_BuildValue("inn", (int)read_i32(index), length < 0 ? -1 : start, end);
        if (!item || PyList_Append(list, item) < 0) {
            Py_XDECREF(item);
            break;
        }
        Py_DECREF(item);
    }
    if (count == 0) return list;
    Py_DECREF(list);
    return NULL;
}

/* Return one topic as (name, id, partitions). */
static PyObject *read_topic(Reader *from, int by_id, int *room)
{
    PyObject *name, *id = NULL, *partitions = NULL, *topic = NULL;
    if (by_id) {
        const uint8_t *at = take(from, 16);
        if (!at) return NULL;
        id = PyBytes_FromStringAndSize((const char *)at, 16);
        name = id ? PyUnicode_FromString("") : NULL;
    } else {
        id = Py_NewRef(Py_None);
        name = read_text(from);
        if (name == Py_None) from->ok = 0;
    }
    if (name && from->ok) partitions = read_partitions(from, room);
    if (partitions) skip_no_tags(from);
    if (partitions && from->ok) topic = PyTuple_Pack(3, name, id, partitions);
    Py_XDECREF(name);
    Py_XDECREF(id);
    Py_XDECREF(partitions);
    return topic;
}

static PyObject *read_topics(Reader *from, int by_id)
{
    int room = MOST_PARTITIONS;
    int64_t count = read_count(from);
    if (count > room) from->ok = 0;
    PyObject *list = from->ok ? PyList_New(0) : NULL;
    if (!list) return NULL;
    for (; count > 0; count--) {
        PyObject *topic = read_topic(from, by_id, &room);
        if (!topic || PyList_Append(list, topic) < 0) {
            Py_XDECREF(topic);
            break;
        }
        Py_DECREF(topic);
    }
    if (count == 0) return list;
    Py_DECREF(list);
    return NULL;
}

PyObject *tm_py_decode_produce(PyObject *module, PyObject *args)
{
    Py_buffer frame;
    Py_ssize_t position;
    int version;
    if (!PyArg_ParseTuple(args, "y*ni:decode_produce", &frame, &position, &version)) return NULL;
    if (position < 0 || position > frame.len) {
        PyBuffer_Release(&frame);
        PyErr_SetString(PyExc_ValueError, "position out of range");
        return NULL;
    }
    Reader from = {frame.buf, (size_t)frame.len, (size_t)position, version >= 9, version >= 3};
    PyObject *topics = NULL, *result = NULL;
    PyObject *id = from.ok ? read_text(&from) : NULL;
    const uint8_t *fixed = id ? take(&from, 6) : NULL;
    if (fixed) topics = read_topics(&from, version >= 13);
    if (topics) skip_no_tags(&from);
    if (topics && from.ok && from.at == from.size)
        result = Py_BuildValue("OiiO", id, (int)read_i16(fixed), (int)read_i32(fixed + 2), topics);
    Py_XDECREF(id);
    Py_XDECREF(topics);
    PyBuffer_Release(&frame);
    if (!result && !PyErr_Occurred()) Py_RETURN_NONE;
    return result;
}

/* --- the batch -------------------------------------------------------------------------------- */

/* Return whether the header, without the CRC, is that of an ordinary batch of a client. */
static int is_ordinary(const uint8_t *data, size_t size)
{
    if (size < HEADER_SIZE || size > INT32_MAX) return 0;
    int32_t delta = read_i32(data + 23), count = read_i32(data + 57);
    if (read_i64(data) != 0 || read_i32(data + 8) != (int32_t)size - 12 || data[16] != 2) return 0;
    if (data[21] != 0 || (data[22] & ~TRANSACTIONAL)) return 0;
    if (read_i64(data + 43) >= 0) {
        if (read_i16(data + 51) < 0 || read_i32(data + 53) < 0) return 0;
    } else if (data[22]) {
        return 0;
    }
    return count > 0 && count <= MOST_RECORDS && delta == count - 1 &&
           (size_t)count * SMALLEST_RECORD <= size - HEADER_SIZE;
}

static PyObject *checked(const uint8_t *data, size_t size, long long crc)
{
    if (!is_ordinary(data, size)) Py_RETURN_NONE;
    uint32_t stored = (uint32_t)big_endian(data + 17, 4);
    if (crc < 0) crc = tm_crc32c(data + CRC_START, size - CRC_START);
    if ((uint32_t)crc != stored) Py_RETURN_NONE;
    int32_t count = read_i32(data + 57);
    tm_walked walked = tm_walk(data + HEADER_SIZE, size - HEADER_SIZE, 0, 0, count);
    if (walked.index != count || walked.end != size - HEADER_SIZE) Py_RETURN_NONE;
    if (walked.ahead > LARGEST_DELTA || walked.most > LARGEST_DELTA) Py_RETURN_NONE;
    long long earliest = -(long long)((walked.most + 1) >> 1);
    long long latest = walked.is_ahead ? (long long)(walked.ahead >> 1)
                                       : -(long long)((walked.least + 1) >> 1);
    return Py_BuildValue(
        "(LiiiIiiLLLiii)LLn", (long long)0, (int)read_i32(data + 8), (int)read_i32(data + 12), 2,
        (unsigned int)stored, (int)read_i16(data + 21), (int)read_i32(data + 23),
        (long long)read_i64(data + 27), (long long)read_i64(data + 35),
        (long long)read_i64(data + 43), (int)read_i16(data + 51), (int)read_i32(data + 53),
        (int)count, earliest, latest, walked.without_key);
}

PyObject *tm_py_check_batch(PyObject *module, PyObject *args)
{
    PyObject *records;
    long long crc;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "OL:check_batch", &records, &crc)) return NULL;
    if (PyObject_GetBuffer(records, &view, PyBUF_WRITABLE) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_BufferError)) return NULL;
        PyErr_Clear(); /* Python stamps a copy */
        Py_RETURN_NONE;
    }
    PyObject *result = checked(view.buf, (size_t)view.len, crc);
    PyBuffer_Release(&view);
    return result;
}
