/* Decides what the root asks workers for, and when (docs/protocol.md, "Loss never feeds itself").
 *
 * A contribution that no switch adds comes as one packet a worker, on a link that has room for one packet. So it is the
 * root, whose link that is, that decides what is sent again, and not the workers' timers. It asks all of them (or those
 * whom it lacks) for a chunk in another *attempt*: to every switch that is another epoch, which takes the slot over, so
 * that what was lost is added up again and comes as one packet a flow, wherever it was lost.
 *
 * A chunk counts as lost when all workers have sent a later one (a complete chunk of data shows that, but not one of a
 * gather), and packets had time to overtake each other. Or a worker that has waited for long repeats it (LATE): then
 * either that repeat completes it, or the repeat comes by itself, because the slot is closed. In both cases more may be
 * lost behind it, of which nobody knows, and the root asks for all that it lacks of the window.
 *
 * If one chunk is lost again and again, which happens with many workers behind links that lose some packets, other
 * means follow: repeats in the same attempt, which fill up the sums in the switches; then single contributions
 * (RESEND), of few workers at a time. */
#ifndef INART_ROOT_ASKING_H
#define INART_ROOT_ASKING_H

#include "state.h"

/* Begins a cell of the ring for a chunk of which nothing has come. */
void root_cell_begin(struct root_thread *x, struct root_tree *t, uint64_t sequence);

/* Forgets the contributions to a chunk that the root has, where they are a part of a sum that was asked for and comes
 * now. The workers that the job waits for, which statistics report, stay known. */
void root_cell_forget(struct root_thread *x, struct root_tree *t, uint64_t sequence);

/* Returns how long a result may be on its way. A worker that asks for it sooner, without knowing that it is lost, may
 * get it meanwhile. */
uint64_t root_arrival_time(const struct root_tree *t);

/* Marks the existing results of [first, end) to be sent once more, to all workers. */
void root_results_again(struct root_tree *t, uint64_t first, uint64_t end, uint64_t now);

/* Asks for what is lost. Returns when there may be something to ask for next; UINT64_MAX: nothing is known to be lost.
 */
uint64_t root_ask(struct root_thread *x, struct root_tree *t, uint64_t now);

/* Handles what a packet says about loss that has come for a chunk which lacks some worker. The packet has contributions
 * of `workers` of its flow's workers. */
void root_take_hint(struct root_thread *x, struct root_tree *t, const struct root_flow *flow,
                    const struct inart_header *h, uint32_t workers, uint64_t now);

/* Takes note that a chunk has become complete by the packet with header `h`. */
void root_take_complete(struct root_tree *t, const struct inart_header *h, uint8_t kind, uint32_t attempt,
                        uint64_t now);

/* Handles the request of the workers `set`, which lack the result of a complete chunk. */
void root_take_request(struct root_thread *x, struct root_tree *t, uint64_t sequence, const uint64_t *set,
                       uint64_t now);

/* Handles the request of a worker for the result of a chunk, which also says which of the next chunks it lacks: the
 * first word is the number of chunks, and the bits of the other words stand for them. Of several workers, whose packets
 * a switch has added, the bits mean nothing. */
void root_take_requests(struct root_thread *x, struct root_tree *t, uint64_t sequence, const uint64_t *set,
                        const uint32_t *words, uint64_t now);

/* Asks past all switches for a chunk that was wrong although all contributions were in it, and was forgotten
 * (verify.c). */
void root_ask_alone(struct root_tree *t, uint64_t sequence);

#endif
