/* The memory of columns: they grow while values are read, and become Arrow's buffers uncopied. */
#include "json.h"
#include <stdlib.h>
#include <string.h>

/* Resize memory of columns within the caller's limit. */
static json_status resize(json_scan *scan, void *at, size_t before, size_t size) {
    void *made, **memory = at;
    if (size > before && size - before > scan->limit - scan->allocated) return JSON_TOO_LARGE;
    made = realloc(*memory, size ? size : 1);
    if (!made) return JSON_NO_MEMORY;
    *memory = made;
    scan->allocated += size - before;
    return JSON_OK;
}

json_status json_reserve(json_scan *scan, json_buffer *buffer, size_t more) {
    if (more <= buffer->capacity - buffer->length) return JSON_OK;
    if (more > SIZE_MAX / 4 || buffer->length > SIZE_MAX / 4) return JSON_TOO_LARGE;
    size_t capacity = buffer->length + more;
    if (capacity < 2 * buffer->capacity) capacity = 2 * buffer->capacity;
    json_status status = resize(scan, &buffer->at, buffer->capacity, capacity);
    if (status == JSON_OK) buffer->capacity = capacity;
    return status;
}

static json_status grow_to(json_scan *scan, const json_node *node, json_column *column, size_t n) {
    size_t old = column->capacity;
    json_status status = resize(scan, &column->valid, old, n);
    if (status == JSON_OK && node->width) {
        size_t width = (size_t)node->width;
        status = resize(scan, &column->fixed, old * width, n * width);
    } else if (status == JSON_OK && node->kind != JSON_STRUCT) {
        bool first = column->offsets == NULL;
        status = resize(scan, &column->offsets, first ? 0 : 4 * (old + 1), 4 * (n + 1));
        if (status == JSON_OK && first) column->offsets[0] = 0;
    }
    if (status == JSON_OK) column->capacity = n;
    return status;
}

/* Give a column capacity for its first n values. */
json_status json_column_start(json_scan *scan, const json_node *node, json_column *column,
                              size_t n) {
    return grow_to(scan, node, column, n ? n : 1);
}

/* Give a full column more capacity. */
json_status json_column_grow(json_scan *scan, const json_node *node, json_column *column) {
    if (column->capacity >= INT32_MAX / 2) return JSON_TOO_LARGE;
    size_t more = column->capacity < 64 ? 64 : 2 * column->capacity;
    return grow_to(scan, node, column, more);
}

json_status json_append_null(json_scan *scan, const json_plan *plan, json_column *columns,
                             int number) {
    const json_node *node = &plan->nodes[number];
    json_column *column = &columns[number];
    if (column->length == column->capacity) {
        json_status status = json_column_grow(scan, node, column);
        if (status) return status;
    }
    size_t i = column->length;
    column->valid[i] = 0;
    if (node->width) {
        memset(column->fixed + i * (size_t)node->width, 0, (size_t)node->width);
    } else if (node->kind != JSON_STRUCT) {
        column->offsets[i + 1] = column->offsets[i];
    } else {
        for (int k = 0; k < node->children; k++) {
            json_status status = json_append_null(scan, plan, columns, node->child[k]);
            if (status) return status;
        }
    }
    column->length++;
    return JSON_OK;
}

/* Forget all values from a number on, those that are incomplete among them. */
void json_truncate(const json_plan *plan, json_column *columns, int number, size_t length) {
    const json_node *node = &plan->nodes[number];
    json_column *column = &columns[number];
    if (column->length > length) column->length = length;
    if (node->kind == JSON_STRUCT) {
        for (int k = 0; k < node->children; k++) {
            json_truncate(plan, columns, node->child[k], length);
        }
    } else if (column->offsets) {
        size_t end = (size_t)column->offsets[column->length];
        if (node->children) {
            for (int k = 0; k < node->children; k++) {
                json_truncate(plan, columns, node->child[k], end);
            }
        } else {
            column->bytes.length = end;
        }
    }
}

void json_column_free(json_column *column) {
    free(column->valid);
    free(column->fixed);
    free(column->offsets);
    free(column->bytes.at);
    memset(column, 0, sizeof *column);
}

/* Return memory, of which some may be free, as an object that owns it; *at becomes NULL. */
static PyObject *take(void *at, size_t size, size_t capacity) {
    uint8_t **memory = at;
    tm_bytes bytes = {.data = *memory, .size = size, .capacity = capacity};
    PyObject *made = tm_block(&bytes);
    if (made) *memory = NULL;
    return made;
}

/* Pack bytes of 0 and 1 to bits, in their place. */
static void pack(uint8_t *bytes, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint8_t bits = 0;
        for (int k = 0; k < 8; k++) bits |= (uint8_t)(bytes[i + (size_t)k] << k);
        bytes[i / 8] = bits;
    }
    if (i < count) {
        uint8_t bits = 0;
        for (size_t k = i; k < count; k++) bits |= (uint8_t)(bytes[k] << (k - i));
        bytes[i / 8] = bits;
    }
}

/* Return (length, nulls, validity or None, offsets or None, data or None), and empty the column. */
PyObject *json_column_take(const json_node *node, json_column *column) {
    size_t length = column->length, nulls = length, width = (size_t)node->width;
    PyObject *valid = NULL, *offsets = NULL, *data = NULL, *made = NULL;
    for (size_t i = 0; i < length; i++) nulls -= column->valid[i];
    if (nulls) {
        pack(column->valid, length);
        valid = take(&column->valid, (length + 7) / 8, column->capacity);
        if (!valid) goto done;
    }
    if (node->kind == JSON_BOOLEAN) {
        pack(column->fixed, length);
        data = take(&column->fixed, (length + 7) / 8, column->capacity);
    } else if (node->width) {
        data = take(&column->fixed, length * width, column->capacity * width);
    } else if (node->kind != JSON_STRUCT) {
        offsets = take(&column->offsets, 4 * (length + 1), 4 * (column->capacity + 1));
        if (!offsets) goto done;
        if (!node->children) {
            data = take(&column->bytes.at, column->bytes.length, column->bytes.capacity);
        }
    }
    if (PyErr_Occurred()) goto done;
    made = Py_BuildValue("nnOOO", (Py_ssize_t)length, (Py_ssize_t)nulls, valid ? valid : Py_None,
                         offsets ? offsets : Py_None, data ? data : Py_None);
done:
    Py_XDECREF(valid);
    Py_XDECREF(offsets);
    Py_XDECREF(data);
    json_column_free(column);
    return made;
}
