/* Checks of the clients in C (worker_agent/clients): an agent's client while signals are handled, and from several
 * threads; NCCL's connections while signals are handled. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/un.h>
#include <unistd.h>

#include "client.h"
#include "expect.h"
#include "nccl_interface.h"

#undef connect
#undef poll
#undef recv
#undef send

#define LONG 60000 /* ms: for what must not take any of it */

/* ---- signals: each of these calls is interrupted as often, before it does its work ---- */

static _Thread_local int interruptions;

static int interrupted(void) {
    if (interruptions <= 0) return 0;
    interruptions--;
    errno = EINTR;
    return 1;
}

/* A TCP connection that is interrupted is made nevertheless; one over a Unix socket is not. */
int checked_connect(int descriptor, const struct sockaddr *address, socklen_t length) {
    if (interruptions <= 0 || address->sa_family == AF_UNIX)
        return interrupted() ? -1 : connect(descriptor, address, length);
    int flags = fcntl(descriptor, F_GETFL);
    fcntl(descriptor, F_SETFL, flags | O_NONBLOCK);
    int begun = connect(descriptor, address, length);
    EXPECT(!begun || errno == EINPROGRESS);
    fcntl(descriptor, F_SETFL, flags);
    EXPECT(interrupted());
    return -1;
}

int checked_poll(struct pollfd *descriptors, nfds_t count, int milliseconds) {
    return interrupted() ? -1 : poll(descriptors, count, milliseconds);
}

/* A signal may also come when a part of the data is there. */
ssize_t checked_recv(int descriptor, void *data, size_t size, int flags) {
    if (flags & MSG_DONTWAIT) return recv(descriptor, data, size, flags);
    return interrupted() ? -1 : recv(descriptor, data, size == sizeof(uint64_t) ? 3 : size, flags & ~MSG_WAITALL);
}

ssize_t checked_send(int descriptor, const void *data, size_t size, int flags) {
    return interrupted() ? -1 : send(descriptor, data, size == sizeof(uint64_t) ? 5 : size, flags);
}

/* ---- an agent ---- */

struct agent {
    int listens, socket;
    char address[64];
    pthread_t thread;
};

static void answer(int socket, const char *text) {
    EXPECT(send(socket, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text));
}

/* Welcomes one client, and ends operations in pairs: when the second of a pair has come, the first one is done, and
 * then the second. */
static void *agent_run(void *given) {
    struct agent *a = given;
    char text[4096];
    a->socket = accept(a->listens, NULL, NULL);
    EXPECT(a->socket >= 0 && recv(a->socket, text, sizeof text, 0) > 0);
    answer(a->socket, "{\"type\": \"welcome\", \"workers\": 2, \"node\": \"w0\", \"index\": 0}");
    for (ssize_t got; (got = recv(a->socket, text, sizeof text - 1, 0)) > 0;) {
        text[got] = 0;
        const char *id = strstr(text, "\"id\": ");
        if (!strstr(text, "allreduce") || !id) continue;
        int number = atoi(id + 6);
        for (int each = number - 1; number % 2 == 0 && each <= number; each++) {
            char done[64];
            snprintf(done, sizeof done, "{\"type\": \"done\", \"id\": %d, \"seconds\": 0.1}", each);
            answer(a->socket, done);
        }
    }
    return NULL;
}

static void agent_start(struct agent *a) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char path[] = "/tmp/inart-checks-XXXXXX";
    EXPECT(mkdtemp(path));
    snprintf(at.sun_path, sizeof at.sun_path, "%s/agent", path);
    snprintf(a->address, sizeof a->address, "unix:%s", at.sun_path);
    a->listens = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    EXPECT(!bind(a->listens, (struct sockaddr *)&at, sizeof at) && !listen(a->listens, 1));
    EXPECT(!pthread_create(&a->thread, NULL, agent_run, a));
}

static void agent_end(struct agent *a) {
    pthread_join(a->thread, NULL);
    close(a->socket);
    close(a->listens);
    char *path = a->address + 5;
    unlink(path);
    *strrchr(path, '/') = 0;
    rmdir(path);
}

/* ---- the checks ---- */

static void a_client_goes_on_when_signals_are_handled(void) {
    struct agent agent;
    char why[512];
    agent_start(&agent);
    interruptions = 4; /* connect, poll and recv of the welcome */
    struct inart_client *client = inart_connect(agent.address, 30, why, sizeof why);
    EXPECT(client && interruptions == 0);
    struct inart_operation *one = inart_take(client, 4096), *two = inart_take(client, 4096);
    EXPECT(!inart_start(client, one, 1024, "float32", "sum") && !inart_start(client, two, 1024, "float32", "sum"));
    interruptions = 3;
    EXPECT(inart_await(client, two, LONG) == INART_DONE);
    interruptions = 0;
    EXPECT(inart_await(client, one, LONG) == INART_DONE);
    inart_close(client);
    agent_end(&agent);
}

struct waiter {
    struct inart_client *client;
    struct inart_operation *operation;
    int state;
};

static void *await(void *given) {
    struct waiter *w = given;
    w->state = inart_await(w->client, w->operation, LONG);
    return NULL;
}

/* The thread that awaits an operation hears of its end also when another one has taken the message. */
static void threads_lose_no_wake_up(void) {
    struct agent agent;
    char why[512];
    agent_start(&agent);
    struct inart_client *client = inart_connect(agent.address, 30, why, sizeof why);
    EXPECT(client);
    for (int round = 0; round < 300; round++) {
        struct inart_operation *one = inart_take(client, 4096), *two = inart_take(client, 4096);
        struct waiter waiter = {client, one, 7};
        pthread_t thread;
        EXPECT(!inart_start(client, one, 1024, "float32", "sum"));
        EXPECT(!pthread_create(&thread, NULL, await, &waiter));
        EXPECT(!inart_start(client, two, 1024, "float32", "sum"));
        if (round % 2)
            while (inart_test(client, two) == INART_PENDING) {
            }
        else
            EXPECT(inart_await(client, two, LONG) == INART_DONE);
        pthread_join(thread, NULL);
        EXPECT(waiter.state == INART_DONE);
        inart_release(client, one);
        inart_release(client, two);
    }
    inart_close(client);
    agent_end(&agent);
}

extern struct nccl_net ncclNetPlugin_v11;

static void nccl_connects_when_signals_are_handled(void) {
    char handle[NCCL_HANDLE_BYTES];
    void *listening, *sends = NULL, *receives = NULL, *offload = NULL;
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    EXPECT(ncclNetPlugin_v11.listen(NULL, 0, handle, &listening) == NCCL_SUCCESS);
    interruptions = 3; /* connect, poll and send */
    EXPECT(ncclNetPlugin_v11.connect(NULL, 0, handle, &sends, &offload) == NCCL_SUCCESS && sends);
    EXPECT(interruptions == 0);
    for (int i = 0; i < LONG && !receives; i++) {
        interruptions = 1;
        EXPECT(ncclNetPlugin_v11.accept(listening, &receives, &offload) == NCCL_SUCCESS);
        if (!receives) usleep(1000);
    }
    EXPECT(receives);
    interruptions = 0;
    ncclNetPlugin_v11.close_send(sends);
    ncclNetPlugin_v11.close_receive(receives);
    ncclNetPlugin_v11.close_listen(listening);
}

int main(int argc, char **argv) {
    const struct probe checks[] = {
        {"a_client_goes_on_when_signals_are_handled", a_client_goes_on_when_signals_are_handled},
        {"threads_lose_no_wake_up", threads_lose_no_wake_up},
        {"nccl_connects_when_signals_are_handled", nccl_connects_when_signals_are_handled},
    };
    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}
