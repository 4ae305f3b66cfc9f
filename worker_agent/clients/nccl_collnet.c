/* NCCL's all-reduce in the network ("CollNet"), through this node's agent at $INART_AGENT; host memory, sums of
 * float32, float16 and bfloat16. A group of ranks is all nodes of a job, one rank each. NCCL starts the operations of a
 * group in the same order on all ranks, but those of two groups in any order, and the network needs one order; so there
 * is one group at a time in a process, and NCCL does the sums of another one itself, as it does where a rank has no
 * agent. */
#include "client.h"
#include "nccl_interface.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_SECONDS 60.0

struct group_address {  /* what NCCL carries from each rank to the others */
    int index, workers; /* of the job; -1: the rank has no agent */
};

struct sum { /* an operation under way */
    struct inart_operation *operation;
    void *to;
    size_t bytes;
};

static struct {
    pthread_mutex_t lock;
    struct inart_client *client;
    const void *owner; /* the communicator that listens first, until its group is closed or not made */
    int taken;         /* by its group */
    nccl_logger tell;
} node = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void group_say(int level, const char *what, const char *more) {
    if (node.tell) node.tell(level, NCCL_LOG_NET, "InArt", __LINE__, "InArt: %s%s", what, more);
}

static nccl_result group_init(void **context, uint64_t communicator, nccl_logger logger) {
    (void)communicator;
    node.tell = logger;
    *context = getenv("INART_AGENT") ? malloc(1) : NULL; /* only its address is used, which no other has */
    return *context ? NCCL_SUCCESS : NCCL_INVALID_USAGE;
}

/* Joins the agent, unless another communicator of this process has done so, and says which worker this is. What is
 * missing is found by all ranks alike when they see each other's addresses. NCCL listens more than once for a group. */
static nccl_result group_listen(void *context, int device, void *handle, void **listening) {
    (void)device;
    struct group_address address = {-1, 0};
    char why[512] = "";
    pthread_mutex_lock(&node.lock);
    if (!node.taken && (!node.owner || node.owner == context)) {
        if (node.client && inart_failure(node.client)[0]) {
            inart_close(node.client);
            node.client = NULL;
        }
        if (!node.client) node.client = inart_connect(getenv("INART_AGENT"), GROUP_SECONDS, why, sizeof why);
        if (node.client) {
            node.owner = context;
            address = (struct group_address){inart_index(node.client), inart_workers(node.client)};
        } else {
            group_say(NCCL_LOG_WARN, "no in-network sums: ", why);
        }
    }
    pthread_mutex_unlock(&node.lock);
    memcpy(handle, &address, sizeof address);
    *listening = context;
    return NCCL_SUCCESS;
}

/* Gives back what a communicator has, if it has it. */
static void group_release(const void *context) {
    pthread_mutex_lock(&node.lock);
    if (node.owner == context) {
        if (node.client) inart_close(node.client); /* with what is under way */
        node.client = NULL;
        node.owner = NULL;
        node.taken = 0;
    }
    pthread_mutex_unlock(&node.lock);
}

static nccl_result group_connect(void *handles[], int ranks, int rank, void *listening, void **group) {
    (void)rank;
    char *seen = calloc((size_t)ranks, 1);
    int right = 1;
    for (int each = 0; each < ranks && right; each++) {
        struct group_address address;
        memcpy(&address, handles[each], sizeof address);
        right = address.workers == ranks && address.index >= 0 && address.index < ranks && !seen[address.index]++;
    }
    free(seen);
    pthread_mutex_lock(&node.lock);
    int mine = node.owner == listening && !node.taken;
    node.taken |= right && mine;
    pthread_mutex_unlock(&node.lock);
    if (!right || !mine) {
        group_say(
            NCCL_LOG_WARN,
            "NCCL does the sums of this group: its ranks are not the workers of one job, or another group has them",
            "");
        if (mine) group_release(listening);
        return NCCL_INVALID_USAGE;
    }
    group_say(NCCL_LOG_INFO, "sums of this group go through the network", "");
    *group = listening;
    return NCCL_SUCCESS;
}

/* Half precision travels in 32 bits a value, too, so that no sum is less precise than NCCL's. */
static const struct {
    int nccl;
    size_t bytes;
    const char *type, *name;
} types[] = {{NCCL_FLOAT32, 4, "float32", "sum"},
             {NCCL_FLOAT16, 2, "float16", "sum bits=32 seed=0"},
             {NCCL_BFLOAT16, 2, "bfloat16", "sum bits=32 seed=0"}};

static int number_of_type(int nccl) {
    for (int each = 0; each < (int)(sizeof types / sizeof *types); each++)
        if (types[each].nccl == nccl) return each;
    return -1;
}

static nccl_result group_supports(int type, int operator, int * supported) {
    *supported = operator== NCCL_SUM && number_of_type(type) >= 0;
    return NCCL_SUCCESS;
}

static nccl_result group_allreduce(void *group, void *from, void *to, size_t elements, int type, int operator,
                                   void * from_registered, void *to_registered, void **request) {
    (void)group, (void)from_registered, (void)to_registered;
    int which = number_of_type(type);
    *request = NULL;
    if (operator!= NCCL_SUM || which<0 || !elements) return NCCL_INVALID_USAGE;
    struct sum *sum = calloc(1, sizeof *sum);
    *sum = (struct sum){.to = to, .bytes = elements * types[which].bytes};
    sum->operation = inart_take(node.client, sum->bytes);
    if (sum->operation) memcpy(sum->operation->memory, from, sum->bytes);
    if (!sum->operation || inart_start(node.client, sum->operation, elements, types[which].type, types[which].name)) {
        group_say(NCCL_LOG_WARN, "a sum cannot begin: ", sum->operation ? inart_failure(node.client) : "out of memory");
        free(sum);
        return NCCL_REMOTE_ERROR;
    }
    *request = sum;
    return NCCL_SUCCESS;
}

static nccl_result group_flush(void *group, void *data, int size, void *registered, void **request) {
    (void)group, (void)data, (void)size, (void)registered;
    *request = NULL; /* host memory needs none */
    return NCCL_SUCCESS;
}

static nccl_result group_test(void *request, int *done, int *size) {
    struct sum *sum = request;
    int state = inart_test(node.client, sum->operation);
    *done = 0;
    if (state == INART_PENDING) return NCCL_SUCCESS;
    if (state == INART_DONE) {
        memcpy(sum->to, sum->operation->memory, sum->bytes);
        *done = 1;
        if (size) *size = (int)sum->bytes;
    } else {
        group_say(NCCL_LOG_WARN, "a sum has failed in the network: ", inart_failure(node.client));
    }
    inart_release(node.client, sum->operation);
    free(sum);
    return state == INART_DONE ? NCCL_SUCCESS : NCCL_REMOTE_ERROR;
}

static nccl_result group_close(void *group) {
    group_release(group);
    return NCCL_SUCCESS;
}

static nccl_result group_stop_listening(void *listening) {
    (void)listening;
    return NCCL_SUCCESS;
}

static nccl_result group_finalize(void *context) {
    group_release(context);
    free(context);
    return NCCL_SUCCESS;
}

#define COLLNET(version)                                                                       \
    __attribute__((visibility("default"))) struct nccl_collnet ncclCollNetPlugin_##version = { \
        .name = "InArt",                                                                       \
        .init = group_init,                                                                    \
        .devices = inart_nccl_devices,                                                         \
        .get_properties = inart_nccl_properties_##version,                                     \
        .listen = group_listen,                                                                \
        .connect = group_connect,                                                              \
        .reduce_support = group_supports,                                                      \
        .register_memory = inart_nccl_register,                                                \
        .deregister = inart_nccl_deregister,                                                   \
        .allreduce = group_allreduce,                                                          \
        .flush = group_flush,                                                                  \
        .test = group_test,                                                                    \
        .close_group = group_close,                                                            \
        .close_listen = group_stop_listening,                                                  \
        .finalize = group_finalize,                                                            \
    }

COLLNET(v11);
COLLNET(v12);
