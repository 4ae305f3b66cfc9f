/* Random jobs on an adversarial network: every result is the exact one, and every operation ends. */
#ifndef TESTS_ENGINES_FUZZ_H
#define TESTS_ENGINES_FUZZ_H

#include <stdint.h>

struct fuzz_counts {
    uint64_t runs, done, failed; /* operations of a worker: that have a result; that were ended by an abort */
};

/* Runs the job that `seed` draws. Returns 0; or 1, after it has said what is wrong. */
int fuzz_run(uint64_t seed, struct fuzz_counts *counts);

#endif
