/* Decodes Produce requests, and checks ordinary batches: of a run of requests in one call.
 *
 * A run leaves out whatever is not ordinary. tidemill.log.format.validate then looks at it, and has the
 * words for what is wrong. Sources: ProduceRequest.json of Apache Kafka 4.3, and of 3.9 for the versions
 * 0 to 2, in which requests are refused; KIP-98 (the format of a batch); KIP-482 (tagged fields).
 */
#include "native.h"

#include <stdarg.h>

#define MOST_ELEMENTS 5000 /* topics, partitions and tagged fields of a request */
#define HEADER_SIZE 61
#define CRC_START 21
#define TRANSACTIONAL 0x10
#define SMALLEST_RECORD 7
#define MOST_RECORDS 8192
#define LARGEST_DELTA ((int64_t)1 << 47)
#define LARGEST_TIME ((int64_t)1 << 60)
#define FIRST_VERSION 5 /* whose responses have the start of the log */
#define LAST_VERSION 13
#define RUN_BYTES (224 << 10) /* they are checked and appended in a fraction of a millisecond */
#define RUN_BATCHES 128       /* they are appended in about a millisecond */
#define FIRST_BYTES (1 << 20) /* of the first request of a run, which can be larger */

/* --- the batch -------------------------------------------------------------------------------- */

/* Return whether the header, without the CRC, is that of an ordinary batch of a client. */
static int is_ordinary(const uint8_t *data, size_t size)
{
    if (size < HEADER_SIZE || size > INT32_MAX) return 0;
    int32_t delta = tm_i32(data + 23), count = tm_i32(data + 57);
    if (tm_i64(data) != 0 || tm_i32(data + 8) != (int32_t)size - 12 || data[16] != 2) return 0;
    if (data[21] != 0 || (data[22] & ~TRANSACTIONAL)) return 0;
    if (tm_i64(data + 43) >= 0) {
        if (tm_i16(data + 51) < 0 || tm_i32(data + 53) < 0) return 0;
    } else if (data[22]) {
        return 0;
    }
    return count > 0 && count <= MOST_RECORDS && delta == count - 1 &&
           (size_t)count * SMALLEST_RECORD <= size - HEADER_SIZE;
}

typedef struct {
    uint32_t crc;
    int32_t records;
    int64_t earliest, latest; /* to the base timestamp */
    Py_ssize_t without_key;
} Found;

/* Return whether a batch is ordinary, with what its records have; a negative CRC is not known. */
static int look_at(const uint8_t *data, size_t size, long long crc, Found *found)
{
    if (!is_ordinary(data, size)) return 0;
    found->crc = (uint32_t)tm_big_endian(data + 17, 4);
    if (crc < 0) crc = tm_crc32c(data + CRC_START, size - CRC_START);
    if ((uint32_t)crc != found->crc) return 0;
    int32_t count = found->records = tm_i32(data + 57);
    tm_walked walked = tm_walk(data + HEADER_SIZE, size - HEADER_SIZE, 0, 0, count);
    if (walked.index != count || walked.end != size - HEADER_SIZE) return 0;
    if (walked.latest > LARGEST_DELTA || walked.earliest < -LARGEST_DELTA) return 0;
    found->earliest = walked.earliest;
    found->latest = walked.latest;
    found->without_key = walked.without_key;
    return 1;
}

/* A batch that can be appended together with others: of no transaction, with ordinary times. */
typedef struct {
    Found found;
    int64_t earliest, latest, producer;
} Facts;

static int read_facts(const uint8_t *batch, size_t size, Facts *to)
{
    if (!look_at(batch, size, -1, &to->found) || tm_i16(batch + 21)) return 0;
    int64_t base = tm_i64(batch + 27);
    if (base < 0 || base > LARGEST_TIME) return 0;
    to->earliest = base + to->found.earliest;
    to->latest = base + to->found.latest;
    to->producer = tm_i64(batch + 43);
    return to->latest == tm_i64(batch + 35) && to->earliest >= 0;
}

static PyObject *facts_tuple(const Facts *from)
{
    return Py_BuildValue("iLLnL", (int)from->found.records, (long long)from->latest,
                         (long long)from->earliest, from->found.without_key,
                         (long long)from->producer);
}

/* --- a request ---------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *data;
    size_t size, at;
    int compact, ok;
    int elements;   /* how many more there can be */
    int batches;    /* how many more there can be; their facts are found. -1: they are not looked at */
    int records;    /* how many more those can have */
    char why[120];  /* why the request is refused */
} Reader;

/* Refuse the request, unless it is refused already. */
static void refuse(Reader *from, const char *format, ...)
{
    va_list given;
    if (!from->ok) return;
    from->ok = 0;
    va_start(given, format);
    PyOS_vsnprintf(from->why, sizeof from->why, format, given);
    va_end(given);
}

/* Return the start of the next bytes, and go behind them; NULL if they are not there. */
static const uint8_t *take(Reader *from, size_t count)
{
    if (from->ok && count > from->size - from->at)
        refuse(from, "the request ends in the middle of a field");
    if (!from->ok) return NULL;
    const uint8_t *start = from->data + from->at;
    from->at += count;
    return start;
}

/* Read a number of variable length (KIP-482), of 32 bits at most. */
static uint32_t read_varint(Reader *from)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 35; shift += 7) {
        const uint8_t *at = take(from, 1);
        if (!at) return 0;
        value |= (uint64_t)(*at & 0x7F) << shift;
        if (*at < 128 && value <= UINT32_MAX) return (uint32_t)value;
    }
    refuse(from, "a number of variable length does not fit into 32 bits");
    return 0;
}

/* Read the length of a string, of an array or of records; -1 is null. `bytes` is for old versions. */
static int64_t read_length(Reader *from, int bytes)
{
    if (from->compact) return (int64_t)read_varint(from) - 1;
    const uint8_t *at = take(from, (size_t)bytes);
    if (!at) return -1;
    int64_t length = bytes == 2 ? tm_i16(at) : tm_i32(at);
    if (length < -1) refuse(from, "invalid length %d", (int)length);
    return length;
}

/* Count elements of an array or tagged fields. Each takes at least one byte. */
static void count_elements(Reader *from, int64_t count)
{
    if (count < 0 || (uint64_t)count > from->size - from->at)
        refuse(from, "length %lld of an array, but %llu bytes are left", (long long)count,
               (unsigned long long)(from->size - from->at));
    else if (count > from->elements)
        refuse(from, "more than %d array elements in one message", MOST_ELEMENTS);
    else from->elements -= (int)count;
}

static int64_t read_count(Reader *from)
{
    int64_t count = read_length(from, 4);
    if (from->ok) count_elements(from, count);
    return from->ok ? count : 0;
}

/* Skip the tagged fields of a compact version. */
static void skip_tags(Reader *from)
{
    if (!from->compact) return;
    uint32_t count = read_varint(from);
    if (from->ok && count) count_elements(from, count);
    for (; from->ok && count; count--) {
        read_varint(from);
        take(from, read_varint(from));
    }
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
        refuse(from, "a name is not UTF-8");
    }
    return text;
}

/* Return the facts of a batch; NULL with an error, or with `ok` unset if there are none. */
static PyObject *read_batch(Reader *from, const uint8_t *batch, int64_t length)
{
    Facts facts;
    if (length <= 0 || from->batches <= 0 || !read_facts(batch, (size_t)length, &facts) ||
        facts.found.records > from->records) {
        refuse(from, "not an ordinary batch");
        return NULL;
    }
    from->batches--;
    from->records -= facts.found.records;
    return facts_tuple(&facts);
}

/* Return one partition as (index, start, end), -1 for no records; or with the facts of its batch. */
static PyObject *read_partition(Reader *from)
{
    const uint8_t *index = take(from, 4);
    int64_t length = index ? read_length(from, 4) : -1;
    Py_ssize_t start = length < 0 ? -1 : (Py_ssize_t)from->at;
    const uint8_t *batch = from->ok && length > 0 ? take(from, (size_t)length) : NULL;
    Py_ssize_t end = length < 0 ? -1 : (Py_ssize_t)from->at;
    skip_tags(from);
    if (!from->ok) return NULL;
    int number = (int)tm_i32(index);
    if (from->batches < 0) return Py_BuildValue("inn", number, start, end);
    PyObject *facts = read_batch(from, batch, length);
    return facts ? Py_BuildValue("innN", number, start, end, facts) : NULL;
}

/* Return a list of what a function reads, or NULL with an error or with `ok` unset. */
static PyObject *read_list(Reader *from, int by_id, PyObject *(*read)(Reader *from, int by_id))
{
    int64_t count = read_count(from);
    PyObject *list = from->ok ? PyList_New(0) : NULL;
    for (; list && count > 0; count--) {
        PyObject *item = read(from, by_id);
        if (!item || PyList_Append(list, item) < 0) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *read_one_partition(Reader *from, int Py_UNUSED(by_id)) { return read_partition(from); }

/* Return one topic as (name, id, partitions). */
static PyObject *read_topic(Reader *from, int by_id)
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
        if (name == Py_None) refuse(from, "the name of a topic must not be null");
    }
    if (name && from->ok) partitions = read_list(from, by_id, read_one_partition);
    if (partitions) skip_tags(from);
    if (partitions && from->ok) topic = PyTuple_Pack(3, name, id, partitions);
    Py_XDECREF(name);
    Py_XDECREF(id);
    Py_XDECREF(partitions);
    return topic;
}

/* Return the topics, behind which the request ends; NULL with an error or with `ok` unset. */
static PyObject *read_topics(Reader *from, int version)
{
    PyObject *topics = read_list(from, version >= 13, read_topic);
    if (topics) skip_tags(from);
    if (topics && from->ok && from->at != from->size)
        refuse(from, "%llu bytes follow the request's body",
               (unsigned long long)(from->size - from->at));
    if (topics && !from->ok) Py_CLEAR(topics);
    return topics;
}

PyObject *tm_py_read_produce(PyObject *module, PyObject *args)
{
    Py_buffer frame;
    Py_ssize_t position;
    int version;
    if (!PyArg_ParseTuple(args, "y*ni:read_produce", &frame, &position, &version)) return NULL;
    Reader from = {frame.buf, (size_t)frame.len, (size_t)position, version >= 9, 1, MOST_ELEMENTS, -1};
    if (position < 0 || position > frame.len) refuse(&from, "position out of range");
    PyObject *topics = NULL, *result = NULL;
    PyObject *id = version >= 3 && from.ok ? read_text(&from) : Py_NewRef(Py_None);
    const uint8_t *fixed = id ? take(&from, 6) : NULL;
    if (fixed) topics = read_topics(&from, version);
    if (topics)
        result = Py_BuildValue("OiiO", id, (int)tm_i16(fixed), (int)tm_i32(fixed + 2), topics);
    Py_XDECREF(id);
    Py_XDECREF(topics);
    PyBuffer_Release(&frame);
    if (!result && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, from.why);
    return result;
}

/* --- the check of a batch ------------------------------------------------------------------ */

static PyObject *checked(const uint8_t *data, size_t size, long long crc)
{
    Found found;
    if (!look_at(data, size, crc, &found)) Py_RETURN_NONE;
    return Py_BuildValue(
        "(LiiiIiiLLLiii)LLn", (long long)0, (int)tm_i32(data + 8), (int)tm_i32(data + 12), 2,
        (unsigned int)found.crc, (int)tm_i16(data + 21), (int)tm_i32(data + 23),
        (long long)tm_i64(data + 27), (long long)tm_i64(data + 35),
        (long long)tm_i64(data + 43), (int)tm_i16(data + 51), (int)tm_i32(data + 53),
        (int)found.records, (long long)found.earliest, (long long)found.latest, found.without_key);
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

/* --- a run of requests ------------------------------------------------------------------------ */

/* What the requests of a run have in common, and what more there can be. */
typedef struct {
    int version, acks, count;
    int batches, records;
    size_t bytes;
} Run;

/* Go behind the client's name. One that is not ASCII is left to the decoder of headers. */
static void skip_client(Reader *from)
{
    int64_t length = read_length(from, 2); /* of an old version in all headers */
    const uint8_t *at = length > 0 ? take(from, (size_t)length) : NULL;
    for (int64_t i = 0; at && i < length; i++)
        if (at[i] & 0x80) refuse(from, "not for a run");
}

/* Read the header, and what comes before the topics. */
static void read_head(Reader *from, int *version, int *acks, int32_t *correlation)
{
    const uint8_t *at = take(from, 8);
    if (!at) return;
    *version = tm_i16(at + 2);
    *correlation = tm_i32(at + 4);
    if (tm_i16(at) != 0 || *version < FIRST_VERSION || *version > LAST_VERSION) {
        refuse(from, "not for a run");
        return;
    }
    skip_client(from);
    from->compact = *version >= 9;
    skip_tags(from);
    if (read_length(from, 2) >= 0) refuse(from, "not for a run"); /* the transactional id */
    at = take(from, 6);
    if (at) *acks = tm_i16(at);
    if (at && *acks != 1 && *acks != -1) refuse(from, "not for a run");
}

/* Return (correlation id, topics); NULL with an error, or without if the request is not for the run. */
static PyObject *read_request(Run *on, const uint8_t *data, size_t size)
{
    if (size > on->bytes) return NULL;
    Reader from = {data, size, 0, 0, 1, MOST_ELEMENTS, on->batches, on->records};
    int version = 0, acks = 0;
    int32_t correlation = 0;
    read_head(&from, &version, &acks, &correlation);
    if (!from.ok || (on->count && (version != on->version || acks != on->acks))) return NULL;
    PyObject *topics = read_topics(&from, version);
    if (topics && from.batches == on->batches) Py_CLEAR(topics); /* there are none */
    if (!topics) return NULL;
    size_t left = on->count ? on->bytes : RUN_BYTES;
    *on = (Run){version, acks, on->count + 1, from.batches, from.records, left > size ? left - size : 0};
    return Py_BuildValue("iN", (int)correlation, topics);
}

PyObject *tm_py_read_run(PyObject *module, PyObject *frames)
{
    Py_ssize_t count = PyList_Size(frames);
    PyObject *list = count < 0 ? NULL : PyList_New(0);
    Run on = {0, 0, 0, RUN_BATCHES, MOST_RECORDS, FIRST_BYTES};
    for (Py_ssize_t i = 0; list && i < count; i++) {
        Py_buffer view;
        if (PyObject_GetBuffer(PyList_GetItem(frames, i), &view, PyBUF_WRITABLE) < 0) {
            Py_CLEAR(list);
            break;
        }
        PyObject *request = read_request(&on, view.buf, (size_t)view.len);
        PyBuffer_Release(&view);
        if (request ? PyList_Append(list, request) < 0 : PyErr_Occurred() != NULL) Py_CLEAR(list);
        Py_XDECREF(request);
        if (!request) break;
    }
    return list ? Py_BuildValue("iiN", on.version, on.acks, list) : NULL;
}
