/* What the files of the encoder of changes share. */
#ifndef TIDEMILL_CHANGES_H
#define TIDEMILL_CHANGES_H

#include "native.h"

/* The rule for the text of a value. VALUE: what the column's function returns for it. */
enum { VALUE = 0, TEXT = 1, INTEGER = 2, BOOLEAN = 3, TIMESTAMP = 4, TIMESTAMPTZ = 5 };
enum { RULES = 6, MOST_COLUMNS = 4096 };

/* A value: text of the database, or an object of Python, or neither for NULL. */
typedef struct {
    const uint8_t *text;
    Py_ssize_t size;
    PyObject *object;
} Cell;

typedef struct {
    PyObject *name;    /* bytes: the name in JSON with its colon */
    PyObject *convert; /* takes bytes, returns a JSON value; used with VALUE, and if a text is unusual */
    int rule;
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

/* Return the object as an encoder of changes; NULL with an error if it is not one. */
ChangeEncoder *tm_change_encoder(PyObject *object);
/* Append the records of a change, and return their number, -1 with an error. `op`: c, u, d or r. `before` can be NULL; `is_partial`: it has the
 * columns of the replica identity only. The end of the block `source` is in e->more. */
int tm_put_change(ChangeEncoder *e, char op, const Cell *before, int is_partial, const Cell *after,
                  const Moment *moment);
/* Begin e->more: a comma, the name with quotes and colon, and the number. */
int tm_put_more(ChangeEncoder *e, const char *name, unsigned long long number,
                const void *tail, size_t tail_size);

/* changes_copy.c */
PyObject *tm_encode_copy(PyObject *self, PyObject *args);
/* changes_rows.c */
PyObject *tm_encode_rows(PyObject *self, PyObject *args);

#endif
