/* MPI's collectives through the network's switches, for programs that know nothing of it (LD_PRELOAD; `inart mpi`).
 *
 * By MPI's profiling interface: what is defined here under an MPI_ name is called instead of the library's own, which
 * stays as PMPI_. Through the network go, on a communicator of all ranks (one a node), what has $INART_MPI_SMALLEST
 * bytes or more: MPI_Allreduce, MPI_Reduce_scatter (equal parts) and MPI_Reduce_scatter_block of sums of MPI_FLOAT;
 * MPI_Allgather and MPI_Bcast of every type. Everything else is the library's.
 *
 * After each operation the ranks agree whether it has succeeded on all of them; the result is taken from the client's
 * memory only then. If not, all of them do it again by the library, and stay there: no result is lost, none is mixed.
 */
#include "client.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALLEST_BYTES 262144
#define JOIN_SECONDS 60.0
#define PROGRESS_MILLISECONDS 1 /* between looks at what MPI has under way */

static struct {
    struct inart_client *client; /* NULL: everything is the library's */
    MPI_Comm words;              /* for the agreement of the ranks; a communicator of our own */
    int rank, size;
    int *index_of; /* of a rank: which worker of the job its node is */
    long smallest; /* bytes from which on an operation goes through the network */
    int several;   /* whether several threads call MPI at once, whose operations on two communicators have no order */
    long through;  /* operations that went through the network */
} job = {.words = MPI_COMM_NULL};

static double seconds_to_join(void) {
    const char *given = getenv("INART_MPI_TIMEOUT");
    return given ? atof(given) : JOIN_SECONDS;
}

/* Takes the place of every rank at its node's agent; returns whether all ranks have one. `why` says what this rank
 * lacks. */
static int all_joined(char *why, size_t room) {
    const char *address = getenv("INART_AGENT");
    if (address)
        job.client = inart_connect(address, seconds_to_join(), why, room);
    else
        snprintf(why, room, "$INART_AGENT is not set (inart mpi sets it)");
    int mine[2] = {-1, 0}, (*all)[2] = malloc(job.size * sizeof *all), right = 1;
    if (job.client) {
        mine[0] = inart_index(job.client);
        mine[1] = inart_workers(job.client);
    }
    job.index_of = malloc(job.size * sizeof *job.index_of);
    char *seen = calloc(job.size, 1);
    PMPI_Allgather(mine, 2, MPI_INT, all, 2, MPI_INT, job.words);
    for (int rank = 0; rank < job.size && right; rank++) {
        int index = job.index_of[rank] = all[rank][0];
        right = all[rank][1] == job.size && index >= 0 && index < job.size && !seen[index]++;
    }
    if (!right && job.client)
        snprintf(why, room, "the job has %d workers and MPI %d ranks, or another rank has no agent", mine[1], job.size);
    free(seen);
    free(all);
    return right;
}

static void leave(void) {
    if (job.client) inart_close(job.client);
    job.client = NULL;
}

static void join(void) {
    char why[512] = "";
    int threads;
    const char *smallest = getenv("INART_MPI_SMALLEST");
    PMPI_Query_thread(&threads);
    PMPI_Comm_dup(MPI_COMM_WORLD, &job.words);
    PMPI_Comm_rank(job.words, &job.rank);
    PMPI_Comm_size(job.words, &job.size);
    job.several = threads == MPI_THREAD_MULTIPLE;
    job.smallest = smallest ? atol(smallest) : SMALLEST_BYTES;
    PMPI_Bcast(&job.smallest, 1, MPI_LONG, 0, job.words);
    if (job.size > 1 && all_joined(why, sizeof why)) return;
    if (job.size > 1)
        fprintf(stderr, "inart: rank %d: MPI's collectives do not go through the network: %s\n", job.rank, why);
    leave();
}

int MPI_Init(int *argc, char ***argv) {
    int result = PMPI_Init(argc, argv);
    if (result == MPI_SUCCESS) join();
    return result;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    int result = PMPI_Init_thread(argc, argv, required, provided);
    if (result == MPI_SUCCESS) join();
    return result;
}

int MPI_Finalize(void) {
    if (job.words != MPI_COMM_NULL) {
        if (job.through && job.rank == 0 && getenv("INART_MPI_REPORT"))
            fprintf(stderr, "inart: %ld collectives went through the network\n", job.through);
        PMPI_Comm_free(&job.words);
    }
    leave();
    return PMPI_Finalize();
}

/* Whether an operation over so many bytes in all goes through the network: the same on all ranks. */
static int goes(MPI_Comm comm, long long bytes) {
    if (!job.client || bytes < job.smallest || bytes > INT_MAX || bytes <= 0) return 0;
    if (comm == MPI_COMM_WORLD) return 1;
    int alike = MPI_UNEQUAL, between = 0;
    if (job.several || comm == MPI_COMM_NULL || PMPI_Comm_test_inter(comm, &between) || between) return 0;
    PMPI_Comm_compare(comm, MPI_COMM_WORLD, &alike);
    return alike == MPI_CONGRUENT;
}

/* An operation with memory for it. */
static struct inart_operation *take(long long bytes) {
    struct inart_operation *operation = inart_take(job.client, (size_t)bytes);
    if (!operation) { /* the other ranks may be in the network already, where they would wait for this one */
        fprintf(stderr, "inart: rank %d: no shared memory of %lld bytes\n", job.rank, bytes);
        PMPI_Abort(MPI_COMM_WORLD, 1);
    }
    return operation;
}

/* Waits for its end, while MPI goes on with what is under way in it: another rank may come to this operation only when
 * it has got a message of this one. */
static int await(struct inart_operation *operation) {
    int state, waits;
    while ((state = inart_await(job.client, operation, PROGRESS_MILLISECONDS)) == INART_PENDING)
        PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, job.words, &waits, MPI_STATUS_IGNORE);
    return state;
}

/* Runs it; returns whether all ranks have the result in its memory. If not, it is gone. */
static int run(struct inart_operation *operation, size_t elements, const char *type, const char *name) {
    int mine = !inart_start(job.client, operation, elements, type, name) && await(operation) == INART_DONE, all = 0;
    if (PMPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, job.words) == MPI_SUCCESS && all) {
        job.through++;
        return 1;
    }
    if (!mine)
        fprintf(stderr,
                "inart: rank %d: a collective has failed in the network: %s. MPI does it, and those that follow\n",
                job.rank, inart_failure(job.client));
    leave();
    return 0;
}

static void end(struct inart_operation *operation) { inart_release(job.client, operation); }

int MPI_Allreduce(const void *sendbuf, void *recvbuf, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    long long bytes = (long long)count * sizeof(float);
    if (type != MPI_FLOAT || op != MPI_SUM || !goes(comm, bytes))
        return PMPI_Allreduce(sendbuf, recvbuf, count, type, op, comm);
    struct inart_operation *operation = take(bytes);
    memcpy(operation->memory, sendbuf == MPI_IN_PLACE ? recvbuf : sendbuf, (size_t)bytes);
    if (!run(operation, (size_t)count, "float32", "sum"))
        return PMPI_Allreduce(sendbuf, recvbuf, count, type, op, comm);
    memcpy(recvbuf, operation->memory, (size_t)bytes);
    end(operation);
    return MPI_SUCCESS;
}

/* Of equal parts of floats; returns whether it is done. */
static int scattered(const void *sendbuf, void *recvbuf, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    size_t part = (size_t)count * sizeof(float);
    if (type != MPI_FLOAT || op != MPI_SUM || count <= 0 || !goes(comm, (long long)part * job.size)) return 0;
    struct inart_operation *operation = take((long long)part * job.size);
    const char *from = sendbuf == MPI_IN_PLACE ? recvbuf : sendbuf;
    char *memory = operation->memory;
    for (int rank = 0; rank < job.size; rank++) memcpy(memory + job.index_of[rank] * part, from + rank * part, part);
    if (!run(operation, (size_t)count * job.size, "float32", "scatter sum")) return 0;
    memcpy(recvbuf, memory + job.index_of[job.rank] * part, part);
    end(operation);
    return 1;
}

int MPI_Reduce_scatter_block(const void *sendbuf, void *recvbuf, int count, MPI_Datatype type, MPI_Op op,
                             MPI_Comm comm) {
    if (scattered(sendbuf, recvbuf, count, type, op, comm)) return MPI_SUCCESS;
    return PMPI_Reduce_scatter_block(sendbuf, recvbuf, count, type, op, comm);
}

int MPI_Reduce_scatter(const void *sendbuf, void *recvbuf, const int counts[], MPI_Datatype type, MPI_Op op,
                       MPI_Comm comm) {
    int size = 0, equal = job.client && !PMPI_Comm_size(comm, &size) && size == job.size;
    for (int rank = 1; rank < size && equal; rank++) equal = counts[rank] == counts[0];
    if (equal && scattered(sendbuf, recvbuf, counts[0], type, op, comm)) return MPI_SUCCESS;
    return PMPI_Reduce_scatter(sendbuf, recvbuf, counts, type, op, comm);
}

/* The bytes of the values of so many elements, which are the same on all ranks, whatever types they call them by; -1:
 * unknown. */
static long long bytes_of(int count, MPI_Datatype type) {
    MPI_Count bytes = 0;
    return PMPI_Type_size_x(type, &bytes) || bytes < 0 || bytes > INT_MAX ? -1 : (long long)bytes * count;
}

static int pack(const void *from, int count, MPI_Datatype type, void *to, long long bytes) {
    int position = 0;
    return PMPI_Pack(from, count, type, to, (int)bytes, &position, job.words);
}

static int unpack(const void *from, long long bytes, void *to, int count, MPI_Datatype type) {
    int position = 0;
    return PMPI_Unpack(from, (int)bytes, &position, to, count, type, job.words);
}

int MPI_Allgather(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
                  MPI_Datatype recvtype, MPI_Comm comm) {
    long long part = job.client ? bytes_of(recvcount, recvtype) : -1;
    if (part <= 0 || !goes(comm, part * job.size))
        return PMPI_Allgather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
    struct inart_operation *operation = take(part * job.size);
    MPI_Aint lower, extent;
    PMPI_Type_get_extent(recvtype, &lower, &extent);
    char *memory = operation->memory, *to = recvbuf, *own = memory + job.index_of[job.rank] * part;
    int result;
    if (sendbuf == MPI_IN_PLACE)
        result = pack(to + (MPI_Aint)job.rank * recvcount * extent, recvcount, recvtype, own, part);
    else
        result = pack(sendbuf, sendcount, sendtype, own, part);
    if (!run(operation, (size_t)(part * job.size), "bytes", "gather"))
        return PMPI_Allgather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
    for (int rank = 0; rank < job.size && !result; rank++)
        result = unpack(memory + job.index_of[rank] * part, part, to + (MPI_Aint)rank * recvcount * extent, recvcount,
                        recvtype);
    end(operation);
    return result;
}

int MPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    long long bytes = job.client && root >= 0 && root < job.size ? bytes_of(count, type) : -1;
    if (bytes <= 0 || !goes(comm, bytes)) return PMPI_Bcast(buffer, count, type, root, comm);
    struct inart_operation *operation = take(bytes);
    int result = MPI_SUCCESS;
    char name[32];
    snprintf(name, sizeof name, "broadcast %d", job.index_of[root]);
    if (job.rank == root) result = pack(buffer, count, type, operation->memory, bytes);
    if (!run(operation, (size_t)bytes, "bytes", name)) return PMPI_Bcast(buffer, count, type, root, comm);
    if (job.rank != root && !result) result = unpack(operation->memory, bytes, buffer, count, type);
    end(operation);
    return result;
}
