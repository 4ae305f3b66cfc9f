/* An MPI program that knows nothing of InArt, and checks what it gets: `mpi_checks [COMMAND]`. With a command rank 0
 * runs it between the first round of checks and the second. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 30000

static int rank, size;

static void expect(int right, const char *what) {
    if (right) return;
    fprintf(stderr, "rank %d: wrong: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

/* What rank `from` gives at place i; whole numbers, whose sums are exact. */
static float given(int from, int i) { return (float)((i * 7 + from * 13) % 1000 - 500); }

static float sum_of(int i) {
    float sum = 0;
    for (int from = 0; from < size; from++) sum += given(from, i);
    return sum;
}

/* Fixed point is within so much of sums of values up to 500. */
static int near(float a, float b) { return fabsf(a - b) < 1e-3f; }

static void check_sums(MPI_Comm comm) {
    static float from[COUNT], to[COUNT];
    for (int i = 0; i < COUNT; i++) to[i] = from[i] = given(rank, i);
    MPI_Allreduce(MPI_IN_PLACE, to, COUNT, MPI_FLOAT, MPI_SUM, comm);
    for (int i = 0; i < COUNT; i++) expect(near(to[i], sum_of(i)), "all-reduce in place");
    int part = COUNT / size, counts[64];
    for (int i = 0; i < size; i++) counts[i] = part;
    memset(to, 0, sizeof to);
    MPI_Reduce_scatter(from, to, counts, MPI_FLOAT, MPI_SUM, comm);
    for (int i = 0; i < part; i++) expect(near(to[i], sum_of(rank * part + i)), "reduce-scatter");
    counts[0] += 1;
    counts[size - 1] -= 1;
    MPI_Reduce_scatter(from, to, counts, MPI_FLOAT, MPI_SUM, comm);
    expect(near(to[0], sum_of(rank * part + (rank > 0))), "reduce-scatter of other parts");
    MPI_Reduce_scatter_block(from, to, part, MPI_FLOAT, MPI_SUM, comm);
    for (int i = 0; i < part; i++) expect(near(to[i], sum_of(rank * part + i)), "reduce-scatter of a block");
}

static void check_others(void) {
    static int whole[COUNT], most[COUNT];
    for (int i = 0; i < COUNT; i++) whole[i] = i * (rank + 1);
    MPI_Allreduce(whole, most, COUNT, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT; i++) expect(most[i] == i * size, "maximum of integers");
    int part = COUNT / size;
    for (int i = 0; i < part; i++) most[rank * part + i] = rank * 100000 + i;
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, most, part, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < part * size; i++) expect(most[i] == i / part * 100000 + i % part, "all-gather in place");
}

/* The root has every second integer, the others have them side by side: the same values by other types. */
static void check_types(void) {
    static int values[2 * COUNT];
    MPI_Datatype second;
    int root = size - 1;
    MPI_Type_vector(COUNT, 1, 2, MPI_INT, &second);
    MPI_Type_commit(&second);
    for (int i = 0; i < 2 * COUNT; i++) values[i] = rank == root ? i : -1;
    if (rank == root)
        MPI_Bcast(values, 1, second, root, MPI_COMM_WORLD);
    else
        MPI_Bcast(values, COUNT, MPI_INT, root, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT && rank != root; i++) expect(values[i] == 2 * i, "broadcast of other types");
    MPI_Type_free(&second);
}

/* Rank 1 comes to the all-reduce only when it has a message that rank 0 has begun to send, too large to be sent at
 * once. */
static void check_progress(void) {
    static float sent[20 * COUNT], sums[COUNT];
    MPI_Request request = MPI_REQUEST_NULL;
    for (int i = 0; i < COUNT; i++) sums[i] = given(rank, i);
    if (rank == 0) MPI_Isend(sent, 20 * COUNT, MPI_FLOAT, 1, 5, MPI_COMM_WORLD, &request);
    if (rank == 1) MPI_Recv(sent, 20 * COUNT, MPI_FLOAT, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Allreduce(MPI_IN_PLACE, sums, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    expect(near(sums[1], sum_of(1)), "all-reduce beside a message");
}

static void check(void) {
    MPI_Comm twin, half;
    MPI_Comm_dup(MPI_COMM_WORLD, &twin);
    MPI_Comm_split(MPI_COMM_WORLD, rank > 0, 0, &half);
    check_sums(MPI_COMM_WORLD);
    check_sums(twin);
    check_others();
    check_types();
    check_progress();
    static float ones[COUNT];
    for (int i = 0; i < COUNT; i++) ones[i] = 1;
    MPI_Allreduce(MPI_IN_PLACE, ones, COUNT, MPI_FLOAT, MPI_SUM, half);
    expect(ones[COUNT - 1] == (rank > 0 ? size - 1 : 1), "all-reduce of some of the ranks");
    MPI_Comm_free(&twin);
    MPI_Comm_free(&half);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    check();
    if (argc > 1) {
        if (rank == 0) expect(system(argv[1]) == 0, argv[1]);
        MPI_Barrier(MPI_COMM_WORLD);
        check();
    }
    if (rank == 0) printf("all right\n");
    MPI_Finalize();
    return 0;
}
