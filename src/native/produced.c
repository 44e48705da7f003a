/* Encodes the responses to Produce requests, of all versions, with and without errors.
 *
 * tidemill.kafka_codec.hot says what the arguments mean. Source: ProduceResponse.json of Apache Kafka
 * 4.3, and of 3.9 for the versions 0 to 2, in which requests are refused.
 */
#include "native.h"

#include <stdlib.h>

#define APPENDED_FIELDS 3 /* base offset, LogAppendTime, start of the log */
#define REFUSED_FIELDS 5  /* error code, base offset, start of the log, message, refused records */
#define FIELDS_BYTES 30   /* of a partition, without its errors */

typedef struct {
    tm_bytes out;
    int version, compact;
} Writer;

static int put_number(Writer *to, int64_t value, int bytes)
{
    uint8_t raw[8];
    tm_put_big_endian(raw, (uint64_t)value, bytes);
    return tm_put(&to->out, raw, (size_t)bytes);
}

/* Put the length of an array or of a string; `bytes` is for old versions. -1 is null. */
static int put_length(Writer *to, Py_ssize_t length, int bytes)
{
    if (!to->compact) return put_number(to, length, bytes);
    uint8_t raw[10];
    size_t size = 0;
    uint64_t left = (uint64_t)(length + 1);
    for (; left >= 128; left >>= 7) raw[size++] = (uint8_t)(left | 128);
    raw[size++] = (uint8_t)left;
    return tm_put(&to->out, raw, size);
}

static int put_text(Writer *to, PyObject *text)
{
    if (text == Py_None) return put_length(to, -1, 2);
    Py_ssize_t size;
    const char *data = text ? PyUnicode_AsUTF8AndSize(text, &size) : NULL;
    if (!data) return -1;
    if (!to->compact && size > INT16_MAX) {
        PyErr_SetString(PyExc_ValueError, "a text is too long for the version");
        return -1;
    }
    return put_length(to, size, 2) < 0 ? -1 : tm_put(&to->out, data, (size_t)size);
}

/* No tagged fields follow. */
static int put_no_tags(Writer *to) { return to->compact ? put_number(to, 0, 1) : 0; }

/* Put the records for which a batch was refused (KIP-467): (index, reason) of each. */
static int put_refused_records(Writer *to, PyObject *records)
{
    Py_ssize_t count = records ? PySequence_Size(records) : -1;
    if (count < 0 || put_length(to, count, 4) < 0) return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one = PySequence_GetItem(records, i);
        int64_t index;
        if (one && !PyTuple_Check(one)) PyErr_SetString(PyExc_TypeError, "not a refused record");
        int failed = PyErr_Occurred() || !one || tm_item(one, 0, &index) < 0 ||
                     put_number(to, index, 4) < 0 || put_text(to, PyTuple_GetItem(one, 1)) < 0 ||
                     put_no_tags(to) < 0;
        Py_XDECREF(one);
        if (failed) return -1;
    }
    return 0;
}

/* Put a partition and its result, which is a tuple: APPENDED_FIELDS or REFUSED_FIELDS. */
static int put_partition(Writer *to, PyObject *partition, PyObject *result)
{
    int64_t index, code = 0, base, time = -1, start;
    Py_ssize_t fields = PyTuple_Check(partition) && PyTuple_Check(result) ? PyTuple_Size(result) : 0;
    if (fields != APPENDED_FIELDS && fields != REFUSED_FIELDS) {
        PyErr_SetString(PyExc_TypeError, "not a partition and its result");
        return -1;
    }
    int is_refused = fields == REFUSED_FIELDS;
    if (tm_item(partition, 0, &index) < 0 || (is_refused && tm_item(result, 0, &code) < 0) ||
        tm_item(result, is_refused, &base) < 0 ||
        (!is_refused && tm_item(result, 1, &time) < 0) || tm_item(result, 2, &start) < 0)
        return -1;
    uint8_t raw[FIELDS_BYTES];
    tm_put_big_endian(raw, (uint64_t)index, 4);
    tm_put_big_endian(raw + 4, (uint64_t)code, 2);
    tm_put_big_endian(raw + 6, (uint64_t)base, 8);
    tm_put_big_endian(raw + 14, (uint64_t)time, 8);
    tm_put_big_endian(raw + 22, (uint64_t)start, 8);
    if (tm_put(&to->out, raw, to->version >= 5 ? 30 : to->version >= 2 ? 22 : 14) < 0) return -1;
    if (to->version < 8) return 0;
    if (is_refused ? put_refused_records(to, PyTuple_GetItem(result, 4)) < 0
                   : put_length(to, 0, 4) < 0)
        return -1;
    return put_text(to, is_refused ? PyTuple_GetItem(result, 3) : Py_None) < 0 || put_no_tags(to) < 0
               ? -1
               : 0;
}

static int put_name(Writer *to, PyObject *topic)
{
    static const uint8_t none[16];
    if (to->version < 13) return put_text(to, PyTuple_GetItem(topic, 0));
    PyObject *id = PyTuple_GetItem(topic, 1);
    if (!id) return -1;
    if (id == Py_None) return tm_put(&to->out, none, 16);
    if (PyBytes_Check(id) && PyBytes_Size(id) == 16) return tm_put(&to->out, PyBytes_AsString(id), 16);
    PyErr_SetString(PyExc_ValueError, "a topic id has 16 bytes");
    return -1;
}

/* Put a topic, (name, id, partitions), whose results begin at `*at`. */
static int put_topic(Writer *to, PyObject *topic, PyObject *results, Py_ssize_t *at)
{
    PyObject *partitions = PyTuple_Check(topic) ? PyTuple_GetItem(topic, 2) : NULL;
    if (!partitions || !PyList_Check(partitions)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "not a topic");
        return -1;
    }
    Py_ssize_t count = PyList_Size(partitions);
    if (put_name(to, topic) < 0 || put_length(to, count, 4) < 0) return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *result = PyList_GetItem(results, (*at)++);
        if (!result || put_partition(to, PyList_GetItem(partitions, i), result) < 0) return -1;
    }
    return put_no_tags(to);
}

static int put_body(Writer *to, PyObject *topics, PyObject *results, Py_ssize_t *at, int throttle_ms)
{
    Py_ssize_t count = topics && PyList_Check(topics) ? PyList_Size(topics) : -1;
    if (count < 0) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "topics must be a list");
        return -1;
    }
    if (put_length(to, count, 4) < 0) return -1;
    for (Py_ssize_t i = 0; i < count; i++)
        if (put_topic(to, PyList_GetItem(topics, i), results, at) < 0) return -1;
    return (to->version >= 1 && put_number(to, throttle_ms, 4) < 0) || put_no_tags(to) < 0 ? -1 : 0;
}

/* Put the response to a request, (correlation id, topics), with its length and header; only the body
 * where the correlation id is None. */
static int put_response(Writer *to, PyObject *request, PyObject *results, Py_ssize_t *at,
                        int throttle_ms)
{
    PyObject *id = PyTuple_Check(request) ? PyTuple_GetItem(request, 0) : NULL;
    PyObject *topics = id ? PyTuple_GetItem(request, 1) : NULL;
    if (!topics) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "not a request");
        return -1;
    }
    if (id == Py_None) return put_body(to, topics, results, at, throttle_ms);
    size_t start = to->out.size;
    int64_t number = PyLong_AsLongLong(id);
    if (PyErr_Occurred() || put_number(to, 0, 4) < 0 || put_number(to, number, 4) < 0 ||
        put_no_tags(to) < 0 || put_body(to, topics, results, at, throttle_ms) < 0)
        return -1;
    tm_put_big_endian(to->out.data + start, to->out.size - start - 4, 4);
    return 0;
}

PyObject *tm_py_encode_produced(PyObject *module, PyObject *args)
{
    Writer to = {0};
    PyObject *requests, *results, *found = NULL;
    int throttle_ms, failed = 0;
    if (!PyArg_ParseTuple(args, "iO!O!i:encode_produced", &to.version, &PyList_Type, &requests,
                          &PyList_Type, &results, &throttle_ms))
        return NULL;
    to.compact = to.version >= 9;
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; !failed && i < PyList_Size(requests); i++)
        failed = put_response(&to, PyList_GetItem(requests, i), results, &at, throttle_ms);
    if (!failed && at != PyList_Size(results))
        PyErr_SetString(PyExc_ValueError, "each partition has a result");
    else if (!failed)
        found = PyBytes_FromStringAndSize((const char *)to.out.data, (Py_ssize_t)to.out.size);
    free(to.out.data);
    return found;
}
