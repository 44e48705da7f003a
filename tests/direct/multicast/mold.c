/* A receiver of MoldUDP64, written from the specification and from nothing else.
 *
 *     mold GROUP PORT SERVER_PORT FIRST LAST DROP
 *
 * Joins the group on loopback, drops one of DROP packets of it (0: none), and asks the re-request
 * server on 127.0.0.1 for what is missing. Prints each message of FIRST to LAST, in order, as
 * "SEQUENCE LENGTH FIRST_BYTE", and ends.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 1000000
static unsigned char *kept[MOST];
static unsigned short sizes[MOST];
static char session[10];
static int has_session;

static uint64_t number(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    while (bytes--) value = value << 8 | *at++;
    return value;
}

/* Return the next expected sequence, as far as the packet says. */
static uint64_t take(const unsigned char *data, size_t size)
{
    if (size < 20) exit(3);
    if (!has_session) memcpy(session, data, 10), has_session = 1;
    if (memcmp(session, data, 10)) exit(4);
    uint64_t sequence = number(data + 10, 8);
    unsigned count = (unsigned)number(data + 18, 2);
    if (count == 0xffff) count = 0;
    size_t at = 20;
    for (unsigned i = 0; i < count; i++) {
        if (at + 2 > size) exit(5);
        size_t length = (size_t)number(data + at, 2);
        at += 2;
        if (at + length > size) exit(6);
        uint64_t which = sequence + i;
        if (which < MOST && !kept[which]) {
            kept[which] = malloc(length + 1);
            memcpy(kept[which], data + at, length);
            sizes[which] = (unsigned short)length;
        }
        at += length;
    }
    if (at != size) exit(7);
    return sequence + count;
}

int main(int argc, char **argv)
{
    if (argc != 7) return 2;
    uint64_t next = strtoull(argv[4], NULL, 10), last = strtoull(argv[5], NULL, 10), seen = next;
    int drop = atoi(argv[6]), group = socket(AF_INET, SOCK_DGRAM, 0), asking = socket(AF_INET, SOCK_DGRAM, 0);
    int yes = 1, buffer = 8 << 20;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))};
    struct ip_mreq join = {.imr_interface.s_addr = htonl(INADDR_LOOPBACK)};
    inet_pton(AF_INET, argv[1], &at.sin_addr);
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    join.imr_multiaddr = at.sin_addr;
    setsockopt(group, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    setsockopt(group, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    if (bind(group, (struct sockaddr *)&at, sizeof at)) return perror("bind"), 1;
    if (setsockopt(group, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join)) return perror("join"), 1;
    puts("ready");
    fflush(stdout);
    static unsigned char data[65536];
    unsigned packets = 0;
    struct pollfd wanted[2] = {{.fd = group, .events = POLLIN}, {.fd = asking, .events = POLLIN}};
    while (next <= last) {
        int ready = poll(wanted, 2, 50);
        for (int i = 0; i < 2 && ready > 0; i++) {
            ssize_t size;
            while ((size = recv(wanted[i].fd, data, sizeof data, MSG_DONTWAIT)) >= 0) {
                if (i == 0 && drop && ++packets % (unsigned)drop == 0) continue;
                uint64_t end = take(data, (size_t)size);
                if (end > seen) seen = end;
            }
        }
        for (; next <= last && next < MOST && kept[next]; next++)
            printf("%llu %u %u\n", (unsigned long long)next, sizes[next], sizes[next] ? kept[next][0] : 0);
        if (next <= last && next < seen && has_session) { /* a gap: ask for all of it */
            uint64_t end = next;
            while (end < seen && end < MOST && !kept[end]) end++;
            unsigned char request[20];
            memcpy(request, session, 10);
            for (int i = 0; i < 8; i++) request[10 + i] = (unsigned char)(next >> (56 - 8 * i));
            uint64_t count = end - next > 0xfffe ? 0xfffe : end - next;
            request[18] = (unsigned char)(count >> 8);
            request[19] = (unsigned char)count;
            sendto(asking, request, 20, 0, (struct sockaddr *)&server, sizeof server);
        }
    }
    return 0;
}
