/* What the simulated network (network.c) and the engines in it (virtual.h) have in common. */
#ifndef INART_CARRIED_H
#define INART_CARRIED_H

#include <stdint.h>

/* A packet, as UDP carries it. Several hosts may have it at once. */
struct carried {
    uint32_t holders, bytes, source;
    uint16_t port;
    uint8_t congested; /* a switch has marked it (ECN) */
    uint8_t payload[] __attribute__((aligned(8)));
};

struct virtual_world {
    uint64_t now; /* ns */
    void *host;   /* on which the engine is that is called */
    /* link: over the host's link; here: to the other engine on the host. */
    void (*send)(void *host, uint16_t port, const uint8_t *payload, uint32_t bytes, int link, int here);
    struct carried *(*take)(void *host, uint16_t port); /* the next that has come; valid until the host's next round */
};

/* until: when an engine wants its next round; spacing: after how long one for packets; UINT64_MAX: for none. */
struct virtual_sleep {
    uint64_t until, spacing;
};

#endif
