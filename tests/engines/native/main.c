/* Runs the agents' engines on an adversarial network in virtual time.
 *
 *     engines case NAME
 *     engines fuzz SEED SECONDS    jobs drawn from SEED, SEED + 1, ... until so many seconds of CPU are used
 *     engines seed SEED            one of them
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cases.h"
#include "fuzz.h"

static double cpu_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

static int fuzz(uint64_t seed, double seconds) {
    struct fuzz_counts counts = {0};
    int wrong = 0;
    do wrong = fuzz_run(seed++, &counts);
    while (!wrong && cpu_seconds() < seconds);
    printf("%" PRIu64 " jobs, %" PRIu64 " results, %" PRIu64 " operations ended by an abort\n", counts.runs,
           counts.done, counts.failed);
    return wrong;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 3 && !strcmp(argv[1], "case")) {
        int wrong = case_run(argv[2]);
        if (wrong < 0) fprintf(stderr, "there is no case %s\n", argv[2]);
        return wrong < 0 ? 2 : wrong;
    }
    if (argc == 3 && !strcmp(argv[1], "seed")) return fuzz(strtoull(argv[2], NULL, 0), 0);
    if (argc == 4 && !strcmp(argv[1], "fuzz")) return fuzz(strtoull(argv[2], NULL, 0), atof(argv[3]));
    fprintf(stderr, "usage: %s case NAME | fuzz SEED SECONDS | seed SEED\n", argv[0]);
    return 2;
}
