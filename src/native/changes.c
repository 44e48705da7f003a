/* ChangeEncoder: turns the changes of one table into records, key and envelope as JSON.
 *
 * It gives the same bytes as connect/cdc/envelope.py with orjson. A value that has no rule here is
 * given to Python: the column's own function for its text, and orjson for a float or an array. Every
 * text is checked; one that is not UTF-8 keeps its valid parts and shows each other byte as \xNN.
 * Knows no Kafka but records, and no database: changes_rows.c, changes_pgoutput.c, changes_copy.c and
 * binlog.c read the rows.
 *
 * Source of the format: Debezium's documentation of the PostgreSQL connector, "Data change events".
 */
#include "changes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static PyTypeObject *change_encoder_type;

/* --- values -------------------------------------------------------------------------------- */

/* Put an object by the rules of connect/cdc/values.py. */
static int put_object(ChangeEncoder *e, PyObject *value, tm_bytes *to)
{
    if (PyUnicode_CheckExact(value)) return tm_put_unicode(to, value);
    if (PyLong_CheckExact(value)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (!overflow) return number == -1 && PyErr_Occurred() ? -1 : tm_put_number(to, number);
        PyObject *text = PyObject_Str(value);
        if (text == NULL) return -1;
        int result = tm_put_unicode(to, text);
        Py_DECREF(text);
        return result;
    }
    if (value == Py_None) return PUT(to, "null");
    if (PyFloat_CheckExact(value)) return tm_put_float(e->dumps, value, to);
    if (PyBytes_CheckExact(value)) {
        char *data;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(value, &data, &size) < 0) return -1;
        return tm_put_base64(to, (const uint8_t *)data, (size_t)size);
    }
    return tm_put_dumped(e->dumps, value, to);
}

static int put_converted(ChangeEncoder *e, const ColumnRule *column, const Cell *cell, tm_bytes *to)
{
    PyObject *text = PyBytes_FromStringAndSize((const char *)cell->text, cell->size);
    if (text == NULL) return -1;
    PyObject *value = PyObject_CallFunctionObjArgs(column->convert, text, NULL);
    Py_DECREF(text);
    if (value == NULL) return -1;
    int result = put_object(e, value, to);
    Py_DECREF(value);
    return result;
}

/* Whether a text is an integer of 64 bits as JSON writes it. */
static int is_integer(const uint8_t *data, Py_ssize_t size)
{
    if (size > 1 && data[0] == '-') data++, size--;
    if (size < 1 || size > 18 || (size > 1 && data[0] == '0')) return 0;
    for (Py_ssize_t i = 0; i < size; i++)
        if (data[i] < '0' || data[i] > '9') return 0;
    return 1;
}

/* Put a timestamp of the years 1 to 9999, `cut` bytes shorter, with `end` behind it. */
static int put_timestamp(const Cell *cell, Py_ssize_t cut, const char *end, tm_bytes *to)
{
    if (tm_put_text(to, cell->text, (size_t)(cell->size - cut), "backslashreplace") < 0) return -1;
    to->data[to->size - (size_t)(cell->size - cut) - 1 + 10] = 'T';
    if (!*end) return 0;
    to->data[to->size - 1] = (uint8_t)*end;
    return PUT(to, "\"");
}

static int put_cell(ChangeEncoder *e, const ColumnRule *column, const Cell *cell, tm_bytes *to)
{
    const uint8_t *text = cell->text;
    Py_ssize_t size = cell->size;
    if (text == NULL) return cell->object ? put_object(e, cell->object, to) : PUT(to, "null");
    switch (column->rule & 0xFF) {
    case TEXT:
        return tm_put_text(to, text, (size_t)size, "backslashreplace");
    case INTEGER:
        if (is_integer(text, size)) return tm_put(to, text, (size_t)size);
        break;
    case BOOLEAN:
        return size == 1 && text[0] == 't' ? PUT(to, "true") : PUT(to, "false");
    case TIMESTAMP:
    case TIMESTAMPTZ:
        if (size < 19 || text[10] != ' ' || text[size - 1] == 'C' ||
            tm_plain_until(text, (size_t)size, 1) != (size_t)size)
            break;
        return column->rule == TIMESTAMP ? put_timestamp(cell, 0, "", to)
                                         : put_timestamp(cell, 3, "Z", to);
    case VALUE:
        break;
    default: {
        int result = tm_put_binlog_value(e->dumps, column->rule, cell, to);
        if (result) return result < 0 ? -1 : 0;
    }
    }
    return put_converted(e, column, cell, to);
}

static int put_row(ChangeEncoder *e, const Cell *cells, int is_partial, tm_bytes *to)
{
    int is_first = 1;
    for (Py_ssize_t i = 0; i < e->count; i++) {
        const ColumnRule *column = &e->columns[i];
        if (is_partial && !column->is_identity) continue;
        if ((is_first ? PUT(to, "{") : PUT(to, ",")) < 0) return -1;
        if (tm_put_object_bytes(to, column->name) < 0) return -1;
        if (put_cell(e, column, &cells[i], to) < 0) return -1;
        is_first = 0;
    }
    return is_first ? PUT(to, "{}") : PUT(to, "}");
}

static int put_key(ChangeEncoder *e, const Cell *cells, tm_bytes *to)
{
    to->size = 0;
    for (Py_ssize_t i = 0; i < e->keys; i++) {
        const ColumnRule *column = &e->columns[e->key[i]];
        if ((i ? PUT(to, ",") : PUT(to, "{")) < 0) return -1;
        if (tm_put_object_bytes(to, column->name) < 0) return -1;
        if (put_cell(e, column, &cells[e->key[i]], to) < 0) return -1;
    }
    return e->keys ? PUT(to, "}") : PUT(to, "{}");
}

/* --- records ------------------------------------------------------------------------------- */

static int put_record(ChangeEncoder *e, const tm_bytes *key, const tm_bytes *value, long long ts_ms)
{
    int64_t size = value ? (int64_t)value->size : -1;
    int status = tm_append_record(e->records, key->data, (int64_t)key->size,
                                  value ? value->data : NULL, size, ts_ms);
    if (status <= 0) return status < 0 ? -1 : 1;
    PyErr_Format(PyExc_OverflowError, "%zd", (Py_ssize_t)key->size + (Py_ssize_t)(size > 0 ? size : 0));
    return -1;
}

static int put_envelope(ChangeEncoder *e, char op, const Cell *before, int is_partial,
                        const Cell *after, const Moment *moment)
{
    tm_bytes *to = &e->value;
    to->size = 0;
    if (e->is_plain) return put_row(e, after, 0, to);
    if (PUT(to, "{\"before\":") < 0) return -1;
    if ((before ? put_row(e, before, is_partial, to) : PUT(to, "null")) < 0) return -1;
    if (PUT(to, ",\"after\":") < 0) return -1;
    if ((after ? put_row(e, after, 0, to) : PUT(to, "null")) < 0) return -1;
    if (PUT(to, ",\"source\":") < 0 || tm_put_object_bytes(to, e->source) < 0) return -1;
    if (PUT(to, ",\"snapshot\":\"") < 0) return -1;
    if (tm_put(to, moment->snapshot, strlen(moment->snapshot)) < 0) return -1;
    if (PUT(to, "\",\"ts_ms\":") < 0 || tm_put_number(to, moment->ts_ms) < 0) return -1;
    if (tm_put(to, e->more.data, e->more.size) < 0) return -1;
    char op_text[] = ",\"op\":\"?\",\"ts_ms\":";
    op_text[7] = op;
    if (tm_put(to, op_text, sizeof op_text - 1) < 0 || tm_put_number(to, moment->stamp_ms) < 0) return -1;
    return PUT(to, ",\"transaction\":null}");
}

static int put_delete(ChangeEncoder *e, const tm_bytes *key, const Cell *before, int is_partial,
                      const Moment *moment)
{
    if (!e->is_plain) {
        if (put_envelope(e, 'd', before, is_partial, NULL, moment) < 0) return -1;
        if (put_record(e, key, &e->value, moment->ts_ms) < 0) return -1;
    }
    return put_record(e, key, NULL, moment->ts_ms) < 0 ? -1 : e->is_plain ? 1 : 2;
}

int tm_put_change(ChangeEncoder *e, char op, const Cell *before, int is_partial, const Cell *after,
                  const Moment *moment)
{
    if (op == 'd') {
        if (put_key(e, before, &e->old_key) < 0) return -1;
        return put_delete(e, &e->old_key, before, is_partial, moment);
    }
    int deleted = 0;
    if (put_key(e, after, &e->new_key) < 0) return -1;
    if (op == 'u' && before != NULL) {
        if (put_key(e, before, &e->old_key) < 0) return -1;
        if (e->old_key.size != e->new_key.size ||
            memcmp(e->old_key.data, e->new_key.data, e->new_key.size) != 0) {
            if ((deleted = put_delete(e, &e->old_key, before, is_partial, moment)) < 0) return -1;
            op = 'c';
            before = NULL;
        }
    }
    if (put_envelope(e, op, before, is_partial, after, moment) < 0) return -1;
    return put_record(e, &e->new_key, &e->value, moment->ts_ms) < 0 ? -1 : deleted + 1;
}

int tm_put_more(ChangeEncoder *e, const char *name, unsigned long long number, const void *tail,
                size_t tail_size)
{
    e->more.size = 0;
    if (tm_put(&e->more, name, strlen(name)) < 0 || tm_put_digits(&e->more, number, 0) < 0)
        return -1;
    return tm_put(&e->more, tail, tail_size);
}

/* --- the type ------------------------------------------------------------------------------ */

ChangeEncoder *tm_change_encoder(PyObject *object)
{
    if (PyObject_TypeCheck(object, change_encoder_type)) return (ChangeEncoder *)object;
    PyErr_SetString(PyExc_TypeError, "an encoder of changes is expected");
    return NULL;
}

PyObject *tm_begin_rows(PyObject *args, ChangeEncoder **encoder, Moment *moment)
{
    PyObject *object, *rows, *tail;
    char *bytes;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "OO!LSL", &object, &PyList_Type, &rows, &moment->ts_ms, &tail,
                          &moment->stamp_ms) ||
        PyBytes_AsStringAndSize(tail, &bytes, &size) < 0)
        return NULL;
    ChangeEncoder *e = *encoder = tm_change_encoder(object);
    if (e == NULL) return NULL;
    moment->snapshot = "true";
    e->more.size = 0;
    return tm_put(&e->more, bytes, (size_t)size) < 0 ? NULL : rows;
}

static int invalid(const char *what)
{
    PyErr_Format(PyExc_ValueError, "invalid %s", what);
    return -1;
}

/* Take tuples (name, rule, function, whether it belongs to the replica identity). */
static int take_columns(ChangeEncoder *e, PyObject *from)
{
    Py_ssize_t count = PyTuple_Size(from);
    if (count < 0) return -1;
    if (count > MOST_COLUMNS) return invalid("number of columns");
    e->columns = calloc((size_t)count + 1, sizeof *e->columns);
    e->before = calloc((size_t)count + 1, sizeof *e->before);
    e->after = calloc((size_t)count + 1, sizeof *e->after);
    if (e->columns == NULL || e->before == NULL || e->after == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        ColumnRule *to = &e->columns[i];
        PyObject *item = PyTuple_GetItem(from, i), *name, *convert;
        if (item == NULL || !PyTuple_Check(item)) return invalid("column");
        if (!PyArg_ParseTuple(item, "SiOp", &name, &to->rule, &convert, &to->is_identity)) return -1;
        if (to->rule < 0 || (to->rule & 0xFF) >= RULES || !PyCallable_Check(convert)) return invalid("rule");
        to->name = Py_NewRef(name);
        to->convert = Py_NewRef(convert);
        e->count = i + 1;
    }
    return 0;
}

static int take_key(ChangeEncoder *e, PyObject *from)
{
    Py_ssize_t count = PyTuple_Size(from);
    if (count < 0) return -1;
    if (count > e->count) return invalid("key");
    e->key = calloc((size_t)count + 1, sizeof *e->key);
    if (e->key == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    e->keys = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        e->key[i] = PyLong_AsSsize_t(PyTuple_GetItem(from, i));
        if (e->key[i] == -1 && PyErr_Occurred()) return -1;
        if (e->key[i] < 0 || e->key[i] >= e->count) return invalid("key");
    }
    return 0;
}

static PyObject *change_encoder_new(PyTypeObject *type, PyObject *args, PyObject *unused)
{
    PyObject *records, *columns, *key, *source, *dumps;
    int is_plain;
    if (!PyArg_ParseTuple(args, "OOOSpO", &records, &columns, &key, &source, &is_plain, &dumps))
        return NULL;
    if (!tm_is_record_encoder(records) || !PyTuple_Check(columns) || !PyTuple_Check(key) ||
        !PyCallable_Check(dumps)) {
        PyErr_SetString(PyExc_TypeError, "an encoder of records, two tuples and a function are expected");
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    ChangeEncoder *e = (ChangeEncoder *)alloc(type, 0);
    if (e == NULL) return NULL;
    e->records = Py_NewRef(records);
    e->dumps = Py_NewRef(dumps);
    e->source = Py_NewRef(source);
    e->is_plain = is_plain;
    if (take_columns(e, columns) < 0 || take_key(e, key) < 0) {
        Py_DECREF(e);
        return NULL;
    }
    return (PyObject *)e;
}

static void change_encoder_dealloc(PyObject *self)
{
    ChangeEncoder *e = (ChangeEncoder *)self;
    for (Py_ssize_t i = 0; e->columns && i < e->count; i++) {
        Py_XDECREF(e->columns[i].name);
        Py_XDECREF(e->columns[i].convert);
    }
    free(e->columns);
    free(e->key);
    free(e->before);
    free(e->after);
    tm_bytes *all[] = {&e->new_key, &e->old_key, &e->value, &e->more, &e->scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->data);
    Py_XDECREF(e->records);
    Py_XDECREF(e->dumps);
    Py_XDECREF(e->source);
    tm_free_object(self);
}

static PyMethodDef change_encoder_methods[] = {{NULL, NULL, 0, NULL}};

int tm_add_change_encoder(PyObject *module)
{
    return tm_add_class(module, "tidemill._native.ChangeEncoder", "Turns changes of a table into records.",
                        sizeof(ChangeEncoder), change_encoder_new, change_encoder_dealloc,
                        change_encoder_methods, &change_encoder_type);
}
