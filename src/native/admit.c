/* Decides how much of a run can be appended as it is, in one call.
 *
 * tidemill.engine.records.append_runs says what the results mean, and looks up targets that are
 * not current.
 */
#include "head.h"

enum { MOST_BYTES, AHEAD_MS, BEHIND_MS, NEEDS_KEYS };

/* Return whether clients can still write to the log of a target; -1 with an error. */
static int is_current(const tm_target *target, PyObject *logs, PyObject *hidden)
{
    const tm_head *head = TM_AS(tm_head, target->head);
    if (!head || head->config != target->config || tm_is_none(target->log) || !target->tp) return 0;
    PyObject *known = PyObject_GetItem(logs, target->tp);
    if (!known && !PyErr_ExceptionMatches(PyExc_KeyError)) return -1;
    PyErr_Clear();
    Py_XDECREF(known);
    if (known != target->log) return 0;
    int some = PyObject_IsTrue(hidden);
    int inside = some > 0 ? PySequence_Contains(hidden, target->tp) : some;
    return inside < 0 ? -1 : !inside;
}

/* Return whether a batch is within the limits of its topic; -1 with an error. */
static int is_ordinary(PyObject *limits, PyObject *facts, Py_ssize_t size, int64_t now_ms)
{
    int64_t latest, earliest, without_key, most, ahead, behind, needs_keys;
    if (tm_is_none(limits)) return 0;
    if (tm_item(facts, 1, &latest) < 0 || tm_item(facts, 2, &earliest) < 0 ||
        tm_item(facts, 3, &without_key) < 0 || tm_item(limits, MOST_BYTES, &most) < 0 ||
        tm_item(limits, AHEAD_MS, &ahead) < 0 || tm_item(limits, BEHIND_MS, &behind) < 0 ||
        tm_item(limits, NEEDS_KEYS, &needs_keys) < 0)
        return -1;
    /* The times of a batch in a run are between 0 and 2^60, so nothing overflows. */
    return size <= most && latest - now_ms <= ahead && now_ms - earliest <= behind &&
           !(without_key && needs_keys);
}

/* Add a place to those of a target; return 0, or -1 with an error. */
static int add_place(PyObject *found, PyObject *target, PyObject *places, Py_ssize_t place)
{
    PyObject *number = PyLong_FromSsize_t(place), *list = NULL;
    int failed = !number;
    if (number && places) failed = PyList_Append(places, number) < 0;
    if (number && !places) {
        list = PyList_New(0);
        failed = !list || PyList_Append(list, number) < 0 || PyDict_SetItem(found, target, list) < 0;
    }
    Py_XDECREF(list);
    Py_XDECREF(number);
    return failed ? -1 : 0;
}

/* Admit one batch; return 1, 0 if it can't be, or -1 with an error. */
static int admit(PyObject *write, PyObject *found, PyObject *logs, PyObject *hidden, int64_t now_ms,
                 Py_ssize_t place, Py_ssize_t *size, int *is_outdated)
{
    PyObject *target = PyTuple_GetItem(write, 0), *facts = target ? PyTuple_GetItem(write, 2) : NULL;
    Py_ssize_t bytes = facts ? PyObject_Size(PyTuple_GetItem(write, 1)) : -1;
    if (bytes < 0) return -1;
    PyObject *places = PyDict_GetItemWithError(found, target);
    if (!places && PyErr_Occurred()) return -1;
    const tm_target *at = TM_AS(tm_target, target);
    if (!at) PyErr_SetString(PyExc_TypeError, "not a target");
    int admitted = !at ? -1 : places ? 1 : is_current(at, logs, hidden);
    *is_outdated = admitted == 0;
    if (admitted <= 0) return admitted;
    admitted = is_ordinary(at->limits, facts, bytes, now_ms);
    if (admitted > 0 && add_place(found, target, places, place) < 0) return -1;
    if (admitted > 0) *size += bytes;
    return admitted;
}

PyObject *tm_py_admit_run(PyObject *module, PyObject *args)
{
    PyObject *run, *logs, *hidden;
    long long now_ms;
    if (!PyArg_ParseTuple(args, "O!OOL:admit_run", &PyList_Type, &run, &logs, &hidden, &now_ms))
        return NULL;
    PyObject *found = PyDict_New();
    Py_ssize_t count = 0, size = 0;
    int admitted = found ? 1 : -1, is_outdated = 0;
    while (admitted > 0 && count < PyList_Size(run)) {
        admitted = admit(PyList_GetItem(run, count), found, logs, hidden, now_ms, count, &size,
                         &is_outdated);
        if (admitted > 0) count++;
    }
    PyObject *result = admitted < 0 ? NULL : Py_BuildValue("nOnO", count, found, size, is_outdated ? Py_True : Py_False);
    Py_XDECREF(found);
    return result;
}
