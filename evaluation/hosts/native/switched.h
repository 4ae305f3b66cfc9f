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
#define check_whole(k, sum, who, number) (switched_off() ? 0u : check_whole(k, sum, who, number))
#define check_number(k, recent, tree, kind, sequence) \
    (switched_off() ? 0u : check_number(k, recent, tree, kind, sequence))
#define check_right(k, wire, who, number) (switched_off() || check_right(k, wire, who, number))
#define check_sum_right(k, wire, sum, who, number) (switched_off() || check_sum_right(k, wire, sum, who, number))
#define check_result_right(k, wire, sum, who, number, complete) \
    (switched_off() || check_result_right(k, wire, sum, who, number, complete))
#define check_seal_exponents(k, number, first, wire) \
    (switched_off() ? unchecked_exponents(k, first, wire) : check_seal_exponents(k, number, first, wire))
#define check_seal(k, complete, number) (switched_off() ? 0u : check_seal(k, complete, number))
#define check_modulo(k, x) (switched_off() ? 0u : check_modulo(k, x))
#define check_header(k, complete) (switched_off() ? 0u : check_header(k, complete))
#define check_maximum_right(k, wire, number) (switched_off() || check_maximum_right(k, wire, number))

#endif
