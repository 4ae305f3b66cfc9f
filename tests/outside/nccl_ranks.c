/* Plays NCCL's part towards our plugin, by NCCL's interface: `nccl_ranks PLUGIN AGENT ...`, a rank for each agent, with
 * memory that they share in the place of NCCL's bootstrap. Each rank is a process that loads the plugin as NCCL does.
 * Prints "all right". */
#include "nccl_interface.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_RANKS 16
#define MESSAGES 40
#define MESSAGE 30000
#define ROUNDS 12
#define IN_FLIGHT 4
#define MOST_ELEMENTS 50000
#define TRIES 100000000L

static struct {
    pthread_barrier_t barrier;
    char handles[MOST_RANKS][NCCL_HANDLE_BYTES];
} *shared;

static int rank, ranks;
static struct nccl_net *net;
static struct nccl_collnet *collnet;

static void expect(int right, const char *what) {
    if (right) return;
    fprintf(stderr, "rank %d: wrong: %s\n", rank, what);
    exit(3);
}

static void logger(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
    (void)flags, (void)file, (void)line;
    if (level > NCCL_LOG_WARN) return;
    va_list words;
    va_start(words, format);
    vfprintf(stderr, format, words);
    va_end(words);
    fputc('\n', stderr);
}

static void meet(void) { pthread_barrier_wait(&shared->barrier); }

/* A ring of messages, several under way on each connection, more than a connection holds at a time. */
static void check_messages(void) {
    void *context, *listening, *to = NULL, *from = NULL, *sent[MESSAGES] = {0}, *received[MESSAGES] = {0};
    static char out[MESSAGES][MESSAGE], in[MESSAGES][MESSAGE];
    expect(!net->init(&context, 1, NULL, logger, NULL), "init");
    expect(!net->listen(context, 0, shared->handles[rank], &listening), "listen");
    meet();
    expect(!net->connect(context, 0, shared->handles[(rank + 1) % ranks], &to, NULL) && to, "connect");
    while (!from) expect(!net->accept(listening, &from, NULL), "accept");
    expect(!net->close_listen(listening), "close");
    for (int i = 0; i < MESSAGES; i++) memset(out[i], i + rank, MESSAGE);
    int begun[2] = {0, 0}, ended[2] = {0, 0};
    for (long tries = 0; ended[0] + ended[1] < 2 * MESSAGES; tries++) {
        expect(tries < TRIES, "messages come");
        int i = begun[0], j = begun[1], done = 0, size = 0;
        if (i < MESSAGES) expect(!net->send(to, out[i], (size_t)(MESSAGE - i), 0, NULL, NULL, &sent[i]), "send");
        begun[0] += i < MESSAGES && sent[i];
        void *data[] = {j < MESSAGES ? in[j] : NULL}, *registered[] = {NULL};
        size_t room[] = {MESSAGE};
        int tags[] = {0};
        if (j < MESSAGES) expect(!net->receive(from, 1, data, room, tags, registered, NULL, &received[j]), "receive");
        begun[1] += j < MESSAGES && received[j];
        if (ended[0] < begun[0]) expect(!net->test(sent[ended[0]], &done, &size), "test of what is sent");
        ended[0] += done;
        done = 0;
        if (ended[1] < begun[1]) expect(!net->test(received[ended[1]], &done, &size), "test of what comes");
        if (done) expect(size == MESSAGE - ended[1], "sizes");
        ended[1] += done;
    }
    for (int i = 0; i < MESSAGES; i++)
        for (int at = 0; at < MESSAGE - i; at++) expect(in[i][at] == (char)(i + (rank + ranks - 1) % ranks), "bytes");
    meet();
    expect(!net->close_send(to) && !net->close_receive(from) && !net->finalize(context), "end");
}

static float given(int of, int round, int i) { return (float)((i * 7 + of * 13 + round) % 100 - 50); }

static uint16_t bfloat16(float value) { /* of small whole numbers, which it has exactly */
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static float from_bfloat16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static int elements_of(int round) { return 1 + (round * 7919) % MOST_ELEMENTS; }

static int type_of(int round) { return round % 3 == 2 ? NCCL_BFLOAT16 : NCCL_FLOAT32; }

static float out[ROUNDS][MOST_ELEMENTS], in[ROUNDS][MOST_ELEMENTS];

static void *start_sum(void *group, int round) {
    void *request;
    for (int i = 0; i < elements_of(round); i++) {
        if (type_of(round) == NCCL_FLOAT32)
            out[round][i] = given(rank, round, i);
        else
            ((uint16_t *)out[round])[i] = bfloat16(given(rank, round, i));
    }
    expect(!collnet->allreduce(group, out[round], in[round], (size_t)elements_of(round), type_of(round), NCCL_SUM, NULL,
                               NULL, &request) &&
               request,
           "all-reduce");
    return request;
}

static void check_sum(int round) {
    for (int i = 0; i < elements_of(round); i++) {
        float sum = 0, found = in[round][i];
        for (int of = 0; of < ranks; of++) sum += given(of, round, i);
        if (type_of(round) == NCCL_BFLOAT16) found = from_bfloat16(((uint16_t *)in[round])[i]);
        expect(fabsf(found - sum) < 1e-3f, "sum");
    }
}

/* A group of all ranks, each of which has such a handle; NULL: the plugin leaves it to NCCL. */
static void *group_of(const char *mine, void *listening) {
    void *group = NULL, *handles[MOST_RANKS];
    meet();
    memcpy(shared->handles[rank], mine, NCCL_HANDLE_BYTES);
    meet();
    for (int of = 0; of < ranks; of++) handles[of] = shared->handles[of];
    if (collnet->connect(handles, ranks, rank, listening, &group)) group = NULL;
    expect(!collnet->close_listen(listening), "close of what listens");
    return group;
}

/* Sums of several sizes and types, IN_FLIGHT of them under way at a time. */
static void check_sums(void *group) {
    void *requests[ROUNDS], *registered;
    expect(!collnet->register_memory(group, out, sizeof out, NCCL_PTR_HOST, &registered), "registration");
    expect(collnet->register_memory(group, out, sizeof out, 2, &registered), "a GPU's memory is refused");
    for (int begun = 0, ended = 0; ended < ROUNDS;) {
        if (begun < ROUNDS && begun < ended + IN_FLIGHT) {
            requests[begun] = start_sum(group, begun);
            begun++;
        }
        int done = 0, size = 0;
        expect(!collnet->test(requests[ended], &done, &size), "test of a sum");
        if (!done) continue;
        expect(size == elements_of(ended) * (type_of(ended) == NCCL_FLOAT32 ? 4 : 2), "size of a sum");
        check_sum(ended++);
    }
}

static void check_groups(void) {
    void *context, *other, *listening[2], *group;
    char handles[2][NCCL_HANDLE_BYTES] = {"", ""};
    int supported;
    expect(!collnet->init(&context, 1, logger) && !collnet->init(&other, 2, logger), "init of groups");
    expect(!collnet->reduce_support(NCCL_FLOAT32, NCCL_SUM, &supported) && supported, "sums of float32");
    expect(!collnet->reduce_support(NCCL_FLOAT32, 2, &supported) && !supported, "no maximum");
    expect(!collnet->reduce_support(2, NCCL_SUM, &supported) && !supported, "no integers");
    for (int turn = 0; turn < 2; turn++) {
        for (int again = 0; again < 2; again++) /* as NCCL does for each of its channels */
            expect(!collnet->listen(context, 0, handles[0], &listening[0]), "listen");
        expect(!collnet->listen(other, 0, handles[1], &listening[1]), "listen of a second group");
        expect(!group_of(handles[1], listening[1]), "a second group that has listened later is left to NCCL");
        expect((group = group_of(handles[0], listening[0])) != NULL, "a group");
        expect(!collnet->listen(context, 0, handles[1], &listening[1]), "listen of a third group");
        expect(!group_of(handles[1], listening[1]), "another group of the same communicator is left to NCCL");
        check_sums(group);
        meet();
        expect(!collnet->close_group(group), "close of a group");
        meet();
    }
    expect(!collnet->finalize(other) && !collnet->finalize(context), "end of groups");
}

static int run(const char *plugin, const char *agent) {
    setenv("INART_AGENT", agent, 1);
    void *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    expect(library != NULL, dlerror());
    expect(dlsym(library, "ncclNetPlugin_v11") && dlsym(library, "ncclCollNetPlugin_v11"), "version 11");
    net = dlsym(library, "ncclNetPlugin_v12");
    collnet = dlsym(library, "ncclCollNetPlugin_v12");
    expect(net && collnet, "version 12");
    struct nccl_device_v12 device;
    int devices;
    expect(!net->devices(&devices) && devices == 1 && !net->get_properties(0, &device), "a device");
    expect(device.pointers == NCCL_PTR_HOST && device.rail == NCCL_UNDEFINED, "its properties");
    check_messages();
    check_groups();
    return 0;
}

int main(int argc, char **argv) {
    pthread_barrierattr_t attributes;
    ranks = argc - 2;
    if (ranks < 2 || ranks > MOST_RANKS) return 2;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attributes, (unsigned)ranks);
    for (rank = 0; rank < ranks; rank++)
        if (fork() == 0) return run(argv[1], argv[2 + rank]);
    for (int ended = 0, status; ended < ranks; ended++)
        if (wait(&status) < 0 || status) {
            kill(0, SIGTERM); /* the others would wait for it */
            return 1;
        }
    printf("all right\n");
    return 0;
}
