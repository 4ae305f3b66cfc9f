#include "adversary.h"

#include "packet.h"

#define NEAR 64    /* chunks: how far a forged sequence number is from the right one, mostly */
#define CHANGES 3  /* of a forged packet, at most */
#define CUT_ONE 20 /* of so many forged packets one is cut short */
#define WORDS_AT (INART_AT(INART_OFFSET_VALUES))

static void change_word(struct carried *c, uint32_t at, uint32_t by) {
    inart_put32(c->payload + at, inart_get32(c->payload + at) ^ by);
}

/* Changes one field of a packet, as somebody would who knows the format. */
static void forge(struct adversary *a, struct carried *c) {
    struct random *r = &a->random;
    uint32_t sequence = INART_AT(INART_OFFSET_SEQUENCE), bitmap = INART_AT(INART_OFFSET_BITMAP);
    switch (random_below(r, 8)) {
    case 0:
        c->payload[INART_AT(INART_OFFSET_FLAGS)] = (uint8_t)random_bits(r);
        break;
    case 1:
        inart_put32(c->payload + sequence,
                    inart_get32(c->payload + sequence) + (uint32_t)random_below(r, 2 * NEAR + 1) - NEAR);
        break;
    case 2:
        inart_put32(c->payload + sequence, (uint32_t)random_bits(r));
        break;
    case 3:
        change_word(c, bitmap + 4 * (uint32_t)random_below(r, 2), 1u << random_below(r, 32));
        break;
    case 4:
        inart_put32(c->payload + bitmap, (uint32_t)random_bits(r));
        break;
    case 5:
        change_word(c, INART_AT(INART_OFFSET_EPOCH), 1u << random_below(r, 32));
        break;
    case 6:
        change_word(c, INART_AT(INART_OFFSET_FLAGS), 1u << (24 + random_below(r, 8)));
        break;
    default:
        for (int i = 0; i < 2 * CHANGES; i++)
            c->payload[WORDS_AT + random_below(r, c->bytes - WORDS_AT)] ^= (uint8_t)random_bits(r);
    }
}

static uint64_t disturb(void *context, uint32_t node, uint32_t port, struct carried *c) {
    struct adversary *a = context;
    struct random *r = &a->random;
    struct network *n = a->job->network;
    uint64_t now = network_now(n);
    if (a->look && a->look(a, node, port, c)) return UINT64_MAX;
    if (node == a->silent_node && now >= a->silent_from && now < a->silent_until) return UINT64_MAX;
    if (random_unit(r) < a->forgeries && c->bytes > WORDS_AT) {
        uint8_t kept[sizeof *c + INART_PAYLOAD_BYTES(INART_MAX_VALUES)] __attribute__((aligned(8)));
        struct carried *forged = (struct carried *)(void *)kept;
        memcpy(forged, c, sizeof *c + c->bytes);
        for (uint64_t i = 0; i <= random_below(r, CHANGES); i++) forge(a, forged);
        if (random_one_in(r, CUT_ONE)) forged->bytes = (uint32_t)random_below(r, forged->bytes);
        network_inject(n, node, port, forged, random_below(r, a->jitter + 1));
        a->forged++;
    }
    if (random_unit(r) < a->copies) network_inject(n, node, port, c, random_below(r, 10 * a->jitter + 1));
    if (random_unit(r) < a->loss) return UINT64_MAX;
    if (random_unit(r) < a->flips) {
        uint64_t bit = random_below(r, 8ull * c->bytes);
        c->payload[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    return random_below(r, a->jitter + 1);
}

void adversary_attach(struct adversary *a) { network_disturb(a->job->network, disturb, a); }
