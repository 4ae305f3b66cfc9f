/* A network in virtual time for programs in C (network.c says what each function does). */
#ifndef INART_NETWORK_H
#define INART_NETWORK_H

#include "carried.h"

struct network;

enum network_action { NETWORK_NOTHING, NETWORK_FORWARD, NETWORK_REPLICATE, NETWORK_AGGREGATE };

/* Sees a packet that `node` sends over its link at `port`, and may change it. Returns by how many ns it is late;
 * UINT64_MAX: it is lost. */
typedef uint64_t network_disturbance(void *context, uint32_t node, uint32_t port, struct carried *c);

struct network *network_make(uint64_t seed, uint32_t words);
uint32_t network_node(struct network *n, uint32_t ports, uint32_t slots, uint32_t address);
void network_link(struct network *n, uint32_t from, uint32_t port, uint32_t to, uint32_t to_port, double mbps,
                  double delay_ms, uint32_t queue);
void network_entry(struct network *n, uint32_t node, uint32_t port, uint32_t label, uint8_t action, uint32_t out,
                   uint32_t slot_base, uint32_t slot_mask, uint32_t next_label, uint32_t partial_label, uint64_t flow,
                   uint64_t everyone);
void network_group(struct network *n, uint32_t node, uint32_t number, uint32_t count, const uint32_t *ports);
void network_enter(struct network *n, uint32_t node);
void network_engine(struct network *n, uint32_t node, void *engine, struct virtual_sleep (*step)(void *));
void network_wake(struct network *n, uint32_t node);
void network_faults(struct network *n, double loss, uint64_t lateness);
void network_disturb(struct network *n, network_disturbance *disturb, void *context);
void network_inject(struct network *n, uint32_t node, uint32_t port, const struct carried *c, uint64_t in);
void network_reboot(struct network *n, uint32_t node);
void network_stop(struct network *n, uint32_t node, uint64_t until);
uint64_t network_now(const struct network *n);
uint64_t network_next(const struct network *n);
uint64_t network_run(struct network *n, uint64_t until);
void network_free(struct network *n);

#endif
