/* What the files of the encoder of changes share. */
#ifndef TIDEMILL_CHANGES_H
#define TIDEMILL_CHANGES_H

#include "text.h"

/* The rule for the text of a value. VALUE: what the column's function returns for it. */
enum { VALUE = 0, TEXT = 1, INTEGER = 2, BOOLEAN = 3, TIMESTAMP = 4, TIMESTAMPTZ = 5 };
/* Rules for values of MariaDB's binary log, see binlog_values.c. */
enum {
    SIGNED = 6, UNSIGNED = 7, SINGLE = 8, DOUBLE = 9, DECIMAL = 10, DATE = 11, DATETIME = 12,
    SECONDS = 13, UTF8 = 14, ASCII = 15, BYTES = 16
};
enum { RULES = 17, MOST_COLUMNS = 4096 };

/* A value: text of the database, or an object of Python, or neither for NULL. */
typedef struct {
    const uint8_t *text;
    Py_ssize_t size;
    PyObject *object;
} Cell;

typedef struct {
    PyObject *name;    /* bytes: the name in JSON with its colon */
    PyObject *convert; /* takes bytes, returns a JSON value; used with VALUE, and if a text is unusual */
    int rule; /* the lowest byte; the higher ones are its parameters */
    int is_identity; /* whether old rows that have the replica identity only have it */
} ColumnRule;

typedef struct {
    PyObject_HEAD
    PyObject *records; /* RecordEncoder */
    PyObject *dumps;   /* returns the JSON of an object as bytes */
    PyObject *source;  /* bytes: the constant part of the block `source`, without its brace */
    ColumnRule *columns;
    Py_ssize_t count;
    Py_ssize_t *key; /* places of the key's columns */
    Py_ssize_t keys;
    int is_plain;
    Cell *before, *after;
    tm_bytes new_key, old_key, value, more, scratch;
} ChangeEncoder;

/* What is the same for the records of a change. */
typedef struct {
    long long ts_ms, stamp_ms;
    const char *snapshot;
} Moment;

/* binlog_values.c: put a value of the binary log. Return 1, 0 if the column's function has to do it, or
 * -1 with an error. */
int tm_put_binlog_value(PyObject *dumps, int rule, const Cell *cell, tm_bytes *to);

/* changes.c */
/* Return the object as an encoder of changes; NULL with an error if it is not one. */
ChangeEncoder *tm_change_encoder(PyObject *object);
/* Append the records of a change, and return their number, -1 with an error. `op`: c, u, d or r.
 * `before` can be NULL; `is_partial`: it has the columns of the replica identity only. The end of the
 * block `source` is in e->more. */
int tm_put_change(ChangeEncoder *e, char op, const Cell *before, int is_partial, const Cell *after,
                  const Moment *moment);
/* Begin e->more: a comma, the name with quotes and colon, and the number. */
int tm_put_more(ChangeEncoder *e, const char *name, unsigned long long number,
                const void *tail, size_t tail_size);

/* Take (encoder, rows, time, end of the block `source`, time of processing), and begin e->more with this
 * end. Return the rows, a borrowed list; NULL with an error. */
PyObject *tm_begin_rows(PyObject *args, ChangeEncoder **encoder, Moment *moment);

#endif
