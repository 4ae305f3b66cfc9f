/* Checks results, and decodes them into the array. */
#ifndef INART_WORKER_DECODE_H
#define INART_WORKER_DECODE_H

#include "state.h"

enum taken { TAKEN, NOT_RIGHT, FAILED };

/* Takes the agreed exponents, and the words that all workers must have alike. */
enum taken worker_take_exponents(struct worker_thread *x, struct worker_tree *t, struct worker_part *p, uint32_t chunk,
                                 const struct inart_header *h, const uint32_t *wire);

/* Puts the result of a data chunk into the array, where it is right. */
enum taken worker_take_values(struct worker_thread *x, struct worker_tree *t, struct worker_part *p,
                              const struct inart_header *h, uint32_t index, const uint32_t *wire);

#endif
