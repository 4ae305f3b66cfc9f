/* Engines whose check can be switched off while they run, to measure what it costs (evaluation/hosts/check_cost.py):
 * given to the compiler before each of their files, it puts a question before what they call of check.h. While
 * inart_unchecked is 1 no check word is made and none is looked at; packets keep the word, which is 0, and numbers are
 * converted by the same passes without the check's part of them. It may change only while nothing is under way. No
 * engine of a job is compiled so: it would take whatever anybody sends.
 */
#ifndef INART_SWITCHED_H
#define INART_SWITCHED_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "checked_stream.h"
#include "engine.h"
#include "unchecked.h"

INART_PUBLIC int inart_unchecked;

static inline bool switched_off(void) { return __atomic_load_n(&inart_unchecked, __ATOMIC_RELAXED); }

#define checked_quantise(k, x, n, biased, wire)                                \
    (switched_off() ? (unchecked_quantise(k, x, n, biased, wire), (uint64_t)0) \
                    : checked_quantise(k, x, n, biased, wire))
#define checked_dequantise(k, wire, n, biased, divisor, x)                                \
    (switched_off() ? (unchecked_dequantise(k, wire, n, biased, divisor, x), (uint64_t)0) \
                    : checked_dequantise(k, wire, n, biased, divisor, x))
#define check_sum(k, wire) (switched_off() ? (uint64_t)0 : check_sum(k, wire))
#define checked_stream(k, wire, to)                                                         \
    (switched_off() ? (inart_stream(to, wire, (k)->values * sizeof(uint32_t)), (uint64_t)0) \
                    : checked_stream(k, wire, to))
#define check_word(k, sum, mask) (switched_off() ? 0u : check_word(k, sum, mask))
#define check_own_mask(k, masks, worker, tree, kind, sequence) \
    (switched_off() ? 0u : check_own_mask(k, masks, worker, tree, kind, sequence))
#define check_mask(k, masks, tree, kind, sequence, set, words) \
    (switched_off() ? 0u : check_mask(k, masks, tree, kind, sequence, set, words))
#define check_right(k, wire, sum, mask) (switched_off() || check_right(k, wire, sum, mask))
#define check_result(k, results, sum, tree, kind, sequence, complete) \
    (switched_off() ? 0u : check_result(k, results, sum, tree, kind, sequence, complete))
#define check_result_right(k, results, wire, sum, tree, kind, sequence, complete) \
    (switched_off() || check_result_right(k, results, wire, sum, tree, kind, sequence, complete))
#define check_seal_exponents(k, tree, sequence, first, wire) \
    (switched_off() ? unchecked_exponents(k, first, wire) : check_seal_exponents(k, tree, sequence, first, wire))
#define check_maximum_right(k, wire, tree, sequence) (switched_off() || check_maximum_right(k, wire, tree, sequence))

#endif
