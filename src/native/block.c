/* Memory that grows while it is written, and then is handed to Arrow without a copy.
 *
 * A Block owns the memory and gives it out through the buffer protocol, read-only.
 */
#include "native.h"

#include <stdlib.h>

typedef struct {
    PyObject_HEAD
    uint8_t *data;
    Py_ssize_t size;
} Block;

static PyTypeObject *block_type;
static uint8_t nothing[8];

int tm_reserve_more(tm_bytes *to, size_t extra)
{
    if (extra > (size_t)PY_SSIZE_T_MAX / 4 || to->size > (size_t)PY_SSIZE_T_MAX / 4) {
        PyErr_NoMemory();
        return -1;
    }
    size_t capacity = to->size + extra;
    if (capacity < 2 * to->capacity) capacity = 2 * to->capacity;
    if (capacity < 64) capacity = 64;
    uint8_t *data = realloc(to->data, capacity);
    if (data == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    to->data = data;
    to->capacity = capacity;
    return 0;
}

/* Return a Block with the bytes, which `from` gives up; NULL with an error set. */
PyObject *tm_block(tm_bytes *from)
{
    Block *block = PyObject_New(Block, block_type);
    if (block == NULL) return NULL;
    if (from->capacity > from->size + from->size / 2 + 64) { /* give back what the columns do not use */
        uint8_t *data = realloc(from->data, from->size ? from->size : 1);
        if (data != NULL) from->data = data;
    }
    block->data = from->data;
    block->size = (Py_ssize_t)from->size;
    *from = (tm_bytes){0};
    return (PyObject *)block;
}

static int block_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    Block *block = (Block *)self;
    return PyBuffer_FillInfo(view, self, block->data ? block->data : nothing, block->size, 1, flags);
}

static void block_dealloc(PyObject *self)
{
    free(((Block *)self)->data);
    tm_free_object(self);
}

static PyType_Slot block_slots[] = {
    {Py_bf_getbuffer, block_getbuffer},
    {Py_tp_dealloc, block_dealloc},
    {Py_tp_doc, "Bytes of one Arrow buffer."},
    {0, NULL},
};
static PyType_Spec block_spec = {
    .name = "tidemill._native.Block",
    .basicsize = sizeof(Block),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = block_slots,
};

int tm_add_block(PyObject *module) { return tm_add_type(module, &block_spec, &block_type); }
