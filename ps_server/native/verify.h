/* Checks whether a chunk's sum is the sum of what the workers have sent (worker_agent/native/check.h).
 *
 * A chunk is verified once, when it is complete, before its result leaves. A wrong chunk is forgotten and comes once
 * more; then each packet is verified before it is added, so that changed or forged packets stay out. After a wrong
 * chunk each packet of its tree is verified for WARY seconds: once a sum of several packets is wrong, nobody can say
 * which of them it was. The labels of wrong packets are counted, with the worker where a packet has the contribution of
 * only one: controlplane/service/culprits.py finds out from them which host, link or switch it is. */
#ifndef INART_ROOT_VERIFY_H
#define INART_ROOT_VERIFY_H

#include "state.h"

/* Returns whether these words are the sum (or maximum) of what this set of workers has sent for the chunk. */
bool verify_words(struct root_thread *x, struct root_tree *t, uint8_t kind, uint64_t sequence, const uint64_t *set,
                  const uint32_t *words);

/* Does the same as verify_words, and writes the words to `to` past the caches. */
bool verify_streamed(struct root_thread *x, struct root_tree *t, uint8_t kind, uint64_t sequence, const uint64_t *set,
                     const uint32_t *words, uint32_t *to);

/* Forgets the contributions to the chunk; from now on each of its packets is verified. */
void root_forget_chunk(struct root_thread *x, struct root_tree *t, uint64_t sequence, uint8_t kind);

/* Handles a complete chunk that is wrong; the packet with `label`, of these workers, came last. */
void verify_sum_wrong(struct root_thread *x, struct root_tree *t, uint64_t sequence, uint8_t kind, const uint64_t *set,
                      const uint32_t *words, uint32_t label, uint64_t now);

/* Returns whether a packet is right by itself; nothing of a wrong one counts. The chunk's other contributions stay,
 * unless only this packet was missing: then all workers have sent theirs, and all are asked. */
bool verify_packet(struct root_thread *x, struct root_tree *t, uint64_t sequence, uint8_t kind, const uint64_t *set,
                   const uint32_t *words, uint32_t label, uint64_t now);

/* Writes a result's check word into the packet that is to leave; it also covers the number of complete chunks. */
void verify_seal_result(struct root_thread *x, struct root_tree *t, uint64_t sequence, uint8_t kind, uint32_t complete,
                        uint32_t *words);

#endif
