/* What the root asks workers for, and when (docs/protocol.md, "Loss never feeds itself").
 *
 * What passes a switch unadded comes as one packet a worker on a link that has room for one. So it is the root, whose
 * link that is, that decides what is sent again, and not the workers' timers. It asks all of them (or those whom it
 * lacks) for a chunk in another *attempt*: to every switch that is another epoch, which takes the slot over, so that
 * what was lost is added up again and comes as one packet a flow. Whatever was lost, wherever.
 *
 * When a chunk counts as lost: all workers have sent a later one (data, and not a gather's, that is complete says so),
 * and packets had time to overtake each other. Or a worker that has waited for long repeats it (LATE): then either that
 * repeat completes it, or it comes by itself, because the slot is closed. In both cases more may be lost behind it, of
 * which nobody knows, and the root asks for all that it lacks of the window.
 *
 * Is one chunk lost again and again, as many workers behind links that lose some packets have it, other means follow:
 * repeats in the same attempt, which fill up what is in the switches; then single contributions (RESEND), of few
 * workers at a time.
 */
#ifndef INART_ROOT_ASKING_H
#define INART_ROOT_ASKING_H

#include "state.h"

/* A cell of the ring for a chunk of which nothing has come. */
void root_cell_begin(struct root_thread *x, struct root_tree *t, uint64_t sequence);

/* Forgets what there is of a chunk: where it is a part of a sum that was asked for, and comes now. But for whom the job
 * waits for, which statistics say. */
void root_cell_forget(struct root_thread *x, struct root_tree *t, uint64_t sequence);

/* How long a result may be under way: who asks for it sooner, without knowing that it is lost, may be told by it. */
uint64_t root_arrival_time(const struct root_tree *t);

/* Those of [first, end) that there are, to all workers. */
void root_results_again(struct root_tree *t, uint64_t first, uint64_t end, uint64_t now);

/* Asks for what is lost. When there may be something to ask for next; UINT64_MAX: nothing is known to be lost. */
uint64_t root_ask(struct root_thread *x, struct root_tree *t, uint64_t now);

/* A packet of chunk `sequence` has come, of `workers` of those of its flow, and the chunk lacks somebody: what it says
 * about loss. */
void root_take_hint(struct root_thread *x, struct root_tree *t, const struct root_flow *flow,
                    const struct inart_header *h, uint32_t workers, uint64_t now);

/* Chunk `sequence` has become complete by the packet `h`. */
void root_take_complete(struct root_tree *t, const struct inart_header *h, uint8_t kind, uint32_t attempt,
                        uint64_t now);

/* Workers `set` lack the result of a chunk that is complete. */
void root_take_request(struct root_thread *x, struct root_tree *t, uint64_t sequence, const uint64_t *set,
                       uint64_t now);

/* A worker asks for the result of a chunk, and says which of the next ones it lacks, too: the first word says of how
 * many chunks the bits of the others are. Of several workers, whose packets a switch has added, the bits mean nothing.
 */
void root_take_requests(struct root_thread *x, struct root_tree *t, uint64_t sequence, const uint64_t *set,
                        const uint32_t *words, uint64_t now);

/* The chunk is wrong though all are in it, and was forgotten (verify.c): it is asked for past all switches. */
void root_ask_alone(struct root_tree *t, uint64_t sequence);

#endif
