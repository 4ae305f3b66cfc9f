/* An adversary on all links: loses, doubles, delays, corrupts and forges packets, without the job's key. */
#ifndef TESTS_ENGINES_ADVERSARY_H
#define TESTS_ENGINES_ADVERSARY_H

#include "job.h"
#include "random.h"

/* Probabilities per packet and link. `jitter` ns at most delay a packet, so that packets overtake each other.
 * `silent_node` sends nothing from `silent_from` to `silent_until`. */
struct adversary {
    struct job *job;
    struct random random;
    double loss, copies, flips, forgeries;
    uint64_t forged; /* packets so far */
    uint64_t jitter, silent_from, silent_until;
    uint32_t silent_node;
    /* Sees each packet before anything else happens to it; returns whether it is lost. NULL: nobody looks. */
    bool (*look)(struct adversary *a, uint32_t node, uint32_t port, struct carried *c);
};

/* Puts the adversary on the links of its job. */
void adversary_attach(struct adversary *a);

#endif
