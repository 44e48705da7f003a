/* What the files of the JSON parser share. docs/json-values.md has the rules of values.
 *
 * json_scan.c    the syntax: strings, numbers, where a value ends
 * json_values.c  the text of one string or number as a value of a type
 * json_columns.c the memory of columns
 * json_fields.c  names of fields
 * json_rows.c    an object's fields to columns
 * json.c         values to rows, or to reasons why they are refused
 * json_type.c    the Python type
 *
 * Positions are pointers into the values' bytes; nothing is read at or behind scan.end, the end of
 * the value, except by loads of 16 bytes that stay before scan.data_end, the end of all values.
 */
#ifndef TIDEMILL_JSON_H
#define TIDEMILL_JSON_H

#include "native.h"
#include <stdbool.h>
#include <stddef.h>

enum {
    JSON_MAX_DEPTH = 1000,  /* objects and arrays inside of each other: Spark's limit */
    JSON_MAX_NUMBER = 1000, /* characters of a number: Spark's limit */
    JSON_PADDING = 32,      /* bytes behind the text of a buffer that copies may overwrite */
};

typedef enum {
    JSON_OK,
    JSON_WRONG,      /* the value is not of its column's type */
    JSON_OTHER_CASE, /* a field is missing, and one in other letters is present */
    JSON_MALFORMED,  /* the text is not JSON, or passes a limit */
    JSON_NO_MEMORY,
    JSON_TOO_LARGE, /* the columns need more memory than the caller allows */
} json_status;

typedef enum {
    JSON_BOOLEAN,
    JSON_INTEGER, /* of 8 * width bits */
    JSON_SINGLE,
    JSON_DOUBLE,
    JSON_DECIMAL,
    JSON_STRING,
    JSON_BINARY,
    JSON_DATE,
    JSON_TIMESTAMP,
    JSON_TIMESTAMP_NTZ,
    JSON_STRUCT,
    JSON_LIST,
    JSON_MAP,
    JSON_KINDS,
} json_kind;

/* Bytes that grow. */
typedef struct {
    uint8_t *at;
    size_t length, capacity;
} json_buffer;

/* A column, or a part of one. The first node is the row itself, a struct of all columns. */
typedef struct {
    json_kind kind;
    int width;            /* bytes of a value, for kinds of a fixed size */
    int precision, scale; /* of a decimal */
    int column;           /* number of the top-level column it belongs to; -1 for the row */
    int children;
    int *child; /* numbers of its nodes */
    char *name;
    size_t name_length;
    bool plain_name; /* a name in a value can only be written like this, or with \u */
    int *by_name;    /* hash tables of its children, by name and by name in small letters */
    int *by_folded;
    uint32_t mask;
} json_node;

typedef struct {
    json_node *nodes;
    int count;
    int event_time;      /* number of a column; -1 for none */
    int timestamp_power; /* a number times ten to this is microseconds; -1 if none is a timestamp */
} json_plan;

/* The memory of a node. */
typedef struct {
    size_t length, capacity;
    uint8_t *valid;   /* one byte a value */
    uint8_t *fixed;   /* values of a fixed size */
    int32_t *offsets; /* of strings, lists and maps: capacity + 1 */
    json_buffer bytes;
    /* The first field in the object at other_object that differs from this one only in case. */
    const uint8_t *other_object, *other_start, *other_end;
} json_column;

typedef struct {
    const uint8_t *end;      /* of the value */
    const uint8_t *data_end; /* of all values */
    json_buffer scratch;
    size_t allocated, limit; /* bytes of columns */
} json_scan;

typedef struct {
    bool negative;
    int count;        /* of digits: none at either end is a zero, and there are none for zero */
    int64_t exponent; /* the number is digits * 10 ** exponent */
    char digits[JSON_MAX_NUMBER];
} json_number;

/* json_scan.c. Functions that take **at move it behind what they read, if they return JSON_OK. */
static inline const uint8_t *json_space(const uint8_t *at, const uint8_t *end) {
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) at++;
    return at;
}
bool json_is_utf8(const uint8_t *at, const uint8_t *end);
json_status json_skip_string(json_scan *scan, const uint8_t **at);
json_status json_copy_string(json_scan *scan, const uint8_t **at, json_buffer *out);
json_status json_skip_number(json_scan *scan, const uint8_t **at);
json_status json_skip(json_scan *scan, const uint8_t **at, int depth);
json_status json_compact(json_scan *scan, const uint8_t *at, const uint8_t *end, json_buffer *out);

/* json_values.c. They return false if the text is not of the type. */
bool json_integer(const uint8_t *at, const uint8_t *end, int width, int64_t *value);
bool json_double(const uint8_t *at, const uint8_t *end, double *value);
bool json_single(const uint8_t *at, const uint8_t *end, float *value);
bool json_special(const uint8_t *at, size_t length, double *value);
bool json_decimal(const uint8_t *at, const uint8_t *end, int precision, int scale, uint8_t *value);
bool json_is_decimal(const uint8_t *at, const uint8_t *end);
bool json_base64(uint8_t *text, size_t length, size_t *decoded);
bool json_epoch(const uint8_t *at, const uint8_t *end, int power, int64_t *us);
bool json_moment(const uint8_t *at, const uint8_t *end, int32_t *day, int64_t *us, bool *zone);
bool json_in_years(int64_t us);
bool json_values_start(void);

/* json_columns.c */
json_status json_reserve(json_scan *scan, json_buffer *buffer, size_t more);
json_status json_column_start(json_scan *scan, const json_node *node, json_column *column, size_t n);
json_status json_column_grow(json_scan *scan, const json_node *node, json_column *column);
json_status json_append_null(json_scan *scan, const json_plan *plan, json_column *columns, int node);
void json_truncate(const json_plan *plan, json_column *columns, int node, size_t length);
void json_column_free(json_column *column);
PyObject *json_column_take(const json_node *node, json_column *column);

/* json.c */
typedef enum {
    JSON_REASON_NULL,
    JSON_REASON_UTF8,
    JSON_REASON_OBJECT,
    JSON_REASON_MORE,
    JSON_REASON_TYPE,
    JSON_REASON_CASE,
    JSON_REASON_EVENT_TIME,
} json_reason;

/* A field that refuses its value: 5 numbers for Python. Positions are those in the values' bytes. */
typedef struct {
    int64_t row, reason, node, start, end;
} json_problem;

typedef struct {
    json_scan scan;
    const json_plan *plan;
    json_column *columns;
    const uint8_t *data;
    const bool *dropped;  /* of each top-level column: not to be built */
    bool check;           /* build nothing */
    size_t rows;          /* that are in the columns */
    json_buffer problems; /* of json_problem */
    json_problem *found;  /* of the current value: one for each top-level column; row -1 for none */
    int founds;
    int case_node; /* the details of JSON_OTHER_CASE */
    const uint8_t *case_start, *case_end;
} json_rows;

/* json_fields.c */
typedef enum { NEXT_FIELD, NEXT_END, NEXT_WRONG } json_next;

bool json_plan_names(json_plan *plan);
json_status json_read_name(json_rows *rows, const json_node *node, const uint8_t **position,
                           int expected, int *child, const uint8_t **name_end);
bool json_note_other(json_rows *rows, const json_node *node, const uint8_t *object,
                     const uint8_t *start, const uint8_t *end);
json_next json_next_field(const uint8_t **position, const uint8_t *end, bool first);

/* json_rows.c */
json_status json_read_value(json_rows *rows, int number, const uint8_t **position, int depth);

/* json.c */
json_status json_row(json_rows *rows, int64_t row, const uint8_t *at, const uint8_t *end,
                     bool *accepted);
json_status json_refuse(json_rows *rows, int64_t row, json_reason reason);

#endif
