/* The columns of records in Arrow's layout: validity bits, ends of values, values.
 *
 * The caller bounds the bytes of a column below 2 GiB, because Arrow's ends are 32 bits wide.
 * Source: Apache Arrow, "Arrow Columnar Format", variable-size binary and list layout.
 */
#include "columns.h"

#include <stdlib.h>

static int append_i32(tm_bytes *to, int32_t number) { return tm_put(to, &number, 4); }
static int append_i64(tm_bytes *to, int64_t number) { return tm_put(to, &number, 8); }

/* Append a value; null if the length is negative. */
int tm_binary_append(tm_binary *to, const uint8_t *data, int64_t length)
{
    if (to->rows == 0 && append_i32(&to->ends, 0) < 0) return -1;
    if (tm_set_bit(&to->bits, to->rows, length >= 0) < 0) return -1;
    if (length > 0) {
        if (tm_put(&to->data, data, (size_t)length) < 0) return -1;
    } else if (length < 0) {
        to->nulls++;
    }
    to->rows++;
    return append_i32(&to->ends, (int32_t)to->data.size);
}

/* Append what a record has besides key, value and headers. A time that microseconds can't express
   becomes the nearest one: a producer can send any number, for example nanoseconds. */
int tm_columns_append(tm_columns *to, int64_t offset, int64_t millis, int32_t type)
{
    const int64_t most = INT64_MAX / 1000;
    if (millis > most) millis = most;
    if (millis < -most) millis = -most;
    if (append_i64(&to->offset, offset) < 0) return -1;
    if (append_i64(&to->timestamp, millis * 1000) < 0) return -1;
    if (append_i32(&to->timestamp_type, type) < 0) return -1;
    to->rows++;
    return 0;
}

/* End the list of headers of a record; a record without headers has a null. */
int tm_columns_end_headers(tm_columns *to, uint32_t count)
{
    size_t row = to->list_ends.size / 4;
    if (row == 0) {
        if (append_i32(&to->list_ends, 0) < 0) return -1;
    } else {
        row--;
    }
    if (tm_set_bit(&to->list_bits, row, count > 0) < 0) return -1;
    to->list_nulls += count == 0;
    to->header_rows += count;
    return append_i32(&to->list_ends, (int32_t)to->header_rows);
}

static void free_binary(tm_binary *column)
{
    free(column->bits.data);
    free(column->ends.data);
    free(column->data.data);
}

void tm_columns_free(tm_columns *columns)
{
    int with_headers = columns->with_headers;
    free_binary(&columns->key);
    free_binary(&columns->value);
    free_binary(&columns->header_key);
    free_binary(&columns->header_value);
    free(columns->offset.data);
    free(columns->timestamp.data);
    free(columns->timestamp_type.data);
    free(columns->list_bits.data);
    free(columns->list_ends.data);
    *columns = (tm_columns){.with_headers = with_headers};
}

/* Return the bytes of keys, values and headers. */
size_t tm_columns_bytes(const tm_columns *columns)
{
    return columns->key.data.size + columns->value.data.size + columns->header_key.data.size +
           columns->header_value.data.size + 16 * columns->header_rows;
}

/* Put a Block into the tuple. Return the next index, or -1. */
static Py_ssize_t put(PyObject *tuple, Py_ssize_t at, tm_bytes *bytes)
{
    if (at < 0) return -1;
    PyObject *block = tm_block(bytes);
    if (block == NULL || PyTuple_SetItem(tuple, at, block) < 0) return -1;
    return at + 1;
}

/* Put validity bits: None if no value is null. */
static Py_ssize_t put_bits(PyObject *tuple, Py_ssize_t at, tm_bytes *bits, size_t nulls)
{
    if (at < 0 || nulls) return put(tuple, at, bits);
    return PyTuple_SetItem(tuple, at, Py_NewRef(Py_None)) < 0 ? -1 : at + 1;
}

static Py_ssize_t put_binary(PyObject *tuple, Py_ssize_t at, tm_binary *column)
{
    if (column->rows == 0 && append_i32(&column->ends, 0) < 0) return -1;
    at = put_bits(tuple, at, &column->bits, column->nulls);
    at = put(tuple, at, &column->ends);
    return put(tuple, at, &column->data);
}

/* Return the buffers as a tuple, and begin new columns. */
PyObject *tm_columns_take(tm_columns *columns)
{
    PyObject *tuple = PyTuple_New(columns->with_headers ? 17 : 9);
    if (tuple == NULL) return NULL;
    Py_ssize_t at = put_binary(tuple, 0, &columns->key);
    at = put_binary(tuple, at, &columns->value);
    at = put(tuple, at, &columns->offset);
    at = put(tuple, at, &columns->timestamp);
    at = put(tuple, at, &columns->timestamp_type);
    if (columns->with_headers) {
        at = put_bits(tuple, at, &columns->list_bits, columns->list_nulls);
        at = put(tuple, at, &columns->list_ends);
        at = put_binary(tuple, at, &columns->header_key);
        at = put_binary(tuple, at, &columns->header_value);
    }
    tm_columns_free(columns);
    if (at < 0) Py_CLEAR(tuple);
    return tuple;
}
