/* tidemill._native.JsonParser: a parser of JSON values for one schema. See _native.pyi. */
#include "json.h"
#include <stdlib.h>
#include <string.h>

typedef struct {
    PyObject_HEAD
    json_plan plan;
    bool *dropped;
} parser;

enum { MAX_NODES = 100000, MAX_LEVELS = 64 };

static void plan_free(json_plan *plan) {
    for (int i = 0; i < plan->count; i++) {
        free(plan->nodes[i].child);
        free(plan->nodes[i].name);
        free(plan->nodes[i].by_name);
        free(plan->nodes[i].by_folded);
    }
    free(plan->nodes);
    memset(plan, 0, sizeof *plan);
}

static bool set_name(json_node *node, PyObject *name) {
    char *text;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(name, &text, &length) < 0) return false;
    node->name = malloc((size_t)length + 1);
    if (!node->name) return PyErr_NoMemory() != NULL;
    memcpy(node->name, text, (size_t)length + 1);
    node->name_length = (size_t)length;
    node->plain_name = true;
    for (Py_ssize_t i = 0; i < length; i++) {
        uint8_t c = (uint8_t)text[i];
        if (c < 0x20 || c == '"' || c == '\\') node->plain_name = false;
    }
    return true;
}

/* Add a node and those in it. A node is (name, kind, width, precision, scale, children). */
static int add_node(json_plan *plan, PyObject *given, int column, int level) {
    PyObject *name, *children;
    int kind, width, precision, scale, number = plan->count;
    if (!PyTuple_Check(given) ||
        !PyArg_ParseTuple(given, "SiiiiO!", &name, &kind, &width, &precision, &scale,
                          &PyTuple_Type, &children)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a node must be a tuple");
        return -1;
    }
    Py_ssize_t count = PyTuple_Size(children);
    /* Bytes of a value by kind: 0 for those without a fixed size, -1 for several sizes. */
    static const int widths[JSON_KINDS] = {1, -1, 4, 8, 16, 0, 0, 4, 8, 8, 0, 0, 0};
    bool known = kind >= 0 && kind < JSON_KINDS;
    bool sizes = width == 1 || width == 2 || width == 4 || width == 8;
    bool width_ok = known && (widths[kind] < 0 ? sizes : width == widths[kind]);
    bool count_ok = kind == JSON_LIST  ? count == 1
                    : kind == JSON_MAP ? count == 2
                                       : kind == JSON_STRUCT || count == 0;
    if (!width_ok || !count_ok || precision < 0 ||
        precision > 38 || scale < 0 || scale > precision || level > MAX_LEVELS ||
        count > MAX_NODES || number >= MAX_NODES) {
        PyErr_SetString(PyExc_ValueError, "invalid node of a schema");
        return -1;
    }
    json_node *nodes = realloc(plan->nodes, ((size_t)number + 1) * sizeof *nodes);
    if (!nodes) return PyErr_NoMemory() ? 0 : -1;
    plan->nodes = nodes;
    plan->count++;
    json_node *node = &nodes[number];
    memset(node, 0, sizeof *node);
    node->kind = (json_kind)kind;
    node->width = width;
    node->precision = precision;
    node->scale = scale;
    node->column = column;
    if (!set_name(node, name)) return -1;
    int *child = malloc((size_t)(count ? count : 1) * sizeof *child);
    if (!child) return PyErr_NoMemory() ? 0 : -1;
    node->child = child;
    node->children = (int)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        int of = level == 0 ? (int)i : column;
        int made = add_node(plan, PyTuple_GetItem(children, i), of, level + 1);
        if (made < 0) return -1;
        child[i] = made; /* nodes may have moved, their children have not */
    }
    return number;
}

static PyObject *parser_new(PyTypeObject *type, PyObject *args, PyObject *names) {
    PyObject *row, *built;
    int event_time, power;
    if (names && PyDict_Size(names)) {
        PyErr_SetString(PyExc_TypeError, "JsonParser takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OO!ii", &row, &PyTuple_Type, &built, &event_time, &power)) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    parser *self = (parser *)allocate(type, 0);
    if (!self) return NULL;
    json_plan *plan = &self->plan;
    if (!json_values_start()) {
        PyErr_NoMemory();
        goto failed;
    }
    if (add_node(plan, row, -1, 0) < 0) goto failed;
    int columns = plan->nodes[0].children;
    if (plan->nodes[0].kind != JSON_STRUCT || PyTuple_Size(built) != columns || event_time < -1 ||
        event_time >= columns || power < -1 || power > 6) {
        PyErr_SetString(PyExc_ValueError, "invalid schema of rows");
        goto failed;
    }
    plan->event_time = event_time;
    plan->timestamp_power = power;
    for (int i = 0; i < plan->count; i++) {
        json_node *node = &plan->nodes[i];
        if (node->kind == JSON_MAP && plan->nodes[node->child[0]].kind != JSON_STRING) {
            PyErr_SetString(PyExc_ValueError, "keys of a map must be strings");
            goto failed;
        }
    }
    if (!json_plan_names(plan)) {
        PyErr_SetString(PyExc_ValueError, "names of fields must differ, not only in case");
        goto failed;
    }
    self->dropped = calloc((size_t)columns + 1, sizeof(bool));
    if (!self->dropped) {
        PyErr_NoMemory();
        goto failed;
    }
    for (int k = 0; k < columns; k++) {
        self->dropped[k] = !PyObject_IsTrue(PyTuple_GetItem(built, k));
    }
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static void parser_free(PyObject *object) {
    parser *self = (parser *)object;
    plan_free(&self->plan);
    free(self->dropped);
    tm_free_object(object);
}

/* The values: Arrow's buffers of a binary array. */
typedef struct {
    Py_buffer valid, offsets, data;
    bool large;
    Py_ssize_t first, count;
} values;

static int64_t offset(const values *given, Py_ssize_t i) {
    if (given->large) return ((const int64_t *)given->offsets.buf)[i];
    return ((const int32_t *)given->offsets.buf)[i];
}

/* Check that all offsets are ascending and inside of the data. */
static bool values_ok(const values *given) {
    Py_ssize_t width = given->large ? 8 : 4;
    if (given->first < 0 || given->count < 0 || given->count >= INT32_MAX ||
        given->first > PY_SSIZE_T_MAX / 16 - given->count ||
        given->offsets.len / width <= given->first + given->count ||
        (uintptr_t)given->offsets.buf % (size_t)width) {
        return false;
    }
    if (given->valid.buf && given->valid.len < (given->first + given->count + 7) / 8) return false;
    int64_t before = offset(given, given->first);
    if (before < 0) return false;
    for (Py_ssize_t i = given->first; i < given->first + given->count; i++) {
        int64_t next = offset(given, i + 1);
        if (next < before) return false;
        before = next;
    }
    return before <= given->data.len;
}

static json_status parse_all(json_rows *rows, const values *given, uint8_t *accepted) {
    const uint8_t *valid = given->valid.buf, *data = given->data.buf;
    for (Py_ssize_t i = 0; i < given->count; i++) {
        Py_ssize_t at = given->first + i;
        json_status status;
        bool good = false;
        if (valid && !(valid[at / 8] >> (at % 8) & 1)) {
            status = json_refuse(rows, i, JSON_REASON_NULL);
        } else {
            status = json_row(rows, i, data + offset(given, at), data + offset(given, at + 1),
                              &good);
        }
        if (status) return status;
        if (good) accepted[i / 8] |= (uint8_t)(1 << (i % 8));
    }
    return JSON_OK;
}

static json_status start_columns(json_rows *rows, size_t count) {
    const json_plan *plan = rows->plan;
    for (int i = 1; i < plan->count; i++) {
        const json_node *top = &plan->nodes[plan->nodes[0].child[plan->nodes[i].column]];
        bool whole = top == &plan->nodes[i] && !rows->check && !rows->dropped[top->column];
        json_status status =
            json_column_start(&rows->scan, &plan->nodes[i], &rows->columns[i], whole ? count : 1);
        if (status) return status;
    }
    return JSON_OK;
}

/* Return (rows, accepted, problems, columns): see _native.pyi. */
static PyObject *result(json_rows *rows, const uint8_t *accepted, size_t bytes) {
    const json_plan *plan = rows->plan;
    PyObject *columns = PyList_New(0);
    if (!columns) return NULL;
    for (int i = 1; i < plan->count && !rows->check; i++) {
        PyObject *column = json_column_take(&plan->nodes[i], &rows->columns[i]);
        if (!column || PyList_Append(columns, column) < 0) {
            Py_XDECREF(column);
            Py_DECREF(columns);
            return NULL;
        }
        Py_DECREF(column);
    }
    PyObject *bits = PyBytes_FromStringAndSize((const char *)accepted, (Py_ssize_t)bytes);
    PyObject *problems = PyBytes_FromStringAndSize(
        rows->problems.at ? (const char *)rows->problems.at : "", (Py_ssize_t)rows->problems.length);
    if (!bits || !problems) {
        Py_XDECREF(bits);
        Py_XDECREF(problems);
        Py_DECREF(columns);
        return NULL;
    }
    return Py_BuildValue("nNNN", (Py_ssize_t)rows->rows, bits, problems, columns);
}

static PyObject *run(parser *self, const values *given, bool check, size_t limit) {
    const json_plan *plan = &self->plan;
    size_t columns = (size_t)plan->nodes[0].children, bytes = (size_t)(given->count + 7) / 8;
    PyObject *made = NULL;
    json_status status = JSON_NO_MEMORY;
    json_rows rows = {.plan = plan, .dropped = self->dropped, .check = check, .data = given->data.buf};
    rows.scan.data_end = rows.data + given->data.len;
    rows.scan.limit = limit;
    rows.columns = calloc((size_t)plan->count, sizeof *rows.columns);
    rows.found = calloc(columns + 1, sizeof *rows.found);
    rows.founds = 1; /* clears them before the first row */
    uint8_t *accepted = calloc(bytes + 1, 1);
    if (rows.columns && rows.found && accepted) {
        Py_BEGIN_ALLOW_THREADS
        status = start_columns(&rows, (size_t)given->count);
        if (status == JSON_OK) status = parse_all(&rows, given, accepted);
        Py_END_ALLOW_THREADS
    }
    if (status == JSON_OK) made = result(&rows, accepted, bytes);
    else if (status == JSON_TOO_LARGE) PyErr_SetString(PyExc_OverflowError, "columns are too large");
    else PyErr_NoMemory();
    for (int i = 0; rows.columns && i < plan->count; i++) json_column_free(&rows.columns[i]);
    free(rows.columns);
    free(rows.found);
    free(rows.problems.at);
    free(rows.scan.scratch.at);
    free(accepted);
    return made;
}

static PyObject *parser_parse(PyObject *self, PyObject *args) {
    values given = {0};
    PyObject *valid, *made = NULL;
    int large, check;
    Py_ssize_t limit;
    if (!PyArg_ParseTuple(args, "Oy*y*pnnpn", &valid, &given.offsets, &given.data, &large,
                          &given.first, &given.count, &check, &limit)) {
        return NULL;
    }
    given.large = large;
    if (valid == Py_None || PyObject_GetBuffer(valid, &given.valid, PyBUF_SIMPLE) == 0) {
        if (!values_ok(&given) || limit < 0) {
            PyErr_SetString(PyExc_ValueError, "invalid buffers of values");
        } else if (offset(&given, given.first + given.count) - offset(&given, given.first) >
                   INT32_MAX) {
            PyErr_SetString(PyExc_OverflowError, "the values have more than 2 GiB");
        } else {
            made = run((parser *)self, &given, check, (size_t)limit);
        }
        if (given.valid.obj) PyBuffer_Release(&given.valid);
    }
    PyBuffer_Release(&given.offsets);
    PyBuffer_Release(&given.data);
    return made;
}

static PyMethodDef parser_methods[] = {
    {"parse", parser_parse, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int tm_add_json_parser(PyObject *module) {
    return tm_add_class(module, "tidemill._native.JsonParser", "A parser of JSON values for one schema.",
                        sizeof(parser), parser_new, parser_free, parser_methods, NULL);
}
