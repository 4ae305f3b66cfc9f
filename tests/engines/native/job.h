/* A job of the agents' own engines in virtual time: workers, one parameter server, and the switches between them. */
#ifndef TESTS_ENGINES_JOB_H
#define TESTS_ENGINES_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "network.h"
#include "root.h"
#include "worker/worker.h"

#define MOST_FLOWS 64 /* into an aggregation point */
#define MOST_PLACES 8 /* trees times lanes */

/* DIRECT: no switch adds. STAR: one switch adds. RACKS: a switch per rack adds, and one above them. */
enum topology { DIRECT, STAR, RACKS };

struct shape {
    enum topology topology;
    uint32_t workers, values, slots, directions, trees, lanes, per_rack;
    bool others; /* results of a gather go to all but their owner */
    double mbps, gather_speed, link_mbps, delay_ms, timeout;
    uint32_t queue; /* packets that wait at a port at most */
};

struct job {
    struct shape shape;
    struct network *network;
    uint32_t epoch, racks, root_node, top, first_rack; /* nodes; workers are nodes 0 to workers - 1 */
    uint8_t key[CHECK_KEY_BYTES];
    struct inart_worker **worker;
    struct inart_root *root;
};

/* An operation, the same on all workers. `count` is the number of elements of a worker's part. */
struct operation {
    uint64_t elements, count;
    int dtype, kind, source;
    bool mean;
    uint32_t tag;
    struct inart_encoding encoding;
};

/* Makes a job; `seed` draws its key. Ends the program where that fails. */
struct job *job_make(const struct shape *shape, uint64_t seed);
void job_free(struct job *j);

/* Submits an operation of worker `w` on `array`, which gets the result. Returns its number, or -1 with the reason in
 * `error` (MESSAGE_BYTES). */
int64_t job_submit(struct job *j, uint32_t w, void *array, const struct operation *o, char *error);

/* Returns whether an operation of worker `w` has ended, which is filled in. */
bool job_collect(struct job *j, uint32_t w, struct inart_completion *completion);

/* Gives worker `w` the configuration of the present epoch; job_configure_root does so for the parameter server. */
void job_configure_worker(struct job *j, uint32_t w);
void job_configure_root(struct job *j);

void job_abort(struct job *j, uint32_t w);

/* All engines hear that their trees were led another way; `reboot`: the switches there know nothing. */
void job_reroute(struct job *j, bool results, bool reboot);

/* Has all trees begin at a chunk whose number on the wire is near `number`. */
void job_begin_at(struct job *j, uint64_t number);

/* Moves the time to `until`, or, where nothing happens before, to the next event. Returns false where there is none. */
bool job_run(struct job *j, uint64_t until);

#endif
