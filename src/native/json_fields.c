/* The fields of objects: their names, and which column each belongs to. */
#include "json.h"
#include <stdlib.h>
#include <string.h>

static uint32_t hash(const uint8_t *name, size_t length, bool folded) {
    uint32_t value = 2166136261u;
    for (size_t i = 0; i < length; i++) {
        uint8_t c = name[i];
        if (folded && c >= 'A' && c <= 'Z') c += 'a' - 'A';
        value = (value ^ c) * 16777619u;
    }
    return value ^ value >> 15;
}

static bool same(const uint8_t *a, const uint8_t *b, size_t length, bool folded) {
    if (!folded) return memcmp(a, b, length) == 0;
    for (size_t i = 0; i < length; i++) {
        uint8_t x = a[i], y = b[i];
        if (x >= 'A' && x <= 'Z') x += 'a' - 'A';
        if (y >= 'A' && y <= 'Z') y += 'a' - 'A';
        if (x != y) return false;
    }
    return true;
}

/* Return the number of a child by its name, or by its name in any case; -1 if there is none. */
static int find(const json_plan *plan, const json_node *node, const uint8_t *name, size_t length,
                bool folded) {
    const int *table = folded ? node->by_folded : node->by_name;
    for (uint32_t slot = hash(name, length, folded);; slot++) {
        int child = table[slot & node->mask];
        if (child < 0) return -1;
        const json_node *found = &plan->nodes[node->child[child]];
        if (found->name_length == length &&
            same((const uint8_t *)found->name, name, length, folded)) {
            return child;
        }
    }
}

static bool add_name(const json_plan *plan, json_node *node, int child, bool folded) {
    int *table = folded ? node->by_folded : node->by_name;
    const json_node *added = &plan->nodes[node->child[child]];
    const uint8_t *name = (const uint8_t *)added->name;
    if (find(plan, node, name, added->name_length, folded) >= 0) return false;
    uint32_t slot = hash(name, added->name_length, folded);
    while (table[slot & node->mask] >= 0) slot++;
    table[slot & node->mask] = child;
    return true;
}

/* Fill the hash tables of all structs. Returns false if there is no memory, or a name is doubled. */
bool json_plan_names(json_plan *plan) {
    for (int i = 0; i < plan->count; i++) {
        json_node *node = &plan->nodes[i];
        if (node->kind != JSON_STRUCT) continue;
        size_t slots = 4;
        while (slots < 4 * (size_t)node->children) slots *= 2;
        node->by_name = malloc(slots * sizeof(int));
        node->by_folded = malloc(slots * sizeof(int));
        if (!node->by_name || !node->by_folded) return false;
        memset(node->by_name, -1, slots * sizeof(int));
        memset(node->by_folded, -1, slots * sizeof(int));
        node->mask = (uint32_t)slots - 1;
        for (int k = 0; k < node->children; k++) {
            if (!add_name(plan, node, k, false) || !add_name(plan, node, k, true)) return false;
        }
    }
    return true;
}

/* Read a field's name and its colon. Returns the number of the child with the name, -1 for none,
 * and where the name is. Fields usually come in one order, so `expected` is tried first. */
json_status json_read_name(json_rows *rows, const json_node *node, const uint8_t **position,
                           int expected, int *child, const uint8_t **name_end) {
    json_scan *scan = &rows->scan;
    const uint8_t *at = *position, *end = scan->end;
    *child = -1;
    if (expected < node->children) {
        const json_node *next = &rows->plan->nodes[node->child[expected]];
        size_t length = next->name_length;
        if (next->plain_name && (size_t)(end - at) > length + 1 && at[0] == '"' &&
            at[length + 1] == '"' && memcmp(at + 1, next->name, length) == 0) {
            *child = expected;
            at += length + 2;
        }
    }
    if (*child < 0) {
        scan->scratch.length = 0;
        json_status status = json_copy_string(scan, &at, &scan->scratch);
        if (status) return status;
        *child = find(rows->plan, node, scan->scratch.at, scan->scratch.length, false);
    }
    *name_end = at;
    at = json_space(at, end);
    if (at >= end || *at != ':') return JSON_MALFORMED;
    *position = json_space(at + 1, end);
    return JSON_OK;
}

/* Remember an unknown field if its name, which is in scratch, is that of a child in other case. */
bool json_note_other(json_rows *rows, const json_node *node, const uint8_t *object,
                     const uint8_t *start, const uint8_t *end) {
    const json_buffer *name = &rows->scan.scratch;
    int child = find(rows->plan, node, name->at, name->length, true);
    if (child < 0) return false;
    json_column *column = &rows->columns[node->child[child]];
    if (column->other_object != object) {
        column->other_object = object;
        column->other_start = start;
        column->other_end = end;
    }
    return true;
}

json_next json_next_field(const uint8_t **position, const uint8_t *end, bool first) {
    const uint8_t *at = json_space(*position, end);
    json_next found = NEXT_WRONG;
    if (at >= end) return found;
    if (*at == '}') {
        at++;
        found = NEXT_END;
    } else if (first) {
        found = NEXT_FIELD;
    } else if (*at == ',') {
        at = json_space(at + 1, end);
        found = NEXT_FIELD;
    }
    *position = at;
    return found;
}
