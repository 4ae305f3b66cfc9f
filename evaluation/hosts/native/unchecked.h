/* Engines without the check, to measure what it costs (evaluation/hosts/check_cost.py): given to the compiler before
 * each of their files, it leaves of check.h what they call, with nothing in it. No check word is made and none is
 * looked at; packets keep the word, which is 0. No engine of a job is compiled so: it would take whatever anybody
 * sends.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "check.h"
#include "checked_numbers.h"

#define checked_quantise(k, x, n, biased, wire) \
    (inart_quantise(x, n, INART_DATA_VALUES((k)->values), biased, (k)->workers, wire), (uint64_t)0)
#define checked_dequantise(k, wire, n, biased, divisor, x) \
    (inart_dequantise(wire, n, biased, (k)->workers, divisor, x), (uint64_t)0)
#define check_sum(k, wire) ((uint64_t)0)
#define check_whole(k, sum, who, number) ((void)(sum), (void)(who), (void)(number), 0u)
#define check_number(k, recent, tree, kind, sequence) ((void)(kind), 0u)
#define check_right(k, wire, who, number) ((void)(wire), (void)(who), (void)(number), true)
#define check_result_right(k, wire, sum, who, number, complete) \
    ((void)(k), (void)(sum), (void)(who), (void)(number), true)
#define check_seal_exponents(k, number, first, wire)                                                   \
    for (uint32_t at = ((void)(number), (first)), n = INART_EXPONENT_WORDS((k)->values); at < n; at++) \
    (wire)[at] = (wire)[at + n] = __builtin_bswap32((wire)[at] << CHECK_CODE_BITS)
#define check_maximum_right(k, wire, number) ((void)(number), true)
