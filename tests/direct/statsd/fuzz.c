/* Feeds mutated packets to the parser and the table of StatsD, under sanitizers.
 *
 *     fuzz SEED SECONDS
 *
 * Prints the number of packets. A sanitizer ends the program if it finds something.
 */
#include "statsd_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *parts[] = {
    "a", "web.requests", ":", "|", "1", "-1", "+2.5", "1e9", "NaN", "@", "@0.1", "@0", "#", "#a:b,c", ",",
    "c", "g", "ms", "h", "d", "s", "T1700000000", "c:ci-1", "e:x", "card:low", "_e{1,1}:a|b", "_sc|n|0",
    "\n", "\r\n", "[", "]", ";", "=", " ", "/", "\xff", "99999999999999999999", "0.0000000000000000001",
};

static uint64_t state;

static uint32_t chance(uint32_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 11) % below;
}

int main(int count, char **given)
{
    if (count != 3) return 2;
    state = strtoull(given[1], NULL, 10) | 1;
    time_t end = time(NULL) + atoi(given[2]);
    unsigned long packets = 0;
    while (time(NULL) < end) {
        const uint64_t seed[2] = {state, packets};
        tm_table table = {0};
        if (tm_table_prepare(&table, 1 + chance(40), 1 + chance(200), chance(2) * 500, 1 + chance(500),
                             seed))
            return 3;
        table.parser->dialect = (tm_dialect)chance(2);
        table.parser->name_tags = (tm_name_tags)chance(5);
        for (int i = 0; i < 400; i++, packets++) {
            char packet[9000];
            size_t size = 0;
            int pieces = 1 + (int)chance(chance(20) ? 30 : 1500);
            for (int j = 0; j < pieces; j++) {
                const char *part = parts[chance(sizeof parts / sizeof *parts)];
                if (size + strlen(part) > sizeof packet) break;
                memcpy(packet + size, part, strlen(part));
                size += strlen(part);
            }
            for (uint32_t j = chance(4); j && size; j--) packet[chance((uint32_t)size)] = (char)chance(256);
            /* A buffer of exactly this size, so that a read behind it is found. */
            uint8_t *exact = malloc(size ? size : 1);
            memcpy(exact, packet, size);
            tm_table_feed(&table, (tm_text){exact, size});
            if (!chance(50)) tm_table_cut(&table, (tm_text){exact, size});
            free(exact);
            if (!chance(20)) {
                uint32_t expiry[TM_KINDS], taken = 0;
                for (int j = 0; j < TM_KINDS; j++) expiry[j] = chance(3);
                tm_series *series = tm_table_take(&table, expiry, &taken);
                if (!series) return 4;
                tm_series_free(series, taken);
                table.raw_size = table.notices_size = 0;
            }
        }
        tm_table_dispose(&table);
    }
    printf("%lu\n", packets);
    return 0;
}
