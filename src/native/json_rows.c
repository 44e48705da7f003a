/* Rows: the fields of a JSON object become values of columns, in one pass over its bytes. */
#include "json.h"
#include <stdlib.h>
#include <string.h>

static json_status read_struct(json_rows *rows, int number, const uint8_t **position, int depth) {
    const json_node *node = &rows->plan->nodes[number];
    const uint8_t *at = *position, *object = at;
    size_t length = rows->columns[number].length;
    bool others = false;
    int expected = 0;
    json_status status;
    if (depth >= JSON_MAX_DEPTH) return JSON_MALFORMED;
    at++;
    for (bool first = true;; first = false) {
        int child;
        const uint8_t *name_end;
        json_next found = json_next_field(&at, rows->scan.end, first);
        if (found == NEXT_WRONG) return JSON_MALFORMED;
        if (found == NEXT_END) break;
        const uint8_t *name = at;
        status = json_read_name(rows, node, &at, expected, &child, &name_end);
        if (status) return status;
        if (child < 0) {
            others |= json_note_other(rows, node, object, name, name_end);
            status = json_skip(&rows->scan, &at, depth + 1);
            if (status) return status;
            continue;
        }
        expected = child + 1;
        if (rows->columns[node->child[child]].length > length) {
            json_truncate(rows->plan, rows->columns, node->child[child], length);
        }
        status = json_read_value(rows, node->child[child], &at, depth + 1);
        if (status) return status;
    }
    for (int k = 0; k < node->children; k++) {
        json_column *column = &rows->columns[node->child[k]];
        if (column->length > length) continue;
        if (others && column->other_object == object) {
            rows->case_node = node->child[k];
            rows->case_start = column->other_start;
            rows->case_end = column->other_end;
            return JSON_OTHER_CASE;
        }
        status = json_append_null(&rows->scan, rows->plan, rows->columns, node->child[k]);
        if (status) return status;
    }
    *position = at;
    return JSON_OK;
}

static json_status read_list(json_rows *rows, int element, const uint8_t **position, int depth) {
    const uint8_t *at = *position, *end = rows->scan.end;
    if (depth >= JSON_MAX_DEPTH) return JSON_MALFORMED;
    at = json_space(at + 1, end);
    if (at < end && *at == ']') {
        *position = at + 1;
        return JSON_OK;
    }
    for (;;) {
        at = json_space(at, end);
        json_status status = json_read_value(rows, element, &at, depth + 1);
        if (status) return status;
        at = json_space(at, end);
        if (at >= end) return JSON_MALFORMED;
        if (*at == ']') break;
        if (*at++ != ',') return JSON_MALFORMED;
    }
    *position = at + 1;
    return JSON_OK;
}

typedef struct {
    const uint8_t *at;
    size_t length;
} text;

static int compare(const void *a, const void *b) {
    const text *x = a, *y = b;
    if (x->length != y->length) return x->length < y->length ? -1 : 1;
    return memcmp(x->at, y->at, x->length);
}

/* Return JSON_WRONG if two keys from the first on are the same. */
static json_status distinct(json_rows *rows, const json_column *keys, size_t first) {
    size_t count = keys->length - first;
    text few[8], *all = few;
    json_status status = JSON_OK;
    if (count < 2) return JSON_OK;
    if (count > 8 && !(all = malloc(count * sizeof *all))) return JSON_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        int32_t start = keys->offsets[first + i];
        all[i].at = keys->bytes.at + start;
        all[i].length = (size_t)(keys->offsets[first + i + 1] - start);
    }
    qsort(all, count, sizeof *all, compare);
    for (size_t i = 1; i < count; i++) {
        if (compare(&all[i - 1], &all[i]) == 0) status = JSON_WRONG;
    }
    if (all != few) free(all);
    return status;
}

static json_status append_text(json_rows *rows, int number, const uint8_t **position) {
    json_column *column = &rows->columns[number];
    if (column->length == column->capacity) {
        json_status status = json_column_grow(&rows->scan, &rows->plan->nodes[number], column);
        if (status) return status;
    }
    json_status status = json_copy_string(&rows->scan, position, &column->bytes);
    if (status) return status;
    column->valid[column->length] = 1;
    column->offsets[++column->length] = (int32_t)column->bytes.length;
    return JSON_OK;
}

static json_status read_map(json_rows *rows, const json_node *node, const uint8_t **position,
                            int depth) {
    json_column *keys = &rows->columns[node->child[0]];
    const uint8_t *at = *position + 1;
    size_t start = keys->length;
    if (depth >= JSON_MAX_DEPTH) return JSON_MALFORMED;
    for (bool first = true;; first = false) {
        json_next found = json_next_field(&at, rows->scan.end, first);
        if (found == NEXT_WRONG) return JSON_MALFORMED;
        if (found == NEXT_END) break;
        json_status status = append_text(rows, node->child[0], &at);
        if (status) return status;
        at = json_space(at, rows->scan.end);
        if (at >= rows->scan.end || *at != ':') return JSON_MALFORMED;
        at = json_space(at + 1, rows->scan.end);
        status = json_read_value(rows, node->child[1], &at, depth + 1);
        if (status) return status;
    }
    *position = at;
    return distinct(rows, keys, start);
}

/* Read a number as a value of a fixed size. */
static json_status read_number(json_rows *rows, const json_node *node, const uint8_t **position,
                               uint8_t *out) {
    const uint8_t *start = *position;
    json_status status = json_skip_number(&rows->scan, position);
    const uint8_t *end = *position;
    bool good = false;
    int64_t number;
    if (status) return status;
    switch (node->kind) {
    case JSON_INTEGER:
        good = json_integer(start, end, node->width, &number);
        if (!good) break;
        if (node->width == 1) *(int8_t *)out = (int8_t)number;
        else if (node->width == 2) *(int16_t *)out = (int16_t)number;
        else if (node->width == 4) *(int32_t *)out = (int32_t)number;
        else *(int64_t *)out = number;
        break;
    case JSON_DOUBLE: good = json_double(start, end, (double *)out); break;
    case JSON_SINGLE: good = json_single(start, end, (float *)out); break;
    case JSON_DECIMAL:
        good = json_decimal(start, end, node->precision, node->scale, out);
        break;
    case JSON_TIMESTAMP:
        if (rows->plan->timestamp_power < 0) break;
        good = json_epoch(start, end, rows->plan->timestamp_power, (int64_t *)out);
        break;
    default: break;
    }
    return good ? JSON_OK : JSON_WRONG;
}

/* Read a string as a value of a fixed size. */
static json_status read_quoted(json_rows *rows, const json_node *node, const uint8_t **position,
                               uint8_t *out) {
    json_buffer *scratch = &rows->scan.scratch;
    bool good = false, zone;
    int32_t day;
    int64_t us;
    double special;
    scratch->length = 0;
    json_status status = json_copy_string(&rows->scan, position, scratch);
    if (status) return status;
    const uint8_t *start = scratch->at, *end = start + scratch->length;
    switch (node->kind) {
    case JSON_SINGLE:
    case JSON_DOUBLE:
        good = json_special(start, scratch->length, &special);
        if (!good) break;
        if (node->kind == JSON_DOUBLE) *(double *)out = special;
        else *(float *)out = (float)special;
        break;
    case JSON_DECIMAL:
        good = json_is_decimal(start, end) &&
               json_decimal(start, end, node->precision, node->scale, out);
        break;
    case JSON_DATE:
        good = json_moment(start, end, &day, &us, &zone);
        if (good) *(int32_t *)out = day;
        break;
    case JSON_TIMESTAMP:
    case JSON_TIMESTAMP_NTZ:
        good = json_moment(start, end, &day, &us, &zone) && json_in_years(us) &&
               !(zone && node->kind == JSON_TIMESTAMP_NTZ);
        if (good) *(int64_t *)out = us;
        break;
    default: break;
    }
    return good ? JSON_OK : JSON_WRONG;
}

static bool word(const uint8_t *at, const uint8_t *end, const char *expected, size_t length) {
    return (size_t)(end - at) >= length && memcmp(at, expected, length) == 0;
}

static json_status read_string(json_rows *rows, int number, const uint8_t **position, int depth) {
    json_column *column = &rows->columns[number];
    const uint8_t *start = *position;
    json_status status;
    if (*start == '"') return append_text(rows, number, position);
    status = json_skip(&rows->scan, position, depth);
    if (status == JSON_OK) status = json_compact(&rows->scan, start, *position, &column->bytes);
    if (status) return status;
    column->valid[column->length] = 1;
    column->offsets[++column->length] = (int32_t)column->bytes.length;
    return JSON_OK;
}

static json_status read_binary(json_rows *rows, json_column *column, const uint8_t **position) {
    json_buffer *bytes = &column->bytes;
    size_t start = bytes->length, decoded;
    if (**position != '"') return JSON_WRONG;
    json_status status = json_copy_string(&rows->scan, position, bytes);
    if (status) return status;
    if (!json_base64(bytes->at + start, bytes->length - start, &decoded)) return JSON_WRONG;
    bytes->length = start + decoded;
    column->valid[column->length] = 1;
    column->offsets[++column->length] = (int32_t)bytes->length;
    return JSON_OK;
}

/* Read an object or an array of a list, a map or a struct, and count it. */
static json_status read_nested(json_rows *rows, int number, const uint8_t **position, int depth) {
    const json_node *node = &rows->plan->nodes[number];
    json_column *column = &rows->columns[number];
    json_status status;
    if (**position != (node->kind == JSON_LIST ? '[' : '{')) return JSON_WRONG;
    if (node->kind == JSON_STRUCT) {
        status = read_struct(rows, number, position, depth);
    } else if (node->kind == JSON_LIST) {
        status = read_list(rows, node->child[0], position, depth);
    } else {
        status = read_map(rows, node, position, depth);
    }
    if (status) return status;
    column->valid[column->length++] = 1;
    if (node->kind != JSON_STRUCT) {
        column->offsets[column->length] = (int32_t)rows->columns[node->child[0]].length;
    }
    return JSON_OK;
}

/* Read one value and append it to its column. If that fails, the column has to be truncated. */
json_status json_read_value(json_rows *rows, int number, const uint8_t **position, int depth) {
    const json_node *node = &rows->plan->nodes[number];
    json_column *column = &rows->columns[number];
    const uint8_t *at = *position, *end = rows->scan.end;
    json_status status;
    if (at >= end) return JSON_MALFORMED;
    if (column->length == column->capacity) {
        status = json_column_grow(&rows->scan, node, column);
        if (status) return status;
    }
    if (*at == 'n') {
        if (!word(at, end, "null", 4)) return JSON_MALFORMED;
        *position = at + 4;
        return json_append_null(&rows->scan, rows->plan, rows->columns, number);
    }
    if (node->kind == JSON_STRING) return read_string(rows, number, position, depth);
    if (node->kind == JSON_BINARY) return read_binary(rows, column, position);
    if (!node->width) return read_nested(rows, number, position, depth);
    uint8_t *out = column->fixed + column->length * (size_t)node->width;
    if (node->kind == JSON_BOOLEAN) {
        bool yes = *at == 't';
        if (!word(at, end, yes ? "true" : "false", yes ? 4 : 5)) return JSON_WRONG;
        *out = yes;
        *position = at + (yes ? 4 : 5);
    } else if (*at == '"') {
        status = read_quoted(rows, node, position, out);
        if (status) return status;
    } else if (*at == '-' || (*at >= '0' && *at <= '9')) {
        status = read_number(rows, node, position, out);
        if (status) return status;
    } else {
        return JSON_WRONG;
    }
    column->valid[column->length++] = 1;
    return JSON_OK;
}
