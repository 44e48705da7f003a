/* Checks the encoded records of a batch that a client sent, without decoding their contents.
 *
 * It stops in front of a record that it refuses, or that has many headers. tidemill.log.format.walk
 * then looks at that record, and has the words for what is wrong.
 * Source: the record format of Apache Kafka (KIP-98).
 */
#include "native.h"

#define MOST_HEADERS 64

typedef struct {
    const uint8_t *data;
    size_t size;
    size_t at;
} Cursor;

/* Reads an unsigned varint of at most `bits` bits. Returns 0 if it is longer or truncated. */
static int read_varint(Cursor *cursor, unsigned bits, uint64_t *number) {
    uint64_t value = 0;
    unsigned shift = 0;
    for (;;) {
        if (cursor->at >= cursor->size) return 0;
        uint8_t byte = cursor->data[cursor->at++];
        if (shift > bits || (shift == 63 && byte > 1)) return 0;
        value |= (uint64_t)(byte & 0x7F) << shift;
        shift += 7;
        if (byte < 128) break;
    }
    if (bits < 64 && value >> bits) return 0;
    *number = value;
    return 1;
}

/* Skips a part with its length in zigzag. `null` says whether the length may be -1. */
static int skip_part(Cursor *cursor, int null, int *is_null) {
    uint64_t length;
    if (!read_varint(cursor, 32, &length)) return 0;
    *is_null = length == 1;
    if (length & 1) return null && *is_null;
    length >>= 1;
    if (length > cursor->size - cursor->at) return 0;
    cursor->at += (size_t)length;
    return 1;
}

static int skip_headers(Cursor *cursor) {
    uint64_t number;
    int is_null;
    if (!read_varint(cursor, 32, &number) || number & 1 || number > 2 * MOST_HEADERS) return 0;
    for (number >>= 1; number > 0; number--)
        if (!skip_part(cursor, 0, &is_null) || !skip_part(cursor, 1, &is_null)) return 0;
    return 1;
}

/* Checks one record. Leaves the cursor anywhere if it returns 0. */
static int check_record(Cursor *cursor, uint64_t index, uint64_t *delta, int *without_key) {
    uint64_t size, offset;
    int is_null;
    if (!read_varint(cursor, 32, &size)) return 0;
    size_t start = cursor->at;
    if (start >= cursor->size) return 0;
    cursor->at++; /* attributes */
    if (!read_varint(cursor, 64, delta)) return 0;
    if (!read_varint(cursor, 32, &offset) || offset != 2 * index) return 0;
    if (!skip_part(cursor, 1, without_key)) return 0;
    if (!skip_part(cursor, 1, &is_null)) return 0;
    if (!skip_headers(cursor)) return 0;
    return (uint64_t)(cursor->at - start) << 1 == size;
}

tm_walked tm_walk(const uint8_t *data, size_t size, size_t position, Py_ssize_t first,
                  Py_ssize_t last)
{
    Cursor cursor = {data, size, position};
    tm_walked seen = {.end = position, .index = first, .latest = INT64_MIN};
    for (; seen.index < last; seen.index++) {
        uint64_t zigzag;
        int has_no_key;
        if (!check_record(&cursor, (uint64_t)seen.index, &zigzag, &has_no_key)) break;
        seen.end = cursor.at;
        seen.without_key += has_no_key;
        int64_t delta = (int64_t)(zigzag >> 1) ^ -(int64_t)(zigzag & 1);
        if (delta < seen.earliest) seen.earliest = delta;
        if (delta > seen.latest) seen.latest = delta;
    }
    return seen;
}

PyObject *tm_py_walk_records(PyObject *module, PyObject *args) {
    Py_buffer body;
    Py_ssize_t position, first, last;
    if (!PyArg_ParseTuple(args, "y*nnn:walk_records", &body, &position, &first, &last)) return NULL;
    if (position < 0 || position > body.len || first < 0) {
        PyBuffer_Release(&body);
        PyErr_SetString(PyExc_ValueError, "position or index out of range");
        return NULL;
    }
    tm_walked seen = tm_walk(body.buf, (size_t)body.len, (size_t)position, first, last);
    PyBuffer_Release(&body);
    return Py_BuildValue("nnLLn", (Py_ssize_t)seen.end, seen.index, (long long)seen.earliest,
                         (long long)seen.latest, seen.without_key);
}
