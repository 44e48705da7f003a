/* Arrow columns of records that are being written: see columns.c. */
#ifndef TIDEMILL_COLUMNS_H
#define TIDEMILL_COLUMNS_H

#include "native.h"

/* A column of byte strings: where each one ends, and which ones are null. */
typedef struct {
    tm_bytes bits, ends, data;
    size_t rows, nulls;
} tm_binary;

typedef struct {
    size_t rows;
    tm_binary key, value;
    tm_bytes offset, timestamp, timestamp_type;
    int with_headers;
    tm_bytes list_bits, list_ends;
    size_t list_nulls, header_rows;
    tm_binary header_key, header_value;
} tm_columns;

/* All return -1 with a Python error if there is not enough memory. */
int tm_binary_append(tm_binary *to, const uint8_t *data, int64_t length);
int tm_columns_append(tm_columns *to, int64_t offset, int64_t millis, int32_t type);
int tm_columns_end_headers(tm_columns *to, uint32_t count);
void tm_columns_free(tm_columns *columns);
size_t tm_columns_bytes(const tm_columns *columns);
PyObject *tm_columns_take(tm_columns *columns);

static inline int tm_set_bit(tm_bytes *bits, size_t row, int is_set)
{
    if (!(row & 7)) {
        if (tm_reserve(bits, 1) < 0) return -1;
        bits->data[bits->size++] = 0;
    }
    bits->data[row >> 3] |= (uint8_t)((is_set != 0) << (row & 7));
    return 0;
}

#endif
