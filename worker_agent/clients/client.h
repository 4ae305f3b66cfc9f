/* A node's agent for programs in C: what worker_agent/local.py is for Python. The agent is another process (`inart
 * agent`, `inart mpi`); messages go over its Unix socket (worker_agent/socket_protocol.py), values through shared
 * memory. All workers of a job must start the same operations in the same order.
 *
 * An operation works in place on memory that the client owns: take it, fill its memory, start it, test or await it,
 * read the result, release it. Any thread may call any function. */
#ifndef INART_CLIENT_H
#define INART_CLIENT_H

#include <stddef.h>

struct inart_client;

struct inart_operation {
    void *memory;
    size_t room; /* bytes of the memory */
    int region, number, state;
    struct inart_operation *next;
};

enum { INART_PENDING = 0, INART_DONE = 1, INART_FAILED = -1 };

/* Joins the agent at "unix:/path" and waits up to `seconds` until its job is complete. NULL: not, and `why` (of `room`
 * bytes) says why. */
struct inart_client *inart_connect(const char *address, double seconds, char *why, size_t room);

/* The number of workers of the job, and which one this node is. */
int inart_workers(const struct inart_client *client);
int inart_index(const struct inart_client *client);

/* An operation with memory for so many bytes; NULL: there is none. */
struct inart_operation *inart_take(struct inart_client *client, size_t bytes);

/* Starts it on the first elements of its memory. type and name are those of worker_agent/collectives.py: "float32" and
 * "sum", "bytes" and "gather". Returns 0, or INART_FAILED when the agent is gone. */
int inart_start(struct inart_client *client, struct inart_operation *operation, size_t elements, const char *type,
                const char *name);

/* INART_PENDING, INART_DONE or INART_FAILED; `inart_await` waits so long at most (negative: without limit) for one of
 * the latter two, also while signals are handled. */
int inart_test(struct inart_client *client, struct inart_operation *operation);
int inart_await(struct inart_client *client, struct inart_operation *operation, int milliseconds);

void inart_release(struct inart_client *client, struct inart_operation *operation);

/* Why the last operation failed, or the agent is gone; empty when nothing has failed. After a failure the place at the
 * agent is lost, and every further operation fails. */
const char *inart_failure(const struct inart_client *client);

/* Leaves in good order, and frees the client and its operations. */
void inart_close(struct inart_client *client);

#endif
