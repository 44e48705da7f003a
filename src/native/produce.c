/* Decodes ordinary Produce requests, and checks ordinary batches, each in one call; or does both: for
 * a run of requests to one partition each, or for one request.
 *
 * The functions leave out whatever they don't take. tidemill.kafka_codec.hot and
 * tidemill.log.format.validate then look at it, and have the words for what is wrong. Sources: ProduceRequest.json of Apache Kafka 4.3; KIP-98 (the format of a batch).
 */
#include "native.h"

#include <string.h>

#define MOST_PARTITIONS 64
#define HEADER_SIZE 61
#define CRC_START 21
#define TRANSACTIONAL 0x10
#define SMALLEST_RECORD 7
#define MOST_RECORDS 8192
#define LARGEST_DELTA ((uint64_t)1 << 48)
#define LARGEST_TIME ((int64_t)1 << 60)
#define FIRST_VERSION 5 /* whose responses have the start of the log */
#define LAST_VERSION 13
#define RUN_BYTES (224 << 10) /* they are checked and appended in a fraction of a millisecond */
#define WHOLE_PARTITIONS 128 /* of one request, which are appended in about a millisecond */
#define WHOLE_BYTES (1 << 20)

static int64_t read_i64(const uint8_t *at) { return (int64_t)tm_big_endian(at, 8); }
static int32_t read_i32(const uint8_t *at) { return (int32_t)tm_big_endian(at, 4); }
static int16_t read_i16(const uint8_t *at) { return (int16_t)tm_big_endian(at, 2); }

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
    int32_t count = found->records = read_i32(data + 57);
    tm_walked walked = tm_walk(data + HEADER_SIZE, size - HEADER_SIZE, 0, 0, count);
    if (walked.index != count || walked.end != size - HEADER_SIZE) return 0;
    if (walked.ahead > LARGEST_DELTA || walked.most > LARGEST_DELTA) return 0;
    found->earliest = -(int64_t)((walked.most + 1) >> 1);
    found->latest = walked.is_ahead ? (int64_t)(walked.ahead >> 1)
                                    : -(int64_t)((walked.least + 1) >> 1);
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
    if (!look_at(batch, size, -1, &to->found) || read_i16(batch + 21)) return 0;
    int64_t base = read_i64(batch + 27);
    if (base < 0 || base > LARGEST_TIME) return 0;
    to->earliest = base + to->found.earliest;
    to->latest = base + to->found.latest;
    to->producer = read_i64(batch + 43);
    return to->latest == read_i64(batch + 35) && to->earliest >= 0;
}

static PyObject *facts_tuple(const Facts *from)
{
    return Py_BuildValue("iLLnL", (int)from->found.records, (long long)from->latest,
                         (long long)from->earliest, from->found.without_key,
                         (long long)from->producer);
}

/* --- the request ------------------------------------------------------------------------------ */

typedef struct {
    const uint8_t *data;
    size_t size, at;
    int compact, ok;
    int records; /* how many more the batches can have; 0: they are not looked at */
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

/* Return the facts of a batch; NULL with an error, or with `ok` unset if there are none. */
static PyObject *read_batch(Reader *from, const uint8_t *batch, int64_t length)
{
    Facts facts;
    from->ok = length > 0 && read_facts(batch, (size_t)length, &facts) &&
               facts.found.records < from->records;
    if (!from->ok) return NULL;
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
    skip_no_tags(from);
    if (!from->ok) return NULL;
    int number = (int)read_i32(index);
    if (!from->records) return Py_BuildValue("inn", number, start, end);
    PyObject *facts = read_batch(from, batch, length);
    return facts ? Py_BuildValue("innN", number, start, end, facts) : NULL;
}

static PyObject *read_partitions(Reader *from, int *left)
{
    int64_t count = read_count(from);
    if (count > *left) from->ok = 0;
    PyObject *list = from->ok ? PyList_New(0) : NULL;
    if (!list) return NULL;
    *left -= (int)count;
    for (; count > 0; count--) {
        PyObject *item = read_partition(from);
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
static PyObject *read_topic(Reader *from, int by_id, int *left)
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
    if (name && from->ok) partitions = read_partitions(from, left);
    if (partitions) skip_no_tags(from);
    if (partitions && from->ok) topic = PyTuple_Pack(3, name, id, partitions);
    Py_XDECREF(name);
    Py_XDECREF(id);
    Py_XDECREF(partitions);
    return topic;
}

static PyObject *read_topics(Reader *from, int by_id, int left)
{
    int64_t count = read_count(from);
    if (count > left) from->ok = 0;
    PyObject *list = from->ok ? PyList_New(0) : NULL;
    if (!list) return NULL;
    for (; count > 0; count--) {
        PyObject *topic = read_topic(from, by_id, &left);
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
    Reader from = {frame.buf, (size_t)frame.len, (size_t)position, version >= 9, version >= 3, 0};
    PyObject *topics = NULL, *result = NULL;
    PyObject *id = from.ok ? read_text(&from) : NULL;
    const uint8_t *fixed = id ? take(&from, 6) : NULL;
    if (fixed) topics = read_topics(&from, version >= 13, MOST_PARTITIONS);
    if (topics) skip_no_tags(&from);
    if (topics && from.ok && from.at == from.size)
        result = Py_BuildValue("OiiO", id, (int)read_i16(fixed), (int)read_i32(fixed + 2), topics);
    Py_XDECREF(id);
    Py_XDECREF(topics);
    PyBuffer_Release(&frame);
    if (!result && !PyErr_Occurred()) Py_RETURN_NONE;
    return result;
}

/* --- the check of a batch ------------------------------------------------------------------ */

static PyObject *checked(const uint8_t *data, size_t size, long long crc)
{
    Found found;
    if (!look_at(data, size, crc, &found)) Py_RETURN_NONE;
    return Py_BuildValue(
        "(LiiiIiiLLLiii)LLn", (long long)0, (int)read_i32(data + 8), (int)read_i32(data + 12), 2,
        (unsigned int)found.crc, (int)read_i16(data + 21), (int)read_i32(data + 23),
        (long long)read_i64(data + 27), (long long)read_i64(data + 35),
        (long long)read_i64(data + 43), (int)read_i16(data + 51), (int)read_i32(data + 53),
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

/* One request: of one topic and one partition, without a transaction. */
typedef struct {
    int version, acks;
    int32_t correlation;
    size_t key, key_end, batch, end;
    Facts facts;
} Request;

/* Go behind a string in ASCII, as ordinary names are. */
static void skip_name(Reader *from, int may_be_null)
{
    int64_t length = read_length(from, 2);
    if (length < 0 && !may_be_null) from->ok = 0;
    if (!from->ok || length <= 0) return;
    const uint8_t *at = take(from, (size_t)length);
    for (int64_t i = 0; at && i < length; i++)
        if (at[i] & 0x80) from->ok = 0;
}

/* Read the header, and what comes before the topics. */
static void read_head(Reader *from, Request *to)
{
    const uint8_t *at = take(from, 8);
    if (!at) return;
    to->version = read_i16(at + 2);
    to->correlation = read_i32(at + 4);
    if (read_i16(at) != 0 || to->version < FIRST_VERSION || to->version > LAST_VERSION) {
        from->ok = 0;
        return;
    }
    skip_name(from, 1); /* of the client */
    from->compact = to->version >= 9;
    skip_no_tags(from);
    if (read_length(from, 2) >= 0) from->ok = 0; /* the transactional id */
    at = take(from, 6);
    if (at) to->acks = read_i16(at);
    if (at && to->acks != 1 && to->acks != -1) from->ok = 0;
}

static int read_request(const uint8_t *data, size_t size, Request *to)
{
    Reader from = {data, size, 0, 0, 1, 0};
    read_head(&from, to);
    to->key = from.at;
    if (read_count(&from) != 1) return 0;
    if (to->version >= 13) take(&from, 16);
    else skip_name(&from, 0);
    if (read_count(&from) != 1 || !take(&from, 4)) return 0;
    to->key_end = from.at;
    int64_t length = read_length(&from, 4);
    if (!from.ok || length <= 0) return 0;
    to->batch = from.at;
    const uint8_t *batch = take(&from, (size_t)length);
    to->end = from.at;
    for (int i = 0; i < 3; i++) skip_no_tags(&from);
    return from.ok && from.at == size && read_facts(batch, (size_t)length, &to->facts);
}

static PyObject *request_tuple(const uint8_t *data, const Request *from)
{
    size_t size = from->key_end - from->key;
    PyObject *key = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size + 1);
    char *to = key ? PyBytes_AsString(key) : NULL;
    if (!to) return NULL;
    to[0] = (char)from->version;
    memcpy(to + 1, data + from->key, size);
    return Py_BuildValue("NinnN", key, (int)from->correlation, (Py_ssize_t)from->batch,
                         (Py_ssize_t)from->end, facts_tuple(&from->facts));
}

/* Append one request; return 1, 0 if it is not like the ones before, or -1 with an error. */
static int append_request(PyObject *frame, PyObject *list, Request *first, size_t *left)
{
    Py_buffer view;
    Request one = {0};
    if (PyObject_GetBuffer(frame, &view, PyBUF_WRITABLE) < 0) return -1;
    int taken = (size_t)view.len <= *left && read_request(view.buf, (size_t)view.len, &one);
    if (taken && first->version) taken = one.version == first->version && one.acks == first->acks;
    if (taken) {
        *first = one;
        *left -= (size_t)view.len;
        PyObject *item = request_tuple(view.buf, &one);
        if (!item || PyList_Append(list, item) < 0) taken = -1;
        Py_XDECREF(item);
    }
    PyBuffer_Release(&view);
    return taken;
}

PyObject *tm_py_read_run(PyObject *module, PyObject *frames)
{
    Py_ssize_t count = PyList_Size(frames);
    PyObject *list = count < 0 ? NULL : PyList_New(0);
    if (!list) return NULL;
    Request first = {0};
    size_t left = RUN_BYTES;
    for (Py_ssize_t i = 0; i < count; i++) {
        int taken = append_request(PyList_GetItem(frames, i), list, &first, &left);
        if (taken > 0) continue;
        if (taken == 0) break;
        Py_DECREF(list);
        return NULL;
    }
    return Py_BuildValue("iiN", first.version, first.acks, list);
}

/* --- one request ------------------------------------------------------------------------------ */

PyObject *tm_py_read_request(PyObject *module, PyObject *frame)
{
    Py_buffer view;
    if (PyObject_GetBuffer(frame, &view, PyBUF_WRITABLE) < 0) return NULL;
    Request head = {0};
    Reader from = {view.buf, (size_t)view.len, 0, 0, view.len <= WHOLE_BYTES, MOST_RECORDS + 1};
    PyObject *topics = NULL, *result = NULL;
    read_head(&from, &head);
    if (from.ok) topics = read_topics(&from, head.version >= 13, WHOLE_PARTITIONS);
    if (topics) skip_no_tags(&from);
    if (topics && from.ok && from.at == from.size)
        result = Py_BuildValue("iiiO", head.version, head.acks, (int)head.correlation, topics);
    Py_XDECREF(topics);
    PyBuffer_Release(&view);
    if (!result && !PyErr_Occurred()) Py_RETURN_NONE;
    return result;
}
