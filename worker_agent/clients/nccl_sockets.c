/* NCCL's messages between two ranks, over TCP from and to host memory. NCCL takes the collectives of nccl_collnet.c
 * only from a library that brings this, too; it is as plain as it can be: a connection each, one way, a message after
 * the other, each with its size before it. */
#include "nccl_interface.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define GREETING_SECONDS 5
#define DEFAULT_MBPS 10000

struct address { /* what NCCL carries from who listens to who connects */
    struct sockaddr_in where;
    uint64_t secret; /* says that a connection is meant for this one */
};

struct listening {
    int socket;
    uint64_t secret;
};

struct request {
    struct connection *connection;
    char *data;
    uint64_t size; /* sent, or that there is room for; then of what was received */
    size_t moved;  /* of the 8 bytes of the size and the data behind them */
    int used, done;
};

struct connection {
    int socket, receives;
    unsigned first, next; /* requests under way, by their number modulo the ring's size */
    struct request requests[NCCL_MOST_REQUESTS];
};

static nccl_logger tell;

static nccl_result fail(nccl_result result, const char *what) {
    if (tell) tell(NCCL_LOG_WARN, NCCL_LOG_NET, "InArt", __LINE__, "InArt: %s: %s", what, strerror(errno));
    return result;
}

/* The interface that others reach: that of $NCCL_SOCKET_IFNAME, or the first that is not loopback. */
static int own_address(struct in_addr *found, char name[IF_NAMESIZE]) {
    const char *wanted = getenv("NCCL_SOCKET_IFNAME");
    struct ifaddrs *all, *each;
    int right = 0;
    if (getifaddrs(&all)) return -1;
    for (each = all; each && !right; each = each->ifa_next) {
        if (!each->ifa_addr || each->ifa_addr->sa_family != AF_INET || !(each->ifa_flags & IFF_UP)) continue;
        right = wanted ? !strncmp(each->ifa_name, wanted, strlen(wanted)) : !(each->ifa_flags & IFF_LOOPBACK);
        if (!right) continue;
        *found = ((struct sockaddr_in *)each->ifa_addr)->sin_addr;
        snprintf(name, IF_NAMESIZE, "%s", each->ifa_name);
    }
    freeifaddrs(all);
    return right ? 0 : -1;
}

static nccl_result init(void **context, uint64_t communicator, void *config, nccl_logger logger, void *profiler) {
    (void)communicator, (void)config, (void)profiler;
    struct in_addr address;
    char name[IF_NAMESIZE];
    tell = logger;
    *context = NULL;
    return own_address(&address, name) ? fail(NCCL_SYSTEM_ERROR, "no interface; look at NCCL_SOCKET_IFNAME")
                                       : NCCL_SUCCESS;
}

nccl_result inart_nccl_devices(int *number) {
    *number = 1;
    return NCCL_SUCCESS;
}

static int speed(void) {
    struct in_addr address;
    char name[IF_NAMESIZE], path[64];
    int mbps = 0;
    if (own_address(&address, name)) return DEFAULT_MBPS;
    snprintf(path, sizeof path, "/sys/class/net/%s/speed", name);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%d", &mbps) != 1) mbps = 0;
    if (file) fclose(file);
    return mbps > 0 ? mbps : DEFAULT_MBPS;
}

#define DESCRIBE(device)                                                                  \
    do {                                                                                  \
        memset(device, 0, sizeof *(device));                                              \
        (device)->name = "InArt";                                                         \
        (device)->pointers = NCCL_PTR_HOST;                                               \
        (device)->mbps = speed();                                                         \
        (device)->most_connections = 65536;                                               \
        (device)->most_receives = (device)->most_in_request = (device)->parts.number = 1; \
        (device)->most_bytes = NCCL_MOST_BYTES;                                           \
        (device)->most_collective_bytes = 1 << 29;                                        \
    } while (0)

nccl_result inart_nccl_properties_v11(int device, void *found) {
    struct nccl_device_v11 *described = found;
    DESCRIBE(described);
    described->parts.devices[0] = device;
    return NCCL_SUCCESS;
}

nccl_result inart_nccl_properties_v12(int device, void *found) {
    struct nccl_device_v12 *described = found;
    DESCRIBE(described);
    described->parts.devices[0] = device;
    described->rail = described->plane = NCCL_UNDEFINED;
    return NCCL_SUCCESS;
}

static nccl_result start_listening(void *context, int device, void *handle, void **listening) {
    (void)context, (void)device;
    struct address address = {.where.sin_family = AF_INET};
    struct listening *made = calloc(1, sizeof *made);
    char name[IF_NAMESIZE];
    socklen_t length = sizeof address.where;
    _Static_assert(sizeof address <= NCCL_HANDLE_BYTES, "it fits into NCCL's handle");
    made->socket = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (own_address(&address.where.sin_addr, name) || made->socket < 0 ||
        bind(made->socket, (struct sockaddr *)&address.where, length) || listen(made->socket, 64) ||
        getsockname(made->socket, (struct sockaddr *)&address.where, &length) ||
        getrandom(&made->secret, sizeof made->secret, 0) != sizeof made->secret) {
        if (made->socket >= 0) close(made->socket);
        free(made);
        return fail(NCCL_SYSTEM_ERROR, "cannot listen");
    }
    address.secret = made->secret;
    memcpy(handle, &address, sizeof address);
    *listening = made;
    return NCCL_SUCCESS;
}

static struct connection *connection_of(int socket, int receives) {
    struct connection *made = calloc(1, sizeof *made);
    int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    made->socket = socket;
    made->receives = receives;
    return made;
}

/* Connects; a call that a signal interrupts goes on meanwhile, and its end is waited for. Returns 0, or -1 with errno.
 */
static int connect_through(int socket, const struct sockaddr_in *where) {
    if (!connect(socket, (const struct sockaddr *)where, sizeof *where)) return 0;
    if (errno != EINTR) return -1;
    struct pollfd writable = {.fd = socket, .events = POLLOUT};
    while (poll(&writable, 1, -1) < 0)
        if (errno != EINTR) return -1;
    int error;
    socklen_t length = sizeof error;
    if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length)) return -1;
    errno = error;
    return error ? -1 : 0;
}

/* Sends or receives all of a secret, also when signals are handled meanwhile. Returns 0, or -1 with errno. */
static int move_secret(int socket, uint64_t *secret, int receives) {
    for (size_t moved = 0; moved < sizeof *secret;) {
        char *at = (char *)secret + moved;
        ssize_t done = receives ? recv(socket, at, sizeof *secret - moved, 0)
                                : send(socket, at, sizeof *secret - moved, MSG_NOSIGNAL);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return -1;
        moved += (size_t)done;
    }
    return 0;
}

/* Who listens need not have accepted: its kernel has. So this waits for a round trip, and no longer. */
static nccl_result start_connecting(void *context, int device, void *handle, void **connection, void **offload) {
    (void)context, (void)device, (void)offload;
    struct address address;
    memcpy(&address, handle, sizeof address);
    int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0 || connect_through(made, &address.where) || move_secret(made, &address.secret, 0)) {
        if (made >= 0) close(made);
        return fail(NCCL_SYSTEM_ERROR, "cannot connect");
    }
    *connection = connection_of(made, 0);
    return NCCL_SUCCESS;
}

static nccl_result accept_connection(void *listening, void **connection, void **offload) {
    (void)offload;
    struct listening *at = listening;
    struct timeval patience = {.tv_sec = GREETING_SECONDS};
    uint64_t secret = 0;
    *connection = NULL;
    int accepted = accept4(at->socket, NULL, NULL, SOCK_CLOEXEC);
    if (accepted < 0)
        return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ? NCCL_SUCCESS
                                                                          : fail(NCCL_SYSTEM_ERROR, "cannot accept");
    setsockopt(accepted, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (!move_secret(accepted, &secret, 1) && secret == at->secret)
        *connection = connection_of(accepted, 1);
    else /* somebody else's; the right one is still to come */
        close(accepted);
    return NCCL_SUCCESS;
}

nccl_result inart_nccl_register(void *connection, void *data, size_t size, int type, void **registered) {
    (void)connection, (void)data, (void)size;
    *registered = NULL;
    return type == NCCL_PTR_HOST ? NCCL_SUCCESS : NCCL_INTERNAL_ERROR;
}

nccl_result inart_nccl_deregister(void *connection, void *registered) {
    (void)connection, (void)registered;
    return NCCL_SUCCESS;
}

/* Moves of a request what the socket takes or has; -1: the connection is gone, or the message is too long. */
static int move(struct connection *connection, struct request *request) {
    uint64_t room = request->size, size = request->size;
    for (;;) {
        int header = request->moved < sizeof size;
        char *at = header ? (char *)&size + request->moved : request->data + (request->moved - sizeof size);
        size_t left = header ? sizeof size - request->moved : request->size + sizeof size - request->moved;
        if (!left) break;
        ssize_t done = connection->receives ? recv(connection->socket, at, left, MSG_DONTWAIT | (header ? MSG_PEEK : 0))
                                            : send(connection->socket, at, left, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (done < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
        if (done <= 0) return -1;
        if (connection->receives && header) { /* looked at only, until all of it is there */
            if ((size_t)done < sizeof size) return 0;
            if (size > room || recv(connection->socket, &size, sizeof size, 0) != sizeof size) return -1;
            request->size = size;
        }
        request->moved += (size_t)done;
    }
    request->done = 1;
    return 0;
}

static int progress(struct connection *connection) {
    while (connection->first != connection->next) {
        struct request *request = &connection->requests[connection->first % NCCL_MOST_REQUESTS];
        if (move(connection, request)) return -1;
        if (!request->done) break;
        connection->first++;
    }
    return 0;
}

static nccl_result begin(struct connection *connection, void *data, size_t size, void **request) {
    struct request *next = &connection->requests[connection->next % NCCL_MOST_REQUESTS];
    *request = NULL;
    if (next->used) return NCCL_SUCCESS; /* NCCL tries again */
    *next = (struct request){.connection = connection, .data = data, .size = size, .used = 1};
    connection->next++;
    *request = next;
    return progress(connection) ? fail(NCCL_REMOTE_ERROR, "a connection is gone") : NCCL_SUCCESS;
}

static nccl_result start_sending(void *connection, void *data, size_t size, int tag, void *registered, void *profiled,
                                 void **request) {
    (void)tag, (void)registered, (void)profiled;
    return begin(connection, data, size, request);
}

static nccl_result start_receiving(void *connection, int number, void **data, size_t *sizes, int *tags,
                                   void **registered, void **profiled, void **request) {
    (void)tags, (void)registered, (void)profiled;
    return number == 1 ? begin(connection, data[0], sizes[0], request) : NCCL_INTERNAL_ERROR;
}

static nccl_result flush(void *connection, int number, void **data, int *sizes, void **registered, void **request) {
    (void)connection, (void)number, (void)data, (void)sizes, (void)registered;
    *request = NULL; /* host memory needs none */
    return NCCL_SUCCESS;
}

static nccl_result test(void *request, int *done, int *sizes) {
    struct request *asked = request;
    *done = 0;
    if (!asked->done && progress(asked->connection)) return fail(NCCL_REMOTE_ERROR, "a connection is gone");
    if (asked->done) {
        *done = 1;
        if (sizes) *sizes = (int)asked->size;
        asked->used = 0;
    }
    return NCCL_SUCCESS;
}

static nccl_result close_connection(void *connection) {
    struct connection *closed = connection;
    if (closed) close(closed->socket);
    free(closed);
    return NCCL_SUCCESS;
}

static nccl_result close_listening(void *listening) {
    struct listening *closed = listening;
    if (closed) close(closed->socket);
    free(closed);
    return NCCL_SUCCESS;
}

static nccl_result finalize(void *context) {
    (void)context;
    return NCCL_SUCCESS;
}

#define NET(version)                                                                   \
    __attribute__((visibility("default"))) struct nccl_net ncclNetPlugin_##version = { \
        .name = "InArt",                                                               \
        .init = init,                                                                  \
        .devices = inart_nccl_devices,                                                 \
        .get_properties = inart_nccl_properties_##version,                             \
        .listen = start_listening,                                                     \
        .connect = start_connecting,                                                   \
        .accept = accept_connection,                                                   \
        .register_memory = inart_nccl_register,                                        \
        .deregister = inart_nccl_deregister,                                           \
        .send = start_sending,                                                         \
        .receive = start_receiving,                                                    \
        .flush = flush,                                                                \
        .test = test,                                                                  \
        .close_send = close_connection,                                                \
        .close_receive = close_connection,                                             \
        .close_listen = close_listening,                                               \
        .finalize = finalize,                                                          \
    }

NET(v11);
NET(v12);
