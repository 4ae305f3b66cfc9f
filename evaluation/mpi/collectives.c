/* Times MPI's collectives as they are called beside the library's own (PMPI_), in turns, and compares the results.
 *
 *     collectives REPEAT BYTES ...
 *
 * Rank 0 prints a JSON object for each operation and size: bytes of all parts together, seconds of each (medians over
 * the turns, each that of the rank that takes longest), and the largest error beside the largest value. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

typedef int (*call)(const float *from, float *to, int count);

static int own_allreduce(const float *from, float *to, int count) {
    return MPI_Allreduce(from, to, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int their_allreduce(const float *from, float *to, int count) {
    return PMPI_Allreduce(from, to, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int own_reduce_scatter(const float *from, float *to, int count) {
    return MPI_Reduce_scatter_block(from, to, count / size, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int their_reduce_scatter(const float *from, float *to, int count) {
    return PMPI_Reduce_scatter_block(from, to, count / size, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int own_allgather(const float *from, float *to, int count) {
    return MPI_Allgather(from, count / size, MPI_FLOAT, to, count / size, MPI_FLOAT, MPI_COMM_WORLD);
}

static int their_allgather(const float *from, float *to, int count) {
    return PMPI_Allgather(from, count / size, MPI_FLOAT, to, count / size, MPI_FLOAT, MPI_COMM_WORLD);
}

static int own_bcast(const float *from, float *to, int count) {
    if (rank == 0) memcpy(to, from, count * sizeof *to);
    return MPI_Bcast(to, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static int their_bcast(const float *from, float *to, int count) {
    if (rank == 0) memcpy(to, from, count * sizeof *to);
    return PMPI_Bcast(to, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static const struct {
    const char *name;
    call own, theirs;
} operations[] = {{"allreduce", own_allreduce, their_allreduce},
                  {"reduce_scatter", own_reduce_scatter, their_reduce_scatter},
                  {"allgather", own_allgather, their_allgather},
                  {"broadcast", own_bcast, their_bcast}};

/* Seconds of the rank that takes longest. */
static double timed(call of, const float *from, float *to, int count) {
    PMPI_Barrier(MPI_COMM_WORLD);
    double took = -MPI_Wtime(), most;
    if (of(from, to, count)) MPI_Abort(MPI_COMM_WORLD, 1);
    took += MPI_Wtime();
    PMPI_Allreduce(&took, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int number) {
    qsort(values, number, sizeof *values, ascending);
    return (values[(number - 1) / 2] + values[number / 2]) / 2;
}

/* The largest difference beside the largest value, of all ranks. */
static double error_of(const float *own, const float *theirs, int count) {
    double here[2] = {0, 0}, all[2];
    for (int i = 0; i < count; i++) {
        here[0] = fmax(here[0], fabs((double)own[i] - theirs[i]));
        here[1] = fmax(here[1], fabs((double)theirs[i]));
    }
    PMPI_Allreduce(here, all, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all[1] > 0 ? all[0] / all[1] : 0;
}

static void measure(int which, int count, int repeat) {
    float *from = malloc(count * sizeof *from), *own = calloc(count, sizeof *own), *theirs = calloc(count, sizeof *own);
    double *seconds[2] = {malloc(repeat * sizeof(double)), malloc(repeat * sizeof(double))};
    srand(which + 97 * rank);
    for (int i = 0; i < count; i++) from[i] = (float)rand() / RAND_MAX - 0.5f;
    for (int turn = -1; turn < repeat; turn++) { /* the first does not count */
        double here = timed(operations[which].own, from, own, count);
        double there = timed(operations[which].theirs, from, theirs, count);
        if (turn >= 0) {
            seconds[0][turn] = here;
            seconds[1][turn] = there;
        }
    }
    double error = error_of(own, theirs, count);
    if (rank == 0) {
        printf("{\"op\": \"%s\", \"bytes\": %zu, \"seconds\": %.9g, \"mpi_seconds\": %.9g, \"error\": %.3g}\n",
               operations[which].name, count * sizeof *own, median(seconds[0], repeat), median(seconds[1], repeat),
               error);
        fflush(stdout);
    }
    free(from);
    free(own);
    free(theirs);
    free(seconds[0]);
    free(seconds[1]);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 3 || atoi(argv[1]) < 1) {
        fprintf(stderr, "usage: collectives REPEAT BYTES ...\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (unsigned which = 0; which < sizeof operations / sizeof *operations; which++)
        for (int i = 2; i < argc; i++) measure(which, atoi(argv[i]) / (int)sizeof(float) / size * size, atoi(argv[1]));
    MPI_Finalize();
    return 0;
}
