/* Load for UDP receivers, and the least that one can do.
 *
 *     udp send PORT SECONDS RATE LINES SERIES   send packets of LINES lines of StatsD to 127.0.0.1;
 *                                               RATE is packets per second, 0 for as many as possible
 *     udp sink PORT SECONDS BUFFER              receive packets with recvmmsg, and do nothing with them
 *
 * The sender prints the number of its packets, the sink also its processor time, in JSON. SECONDS of
 * the sink count from its first packet.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

enum { BATCH = 64, SIZE = 65536, KINDS = 1024 };

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static struct sockaddr_in loopback(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}

static int send_packets(int port, double seconds, double rate, int lines, int series)
{
    static char packets[KINDS][1400];
    static struct iovec places[KINDS];
    static struct mmsghdr heads[BATCH];
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in at = loopback(port);
    if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) < 0) return perror("connect"), 1;
    for (int i = 0; i < KINDS; i++) {
        int size = 0;
        for (int j = 0; j < lines; j++)
            size += snprintf(packets[i] + size, sizeof packets[i] - (size_t)size,
                             "web.requests.%d:%d|%s|#env:prod,host:web-%d\n", (i * lines + j) % series,
                             i % 100, j % 5 == 4 ? "ms" : "c", j % 8);
        places[i] = (struct iovec){packets[i], (size_t)size - 1};
    }
    double start = now(), end = start + seconds;
    unsigned long sent = 0;
    while (now() < end) {
        int batch = BATCH;
        if (rate > 0) {
            double due = (now() - start) * rate - (double)sent;
            if (due < 1) {
                struct timespec pause = {0, 200000};
                nanosleep(&pause, NULL);
                continue;
            }
            if (due < batch) batch = (int)due;
        }
        for (int i = 0; i < batch; i++)
            heads[i].msg_hdr = (struct msghdr){.msg_iov = &places[(sent + (unsigned)i) % KINDS],
                                               .msg_iovlen = 1};
        int count = sendmmsg(fd, heads, (unsigned)batch, 0);
        if (count > 0) sent += (unsigned long)count;
    }
    printf("%lu\n", sent);
    return 0;
}

static int sink(int port, double seconds, int buffer)
{
    static char data[BATCH][SIZE];
    static struct iovec places[BATCH];
    static struct mmsghdr heads[BATCH];
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in at = loopback(port);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) < 0) return perror("bind"), 1;
    puts("ready");
    fflush(stdout);
    unsigned long received = 0;
    double end = 0;
    struct pollfd wanted = {.fd = fd, .events = POLLIN};
    while (!end || now() < end) {
        if (poll(&wanted, 1, 100) <= 0) continue;
        if (!end) end = now() + seconds;
        for (int i = 0; i < BATCH; i++) {
            places[i] = (struct iovec){data[i], SIZE};
            heads[i].msg_hdr = (struct msghdr){.msg_iov = &places[i], .msg_iovlen = 1};
        }
        int count = recvmmsg(fd, heads, BATCH, MSG_DONTWAIT, NULL);
        if (count > 0) received += (unsigned long)count;
    }
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double spent = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                   (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    printf("{\"packets\": %lu, \"cpu_s\": %f}\n", received, spent);
    return 0;
}

int main(int count, char **given)
{
    if (count == 7 && !strcmp(given[1], "send"))
        return send_packets(atoi(given[2]), atof(given[3]), atof(given[4]), atoi(given[5]),
                            atoi(given[6]));
    if (count == 5 && !strcmp(given[1], "sink"))
        return sink(atoi(given[2]), atof(given[3]), atoi(given[4]));
    fputs("usage: udp send PORT SECONDS RATE LINES SERIES | udp sink PORT SECONDS BUFFER\n", stderr);
    return 2;
}
