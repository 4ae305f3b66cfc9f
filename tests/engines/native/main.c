/* Runs the agents' engines on an adversarial network in virtual time.
 *
 *     engines case NAME
 *     engines jobs SEED COUNT      the jobs that SEED, SEED + 1, ... draw, so many
 *     engines fuzz SEED SECONDS    such jobs until so many seconds of CPU are used
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cases.h"
#include "fuzz.h"

static double cpu_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

/* Runs jobs until `count` of them have run, or so many seconds of CPU are used, or one has found something. */
static int fuzz(uint64_t seed, uint64_t count, double seconds) {
    struct fuzz_counts counts = {0};
    int wrong = 0;
    while (!wrong && counts.runs < count && cpu_seconds() < seconds) wrong = fuzz_run(seed++, &counts);
    printf("%" PRIu64 " jobs, %" PRIu64 " results, %" PRIu64 " operations ended by an abort\n", counts.runs,
           counts.done, counts.failed);
    return wrong;
}

static uint64_t number(const char *text) { return strtoull(text, NULL, 0); }

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 3 && !strcmp(argv[1], "case")) {
        int wrong = case_run(argv[2]);
        if (wrong < 0) fprintf(stderr, "case %s: there is none of this name\n", argv[2]);
        return wrong < 0 ? 2 : wrong;
    }
    if (argc == 4 && !strcmp(argv[1], "jobs")) return fuzz(number(argv[2]), number(argv[3]), INFINITY);
    if (argc == 4 && !strcmp(argv[1], "fuzz")) return fuzz(number(argv[2]), UINT64_MAX, atof(argv[3]));
    fprintf(stderr, "usage: %s case NAME | jobs SEED COUNT | fuzz SEED SECONDS\n", argv[0]);
    return 2;
}
