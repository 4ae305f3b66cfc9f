/* Is what a chunk adds up to what the workers have sent? (worker_agent/native/check.h.)
 *
 * A chunk is verified once, when it is complete, before its result leaves. One that is wrong is forgotten and comes
 * once more; then each packet is verified before it is added, so that what somebody changes or forges stays out. After
 * a wrong chunk each packet of its tree is verified for WARY seconds: of a sum of several packets that is wrong nobody
 * can say later which of them it was. The labels that wrong packets had are counted, and whose they are where they are
 * of one worker: controlplane/service/culprits.py finds out from them which host, link or switch it is.
 */
#ifndef INART_ROOT_VERIFY_H
#define INART_ROOT_VERIFY_H

#include "state.h"

/* Are these words the sum (or maximum) of what this set of workers has sent for the chunk? */
bool verify_words(struct root_thread *x, struct root_tree *t, uint8_t kind, uint64_t sequence, const uint64_t *set,
                  const uint32_t *words);

/* The same, and the words are written to `to` past the caches. */
bool verify_streamed(struct root_thread *x, struct root_tree *t, uint8_t kind, uint64_t sequence, const uint64_t *set,
                     const uint32_t *words, uint32_t *to);

/* What has come of the chunk is forgotten; from now on each of its packets is verified. */
void root_forget_chunk(struct root_thread *x, struct root_tree *t, uint64_t sequence, uint8_t kind);

/* The complete chunk is wrong, and the packet with `label`, of these workers, came last. */
void verify_sum_wrong(struct root_thread *x, struct root_tree *t, uint64_t sequence, uint8_t kind, const uint64_t *set,
                      const uint32_t *words, uint32_t label, uint64_t now);

/* Nothing of a packet counts that is wrong by itself. What else has come of its chunk stays, unless only this was
 * missing: then all have sent theirs, and all are asked. */
bool verify_packet(struct root_thread *x, struct root_tree *t, uint64_t sequence, uint8_t kind, const uint64_t *set,
                   const uint32_t *words, uint32_t label, uint64_t now);

/* A result's check word, in the packet that is to leave: it also covers the number of complete chunks. */
void verify_seal_result(struct root_thread *x, struct root_tree *t, uint64_t sequence, uint8_t kind, uint32_t complete,
                        uint32_t *words);

#endif
