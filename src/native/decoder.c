/* Decoder: turns stored record batches (message format v2) into Arrow columns.
 *
 * The bytes come from a broker: a batch can be incomplete at the end of a response, and any length
 * in it can be wrong. Damage is a ValueError that names the batch and the position in the bytes.
 * Knows no topics and no codecs: it calls back for the decompressed records of a batch.
 *
 * Sources: Kafka's documentation, "Message Format"; KIP-98 (transactions), KIP-82 (headers).
 */
#include "columns.h"

enum { BATCH_HEADER = 61, BEFORE_LENGTH = 12, LEAST_RECORD = 7, OLD_HEADER = 17 };
enum { CODEC_MASK = 0x07, APPEND_TIME = 0x08, TRANSACTIONAL = 0x10, CONTROL = 0x20 };

/* What ended a call of read(). */
enum { FULL = 0, SET_READ = 1, RANGE_READ = 2, OLD_FORMAT = 3 };

/* The header of a batch, checked. */
typedef struct {
    int64_t base_offset, base_timestamp, max_timestamp, producer_id;
    int32_t last_delta, count;
    uint16_t attributes;
    size_t at, size;
} Batch;

typedef struct {
    PyObject_HEAD
    int check_crcs;
    PyObject *decompress;
    Py_buffer set; /* the record set of a response */
    int has_set;
    size_t at; /* of the next batch */
    int64_t expected; /* least base offset of the next batch; -1 before the first */
    /* The batch whose records are being read. `records` is in `set` or in `body`. */
    Batch batch;
    int is_open;
    Py_buffer body;
    int has_body;
    const uint8_t *records;
    size_t records_at, records_size;
    int32_t left;
    int64_t last_offset; /* of the record before */
    /* read_committed: the aborted transactions that begin later, and the producers of open ones. */
    PyObject *aborted, *aborted_producers;
    Py_ssize_t aborted_at;
    tm_columns columns;
} Decoder;

/* --- batches ------------------------------------------------------------------------------- */

/* Size of the batch at a position; 0 if it is incomplete, -1 with an error if it is invalid. */
static Py_ssize_t batch_size(const uint8_t *data, size_t at, size_t end)
{
    if (end - at < OLD_HEADER) return 0;
    int64_t length = tm_i32(data + at + 8);
    int magic = (int8_t)data[at + 16];
    if (magic < 0 || magic > 2) {
        PyErr_Format(PyExc_ValueError, "position %zu: unknown message format %d", at, magic);
        return -1;
    }
    /* 14 is the least size of an old message without its offset and length. */
    if (length < (magic == 2 ? BATCH_HEADER - BEFORE_LENGTH : 14)) {
        PyErr_Format(PyExc_ValueError, "position %zu: a batch can't have length %lld", at,
                     (long long)length);
        return -1;
    }
    if ((uint64_t)length > end - at - BEFORE_LENGTH) return 0;
    return (Py_ssize_t)(length + BEFORE_LENGTH);
}

/* Read and check a complete header. */
static int read_header(const uint8_t *data, size_t at, size_t size, Batch *to)
{
    const uint8_t *p = data + at;
    *to = (Batch){
        .base_offset = tm_i64(p),
        .attributes = (uint16_t)tm_i16(p + 21),
        .last_delta = tm_i32(p + 23),
        .base_timestamp = tm_i64(p + 27),
        .max_timestamp = tm_i64(p + 35),
        .producer_id = tm_i64(p + 43),
        .count = tm_i32(p + 57),
        .at = at,
        .size = size,
    };
    if (to->base_offset < 0 || to->base_offset > INT64_MAX - INT32_MAX - 1 || to->last_delta < 0 ||
        to->count < 0 || to->count > (int64_t)to->last_delta + 1) {
        PyErr_Format(PyExc_ValueError,
                     "position %zu: the batch has base offset %lld, last offset delta %d and %d "
                     "records, which contradict each other",
                     at, (long long)to->base_offset, (int)to->last_delta, (int)to->count);
        return -1;
    }
    return 0;
}

static int64_t last_offset(const Batch *batch) { return batch->base_offset + batch->last_delta; }

PyObject *tm_py_scan_batches(PyObject *module, PyObject *arg)
{
    Py_buffer view;
    if (PyObject_GetBuffer(arg, &view, PyBUF_SIMPLE) < 0) return NULL;
    const uint8_t *data = view.buf;
    size_t at = 0, end = (size_t)view.len;
    int64_t next = -1;
    Py_ssize_t size;
    while ((size = batch_size(data, at, end)) > 0) {
        if (data[at + 16] != 2) break;
        int64_t base = tm_i64(data + at);
        int32_t delta = tm_i32(data + at + 23);
        if (base < 0 || base > INT64_MAX - INT32_MAX - 1 || delta < 0) break;
        next = base + delta + 1;
        at += (size_t)size;
    }
    PyBuffer_Release(&view);
    if (size < 0) PyErr_Clear(); /* the decoder reports it, at its place */
    return Py_BuildValue("(Ln)", (long long)next, (Py_ssize_t)at);
}

/* --- records ------------------------------------------------------------------------------- */

static int damaged(const Decoder *d, const char *what)
{
    PyErr_Format(PyExc_ValueError,
                 "batch at offset %lld (position %zu), record %d, byte %zu of the records: %s",
                 (long long)d->batch.base_offset, d->batch.at, (int)(d->batch.count - d->left),
                 d->records_at, what);
    return -1;
}

typedef struct {
    const uint8_t *p, *end;
} Cursor;

static inline int varlong(Cursor *c, int64_t *to)
{
    uint64_t n = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (c->p == c->end) return -1;
        uint8_t byte = *c->p++;
        if (shift == 63 && byte > 1) return -1;
        n |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *to = (int64_t)(n >> 1) ^ -(int64_t)(n & 1);
            return 0;
        }
    }
    return -1;
}

static inline int varint(Cursor *c, int64_t *to)
{
    if (c->p < c->end && *c->p < 0x80) {
        uint8_t byte = *c->p++;
        *to = (int64_t)(byte >> 1) ^ -(int64_t)(byte & 1);
        return 0;
    }
    return varlong(c, to) < 0 || *to < INT32_MIN || *to > INT32_MAX ? -1 : 0;
}

/* Read a length and skip as many bytes; -1 stands for null. */
static inline int sized(Cursor *c, const uint8_t **data, int64_t *length)
{
    if (varint(c, length) < 0 || *length < -1 || *length > c->end - c->p) return -1;
    *data = c->p;
    if (*length > 0) c->p += *length;
    return 0;
}

static int is_utf8(const uint8_t *p, int64_t size)
{
    for (int64_t i = 0; i < size; i++)
        if (p[i] >= 0x80) {
            PyObject *text = PyUnicode_DecodeUTF8((const char *)p, (Py_ssize_t)size, "strict");
            Py_XDECREF(text);
            PyErr_Clear();
            return text != NULL;
        }
    return 1;
}

/* Append the key of a header as UTF-8; invalid bytes are replaced, as the Java client does. */
static int append_header_key(tm_binary *to, const uint8_t *p, int64_t size)
{
    if (is_utf8(p, size)) return tm_binary_append(to, p, size);
    int result = -1;
    Py_ssize_t length;
    PyObject *text = PyUnicode_DecodeUTF8((const char *)p, (Py_ssize_t)size, "replace");
    const char *valid = text == NULL ? NULL : PyUnicode_AsUTF8AndSize(text, &length);
    if (valid != NULL) result = tm_binary_append(to, (const uint8_t *)valid, length);
    Py_XDECREF(text);
    return result;
}

/* Read the headers of a record to its end. `is_wanted`: append them. */
static int read_headers(Decoder *d, Cursor *c, int is_wanted)
{
    int64_t count, length;
    const uint8_t *data;
    if (varint(c, &count) < 0 || count < 0 || count > (c->end - c->p) / 2)
        return damaged(d, "invalid number of headers");
    is_wanted = is_wanted && d->columns.with_headers;
    for (int64_t i = 0; i < count; i++) {
        if (sized(c, &data, &length) < 0 || length < 0)
            return damaged(d, "invalid length of a header's key");
        if (is_wanted && append_header_key(&d->columns.header_key, data, length) < 0) return -1;
        if (sized(c, &data, &length) < 0) return damaged(d, "invalid length of a header's value");
        if (is_wanted && tm_binary_append(&d->columns.header_value, data, length) < 0) return -1;
    }
    return is_wanted ? tm_columns_end_headers(&d->columns, (uint32_t)count) : 0;
}

/* Read one record. Return 1 if it is at or after `end`, 2 if it does not fit into `max_bytes`, and
 * do not move then; 0 otherwise; -1 with an error. */
static int read_record(Decoder *d, int64_t first, int64_t end, size_t max_bytes)
{
    Cursor c = {d->records + d->records_at, d->records + d->records_size};
    int64_t length, time_delta, delta, key_length, value_length;
    const uint8_t *key, *value;
    if (varint(&c, &length) < 0 || length < LEAST_RECORD - 1 || length > c.end - c.p)
        return damaged(d, "invalid length of the record");
    c.end = c.p + length;
    c.p++; /* attributes, unused */
    if (varlong(&c, &time_delta) < 0) return damaged(d, "invalid timestamp");
    if (varint(&c, &delta) < 0 || delta > d->batch.last_delta ||
        d->batch.base_offset + delta <= d->last_offset)
        return damaged(d, "invalid offset delta");
    int64_t offset = d->batch.base_offset + delta;
    if (offset >= end) return 1;
    int is_wanted = offset >= first;
    if (is_wanted && d->columns.rows) {
        size_t used = tm_columns_bytes(&d->columns);
        if (used > max_bytes || (size_t)length > max_bytes - used) return 2;
    }
    if (sized(&c, &key, &key_length) < 0) return damaged(d, "invalid length of the key");
    if (sized(&c, &value, &value_length) < 0) return damaged(d, "invalid length of the value");
    const uint8_t *headers = c.p;
    if (read_headers(d, &c, 0) < 0) return -1;
    if (c.p != c.end) return damaged(d, "the record is longer than its fields");
    if (is_wanted) {
        int64_t millis = (int64_t)((uint64_t)d->batch.base_timestamp + (uint64_t)time_delta);
        int type = (d->batch.attributes & APPEND_TIME) != 0;
        if (type) millis = d->batch.max_timestamp;
        if (tm_binary_append(&d->columns.key, key, key_length) < 0) return -1;
        if (tm_binary_append(&d->columns.value, value, value_length) < 0) return -1;
        if (tm_columns_append(&d->columns, offset, millis, type) < 0) return -1;
        c.p = headers;
        if (d->columns.with_headers && read_headers(d, &c, 1) < 0) return -1;
    }
    d->last_offset = offset;
    d->records_at = (size_t)(c.end - d->records);
    d->left--;
    return 0;
}

/* --- transactions -------------------------------------------------------------------------- */

/* Add the producers of aborted transactions that begin in or before the batch. */
static int add_aborted(Decoder *d, int64_t up_to)
{
    Py_ssize_t count = PyList_Size(d->aborted);
    for (; d->aborted_at < count; d->aborted_at++) {
        PyObject *pair = PyList_GetItem(d->aborted, d->aborted_at);
        PyObject *producer, *begins;
        if (!PyArg_ParseTuple(pair, "OO", &producer, &begins)) return -1;
        long long first = PyLong_AsLongLong(begins);
        if (first == -1 && PyErr_Occurred()) return -1;
        if (first > up_to) break;
        if (PySet_Add(d->aborted_producers, producer) < 0) return -1;
    }
    return 0;
}

/* Whether the open control batch is the marker of an abort; -1 with an error. */
static int is_abort_marker(Decoder *d)
{
    Cursor c = {d->records, d->records + d->records_size};
    int64_t length, number;
    const uint8_t *key;
    if (varint(&c, &length) < 0 || length < LEAST_RECORD - 1 || length > c.end - c.p)
        return damaged(d, "invalid length of the transaction marker");
    c.end = c.p + length;
    c.p++;
    if (varlong(&c, &number) < 0 || varint(&c, &number) < 0 || sized(&c, &key, &length) < 0 ||
        length < 4)
        return damaged(d, "the transaction marker is invalid");
    return (uint16_t)tm_i16(key + 2) == 0;
}

/* --- the decoder --------------------------------------------------------------------------- */

static void close_batch(Decoder *d)
{
    if (d->has_body) PyBuffer_Release(&d->body);
    d->has_body = d->is_open = 0;
    d->records = NULL;
}

/* Check and decompress the batch, whose header is in d->batch, and make it the open one. */
static int open_batch(Decoder *d)
{
    const uint8_t *p = (const uint8_t *)d->set.buf + d->batch.at;
    if (d->check_crcs) {
        uint32_t stored = (uint32_t)tm_i32(p + 17), computed = tm_crc32c(p + 21, d->batch.size - 21);
        if (stored != computed) {
            PyErr_Format(PyExc_ValueError,
                         "batch at offset %lld (position %zu, %zu bytes): its CRC-32C is %lu, but "
                         "%lu is stored",
                         (long long)d->batch.base_offset, d->batch.at, d->batch.size,
                         (unsigned long)computed, (unsigned long)stored);
            return -1;
        }
    }
    d->records = p + BATCH_HEADER;
    d->records_size = d->batch.size - BATCH_HEADER;
    d->records_at = 0;
    d->left = d->batch.count;
    d->last_offset = d->batch.base_offset - 1;
    int codec = d->batch.attributes & CODEC_MASK;
    if (codec) {
        PyObject *stored = PyMemoryView_FromMemory((char *)d->records, (Py_ssize_t)d->records_size,
                                                   PyBUF_READ);
        if (stored == NULL) return -1;
        PyObject *plain = PyObject_CallFunction(d->decompress, "iO", codec, stored);
        Py_DECREF(stored);
        if (plain == NULL) return -1;
        int failed = PyObject_GetBuffer(plain, &d->body, PyBUF_SIMPLE) < 0;
        Py_DECREF(plain);
        if (failed) return -1;
        d->has_body = 1;
        d->records = d->body.buf;
        d->records_size = (size_t)d->body.len;
    }
    d->is_open = 1;
    if ((uint64_t)d->left * LEAST_RECORD > d->records_size)
        return damaged(d, "the batch has fewer bytes than its number of records needs");
    return 0;
}

/* Whether the batch's records are to be read: 1 and it is open, 0 to skip it, -1 with an error. */
static int enter_batch(Decoder *d, int64_t first)
{
    int is_control = (d->batch.attributes & CONTROL) != 0;
    if (d->aborted != NULL && d->batch.producer_id >= 0) {
        if (add_aborted(d, last_offset(&d->batch)) < 0) return -1;
        PyObject *producer = PyLong_FromLongLong(d->batch.producer_id);
        if (producer == NULL) return -1;
        int is_aborted = PySet_Contains(d->aborted_producers, producer);
        if (is_aborted > 0 && is_control && d->batch.count) {
            int ends = open_batch(d) < 0 ? -1 : is_abort_marker(d);
            if (ends > 0) ends = PySet_Discard(d->aborted_producers, producer);
            if (ends < 0) is_aborted = -1;
            close_batch(d);
        }
        Py_DECREF(producer);
        if (is_aborted < 0) return -1;
        if (is_aborted && d->batch.attributes & TRANSACTIONAL) return 0;
    }
    if (is_control || !d->batch.count || last_offset(&d->batch) < first) return 0;
    return open_batch(d) < 0 ? -1 : 1;
}

/* Go to the next batch with wanted records. Return what ends the call of read(), FULL to continue
 * with the open batch, -1 with an error. Moves `next`. */
static int next_batch(Decoder *d, int64_t *next, int64_t end)
{
    const uint8_t *data = d->set.buf;
    for (;;) {
        Py_ssize_t size = batch_size(data, d->at, (size_t)d->set.len);
        if (size <= 0) return size < 0 ? -1 : SET_READ;
        if (data[d->at + 16] != 2) return OLD_FORMAT;
        if (read_header(data, d->at, (size_t)size, &d->batch) < 0) return -1;
        if (d->batch.base_offset < d->expected) {
            PyErr_Format(PyExc_ValueError,
                         "position %zu: the batch has base offset %lld, but offsets up to %lld came "
                         "before it",
                         d->at, (long long)d->batch.base_offset, (long long)d->expected - 1);
            return -1;
        }
        if (d->batch.base_offset >= end) {
            *next = end;
            return RANGE_READ;
        }
        d->expected = last_offset(&d->batch) + 1;
        int is_open = enter_batch(d, *next);
        if (is_open < 0) return -1;
        d->at += (size_t)size;
        if (is_open) return FULL;
        if (d->expected > *next) *next = d->expected;
        if (*next >= end) {
            *next = end;
            return RANGE_READ;
        }
    }
}

static PyObject *decoder_read(PyObject *self, PyObject *args)
{
    Decoder *d = (Decoder *)self;
    long long first, end;
    Py_ssize_t max_rows, max_bytes;
    if (!PyArg_ParseTuple(args, "LLnn", &first, &end, &max_rows, &max_bytes)) return NULL;
    if (!d->has_set || max_rows < 1 || max_bytes < 1 || max_bytes > INT32_MAX / 2) {
        PyErr_SetString(PyExc_RuntimeError, "the decoder has no records, or a limit is invalid");
        return NULL;
    }
    int64_t next = first;
    int ended = FULL;
    while (next < end) {
        if (!d->is_open) {
            ended = next_batch(d, &next, end);
            if (ended != FULL) break;
        }
        int full = 0;
        while (d->left && !(full = d->columns.rows >= (size_t)max_rows)) {
            full = read_record(d, next, end, (size_t)max_bytes);
            if (full) break;
        }
        if (full < 0 || PyErr_Occurred()) {
            ended = -1;
            break;
        }
        if (full == 2 || d->left == 0 || d->columns.rows >= (size_t)max_rows) {
            if (d->last_offset + 1 > next) next = d->last_offset + 1;
        } else { /* the record belongs to the next range */
            next = end;
            break;
        }
        if (d->left) break;
        if (d->records_at != d->records_size) {
            ended = damaged(d, "there are bytes after the last record");
            break;
        }
        next = d->expected;
        close_batch(d);
        if (d->columns.rows >= (size_t)max_rows) break;
    }
    if (ended < 0) {
        close_batch(d);
        tm_columns_free(&d->columns);
        return NULL;
    }
    if (next >= end) {
        next = end;
        ended = RANGE_READ;
    }
    Py_ssize_t rows = (Py_ssize_t)d->columns.rows;
    PyObject *columns = tm_columns_take(&d->columns);
    if (columns == NULL) return NULL;
    return Py_BuildValue("(LinN)", (long long)next, ended, rows, columns);
}

static PyObject *decoder_release(PyObject *self, PyObject *unused)
{
    Decoder *d = (Decoder *)self;
    close_batch(d);
    if (d->has_set) PyBuffer_Release(&d->set);
    d->has_set = 0;
    Py_CLEAR(d->aborted);
    Py_CLEAR(d->aborted_producers);
    Py_RETURN_NONE;
}

static PyObject *decoder_feed(PyObject *self, PyObject *args)
{
    Decoder *d = (Decoder *)self;
    PyObject *buffer, *aborted;
    if (!PyArg_ParseTuple(args, "OO", &buffer, &aborted)) return NULL;
    Py_XDECREF(decoder_release(self, NULL));
    if (aborted != Py_None) {
        if (!PyList_Check(aborted)) {
            PyErr_SetString(PyExc_TypeError, "aborted must be a list of pairs, or None");
            return NULL;
        }
        d->aborted_producers = PySet_New(NULL);
        if (d->aborted_producers == NULL) return NULL;
        d->aborted = Py_NewRef(aborted);
        d->aborted_at = 0;
    }
    if (PyObject_GetBuffer(buffer, &d->set, PyBUF_SIMPLE) < 0) return NULL;
    d->has_set = 1;
    d->at = 0;
    d->expected = 0;
    Py_RETURN_NONE;
}

static PyObject *decoder_new(PyTypeObject *type, PyObject *args, PyObject *unused)
{
    int with_headers, check_crcs;
    PyObject *decompress;
    if (!PyArg_ParseTuple(args, "ppO", &with_headers, &check_crcs, &decompress)) return NULL;
    Decoder *d = (Decoder *)PyType_GenericNew(type, NULL, NULL);
    if (d == NULL) return NULL;
    d->columns.with_headers = with_headers;
    d->check_crcs = check_crcs;
    d->decompress = Py_NewRef(decompress);
    return (PyObject *)d;
}

static void decoder_dealloc(PyObject *self)
{
    Decoder *d = (Decoder *)self;
    Py_XDECREF(decoder_release(self, NULL));
    tm_columns_free(&d->columns);
    Py_XDECREF(d->decompress);
    tm_free_object(self);
}

static PyMethodDef decoder_methods[] = {
    {"feed", decoder_feed, METH_VARARGS, "Take the record set of a response."},
    {"read", decoder_read, METH_VARARGS, "Return the next records as Arrow buffers."},
    {"release", decoder_release, METH_NOARGS, "Release the record set."},
    {NULL, NULL, 0, NULL},
};

int tm_add_decoder(PyObject *module)
{
    return tm_add_class(module, "tidemill._native.Decoder", "Turns record batches into Arrow columns.",
                        sizeof(Decoder), decoder_new, decoder_dealloc, decoder_methods, NULL);
}
