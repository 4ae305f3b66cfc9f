/* What tests need to know of the engines' own state. */
#ifndef TESTS_ENGINES_PEEK_H
#define TESTS_ENGINES_PEEK_H

#include <stdbool.h>
#include <stdint.h>

/* Returns whether an operation has ended that nobody has fetched. */
bool peek_has_done(const void *worker);

/* Has a new engine's trees begin at a chunk near this number on the wire. */
void peek_worker_begin_at(void *worker, uint64_t number);
void peek_root_begin_at(void *root, uint64_t number);

#endif
