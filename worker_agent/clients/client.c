#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define PROTOCOL_VERSION 2
#define MESSAGE_BYTES 65536
#define SMALLEST_REGION 65536
#define PATIENCE 1e9 /* seconds at most: the clock has room for them */

enum { FREE = 2, TAKEN = 3 }; /* states of an operation beside those of client.h */

struct inart_client {
    int socket, workers, index;
    int regions, started;
    struct inart_operation *operations;
    pthread_mutex_t lock;
    /* Of the threads that await something one polls the socket, and the others wait for `heard`. Whoever takes messages
     * from the socket wakes all of them, the one that polls by `wake`: what it waited for may have been among them. */
    pthread_cond_t heard;
    int polling, wake;
    char failure[512];
    char message[MESSAGE_BYTES + 1];
};

#define NS_PER_SECOND 1000000000LL

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS_PER_SECOND + now.tv_nsec;
}

/* Waits until one of the descriptors is readable, also when signals are handled meanwhile. Returns whether one is by
 * the time `until` (ns; negative: no limit). */
static int wait_readable(struct pollfd *descriptors, nfds_t count, long long until) {
    for (;;) {
        long long left = until < 0 ? -1 : (until - now_ns() + 999999) / 1000000;
        if (until >= 0 && left < 0) left = 0;
        int ready = poll(descriptors, count, left > INT_MAX ? INT_MAX : (int)left);
        if (ready > 0) return 1;
        if (ready < 0 && errno != EINTR) return 0;
        if (ready == 0 && left <= INT_MAX) return 0;
    }
}

/* Where the value of a key begins in an object that json.dumps of Python has written; NULL: it has none. A key cannot
 * be found within a text, where its quotes would be escaped. */
static const char *value_of(const char *object, const char *key) {
    char pattern[32];
    snprintf(pattern, sizeof pattern, "\"%s\": ", key);
    const char *found = strstr(object, pattern);
    return found ? found + strlen(pattern) : NULL;
}

static int number_of(const char *object, const char *key) {
    const char *value = value_of(object, key);
    return value ? (int)strtol(value, NULL, 10) : -1;
}

static int is_type(const char *object, const char *type) {
    const char *value = value_of(object, "type");
    size_t length = strlen(type);
    return value && value[0] == '"' && !strncmp(value + 1, type, length) && value[1 + length] == '"';
}

/* The text of a key; escapes stay as they are. */
static void copy_text(const char *object, const char *key, char *to, size_t room) {
    const char *value = value_of(object, key);
    size_t length = 0;
    for (value = value ? value + 1 : ""; value[length] && value[length] != '"' && length + 1 < room; length++) {
        if (value[length] == '\\' && value[length + 1] && length + 2 < room) {
            to[length] = value[length];
            length++;
        }
        to[length] = value[length];
    }
    to[length] = 0;
}

static int say(int socket, const char *text, int descriptor) {
    struct iovec part = {.iov_base = (void *)text, .iov_len = strlen(text)};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (descriptor >= 0) {
        message.msg_control = control.room;
        message.msg_controllen = sizeof control.room;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    }
    ssize_t sent;
    do sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? -1 : 0;
}

/* Nothing more is taken, and what is under way fails, unless its answer has come. */
static void lose(struct inart_client *client, const char *why) {
    if (!client->failure[0]) snprintf(client->failure, sizeof client->failure, "%s", why);
    for (struct inart_operation *each = client->operations; each; each = each->next)
        if (each->state == INART_PENDING) each->state = INART_FAILED;
}

static void understand(struct inart_client *client) {
    const char *text = client->message;
    char why[sizeof client->failure];
    if (is_type(text, "done") || is_type(text, "failed")) {
        int number = number_of(text, "id");
        for (struct inart_operation *each = client->operations; each; each = each->next)
            if (each->number == number && each->state == INART_PENDING)
                each->state = is_type(text, "done") ? INART_DONE : INART_FAILED;
    }
    if (is_type(text, "done")) return;
    copy_text(text, "message", why, sizeof why);
    if (is_type(text, "refused"))
        lose(client, why);
    else if (!client->failure[0]) /* "failed", or "ended", which is followed by a "failed" for each operation */
        snprintf(client->failure, sizeof client->failure, "%s", why[0] ? why : "the agent says what nobody knows");
}

/* Takes the messages that have come. */
static void hear(struct inart_client *client) {
    int heard = 0;
    for (;;) {
        ssize_t got = recv(client->socket, client->message, MESSAGE_BYTES, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        heard = 1;
        if (got <= 0) {
            lose(client, "the agent process is gone");
            break;
        }
        client->message[got] = 0;
        understand(client);
    }
    if (!heard) return;
    pthread_cond_broadcast(&client->heard);
    if (client->polling) eventfd_write(client->wake, 1);
}

/* Waits until something is heard, or `until`; the caller holds the lock. */
static void wait_for_news(struct inart_client *client, long long until) {
    if (client->polling) {
        struct timespec at = {until / NS_PER_SECOND, until % NS_PER_SECOND};
        if (until < 0)
            pthread_cond_wait(&client->heard, &client->lock);
        else
            pthread_cond_timedwait(&client->heard, &client->lock, &at);
        return;
    }
    struct pollfd descriptors[] = {{.fd = client->socket, .events = POLLIN}, {.fd = client->wake, .events = POLLIN}};
    eventfd_t count;
    client->polling = 1;
    pthread_mutex_unlock(&client->lock);
    wait_readable(descriptors, 2, until);
    pthread_mutex_lock(&client->lock);
    eventfd_read(client->wake, &count);
    client->polling = 0;
    pthread_cond_broadcast(&client->heard); /* another one polls */
    hear(client);
}

static int introduce(struct inart_client *client, const char *address, double seconds, char *why, size_t room) {
    struct sockaddr_un where = {.sun_family = AF_UNIX};
    if (strncmp(address, "unix:", 5) || strlen(address + 5) >= sizeof where.sun_path) {
        snprintf(why, room, "an agent's address is \"unix:/path\", not %.200s", address);
        return -1;
    }
    strcpy(where.sun_path, address + 5);
    client->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    client->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int connected = -1;
    do connected = connect(client->socket, (struct sockaddr *)&where, sizeof where);
    while (connected && errno == EINTR); /* a Unix socket is not connected then, nor about to be */
    if (client->wake < 0 || connected) {
        snprintf(why, room, "no agent at %.200s: %s; inart agent --socket makes one", where.sun_path, strerror(errno));
        return -1;
    }
    char hello[256];
    snprintf(
        hello, sizeof hello,
        "{\"type\": \"hello\", \"version\": %d, \"timeout\": %g, \"job\": \"process %d\", \"rank\": 0, \"ranks\": 1, "
        "\"bound\": true, \"take_over\": false}",
        PROTOCOL_VERSION, seconds, (int)getpid());
    struct pollfd answer = {.fd = client->socket, .events = POLLIN};
    /* An agent welcomes when the job is complete; it says that it is not a moment before we lose patience. */
    long long until = now_ns() + (long long)((seconds < PATIENCE ? seconds + 5 : PATIENCE) * NS_PER_SECOND);
    if (say(client->socket, hello, -1) || !wait_readable(&answer, 1, until)) {
        snprintf(why, room, "the agent at %.200s does not answer", where.sun_path);
        return -1;
    }
    ssize_t got;
    do got = recv(client->socket, client->message, MESSAGE_BYTES, 0);
    while (got < 0 && errno == EINTR);
    client->message[got > 0 ? got : 0] = 0;
    if (!is_type(client->message, "welcome")) {
        copy_text(client->message, "message", why, room);
        if (!why[0]) snprintf(why, room, "the agent at %.200s has just ended", where.sun_path);
        return -1;
    }
    client->workers = number_of(client->message, "workers");
    client->index = number_of(client->message, "index");
    return 0;
}

/* Closes and frees all but the operations. */
static void release(struct inart_client *client) {
    if (client->socket >= 0) close(client->socket);
    if (client->wake >= 0) close(client->wake);
    pthread_cond_destroy(&client->heard);
    pthread_mutex_destroy(&client->lock);
    free(client);
}

struct inart_client *inart_connect(const char *address, double seconds, char *why, size_t room) {
    struct inart_client *client = calloc(1, sizeof *client);
    if (!client) {
        snprintf(why, room, "out of memory");
        return NULL;
    }
    client->socket = client->wake = -1;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&client->heard, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&client->lock, NULL);
    why[0] = 0;
    if (!introduce(client, address, seconds, why, room)) return client;
    release(client);
    return NULL;
}

int inart_workers(const struct inart_client *client) { return client->workers; }

int inart_index(const struct inart_client *client) { return client->index; }

const char *inart_failure(const struct inart_client *client) { return client->failure; }

/* Shared memory of so many bytes that the agent knows, too. Returns 0, or -1. */
static int make_region(struct inart_client *client, struct inart_operation *operation, size_t bytes) {
    int descriptor = memfd_create("inart", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (descriptor < 0) return -1;
    char text[96];
    void *memory = MAP_FAILED;
    /* Sealed, so that the agent can trust that its mapping stays backed by memory. */
    if (!ftruncate(descriptor, (off_t)bytes) &&
        !fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    snprintf(text, sizeof text, "{\"type\": \"region\", \"region\": %d, \"bytes\": %zu}", client->regions + 1, bytes);
    if (memory == MAP_FAILED || say(client->socket, text, descriptor)) {
        if (memory != MAP_FAILED) munmap(memory, bytes);
        close(descriptor);
        return -1;
    }
    close(descriptor);
    if (operation->memory) munmap(operation->memory, operation->room);
    operation->memory = memory;
    operation->room = bytes;
    operation->region = ++client->regions;
    return 0;
}

/* The smallest free operation with enough memory, or else the largest free one, or a new one. */
static struct inart_operation *find_free(struct inart_client *client, size_t bytes) {
    struct inart_operation *best = NULL;
    for (struct inart_operation *each = client->operations; each; each = each->next) {
        if (each->state != FREE) continue;
        int enough = each->room >= bytes;
        if (!best || (enough ? best->room < bytes || each->room < best->room : each->room > best->room)) best = each;
    }
    if (best) return best;
    best = calloc(1, sizeof *best);
    if (best) {
        best->state = FREE;
        best->next = client->operations;
        client->operations = best;
    }
    return best;
}

struct inart_operation *inart_take(struct inart_client *client, size_t bytes) {
    size_t room = SMALLEST_REGION; /* doubled, as the agent keeps the regions that an operation has outgrown */
    while (room < bytes && room <= SIZE_MAX / 4) room *= 2;
    pthread_mutex_lock(&client->lock);
    struct inart_operation *operation = find_free(client, bytes);
    if (operation && operation->room < bytes && make_region(client, operation, room)) operation = NULL;
    if (operation) operation->state = TAKEN;
    pthread_mutex_unlock(&client->lock);
    return operation;
}

int inart_start(struct inart_client *client, struct inart_operation *operation, size_t elements, const char *type,
                const char *name) {
    char text[256];
    pthread_mutex_lock(&client->lock);
    hear(client); /* who has been told that its epoch has ended must not begin anything */
    operation->number = ++client->started;
    operation->state = INART_PENDING;
    snprintf(
        text, sizeof text,
        "{\"type\": \"allreduce\", \"id\": %d, \"region\": %d, \"elements\": %zu, \"dtype\": \"%s\", \"op\": \"%s\"}",
        operation->number, operation->region, elements, type, name);
    if (!client->failure[0] && say(client->socket, text, -1)) lose(client, "the agent process is gone");
    if (client->failure[0]) operation->state = INART_FAILED;
    int failed = operation->state == INART_FAILED;
    pthread_mutex_unlock(&client->lock);
    return failed ? INART_FAILED : 0;
}

int inart_test(struct inart_client *client, struct inart_operation *operation) {
    pthread_mutex_lock(&client->lock);
    if (operation->state == INART_PENDING) hear(client);
    int state = operation->state;
    pthread_mutex_unlock(&client->lock);
    return state;
}

int inart_await(struct inart_client *client, struct inart_operation *operation, int milliseconds) {
    long long until = milliseconds < 0 ? -1 : now_ns() + milliseconds * 1000000LL;
    pthread_mutex_lock(&client->lock);
    if (operation->state == INART_PENDING) hear(client);
    while (operation->state == INART_PENDING && (until < 0 || now_ns() < until)) wait_for_news(client, until);
    int state = operation->state;
    pthread_mutex_unlock(&client->lock);
    return state;
}

void inart_release(struct inart_client *client, struct inart_operation *operation) {
    pthread_mutex_lock(&client->lock);
    operation->state = FREE;
    pthread_mutex_unlock(&client->lock);
}

void inart_close(struct inart_client *client) {
    say(client->socket, "{\"type\": \"bye\"}", -1); /* who goes without a word is taken for dead */
    for (struct inart_operation *each = client->operations, *next; each; each = next) {
        next = each->next;
        if (each->memory) munmap(each->memory, each->room);
        free(each);
    }
    release(client);
}
