/* RecordEncoder: turns Arrow columns into the records of batches (message format v2), by partition.
 *
 * A partition's records are collected in one body until it is as large as a batch may be. The header
 * of a batch is written later, because it contains the producer's id and the checksum of the
 * compressed records. Every offset in the columns is checked against the buffer that it points into.
 * Knows no topics, no brokers and no codecs.
 *
 * Sources: Kafka's documentation, "Message Format"; KIP-82 (headers); Apache Arrow, "Arrow Columnar
 * Format"; MurmurHash2 as Kafka's Java client uses it to choose partitions.
 */
#include "native.h"

#include <stdlib.h>

/* What ended a call of add(). */
enum { ALL_READ = 0, FULL = 1, TOO_LARGE = 2, UNKNOWN_PARTITION = 3, NULL_HEADER_KEY = 4 };
enum { MURMUR2 = 0, MURMUR2_RANDOM = 1 };
enum { MOST_PARTITIONS = 1000000, STICKY_BYTES = 65536, LENGTHS = 64 };

/* The records of a partition that have no batch yet. */
typedef struct {
    tm_bytes body;
    size_t last_size; /* of the body before */
    int32_t count;
    int64_t base_timestamp, max_timestamp;
} Open;

typedef struct {
    PyObject_HEAD
    Open *open;
    int32_t partitions;
    int method;
    size_t batch_bytes, record_bytes, open_bytes, most_open_bytes;
    uint32_t sticky; /* the partition of records without a key, until STICKY_BYTES are in it */
    int64_t sticky_left;
    PyObject *closed; /* bodies that append() has closed; NULL before the first one */
} Encoder;

static PyTypeObject *encoder_type;

/* A column of byte strings. Without `ends` all rows are null. */
typedef struct {
    Py_buffer bits, ends, data;
    int has_bits, has_ends, has_data;
    size_t first, rows;
} Column;

/* A list of headers for each row. */
typedef struct {
    Column lists; /* without data */
    Column keys, values;
} Headers;

typedef struct {
    Column key, value, partition;
    Headers headers;
    int has_headers;
} Rows;

static int wrong(const char *what)
{
    PyErr_Format(PyExc_ValueError, "the columns are invalid: %s", what);
    return -1;
}

/* --- columns ------------------------------------------------------------------------------- */

static void release_column(Column *column)
{
    if (column->has_bits) PyBuffer_Release(&column->bits);
    if (column->has_ends) PyBuffer_Release(&column->ends);
    if (column->has_data) PyBuffer_Release(&column->data);
    *column = (Column){0};
}

static int take_buffer(PyObject *from, Py_buffer *to, int *has)
{
    if (from == Py_None) return 0;
    if (PyObject_GetBuffer(from, to, PyBUF_SIMPLE) < 0) return -1;
    *has = 1;
    return 0;
}

/* Take a tuple (first, rows, validity bits or None, 4-byte values, data or None). `extra`: values
 * besides one for each row. */
static int take_column(PyObject *from, Column *to, size_t extra)
{
    PyObject *bits, *ends, *data;
    Py_ssize_t first, rows;
    if (!PyTuple_Check(from)) return wrong("a column is not a tuple");
    if (!PyArg_ParseTuple(from, "nnOOO", &first, &rows, &bits, &ends, &data)) return -1;
    if (first < 0 || rows < 0 || first > PY_SSIZE_T_MAX / 16 || rows > PY_SSIZE_T_MAX / 16)
        return wrong("a number of rows");
    to->first = (size_t)first;
    to->rows = (size_t)rows;
    if (take_buffer(bits, &to->bits, &to->has_bits) < 0) return -1;
    if (take_buffer(ends, &to->ends, &to->has_ends) < 0) return -1;
    if (take_buffer(data, &to->data, &to->has_data) < 0) return -1;
    size_t last = to->first + to->rows;
    if (to->has_bits && (size_t)to->bits.len < last / 8 + (last % 8 != 0))
        return wrong("too few validity bits");
    if (rows && (!to->has_ends || (size_t)to->ends.len < 4 * (last + extra)))
        return wrong("too few values");
    return 0;
}

static inline int is_valid(const Column *column, size_t row)
{
    if (!column->has_bits) return 1;
    row += column->first;
    return ((const uint8_t *)column->bits.buf)[row >> 3] >> (row & 7) & 1;
}

static inline int32_t number_at(const Column *column, size_t row)
{
    int32_t number;
    memcpy(&number, (const uint8_t *)column->ends.buf + 4 * (column->first + row), 4);
    return number;
}

/* Set data and length of a row, -1 if it is null. Return -1 with an error if it is outside. */
static inline int bytes_at(const Column *column, size_t row, const uint8_t **data, int64_t *length)
{
    *data = NULL;
    *length = -1;
    if (!column->has_ends || !is_valid(column, row)) return 0;
    int32_t begin = number_at(column, row), end = number_at(column, row + 1);
    if (begin < 0 || end < begin) return wrong("offsets that do not grow");
    if (end > (column->has_data ? column->data.len : 0)) return wrong("an offset outside of the data");
    *data = (const uint8_t *)column->data.buf + begin;
    *length = end - begin;
    return 0;
}

static int take_headers(PyObject *from, Headers *to)
{
    PyObject *lists, *keys, *values;
    if (!PyTuple_Check(from)) return wrong("headers are not a tuple");
    if (!PyArg_ParseTuple(from, "OOO", &lists, &keys, &values)) return -1;
    if (take_column(lists, &to->lists, 1) < 0 || take_column(keys, &to->keys, 1) < 0 ||
        take_column(values, &to->values, 1) < 0)
        return -1;
    return to->keys.rows == to->values.rows ? 0 : wrong("headers of unequal length");
}

static void release_rows(Rows *rows)
{
    release_column(&rows->key);
    release_column(&rows->value);
    release_column(&rows->partition);
    release_column(&rows->headers.lists);
    release_column(&rows->headers.keys);
    release_column(&rows->headers.values);
}

/* Take a tuple of columns (value, key, partition, headers); the last three can be None. */
static int take_rows(PyObject *from, Rows *to)
{
    PyObject *value, *key, *partition, *headers;
    if (!PyTuple_Check(from)) return wrong("they are not a tuple");
    if (!PyArg_ParseTuple(from, "OOOO", &value, &key, &partition, &headers)) return -1;
    if (take_column(value, &to->value, 1) < 0) return -1;
    if (key != Py_None && take_column(key, &to->key, 1) < 0) return -1;
    if (partition != Py_None && take_column(partition, &to->partition, 0) < 0) return -1;
    if (headers != Py_None && take_headers(headers, &to->headers) < 0) return -1;
    to->has_headers = headers != Py_None;
    size_t count = to->value.rows;
    if ((key != Py_None && to->key.rows != count) ||
        (partition != Py_None && to->partition.rows != count) ||
        (to->has_headers && to->headers.lists.rows != count))
        return wrong("they have unequal lengths");
    return 0;
}

/* --- partitions ---------------------------------------------------------------------------- */

static uint32_t murmur2(const uint8_t *data, size_t size)
{
    const uint32_t m = 0x5bd1e995;
    uint32_t h = 0x9747b28cu ^ (uint32_t)size;
    for (; size >= 4; data += 4, size -= 4) {
        uint32_t k = (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
                     (uint32_t)data[3] << 24;
        k *= m;
        k ^= k >> 24;
        h = h * m ^ k * m;
    }
    if (size >= 3) h ^= (uint32_t)data[2] << 16;
    if (size >= 2) h ^= (uint32_t)data[1] << 8;
    if (size >= 1) h = (h ^ data[0]) * m;
    h ^= h >> 13;
    h *= m;
    return h ^ h >> 15;
}

/* Return the partition of a row; -1 if the row asks for one that does not exist. */
static int32_t partition_of(Encoder *e, const Rows *rows, size_t row, const uint8_t *key,
                            int64_t key_length)
{
    if (rows->partition.has_ends && is_valid(&rows->partition, row)) {
        int32_t wanted = number_at(&rows->partition, row);
        if (wanted != -1) return wanted >= 0 && wanted < e->partitions ? wanted : -1;
    }
    if (key_length >= 0 || e->method == MURMUR2) {
        uint32_t hash = murmur2(key, key_length > 0 ? (size_t)key_length : 0);
        return (int32_t)((hash & 0x7fffffff) % (uint32_t)e->partitions);
    }
    if (e->sticky_left <= 0) {
        e->sticky = (e->sticky + 1) % (uint32_t)e->partitions;
        e->sticky_left = STICKY_BYTES;
    }
    return (int32_t)e->sticky;
}

/* --- records ------------------------------------------------------------------------------- */

static inline uint64_t zigzag(int64_t n) { return (uint64_t)n << 1 ^ (uint64_t)(n >> 63); }

static inline size_t varint_size(int64_t n)
{
    size_t size = 1;
    for (uint64_t z = zigzag(n); z >= 0x80; z >>= 7) size++;
    return size;
}

static inline uint8_t *put_varint(uint8_t *to, int64_t n)
{
    uint64_t z = zigzag(n);
    for (; z >= 0x80; z >>= 7) *to++ = (uint8_t)(z | 0x80);
    *to++ = (uint8_t)z;
    return to;
}

static inline size_t sized(int64_t length)
{
    return varint_size(length) + (length > 0 ? (size_t)length : 0);
}

static inline uint8_t *put_sized(uint8_t *to, const uint8_t *data, int64_t length)
{
    to = put_varint(to, length);
    if (length <= 0) return to;
    memcpy(to, data, (size_t)length);
    return to + length;
}

/* Set the rows of a list of headers, in the columns of keys and values. */
static int headers_at(const Rows *rows, size_t row, size_t *begin, size_t *end)
{
    const Headers *headers = &rows->headers;
    *begin = *end = 0;
    if (!rows->has_headers || !headers->lists.has_ends || !is_valid(&headers->lists, row)) return 0;
    int32_t first = number_at(&headers->lists, row), last = number_at(&headers->lists, row + 1);
    if (first < 0 || last < first || (size_t)last > headers->keys.rows)
        return wrong("a list of headers outside of the headers");
    *begin = (size_t)first;
    *end = (size_t)last;
    return 0;
}

/* Add up the bytes of headers. Return NULL_HEADER_KEY, 0, or -1 with an error. */
static int headers_size(const Rows *rows, size_t begin, size_t end, size_t *size)
{
    const uint8_t *data;
    int64_t length;
    *size = varint_size((int64_t)(end - begin));
    for (size_t i = begin; i < end; i++) {
        if (bytes_at(&rows->headers.keys, i, &data, &length) < 0) return -1;
        if (length < 0) return NULL_HEADER_KEY;
        *size += sized(length);
        if (bytes_at(&rows->headers.values, i, &data, &length) < 0) return -1;
        *size += sized(length);
    }
    return 0;
}

static uint8_t *put_headers(uint8_t *to, const Rows *rows, size_t begin, size_t end)
{
    const uint8_t *data;
    int64_t length;
    to = put_varint(to, (int64_t)(end - begin));
    for (size_t i = begin; i < end; i++) { /* headers_size has checked them */
        (void)bytes_at(&rows->headers.keys, i, &data, &length);
        to = put_sized(to, data, length);
        (void)bytes_at(&rows->headers.values, i, &data, &length);
        to = put_sized(to, data, length);
    }
    return to;
}

/* Append (partition, records, base timestamp, max timestamp, body) to the list. */
static int close_body(Encoder *e, int32_t partition, PyObject *list)
{
    Open *open = &e->open[partition];
    open->last_size = open->body.size;
    e->open_bytes -= open->body.size;
    PyObject *block = tm_block(&open->body);
    if (block == NULL) return -1;
    PyObject *item = Py_BuildValue("(iiLLN)", (int)partition, (int)open->count,
                                   (long long)open->base_timestamp,
                                   (long long)open->max_timestamp, block);
    open->count = 0;
    if (item == NULL) return -1;
    int result = PyList_Append(list, item);
    Py_DECREF(item);
    return result;
}

/* Close the body of a partition if it has no space for so many bytes, and begin a body if there is
 * none. Return whether one was closed, -1 with an error. */
static int ensure_capacity(Encoder *e, int32_t partition, size_t most, int64_t timestamp, PyObject *list)
{
    Open *open = &e->open[partition];
    int closed = open->count && (most > e->batch_bytes || open->body.size > e->batch_bytes - most);
    if (closed && close_body(e, partition, list) < 0) return -1;
    if (!open->count) {
        open->base_timestamp = open->max_timestamp = timestamp;
        if (tm_reserve(&open->body, open->last_size) < 0) return -1;
    }
    return tm_reserve(&open->body, most) < 0 ? -1 : closed;
}

/* Put the length and the numbers of a record before `rest` bytes of it. */
static uint8_t *put_start(uint8_t *to, const Open *open, size_t rest, int64_t timestamp)
{
    int64_t delta = (int64_t)((uint64_t)timestamp - (uint64_t)open->base_timestamp);
    to = put_varint(to, (int64_t)(1 + varint_size(delta) + varint_size(open->count) + rest));
    *to++ = 0; /* attributes */
    to = put_varint(to, delta);
    return put_varint(to, open->count);
}

static void count_record(Encoder *e, int32_t partition, size_t written, int64_t timestamp)
{
    Open *open = &e->open[partition];
    open->body.size += written;
    e->open_bytes += written;
    open->count++;
    if (timestamp > open->max_timestamp) open->max_timestamp = timestamp;
    if ((uint32_t)partition == e->sticky) e->sticky_left -= (int64_t)written;
}

/* Append a row to the body of its partition; close the body before if the row does not fit. Return
 * what ends the call of add(), ALL_READ to continue, -1 with an error. */
static int add_row(Encoder *e, const Rows *rows, size_t row, int64_t timestamp, PyObject *list)
{
    const uint8_t *key, *value;
    int64_t key_length, value_length;
    size_t first_header, end_header, extra;
    if (bytes_at(&rows->key, row, &key, &key_length) < 0) return -1;
    if (bytes_at(&rows->value, row, &value, &value_length) < 0) return -1;
    if (headers_at(rows, row, &first_header, &end_header) < 0) return -1;
    int status = headers_size(rows, first_header, end_header, &extra);
    if (status) return status;
    /* Not more than 2 GiB each, and a column of headers has at most as many. */
    size_t most = extra + sized(key_length) + sized(value_length) + LENGTHS;
    if (most > e->record_bytes) return TOO_LARGE;
    int32_t partition = partition_of(e, rows, row, key, key_length);
    if (partition < 0) return UNKNOWN_PARTITION;
    int closed = ensure_capacity(e, partition, most, timestamp, list);
    if (closed < 0) return -1;
    Open *open = &e->open[partition];
    uint8_t *begin = open->body.data + open->body.size;
    size_t rest = sized(key_length) + sized(value_length) + extra;
    uint8_t *p = put_start(begin, open, rest, timestamp);
    p = put_sized(p, key, key_length);
    p = put_sized(p, value, value_length);
    p = put_headers(p, rows, first_header, end_header);
    count_record(e, partition, (size_t)(p - begin), timestamp);
    return closed || e->open_bytes >= e->most_open_bytes ? FULL : ALL_READ;
}

static PyObject *encoder_add(PyObject *self, PyObject *args)
{
    Encoder *e = (Encoder *)self;
    PyObject *columns;
    Py_ssize_t row;
    long long timestamp;
    if (!PyArg_ParseTuple(args, "OnL", &columns, &row, &timestamp)) return NULL;
    Rows rows = {0};
    PyObject *list = PyList_New(0);
    int status = list == NULL || take_rows(columns, &rows) < 0 ? -1 : ALL_READ;
    if (status == ALL_READ && (row < 0 || (size_t)row > rows.value.rows))
        status = wrong("the first row");
    for (; status == ALL_READ && (size_t)row < rows.value.rows; row++) {
        status = add_row(e, &rows, (size_t)row, timestamp, list);
        if (status > FULL) break; /* the row was not added */
    }
    release_rows(&rows);
    if (status < 0) {
        Py_XDECREF(list);
        return NULL;
    }
    return Py_BuildValue("(niN)", row, status, list);
}

static const uint8_t no_headers = 0;

/* Append a record; a length of -1 is null, and the headers are as in a record. Return 0, TOO_LARGE,
 * or -1 with an error. Bodies that are full wait for closed() and take(). */
static int append(Encoder *e, const uint8_t *key, int64_t key_length, const uint8_t *value,
                  int64_t value_length, const uint8_t *headers, size_t headers_length,
                  int64_t timestamp)
{
    if (key_length > INT32_MAX || value_length > INT32_MAX || headers_length > INT32_MAX)
        return TOO_LARGE;
    size_t rest = sized(key_length) + sized(value_length) + headers_length;
    size_t most = rest + LENGTHS;
    if (most > e->record_bytes) return TOO_LARGE;
    if (e->closed == NULL && (e->closed = PyList_New(0)) == NULL) return -1;
    static const Rows no_rows;
    int32_t partition = partition_of(e, &no_rows, 0, key, key_length);
    if (ensure_capacity(e, partition, most, timestamp, e->closed) < 0) return -1;
    Open *open = &e->open[partition];
    uint8_t *begin = open->body.data + open->body.size;
    uint8_t *p = put_start(begin, open, rest, timestamp);
    p = put_sized(p, key, key_length);
    p = put_sized(p, value, value_length);
    memcpy(p, headers, headers_length);
    p += headers_length;
    count_record(e, partition, (size_t)(p - begin), timestamp);
    return 0;
}

int tm_is_record_encoder(PyObject *object)
{
    return PyObject_TypeCheck(object, encoder_type);
}

int tm_append_record(PyObject *encoder, const uint8_t *key, int64_t key_length,
                     const uint8_t *value, int64_t value_length, int64_t timestamp)
{
    return append((Encoder *)encoder, key, key_length, value, value_length, &no_headers, 1,
                  timestamp);
}

static int optional_bytes(PyObject *from, const uint8_t **data, int64_t *length)
{
    char *bytes = NULL;
    Py_ssize_t size = -1;
    if (from != Py_None && PyBytes_AsStringAndSize(from, &bytes, &size) < 0) return -1;
    *data = (const uint8_t *)bytes;
    *length = size;
    return 0;
}

static PyObject *encoder_append(PyObject *self, PyObject *args)
{
    PyObject *key, *value, *headers = NULL;
    long long timestamp;
    const uint8_t *key_data, *value_data;
    int64_t key_length, value_length;
    if (!PyArg_ParseTuple(args, "OOL|S", &key, &value, &timestamp, &headers)) return NULL;
    if (optional_bytes(key, &key_data, &key_length) < 0) return NULL;
    if (optional_bytes(value, &value_data, &value_length) < 0) return NULL;
    int status = append((Encoder *)self, key_data, key_length, value_data, value_length,
                        headers ? (const uint8_t *)PyBytes_AsString(headers) : &no_headers,
                        headers ? (size_t)PyBytes_Size(headers) : 1, timestamp);
    return status < 0 ? NULL : PyLong_FromLong(status);
}

/* Return the bodies that append() has closed. */
static PyObject *encoder_closed(PyObject *self, PyObject *unused)
{
    Encoder *e = (Encoder *)self;
    PyObject *list = e->closed ? e->closed : PyList_New(0);
    e->closed = NULL;
    return list;
}

static PyObject *encoder_take(PyObject *self, PyObject *unused)
{
    Encoder *e = (Encoder *)self;
    PyObject *list = encoder_closed(self, NULL);
    for (int32_t partition = 0; partition < e->partitions; partition++)
        if (list && e->open[partition].count && close_body(e, partition, list) < 0) Py_CLEAR(list);
    return list;
}

static int set_partitions(Encoder *e, Py_ssize_t wanted)
{
    if (wanted < 1 || wanted > MOST_PARTITIONS || wanted < e->partitions) {
        PyErr_SetString(PyExc_ValueError, "an invalid number of partitions");
        return -1;
    }
    Open *open = realloc(e->open, (size_t)wanted * sizeof(Open));
    if (open == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memset(open + e->partitions, 0, (size_t)(wanted - e->partitions) * sizeof(Open));
    e->open = open;
    e->partitions = (int32_t)wanted;
    return 0;
}

static PyObject *encoder_grow(PyObject *self, PyObject *arg)
{
    Py_ssize_t wanted = PyLong_AsSsize_t(arg);
    if (wanted == -1 && PyErr_Occurred()) return NULL;
    if (set_partitions((Encoder *)self, wanted) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *encoder_size(PyObject *self, PyObject *unused)
{
    return PyLong_FromSize_t(((Encoder *)self)->open_bytes);
}

static PyObject *encoder_partitions(PyObject *self, PyObject *unused)
{
    return PyLong_FromLong(((Encoder *)self)->partitions);
}

static PyObject *encoder_new(PyTypeObject *type, PyObject *args, PyObject *unused)
{
    Py_ssize_t partitions, batch_bytes, record_bytes, most_open_bytes, start;
    int method;
    if (!PyArg_ParseTuple(args, "nnnnin", &partitions, &batch_bytes, &record_bytes,
                          &most_open_bytes, &method, &start))
        return NULL;
    if (batch_bytes < 1 || batch_bytes > INT32_MAX / 2 || record_bytes < 1 ||
        record_bytes > INT32_MAX / 2 || most_open_bytes < 1 || start < 0 ||
        (method != MURMUR2 && method != MURMUR2_RANDOM)) {
        PyErr_SetString(PyExc_ValueError, "a limit or the partitioner is invalid");
        return NULL;
    }
    Encoder *e = (Encoder *)PyType_GenericNew(type, NULL, NULL);
    if (e == NULL) return NULL;
    if (set_partitions(e, partitions) < 0) {
        Py_DECREF(e);
        return NULL;
    }
    e->batch_bytes = (size_t)batch_bytes;
    e->record_bytes = (size_t)record_bytes;
    e->most_open_bytes = (size_t)most_open_bytes;
    e->method = method;
    e->sticky = (uint32_t)((size_t)start % (size_t)partitions);
    e->sticky_left = STICKY_BYTES;
    return (PyObject *)e;
}

static void encoder_dealloc(PyObject *self)
{
    Encoder *e = (Encoder *)self;
    for (int32_t i = 0; i < e->partitions; i++) free(e->open[i].body.data);
    free(e->open);
    Py_XDECREF(e->closed);
    tm_free_object(self);
}

static PyMethodDef encoder_methods[] = {
    {"add", encoder_add, METH_VARARGS, "Add rows from one on, until a body is closed."},
    {"append", encoder_append, METH_VARARGS, "Add one record."},
    {"closed", encoder_closed, METH_NOARGS, "Return the bodies that append() has closed."},
    {"take", encoder_take, METH_NOARGS, "Return all bodies, and begin new ones."},
    {"grow", encoder_grow, METH_O, "Raise the number of partitions."},
    {"size", encoder_size, METH_NOARGS, "Return the bytes of the bodies that are not closed."},
    {"partitions", encoder_partitions, METH_NOARGS, "Return the number of partitions."},
    {NULL, NULL, 0, NULL},
};

int tm_add_record_encoder(PyObject *module)
{
    return tm_add_class(module, "tidemill._native.RecordEncoder", "Turns Arrow columns into records, by partition.",
                        sizeof(Encoder), encoder_new, encoder_dealloc, encoder_methods, &encoder_type);
}
