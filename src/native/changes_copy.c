/* Encodes lines of PostgreSQL's COPY in the format text, as rows of a snapshot.
 *
 * Source: PostgreSQL's documentation, "COPY", File Formats. The server writes the escapes \b \f \n \r
 * \t \v and \\ only, and \N for NULL.
 */
#include "changes.h"

#include <string.h>

static int damaged(const char *what)
{
    PyErr_Format(PyExc_ValueError, "invalid line of COPY: %s", what);
    return -1;
}

/* Resolve the escapes of a value into e->scratch, which has space for it. */
static int unescape(ChangeEncoder *e, const uint8_t *from, const uint8_t *end, Cell *to)
{
    static const char letters[] = "bfnrtv\\", bytes[] = "\b\f\n\r\t\v\\";
    uint8_t *start = e->scratch.data + e->scratch.size, *p = start;
    while (from < end) {
        if (*from != '\\') {
            *p++ = *from++;
            continue;
        }
        const char *found = from + 1 < end && from[1] ? strchr(letters, from[1]) : NULL;
        if (found == NULL) return damaged("an unknown escape");
        *p++ = (uint8_t)bytes[found - letters];
        from += 2;
    }
    e->scratch.size += (size_t)(p - start);
    *to = (Cell){.text = start, .size = p - start};
    return 0;
}

static int take_line(ChangeEncoder *e, const uint8_t *line, size_t size)
{
    if (!size || line[size - 1] != '\n') return damaged("it does not end");
    const uint8_t *end = line + size - 1;
    int has_escapes = memchr(line, '\\', size) != NULL;
    e->scratch.size = 0;
    if (has_escapes && tm_reserve(&e->scratch, size) < 0) return -1;
    for (Py_ssize_t i = 0; i < e->count; i++) {
        if (line > end) return damaged("too few values");
        const uint8_t *tab = memchr(line, '\t', (size_t)(end - line));
        const uint8_t *stop = tab ? tab : end;
        e->after[i] = (Cell){.text = line, .size = stop - line};
        if (has_escapes && stop - line == 2 && line[0] == '\\' && line[1] == 'N')
            e->after[i] = (Cell){0};
        else if (has_escapes && memchr(line, '\\', (size_t)(stop - line)) &&
                 unescape(e, line, stop, &e->after[i]) < 0)
            return -1;
        line = stop + 1;
    }
    return line == end + 1 ? 0 : damaged("too many values");
}

/* encode_copy(encoder, lines, time, end of the block source, time of processing) */
PyObject *tm_py_encode_copy(PyObject *module, PyObject *args)
{
    ChangeEncoder *e;
    Moment moment;
    PyObject *lines = tm_begin_rows(args, &e, &moment);
    if (lines == NULL) return NULL;
    long long records = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(lines); i++) {
        char *line;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(PyList_GetItem(lines, i), &line, &length) < 0) return NULL;
        if (take_line(e, (const uint8_t *)line, (size_t)length) < 0) return NULL;
        int count = tm_put_change(e, 'r', NULL, 0, e->after, &moment);
        if (count < 0) return NULL;
        records += count;
    }
    return PyLong_FromLongLong(records);
}
